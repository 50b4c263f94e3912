"""Sizes by dimension, in bytes and by variable; and what is refused before any task runs."""

from __future__ import annotations

import warnings

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import shardwrite
from shardwrite import SpecError

xr = pytest.importorskip("xarray")
pd = pytest.importorskip("pandas")

from shardwrite.datasets.layout import SizesByName  # noqa: E402


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr tells about types
        yield


def year(**more):
    shape = (730, 181, 360)
    x = da.zeros(shape, chunks=(31, 181, 360), dtype="f4")
    return xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), x),
            "mask": (("lat", "lon"), np.ones(shape[1:], "u1")),
            "area": (("lat", "lon"), da.ones(shape[1:], dtype="f8", chunks=90) * 3, {}, more),
            "huge": (("lon", "time"), da.ones((360, 730), dtype="f8")),
        },
        {"time": np.arange(730), "lat": np.linspace(-90, 90, 181)},
    )


def grids(**how):
    plan = year().shardwrite.plan(**how)
    return {
        name: (p.metadata.grid.shards if p.metadata.is_sharded else None, p.metadata.grid.chunks)
        for name, p in plan.variables.items()
    }


def test_sizes_along_dimensions():
    found = grids(shards={"time": 120, ...: -1}, chunks={"time": 24, "lat": 60, "lon": 60})
    assert found["t2m"] == ((120, 240, 360), (24, 60, 60))
    assert found["huge"] == ((360, 120), (60, 24)), "the dimensions count, and not their order"
    assert found["mask"] == (None, (181, 360)), "what is small is one piece"
    assert found["area"] == (None, (181, 360))
    assert found["time"] == (None, (730,))


def test_what_is_not_named_is_whole_and_what_is_longer_ends_with_it():
    found = grids(shards={"time": 9999}, chunks={"time": 100})
    assert found["t2m"] == ((800, 181, 360), (100, 181, 360))
    found = grids(shards={...: 90, "time": -1}, chunks={...: 30, "time": 73})
    assert found["t2m"] == ((730, 90, 90), (73, 30, 30))


def test_sizes_in_bytes_and_those_that_are_left_out():
    by_bytes = grids(shards="20MB", chunks="1MB")["t2m"]
    plan = year().shardwrite.plan(shards="20MB", chunks="1MB").variables["t2m"]
    assert 8e6 < np.prod(by_bytes[0]) * 4 <= 20e6
    assert plan.metadata.is_sharded
    assert grids()["t2m"] == (lambda p: (p.metadata.grid.shards, p.metadata.grid.chunks))(
        shardwrite.plan(year()["t2m"].data)
    )
    assert grids(shards=None)["t2m"][0] is None


def test_a_number_of_chunks_in_a_shard():
    found = grids(shards=4, chunks={"time": 24, "lat": 60, "lon": 60})
    assert found["t2m"] == ((96, 240, 240), (24, 60, 60))
    assert found["huge"] == ((240, 96), (60, 24))
    assert found["mask"] == (None, (181, 360))
    assert grids(shards=np.int64(1), chunks={...: 90})["t2m"] == ((90, 90, 90), (90, 90, 90))
    shards, chunks = grids(shards=2)["t2m"]
    assert all(s in (c, 2 * c) for s, c in zip(shards, chunks, strict=True))
    own = grids(shards=2, encoding={"t2m": {"chunks": (10, 181, 360), "shards": (100, 181, 360)}})
    assert own["t2m"] == ((100, 181, 360), (10, 181, 360))


def test_sizes_along_a_dimension_that_grows(tmp_path):
    """The first steps do not shorten what is asked for."""
    few = year().isel(time=slice(2))
    how = {"append_dim": "time", "shards": {"time": 720}, "chunks": {"time": 24, "lat": 60}}
    plan = few.shardwrite.plan(tmp_path / "x.zarr", **how)
    grid = plan.variables["t2m"].metadata.grid
    assert (grid.shards, grid.chunks) == ((720, 240, 360), (24, 60, 360))
    grid = plan.variables["time"].metadata.grid
    assert (grid.shards, grid.chunks) == ((720,), (24,))
    assert not plan.variables["mask"].metadata.is_sharded


