"""A DataTree goes into the groups of a store that exists: all of its nodes are one append."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import warnings
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import seams
from helpers import Killed, contents, without_receipts

import shardwrite
from shardwrite import JournalError, SpecError

xr = pytest.importorskip("xarray")

sys.path.insert(0, str(Path(__file__).parent))
import killed  # noqa: E402

HOURS = np.datetime64("2000-01-01", "ns") + np.arange(99) * np.timedelta64(1, "h")
SIZES = {"shards": {"time": 8}, "chunks": {"time": 4}}
HOW = {"append_dim": "time", **SIZES}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr and xarray tell much about types and metadata
        yield


def field(start, stop, factor=1):
    values = np.arange(start, stop)[:, None] * np.ones((1, 6)) * factor
    return ("time", "x"), da.from_array(values, chunks=(3, 6))


def tree(start, stop, offset=0, **attrs):
    """Nodes that inherit their steps, one with steps of its own, and some without any."""
    hours = xr.Dataset(coords={"time": HOURS[start:stop]})
    hours["time"].encoding = {"units": "hours since 2000-01-01", "dtype": "i8"}
    own = hours.assign(w=("time", np.arange(start, stop) * 0.5)).isel(time=slice(None, None, 2))
    return xr.DataTree.from_dict(
        {
            "/": xr.Dataset({"crs": ((), offset)}, attrs={"title": "all", **attrs}),
            "/model": hours,
            "/model/a": xr.Dataset({"v": field(start, stop), "mask": ("x", np.ones(6, "u1"))}),
            "/model/b": xr.Dataset({"v": field(start, stop, 2)}, attrs={"n": 2}),
            "/sparse": own,
            "/notes": xr.Dataset(attrs={"by": "us"}),
        }
    )


def check(root, wanted, **how):
    for consolidated in (True, False):
        found = xr.open_datatree(root, engine="zarr", consolidated=consolidated, **how)
        xr.testing.assert_identical(found.load(), wanted.compute())


def lengths(root):
    """Lengths along the time of all arrays but those of another length, and as the root lists."""

    def of(nodes):
        return {
            n
            for name, node in nodes
            if node["node_type"] == "array" and "sparse" not in name
            for n, dim in zip(node["shape"], node.get("dimension_names", ()), strict=True)
            if dim == "time"
        }

    own = [(str(p), json.loads(p.read_text())) for p in Path(root).rglob("*/zarr.json")]
    listed = json.loads((Path(root) / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    return of(own), of(listed.items())


def only_steps(dt):
    """The nodes that have steps, without the variables that have none."""
    dt = xr.DataTree.from_dict({"/": xr.Dataset(), "/model": dt["model"], "/sparse": dt["sparse"]})
    del dt["model/a"]["mask"]
    return dt


def begin(dt, root, **how):
    with pytest.MonkeyPatch.context() as patch:

        def die(*_, **__):
            raise Killed

        seams.before(patch, "look for missing shards", die)
        with pytest.raises(Killed):
            dt.shardwrite.to_zarr(root, **how)


@pytest.fixture
def root(tmp_path):
    tree(0, 10).shardwrite.to_zarr(tmp_path / "x.zarr", **HOW)
    return tmp_path / "x.zarr"


@pytest.mark.parametrize("group", [None, "deep/er"])
def test_all_nodes_are_appended(tmp_path, group):
    root = tmp_path / "x.zarr"
    for start, stop in ((0, 10), (10, 14), (10, 14), (14, 30)):
        tree(start, stop).shardwrite.to_zarr(root, mode="a", group=group, **HOW)
    check(root, tree(0, 30), group=group)
    for name in ("model/a/v", "model/b/v", "model/time", "sparse/w"):
        assert shardwrite.verify(root / (group or "") / name, deep=True).is_good


@pytest.mark.long
def test_nodes_without_the_dimension_are_written_again_or_left_out(root):
    tree(10, 12, offset=5, run="second").shardwrite.to_zarr(root, append_dim="time")
    check(root, tree(0, 12, offset=5, run="second"))
    result = tree(12, 14, offset=7, run="third").shardwrite.to_zarr(
        root, append_dim="time", mode="a-"
    )
    assert sorted(result.variables) == [
        *("model/a/v", "model/b/v", "model/time", "sparse/time", "sparse/w")
    ]
    check(root, tree(0, 14, offset=5, run="second"))


@pytest.mark.long
def test_nodes_without_arrays_are_made(root):
    more = tree(10, 12)
    more["/new"] = xr.DataTree(xr.Dataset(attrs={"n": 1}))
    more.shardwrite.to_zarr(root, append_dim="time")
    wanted = tree(0, 12)
    wanted["/new"] = xr.DataTree(xr.Dataset(attrs={"n": 1}))
    check(root, wanted)


@pytest.mark.long
def test_whole_arrays_are_written_again(root):
    tree(0, 10, offset=3, more=1).shardwrite.to_zarr(root, mode="a")
    check(root, tree(0, 10, offset=3, more=1))


def with_region(dt, start, stop, offset):
    """A tree whose fields have other values in some steps."""
    for name in ("model/a/v", "model/b/v"):
        values = dt[name].values.copy()
        values[start:stop] += offset
        dt[name] = dt[name].copy(data=values)
    dt["sparse/w"] = dt["sparse/w"].where(dt["sparse/time"] < HOURS[start], dt["sparse/w"] + offset)
    return dt


@pytest.mark.parametrize("region", ["auto", {"time": "auto"}])
@pytest.mark.parametrize("group", [None, "deep/er"])
def test_a_region_is_found_by_the_steps_that_nodes_inherit(tmp_path, region, group):
    """xarray's own to_zarr writes nodes without steps of their own to the beginning."""
    root = tmp_path / "x.zarr"
    tree(0, 10).shardwrite.to_zarr(root, group=group, **HOW)
    wanted = with_region(tree(0, 10).compute(), 4, 10, 50.0)
    part = only_steps(wanted).isel(time=slice(4, 10))
    part["sparse"] = only_steps(wanted)["sparse"].isel(time=slice(2, 5))
    assert sorted(part.shardwrite.plan(root, region=region, group=group).variables) == [
        *("model/a/v", "model/b/v", "sparse/w")
    ]
    result = part.shardwrite.to_zarr(root, region=region, group=group)
    assert sorted(result.variables) == ["model/a/v", "model/b/v", "sparse/w"]
    check(root, wanted, group=group)


