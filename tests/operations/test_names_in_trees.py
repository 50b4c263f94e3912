"""Names of arrays in hierarchies that are converted: all are checked before anything changes, and the
one that xarray gives to a DataArray without a name is converted like any other."""

from __future__ import annotations

import os

import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import SpecError

X = np.arange(64, dtype="u4").reshape(8, 8)
OF_XARRAY = "__xarray_dataarray_variable__"


def make(path, name):
    """A group with three arrays, of which one has this name."""
    group = zarr.create_group(path)
    for usual in ("a", "z", "odd"):
        group.create_array(usual, data=X, chunks=(4, 4))
    os.rename(path / "odd", path / name)
    return path


def listing(path):
    return sorted(map(os.fsencode, path.rglob("*")))


CALLS = {
    "shard": lambda path: shardwrite.shard(path, path.with_name("out"), shards=8),
    "reshard": lambda path: shardwrite.reshard(path, path.with_name("out"), shards=8, chunks=2),
    "in place": lambda path: shardwrite.shard(path, shards=8),
    "store": lambda path: shardwrite.shard_store(path, 2),
    "consume": lambda path: shardwrite.shard(path, path.with_name("out"), shards=8, consume=True),
    "parts": lambda path: shardwrite.prepare_conversion(path, path.with_name("out"), 8),
    "plan": lambda path: shardwrite.plan_reshard(path, 8),
}
RESERVED = ["__other", "...", "x.shardwrite"]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", RESERVED)
def test_a_name_that_no_array_can_have_is_refused_before_anything_changes(tmp_path, name, call):
    path = make(tmp_path / "tree", name)
    before = listing(tmp_path)
    with pytest.raises(SpecError) as caught:
        CALLS[call](path)
    assert repr(name) in str(caught.value)
    assert "exclude=" in str(caught.value)
    assert listing(tmp_path) == before
    os.rename(path / name, path / "odd")  # as the message says, and nothing is locked
    CALLS[call](path)


@pytest.mark.parametrize("name", RESERVED)
def test_it_can_be_left_out(tmp_path, name):
    path = make(tmp_path / "tree", name)
    shardwrite.shard(path, tmp_path / "out", shards=8, exclude=name)
    assert sorted(zarr.open_group(tmp_path / "out", mode="r").array_keys()) == ["a", "z"]


@pytest.mark.parametrize("call", sorted({*CALLS} - {"plan", "parts"}))
def test_the_name_of_xarray_is_converted(tmp_path, call):
    path = make(tmp_path / "tree", OF_XARRAY)
    CALLS[call](path)
    new = path if call in ("in place", "store") else tmp_path / "out"
    for name in ("a", "z", OF_XARRAY):
        found = zarr.open_group(new, mode="r")[name]
        assert found.shards is not None
        np.testing.assert_array_equal(found[...], X)
    if call == "store":
        shardwrite.unshard_store(path)
        assert zarr.open_group(path, mode="r")[OF_XARRAY].shards is None


def test_a_store_of_xarray(tmp_path):
    xarray = pytest.importorskip("xarray")
    xarray.DataArray(X).to_zarr(tmp_path / "x", zarr_format=3)
    shardwrite.shard_store(tmp_path / "x", 2)
    found = xarray.open_dataarray(tmp_path / "x", engine="zarr")
    np.testing.assert_array_equal(found.values, X)
    assert shardwrite.verify(tmp_path / "x").is_good


@pytest.mark.parametrize("call", ["consume", "upload", "bucket"])
def test_a_name_that_is_no_text(tmp_path, call):
    obstore = pytest.importorskip("obstore.store")
    path = make(tmp_path / "tree", "b\udcffd")
    calls = {
        **CALLS,
        "upload": lambda path: shardwrite.upload(path, obstore.MemoryStore()),
        "bucket": lambda path: shardwrite.shard(path, obstore.MemoryStore(), shards=8),
    }
    before = listing(tmp_path)
    with pytest.raises(SpecError, match="no text"):
        calls[call](path)
    assert listing(tmp_path) == before


@pytest.mark.long
def test_an_upload_keeps_reserved_names(tmp_path):
    obstore = pytest.importorskip("obstore.store")
    bucket = obstore.MemoryStore()
    shardwrite.upload(make(tmp_path / "tree", "__other"), bucket)
    shardwrite.download(bucket, tmp_path / "back")
    found = zarr.open_group(tmp_path / "back", mode="r")["__other"]
    np.testing.assert_array_equal(found[...], X)
