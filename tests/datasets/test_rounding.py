"""Mantissas are rounded before values are encoded, and attributes of CF tell so."""

from __future__ import annotations

import warnings

import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numcodecs.bitround import BitRound

import shardwrite
from shardwrite import JournalError, SpecError

xr = pytest.importorskip("xarray")

from shardwrite.datasets.rounding import bit_round  # noqa: E402


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr tells about types and metadata
        yield


def expected(values, n_bits):
    codec = BitRound(keepbits=n_bits)
    return codec.decode(codec.encode(np.array(values))).reshape(np.shape(values))


@given(
    st.sampled_from(["f2", "f4", "f8", ">f4"]),
    st.integers(1, 52),
    st.integers(0, 2**32 - 1),
)
def test_values_are_those_of_numcodecs(dtype, n_bits, seed):
    dtype = np.dtype(dtype)
    n_bits = min(n_bits, np.finfo(dtype).nmant)
    rng = np.random.default_rng(seed)
    values = (rng.normal(size=(5, 7)) * 10.0 ** rng.integers(-3, 4, (5, 7))).astype(dtype)
    found = bit_round(values, n_bits)
    assert found.dtype == dtype
    native = values.astype(dtype.newbyteorder("="))
    np.testing.assert_array_equal(found, expected(native, n_bits))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_ties_go_to_even_and_what_is_no_finite_number_stays(dtype):
    info = np.finfo(dtype)
    step = np.array(2.0**-2, dtype)
    ties = np.array([1 + step / 2, 1 + step * 3 / 2, -1 - step / 2, 1 + step / 2 + info.eps], dtype)
    np.testing.assert_array_equal(bit_round(ties, 2), [1, 1 + step * 2, -1, 1 + step])
    bits = np.array([-1], f"i{info.dtype.itemsize}")  # NaN of which all bits are set
    odd = np.concatenate([[np.nan, np.inf, -np.inf, 0, -0.0, info.max, info.min], bits.view(dtype)])
    odd = odd.astype(dtype)
    found = bit_round(odd, 2)
    np.testing.assert_array_equal(found, odd)
    np.testing.assert_array_equal(np.signbit(found[:-1]), np.signbit(odd[:-1]))
    small = np.array([info.smallest_subnormal * 5], dtype)
    np.testing.assert_array_equal(bit_round(small, 3), expected(small, 3))
    assert bit_round(np.array(1 + info.eps, dtype), 2).shape == ()


def fields(n=24, chunks=5, **encoding):
    """Floats of dask and numpy, and what is never rounded."""
    x = np.random.default_rng(0).normal(size=(n, 30)) * 20 + 280
    x[2, :4] = np.nan
    axes = ("time", "x")
    return xr.Dataset(
        {
            "t2m": xr.Variable(axes, da.from_array(x.astype("f4"), (chunks, 30)), {"units": "K"}, encoding),
            "rain": (axes, da.from_array(x, (chunks, 30))),
            "eager": ("x", x[3].astype("f4")),
            "count": (axes, (x[:, ::-1] > 280).astype("i4")),
            "x_bounds": (("x", "b"), np.linspace(0, 1, 60).reshape(30, 2)),
        },
        {
            "time": np.arange(n) / 3,
            "x": ("x", np.linspace(0, 1, 30), {"bounds": "x_bounds"}),
            "height": 2.123456789,
        },
    )  # fmt: skip


def check_rounded(root, ds, bits):
    """Values are rounded as numcodecs rounds them, and no others are."""
    with xr.open_zarr(root) as found:
        found.load()
        for name, variable in ds.compute().variables.items():
            wanted = expected(variable.values, bits[name]) if name in bits else variable.values
            np.testing.assert_array_equal(found[name].values, wanted)
            attrs = found[name].attrs
            assert attrs.get("quantization_nsb") == bits.get(name)
            assert ("quantization" in attrs) == (name in bits)
            if name in bits:
                info = found[attrs["quantization"]]
                assert info.shape == ()
                assert info.attrs["algorithm"] == "bitround"
                assert (
                    info.attrs["implementation"] == f"shardwrite version {shardwrite.__version__}"
                )


def test_all_floats_but_coordinates_and_what_describes_them(tmp_path):
    ds = fields()
    ds.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits=7, shards={"time": 12}, chunks={"time": 4})
    check_rounded(tmp_path / "x.zarr", ds, dict.fromkeys(["t2m", "rain", "eager"], 7))
    array = zarr.open_array(tmp_path / "x.zarr" / "t2m")
    assert array.filters == (), "other readers know no such filter"
    assert fields()["t2m"].attrs == {"units": "K"}, "the user's object stays"


