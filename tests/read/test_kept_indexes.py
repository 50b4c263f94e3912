"""Indexes and inner chunks that are kept: how many requests that saves, in which stores, and that
none is used for another state of a shard."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path

import dask
import numpy as np
import obstore
import pytest
import zarr
from obstore.store import LocalStore, MemoryStore
from zarr.core.buffer import default_buffer_prototype

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.read import array as reading
from shardwrite.read import indexes as shared
from shardwrite.read.indexes import CHUNKS, INDEXES, Cache
from shardwrite.stores import looking
from shardwrite.stores.looking import PosixReader, identity_in

sys.path.insert(0, str(Path(__file__).parent))

import updated_while_read

SHAPE, SHARD, CHUNK = (512, 512), 64, 8
VALUES = np.random.default_rng(0).integers(0, 2**32, SHAPE, dtype="u4")
SIZES = {"shards": SHARD, "chunks": CHUNK}


@pytest.fixture(autouse=True)
def indexes(monkeypatch):
    """A cache of the test's own, and files that count as old at once."""
    monkeypatch.setattr(looking, "SETTLED_NS", -(2**62))
    monkeypatch.setattr(reading, "INDEXES", Cache(INDEXES.limit_nbytes))
    return reading.INDEXES


@pytest.fixture
def asked(monkeypatch):
    """What is asked of directories and of obstore, as ``(key, bytes)``."""
    found = []
    read = PosixReader.read

    def from_file(self, offset, nbytes):
        found.append((self._key, nbytes))
        return read(self, offset, nbytes)

    monkeypatch.setattr(PosixReader, "read", from_file)
    for name in ("get", "head"):
        real = getattr(obstore, name)

        def from_bucket(store, key, *arguments, _real=real, **keywords):
            found.append((key, None))
            return _real(store, key, *arguments, **keywords)

        monkeypatch.setattr(obstore, name, from_bucket)
    return found


def stores(tmp_path):
    return {
        "directory": tmp_path / "x",
        "bucket": MemoryStore(),
        "obstore in files": LocalStore(tmp_path / "y", mkdir=True),
    }


def n_asked(asked, array, key):
    asked.clear()
    np.testing.assert_array_equal(array[key], VALUES[key])
    return len(asked)


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("kind", ["directory", "bucket", "obstore in files"])
def test_requests(tmp_path, asked, indexes, kind, location):
    store = stores(tmp_path)[kind]
    more = {} if kind == "directory" else {"run_dir": str(tmp_path / "run"), "durability": "none"}
    shardwrite.to_sharded_zarr(VALUES, store, **SIZES, index_location=location, **more)
    array = shardwrite.open_sharded(store)
    keeps = kind != "obstore in files"  # whose tags are times
    assert n_asked(asked, array, np.s_[:8, :8]) <= 2, "a chunk, for the first time"
    assert n_asked(asked, array, np.s_[8:16, 8:16]) <= (1 if keeps else 2), "another one"
    cold = shardwrite.open_sharded(store)
    indexes.after_fork()
    if kind != "directory":  # where neighbours are read one by one
        assert n_asked(asked, cold, np.s_[64:72, :128]) <= 4, "16 neighbours in two shards"
        assert n_asked(asked, cold, np.s_[64:72, :128]) <= (2 if keeps else 4)
        assert n_asked(asked, cold, np.s_[0]) <= 2 * 8, "a row of 8 shards"
        assert n_asked(asked, cold, np.s_[:]) <= 2 * 64, "a plane of 64 shards"
    array.present()
    assert not n_asked(asked, array, np.s_[5:5])


@pytest.fixture
def zipped(tmp_path):
    """A ZIP file that another program has written."""
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        made = zarr.create_array(
            store, shape=SHAPE, dtype="u4", shards=(64, 64), chunks=(8, 8), fill_value=0
        )
        made[...] = VALUES
    return tmp_path / "x.zip"