@pytest.mark.parametrize("mode", ["r+", "a"])
def test_a_region_of_a_tree_has_slices(root, mode):
    wanted = with_region(tree(0, 10).compute(), 3, 7, 50.0)
    part = only_steps(wanted)["model"].isel(time=slice(3, 7))
    part.attrs["title"] = "other"
    part.shardwrite.to_zarr(root, group="model", mode=mode, region={"time": slice(3, 7)})
    wanted["sparse"] = tree(0, 10)["sparse"]
    if mode == "a":
        wanted["model"].attrs["title"] = "other"
    check(root, wanted)


@pytest.mark.long
@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_region_of_a_tree_is_one_run(root, tmp_path, is_given_up):
    wanted = with_region(tree(0, 10).compute(), 3, 7, 50.0)
    wanted["sparse"] = tree(0, 10)["sparse"]
    part = only_steps(wanted)["model"].isel(time=slice(3, 7))
    how = {"group": "model", "region": {"time": slice(3, 7)}}
    begin(part, root, **how)
    assert len([*tmp_path.glob("x.zarr.shardwrite/together/run-*")]) == 1
    if is_given_up:
        shardwrite.abandon(root)
    part.shardwrite.to_zarr(root, **how)
    check(root, wanted)
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]


def test_nodes_whose_groups_have_copies_of_shared_coordinates(tmp_path):
    """As xarray writes them with `write_inherited_coords`."""
    root = tmp_path / "x.zarr"
    tree(0, 10).to_zarr(root, zarr_format=3, write_inherited_coords=True)
    tree(10, 13).shardwrite.to_zarr(root, append_dim="time")
    check(root, tree(0, 13))
    wanted = with_region(tree(0, 13).compute(), 8, 13, 50.0)
    part = only_steps(wanted).isel(time=slice(8, 13))
    part["sparse"] = only_steps(wanted)["sparse"].isel(time=slice(4, 7))
    part.shardwrite.to_zarr(root, region="auto")
    check(root, wanted)
    for name in ("model/a", "model/b"):
        with xr.open_zarr(root, group=name) as found:
            np.testing.assert_array_equal(found["time"], HOURS[:13])
    one = tree(13, 14)["model/a"].to_dataset()
    one.shardwrite.to_zarr(root, append_dim="time", group="model/a")
    with xr.open_zarr(root, group="model/a") as found:
        assert found.sizes["time"] == 14


def test_groups_that_are_no_tree_are_appended_one_by_one(tmp_path):
    """Their lengths differ already, or each has steps of its own."""
    root = tmp_path / "x.zarr"
    field_of = {n: xr.Dataset({"v": field(0, n)}, {"time": HOURS[:n]}) for n in (6, 10)}
    field_of[10].shardwrite.to_zarr(root, **HOW)
    field_of[6].drop_vars("time").shardwrite.to_zarr(root, group="short", **HOW)
    field_of[10].shardwrite.to_zarr(root, group="own", **HOW)
    more = xr.Dataset({"v": field(10, 12)}, {"time": HOURS[10:12]})
    more.shardwrite.to_zarr(root, append_dim="time")
    more.shardwrite.to_zarr(root, append_dim="time", group="own")
    more.drop_vars("time").shardwrite.to_zarr(root, append_dim="time", group="short")
    for group, n in ((None, 12), ("own", 12), ("short", 8)):
        with xr.open_zarr(root, group=group, consolidated=False) as found:
            assert found.sizes["time"] == n


