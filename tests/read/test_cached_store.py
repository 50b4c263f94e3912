"""Programs that read through zarr-python by a store that keeps indexes: how many requests that saves,
and that no index is used that is out of date."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import obstore
import pytest
import xarray as xr
import zarr
from crc32c import crc32c
from forks import python
from obstore.store import MemoryStore
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import FsspecStore, LocalStore, ObjectStore, ZipStore

import shardwrite
from shardwrite import CachedStore, CorruptShardError, SpecError
from shardwrite.read import cached_store
from shardwrite.read.indexes import Cache
from shardwrite.stores import looking
from shardwrite.stores.looking import PosixReader

sys.path.insert(0, str(Path(__file__).parent))

import updated_while_read

SHAPE, SHARD, CHUNK = (128, 128), 64, 8
VALUES = np.random.default_rng(0).integers(1, 2**32, SHAPE, dtype="u4")
SIZES = {"shards": SHARD, "chunks": CHUNK}
PLACES = ("directory", "bucket")
FIRST = (slice(0, CHUNK), slice(0, CHUNK))
SECOND = (slice(CHUNK, 2 * CHUNK), slice(0, CHUNK))
PROTOTYPE = default_buffer_prototype()


@pytest.fixture(autouse=True)
def indexes(monkeypatch):
    """A cache of the test's own, and files that count as old at once."""
    monkeypatch.setattr(looking, "SETTLED_NS", -(2**62))
    monkeypatch.setattr(cached_store, "INDEXES", Cache(cached_store.INDEXES.limit_nbytes))
    return cached_store.INDEXES


@pytest.fixture
def asked(monkeypatch):
    """Names of what is asked of files and of obstore for shards."""
    found = []
    read = PosixReader.read

    def from_file(self, offset, nbytes):
        found.append("get")
        return read(self, offset, nbytes)

    monkeypatch.setattr(PosixReader, "read", from_file)
    for name in ("get", "head"):
        real = getattr(obstore, name)

        def from_bucket(store, key, *arguments, _name=name, _real=real, **keywords):
            found.append(_name)
            return _real(store, key, *arguments, **keywords)

        monkeypatch.setattr(obstore, name, from_bucket)
    return found


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    return tmp_path / "x" if request.param == "directory" else MemoryStore()


def opened(place):
    return zarr.open_array(CachedStore(place), mode="r")


def n_asked(asked, read):
    asked.clear()
    return read(), len(asked)


def update(place, box, values, run_dir):
    run_dir = str(run_dir) if isinstance(place, MemoryStore) else None
    shardwrite.write_region(values, place, box, durability="none", run_dir=run_dir)


@pytest.mark.compat
@pytest.mark.parametrize("location", ["start", "end"])
def test_an_index_is_read_once(place, asked, location):
    shardwrite.to_sharded_zarr(VALUES, place, index_location=location, **SIZES)
    array = opened(place)
    for box, n_expected in ((FIRST, 2), (SECOND, 1), (FIRST, 1)):
        found, n_requests = n_asked(asked, lambda box=box: array[box])
        assert (found == VALUES[box]).all()
        assert n_requests == n_expected
    assert (array[:] == VALUES).all()


def test_without_it_zarr_reads_the_index_each_time(tmp_path, monkeypatch):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    ranges, get = [], LocalStore.get

    async def counted(self, key, prototype, byte_range=None):
        ranges.append(byte_range)
        return await get(self, key, prototype, byte_range)

    monkeypatch.setattr(LocalStore, "get", counted)
    array = zarr.open_array(LocalStore(tmp_path / "x"), mode="r")
    _ = array[FIRST], array[SECOND]
    assert sum(isinstance(byte_range, SuffixByteRequest) for byte_range in ranges) == 2


@pytest.mark.compat
def test_a_shard_with_empty_chunks_is_looked_at_first(place, asked, tmp_path):
    values = VALUES.copy()
    values[SECOND] = 0
    shardwrite.to_sharded_zarr(values, place, **SIZES)
    array = opened(place)
    assert (array[FIRST] == values[FIRST]).all()
    assert (array[SECOND] == 0).all()
    update(place, SECOND, VALUES[SECOND], tmp_path / "run")
    assert (array[SECOND] == VALUES[SECOND]).all(), "an index that is out of date calls it empty"
    found, n_requests = n_asked(asked, lambda: array[FIRST])
    assert (found == VALUES[FIRST]).all()
    assert n_requests <= 2


