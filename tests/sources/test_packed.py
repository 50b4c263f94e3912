"""Packed files: values are decoded as xarray decodes them, and never go where they mean another."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import zarr
from helpers import run

import shardwrite
from shardwrite import ShardWriter, SpecError
from shardwrite.sources import as_dask, decoded, open_source

xarray = pytest.importorskip("xarray")
h5py = pytest.importorskip("h5py")
netcdf = pytest.importorskip("scipy.io")

PACKED = {"scale_factor": np.float64(0.5), "add_offset": np.float64(256.25)}
KINDS = ("netcdf3", "hdf5", "zarr2", "zarr3")
TYPES = {"netcdf3": ("i1", "i2", "i4", "f4", "f8")}


def make(path, kind, values, attributes, fill=None):
    """A file of a kind with the variable `t`; `fill` is the fill value of HDF5 or Zarr itself."""
    names = [f"d{axis}" for axis in range(values.ndim)]
    if kind == "netcdf3":
        with netcdf.netcdf_file(path, "w") as file:
            for name, n in zip(names, values.shape, strict=True):
                file.createDimension(name, n)
            variable = file.createVariable("t", values.dtype, names)
            variable[:] = values
            variable._attributes.update(attributes)
    elif kind == "hdf5":
        with h5py.File(path, "w") as file:
            for name, n in zip(names, values.shape, strict=True):
                file.create_dataset(name, data=np.arange(n)).make_scale(name)
            variable = file.create_dataset("t", data=values, chunks=True, fillvalue=fill)
            for axis, name in enumerate(names):
                variable.dims[axis].attach_scale(file[name])
            for name, value in attributes.items():
                variable.attrs[name] = value
    else:
        whole = xarray.Dataset({"t": (names, values, attributes)})
        how = (
            {"encoding": {"t": {"fill_value": fill}}}
            if kind == "zarr3" and fill is not None
            else {}
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole.to_zarr(path, zarr_format=int(kind[-1]), consolidated=False, **how)
    return path


def opened(path, kind):
    if kind.startswith("zarr"):
        return xarray.open_zarr(path, consolidated=False)
    return xarray.open_dataset(path, engine={"netcdf3": "scipy", "hdf5": "netcdf4"}[kind])


def random_variable(kind, seed):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(rng.choice(TYPES.get(kind, ("i1", "u1", "i2", "u2", "i4", "f4", "f8"))))
    values = rng.integers(0, 5, tuple(rng.integers(1, 6, rng.integers(1, 4)))).astype(dtype)
    attributes = {}
    number = rng.choice([np.float32, np.float64])
    if rng.integers(3):
        attributes["scale_factor"] = number(rng.choice([0.5, 0.1, 2]))
    if rng.integers(2):
        number = number if rng.integers(3) else np.float64
        attributes["add_offset"] = number(rng.choice([0, 273.15]))
    if rng.integers(3):
        attributes["_FillValue"] = dtype.type(rng.integers(0, 3))
    if rng.integers(3) == 0:
        attributes["missing_value"] = attributes.get("_FillValue", dtype.type(3))
    if rng.integers(3) == 0:
        attributes["valid_range"] = np.array([1, 2], dtype)
    if dtype.kind in "iu" and dtype.itemsize < 4 and rng.integers(3) == 0:
        attributes["_Unsigned"] = "true" if dtype.kind == "i" else "false"
    attributes["units"] = str(rng.choice(["K", "1", "m s-1"]))
    fill = dtype.type(rng.integers(0, 5)) if rng.integers(2) else None
    return values, attributes, fill


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_that_xarray_decodes(tmp_path, kind):
    if kind == "hdf5":
        pytest.importorskip("netCDF4")
    for seed in range(40):
        values, attributes, fill = random_variable(kind, seed)
        path = make(tmp_path / f"{seed}", kind, values, attributes, fill)
        with opened(path, kind) as file:
            wanted = file["t"].load()
        source = decoded(open_source(path, dataset="t"))
        got = source[...]
        about = seed, values.dtype, attributes, fill
        assert got.dtype == wanted.dtype.newbyteorder("="), about
        np.testing.assert_array_equal(got, wanted.values, err_msg=str(about))


def write(path, out, *options):
    ended = run("write", path, out, "--dataset", "t", "--shards", 2, "--chunks", 1, *options)
    assert ended.exit_code == 0, ended.output


def test_zeros_are_values_where_hdf5_fills_with_zero(tmp_path):
    """The attribute `_FillValue` says what is missing, and not the fill value of HDF5."""
    values = np.array([[0, 1], [-99, 3]], "i2")
    path = make(tmp_path / "a.nc", "hdf5", values, {**PACKED, "_FillValue": np.int16(-99)}, fill=0)
    write(path, tmp_path / "out", "--decode-cf")
    got = shardwrite.open_sharded(tmp_path / "out")[...]
    np.testing.assert_array_equal(got, [[256.25, 256.75], [np.nan, 257.75]])


OTHER = {
    "scale": {**PACKED, "scale_factor": np.float64(0.25)},
    "offset": {**PACKED, "add_offset": np.float64(250)},
    "no packing": {"units": "K"},
    "fill": {**PACKED, "_FillValue": np.int16(-1)},
    "missing": {**PACKED, "missing_value": np.int16(-1)},
    "unsigned": {**PACKED, "_Unsigned": "true"},
    "units": {**PACKED, "units": "degC"},
    "calendar": {**PACKED, "calendar": "noleap"},
}
WHOLE = np.arange(8, dtype="i2").reshape(2, 4)


@pytest.mark.parametrize("other", OTHER)
def test_a_file_that_is_packed_otherwise_goes_nowhere(tmp_path, other):
    target = tmp_path / "out"
    path = make(tmp_path / "a.nc", "netcdf3", WHOLE, {**PACKED, "units": "K"})
    write(path, target)
    attributes = {"units": "K", **OTHER[other]}
    second = make(tmp_path / "b.nc", "netcdf3", WHOLE + 1, attributes)
    before = (target / "zarr.json").read_bytes(), shardwrite.open_sharded(target)[...]
    for where in (("--append", 0), ("--region", "0:2,0:4")):
        ended = run("update", second, target, "--dataset", "t", *where)
        assert ended.exit_code == 2, ended.output
        assert "would mean different things" in ended.output
    source = open_source(second, dataset="t")
    variable = xarray.DataArray(WHOLE + 1, dims=("d0", "d1"), attrs=attributes)
    for x in (source, variable):
        with pytest.raises(SpecError, match="different things"):
            shardwrite.write_region(x, target, (slice(0, 2), slice(0, 4)))
        with pytest.raises(SpecError, match="different things"):
            shardwrite.store([x], [target], regions=["append"])
        with pytest.raises(SpecError):
            shardwrite.to_sharded_zarr(x, target, mode="r+")
        with pytest.raises(SpecError, match="different things"):
            shardwrite.repair(target, x, compare=True)
    with ShardWriter(target) as writer:
        with pytest.raises(SpecError, match="different things"):
            writer.append(variable)
        with pytest.raises(SpecError, match="different things"):
            writer[0:2] = variable
    after = (target / "zarr.json").read_bytes(), shardwrite.open_sharded(target)[...]
    assert after[0] == before[0]
    np.testing.assert_array_equal(after[1], before[1])
    # Values alone say nothing, so they are the user's own duty.
    shardwrite.write_region(as_dask(source), target, (slice(0, 2), slice(0, 4)))


def test_what_means_the_same_goes_in(tmp_path):
    target = tmp_path / "out"
    path = make(tmp_path / "a.nc", "netcdf3", WHOLE, {**PACKED, "units": "K"})
    write(path, target)
    neutral = {**PACKED, "units": "K", "calendar": "standard", "_Unsigned": "false", "title": "x"}
    second = make(tmp_path / "b.nc", "netcdf3", WHOLE + 1, neutral)
    ended = run("update", second, target, "--dataset", "t", "--append", 0)
    assert ended.exit_code == 0, ended.output
    third = make(tmp_path / "c.h5", "hdf5", WHOLE + 2, neutral)
    shardwrite.write_region(open_source(third, dataset="t"), target, "append")
    with ShardWriter(target) as writer:
        writer.append(xarray.DataArray(WHOLE + 3, dims=("d0", "d1"), attrs=neutral))
    got = zarr.open_array(target)[...]
    np.testing.assert_array_equal(got, np.concatenate([WHOLE + n for n in range(4)]))


def test_units_that_only_one_of_the_two_has_are_no_difference(tmp_path):
    """Arrays are made by `create` without attributes, and filled by region."""
    variable = xarray.DataArray(WHOLE, dims=("d0", "d1"), attrs={"units": "K", "title": "x"})
    bare, with_units = tmp_path / "bare", tmp_path / "units"
    shardwrite.create(bare, WHOLE.shape, "i2", shards=2, chunks=1)
    shardwrite.to_sharded_zarr(variable, with_units, shards=2, chunks=1)
    sources = {bare: variable, with_units: variable.drop_attrs().assign_attrs(title="x")}
    for target, x in sources.items():
        shardwrite.write_region(x, target, ...)
        with ShardWriter(target) as writer:
            writer.append(x)
        np.testing.assert_array_equal(zarr.open_array(target)[...], np.concatenate([WHOLE] * 2))
        time = variable.assign_attrs(units="days since 2000-01-01")
        with pytest.raises(SpecError, match="days since"):
            shardwrite.write_region(time, target, (slice(0, 2), slice(0, 4)))


@pytest.mark.parametrize("kept", [{}, {"units": "K", "flag_values": [1, 2]}])
@pytest.mark.parametrize(
    "own", [{"long_name": "temperature"}, {"units": "K", "calendar": "noleap"}]
)
def test_units_that_one_of_the_two_does_not_say_are_no_other_units(tmp_path, kept, own):
    """Computing with xarray loses units, and `create` may have been called without any."""
    target = tmp_path / "out"
    if "units" in kept:
        own = {name: value for name, value in own.items() if name != "calendar"}
    shardwrite.create(target, (2, 4), "i2", shards=(2, 2), chunks=(1, 1), attributes=kept or None)
    variable = xarray.DataArray(WHOLE + 1, dims=("d0", "d1"), attrs=own)
    shardwrite.write_region(variable, target, (slice(0, 2), slice(0, 4)))
    with ShardWriter(target) as writer:
        writer.append(variable)
    path = make(tmp_path / "a.nc", "netcdf3", WHOLE + 1, own)
    ended = run("update", path, target, "--dataset", "t", "--append", 0)
    assert ended.exit_code == 0, ended.output
    np.testing.assert_array_equal(zarr.open_array(target)[...], np.concatenate([WHOLE + 1] * 3))
    for packed in ({**own, "scale_factor": 0.5}, {**own, "_FillValue": np.int16(1)}):
        with pytest.raises(SpecError, match="different things"):
            shardwrite.write_region(variable.assign_attrs(packed), target, "append")


@pytest.mark.parametrize("is_decoded", [True, False])
def test_an_array_remembers_whether_it_was_decoded(tmp_path, is_decoded):
    attributes = {"scale_factor": np.float32(0.5), "units": "K"}
    target, how = tmp_path / "out", [["--decode-cf"], []]
    path = make(tmp_path / "a.nc", "netcdf3", WHOLE.astype("f4"), attributes)
    same, other = how if is_decoded else how[::-1]
    write(path, target, *same)
    for where in (["--append", 0], ["--region", "0:2,0:4"]):
        ended = run("update", path, target, "--dataset", "t", *where, *other)
        assert ended.exit_code == 2, ended.output
        assert "scale_factor" in ended.output
        assert "--decode-cf" in ended.output
    ended = run("update", path, target, "--dataset", "t", "--append", 0, *same)
    assert ended.exit_code == 0, ended.output
    wanted = WHOLE * (0.5 if is_decoded else 1)
    np.testing.assert_array_equal(zarr.open_array(target)[...], np.concatenate([wanted] * 2))


def test_parts_are_decoded_as_the_plan_says(tmp_path):
    attributes = {"scale_factor": np.float32(0.5), "units": "K"}
    path, target = (
        make(tmp_path / "a.nc", "netcdf3", WHOLE.astype("f4"), attributes),
        tmp_path / "o",
    )
    common = ["--dataset", "t"]
    ended = run("init", path, target, *common, "--shards", 1, "--chunks", 1, "--decode-cf")
    assert ended.exit_code == 0, ended.output
    ended = run("write-part", path, target, "0/1", *common)
    assert ended.exit_code != 0, ended.output


def test_decoded_floats_go_where_floats_are_masked(tmp_path):
    """An array of floats with a fill value takes values that xarray has decoded."""
    masked = {"_FillValue": np.float32(-999), "units": "K"}
    path, target = make(tmp_path / "a.nc", "netcdf3", WHOLE.astype("f4"), masked), tmp_path / "out"
    write(path, target)
    with xarray.open_dataset(path, engine="scipy") as file:
        variable = file["t"].load()
    shardwrite.write_region(variable, target, (slice(0, 2), slice(0, 4)))
    plain = make(tmp_path / "b.nc", "netcdf3", WHOLE.astype("f4"), {"units": "K"})
    write(plain, tmp_path / "plain")
    with pytest.raises(SpecError, match="_FillValue"):
        shardwrite.write_region(open_source(path, dataset="t"), tmp_path / "plain", "append")


@pytest.mark.parametrize(
    ("attributes", "wanted"), [({"dtype": "bool"}, "?"), ({"_Unsigned": "true"}, "u1")]
)
def test_the_fill_value_of_a_file_is_none_of_another_type(tmp_path, attributes, wanted):
    """NetCDF fills bytes with -127, which is no truth value and no unsigned number."""
    values = np.array([[0, 1], [1, 0]], "i1")
    path = make(tmp_path / "a.h5", "hdf5", values, attributes, fill=np.int8(-127))
    write(path, tmp_path / "out", "--decode-cf")
    got = zarr.open_array(tmp_path / "out")[...]
    assert got.dtype == wanted
    np.testing.assert_array_equal(got, values)


def test_an_attribute_that_holds_nothing_is_left_out(tmp_path):
    path = make(tmp_path / "a.h5", "hdf5", WHOLE, {"_FillValue": np.array([], "i2"), "units": "K"})
    with pytest.warns(UserWarning, match="'_FillValue' is left out"):
        source = open_source(path, dataset="t")
    assert dict(source.metadata.attributes) == {"units": "K"}


def test_xarray_reads_the_fill_value_of_another_type(tmp_path):
    """HDF5 lets `_FillValue` have any type; xarray wants that of the variable in Zarr."""
    for name, values, fill in (("f", WHOLE.astype("f4"), np.int64(3)), ("i", WHOLE, np.float64(3))):
        path = make(tmp_path / f"{name}.h5", "hdf5", values, {"_FillValue": fill})
        shardwrite.shard(path, tmp_path / name, 1)
        got = xarray.open_zarr(tmp_path / name, consolidated=False)["t"].values
        assert int(np.isnan(got).sum()) == 1
