"""The engine `shardwrite` of xarray finds what xarray's own engine finds, with shards as chunks."""

from __future__ import annotations

import importlib
import pickle
import shutil
import sys
import warnings
from pathlib import Path

import dask
import dask.array as da
import distributed
import numpy as np
import pytest
import zarr

import shardwrite

xr = pytest.importorskip("xarray")
pytest.importorskip("pandas")

sys.path.insert(0, str(Path(__file__).parent))
from test_round_trips import CASES, many, tree  # noqa: E402

from shardwrite.datasets.engine import ShardsBackend  # noqa: E402

SHAPE, SHARDS, CHUNKS = (40, 30), (16, 15), (4, 5)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr tells about types and metadata
        yield


def opened(store, **how):
    """The dataset as both engines open it."""
    ours = xr.open_dataset(store, engine=ShardsBackend, **how)
    return ours, xr.open_dataset(store, engine="zarr", **how)


@pytest.fixture
def small_shards(monkeypatch):
    """Sizes that give also small variables shards of two inner chunks along each axis."""
    importlib.import_module("shardwrite.datasets.write")  # which keeps the size, first
    monkeypatch.setattr("shardwrite.datasets.layout.ONE_PIECE_NBYTES", 0)
    return {"chunks": {...: 1}, "shards": 2}


def numbers():
    x = np.arange(np.prod(SHAPE), dtype="f8").reshape(SHAPE)
    return xr.Dataset({"v": (("t", "x"), x)}, {"t": np.arange(SHAPE[0]) * 2.0})


@pytest.fixture
def store(tmp_path):
    """Numbers in shards."""
    sizes = {"v": {"shards": SHARDS, "chunks": CHUNKS}}
    numbers().shardwrite.to_zarr(tmp_path / "x.zarr", encoding=sizes)
    return tmp_path / "x.zarr"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("decodes", [True, False])
def test_it_is_what_the_engine_of_xarray_finds(tmp_path, small_shards, name, decodes):
    ds = xr.Dataset(CASES[name], attrs={"title": name})
    if max(ds.sizes.values(), default=0) > 100:
        small_shards = {}
    ds.shardwrite.to_zarr(tmp_path / "x.zarr", **small_shards)
    for chunks in (None, {}):
        ours, theirs = opened(tmp_path / "x.zarr", chunks=chunks, decode_cf=decodes)
        for name in theirs.variables:
            found, wanted = ours[name].encoding, theirs[name].encoding
            shards = wanted.get("shards") or wanted["chunks"]
            assert {k: str(v) for k, v in found.items() if k != "preferred_chunks"} == {
                k: str(v) for k, v in wanted.items() if k != "preferred_chunks"
            }
            assert found["preferred_chunks"] == dict(zip(theirs[name].dims, shards, strict=True))
            assert ours[name].dtype == theirs[name].dtype
        xr.testing.assert_identical(ours, theirs)
        xr.testing.assert_identical(ours.load(), theirs.load())


def test_chunks_are_shards_and_zarr_reads_none_of_them(store, monkeypatch):
    ours, theirs = opened(store, chunks={})
    assert ours["v"].chunks == ((16, 16, 8), (15, 15))
    assert theirs["v"].chunks == ((4,) * 10, (5,) * 6)
    assert len(ours["v"].__dask_graph__()) < len(theirs["v"].__dask_graph__()) / 5
    monkeypatch.setattr(zarr.Array, "__getitem__", None)
    xr.testing.assert_identical(ours.compute(), numbers())
    with pytest.raises(TypeError):
        theirs.compute()


@pytest.mark.compat
def test_many_variables_groups_and_trees(tmp_path, small_shards):
    many().shardwrite.to_zarr(tmp_path / "x.zarr", group="a/b", **small_shards)
    for how in ({"group": "a/b"}, {"group": "/a/b/", "consolidated": False, "chunks": {}}):
        ours, theirs = opened(tmp_path / "x.zarr", **how)
        xr.testing.assert_identical(ours.load(), theirs.load())
        xr.testing.assert_equal(ours, many())
    tree().shardwrite.to_zarr(tmp_path / "t.zarr", **small_shards)
    for how in ({}, {"group": "fine"}, {"group": "/fine/more"}, {"chunks": {}}):
        ours = xr.open_datatree(tmp_path / "t.zarr", engine=ShardsBackend, **how)
        theirs = xr.open_datatree(tmp_path / "t.zarr", engine="zarr", **how)
        xr.testing.assert_identical(ours, theirs)
        xr.testing.assert_identical(ours.load(), theirs.load())
        groups = xr.open_groups(tmp_path / "t.zarr", engine=ShardsBackend, **how)
        assert [*groups] == [*xr.open_groups(tmp_path / "t.zarr", engine="zarr", **how)]
    whole = xr.open_datatree(tmp_path / "t.zarr", engine=ShardsBackend, chunks={})
    assert whole["fine"]["v"].chunks == ((2, 1), (2, 2))


