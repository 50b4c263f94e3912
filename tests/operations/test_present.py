"""`present` lists the inner chunks that hold data, as reading every chunk would find them."""

from __future__ import annotations

import itertools

import dask.array as da
import numpy as np
import obstore.store
import pytest
import zarr

import shardwrite
from shardwrite import CorruptShardError, SpecError
from shardwrite.stores.bucket import BucketStore
from shardwrite.stores.posix import PosixStore


def sparse(shape, share, seed=0):
    """Values of which some chunks of two elements along each axis are not zero."""
    counts = tuple(-(-n // 2) for n in shape)
    on = np.random.default_rng(seed).random(counts) < share
    whole = np.ones(tuple(2 * n for n in counts), dtype="u1")
    for index in itertools.product(*map(range, counts)):
        whole[tuple(slice(2 * i, 2 * i + 2) for i in index)] *= np.uint8(on[index])
    return whole[tuple(map(slice, shape))], np.argwhere(on)


@pytest.mark.parametrize("share", [0, 0.3, 1])
@pytest.mark.parametrize("shards", [None, 4, (8, 2)])
@pytest.mark.parametrize("shape", [(11, 7), (0, 4)])
def test_as_brute_force_finds_them(tmp_path, shape, shards, share):
    values, wanted = sparse(shape, share)
    da.from_array(values).to_sharded_zarr(tmp_path / "x", shards=shards, chunks=2)
    found = shardwrite.present(tmp_path / "x")
    np.testing.assert_array_equal(found.coords, wanted.reshape(-1, 2))
    assert found.coords.dtype == np.int64
    assert len(found) == len(wanted)
    assert found.keys == sorted(".".join(map(str, row)) for row in wanted.tolist())


@pytest.mark.compat
def test_keys_are_sorted_as_text_and_count_from_the_origin(tmp_path):
    array = zarr.create_array(
        tmp_path / "x", shape=(12,), chunks=(1,), shards=(4,), dtype="u1",
        attributes={"chunk_grid_origin": [-2]},
    )  # fmt: skip
    array[:] = 1
    found = shardwrite.present(tmp_path / "x")
    assert found.coords[:, 0].tolist() == list(range(12))
    assert found.keys == sorted(str(n) for n in range(-2, 10))


def test_what_was_written_by_zarr_in_memory_and_after_erasing(tmp_path):
    store = zarr.storage.MemoryStore()
    group = zarr.create_group(store)
    made = group.create_array("a", shape=(4, 4), chunks=(1, 1), shards=(2, 2), dtype="i2")
    made[1, 2] = made[3, 3] = 5
    assert shardwrite.present(store, name="a").keys == ["1.2", "3.3"]
    opened = shardwrite.open_sharded(store, "a")
    counted = []
    assert shardwrite.present(opened, on_shards=counted.append).keys == ["1.2", "3.3"]
    assert sum(counted) == 4

    da.ones((4, 4), chunks=2).to_sharded_zarr(tmp_path / "x", shards=2, chunks=1)
    shardwrite.erase(tmp_path / "x", (slice(0, 3), slice(1, 4)))
    assert shardwrite.present(tmp_path / "x").keys == [
        "0.0",
        "1.0",
        "2.0",
        *map("3.{}".format, range(4)),
    ]


def test_a_scalar(tmp_path):
    da.asarray(np.float32(3)).to_sharded_zarr(tmp_path / "x", shards=None, chunks=())
    found = shardwrite.present(tmp_path / "x")
    assert found.coords.shape == (1, 0)
    assert len(found.keys) == 1


def test_bad_input(tmp_path):
    with pytest.raises(SpecError, match="no array"):
        shardwrite.present(tmp_path)
    path = tmp_path / "x"
    da.ones((4, 4), chunks=2).to_sharded_zarr(path, shards=2, chunks=1)
    for origin in ([1], ["0", "1"], [True, 0], {"a": 1}):
        zarr.open_array(path).attrs["chunk_grid_origin"] = origin
        with pytest.raises(SpecError) as caught:
            shardwrite.present(path)
        assert caught.value.field == "chunk_grid_origin"
        assert "mend it" in caught.value.remedy
    zarr.open_array(path).attrs["chunk_grid_origin"] = []
    assert len(shardwrite.present(path).keys) == 16
    shard = path / "c/0/0"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptShardError, match="c/0/0"):
        shardwrite.present(path)
    with pytest.raises(TypeError, match="present"):
        shardwrite.present(path, shards=2)
    with pytest.raises(SpecError, match="name='y': an open array has none inside it"):
        shardwrite.present(shardwrite.open_sharded(path), name="y")


def test_objects_with_codecs_around_their_sharding_count_as_one_chunk(tmp_path):
    sharding = zarr.codecs.ShardingCodec(chunk_shape=(1,), codecs=[zarr.codecs.BytesCodec()])
    with pytest.warns(UserWarning, match="sharding"):
        array = zarr.create(
            (4,), chunks=(2,), dtype="u1", store=tmp_path / "x", zarr_format=3,
            codecs=[sharding, zarr.codecs.GzipCodec()],
        )  # fmt: skip
    array[2:] = 1
    assert shardwrite.present(tmp_path / "x").coords.tolist() == [[1]]


@pytest.mark.parametrize("kind", ["directory", "bucket"])
def test_shards_without_an_object_are_not_asked_for(tmp_path, monkeypatch, kind):
    """A sparse array has few objects in a grid of many."""
    place = tmp_path / "x" if kind == "directory" else obstore.store.MemoryStore()
    values = np.zeros((400, 400), "u1")
    values[9, 9] = values[200, 100] = 1
    shardwrite.to_sharded_zarr(values, place, shards=8, chunks=4)
    asked = []
    store, name = (PosixStore, "open") if kind == "directory" else (BucketStore, "open_for")
    real = getattr(store, name)

    def counted(self, key, *arguments, **keywords):
        asked.append(key)
        return real(self, key, *arguments, **keywords)

    monkeypatch.setattr(store, name, counted)
    opened, counted_shards = shardwrite.open_sharded(place), []
    assert opened.present().coords.tolist() == [[2, 2], [50, 25]]
    found = shardwrite.present(opened, on_shards=counted_shards.append)
    assert found.coords.tolist() == [[2, 2], [50, 25]]
    assert sorted(asked) == ["c/1/1"] * 2 + ["c/25/12"] * 2
    assert sum(counted_shards) == 50 * 50
