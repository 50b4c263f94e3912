"""Numbers that the integers of a store cannot hold are refused; xarray stores others."""

from __future__ import annotations

import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from helpers import contents

import shardwrite
from shardwrite import JournalError, SpecError

xr = pytest.importorskip("xarray")

PACKED = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 10.0, "_FillValue": np.int16(-32768)}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr and xarray tell about types and missing values
        yield


def numbers(values, *, lazy=False, attrs=None):
    values = np.asarray(values)
    data = da.from_array(values, chunks=2) if lazy else values
    return xr.Dataset({"v": ("t", data, attrs or {})})


def stored(root):
    with xr.open_zarr(root) as found:
        return found["v"].values


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("encoding", "values", "told"),
    [
        ({"dtype": "i1"}, [3, 300, -2], "300, and int8"),
        ({"dtype": "u1"}, [3, 0, -2], "-2.*uint8"),
        ({"dtype": "u8"}, [3, 0, -2], "uint64"),
        ({"dtype": "i8"}, np.array([1, 2**63], "u8"), "int64"),
        ({"dtype": "i4"}, [1.0, 1e12, 2.0], "int32"),
        ({"dtype": "i4"}, [1.0, np.nan, 2.0], "missing values, and int32"),
        ({"dtype": "i4", "_FillValue": -1}, [1.0, np.nan, 1e12], "int32"),
        ({"dtype": "i4", "_FillValue": -1}, [np.inf, np.nan, 2], "from .* to inf"),
        (PACKED, [300.0, 338.0, np.nan], "338.0, and int16"),
        ({"dtype": "bool"}, [0, 2], "bool"),
        ({"dtype": "f8"}, [1j, 2], r"complex128.*float64.*imaginary.*ds\['v'\].real"),
    ],
)
def test_what_is_not_held_is_refused(tmp_path, encoding, values, told, lazy):
    """In a new store, and in one that exists, whose dtype and packing count."""
    ds, root = numbers(values, lazy=lazy), tmp_path / "x.zarr"
    with dask.config.set(scheduler="sync"):
        with pytest.raises(SpecError, match=rf"'v'.*{told}"):
            ds.shardwrite.to_zarr(root, encoding={"v": encoding})
        root = tmp_path / "y.zarr"
        fits = numbers(np.ones(len(values), np.asarray(values).real.dtype))
        fits.to_zarr(root, zarr_format=3, encoding={"v": encoding})
        before = contents(root)
        for how in ({"append_dim": "t"}, {"region": {"t": slice(0, len(values))}}):
            with pytest.raises(SpecError, match=rf"'v'.*{told}"):
                ds.shardwrite.to_zarr(root, **how)
            if not lazy:
                assert contents(root) == before
        np.testing.assert_array_equal(stored(root), np.ones(len(values)))


@pytest.mark.parametrize("after", ["same", "given up", "restart"])
def test_an_append_that_a_number_has_stopped(tmp_path, after):
    """Readers see the old steps. The call goes on with numbers that fit, or is given up first."""
    root, old = tmp_path / "x.zarr", np.arange(8.0)
    shards = {"shards": {"t": 4}, "chunks": {"t": 2}, "encoding": {"v": PACKED}}
    numbers(old).shardwrite.to_zarr(root, append_dim="t", **shards)
    new = np.arange(8.0, 16)
    holding = {"limit": 338.0}  # a sensor that is mended, under the same name

    def read(block):
        return np.where(block == 15, holding["limit"], block)

    ds = numbers(new, lazy=True)
    ds["v"] = ds["v"].copy(data=ds["v"].data.map_blocks(read, name="read", dtype="f8"))
    fits = numbers(new, lazy=True)
    with dask.config.set(scheduler="sync"):
        for _ in range(2):
            with pytest.raises(SpecError, match=r"'v' has values from .* 338.0, and int16.*change"):
                ds.shardwrite.to_zarr(root, append_dim="t")
            np.testing.assert_allclose(stored(root), old)
        if after == "same":
            holding["limit"] = 15
            ds.shardwrite.to_zarr(root, append_dim="t")
        else:
            with pytest.raises(JournalError, match=r"has not ended.*abandon.*restart=True"):
                fits.shardwrite.to_zarr(root, append_dim="t")
            if after == "given up":
                assert shardwrite.abandon(root / "v")
            fits.shardwrite.to_zarr(root, append_dim="t", restart=after == "restart")
    np.testing.assert_allclose(stored(root), [*old, *new], atol=0.01)