def test_requests_in_a_zip_file(zipped, asked):
    """The header of a member is read once, too."""
    with zarr.storage.ZipStore(zipped, mode="r") as store:
        array = shardwrite.open_sharded(store)
        assert n_asked(asked, array, np.s_[:8, :8]) == 3, "header, index and chunk"
        assert n_asked(asked, array, np.s_[8:16, 8:16]) == 1
        again = pickle.loads(pickle.dumps(array))
        assert n_asked(asked, again, np.s_[16:24, 8:16]) == 1
        assert n_asked(asked, array, np.s_[64:128, :64]) == 2, "header and shard"


def test_a_zip_file_that_is_replaced_is_no_longer_read(zipped, tmp_path):
    array = shardwrite.open_sharded(zarr.storage.ZipStore(zipped, mode="r"))
    np.testing.assert_array_equal(array[:8, :8], VALUES[:8, :8])
    other = tmp_path / "other.zip"
    with zarr.storage.ZipStore(other, mode="w") as store:
        zarr.create_array(
            store, shape=SHAPE, dtype="u4", shards=(64, 64), chunks=(8, 8), fill_value=7
        )
    other.replace(zipped)
    with pytest.raises(StoreError, match="was changed meanwhile"):
        array[8:16, :8]
    anew = shardwrite.open_sharded(zarr.storage.ZipStore(zipped, mode="r"))
    assert (anew[:8, :8] == 7).all()


def test_a_zip_file_with_members_that_only_zarr_python_takes(zipped):
    with zipfile.ZipFile(zipped, "a") as archive:
        archive.writestr("a\\b", b"")
    array = shardwrite.open_sharded(zarr.storage.ZipStore(zipped, mode="r"))
    np.testing.assert_array_equal(array[:8, :8], VALUES[:8, :8])


def test_what_is_kept_does_not_travel(tmp_path, asked):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    array = shardwrite.open_sharded(tmp_path / "x")
    before = len(pickle.dumps(array))
    np.testing.assert_array_equal(array[:64], VALUES[:64])
    assert len(pickle.dumps(array)) < before + 200
    again = pickle.loads(pickle.dumps(array))
    assert n_asked(asked, again, np.s_[:8, :8]) == 1, "in the same process, it is there"


def test_all_arrays_of_a_process_share_what_is_kept(tmp_path, asked):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    array = shardwrite.open_sharded(tmp_path / "x")
    n_asked(asked, array, np.s_[:8, :8])
    assert n_asked(asked, shardwrite.open_sharded(tmp_path / "x"), np.s_[8:16, :8]) == 1


def test_memory_is_bounded_by_a_setting(tmp_path, indexes, asked):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    for limit, most in (("4 KiB", 4096), ("1 B", 1)):
        with dask.config.set({"shardwrite.read.index-cache": limit}):
            array = shardwrite.open_sharded(tmp_path / "x")
            for row in range(0, 512, 64):
                np.testing.assert_array_equal(array[row, :8], VALUES[row, :8])
                assert indexes.nbytes <= most
            assert (indexes.nbytes > 0) == (most == 4096)
    with (
        dask.config.set({"shardwrite.read.index-cache": "many"}),
        pytest.raises(SpecError, match=r"shardwrite\.read\.index-cache"),
    ):
        shardwrite.open_sharded(tmp_path / "x")


def test_the_indexes_used_last_are_kept(tmp_path, asked):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    with dask.config.set({"shardwrite.read.index-cache": "4 KiB"}):  # room for two
        array = shardwrite.open_sharded(tmp_path / "x")
    first, second, third = np.s_[0, :8], np.s_[64, :8], np.s_[128, :8]
    needed = [n_asked(asked, array, key) for key in (first, second, first, third, first, second)]
    assert needed == [2, 2, 1, 2, 1, 2]


