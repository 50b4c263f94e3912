"""Steps of an append follow those of the store, and what is no append is told by name."""

from __future__ import annotations

import datetime as dt
import io
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from helpers import Killed, contents

import shardwrite
from shardwrite import SpecError

xr = pytest.importorskip("xarray")

HOURS = np.datetime64("2000-01-01", "ns") + np.arange(99) * np.timedelta64(1, "h")
HOW = {"append_dim": "time", "shards": {"time": 8}, "chunks": {"time": 4}}
UNITS = {"time": {"units": "hours since 2000-01-01"}}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr tells about types and metadata
        yield


def steps(start, stop, offset=0, times=HOURS, chunks=3, **attrs):
    n = np.arange(start, stop)
    values = da.from_array(n[:, None] * np.ones((1, 6)) + offset, chunks=(chunks, 6))
    return xr.Dataset(
        {"v": (("time", "x"), values), "w": ("time", n * 1.5), "mask": ("x", np.ones(6))},
        {"time": times[start:stop]},
        attrs,
    )


def check(root, wanted):
    for consolidated in (True, False):
        with xr.open_zarr(root, consolidated=consolidated) as found:
            xr.testing.assert_identical(found.load(), wanted.compute())


@pytest.fixture
def root(tmp_path):
    steps(0, 20).shardwrite.to_zarr(tmp_path / "x.zarr", encoding=UNITS, **HOW)
    return tmp_path / "x.zarr"


def no_follow(root, ds, **how):
    """An append is refused before anything is written."""
    before = contents(root)
    with pytest.raises(
        SpecError, match=r"append_dim='time': the steps of the .*region=.auto"
    ) as no:
        ds.shardwrite.to_zarr(root, append_dim="time", **how)
    assert contents(root) == before
    return str(no.value)


@pytest.mark.long
def test_steps_never_go_back_or_repeat(root):
    told = no_follow(root, steps(3, 5))
    assert "from 2000-01-01 03:00:00 to 2000-01-01 04:00:00" in told
    assert "end at 2000-01-01 19:00:00" in told
    for ds in (
        steps(19, 23),
        steps(0, 40),
        steps(20, 24).isel(time=[0, 2, 1, 3]),
        steps(20, 24).isel(time=[0, 1, 1]),
        steps(18, 20, offset=1),  # the last ones, with other values
        steps(0, 20, offset=1),
    ):
        no_follow(root, ds)
        no_follow(root, ds, mode="a-", source_id="one")
    steps(23, 25).shardwrite.to_zarr(root, append_dim="time")  # some may be missing
    check(root, xr.concat([steps(0, 20), steps(23, 25)], "time", data_vars="minimal"))


@pytest.mark.parametrize(
    ("steps_of", "missing"), [(HOURS, "missing time"), (np.arange(99.0), "missing value")]
)
def test_a_missing_step_is_told_as_such(tmp_path, steps_of, missing):
    root, more = tmp_path / "x.zarr", np.array(steps_of[20:24])
    steps(0, 20, times=steps_of).shardwrite.to_zarr(root, **HOW)
    more[2] = np.datetime64("NaT") if missing == "missing time" else np.nan
    ds = steps(20, 24).assign_coords(time=more)
    before = contents(root)
    with pytest.raises(SpecError, match=f"'time' of the dataset has a {missing} at position 2"):
        ds.shardwrite.to_zarr(root, append_dim="time")
    assert contents(root) == before
    ds.isel({"time": ds["time"].notnull().values}).shardwrite.to_zarr(root, append_dim="time")
    with xr.open_zarr(root) as found:
        assert found.sizes["time"] == 23


@pytest.mark.parametrize("how", [{}, {"source_id": "one"}, {"mode": "a-"}])
def test_the_same_call_made_again_adds_nothing_twice(root, how):
    for _ in range(3):
        steps(20, 27, title="it").shardwrite.to_zarr(root, append_dim="time", **how)
        check(root, steps(0, 27, title="it"))
    steps(27, 30, title="it").shardwrite.to_zarr(root, append_dim="time")
    no_follow(root, steps(20, 27, title="it"))
    check(root, steps(0, 30, title="it"))


