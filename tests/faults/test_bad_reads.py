"""A storage that answers with wrong bytes now and then, and keeps them in the cache of the system.

`Storage` stands for it: a page that was read wrong stays wrong for whoever reads it, until it is
dropped from the cache.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import CorruptShardError, StoreError
from shardwrite.sources import open_source

VALUES = np.random.default_rng(3).integers(1, 2**32, (48, 48), dtype="u4")
N_SHARDS = 9


class Storage:
    """Files of which some are read wrong: `cached` until they are dropped, `rotten` for ever."""

    def __init__(self, monkeypatch):
        self.cached, self.rotten, self.n_wrong = set(), set(), 0
        pread, fadvise = os.pread, os.posix_fadvise

        def read(fd, nbytes, offset):
            data, name = pread(fd, nbytes, offset), os.readlink(f"/proc/self/fd/{fd}")
            if name not in self.cached | self.rotten or not data:
                return data
            self.n_wrong += 1
            at = len(data) // 2
            return data[:at] + bytes([data[at] ^ 0x5A]) + data[at + 1 :]

        def advise(fd, offset, nbytes, advice):
            if advice == os.POSIX_FADV_DONTNEED:
                self.cached.discard(os.readlink(f"/proc/self/fd/{fd}"))
            return fadvise(fd, offset, nbytes, advice)

        monkeypatch.setattr(os, "pread", read)
        monkeypatch.setattr(os, "posix_fadvise", advise)


@pytest.fixture
def storage(monkeypatch):
    return Storage(monkeypatch)


pytestmark = pytest.mark.usefixtures("one_thread")


def sharded(path, **keywords):
    """An array of nine shards, and the paths of their files."""
    given = {"shards": 16, "chunks": 8, **keywords}
    da.from_array(VALUES, chunks=16).to_sharded_zarr(path, **given)
    return sorted(str(file) for file in path.glob("c/*/*"))


def chunked(path, compressors="auto"):
    """An array without shards, and the paths of its chunks."""
    made = zarr.create_array(
        path, shape=VALUES.shape, chunks=(8, 8), dtype="u4", compressors=compressors
    )
    made[...] = VALUES
    return sorted(str(file) for file in path.glob("c/*/*"))


def written_by_h5py(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(8, 8), compression="gzip", fletcher32=True)
    return [str(path)]


CONVERSIONS = {
    "checked": lambda a, b: shardwrite.shard(a, b, 3, check=True),
    "checksum dropped": lambda a, b: shardwrite.shard(a, b, 3, checksum=False),
    "encoded again": lambda a, b: shardwrite.reshard(a, b, 4, chunks=4),
    "encoded again, by blocks": lambda a, b: shardwrite.reshard(a, b, 3, chunks=5),
    "without shards": lambda a, b: shardwrite.unshard(a, b, check=True),
    "empty dropped": lambda a, b: shardwrite.reshard(a, b, 2, drop_empty=True),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_bytes_that_were_wrong_once_are_read_again_and_counted(name, tmp_path, storage, caplog):
    files = sharded(tmp_path / "a")
    storage.cached = set(files[2:5])
    with caplog.at_level(logging.WARNING, "shardwrite.shards"):
        done = CONVERSIONS[name](tmp_path / "a", tmp_path / "b")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b")[...], VALUES)
    assert storage.n_wrong >= 3
    assert done.n_reread_chunks >= 3
    assert done.to_dict()["n_reread_chunks"] == done.n_reread_chunks
    assert "second reads" in str(done)
    told = [record for record in caplog.records if "read a second time" in record.getMessage()]
    assert len(told) == done.n_reread_chunks


@pytest.mark.parametrize("name", CONVERSIONS)
def test_what_stays_wrong_fails_alone_and_is_named(name, tmp_path, storage):
    files = sharded(tmp_path / "a")
    storage.rotten = {files[0], files[8]}
    before = set(storage.rotten)
    with pytest.raises(CorruptShardError, match="make the same call again") as caught:
        CONVERSIONS[name](tmp_path / "a", tmp_path / "b")
    text = str(caught.value)
    assert caught.value.key == "c/0/0"
    assert "'c/0/0'" in text
    assert "'c/2/2'" in text
    assert str(tmp_path / "a") in text
    assert storage.rotten == before
    assert not (tmp_path / "b" / "zarr.json").exists(), "it is not published"
    storage.rotten = set()
    again = CONVERSIONS[name](tmp_path / "a", tmp_path / "b")
    (array,) = again.arrays
    n_all = array.result.n_shards + array.result.n_empty_shards
    assert 0 < array.result.n_resumed_shards < n_all, "only the others are made again"
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b")[...], VALUES)


def test_the_error_names_the_chunk_and_its_bytes(tmp_path, storage):
    files = sharded(tmp_path / "a")
    data = bytearray(Path(files[4]).read_bytes())
    data[3] ^= 1
    Path(files[4]).write_bytes(data)
    with pytest.raises(CorruptShardError) as caught:
        shardwrite.shard(tmp_path / "a", tmp_path / "b", 3, check=True)
    assert caught.value.key == "c/1/1"
    assert caught.value.inner_chunk is not None
    assert caught.value.offset == 0
    assert caught.value.nbytes > 0


def test_chunks_without_a_checksum_are_wrong_in_silence_unless_read_twice(tmp_path, storage):
    """The control of the next test: nothing else shows such a fault."""
    files = chunked(tmp_path / "a", compressors=None)
    storage.cached = set(files[7:9])
    shardwrite.shard(tmp_path / "a", tmp_path / "b", 3, check=True)
    assert (zarr.open_array(tmp_path / "b")[...] != VALUES).sum() == 2


TWICE = {
    "copied": lambda a, b: shardwrite.shard(a, b, 3, check="twice"),
    "encoded again": lambda a, b: shardwrite.reshard(a, b, 4, chunks=4, check="twice"),
}


@pytest.mark.parametrize("name", TWICE)
def test_what_has_no_checksum_is_read_twice_and_compared(name, tmp_path, storage):
    files = chunked(tmp_path / "a", compressors=None)
    storage.cached = set(files[7:9])
    done = TWICE[name](tmp_path / "a", tmp_path / "b")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b")[...], VALUES)
    assert storage.n_wrong >= 2
    assert done.n_reread_chunks >= 1


def test_what_has_a_checksum_is_not_read_twice(tmp_path, monkeypatch):
    sharded(tmp_path / "a")
    n_dropped = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *_: n_dropped.append(1))
    done = shardwrite.shard(tmp_path / "a", tmp_path / "b", 3, check="twice")
    assert not n_dropped
    assert done.n_reread_chunks == 0
    assert "second reads" not in str(done)


@pytest.mark.parametrize("value", ["thrice", 2, None])
def test_other_values_of_check_are_refused(value, tmp_path):
    sharded(tmp_path / "a")
    with pytest.raises(shardwrite.SpecError, match="check"):
        shardwrite.shard(tmp_path / "a", tmp_path / "b", 3, check=value)


def test_chunks_of_hdf5_files_are_read_again(tmp_path, storage):
    """The file is open, and its pages are dropped by another descriptor."""
    (file,) = written_by_h5py(tmp_path / "a.h5")
    source = tmp_path / "a.h5::x"
    shardwrite.plan_reshard(source)  # looks through the file
    storage.cached = {file}
    done = shardwrite.shard(source, tmp_path / "b", 3, check=True)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b")[...], VALUES)
    assert done.n_reread_chunks >= 1


def test_a_source_is_removed_only_after_what_the_storage_has_was_compared(tmp_path, storage):
    """Without a look at the bytes, a copy of wrong pages is the same as these pages."""
    files = chunked(tmp_path / "a", compressors=None)
    storage.cached = set(files[7:9])
    with pytest.raises(CorruptShardError, match="differ"):
        shardwrite.shard(tmp_path / "a", tmp_path / "b", 3, consume=True)
    assert all(Path(file).exists() for file in files[7:9]), "nothing of it was removed"


def test_a_conversion_in_place_compares_with_the_storage(tmp_path, storage):
    files = chunked(tmp_path / "a", compressors=None)
    storage.cached = set(files[7:9])
    with pytest.raises(CorruptShardError, match="differs"):
        shardwrite.shard_store(tmp_path / "a", 3)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a")[...], VALUES)


def test_a_comparison_that_was_misled_is_made_again(tmp_path, storage):
    """The copy is right, and the source is read wrong while it is compared."""
    files = sharded(tmp_path / "a")
    shardwrite.shard(tmp_path / "a", tmp_path / "b", 3)
    storage.cached = {files[4]}
    assert shardwrite.verify(tmp_path / "b", against=tmp_path / "a").is_good
    storage.rotten = {files[4]}
    assert not shardwrite.verify(tmp_path / "b", against=tmp_path / "a").is_good


def test_volumes_and_copies_read_again(tmp_path, storage):
    files = sharded(tmp_path / "a")
    storage.cached = {files[1]}
    done = shardwrite.download(tmp_path / "a", tmp_path / "b")
    assert done.n_reread_chunks in (0, 1), "only the index of a shard is looked at"
    volume = np.random.default_rng(3).integers(1, 200, (16, 16, 16), dtype="u1")
    da.from_array(volume).to_sharded_zarr(tmp_path / "v", shards=8, chunks=4)
    storage.cached = {str(next(iter((tmp_path / "v" / "c").glob("*/*/*"))))}
    made = shardwrite.to_precomputed(
        shardwrite.from_sharded_zarr(tmp_path / "v"),
        tmp_path / "p",
        axes="zyx",
        resolution=(1, 1, 1),
    )
    assert made.n_shards
    found = shardwrite.from_precomputed(tmp_path / "p")
    np.testing.assert_array_equal(np.squeeze(np.asarray(found)).T, volume)


def test_an_update_reads_what_it_keeps_again(tmp_path, storage):
    files = sharded(tmp_path / "a")
    storage.cached = {files[0]}
    done = da.zeros((4, 4), dtype="u4").to_sharded_zarr(tmp_path / "a", region=np.s_[:4, :4])
    want = VALUES.copy()
    want[:4, :4] = 0
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a")[...], want)
    assert done.n_reread_chunks == 1


@pytest.mark.parametrize(
    "scheduler", ["threads", pytest.param("processes", marks=pytest.mark.long)]
)
def test_others_go_on_with_every_scheduler(scheduler, tmp_path):
    files = sharded(tmp_path / "a")
    data = bytearray(Path(files[0]).read_bytes())
    data[3] ^= 1
    Path(files[0]).write_bytes(data)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        with pytest.raises(CorruptShardError, match=r"c/0/0.* cannot be written"):
            shardwrite.reshard(tmp_path / "a", tmp_path / "b", 4, chunks=4)
        assert len(list((tmp_path / "b").rglob("c/*/*"))) == N_SHARDS - 1
        data[3] ^= 1
        Path(files[0]).write_bytes(data)
        done = shardwrite.reshard(tmp_path / "a", tmp_path / "b", 4, chunks=4)
        assert done.arrays[0].result.n_resumed_shards == N_SHARDS - 1
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b")[...], VALUES)


def test_an_hdf5_file_that_the_storage_refuses_is_not_called_damaged(tmp_path, monkeypatch):
    """HDF5 tells the number of the system's error in its text only."""
    (file,) = written_by_h5py(tmp_path / "a.h5")

    def refuse(*_, **__):
        raise RuntimeError("cannot close (errno = 5, error message = 'Input/output error')")

    monkeypatch.setattr(h5py, "File", refuse)
    with pytest.raises(StoreError) as caught:
        open_source(file)
    assert caught.value.errno == errno.EIO