def without(dt, path):
    return dt.filter(lambda node: node.path != path)


@pytest.mark.parametrize(
    ("change", "how", "told"),
    [
        (lambda dt: without(dt, "/model/b"), {}, "the store has 'model/b/v' along 'time', too.*DataTree.from_dict"),
        (lambda dt: xr.DataTree.from_dict({"/model/a": dt["model/a"].to_dataset(inherit=False)}), {}, "the store has 'model/time' along 'time', too"),
        (lambda dt: dt["model"].to_dataset(), {"group": "model"}, "the store has 'a/v' along 'time', too"),
        (lambda dt: dt["model/a"].to_dataset(), {"group": "model/a", "mode": "a-"}, "time' along 'time', too, and it would be shorter"),
        (lambda dt: dt["model/a"].to_dataset().drop_vars("time"), {"group": "/model/a/"}, "time' along 'time', too, and it would"),
        (lambda dt: dt["model/b"], {"group": "model/b"}, "time' along 'time', too, and it would be shorter"),
        (lambda dt: dt.assign({"new": xr.DataTree(xr.Dataset({"v": field(10, 12)}))}), {}, "the store has no group 'new'"),
        (lambda dt: dt, {"append_dim": "tme"}, "append_dim='tme': no node of the tree has this"),
        (lambda dt: dt, {"append_dim": None, "region": "auto"}, "the node '/' have none of the dimensions"),
        (lambda dt: dt, {"append_dim": None, "region": {"tme": "auto"}}, "region='tme': no node of the tree"),
        (lambda dt: dt["model"], {"append_dim": None, "region": "auto", "group": "model"}, "were found in the original store|mask"),
        (lambda dt: only_steps(dt).assign({"new": xr.DataTree()}), {"append_dim": None, "region": {"time": slice(3, 5)}}, "no group 'new'"),
        (lambda dt: dt, {"append_dim": None, "mode": "a"}, "'model"),
    ],
)  # fmt: skip
def test_a_tree_that_does_not_fit_is_refused(root, change, how, told):
    before = contents(root)
    with pytest.raises(SpecError, match=told):
        change(tree(10, 12)).shardwrite.to_zarr(root, **{"append_dim": "time", **how})
    assert contents(root) == before


@pytest.mark.long
def test_it_is_one_run(root, tmp_path):
    begin(tree(10, 15), root, append_dim="time")
    runs = [*tmp_path.glob("x.zarr.shardwrite/together/run-*")]
    assert len(runs) == 1
    assert len([*runs[0].glob("journal-*")]) == 1
    assert lengths(root) == ({10}, {10})
    check(root, tree(0, 10))
    with pytest.raises(JournalError, match="has not ended"):
        tree(10, 17).shardwrite.to_zarr(root, append_dim="time")
    assert tree(10, 15).shardwrite.to_zarr(root, append_dim="time").n_resumed_shards == 7
    check(root, tree(0, 15))
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]


@pytest.mark.long
def test_another_append_ends_before_it_begins(root, tmp_path):
    """It is taken back whole, so that the same call can be made again."""
    other, mine = tree(10, 13, more=1), tree(10, 12)
    with pytest.MonkeyPatch.context() as patch:

        def append_first(*_, **__):
            patch.undo()
            other.shardwrite.to_zarr(root, append_dim="time")

        seams.before(patch, "begin runs", append_first)
        with pytest.raises(JournalError, match=r"became .* while an update .* was planned"):
            mine.shardwrite.to_zarr(root, append_dim="time")
    check(root, tree(0, 13, more=1))
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]


@pytest.mark.long
@pytest.mark.parametrize("is_given_up", [False, True])
def test_whatever_document_it_dies_before(tmp_path, is_given_up):
    """The same call ends it, or it is given up; readers of the root see one length at any time."""
    old, seen = tmp_path / "old.zarr", set()
    tree(0, 10).shardwrite.to_zarr(old, **HOW)
    for k in itertools.count():
        root = tmp_path / "x.zarr"
        shutil.copytree(old, root)
        try:
            with killed.documents_written(k):
                tree(10, 15).shardwrite.to_zarr(root, append_dim="time")
        except Killed:
            is_whole = False
        else:
            is_whole = True
        own, (listed,) = lengths(root)
        seen.add((frozenset(own), listed))
        found = xr.open_datatree(root, engine="zarr", consolidated=True)
        xr.testing.assert_identical(found.load(), tree(0, listed).compute())
        if is_whole:
            break
        if is_given_up:
            shardwrite.abandon(root)
            n = lengths(root)
            assert n in (({10}, {10}), ({15}, {15}))
            if n == ({10}, {10}):
                assert without_receipts(root) == without_receipts(old)
        tree(10, 15).shardwrite.to_zarr(root, append_dim="time")
        check(root, tree(0, 15))
        shutil.rmtree(root)
    assert {(frozenset({10}), 10), (frozenset({10, 15}), 10), (frozenset({15}), 15)} <= seen
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.zarr", "x.zarr"]
