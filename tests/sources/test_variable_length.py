"""Texts and bytes of variable length, from each kind of file that has them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import zarr
import zarr.dtype
from click.testing import CliRunner

import shardwrite
from shardwrite import SpecError
from shardwrite.cli import main
from shardwrite.sources import open_source

WORDS = ["", "a", "größer", "x" * 300, "shard", "\N{SNOWMAN}"] * 4
TEXT = np.array(WORDS, dtype=object).reshape(6, 4)
BYTES = np.array([word.encode() + b"\x00\xff" for word in WORDS], dtype=object).reshape(6, 4)


def by_zarr(path, values, zarr_format, *, shards=None, is_zip=False):
    dtype = zarr.dtype.VariableLengthBytes() if values is BYTES else zarr.dtype.VariableLengthUTF8()
    store = zarr.storage.ZipStore(path, mode="w") if is_zip else path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = zarr.create_array(
            store, shape=(6, 4), chunks=(2, 3), shards=shards, dtype=dtype, zarr_format=zarr_format
        )
        array[...] = values
    if is_zip:
        store.close()


def by_h5py(path, values, **how):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.create_dataset("t", data=values, dtype=h5py.string_dtype(), **how)


def by_netcdf4(path, values):
    netcdf4 = pytest.importorskip("netCDF4")
    with netcdf4.Dataset(path, "w") as file:
        for name, n in (("y", 6), ("x", 4)):
            file.createDimension(name, n)
        file.createVariable("t", str, ("y", "x"))[:] = values


MAKERS = {
    "zarr2": lambda path: by_zarr(path, TEXT, 2),
    "zarr2-bytes": lambda path: by_zarr(path, BYTES, 2),
    "zarr3": lambda path: by_zarr(path, TEXT, 3),
    "zarr3-bytes": lambda path: by_zarr(path, BYTES, 3),
    "sharded": lambda path: by_zarr(path, TEXT, 3, shards=(4, 3)),
    "sharded-bytes": lambda path: by_zarr(path, BYTES, 3, shards=(4, 3)),
    "zip": lambda path: by_zarr(path, TEXT, 3, is_zip=True),
    "hdf5": lambda path: by_h5py(path, TEXT),
    "hdf5-chunks": lambda path: by_h5py(path, TEXT, chunks=(2, 3), compression="gzip"),
    "netcdf4": lambda path: by_netcdf4(path, TEXT),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", MAKERS)
def test_they_are_written(tmp_path, kind):
    path = tmp_path / ("a.zip" if kind == "zip" else "a")
    MAKERS[kind](path)
    values = BYTES if kind.endswith("bytes") else TEXT
    named = {"dataset": "t"} if kind == "netcdf4" else {}
    options = [f"--{name}={value}" for name, value in named.items()]
    source = open_source(path, **named)
    assert source[...].tolist() == values.tolist()
    assert source[1:3, 2:].tolist() == values[1:3, 2:].tolist()
    words = ["write", path, tmp_path / "out", "--shards", "4,2", "--chunks", "2,2"]
    for command in (words, ["verify", tmp_path / "out", "--deep", "--against", path]):
        ended = CliRunner().invoke(main, [str(word) for word in (*command, *options)])
        assert ended.exit_code == 0, ended.output
    assert zarr.open_array(tmp_path / "out", mode="r")[...].tolist() == values.tolist()
    assert shardwrite.open_sharded(tmp_path / "out")[...].tolist() == values.tolist()
    shardwrite.to_sharded_zarr(source, tmp_path / "given", shards=(4, 2), chunks=(2, 2))
    words = ["update", path, tmp_path / "given", "--append", 0, *options]
    ended = CliRunner().invoke(main, [str(word) for word in words])
    assert ended.exit_code == 0, ended.output
    got = zarr.open_array(tmp_path / "given", mode="r")[...]
    assert got.tolist() == np.concatenate([values, values]).tolist()


def test_text_that_nobody_wrote_is_empty(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", (5,), h5py.string_dtype(), chunks=(2,))[0] = "first"
    source = open_source(tmp_path / "a.h5")
    assert source[...].tolist() == ["first", "", "", "", ""]
    shardwrite.to_sharded_zarr(source, tmp_path / "out", shards=4, chunks=2)
    assert zarr.open_array(tmp_path / "out", mode="r")[...].tolist() == source[...].tolist()


def test_what_is_no_text_is_refused(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("numbers", (5,), h5py.vlen_dtype("u1"))
        file.create_dataset("latin", (1,), dtype=h5py.string_dtype())[0] = b"\xe4"
        file.create_dataset("arrays", (5,), np.dtype(("i2", (2, 3))))
    for name in ("numbers", "arrays"):
        with pytest.raises(SpecError, match="none that Zarr stores"):
            open_source(tmp_path / "a.h5", dataset=name)
    source = open_source(tmp_path / "a.h5", dataset="latin")
    with pytest.raises(shardwrite.SourceError, match="decode"):
        shardwrite.to_sharded_zarr(source, tmp_path / "out", shards=1, chunks=1)
    np.save(tmp_path / "a.npy", TEXT)
    with pytest.raises(SpecError, match="Python objects"):
        open_source(tmp_path / "a.npy")