@pytest.mark.long
def test_a_kill_in_the_last_moment(root):
    """All steps are there, and the call has not returned."""

    def die(*_, **__):
        raise Killed

    for step in ("end a run", "remove a run"):
        with pytest.MonkeyPatch.context() as patch:
            if step == "end a run":
                seams.before(patch, step, die)
                with pytest.raises(Killed):
                    steps(20, 27).shardwrite.to_zarr(root, append_dim="time")
            else:
                steps(20, 27).shardwrite.to_zarr(root, append_dim="time")
        check(root, steps(0, 27))
    steps(20, 27).shardwrite.to_zarr(root, append_dim="time")
    check(root, steps(0, 27))


@pytest.mark.long
def test_files_that_only_chunks_tell_apart(root, tmp_path):
    """Another file with the same steps may have other values, so it is not the same call."""
    pytest.importorskip("scipy")
    how = {"append_dim": "time", "shards": {"time": 20_000}, "chunks": {"time": 10_000}}
    files = []
    for n in range(2):
        part = steps(20, 40_000, n, times=np.arange(40_000) + 0, chunks=9_000)[["v", "w"]]
        files.append(io.BytesIO(part.to_netcdf(engine="scipy")))
    first = steps(0, 20, times=np.arange(40_000))[["v", "w"]]
    first.shardwrite.to_zarr(tmp_path / "y.zarr", **how)
    for n in range(2):
        with xr.open_dataset(files[n], engine="scipy") as found:
            if n == 0:
                found.shardwrite.to_zarr(tmp_path / "y.zarr", append_dim="time")
            no_follow(tmp_path / "y.zarr", found)


@pytest.mark.parametrize("kind", ["netCDF4", "scipy", "zarr"])
def test_the_same_call_made_again_with_the_same_file(tmp_path, kind):
    pytest.importorskip(kind)
    how, path = {"append_dim": "time", "shards": {"time": 20_000}}, tmp_path / f"part.{kind}"
    steps(0, 20, times=np.arange(40_000)).shardwrite.to_zarr(tmp_path / "y.zarr", **how)
    part = steps(20, 40_000, times=np.arange(40_000)).compute()
    part.to_zarr(path, zarr_format=3) if kind == "zarr" else part.to_netcdf(
        path, engine=kind.lower()
    )
    for _ in range(2):
        with xr.open_dataset(path, engine=kind.lower()) as found:
            found.shardwrite.to_zarr(tmp_path / "y.zarr", append_dim="time")
    with xr.open_zarr(tmp_path / "y.zarr") as found:
        assert found.sizes["time"] == 40_000
        np.testing.assert_array_equal(found["w"], np.arange(40_000) * 1.5)