def test_single_variables(tmp_path):
    ds = fields()
    bits = {"t2m": 23, "rain": 30, "x_bounds": 9}
    ds.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits={**bits, "eager": None})
    check_rounded(tmp_path / "x.zarr", ds, bits)
    assert "quantization_nsb" not in str(ds.shardwrite.plan().variables["t2m"].metadata.document)
    document = ds.shardwrite.plan(keep_bits={"t2m": 8}).variables["t2m"].metadata.document
    assert document["attributes"]["quantization_nsb"] == 8


def test_fewer_bytes_are_stored(tmp_path):
    result = [
        fields(200).shardwrite.to_zarr(tmp_path / f"{n}.zarr", keep_bits=n).variables["rain"]
        for n in (None, 8)
    ]
    assert result[1].stored_nbytes < result[0].stored_nbytes / 2


@pytest.mark.parametrize("n", [24, 20_000])
def test_files_that_are_opened_without_chunks(tmp_path, n):
    """Small variables are loaded; large ones are read and rounded by tasks, never as a whole."""
    source = fields(n, chunks=max(5, n // 5))[["rain", "t2m"]]
    source.to_zarr(tmp_path / "source.zarr", zarr_format=3)
    with xr.open_zarr(tmp_path / "source.zarr", chunks=None) as found:
        found.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits=6)
        assert found["rain"].variable._in_memory is False
    check_rounded(tmp_path / "x.zarr", source, {"rain": 6, "t2m": 6})


def test_fill_values_stay(tmp_path):
    """Those that xarray puts in, and those of a dataset whose values it has not decoded."""
    missing = 9.969209968386869e36
    ds = fields(_FillValue=np.float32(missing))
    ds.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits={"t2m": 3})
    raw = xr.open_zarr(tmp_path / "x.zarr", mask_and_scale=False)["t2m"]
    assert (raw == np.float32(missing)).sum() == 4
    check_rounded(tmp_path / "x.zarr", ds, {"t2m": 3})
    ds.shardwrite.to_zarr(tmp_path / "whole.zarr")
    with xr.open_zarr(tmp_path / "whole.zarr", mask_and_scale=False) as undecoded:
        undecoded.shardwrite.to_zarr(tmp_path / "y.zarr", keep_bits={"t2m": 2})
    check_rounded(tmp_path / "y.zarr", ds, {"t2m": 2})


def test_a_smaller_dtype_is_stored(tmp_path):
    ds = fields()[["rain"]]
    encoding = {"rain": {"dtype": "f4"}}
    ds.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits=7, encoding=encoding)
    check_rounded(tmp_path / "x.zarr", ds, {"rain": 7})
    assert zarr.open_array(tmp_path / "x.zarr" / "rain").dtype == "f4"


PACKED = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -9}
REFUSED = {
    "more bits than there are": ({"keep_bits": 24}, {}, "of 't2m', which is float32.*from 1 to 23, or bits by"),
    "more than any dtype has": ({"keep_bits": 53}, {}, "from 1 to 52"),
    "none": ({"keep_bits": 0}, {}, "not a number of bits"),
    "a bool": ({"keep_bits": True}, {}, "not a number of bits"),
    "a text": ({"keep_bits": "12"}, {}, "not a number of bits"),
    "a part of a bit": ({"keep_bits": {"rain": 1.5}}, {}, "of 'rain', which is float64.*from 1 to 52"),
    "no variable": ({"keep_bits": {"t3m": 3}}, {}, "no such variable.*t2m, rain"),
    "a coordinate": ({"keep_bits": {"height": 3}}, {}, "a coordinate, which is never rounded"),
    "whole numbers": ({"keep_bits": {"count": 3}}, {}, "a variable of int32, and only floats"),
    "packed": ({"keep_bits": 7}, PACKED, "'t2m' is stored as int16 with 'scale_factor'.*without this one"),
    "packed by the call": (
        {"keep_bits": 7, "encoding": {"rain": PACKED}},
        {},
        "keep_bits='rain': .*'rain' is stored as int16",
    ),
    "a dtype that numpy does not know": (
        {"keep_bits": 7, "encoding": {"rain": {"dtype": "foo"}}},
        {},
        "cannot write 'rain'.*'foo' not understood",
    ),
    "stored in less": (
        {"keep_bits": {"rain": 12}, "encoding": {"rain": {"dtype": "f2"}}},
        {},
        "'rain' is stored as float16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_bad_bits_are_refused(tmp_path, name):
    how, encoding, told = REFUSED[name]
    with pytest.raises(SpecError, match=told):
        fields(**encoding).shardwrite.to_zarr(tmp_path / "x.zarr", **how)
    assert list(tmp_path.iterdir()) == []


def test_a_variable_of_the_name_that_the_dataset_has(tmp_path):
    """The dataset was quantized before, by another algorithm, and has a variable that says so."""
    ds = fields()[["t2m", "rain"]]
    how = {"algorithm": "bitgroom", "implementation": "libnetcdf version 4.9.2"}
    ds["quantization_info"] = ((), 0, how)
    for name, n in (("t2m", 4), ("rain", 5)):
        ds[name].attrs |= {"quantization": "quantization_info", "quantization_nsd": n}
    ds.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits={"t2m": 7})
    attrs = xr.open_zarr(tmp_path / "x.zarr").variables
    assert attrs["quantization_info"].attrs == how
    assert attrs["rain"].attrs["quantization_nsd"] == 5
    assert "quantization_nsd" not in attrs["t2m"].attrs
    assert attrs[attrs["t2m"].attrs["quantization"]].attrs["algorithm"] == "bitround"


@pytest.mark.long
def test_what_was_rounded_is_written_again(tmp_path):
    ds = fields()
    ds.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits=7)
    with xr.open_zarr(tmp_path / "x.zarr") as found:
        found.shardwrite.to_zarr(tmp_path / "y.zarr")
        found.shardwrite.to_zarr(tmp_path / "z.zarr", keep_bits=7)
        for name in ("y", "z"):
            xr.testing.assert_identical(
                xr.open_zarr(tmp_path / f"{name}.zarr").load(), found.load()
            )


