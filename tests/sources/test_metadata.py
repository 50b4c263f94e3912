"""What a file says of an array besides its values becomes part of the array that is written."""

from __future__ import annotations

import base64
import json
import struct
import warnings

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.read.source import as_attributes
from shardwrite.sources import SourceMetadata, open_source

pytestmark = pytest.mark.compat

VALUES = np.arange(24, dtype="i2").reshape(4, 6)


def make_zarr(path, zarr_format=3, **more):
    array = zarr.create_array(
        path, shape=(4, 6), chunks=(2, 3), dtype="f4", zarr_format=zarr_format, **more
    )
    array[...] = VALUES
    return path


def make_netcdf3(path):
    from scipy.io import netcdf_file

    with netcdf_file(path, "w") as file:
        for name, n in (("lat", 4), ("lon", 6)):
            file.createDimension(name, n)
        variable = file.createVariable("t", "i2", ("lat", "lon"))
        variable[:] = VALUES
        variable.scale_factor, variable.add_offset, variable.units = 0.5, 256.25, "K"
        variable._attributes["_FillValue"] = np.int16(-99)
        variable.flags = np.array([1, 2], "i4")
    return path


def make_hdf5(path):
    import h5py

    with h5py.File(path, "w") as file:
        scale = file.create_dataset("lat", data=np.arange(4.0))
        scale.make_scale("lat")
        data = file.create_dataset("t", data=VALUES, fillvalue=-99, chunks=(2, 3))
        data.dims[0].attach_scale(scale)
        data.dims[1].label = "lon"
        data.attrs["units"] = "K"
        data.attrs["scale_factor"] = np.array([0.1])
        data.attrs["flags"] = np.array([1, 2])
    return path


def converted(path, out, *options):
    """Document of the array that the command line writes."""
    command = ["write", path, out, "--shards", "4,6", "--chunks", "2,3", *options]
    ended = CliRunner().invoke(main, [str(word) for word in command])
    assert ended.exit_code == 0, ended.output
    return json.loads((out / "zarr.json").read_text())


@pytest.mark.parametrize(("fill", "stored"), [(1, 1.0), (float("nan"), "NaN"), (None, 0.0)])
def test_zarr_keeps_all(tmp_path, fill, stored):
    names, attributes = ("y", "x"), {"units": "K", "of": {"a": [1, None]}}
    path = make_zarr(tmp_path / "a", fill_value=fill, dimension_names=names, attributes=attributes)
    document = converted(path, tmp_path / "b")
    assert document["fill_value"] == stored
    assert document["dimension_names"] == ["y", "x"]
    assert document["attributes"] == attributes
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b")[...], VALUES)


def test_zarr_2_has_the_names_that_xarray_gave(tmp_path):
    given = {"_ARRAY_DIMENSIONS": ["y", "x"], "units": "K"}
    path = make_zarr(tmp_path / "a", zarr_format=2, fill_value=7, attributes=given)
    found = open_source(path).metadata
    # xarray masks by the fill value in format 2, and by this attribute in format 3
    attributes = {"units": "K", "_FillValue": base64.b64encode(struct.pack("<d", 7)).decode()}
    assert found == SourceMetadata(np.float32(7), ("y", "x"), attributes)


def test_netcdf_3_keeps_what_unpacks_the_values(tmp_path):
    document = converted(make_netcdf3(tmp_path / "a.nc"), tmp_path / "b")
    assert document["fill_value"] == -99
    assert document["dimension_names"] == ["lat", "lon"]
    assert document["attributes"] == {
        "scale_factor": 0.5,
        "add_offset": 256.25,
        "units": "K",
        "_FillValue": -99,
        "flags": [1, 2],
    }


def test_hdf5_keeps_its_fill_value_scales_and_attributes(tmp_path):
    document = converted(make_hdf5(tmp_path / "a.h5"), tmp_path / "b", "--dataset", "t")
    assert document["fill_value"] == -99
    assert document["dimension_names"] == ["lat", "lon"]
    assert document["attributes"] == {"units": "K", "scale_factor": 0.1, "flags": [1, 2]}


def test_options_have_the_last_word(tmp_path):
    path = make_zarr(tmp_path / "a", fill_value=1, dimension_names=("y", "x"), attributes={"a": 1})
    given = ["--fill-value", "5", "--dimension-names", "row,", "--attributes", '{"b": 2, "a": 3}']
    document = converted(path, tmp_path / "b", *given)
    assert document["fill_value"] == 5
    assert document["dimension_names"] == ["row", None]
    assert document["attributes"] == {"a": 3, "b": 2}


@pytest.mark.parametrize("value", [np.float32(1.5), np.float64("nan"), np.int16(-3), b"ab", 2 + 3j])
def test_missing_values_are_written_as_xarray_reads_them(value):
    found = as_attributes({"_FillValue": value}, "f")["_FillValue"]

    def decoded(text):
        return struct.unpack("<d", base64.b64decode(text))[0]

    if isinstance(value, complex):
        assert [decoded(part) for part in found] == [2, 3]
    elif isinstance(value, bytes):
        assert base64.b64decode(found) == value
    elif isinstance(value, np.floating):
        np.testing.assert_equal(decoded(found), float(value))
    else:
        assert found == -3