@pytest.mark.parametrize("kind", ["directory", "bucket"])
@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_another_state_of_a_shard_is_read_by_its_own_index(tmp_path, kind, change):
    store = stores(tmp_path)[kind]
    more = {} if kind == "directory" else {"run_dir": str(tmp_path / "run"), "durability": "none"}
    shardwrite.to_sharded_zarr(VALUES, store, **SIZES, **more)
    array = shardwrite.open_sharded(store)
    np.testing.assert_array_equal(array[:8, :8], VALUES[:8, :8])
    wanted = VALUES.copy()
    wanted[:64, :64] = 0 if change == "removed" else VALUES[:64, :64] // 1000
    shardwrite.write_region(wanted[:64, :64], store, np.s_[:64, :64], **more)
    np.testing.assert_array_equal(array[8:16, 8:16], wanted[8:16, 8:16])
    np.testing.assert_array_equal(array[:128], wanted[:128])
    position = (2, 2)
    assert (array.encoded(position) is None) == (change == "removed")


def test_another_thread_keeps_the_index_of_the_old_shard_meanwhile(tmp_path, indexes):
    store, more = MemoryStore(), {"run_dir": str(tmp_path / "run"), "durability": "none"}
    shardwrite.to_sharded_zarr(VALUES, store, **SIZES, **more)
    array = shardwrite.open_sharded(store)
    np.testing.assert_array_equal(array[:8, :8], VALUES[:8, :8])
    ((name, old),) = indexes._kept.items()
    drop = indexes.drop

    def dropped(name):
        drop(name)
        indexes.keep(name, old)

    indexes.drop = dropped
    shardwrite.write_region(VALUES[:64, :64] // 1000, store, np.s_[:64, :64], **more)
    np.testing.assert_array_equal(array[:8, :8], VALUES[:8, :8] // 1000)
    indexes.keep(name, old)
    assert [rank for rank, _ in array.chunks((0, 0), [0, 9])] == [0, 9]


def test_only_the_index_is_kept_of_a_shard_that_was_read_as_a_whole(tmp_path, indexes):
    values = np.random.default_rng(1).integers(0, 2**32, (1024, 1024), dtype="u4")
    shardwrite.to_sharded_zarr(values, tmp_path / "x", shards=512, chunks=128)
    array = shardwrite.open_sharded(tmp_path / "x")
    tracemalloc.start()
    try:
        for row, column in np.ndindex(2, 2):
            array[row * 512 : (row + 1) * 512, column * 512 : (column + 1) * 512]
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(indexes._kept) == 4
    assert held < 512 * 512 * 4, "less than one shard"


def test_the_child_of_a_fork_waits_for_no_thread_of_its_parent():
    kept = shared.INDEXES
    with kept._lock:
        pid = os.fork()
        if not pid:
            signal.alarm(30)  # which ends it, if it waits
            status = 1
            try:
                status = int(kept.find(("", "")) is not None)
            finally:
                os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_file_that_was_changed_just_now_has_no_identity(tmp_path, monkeypatch):
    """A second change in the same tick of the clock would leave its times as they are."""
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    monkeypatch.undo()
    assert identity_in(os.stat(path)) is None
    os.utime(path, (0, 0))  # which only changes one of the times
    assert identity_in(os.stat(path)) is None
    facts, now = os.stat(path), time.time_ns()
    monkeypatch.setattr(looking.time, "time_ns", lambda: now + 3_000_000_000)
    assert identity_in(facts) is not None
    monkeypatch.setattr(looking.time, "time_ns", lambda: now - 3_000_000_000)
    assert identity_in(facts) is None, "by a clock that is late"


def test_a_file_of_the_same_size_and_time_is_another_one(tmp_path):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES, compressors=())
    array = shardwrite.open_sharded(tmp_path / "x")
    shard = tmp_path / "x" / "c" / "0" / "0"
    before, times = array[:8, :8], os.stat(shard)
    data = bytearray(shard.read_bytes())
    other = shardwrite.open_sharded(tmp_path / "x").encoded_range((7, 7)).offset
    data[0:256], data[other : other + 256] = data[other : other + 256], data[0:256]
    shard.write_bytes(data)
    os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))  # as copies with times do
    np.testing.assert_array_equal(before, VALUES[:8, :8])
    np.testing.assert_array_equal(array[:8, :8], VALUES[56:64, 56:64])


# ---- Decoded inner chunks that are kept

KEEPS = {"shardwrite.read.chunk-cache": "1 MiB"}