@pytest.mark.compat
@pytest.mark.parametrize("box", [FIRST, SECOND])
def test_a_chunk_that_was_changed(place, tmp_path, box):
    shardwrite.to_sharded_zarr(VALUES, place, **SIZES)
    array = opened(place)
    assert (array[:16, :8] == VALUES[:16, :8]).all()
    update(place, box, VALUES[box] // 3, tmp_path / "run")
    expected = VALUES.copy()
    expected[box] //= 3
    assert (array[:16, :8] == expected[:16, :8]).all()
    assert (array[:64, :64] == expected[:64, :64]).all()


@pytest.mark.compat
def test_a_chunk_that_was_emptied_and_a_shard_that_was_removed(place, tmp_path):
    shardwrite.to_sharded_zarr(VALUES, place, **SIZES)
    array = opened(place)
    assert (array[FIRST] == VALUES[FIRST]).all()
    update(place, FIRST, np.zeros((CHUNK, CHUNK), "u4"), tmp_path / "run")
    assert (array[FIRST] == 0).all()
    assert (array[SECOND] == VALUES[SECOND]).all()
    update(
        place, (slice(0, SHARD), slice(0, SHARD)), np.zeros((SHARD, SHARD), "u4"), tmp_path / "run"
    )
    assert (array[:SHARD, : 2 * CHUNK] == 0).all()
    update(place, FIRST, VALUES[FIRST], tmp_path / "run")
    assert (array[FIRST] == VALUES[FIRST]).all()


def rows(data):
    return np.frombuffer(data[:-4], "<u8").reshape(-1, 2).astype(int).tolist()


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_shard_that_changes_after_its_index_was_given(place, tmp_path, monkeypatch, is_kept):
    """A reader that was given the index asks for bytes of a shard that is another one by then."""
    if not is_kept:
        monkeypatch.setattr(looking, "SETTLED_NS", 2**62)  # files that were changed just now
    shardwrite.to_sharded_zarr(VALUES, place, **SIZES)
    store, n_index = CachedStore(place), 64 * 16 + 4

    async def read():
        index = await store.get("c/0/0", PROTOTYPE, SuffixByteRequest(n_index))
        start, nbytes = rows(index.to_bytes())[1]
        await asyncio.to_thread(
            update, place, FIRST, np.arange(64, dtype="u4").reshape(8, 8), tmp_path / "r"
        )
        found = await store.get("c/0/0", PROTOTYPE, RangeByteRequest(start, start + nbytes))
        again = await store.get("c/0/0", PROTOTYPE, RangeByteRequest(start, start + nbytes))
        now = await store.get("c/0/0", PROTOTYPE, SuffixByteRequest(n_index))
        new_start, new_nbytes = rows(now.to_bytes())[1]
        whole = await store.get("c/0/0", PROTOTYPE)
        assert (new_start, new_nbytes) != (start, nbytes)
        return found, again, whole.to_bytes()[new_start : new_start + new_nbytes]

    found, again, expected = asyncio.run(read())
    assert found.to_bytes() == again.to_bytes() == expected


def test_a_task_that_was_given_no_index_reads_by_the_kept_one(place, tmp_path):
    shardwrite.to_sharded_zarr(VALUES, place, **SIZES)
    store = CachedStore(place)

    def get(byte_range):
        return asyncio.run(store.get("c/0/0", PROTOTYPE, byte_range))

    start, nbytes = rows(get(SuffixByteRequest(64 * 16 + 4)).to_bytes())[1]
    update(place, FIRST, np.arange(64, dtype="u4").reshape(8, 8), tmp_path / "run")
    found = get(RangeByteRequest(start, start + nbytes)).to_bytes()
    new_start, new_nbytes = rows(get(SuffixByteRequest(64 * 16 + 4)).to_bytes())[1]
    assert found == get(None).to_bytes()[new_start : new_start + new_nbytes]


def test_chunks_with_the_same_bytes_and_a_shard_of_another_layout(tmp_path):
    place = tmp_path / "x"
    shardwrite.to_sharded_zarr(np.ones(SHAPE, "u4"), place, **SIZES)
    array = opened(place)
    assert (array[FIRST] == 1).all()
    update(place, SECOND, VALUES[SECOND], None)
    assert (array[FIRST] == 1).all()
    assert (array[SECOND] == VALUES[SECOND]).all()
    shardwrite.to_sharded_zarr(VALUES, place, shards=SHARD, chunks=16, mode="w")
    assert (opened(place)[:] == VALUES).all()


@pytest.mark.parametrize("before", [{"chunks": CHUNK}, {"chunks": 16, "index_location": "start"}])
def test_an_array_that_is_replaced_by_one_with_its_index_elsewhere(place, before, tmp_path):
    run_dir = tmp_path / "run" if isinstance(place, MemoryStore) else None
    shardwrite.to_sharded_zarr(VALUES, place, shards=SHARD, run_dir=run_dir, **before)
    assert (opened(place)[FIRST] == VALUES[FIRST]).all()
    more = {"index_location": "start", "mode": "w", "run_dir": run_dir}
    shardwrite.to_sharded_zarr(VALUES // 3, place, **SIZES, **more)
    assert (opened(place)[FIRST] == VALUES[FIRST] // 3).all()


def test_a_range_of_a_shard_that_has_no_index_any_more_is_read_as_it_is(tmp_path):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    store, shard = CachedStore(tmp_path / "x"), tmp_path / "x" / "c" / "0" / "0"
    index = asyncio.run(store.get("c/0/0", PROTOTYPE, SuffixByteRequest(64 * 16 + 4)))
    start, nbytes = rows(index.to_bytes())[1]
    shard.write_bytes(data := bytes(range(256)) * 200)
    for first in (start, 0):
        found = asyncio.run(store.get("c/0/0", PROTOTYPE, RangeByteRequest(first, first + nbytes)))
        assert found.to_bytes() == data[first : first + nbytes]


def test_tasks_that_have_each_read_the_index_of_chunks_with_the_same_bytes(tmp_path, indexes):
    place, n_index = tmp_path / "x", 64 * 16 + 4
    shardwrite.to_sharded_zarr(np.ones(SHAPE, "u4"), place, **SIZES)
    shard = place / "c" / "0" / "0"
    start, nbytes = rows(shard.read_bytes()[-n_index:])[0]
    table = np.array([[0, nbytes]] * 64, "<u8").tobytes()
    chunk = shard.read_bytes()[start : start + nbytes]
    shard.write_bytes(chunk + table + crc32c(table).to_bytes(4, "little"))
    store = CachedStore(place)

    async def read():
        await store.get("c/0/0", PROTOTYPE, SuffixByteRequest(n_index))
        indexes.after_fork()  # as if the other task had asked at the same time
        other = asyncio.create_task(store.get("c/0/0", PROTOTYPE, SuffixByteRequest(n_index)))
        await other
        return await store.get("c/0/0", PROTOTYPE, RangeByteRequest(0, nbytes))

    assert asyncio.run(read()).to_bytes() == chunk


@pytest.mark.compat
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of zarr-python
@pytest.mark.parametrize("nbytes", [-300, 2**64 - 300])
def test_a_chunk_that_its_shard_does_not_hold_is_no_empty_one(place, nbytes):
    """Nor is one without bytes. A store of zarr-python in a directory gives nothing for both."""
    shardwrite.to_sharded_zarr(VALUES, place, index_location="start", **SIZES)
    objects = LocalStore(place) if isinstance(place, Path) else ObjectStore(place)
    data = asyncio.run(objects.get("c/0/0", PROTOTYPE)).to_bytes()
    if nbytes < 0:
        data = data[:nbytes]  # which ends before the last chunk
    else:
        table = np.frombuffer(data[: 64 * 16], "<u8").copy()
        table[-1] = nbytes  # so that its end wraps around
        data = table.tobytes() + crc32c(table.tobytes()).to_bytes(4, "little") + data[64 * 16 + 4 :]
    asyncio.run(objects.set("c/0/0", PROTOTYPE.buffer.from_bytes(data)))
    array = opened(place)
    assert (array[FIRST] == VALUES[FIRST]).all()
    for _ in range(2):
        with pytest.raises(CorruptShardError, match=r"'c/0/0'.* has no bytes, or ends past byte"):
            array[56:64, 56:64]


def test_what_is_kept_has_a_bound(tmp_path, indexes):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    indexes.limit_nbytes = lambda: 2 * (64 * 16 + 4 + 512)
    array = opened(tmp_path / "x")
    for i in range(2):
        for j in range(2):
            assert (
                array[i * 64 : i * 64 + 8, j * 64 : j * 64 + 8]
                == VALUES[i * 64 : i * 64 + 8, j * 64 : j * 64 + 8]
            ).all()
    assert 0 < indexes.nbytes <= 2 * (64 * 16 + 4 + 512)


def test_what_is_no_index_is_read_as_it_is(tmp_path):
    """Ranges of any object, as zarr-python's own stores give them."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "some").write_bytes(bytes(range(100)))
    plain, cached = LocalStore(tmp_path / "x"), CachedStore(tmp_path / "x")
    wanted = [None, RangeByteRequest(0, 20), RangeByteRequest(0, 16), RangeByteRequest(90, 120)]
    wanted += [SuffixByteRequest(16), SuffixByteRequest(7), SuffixByteRequest(200)]

    async def read(store):
        found = [await store.get("some", PROTOTYPE, byte_range) for byte_range in wanted]
        more = await store.get_partial_values(PROTOTYPE, [("some", one) for one in wanted])
        assert await store.get("other", PROTOTYPE, RangeByteRequest(0, 20)) is None
        assert await store.get("other", PROTOTYPE, SuffixByteRequest(20)) is None
        return [buffer.to_bytes() for buffer in found + more]

    assert asyncio.run(read(cached)) == asyncio.run(read(plain))


def test_it_is_pickled_without_what_is_kept(tmp_path):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    array = opened(tmp_path / "x")
    assert (array[FIRST] == VALUES[FIRST]).all()
    data = pickle.dumps(array.store)
    assert len(data) < 1000
    assert pickle.loads(data) == array.store
    assert (zarr.open_array(pickle.loads(data), mode="r")[SECOND] == VALUES[SECOND]).all()


@pytest.mark.parametrize(
    "call",
    [
        "array[:]",
        "array.nbytes_stored()",
        "array.store.list_dir('c')",
        "asyncio.run(array.store.exists('c'))",
        "asyncio.run(array.store.delete('c'))",
    ],
)
def test_a_child_of_a_fork_is_refused_rather_than_left_waiting(tmp_path, call):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    program = """
import asyncio, os, signal, sys
import zarr
from obstore.store import LocalStore
from shardwrite import CachedStore, StoreError
array = zarr.open_array(CachedStore(LocalStore(sys.argv[1])), mode="r")
array[:]
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        eval(sys.argv[2])
    except StoreError as error:
        os._exit(0 if "forked" in str(error) else 3)
    os._exit(4)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([*python(), "-c", program, tmp_path / "x", call], check=True)


def test_dask_and_xarray_read_by_it(place):
    ds = xr.Dataset({"t": (("y", "x"), VALUES)})
    ds.shardwrite.to_zarr(place, shards={...: SHARD}, chunks={...: CHUNK})
    store = CachedStore(place)
    xr.testing.assert_identical(xr.open_zarr(store).load(), ds)
    assert (da.from_zarr(zarr.open_array(store, path="t", mode="r")).compute() == VALUES).all()


def test_writing_is_passed_to_the_store(tmp_path):
    array = zarr.create_array(
        CachedStore(tmp_path / "x"),
        shape=SHAPE,
        dtype="u4",
        chunks=(CHUNK,) * 2,
        shards=(SHARD,) * 2,
    )
    array[:] = VALUES
    assert (array[FIRST] == VALUES[FIRST]).all()
    array[FIRST] = 7
    assert (array[FIRST] == 7).all()
    assert (shardwrite.open_sharded(tmp_path / "x")[SECOND] == VALUES[SECOND]).all()


@pytest.mark.compat
def test_sizes_are_told_without_a_read(tmp_path, monkeypatch):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    array, plain = opened(tmp_path / "x"), zarr.open_array(tmp_path / "x", mode="r")
    n_stored = plain.nbytes_stored()
    monkeypatch.setattr(LocalStore, "get", None)
    monkeypatch.setattr(PosixReader, "read", None)
    assert array.nbytes_stored() == n_stored > VALUES.nbytes
    with pytest.raises(FileNotFoundError):
        asyncio.run(array.store.getsize("c/9/9"))


def test_kinds_of_stores(tmp_path):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    directory, memory = str(tmp_path / "x"), MemoryStore()
    for given in (
        directory,
        f"file://{directory}",
        LocalStore(directory),
        memory,
        ObjectStore(memory),
    ):
        assert isinstance(CachedStore(given), CachedStore)
    wrapped = CachedStore(LocalStore(directory))
    for given in (
        zarr.storage.MemoryStore(),
        FsspecStore.from_url("memory://x"),
        wrapped,
        ZipStore(tmp_path / "x.zip", mode="w"),
        3,
        "memory://x",
    ):
        with pytest.raises(SpecError, match="versions"):
            CachedStore(given)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("seconds", "n_readers"), [(0.5, 3), pytest.param(10, 8, marks=pytest.mark.long)]
)
def test_updates_under_readers(tmp_path, place, seconds, n_readers):
    case = updated_while_read.updated(
        place, tmp_path, seconds, n_readers, updated_while_read.by_zarr, ("replaced", "appended")
    )
    assert case.wrong == []
    assert case.counts["kept by a store"] > 0
    assert case.counts["read"] > 20