def test_what_json_cannot_hold_is_told():
    odd = {"n": np.float32("nan"), "m": [np.inf, -np.inf], "b": b"x", "s": np.str_("y")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = as_attributes(odd, "f")
    assert found == {"n": "NaN", "m": ["Infinity", "-Infinity"], "b": "x", "s": "y"}
    with pytest.warns(UserWarning, match="'z' is left out"):
        assert as_attributes({"z": 1j, "a": 1}, "f") == {"a": 1}


@pytest.mark.parametrize("bad", [b"\xb0C", "\udcb0C", np.bytes_(b"\xb0C"), [b"\xb0C"]], ids=ascii)
def test_attributes_that_are_no_utf8_are_told(bad):
    """Half of a character in a document keeps tensorstore and zarrs from the whole array."""
    with pytest.warns(UserWarning, match="f: the attribute 'units' is no text in UTF-8"):
        found = as_attributes({"units": bad, "°": "°\U0001f600"}, "f")
    kept = found.pop("units")
    assert (kept[0] if isinstance(kept, list) else kept) == "\ufffdC"
    assert found == {"°": "°\U0001f600"}
    with pytest.warns(UserWarning, match="'\ufffd' is no text"):
        assert as_attributes({"\udcff": {"\udcff": 1}}, "f") == {"\ufffd": {"\ufffd": 1}}


@pytest.mark.parametrize("way", ["write", "shard"])
def test_tensorstore_opens_what_is_made_of_a_file_in_latin_1(tmp_path, way):
    import h5py
    import tensorstore

    path, out = tmp_path / "a.h5", tmp_path / "b"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("t", data=VALUES, chunks=(2, 3))
        data.attrs["units"] = np.bytes_("°C".encode("latin-1"))
        data.attrs["name"] = "°".encode("latin-1")
        data.dims[0].label = "y"
    if way == "write":
        converted(path, out, "--dataset", "t")
    else:
        with pytest.warns(UserWarning, match="no text in UTF-8"):
            shardwrite.shard(f"{path}::t", out, 2)
    document = json.loads((out / "zarr.json").read_text())
    assert document["attributes"] == {"units": "\ufffdC", "name": "\ufffd"}
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(out)}}
    np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), VALUES)


def opens(path):
    """Whether this zarr-python opens an array."""
    try:
        zarr.open_array(path, mode="r")
    except (TypeError, ValueError):
        return False
    return True


NAN_IN_BASE64 = base64.b64encode(struct.pack("<d", float("nan"))).decode()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"u": float("nan")}, {"u": "NaN"}),
        ({"u": [1, {"v": float("-inf")}]}, {"u": [1, {"v": "-Infinity"}]}),
        ({"_FillValue": float("nan")}, {"_FillValue": NAN_IN_BASE64}),
        ({"_FillValue": "NaN"}, {"_FillValue": "NaN"}),
        ({"_FillValue": "abc"}, {"_FillValue": "abc"}),
        ({"u": "\udcb0"}, {"u": "\ufffd"}),
        ([1], {}),
        (5, {}),
        ("x", {}),
    ],
    ids=ascii,
)
def test_odd_attributes_of_a_zarr_source(tmp_path, zarr_format, value, kept):
    """They were refused as what the caller had given, or the whole source could not be read."""
    path = make_zarr(tmp_path / "a", zarr_format=zarr_format)
    if zarr_format == 2:
        (path / ".zattrs").write_text(json.dumps(value))
    else:
        document = json.loads((path / "zarr.json").read_text())
        (path / "zarr.json").write_text(json.dumps({**document, "attributes": value}))
    if not isinstance(value, dict) and not opens(path):  # newer versions of zarr-python
        with pytest.raises(shardwrite.SpecError, match="cannot be read as zarr"):
            open_source(path)
        return
    assert converted(path, tmp_path / "b")["attributes"] == kept
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b")[...], VALUES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shardwrite.to_sharded_zarr(zarr.open_array(path, mode="r"), tmp_path / "c", chunks=(2, 3))
    assert json.loads((tmp_path / "c" / "zarr.json").read_text())["attributes"] == kept


@pytest.mark.parametrize(
    "names", [["y"], "yx", 5, [1, 2], [], None, {"y": 1}, ["y", ["x"]]], ids=str
)
def test_names_of_xarray_that_are_none_stay_an_attribute(tmp_path, names):
    """A text was taken for one name for each letter, and others were refused."""
    path = make_zarr(tmp_path / "a", zarr_format=2, attributes={"_ARRAY_DIMENSIONS": names})
    document = converted(path, tmp_path / "b")
    assert document.get("dimension_names") is None
    assert document["attributes"] == {"_ARRAY_DIMENSIONS": names}