@pytest.mark.parametrize("how", [{}, {"append_dim": "time"}], ids=["length 0", "append"])
def test_sizes_along_a_dimension_without_steps(tmp_path, how):
    """It is there to grow."""
    none, sizes = year().isel(time=slice(0)), {"shards": {"time": 720}, "chunks": {"time": 24}}
    grid = none.shardwrite.plan(tmp_path / "x.zarr", **sizes, **how).variables["t2m"].metadata.grid
    assert (grid.shards[0], grid.chunks[0]) == (720, 24)


def test_inner_chunks_that_are_left_out_are_not_thin():
    shards, chunks = grids(shards={"time": 64, ...: -1})["t2m"]
    assert shards[0] == 64
    assert 181 <= shards[1] <= 204, "at most an eighth longer"
    assert min(chunks) >= 16


def test_sizes_of_single_variables():
    encoding = {
        "t2m": {"chunks": (10, 181, 360), "shards": (100, 181, 360)},
        "area": {"chunks": (50, 50)},
        "mask": {"shards": (200, 400), "chunks": 100},
        "huge": {"shards": None},
    }
    found = grids(encoding=encoding, shards={"lat": 100})
    assert found["t2m"] == ((100, 181, 360), (10, 181, 360))
    assert found["area"] == ((100, 400), (50, 50))
    assert found["mask"] == ((200, 400), (100, 100))
    assert found["huge"][0] is None


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=3),
    st.lists(st.sampled_from([-1, 1, 7, 64, 1000]), min_size=3, max_size=3),
    st.lists(st.sampled_from([-1, 1, 7, 64, 1000]), min_size=3, max_size=3),
)
def test_any_sizes_give_shards_of_whole_chunks(shape, shards, factors):
    dims = "xyz"[: len(shape)]
    chunks = dict(zip(dims, shards, strict=False))
    given_shards = {
        d: c * f if c > 0 and f > 0 else -1
        for (d, c), f in zip(chunks.items(), factors, strict=False)
    }
    found, inner = SizesByName(given_shards, chunks).of(dims, tuple(shape), 2**21, {})
    for n, d, s, c in zip(shape, dims, found, inner, strict=True):
        assert s % c == 0
        assert 1 <= c <= max(1, n)
        assert s >= min(n, given_shards[d] if given_shards[d] > 0 else n)
        assert s < max(1, n) + c or s == given_shards[d]