def test_trees(tmp_path):
    tree = xr.DataTree.from_dict({"/": fields()[["rain"]], "/low": fields()[["rain", "t2m"]]})
    tree.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits={"/low": {"t2m": 5}, "/": 9})
    found = xr.open_datatree(tmp_path / "x.zarr", engine="zarr")
    assert found["rain"].attrs["quantization_nsb"] == 9
    assert found["low/t2m"].attrs["quantization_nsb"] == 5
    assert "quantization_nsb" not in found["low/rain"].attrs
    assert "quantization_info" in found["low"].data_vars
    tree.shardwrite.to_zarr(tmp_path / "y.zarr", keep_bits=5)
    assert (
        xr.open_datatree(tmp_path / "y.zarr", engine="zarr")["low/rain"].attrs["quantization_nsb"]
        == 5
    )
    for bits, told in (
        ({"/los": 3}, "no such node.*/low"),
        ({"/low": {"t3m": 3}}, r"keep_bits\['/low'\]='t3m': no such variable"),
    ):
        with pytest.raises(SpecError, match=told):
            tree.shardwrite.plan(keep_bits=bits)


def test_an_array(tmp_path):
    fields()["rain"].shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits=5)
    assert xr.open_zarr(tmp_path / "x.zarr")["rain"].attrs["quantization_nsb"] == 5


# ---- Stores that are rounded


@pytest.fixture
def root(tmp_path):
    fields().isel(time=slice(0, 10)).shardwrite.to_zarr(
        tmp_path / "x.zarr", append_dim="time", keep_bits={"t2m": 7}, shards={"time": 8}
    )
    return tmp_path / "x.zarr"


@pytest.mark.long
def test_steps_are_rounded_as_those_of_the_store(root):
    more = fields().isel(time=slice(10, 24))
    for other in (None, 6, {"t2m": 8}, {"t2m": 7, "rain": 7}):
        with pytest.raises(
            SpecError, match=r"keep_bits=.*of the store is (not )?rounded"
        ) as refused:
            more.shardwrite.to_zarr(root, append_dim="time", keep_bits=other)
        assert "give {'t2m': 7}" in str(refused.value) or "leave it out" in str(refused.value)
    more.shardwrite.to_zarr(root, append_dim="time", keep_bits={"t2m": 7})
    check_rounded(root, fields(), {"t2m": 7})


@pytest.mark.long
def test_steps_that_say_that_they_are_rounded(root, tmp_path):
    more = fields().isel(time=slice(10, 24))
    more.shardwrite.to_zarr(tmp_path / "more.zarr", keep_bits={"t2m": 7})
    xr.open_zarr(tmp_path / "more.zarr").shardwrite.to_zarr(root, append_dim="time")
    check_rounded(root, fields(), {"t2m": 7})


def test_a_region_is_rounded_as_the_store(root):
    part = fields().isel(time=slice(3, 6))[["t2m"]].drop_vars(["x", "height"]) + 1
    with pytest.raises(SpecError, match="'t2m' of the store is rounded to 7 bits, and that of the"):
        part.shardwrite.to_zarr(root, region={"time": slice(3, 6)})
    part.shardwrite.to_zarr(root, region={"time": slice(3, 6)}, keep_bits=7)
    with xr.open_zarr(root) as found:
        wanted = expected(part["t2m"].values, 7)
        np.testing.assert_array_equal(found["t2m"][3:6].values, wanted)


