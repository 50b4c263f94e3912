"""How often one more variable is synced, beside its shards."""

from __future__ import annotations

import os
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import shardwrite  # noqa: F401 (which gives datasets their accessor)

xr = pytest.importorskip("xarray")

SIZES = {"shards": {"t": 8}, "chunks": {"t": 4}}
# The record of the run: two files and their directory. The directory beside the array, in which the
# record has a name; for an update, there are two directories in it. An update also leaves a mark in
# the array, before any shard changes: the directory of marks, and that of the array, which names it.
# Document and receipt: two files. The directory of the array, for the first shards, the document and
# the receipt.
NEW, APPENDED = 3 + 1 + 2 + 3, 3 + 3 + 2 + 2 + 3


def dataset(n, start=0):
    x = da.zeros((8, 4), chunks=(8, 4)) + start + 1
    return xr.Dataset({f"v{k}": (("t", "x"), x) for k in range(n)}, {"t": np.arange(8) + start})


@pytest.fixture
def synced(monkeypatch):
    """Paths of all that is synced."""
    paths, real = [], os.fsync

    def note(fd):
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", note)
    return paths


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux tells the paths")
def test_each_directory_is_synced_once_for_all_variables(synced, tmp_path):
    counted = {"new": [], "appended": []}
    for n in (2, 6):
        root = tmp_path / f"{n}.zarr"
        for what, more in (("new", SIZES), ("appended", {"append_dim": "t"})):
            synced.clear()
            with dask.config.set(scheduler="sync"):
                dataset(n, 8 * (what == "appended")).shardwrite.to_zarr(root, **more)
            beside = [path for path in synced if "/c" not in path.partition(".zarr")[2]]
            counted[what].append(len(beside))
    each = {what: (many - few) / 4 for what, (few, many) in counted.items()}
    assert each == {"new": NEW, "appended": APPENDED}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="as above")
def test_what_lies_beside_an_array_is_listed_a_few_times(monkeypatch, tmp_path):
    """An append looks for other runs: when it is planned, before it begins, and once it has."""
    listed, real = [], os.listdir

    def note(path="."):
        listed.append(str(path))
        return real(path)

    dataset(6).shardwrite.to_zarr(tmp_path / "x.zarr", **SIZES)
    monkeypatch.setattr(os, "listdir", note)
    dataset(6, 8).shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="t")
    for k in range(6):
        beside = [path for path in listed if f"/v{k}.shardwrite" in path]
        assert 0 < len(beside) <= 5
