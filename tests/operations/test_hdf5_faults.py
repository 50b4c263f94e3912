"""Shards that are HDF5 files and were damaged: what is told, and what stays a file of HDF5."""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import obstore.store
import pytest
import zarr

import shardwrite
from shardwrite import Hdf5, SpecError, StoreError
from shardwrite.hdf5 import shards
from shardwrite.hdf5.salvage import look_into

sys.path.insert(0, str(Path(__file__).parent))
from whole_files import make_shards

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

VALUES = np.arange(1, 49, dtype="i4").reshape(8, 6)
SHARD = "c/1/0"


def written(path, index="end", values=VALUES, **options):
    """An array of two shards that are HDF5 files."""
    how = Hdf5(index=index)
    layout = {"shards": (4, 6), "chunks": (2, 3), "strategy": how, **options}
    da.from_array(values, chunks=(4, 6)).to_sharded_zarr(path, **layout)
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


@pytest.mark.long
def test_a_downloaded_array_stays_one_of_files(tmp_path):
    """The receipt of a download does not tell, so a shard beside the missing one does."""
    values = VALUES.copy()
    values[4:] = 0
    source = written(tmp_path / "x", values=values, strategy=Hdf5(dataset="raw/v"))
    bucket = obstore.store.LocalStore(tmp_path / "bucket", mkdir=True)
    shardwrite.upload(source, zarr.storage.ObjectStore(bucket))
    shardwrite.download(zarr.storage.ObjectStore(bucket), tmp_path / "copy")
    path = tmp_path / "copy"
    assert not (path / SHARD).exists()
    with pytest.raises(SpecError, match="files of HDF5, and the shard 'c/1/0' would be none"):
        shardwrite.write_region(7, path, slice(4, 8))
    shardwrite.write_region(7, path, slice(4, 8), strategy="hdf5")
    with h5py.File(path / SHARD) as file:
        assert (file["raw/v"][...] == 7).all()


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
def test_an_end_of_file_address_that_does_not_fit_is_told(tmp_path, off, monkeypatch):
    monkeypatch.setattr(shards, "has_library", lambda: False)
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
    make_shards([tmp_path / "a.h5"], tmp_path / "x", dataset="v", index="start")
    assert shardwrite.verify(tmp_path / "x", deep=True).is_good


def grown(file):
    """Another program stores something, so that the index is no longer at the end."""
    file["new"] = np.arange(1000.0)
    file.attrs["who"] = "another program"


def check_mended(path, shard, values, name="data"):
    """Zarr and HDF5 read the values, other datasets are there, and the file can be written to."""
    assert shardwrite.verify(path, deep=True).is_good
    assert (shardwrite.open_sharded(path)[...] == values).all()
    assert (zarr.open_array(path)[...] == values).all()
    assert mode_of(shard) == 0o444
    shard.chmod(0o644)
    with h5py.File(shard, "r+") as file:
        assert (file["new"][...] == np.arange(1000.0)).all()
        assert file.attrs["who"] == "another program"
        at = slice(4, 8) if str(shard).endswith(SHARD) else slice(0, 4)
        assert (file[name][...] == values[at]).all()
    assert (shardwrite.open_sharded(path)[...] == values).all()  # and nothing was cut off


@pytest.mark.parametrize("how", ["written", "adopted", "without a receipt"])
def test_a_scan_loses_no_dataset(tmp_path, how):
    path, name = tmp_path / "x", "data"
    if how == "adopted":
        name, files = "v", [tmp_path / "a.h5", tmp_path / "b.h5"]
        for at, one in zip((slice(0, 4), slice(4, 8)), files, strict=True):
            with h5py.File(one, "w") as file:
                file.create_dataset("u", data=-VALUES[at], chunks=(2, 3), compression="gzip")
                file.create_dataset("v", data=VALUES[at], chunks=(2, 3), compression="gzip")
        make_shards(files, path, dataset="v")
    else:
        written(path)
    if how == "without a receipt":
        (path / "shardwrite-receipt.json").unlink()
    changed_by_hdf5(path / SHARD, grown)
    assert not shardwrite.verify(path).is_good
    done = shardwrite.repair(path, scan=True)
    assert done.is_done
    assert f"from the dataset {name!r}" in done.salvaged[0]
    assert not done.warnings
    check_mended(path, path / SHARD, VALUES, name)
    assert shardwrite.repair(path, scan=True).salvaged == ()
    if how == "adopted":
        with h5py.File(path / SHARD) as file:
            assert (file["u"][...] == -VALUES[4:]).all()