def test_several_stores_are_one_dataset(tmp_path):
    ds = numbers()
    for n in range(2):
        part = ds.isel(t=slice(20 * n, 20 * n + 20))
        sizes = {"v": {"shards": SHARDS, "chunks": CHUNKS}}
        part.shardwrite.to_zarr(tmp_path / f"{n}.zarr", encoding=sizes)
    found = xr.open_mfdataset(str(tmp_path / "*.zarr"), engine=ShardsBackend)
    assert found["v"].chunks == ((16, 4, 16, 4), (15, 15))
    xr.testing.assert_identical(found.compute(), ds)


def selections(rng):
    """Random selections of all kinds, as arguments of `isel`."""

    def axis(n):
        kind = rng.integers(6)
        if kind == 0:
            return int(rng.integers(-n, n))
        if kind == 1:
            step = int(rng.choice([-7, -1, 1, 1, 1, 2, 11]))
            a, b = (int(i) for i in rng.integers(-n - 2, n + 2, 2))
            is_empty = not range(n)[a:b:step]  # with such a step, both engines of xarray fail
            return slice(a, b, abs(step) if is_empty else step)
        if kind == 2:
            return rng.integers(-n, n, rng.integers(0, 6))
        if kind == 3:
            return rng.random(n) < 0.2
        return slice(None)

    for _ in range(60):
        yield {"t": axis(SHAPE[0]), "x": axis(SHAPE[1])}
    for _ in range(20):
        points = rng.integers(0, (SHAPE,), (rng.integers(0, 9), 2))
        yield {dim: xr.DataArray(points[:, k], dims="p") for k, dim in enumerate(("t", "x"))}


@pytest.mark.long
def test_selections(store):
    wanted = numbers()
    for how in selections(np.random.default_rng(0)):
        for chunks in (None, {}):
            lazy = xr.open_dataset(store, engine=ShardsBackend, chunks=chunks)
            xr.testing.assert_identical(lazy.isel(how).load(), wanted.isel(how))
    lazy = xr.open_dataset(store, engine=ShardsBackend)
    again = lazy.isel(t=slice(3, 33)).isel(x=[1, 25], t=slice(None, None, -4)).isel(t=2)
    xr.testing.assert_identical(
        again.load(),
        wanted.isel(t=slice(3, 33)).isel(x=[1, 25], t=slice(None, None, -4)).isel(t=2),
    )


@pytest.mark.parametrize(
    "how", [{"t": slice(16)}, {"t": [0, 39]}, {"t": slice(None, None, 39)}, {"t": -1}]
)
def test_shards_that_are_not_selected_are_not_read(store, how):
    """A damaged one is told by the error of this package, if it is needed."""
    for path in (store / "v" / "c" / "1").iterdir():
        path.write_bytes(b"damaged")
    lazy = xr.open_dataset(store, engine=ShardsBackend)
    xr.testing.assert_identical(lazy.isel(how).load(), numbers().isel(how))
    with pytest.raises(shardwrite.CorruptShardError):
        lazy.load()


