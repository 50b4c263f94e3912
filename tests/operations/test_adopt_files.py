"""Files of which no array can be made, and what is said of them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.cli import main
from shardwrite.hdf5 import reading
from shardwrite.hdf5.reading import Hdf5Store

h5py = pytest.importorskip("h5py")

X = np.arange(12.0).reshape(4, 3)


def make(path: Path, data=X, chunks=(2, 3), **attributes) -> str:
    with h5py.File(path, "w") as file:
        made = file.create_dataset("data", data=data, chunks=chunks)
        made.attrs.update(attributes)
    return str(path)


def refused(files, array, message, **keywords) -> None:
    with pytest.raises(SpecError, match=message):
        shardwrite.adopt(files, array, **keywords)
    assert not list(array.parent.glob(f"{array.name}*")), "something was left"


def test_a_file_that_is_open_for_writing(tmp_path):
    """HDF5 lets a process open such a file again."""
    path = make(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        refused([path], tmp_path / "x", "this process has it open for writing; close")
        file["data"][3] = 7
    with open(path, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as other programs lock it
        refused([path], tmp_path / "x", "another program has it open for writing")
    with h5py.File(path):  # for reading
        shardwrite.adopt([path], tmp_path / "x")
    assert shardwrite.open_sharded(tmp_path / "x")[3].tolist() == [7, 7, 7]


def test_what_is_no_such_file(tmp_path):
    array = tmp_path / "x"
    good = make(tmp_path / "good.h5")
    old = tmp_path / "old.nc"
    old.write_bytes(b"CDF\x01" + bytes(100))
    with h5py.File(tmp_path / "group.h5", "w") as file:
        file.create_group("data")
        file["text"] = np.array(["a"], h5py.string_dtype())
        file.create_dataset("triples", (4,), np.dtype(("i4", (3,))), chunks=(2,))
    with h5py.File(tmp_path / "empty.h5", "w") as file:
        file.create_dataset("data", (0, 3), "f8", maxshape=(None, 3), chunks=(2, 3))
    group = str(tmp_path / "group.h5")
    refused([old], array, "a NetCDF-3 file, which has no chunks; write the values")
    refused([group], array, "files='.*group.h5': .* no fixed size", dataset="text")
    refused([group], array, "no such array", dataset="data")
    refused([group], array, "its elements are arrays", dataset="triples")
    refused([tmp_path / "empty.h5"], array, "it has no elements")
    refused({good, str(old)}, array, "give a list of paths, in their order")
    refused(["s3://bucket/a.h5"], array, "only files of this machine")
    swapped = make(tmp_path / "swapped.h5", X.astype(">f8"))
    refused([good, swapped], array, "another order of bytes than the first")
    other = make(tmp_path / "other.h5", X.astype("i2"))
    refused([good, other], array, "another data type than the first")
    refused([good, good], array, "axis=-3: no axis of the dataset; give", axis=-3)
    assert shardwrite.adopt(iter([good, good]), array, axis=-1).shape == (4, 6)


def test_what_flags_mean_is_the_same_in_all_files(tmp_path):
    days = [make(tmp_path / f"{n}.h5", flag_meanings=text) for n, text in enumerate(["a b", "b a"])]
    refused(days, tmp_path / "x", "its attribute 'flag_meanings' is another")


def test_a_file_that_vanishes_while_it_is_looked_at(tmp_path, monkeypatch):
    file, look = make(tmp_path / "a.h5"), reading.as_array

    def gone(place, name):
        os.unlink(place)
        return look(place, name)

    monkeypatch.setattr(reading, "as_array", gone)
    with pytest.raises(StoreError, match=r"cannot read '.*a\.h5': .*No such file"):
        Hdf5Store(file, part="data").contents  # noqa: B018 (a property)


def test_the_command_without_an_array(tmp_path):
    files = [make(tmp_path / f"{n}.h5") for n in range(2)]
    ended = CliRunner().invoke(main, ["adopt", *files])
    assert ended.exit_code == 2
    assert f"ARRAY comes last, and {files[1]} is a file" in ended.output
    ended = CliRunner().invoke(main, ["adopt", *files, "x" * 300])
    assert "not the path of a directory that can be made" in ended.output
    ended = CliRunner().invoke(main, ["adopt", str(tmp_path), str(tmp_path / "x")])
    assert f"FILE {tmp_path}: its chunks cannot be copied" in ended.output


def test_the_remedy_names_the_keyword_that_has_the_codec(tmp_path):
    delta = {"name": "numcodecs.delta", "configuration": {"dtype": "<f8"}}
    with pytest.raises(SpecError, match="leave out filters="):
        da.from_array(X).to_sharded_zarr(
            tmp_path / "x", shards=(4, 3), chunks=(2, 3), filters=[delta], strategy="hdf5"
        )
