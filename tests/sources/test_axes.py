"""What TIFF and NIfTI say of axes, sizes of a pixel and channels is kept, or told."""

from __future__ import annotations

import json
import re
import warnings

import numpy as np
import pytest
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.sources import SourceMetadata, open_source
from shardwrite.sources.common import dimension_units, unique_names
from shardwrite.sources.tiff import images_in

pytestmark = pytest.mark.compat

OF_OME = {
    "axes": "TCYX",
    "PhysicalSizeX": 0.65,
    "PhysicalSizeY": 650.0,
    "PhysicalSizeYUnit": "nm",
    "TimeIncrement": 1.5,
    "TimeIncrementUnit": "min",
    "Channel": {"Name": ["DAPI", "GFP"]},
}
UNITS = ["1.5 minute", None, "650.0 nanometer", "0.65 micrometer"]


def values(*shape):
    return (np.arange(np.prod(shape)) % 251).reshape(shape).astype("u2")


def make_ome(path, data, **more):
    import tifffile

    tifffile.imwrite(path, data, photometric="minisblack", metadata={**OF_OME, **more})
    return path


def said(path, **request):
    """What a file says; any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_source(path, **request).metadata


def rewritten(path, old, new):
    """The file with another OME-XML of the same length."""
    data = path.read_bytes()
    assert data.count(old) >= 1
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))
    return path


def described(path, xml):
    """A plain TIFF file with any text as its OME-XML."""
    import tifffile

    tifffile.imwrite(
        path, values(3, 8, 8), photometric="minisblack", description=xml, metadata=None
    )
    return path


def test_ome_tiff_keeps_axes_sizes_and_channels(tmp_path):
    found = said(make_ome(tmp_path / "a.ome.tif", values(3, 2, 8, 8)))
    assert found.dimension_names == ("t", "c", "y", "x")
    assert found.attributes == {"dimension_units": UNITS, "channel_names": ["DAPI", "GFP"]}


def test_the_new_array_has_them_for_tensorstore(tmp_path):
    tensorstore = pytest.importorskip("tensorstore")
    path, out = make_ome(tmp_path / "a.ome.tif", values(3, 2, 8, 8)), tmp_path / "a.zarr"
    command = ["write", str(path), str(out), "--shards", "3,2,8,8", "--chunks", "1,1,8,8"]
    dry = CliRunner().invoke(main, [*command, "--dry-run"])
    assert "axis names    t, c, y, x\n" in dry.output
    assert "attributes    dimension_units, channel_names\n" in dry.output
    assert not out.exists()
    given = ["--attributes", '{"channel_names": ["a", "b"], "more": 1}']
    ended = CliRunner().invoke(main, [*command, *given])
    assert ended.exit_code == 0, ended.output
    document = json.loads((out / "zarr.json").read_text())
    wanted = {"dimension_units": UNITS, "channel_names": ["a", "b"], "more": 1}
    assert document["attributes"] == wanted
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(out)}}
    array = tensorstore.open(spec).result()
    assert array.domain.labels == ("t", "c", "y", "x")
    assert array.dimension_units == (
        tensorstore.Unit(1.5, "minute"),
        None,
        tensorstore.Unit(650, "nanometer"),
        tensorstore.Unit(0.65, "micrometer"),
    )
    np.testing.assert_array_equal(array.read().result(), values(3, 2, 8, 8))
    # the same call again has the same digest, so it finds its own array
    assert CliRunner().invoke(main, [*command, *given]).exit_code == 0


def test_images_of_one_file_have_their_own_sizes(tmp_path):
    import tifffile

    path = tmp_path / "a.ome.tif"
    with tifffile.TiffWriter(path, ome=True) as file:
        for name, size in (("near", 0.5), ("far", 4)):
            file.write(values(8, 8), metadata={"Name": name, "PhysicalSizeX": size})
    for dataset, size in (("0", 0.5), ("far", 4.0)):
        found = said(path, dataset=dataset)
        assert found.attributes == {"dimension_units": [None, f"{size} micrometer"]}


def test_samples_of_a_pixel_are_an_axis(tmp_path):
    import tifffile

    path = tmp_path / "a.ome.tif"
    of_colour = {"axes": "ZYXS", "PhysicalSizeZ": 2, "Channel": {"Name": "colour"}}
    tifffile.imwrite(path, values(4, 8, 8, 3), photometric="rgb", metadata=of_colour)
    found = said(path)
    assert found.dimension_names == ("z", "y", "x", "s")
    assert found.attributes == {
        "dimension_units": ["2.0 micrometer", None, None, None],
        "channel_names": ["colour"],
    }


def test_imagej_keeps_sizes(tmp_path):
    import tifffile

    path = tmp_path / "a.tif"
    known = {"axes": "TZYX", "unit": "micron", "spacing": 2.0, "finterval": 3.5}
    tifffile.imwrite(path, values(3, 4, 8, 8), imagej=True, resolution=(4, 2), metadata=known)
    found = said(path)
    assert found.dimension_names == ("t", "z", "y", "x")
    steps = ["3.5 second", "2.0 micrometer", "0.5 micrometer", "0.25 micrometer"]
    assert found.attributes == {"dimension_units": steps}


@pytest.mark.parametrize(
    ("shape", "known", "names"),
    [
        ((8, 9), None, ("y", "x")),
        ((3, 8, 9), None, (None, "y", "x")),
        ((3, 8, 9), {"axes": "ZYX"}, ("z", "y", "x")),
    ],
)
def test_plain_pages_have_no_sizes(tmp_path, shape, known, names):
    import tifffile

    path = tmp_path / "a.tif"
    tifffile.imwrite(
        path, values(*shape), photometric="minisblack", resolution=(72, 72), metadata=known
    )
    assert said(path) == SourceMetadata(None, names, {})


def test_a_stack_keeps_what_all_files_say(tmp_path):
    for number in range(3):
        make_ome(tmp_path / f"{number}.ome.tif", values(2, 8, 8), axes="CYX")
    found = said(tmp_path)
    assert found.dimension_names == (None, "c", "y", "x")
    assert found.attributes == {
        "dimension_units": [None, None, "650.0 nanometer", "0.65 micrometer"],
        "channel_names": ["DAPI", "GFP"],
    }
    make_ome(tmp_path / "3.ome.tif", values(2, 8, 8), axes="CYX", PhysicalSizeX=0.7)
    with pytest.warns(UserWarning, match="do not all say"):
        found = open_source(tmp_path).metadata
    assert found.attributes == {"channel_names": ["DAPI", "GFP"]}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b'PhysicalSizeX="0.65"', b'PhysicalSizeX="-0.6"', "step along X is left out.*'-0.6'"),
        (b'PhysicalSizeX="0.65"', b'PhysicalSizeX="nan "', "step along X is left out.*'nan '"),
        (b'YUnit="nm"', b'YUnit="pt"', "step along Y is left out: its unit is 'pt'"),
        (b'Name="GFP"', b'Nick="GFP"', None),
    ],
)
def test_what_is_no_size_is_told(tmp_path, old, new, told):
    path = rewritten(make_ome(tmp_path / "a.ome.tif", values(3, 2, 8, 8)), old, new)
    if told is None:
        assert said(path).attributes["channel_names"] == ["DAPI", None]
        return
    with pytest.warns(UserWarning, match=told):
        found = open_source(path).metadata
    assert sum(unit is not None for unit in found.attributes["dimension_units"]) == 2
    assert found.attributes["channel_names"] == ["DAPI", "GFP"]


ENTITIES = "".join(f"<!ENTITY a{n} '&a{n - 1};&a{n - 1};'>" for n in range(1, 61))
BOMB = f"<!DOCTYPE OME [<!ENTITY a0 'lollol'>{ENTITIES}]><OME><Image Name='&a60;'/></OME>"


@pytest.mark.parametrize(
    "xml",
    [
        "<OME><Image><Pixels></OME>",
        BOMB,
        "<!DOCTYPE OME SYSTEM 'file:///etc/hostname'><OME></OME>",
        "<OME>" + "<Image><Pixels SizeX='9' SizeY='9' SizeZ='3'/></Image>" * 3 + "</OME>",
        "<OME></OME>",
        "<OME><Image><Pixels DimensionOrder='XYZCT' SizeX='1e9' PhysicalSizeX='1'/></Image></OME>",
    ],
    ids=["broken", "bomb", "external", "several", "empty", "no sizes"],
)
@pytest.mark.filterwarnings("ignore::Warning")
def test_hostile_texts_do_no_harm(tmp_path, xml):
    path = described(tmp_path / "a.ome.tif", '<?xml version="1.0"?>' + xml)
    try:
        source = open_source(path)
    except shardwrite.SpecError as error:  # tifffile may not open it at all
        if "cannot be read as tiff" not in str(error):
            raise
        return
    assert source.metadata.attributes == {}
    np.testing.assert_array_equal(source[:, :, :], values(3, 8, 8))


def test_a_document_type_is_refused_before_any_entity():
    with pytest.raises(ValueError, match="declares a document type"):
        images_in(BOMB)
    with pytest.raises(ValueError, match="not well-formed"):
        images_in("<OME><Image>")
    # elements of other names, and deeper ones, are none of ours
    text = "<OME><Group><Image><Pixels SizeX='1'/></Image></Group><Image><Pixels/></Image></OME>"
    assert len(images_in(text)) == 1


def test_the_command_line_tells_what_is_left_out(tmp_path):
    path = described(tmp_path / "a.ome.tif", '<?xml version="1.0"?><OME></OME>')
    ended = CliRunner().invoke(main, ["plan", str(path), "--shards", "8", "--chunks", "8"])
    assert ended.exit_code == 0, ended.output
    told = rf"^Warning: {re.escape(str(path))}: what its OME-XML says is left out: .*$"
    assert re.search(told, ended.output, re.MULTILINE)
    assert "UserWarning" not in ended.output


def make_nifti(path, affine, shape=(4, 5, 6), slope=None, units=("mm", "sec")):
    import nibabel

    image = nibabel.Nifti1Image(values(*shape).astype("i2"), affine)
    image.header.set_xyzt_units(*units)
    if slope:
        image.header.set_slope_inter(*slope)
    nibabel.save(image, path)
    return path


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_nifti_keeps_affine_and_units(tmp_path, name):
    affine = np.array([[0, 0, 3, 5], [-0.7, 0, 0, 6], [0, 2, 0, -7.5], [0, 0, 0, 1]])
    found = said(make_nifti(tmp_path / name, affine, (4, 5, 6, 2)))
    assert found.dimension_names == ("x", "y", "z", "t")
    np.testing.assert_allclose(found.attributes["affine"], affine)
    assert (found.attributes["sform_code"], found.attributes["qform_code"]) == (2, 0)
    assert found.attributes["dimension_units"] == [
        "0.7 millimeter",
        "2.0 millimeter",
        "3.0 millimeter",
        "1.0 second",
    ]
    assert "scale_factor" not in found.attributes


def test_xarray_scales_the_values_of_nifti_once(tmp_path):
    xarray = pytest.importorskip("xarray")
    path = make_nifti(tmp_path / "a.nii", np.eye(4), slope=(2, 10))
    for number, more in enumerate([[], ["--decode-cf"]]):
        out = tmp_path / f"{number}.zarr"
        command = ["write", str(path), str(out), "--name", "image", "--shards", "8", *more]
        assert CliRunner().invoke(main, [*command, "--chunks", "8"]).exit_code == 0
        variable = xarray.open_zarr(out, consolidated=False)["image"]
        np.testing.assert_array_equal(variable, 2.0 * values(4, 5, 6) + 10)
        assert variable.attrs["sform_code"] == 2


@pytest.mark.parametrize("wrong", [np.diag([2, 0, 2, 1.0]), np.full((4, 4), np.nan)])
def test_a_wrong_affine_is_told(tmp_path, wrong):
    path = make_nifti(tmp_path / "a.nii", np.eye(4))
    data = bytearray(path.read_bytes())
    data[280:328] = wrong[:3].astype("<f4").tobytes()  # the rows of the sform
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="affine is left out, since it has no inverse"):
        found = open_source(path).metadata
    assert not {"affine", "sform_code"} & set(found.attributes)
    assert found.attributes["dimension_units"] == ["1.0 millimeter"] * 3


def test_units_that_are_none_are_told(tmp_path):
    path = make_nifti(tmp_path / "a.nii", np.eye(4))
    data = bytearray(path.read_bytes())
    data[123] = 7  # no code of a unit
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="units of its axes are left out"):
        assert "dimension_units" not in open_source(path).metadata.attributes


def test_only_known_units_and_single_names_are_kept():
    steps = [(1, "µm"), (1, "\u03bcm"), (1, " um "), (1, "micrometer"), (1e-9, "Å"), (2, "h")]
    kept = dimension_units(steps)["dimension_units"]
    assert kept == ["1.0 micrometer"] * 4 + ["1e-09 angstrom", "2.0 hour"]
    wrong = [(0, "m"), (float("inf"), "m"), (float("nan"), "s"), (1, "pixel"), (1, "hz"), None]
    assert dimension_units(wrong) == {}
    assert unique_names(["y", "y"]) is None
