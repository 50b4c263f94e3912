"""An array is not replaced by what is read from it."""

from __future__ import annotations

import os

import dask.array as da
import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import shardwrite
from shardwrite import SpecError, patch_dask
from shardwrite.sources import as_dask, open_source

VALUES = np.arange(1, 20 * 30 + 1, dtype="i4").reshape(20, 30)
SIZES = {"shards": (10, 12), "chunks": (5, 4)}
NEW = {"mode": "w", "shards": (20, 30), "chunks": (5, 10)}

READERS = {
    "zarr array": zarr.open_array,
    "open array": shardwrite.open_sharded,
    "source": lambda path: open_source(str(path)),
    "from_zarr": da.from_zarr,
    "from_zarr, inline": lambda path: da.from_zarr(path, inline_array=True),
    "from_sharded_zarr": shardwrite.from_sharded_zarr,
    "as_dask": lambda path: as_dask(open_source(str(path))),
    "computed from it": lambda path: (da.from_zarr(path).T + 1).T[:, ::-1],
    "xarray": lambda path: (
        pytest.importorskip("xarray").open_zarr(path.parent, consolidated=False)["x"] * 2
    ),
    "stored": lambda path: shardwrite.to_sharded_zarr(VALUES, path, return_stored=True, **SIZES),
}


@pytest.mark.parametrize("reader", READERS)
def test_it_is_refused_before_anything_is_removed(reader, tmp_path):
    zarr.create_group(tmp_path)
    path = tmp_path / "x"
    known = {"dimension_names": ("y", "x")} if reader == "xarray" else {}
    shardwrite.to_sharded_zarr(VALUES, path, **known, **SIZES)
    x = READERS[reader](path)
    before = sorted(os.walk(tmp_path))
    with pytest.raises(SpecError, match="the source reads the array that it is to replace"):
        shardwrite.to_sharded_zarr(x, path, **NEW)
    assert sorted(os.walk(tmp_path)) == before
    shardwrite.to_sharded_zarr(x, tmp_path / "other", **NEW)
    wanted = zarr.open_array(tmp_path / "other")[...]
    shardwrite.to_sharded_zarr(wanted, path, **NEW)  # it was computed first
    np.testing.assert_array_equal(zarr.open_array(path)[...], wanted)


def test_under_another_path_and_by_the_patch(tmp_path):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    os.symlink(tmp_path, tmp_path / "link")
    with patch_dask(), pytest.raises(SpecError, match="is to replace"):
        da.from_zarr(tmp_path / "link" / "x").to_zarr(tmp_path / "x", **NEW)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x")[...], VALUES)


def test_in_memory_only_the_same_array_is_refused():
    store = MemoryStore()
    for name in "ab":
        shardwrite.to_sharded_zarr(VALUES, store, name=name, **SIZES)
    a, b = (zarr.open_group(store)[name] for name in "ab")
    with pytest.raises(SpecError, match="is to replace"):
        shardwrite.to_sharded_zarr(a, store, name="a", **NEW)
    with pytest.raises(SpecError, match="is to replace"):  # each would read the other
        shardwrite.store([da.from_zarr(b) + 1, a], [store] * 2, names=["a", "b"], **NEW)
    shardwrite.to_sharded_zarr(da.from_zarr(a) + 1, store, name="b", **NEW)
    np.testing.assert_array_equal(zarr.open_group(store)["a"][...], VALUES)
    np.testing.assert_array_equal(zarr.open_group(store)["b"][...], VALUES + 1)


def test_parts_that_would_read_it(tmp_path):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    x = shardwrite.from_sharded_zarr(tmp_path / "x")
    with pytest.raises(SpecError, match="is to replace"):
        shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, **SIZES), mode="w")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x")[...], VALUES)
