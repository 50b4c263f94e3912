"""What is read back by xarray's own engine is what was given, as if xarray had written it."""

from __future__ import annotations

import json
import warnings

import dask.array as da
import numpy as np
import pytest

import shardwrite

xr = pytest.importorskip("xarray")
pd = pytest.importorskip("pandas")

TIMES = np.array(["2000-01-01", "2000-01-02T06", "2000-02-01", "2001-01-01"], "M8[ns]")
NUMBERS = np.arange(12.0).reshape(4, 3)
HOLES = np.where(NUMBERS % 5 == 1, np.nan, NUMBERS)


def variable(values, *, dims=("t", "x"), lazy=True, attrs=None, **encoding):
    values = np.asarray(values)
    data = da.from_array(values, chunks=(2,) * values.ndim) if lazy else values
    return xr.Variable(dims, data, attrs or {}, encoding)


CASES = {
    "floats": {"v": variable(NUMBERS.astype("f4"))},
    "holes": {"v": variable(HOLES)},
    "packed": {"v": variable(HOLES, dtype="i2", scale_factor=0.5, add_offset=3.0, _FillValue=-9)},
    "packed in memory": {
        "v": variable(HOLES, lazy=False, dtype="i2", scale_factor=0.5, _FillValue=np.int16(-9))
    },
    "fill value of nan": {"v": variable(HOLES.astype("f4"), _FillValue=np.float32("nan"))},
    "fill value of a number": {"v": variable(HOLES.astype("f4"), _FillValue=np.float32(1e20))},
    "no fill value": {"v": variable(NUMBERS, _FillValue=None)},
    "integers with holes": {"v": variable(HOLES, dtype="i4", _FillValue=2**31 - 1)},
    "fill value of zarr": {"v": variable(NUMBERS.astype("i4"), fill_value=7)},
    "unsigned": {"v": variable(NUMBERS.astype("u8"))},
    "unsigned as signed": {"v": variable(NUMBERS.astype("u1"), dtype="i1", _Unsigned="true")},
    "bool": {"v": variable(NUMBERS > 5)},
    "complex": {"v": variable(NUMBERS + 1j)},
    "big endian": {"v": variable(NUMBERS.astype(">f4"))},
    "half": {"v": variable(NUMBERS.astype("f2"))},
    "times": {"v": variable(TIMES, dims="t", lazy=False)},
    "times in hours": {"v": variable(TIMES, dims="t", units="hours since 1999-01-01", dtype="i4")},
    "lazy times with holes": {
        "v": variable(
            np.where([1, 1, 0, 1], TIMES, np.datetime64("NaT")),
            dims="t",
            units="hours since 1999-01-01",
            dtype="f8",
        )
    },
    "lazy times": {"v": variable(TIMES, dims="t")},
    "missing times": {
        "v": variable(np.where([1, 1, 0, 1], TIMES, np.datetime64("NaT")), dims="t", lazy=False)
    },
    "durations": {"v": variable(TIMES - TIMES[0], dims="t", lazy=False)},
    "fixed text": {"v": variable(["a", "bbb", "ü", ""], dims="t", lazy=False)},
    "lazy fixed text": {"v": variable(["a", "bbb", "ü", ""], dims="t")},
    "bytes": {"v": variable([b"a", b"bbb", b"", b"c"], dims="t", lazy=False)},
    "text": {"v": variable(np.array(["a", "b" * 99, "ü", ""], object), dims="t", lazy=False)},
    "numpy's text": {
        "v": variable(np.array(["a", "b" * 99, "ü", ""], np.dtypes.StringDType()), dims="t")
    },
    "scalars": {
        "v": variable(3.5, dims=(), lazy=False),
        "w": variable("text", dims=(), lazy=False),
        "u": variable(np.datetime64("2000-01-01", "ns"), dims=(), lazy=False),
        "y": xr.Variable((), da.asarray(np.int8(3))),
    },
    "no elements": {
        "v": variable(np.zeros((0, 3)), lazy=False),
        "w": xr.Variable(("t", "x"), da.zeros((0, 3))),
        "u": variable(np.zeros((0,), "U1"), dims="t", lazy=False),
    },
    "one long dimension": {"v": xr.Variable("t", da.arange(300_000, chunks=77_777))},
    "attributes": {
        "v": variable(
            NUMBERS,
            attrs={
                "units": "m s-1",
                "valid_range": np.array([1, 2], "i2"),
                "float": np.float32(0.5),
                "flag_values": [1, 2, 4],
                "number": 3,
                "yes": True,
                "unicode": "Größe",
                "empty": "",
                "texts": ["a", "b"],
            },
        )
    },
}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr and xarray tell much about types and metadata
        yield


