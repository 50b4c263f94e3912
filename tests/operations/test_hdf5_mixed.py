"""Arrays of which one shard, neither the first nor the last, is a file of HDF5: nothing that writes
makes another file of it."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from distributed import Client, LocalCluster
from zarr.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

import shardwrite
from shardwrite import AppendOnly, FixedOrder, Hdf5, ShardWriter, SpecError

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

VALUES = np.arange(1.0, 25.0).reshape(12, 2)
LAYOUT = {"shards": (4, 2), "chunks": (2, 2)}
ZSTD = [{"name": "zstd", "configuration": {"level": 0, "checksum": False}}]
KEY = "c/1/0"
STRATEGIES = {
    "fixed-order": "fixed-order",
    "append-only": "append-only",
    "places in place": FixedOrder(in_place=True),
    "appends in place": AppendOnly(in_place=True),
    "another name": Hdf5(dataset="other"),
}
REFUSED = "shard 'c/1/0'.* (is also a file of HDF5|would become 'other')"


def plain(path, **more):
    x = da.from_array(VALUES, chunks=4)
    x.to_sharded_zarr(path, compressors=ZSTD, **LAYOUT, **more)
    return path


def of_hdf5(folder):
    """A shard that is a file of HDF5, with the values of the one in the middle."""
    da.from_array(VALUES, chunks=4).to_sharded_zarr(folder / "files", strategy="hdf5", **LAYOUT)
    return folder / "files" / KEY


def mixed(folder, *, has_receipt=True):
    path = plain(folder / "x")
    os.remove(path / KEY)
    shutil.copy(of_hdf5(folder), path / KEY)
    if not has_receipt:
        os.remove(seams.receipt_of(path))
    return path


def stream(path, rows, how, *, by=12):
    with ShardWriter(path, strategy=how) as writer:
        for start in range(*rows, by):
            stop = min(start + by, rows[1])
            writer[start:stop] = VALUES[start:stop] + 1


def written(rows):
    return da.from_array(VALUES[slice(*rows)] + 1, chunks=(4, 2))


CHANGES = {
    "a block that covers the shard": lambda path, how: stream(path, (0, 12), how),
    "a block that covers a part of it": lambda path, how: stream(path, (1, 7), how),
    "rows": lambda path, how: stream(path, (4, 12), how, by=1),
    "all": lambda path, how: shardwrite.write_region(written((0, 12)), path, ..., strategy=how),
    "a part": lambda path, how: shardwrite.write_region(
        written((1, 11)), path, slice(1, 11), strategy=how
    ),
    "columns": lambda path, how: shardwrite.write_region(
        da.from_array(VALUES, chunks=(12, 1)), path, ..., strategy=how
    ),
    "a number": lambda path, how: shardwrite.write_region(7.0, path, slice(3, 9), strategy=how),
    "nothing": lambda path, how: shardwrite.write_region(
        da.zeros((12, 2), chunks=4), path, ..., strategy=how
    ),
    "erase": lambda path, how: shardwrite.erase(path, slice(0, 12), strategy=how),
    "erase a part": lambda path, how: shardwrite.erase(path, slice(5, 9), strategy=how),
    "mode": lambda path, how: written((0, 12)).to_sharded_zarr(path, mode="r+", strategy=how),
}


@pytest.mark.parametrize("has_receipt", [True, False], ids=["receipt", "no receipt"])
@pytest.mark.parametrize("how", STRATEGIES)
@pytest.mark.parametrize("change", CHANGES)
def test_the_shard_stays_as_it_is(tmp_path, change, how, has_receipt):
    path = mixed(tmp_path, has_receipt=has_receipt)
    before = (path / KEY).read_bytes()
    with dask.config.set(scheduler="sync"), pytest.raises(SpecError, match=REFUSED):
        CHANGES[change](path, STRATEGIES[how])
    assert (path / KEY).read_bytes() == before


def test_what_rewrites_shards(tmp_path):
    path = mixed(tmp_path)
    before = (path / KEY).read_bytes()
    with pytest.raises(SpecError, match=REFUSED):
        shardwrite.compact(path, above=0)
    assert (path / KEY).read_bytes() == before
    os.chmod(path / KEY, 0o644)
    os.truncate(path / KEY, len(before) - 5)
    x = da.from_array(VALUES, chunks=4)
    with pytest.raises(SpecError, match=REFUSED):
        shardwrite.repair(path, x, strategy="fixed-order")
    shardwrite.repair(path, x)
    assert h5py.is_hdf5(path / KEY)
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], VALUES)


@pytest.mark.parametrize("how", STRATEGIES)
def test_a_stream_goes_on_after_a_block_that_is_refused(tmp_path, how):
    """Blocks before it and behind it are written; only the block that is refused is not."""
    path = mixed(tmp_path)
    before = (path / KEY).read_bytes()
    with ShardWriter(path, strategy=STRATEGIES[how]) as writer:
        if how != "another name":
            writer[0:3] = VALUES[0:3] + 1
        for block in (slice(4, 5), slice(3, 9), slice(7, 12)):
            with pytest.raises(SpecError, match=REFUSED):
                writer[block] = VALUES[block] + 1
        if how != "another name":
            writer[8] = VALUES[8] + 1
            writer.append(VALUES[:4])
    wanted = np.concatenate([VALUES, VALUES[:4]])
    wanted[[0, 1, 2, 8]] += 1
    wanted = VALUES if how == "another name" else wanted
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], wanted)
    assert (path / KEY).read_bytes() == before


def test_a_file_that_came_after_the_stream_had_looked(tmp_path):
    """Then the commit refuses it, as each commit looks again."""
    path = plain(tmp_path / "x")
    file = of_hdf5(tmp_path)
    with pytest.raises(SpecError, match=REFUSED), ShardWriter(path) as writer:  # noqa: PT012
        writer[4:7] = VALUES[4:7] + 1
        os.remove(path / KEY)
        shutil.copy(file, path / KEY)
        writer.flush()
    assert h5py.is_hdf5(path / KEY)


def test_a_stream_of_many_shards(tmp_path):
    """Shards of one block are looked at by several threads; each is looked at once."""
    x = da.arange(64.0, chunks=32)
    path = tmp_path / "x"
    x.to_sharded_zarr(path, shards=2, chunks=1, compressors=ZSTD)
    x.to_sharded_zarr(tmp_path / "files", shards=2, chunks=1, strategy="hdf5")
    os.remove(path / "c/21")
    shutil.copy(tmp_path / "files/c/21", path / "c/21")
    with ShardWriter(path) as writer:
        with pytest.raises(SpecError, match="shard 'c/21'"):
            writer[0:64] = np.zeros(64)
        writer[:42] = np.zeros(42)
        writer[44:64] = np.zeros(20)
    np.testing.assert_array_equal(
        shardwrite.open_sharded(path)[:], np.where(np.arange(64) // 2 == 21, np.arange(64), 0)
    )


def test_a_stream_that_keeps_the_files(tmp_path):
    path = mixed(tmp_path)
    stream(path, (0, 12), "hdf5")
    assert h5py.is_hdf5(path / KEY)
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], VALUES + 1)


def test_a_stream_makes_no_plain_shard_where_one_is_absent_among_files(tmp_path):
    values = np.where(np.arange(12)[:, np.newaxis] // 4 == 1, 0, VALUES)
    path = tmp_path / "x"
    da.from_array(values, chunks=4).to_sharded_zarr(path, strategy="hdf5", **LAYOUT)
    for rows in (slice(0, 4), slice(8, 12)):
        shardwrite.write_region(values[rows], path, rows, drop_hdf5=True)
    with ShardWriter(path) as writer:
        writer[:4] = VALUES[:4]
        with pytest.raises(SpecError, match="are also files of HDF5, and the shard 'c/1/0'"):
            writer[4:8] = VALUES[4:8]
    assert not (path / KEY).exists()


# ---- other stores and engines


def set_in(store, key, data):
    asyncio.run(store.set(key, default_buffer_prototype().buffer.from_bytes(data)))


def get_in(store, key):
    return asyncio.run(store.get(key, default_buffer_prototype())).to_bytes()


@pytest.mark.parametrize("change", CHANGES)
def test_in_a_store_of_zarr(tmp_path, change):
    store, file = MemoryStore(), of_hdf5(tmp_path).read_bytes()
    plain(store)
    set_in(store, KEY, file)
    with pytest.raises(SpecError, match=REFUSED):
        CHANGES[change](store, "fixed-order")
    assert get_in(store, KEY) == file


@pytest.mark.parametrize("change", [c for c in CHANGES if c not in ("rows",)])
def test_in_a_session_of_icechunk(tmp_path, change):
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    plain(repository.writable_session("main"))
    session = repository.writable_session("main")
    set_in(session.store, KEY, of_hdf5(tmp_path).read_bytes())
    snapshot = session.commit("a file of HDF5")
    with pytest.raises(SpecError):
        CHANGES[change](repository.writable_session("main"), "fixed-order")
    assert repository.lookup_branch("main") == snapshot


@pytest.mark.parametrize("kind", ["processes", "distributed"])
def test_in_other_processes(tmp_path, kind):
    path = mixed(tmp_path, has_receipt=False)
    before = Path(path / KEY).read_bytes()
    if kind == "processes":
        with (
            dask.config.set(scheduler="processes", num_workers=1),
            pytest.raises(SpecError, match=REFUSED),
        ):
            CHANGES["all"](path, "fixed-order")
    else:
        with (
            LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster),
            pytest.raises(SpecError, match=REFUSED),
        ):
            CHANGES["a part"](path, "append-only")
    assert (path / KEY).read_bytes() == before


def test_patched_dask(tmp_path):
    path = mixed(tmp_path)
    before = (path / KEY).read_bytes()
    with shardwrite.patch_dask(), pytest.raises(SpecError, match=REFUSED):
        written((0, 12)).to_zarr(zarr.open_array(path, mode="r+"), region=(slice(0, 12),))
    assert (path / KEY).read_bytes() == before
