"""Whole hierarchies: groups, attributes and consolidated metadata come along."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr
from forks import python

import shardwrite
from shardwrite import SpecError, StoreError, open_sharded

sys.path.insert(0, str(Path(__file__).parent))
from test_convert import payloads, same


def make(store, zarr_format=3, *, is_consolidated=True):
    """Two groups, and arrays in and beside them."""
    root = zarr.create_group(store, zarr_format=zarr_format, attributes={"title": "all"})
    images = root.create_group("images", attributes={"of": "cells"})
    root.create_group("empty", attributes={"nothing": True})
    for name, group in (("a", images), ("b", images), ("c", root)):
        array = group.create_array(
            name, shape=(20, 12), chunks=(4, 4), dtype="i4", attributes={"name": name}
        )
        array[...] = np.arange(240, dtype="i4").reshape(20, 12) + ord(name)
    images.create_array("one", shape=(3,), chunks=(3,), dtype="f8")[...] = 5
    if is_consolidated:
        zarr.consolidate_metadata(store, zarr_format=zarr_format)


def check(store):
    root = zarr.open_group(store, mode="r", use_consolidated=False)
    assert dict(root.attrs) == {"title": "all"}
    assert dict(root["images"].attrs) == {"of": "cells"}
    for path in ("images/a", "images/b", "c"):
        same(root[path][...], np.arange(240, dtype="i4").reshape(20, 12) + ord(path[-1]))
        assert root[path].attrs["name"] == path[-1]
        assert root[path].shards == (20, 12)
    same(root["images/one"][...], np.full(3, 5.0))
    assert root["images/one"].shards is None


def test_a_group_that_had_no_document_is_listed_too(tmp_path):
    make(tmp_path / "h")
    (tmp_path / "h/images/zarr.json").unlink()
    zarr.consolidate_metadata(tmp_path / "h")
    shardwrite.shard(tmp_path / "h", tmp_path / "n", 5)
    names = dict(zarr.open_consolidated(tmp_path / "n").members(max_depth=None))
    assert set(names) == {"c", "empty", "images", "images/a", "images/b", "images/one"}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_hierarchy(tmp_path, zarr_format):
    make(tmp_path / "h", zarr_format)
    plan = shardwrite.plan_reshard(tmp_path / "h", 5)
    assert (plan.n_files_before, plan.n_files_after) == (46, 4)
    assert "shards kept: of fewer than 2 inner chunks" in str(plan)
    done = shardwrite.shard(tmp_path / "h", tmp_path / "n", (5, 3), exclude="images/one")
    assert done.left_out == (("images/one", "not asked for"),)
    assert not (tmp_path / "n/images/one").exists()
    done = shardwrite.shard(tmp_path / "h", tmp_path / "m", 5)
    assert {a.name: a.n_chunks for a in done.arrays} == {
        "images/a": 15,
        "images/b": 15,
        "images/one": 1,
        "c": 15,
    }
    for array in done.arrays:
        before, after = payloads(tmp_path / "h" / array.name), payloads(array.path)
        assert before == after
    root = zarr.open_consolidated(tmp_path / "m")
    listed = root.metadata.consolidated_metadata.flattened_metadata
    assert set(listed) == {"images", "images/a", "images/b", "images/one", "c", "empty"}
    assert dict(root["empty"].attrs) == {"nothing": True}
    found = json.loads((tmp_path / "m/zarr.json").read_text())["consolidated_metadata"]["metadata"]
    for name, document in found.items():
        own = json.loads((tmp_path / "m" / name / "zarr.json").read_text())
        assert document == own, name
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "m").rglob("*")}
    again = shardwrite.shard(tmp_path / "h", tmp_path / "m", 5)
    assert sum(a.result.n_resumed_shards for a in again.arrays) == again.n_shards == 4
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "m").rglob("*")}
    assert not list(tmp_path.rglob("*.shardwrite"))


@pytest.mark.parametrize("into_memory", [False, True])
def test_values_attributes_and_shards(tmp_path, into_memory):
    source = zarr.storage.MemoryStore()
    make(source)
    target = zarr.storage.MemoryStore() if into_memory else tmp_path / "n"
    shardwrite.shard(source, target, (5, 3), exclude=["images/one"])
    shardwrite.shard(source, target, 1, include="images/one", min_chunks=9)
    check(target)


def test_patterns(tmp_path):
    make(tmp_path / "h", is_consolidated=False)
    done = shardwrite.shard(tmp_path / "h", tmp_path / "n", 2, include="images", exclude="*/b")
    assert [a.name for a in done.arrays] == ["images/a", "images/one"]
    assert not (tmp_path / "n/empty").exists()
    assert "consolidated_metadata" not in json.loads((tmp_path / "n/zarr.json").read_text())
    for wrong in ({"include": 5}, {"exclude": [None]}, {"min_chunks": -1}, {"min_chunks": True}):
        with pytest.raises((SpecError, TypeError)):
            shardwrite.shard(tmp_path / "h", tmp_path / "m", 2, **wrong)


def test_an_array_that_cannot_be_converted_is_named_before_anything_is_written(tmp_path):
    make(tmp_path / "h", 2)
    document = json.loads((tmp_path / "h/images/b/.zarray").read_text())
    document["filters"] = [{"id": "pickle"}]
    (tmp_path / "h/images/b/.zarray").write_text(json.dumps(document))
    with pytest.raises(SpecError, match="not run here") as caught:
        shardwrite.shard(tmp_path / "h", tmp_path / "n", 2)
    assert "images/b" in caught.value.__notes__[0]
    assert not (tmp_path / "n").exists()
    done = shardwrite.shard(tmp_path / "h", tmp_path / "n", 2, exclude="images/b")
    assert len(done.arrays) == 3
    with pytest.raises(SpecError) as caught:
        shardwrite.shard(tmp_path / "h", tmp_path / "m", (2, 2, 2), exclude="images/b")
    assert "this is the array 'c'" in caught.value.__notes__[0]
    assert not (tmp_path / "m").exists()


def test_what_stands_there(tmp_path):
    make(tmp_path / "h")
    zarr.create_group(str(tmp_path / "n"), attributes={"title": "another"})
    with pytest.raises(SpecError, match="another group stands there"):
        shardwrite.shard(tmp_path / "h", tmp_path / "n", 5)
    shardwrite.shard(tmp_path / "h", tmp_path / "n", 5, mode="w")
    assert zarr.open_group(tmp_path / "n", mode="r").attrs["title"] == "all"
    zarr.create_array(str(tmp_path / "x"), shape=3, dtype="i4")
    (tmp_path / "f").mkdir()
    (tmp_path / "f/file").touch()
    for dst in ("x", "f", "h", "h/images", "h/new"):
        with pytest.raises(SpecError):
            shardwrite.shard(tmp_path / "h", tmp_path / dst, 5, mode="w")
    (tmp_path / "link").symlink_to(tmp_path / "h")
    with pytest.raises(SpecError):
        shardwrite.shard(tmp_path / "h", tmp_path / "link", 5, mode="w")
    same(open_sharded(tmp_path / "h/c")[...], np.arange(240, dtype="i4").reshape(20, 12) + ord("c"))


def test_remedies(tmp_path):
    """What messages say to do is done, and helps."""
    make(tmp_path / "h")
    (tmp_path / "n").mkdir()
    (tmp_path / "n/file").touch()
    with pytest.raises(SpecError, match="give another place, or remove it yourself"):
        shardwrite.shard(tmp_path / "h", tmp_path / "n", 5)
    (tmp_path / "n/file").unlink()
    shardwrite.shard(tmp_path / "h", tmp_path / "n", 5)
    (tmp_path / "h/images/zarr.json").write_text("{}")
    with pytest.raises(SpecError, match="remove it after a look"):
        shardwrite.shard(tmp_path / "h", tmp_path / "m", 5)
    (tmp_path / "h/images/zarr.json").unlink()
    assert len(shardwrite.shard(tmp_path / "h", tmp_path / "m", 5).arrays) == 4
    make(tmp_path / "v2", 2)
    (tmp_path / "v2/images/.zattrs").write_text("[]")
    with pytest.raises(SpecError, match="remove it after a look"):
        shardwrite.shard(tmp_path / "v2", tmp_path / "k", 5)
    (tmp_path / "v2/images/.zattrs").unlink()
    assert len(shardwrite.shard(tmp_path / "v2", tmp_path / "k", 5).arrays) == 4


def test_links_are_not_followed(tmp_path):
    make(tmp_path / "h")
    (tmp_path / "h/images/loop").symlink_to(tmp_path / "h")
    done = shardwrite.shard(tmp_path / "h", tmp_path / "n", 5)
    assert done.left_out == (("images/loop", "a symbolic link"),)
    assert len(done.arrays) == 4


def test_what_has_the_layout_is_skipped(tmp_path):
    make(tmp_path / "h")
    shardwrite.shard(tmp_path / "h", tmp_path / "n", 5)
    assert shardwrite.shard(tmp_path / "n", shards=5).is_skipped
    assert shardwrite.unshard(tmp_path / "h").is_skipped
    assert shardwrite.unshard(tmp_path / "n").n_shards > 0


KILLED = """
import os, signal, sys
import dask, shardwrite
real, left = os.rename, int(sys.argv[3])
def rename(*arguments):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments)
os.rename = rename
with dask.config.set(scheduler="sync"):
    shardwrite.shard(sys.argv[1], sys.argv[2], 2, durability="none")
