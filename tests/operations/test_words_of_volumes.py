"""What is said where a volume, one of its scales, or an info is not what a call can take."""

from __future__ import annotations

import json

import dask.array as da
import numpy as np
import obstore.store
import pytest
from click.testing import CliRunner

import shardwrite
from shardwrite import CodecError, SpecError
from shardwrite.cli import main
from shardwrite.volumes import codecs

VALUES = np.arange(1, 1 + 8**3, dtype="u4").reshape(8, 8, 8)
NEW = {"axes": "zyx", "resolution": (4, 4, 40), "chunks": 4, "durability": "none"}
SCALE = {
    "key": "s",
    "size": [3, 2, 1],
    "resolution": [4, 4, 40],
    "chunk_sizes": [[2, 2, 1]],
    "encoding": "raw",
}
INFO = {"type": "image", "data_type": "uint8", "num_channels": 1}


@pytest.fixture
def volume(tmp_path):
    """A volume of two scales."""
    scales = {(8, 8, 40): da.from_array(VALUES[:, ::2, ::2].copy(), chunks=4)}
    shardwrite.to_precomputed(da.from_array(VALUES, chunks=4), tmp_path / "v", **NEW, scales=scales)
    return tmp_path / "v"


def command(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.mark.long
def test_a_number_after_colons_is_that_of_a_scale(volume, tmp_path):
    x = VALUES[:, ::2, ::2].T
    shardwrite.to_sharded_zarr(da.from_array(x.copy()), tmp_path / "a.zarr", shards=4, chunks=2)
    told = command("verify", tmp_path / "a.zarr", "--against", f"{volume}::1")
    assert told.exit_code == 0, told.output
    for name in ("2", "-3", "x", "1.0"):
        told = command("verify", tmp_path / "a.zarr", "--against", f"{volume}::{name}")
        assert "no such scale; give a number below 2" in told.output
    info = json.loads((volume / "info").read_text())
    (volume / "8_8_40").rename(volume / "0")
    info["scales"][1]["key"] = "0"
    (volume / "info").write_text(json.dumps(info))
    assert shardwrite.from_precomputed(volume, scale="0").shape == (4, 4, 8)
    assert shardwrite.from_precomputed(volume, scale=0).shape == (8, 8, 8)


def test_a_scale_after_colons_where_an_array_is_asked_for(volume):
    """They said that there is no zarr.json."""
    for name, key in (("4_4_40", "4_4_40"), ("1", "8_8_40"), ("", "4_4_40")):
        told = command("verify", f"{volume}::{name}")
        assert told.exit_code == 2
        right = f"give the path of its directory, {volume}/{key}"
        assert right in told.output
        assert command("verify", right.split()[-1]).exit_code == 0
    assert "no such scale; give a number below 2" in command("info", f"{volume}::9").output
    assert "there is no zarr.json" in command("info", f"{volume}x::9").output


@pytest.mark.long
def test_the_directory_of_a_scale_is_no_source(volume, tmp_path):
    scale, right = volume / "4_4_40", f"{volume}::4_4_40"
    told = f"it is a scale of a volume of Neuroglancer; give the volume and its scale: {right}"
    for arguments in (
        ("plan", scale),
        ("write", scale, tmp_path / "a.zarr"),
        ("precomputed", scale, tmp_path / "w", "--axes", "xyz", "--resolution", "4,4,40"),
    ):
        assert told in command(*arguments).output
    assert command("write", right, tmp_path / "a.zarr").exit_code == 0
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "a.zarr")[...], VALUES.T)


def test_the_directory_of_a_volume_is_no_array(volume):
    paths = f"{volume}/4_4_40, {volume}/8_8_40"
    for name in ("info", "verify", "census", "abandon"):
        told = command(name, volume)
        assert f"it is a volume of Neuroglancer; give the path of a scale: {paths}" in told.output
        assert command(name, volume / "4_4_40").exit_code == 0
    bucket = obstore.store.MemoryStore()
    shardwrite.upload(volume, bucket)
    with pytest.raises(SpecError, match="give name=, one of: 4_4_40, 8_8_40"):
        shardwrite.open_sharded(bucket)
    assert shardwrite.open_sharded(bucket, "4_4_40").shape == (8, 8, 8)
    for name in ("4_4_40", "8_8_40"):
        (volume / name / "zarr.json").unlink()
    with pytest.raises(SpecError, match=r"written none of its scales.*from_precomputed"):
        shardwrite.open_sharded(volume)
    assert shardwrite.from_precomputed(volume).shape == (8, 8, 8)
    (volume / "info").write_text("{")
    with pytest.raises(SpecError, match=r"there is no zarr\.json"):
        shardwrite.open_sharded(volume)


@pytest.mark.parametrize(
    "size", [10**400, float("inf"), float("nan"), 0, -1, -(10**400)], ids=range(6)
)
def test_sizes_of_voxels(size):
    with pytest.raises(SpecError, match="resolution="):
        shardwrite.plan_precomputed(
            da.ones((4, 4, 4), dtype="u1"), axes="zyx", resolution=(size, 4, 4)
        )


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("num_channels", 10**30, f"num_channels={10**30}: "),
        ("num_channels", 0, "num_channels=0: not valid; give a whole number of 1 to"),
        ("num_channels", "1", "num_channels='1': "),
        ("num_channels", None, "num_channels=None: "),
        ("size", [10**30, 2, 1], f"size=[{10**30}, 2, 1]: not valid; give 3 whole numbers of 1 to"),
        ("chunk_sizes", [[10**30, 2, 1]], f"chunk_sizes=[{10**30}, 2, 1]: not valid"),
        ("voxel_offset", [-(10**30), 2, 1], f"voxel_offset=[{-(10**30)}, 2, 1]: not valid"),
    ],
)
def test_numbers_of_an_info(tmp_path, field, value, shown):
    info = {**INFO, "scales": [{**SCALE}]}
    (info if field in info else info["scales"][0])[field] = value
    (tmp_path / "info").write_text(json.dumps(info))
    with pytest.raises(SpecError) as caught:
        shardwrite.from_precomputed(tmp_path)
    assert str(caught.value).startswith(shown)