@pytest.fixture
def chunks(monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setattr(reading, "CHUNKS", Cache(CHUNKS.limit_nbytes))
    return reading.CHUNKS


def opened_to_keep(tmp_path, kind):
    """A store, its array, whose decoded inner chunks are kept, and keywords for more writes."""
    store = stores(tmp_path)[kind]
    more = {} if kind == "directory" else {"run_dir": str(tmp_path / "run"), "durability": "none"}
    shardwrite.to_sharded_zarr(VALUES, store, **SIZES, **more)
    with dask.config.set(KEEPS):
        array = shardwrite.open_sharded(store)
    return store, array, more


@pytest.mark.parametrize("kind", ["directory", "bucket", "obstore in files"])
def test_chunks_are_kept_where_objects_have_versions(tmp_path, asked, chunks, kind):
    _, array, _ = opened_to_keep(tmp_path, kind)
    n_asked(asked, array, np.s_[:8, :16])
    again, one, more = (
        n_asked(asked, array, k) for k in (np.s_[:8, 4:16], np.s_[:8, :8], np.s_[:8, :24])
    )
    if kind == "directory":
        assert (again, one, more) == (0, 0, 1)
    elif kind == "bucket":
        assert (again, one, more) == (1, 1, 1), "the version, or what is new"
    else:
        assert not chunks.nbytes, "tags are times there"


@pytest.mark.parametrize("keeps", [KEEPS, {}], ids=["chunks", "indexes"])
@pytest.mark.parametrize("shards", [64, 128])
def test_a_reader_of_an_array_that_was_replaced_uses_nothing_kept_of_the_new_one(
    tmp_path, chunks, keeps, shards
):
    """Chunks of the same rank have another shape there."""
    with dask.config.set(keeps):
        shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
        old = shardwrite.open_sharded(tmp_path / "x")
        how = {"shards": shards, "chunks": 16, "mode": "w"}
        shardwrite.to_sharded_zarr(VALUES + 1, tmp_path / "x", **how)
        np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "x")[...], VALUES + 1)
        for read in (
            lambda: old[24:32, 24:32],
            lambda: old[:10, :10],
            lambda: old.vindex[[9], [9]],
        ):
            with pytest.raises(shardwrite.CorruptShardError):
                read()


def test_no_chunks_are_kept_by_default(tmp_path, chunks):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    array = shardwrite.open_sharded(tmp_path / "x")
    np.testing.assert_array_equal(array[:16], VALUES[:16])
    assert not chunks.nbytes


def test_kept_chunks_are_bounded_and_do_not_travel(tmp_path, chunks):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    with dask.config.set({"shardwrite.read.chunk-cache": "8 KiB"}):
        array = shardwrite.open_sharded(tmp_path / "x")
    before = len(pickle.dumps(array))
    np.testing.assert_array_equal(array[...], VALUES)
    assert 4096 < chunks.nbytes <= 8192
    assert len(pickle.dumps(array)) < before + 200


def test_kept_chunks_are_not_what_a_caller_has(tmp_path, chunks):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES, compressors=())
    with dask.config.set(KEEPS):
        array = shardwrite.open_sharded(tmp_path / "x")
    for key in (np.s_[:8, :8], np.s_[:8, :8], np.s_[:64, :64], np.s_[:64, :64]):
        found = array[key]
        np.testing.assert_array_equal(found, VALUES[key])
        found[...] = 0
    assert chunks.nbytes >= 64 * 256


def test_texts_are_not_kept(tmp_path, chunks):
    texts = np.array([[f"{i} {j}" for j in range(8)] for i in range(8)], object)
    with zarr.config.set({"async.concurrency": 1}):
        made = zarr.create_array(
            tmp_path / "x", shape=(8, 8), dtype=str, shards=(8, 8), chunks=(2, 2)
        )
        made[...] = texts
    with dask.config.set(KEEPS):
        array = shardwrite.open_sharded(tmp_path / "x")
    assert (array[...] == texts).all()
    assert not chunks.nbytes


