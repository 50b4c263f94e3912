"""What issues of xarray and its users report: it goes wrong there, and is right or refused here."""

from __future__ import annotations

import asyncio
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, WrapperStore

from shardwrite import SpecError

xr = pytest.importorskip("xarray")


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr tells about types and metadata
        yield


def test_what_is_opened_in_shards_is_written_in_shards(tmp_path):
    """xarray's issue 11460: chunks of an opened store are inner chunks, which do not fit."""
    from shardwrite.datasets.engine import ShardsBackend

    x = np.random.default_rng(0).random((10, 10))
    ds = xr.Dataset({"data": (("x", "y"), x)}).chunk(4)
    sizes = {"data": {"chunks": (2, 2), "shards": (4, 4)}}
    ds.to_zarr(tmp_path / "first.zarr", encoding=sizes)
    theirs = xr.open_zarr(tmp_path / "first.zarr")
    assert theirs["data"].chunks == ((2,) * 5,) * 2
    with pytest.raises(ValueError, match="chunks"):
        theirs.to_zarr(tmp_path / "refused.zarr")
    theirs.shardwrite.to_zarr(tmp_path / "ours.zarr", encoding=sizes)
    ours = xr.open_dataset(tmp_path / "first.zarr", engine=ShardsBackend, chunks={})
    assert ours["data"].chunks == ds["data"].chunks == ((4, 4, 2),) * 2
    ours.assign_attrs(title="enriched").to_zarr(tmp_path / "second.zarr")
    for name in ("ours", "second"):
        array = zarr.open_array(tmp_path / f"{name}.zarr" / "data")
        assert (array.shards, array.chunks) == ((4, 4), (2, 2))
        np.testing.assert_array_equal(array[...], x)


def of_two():
    """A store of two variables, and a dataset that lacks one of them."""
    first = xr.Dataset({"a": ("x", [1, 2]), "b": ("x", [10, 20])})
    return first, xr.Dataset({"a": ("x", [3, 4])})


def test_an_append_that_lacks_a_variable_breaks_no_store(tmp_path):
    """xarray's issue 10766: variables have different lengths then, and nothing opens the store."""
    first, second = of_two()
    first.to_zarr(tmp_path / "theirs.zarr")
    second.to_zarr(tmp_path / "theirs.zarr", append_dim="x")
    with pytest.raises(ValueError, match="conflicting sizes"):
        xr.open_zarr(tmp_path / "theirs.zarr")
    first.shardwrite.to_zarr(tmp_path / "ours.zarr")
    with pytest.raises(SpecError, match="the store has 'b' along 'x', too"):
        second.shardwrite.to_zarr(tmp_path / "ours.zarr", append_dim="x")
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "ours.zarr").load(), first)


def test_an_append_that_fails_breaks_no_store(tmp_path):
    """The same comes of an append that ends in the middle."""

    def fail(block):
        raise OSError("the source has gone")

    steps = xr.Dataset({name: ("x", da.arange(2, chunks=1)) for name in "ab"})
    broken = steps.assign(
        b=("x", steps["b"].data.map_blocks(fail, dtype="i8", meta=np.zeros(0, "i8")))
    )
    steps.to_zarr(tmp_path / "theirs.zarr")
    steps.shardwrite.to_zarr(tmp_path / "ours.zarr")
    with pytest.raises(OSError, match="has gone"):
        broken.to_zarr(tmp_path / "theirs.zarr", append_dim="x")
    with pytest.raises(OSError, match="has gone"):
        broken.shardwrite.to_zarr(tmp_path / "ours.zarr", append_dim="x")
    lengths = [zarr.open_array(tmp_path / "theirs.zarr" / name).shape for name in "ab"]
    assert lengths == [(4,), (4,)], "steps without values are there for all readers"
    for consolidated in (True, False):
        found = xr.open_zarr(tmp_path / "ours.zarr", consolidated=consolidated)
        xr.testing.assert_identical(found.load(), steps.compute())


class Crowded(WrapperStore):
    """A store of which two chunks are read before either is written, as it happens on a cluster."""

    def __init__(self, store):
        super().__init__(store)
        self.n_readers, self.both = 0, asyncio.Event()

    async def get(self, key, *arguments, **keywords):
        found = await super().get(key, *arguments, **keywords)
        if key.startswith("v/c/"):
            self.n_readers += 1
            if self.n_readers == 2:
                self.both.set()
            await asyncio.wait_for(self.both.wait(), 30)
        return found


def test_an_append_of_chunks_that_do_not_fit_loses_nothing(tmp_path):
    """xarray's issue 10501: it refuses such an append, or tasks overwrite the steps of others."""

    def made(values, chunks):
        return xr.Dataset({"v": ("t", da.from_array(np.asarray(values, "i8"), chunks=chunks))})

    first, second = made([1, 2, 3], 3), made([4, 5, 6, 7], 2)
    wanted = np.arange(1, 8)
    refused, memory = MemoryStore(), MemoryStore()
    for store in (refused, memory):
        first.to_zarr(store, encoding={"v": {"chunks": (8,)}})
    with pytest.raises(ValueError, match="chunks"):
        second.to_zarr(refused, append_dim="t")
    assert zarr.open_group(refused)["v"].shape == (7,), "and yet the array is longer"
    with dask.config.set(scheduler="threads", num_workers=2):
        second.to_zarr(Crowded(memory), append_dim="t", safe_chunks=False, consolidated=False)
    found = xr.open_zarr(memory, consolidated=False)["v"].values
    assert found.shape == (7,)
    assert (found != wanted).sum() == 2, "steps of one of the tasks are lost"
    sizes = {"v": {"chunks": (4,), "shards": (8,)}}
    first.shardwrite.to_zarr(tmp_path / "ours.zarr", encoding=sizes)
    second.shardwrite.to_zarr(tmp_path / "ours.zarr", append_dim="t")
    np.testing.assert_array_equal(xr.open_zarr(tmp_path / "ours.zarr")["v"], wanted)


def test_shards_of_all_variables_are_one_call(tmp_path):
    """ai2cm/ace's issue 1029 asks how: rechunk to shards, and name sizes for each variable."""
    ds = xr.Dataset(
        {
            "t2m": (("time", "lat", "lon"), da.random.random((48, 90, 180), chunks=(7, 90, 180))),
            "ps": (("time", "lat", "lon"), da.random.random((48, 90, 180), chunks=(5, 45, 180))),
            "mask": (("lat", "lon"), np.ones((90, 180), "i1")),
        },
        {"time": np.arange(48)},
    )
    names = ("t2m", "ps")
    sizes = {name: {"chunks": (1, 90, 180), "shards": (24, 90, 180)} for name in names}
    with pytest.raises(ValueError, match="chunks"):
        ds.to_zarr(tmp_path / "refused.zarr", encoding=sizes)
    ds.shardwrite.to_zarr(tmp_path / "ours.zarr", shards={"time": 24}, chunks={"time": 1})
    for name in names:
        array = zarr.open_array(tmp_path / "ours.zarr" / name)
        assert (array.shards, array.chunks) == ((24, 90, 180), (1, 90, 180))
    assert zarr.open_array(tmp_path / "ours.zarr" / "mask").shards is None
    with xr.open_zarr(tmp_path / "ours.zarr") as found:
        xr.testing.assert_identical(found.load(), ds.compute())