def documents(root):
    found = {p.parent.relative_to(root).as_posix(): json.loads(p.read_text())
             for p in root.rglob("zarr.json")}  # fmt: skip
    return dict(sorted(found.items()))


def without_layout(document):
    """What a document says of an array, apart from its chunks and codecs; and all of a group."""
    left = {k: v for k, v in document.items() if k not in ("chunk_grid", "codecs")}
    # zarr 3.1.0 does not sort them, and says so of a group without any.
    if listed := left.pop("consolidated_metadata", None):
        left["consolidated_metadata"] = sorted(listed["metadata"])
    return left


def check_as_xarray(given, tmp_path, **how):
    """Both ways of reading find the same in what both have written."""
    ours, theirs = tmp_path / "ours.zarr", tmp_path / "theirs.zarr"
    result = given.shardwrite.to_zarr(ours, **how)
    given.to_zarr(theirs, zarr_format=3, **{k: how[k] for k in ("group", "encoding") if k in how})
    group = how.get("group")
    for consolidated in (True, False) if group is None else (False,):
        with (
            xr.open_zarr(ours, group=group, consolidated=consolidated) as found,
            xr.open_zarr(theirs, group=group, consolidated=False) as wanted,
        ):
            xr.testing.assert_identical(found, wanted)
            xr.testing.assert_identical(found.load(), wanted.load())
    made, expected = documents(ours), documents(theirs)
    assert {k: without_layout(v) for k, v in made.items()} == {
        k: without_layout(v) for k, v in expected.items()
    }
    return result


@pytest.mark.parametrize("name", CASES)
def test_it_is_what_xarray_writes(tmp_path, name):
    check_as_xarray(xr.Dataset(CASES[name], attrs={"title": name}), tmp_path)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("how", [{}, {"units": "hours since 1999-01-01", "dtype": "i4"}])
def test_a_calendar_without_leap_days(tmp_path, lazy, how):
    pytest.importorskip("cftime")
    times = xr.date_range("2000-02-28", periods=4, calendar="noleap", use_cftime=True)
    bounds = np.stack([times.values, times.values], axis=1)
    how = {"calendar": "noleap", **how}
    ds = xr.Dataset(
        {
            "v": variable(times.values, dims="t", lazy=lazy, **how),
            "w": variable(bounds, lazy=lazy, calendar="noleap"),
        }
    )
    check_as_xarray(ds, tmp_path)


def many():
    """A dataset with coordinates of all kinds."""
    ds = xr.Dataset(
        {
            "temperature": variable(HOLES, dtype="i2", scale_factor=0.5, _FillValue=-9),
            "crs": variable(0, dims=(), lazy=False, attrs={"grid_mapping_name": "x"}),
            "name": variable(["a", "b", "c"], dims="x", lazy=False),
        },
        coords={
            "t": TIMES,
            "x": [10, 20, 30],
            "lat": (("t", "x"), da.from_array(NUMBERS * 2, chunks=2)),
            "run": 3,
            "label": ("x", np.array(["p", "q", "r"], object)),
        },
        attrs={"title": "many", "version": np.int64(3)},
    )
    ds["temperature"].encoding["grid_mapping"] = "crs"
    return ds


@pytest.mark.compat
@pytest.mark.parametrize("group", [None, "model", "/model/run/", "//model///run", "model\\run"])
def test_coordinates_and_groups(tmp_path, group):
    check_as_xarray(many(), tmp_path, group=group)


@pytest.mark.long
def test_what_encoding_says_takes_the_place_of_what_a_variable_says(tmp_path):
    ds = many()
    encoding = {"temperature": {"dtype": "f4"}, "t": {"units": "days since 1990-01-01"}}
    check_as_xarray(ds, tmp_path, encoding=encoding)
    assert ds["temperature"].encoding["dtype"] == "i2"


@pytest.mark.parametrize("name", ["v", None, "x", "lat"])
def test_an_array_with_and_without_a_name(tmp_path, name):
    array = many()["temperature"].rename(name)
    if name == "lat":
        array = array.drop_vars("lat")
    array.shardwrite.to_zarr(tmp_path / "ours.zarr")
    array.to_zarr(tmp_path / "theirs.zarr", zarr_format=3)
    with (
        xr.open_dataarray(tmp_path / "ours.zarr", engine="zarr") as found,
        xr.open_dataarray(tmp_path / "theirs.zarr", engine="zarr") as wanted,
    ):
        assert found.name == name
        xr.testing.assert_identical(found, wanted)


