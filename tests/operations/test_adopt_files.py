"""Files that cannot become shards: what is said of them, and that they stay as they are."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import warnings
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.cli import main
from shardwrite.journal import Adoption, documents
from shardwrite.operations import in_place
from shardwrite.sources import hdf5_store
from shardwrite.sources.hdf5_store import Hdf5Store
from shardwrite.stores import mount_of

h5py = pytest.importorskip("h5py")

X = np.arange(12.0).reshape(4, 3)
HOWS = ("copy", "move", "link")


def make(path: Path, data=X, chunks=(2, 3), **attributes) -> str:
    with h5py.File(path, "w") as file:
        made = file.create_dataset("data", data=data, chunks=chunks)
        made.attrs.update(attributes)
    return str(path)


def refused(files, array, message, **keywords) -> None:
    with pytest.raises(SpecError, match=message):
        shardwrite.adopt(files, array, **keywords)
    assert not list(array.parent.glob(f"{array.name}*")), "something was left"


@pytest.mark.parametrize("how", HOWS)
def test_a_file_that_is_open_for_writing(tmp_path, how):
    """HDF5 lets a process open such a file again. What it writes later would spoil the index."""
    path = make(tmp_path / "a.h5")
    with h5py.File(path, "r+") as file:
        refused([path], tmp_path / "x", "this process has it open for writing; close", how=how)
        file["data"][3] = 7
    with open(path, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)  # as other programs lock it
        refused([path], tmp_path / "x", "another program has it open for writing", how=how)
    with h5py.File(path):  # for reading
        shardwrite.adopt([path], tmp_path / "x", how=how)
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
    for how in ("copy", "move"):
        refused([old], array, "a NetCDF-3 file, which has no chunks; write the values", how=how)
        refused([group], array, "files='.*group.h5': .* no fixed size", how=how, dataset="text")
        refused([group], array, "no such array", how=how, dataset="data")
        refused([group], array, "its elements are arrays", how=how, dataset="triples")
        refused([tmp_path / "empty.h5"], array, "it has no elements", how=how)
        refused({good, str(old)}, array, "give a list of paths, in their order", how=how)
        refused(["s3://bucket/a.h5"], array, "only files of this machine", how=how)
        swapped = make(tmp_path / "swapped.h5", X.astype(">f8"))
        refused([good, swapped], array, "another order of bytes than the first", how=how)
        other = make(tmp_path / "other.h5", X.astype("i2"))
        refused([good, other], array, "another data type than the first", how=how)
    refused([good, good], array, "axis=-3: no axis of the dataset; give", axis=-3)
    assert shardwrite.adopt(iter([good, good]), array, axis=-1).shape == (4, 6)


def test_what_flags_mean_is_the_same_in_all_files(tmp_path):
    days = [make(tmp_path / f"{n}.h5", flag_meanings=text) for n, text in enumerate(["a b", "b a"])]
    refused(days, tmp_path / "x", "its attribute 'flag_meanings' is another")


@pytest.mark.parametrize("how", ["move", "link"])
def test_directories_between_which_no_file_can_be_moved(tmp_path, monkeypatch, how):
    """Some file systems tell it only when it is tried. The files are then put back at once."""
    files = [Path(make(tmp_path / f"{n}.h5")) for n in range(3)]
    before = [(hashlib.sha256(f.read_bytes()).digest(), f.stat().st_mtime_ns) for f in files]
    name = {"move": "rename", "link": "link"}[how]
    call = getattr(os, name)

    def moved(source, *rest, **keywords):
        if os.fspath(source) == os.fspath(files[1]):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return call(source, *rest, **keywords)

    monkeypatch.setattr(os, name, moved)
    refused(files, tmp_path / "x", "1.h5': .* the file system does not let it", how=how)
    after = [(hashlib.sha256(f.read_bytes()).digest(), f.stat().st_mtime_ns) for f in files]
    assert after == before
    assert shardwrite.adopt(files, tmp_path / "x").n_shards == 3  # what the message says


@pytest.mark.parametrize("how", ["move", "link"])
@pytest.mark.parametrize("other", ["move", "link", "link before it changes them"])
def test_two_adoptions_of_the_same_files_at_once(tmp_path, monkeypatch, how, other):
    """Both have looked at the files before. An index of one would be wrong after the other."""
    files = [Path(make(tmp_path / f"{n}.h5", X + n)) for n in range(2)]
    begin = Adoption.list_files

    def late(self, listing):
        monkeypatch.undo()
        if other in ("move", "link"):
            shardwrite.adopt(files, tmp_path / "y", how=other)
        else:
            (tmp_path / "held").mkdir()
            os.link(files[1], tmp_path / "held/1.h5")
        begin(self, listing)

    monkeypatch.setattr(Adoption, "list_files", late)
    refused(files, tmp_path / "x", "another adoption, or another program, has", how=how)
    if other in ("move", "link"):
        assert (shardwrite.open_sharded(tmp_path / "y")[...] == np.concatenate([X, X + 1])).all()
        assert shardwrite.verify(tmp_path / "y", deep=True).is_good
    else:
        shutil.rmtree(tmp_path / "held")
        assert shardwrite.adopt(files, tmp_path / "x", how=how).n_shards == 2


@pytest.mark.parametrize("how", ["move", "link"])
def test_a_group_that_others_write_to_all_the_time(tmp_path, monkeypatch, how):
    """The array has its name then. No file is given back, and the same call does the rest."""
    files, array = [make(tmp_path / f"{n}.h5", X + n) for n in range(2)], tmp_path / "g/x"
    zarr.create_group(array.parent)
    with warnings.catch_warnings():  # that consolidated metadata are no part of Zarr v3
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(array.parent)
    with monkeypatch.context() as patch:
        patch.setattr(in_place, "replace_document", lambda *_: False)
        patch.setattr(documents.time, "sleep", lambda _: None)
        with pytest.raises(StoreError, match="written by others all the time") as caught:
            shardwrite.adopt(files, array, how=how)
    assert "make the same call again to finish it" in caught.value.__notes__[0]
    assert shardwrite.verify(array, deep=True).is_good
    assert shardwrite.adopt(files, array, how=how).n_shards == 2
    assert shardwrite.verify(array, deep=True).is_good
    assert list(zarr.open_consolidated(array.parent, mode="r").array_keys()) == ["x"]


@pytest.mark.parametrize("number", [0, 1])
def test_a_file_is_named_as_it_was_given_when_it_is_in_the_array_already(
    tmp_path, monkeypatch, number
):
    files = [Path(make(tmp_path / f"{n}.h5")) for n in range(2)]
    before = [file.read_bytes() for file in files]
    take = Adoption.take

    def taken(self, at, change):
        with open(files[at], "rb") as other:
            if at == number:
                fcntl.flock(other, fcntl.LOCK_EX)  # a program opens it for writing meanwhile
            take(self, at, change)

    with monkeypatch.context() as patch:
        patch.setattr(Adoption, "take", taken)
        with pytest.raises(SpecError, match="another program has it open for writing") as caught:
            shardwrite.adopt(files, tmp_path / "x", how="move")
    assert caught.value.value == str(files[number])
    if number:
        shardwrite.abandon(tmp_path / "x")
    assert [file.read_bytes() for file in files] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.h5", "1.h5"]


@pytest.mark.parametrize("how", ["move", "link"])
def test_the_same_call_after_everything_else(tmp_path, monkeypatch, how):
    """Also where the name of a file looks like a pattern, the files have left an empty directory,
    and a shard was erased."""
    (tmp_path / "f").mkdir()
    files, array = [Path(make(tmp_path / f"f/{n}*.h5", X + n)) for n in range(2)], tmp_path / "x"
    with monkeypatch.context() as patch:
        patch.setattr(Adoption, "publish", stop)
        with pytest.raises(KeyboardInterrupt):
            shardwrite.adopt(files, array, how=how)
    if how == "move":
        (tmp_path / "f").rmdir()
    assert shardwrite.adopt(files, array, how=how).n_shards == 2
    assert shardwrite.adopt(files, array, how=how).is_skipped
    shardwrite.erase(array, (slice(0, 4), slice(0, 3)), strategy="hdf5")
    if how == "link":
        with pytest.raises(SpecError, match="an array exists there"):
            shardwrite.adopt(files, array, how=how)


def stop(*_args, **_keywords):
    raise KeyboardInterrupt


def test_a_kill_while_a_file_is_moved_back(tmp_path, monkeypatch):
    """It has two names then, and no other adoption has made one of them."""
    file, array = make(tmp_path / "a.h5"), tmp_path / "x"
    for method, call in ((Adoption, "_record"), (os, "unlink")):
        with monkeypatch.context() as patch:
            patch.setattr(method, call, stop)
            with pytest.raises(KeyboardInterrupt):
                shardwrite.abandon(array) if method is os else shardwrite.adopt(
                    file, array, how="move"
                )
    assert os.stat(file).st_nlink == 2
    assert shardwrite.adopt(file, array, how="move").n_shards == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert shardwrite.verify(array, deep=True).is_good


def test_a_file_that_vanishes_while_it_is_looked_at(tmp_path, monkeypatch):
    file, look = make(tmp_path / "a.h5"), hdf5_store.as_array

    def gone(place, name):
        os.unlink(place)
        return look(place, name)

    monkeypatch.setattr(hdf5_store, "as_array", gone)
    with pytest.raises(StoreError, match=r"cannot read '.*a\.h5': .*No such file"):
        Hdf5Store(file, part="data").contents  # noqa: B018 (a property)


def test_mounts_are_told_apart(tmp_path):
    """A directory that is mounted twice has one device number, and files cannot be moved either."""
    file = make(tmp_path / "a.h5")
    assert mount_of(file) == mount_of(tmp_path)
    if os.path.isdir("/proc/self/fdinfo"):
        assert mount_of(file)[1].startswith(b"mnt_id:")
        assert mount_of(file) != mount_of("/proc")


def test_the_command_without_an_array(tmp_path):
    files = [make(tmp_path / f"{n}.h5") for n in range(2)]
    ended = CliRunner().invoke(main, ["adopt", *files, "--move"])
    assert ended.exit_code == 2
    assert f"ARRAY comes last, and {files[1]} is a file" in ended.output
    ended = CliRunner().invoke(main, ["adopt", *files, "x" * 300, "--move"])
    assert "not the path of a directory that can be made" in ended.output
    ended = CliRunner().invoke(main, ["adopt", str(tmp_path), str(tmp_path / "x")])
    assert f"FILE {tmp_path}: its chunks cannot be copied" in ended.output


def test_the_remedy_names_the_keyword_that_has_the_codec(tmp_path):
    delta = {"name": "numcodecs.delta", "configuration": {"dtype": "<f8"}}
    with pytest.raises(SpecError, match="leave out filters="):
        da.from_array(X).to_sharded_zarr(
            tmp_path / "x", shards=(4, 3), chunks=(2, 3), filters=[delta], strategy="hdf5"
        )