@pytest.mark.parametrize("kind", ["directory", "bucket"])
@pytest.mark.parametrize("change", ["replaced", "removed", "in place"])
def test_chunks_of_another_state_are_not_used(tmp_path, chunks, kind, change):
    store, array, more = opened_to_keep(tmp_path, kind)
    np.testing.assert_array_equal(array[:64, :64], VALUES[:64, :64])
    wanted = VALUES.copy()
    wanted[:64, :64] = 0 if change == "removed" else VALUES[:64, :64] // 1000
    if change == "in place" and kind == "directory":
        more["strategy"] = shardwrite.FixedOrder(in_place=True)
    shardwrite.write_region(wanted[:64, :64], store, np.s_[:64, :64], **more)
    for key in (np.s_[8:16, 8:16], np.s_[:64, :20], np.s_[...]):
        np.testing.assert_array_equal(array[key], wanted[key])


# ---- Stores of zarr-python, whose interface tells no states


class Answering(zarr.storage.WrapperStore):
    """Notes what it is asked for, and answers ranges in one of several ways."""

    how = "ranges"
    asked: list

    async def get(self, key, prototype=None, byte_range=None):
        self.asked.append((key, byte_range))
        if byte_range is not None and self.how == "refused":
            raise NotImplementedError("no ranges")
        if byte_range is not None and self.how == "as if missing":
            return None
        wanted = None if self.how == "ignored" else byte_range
        return await self._store.get(key, prototype, wanted)


def answering(store, how="ranges"):
    made = Answering(store)
    made.how, made.asked = how, []
    return made


def under(kind, tmp_path):
    """A store with an array at its root."""
    if kind == "zip":
        with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
            made = zarr.create_array(
                store, shape=SHAPE, dtype="u4", shards=(64, 64), chunks=(8, 8), fill_value=0
            )
            made[...] = VALUES
        return zarr.storage.ZipStore(tmp_path / "x.zip", read_only=True)
    if kind == "memory":
        store = zarr.storage.MemoryStore()
        shardwrite.to_sharded_zarr(VALUES, store, **SIZES)
        return store
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    if kind == "local":
        return zarr.storage.LocalStore(tmp_path / "x")
    return zarr.storage.FsspecStore.from_url(f"file://{tmp_path / 'x'}")


def n_got(store, array, key):
    store.asked.clear()
    np.testing.assert_array_equal(array[key], VALUES[key])
    assert all(wanted is not None for _, wanted in store.asked), "no whole object"
    return len(store.asked)


KINDS = ["memory", "local", "fsspec", "zip"]
NO_GAP = {"shardwrite.read.gap": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_ranges_in_stores_of_zarr_python(tmp_path, kind, indexes):
    """The end of a shard is as long as an index and a gap; here it is too short for the chunks."""
    store = answering(under(kind, tmp_path))
    with dask.config.set({"shardwrite.read.gap": "8 KiB"}):
        array = shardwrite.open_sharded(store)
    assert n_got(store, array, np.s_[:8, :8]) == 3, "a chunk, and the index before and after it"
    assert n_got(store, array, np.s_[8:16, 8:16]) == 3, "the index is read again"
    assert n_got(store, array, np.s_[:16, :64]) == 3, "16 neighbours"
    assert n_got(store, array, np.s_[:]) == 64, "64 whole shards"
    assert not indexes.nbytes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [np.s_[:8, :8], np.s_[:16, :64], np.s_[:]])
def test_a_small_shard_is_one_request_in_stores_of_zarr_python(tmp_path, kind, key):
    store = answering(under(kind, tmp_path))
    array = shardwrite.open_sharded(store)
    n_shards = VALUES[key][::SHARD, ::SHARD].size
    assert n_got(store, array, key) == n_got(store, array, key) == n_shards


