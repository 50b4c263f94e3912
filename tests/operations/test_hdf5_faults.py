"""Shards that are HDF5 files and were damaged: what is told, and what stays a file of HDF5."""

from __future__ import annotations

import os
import stat
import struct

import dask.array as da
import numpy as np
import obstore.store
import pytest
import zarr

import shardwrite
from shardwrite import Hdf5

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

VALUES = np.arange(1, 49, dtype="i4").reshape(8, 6)
SHARD = "c/1/0"


def written(path, index="end", **options):
    """An array of two shards that are HDF5 files."""
    how = Hdf5(index=index)
    layout = {"shards": (4, 6), "chunks": (2, 3), "strategy": how, **options}
    da.from_array(VALUES, chunks=(4, 6)).to_sharded_zarr(path, **layout)
    return path


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def changed_by_hdf5(path, change):
    """Let a program of HDF5 change a shard, which it may only after a chmod."""
    path.chmod(0o644)
    with h5py.File(path, "r+") as file:
        change(file)


def test_a_downloaded_file_is_read_only_too(tmp_path):
    source = written(tmp_path / "x")
    bucket = obstore.store.LocalStore(tmp_path / "bucket", mkdir=True)
    shardwrite.upload(source, zarr.storage.ObjectStore(bucket))
    shardwrite.download(zarr.storage.ObjectStore(bucket), tmp_path / "copy")
    assert mode_of(tmp_path / "copy" / SHARD) == mode_of(source / SHARD) == 0o444
    assert (tmp_path / "copy" / SHARD).read_bytes() == (source / SHARD).read_bytes()


def test_a_plain_shard_is_downloaded_as_before(tmp_path):
    source = written(tmp_path / "x", strategy="fixed-order", compressors=None)
    bucket = obstore.store.LocalStore(tmp_path / "bucket", mkdir=True)
    shardwrite.upload(source, zarr.storage.ObjectStore(bucket))
    shardwrite.download(zarr.storage.ObjectStore(bucket), tmp_path / "copy")
    assert mode_of(tmp_path / "copy" / SHARD) == mode_of(source / SHARD)


def told_by_deep(path):
    assert shardwrite.verify(path).is_good
    (problem,) = shardwrite.verify(path, deep=True).problems
    assert problem.key == SHARD
    return problem.message


def set_end(path, end, base=0):
    """Change the end-of-file address in a superblock of version 0."""
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.seek(base + 40)
        file.write(struct.pack("<Q", end))


def test_a_file_that_was_cut_off_is_told(tmp_path):
    path = written(tmp_path / "x", index="start", compressors=None)
    shard = path / SHARD
    with h5py.File(shard) as file:
        ends = [c.byte_offset + c.size for c in chunks_of(file["data"])]
    shard.chmod(0o644)
    with open(shard, "r+b") as file:
        file.truncate(max(ends))
    # The superblock still tells of more bytes, if the library put anything behind the chunks.
    set_end(shard, shard.stat().st_size + 100, base=512)
    with pytest.raises(OSError, match="truncated"):
        h5py.File(shard)
    assert "cut off" in told_by_deep(path)
    done = shardwrite.repair(path, da.from_array(VALUES))
    assert [task.key for task in done.tasks] == [SHARD]
    assert shardwrite.verify(path, deep=True).is_good
    with h5py.File(shard) as file:
        assert (file["data"][...] == VALUES[4:]).all()


def chunks_of(dataset):
    return [dataset.id.get_chunk_info(n) for n in range(dataset.id.get_num_chunks())]


@pytest.mark.parametrize("off", [-8, 8])
def test_an_end_of_file_address_that_does_not_fit_is_told(tmp_path, off):
    path = written(tmp_path / "x")
    set_end(path / SHARD, (path / SHARD).stat().st_size + off)
    assert ("cut off" if off > 0 else "would cut off the index") in told_by_deep(path)


def test_a_superblock_that_is_damaged_is_told(tmp_path):
    path = written(tmp_path / "x")
    (path / SHARD).chmod(0o644)
    with open(path / SHARD, "r+b") as file:
        file.seek(8)
        file.write(b"\x09")
    assert "a superblock of version 9" in told_by_deep(path)


def test_values_that_look_like_a_file_are_values(tmp_path):
    values = np.frombuffer(b"\x89HDF\r\n\x1a\n" + bytes(range(1, 57)), "u1")
    da.from_array(values).to_sharded_zarr(tmp_path / "x", shards=64, chunks=32, compressors=None)
    assert shardwrite.verify(tmp_path / "x", deep=True).is_good


def test_bytes_behind_an_adopted_file_are_no_fault(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file.create_dataset("v", data=VALUES, chunks=(2, 3))
    with open(tmp_path / "a.h5", "ab") as file:
        file.write(bytes(100))
    shardwrite.adopt([tmp_path / "a.h5"], tmp_path / "x", how="move")
    assert shardwrite.verify(tmp_path / "x", deep=True).is_good
