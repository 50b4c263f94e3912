"""A dataset is found by its name in a file of HDF5 without the library, and never a wrong one."""

from __future__ import annotations

import io

import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite import Hdf5
from shardwrite.format.hdf5_file import SIGNATURE
from shardwrite.format.hdf5_groups import has_dataset
from shardwrite.read import hdf5_shards

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")


def found(data, name, chunks=(2, 2)):
    start = data.find(SIGNATURE)
    return has_dataset(lambda at, nbytes: data[at : at + nbytes], start, name, chunks)


@pytest.mark.parametrize("index", ["start", "end"])
@pytest.mark.parametrize("name", ["data", "raw/data", "a/b/c/d", "é/ü", "x" * 255, "y" * 256])
def test_in_shards(tmp_path, name, index):
    """Names of 256 bytes or more are left to the library."""
    x = da.arange(1, 401, chunks=100).reshape(20, 20)
    how = Hdf5(index=index, dataset=name)
    x.to_sharded_zarr(tmp_path / "x", shards=(10, 10), chunks=(2, 2), strategy=how)
    data = (tmp_path / "x/c/1/0").read_bytes()
    assert found(data, name) == (len(name) < 256)
    for other in ("zz", "dat", "data/x", name + "x", name[:-1] or "x", f"g/{name}"):
        assert not found(data, other)
    for other in ((2, 3), (2,), (2, 2, 2)):
        assert not found(data, name, other)


@pytest.mark.parametrize("version", ["earliest", "latest", "v108"])
def test_in_other_files(version):
    """Groups with few members and with many; whatever is found is a dataset for the library, too."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=(version, "latest"), userblock_size=512) as file:
        for number in range(60):
            file[f"number {number}"] = number
        made = file.create_dataset("group/t", data=np.zeros((8, 8)), chunks=(2, 2))
        made.attrs["units"] = "K"
        file["group/contiguous"] = np.zeros((8, 8))
        file["group/soft"] = h5py.SoftLink("/group/t")
        file["hard"] = file["group/t"]
        file["self"] = file["/"]
    data = buffer.getvalue()
    good = {"group/t", "hard", "self/group/t", "self/self/hard"}
    bad = {"group", "group/contiguous", "group/soft", "number 7", "group/u", "none/t", "group/t/t"}
    is_simple = version == "earliest"
    assert {name for name in good | bad if found(data, name)} == (good if is_simple else set())


def test_damaged_files(tmp_path):
    """Whatever bytes a file has, it is read within bounds, and no error comes out."""
    rng, names = np.random.default_rng(3), ("data", "raw/data")
    files = []
    for name in names:
        da.arange(16, chunks=16).to_sharded_zarr(
            tmp_path / name, shards=16, chunks=4, strategy=Hdf5(dataset=name)
        )
        files.append((name, (tmp_path / name / "c/0").read_bytes()))
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file.create_dataset("raw/data", data=np.zeros(16), chunks=(4,))
    files.append(("raw/data", buffer.getvalue()))
    for name, data in files:
        assert found(data, name, (4,))
        n_found = 0
        for _ in range(3000):
            other = bytearray(data)
            for at in rng.integers(0, min(len(data), 4000), int(rng.integers(1, 12))):
                other[at] = rng.choice([0, 1, 8, 16, 255, int(rng.integers(256))])
            cut = int(rng.integers(8, len(data) + 1)) if rng.random() < 0.2 else len(data)
            n_found += found(bytes(other[:cut]), name, (4,))
        assert n_found > 50


def test_the_library_is_not_asked_for_each_shard(tmp_path, monkeypatch):
    """An update knows the name once, and finds it in each shard without the library."""
    x = da.arange(1, 201, chunks=50)
    x.to_sharded_zarr(tmp_path / "x", shards=10, chunks=5, strategy="hdf5:raw/data")
    asked = []
    wrapped = hdf5_shards.dataset_names
    monkeypatch.setattr(
        hdf5_shards, "dataset_names", lambda *a, **k: asked.append(a) or wrapped(*a, **k)
    )
    shardwrite.write_region(x + 1, tmp_path / "x", ..., strategy="hdf5")
    shardwrite.write_region(7, tmp_path / "x", slice(5, 195), strategy="hdf5:raw/data")
    assert not asked
    with h5py.File(tmp_path / "x/c/3") as file:
        assert file["raw/data"][0] == 7