@pytest.mark.parametrize("how", [{}, {"source_id": "one"}])
def test_another_number_of_bits_is_another_run(tmp_path, how):
    root = tmp_path / "x.zarr"

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(KeyboardInterrupt):
            fields().shardwrite.to_zarr(root, keep_bits=7, **how)
    with pytest.raises(JournalError):
        fields().shardwrite.to_zarr(root, keep_bits=6, **how)
    assert fields().shardwrite.to_zarr(root, keep_bits=7, **how).n_resumed_shards > 0
    check_rounded(root, fields(), dict.fromkeys(["t2m", "rain", "eager"], 7))


@pytest.mark.parametrize(
    ("first", "then", "remedy"),
    [
        (
            {"keep_bits": 7},
            {"keep_bits": 6},
            r"keep_bits=6: .*rounded to 7 bits.*give \{'\w+': 7\}",
        ),
        ({"keep_bits": 7}, {}, r"keep_bits=None: .*rounded to 7 bits.*give \{'\w+': 7\}"),
        ({}, {"keep_bits": 7}, r"keep_bits=7: .*is not rounded.*leave it out"),
    ],
)
def test_a_store_of_other_bits_is_refused_by_their_name(tmp_path, first, then, remedy):
    root = tmp_path / "x.zarr"
    fields().shardwrite.to_zarr(root, **first)
    other = {"mode": "w"} if then else {"group": "other"}
    told = 'mode="w"' if then else "another path or group"
    with pytest.raises(SpecError, match=f"{remedy}; or give {told}"):
        fields().shardwrite.to_zarr(root, **then)
    fields().shardwrite.to_zarr(root, **other, **then)


def test_the_same_call_is_the_same_run():
    """The names of tasks tell which source it is; see the keyword `source_id`."""
    ds = [fields(_FillValue=np.float32(1e20), missing_value=np.float32(1e20)) for _ in range(2)]
    plans = [one.shardwrite.plan(keep_bits=7).variables["t2m"] for one in ds]
    assert plans[0].identity == plans[1].identity
    assert plans[0].identity != ds[0].shardwrite.plan(keep_bits=6).variables["t2m"].identity


FILLS = {
    "rounded away from it": ("f4", [255.9, 1, 256], 5, {"_FillValue": 256.0}, [255.9, 1, np.nan]),
    "stored in another dtype": (
        "f8",
        [1e20, 1.2],
        3,
        {"dtype": "f4", "_FillValue": np.float32(1e20)},
        [np.nan, 1.25],
    ),
}


@pytest.mark.parametrize("case", FILLS)
@pytest.mark.parametrize("is_lazy", [True, False])
def test_nothing_becomes_a_fill_value_or_leaves_it(tmp_path, case, is_lazy):
    dtype, given, n_bits, encoding, wanted = FILLS[case]
    values = np.array(given, dtype)
    ds = xr.Dataset({"v": ("x", da.from_array(values) if is_lazy else values)})
    ds.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits=n_bits, encoding={"v": encoding})
    with xr.open_zarr(tmp_path / "x.zarr") as found:
        np.testing.assert_array_equal(found["v"], np.array(wanted, found["v"].dtype))


def test_an_append_leaves_the_fill_value_of_the_store(tmp_path):
    how = {"append_dim": "x", "keep_bits": 4}
    first = xr.Dataset({"v": ("x", np.array([np.nan, 1.2], "f4"))})
    first.shardwrite.to_zarr(tmp_path / "x.zarr", encoding={"v": {"_FillValue": -999.0}}, **how)
    more = xr.Dataset({"v": ("x", np.array([-999, 1.2], "f4"))})
    more.shardwrite.to_zarr(tmp_path / "x.zarr", **how)
    with xr.open_zarr(tmp_path / "x.zarr") as found:
        np.testing.assert_array_equal(found["v"], np.array([np.nan, 1.1875] * 2, "f4"))


@pytest.mark.parametrize("where", ["attrs", "encoding"])
def test_coordinates_that_only_an_attribute_names_are_not_rounded(tmp_path, where):
    values = np.array([1.2345, 2.3456], "f4")
    for told in (lambda ds: ds["v"], lambda ds: ds):
        ds = xr.Dataset({"v": ("x", values), "lat": ("x", values)})
        getattr(told(ds), where)["coordinates"] = "lat"
        ds.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits=4, mode="w")
        stored = zarr.open_group(tmp_path / "x.zarr")
        np.testing.assert_array_equal(stored["lat"][...], values)
        np.testing.assert_array_equal(stored["v"][...], bit_round(values, 4))


def test_one_variable_is_still_opened_as_an_array(tmp_path):
    array = xr.DataArray(np.array([1.2, 3.4], "f4"), dims="quantization_info", name="v")
    array.shardwrite.to_zarr(tmp_path / "x.zarr", keep_bits=4)
    with xr.open_dataarray(tmp_path / "x.zarr", engine="zarr") as found:
        assert found.attrs["quantization"] == "quantization_info_1"
        np.testing.assert_array_equal(found, np.array([1.1875, 3.375], "f4"))
