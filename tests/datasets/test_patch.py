"""`patch_xarray`: xarray's own call writes whole shards, whatever chunks a dataset has."""

from __future__ import annotations

import inspect
import json
import warnings
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import seams
import zarr

import shardwrite
from shardwrite import SpecError, patch_xarray

xr = pytest.importorskip("xarray")

pytestmark = pytest.mark.compat

SIZES = {"shards": (10, 12), "chunks": (5, 4)}


@pytest.fixture(autouse=True)
def own():
    """Every test leaves xarray as it was."""
    kinds = (xr.Dataset, xr.DataArray, xr.DataTree)
    before = [kind.to_zarr for kind in kinds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr tells about types and metadata
        yield
    assert [kind.to_zarr for kind in kinds] == before


def fields(start=0, stop=20):
    """Variables whose chunks fit no shard, and small ones."""
    n = np.arange(start, stop)
    x = da.from_array(n[:, None] * np.ones((1, 30)), chunks=(7, 11))
    return xr.Dataset(
        {"v": (("time", "x"), x, {"units": "K"}), "u": (("time", "x"), x.rechunk((4, 6)) * 2)},
        {"time": n, "x": np.arange(30) * 0.5},
        {"title": "it"},
    )


def receipt(root, name):
    return (Path(root) / name / "shardwrite-receipt.json").exists()


def grid(root, name):
    array = zarr.open_array(Path(root) / name)
    return array.shards, array.chunks


def check(root, wanted, **how):
    with xr.open_zarr(root, **how) as found:
        xr.testing.assert_identical(found.load(), wanted.compute())


def test_shards_in_the_argument(tmp_path):
    root = tmp_path / "x.zarr"
    with pytest.raises(ValueError, match="chunks"):
        fields().to_zarr(root, encoding={"v": SIZES})  # tasks of xarray would share shards
    with patch_xarray() as patch:
        assert isinstance(patch, shardwrite.XarrayPatch)
        store = fields().to_zarr(tmp_path / "y.zarr", encoding={"v": SIZES})
    assert isinstance(store, xr.backends.ZarrStore)
    assert sorted(store.zarr_group.array_keys()) == ["time", "u", "v", "x"]
    check(tmp_path / "y.zarr", fields())
    assert receipt(tmp_path / "y.zarr", "v")
    assert grid(tmp_path / "y.zarr", "v") == ((10, 12), (5, 4))
    assert grid(tmp_path / "y.zarr", "u") == (None, (4, 6)), "its chunks, as xarray takes them"


def test_shards_in_the_own_encoding(tmp_path):
    """A store of shards that was read and cut is written again, which xarray refuses (#11460)."""
    fields().shardwrite.to_zarr(tmp_path / "x.zarr", encoding={"v": SIZES})
    with patch_xarray(), xr.open_zarr(tmp_path / "x.zarr", chunks={}) as found:
        part = found.isel(time=slice(3, 17))
        part.to_zarr(tmp_path / "y.zarr")
        part["v"].to_zarr(tmp_path / "z.zarr")
        line = found.isel(x=3)  # sizes in its encoding are those of two dimensions
        line.to_zarr(tmp_path / "line.zarr")
        check(tmp_path / "y.zarr", part)
        check(tmp_path / "line.zarr", line)
    assert grid(tmp_path / "y.zarr", "v") == ((10, 12), (5, 4))
    assert grid(tmp_path / "z.zarr", "v") == ((10, 12), (5, 4))
    assert grid(tmp_path / "line.zarr", "v")[0] is None
    assert receipt(tmp_path / "line.zarr", "v")


def test_without_shards_xarray_writes(tmp_path):
    with patch_xarray():
        ds = fields().chunk(-1)
        ds.to_zarr(tmp_path / "x.zarr", encoding={"v": {"chunks": (20, 30), "shards": None}})
        ds["v"].to_zarr(tmp_path / "array.zarr")
        xr.DataTree.from_dict({"/a": ds}).to_zarr(tmp_path / "tree.zarr")
        later = ds.to_zarr(tmp_path / "later.zarr", compute=False)
        later.compute()
        ds.to_zarr(tmp_path / "v2.zarr", zarr_format=2)
        check(tmp_path / "later.zarr", ds)
        check(tmp_path / "v2.zarr", ds)
        with pytest.raises(ValueError, match="unexpected encoding"):
            ds.to_zarr(tmp_path / "no.zarr", encoding={"v": {"zlib": True}})
        with pytest.raises(ValueError, match=r"[Zz]arr format 2"):
            ds.to_zarr(tmp_path / "v2s.zarr", zarr_format=2, encoding={"v": {"shards": (20, 30)}})
    assert not list(tmp_path.rglob("shardwrite-receipt.json"))


def test_arrays_and_trees(tmp_path):
    tree = xr.DataTree.from_dict({"/": fields()[["u"]], "/low": fields()[["v"]]})
    with patch_xarray():
        fields()["v"].rename("w").to_zarr(tmp_path / "x.zarr", encoding={"w": SIZES})
        tree.to_zarr(tmp_path / "tree.zarr", encoding={"/low": {"v": SIZES}})
        tree.to_zarr(tmp_path / "tree.zarr", encoding={"/low": {"v": SIZES}}, mode="w")
    assert grid(tmp_path / "x.zarr", "w") == ((10, 12), (5, 4))
    assert grid(tmp_path / "tree.zarr", "low/v") == ((10, 12), (5, 4))
    with xr.open_datatree(tmp_path / "tree.zarr", engine="zarr") as found:
        xr.testing.assert_identical(found.load(), tree.compute())


def test_keywords_that_mean_the_same(tmp_path):
    root, encoding = str(tmp_path / "x.zarr"), {"v": SIZES}
    with patch_xarray():
        fields().to_zarr(
            root, mode="w-", group="a/b", encoding=encoding, safe_chunks=True, zarr_format=3
        )
        with pytest.raises(SpecError, match="exists there"):
            fields(1, 21).to_zarr(root, group="a/b", encoding=encoding)
        fields(1, 21).to_zarr(root, group="a/b", encoding=encoding, mode="w", align_chunks=True)
        check(root, fields(1, 21), group="a/b")
        fields().to_zarr(root, group="c", encoding=encoding, compute=True, consolidated=True)
        fields().to_zarr(tmp_path / "y.zarr", encoding=encoding, consolidated=False, mode="a")
        document = json.loads((tmp_path / "y.zarr/zarr.json").read_text())
        assert document.get("consolidated_metadata") is None
        empty = fields() * np.nan
        for writes_empty in (True, False):
            path = tmp_path / f"{writes_empty}.zarr"
            empty.to_zarr(path, encoding=encoding, write_empty_chunks=writes_empty)
            is_fill = np.isnan(
                zarr.open_array(path / "v").fill_value
            )  # older versions of xarray have 0
            n_files = 0 if is_fill and not writes_empty else 6
            assert sum(p.is_file() for p in (path / "v/c").rglob("*")) == n_files


@pytest.mark.parametrize("target", ["memory", "dict", None, "memory://patched"])
def test_stores(target):
    held = {}
    store = {"memory": zarr.storage.MemoryStore(), "dict": held}.get(target, target)
    how = {"storage_options": {}} if target == "memory://patched" else {}
    with patch_xarray():
        made = fields().to_zarr(store, encoding={"v": SIZES}, **how)
    assert made.zarr_group["v"].shards == (10, 12)
    check(made.zarr_group.store, fields())
    assert bool(held) == (target == "dict")


def test_appends_and_regions_into_arrays_with_shards(tmp_path):
    """What was read from a store of shards has them in its encoding."""
    root = tmp_path / "x.zarr"
    fields(0, 10).shardwrite.to_zarr(
        root, append_dim="time", shards={"time": 8}, chunks={"time": 4}
    )
    more = fields(10, 17)
    more["v"].encoding["shards"] = (8, 30)
    with patch_xarray():
        more.to_zarr(root, append_dim="time")
        check(root, fields(0, 17))
        part = (more[["v"]] + 1).drop_vars("x")
        part["v"].encoding["shards"] = (8, 30)
        part.to_zarr(root, region="auto")
    with xr.open_zarr(root) as found:
        np.testing.assert_array_equal(found["v"][10:17], more["v"] + 1)


REFUSED = {
    "compute": (False, r"shardwrite.to_zarr\(..., compute=False\)"),
    "chunkmanager_store_kwargs": ({"retries": 3}, "dask.config.set"),
    "write_empty_chunks": (True, "says otherwise.*one of both places"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_keywords_that_are_refused(tmp_path, name):
    value, told = REFUSED[name]
    encoding = {"v": {**SIZES, "write_empty_chunks": False}}
    with patch_xarray(), pytest.raises(SpecError, match=rf"{name}=.*{told}"):
        fields().to_zarr(tmp_path / "x.zarr", encoding=encoding, **{name: value})
    assert list(tmp_path.iterdir()) == []


def test_keywords_of_trees_that_are_refused(tmp_path):
    tree = xr.DataTree.from_dict({"/low": fields()})
    how = {"encoding": {"/low": {"v": SIZES}}}
    with patch_xarray():
        for name, told in (("write_inherited_coords", "inherit"), ("synchronizer", "same shard")):
            with pytest.raises(SpecError, match=rf"{name}=.*{told}"):
                tree.to_zarr(tmp_path / "x.zarr", **how, **{name: True})
        with pytest.raises(TypeError, match="no_such"):
            fields().to_zarr(tmp_path / "x.zarr", no_such=1)
    assert list(tmp_path.iterdir()) == []


def test_all_keywords_of_xarray_are_known():
    """A new one is refused until somebody has looked at what it means."""
    from shardwrite.datasets import patch

    known = {*patch._TAKEN, *patch._NO_EFFECT, *patch._REMEDIES, "self", "zarr_format"}
    for kind in (xr.Dataset, xr.DataArray, xr.DataTree):
        own = inspect.signature(kind.to_zarr).parameters
        assert {name for name in own if name != "kwargs"} <= known | {"zarr_version", "chunk_store"}


def test_an_interrupted_call_goes_on(tmp_path, monkeypatch):
    root, encoding = tmp_path / "x.zarr", {"v": SIZES}

    def stop(*_):
        raise KeyboardInterrupt

    with patch_xarray():
        with pytest.MonkeyPatch.context() as patch:
            seams.before(patch, "look for missing shards", stop)
            with pytest.raises(KeyboardInterrupt):
                fields().to_zarr(root, encoding=encoding)
        assert not list(root.rglob("zarr.json"))
        done = []
        seams.before(monkeypatch, "look for missing shards", lambda *_: done.append(1))
        fields().to_zarr(root, encoding=encoding)
    assert done
    check(root, fields())


def test_patches_are_taken_back_in_any_order(tmp_path):
    own = xr.Dataset.to_zarr
    with shardwrite.patch_dask():
        one, two = patch_xarray(), patch_xarray()
    ours = xr.Dataset.to_zarr
    assert ours is not own
    assert ours.__doc__ == own.__doc__
    one.restore()
    one.restore()
    assert xr.Dataset.to_zarr is ours
    two.restore()
    assert xr.Dataset.to_zarr is own
    with pytest.raises(ValueError, match="chunks"):
        ours(fields(), tmp_path / "x.zarr", encoding={"v": SIZES})  # whoever has kept it


def test_what_only_the_method_takes_is_asked_for_there(tmp_path):
    """xarray's call has no `source_id`, without which a dataset is not replaced by what it reads."""
    root = tmp_path / "x.zarr"
    encoding = {"v": SIZES, "u": SIZES}
    with patch_xarray():
        fields().to_zarr(root, encoding=encoding)
        with xr.open_zarr(root) as found, pytest.raises(SpecError) as refused:
            (found * 2).to_zarr(root, mode="w", encoding=encoding)
        assert "call ds.shardwrite.to_zarr, which takes source_id, and give" in str(refused.value)
        with xr.open_zarr(root) as found:
            (found * 2).shardwrite.to_zarr(root, mode="w", source_id="doubled", encoding=encoding)
    with xr.open_zarr(root) as found:
        np.testing.assert_array_equal(found["v"], fields()["v"] * 2)
