"""With ``--dry-run``, each command that writes prints what it would do, and writes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import re

import click
import dask.array as da
import h5py
import numpy as np
import pytest
import seams
from click.testing import CliRunner
from helpers import Stop, stop

import shardwrite
from shardwrite.cli import main

# write nothing, or only what the user names: a page, a picture
READING = {
    "plan",
    "design",
    "info",
    "report",
    "census",
    "completion",
    "config",
    "slurm script",
    "slurm status",
}
# run a user's own program, or write to see whether they can
OTHERS = {"exec", "slurm doctor"}


def commands(group=main, above=()):
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*above, name))
        elif not command.hidden:
            yield " ".join((*above, name)), command


def tree(top):
    """Everything below a directory: names, types, contents, times of change."""
    found = {}
    for directory, names, files in os.walk(top):
        for name in (*names, *files):
            path = os.path.join(directory, name)
            status = os.lstat(path)
            data = b""
            if name in files:
                with open(path, "rb") as file:
                    data = file.read()
            found[path] = (status.st_mode, status.st_mtime_ns, hashlib.sha256(data).hexdigest())
    return found


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A source, an array, one that is torn and wasteful, one in parts, and one in an update."""
    monkeypatch.chdir(tmp_path)
    x = np.arange(64.0).reshape(8, 8)
    np.save("x.npy", x)
    np.save("cube.npy", np.ones((4, 4, 4), "u1"))
    for number in range(2):
        with h5py.File(f"{number}.h5", "w") as file:
            file.create_dataset("data", data=x, chunks=(2, 4))
    layout = {"shards": (4, 4), "chunks": (2, 2)}
    shardwrite.to_sharded_zarr(da.from_array(x, chunks=4), "a.zarr", **layout)
    shardwrite.to_sharded_zarr(da.from_array(x, chunks=4), "bad.zarr", **layout)
    (tmp_path / "bad.zarr" / "c" / "0" / "0").write_bytes(b"torn")
    shardwrite.to_sharded_zarr(da.from_array(x + 1, chunks=4), "lost.zarr", **layout)
    for leaf in ("zarr.json", "shardwrite-receipt.json", "c/0/0"):
        (tmp_path / "lost.zarr" / leaf).unlink()
    shardwrite.to_sharded_zarr(da.from_array(x, chunks=4), "waste.zarr", **layout)
    for _ in range(4):
        shardwrite.write_region(
            da.from_array(-x[:2, :2]),
            "waste.zarr",
            (slice(0, 2), slice(0, 2)),
            strategy=shardwrite.AppendOnly(),
        )
    run("init", "x.npy", "parts.zarr", "--shards", "4", "--chunks", "2")
    shardwrite.to_sharded_zarr(da.from_array(x, chunks=4), "update.zarr", **layout)

    def failing(_):
        raise ValueError("no")

    bad = da.from_array(x[:4], chunks=4).map_blocks(failing, meta=np.empty((0, 0)))
    with pytest.raises(ValueError, match="no"):
        shardwrite.write_region(bad, "update.zarr", (slice(0, 4), slice(0, 8)))
    shardwrite.to_sharded_zarr(da.from_array(x, chunks=2), "plain.zarr", shards=None, chunks=(2, 2))
    return tmp_path


def run(*words, code=0):
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == code, done.output
    return done.stdout


CASES = {
    "write": (
        ["x.npy", "new.zarr", "--shards", 4, "--chunks", 2],
        0,
        "at .*new.zarr there is nothing",
    ),
    "init": (["x.npy", "new.zarr", "--shards", 4, "--chunks", 2], 0, "shards"),
    "write-part": (["x.npy", "parts.zarr", "0/2"], 0, "part 0 of 2"),
    "finalize": (["parts.zarr"], 85, "4"),
    "update": (["x.npy", "a.zarr", "--append", 0], 0, "shards"),
    "erase": (["a.zarr", "--region", "0:4,0:4"], 0, "shards"),
    "compact": (["waste.zarr"], 0, "1"),
    "abandon": (["update.zarr"], 0, "0:4,0:8"),
    "verify": (["a.zarr", "--accept"], 0, ""),
    "recover": (
        ["lost.zarr", "--shape", "8,8", "--dtype", "f8", "--shards", 4, "--chunks", 2],
        85,
        "1 have no object",
    ),
    "repair": (["bad.zarr", "--source", "x.npy"], 85, "c/0/0"),
    "shard": (["plain.zarr", "new.zarr", "--shards", 2], 0, ""),
    "unshard": (["a.zarr", "new.zarr"], 0, ""),
    "reshard": (["a.zarr", "new.zarr", "--shards", 4], 0, ""),
    "adopt": (["0.h5", "1.h5", "new.zarr"], 0, "to adopt"),
    "upload": (["a.zarr", "memory://a.zarr"], 0, "PUT"),
    "download": (["a.zarr", "new.zarr"], 0, "copied as they are"),
    "precomputed": (
        ["cube.npy", "volume", "--axes", "zyx", "--resolution", "4,4,40", "--chunks", 2],
        0,
        "shards",
    ),
    "demo": ([], 0, "would be written"),
    "slurm cancel": (["parts.zarr"], 0, "no jobs are known"),
}
WITH_SLURM = {
    f"slurm {name}" for name in ("submit", "resubmit", "shard", "unshard", "reshard", "precomputed")
}  # see the next test, and tests/slurm


