"""Values of a file as the conventions of CF decode them."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import SpecError
from shardwrite.cli import main
from shardwrite.sources import as_dask, decoded, open_source

netcdf = pytest.importorskip("scipy.io")


def make(path):
    """A packed variable with a missing value, and times."""
    with netcdf.netcdf_file(path, "w") as file:
        for name, n in (("time", 4), ("lon", 6)):
            file.createDimension(name, n)
        packed = file.createVariable("t", "i2", ("time", "lon"))
        packed[:] = np.arange(24).reshape(4, 6)
        packed[2, 3] = -99
        packed.scale_factor, packed.add_offset, packed.units = 0.5, 256.25, "K"
        packed._attributes["_FillValue"] = np.int16(-99)
        time = file.createVariable("time", "f8", ("time",))
        time[:] = [0, 0.5, 1, 31]
        time.units, time.calendar = "days since 2000-01-01", "standard"
    return path


def unpacked():
    values = 256.25 + 0.5 * np.arange(24.0).reshape(4, 6)
    values[2, 3] = np.nan
    return values


def converted(path, out, *options):
    command = ["write", path, out, "--shards", "4", "--chunks", "2", *options]
    ended = CliRunner().invoke(main, [str(word) for word in command])
    assert ended.exit_code == 0, ended.output
    return json.loads((out / "zarr.json").read_text())


def test_packed_values(tmp_path):
    pytest.importorskip("xarray")
    path, out = make(tmp_path / "a.nc"), tmp_path / "out"
    document = converted(path, out, "--dataset", "t", "--decode-cf", "--source-chunks", "3,2")
    assert document["data_type"] == "float32"  # of the scale factor, as scipy writes it
    assert document["fill_value"] == "NaN"
    assert document["attributes"] == {"units": "K"}
    assert document["dimension_names"] == ["time", "lon"]
    np.testing.assert_array_equal(zarr.open_array(out)[...], unpacked())
    more = ["--against", str(path), "--dataset", "t", "--decode-cf"]
    assert CliRunner().invoke(main, ["verify", str(out), *more]).exit_code == 0
    # what is given has the last word
    document = converted(
        path, tmp_path / "b", "--dataset", "t", "--decode-cf", "--fill-value", "-1"
    )
    assert document["fill_value"] == -1


@pytest.mark.filterwarnings("ignore::Warning")
def test_times(tmp_path):
    pytest.importorskip("xarray")
    out = tmp_path / "out"
    document = converted(make(tmp_path / "a.nc"), out, "--dataset", "time", "--decode-cf")
    assert document["attributes"] == {}
    found = shardwrite.open_sharded(out)[...]
    assert found.dtype.kind == "M"
    wanted = ["2000-01-01", "2000-01-01T12", "2000-01-02", "2000-02-01"]
    assert (found == np.array(wanted, "M8[ns]")).all()


def test_what_is_not_packed_stays(tmp_path):
    pytest.importorskip("xarray")
    np.save(tmp_path / "a.npy", np.arange(4))
    source = open_source(tmp_path / "a.npy")
    assert decoded(source) is source


def test_blocks_and_regions_agree(tmp_path):
    pytest.importorskip("xarray")
    source = decoded(open_source(make(tmp_path / "a.nc"), dataset="t"))
    np.testing.assert_array_equal(as_dask(source, 2).compute(), unpacked())
    np.testing.assert_array_equal(source[1:3, 2:5], unpacked()[1:3, 2:5])
    assert source.identity.startswith("cf:")


def test_what_cannot_be_decoded_is_told(tmp_path):
    pytest.importorskip("xarray")
    path = tmp_path / "a.nc"
    with netcdf.netcdf_file(path, "w") as file:
        file.createDimension("time", 2)
        time = file.createVariable("time", "f8", ("time",))
        time[:] = [0, 1]
        time.units, time.calendar = "days since when", "standard"
    with pytest.raises(SpecError, match=r"decode_cf.*cannot be decoded.*without --decode-cf"):
        decoded(open_source(path, dataset="time"))
    with netcdf.netcdf_file(tmp_path / "b.nc", "w") as file:
        file.createDimension("time", 2)
        time = file.createVariable("time", "f8", ("time",))
        time[:] = [0, 1]
        time.units, time.calendar = "days since 2000-01-01", "noleap"
    pytest.importorskip("cftime")
    with pytest.raises(SpecError, match=r"objects of Python.*without --decode-cf"):
        decoded(open_source(tmp_path / "b.nc", dataset="time"))
    document = converted(path, tmp_path / "out", "--dataset", "time")
    assert document["attributes"]["units"] == "days since when"


def test_the_extra_is_named(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "xarray" else find(name)
    )
    with pytest.raises(SpecError, match=r'pip install "shardwrite\[cf\]"'):
        decoded(open_source(make(tmp_path / "a.nc"), dataset="t"))
