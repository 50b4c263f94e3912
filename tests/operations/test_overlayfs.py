"""Directories that come from a lower layer of overlayfs, as in every container, cannot be renamed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap

import dask.array as da
import pytest

import shardwrite

IN_A_CONTAINER = """
    set -e
    mount -t tmpfs -o size=32m none {base}
    mkdir {base}/upper {base}/work {base}/merged
    mount -t overlay overlay -o lowerdir={lower},upperdir={base}/upper,workdir={base}/work {base}/merged
"""
CALLS = """
    import json, os, sys
    import dask.array as da, numpy as np, shardwrite
    os.chdir(sys.argv[1])
    x = da.zeros((8, 8), chunks=4)
    try:
        os.rename("x", "y")
    except OSError as error:
        told = {"rename": error.errno}
    else:  # this system renames them (redirect_dir), and nothing is to be refused
        os.rename("y", "x")
        told = {"rename": 0}
    def call(name, function):
        try:
            function()
            told[name] = ""
        except shardwrite.ShardwriteError as error:
            told[name] = str(error)
        told[f"after {name}"] = [sorted(os.listdir(".")), float(shardwrite.open_sharded("x")[:, :].sum())]
    call("w", lambda: x.to_sharded_zarr("x", mode="w", shards=4, chunks=2))
    call("restart", lambda: x.to_sharded_zarr("x", mode="w", shards=4, chunks=2, restart=True))
    call("in place", lambda: shardwrite.reshard("x", shards=1))
    call("abandon", lambda: shardwrite.abandon("x"))
    call("consume", lambda: shardwrite.shard("flat", "new", shards=2, consume=True))
    call("update", lambda: shardwrite.write_region(2, "x", np.s_[:4, :4]))
    os.system("cp -r x copy && rm -r x && mv copy x")
    call("remedy", lambda: x.to_sharded_zarr("x", mode="w", shards=4, chunks=2))
    call("remedy in place", lambda: shardwrite.reshard("x", shards=1))
    print(json.dumps(told))
"""


@pytest.fixture
def told(tmp_path):
    lower, base = tmp_path / "lower", tmp_path / "base"
    base.mkdir()
    ones = da.ones((8, 8), chunks=4)
    shardwrite.to_sharded_zarr(ones, lower / "x", shards=4, chunks=2)
    shardwrite.to_sharded_zarr(ones, lower / "flat", shards=None, chunks=2)
    mounts = textwrap.dedent(IN_A_CONTAINER.format(base=base, lower=lower))
    unshare = shutil.which("unshare")
    can = unshare and subprocess.run(
        [unshare, "-m", "sh", "-c", mounts], capture_output=True, check=False
    )
    if not can or can.returncode:
        pytest.skip("no overlayfs can be mounted here")
    # Python starts anew: a process that is forked from another one keeps its view of the mounts.
    run = f'{mounts}\nexec {sys.executable} -c "$0" {base}/merged'
    done = subprocess.run(
        [unshare, "-m", "sh", "-c", run, textwrap.dedent(CALLS)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
def test_refused_before_anything_changes(told):
    if not told["rename"]:
        pytest.skip("overlayfs renames directories of lower layers here")
    for call in ("w", "restart", "in place"):
        assert "overlayfs does not rename directories of the image" in told[call]
        assert "give another path, or copy the directory" in told[call]
        assert told[f"after {call}"] == [["flat", "x"], 64.0]
    assert (told["abandon"], told["after abandon"]) == ("", [["flat", "x"], 64.0])
    assert (told["consume"], told["after consume"]) == ("", [["new", "x"], 64.0])
    assert (told["update"], told["after update"]) == ("", [["new", "x"], 80.0])
    assert (told["remedy"], told["after remedy"]) == ("", [["new", "x"], 0.0])
    assert (told["remedy in place"], told["after remedy in place"]) == ("", [["new", "x"], 0.0])