@pytest.mark.compat
def test_functions_do_what_the_methods_do(tmp_path):
    how = {"chunks": {"t": 2}, "memory_limit": "1GB"}
    plan = shardwrite.plan_dataset(many(), **how)
    assert plan.to_json() == many().shardwrite.plan(**how).to_json()
    result = shardwrite.write_dataset(many(), tmp_path / "x.zarr", **how)
    assert [*result.variables] == [*plan.variables] == [*many().variables]
    assert many().shardwrite.to_zarr(tmp_path / "x.zarr", **how).n_resumed_shards > 0


def tree():
    return xr.DataTree.from_dict(
        {
            "/": xr.Dataset({"top": ("x", [1, 2, 3])}, {"x": [10, 20, 30]}, {"title": "root"}),
            "/fine": xr.Dataset({"v": (("x", "y"), da.ones((3, 4)))}, attrs={"level": 0}),
            "/fine/more": xr.Dataset({"w": ("y", da.arange(4))}, {"x": [10, 20, 30]}),
            "/coarse": xr.Dataset({"v": ("z", da.zeros(2))}),
            "/only": xr.Dataset(attrs={"variables": "below"}),
            "/empty": xr.Dataset(attrs={"variables": "none"}),
            "/empty/inside": xr.Dataset(),
            "/only/below": xr.Dataset({"v": ("z", da.zeros(2))}),
        }
    )


@pytest.mark.parametrize("encoding", [None, {"/fine": {"v": {"dtype": "f4"}}}])
def test_a_tree_is_one_run(tmp_path, encoding):
    ours, theirs = tmp_path / "ours.zarr", tmp_path / "theirs.zarr"
    result = tree().shardwrite.to_zarr(ours, encoding=encoding)
    tree().to_zarr(theirs, encoding=encoding, zarr_format=3)
    assert set(result.variables) == {
        *("top", "x", "fine/v", "coarse/v", "fine/more/w", "only/below/v")
    }
    with (
        xr.open_datatree(ours, engine="zarr") as found,
        xr.open_datatree(theirs, engine="zarr") as wanted,
    ):
        xr.testing.assert_identical(found, wanted)
        xr.testing.assert_identical(found.load(), wanted.load())
    assert {k: without_layout(v) for k, v in documents(ours).items()} == {
        k: without_layout(v) for k, v in documents(theirs).items()
    }


@pytest.mark.long
def test_large_values_without_dask_are_read_by_the_tasks(tmp_path):
    """They are encoded there, too, and are neither loaded nor copied as a whole before."""
    values = np.random.default_rng(0).normal(size=(300, 1000))
    how = {"dtype": "i2", "scale_factor": 1e-3, "_FillValue": -9}
    ds = xr.Dataset({"v": (("t", "x"), values, {}, how)}, {"far": (("t", "x"), values)})
    plan = ds.shardwrite.plan()
    assert plan.variables["v"].source.n_tasks > 1
    check_as_xarray(ds, tmp_path)
    with xr.open_zarr(tmp_path / "theirs.zarr", chunks=None) as lazy:
        again = tmp_path / "again.zarr"
        lazy.shardwrite.to_zarr(again)
        with xr.open_zarr(again) as found:
            xr.testing.assert_identical(found.load(), lazy.load())


@pytest.mark.long
def test_what_was_written_in_shards_is_written_in_shards_again(tmp_path):
    """The sizes of the store that was read say nothing of the new one (xarray's issue 11460)."""
    ds = xr.Dataset({"v": (("t", "x"), da.random.random((400, 1000), chunks=(77, 1000)))})
    first, second = tmp_path / "first.zarr", tmp_path / "second.zarr"
    how = {"shards": {"t": 100}, "chunks": {"t": 10, "x": 100}}
    ds.shardwrite.to_zarr(first, **how)
    with xr.open_zarr(first) as found:
        assert found["v"].encoding["shards"] == (100, 1000)
        half = found.isel(t=slice(3, 301))
        half.shardwrite.to_zarr(second, shards={"t": 60}, chunks={"t": 20})
        with xr.open_zarr(second) as again:
            xr.testing.assert_identical(again.load(), half.load())
            assert again["v"].encoding["shards"] == (60, 1000)
    assert shardwrite.verify(second / "v", deep=True).is_good