KINDS = {
    "whole numbers": np.arange(99),
    "numbers": np.arange(99) / 4,
    "down": np.arange(99)[::-1] * 1.5,
    "durations": np.arange(99) * np.timedelta64(1, "h").astype("m8[ns]"),
    "a calendar": np.array([dt.timedelta(hours=i) for i in range(99)]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_steps(tmp_path, kind):
    times = KINDS[kind]
    if kind == "a calendar":
        cftime = pytest.importorskip("cftime")
        times = times + cftime.DatetimeNoLeap(2000, 2, 28)
    root = tmp_path / "x.zarr"
    for start, stop in ((0, 1), (1, 2), (2, 30), (30, 41)):
        steps(start, stop, times=times).shardwrite.to_zarr(
            root, encoding=None if start else {"time": {"dtype": "f8"}}, **HOW
        )
        if start:
            no_follow(root, steps(start - 1, stop, times=times))
    with xr.open_zarr(root) as found:
        assert found.sizes["time"] == 41
        np.testing.assert_array_equal(found["w"], np.arange(41) * 1.5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("other", "told"),
    [
        (np.arange(99) * 1.0, "are numbers, and those of the store are times"),
        (
            np.array([dt.timedelta(hours=i) for i in range(99)], "m8[ns]"),
            "are durations, and those of the store are times",
        ),
    ],
)
def test_steps_of_another_kind(root, other, told):
    before = contents(root)
    with pytest.raises(SpecError, match=f"append_dim='time': the steps .*{told}"):
        steps(20, 22, times=other).shardwrite.to_zarr(root, append_dim="time")
    assert contents(root) == before


def test_steps_of_another_calendar(root):
    pytest.importorskip("cftime")
    other = xr.date_range("2000-03-01", periods=99, calendar="noleap", use_cftime=True)
    with pytest.raises(SpecError, match="of the calendar noleap, and those of the store are times"):
        steps(20, 22, times=other).shardwrite.to_zarr(root, append_dim="time")


def test_what_is_not_compared(tmp_path):
    """Steps of which some are in the store twice, and steps without a coordinate."""
    mixed, root = np.array([3, 1, 2, *range(50)]), tmp_path / "mixed.zarr"
    for start, stop in ((0, 9), (9, 11), (9, 11)):
        steps(start, stop, times=mixed).shardwrite.to_zarr(root, **HOW)
    assert xr.open_zarr(root).sizes["time"] == 13
    for _ in range(2):
        steps(0, 5).drop_vars("time").shardwrite.to_zarr(tmp_path / "none.zarr", **HOW)
    assert xr.open_zarr(tmp_path / "none.zarr").sizes["time"] == 10


NAMED = {
    "text": (["b", "a"], ["c"]),
    "objects": (np.array(["b", "a"], object), np.array(["c"], object)),
    "bytes": ([b"b", b"a"], [b"c"]),
    "no order": ([3, 1, 2], [0, 9]),
}


@pytest.mark.parametrize("kind", NAMED)
def test_steps_in_no_order_are_not_there_twice(tmp_path, kind):
    first, then = (np.array(names) for names in NAMED[kind])

    def named(names, value=1.0):
        values = da.full(len(names), value, chunks=1)
        return xr.Dataset({"v": ("station", values)}, {"station": names})

    named(first).shardwrite.to_zarr(tmp_path / "x")
    for names in (first[-1:], np.append(then, first[:1])):
        with pytest.raises(SpecError, match=r"of the \d steps .* are in the store, such as"):
            named(names, 2.0).shardwrite.to_zarr(tmp_path / "x", append_dim="station")
    for _ in range(2):  # the same call made again
        named(then, 3.0).shardwrite.to_zarr(tmp_path / "x", append_dim="station")
    with xr.open_zarr(tmp_path / "x") as found:
        assert found["station"].values.tolist() == [*first.tolist(), *then.tolist()]
        assert found["v"].values.tolist() == [1.0] * len(first) + [3.0] * len(then)


def test_steps_of_the_first_and_last_shard_are_read(tmp_path, monkeypatch):
    """However many there are, and only where they do not follow all of them."""
    root = tmp_path / "x.zarr"
    steps(0, 90).shardwrite.to_zarr(root, **HOW)
    read, really = [], shardwrite.stores.posix.PosixStore.read_whole

    def note(store, key, *how, **more):
        read.append(f"{store.local_root.name}/{key}")
        return really(store, key, *how, **more)

    monkeypatch.setattr(shardwrite.stores.posix.PosixStore, "read_whole", note)
    steps(90, 92).shardwrite.plan(root, append_dim="time")
    assert sorted(key for key in read if key.startswith("time/c")) == ["time/c/0", "time/c/11"]


# ---- Nothing, and what is told by name


@pytest.mark.parametrize("mode", ["a", "a-"])
def test_no_steps(root, tmp_path, mode):
    """As in xarray: variables without the dimension, and attributes, are written."""
    steps(0, 20).to_zarr(tmp_path / "theirs.zarr", zarr_format=3, encoding=UNITS)
    none = steps(20, 20, title="none").assign(mask=("x", np.zeros(6)))
    how = {"append_dim": "time", "mode": mode}
    result = none.shardwrite.to_zarr(root, **how)
    none.compute().to_zarr(tmp_path / "theirs.zarr", **how)
    assert [*result.variables] == (["mask"] if mode == "a" else [])
    check(root, xr.open_zarr(tmp_path / "theirs.zarr").load())
    assert none.shardwrite.plan(root, **how).n_shards == (mode == "a")
    dask.compute(none.shardwrite.to_zarr(root, compute=False, **how))
    check(root, xr.open_zarr(tmp_path / "theirs.zarr").load())
    assert str(none.shardwrite.to_zarr(root, **how))


@pytest.mark.long
def test_no_steps_at_first(tmp_path):
    for start, stop in ((0, 0), (0, 5), (5, 5), (5, 9)):
        steps(start, stop).shardwrite.to_zarr(tmp_path / "x.zarr", encoding=UNITS if not stop else None, **HOW)  # fmt: skip
    check(tmp_path / "x.zarr", steps(0, 9))


@pytest.mark.parametrize("how", [{"append_dim": "time"}, {"region": "auto"}, {"mode": "a"}])
def test_a_store_of_zarr_v2(tmp_path, how):
    steps(0, 9).to_zarr(tmp_path / "x.zarr", zarr_format=2)
    before = contents(tmp_path)
    with pytest.raises(SpecError, match=r"store=.*is one of Zarr v2, and.*another store first"):
        steps(9, 12).shardwrite.to_zarr(tmp_path / "x.zarr", **how)
    assert contents(tmp_path) == before
    with xr.open_zarr(tmp_path / "x.zarr", chunks={}) as old:
        old.shardwrite.to_zarr(tmp_path / "new.zarr", **HOW)
    steps(9, 12).shardwrite.to_zarr(tmp_path / "new.zarr", append_dim="time")
    check(tmp_path / "new.zarr", steps(0, 12))


def test_a_dataset_that_is_read_from_the_store(root):
    with xr.open_zarr(root, chunks={}) as found:
        later = found.assign_coords(time=HOURS[20:40])
        with pytest.raises(
            SpecError, match=r"ds='\w+': the variable '\w+' is read from the.*ds.load"
        ):
            later.shardwrite.to_zarr(root, append_dim="time")
        other = later.rename(v="w", w="v").compute().assign(v=(("time", "x"), later["v"].data))
        other["w"] = ("time", later["v"].data[:, 0])
        with pytest.raises(SpecError, match=r"'[vw]' is read from the store that it is appended"):
            other.shardwrite.to_zarr(root, append_dim="time")
        later.load().shardwrite.to_zarr(root, append_dim="time")
    assert xr.open_zarr(root).sizes["time"] == 40


# ---- Lazy times


def lazy(start, stop, minutes=0):
    when = da.from_array(HOURS[start:stop] + np.timedelta64(minutes, "m"), chunks=4)
    return xr.Dataset(
        {"when": ("time", when), "how long": ("time", when - HOURS[0])}, {"time": HOURS[start:stop]}
    )


def encoding(units, dtype):
    since = {"units": f"{units} since 2000-01-01", "dtype": dtype}
    return {"when": since, "how long": {"units": units, "dtype": dtype}}


@pytest.mark.parametrize(
    ("units", "dtype", "is_held"),
    [
        ("hours", "i8", False),
        ("hours", "f8", True),
        ("minutes", "i2", True),
        ("seconds", "i2", False),
    ],
)
def test_lazy_times_that_units_cannot_hold(tmp_path, units, dtype, is_held):
    ds, how = lazy(0, 12, 30), {"encoding": encoding(units, dtype)}
    if is_held:
        ds.shardwrite.to_zarr(tmp_path / "x.zarr", **how)
        with xr.open_zarr(tmp_path / "x.zarr", decode_timedelta=True) as found:
            xr.testing.assert_equal(found.load(), ds.compute())
        return
    for name in ("when", "how long"):
        told = rf"ds='{name}': the variable '{name}' has times that int.*round them"
        with pytest.raises(SpecError, match=told):
            ds[[name]].shardwrite.to_zarr(tmp_path / "x.zarr", encoding={name: encoding(units, dtype)[name]})  # fmt: skip


@pytest.mark.long
def test_lazy_times_that_the_store_cannot_hold(tmp_path):
    root = tmp_path / "x.zarr"
    first = {"append_dim": "time", "encoding": {**encoding("hours", "i8"), **UNITS}}
    lazy(0, 12).shardwrite.to_zarr(root, **first)
    for name in ("when", "how long"):
        ds = lazy(12, 20).assign({name: lazy(12, 20, 30)[name]})
        with pytest.raises(
            SpecError, match=rf"the variable '{name}' has times that int64 of 'hours"
        ):
            ds.shardwrite.to_zarr(root, append_dim="time")
        shardwrite.abandon(root)
        with pytest.raises(
            SpecError, match=rf"need units 'minutes.*{name!r} of the store has 'hours"
        ):
            ds.compute().shardwrite.to_zarr(root, append_dim="time")
    lazy(12, 20).shardwrite.to_zarr(root, append_dim="time")
    with xr.open_zarr(root, decode_timedelta=True) as found:
        xr.testing.assert_equal(found.load(), lazy(0, 20).compute())
    assert zarr.open_array(root / "when").shape == (20,)


@pytest.mark.parametrize(
    ("stored", "more"),
    [
        (np.array([0.5, 0.6, 0.7], "f4"), [0.7, 0.8]),  # 0.7 is another number as f8
        (np.array([1, 2, 3]), [3.5, 4.5]),  # both are stored as 4
    ],
)
def test_steps_are_compared_as_they_are_stored(tmp_path, stored, more):
    def of(x):
        return xr.Dataset({"v": ("x", np.zeros(len(x)))}, {"x": x})

    of(stored).shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="x")
    with pytest.raises(SpecError, match="would go back or repeat"):
        of(np.array(more)).shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="x")
    follow = np.array(more) + 1
    of(follow).shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="x")
    with xr.open_zarr(tmp_path / "x.zarr") as found:
        assert found.sizes["x"] == len(stored) + 2