def test_a_scan_finds_chunks_that_have_moved(tmp_path):
    values = np.full_like(VALUES, 5)  # they take few bytes
    path = written(tmp_path / "x", "start", values, chunks=(4, 6))

    def change(file):
        grown(file)
        file["data"][...] = values[4:] = np.random.default_rng(0).integers(0, 2**31, (4, 6))

    changed_by_hdf5(path / SHARD, change)
    assert not shardwrite.verify(path, deep=True).is_good
    assert shardwrite.repair(path, scan=True).is_done
    check_mended(path, path / SHARD, values)


def test_a_file_that_hdf5_does_not_open_is_not_cut(tmp_path):
    path = written(tmp_path / "x")
    changed_by_hdf5(path / SHARD, grown)
    with open(path / SHARD, "r+b") as file:
        file.truncate((path / SHARD).stat().st_size - 100)
    torn = (path / SHARD).read_bytes()
    done = shardwrite.repair(path, scan=True)
    assert not done.is_done
    assert done.salvaged == ()
    assert "is a file of HDF5, and stays as it is: " in done.warnings[0]
    assert [task.key for task in done.tasks] == [SHARD]
    assert (path / SHARD).read_bytes() == torn
    assert "cannot be read as HDF5" in done.warnings[0]
    assert "stays as it is" in str(done)
    done = shardwrite.repair(path, da.from_array(VALUES), scan=True)
    assert done.is_done
    assert done.warnings == ()
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize("change", ["its name", "its type", "its fill value", "its shape"])
def test_another_dataset_does_not_become_the_arrays(tmp_path, change):
    path = written(tmp_path / "x", compressors=None)

    def replaced(file):
        grown(file)
        del file["data"]
        kept = {"name": "data", "data": VALUES[4:], "chunks": (2, 3)}
        another = {
            "its name": {"name": "other"},
            "its type": {"dtype": ">i4"},
            "its fill value": {"fillvalue": 7},
            "its shape": {"data": np.tile(VALUES, (2, 1))},
        }
        file.create_dataset(**kept | another[change])

    changed_by_hdf5(path / SHARD, replaced)
    done = shardwrite.repair(path, scan=True)
    assert not done.is_done
    assert len(done.warnings) == 1


@pytest.mark.long
def test_a_salvage_by_the_journal_cuts_no_file(tmp_path):
    path, x = tmp_path / "x", da.from_array(VALUES, chunks=(4, 6))
    plan = shardwrite.plan(x, shards=(4, 6), chunks=(2, 3), strategy="hdf5")
    shardwrite.prepare(x, path, plan)
    shardwrite.write_part(x, path, 1, 2)
    changed_by_hdf5(path / "c/0/0", grown)
    whole = (path / "c/0/0").read_bytes()
    done = shardwrite.repair(path, salvage=True)
    assert (done.is_done, done.salvaged) == (False, ())
    assert "Run the command that writes the array again" in done.warnings[0]
    assert (path / "c/0/0").read_bytes() == whole
    x.to_sharded_zarr(path, shards=(4, 6), chunks=(2, 3), strategy="hdf5", recheck=True)
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize("index", ["start", "end"])
def test_a_scan_in_memory_loses_no_dataset(tmp_path, index):
    """Objects of all stores are mended, and not only files of directories."""
    store, file = zarr.storage.MemoryStore(), tmp_path / "x.h5"
    written(store, index)
    file.write_bytes(store._store_dict[SHARD].to_bytes())
    changed_by_hdf5(file, grown)
    store._store_dict[SHARD] = zarr.core.buffer.cpu.Buffer.from_bytes(file.read_bytes())
    done = shardwrite.repair(store, scan=True)
    assert (len(done.salvaged), done.warnings) == ((1, ()) if index == "end" else (0, ()))
    assert shardwrite.verify(store, deep=True).is_good
    assert (shardwrite.open_sharded(store)[...] == VALUES).all()
    file.write_bytes(store._store_dict[SHARD].to_bytes())
    with h5py.File(file) as opened:
        assert (opened["new"][...] == np.arange(1000.0)).all()
        assert (opened["data"][...] == VALUES[4:]).all()
    store._store_dict[SHARD] = zarr.core.buffer.cpu.Buffer.from_bytes(file.read_bytes()[:-900])
    (text,) = shardwrite.repair(store, scan=True).warnings
    assert "cannot be read as HDF5" in text


