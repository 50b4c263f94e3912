"""Stores, groups and arrays of zarr-python in the place of a path."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

import shardwrite
from shardwrite import SpecError

VALUES = np.arange(20 * 30, dtype="i4").reshape(20, 30)
SIZES = {"shards": (10, 12), "chunks": (5, 4)}


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=(7, 30))


def test_a_local_store_is_its_directory(tmp_path, x):
    store = LocalStore(tmp_path / "x.zarr")
    assert x.to_sharded_zarr(store, **SIZES).n_shards == 6
    np.testing.assert_array_equal(zarr.open_array(store)[...], VALUES)
    assert (tmp_path / "x.zarr" / "shardwrite-receipt.json").is_file()
    assert shardwrite.verify(store, deep=True).is_good
    np.testing.assert_array_equal(shardwrite.open_sharded(store)[3:5], VALUES[3:5])


def test_a_group_and_a_name(tmp_path, x):
    root = zarr.create_group(tmp_path / "all.zarr")
    inner = root.create_group("raw")
    x.to_sharded_zarr(inner, name="deep/x", **SIZES)
    np.testing.assert_array_equal(root["raw/deep/x"][...], VALUES)
    assert isinstance(root["raw/deep"], zarr.Group)
    assert shardwrite.verify(inner, name="deep/x").is_good
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(root, name="raw/deep/x"), VALUES)


def test_a_group_without_a_name_is_not_replaced(tmp_path, x):
    group = zarr.create_group(tmp_path / "all.zarr")
    with pytest.raises(SpecError, match="a group stands there"):
        x.to_sharded_zarr(group, mode="w", **SIZES)


def test_an_array_is_updated_and_replaced(tmp_path, x):
    x.to_sharded_zarr(tmp_path / "x.zarr", **SIZES)
    array = zarr.open_array(tmp_path / "x.zarr")
    with pytest.raises(SpecError, match="an array exists there"):
        (x + 1).to_sharded_zarr(array, **SIZES)
    (x[:4] + 1).to_sharded_zarr(array, region=np.s_[2:6])
    np.testing.assert_array_equal(array[2:6], VALUES[:4] + 1)
    (x + 2).to_sharded_zarr(array, mode="w", **SIZES)
    np.testing.assert_array_equal(array[...], VALUES + 2)
    np.testing.assert_array_equal(shardwrite.open_sharded(array.store_path)[...], VALUES + 2)


def test_a_stream_into_an_array(tmp_path):
    group = zarr.create_group(tmp_path / "all.zarr")
    shardwrite.create(group, (0, 30), "i4", name="x", **SIZES)
    with shardwrite.ShardWriter(group["x"]) as writer:
        for row in VALUES:
            writer.append(row)
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "all.zarr")["x"][...], VALUES)


def test_a_store_that_is_no_directory_is_read_but_not_written(x):
    store = MemoryStore()
    with pytest.raises(SpecError, match="only directories can be written yet"):
        x.to_sharded_zarr(store, **SIZES)
    group = zarr.create_group(store)
    made = group.create_array("x", shape=(20, 30), dtype="i4", **SIZES)
    made[...] = VALUES
    made[:10, :12] = 0
    with pytest.raises(SpecError, match="open_sharded and from_sharded_zarr read any store"):
        shardwrite.verify(store, name="x")
    wanted = VALUES.copy()
    wanted[:10, :12] = 0
    for given, name in ((store, "x"), (group, "x"), (made, None), (made.store_path, None)):
        np.testing.assert_array_equal(shardwrite.open_sharded(given, name)[...], wanted)
    found = shardwrite.from_sharded_zarr(group, name="x")
    assert found.chunks == ((10, 10), (12, 12, 6))
    np.testing.assert_array_equal(found, wanted)


def test_what_is_not_in_a_store(x):
    store = MemoryStore()
    zarr.create_group(store)
    with pytest.raises(SpecError, match=r"there is no zarr\.json"):
        shardwrite.open_sharded(store, "missing")
    with pytest.raises(SpecError):
        shardwrite.open_sharded(store)


def test_a_read_only_store_is_not_written(tmp_path, x):
    x.to_sharded_zarr(tmp_path / "x.zarr", **SIZES)
    store = LocalStore(tmp_path / "x.zarr", read_only=True)
    assert shardwrite.verify(store).is_good
    with pytest.raises(SpecError, match="read-only"):
        x.to_sharded_zarr(store, mode="w", **SIZES)


@pytest.mark.parametrize("name", [3, "../x", "a//b"])
def test_a_name_in_a_group_is_checked(tmp_path, x, name):
    group = zarr.create_group(tmp_path / "all.zarr").create_group("raw")
    with pytest.raises(SpecError, match="not a relative path of plain names"):
        x.to_sharded_zarr(group, name=name, **SIZES)
