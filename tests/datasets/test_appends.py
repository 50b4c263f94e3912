"""Values go into the arrays of a store that exists: appended, or into a region, as one run."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
import seams
import zarr
from helpers import Killed, contents, without_receipts

import shardwrite
from shardwrite import JournalError, SpecError

xr = pytest.importorskip("xarray")

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
import killed  # noqa: E402
from harness import struck  # noqa: E402

HOURS = np.datetime64("2000-01-01", "ns") + np.arange(99) * np.timedelta64(1, "h")
SIZES = {"shards": {"time": 8}, "chunks": {"time": 4}}
HOLES = {3: np.nan, 12: np.nan}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr and xarray tell much about types and metadata
        yield


def steps(start, stop, offset=0, **attrs):
    """Some steps of variables that are packed, transposed, without dask, times, and static."""
    n = np.arange(start, stop)
    values = n[:, None] * np.ones((1, 6)) + offset
    holes = np.where(np.isin(n, [*HOLES])[:, None], np.nan, values)
    packed = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
    hours = {"units": "hours since 2000-01-01", "dtype": "i8"}
    ds = xr.Dataset(
        {
            "v": xr.Variable(("time", "x"), da.from_array(holes, chunks=(3, 6)), {}, packed),
            "u": (("x", "time"), da.from_array(values.T * 2, chunks=(6, 5))),
            "w": ("time", n * 1.5 + offset),
            "when": ("time", HOURS[start:stop] + np.timedelta64(offset, "h")),
            "name": ("time", np.array([f"step {i}" for i in n], object)),
            "mask": ("x", np.ones(6, "u1")),
            "crs": ((), offset),
        },
        {"time": HOURS[start:stop], "x": np.arange(6) * 10},
        {"title": "steps", **attrs},
    )
    ds["time"].encoding = ds["when"].encoding = hours
    return ds


def part(start, stop, offset=0):
    """Steps without what has no time, as a region takes them."""
    return steps(start, stop, offset).drop_vars(["mask", "crs", "x"])


def die(*_, **__):
    raise Killed


def check(root, wanted, **how):
    with xr.open_zarr(root, **how) as found:
        xr.testing.assert_identical(found.load(), wanted.compute())


def begin(ds, root, **how):
    """A run that has written all shards, and published nothing."""
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", die)
        with pytest.raises(Killed):
            ds.shardwrite.to_zarr(root, **how)


class Both:
    """One store that this package writes, and one that xarray writes by the same calls."""

    def __init__(self, directory, old, **sizes):
        self.ours, self.theirs = directory / "ours.zarr", directory / "theirs.zarr"
        old.shardwrite.to_zarr(self.ours, **sizes)
        old.to_zarr(self.theirs, zarr_format=3)

    def write(self, ds, **how):
        result = ds.shardwrite.to_zarr(self.ours, **how)
        ds.compute().to_zarr(self.theirs, safe_chunks=False, **how)  # without dask, nothing is lost
        return result

    def check(self):
        for consolidated in (True, False):
            with (
                xr.open_zarr(self.ours, consolidated=consolidated) as found,
                xr.open_zarr(self.theirs, consolidated=consolidated) as wanted,
            ):
                xr.testing.assert_identical(found.load(), wanted.load())
        made, expected = (
            {
                path.parent.name: {
                    k: v
                    for k, v in json.loads(path.read_text()).items()
                    if k not in ("chunk_grid", "codecs", "consolidated_metadata")
                }
                for path in root.glob("*/zarr.json")
            }
            for root in (self.ours, self.theirs)
        )
        assert made == expected

    def refuse(self, ds, **how):
        """Both refuse a call, for the same reason; what there is stays."""
        before = contents(self.ours)
        with pytest.raises(Exception) as theirs:  # noqa: PT011 (xarray raises many types)
            ds.compute().to_zarr(self.theirs, **how)
        with pytest.raises(SpecError) as ours:
            ds.shardwrite.to_zarr(self.ours, **how)
        assert contents(self.ours) == before
        return str(ours.value), str(theirs.value)


def reason(text, *, whole=False):
    """An error without names of variables, since either of two may be told first."""
    text = re.sub(r"'\w+'|\(.*?\)", "", text)
    return text if whole else text.strip("'\"").partition("{")[0].strip(" .")


@pytest.fixture
def both(tmp_path):
    return Both(tmp_path, steps(0, 10), append_dim="time", **SIZES)


# ---- Appends


@pytest.mark.compat
@pytest.mark.parametrize("mode", [None, "a", "a-"])
def test_steps_are_appended_as_xarray_appends_them(both, mode):
    how = {"append_dim": "time", "mode": mode}
    result = both.write(steps(10, 15, offset=0, run="second"), **how)
    assert ("mask" in result.variables) == (mode != "a-")
    both.check()
    both.write(steps(15, 16), **how)
    both.write(steps(16, 30), **how)
    both.check()
    for name in ("v", "u", "time"):
        assert shardwrite.verify(both.ours / name, deep=True).is_good
    assert not list(both.ours.rglob("*.shardwrite"))


@pytest.mark.long
def test_the_encoding_of_the_store_is_used(both):
    other = steps(10, 12)
    other["v"].encoding = {"dtype": "f4", "_FillValue": np.float32(7)}
    other["time"].encoding = {"units": "days since 1990-01-01", "dtype": "f8"}
    other["v"].attrs["units"] = "other"
    both.write(other, append_dim="time")
    both.check()
    transposed = steps(12, 14).transpose("x", "time")
    both.write(transposed, append_dim="time")
    both.check()


@pytest.mark.long
def test_the_first_call_makes_the_store_and_the_same_call_appends(tmp_path):
    root = tmp_path / "x.zarr"
    for start, stop in ((0, 1), (1, 2), (2, 9)):
        steps(start, stop).shardwrite.to_zarr(root, append_dim="time", mode="a", **SIZES)
    check(root, steps(0, 9))
    grid = shardwrite.open_sharded(root / "v").metadata.grid
    assert (grid.shards, grid.chunks) == ((8, 6), (4, 6)), "those of one step would stay small"


@pytest.mark.long
def test_a_group_of_a_store(tmp_path):
    for start, stop in ((0, 7), (7, 12)):
        for group in ("a", "b/c"):
            steps(start, stop).shardwrite.to_zarr(
                tmp_path / "x.zarr", append_dim="time", group=group, **SIZES
            )
    check(tmp_path / "x.zarr", steps(0, 12), group="a")
    check(tmp_path / "x.zarr", steps(0, 12), group="b/c")


def test_an_array_is_appended_to_itself(tmp_path):
    for start, stop in ((0, 7), (7, 12)):
        steps(start, stop)["u"].shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="time")
    with xr.open_dataarray(tmp_path / "x.zarr", engine="zarr") as found:
        xr.testing.assert_identical(found.load(), steps(0, 12)["u"].compute())


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (lambda ds: ds.isel(x=slice(3)), {}),
        (lambda ds: ds.rename(x="y"), {}),
        (lambda ds: ds, {"append_dim": "tme"}),
        (lambda ds: ds, {"mode": "w"}),
        (lambda ds: ds, {"mode": "w-"}),
        (lambda ds: ds, {"mode": "r+"}),
        (lambda ds: ds, {"encoding": {"v": {"dtype": "f4"}}}),
        (lambda ds: ds.assign(w=("time", np.full(3, "text"))), {}),
    ],
)
def test_what_xarray_refuses_is_refused(both, change, how):
    ours, theirs = both.refuse(change(steps(10, 13)), **{"append_dim": "time", **how})
    if "mode" not in how:
        assert reason(theirs) in reason(ours, whole=True)


def test_times_that_the_units_of_the_store_cannot_hold_are_refused(tmp_path):
    """xarray writes them in other units, and tells readers the old ones."""
    root = tmp_path / "x.zarr"
    days = xr.Dataset({"v": ("time", [1.0, 2.0])}, {"time": HOURS[[0, 24]]})
    days.shardwrite.to_zarr(root)
    hour = xr.Dataset({"v": ("time", [3.0])}, {"time": HOURS[[49]]})
    with pytest.raises(SpecError, match=r"the values need units 'hours since.*round the times"):
        hour.shardwrite.to_zarr(root, append_dim="time")
    check(root, days)
    rounded = hour.assign_coords(time=hour.time.dt.floor("D"))
    rounded.shardwrite.to_zarr(root, append_dim="time")
    check(root, xr.concat([days, rounded], "time"))


def test_what_would_leave_variables_of_different_lengths_is_refused(both, tmp_path):
    before = contents(both.ours)
    with pytest.raises(SpecError, match="the store has 'u' along 'time', too"):
        steps(10, 12).drop_vars("u").shardwrite.to_zarr(both.ours, append_dim="time")
    with pytest.raises(SpecError, match=r"the store has no variable 'new'.*with to_zarr of xarray"):
        steps(10, 12).assign(new=("time", [1, 2])).shardwrite.to_zarr(both.ours, append_dim="time")
    assert contents(both.ours) == before
    zarr.open_array(both.ours / "w", mode="r+").resize(12)  # as an append that has died
    with pytest.raises(SpecError, match="different lengths: 'v' has 10, and 'w' has 12"):
        steps(10, 12).shardwrite.to_zarr(both.ours, append_dim="time")


@pytest.mark.long
def test_a_bucket_needs_a_directory_so_that_it_is_one_run(tmp_path):
    memory = zarr.storage.MemoryStore()
    how = {"append_dim": "time", "run_dir": tmp_path / "runs", **SIZES}
    steps(0, 9).shardwrite.to_zarr(memory, **how)
    begin(steps(9, 11), memory, **how)
    assert len(list((tmp_path / "runs").glob("*/together/run-*"))) == 1
    assert steps(9, 11).shardwrite.to_zarr(memory, **how).n_resumed_shards > 0
    check(memory, steps(0, 11))


# ---- Regions


@pytest.mark.compat
@pytest.mark.parametrize("mode", [None, "r+", "a"])
def test_a_region_is_written_as_xarray_writes_it(both, mode):
    """It fits no chunks, which xarray asks of dask arrays."""
    both.write(part(3, 9, offset=100), region={"time": slice(3, 9)}, mode=mode)
    both.check()
    both.write(part(0, 2, offset=50), region={"time": "auto"}, mode=mode)
    both.check()
    both.write(part(4, 5, offset=70).isel(x=slice(2, 4)), region={"time": slice(4, 5), "x": slice(2, 4)}, mode=mode)  # fmt: skip
    both.check()


@pytest.mark.long
def test_a_region_is_found_by_its_coordinates(both):
    both.write(steps(2, 7, offset=9).drop_vars("crs").isel(x=slice(1, 4)), region="auto")
    both.check()


@pytest.mark.parametrize(
    ("ds", "how"),
    [
        (steps(3, 6), {"region": {"time": slice(3, 6)}}),
        (part(3, 6), {"region": {"time": slice(3, 5)}}),
        (part(3, 6), {"region": {"tme": slice(3, 6)}}),
        (part(8, 12), {"region": "auto"}),
        (part(3, 6).isel(time=[0, 2]), {"region": "auto"}),
        (part(3, 6).assign(new=("time", [1, 2, 3])), {"region": {"time": slice(3, 6)}}),
        (part(3, 6), {"region": {"time": slice(3, 6)}, "mode": "w"}),
        (part(3, 6), {"region": {"time": slice(3, 6)}, "mode": "w-"}),
    ],
)
def test_a_region_that_xarray_refuses_is_refused(both, ds, how):
    ours, theirs = both.refuse(ds, **how)
    if "mode" not in how:
        assert reason(theirs) in reason(ours, whole=True)


@pytest.mark.parametrize(
    ("ds", "region", "told"),
    [
        (part(3, 6), {"tme": slice(3, 6)}, "tme"),
        (part(8, 12), "auto", "original store"),
        (part(3, 6).isel(time=[0, 2]), "auto", "contiguous"),
        (part(3, 3), "auto", "out of bounds"),
    ],
)
def test_what_has_no_place_is_told_of_its_region(both, ds, region, told):
    with pytest.raises(SpecError, match=f"region=.*no such place for .*{told}.*; give slices"):
        ds.shardwrite.to_zarr(both.ours, region=region)


def test_steps_without_a_coordinate_have_no_place(both):
    """xarray writes them over the first steps."""
    before = contents(both.ours)
    for region in ("auto", {"time": "auto"}):
        with pytest.raises(SpecError, match=r"no coordinate 'time'.*give it one, or give a slice"):
            part(3, 6).drop_vars("time").shardwrite.to_zarr(both.ours, region=region)
        assert contents(both.ours) == before
    both.write(part(0, 10, offset=5).drop_vars("time"), region="auto")
    both.check()


@pytest.mark.parametrize("mode", [None, "a"])
def test_a_region_without_elements_writes_nothing(both, mode):
    before = contents(both.ours)
    made = both.write(part(3, 3), region={"time": slice(3, 3)}, mode=mode)
    assert made.variables == {}
    assert made.n_shards == 0
    assert contents(both.ours) == before
    both.check()
    with pytest.raises(SpecError, match="no variables that would be written"):
        part(3, 3).drop_vars(part(0, 1).data_vars).shardwrite.to_zarr(
            both.ours, region={"time": slice(3, 3)}
        )


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"region": {"time": slice("a")}}, r"region={'time': slice\(None, 'a'.*is no part of"),
        ({"region": {"time": slice(0, 6, 2)}}, "region.*2.*is no part of a dimension.*step"),
        ({"region": {"time": 3}}, "region={'time': 3}: 3 is no part of a dimension"),
        ({"region": {"time": slice(1.5, 3)}}, "region.*1.5.*is no part of a dimension"),
        ({"region": {"time": [3, 6]}}, r"region.*\[3, 6\] is no part of a dimension"),
        ({"region": {"time": "first"}}, "region.*'first' is no part of a dimension"),
        ({"region": "all"}, "region='all'.*is no part of a dimension.*auto"),
        ({"region": slice(3, 6)}, "region.*is no part of a dimension.*mapping such as"),
        ({"append_dim": ["time"]}, r"append_dim=\['time'\]: no name of a dimension"),
        ({"append_dim": 3}, "append_dim=3: no name of a dimension"),
    ],
)
def test_what_is_no_place_is_named(both, how, told):
    before = contents(both.ours)
    with pytest.raises(SpecError, match=told):
        part(3, 6).shardwrite.to_zarr(both.ours, **how)
    assert contents(both.ours) == before


def test_a_first_append_along_no_dimension_makes_no_store(tmp_path):
    with pytest.raises(SpecError, match=r"append_dim='tme': no variable has this dim.*time, x"):
        steps(0, 3).shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="tme")
    assert not (tmp_path / "x.zarr").exists()


@pytest.mark.long
def test_whole_arrays_are_written_again(both):
    both.write(steps(0, 10, offset=7), mode="r+")
    both.check()
    both.write(steps(0, 10, offset=8, more=1), mode="a")
    both.check()
    with pytest.raises(SpecError, match="there is no group to write into"):
        steps(0, 3).shardwrite.to_zarr(both.ours, group="none", mode="r+")


def test_an_append_and_a_region_are_not_one_call(both):
    with pytest.raises(SpecError, match="is given with append_dim"):
        part(0, 2).shardwrite.to_zarr(both.ours, append_dim="time", region={"x": slice(3)})
    with pytest.raises(SpecError, match=r"no such mode.*'w-', 'w', 'a'"):
        part(0, 2).shardwrite.to_zarr(both.ours, mode="x")
    with pytest.raises(SpecError, match=r"store=None.*the arrays in it decide"):
        steps(10, 12).shardwrite.plan(append_dim="time")


def test_what_it_reads_of_the_store_is_kept_first(both):
    """Each value is doubled once, also if tasks come late."""
    with xr.open_zarr(both.ours, chunks={}) as found:
        twice = found[["u"]].drop_vars(["x"]) * 2
        twice.isel(time=slice(0, 7)).shardwrite.to_zarr(both.ours, region={"time": slice(0, 7)})
    wanted = steps(0, 10).compute()
    wanted["u"][:, :7] *= 2
    check(both.ours, wanted)


# ---- One run, which is interrupted


def documents(root):
    """Lengths along the time that the documents of the arrays have, and those in the root."""
    own = {path.parent.name: json.loads(path.read_text()) for path in root.glob("*/zarr.json")}
    listed = json.loads((root / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    return tuple(
        {
            n
            for node in nodes.values()
            for n, dim in zip(node["shape"], node.get("dimension_names", ()), strict=True)
            if dim == "time"
        }
        for nodes in (own, listed)
    )


@pytest.mark.long
def test_there_is_one_run_for_all_arrays(both, tmp_path):
    how = {"append_dim": "time"}
    begin(steps(10, 15), both.ours, **how)
    runs = [*tmp_path.glob("ours.zarr.shardwrite/together/run-*")]
    assert len(runs) == 1
    assert len([*runs[0].glob("journal-*")]) == 1
    assert len([path for path in runs[0].iterdir() if path.name.isdecimal()]) == 9
    assert documents(both.ours) == ({10}, {10})
    check(both.ours, steps(0, 10))
    result = steps(10, 15).shardwrite.to_zarr(both.ours, **how)
    assert result.n_resumed_shards == 9
    check(both.ours, steps(0, 15))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.zarr", "theirs.zarr"]


def test_the_root_is_written_once_after_all_arrays(both, monkeypatch):
    names, write = [], shardwrite.place.directory.Directory.write

    def note(place, leaf, data, **how):
        names.append(f"{place.path.name}/{leaf}")
        return write(place, leaf, data, **how)

    monkeypatch.setattr(shardwrite.place.directory.Directory, "write", note)
    steps(10, 15).shardwrite.to_zarr(both.ours, append_dim="time")
    made = [name.removesuffix("/zarr.json") for name in names if name.endswith("/zarr.json")]
    assert sorted(made[:-2]) == ["name", "u", "v", "w", "when"]
    assert made[-2:] == ["time", "ours.zarr"]


@pytest.mark.long
@pytest.mark.parametrize("is_given_up", [False, True])
def test_whatever_document_it_dies_before(tmp_path, is_given_up):
    """The same call ends it, or it is given up; readers of the root see one length at any time."""
    old = tmp_path / "old.zarr"
    steps(0, 10).shardwrite.to_zarr(old, append_dim="time", **SIZES)
    how, seen = {"append_dim": "time", "mode": "a-"}, set()
    for k in itertools.count():
        root = tmp_path / "x.zarr"
        shutil.copytree(old, root)
        try:
            with killed.documents_written(k):
                steps(10, 15).shardwrite.to_zarr(root, **how)
        except Killed:
            is_whole = False
        else:
            is_whole = True
        own, (listed,) = documents(root)
        seen.add((frozenset(own), listed))
        check(root, steps(0, listed))
        if is_whole:
            break
        if is_given_up:
            assert len(shardwrite.abandon(root)) == 6
            assert documents(root) == ({10}, {10})
            assert without_receipts(root) == without_receipts(old)
            for name in ("v", "u", "w", "time"):
                assert shardwrite.verify(root / name, deep=True).is_good
        steps(10, 15).shardwrite.to_zarr(root, **how)
        check(root, steps(0, 15))
        check(root, steps(0, 15), consolidated=False)
        shutil.rmtree(root)
    assert {(frozenset({10}), 10), (frozenset({10, 15}), 10), (frozenset({15}), 15)} <= seen
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old.zarr", "x.zarr"]


def grown(root, n_changed, **how):
    """An append that dies once so many arrays have their new length, or the root lists them."""
    with killed.documents_written(n_changed, "zarr.json"), pytest.raises(Killed):
        steps(10, 15).shardwrite.to_zarr(root, append_dim="time", **how)


@pytest.mark.parametrize("n_changed", [2, 6])
def test_arrays_are_cut_back_by_another_program(both, n_changed):
    """It has removed shards that the interrupted append had written, and they are written again."""
    grown(both.ours, n_changed)
    group = zarr.open_group(both.ours, mode="r+", use_consolidated=False)
    for name, array in group.arrays():
        if name not in ("mask", "crs", "x"):
            array.resize((6, 10) if name == "u" else (10, *array.shape[1:]))
    steps(10, 15).shardwrite.to_zarr(both.ours, append_dim="time")
    check(both.ours, steps(0, 15))
    check(both.ours, steps(0, 15), consolidated=False)


@pytest.mark.long
def test_another_append_is_told_of_one_that_has_changed_some_lengths(both):
    grown(both.ours, 2)
    with pytest.raises(JournalError, match=r"has not ended.*abandon"):
        steps(10, 12).shardwrite.to_zarr(both.ours, append_dim="time")
    shardwrite.abandon(both.ours)
    steps(10, 12).shardwrite.to_zarr(both.ours, append_dim="time")
    check(both.ours, steps(0, 12))


@pytest.mark.parametrize("n_changed", [0, 2, 6])
def test_it_is_given_up_in_a_copy(tmp_path, n_changed):
    """The state holds no path of its own, so the copy is that of another place."""
    home, copy = tmp_path / "a", tmp_path / "b"
    steps(0, 10).shardwrite.to_zarr(home / "x.zarr", append_dim="time", **SIZES)
    grown(home / "x.zarr", n_changed)
    shutil.copytree(home, copy)
    assert shardwrite.abandon(copy / "x.zarr") != []
    check(copy / "x.zarr", steps(0, 10), consolidated=False)
    for place in (copy, home):
        steps(10, 15).shardwrite.to_zarr(place / "x.zarr", append_dim="time")
        check(place / "x.zarr", steps(0, 15))
        check(place / "x.zarr", steps(0, 15), consolidated=False)
        assert [path.name for path in place.iterdir()] == ["x.zarr"]


@pytest.mark.parametrize("n_changed", [0, 2, 6])
@pytest.mark.parametrize("stop", [12, 17])
@pytest.mark.parametrize("how", [{}, {"source_id": "night"}])
def test_an_append_of_another_length_is_told_of_one_that_has_not_ended(both, n_changed, stop, how):
    """Also if it has the name of that one, or that one has changed all lengths."""
    grown(both.ours, n_changed, **how)
    with pytest.raises(JournalError, match=r"has not ended.*abandon"):
        steps(10, stop).shardwrite.to_zarr(both.ours, append_dim="time", **how)
    steps(10, 15).shardwrite.to_zarr(both.ours, append_dim="time", **how)
    check(both.ours, steps(0, 15))
    told = "was made before, of shape|would go back or repeat"
    with pytest.raises(SpecError, match=told):
        steps(10, stop).shardwrite.to_zarr(both.ours, append_dim="time", **how)


@pytest.mark.parametrize("names", [None, list("abcdefghij")], ids=["numbers", "names"])
def test_the_call_that_made_the_store_is_told_as_done(tmp_path, names):
    """As any append is, and so the first night of a job that is queued again."""

    def first(offset=0):
        made = steps(0, 10, offset=offset)
        return made if names is None else made.assign_coords(time=np.array(names, dtype="U1"))

    def stamps():
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}

    first().shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="time", **SIZES)
    before = stamps()
    assert before
    first().shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="time", **SIZES)
    assert stamps() == before
    with pytest.raises(SpecError, match=r"repeat|in the store"):
        first(offset=1).shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="time", **SIZES)
    assert stamps() == before


@pytest.mark.long
def test_what_others_have_appended_meanwhile_stays(both):
    begin(steps(10, 15), both.ours, append_dim="time", mode="a-")
    with pytest.raises(JournalError, match="has not ended"):
        steps(12, 20).shardwrite.to_zarr(both.ours, append_dim="time", mode="a-")
    assert shardwrite.abandon(both.ours, name="w") != [], "one array stands for all"
    assert shardwrite.abandon(both.ours) == []
    check(both.ours, steps(0, 10))
    steps(10, 12).shardwrite.to_zarr(both.ours, append_dim="time", mode="a-")
    check(both.ours, steps(0, 12))


@pytest.mark.long
def test_it_starts_over(both):
    begin(steps(10, 15, offset=1), both.ours, append_dim="time")
    steps(10, 15).shardwrite.to_zarr(both.ours, append_dim="time", restart=True)
    check(both.ours, steps(0, 15))


@pytest.mark.long
def test_a_named_append_is_made_once(both):
    how = {"append_dim": "time", "source_id": "one"}
    for _ in range(2):
        steps(10, 15).shardwrite.to_zarr(both.ours, **how)
        check(both.ours, steps(0, 15))
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", die)
        assert steps(10, 15).shardwrite.to_zarr(both.ours, **how).n_resumed_shards > 0


@pytest.mark.long
def test_the_end_of_the_first_call_was_interrupted(tmp_path):
    """It is not taken for an append that follows."""
    root, how = tmp_path / "x.zarr", {"append_dim": "time", **SIZES}
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "end a run", die)
        with pytest.raises(Killed):
            steps(0, 10).shardwrite.to_zarr(root, **how)
    steps(0, 10).shardwrite.to_zarr(root, **how)
    check(root, steps(0, 10))
    steps(10, 12).shardwrite.to_zarr(root, **how)
    check(root, steps(0, 12))


@pytest.mark.long
def test_it_is_begun_now_and_computed_later(both):
    later = steps(10, 15, run="later").shardwrite.to_zarr(
        both.ours, append_dim="time", compute=False
    )
    check(both.ours, steps(0, 10))
    dask.compute(later)
    check(both.ours, steps(0, 15, run="later"))


def test_attributes_of_an_older_call_do_not_come_back_when_it_is_computed_again(tmp_path):
    """Its run has ended, so nothing is written; a newer call has given others since."""

    def some(start, stop, of):
        return steps(start, stop, of=of)[["w"]].reset_coords(drop=True)

    def attributes():
        return [zarr.open_group(tmp_path / key).attrs["of"] for key in "xy"]

    older = []
    for key in "xy":
        some(0, 10, "first").shardwrite.to_zarr(tmp_path / key, **SIZES)
        later = {"append_dim": "time", "compute": False}
        older.append(some(10, 15, "older").shardwrite.to_zarr(tmp_path / key, **later))
    dask.compute(*older)
    assert attributes() == ["older", "older"]
    some(15, 20, "newer").shardwrite.to_zarr(tmp_path / "x", append_dim="time")
    zarr.open_group(tmp_path / "y").attrs.put({"of": "it was killed before its attributes"})
    dask.compute(*older)
    assert attributes() == ["newer", "older"]


@pytest.mark.parametrize("names", ["ab", "a"])
def test_an_array_with_an_axis_without_elements_grows(tmp_path, names):
    def some(start, stop):
        n = stop - start
        empty = ("time", "x"), da.zeros((n, 0), chunks=4, dtype="f4")
        ds = xr.Dataset({"a": empty, "b": ("time", np.arange(start, stop))})[[*names]]
        return ds if names == "a" else ds.assign_coords(time=HOURS[start:stop])

    for start, stop in ((0, 3), (3, 5)):
        for _ in range(2 if start and names == "ab" else 1):  # made again, it is made once
            how = {"append_dim": "time", "source_id": "same"} if start else {}
            some(start, stop).shardwrite.to_zarr(tmp_path / "ours", **how)
        how = {"append_dim": "time"} if start else {"zarr_format": 3}
        some(start, stop).compute().to_zarr(tmp_path / "theirs", **how)
    with xr.open_zarr(tmp_path / "ours") as ours, xr.open_zarr(tmp_path / "theirs") as theirs:
        assert ours.sizes["time"] == 5
        xr.testing.assert_identical(ours.load(), theirs.load())
    assert shardwrite.verify(tmp_path / "ours", name="a", deep=True).is_good


@pytest.mark.long
def test_plans(both):
    plan = steps(10, 15).shardwrite.plan(both.ours, append_dim="time")
    assert plan.variables["v"].array_region.bounds == ((10, 15), (0, 6))
    assert plan.variables["u"].array_region.bounds == ((0, 6), (10, 15))
    assert "[10:15, 0:6] int16" in str(plan)
    region = part(3, 6).shardwrite.plan(both.ours, region="auto")
    assert [*region.variables] == ["v", "u", "w", "when", "name"]
    assert region.variables["v"].array_region.bounds == ((3, 6), (0, 6))
    check(both.ours, steps(0, 10))


@pytest.mark.long
def test_where_it_cannot_be_one_run_an_append_is_refused(both, monkeypatch):
    """Beside the root of a store that belongs to somebody else, for instance."""
    seams.replace_step(monkeypatch, "may make a directory", lambda _: False)
    with pytest.raises(SpecError, match=r"beside the root of.*ask for the right"):
        steps(10, 12).shardwrite.to_zarr(both.ours, append_dim="time")
    check(both.ours, steps(0, 10))
    part(3, 5, offset=1).shardwrite.to_zarr(both.ours, region="auto")


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_region_is_interrupted(both, is_given_up):
    old, new = steps(0, 10).compute(), part(2, 7, offset=50).compute()
    begin(part(2, 7, offset=50), both.ours, region={"time": slice(2, 7)})
    if is_given_up:
        assert len(shardwrite.abandon(both.ours)) == 5
    result = part(2, 7, offset=50).shardwrite.to_zarr(both.ours, region={"time": slice(2, 7)})
    assert (result.n_resumed_shards > 0) != is_given_up
    for name in new.data_vars:
        axis = old[name].dims.index("time")
        old[name][(slice(None),) * axis + (slice(2, 7),)] = new[name].values
    check(both.ours, old)
    assert not list(both.ours.rglob("*.shardwrite"))


# ---- The same call in two processes


@pytest.mark.long
def test_whoever_joins_an_append_may_have_changed_all_lengths_before_its_begin_is_over(
    both, monkeypatch
):
    def append():
        return [steps(10, 15).shardwrite.to_zarr(both.ours, append_dim="time", source_id="it")]

    joiner = seams.Joiner(monkeypatch, append, "list arrays again")
    seams.after(monkeypatch, "claim the arrays of a run", joiner.come, once=True)
    results = append() + joiner.end()
    assert len(results) == 2
    check(both.ours, steps(0, 15))
    check(both.ours, steps(0, 15), consolidated=False)
    assert not list(both.ours.parent.rglob("*.shardwrite"))


def test_what_another_program_appends_while_an_append_begins_is_not_written_over(both, monkeypatch):
    def grow(*_):
        group = zarr.open_group(both.ours, mode="r+", use_consolidated=False)
        group["w"].append(np.full(5, 7.0))

    seams.after(monkeypatch, "claim the arrays of a run", grow, once=True)
    with pytest.raises(JournalError, match=r"the shape of .*w became \[15\] while"):
        steps(10, 15).shardwrite.to_zarr(both.ours, append_dim="time")
    assert (zarr.open_array(both.ours, path="w", mode="r")[10:] == 7).all()
    assert not list(both.ours.parent.rglob("*.shardwrite"))


def test_a_coordinate_of_steps_is_never_changed_in_place(tmp_path):
    """The call that goes on after a kill reads it first."""
    root, sizes = tmp_path / "x.zarr", {"shards": {"time": 8}, "chunks": {"time": 4}}
    steps(0, 5).shardwrite.to_zarr(root, append_dim="time", **sizes)
    files = {name: next((root / name / "c").rglob("0")) for name in ("time", "w")}
    before = {name: file.stat().st_ino for name, file in files.items()}
    more = steps(5, 7).shardwrite
    more.to_zarr(root, append_dim="time", strategy=shardwrite.AppendOnly(in_place=True))
    assert files["w"].stat().st_ino == before["w"]
    assert files["time"].stat().st_ino != before["time"]
    with xr.open_zarr(root) as found:
        xr.testing.assert_identical(found.load(), steps(0, 7).compute())


# ---- Kills


@pytest.mark.long
def test_some_kills_before_effects(tmp_path):
    few = ["append to a dataset", "--every", "97", "--seed", "28"]
    assert struck(tmp_path, "kill", *few)["cases"] >= 6


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "words",
    [
        ("append to a dataset",),
        ("append to a dataset", "--twice", "61"),
        ("append to a dataset in place",),
    ],
)
def test_kills_before_many_effects(tmp_path, words):
    assert struck(tmp_path, "kill", *words, "--every", "41")["cases"] >= 12


def kill_and_go_on(tmp_path, *, n_variables, n_kills, words=()):
    """Kill a program that appends to many variables, then let it end."""
    root = tmp_path / "x.zarr"
    first, second = (killed.dataset(n_variables, 0, at) for at in (0, 120))
    first.shardwrite.to_zarr(root, append_dim="time", **killed.SIZES)
    program = [sys.executable, killed.__file__, root, str(n_variables), "0.005", "append", *words]
    resumed_from = []
    for n in range(n_kills):
        running = subprocess.Popen(program)
        wanted = (n + 1) * 2 * n_variables
        try:
            while n_shards(root) < 6 * n_variables + wanted and running.poll() is None:
                time.sleep(0.01)
        finally:
            running.kill()
            running.wait()
        resumed_from.append(n_shards(root))
        own, listed = documents(root)
        assert (own, listed) == ({120}, {120})
        check(root, first)
    assert resumed_from == sorted(resumed_from)
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0, "it went on"
    check(root, xr.concat([first, second], "time", data_vars="minimal"))
    check(root, xr.concat([first, second], "time", data_vars="minimal"), consolidated=False)
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]


def n_shards(root):
    return sum(path.is_file() and path.name[0] != "." for path in root.rglob("c/*/*"))


@pytest.mark.long
def test_a_program_is_killed_that_appends_to_ten_variables(tmp_path):
    kill_and_go_on(tmp_path, n_variables=10, n_kills=2)


@pytest.mark.long
def test_a_program_with_two_workers_is_killed(tmp_path):
    kill_and_go_on(tmp_path, n_variables=6, n_kills=2, words=["workers"])


@pytest.mark.long
def test_two_workers_append(both):
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        steps(10, 30).shardwrite.to_zarr(both.ours, append_dim="time")
        part(2, 25, offset=30).shardwrite.to_zarr(both.ours, region="auto")
    wanted = xr.concat(
        [steps(0, 2), steps(2, 25, offset=30), steps(25, 30)], "time", data_vars="minimal",
        coords="minimal",
        compat="override",
    )  # fmt: skip
    check(both.ours, wanted)


@pytest.mark.long
def test_two_programs_make_the_same_append_at_once(tmp_path):
    root = tmp_path / "x.zarr"
    killed.dataset(4, 0).shardwrite.to_zarr(root, append_dim="time", **killed.SIZES)
    words = [sys.executable, killed.__file__, root, "4", "0.02", "append", "named"]
    programs = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [program.communicate(timeout=120)[1] for program in programs]
    assert [program.returncode for program in programs] == [0, 0], said
    check(root, xr.concat([killed.dataset(4, 0, at) for at in (0, 120)], "time", data_vars="minimal"))  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]