def test_what_the_storage_refuses_is_no_damage(tmp_path):
    """The library of HDF5 tells it as such, and a repair would say that the file is damaged."""
    data = (written(tmp_path / "x") / SHARD).read_bytes()

    class Failing:
        nbytes = len(data)

        def __init__(self, n_reads):
            self.n_left = n_reads

        def read(self, offset, nbytes):
            self.n_left -= 1
            if self.n_left < 0:
                raise StoreError("not at home", key=SHARD, errno=errno.EAGAIN)
            return data[offset : offset + nbytes]

    enough = Failing(100)
    assert look_into(SHARD, "data", enough).nbytes == len(data)
    for n_reads in range(100 - enough.n_left):
        with pytest.raises(StoreError, match="not at home"):  # and no other error
            look_into(SHARD, "data", Failing(n_reads))


def test_a_place_that_no_file_has_is_damage(tmp_path):
    path = written(tmp_path / "x", compressors=None)
    data = (path / SHARD).read_bytes()
    key = struct.pack("<IIQQQ", 24, 0, 0, 0, 0)  # of a chunk in the tree; its address follows
    assert data.count(key) == 1
    at = data.index(key) + len(key)
    (path / SHARD).chmod(0o644)
    (path / SHARD).write_bytes(data[:at] + struct.pack("<Q", 2**63 + 8) + data[at + 8 :])
    assert "find no dataset" in told_by_deep(path)
    assert not shardwrite.repair(path, scan=True).is_done


def test_a_chunk_that_a_file_has_twice_is_damage(tmp_path):
    """Programs would read either, and an index has one."""
    file, path = tmp_path / "a.h5", written(tmp_path / "x", compressors=None)
    keys = [struct.pack("<IIQQQ", 24, 0, 2, column, 0) for column in (3, 0)]
    for at in (path / SHARD, file):
        with h5py.File(file, "w") as opened:
            opened.create_dataset("data", data=VALUES[:4], chunks=(2, 3))
        data = at.read_bytes()
        assert data.count(keys[0]) == 1
        at.chmod(0o644)
        at.write_bytes(data.replace(*keys))
    with pytest.raises(SpecError, match="has a chunk twice"):
        shardwrite.adopt([file], tmp_path / "y")
    (text,) = shardwrite.repair(path, scan=True).warnings
    assert "has a chunk twice" in text


def several(tmp_path):
    """An array of files that have two datasets of one shape, and one that is contiguous."""
    files = [tmp_path / "a.h5", tmp_path / "b.h5"]
    for at, one in zip((slice(0, 4), slice(4, 8)), files, strict=True):
        with h5py.File(one, "w") as file:
            file.create_dataset("u", data=-VALUES[at], chunks=(2, 3))
            file.create_dataset("v", data=VALUES[at], chunks=(2, 3))
            file.create_dataset("never", (4, 6), "i4", chunks=(2, 3))
            file["w"] = np.arange(3.0)
            file["same"] = file["v"]
    return make_shards(files, tmp_path / "x", dataset="v")


CORNER = (slice(0, 2), slice(0, 3))


@pytest.mark.parametrize("has_receipt", [True, False])
@pytest.mark.parametrize("name", ["u", "w", "never", "none"])
def test_no_other_dataset_of_a_file_gives_its_name(tmp_path, name, has_receipt):
    path = several(tmp_path)
    if not has_receipt:
        (path / "shardwrite-receipt.json").unlink()
    whole = (path / "c/0/0").read_bytes()
    with pytest.raises(SpecError, match=rf"is '(v|same)'.* would become '{name}'"):
        shardwrite.write_region(7, path, CORNER, strategy=f"hdf5:{name}")
    assert (path / "c/0/0").read_bytes() == whole


