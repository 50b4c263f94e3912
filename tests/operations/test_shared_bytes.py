"""Shards in which several inner chunks have the same bytes, as some programs write them."""

from __future__ import annotations

import contextlib
import tracemalloc

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from crc32c import crc32c
from zarr.core.buffer.cpu import Buffer

import shardwrite
from shardwrite import AppendOnly, CorruptShardError, FixedOrder, ShardWriter
from shardwrite.format.order import KEEP, Stored, own_ranges

STRATEGIES = [
    FixedOrder(),
    FixedOrder("morton"),
    FixedOrder(in_place=True),
    AppendOnly(),
    AppendOnly(in_place=True),
]


pytestmark = pytest.mark.usefixtures("one_thread")


def make(path, compressors, location="end"):
    """An array of one shard and 16 inner chunks, the first three of which have the same bytes."""
    values = np.arange(1, 65, dtype="i4").reshape(8, 8)
    x = da.from_array(values)
    more = {"shards": 8, "chunks": 2, "compressors": compressors, "index_location": location}
    x.to_sharded_zarr(path, **more)
    share(path / "c/0/0", [(1, 0), (2, 0)], location)
    for column in (2, 4):
        values[0:2, column : column + 2] = values[0:2, 0:2]
    return values


def share(path, pairs, location="end", shift=0):
    """Let inner chunks have the bytes of others, in a shard of 16."""
    path.write_bytes(shared(path.read_bytes(), pairs, location, shift))


def shared(shard, pairs, location="end", shift=0, n=16):
    """The bytes of a shard of `n` inner chunks, some of which have the bytes of others."""
    data, nbytes = bytearray(shard), 16 * n
    start = len(data) - nbytes - 4 if location == "end" else 0
    table = np.frombuffer(bytes(data[start : start + nbytes]), "<u8").reshape(n, 2).copy()
    for rank, owner in pairs:
        table[rank] = table[owner] + [shift, 0]
    data[start : start + nbytes] = table.tobytes()
    data[start + nbytes : start + nbytes + 4] = crc32c(table.tobytes()).to_bytes(4, "little")
    return data


def check(path, wanted, n_shared):
    for found in (zarr.open_array(path, mode="r")[...], shardwrite.open_sharded(path)[...]):
        np.testing.assert_array_equal(found, wanted)
    report = shardwrite.verify(path, deep=True)
    assert report.is_good, report
    told = [text for text in report.warnings if "same bytes" in text]
    assert [int(text.split()[0]) for text in told] == ([n_shared] if n_shared else [])
    assert report.unused_nbytes >= 0


@pytest.mark.long
@pytest.mark.parametrize("location", ["end", "start"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.label)
def test_updates_change_the_chunks_that_they_touch_and_no_others(tmp_path, strategy, location):
    for compressors, touched in ((None, [0, 1]), ("auto", [1]), (None, [0, 1, 2]), (None, [7])):
        path = tmp_path / f"{compressors}{touched}"
        wanted = make(path, compressors, location)
        check(path, wanted, 2)
        for chunk in touched:
            where = tuple(slice(2 * i, 2 * i + 2) for i in divmod(chunk, 4))
            wanted[where] = 100 + chunk
            new = da.full((2, 2), 100 + chunk, dtype="i4")
            shardwrite.write_region(new, path, where, strategy=strategy)
        check(path, wanted, max(0, len({0, 1, 2} - set(touched)) - 1))
        shardwrite.compact(path, above=0)
        shardwrite.erase(path, (slice(0, 2), slice(2, 4)), strategy=strategy)
        wanted[0:2, 2:4] = 0
        check(path, wanted, max(0, len({0, 2} - set(touched)) - 1))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.label)
def test_all_sharers_at_once_and_in_part(tmp_path, strategy):
    for where in [(slice(0, 2), slice(0, 8)), (slice(0, 1), slice(1, 5)), (slice(0, 8),) * 2]:
        path = tmp_path / str(where[1].stop + where[0].stop)
        wanted = make(path, None)
        wanted[where] = np.arange(500, 500 + wanted[where].size).reshape(wanted[where].shape)
        shardwrite.write_region(da.from_array(wanted[where]), path, where, strategy=strategy)
        check(path, wanted, 0)


def test_streams_and_copies_keep_them_right(tmp_path):
    path, copy = tmp_path / "x", tmp_path / "copy"
    wanted = make(path, "auto")
    shardwrite.from_sharded_zarr(path).to_sharded_zarr(copy, shards=8, chunks=2)
    check(copy, wanted, 0)
    with ShardWriter(path, strategy="append-only") as writer:
        writer[0] = np.full(8, 9, "i4")
    wanted[0] = 9
    check(path, wanted, 0)