"""


@pytest.mark.long
def test_killed_and_called_again(tmp_path):
    """Before some rename, which makes a document or a shard visible."""
    make(tmp_path / "h")
    n_killed = 0
    for k in (2, 9, 20, 34, 41):
        target = tmp_path / f"n{k}"
        ended = subprocess.run(
            [*python(), "-c", KILLED, tmp_path / "h", target, str(k)], check=False
        )
        n_killed += ended.returncode == -signal.SIGKILL
        done = shardwrite.shard(tmp_path / "h", target, 2, durability="none")
        for array in done.arrays:
            assert payloads(tmp_path / "h" / array.name) == payloads(array.path)
        assert not list(tmp_path.rglob("*.swtmp"))
        assert not list(tmp_path.rglob("*.shardwrite"))
        listed = zarr.open_consolidated(target).metadata.consolidated_metadata
        assert len(listed.flattened_metadata) == 6
    assert n_killed >= 3


def test_a_document_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    make(tmp_path / "h")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(StoreError):
        shardwrite.shard(tmp_path / "h", tmp_path / "n", 5)
    monkeypatch.undo()
    shardwrite.shard(tmp_path / "h", tmp_path / "n", 5)
    assert not list(tmp_path.rglob("*.swtmp"))


def test_a_group_whose_only_array_is_a_link_says_so(tmp_path):
    zarr.create_array(tmp_path / "x", data=np.arange(8), chunks=(2,))
    zarr.create_group(tmp_path / "g")
    os.symlink(tmp_path / "x", tmp_path / "g/x")
    with pytest.raises(SpecError, match=r"without arrays; 'x' is left out \(a symbolic link\)"):
        shardwrite.shard(tmp_path / "g", tmp_path / "out", 2)
