"""Chunks of files that are adopted: how many there may be, and which filters they have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
import shardwrite.hdf5.reading as hdf5_chunks
from shardwrite import SpecError
from shardwrite.cli import main
from shardwrite.hdf5 import adopt
from shardwrite.hdf5.format import filters_of

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")


def sparse(file: Path, n: int) -> Path:
    with h5py.File(file, "w") as opened:
        opened.create_dataset("v", shape=(n,), chunks=(1,), dtype="u1")[0] = 1
    return file


def test_indexes_that_are_far_larger_than_the_files_are_refused(tmp_path):
    """At once, and without the memory for such an index."""
    file = sparse(tmp_path / "a.h5", 5 * 10**7)
    before = file.read_bytes()
    assert len(before) < 10_000
    with pytest.raises(SpecError, match=r"50,000,000 chunks.* would take 800,000,000 bytes"):
        shardwrite.adopt(file, tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]
    assert file.read_bytes() == before


def test_the_remedy_for_sparse_files(tmp_path, monkeypatch):
    monkeypatch.setattr(adopt, "_FREE_INDEX_NBYTES", 2**10)
    file = sparse(tmp_path / "a.h5", 2000)
    with pytest.raises(SpecError, match=r"in larger chunks, with shardwrite write --chunks"):
        shardwrite.adopt(file, tmp_path / "x")
    arguments = ["write", f"{file}::v", str(tmp_path / "x"), "--chunks", "500", "--shards", "2000"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert np.flatnonzero(shardwrite.open_sharded(tmp_path / "x")[...]).tolist() == [0]
    monkeypatch.undo()
    shardwrite.adopt(file, tmp_path / "y")  # a small index is no matter


def edges(file: Path, values: np.ndarray, *, leaves_edges_raw: bool = False, **filters) -> Path:
    """A file whose chunks reach past the end of the dataset."""
    with h5py.File(file, "w", libver="v110") as opened:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((2,) * values.ndim)
        if filters.get("shuffle"):
            plist.set_shuffle()
        if filters.get("gzip"):
            plist.set_deflate(4)
        if leaves_edges_raw:
            leave_edges_raw(plist)
        space = h5py.h5s.create_simple(values.shape)
        kind = h5py.h5t.py_create(values.dtype)
        made = h5py.h5d.create(opened.id, b"v", kind, space, dcpl=plist)
        h5py.Dataset(made)[...] = values
    return file


def leave_edges_raw(plist) -> None:
    """Set an option of HDF5 that h5py does not know."""
    import ctypes

    maps = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    found = {path for path in maps if "libhdf5" in path and "_hl" not in path and "h5py" in path}
    if len(found) != 1:
        pytest.skip("h5py brings no library of its own")
    (path,) = found
    assert ctypes.CDLL(path).H5Pset_chunk_opts(ctypes.c_int64(plist.id), ctypes.c_uint(2)) >= 0


GRID = np.arange(25, dtype="i4").reshape(5, 5) * 1000003


@pytest.mark.parametrize("filters", [{"shuffle": True}, {"shuffle": True, "gzip": True}])
@pytest.mark.parametrize("values", [GRID, GRID * 0 + 1, GRID * 0], ids=["all", "ones", "zeros"])
def test_chunks_at_the_edge_of_as_many_bytes_as_their_values(tmp_path, filters, values):
    file = edges(tmp_path / "a.h5", values, **filters)
    shardwrite.adopt(file, tmp_path / "x")
    readers(tmp_path / "x", values)


def test_compressed_chunks_that_are_as_large_by_chance(tmp_path):
    values = np.array([[1, 1, 7919], [1, 1, 4001], [1, 1, 1], [1, 1, 1]], "i4")
    file = edges(tmp_path / "a.h5", values, gzip=True)
    with h5py.File(file) as opened:
        found = opened["v"].id
        chunks = [found.get_chunk_info(n) for n in range(found.get_num_chunks())]
    assert {chunk.size == 16 for chunk in chunks if chunk.chunk_offset[1] == 2} == {True, False}
    shardwrite.adopt(file, tmp_path / "x")
    readers(tmp_path / "x", values)
    only = edges(tmp_path / "b.h5", values[:2], gzip=True)  # no other chunk at the edge tells
    shardwrite.adopt(only, tmp_path / "y")
    readers(tmp_path / "y", values[:2])


@pytest.mark.parametrize("filters", [{"shuffle": True}, {"gzip": True}])
@pytest.mark.parametrize("values", [GRID, GRID * 0 + 1], ids=["all", "ones"])
def test_chunks_at_the_edge_without_filters(tmp_path, filters, values):
    file = edges(tmp_path / "a.h5", values, leaves_edges_raw=True, **filters)
    shardwrite.adopt(file, tmp_path / "x")
    readers(tmp_path / "x", values)


def readers(path: Path, values: np.ndarray) -> None:
    """All readers find the same values."""
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], values)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], values)
    (shard,) = (path for path in (path / "c").rglob("*") if path.is_file())
    with h5py.File(shard) as file:
        np.testing.assert_array_equal(next(iter(file.values()))[...], values)
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize("kind", ["i1", "i2", "f4", "c8"])
@pytest.mark.parametrize("chunks", [(4, 5), (3, 5)])
def test_a_checksum_before_the_shuffle(tmp_path, kind, chunks):
    """This is the order in which netCDF4 sets these filters."""
    values = (np.arange(40).reshape(8, 5) % 97).astype(kind)
    file = ordered(tmp_path / "a.h5", values, chunks)
    if kind == "c8":
        with pytest.raises(SpecError, match="shuffle after fletcher32"):
            shardwrite.adopt(file, tmp_path / "x")
        return
    shardwrite.adopt(file, tmp_path / "x")
    readers(tmp_path / "x", values)
    shardwrite.write_region(5, tmp_path / "x", (slice(0, 2), slice(0, 3)), strategy="hdf5")
    values[:2, :3] = 5
    readers(tmp_path / "x", values)
    with h5py.File(tmp_path / "x/c/0/0") as shard:
        properties = shard["v"].id.get_create_plist()
        numbers = [properties.get_filter(n)[0] for n in range(properties.get_nfilters())]
    assert numbers == ([3, 1] if kind == "i1" else [3, 2, 1])  # shuffle of single bytes is none


def ordered(file: Path, values: np.ndarray, chunks: tuple[int, ...]) -> Path:
    with h5py.File(file, "w") as opened:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk(chunks)
        plist.set_fletcher32()
        plist.set_shuffle()
        plist.set_deflate(4)
        space = h5py.h5s.create_simple(values.shape)
        made = h5py.h5d.create(opened.id, b"v", h5py.h5t.py_create(values.dtype), space, dcpl=plist)
        h5py.Dataset(made)[...] = values
    return file


@pytest.mark.parametrize(
    ("codecs", "itemsize"),
    [
        (["numcodecs.zlib", "numcodecs.shuffle"], 2),
        (["numcodecs.fletcher32", "numcodecs.zlib", "numcodecs.shuffle"], 2),
        (["numcodecs.fletcher32", "numcodecs.shuffle"], 8),
    ],
)
def test_a_shuffle_of_other_bytes_than_in_hdf5_is_refused(codecs, itemsize):
    shuffle = {"elementsize": itemsize}
    made = [{"name": "bytes"}, *({"name": name, "configuration": shuffle} for name in codecs)]
    with pytest.raises(SpecError, match="shuffle the same bytes only before other codecs"):
        filters_of(made, itemsize, 64)


def test_a_library_that_does_not_count_the_user_block(tmp_path, monkeypatch):
    """Nearly all is zero, also what stands before the first chunk."""
    values = np.zeros((64, 64), "i4")
    values[40, 40] = 4
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        file.create_dataset("v", data=values, chunks=(16, 16))
    stored = hdf5_chunks.stored_chunks

    def without_block(dataset):
        found = stored(dataset).copy()
        found[:, -3] -= dataset.file.userblock_size
        return found

    monkeypatch.setattr(hdf5_chunks, "stored_chunks", without_block)
    shardwrite.adopt(tmp_path / "a.h5", tmp_path / "x")
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "x")[...], values)