REFUSED = {
    "lists of several lengths": (
        {"encoding": {"t2m": {"shards": {"time": [1, 2]}}}},
        r"shards.*'t2m' with dimensions.*\[1, 2\] is no size",
    ),
    "a slice for a variable": (
        {"encoding": {"t2m": {"chunks": {"time": slice("a")}}}},
        "chunks.*'t2m' with dimensions.*slice.*is no size",
    ),
    "a float for a variable": (
        {"encoding": {"mask": {"shards": {"lat": 1.5}}}},
        "shards.*'mask' with dimensions.*1.5 is no size",
    ),
    "a dimension that a variable lacks": (
        {"encoding": {"mask": {"shards": {"time": 8}}}},
        "shards.*'mask' with dimensions.*no variable has a dimension 'time'.*lat, lon",
    ),
    "a size of no dimension": (
        {"shards": {"tme": 3}},
        "no variable has a dimension 'tme'.*lat, lon, time",
    ),
    "a tuple for all": ({"shards": (3, 4)}, "no sizes by the names of dimensions.*encoding"),
    "a number for all": ({"chunks": 8}, "no sizes by the names of dimensions"),
    "no chunks": ({"shards": 0}, "no sizes by the names of dimensions.*a number of chunks"),
    "zero": ({"chunks": {"time": 0}}, "0 is no size"),
    "a text as a size": ({"chunks": {"time": "all"}}, "'all' is no size"),
    "no bytes": ({"shards": "lots"}, "shards='lots'.*not a positive number of bytes"),
    "shards of parts of chunks": (
        {"shards": {"time": 50}, "chunks": {"time": 40}},
        r"not a multiple of the inner chunk on axis 0.*80",
    ),
    "sizes of no variable": ({"encoding": {"t3m": {}}}, "no such variable.*t2m"),
    "no mapping": ({"encoding": {"t2m": 5}}, "no mapping of mappings"),
    "what zarr does not know": (
        {"encoding": {"t2m": {"zlib": True}}},
        r"xarray cannot write 't2m' with dimensions .*unexpected encoding",
    ),
    "a group that is no path": ({"group": 5}, "not a path"),
    "a name that is reserved": ({"group": "__x"}, "not a relative path of plain names"),
    "a mode of other functions": ({"mode": "r"}, "no such mode"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_keywords_are_refused_before_anything_is_written(tmp_path, name):
    how, told = REFUSED[name]
    with pytest.raises(SpecError, match=told):
        year().shardwrite.to_zarr(tmp_path / "x.zarr", **how)
    assert list(tmp_path.iterdir()) == []


def test_keywords_that_are_unknown():
    with pytest.raises(TypeError, match="shard'; give shards"):
        year().shardwrite.plan(shard=3)
    for word, remedy in {
        "safe_chunks": "leave it out",
        "zarr_format": "leave it out.*v3",
    }.items():
        with pytest.raises(TypeError, match=f"'{word}'; .*{remedy}"):
            shardwrite.write_dataset(year(), "x.zarr", **{word: "time"})


def test_a_text_that_is_no_size_is_refused_where_no_variable_is_large():
    with pytest.raises(SpecError, match="not a positive number of bytes"):
        xr.Dataset({"v": ("x", [1, 2])}).shardwrite.plan(shards="8 lightyears")


def never(block):
    raise AssertionError("a task runs")


def lazily(dtype):
    return da.ones((4, 3)).map_blocks(never, dtype=dtype, meta=np.empty((0, 0), dtype))


TIMES = np.array(["2000-01-02"], "M8[ns]")


def lazy_times(**encoding):
    values = da.ones(3).map_blocks(never, dtype=TIMES.dtype, meta=TIMES[:0])
    return xr.Variable("x", values, {}, encoding)


BAD = {
    "objects": (
        lambda: xr.Dataset({"ok": 1, "v": (("t", "x"), lazily(object))}),
        r"'v' with dimensions \('t', 'x'\) is a dask array of objects.*load",
    ),
    "mixed objects": (
        lambda: xr.Dataset({"v": ("x", np.array([1, "a", {}], object))}),
        "cannot write 'v' with dimensions .'x',.*mixed",
    ),
    "unknown sizes": (
        lambda: xr.Dataset({"v": ("x", da.ones(5)[da.ones(5) > 0])}),
        "'v' with dimensions .'x',. has unknown sizes.*compute_chunk_sizes",
    ),
    "a name that is no text": (lambda: xr.Dataset({3: ("x", [1, 2])}), "name of a variable"),
    "a name with a slash": (lambda: xr.Dataset({"a/b": ("x", [1, 2])}), "'a/b' holds a slash"),
    "a name with a backslash": (
        lambda: xr.Dataset({"a\\b": ("x", [1, 2])}),
        "'a.*b' holds a backslash.*rename",
    ),
    "a dimension without a name": (
        lambda: xr.Dataset({"v": ((3,), [1, 2])}),
        "name of a dimension",
    ),
    "a name that no directory has": (
        lambda: xr.Dataset({"v" * 300: ("x", [1, 2])}),
        "variable 'vvv.*not a relative path of plain names",
    ),
    "attributes that are no JSON": (
        lambda: xr.Dataset({"v": ("x", [1, 2], {"limit": np.nan})}),
        "attribute 'limit' of 'v' holds NaN.*remove it, or make it text",
    ),
    "attributes of a group that are no JSON": (
        lambda: xr.Dataset({"v": ("x", [1, 2])}, attrs={"limits": [0, np.inf]}),
        "attribute 'limits' of 'the dataset' holds NaN or an infinite number",
    ),
    "attributes that are no text": (
        lambda: xr.Dataset({"v": ("x", [1, 2], {"units": "\udcb0C"})}),
        "attribute 'units' of 'v' holds bytes that are no text in UTF-8.*decode it in",
    ),
    "a missing value that is no JSON": (
        lambda: xr.Dataset({"v": ("x", [1.0, 2.0], {}, {"missing_value": np.nan})}),
        "attribute 'missing_value' of 'v' holds NaN.*encoding",
    ),
    "attributes of any class": (
        lambda: xr.Dataset({"v": ("x", [1, 2], {"what": object()})}),
        "cannot write 'v'",
    ),
    "a type of pandas": (
        lambda: xr.Dataset({"v": ("x", pd.array([1, None], dtype="Int64"), {}, {"dtype": "i4"})}),
        r"'v' .* is of Int64, a type of pandas.*ds\['v'\].astype\(float\)",
    ),
    "a large variable of a type of pandas": (
        lambda: xr.Dataset({"v": ("x", pd.array(np.arange(200_000), dtype="Int64"))}),
        "is of Int64, a type of pandas",
    ),
    "a dtype of times that numpy does not know": (
        lambda: xr.Dataset(
            {"v": ("x", TIMES, {}, {"units": "hours since 2000-01-01", "dtype": "x"})}
        ),
        "cannot write 'v'.*'x' not understood",
    ),
    "units of times that are no text": (
        lambda: xr.Dataset({"v": ("x", TIMES, {}, {"units": 5, "dtype": "i4"})}),
        "cannot write 'v'.*expected string",
    ),
    "units of lazy times that are no text": (
        lambda: xr.Dataset({"v": lazy_times(units=5, dtype="i4")}),
        "encoding=.*'v' has times, and their units must be text; give text",
    ),
    "a calendar of lazy times that is no text": (
        lambda: xr.Dataset(
            {"v": lazy_times(units="days since 2000-01-01", dtype="i4", calendar=5)}
        ),
        "encoding=.*'v' has times, and their calendar must be text",
    ),
    "several levels": (
        lambda: (
            xr.Dataset(coords={"z": ("z", [1, 2, 3, 4])})
            .assign_coords(a=("z", [1, 1, 2, 2]), b=("z", [1, 2, 1, 2]))
            .drop_vars("z")
            .set_index(z=("a", "b"))
        ),
        "cannot write 'z'.*reset_index",
    ),
    "nothing": (lambda: xr.Dataset(), "no variables"),
    "a tree of nothing": (lambda: xr.DataTree.from_dict({"/b": xr.Dataset()}), "no variables"),
    "no object of xarray": (lambda: np.ones(3), "not of xarray.*Dataset"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_objects_are_refused_before_any_task_runs(tmp_path, name):
    make, told = BAD[name]
    try:
        ds = make()
    except ValueError:
        pytest.skip("xarray makes no such object")
    with pytest.raises(SpecError, match=told):
        shardwrite.write_dataset(ds, tmp_path / "x.zarr")
    assert list(tmp_path.iterdir()) == []


def test_a_type_of_pandas_is_made_one_of_numpy(tmp_path):
    ds = xr.Dataset({"v": ("x", pd.array([1.5, None], dtype="Float64"))})
    with pytest.raises(SpecError, match="a type of pandas"):
        ds.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits=5)
    ds["v"] = ds["v"].astype(float)
    ds.shardwrite.to_zarr(tmp_path / "x.zarr")
    with xr.open_zarr(tmp_path / "x.zarr") as found:
        np.testing.assert_array_equal(found["v"], [1.5, np.nan])


def test_dimensions_that_differ(tmp_path):
    """xarray makes no dataset of them; what a tree has beside each other may differ."""
    tree = xr.DataTree.from_dict(
        {"/a": xr.Dataset({"v": ("x", [1, 2])}), "/b": xr.Dataset({"v": ("x", [1, 2, 3])})}
    )
    tree.shardwrite.to_zarr(tmp_path / "x.zarr")
    with xr.open_datatree(tmp_path / "x.zarr", engine="zarr") as found:
        xr.testing.assert_identical(found, tree)


def test_codecs(tmp_path):
    x = da.arange(600_000, chunks=100_000)
    ds = xr.Dataset({"a": ("x", x), "b": ("x", x)})
    gzip = zarr.codecs.GzipCodec(level=3)
    ds.shardwrite.to_zarr(
        tmp_path / "x.zarr", encoding={"a": {"compressors": (gzip,)}}, shards={"x": 200_000}
    )
    array = zarr.open_array(tmp_path / "x.zarr" / "a")
    names = [type(codec).__name__ for codec in array.compressors]
    assert names == ["GzipCodec"], "exactly what was asked for"
    with xr.open_zarr(tmp_path / "x.zarr", chunks={"x": 100_000}) as found:
        found.shardwrite.to_zarr(tmp_path / "y.zarr")
        xr.testing.assert_identical(found.load(), ds.load())
    for name in "ab":
        array = zarr.open_array(tmp_path / "y.zarr" / name)
        first = "GzipCodec" if name == "a" else "ZstdCodec"
        assert [type(c).__name__ for c in array.compressors] == [first, "Crc32cCodec"]
    ds.shardwrite.to_zarr(tmp_path / "plain.zarr", encoding={"a": {"compressors": None}})
    assert zarr.open_array(tmp_path / "plain.zarr" / "a").compressors == ()
    with pytest.raises(SpecError, match="'a'"):
        ds.shardwrite.to_zarr(tmp_path / "z.zarr", encoding={"a": {"compressors": "no such"}})


@pytest.mark.parametrize("strategy", ["append-only", "morton", "hdf5"])
def test_strategies_are_for_variables_that_have_shards(tmp_path, strategy):
    if strategy == "hdf5":
        pytest.importorskip("h5py")
        pytest.importorskip("hdf5plugin")
    x = da.random.random((400, 1000), chunks=(77, 1000))
    ds = xr.Dataset({"v": (("t", "x"), x)}, {"t": np.arange(400), "run": 3})
    ds.shardwrite.to_zarr(tmp_path / "x.zarr", shards={"t": 200}, strategy=strategy)
    with xr.open_zarr(tmp_path / "x.zarr") as found:
        xr.testing.assert_identical(found.load(), ds.compute())
    how = {"shards": None, "strategy": "hdf5"}
    with pytest.raises(SpecError, match=r"variable .v.*makes files of HDF5 from shards"):
        ds.shardwrite.to_zarr(tmp_path / "y.zarr", **how)


def test_what_is_shown(tmp_path):
    plan = year().shardwrite.plan(shards={"time": 100})
    text = str(plan)
    assert "variables" in text
    assert "(time 730, lat 181, lon 360)" in text
    assert plan.n_shards == sum(p.n_shards for p in plan.variables.values())
    assert plan.to_dict()["variables"]["t2m"] == plan.variables["t2m"].to_dict()
    assert plan.to_dict()["raw_nbytes"] == plan.raw_nbytes
    assert "<DatasetPlan: 6 variables" in repr(plan)
    assert "t2m" in plan._repr_html_()
    result = year().isel(time=slice(0, 3)).shardwrite.to_zarr(tmp_path / "x.zarr")
    assert "t2m" in str(result)
    assert result.path == str(tmp_path / "x.zarr")
    assert result.to_dict()["n_shards"] == result.n_shards
    assert "<DatasetResult of" in repr(result)
    assert "t2m" in result._repr_html_()


def test_plans_for_a_place(tmp_path):
    plan = shardwrite.plan_dataset(year(), tmp_path / "x.zarr", group="g")
    assert plan.variables["t2m"].traffic is None
    assert list(tmp_path.iterdir()) == []