@pytest.mark.parametrize(("gap", "n"), [("1 B", 3), ("4 KiB", 1)])
def test_ranges_where_the_index_is_at_the_start(tmp_path, gap, n):
    store = answering(zarr.storage.MemoryStore())
    shardwrite.to_sharded_zarr(
        VALUES, store._store, **SIZES, index_location="start", run_dir=str(tmp_path / "run")
    )
    with dask.config.set({"shardwrite.read.gap": gap}):
        array = shardwrite.open_sharded(store)
    assert n_got(store, array, np.s_[:8, :8]) == n, "the first chunks come with the index"
    assert n_got(store, array, np.s_[56:64, 56:64]) == 3


@pytest.mark.parametrize(
    ("how", "n", "later"), [("ignored", 1, 1), ("refused", 2, 1), ("as if missing", 2, 1)]
)
@pytest.mark.parametrize("location", ["start", "end"])
def test_stores_without_ranges_are_noticed_by_what_they_answer(tmp_path, how, n, later, location):
    plain = zarr.storage.MemoryStore()
    shardwrite.to_sharded_zarr(
        VALUES, plain, **SIZES, index_location=location, run_dir=str(tmp_path / "run")
    )
    store = answering(plain, how)
    with dask.config.set(NO_GAP):
        array = shardwrite.open_sharded(store)
    for key, n_expected in ((np.s_[8:16, 8:16], n), (np.s_[64:72, 8:16], later)):
        store.asked.clear()
        np.testing.assert_array_equal(array[key], VALUES[key])
        assert len(store.asked) == n_expected
    np.testing.assert_array_equal(array[:70, 3], VALUES[:70, 3])


def test_a_shard_that_is_missing_is_asked_for_as_a_whole_until_a_range_was_answered(tmp_path):
    store = answering(zarr.storage.MemoryStore())
    shardwrite.to_sharded_zarr(VALUES, store._store, **SIZES)
    for key in ("c/0/0", "c/0/1", "c/0/2"):
        asyncio.run(store._store.delete(key))
    array = shardwrite.open_sharded(store)
    store.asked.clear()
    assert (array[:8, :8] == 0).all()
    assert [wanted is None for _, wanted in store.asked] == [False, True]
    np.testing.assert_array_equal(array[64:72, :8], VALUES[64:72, :8])
    store.asked.clear()
    assert (array[:8, 64:72] == 0).all()
    assert [wanted is None for _, wanted in store.asked] == [False]