def test_a_rewrite_takes_no_more_than_before(tmp_path):
    """Sixteen chunks that share one range of 256 KiB are copied once."""
    path, n = tmp_path / "x", 256
    values = np.random.default_rng(0).integers(0, 2**31, (4 * n, 4 * n), dtype="i4")
    x = da.from_array(values, chunks=n)
    x.to_sharded_zarr(path, shards=4 * n, chunks=n, compressors=None)
    share(path / "c/0/0", [(rank, 0) for rank in range(1, 15)])
    shardwrite.compact(path, above=0.5)
    assert (path / "c/0/0").stat().st_size < 3 * 4 * n * n
    shardwrite.write_region(da.full((1, 1), 7, dtype="i4"), path, (slice(0, 1), slice(0, 1)))
    assert (path / "c/0/0").stat().st_size < 4 * 4 * n * n
    found = shardwrite.open_sharded(path)[...]
    assert found[0, 0] == 7
    np.testing.assert_array_equal(found[:n, n : 2 * n], values[:n, :n])
    np.testing.assert_array_equal(found[-n:, -n:], values[-n:, -n:])


@pytest.mark.parametrize(
    ("strategy", "is_directory"),
    [
        *(pytest.param(s, True, marks=() if s.in_place else pytest.mark.long) for s in STRATEGIES),
        *((s, False) for s in STRATEGIES if not s.in_place),
    ],
    ids=lambda value: getattr(value, "label", value),
)
def test_memory_is_bounded_by_its_limit_and_not_by_the_sum_of_entries(
    tmp_path, strategy, is_directory
):
    """A shard of 1024 entries, which are 256 MiB together, is changed within 16 MiB."""
    objects = {}
    store = tmp_path / "x" if is_directory else zarr.storage.MemoryStore(objects)
    limit, n, n_axis = 2**24, 256, 32
    values = np.random.default_rng(0).integers(0, 2**31, (n, n), dtype="i4")
    more = {"shards": n * n_axis, "chunks": n, "compressors": None}
    shardwrite.create(store, (n * n_axis,) * 2, "i4", **more)
    shardwrite.write_region(values, store, (slice(0, n), slice(0, n)))
    pairs = [(rank, 0) for rank in range(1, n_axis**2)]
    if is_directory:
        path = store / "c/0/0"
        path.write_bytes(shared(path.read_bytes(), pairs, n=n_axis**2))
    else:
        data = shared(objects["c/0/0"].to_bytes(), pairs, n=n_axis**2)
        objects["c/0/0"] = Buffer.from_bytes(data)
    with dask.config.set({"shardwrite.memory-limit": limit}), traced() as peak:
        shardwrite.write_region(7, store, (slice(1, 2), slice(1, 2)), strategy=strategy)
        shardwrite.erase(store, (slice(n, 2 * n), slice(0, n)), strategy=strategy)
        shardwrite.compact(store, above=0)
        assert shardwrite.verify(store).is_good
    assert n_axis**2 * values.nbytes == 16 * limit
    assert peak() < limit
    found = shardwrite.open_sharded(store)
    np.testing.assert_array_equal(found[:n, n : 2 * n], values)
    np.testing.assert_array_equal(found[-n:, -n:], values)
    assert (found[1, 1], found[n, 0], found[0, 0]) == (7, 0, values[0, 0])


@contextlib.contextmanager
def traced():
    """Trace the memory of Python and of numpy; the function tells the peak, in bytes."""
    tracemalloc.start()
    try:
        yield lambda: peak
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shift", [1, 15])
def test_entries_that_overlap_in_part_stay_an_error(tmp_path, shift):
    path = tmp_path / "x"
    make(path, None)
    share(path / "c/0/0", [(6, 5)], shift=shift)
    before = (path / "c/0/0").read_bytes()
    assert "overlaps another inner chunk" in shardwrite.verify(path).problems[0].message
    for strategy in STRATEGIES:
        with pytest.raises(CorruptShardError, match="overlaps another inner chunk"):
            shardwrite.write_region(da.ones((1, 1), dtype="i4"), path, (0, 0), strategy=strategy)
        shardwrite.abandon(path)
    with pytest.raises(CorruptShardError, match="overlaps another inner chunk"):
        shardwrite.compact(path)
    assert (path / "c/0/0").read_bytes() == before


def test_shared_bytes_belong_to_a_chunk_that_stays():
    offsets, sizes = (np.array(column) for column in ([0, 0, 0, 9, -1, 9], [9, 9, 9, 5, -1, 5]))
    old = Stored(offsets, sizes, 40, (14, 40), is_checked=False)
    own, shared = own_ranges(old, np.array([3, KEEP, KEEP, -1, KEEP, 2]))
    assert own.offsets.tolist() == [-1, 0, -1, 9, -1, -1]
    assert own.nbytes.tolist() == [-1, 9, -1, 5, -1, -1]
    assert (shared.ranks.tolist(), shared.owners.tolist()) == ([2], [1])
    assert shared.entered(np.array([7, 8, -1, 6, 5, 4])).tolist() == [7, 8, 8, 6, 5, 4]
