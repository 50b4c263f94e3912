"""Names of arrays inside stores, in directories and elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import dask.array as da
import obstore
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

import shardwrite
from shardwrite.errors import SpecError
from shardwrite.place.directory import Directory
from shardwrite.place.objects import InStore
from shardwrite.place.target import resolve_place, resolve_target, untouched
from shardwrite.sources import open_source
from shardwrite.stores.looking import local_path
from shardwrite.stores.posix import PosixStore
from shardwrite.volumes.documents import volume_and_key

BAD_NAMES = [3, "../x", "/x", "a//b", "s3://bucket/x", "zarr.json"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_everywhere_in_the_same_way(tmp_path, name):
    for look in (
        lambda: resolve_target(tmp_path / "all.zarr", name),
        lambda: resolve_target(LocalStore(tmp_path / "all.zarr"), name),
        lambda: resolve_place(MemoryStore(), name),
    ):
        with pytest.raises(SpecError, match="not a relative path of plain names") as told:
            look()
        assert told.value.fields["field"] == "name"


def test_a_group_adds_its_path_to_the_name(tmp_path):
    inner = zarr.create_group(tmp_path / "all.zarr").create_group("a/b")
    target = resolve_target(inner, "c/x")
    assert target.place == Directory(tmp_path / "all.zarr", "a/b/c/x")
    assert target.store == PosixStore(tmp_path / "all.zarr" / "a/b/c/x")


def test_only_what_lies_in_no_directory_is_elsewhere(tmp_path):
    group = zarr.create_group(MemoryStore()).create_group("a")
    place = resolve_place(group, None)
    assert isinstance(place, InStore)
    assert list(place.store.list_keys()) == ["zarr.json"]
    for given in (str(tmp_path), LocalStore(tmp_path)):
        assert resolve_place(given, "x") == Directory(tmp_path, "x")


def test_a_relative_path_in_a_directory_that_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(SpecError, match="working directory that is gone"):
        resolve_place("x.zarr", None)
    assert resolve_place(tmp_path / "x.zarr", None) == Directory(tmp_path / "x.zarr")


def test_a_path_with_dots_is_the_place_that_it_leads_to(tmp_path):
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    (tmp_path / "link").symlink_to(inside)
    assert resolve_place(inside / ".." / "x", None) == Directory(tmp_path / "a" / "x")
    assert resolve_place(tmp_path / "link" / ".." / "x", None) == Directory(tmp_path / "a" / "x")
    assert resolve_place(inside / "..", "x") == Directory(tmp_path / "a", "x")
    assert resolve_place(tmp_path / "link", None).is_link()
    assert resolve_place(inside / ".." / ".." / "link", None).is_link()
    with pytest.raises(SpecError, match="not the path of a directory"):
        resolve_place(inside / "..", None)


def test_the_home_directory_is_meant_by_a_tilde(tmp_path, monkeypatch):
    """It was a directory of that name below the working directory."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    x = da.ones((8, 8), chunks=4, dtype="u1")
    x.to_sharded_zarr("~/x.zarr", shards=4, chunks=2)
    objects = zarr.storage.ObjectStore(obstore.store.LocalStore(tmp_path / "objects", mkdir=True))
    x.to_sharded_zarr(objects, run_dir="~/runs", shards=4, chunks=2)
    da.ones((8, 8, 8), chunks=4, dtype="u1").to_precomputed(
        "~/volume", axes="zyx", resolution=(1, 1, 1)
    )
    shardwrite.reshard("~/x.zarr", "~/y.zarr", shards=(4, 4))
    assert shardwrite.verify("~/y.zarr", deep=True, against="~/x.zarr").is_good
    assert open_source("~/x.zarr").shape == (8, 8)
    assert shardwrite.transformer_view("~/x.zarr", 2)._store.root == tmp_path / "home" / "x.zarr"
    for given in ("~/volume", Path("~/volume"), f"file://{tmp_path}/home/volume"):
        assert shardwrite.from_precomputed(given).shape == (8, 8, 8)
    with pytest.raises(shardwrite.StoreError, match=f"{tmp_path}/home/a.h5"):
        shardwrite.adopt(["~/a.h5"], "z.zarr")
    assert not any(work.iterdir())
    assert {path.name for path in (tmp_path / "home").iterdir()} >= {"x.zarr", "runs", "volume"}


@pytest.mark.parametrize("given", ["x~", "./~/x", "~\0x/y", "~no-such-user-here/x", "s3://~/x"])
def test_other_tildes_stay(given):
    assert local_path(given) == given


def test_an_array_directly_below_the_root_is_no_scale():
    """What was unfinished or missing there could not even be verified."""
    assert volume_and_key(Directory(Path("/x.zarr"))) is None
    assert volume_and_key(Directory(Path("/v/x.zarr"))) == ("/v", "", "x.zarr")


@pytest.mark.parametrize("n_more", [0, 20])
def test_it_is_known_of_which_new_arrays_nothing_is_there(tmp_path, monkeypatch, n_more):
    root = tmp_path / "all.zarr"
    taken = ["array", "run.shardwrite", "tree.conversion.shardwrite"]
    for name in taken:
        (root / "g" / name).mkdir(parents=True)
    (root / "g" / "link").symlink_to("nowhere")
    free = [f"new{number}" for number in range(2 + n_more)]
    names = ["first", "array", "run", "tree", "link", *free]
    targets = {name: resolve_target(root, f"g/{name}") for name in names}
    targets["alone"] = resolve_target(root, "alone")
    lists = []
    monkeypatch.setattr(
        os, "listdir", lambda path, real=os.listdir: lists.append(path) or real(path)
    )
    found = untouched(targets.values())
    assert found == {targets[name] for name in ["first", "alone", *free]}
    assert len(lists) == (n_more > 0), "a list may be long, where few arrays are written"
    assert untouched([targets["first"]]) == {targets["first"]}
