"""Files of HDF5 of which an array is made: what readers find, what is refused, and that the files
stay as they are."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import Hdf5, ShardwriteError, SpecError
from shardwrite.cli import main

h5py = pytest.importorskip("h5py")
hdf5plugin = pytest.importorskip("hdf5plugin")

X = np.arange(10 * 7 * 9, dtype="f4").reshape(10, 7, 9) + 1
EDGES = (0, 4, 8, 10)
CHUNKS = (2, 3, 4)


def make(home: Path, *, libver="v108", block=0, axis=0, x=X, edges=EDGES, **keywords) -> list[str]:
    """Files with slabs of an array, one after the other along an axis."""
    home.mkdir(exist_ok=True)
    files = []
    for number, (start, stop) in enumerate(itertools.pairwise(edges)):
        files.append(str(home / f"{number}.h5"))
        bounds = (libver, "v110" if libver == "earliest" else libver)
        with h5py.File(files[-1], "w", libver=bounds, userblock_size=block) as file:
            slab = np.take(x, range(start, stop), axis)
            options = {"chunks": CHUNKS, "fillvalue": -1, **keywords}
            data = file.create_dataset("a/data", data=slab, **options)
            data.attrs["units"] = "K"
            data.attrs["number"] = number
            file["other"] = "kept"
    return files


def digests(files: list[str]) -> dict[str, str]:
    return {file: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files}


def adopt(files, array, *, dataset="a/data", **keywords):
    return shardwrite.adopt(files, array, dataset=dataset, **keywords)


def check(path: Path, x=X) -> None:
    """Readers agree, also after a program has opened each file for writing and closed it."""
    shards = [shard for shard in sorted((path / "c").rglob("*")) if shard.is_file()]
    for shard in shards:
        assert not shard.stat().st_mode & 0o222
        shard.chmod(0o644)
        h5py.File(shard, "r+").close()
        shard.chmod(0o444)
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], x)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], x)
    assert shardwrite.verify(path, deep=True).is_good
    beside = [other.name for other in path.parent.iterdir() if other.name.startswith(path.name)]
    assert beside == [path.name]


LONG = pytest.mark.long


@pytest.mark.compat
@pytest.mark.parametrize(
    ("libver", "block"),
    [
        ("earliest", 0),
        ("v108", 512),
        ("v110", 0),
        pytest.param("earliest", 512, marks=LONG),
        pytest.param("v108", 0, marks=LONG),
        pytest.param("v110", 16384, marks=LONG),
    ],
)
def test_chunks_are_copied(tmp_path, libver, block):
    """From files of every version of the superblock, which stay as they are."""
    filters = {"compression": "gzip", "shuffle": True, "fletcher32": libver == "v108"}
    files = make(tmp_path / "f", libver=libver, block=block, **filters)
    before = digests(files)
    done = adopt(files, tmp_path / "x")
    assert (done.index_location, done.n_shards, done.left_out) == ("end", 3, ("number",))
    check(tmp_path / "x")
    for number, (start, stop) in enumerate(itertools.pairwise(EDGES)):
        with h5py.File(tmp_path / f"x/c/{number}/0/0") as file:
            np.testing.assert_array_equal(file["a/data"][...], X[start:stop])
    assert digests(files) == before
    assert zarr.open_array(tmp_path / "x", mode="r").attrs.asdict() == {"units": "K"}
    again = adopt(files, tmp_path / "x")
    assert again.is_skipped
    assert again.shape == done.shape


@pytest.mark.parametrize(
    "filters",
    [
        {},
        pytest.param(hdf5plugin.Zstd(), marks=LONG),
        pytest.param(hdf5plugin.Blosc(cname="lz4"), marks=LONG),
    ],
)
def test_each_filter_along_another_axis(tmp_path, filters):
    """Chunks that were never written are missing in both; a file may lack all of them."""
    x, more = X // 30, {"chunks": (5, 7, 4), **filters}
    where = {"axis": 2, "edges": (0, 4, 8, 9), "maxshape": (None,) * 3}
    files = make(tmp_path / "f", x=x, **where, **more)
    with h5py.File(files[0], "w") as file:
        file.create_dataset("a/data", (10, 7, 4), "f4", fillvalue=-1, **more).attrs["units"] = "K"
    x[:, :, :4] = -1
    adopt(files, tmp_path / "x", axis=2)
    check(tmp_path / "x", x)
    how = Hdf5(dataset="a/data")
    shardwrite.write_region(5, tmp_path / "x", (0, 0, slice(6, 9)), strategy=how)
    x[0, 0, 6:9] = 5
    check(tmp_path / "x", x)


def test_netcdf_files_with_an_unlimited_dimension(tmp_path):
    netcdf = pytest.importorskip("netCDF4")
    files = []
    for number in range(2):
        files.append(tmp_path / f"{number}.nc")
        with netcdf.Dataset(files[-1], "w") as file:
            file.createDimension("time", None)
            file.createDimension("y", 5)
            time = file.createVariable("time", "f8", ("time",), chunksizes=(4,))
            time[:] = np.arange(4) + 4 * number
            data = file.createVariable("t", "i2", ("time", "y"), chunksizes=(2, 5), zlib=True)
            data.scale_factor = 0.5
            data[:] = (np.arange(20).reshape(4, 5) + 20 * number) * 0.5
    done = adopt(files, tmp_path / "x", dataset="t")
    assert done.shape == (8, 5)
    check(tmp_path / "x", np.arange(40).reshape(8, 5))
    found = zarr.open_array(tmp_path / "x", mode="r")
    assert found.metadata.dimension_names == ("time", "y")
    assert found.attrs["scale_factor"] == 0.5
    with netcdf.Dataset(tmp_path / "x/c/1/0") as file:
        assert file["t"][0, 0] == 20  # attributes are in `zarr.json` only


def test_copies_leave_the_files_as_they_are(tmp_path):
    """Also chunks for which filters were left out, which are encoded again."""
    files = make(tmp_path / "f", compression="gzip", fletcher32=True)
    with h5py.File(files[1], "r+") as file:
        raw = np.ascontiguousarray(X[4:6, :3, :4]).tobytes()
        file["a/data"].id.write_direct_chunk((0, 0, 0), raw, filter_mask=3)
    before = digests(files)
    assert not adopt(files, tmp_path / "x").is_skipped
    check(tmp_path / "x")
    assert adopt(files, tmp_path / "x").is_skipped
    with h5py.File(tmp_path / "x/c/1/0/0") as file:
        np.testing.assert_array_equal(file["a/data"][...], X[4:8])
    adopt(files, tmp_path / "y", strategy="fixed-order")
    assert (tmp_path / "y/c/0/0/0").read_bytes()[1:4] != b"HDF"
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "y")[...], X)
    assert digests(files) == before


def contiguous(file):
    del file["a/data"]
    file["a/data"] = X[4:8]


def other_units(file):
    file["a/data"].attrs["units"] = "C"


def other_shape(file):
    del file["a/data"]
    file.create_dataset("a/data", data=X[4:8, :6], chunks=CHUNKS, fillvalue=-1)


def other_chunks(file):
    del file["a/data"]
    file.create_dataset("a/data", data=X[4:8], chunks=(1, 3, 4), fillvalue=-1)


def shorter(file):
    del file["a/data"]
    made = file.create_dataset("a/data", data=X[4:7], chunks=CHUNKS, fillvalue=-1)
    made.attrs["units"] = "K"


def other_fill(file):
    del file["a/data"]
    file.create_dataset("a/data", data=X[4:8], chunks=CHUNKS, fillvalue=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (contiguous, "contiguous"),
        (other_units, "'units' is another"),
        (other_shape, "its shape is"),
        (other_chunks, "other chunks"),
        (shorter, "only the last file along an axis may be shorter"),
        (other_fill, "another fill value"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_changed(tmp_path, change, message):
    files = make(tmp_path / "f")
    with h5py.File(files[1], "r+") as file:
        change(file)
    before = digests(files)
    with pytest.raises(SpecError, match=message):
        adopt(files, tmp_path / "x")
    assert digests(files) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


def test_files_and_places_that_are_refused(tmp_path):
    home = tmp_path / "f"
    files = make(home)
    before = digests(files)

    def refused(message, given=files, where=tmp_path / "x", error=SpecError, **keywords):
        with pytest.raises(error, match=message):
            adopt(given, where, **keywords)

    refused("no regular file; give files by their names", [str(home)])
    refused("no file is given", [])
    refused("a pattern is not expanded", str(home / "*.h5"))
    refused("no axis", axis=3)
    (home / "text.h5").write_text("no HDF5" * 100)
    refused("HDF5|hdf5", [str(home / "text.h5")])
    with h5py.File(home / "two.h5", "w") as file:
        for name in "ab":
            file.create_dataset(name, data=X, chunks=CHUNKS)
    refused("choose one as dataset: a, b", [str(home / "two.h5")], dataset=None)
    names = [make_one(home / f"{name}.h5", name) for name in "cd"]
    refused("give the name of the dataset that all files have", names, dataset=None)
    data = bytearray(Path(files[0]).read_bytes())
    data[44] ^= 1  # the checksum of the superblock
    (home / "torn.h5").write_bytes(data)
    refused("files=.* read as HDF5|superblock", [str(home / "torn.h5")])
    shardwrite.create(tmp_path / "there", (4,), "u1", shards=4, chunks=2)
    refused("an array exists there", where=tmp_path / "there")
    assert digests(files) == before


def make_one(file, name):
    with h5py.File(file, "w") as opened:
        opened.create_dataset(name, data=X[:4], chunks=CHUNKS)
    return str(file)


@pytest.mark.compat
def test_the_command(tmp_path):
    files = make(tmp_path / "f")
    before = digests(files)
    runner, path = CliRunner(), str(tmp_path / "x")
    given = ["adopt", *files, path, "--dataset", "a/data", "--json"]
    planned = json.loads(runner.invoke(main, [*given, "--dry-run"]).stdout)
    assert planned["is_plan"]
    assert planned["shape"] == list(X.shape)
    assert digests(files) == before
    assert not os.path.exists(path)
    done = runner.invoke(main, given)
    assert not done.exit_code, done.output
    assert json.loads(done.stdout) == planned | {"is_plan": False}
    assert digests(files) == before
    check(tmp_path / "x")


@pytest.mark.parametrize("name", ["link", "alias/data", "a//./data/"])
def test_a_dataset_may_have_other_names(tmp_path, name):
    """Links and second names lead to the chunks, and copies of them are not fill values."""
    files = make(tmp_path / "f")
    for path in files:
        with h5py.File(path, "a") as file:
            file["link"] = h5py.SoftLink("/a/data")
            file["alias"] = file["a"]
    shardwrite.adopt(files, tmp_path / "x", dataset=name)
    check(tmp_path / "x")


def damage(path: str, which: str) -> None:
    """Make a file one that h5py opens, and stumbles over later."""
    if which == "type":
        with h5py.File(path, "w") as file:
            properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            properties.set_chunk(CHUNKS)
            space = h5py.h5s.create_simple((4, 7, 9))
            h5py.h5d.create(file.id, b"data", h5py.h5t.UNIX_D32LE, space, properties)
        return
    with h5py.File(path) as file:
        place = h5py.h5o.get_info(file["a/data"].id).addr
    data = bytearray(Path(path).read_bytes())
    if which == "header":
        data[place : place + 16] = b"\xff" * 16
    else:  # places and sizes of chunks
        tree = data.index(b"TREE\1")
        data[tree + 24 : tree + 200] = b"\xfe" * 176
    Path(path).write_bytes(data)


@pytest.mark.parametrize("which", ["type", "header", "tree"])
def test_damaged_files_are_refused_by_one_error(tmp_path, which):
    """h5py raises errors of many types about them; a remedy is not one that is refused, too."""
    files = make(tmp_path / "f")
    damage(files[1], which)
    before = digests(files)
    name = "data" if which == "type" else "a/data"
    given = files[1:2] if which == "type" else files
    with pytest.raises(SpecError):
        shardwrite.adopt(given, tmp_path / "x", dataset=name)
    with pytest.raises(ShardwriteError):
        shardwrite.shard(files[1], tmp_path / "y", shards=2)
    assert digests(files) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


def test_remedies_of_datasets_that_are_no_shards(tmp_path):
    """Elements that `Hdf5` cannot write become plain shards, as the error says."""
    x = np.zeros((10, 7, 9), [("a", "i4"), ("b", "f8")])
    x["a"] = np.arange(x.size).reshape(x.shape)
    files = make(tmp_path / "f", x=x, fillvalue=None)
    with pytest.raises(SpecError, match='strategy="fixed-order"'):
        adopt(files, tmp_path / "x")
    done = CliRunner().invoke(
        main, ["adopt", *files, str(tmp_path / "x"), "--dataset", "a/data", "--dry-run"]
    )
    assert done.exit_code != 0
    adopt(files, tmp_path / "x", strategy="fixed-order")
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "x")[...], x)
    contiguous = tmp_path / "z.h5"
    with h5py.File(contiguous, "w") as file:
        file["a/data"] = X
    with pytest.raises(SpecError, match=r"contiguous layout.*shardwrite write"):
        adopt([contiguous], tmp_path / "z")
    with pytest.raises(SpecError, match="no name of a dataset"):
        adopt(files, tmp_path / "z", dataset=5)


def test_an_array_that_stands_there_is_not_replaced(tmp_path):
    """The remedy is none that `adopt` lacks, such as a mode."""
    files = make(tmp_path / "f")
    zarr.create_array(tmp_path / "x", shape=(3,), dtype="u1")
    with pytest.raises(SpecError, match=r"an array exists there.*; give another path") as caught:
        adopt(files, tmp_path / "x")
    assert "mode=" not in str(caught.value)
    assert zarr.open_array(tmp_path / "x", mode="r").shape == (3,)