@pytest.mark.parametrize("given", ["hdf5", "hdf5:v", "hdf5:same"])
def test_the_name_is_found_by_the_chunks(tmp_path, given):
    path = several(tmp_path)
    (path / "shardwrite-receipt.json").unlink()
    shardwrite.write_region(7, path, CORNER, strategy=given)
    with h5py.File(path / "c/0/0") as file:
        assert len(file) == 1
        (values,) = (one[...] for one in file.values())
        assert (values[:2, :3] == 7).all()
        assert (values[2:] == VALUES[2:4]).all()


def test_a_task_finds_the_name_by_the_chunks(tmp_path):
    """The first shard and the last one have the name; that of one between them is another's."""
    files = [tmp_path / f"{n}.h5" for n in range(3)]
    for n, one in enumerate(files):
        with h5py.File(one, "w") as file:
            file.create_dataset("v", data=VALUES[:4] + n, chunks=(2, 3))
    make_shards(files, tmp_path / "x", dataset="v")
    between = tmp_path / "x/c/1/0"
    changed_by_hdf5(between, lambda file: file.move("v", "other"))
    changed_by_hdf5(between, lambda file: file.create_dataset("v", data=VALUES[:4], chunks=(2, 3)))
    assert shardwrite.repair(
        tmp_path / "x", scan=True
    ).salvaged  # by the receipt, `v` is the array's
    changed_by_hdf5(between, lambda file: file.move("v", "new"))
    changed_by_hdf5(between, lambda file: file.move("other", "v"))
    with pytest.raises(SpecError, match="is 'new', and would become 'v'"):
        shardwrite.write_region(7, tmp_path / "x", (slice(0, 12), slice(0, 3)), strategy="hdf5")
    shardwrite.abandon(tmp_path / "x")


def test_rows_of_fill_values_make_the_dataset_longer(tmp_path):
    path = tmp_path / "x.zarr"
    ones = da.ones((2, 4), dtype="i4")
    ones.to_sharded_zarr(path, shards=(4, 2), chunks=(1, 2), strategy="hdf5")
    new = np.array([[0, 0, 5, 5]] * 2, "i4")
    shardwrite.write_region(da.from_array(new), path, "append", strategy="hdf5")
    for number, last in enumerate((0, 5)):
        with h5py.File(path / "c" / "0" / str(number)) as file:
            assert file["data"][...].tolist() == [[1, 1]] * 2 + [[last] * 2] * 2
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize("compressors", [None, "zlib"], ids=str)
@pytest.mark.parametrize("index", ["start", "end"])
def test_abandoning_an_append_keeps_files_of_hdf5(tmp_path, index, compressors):
    path = tmp_path / "x.zarr"
    codec = compressors and {"name": "numcodecs.zlib", "configuration": {"level": 1}}
    old = np.arange(1, 31, dtype="i4").reshape(6, 5)
    strategy = shardwrite.Hdf5(index=index, dataset="raw/it")
    da.from_array(old).to_sharded_zarr(
        path, shards=(4, 6), chunks=(2, 3), strategy=strategy, compressors=codec
    )

    at_edge = path / "c" / "1" / "0"
    before = at_edge.stat().st_ino

    def block(values, block_info=None):
        if block_info[0]["chunk-location"][0] >= 40:  # far from the shard at the edge
            for _ in range(1000):
                if at_edge.stat().st_ino != before:
                    break
                time.sleep(0.01)
            raise OSError("cut off")
        return values

    new = da.full((202, 5), 3, dtype="i4", chunks=((2, *[4] * 50), 5))
    new = new.map_blocks(block, dtype="i4", meta=np.empty((0, 0), "i4"))
    with (
        dask.config.set(scheduler="threads", num_workers=3),
        pytest.raises(OSError, match="cut off"),
    ):
        shardwrite.write_region(new, path, "append", strategy="hdf5")

    def found():
        with h5py.File(at_edge) as file:
            return file["raw/it"][...].tolist()

    assert found() == [*old[4:].tolist(), [3] * 5, [3] * 5], "the shard at the edge is written"
    shardwrite.abandon(path)
    assert found() == old[4:].tolist()
    assert at_edge.stat().st_mode & 0o222 == 0
    assert shardwrite.verify(path, deep=True, against=old).is_good
