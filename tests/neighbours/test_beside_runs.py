"""What zarr-python and xarray say of a group while a run writes there."""

from __future__ import annotations

import warnings

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

import shardwrite

SHAPE, LAYOUT = (8, 8), {"shards": (4, 8), "chunks": (2, 8)}
DIMENSIONS = {"dimension_names": ("y", "x")}


def values(first=0):
    return da.from_array(np.arange(first, first + 64, dtype="u2").reshape(SHAPE), chunks=(4, 8))


def new(root, look):
    values().to_sharded_zarr(root, name="new", progress=look, **LAYOUT, **DIMENSIONS)


def shown_at_once(root, look):
    values().to_sharded_zarr(
        root, name="new", publish="first", progress=look, **LAYOUT, **DIMENSIONS
    )


def several(root, look):
    shardwrite.store(
        [values(), values(1)],
        [root] * 2,
        names=["new", "newer"],
        progress=look,
        **LAYOUT,
        **DIMENSIONS,
    )


def replaced(root, look):
    values(1).to_sharded_zarr(root, name="old", mode="w", progress=look, **LAYOUT, **DIMENSIONS)


def updated(root, look):
    shardwrite.write_region(values(1), root, (slice(None), slice(None)), name="old", progress=look)


def grown(root, look):
    shardwrite.write_region(values(1), root, "append", name="old", progress=look)


def streamed(root, look):
    with shardwrite.ShardWriter(root, name="old") as writer:
        writer.append(np.ones(8, "u2"))
        writer.flush()
        look(None)


WAYS = {
    way.__name__: way for way in (new, shown_at_once, several, replaced, updated, grown, streamed)
}
UNKNOWN = "is not recognized as a component"
VISIBLE = {"shown_at_once": {"old", "new"}}
"""Arrays that a group lists while they are written, where these are not only the old one."""


def seen(root):
    """Names that readers list in a group, and what they warn of."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        members = {name for name, _ in zarr.open_group(root, mode="r").members(max_depth=None)}
        opened = set(xr.open_zarr(root).variables)
        tree = set(xr.open_datatree(root, engine="zarr").to_dataset().variables)
    assert opened == tree == members
    return members, [str(each.message) for each in told]


def looks_of(way, tmp_path, *, is_consolidated):
    """What readers see while an array is written in a group that has one already."""
    root, looks = tmp_path / "g.zarr", []
    zarr.create_group(root)
    values().to_sharded_zarr(root, name="old", **LAYOUT, **DIMENSIONS)
    if is_consolidated:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the specification does not have it yet
            zarr.consolidate_metadata(root)
    before = seen(root)
    assert before[0] == {"old"}
    WAYS[way](root, lambda _: looks.append(seen(root)))
    assert looks, "a reader looked while the run went on"
    assert not [text for text in seen(root)[1] if UNKNOWN in text], "nothing is left"
    return before, looks


@pytest.mark.parametrize("way", WAYS)
def test_a_group_with_consolidated_metadata_shows_nothing_of_a_run(tmp_path, way):
    before, looks = looks_of(way, tmp_path, is_consolidated=True)
    for members, told in looks:
        assert members == VISIBLE.get(way, {"old"})
        assert told == before[1], "no warning that was not there before"


@pytest.mark.parametrize("way", WAYS)
def test_other_groups_show_nothing_of_a_run_either(tmp_path, way):
    _, looks = looks_of(way, tmp_path, is_consolidated=False)
    for members, told in looks:
        assert members == VISIBLE.get(way, {"old"})
        assert not [text for text in told if "consolidated metadata" not in text]


def test_nothing_of_a_new_hierarchy_is_there_until_it_is_whole(tmp_path):
    root, looks = tmp_path / "g.zarr", []

    def look(_):
        with pytest.raises(FileNotFoundError):
            zarr.open_group(root, mode="r")
        looks.append(True)

    several(root, look)
    assert looks
    assert seen(root)[0] == {"new", "newer"}