def test_a_shard_that_is_removed_between_its_index_and_a_chunk_is_missing(tmp_path):
    plain = zarr.storage.MemoryStore()
    shardwrite.to_sharded_zarr(VALUES, plain, **SIZES, run_dir=str(tmp_path / "run"))
    store = Replacing(plain)
    with dask.config.set(NO_GAP):
        array = shardwrite.open_sharded(store)
    store.later = b""
    assert (array[8:16, 8:16] == 0).all()
    assert store.later is None, "it was removed"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_present_is_known_from_indexes(tmp_path, kind):
    store = answering(under(kind, tmp_path))
    with dask.config.set(NO_GAP):
        array = shardwrite.open_sharded(store)
    store.asked.clear()
    assert len(array.present()) == (SHAPE[0] // CHUNK) ** 2
    assert len(store.asked) == 64
    assert all(wanted is not None for _, wanted in store.asked), "no whole object"


def test_what_is_present_of_an_array_without_shards_is_not_read(tmp_path):
    store = answering(zarr.storage.MemoryStore())
    made = zarr.create_array(store, shape=(32, 32), dtype="u4", chunks=(8, 8), fill_value=0)
    made[:8] = VALUES[:8, :32]
    array = shardwrite.open_sharded(store)
    store.asked.clear()
    keys = ["0.0", "0.1", "0.2", "0.3"]
    assert array.present().keys == keys
    asked = [wanted for key, wanted in store.asked if key[2:].replace("/", ".") in keys]
    assert [(wanted.start, wanted.end) for wanted in asked] == [(0, 1)] * 4


@pytest.mark.long
def test_a_shard_that_is_replaced_between_two_ranges_is_read_as_a_whole(tmp_path):
    """The range of a chunk is no longer there: it is no error, and no wrong value."""
    plain = zarr.storage.MemoryStore()
    run_dir = str(tmp_path / "run")
    shardwrite.to_sharded_zarr(VALUES, plain, **SIZES, run_dir=run_dir)
    store = answering(plain)
    with dask.config.set({**NO_GAP, "shardwrite.read.threads": 1}):
        array = shardwrite.open_sharded(store)
    real, later = Answering.get, np.zeros(SHAPE, "u4")
    later[:8, :8] = 7

    async def replaced(self, key, prototype=None, byte_range=None):
        found = await real(self, key, prototype, byte_range)
        if key.startswith("c/") and len(self.asked) == 1:
            short = zarr.storage.MemoryStore()
            shardwrite_array = zarr.create_array(
                short, shape=SHAPE, dtype="u4", shards=(64, 64), chunks=(8, 8), fill_value=0
            )
            await shardwrite_array._async_array.setitem(slice(None), later)
            for name in ("c/0/0", "zarr.json"):
                await plain.set(name, await short.get(name, prototype))
        return found

    store.asked.clear()
    Answering.get = replaced
    try:
        found = array[56:64, 56:64]
    finally:
        Answering.get = real
    assert (found == 0).all()


class Replacing(zarr.storage.WrapperStore):
    """Puts another shard in place of one after the first range of it was read, or removes it."""

    later: bytes | None = None

    async def get(self, key, prototype=None, byte_range=None):
        found = await self._store.get(key, prototype, byte_range)
        if key == "c/0/0" and self.later is not None:
            later, self.later = self.later, None
            if later:
                await self._store.set(key, zarr.buffer.cpu.Buffer.from_bytes(later))
            else:
                await self._store.delete(key)
        return found


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_shard_in_which_a_chunk_has_the_place_of_another_one(tmp_path, location):
    """Both chunks are sound, and have the same size: no checksum tells them apart."""
    first, later = np.zeros(SHAPE, "u4"), np.zeros(SHAPE, "u4")
    first[8:16, 8:16] = later[8:16, 8:16] = 5
    later[:8, :8] = 7  # which moves the other chunk
    plain, other = zarr.storage.MemoryStore(), zarr.storage.MemoryStore()
    for store, values in ((plain, first), (other, later)):
        shardwrite.to_sharded_zarr(
            values, store, **SIZES, index_location=location, run_dir=str(tmp_path / "run")
        )
    store = Replacing(plain)
    with dask.config.set(NO_GAP):
        array = shardwrite.open_sharded(store)
    for key, wanted in ((np.s_[8:16, 8:16], 5), (np.s_[8:16, 8:12], 5)):
        shardwrite.to_sharded_zarr(
            first, plain, **SIZES, index_location=location, run_dir=str(tmp_path / "run"), mode="w"
        )
        store.later = asyncio.run(other.get("c/0/0", default_buffer_prototype())).to_bytes()
        assert (array[key] == wanted).all()
        assert store.later is None, "it was replaced"


def test_a_shard_that_is_cut_short_is_damaged(tmp_path):
    plain = zarr.storage.LocalStore(tmp_path / "x")
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    shard = tmp_path / "x" / "c" / "0" / "0"
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2] + data[-1028:])
    with dask.config.set(NO_GAP):
        array = shardwrite.open_sharded(answering(plain))
    with pytest.raises(shardwrite.CorruptShardError, match="past the end") as caught:
        array[56:64, 56:64]
    assert caught.value.fields["key"] == "c/0/0"


@pytest.mark.parametrize("place", updated_while_read.PLACES)
def test_updates_under_readers_that_keep_indexes(tmp_path, place):
    case = updated_while_read.updated(place, tmp_path, 0.5, 3)
    assert case.wrong == []
    assert case.counts["kept"] > 0 < case.counts["kept chunks"]
    assert case.counts["read"] > 20


@pytest.mark.long
@pytest.mark.parametrize("place", updated_while_read.PLACES)
def test_updates_under_readers_that_keep_indexes_for_longer(tmp_path, place):
    case = updated_while_read.updated(place, tmp_path, 10, 8)
    assert case.wrong == []
    assert case.counts["kept"] > 100 < case.counts["kept chunks"]
