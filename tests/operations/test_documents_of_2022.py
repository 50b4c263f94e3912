"""Documents of arrays of 2022 that other programs have written: what stays, and what is refused."""

from __future__ import annotations

import asyncio
import json

import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite.errors import SpecError
from shardwrite.legacy.transformer import of_2022, of_today, revised

VALUES = np.arange(12, dtype="u2").reshape(3, 4)
NEW = {"shards": (2, 4), "chunks": (1, 2), "format": "transformer-2022", "compressors": None}


@pytest.fixture
def hierarchy(tmp_path):
    da.from_array(VALUES, chunks=(2, 4)).to_sharded_zarr(tmp_path / "h", name="x", **NEW)
    return tmp_path / "h"


def document_in(hierarchy, **fields):
    """The document, after a change of some fields."""
    path = hierarchy / "meta/root/x.array.json"
    document = json.loads(path.read_text())
    if fields:
        document.update(fields)
        path.write_text(json.dumps(document))
    return document


ODD = {
    "unknown fields": {"mine": {"a": 1}},
    "in the grid": {"chunk_grid": {"chunk_shape": [1, 2], "type": "regular", "note": "n"}},
    "fallback": {"data_type": {"type": "<u2", "fallback": "u1", "extension": "https://x"}},
    "no fill value": {"fill_value": None},
    "names": {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"], "b": 2}},
    "too few names": {"attributes": {"_ARRAY_DIMENSIONS": ["y"], "b": 2}},
    "names that are none": {"attributes": {"_ARRAY_DIMENSIONS": 5}},
}


@pytest.mark.parametrize("odd", [*ODD, "all"])
def test_an_append_changes_the_shape_and_nothing_else(hierarchy, odd):
    fields = {k: v for one in ODD.values() for k, v in one.items()} if odd == "all" else ODD[odd]
    before = document_in(hierarchy, **fields)
    shardwrite.write_region(da.from_array(VALUES[:2]), hierarchy, "append", name="x")
    assert document_in(hierarchy) == {**before, "shape": [5, 4]}
    wanted = np.concatenate([VALUES, VALUES[:2]])
    np.testing.assert_array_equal(shardwrite.open_sharded(hierarchy, "x")[...], wanted)
    with shardwrite.ShardWriter(hierarchy / "x") as writer:
        writer.append(VALUES[0])
    assert document_in(hierarchy) == {**before, "shape": [6, 4]}


def test_a_new_array_in_its_place_has_a_new_document(hierarchy):
    before = document_in(hierarchy)
    document_in(hierarchy, mine=1)
    da.from_array(VALUES).to_sharded_zarr(hierarchy, name="x", mode="w", **NEW)
    assert document_in(hierarchy) == before


def test_attributes_that_change_keep_what_is_no_attribute_of_today(hierarchy):
    before = document_in(hierarchy, attributes={"_ARRAY_DIMENSIONS": ["y", "x"], "b": 2}, mine=1)
    now = of_today(before)
    assert revised(before, now) == before
    changed = revised(before, {**now, "attributes": {"c": 3}})
    assert changed == {**before, "attributes": {"_ARRAY_DIMENSIONS": ["y", "x"], "c": 3}}
    for name in ("filters", "_ARRAY_DIMENSIONS"):
        with pytest.raises(SpecError, match="uses this name itself; rename it"):
            revised(before, {**now, "attributes": {name: []}})
    others = {**now, "fill_value": 7}
    assert revised(before, others) == of_2022(others)  # another array


@pytest.mark.parametrize("kind", ["directory", "memory"])
@pytest.mark.parametrize("name", [None, "x", "g/x"])
@pytest.mark.parametrize("leaf", [".zarray", ".zgroup"])
def test_it_goes_into_nothing_of_zarr_v2(tmp_path, kind, name, leaf):
    store = zarr.storage.LocalStore(tmp_path) if kind == "directory" else zarr.storage.MemoryStore()
    if leaf == ".zarray":
        zarr.create_array(store, shape=(4,), dtype="u1", zarr_format=2)
    else:
        zarr.create_group(store, zarr_format=2)
    before = keys_of(store)
    with pytest.raises(SpecError, match="something else than a hierarchy of 2022") as caught:
        da.from_array(VALUES).to_sharded_zarr(store, name=name, **NEW)
    assert (caught.value.field, caught.value.remedy) == (
        "store", "give another directory or store for the hierarchy",
    )  # fmt: skip
    assert keys_of(store) == before


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_no_hierarchy_lies_inside_an_array(tmp_path, zarr_format):
    zarr.create_array(tmp_path / "a", shape=(4,), dtype="u1", zarr_format=zarr_format)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SpecError, match=r"would lie inside the array .*give a path outside of it"):
        da.from_array(VALUES).to_sharded_zarr(tmp_path / "a/h", name="x", **NEW)
    assert sorted(tmp_path.rglob("*")) == before


def keys_of(store):
    async def listed():
        return sorted([key async for key in store.list()])

    return asyncio.run(listed())


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"metadata_key_suffix": ".yaml"}, "metadata_key_suffix"),
        ({"metadata_key_suffix": None}, "metadata_key_suffix"),
        ({"extensions": [{"extension": "https://x", "must_understand": True}]}, "extensions"),
        ({"extensions": [{"extension": "https://x"}]}, "extensions"),
        ({"extensions": {"a": 1}}, "extensions"),
    ],
)
@pytest.mark.parametrize("where", ["zarr.json", "meta/root/x.array.json"])
def test_what_a_reader_must_understand_is_refused(hierarchy, fields, field, where):
    path = hierarchy / where
    if field != "extensions" and where != "zarr.json":
        pytest.skip("this is in the document of the hierarchy alone")
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), **fields}))
    for call in (
        lambda: shardwrite.open_sharded(hierarchy, "x"),
        lambda: shardwrite.from_sharded_zarr(hierarchy / "x"),
        lambda: shardwrite.reshard(hierarchy / "x", f"{hierarchy}.new", shards=4),
        lambda: shardwrite.write_region(7, hierarchy, (0, 0), name="x"),
        lambda: da.from_array(VALUES).to_sharded_zarr(hierarchy, name="x", mode="r+", **NEW),
    ):
        with pytest.raises(SpecError) as caught:
            call()
        assert (caught.value.field, caught.value.value) == (field, fields[field])
    path.write_text(before)  # a program that knows it has written it anew
    np.testing.assert_array_equal(shardwrite.open_sharded(hierarchy, "x")[...], VALUES)


@pytest.mark.parametrize("where", ["zarr.json", "meta/root/x.array.json"])
def test_other_extensions_stay(hierarchy, where):
    path = hierarchy / where
    extensions = [{"extension": "https://x", "must_understand": False, "configuration": {}}]
    path.write_text(json.dumps({**json.loads(path.read_text()), "extensions": extensions}))
    shardwrite.write_region(da.from_array(VALUES[:2]), hierarchy, "append", name="x")
    assert json.loads(path.read_text())["extensions"] == extensions
    np.testing.assert_array_equal(shardwrite.open_sharded(hierarchy, "x")[3:], VALUES[:2])
