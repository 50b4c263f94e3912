"""Scales of volumes whose source has its axes in another order: they are verified and repaired."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from helpers import printed

import shardwrite
from shardwrite.errors import SpecError
from shardwrite.sources import open_source

KEY = "4_4_40"
CUBE = np.arange(1, 1 + 8**3, dtype="uint32").reshape(8, 8, 8)
HASHES = ("identity", "murmurhash3_x86_128")


def new(axes, code="identity"):
    sharding = {"preshift_bits": 0, "minishard_bits": 1, "shard_bits": 4, "hash": code}
    return {"axes": axes, "resolution": (4, 4, 40), "chunks": 4, "sharding": sharding}


def shards(scale):
    return {path.name: path.read_bytes() for path in Path(scale).glob("*.shard")}


def check_repair(scale, x):
    """Lose a shard, and have it written again from a source."""
    before = shards(scale)
    next(Path(scale).glob("*.shard")).unlink()
    assert not shardwrite.verify(scale, against=x).is_good
    assert shardwrite.repair(scale, x).is_done
    assert shards(scale) == before
    assert shardwrite.verify(scale, against=x).is_good
    shutil.rmtree(f"{scale}.quarantine", ignore_errors=True)


@pytest.mark.parametrize("code", HASHES)
@pytest.mark.parametrize("axes", ["xyz", "yxz", "zyx"])
def test_the_array_that_was_written_is_right(tmp_path, axes, code):
    """A cube fits in any order of its axes, so its shape does not tell."""
    x = da.from_array(CUBE, chunks=4)
    shardwrite.to_precomputed(x, tmp_path, **new(axes, code))
    scale = tmp_path / KEY
    check_repair(scale, x)
    check_repair(scale, CUBE)
    named = xr.DataArray(CUBE, dims=list(axes)).transpose("y", "z", "x")
    check_repair(scale, named)
    assert not shardwrite.verify(scale, against=x.transpose(1, 2, 0)).is_good
    foreign = xr.DataArray(CUBE, dims=("t", "u", "v"))
    assert shardwrite.verify(scale, against=foreign).is_good, "the names tell no axes"


@pytest.mark.parametrize("code", HASHES)
def test_only_another_order_is_noted(tmp_path, code):
    """The document of the usual order is the one of older versions."""
    for axes in ("zyx", "xyz"):
        x = da.from_array(CUBE, chunks=4)
        shardwrite.to_precomputed(x, tmp_path / axes, **new(axes, code))
        known = json.loads((tmp_path / axes / KEY / "zarr.json").read_text())
        noted = known["attributes"]["precomputed"]
        assert noted.get("source_axes") == (None if axes == "zyx" else "xyz")
        info = json.loads((tmp_path / axes / "info").read_text())
        assert "source_axes" not in json.dumps(info)


@pytest.mark.parametrize("code", HASHES)
def test_other_arrays_of_the_same_values(tmp_path, code):
    """Names tell the axes of Zarr arrays, volumes and scales, at paths and open."""
    root, scale = tmp_path / "v", tmp_path / "v" / KEY
    shardwrite.to_precomputed(CUBE, root, **new("xyz", code))
    shardwrite.to_precomputed(CUBE.T, tmp_path / "other", **new("zyx"))
    for name, axes in (("a", "xyz"), ("b", "zyx")):
        values = CUBE if axes == "xyz" else CUBE.T
        named = xr.DataArray(da.from_array(values, chunks=8), dims=list(axes))
        gzip = [{"name": "gzip", "configuration": {"level": 6}}]  # as in the scale
        shardwrite.to_sharded_zarr(named, tmp_path / name, shards=8, chunks=4, compressors=gzip)
        assert shardwrite.verify(scale, against=tmp_path / name).is_good
        check_repair(scale, zarr.open_array(tmp_path / name))
    check_repair(scale, shardwrite.open_sharded(tmp_path / "other" / KEY))
    check_repair(scale, CUBE)
    check_repair(scale, open_source(str(tmp_path / "other")))
    assert shardwrite.verify(scale, against=str(tmp_path / "other" / KEY)).is_good


@pytest.mark.parametrize("code", HASHES)
@pytest.mark.parametrize("shape", [(8, 8, 8), (8, 12, 16)])
def test_the_commands(tmp_path, code, shape):
    """A volume has the axes x, y and z as a source, and a scale has z, y and x."""
    values = np.arange(1, 1 + np.prod(shape), dtype="uint32").reshape(shape)
    shardwrite.to_precomputed(values, tmp_path / "v", **new("zyx", code))
    sharding = json.dumps(new("xyz", code)["sharding"])
    words = ["--chunks", 4, "--sharding", sharding]
    printed("precomputed", tmp_path / "v", tmp_path / "w", *words)
    scale = tmp_path / "w" / KEY
    before = shards(scale)
    assert before == shards(tmp_path / "v" / KEY)
    printed("verify", scale, "--against", tmp_path / "v")
    next(scale.glob("*.shard")).unlink()
    printed("repair", scale, "--source", tmp_path / "v")
    assert shards(scale) == before
    np.save(tmp_path / "x.npy", values.T)  # which has no names
    printed("verify", scale, "--against", tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", values)
    printed("verify", tmp_path / "v" / KEY, "--against", tmp_path / "x.npy")


@pytest.mark.parametrize("code", HASHES)
@pytest.mark.parametrize("n_channels", [1, 2])
def test_channels(tmp_path, n_channels, code):
    values = np.stack([CUBE + i for i in range(n_channels)], axis=-1)
    shardwrite.to_precomputed(values, tmp_path, **new("xyzc", code))
    scale = tmp_path / KEY
    check_repair(scale, values)
    check_repair(scale, xr.DataArray(values.T, dims=("channel", "z", "y", "x")))
    if n_channels == 1:
        check_repair(scale, xr.DataArray(CUBE, dims=("x", "y", "z")))
        with pytest.raises(SpecError, match=r"x\.shape"):
            shardwrite.repair(scale, xr.DataArray(CUBE[:4], dims=("x", "y", "z")))
    else:
        shardwrite.to_precomputed(values[..., 0], tmp_path / "one", **new("xyz", code))
        one = xr.DataArray(values[..., :1], dims=("x", "y", "z", "c"))
        check_repair(tmp_path / "one" / KEY, one)


@pytest.mark.parametrize("code", HASHES)
def test_a_source_of_another_shape(tmp_path, code):
    values = np.ones((8, 12, 16), "u1")
    shardwrite.to_precomputed(values, tmp_path, **new("xyz", code))
    wanted = r"of shape \(8, 12, 16\), whose axes are 'xyz'.*of shape \(16, 12, 8\) with the names"
    with pytest.raises(SpecError, match=wanted):
        shardwrite.repair(tmp_path / KEY, values.T)
    named = xr.DataArray(values.T, dims=("z", "y", "x"))  # as the error says
    assert shardwrite.verify(tmp_path / KEY, against=named).is_good


@pytest.mark.parametrize("code", HASHES)
def test_parts_take_arrays_that_are_in_order(tmp_path, code):
    x = da.from_array(CUBE, chunks=4)
    plan = shardwrite.plan_precomputed(x, **new("xyz", code))
    scale, ordered = tmp_path / KEY, x.transpose()
    shardwrite.prepare(ordered, scale, plan)
    for _ in range(2):
        shardwrite.write_part(ordered, scale, 0, 1)
    shardwrite.finalize(scale)
    assert shardwrite.verify(scale, against=ordered).is_good
    check_repair(scale, ordered)
    np.testing.assert_array_equal(shardwrite.from_precomputed(tmp_path, axes="xyz"), CUBE)


def test_ordinary_arrays_are_taken_as_they_are(tmp_path):
    """Also those that were made of a scale, and have its attributes."""
    shardwrite.to_precomputed(CUBE, tmp_path / "v", **new("xyz"))
    shardwrite.shard(tmp_path / "v" / KEY, tmp_path / "a", 2)
    assert shardwrite.verify(tmp_path / "a", against=CUBE.T).is_good
    assert not shardwrite.verify(tmp_path / "a", against=CUBE).is_good
    named = xr.DataArray(CUBE, dims=("x", "y", "z"))
    assert not shardwrite.verify(tmp_path / "a", against=named).is_good


def test_axes_that_the_names_contradict_are_refused(tmp_path):
    """Otherwise a repair would follow the names, and transpose the values of a cube."""
    values = np.arange(8**3, dtype="u2").reshape(8, 8, 8)
    named = xr.DataArray(values, dims=("z", "y", "x"))
    new = {"resolution": (4, 4, 40), "chunks": 4}
    with pytest.raises(SpecError, match="the names of the dimensions say 'zyx'; leave axes out"):
        shardwrite.to_precomputed(named, tmp_path / "v", axes="xyz", **new)
    assert not (tmp_path / "v").exists()
    shardwrite.to_precomputed(named, tmp_path / "v", axes="zyx", **new)
    shardwrite.to_precomputed(named, tmp_path / "left-out", **new)
    shardwrite.to_precomputed(values, tmp_path / "without-names", axes="xyz", **new)
    for name, axes in (("v", "zyx"), ("left-out", "zyx"), ("without-names", "xyz")):
        found = shardwrite.from_precomputed(tmp_path / name, axes=axes)
        np.testing.assert_array_equal(found, values)