def test_every_command_that_writes_has_the_option():
    found = {
        name: any("--dry-run" in option.opts for option in command.params)
        for name, command in commands()
    }
    assert {name for name in found if not found[name]} == READING | OTHERS
    assert {name for name in found if found[name]} == set(CASES) | WITH_SLURM


@pytest.mark.long
def test_nothing_is_written(work):
    before = tree(work)
    for name, (words, code, told) in CASES.items():
        text = run(*name.split(), *words, "--dry-run", code=code)
        assert text.strip(), name
        assert re.search(told, text), text
        if name not in ("shard", "unshard", "reshard", "demo"):
            json.loads(run(*name.split(), *words, "--dry-run", "--json", code=code))
        assert tree(work) == before, name


def test_without_the_option_something_is_written(work):
    """Else the test above could not fail."""
    for name in ("compact", "repair", "abandon", "erase", "finalize"):
        words, code, _ = CASES[name]
        before = tree(work)
        run(*name.split(), *words, code=0 if name == "repair" else code)
        assert tree(work) != before, name


def test_what_is_told_is_what_is_done(work):
    foreseen = json.loads(run("compact", "waste.zarr", "--dry-run", "--json"))
    done = json.loads(run("compact", "waste.zarr", "--json"))
    same = ("n_shards", "n_rewritten", "stored_nbytes_before", "unused_nbytes_before")
    assert [foreseen[key] for key in same] == [done[key] for key in same]
    assert foreseen["n_rewritten"] == 1
    foreseen = run("abandon", "update.zarr", "--dry-run")
    assert run("abandon", "update.zarr") == foreseen
    assert run("abandon", "update.zarr", "--dry-run").strip() == "nothing was interrupted"
    assert "touches 2 shards" in run("erase", "a.zarr", "--region", "0:4,:", "--dry-run")
    assert json.loads(run("erase", "a.zarr", "--region", "0:4,:", "--json"))["n_empty_shards"] == 2


def test_write_tells_what_stands_there(work):
    words = ["x.npy", "a.zarr", "--shards", "4", "--chunks", "2", "--dry-run"]
    assert "an array or a group" in run("write", *words)
    assert "an unfinished run" in run("write", "x.npy", "parts.zarr", *words[2:])
    assert seams.has_run("parts.zarr")


def test_bad_input_is_refused_as_without_the_option(work):
    before = tree(work)
    run("erase", "a.zarr", "--region", "0:4,0:4,0:4", "--dry-run", code=2)
    run("compact", "no.zarr", "--dry-run", code=2)
    run("write-part", "x.npy", "a.zarr", "0/2", "--dry-run", code=85)
    run("write-part", "x.npy", "parts.zarr", "2/2", "--dry-run", code=2)
    run("abandon", "no.zarr", "--dry-run", code=2)
    run("abandon", "parts.zarr", "--dry-run", code=2)
    run("slurm", "resubmit", "parts.zarr", "--array", "1", "--dry-run", code=2)
    assert tree(work) == before


def test_updates_of_a_group_are_given_up(tmp_path):
    xr = pytest.importorskip("xarray")
    steps = [xr.Dataset({n: ("t", np.arange(3) + k) for n in "ab"}) for k in (1, 4)]
    root = tmp_path / "x.zarr"
    steps[0].shardwrite.to_zarr(root)
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(Stop):
            steps[1].shardwrite.to_zarr(root, append_dim="t")
    for words in (["--dry-run"], []):
        assert run("abandon", root, *words).splitlines() == ["3:6", "3:6"]
    assert run("abandon", root).strip() == "nothing was interrupted"
