"""What the encoding of an xarray DataArray asks for is done, or it is said that it is not."""

from __future__ import annotations

import warnings

import dask.array as da
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

import shardwrite

xr = pytest.importorskip("xarray")

VALUES = np.arange(20 * 30, dtype="f8").reshape(20, 30) / 4
LAYOUT = {"chunks": (5, 6), "shards": (10, 12), "compressors": (ZstdCodec(level=3),)}
PACKED = {"dtype": "i2", "scale_factor": 0.25, "add_offset": 1.0, "_FillValue": -9}


def array(**encoding):
    x = xr.DataArray(da.from_array(VALUES, chunks=7), dims=("y", "x"), name="t")
    x.encoding = encoding
    return x


def written(x, path, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shardwrite.to_sharded_zarr(x, path, **keywords)
    return zarr.open_array(path)


@pytest.mark.long
def test_the_layout_is_taken_where_the_call_leaves_it_out(tmp_path):
    z = written(array(**LAYOUT), tmp_path / "x")
    assert (z.shards, z.chunks) == ((10, 12), (5, 6))
    assert z.compressors == (ZstdCodec(level=3), Crc32cCodec())
    z = written(array(**LAYOUT), tmp_path / "y", shards=(20, 30), compressors=BloscCodec())
    assert z.shards == (20, 30)
    assert isinstance(z.compressors[0], BloscCodec)
    z = written(array(chunks=(5, 6), shards=None, compressors=()), tmp_path / "z")
    assert (z.chunks, z.compressors) == ((5, 6), (Crc32cCodec(),))
    assert z.shards is not None
    (one,) = shardwrite.store([array(**LAYOUT)], [tmp_path / "s"])
    assert zarr.open_array(one.path).shards == (10, 12)
    assert shardwrite.plan(array(**LAYOUT)).metadata.grid.shards == (10, 12)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_copy_of_what_xarray_has_written(zarr_format, tmp_path):
    xr.Dataset({"t": array()}).to_zarr(
        tmp_path / "group", zarr_format=zarr_format, consolidated=False
    )
    x = xr.open_zarr(tmp_path / "group", consolidated=False)["t"]
    z = written(x, tmp_path / "x")
    assert z.chunks == zarr.open_array(tmp_path / "group" / "t").chunks
    np.testing.assert_array_equal(z[...], VALUES)
    np.testing.assert_array_equal(written(x[3:9, ::-1], tmp_path / "y")[...], VALUES[3:9, ::-1])


@pytest.mark.parametrize(
    ("encoding", "names"),
    [
        (PACKED, "dtype, scale_factor, add_offset"),
        ({"dtype": "f4"}, "dtype"),
        ({"filters": [ZstdCodec()]}, "filters"),
    ],
)
def test_what_changes_values_is_not_applied_and_that_is_said(encoding, names, tmp_path):
    with pytest.warns(UserWarning, match=f"is not applied: {names}. Its values are stored as they"):
        shardwrite.to_sharded_zarr(array(**encoding), tmp_path / "x")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x")[...], VALUES)
    with pytest.warns(UserWarning, match="not applied"):
        shardwrite.store([array(**encoding)], [tmp_path / "y"])


def test_fill_values(tmp_path):
    """What is missing among floats is NaN, and stays NaN."""
    gap = VALUES.copy()
    gap[1, 2] = np.nan
    x = array(_FillValue=1e20, missing_value=1e20).copy(data=gap)
    np.testing.assert_array_equal(written(x, tmp_path / "x")[...], gap)
    x = array().astype("i4")
    x.encoding = {"missing_value": 5}
    with pytest.warns(UserWarning, match="is not applied: missing_value"):
        shardwrite.to_sharded_zarr(x, tmp_path / "y")


def test_times(tmp_path):
    times = xr.DataArray(np.arange(9).astype("M8[D]").astype("M8[ns]"), dims="t")
    written(times, tmp_path / "x", shards=4, chunks=2)
    times.encoding = {"units": "days since 1970-01-01", "calendar": "standard"}
    with pytest.warns(UserWarning, match="not applied: units, calendar"):
        shardwrite.to_sharded_zarr(times, tmp_path / "y", shards=4, chunks=2)


def test_the_two_remedies(tmp_path):
    x = array(**PACKED, **LAYOUT)
    z = written(x.drop_encoding(), tmp_path / "x", shards=10, chunks=5)
    assert z.dtype == "f8"
    encoded = xr.conventions.encode_cf_variable(x.variable)
    zarr.create_group(tmp_path / "group")
    z = written(encoded, tmp_path / "group" / "t", shards=10, chunks=5)
    assert z.dtype == "i2"
    found = xr.open_zarr(tmp_path / "group", consolidated=False)["t"]
    np.testing.assert_array_equal(found, VALUES)


def test_a_coordinate_with_an_index(tmp_path):
    x = xr.DataArray(np.zeros(5), {"time": np.arange(5) * 1.5}, dims="time")
    shardwrite.to_sharded_zarr(x.time, tmp_path / "t", shards=4, chunks=2)
    shardwrite.write_region(x.time, tmp_path / "t", "append")
    np.testing.assert_array_equal(
        shardwrite.open_sharded(tmp_path / "t")[...], np.tile(x.time.values, 2)
    )
