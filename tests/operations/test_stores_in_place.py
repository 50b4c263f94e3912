"""`shard_store`, `unshard_store`, and the short form of `reshard`: layouts, notes, what is kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import zarr
from helpers import contents

import shardwrite
from shardwrite import SpecError
from shardwrite.convert.trees import NOTE

sys.path.insert(0, str(Path(__file__).parent))
from test_convert import payloads

VALUES = np.arange(1, 3 * 3 * 3 + 1, dtype="u2").reshape(3, 3, 3)


def scan(path, zarr_format=3, consolidated=False):
    """A store as the page describes it: one chunk for each cell, in groups, and a table."""
    root = zarr.create_group(path, zarr_format=zarr_format, attributes={"kind": "scan"})
    level = root.create_group("0")
    level.create_array("vertices", shape=(3, 3, 3), chunks=(1, 1, 1), dtype="u2")[...] = VALUES
    level.create_array("single", shape=(1, 1, 1), chunks=(1, 1, 1), dtype="u2")[...] = 7
    level.create_array("table", shape=(20,), chunks=(5,), dtype="i4")[...] = np.arange(20)
    if consolidated:
        zarr.consolidate_metadata(path, zarr_format=3)
    return path


def shards_of(path):
    root = zarr.open_group(path, mode="r")
    return {name: node.shards for name, node in root["0"].arrays()}


def notes_of(path):
    return zarr.open_group(path, mode="r").attrs.get("notes")


def check_values(path):
    root = zarr.open_group(path, mode="r")
    np.testing.assert_array_equal(root["0/vertices"][...], VALUES)
    np.testing.assert_array_equal(root["0/table"][...], np.arange(20))
    spec = {"driver": "zarr3", "kvstore": f"file://{path}/0/vertices"}
    np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), VALUES)
    assert root.attrs["kind"] == "scan"


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_there_other_shards_and_back(tmp_path, zarr_format):
    path = scan(tmp_path / "scan", zarr_format)
    done = shardwrite.shard_store(path, 2)
    assert shards_of(path) == {"vertices": (2, 2, 2), "single": (2, 2, 2), "table": (10,)}
    assert done.n_chunks_encoded == 0
    assert notes_of(path) == NOTE
    check_values(path)
    encoded = payloads(path / "0/vertices")

    before = contents(path)
    assert shardwrite.shard_store(path, 2).is_skipped
    assert contents(path) == before

    shardwrite.reshard(path, 4)
    assert shards_of(path) == {"vertices": (4, 4, 4), "single": (4, 4, 4), "table": (20,)}
    assert payloads(path / "0/vertices") == encoded
    assert notes_of(path) == NOTE

    shardwrite.reshard(path, None)
    assert shards_of(path) == {"vertices": None, "single": None, "table": None}
    assert payloads(path / "0/vertices") == encoded
    assert notes_of(path) is None
    check_values(path)
    before = contents(path)
    assert shardwrite.unshard_store(path).is_skipped
    assert contents(path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["scan"]


def test_a_shape_leaves_arrays_of_other_dimensions_alone(tmp_path):
    path = scan(tmp_path / "scan")
    done = shardwrite.shard_store(path, (2, 3, 3))
    assert shards_of(path) == {"vertices": (2, 3, 3), "single": (2, 3, 3), "table": None}
    told = {array.name: array.why for array in done.arrays}
    assert told["0/table"] == ("1 dimensions, and shards of 3 were asked for",)
    assert shardwrite.shard_store(path, shard_shape=[2, 3, 3]).is_skipped


@pytest.mark.compat
def test_other_notes_stay(tmp_path):
    path = scan(tmp_path / "scan")
    zarr.open_group(path).attrs["notes"] = "from the new microscope"
    shardwrite.shard_store(path)
    assert notes_of(path) == f"from the new microscope\n{NOTE}"
    shardwrite.unshard_store(path)
    assert notes_of(path) == "from the new microscope"


def test_a_single_array_tells_in_its_own_attributes(tmp_path):
    path = tmp_path / "a"
    zarr.create_array(path, shape=(8, 8), chunks=(2, 2), dtype="u1")[...] = 3
    shardwrite.shard_store(path, np.int64(2))
    array = zarr.open_array(path, mode="r")
    assert (array.shards, array.attrs["notes"]) == ((4, 4), NOTE)
    assert shardwrite.verify(path, deep=True).is_good
    shardwrite.unshard_store(path)
    assert dict(zarr.open_array(path, mode="r").attrs) == {}


def test_a_store_that_was_made_in_shards_gets_its_note(tmp_path):
    path = tmp_path / "root"
    root = zarr.create_group(path)
    root.create_array("a", shape=(8,), chunks=(2,), shards=(4,), dtype="u1")[...] = 1
    assert shardwrite.shard_store(path, 2).is_skipped
    assert notes_of(path) == NOTE


def test_consolidated_metadata_above_and_within_stay_true(tmp_path):
    top = zarr.create_group(tmp_path / "top")
    path = scan(tmp_path / "top/scan", consolidated=True)
    zarr.consolidate_metadata(top.store)
    shardwrite.shard_store(path, 2)
    for root in (tmp_path / "top", path):
        listed = json.loads((root / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
        for name, document in listed.items():
            found = json.loads((root / name / "zarr.json").read_text())
            found.pop("consolidated_metadata", None)
            document.pop("consolidated_metadata", None)
            assert document == found, name
    assert zarr.open_consolidated(tmp_path / "top")["scan"].attrs["notes"] == NOTE
    check_values(path)


@pytest.mark.long
def test_the_long_form_writes_no_note(tmp_path):
    path = scan(tmp_path / "scan")
    shardwrite.reshard(path, None, 2)
    assert shards_of(path)["vertices"] == (2, 2, 2)
    assert shards_of(path)["single"] is None
    assert notes_of(path) is None
    shardwrite.reshard(path, shards=None)
    assert shards_of(path)["vertices"] is None
    assert shardwrite.reshard(path).arrays[0].how == "copied"
    assert shards_of(path)["vertices"] is not None
    assert notes_of(path) is None


@pytest.mark.parametrize("shape", [0, True, (2, 0, 2), (), (2, 2), (2.5, 2, 2)])
def test_bad_shapes_change_nothing(tmp_path, shape):
    path = scan(tmp_path / "scan")
    before = contents(path)
    with pytest.raises(SpecError) as caught:
        shardwrite.shard_store(path, shape)
    assert caught.value.field == "shards"
    assert contents(path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["scan"]


def test_other_mistakes_change_nothing(tmp_path):
    path = scan(tmp_path / "scan")
    with pytest.raises(SpecError, match="shards is given too"):
        shardwrite.reshard(path, 4, 4)
    zarr.open_group(path).attrs["notes"] = 3
    before = contents(path)
    with pytest.raises(SpecError, match="no text and no list") as caught:
        shardwrite.shard_store(path, 2)
    assert caught.value.field == "notes"
    assert contents(path) == before
    with pytest.raises(SpecError, match="no such directory"):
        shardwrite.shard_store(tmp_path / "other")
    (path / "zarr.json").unlink()
    with pytest.raises(SpecError, match="no array or group is there but only below"):
        shardwrite.shard_store(path, 2)
    with pytest.raises(SpecError, match="converted in its place"):
        shardwrite.shard_store(zarr.storage.MemoryStore(dict(memory())), 2)
    with pytest.raises(TypeError, match="shard_store"):
        shardwrite.shard_store(path, shards=2)


def memory():
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, shape=(8,), chunks=(2,), dtype="u1")[...] = 1
    return store._store_dict
