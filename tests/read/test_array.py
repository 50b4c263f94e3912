"""Reading by index: what numpy gives, numpy's error where it gives none, and no value that is not there."""

from __future__ import annotations

import errno
import itertools
import os
import pickle
import shutil
import subprocess
import sys
import threading

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import CorruptShardError, SpecError, StoreError
from shardwrite.config.table import READ_LIMIT, value_of
from shardwrite.read import array
from shardwrite.read.array import ShardedArray

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
    ("chunks", "wanted"),
    [
        ("shard", ((4, 2), (4, 4, 2))),
        ("chunk", ((2, 2, 2), (2,) * 5)),
        (("chunk", "shard"), ((2, 2, 2), (4, 4, 2))),
        (["shard", -1], ((4, 2), (10,))),
        ({0: "chunk", 1: 5}, ((2, 2, 2), (5, 5))),
        ("64 B", ((4, 2), (2,) * 5)),
    ],
    ids=str,
)
def test_chunks_by_name(path, chunks, wanted):
    found = shardwrite.from_sharded_zarr(path, chunks=chunks)
    np.testing.assert_array_equal(found.compute(), VALUES)
    if chunks == "64 B":
        assert max(map(max, found.chunks)) <= 4
        return
    assert found.chunks == wanted


@pytest.mark.parametrize(
    ("chunks", "wanted"),
    [
        ({"x": 5}, ((6,), (5, 5))),
        ({"x": 5, ...: "chunk"}, ((2, 2, 2), (5, 5))),
        ({0: "chunk", "x": -1}, ((2, 2, 2), (10,))),
        ({"y": "128 B", ...: "shard"}, ((4, 2), (4, 4, 2))),
    ],
    ids=str,
)
def test_chunks_by_names_of_axes(tmp_path, chunks, wanted):
    sizes = {"shards": 4, "chunks": 2, "dimension_names": ["y", "x"]}
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "named", **sizes)
    found = shardwrite.from_sharded_zarr(tmp_path / "named", chunks=chunks)
    assert found.chunks == wanted
    np.testing.assert_array_equal(found.compute(), VALUES)


@pytest.mark.parametrize(
    "chunks", ["shards", ("chunk",), ("chunk", "chunk", "chunk"), {"y": "chunk"}, {2: "chunk"}]
)
def test_names_of_chunks_that_are_none(path, chunks):
    with pytest.raises(SpecError) as caught:
        shardwrite.from_sharded_zarr(path, chunks=chunks)
    assert caught.value.fields["field"] == "chunks"


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


LARGE = np.arange(2**18, dtype="u8").reshape(512, 512)  # 2 MiB, in four shards


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "x"
    da.from_array(LARGE, chunks=256).to_sharded_zarr(path, shards=256, chunks=64)
    return path


def readers_of(monkeypatch, read, n_at_once):
    """Threads that read shards while a function runs, in which so many must meet."""
    readers, meeting = set(), threading.Barrier(n_at_once, timeout=20)
    real = ShardedArray._read_shard

    def noting(self, *arguments):
        readers.add(threading.get_ident())
        assert value_of(READ_LIMIT) == 2**20, "the settings of who opened it hold"
        meeting.wait()
        real(self, *arguments)

    monkeypatch.setattr(ShardedArray, "_read_shard", noting)
    np.testing.assert_array_equal(read(), LARGE)
    return readers


@pytest.mark.parametrize(("threads", "n_at_once"), [(4, 4), (2, 2), (1, 1)])
def test_an_index_of_several_shards_is_read_by_threads(large, monkeypatch, threads, n_at_once):
    with dask.config.set({"shardwrite.read.limit": "1 MiB"}):
        x = pickle.loads(pickle.dumps(shardwrite.open_sharded(large)))
    with dask.config.set({"shardwrite.read.threads": threads}):
        readers = readers_of(monkeypatch, lambda: x[...], n_at_once)
    assert (readers == {threading.get_ident()}) == (threads == 1)


def test_a_task_of_dask_reads_alone(large, monkeypatch):
    with dask.config.set({"shardwrite.read.limit": "1 MiB"}):
        x = shardwrite.from_sharded_zarr(large, chunks=-1)
    settings = {"shardwrite.read.threads": 4, "scheduler": "sync"}
    with dask.config.set(settings):
        assert readers_of(monkeypatch, x.compute, 1) == {threading.get_ident()}


def test_the_error_of_one_thread_is_raised(large, tmp_path):
    copy = shutil.copytree(large, tmp_path / "x")
    (copy / "c" / "1" / "1").write_bytes(b"no shard")
    x = shardwrite.open_sharded(copy)
    with (
        dask.config.set({"shardwrite.read.threads": 3}),
        pytest.raises(CorruptShardError, match="c/1/1"),
    ):
        x[...]
    np.testing.assert_array_equal(x[:256], LARGE[:256])


def test_other_threads_read_alone(large, monkeypatch):
    """Many of them may read at a time, as those of dask do."""
    with dask.config.set({"shardwrite.read.limit": "1 MiB"}):
        x = shardwrite.open_sharded(large)
    settings = {"shardwrite.read.threads": 4, "scheduler": "threads"}
    with dask.config.set(settings):
        read = dask.delayed(lambda: x[...])()
        assert len(readers_of(monkeypatch, read.compute, 1)) == 1


def test_an_index_is_read_while_the_interpreter_ends(large):
    program = (
        "import atexit, sys, shardwrite\nx = shardwrite.open_sharded(sys.argv[1])\n"
        "x[...]\natexit.register(lambda: print(int(x[...].sum())))"
    )
    command = [sys.executable, "-c", program, str(large)]
    environment = {**os.environ, "DASK_SHARDWRITE__READ__THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == f"{LARGE.sum()}\n"


@pytest.mark.parametrize("position", [3, None, "ab", (0.5, 1), ("a", "b")])
@pytest.mark.parametrize("method", ["encoded", "encoded_range"])
def test_what_is_no_position_of_a_chunk_is_refused(tmp_path, method, position):
    shardwrite.to_sharded_zarr(np.ones((8, 8)), tmp_path / "x", shards=4, chunks=2)
    array = shardwrite.open_sharded(tmp_path / "x")
    with pytest.raises(SpecError, match=r"one integer for each axis.*such as \(0, 0\)"):
        getattr(array, method)(position)


@pytest.mark.parametrize("read", [shardwrite.open_sharded, shardwrite.present, shardwrite.verify])
def test_a_file_or_a_missing_path_is_told_from_a_directory_without_an_array(tmp_path, read):
    (tmp_path / "x.zip").write_bytes(b"PK")
    with pytest.raises(SpecError, match=r"it is a file; .*zarr\.storage\.ZipStore\(path\)"):
        read(tmp_path / "x.zip")
    with pytest.raises(SpecError, match="no such directory; give the path"):
        read(tmp_path / "y.zip")
    with pytest.raises(SpecError, match=r"there is no zarr\.json; give the path"):
        read(tmp_path)