def test_integers_that_netcdf_stores_with_a_sign(tmp_path):
    ds, root = numbers(np.array([0, 255], "u1")), tmp_path / "x.zarr"
    ds["v"].encoding = {"dtype": "i1", "_Unsigned": "true", "_FillValue": 7}
    ds.shardwrite.to_zarr(root)
    numbers([200.0, np.nan]).shardwrite.to_zarr(root, append_dim="t")
    np.testing.assert_array_equal(stored(root), [0, 255, 200, np.nan])
    for values in ([256, 3], [-1, 3]):
        with pytest.raises(SpecError, match="uint8"):
            numbers(values).shardwrite.to_zarr(root, append_dim="t")


@pytest.mark.long
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("encoding", "values"),
    [
        ({"dtype": "i1"}, [-128, 127]),
        ({"dtype": "u8"}, [0, 2**63 - 1]),
        ({"dtype": "i4"}, [1.4, 2.6]),
        ({"dtype": "i4", "_FillValue": -1}, [np.nan, 2.0]),
        ({"dtype": "i4", "_FillValue": -1}, [np.nan, np.nan]),
        (PACKED, [np.nan, 337.0, -317.0]),
        ({"dtype": "u1"}, [True, False]),
        ({"dtype": "f4"}, [1e300, 1.0]),
        ({"dtype": "i2"}, np.zeros(0)),
    ],
)
def test_what_is_held_is_stored_as_xarray_stores_it(tmp_path, encoding, values, lazy):
    ds, ours, theirs = numbers(values, lazy=lazy), tmp_path / "ours.zarr", tmp_path / "theirs.zarr"
    ds.shardwrite.to_zarr(ours, encoding={"v": encoding})
    ds.compute().to_zarr(theirs, zarr_format=3, encoding={"v": encoding})
    np.testing.assert_array_equal(stored(ours), stored(theirs))
    if len(values):
        ds.shardwrite.to_zarr(ours, append_dim="t", source_id="again")
        ds.compute().to_zarr(theirs, append_dim="t")
        np.testing.assert_array_equal(stored(ours), stored(theirs))


@pytest.mark.parametrize("lazy", [False, True])
def test_numbers_are_no_times(tmp_path, lazy):
    times = np.array(["2000-01-01", "2000-01-02"], "M8[ns]")
    xr.Dataset({"v": ("t", times)}).to_zarr(tmp_path / "x.zarr", zarr_format=3)
    with pytest.raises(SpecError, match=r"numbers with units None, and 'v' .* 'days since 2000"):
        numbers([5, 6], lazy=lazy).shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="t")
    with xr.open_zarr(tmp_path / "x.zarr", decode_times=False) as raw:
        told = dict(raw["v"].attrs)
    more = numbers([5, 6], lazy=lazy, attrs=told)
    more.shardwrite.to_zarr(tmp_path / "x.zarr", append_dim="t")
    assert stored(tmp_path / "x.zarr").astype("M8[D]").astype(str)[2:].tolist() == [
        *("2000-01-06", "2000-01-07")
    ]


@pytest.mark.parametrize("lazy", [False, True])
def test_numbers_are_no_durations(tmp_path, lazy):
    told, root = {"units": "hours", "dtype": "timedelta64[ns]"}, tmp_path / "x.zarr"
    numbers([3, 4], attrs=told).to_zarr(root, zarr_format=3)
    with pytest.raises(SpecError, match=r"numbers with units None, and 'v' of the store has 'hour"):
        numbers([5, 6], lazy=lazy).shardwrite.to_zarr(root, append_dim="t")
    numbers([5, 6], lazy=lazy, attrs={"units": "hours"}).shardwrite.to_zarr(root, append_dim="t")
    assert zarr.open_array(root / "v")[:].tolist() == [3, 4, 5, 6]
