"""Fault family 8: readers while a run goes on; no value is ever wrong, and a shard is there whole
or not at all."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import dask
import numpy as np
import pytest
from forks import python

sys.path.insert(0, str(Path(__file__).parent))
import hammer
import oracle

READER = """
import sys, time
sys.path.insert(0, {here!r})
import numpy as np, oracle, tensorstore as ts, zarr
path, which, stop = sys.argv[1:4]
wanted = oracle.values((128, 128))
n, n_partial, errors = 0, 0, 0
import os
print("ready", flush=True)
while not os.path.exists(stop):
    if not os.path.exists(path + "/zarr.json"):
        continue
    try:
        if which == "tensorstore":
            spec = {{"driver": "zarr3", "kvstore": {{"driver": "file", "path": path}}}}
            found = ts.open(spec).result().read().result()
        else:
            found = zarr.open_array(path, mode="r")[...]
    except Exception:
        errors += 1
        continue
    n += 1
    shards = found.reshape(16, 8, 16, 8).swapaxes(1, 2)
    right = (shards == wanted.reshape(16, 8, 16, 8).swapaxes(1, 2)).all(axis=(2, 3))
    absent = (shards == 0).all(axis=(2, 3))
    assert (right | absent).all(), "a wrong value"
    n_partial += bool(right.any() and absent.any())
    if n_partial:
        open(stop + "-" + which, "w").close()  # the run may go on to its end
print(n, n_partial, errors)
"""


@pytest.mark.parametrize(
    "durability",
    [
        "none",
        pytest.param("full", marks=pytest.mark.long),
        pytest.param("batch", marks=pytest.mark.long),
    ],
)
def test_nobody_reads_a_wrong_value_while_it_is_written(tmp_path, durability):
    path, stop = tmp_path / "x", tmp_path / "stop"
    readers = [
        subprocess.Popen(
            [
                *python(),
                "-c",
                READER.format(here=str(Path(__file__).parent)),
                path,
                which,
                stop,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for which in ("zarr-python", "tensorstore")
    ]
    for reader in readers:
        assert reader.stdout.readline() == "ready\n"

    read = [Path(f"{stop}-{which}") for which in ("zarr-python", "tensorstore")]
    n_blocks = itertools.count()

    def slow(block):
        """The last blocks wait until each reader has seen an array that is not whole."""
        time.sleep(0.02)
        deadline = time.monotonic() + 60
        if next(n_blocks) > 24:
            while time.monotonic() < deadline and not all(path.exists() for path in read):
                time.sleep(0.01)
        return block

    x = oracle.source((128, 128), (8, 64)).map_blocks(slow, dtype="u4", meta=np.empty((0, 0), "u4"))
    with dask.config.set(scheduler="threads", num_workers=2):
        x.to_sharded_zarr(
            path,
            shards=8,
            chunks=4,
            publish="first",
            durability=durability,
            memory_limit="60kB",
            max_source_reruns=100,
        )
    stop.touch()
    for reader in readers:
        out, err = reader.communicate(timeout=60)
        assert reader.returncode == 0, err
        _, n_partial, errors = map(int, out.split())
        assert n_partial > 0, "it never read while the run went on"
        assert errors == 0, "new shards are never half there"
    oracle.check_whole(path, oracle.values((128, 128)))


def test_with_publish_last_nobody_sees_an_array_that_is_not_whole(tmp_path):
    path, seen, done = tmp_path / "x", [], threading.Event()

    def look():
        while not done.is_set():
            if (path / "zarr.json").exists():
                seen.append(len([p for p in (path / "c").rglob("*") if p.is_file()]))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        oracle.source((64, 64), (8, 64)).to_sharded_zarr(path, shards=8, chunks=4)
        time.sleep(0.05)
    finally:
        done.set()
        looking.join()
    assert seen
    assert set(seen) == {64}


def check_hammered(directory, strategy, seconds):
    """Whatever a reader meets is one version, or an error; of shards that are replaced whole,
    tensorstore meets no error."""
    for reader, met in hammer.hammer(directory, strategy, seconds).items():
        assert met["reads"] > 20, met
        assert met["versions"] > 1, "it never read what was new"
        assert met["wrong"] == 0, (reader, met)
        assert met["filled"] == 0 or (reader == "zarr-python" and strategy != "FixedOrder()"), (
            "only where a shard was made shorter"
        )
        if reader == "tensorstore" and "in_place" not in strategy:
            assert met["errors"] == 0, met
        assert met["errors"] < met["reads"] / 10, met


@pytest.mark.long
def test_nobody_reads_a_wrong_value_during_updates(tmp_path):
    check_hammered(tmp_path, "FixedOrder(in_place=True)", 1.5)


@pytest.mark.long
@pytest.mark.parametrize("strategy", sorted(hammer.STRATEGIES))
def test_nobody_reads_a_wrong_value_during_many_updates(tmp_path, strategy):
    check_hammered(tmp_path, strategy, 6)
