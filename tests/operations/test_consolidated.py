"""What readers see through a group with consolidated metadata while an array in it is replaced.

They see the array as it is, maybe with fewer rows, or no array: never new data by an old document.
"""

from __future__ import annotations

import json
import os
import shutil

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from helpers import Killed

import shardwrite
from shardwrite import RunEndedError, ShardWriter, SpecError

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")

OLD = np.arange(400, dtype="u4").reshape(20, 20) + 1
NEW = OLD + 1000
OLD_ZARR = zarr.__version__.startswith("3.1.0")
FLAT = {"shards": None, "chunks": 5, "compressors": None}
"""Nothing tells readers that bytes are not what a document says."""


def write(path, values=OLD, **keywords):
    da.from_array(values, chunks=7).to_sharded_zarr(path, **{**FLAT, **keywords})


@pytest.fixture
def path(tmp_path):
    """An array in a group in a group, both of which list it and two others."""
    group = zarr.create_group(tmp_path / "g").create_group("h")
    for name in ("a", "x", "z"):
        write(tmp_path / "g/h" / name)
    zarr.consolidate_metadata(group.store_path.store)
    zarr.consolidate_metadata(group.store_path.store, path="h")
    return tmp_path / "g/h/x"


def seen(path):
    """Values that readers of each of the groups see; None if they see no array."""
    found = []
    for group, name in ((path.parent, "x"), (path.parents[1], "h/x")):
        opened = zarr.open_consolidated(group, mode="r")
        found.append(opened[name][...].tolist() if name in opened else None)
    assert found[0] == found[1]
    return None if found[0] is None else np.array(found[0])