def test_one_time_is_not_followed_by_an_earlier_one(tmp_path):
    steps(5, 6).shardwrite.to_zarr(tmp_path / "x.zarr", encoding=UNITS, **HOW)
    no_follow(tmp_path / "x.zarr", steps(4, 5))
    steps(6, 7).shardwrite.to_zarr(tmp_path / "x.zarr", **HOW)
    check(tmp_path / "x.zarr", steps(5, 7))


def test_the_call_that_made_the_store_adds_nothing_twice(tmp_path):
    """A name of its source tells it, where there are no steps."""

    def night(n):
        ds = xr.Dataset({"v": ("x", np.arange(3.0) + 10 * n)})
        ds.shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="x", source_id=f"night {n}")

    for n in (1, 1, 2, 2, 1, 3, 1):
        night(n)
    with xr.open_zarr(tmp_path / "x.zarr") as found:
        assert found["v"].values.tolist() == [10, 11, 12, 20, 21, 22, 30, 31, 32]


@pytest.mark.parametrize("is_append", [True, False])
def test_times_in_memory_that_units_cannot_hold(tmp_path, is_append):
    how = {"encoding": {"t": {"units": "minutes since 2000-01-01", "dtype": "i2"}}}
    late = np.array(["2000-01-03", "2200-01-01"], "M8[ns]")
    missing = np.array(["2000-01-03", "NaT"], "M8[ns]")
    if is_append:
        good = xr.Dataset({"t": ("x", HOURS[:2])})
        good.shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="x", **how)
        how = {"append_dim": "x"}
    for times, told in ((late, "int16 of 'minutes"), (missing, "missing times, for which int16")):
        with pytest.raises(SpecError, match=f"'t'.*{told}"):
            xr.Dataset({"t": ("x", times)}).shardwrite.to_zarr(tmp_path / "x.zarr", **how)
    xr.Dataset({"t": ("x", HOURS[2:4])}).shardwrite.to_zarr(tmp_path / "x.zarr", **how)
    with xr.open_zarr(tmp_path / "x.zarr") as found:
        np.testing.assert_array_equal(found["t"], HOURS[:4] if is_append else HOURS[2:4])


