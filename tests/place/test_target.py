"""Names of arrays inside stores, in directories and elsewhere."""

from __future__ import annotations

import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

from shardwrite.errors import SpecError
from shardwrite.place.directory import Directory
from shardwrite.place.objects import InStore
from shardwrite.place.target import resolve_place, resolve_target
from shardwrite.stores import PosixStore

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
