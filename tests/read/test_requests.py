"""Requests that are under way at the same time: of one shard and of many, up to limits; and that no
bytes of two versions are mixed where a store gives tags."""

from __future__ import annotations

import asyncio
import threading
from hashlib import blake2b

import dask
import numpy as np
import pytest
import zarr
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype

import shardwrite
from shardwrite import StoreError
from shardwrite.host.resources import n_cores
from shardwrite.host.threads import in_threads
from shardwrite.read import array as reading
from shardwrite.read.requests import REQUESTS
from shardwrite.stores import zarr_store

SHAPE, SHARD, CHUNK = (
    (256, 256),
    64,
    8,
)  # 4 x 4 shards, in each of which a column has 8 inner chunks
VALUES = np.random.default_rng(0).integers(0, 2**32, SHAPE, dtype="u4")
SIZES = {"shards": SHARD, "chunks": CHUNK, "compressors": ()}
N_CHUNK = CHUNK * CHUNK * 4  # bytes of an inner chunk
IN_FLIGHT, IN_FLIGHT_SIZE = "shardwrite.read.in-flight", "shardwrite.read.in-flight-size"
LOOP = "shardwrite-zarr-stores"
NO_GAP = {"shardwrite.read.gap": 1}


class Waiting(zarr.storage.WrapperStore):
    """Answers the ranges of chunks when enough of them are asked for at the same time."""

    n_together = 1
    n_now = n_most = nbytes_now = nbytes_most = 0
    wrong_after: int | None = None

    async def get(self, key, prototype=None, byte_range=None):
        if not isinstance(byte_range, RangeByteRequest):
            return await self._store.get(key, prototype, byte_range)
        nbytes = byte_range.end - byte_range.start
        self.n_now, self.nbytes_now = self.n_now + 1, self.nbytes_now + nbytes
        self.n_most = max(self.n_most, self.n_now)
        self.nbytes_most = max(self.nbytes_most, self.nbytes_now)
        try:
            async with asyncio.timeout(60):
                while self.n_most < self.n_together:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.002)
            if self.wrong_after is not None:
                self.wrong_after -= 1
                if self.wrong_after < 0:
                    raise OSError(5, "the disk has failed")
            return await self._store.get(key, prototype, byte_range)
        finally:
            self.n_now, self.nbytes_now = self.n_now - 1, self.nbytes_now - nbytes


@pytest.fixture
def store():
    plain = zarr.storage.MemoryStore()
    shardwrite.to_sharded_zarr(VALUES, plain, **SIZES)
    return Waiting(plain)


def opened(store, **settings):
    with dask.config.set({**NO_GAP, **settings}):
        return shardwrite.open_sharded(store)


def check(array, key):
    np.testing.assert_array_equal(array[key], VALUES[key])


def test_ranges_of_one_shard_are_asked_for_side_by_side(store):
    store.n_together = 8
    check(opened(store), np.s_[:64, :8])
    assert store.n_most == 8


def test_ranges_of_many_shards_are_asked_for_side_by_side(store):
    store.n_together = 16
    check(opened(store), np.s_[:, 8:16])
    assert 16 <= store.n_most <= 32


@pytest.mark.parametrize("key", [np.s_[:64, :8], np.s_[:, 3], np.s_[::9, ::9]])
@pytest.mark.parametrize("most", [1, 3])
def test_no_more_requests_than_a_setting_allows(store, key, most):
    check(opened(store, **{IN_FLIGHT: most}), key)
    assert store.n_most == most


def test_one_limit_for_all_threads_and_arrays_of_a_process(store):
    arrays = [opened(store, **{IN_FLIGHT: 3}) for _ in range(4)]
    errors = []

    def read(array):
        try:
            check(array, np.s_[:, :8])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert store.n_most == 3


def test_tasks_of_dask_ask_side_by_side_up_to_the_limit(store):
    store.n_together = 6
    with dask.config.set({**NO_GAP, IN_FLIGHT: 6}):
        lazy = shardwrite.from_sharded_zarr(store)[:, :8]
    np.testing.assert_array_equal(lazy.compute(scheduler="threads", num_workers=2), VALUES[:, :8])
    assert store.n_most == 6


def test_no_more_bytes_than_a_setting_allows(store):
    check(opened(store, **{IN_FLIGHT_SIZE: f"{3 * N_CHUNK + 100} B"}), np.s_[:, :8])
    assert store.nbytes_most <= 3 * N_CHUNK + 100
    assert store.n_most > 1


def test_a_request_of_more_bytes_is_made_alone(store):
    check(opened(store, **{IN_FLIGHT_SIZE: "10 B"}), np.s_[:, :8])
    assert store.n_most == 1


def test_large_shards_are_asked_for_in_pieces_side_by_side(store):
    store.n_together = 4
    with dask.config.set({"shardwrite.read.request-size": "4 KiB"}):
        check(opened(store), np.s_[:64, :64])
    assert store.n_most >= 4
    assert store.nbytes_most > 4 * 4000


