"""Reading by index: what numpy gives, numpy's error where it gives none, and no value that is not there."""

from __future__ import annotations

import errno
import itertools

import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.read import array

pytestmark = pytest.mark.compat

VALUES = np.arange(60).reshape(6, 10)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("read") / "x"
    da.from_array(VALUES, chunks=5).to_sharded_zarr(path, shards=4, chunks=2)
    return path


@pytest.mark.parametrize(
    "key",
    [
        2,
        (2,),
        (2, 3),
        (-1, -10),
        slice(1, 3),
        (slice(None, None, -2), 4),
        (slice(5, 2), slice(None)),
        ...,
        (..., 3),
        (3, ...),
        ([1, 2], slice(None)),
        ([], slice(2, 4)),
        (VALUES[:, 0] > 20, slice(None)),
        (np.int64(2), np.array(3)),
    ],
    ids=str,
)
def test_an_index_gives_what_numpy_gives(path, key):
    found = shardwrite.open_sharded(path)[key]
    np.testing.assert_array_equal(found, VALUES[key])
    assert np.shape(found) == VALUES[key].shape


@pytest.mark.parametrize(
    "key",
    [
        (7, 0),
        (6, 0),
        (-7, 0),
        (0, 10),
        ([9], slice(None)),
        ([0, -7], slice(None)),
        (np.ones(7, bool), slice(None)),
        (0, 0, 0),
        (slice(None), slice(None), 0),
        (..., 0, ...),
        (1.5, 0),
        ("a", 0),
        (None, 0),
    ],
    ids=str,
)
def test_an_index_that_selects_nothing_that_is_there(path, key):
    with pytest.raises(IndexError):
        shardwrite.open_sharded(path)[key]


def test_numpy_reads_the_whole(path):
    array = shardwrite.open_sharded(path)
    np.testing.assert_array_equal(np.asarray(array), VALUES)
    assert np.asarray(array, dtype="f4").dtype == np.float32
    np.testing.assert_array_equal(np.array(array, copy=True), VALUES)
    np.testing.assert_array_equal(list(array), VALUES)
    assert (len(array), array.size) == (6, 60)
    with pytest.raises(ValueError, match="makes a copy"):
        np.array(array, copy=False)


def test_one_size_for_all_axes(path):
    found = shardwrite.from_sharded_zarr(path, chunks=4)
    assert found.chunks == ((4, 2), (4, 4, 2))
    np.testing.assert_array_equal(found.compute(), VALUES)


@pytest.mark.parametrize(
    "chunks", [(4,), (4, 4, 4), (0, 4), ("a", 4), -2, (True, 4), ((4, 4), 4), True, 2.5], ids=str
)
def test_chunks_that_are_none(path, chunks):
    with pytest.raises(SpecError) as caught:
        shardwrite.from_sharded_zarr(path, chunks=chunks)
    assert caught.value.fields["field"] == "chunks"


@pytest.mark.parametrize("compressors", [(), [{"name": "zstd", "configuration": {"level": 1}}]])
def test_one_inner_chunk_is_the_own_array_of_the_reader(compressors):
    """What was read may be changed, and neither the store nor another reading sees it."""
    values = np.arange(1, 145, dtype="uint16").reshape(12, 12)
    values[4:8, 4:8] = 0
    store = zarr.storage.MemoryStore()
    x = da.from_array(values, chunks=12)
    x.to_sharded_zarr(store, shards=12, chunks=4, compressors=compressors)
    x = shardwrite.open_sharded(store)
    for y, z in itertools.product(range(0, 12, 4), repeat=2):
        for _ in range(2):
            found = x[y : y + 4, z : z + 4]
            np.testing.assert_array_equal(found, values[y : y + 4, z : z + 4])
            found[...] = 77
    np.testing.assert_array_equal(x[...], values)


def test_one_inner_chunk_of_a_shard_that_is_replaced_meanwhile(tmp_path, monkeypatch):
    values = np.arange(1, 145, dtype="uint16").reshape(12, 12)
    x = da.from_array(values, chunks=12)
    x.to_sharded_zarr(tmp_path / "x.zarr", shards=12, chunks=4)
    opened = shardwrite.open_sharded(tmp_path / "x.zarr")
    usual, calls = array.ShardReader.chunk, []

    def chunk(self, rank):
        calls.append(rank)
        if len(calls) == 1:
            raise StoreError("replaced", key="c/0/0", errno=errno.ESTALE)
        return usual(self, rank)

    monkeypatch.setattr(array.ShardReader, "chunk", chunk)
    np.testing.assert_array_equal(opened[4:8, 8:12], values[4:8, 8:12])
    assert calls == [5, 5]