@pytest.mark.long
def test_other_processes_read_it(store):
    lazy = xr.open_dataset(store, engine=ShardsBackend)
    copy = pickle.loads(pickle.dumps(lazy))
    xr.testing.assert_identical(copy.load(), numbers())
    ours, _ = opened(store, chunks={})
    with distributed.Client(n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        assert client.run(lambda: "shardwrite" in __import__("sys").modules)
        xr.testing.assert_identical(ours.compute(), numbers())
        parts = client.gather(client.map(lambda k, ds: ds.isel(t=k).load(), [0, 39], ds=lazy))
    for k, part in zip((0, 39), parts, strict=True):
        xr.testing.assert_identical(part, numbers().isel(t=k))


@pytest.mark.long
def test_stores_that_this_package_does_not_read(tmp_path, store):
    """zarr-python reads them: objects in memory, a ZIP file, Zarr v2, and text."""
    memory = zarr.storage.MemoryStore()
    numbers().shardwrite.to_zarr(memory, encoding={"v": {"shards": SHARDS, "chunks": CHUNKS}})
    packed = shutil.make_archive(str(tmp_path / "x"), "zip", store)
    numbers().to_zarr(tmp_path / "v2.zarr", zarr_format=2, encoding={"v": {"chunks": CHUNKS}})
    stores = [memory, tmp_path / "v2.zarr"]
    for target in (*stores, zarr.storage.ZipStore(packed, mode="r")):
        ours, theirs = opened(target)
        xr.testing.assert_identical(pickle.loads(pickle.dumps(ours)).load(), numbers())
        assert ours["v"].encoding["shards"] == theirs["v"].encoding["shards"]
        has_shards = theirs["v"].encoding["shards"] is not None
        ours, theirs = opened(target, chunks={})
        assert ours["v"].chunks == (((16, 16, 8), (15, 15)) if has_shards else theirs["v"].chunks)
        xr.testing.assert_identical(ours.compute(), theirs.compute())
    (numbers() + 1).to_zarr(store, zarr_format=2, mode="a")
    for version in (2, 3):
        ours, theirs = opened(store, zarr_format=version, consolidated=False)
        xr.testing.assert_identical(ours.load(), theirs.load())


def test_what_the_root_lists_is_what_is_read(store):
    """An array that another program has made longer is as long as the root says, as in xarray."""
    zarr.open_array(store / "v").resize((50, 30))
    ours, theirs = opened(store, chunks={})
    assert ours.sizes == theirs.sizes == {"t": 40, "x": 30}
    xr.testing.assert_identical(ours.compute(), numbers())
    with pytest.raises(ValueError, match="conflicting sizes"):
        xr.open_dataset(store, engine=ShardsBackend, consolidated=False)


def test_what_was_opened_is_written_again_by_the_same_name(tmp_path, store):
    """The names of dask say that a second call has the same source."""
    target = tmp_path / "again.zarr"
    for n_resumed in (0, 1):
        lazy, _ = opened(store, chunks={})
        result = lazy.shardwrite.to_zarr(target, shards={"t": 8}, chunks={"t": 4})
        assert (result.variables["v"].n_resumed_shards > 0) == n_resumed
    ours, _ = opened(target)
    xr.testing.assert_identical(ours.load(), numbers())


def test_what_to_zarr_takes_is_opened(store):
    """Stores that xarray's own engine refuses, too."""
    from obstore.store import MemoryStore

    bucket, objects = MemoryStore(), {}
    sizes = {"v": {"shards": SHARDS, "chunks": CHUNKS}}
    for target in (bucket, objects):
        numbers().shardwrite.to_zarr(target, encoding=sizes)
    numbers().shardwrite.to_zarr(store, group="inner", encoding=sizes)
    for given in (bucket, objects, zarr.open_group(store), zarr.open_group(store)["inner"]):
        with xr.open_dataset(given, engine=ShardsBackend, chunks={}) as found:
            assert found["v"].chunks == ((16, 16, 8), (15, 15))
            xr.testing.assert_identical(found.load(), numbers())
    found = xr.open_datatree(zarr.open_group(store), engine=ShardsBackend)
    xr.testing.assert_identical(found["inner"].to_dataset().load(), numbers())


def test_what_is_no_group_is_told_as_xarray_tells_it(tmp_path, store):
    for path in (tmp_path / "none.zarr", store / "v"):
        told = []
        for engine in ("zarr", ShardsBackend):
            with pytest.raises(Exception) as caught:  # noqa: PT011 (the type is compared)
                xr.open_dataset(path, engine=engine)
            told.append((caught.type, str(caught.value)))
        assert told[0] == told[1]
    with pytest.raises(TypeError, match="colour"):
        xr.open_dataset(store, engine=ShardsBackend, colour="red")


@pytest.mark.compat
def test_xarray_finds_the_engine_by_its_name_and_takes_its_own_if_none_is_named(store):
    from importlib.metadata import entry_points

    found = [p for p in entry_points(group="xarray.backends") if p.name == "shardwrite"]
    if not found:
        pytest.skip("the package is not installed, so it has no entry points")
    assert found[0].load() is ShardsBackend
    ours = xr.open_dataset(store, engine="shardwrite", chunks={})
    assert ours["v"].chunks == ((16, 16, 8), (15, 15))
    assert xr.open_dataset(store, chunks={})["v"].chunks[1] == (5,) * 6


def test_an_array_that_is_not_dask_is_read_by_whole_shards_once(store):
    with dask.config.set(scheduler="sync"):
        ours, _ = opened(store, chunks={"t": -1})
        assert ours["v"].chunks == ((40,), (15, 15))
        np.testing.assert_array_equal(ours["v"].data.compute(), numbers()["v"])
    assert isinstance(ours["v"].data, da.Array)