class Ending(Waiting):
    """Answers the ends of shards when enough of them are asked for at the same time."""

    async def get(self, key, prototype=None, byte_range=None):
        if not isinstance(byte_range, SuffixByteRequest):
            return await self._store.get(key, prototype, byte_range)
        return await super().get(key, prototype, RangeByteRequest(0, byte_range.suffix))


@pytest.mark.parametrize("most", [1, 3])
def test_whole_shards_count_until_they_are_decoded(store, most):
    array = opened(Ending(store._store))
    nbytes = array.metadata.most_nbytes
    with dask.config.set({**NO_GAP, IN_FLIGHT_SIZE: f"{most * nbytes + 100} B"}):
        whole = shardwrite.open_sharded(array.store)
    whole.store._zarr.n_together = most
    check(whole, np.s_[:])
    assert whole.store._zarr.n_most == most


def test_the_limit_is_free_again_after_an_error(store):
    array, store.wrong_after, before = opened(store), 11, set(threading.enumerate())
    with pytest.raises(StoreError, match="the disk has failed"):
        array[:, :8]
    assert not REQUESTS._nbytes
    store.wrong_after = None
    check(array, np.s_[:, :8])
    assert not {thread for thread in threading.enumerate() if thread.name != LOOP} - before


class FailingOnce(Waiting):
    """Counts the ranges that it is asked for, and fails at the fifth."""

    n_asked = 0

    async def get(self, key, prototype=None, byte_range=None):
        if isinstance(byte_range, RangeByteRequest):
            self.n_asked += 1
            if self.n_asked == 5:
                raise OSError(5, "the disk has failed")
        return await super().get(key, prototype, byte_range)


def test_what_waits_for_the_limit_does_not_begin_after_an_error(store):
    """Nor after an interruption. Otherwise, all shards that had begun were read to their end."""
    failing = FailingOnce(store._store)
    array = opened(failing, **{IN_FLIGHT: 1, "shardwrite.read.threads": 8})
    with pytest.raises(StoreError, match="the disk has failed"):
        array[:, :8]
    assert failing.n_asked < 16, "of 32 chunks in 4 shards"
    check(array, np.s_[:, :8])


def test_threads_are_no_more_than_requests_where_the_array_was_opened(store, monkeypatch):
    array, seen = opened(store, **{IN_FLIGHT: 3}), []

    def noted(function, items, threads, is_over):
        seen.append(threads)
        return in_threads(function, items, threads, is_over)

    monkeypatch.setattr(reading, "in_threads", noted)
    check(array, np.s_[:])
    assert seen[0] == max(3, n_cores())


def test_a_request_whose_end_was_cut_off_counts_no_more_than_until_the_next_one():
    REQUESTS._nbytes[threading.get_ident()] = 2**40  # as an interruption leaves it
    with dask.config.set({IN_FLIGHT: 1}), REQUESTS.request(5):
        assert REQUESTS._nbytes == {threading.get_ident(): 5}
    assert not REQUESTS._nbytes


# ---- Stores that give tags, and take none


class Tagged(zarr_store.Kind):
    """Objects with tags, as those of a bucket by s3fs."""

    has_tags = True

    async def look(self, name):
        found = await self.store.get(name, default_buffer_prototype())
        data = None if found is None else found.to_bytes()
        if data is None:
            return zarr_store.Facts(0, None)
        return zarr_store.Facts(len(data), blake2b(data).hexdigest())


class Failing(zarr.storage.WrapperStore):
    """Answers the first range of a shard wrongly, and then replaces the shard after a number of
    them."""

    later: bytes | None = None
    n_before = 0

    async def get(self, key, prototype=None, byte_range=None):
        found = await self._store.get(key, prototype, byte_range)
        if key != "c/0/0" or byte_range is None or self.later is None:
            return found
        self.n_before -= 1
        if self.n_before >= 1:
            return zarr.buffer.cpu.Buffer.from_bytes(b"x" * len(found))
        if self.n_before == 0:
            await self._store.set(key, zarr.buffer.cpu.Buffer.from_bytes(self.later))
            self.later = None
        return found


def test_a_second_attempt_mixes_no_two_versions(tmp_path, monkeypatch):
    """Both chunks are sound, and one has the place of the other in the new shard."""
    first, later = np.zeros((64, 64), "u4"), np.zeros((64, 64), "u4")
    first[8:16, 8:16] = later[8:16, 8:16] = 5
    later[:8, :8] = 7
    plain, other = zarr.storage.MemoryStore(), zarr.storage.MemoryStore()
    for made, values in ((plain, first), (other, later)):
        shardwrite.to_sharded_zarr(values, made, **SIZES, run_dir=str(tmp_path / "run"))
    monkeypatch.setattr(zarr_store, "kind_of", lambda store: Tagged(store, frozenset()))
    store = Failing(plain)
    array = opened(zarr_store.ZarrStore(store))
    store.n_before = 2
    store.later = asyncio.run(other.get("c/0/0", default_buffer_prototype())).to_bytes()
    assert (array[8:16, 8:16] == 5).all()
    assert store.later is None, "it was replaced"
    assert (array[:8, :8] == 7).all()
