"""Files of the netCDF4 library become arrays that xarray decodes to the same values.

`test_netcdf4.py` runs these tests in a process of their own.
"""

from __future__ import annotations

import json

import netCDF4
import numpy as np
import pytest
import xarray
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main

pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3"),
    # JSON has no NaN, so a missing value that is one becomes text
    pytest.mark.filterwarnings("ignore:variable 'p' has multiple fill values"),
    pytest.mark.filterwarnings("ignore:variable 'values' has multiple fill values"),
]
SHAPE, DIMENSIONS = (5, 6, 8), ("time", "lat", "lon")
PACKED = {
    "scale_factor": 0.01,
    "add_offset": 273.15,
    "units": "K",
    "long_name": "temperature",
    "valid_range": [-3000, 3000],
}


@pytest.fixture
def path(tmp_path):
    """Packed and filtered values, some of which are missing, with their coordinates."""
    path, random = tmp_path / "a.nc", np.random.default_rng(0)
    with netCDF4.Dataset(path, "w") as file:
        file.title = "weather"
        for name, size in zip(DIMENSIONS, (None, *SHAPE[1:]), strict=True):
            file.createDimension(name, size)
        chunks = {"chunksizes": (2, 3, 4)}
        time = file.createVariable("time", "f8", ("time",))
        time.units, time.calendar = "hours since 2000-01-01", "standard"
        time[:] = np.arange(5) * 6.5
        for name, size in zip(DIMENSIONS[1:], SHAPE[1:], strict=True):
            file.createVariable(name, "f4", (name,))[:] = np.linspace(-7, 7, size)
        values = np.ma.masked_less(random.uniform(250, 300, SHAPE), 260)
        packed = file.createVariable(
            "t", "i2", DIMENSIONS, fill_value=-99, zlib=True, fletcher32=True, **chunks
        )
        packed.setncatts({**PACKED, "valid_range": np.array([-3000, 3000], "i2")})
        packed[:] = values
        single = file.createVariable("single", "u1", DIMENSIONS, fill_value=255, **chunks)
        single.scale_factor, single.add_offset = np.float32(0.1), np.float32(250)
        single.missing_value = np.uint8(255)
        single[:] = values
        plain = file.createVariable("p", "f4", DIMENSIONS, fill_value=1e20, **chunks)
        plain.missing_value, plain.units = np.float32("nan"), "Pa"
        plain[:] = values
        flags = file.createVariable("flags", "i1", DIMENSIONS[1:])
        flags.flag_values, flags.flag_meanings = np.array([1, 2], "i1"), "dry wet"
        flags[:] = 1 + np.arange(48).reshape(6, 8) % 2
    return path


def run(*words):
    ended = CliRunner().invoke(main, [str(word) for word in words])
    assert ended.exit_code == 0, ended.output


def check_same(out, path, **more):
    """xarray finds the same in the array as in the file."""
    with xarray.open_dataset(path) as wanted, xarray.open_zarr(out, **more) as found:
        assert found.variables.keys() == wanted.variables.keys()
        for name in wanted.variables:
            # JSON has no numbers of single precision
            check = (
                xarray.testing.assert_allclose
                if name == "single"
                else (xarray.testing.assert_identical)
            )
            check(found[name].variable, wanted[name].variable)
        assert np.isnan(found["t"]).any()
        return found.attrs


def check_document(path):
    document = json.loads((path / "zarr.json").read_text())
    assert document["attributes"] == {**PACKED, "_FillValue": -99}
    assert document["dimension_names"] == list(DIMENSIONS)
    assert (document["data_type"], document["fill_value"]) == ("int16", -99)


def test_written(tmp_path, path):
    out = tmp_path / "out"
    for name in (*DIMENSIONS, "t", "single", "p", "flags"):
        run("write", path, out, "--dataset", name, "--name", name, "--shards", 4, "--chunks", 2)
    check_document(out / "t")
    check_same(out, path, consolidated=False)


def test_converted(tmp_path, path):
    run("shard", path, tmp_path / "out", "--shards", 2)
    assert zarr.open_array(tmp_path / "out/t").shards == (4, 6, 8)
    check_document(tmp_path / "out/t")
    assert check_same(tmp_path / "out", path) == {"title": "weather"}
    run("shard", f"{path}::t", tmp_path / "t", "--shards", 2)
    check_document(tmp_path / "t")
    # and values that are decoded and encoded again
    run("reshard", path, tmp_path / "again", "--shards", 2, "--compressors", "zstd")
    check_same(tmp_path / "again", path)


def test_decoded(tmp_path, path):
    out = tmp_path / "out"
    names = (*DIMENSIONS, "t", "single", "p", "flags")
    for name in names:
        more = ["--dataset", name, "--decode-cf"]
        run("write", path, out, "--name", name, *more, "--shards", 4, "--chunks", 2)
        run("verify", out, "--name", name, "--deep", "--against", path, *more)
    document = json.loads((out / "t/zarr.json").read_text())
    assert (document["data_type"], document["fill_value"]) == ("float64", "NaN")
    kept = PACKED.keys() - {"scale_factor", "add_offset"}
    assert document["attributes"].items() >= {name: PACKED[name] for name in kept}.items()
    with xarray.open_dataset(path) as wanted:
        for name in names:
            found = shardwrite.open_sharded(out, name=name)[...]
            np.testing.assert_allclose(
                found.astype("f8"), wanted[name].values.astype("f8"), rtol=3e-7
            )
    check_same(out, path, consolidated=False)  # nothing is decoded twice