def test_readers_are_told_what_readers_can_do(tmp_path):
    for changed in ({"data_type": "uint8"}, {"data_type": "uint8", "num_channels": 2}):
        encoding = "jpeg" if "num_channels" in changed else "compressed_segmentation"
        other = {**SCALE, "key": "t"}
        info = {**INFO, **changed, "scales": [{**SCALE, "encoding": encoding}, other]}
        (tmp_path / "info").write_text(json.dumps(info))
        with pytest.raises(SpecError, match="; choose another scale, or correct data_type"):
            shardwrite.from_precomputed(tmp_path)
        assert shardwrite.from_precomputed(tmp_path, scale="t").shape[:3] == (3, 2, 1)


@pytest.mark.long
def test_an_info_of_null_is_not_absent(tmp_path):
    x = da.from_array(VALUES, chunks=4)
    for text in ("null", " null\n", "[]", "{", ""):
        (tmp_path / "info").write_text(text)
        with pytest.raises(SpecError):
            shardwrite.to_precomputed(x, tmp_path, **NEW)
        assert [path.name for path in tmp_path.iterdir()] == ["info"]
        assert (tmp_path / "info").read_text() == text
    (tmp_path / "info").write_text("null")
    with pytest.raises(SpecError, match="it holds null; mend it, or remove it"):
        shardwrite.to_precomputed(x, tmp_path, **NEW)
    (tmp_path / "info").unlink()
    shardwrite.to_precomputed(x, tmp_path, **NEW)


NAMES = ["zarr.json", "info", "x.shardwrite", "x.swtmp", "4_4_40.quarantine", "provenance", ".x"]


@pytest.mark.parametrize("key", NAMES)
def test_keys_that_stand_for_something_else(tmp_path, key):
    x = da.from_array(VALUES, chunks=4)
    with pytest.raises(SpecError, match=r"key=.*no key of a scale; give the name of a directory"):
        shardwrite.to_precomputed(x, tmp_path / "v", **NEW, key=key)
    assert not list(tmp_path.iterdir())


def test_a_key_of_which_the_info_says_something_else(tmp_path):
    x = da.from_array(VALUES, chunks=4)
    shardwrite.to_precomputed(x, tmp_path, **NEW)
    info = json.loads((tmp_path / "info").read_text())
    (tmp_path / "info").write_text(json.dumps({**info, "mesh": "parts"}))
    new = {**NEW, "resolution": (8, 8, 40)}
    with pytest.raises(SpecError, match=r"key='parts': .* other things.*; give another key"):
        shardwrite.to_precomputed(x, tmp_path, **new, key="parts")
    assert not (tmp_path / "parts").exists()
    shardwrite.to_precomputed(x, tmp_path, **new, key="other")


def test_values_are_shown_as_they_were_given():
    empty = da.zeros((0, 3, 4), dtype="u1")
    with pytest.raises(SpecError, match=r"^x\.shape=\(0, 3, 4\): no voxels"):
        shardwrite.plan_precomputed(empty, axes="xyz", resolution=(4, 4, 40))


@pytest.mark.parametrize("chunks", [10**30, 2**21, (64, 64, 2**60)])
def test_chunks_that_are_too_large(chunks):
    new = {name: NEW[name] for name in ("axes", "resolution")}
    with pytest.raises(SpecError) as caught:
        shardwrite.plan_precomputed(da.ones((4, 4, 4), dtype="u4"), **new, chunks=chunks)
    assert str(caught.value).startswith(f"chunks={chunks}: a chunk holds")
    assert "give smaller chunks" in str(caught.value)


@pytest.mark.parametrize("size", [8, 7])
def test_labels_that_take_too_much_are_located(tmp_path, monkeypatch, size):
    """Neither the shard nor the chunk was named."""
    monkeypatch.setattr(codecs, "_MOST_LABELS", 30)
    values = np.ones((size,) * 3, "u8")
    values[4:, :4, 4:] = np.arange(values[4:, :4, 4:].size).reshape(values[4:, :4, 4:].shape)
    new = {**NEW, "encoding": "compressed_segmentation", "type": "segmentation"}
    new["sharding"] = {"preshift_bits": 1, "minishard_bits": 0, "shard_bits": 2}
    place = rf"2\.shard, region \[4:{size}, 0:4, 4:{size}\]: compressed_segmentation: a block"
    with pytest.raises(CodecError, match=place) as caught:
        shardwrite.to_precomputed(da.from_array(values), tmp_path, **new)
    assert caught.value.fields["key"] == "2.shard"
    assert caught.value.fields["region"] == ((4, size), (0, 4), (4, size))


@pytest.mark.long
def test_a_scale_is_converted_into_another_place(volume, tmp_path):
    """As the page about conversions says."""
    shardwrite.reshard(volume / "4_4_40", tmp_path / "a.zarr", shards=8, chunks=4)
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "a.zarr")[...], VALUES)