def check(path, wanted):
    """Both groups list the array as it is, and all others where they were."""
    np.testing.assert_array_equal(seen(path), wanted)
    own = json.loads((path / "zarr.json").read_text())
    for group, at in ((path.parent, ""), (path.parents[1], "h/")):
        listed = json.loads((group / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
        assert listed[f"{at}x"] == own
        names = [name for name in listed if name != "h"]
        # zarr-python 3.1.0 does not sort them
        assert names == [f"{at}{name}" for name in "axz"] or OLD_ZARR
        assert sorted(names) == [f"{at}{name}" for name in "axz"]
    left = {p.name for p in path.parent.iterdir()} - {"a", "x", "z", "zarr.json"}
    assert not left


def killed(monkeypatch, step, *, after=False):
    """Have a step end the process, before it or after it."""
    real = seams.real(step)

    def call(*arguments, **keywords):
        if after:
            real(*arguments, **keywords)
        monkeypatch.setattr(*seams.step(step), real)
        raise Killed

    monkeypatch.setattr(*seams.step(step), call)


CONVERSIONS = {
    "shard": lambda path: shardwrite.shard(path, shards=2),
    "other chunks": lambda path: shardwrite.reshard(path, chunks=4, shards=2),
}


@pytest.mark.parametrize("call", CONVERSIONS.values(), ids=CONVERSIONS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("then", ["again", "abandon"])
def test_a_conversion_in_place_that_ends_at_the_exchange(path, monkeypatch, call, after, then):
    killed(monkeypatch, "exchange two names", after=after)
    with pytest.raises(Killed):
        call(path)
    assert seen(path) is None
    call(path) if then == "again" else shardwrite.abandon(path)
    check(path, OLD)
    is_new = after or then == "again"
    assert (zarr.open_array(path, mode="r").shards is not None) == is_new


def test_a_hierarchy_that_is_converted_in_place(path, monkeypatch):
    killed(monkeypatch, "exchange two names", after=True)
    with pytest.raises(Killed):
        shardwrite.shard(path.parent, shards=2)
    assert list(zarr.open_consolidated(path.parents[1], mode="r").members()) == []
    np.testing.assert_array_equal(zarr.open_consolidated(path.parent, mode="r")["x"][...], OLD)
    shardwrite.shard(path.parent, shards=2)
    check(path, OLD)


def test_a_conversion_that_is_not_begun_again_lists_the_old_array(path, monkeypatch):
    """Another program changes the tree, so that the same call gives up."""
    killed(monkeypatch, "exchange two names")
    with pytest.raises(Killed):
        shardwrite.shard(path, shards=2)

    def refuse(*arguments, **keywords):
        raise shardwrite.StoreError("changed", key="x")

    with monkeypatch.context() as patch:
        patch.setattr(*seams.step("check that the old tree is as it was"), refuse)
        with pytest.raises(shardwrite.StoreError, match="changed"):
            shardwrite.shard(path, shards=2)
    check(path, OLD)


def test_what_a_kill_leaves_in_the_group_is_removed(path, monkeypatch):
    replace = os.rename

    def late(source, to, **keywords):
        if str(to) == str(path.parent / "zarr.json"):
            raise Killed
        replace(source, to, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", late)
        patch.setattr(os, "replace", late)
        with pytest.raises(Killed):
            shardwrite.shard(path, shards=2)
    for temporary in path.parent.glob(".zarr.json*"):
        assert temporary.name.startswith(".zarr.json.conversion-")
    shardwrite.shard(path, shards=2)
    check(path, OLD)


def test_a_process_that_was_frozen_changes_no_group_when_it_wakes_up(path, monkeypatch):
    """It stood right before the rename of a group's document, and another one took over."""
    rename, documents = os.rename, []

    def frozen(source, to, **keywords):
        if str(to) == str(path.parent / "zarr.json") and not documents:
            documents.append(b"")
            with seams.leases_run_out(), seams.claims_run_out():
                shardwrite.shard(path, shards=2)
            zarr.open_group(path.parent).attrs["who"] = "somebody"
            documents.append((path.parent / "zarr.json").read_bytes())
        rename(source, to, **keywords)

    monkeypatch.setattr(os, "rename", frozen)
    with pytest.raises(RunEndedError, match="taken over"):
        shardwrite.shard(path, shards=2)
    assert (path.parent / "zarr.json").read_bytes() == documents[1]


def failing(values=NEW):
    """A source of which only some chunks can be read."""

    def fails_half_way(block, block_info=None):
        if block_info[0]["chunk-location"] == (2, 2):
            raise OSError("the tape broke")
        return block

    return da.from_array(values, chunks=7).map_blocks(fails_half_way, dtype=values.dtype)


def replace(source, path, **keywords):
    """Write an array of another layout in the place of the old one."""
    source.to_sharded_zarr(path, shards=8, chunks=4, mode="w", source_id="new", **keywords)


@pytest.mark.parametrize("publish", ["first", "last"])
def test_everybody_sees_the_old_array_while_a_new_one_is_made(path, publish):
    with pytest.raises(OSError, match="tape"):
        replace(failing(), path, publish=publish)
    if publish == "last":
        np.testing.assert_array_equal(seen(path), OLD)
    else:
        assert not (seen(path) == OLD).any(), "not the old document with the new chunks"
    replace(da.from_array(NEW, chunks=7), path, publish=publish)
    check(path, NEW)


@pytest.mark.parametrize("publish", ["first", "last"])
def test_a_replacement_that_is_given_up(path, publish):
    with pytest.raises(OSError, match="tape"):
        replace(failing(), path, publish=publish)
    seams.give_up(seams.run_of(path))
    check(path, OLD)


@pytest.mark.parametrize("publish", ["first", "last"])
@pytest.mark.parametrize("then", ["again", "abandon"])
def test_a_replacement_that_ends_where_no_group_lists_an_array(path, monkeypatch, publish, then):
    step = "exchange two names" if publish == "last" else "set the old array aside"
    killed(monkeypatch, step)
    with pytest.raises(Killed):
        replace(da.from_array(NEW, chunks=7), path, publish=publish)
    assert seen(path) is None
    if then == "again":
        replace(da.from_array(NEW, chunks=7), path, publish=publish)
    else:
        shardwrite.abandon(path)
    check(path, NEW if then == "again" else OLD)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_array_that_was_removed_by_hand_and_comes_again(path, monkeypatch, after):
    """The groups still list it, and readers would see the new chunks by its document."""
    shutil.rmtree(path)
    with pytest.raises(OSError, match="tape"):
        failing().to_sharded_zarr(path, shards=8, chunks=4, source_id="new")
    assert not seen(path).any(), "the new chunks are built aside"
    source = da.from_array(NEW, chunks=7)
    killed(monkeypatch, "give a new array its name", after=after)
    with pytest.raises(Killed):
        source.to_sharded_zarr(path, shards=8, chunks=4, source_id="new")
    assert seen(path) is None
    source.to_sharded_zarr(path, shards=8, chunks=4, source_id="new")
    check(path, NEW)


def test_an_array_that_was_removed_by_hand_and_is_shown_at_once(path):
    shutil.rmtree(path)
    with pytest.raises(OSError, match="tape"):
        failing().to_sharded_zarr(path, shards=8, chunks=4, publish="first")
    found = seen(path)
    assert ((found == 0) | (found == NEW)).all(), "not the old document with the new chunks"


def append(path):
    da.from_array(NEW, chunks=7).to_sharded_zarr(path, region="append", source_id="new")


@pytest.mark.parametrize("then", ["again", "abandon"])
def test_an_append_that_ends_between_the_documents(path, monkeypatch, then):
    """Readers of the groups saw the old rows for ever."""
    killed(monkeypatch, "tell the groups above")
    with pytest.raises(Killed):
        append(path)
    np.testing.assert_array_equal(seen(path), OLD)
    append(path) if then == "again" else shardwrite.abandon(path)
    check(path, np.concatenate([OLD, NEW]))


def stream(path):
    with ShardWriter(path, n_threads=1) as writer:
        for row in NEW:
            writer.append(row)


def test_a_stream_that_ends_between_the_documents(path, monkeypatch):
    killed(monkeypatch, "tell the groups above")
    with pytest.raises(Killed):
        stream(path)
    np.testing.assert_array_equal(seen(path), OLD)
    shardwrite.abandon(path)
    check(path, np.concatenate([OLD, NEW]))


def contents(directory):
    """Bytes of all files below a directory."""
    return {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", ["x", "new/x"])
def test_a_list_that_nobody_could_read_is_not_written(tmp_path, name):
    """The group stays as it was, and the run goes on once the limit is raised."""
    group = zarr.create_group(tmp_path / "g", attributes={"note": "x" * 30_000})
    zarr.consolidate_metadata(group.store_path.store)
    before = contents(tmp_path)
    described = {"attributes": {"note": "y" * 10_000}, "name": name}
    with (
        dask.config.set({"shardwrite.read.limit": "40 kB"}),
        pytest.raises(SpecError, match=r"document would have .* bytes, .*read\.limit"),
    ):
        write(tmp_path / "g", **described)
    assert contents(tmp_path) == before  # not even a run was begun
    write(tmp_path / "g", **described)
    np.testing.assert_array_equal(zarr.open_consolidated(tmp_path / "g", mode="r")[name][...], OLD)
    assert os.listdir(tmp_path) == ["g"]


def test_an_append_with_which_nobody_could_read_a_list_is_refused_before_it_begins(path):
    write(path, OLD[:8], mode="w")
    before, limit = contents(path.parents[2]), (path.parents[1] / "zarr.json").stat().st_size
    with dask.config.set({"shardwrite.read.limit": limit}):
        with pytest.raises(SpecError, match=r"document would have .* bytes, .*read\.limit"):
            shardwrite.write_region(OLD[8:], path, "append")
        assert contents(path.parents[2]) == before
        shardwrite.write_region(OLD[8:9], path, "append")  # whose shape takes as many digits
    shardwrite.write_region(OLD[9:], path, "append")
    check(path, OLD)
