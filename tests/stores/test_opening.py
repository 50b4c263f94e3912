"""What a user may give as a store, and what each of these becomes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import zarr
import zarr.storage

from shardwrite import SpecError
from shardwrite.stores import Capability, MemoryStore, open_store
from shardwrite.stores.posix import PosixStore
from shardwrite.stores.zarr_store import ZarrStore


def local(path, **options):
    return zarr.storage.LocalStore(path, **options)


def group_in(path):
    group = zarr.open_group(local(path), mode="a")
    return group.require_group("images")


def array_in(path):
    return group_in(path).create_array("raw", shape=4, dtype="u1", chunks=4)


@pytest.mark.parametrize(
    ("give", "path"),
    [
        (str, ""),
        (Path, ""),
        (local, ""),
        (lambda path: zarr.storage.StorePath(local(path), "images/raw"), "images/raw"),
        (lambda path: group_in(path).store_path, "images"),
        (group_in, "images"),
        (array_in, "images/raw"),
        (lambda path: array_in(path)._async_array, "images/raw"),
        (PosixStore, ""),
    ],
)
def test_what_lies_in_a_directory_is_opened_as_that_directory(tmp_path, give, path):
    opened = open_store(give(tmp_path))
    assert opened.store == PosixStore(tmp_path)
    assert opened.path == path
    assert opened.store.at(opened.path).root == tmp_path / path


def test_relative_paths_are_those_of_now(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stores = [open_store(given).store for given in ("x", Path("x"), local("x"))]
    monkeypatch.chdir("/")
    assert stores == [PosixStore(tmp_path / "x")] * 3


def test_other_stores_of_zarr_are_adapted():
    memory = zarr.storage.MemoryStore()
    zarr.create_array(memory, name="images/raw", shape=4, dtype="u1", chunks=4)
    for given in (memory, zarr.open_array(memory, path="images/raw", mode="r+")):
        opened = open_store(given)
        assert isinstance(opened.store, ZarrStore)
        assert Capability.SHARED not in opened.store.capabilities
    assert opened.store.at(opened.path).open("zarr.json") is not None
    mine = MemoryStore()
    assert open_store(mine).store is mine


def test_a_subclass_of_a_local_store_is_not_bypassed(tmp_path):
    class Counting(zarr.storage.LocalStore):
        n = 0

        async def set(self, key, value):
            self.n += 1
            await super().set(key, value)

    given = Counting(tmp_path)
    store = open_store(given).store
    with store.transaction("none", "run.1") as transaction:
        transaction.create("c/0").finish()
    assert given.n == 1


def read_only_array(path):
    array_in(path)
    return zarr.open_array(path, path="images/raw", mode="r")


@pytest.mark.parametrize(
    "give",
    [
        lambda path: local(path, read_only=True),
        lambda path: zarr.storage.StorePath(local(path, read_only=True), "x"),
        lambda path: zarr.storage.MemoryStore(read_only=True),
        read_only_array,
    ],
)
def test_a_read_only_store_is_refused_for_writing_alone(tmp_path, give):
    given = give(tmp_path)
    with pytest.raises(SpecError, match="read-only store; open it so that it can be written"):
        open_store(given)
    assert open_store(given, is_read=True).store


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "not a store"),
        (7, "not a store"),
        ({}, "not a store"),
        (b"x", "not a store"),
        ("", "not the path of a directory"),
        ("a\0b", "not the path of a directory"),
        ("s3://key:secret@bucket/x", "holds credentials, .* set them in the environment"),
        ("sftp://host/x", "a URL of no known scheme; give a URL of s3, .*FsspecStore"),
    ],
)
def test_what_is_no_store_is_refused(given, message):
    with pytest.raises(SpecError, match=message) as caught:
        open_store(given)
    assert "secret" not in str(caught.value)


def test_a_zip_file_is_refused_because_nothing_in_it_can_be_replaced(tmp_path):
    zarr.create_array(zarr.storage.ZipStore(tmp_path / "x.zip", mode="w"), shape=4, dtype="u1")
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="a") as given:
        with pytest.raises(
            SpecError, match="cannot replace or remove objects; write to a directory"
        ):
            open_store(given)
        assert open_store(given, is_read=True).store.open("zarr.json") is not None


def test_a_store_that_cannot_list_is_refused():
    class Blind(zarr.storage.MemoryStore):
        supports_listing = False

    with pytest.raises(SpecError, match="cannot list"):
        open_store(Blind(), is_read=True)


def test_a_path_is_opened_without_zarr():
    program = """
import sys
from shardwrite.stores import open_store, MemoryStore
open_store("x"), open_store(MemoryStore())
assert not {"zarr", "shardwrite.stores.zarr_store", "shardwrite.stores.contract"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", program], check=True)
