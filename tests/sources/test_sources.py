"""Sources: every format gives back what was written, region by region, and refuses what it cannot
read."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
import seams
from forks import python

import shardwrite
from shardwrite.errors import SourceError, SpecError, StoreError, redacted
from shardwrite.grid import Box
from shardwrite.read.array import merge_chunks, slabs
from shardwrite.sources import FORMATS, as_dask, open_source
from shardwrite.sources.base import naming_damage, split_key
from shardwrite.sources.common import HandleCache
from shardwrite.sources.tiff import page_files

pytestmark = pytest.mark.compat


def values(shape, dtype="uint16"):
    return (np.arange(int(np.prod(shape))) * 7 % 251).reshape(shape).astype(dtype)


def write_zarr(path, data, *, chunks, shards=None, zarr_format=3, name=None):
    import zarr

    array = zarr.create_array(
        str(path),
        name=name,
        shape=data.shape,
        dtype=data.dtype,
        chunks=chunks,
        shards=shards,
        zarr_format=zarr_format,
    )
    array[...] = data
    return {}


def make_zarr2(path, data):
    return path / "a.zarr", write_zarr(
        path / "a.zarr", data, chunks=tuple(max(1, n // 2) for n in data.shape), zarr_format=2
    )


def make_zarr3(path, data):
    return path / "a.zarr", write_zarr(
        path / "a.zarr", data, chunks=tuple(max(1, n // 2) for n in data.shape)
    )


def make_sharded(path, data):
    return path / "a.zarr", write_zarr(
        path / "a.zarr", data, chunks=(2,) * data.ndim, shards=(4,) * data.ndim
    )


def make_hdf5(path, data):
    import h5py

    with h5py.File(path / "a.h5", "w") as file:
        file.create_dataset("g/d", data=data, chunks=True, compression="gzip")
    return path / "a.h5", {}


def make_hdf5_contiguous(path, data):
    import h5py

    with h5py.File(path / "a.nc", "w") as file:
        file["d"] = data
    return path / "a.nc", {}


def make_npy(path, data):
    np.save(path / "a.npy", data)
    return path / "a.npy", {}


def make_npy_fortran(path, data):
    np.save(path / "a.npy", np.asfortranarray(data))
    return path / "a.npy", {}


def make_raw(path, data):
    (path / "a.raw").write_bytes(b"head!" + data.tobytes())
    return path / "a.raw", {"shape": data.shape, "dtype": data.dtype, "offset": 5}


def make_raw_fortran(path, data):
    (path / "a.bin").write_bytes(data.tobytes("F"))
    return path / "a.bin", {"shape": data.shape, "dtype": data.dtype.str, "order": "F"}


def make_tiff(path, data):
    import tifffile

    tifffile.imwrite(path / "a.tif", data, photometric="minisblack")
    return path / "a.tif", {}


def make_tiff_big_endian(path, data):
    import tifffile

    tifffile.imwrite(path / "a.tif", data, photometric="minisblack", byteorder=">")
    return path / "a.tif", {}


def make_tiff_zlib(path, data):
    import tifffile

    tifffile.imwrite(
        path / "a.tiff", data, photometric="minisblack", compression="zlib", byteorder=">"
    )
    return path / "a.tiff", {}


def make_tiff_directory(path, data):
    import tifffile

    (path / "pages").mkdir()
    (path / "pages" / "readme.txt").write_text("not a page")
    for i, page in enumerate(data):
        tifffile.imwrite(path / "pages" / f"p{i}.tif", page, photometric="minisblack")
    return path / "pages", {}


def make_tiff_pattern(path, data):
    made, _ = make_tiff_directory(path, data)
    return made / "p*.tif", {}


def make_nifti(path, data):
    import nibabel

    header = nibabel.Nifti1Header(endianness=">" if data.dtype.byteorder == ">" else "<")
    header.set_data_dtype(data.dtype)
    nibabel.save(nibabel.Nifti1Image(data, np.eye(4), header), path / "a.nii")
    return path / "a.nii", {}


def make_nifti_gz(path, data):
    import nibabel

    nibabel.save(nibabel.load(make_nifti(path, data)[0]), path / "a.nii.gz")
    return path / "a.nii.gz", {}


def make_netcdf3(path, data):
    from scipy.io import netcdf_file

    with netcdf_file(path / "a.nc", "w") as file:
        for axis, n in enumerate(data.shape):
            file.createDimension(f"d{axis}", None if axis == 0 else n)
        variable = file.createVariable(
            "v", data.dtype, tuple(f"d{axis}" for axis in range(data.ndim))
        )
        variable[:] = data
    return path / "a.nc", {}


def make_b2nd(path, data, **how):
    import blosc2

    whole = {"chunks": (4, 5, 3), "blocks": (3, 2, 2), "urlpath": str(path / "a.b2nd"), **how}
    blosc2.asarray(data, **whole)
    return path / "a.b2nd", {}


def make_b2nd_sparse(path, data):
    return make_b2nd(path, data, contiguous=False)


# format, writer, type
MAKERS = [
    ("zarr", make_zarr2, ">i4"),
    ("zarr", make_zarr3, "uint16"),
    ("zarr", make_sharded, "float32"),
    ("hdf5", make_hdf5, ">i2"),
    ("hdf5", make_hdf5_contiguous, "float64"),
    ("npy", make_npy, ">f4"),
    ("npy", make_npy_fortran, "int64"),
    ("raw", make_raw, "uint16"),
    ("raw", make_raw_fortran, ">u4"),
    ("tiff", make_tiff, "uint16"),
    ("tiff", make_tiff_big_endian, "uint16"),
    ("tiff", make_tiff_zlib, "float32"),
    ("tiff", make_tiff_directory, "uint8"),
    ("tiff", make_tiff_pattern, "uint16"),
    ("nifti", make_nifti, "int16"),
    ("nifti", make_nifti, ">i2"),
    ("nifti", make_nifti_gz, ">f4"),
    ("netcdf3", make_netcdf3, ">i2"),
    ("b2nd", make_b2nd, "float32"),
    ("b2nd", make_b2nd_sparse, ">u2"),
]
IDS = [
    f"{make.__name__[5:]}-{dtype.strip('>')}{'-big' if '>' in dtype else ''}"
    for _, make, dtype in MAKERS
]
SHAPE = (11, 7, 5)  # odd, and more than ten pages, so that natural order differs from the alphabet


@pytest.fixture(params=MAKERS, ids=IDS)
def made(request, tmp_path):
    name, make, dtype = request.param
    data = values(SHAPE, dtype)
    path, options = make(tmp_path, data)
    return SimpleNamespace(
        name=name, data=data, source=open_source(str(path), **options), path=path, options=options
    )


def test_facts_and_whole(made):
    source = made.source
    assert source.shape == SHAPE
    assert source.identity.startswith(f"{made.name}:{os.path.realpath(made.path)}")
    assert redacted(source.identity) == source.identity, "no plan would hold all of it"
    got = source[(slice(None),) * 3]
    np.testing.assert_array_equal(got, made.data)
    assert type(got) is np.ndarray
    assert got.dtype == source.dtype
    if made.name != "tiff":  # which gives native order whatever the file has
        assert source.dtype == made.data.dtype
    assert len(source.chunks) == 3


@pytest.mark.parametrize(
    "key",
    [
        (slice(2, 9), slice(1, 4), slice(4, 5)),
        (slice(10, 11), slice(6, 7), slice(0, 5)),
        (slice(0, 0), slice(0, 7), slice(0, 5)),
        (slice(1, 11, 3), slice(6, None, -2), 3),
        (-1, ..., slice(-2, None)),
        (slice(1, 9), [5, 0, -1], slice(2, 4)),
    ],
)
def test_regions(made, key):
    got = made.source[key]
    np.testing.assert_array_equal(got, made.data[key])
    assert got.shape == made.data[key].shape


def test_pickled_and_shared_by_threads(made):
    made.source[0:1, 0:1, 0:1]  # opens it: no handle may travel
    copy = pickle.loads(pickle.dumps(made.source))
    assert copy == made.source
    assert len(pickle.dumps(made.source)) < 1500
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda i: copy[i : i + 1, 0:7, 0:5], list(range(SHAPE[0])) * 3))
    np.testing.assert_array_equal(np.concatenate(rows), np.concatenate([made.data] * 3))


def test_as_dask(made):
    array = as_dask(made.source)
    np.testing.assert_array_equal(array.compute(scheduler="threads", num_workers=2), made.data)
    assert array.dtype == made.source.dtype
    again = as_dask(open_source(str(made.path), **made.options))
    assert again.name == array.name
    assert as_dask(made.source, (3, 7, 5)).name != array.name
    assert as_dask(made.source, (3, 7, 5)).chunks == ((3, 3, 3, 2), (7,), (5,))
    for key in (
        (slice(2, 9, 2), 3, slice(None, None, -1)),
        ([9, 1, 4], slice(1, 3)),
        (None, 0),
        (slice(None), made.data[0, :, 0] > 40),
    ):
        np.testing.assert_array_equal(array[key].compute(scheduler="sync"), made.data[key])


def test_other_process(tmp_path):
    path, _ = make_tiff_zlib(tmp_path, values(SHAPE))
    dump = tmp_path / "source.pickle"
    dump.write_bytes(pickle.dumps(open_source(str(path))))
    code = (
        "import pickle, sys; print(int(pickle.load(open(sys.argv[1], 'rb'))[9:11, 0:7, 0:5].sum()))"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run(
        [*python(), "-c", code, str(dump)], env=env, capture_output=True, text=True, check=True
    )
    assert int(out.stdout) == values(SHAPE)[9:11].sum()


def test_import_is_light():
    code = "import sys, shardwrite.sources; print([m for m in ('h5py', 'tifffile', 'nibabel') if m in sys.modules])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"


def test_building_a_graph_reads_nothing(tmp_path, monkeypatch):
    path, _ = make_npy(tmp_path, values(SHAPE))
    source = open_source(str(path), chunks=(2, -1, -1))
    monkeypatch.setattr(type(source), "_read", lambda self, box: pytest.fail("read"))
    array = as_dask(source)[3:7, 2] + 1
    assert array.shape == (4, 5)


def test_slicing_fuses_into_the_read(tmp_path, monkeypatch):
    path, _ = make_npy(tmp_path, values(SHAPE))
    source = open_source(str(path), chunks=(11, 7, 5))
    boxes = []
    read = type(source)._read
    monkeypatch.setattr(
        type(source), "_read", lambda self, box: boxes.append(box) or read(self, box)
    )
    np.testing.assert_array_equal(
        as_dask(source)[3:5, 1:2].compute(scheduler="sync"), values(SHAPE)[3:5, 1:2]
    )
    assert boxes == [Box((3, 1, 0), (5, 2, 5))]


def test_a_file_by_its_url(tmp_path):
    np.save(tmp_path / "a b.npy", values(SHAPE))
    source = open_source(f"file://{tmp_path}/a%20b.npy")
    assert source.identity == open_source(str(tmp_path / "a b.npy")).identity
    np.testing.assert_array_equal(source[...], values(SHAPE))


def test_tokenized_by_identity(tmp_path):
    path, _ = make_npy(tmp_path, values(SHAPE))
    assert dask.base.tokenize(open_source(str(path))) == dask.base.tokenize(open_source(str(path)))


def test_identity_follows_the_file(tmp_path):
    path, options = make_raw(tmp_path, values(SHAPE))
    first = open_source(str(path), **options)
    assert first.identity == open_source(str(path), **options).identity
    assert first.identity != open_source(str(path), **{**options, "order": "F"}).identity
    assert f"size={path.stat().st_size}" in first.identity
    assert f"mtime_ns={path.stat().st_mtime_ns}" in first.identity
    first[0:1, 0:1, 0:1]
    path.write_bytes(b"head!" + (values(SHAPE) + 1).tobytes())
    os.utime(path, ns=(1, 1))
    second = open_source(str(path), **options)
    assert second.identity != first.identity
    np.testing.assert_array_equal(second[...], values(SHAPE) + 1)


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (1, 1, 1, 9)])
def test_odd_ranks(tmp_path, shape):
    data = np.asarray(values(shape))
    for make in (make_npy, make_raw, make_zarr3, make_hdf5_contiguous):
        (tmp_path / make.__name__).mkdir()
        path, options = make(tmp_path / make.__name__, data)
        source = open_source(str(path), **options)
        np.testing.assert_array_equal(source[(slice(None),) * len(shape)], data)
        np.testing.assert_array_equal(as_dask(source).compute(scheduler="sync"), data)


# Zarr


def test_zarr_chunks(tmp_path):
    data = values((100, 90), "uint8")
    write_zarr(tmp_path / "plain.zarr", data, chunks=(8, 9))
    write_zarr(tmp_path / "sharded.zarr", data, chunks=(8, 9), shards=(32, 45))
    assert open_source(str(tmp_path / "plain.zarr")).chunks == (100, 90)
    assert open_source(str(tmp_path / "sharded.zarr")).chunks == (32, 45)
    assert open_source(str(tmp_path / "sharded.zarr")).by_shards


def test_each_shard_of_a_zarr_is_opened_once(tmp_path, monkeypatch):
    data = values(SHAPE)
    path, _ = make_sharded(tmp_path, data)
    opened = []
    seams.before(monkeypatch, "open an object", lambda store, key: opened.append(key))
    array = as_dask(pickle.loads(pickle.dumps(open_source(str(path)))))
    np.testing.assert_array_equal(array.compute(scheduler="sync"), data)
    assert len(opened) == len(set(opened)) == array.npartitions


def test_zarr_groups(tmp_path):
    path = tmp_path / "g.zarr"
    write_zarr(path, values((4, 4)), chunks=(2, 2), name="a/x")
    assert open_source(str(path)).dataset == "a/x"
    write_zarr(path, values((4, 4)) + 1, chunks=(2, 2), name="a/y")
    for source in (
        open_source(str(path), dataset="/a/y"),
        open_source(f"{path}::/a/y"),
        open_source(str(path / "a" / "y")),
    ):
        np.testing.assert_array_equal(source[0:4, 0:4], values((4, 4)) + 1)
    with pytest.raises(SpecError, match=r"a/x, a/y"):
        open_source(str(path))
    with pytest.raises(SpecError, match=r"a/x, a/y") as caught:
        open_source(str(path), dataset="a")
    assert caught.value.field == "source"
    with pytest.raises(SpecError, match=r"dataset='nope'.*a/x, a/y"):
        open_source(str(path), dataset="nope")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_zarr_array_holds_no_other(tmp_path, zarr_format):
    import zarr

    zarr.create_array(tmp_path / "a", shape=(4,), dtype="u1", zarr_format=zarr_format)
    with pytest.raises(SpecError, match="dataset='x': it is a Zarr array, and holds no others"):
        open_source(str(tmp_path / "a"), dataset="x")


def test_zarr_zip(tmp_path):
    import zarr

    with zarr.storage.ZipStore(tmp_path / "a.zarr.zip", mode="w") as store:
        zarr.create_array(store, shape=(5, 6), chunks=(2, 2), dtype="i2")[...] = values((5, 6))
    source = pickle.loads(pickle.dumps(open_source(str(tmp_path / "a.zarr.zip"))))
    np.testing.assert_array_equal(source[1:5, 2:5], values((5, 6))[1:5, 2:5])


# HDF5 and NetCDF


def test_hdf5_datasets(tmp_path):
    import h5py

    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["g/x"], file["y"], file["text"] = values((3, 4)), values((5,)), "hello"
        file["link"] = h5py.SoftLink("/g/x")
    for source in (
        open_source(f"{tmp_path}/b.h5::/g/x"),
        open_source(f"{tmp_path}/b.h5", dataset="g/x"),
        open_source(f"{tmp_path}/b.h5::link"),
    ):
        np.testing.assert_array_equal(source[0:3, 0:4], values((3, 4)))
    with pytest.raises(SpecError, match=r"3 arrays.*g/x, text, y"):
        open_source(f"{tmp_path}/b.h5")
    with pytest.raises(SpecError, match=r"dataset='z'.*g/x, text, y"):
        open_source(f"{tmp_path}/b.h5::z")
    assert open_source(f"{tmp_path}/b.h5::text")[()] == "hello"


def test_hdf5_chunks_are_multiples(tmp_path):
    import h5py

    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("x", shape=(4096, 1000, 100), dtype="f8", chunks=(3, 100, 100))
    source = open_source(f"{tmp_path}/b.h5")
    assert source.chunks[1:] == (1000, 100)
    assert source.chunks[0] % 3 == 0
    assert 32 << 20 < np.prod(source.chunks) * 8 <= 64 << 20


@pytest.mark.long
def test_hdf5_filters_of_hdf5plugin(tmp_path):
    """A process that has not imported the library reads what it compressed."""
    import h5py
    import hdf5plugin

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("d", data=values(SHAPE), chunks=(4, 7, 5), **hdf5plugin.Bitshuffle())
    code = "import sys; from shardwrite.sources import open_source; print(int(open_source(sys.argv[1])[...].sum()))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a.h5"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(out.stdout) == values(SHAPE).sum()


def make_virtual(path, inside=()):
    """A virtual dataset of three files, or of datasets of the file itself; see HDF5."""
    import h5py

    layout = h5py.VirtualLayout((3, 10), "i8")
    with h5py.File(path / "v.h5", "w") as file:
        for i in range(3):
            with contextlib.ExitStack() as stack:
                own = f"s{i}.h5"
                other = file if inside else stack.enter_context(h5py.File(path / own, "w"))
                other[f"d{i}"] = np.arange(10) + i
            layout[i] = h5py.VirtualSource("." if inside else own, f"d{i}", (10,))
        file.create_virtual_dataset("x", layout, fillvalue=-1)
    return np.arange(3)[:, None] + np.arange(10)


@pytest.mark.parametrize("inside", [False, True])
def test_a_virtual_dataset_has_the_identity_of_all_its_files(tmp_path, inside):
    wanted = make_virtual(tmp_path, inside)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        source = open_source(tmp_path / "v.h5", dataset="x")
        (tmp_path / "beside").write_text("")
        assert open_source(tmp_path / "v.h5", dataset="x").identity == source.identity
    np.testing.assert_array_equal(source[...], wanted)
    if not inside:
        os.utime(tmp_path / "s1.h5", ns=(1, 1))
        assert open_source(tmp_path / "v.h5", dataset="x").identity != source.identity


def test_files_of_a_virtual_dataset_that_are_missing_are_told(tmp_path):
    """HDF5 reads the fill value for them, and says nothing."""
    make_virtual(tmp_path)
    (tmp_path / "s1.h5").unlink()
    os.symlink(tmp_path / "v.h5", tmp_path / "link.h5")
    for path in (tmp_path / "v.h5", tmp_path / "link.h5"):
        with pytest.warns(UserWarning, match=r"of 3 files .*, 1 are missing, such as 's1\.h5'"):
            source = open_source(path, dataset="x")
        assert (source[1] == -1).all()
    with pytest.warns(UserWarning, match="1 are missing"):
        shardwrite.shard(f"{tmp_path}/v.h5::x", tmp_path / "z")


def test_an_external_dataset_has_the_identity_of_all_its_files(tmp_path, monkeypatch):
    import h5py

    monkeypatch.chdir(tmp_path)
    np.arange(30, dtype="<i4").tofile("e.bin")
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("x", (5, 6), "<i4", external=[("e.bin", 0, 120)])
    source = open_source("x.h5")
    np.testing.assert_array_equal(source[...], np.arange(30).reshape(5, 6))
    os.utime("e.bin", ns=(1, 1))
    assert open_source("x.h5").identity != source.identity


def test_netcdf3_variables(tmp_path):
    from scipy.io import netcdf_file

    with netcdf_file(tmp_path / "b.cdf", "w") as file:
        file.createDimension("t", None)
        file.createDimension("x", 3)
        for name, dtype in (
            ("a", "i1"),
            ("b", ">f8"),
        ):  # two record variables, the first with padding
            file.createVariable(name, dtype, ("t", "x"))[:] = values((5, 3))
        file.createVariable("fixed", ">i4", ("x",))[:] = [1, 2, 3]
    for name, expected in (("a", values((5, 3))), ("b", values((5, 3))), ("fixed", [1, 2, 3])):
        np.testing.assert_array_equal(
            open_source(f"{tmp_path}/b.cdf", dataset=name)[...], np.asarray(expected)
        )
    with pytest.raises(SpecError, match=r"3 arrays.*a, b, fixed"):
        open_source(f"{tmp_path}/b.cdf")


def test_cdf5_is_refused_by_its_name(tmp_path):
    """scipy says of it that a header is unexpected."""
    (tmp_path / "a.nc").write_bytes(b"CDF\5" + bytes(60))
    with pytest.raises(SpecError, match=r"its format is CDF-5.*write_dataset.*nccopy"):
        open_source(f"{tmp_path}/a.nc", dataset="v")


# NumPy and raw


def test_npy_refuses_objects(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    with pytest.raises(SpecError, match="Python objects") as caught:
        open_source(str(tmp_path / "o.npy"))
    assert caught.value.field == "source"


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0:UserWarning")
@pytest.mark.parametrize("shape", [(4,), (0,), (3, 5)])
def test_npy_field_names_of_version_3(tmp_path, shape):
    data = np.zeros(shape, dtype=[("温度", ">f8"), ("é", "u2")], order="F")
    data["温度"] = values(shape)
    np.save(tmp_path / "v3.npy", data)
    assert (tmp_path / "v3.npy").read_bytes()[6] == 3
    source = open_source(str(tmp_path / "v3.npy"))
    assert source.dtype == data.dtype
    np.testing.assert_array_equal(source[...], data)


def test_npy_header_that_is_no_header(tmp_path):
    for start in (
        b"\x93NUMPY\x03\x00\xff\xff\xff\xff",
        b"\x93NUMPY\x03\x00\x02\x00\x00\x00{}",
        b"\x93NUMPY\x04\x00\x02\x00\x00\x00{}",
    ):
        (tmp_path / "bad.npy").write_bytes(start)
        with pytest.raises(SpecError, match="cannot be read as npy"):
            open_source(str(tmp_path / "bad.npy"))


def test_short_files(tmp_path):
    path, options = make_raw(tmp_path, values(SHAPE))
    os.truncate(path, 400)
    with pytest.raises(SpecError, match=r"400 bytes.*needs 775"):
        open_source(str(path), **options)
    path, _ = make_npy(tmp_path, values(SHAPE))
    os.truncate(path, 400)
    with pytest.raises(SpecError, match="too short"):
        open_source(str(path))
    path, _ = make_nifti(tmp_path, values(SHAPE, "int16"))
    os.truncate(path, 400)
    with pytest.raises(SpecError, match="too short"):
        open_source(str(path))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({}, "shape"),
        ({"shape": (3,)}, "dtype"),
        ({"shape": (3,), "dtype": "nonsense"}, "dtype"),
        ({"shape": (3,), "dtype": "O"}, "dtype"),
        ({"shape": (-3,), "dtype": "u1"}, "shape"),
        ({"shape": (3,), "dtype": "u1", "offset": -1}, "offset"),
        ({"shape": (3,), "dtype": "u1", "order": "A"}, "order"),
        ({"shape": (3,), "dtype": "u1", "dataset": "x"}, "dataset"),
        ({"shape": (3,), "dtype": "u1", "chunks": (1, 5)}, "chunks"),
    ],
)
def test_raw_arguments(tmp_path, options, field):
    (tmp_path / "a.dat").write_bytes(b"abc")
    with pytest.raises(SpecError) as caught:
        open_source(str(tmp_path / "a.dat"), **options)
    assert caught.value.field == field
    assert caught.value.remedy
    assert repr(caught.value.value) in str(caught.value)


def test_a_damaged_zip_file_is_named(tmp_path):
    import zarr

    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        array = zarr.create_array(store, shape=(64,), chunks=(64,), dtype="u1", compressors=None)
        array[...] = np.arange(64)
    damaged = bytearray((tmp_path / "a.zip").read_bytes())
    damaged[damaged.index(bytes(range(64))) + 9] ^= 0xFF
    (tmp_path / "a.zip").write_bytes(damaged)
    with pytest.raises(SourceError, match=r"a\.zip cannot be read, and may be damaged: Bad CRC"):
        open_source(tmp_path / "a.zip")[0:64]


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), IndexError("x"), OSError(errno.EINVAL, "x")], ids=repr
)
def test_what_libraries_raise_about_odd_numbers_in_a_file_is_damage(error):
    with (
        pytest.raises(SourceError, match="a cannot be read, and may be damaged"),
        naming_damage("a", Box((0,), (1,))),
    ):
        raise error
    with pytest.raises(OSError, match="x") as caught, naming_damage("a", Box((0,), (1,))):
        raise OSError(errno.EIO, "x")
    assert caught.value.errno == errno.EIO


# TIFF


def test_tiff_chunks_are_pages(tmp_path):
    for make in (make_tiff, make_tiff_zlib, make_tiff_directory):
        path, _ = make(tmp_path, values(SHAPE))
        assert open_source(str(path)).chunks == (1, 7, 5)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("shape", [(7, 5), (1, 7, 5), (4, 1, 5), (4, 7, 1), (2, 3, 4, 5)])
def test_tiff_shapes(tmp_path, shape, compression):
    import tifffile

    tifffile.imwrite(
        tmp_path / "a.tif", values(shape), photometric="minisblack", compression=compression
    )
    source = open_source(str(tmp_path / "a.tif"))
    assert source.shape == shape
    np.testing.assert_array_equal(source[...], values(shape))


def test_tiff_color_tiles_and_imagej(tmp_path):
    import tifffile

    color = values((3, 40, 33, 3), "uint8")
    tifffile.imwrite(
        tmp_path / "c.tif", color, photometric="rgb", tile=(16, 16), compression="zlib"
    )
    np.testing.assert_array_equal(
        open_source(str(tmp_path / "c.tif"))[1:3, 5:39, 2:30, 0:2], color[1:3, 5:39, 2:30, 0:2]
    )
    tifffile.imwrite(
        tmp_path / "i.tif", values((3, 2, 8, 9)), imagej=True, metadata={"axes": "ZCYX"}
    )
    source = open_source(str(tmp_path / "i.tif"))
    np.testing.assert_array_equal(
        source[1:3, 0:2, 3:8, 1:2], values((3, 2, 8, 9))[1:3, 0:2, 3:8, 1:2]
    )
    assert source.chunks == (1, 1, 8, 9)


def test_tiff_series(tmp_path):
    import tifffile

    with tifffile.TiffWriter(tmp_path / "s.tif") as file:
        file.write(values((3, 4, 5)), photometric="minisblack")
        file.write(values((6, 7), "uint8"), photometric="minisblack")
    assert open_source(str(tmp_path / "s.tif")).shape == (3, 4, 5)
    second = open_source(str(tmp_path / "s.tif"), dataset="1")
    np.testing.assert_array_equal(second[0:6, 0:7], values((6, 7), "uint8"))
    assert second.identity != open_source(str(tmp_path / "s.tif")).identity
    with pytest.raises(SpecError, match=r"dataset='2'.*0 \(.*1 \("):
        open_source(str(tmp_path / "s.tif"), dataset="2")


def test_tiff_pages_must_agree(tmp_path):
    import tifffile

    path, _ = make_tiff_directory(tmp_path, values(SHAPE))
    stack = open_source(str(path))
    tifffile.imwrite(path / "p11.tif", values((7, 6)))
    with pytest.raises(SpecError, match=r"p11.tif.*\(7, 6\).*\(7, 5\)"):
        open_source(str(path))
    tifffile.imwrite(path / "p11.tif", values((7, 5), "uint8"))
    with pytest.raises(SpecError, match="uint8"):
        open_source(str(path))
    with pytest.raises(StoreError, match="added or removed"):
        stack[:1]


def test_files_of_a_stack_are_in_natural_order(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    names = ["a2.tif", "a10.tif", "b1.tif", "b01.tif", "b3.tif"]
    for name in names:
        tifffile.imwrite(tmp_path / name, np.zeros((2, 2), np.uint8))
    found = page_files(str(tmp_path))
    assert [Path(path).name for path in found] == [
        "a2.tif",
        "a10.tif",
        "b01.tif",
        "b1.tif",
        "b3.tif",
    ]
    assert page_files(str(tmp_path / "*.tif")) == found


def test_tiff_codec_that_is_missing(tmp_path, monkeypatch):
    import tifffile

    path, _ = make_tiff_zlib(tmp_path, values(SHAPE))
    monkeypatch.setattr(tifffile.TIFF, "DECOMPRESSORS", {})
    with pytest.raises(SpecError, match=r"ADOBE_DEFLATE.*imagecodecs"):
        open_source(str(path))


@pytest.mark.parametrize("bigtiff", [False, True])
@pytest.mark.parametrize("n_left", [0, 1, 5], ids="{} bytes of the third page".format)
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_tiff_without_its_last_pages_is_refused(tmp_path, compression, n_left, bigtiff):
    """tifffile reads the pages that are left, and writes a line to the log."""
    import tifffile

    path = tmp_path / "stack" / "a.tif"
    path.parent.mkdir()
    with tifffile.TiffWriter(path, bigtiff=bigtiff) as file:
        for image in values((5, 7, 5)):
            file.write(image, metadata=None, contiguous=False, compression=compression)
    with tifffile.TiffFile(path) as file:
        third = file.pages[2].offset
    path.write_bytes(path.read_bytes()[: third + n_left])
    for given in (path, path.parent):
        with pytest.raises(SpecError, match=r"a\.tif.: .*(cut off|corrupted IFD)"):
            open_source(str(given))


@pytest.mark.parametrize("options", [{"imagej": True}, {"ome": True, "compression": "zlib"}])
def test_a_described_stack_without_its_last_pages_is_refused(tmp_path, options):
    import tifffile

    path, images = tmp_path / "a.tif", np.random.default_rng(0).integers(0, 99, (5, 30, 40), "u1")
    tifffile.imwrite(path, images, **options)
    whole = path.read_bytes()
    np.testing.assert_array_equal(open_source(str(path))[...], images)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SpecError, match="cut off"):
        open_source(str(path))


def test_a_description_of_imagej_that_does_not_fit_the_pages_is_told(tmp_path):
    import tifffile

    path = tmp_path / "a.tif"
    text = "ImageJ=1.11a\nimages=5\nslices=5\nspacing=2\nunit=um\n"
    tifffile.imwrite(path, values((7, 5)), description=text, metadata=None)
    with pytest.warns(UserWarning, match="what ImageJ says of it is left out"):
        source = open_source(str(path))
    assert (source.shape, source.metadata.attributes) == ((7, 5), {})


def test_the_file_of_a_stack_that_is_none_of_tiff_is_named(tmp_path):
    path, _ = make_tiff_directory(tmp_path, values(SHAPE))
    (path / "._p1.tif").write_bytes(b"\0\5\x16\7")
    with pytest.raises(SpecError, match=r"pages/\._p1\.tif': it cannot be read as tiff"):
        open_source(str(path))


# NIfTI


def test_nifti_values_are_raw(tmp_path):
    import nibabel

    path, _ = make_nifti(tmp_path, values(SHAPE, "int16"))
    raw = bytearray(path.read_bytes())
    raw[112:120] = np.array([0.5, 10], "<f4").tobytes()  # slope and intercept
    path.write_bytes(raw)
    assert nibabel.load(path).get_fdata()[0, 0, 0] == 10
    source = open_source(str(path))
    assert source.dtype == "int16"
    np.testing.assert_array_equal(source[...], values(SHAPE))


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("kind", ["hdr", "img"])
def test_nifti_pairs(tmp_path, kind, end):
    """The header is one file, and the values are in the other one."""
    import nibabel

    data = values((3, 4, 5), "int16")
    nibabel.save(nibabel.Nifti1Pair(data, np.eye(4)), tmp_path / f"a.img{end}")
    source = open_source(tmp_path / f"a.{kind}{end}", format="nifti")
    np.testing.assert_array_equal(source[...], data)
    np.testing.assert_array_equal(source[1:2, :, 2:], data[1:2, :, 2:])


def test_nifti_gz_is_one_chunk(tmp_path):
    path, _ = make_nifti_gz(tmp_path, values(SHAPE, "int16"))
    assert open_source(str(path)).chunks == SHAPE


# What is refused


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [
        (make_hdf5, "h5py", "hdf5"),
        (make_tiff, "tifffile", "tiff"),
        (make_tiff_directory, "tifffile", "tiff"),
        (make_nifti, "nibabel", "nifti"),
        (make_netcdf3, "scipy", "netcdf3"),
        (make_b2nd, "blosc2", "blosc2"),
    ],
)
def test_missing_library(tmp_path, monkeypatch, make, module, extra):
    path, _ = make(tmp_path, values(SHAPE, "int16"))
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name == module else found(name, package),
    )
    with pytest.raises(SpecError, match=module) as caught:
        open_source(str(path))
    assert caught.value.field == "source"
    assert caught.value.value == str(path)
    assert caught.value.remedy == f'pip install "shardwrite[{extra}]"'


def test_missing_file(tmp_path):
    for name in ("none.npy", "none.h5::/x", "*.tif", "none.raw"):
        with pytest.raises(StoreError) as caught:
            open_source(str(tmp_path / name))
        assert str(tmp_path) in str(caught.value)


def test_unknown_format(tmp_path):
    (tmp_path / "a.xyz").write_bytes(b"12345")
    with pytest.raises(
        SpecError, match="zarr, hdf5, netcdf3, npy, tiff, precomputed, b2nd, wkw, nifti, raw"
    ) as caught:
        open_source(str(tmp_path / "a.xyz"))
    assert caught.value.field == "source"
    with pytest.raises(
        SpecError, match="zarr, hdf5, netcdf3, npy, tiff, precomputed, b2nd, wkw, nifti, raw"
    ) as caught:
        open_source(str(tmp_path / "a.xyz"), format="jpeg")
    assert (caught.value.field, caught.value.value) == ("format", "jpeg")


# Tests of plugs add formats to the table, before or after this file is collected.
OURS = [name for name, one in FORMATS.items() if one.module.startswith("shardwrite.")]


@pytest.mark.parametrize("name", [name for name in OURS if name != "raw"])
def test_broken_file(tmp_path, name):
    (tmp_path / "broken").write_bytes(b"this is no such file at all")
    with pytest.raises(SpecError) as caught:
        open_source(str(tmp_path / "broken"), format=name)
    assert caught.value.field == "source"
    assert pickle.loads(pickle.dumps(caught.value)).field == "source"


def test_address_keeps_its_password(tmp_path):
    with pytest.raises(SpecError) as caught:
        open_source("https://user:secret@host/a.zarr")
    assert "secret" not in str(caught.value)


def test_arguments_without_meaning(tmp_path):
    path, _ = make_npy(tmp_path, values(SHAPE))
    with pytest.raises(SpecError) as caught:
        open_source(str(path), shape=(3,))
    assert caught.value.field == "shape"


def test_content_decides_over_the_name(tmp_path):
    path, _ = make_hdf5(tmp_path, values(SHAPE))
    os.rename(path, tmp_path / "b.cdf")
    assert open_source(str(tmp_path / "b.cdf")).identity.startswith("hdf5:")


# Parts


def test_chunks_given(tmp_path):
    path, _ = make_npy(tmp_path, values(SHAPE))
    source = open_source(str(path), chunks=((4, 7), 7, -1))
    assert source.chunks == ((4, 7), (7,), (5,))
    assert as_dask(source).chunks == source.chunks


def test_merge_chunks():
    assert merge_chunks((10, 10), (100, 100), 1, target=1000) == (10, 100)
    assert merge_chunks((10, 10), (100, 100), 1, target=1000, order="F") == (100, 10)
    assert merge_chunks((10, 10), (100, 100), 1, target=10) == (10, 10)
    assert merge_chunks((10, 10), (100, 100), 1, target=900) == (10, 50)
    assert merge_chunks((64,), (10,), 8) == (10,)
    assert merge_chunks((), (), 8) == ()
    assert slabs((1 << 20, 1 << 10), 1) == (1 << 16, 1 << 10)


def test_split_key_outside():
    with pytest.raises(IndexError):
        split_key((5,), (5,))
    with pytest.raises(IndexError, match="2 indices"):
        split_key((0, 0), (5,))


def test_handles_are_opened_once_and_dropped():
    cache, opened = HandleCache(2), []

    def opener(key):
        return lambda: opened.append(key) or key

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: cache.get("a", opener("a")), range(20))) == {"a"}
    for key in ("b", "c", "a"):
        cache.get(key, opener(key))
    assert opened == ["a", "b", "c", "a"]


def test_identity_is_one_line(made):
    assert json.dumps(made.source.identity)
    assert "\n" not in made.source.identity


@pytest.mark.parametrize(("make", "place"), [(make_nifti_gz, -200), (make_nifti_gz, -6)])
def test_damage_in_a_compressed_image_is_told(tmp_path, make, place):
    """nibabel reads to the last value, and not to the checksum that follows it."""
    pytest.importorskip("nibabel")
    noise = np.random.default_rng(0).integers(-(2**15), 2**15, (12, 13, 14)).astype("int16")
    path, _ = make(tmp_path, noise)
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(SourceError, match=r"a\.nii\.gz cannot be read, and may be damaged"):
        open_source(path)[0:12, 0:13, 0:14]


def test_damaged_files_are_named(tmp_path):
    """Their libraries give zlib.error, EOFError and OSError, which went to the user as they were."""
    pytest.importorskip("nibabel")
    tifffile = pytest.importorskip("tifffile")
    image, _ = make_nifti_gz(tmp_path, values(SHAPE, "int16"))
    image.write_bytes(image.read_bytes()[:-20])
    picture, _ = make_tiff_zlib(tmp_path, values(SHAPE))
    with tifffile.TiffFile(picture) as file:
        start = file.pages[1].dataoffsets[0]
    damaged = bytearray(picture.read_bytes())
    damaged[start + 2 : start + 8] = b"\xff" * 6
    picture.write_bytes(damaged)
    for path in (image, picture):
        source = open_source(path)
        with pytest.raises(SourceError, match=f"{path.name} cannot be read, and may be damaged"):
            source[tuple(slice(0, n) for n in source.shape)]