@pytest.mark.parametrize("lazy", [False, True])
def test_bounds_of_times_that_have_no_units_of_their_own(tmp_path, lazy):
    """CF lets bounds leave them out, and programs other than xarray do."""
    root = tmp_path / "x.zarr"
    ends = np.arange(6)[:, None] + [0, 1]
    attrs = {"units": "hours since 2000-01-01", "bounds": "ends"}
    raw = xr.Dataset({"ends": (("t", "b"), ends)}, {"t": ("t", np.arange(6), attrs)})
    raw.isel(t=slice(4)).to_zarr(root, zarr_format=3)
    times = xr.decode_cf(raw).load().drop_encoding()
    times = times.chunk(t=1) if lazy else times
    times.isel(t=slice(4, 6)).shardwrite.to_zarr(root, append_dim="t")
    later = times.isel(t=[1]).assign(ends=times["ends"][[1]] + np.timedelta64(1, "D"))
    later.shardwrite.to_zarr(root, region="auto")
    ends[1] += 24
    with xr.open_zarr(root, decode_times=False) as found:
        np.testing.assert_array_equal(found["ends"], ends)
        assert found["ends"].attrs == {}
    half = later.assign(ends=later["ends"] + np.timedelta64(30, "m"))
    with pytest.raises(SpecError, match=r"'ends'.* 'hours since 2000-01-01'"):
        half.shardwrite.to_zarr(root, region="auto")
    if lazy:
        shardwrite.abandon(root)
    numbers = raw.isel(t=[1]).drop_vars("t")
    numbers.shardwrite.to_zarr(root, region={"t": slice(1, 2)})
    with xr.open_zarr(root, decode_times=False) as found:
        np.testing.assert_array_equal(found["ends"], raw["ends"])
