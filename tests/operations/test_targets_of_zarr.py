"""What zarr-python and dask take for a target and for a layout: arrays to fill, groups of both
formats, modes, and keywords with the meaning that they have there."""

from __future__ import annotations

import asyncio
import json
import warnings

import dask
import dask.array as da
import numpy as np
import obstore
import pytest
import zarr
from helpers import Stop, stop
from zarr.codecs import ShardingCodecIndexLocation
from zarr.storage import LocalStore, MemoryStore, ObjectStore

import shardwrite
from shardwrite import SpecError

VALUES = np.arange(20 * 30, dtype="i4").reshape(20, 30)
SIZES = {"shards": (10, 12), "chunks": (5, 4)}


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=(7, 30))


@pytest.fixture(params=["directory", "memory", "objects"])
def store(request, tmp_path):
    kinds = {
        "directory": lambda: LocalStore(tmp_path / "store"),
        "memory": MemoryStore,
        "objects": lambda: ObjectStore(obstore.store.MemoryStore()),
    }
    with dask.config.set({"shardwrite.run-dir": str(tmp_path / "runs"), "scheduler": "sync"}):
        yield kinds[request.param]()


def make(store, **more):
    """An array that only zarr-python has described."""
    keywords = {
        "shape": VALUES.shape,
        "dtype": "i4",
        "shards": {"shape": (10, 10), "index_location": "start"},
        "chunks": (5, 2),
        "fill_value": 6,
        "compressors": zarr.codecs.BloscCodec(cname="lz4"),
        "filters": [zarr.codecs.TransposeCodec(order=(1, 0))],
        "attributes": {"unit": "K"},
        "dimension_names": ["y", "x"],
    }
    return zarr.create_array(store, **{**keywords, **more})


def document(store, name=""):
    return json.loads(
        zarr.core.sync.sync(
            store.get(f"{name}/zarr.json".lstrip("/"), zarr.core.buffer.default_buffer_prototype())
        ).to_bytes()
    )


# ---- arrays to fill


def test_an_array_of_zarr_is_filled_and_keeps_its_metadata(store, x):
    array = make(store)
    before = document(store)
    result = x.to_sharded_zarr(array)
    assert result.n_shards == 6
    assert document(store) == before
    np.testing.assert_array_equal(array[...], VALUES)
    assert shardwrite.verify(store, deep=True, against=x).is_good


def test_an_array_of_a_group_or_an_async_array_is_filled(store, x):
    group = zarr.create_group(store)
    array = make(store, name="a/x")
    x.to_sharded_zarr(group["a/x"])
    np.testing.assert_array_equal(array[...], VALUES)
    opened = asyncio.run(zarr.api.asynchronous.open_array(store=store, path="a/x"))
    (x + 1).to_sharded_zarr(opened)
    np.testing.assert_array_equal(array[...], VALUES + 1)


def test_a_part_of_an_array_of_zarr_is_filled(store, x):
    array = make(store)
    x[0, :9].to_sharded_zarr(array, region=(3, slice(-9, None)))
    shardwrite.write_region(7, array, np.s_[..., 0])
    wanted = np.full(VALUES.shape, 6)
    wanted[3, -9:] = VALUES[0, :9]
    wanted[:, 0] = 7
    np.testing.assert_array_equal(array[...], wanted)


def test_an_unsharded_array_is_filled(store, x):
    array = make(store, shards=None, chunks=(7, 11))
    x.to_sharded_zarr(array)
    np.testing.assert_array_equal(array[...], VALUES)
    shardwrite.write_region(x[:2], array, np.s_[4:6])
    np.testing.assert_array_equal(array[4:6], VALUES[:2])


def test_an_array_is_filled_again_unless_its_source_is_named(store, x):
    array = make(store)
    assert x.to_sharded_zarr(array, source_id="one").seconds > 0
    array[...] = 0
    assert x.to_sharded_zarr(array, source_id="one").seconds == 0
    assert x.to_sharded_zarr(array).seconds > 0
    np.testing.assert_array_equal(array[...], VALUES)


def test_the_dtype_of_the_array_counts(store, x):
    array = make(store, dtype="f8")
    x.to_sharded_zarr(array)
    np.testing.assert_array_equal(array[...], VALUES.astype("f8"))
    with pytest.raises(SpecError, match=r"x.dtype='float64': cannot be cast to the array's int16"):
        x.astype("f8").to_sharded_zarr(make(store, dtype="i2", overwrite=True))


def test_what_an_array_to_fill_refuses(store, x):
    array = make(store)
    before = set(shardwrite.open_sharded(store).store.list_keys())
    with pytest.raises(SpecError, match=r"x.shape=\(19, 30\): is not that of the array that exist"):
        x[:19].to_sharded_zarr(array)
    with pytest.raises(SpecError, match=r"x.shape=\(\)"):
        da.from_array(np.array(5, "i4")).to_sharded_zarr(array)
    with pytest.raises(SpecError, match="not an array"):
        shardwrite.to_sharded_zarr(5, array)
    for keyword, value in (
        ("shards", (10, 15)),
        ("shards", None),
        ("chunks", (5, 5)),
        ("compressors", "gzip"),
        ("filters", []),
        ("fill_value", 0),
        ("attributes", {"unit": "C"}),
        ("dimension_names", ["a", "b"]),
        ("chunk_key_encoding", "v2"),
        ("index_codecs", ["bytes"]),
    ):
        with pytest.raises(SpecError, match="is not that of the array that exists, which ha") as e:
            x.to_sharded_zarr(array, **{keyword: value})
        assert e.value.field == keyword
        assert "leave it out" in str(e.value)
    assert set(shardwrite.open_sharded(store).store.list_keys()) == before


def test_keywords_that_say_the_same_are_taken(store, x):
    array = make(store)
    x.to_sharded_zarr(
        array,
        shards={"shape": (10, 10), "index_location": ShardingCodecIndexLocation.start},
        chunks=(5, 2),
        fill_value=6,
        attributes={"unit": "K"},
        dimension_names=("y", "x"),
        zarr_format=3,
    )
    np.testing.assert_array_equal(array[...], VALUES)


def test_a_name_below_an_array_is_refused(store, x):
    array = make(store, name="x")
    for mode in ("w-", "a", "w"):
        with pytest.raises(SpecError, match="an array stands where its group should be"):
            x.to_sharded_zarr(array, name="y", mode=mode, **SIZES)


def test_a_fill_can_wait(store, x):
    array = make(store)
    later = x.to_sharded_zarr(array, compute=False)
    assert not (array[...] == VALUES).all()
    later.compute()
    np.testing.assert_array_equal(array[...], VALUES)


def test_what_says_nothing_about_an_array_goes_with_a_region(store, x):
    array = make(store)
    x[:3].to_sharded_zarr(array, region=slice(3), zarr_format=3, order="F")
    np.testing.assert_array_equal(array[:3], VALUES[:3])
    with pytest.raises(SpecError, match="zarr_format=2"):
        x[:3].to_sharded_zarr(array, region=slice(3), zarr_format=2)


def test_an_array_is_replaced_by_mode_w_only(store, x):
    array = make(store)
    with pytest.raises(SpecError, match='or give mode="w" to replace the array'):
        x.to_sharded_zarr(array, **SIZES)
    x.to_sharded_zarr(array, mode="w", **SIZES)
    assert zarr.open_array(store).shards == (10, 12)
    np.testing.assert_array_equal(zarr.open_array(store)[...], VALUES)


def test_an_array_that_is_gone_or_read_only_is_not_filled(tmp_path, x):
    store = MemoryStore()
    array = make(store)
    store._store_dict.clear()
    with pytest.raises(SpecError, match=r"no array: there is no zarr.json"):
        x.to_sharded_zarr(array)
    make(LocalStore(tmp_path / "x"))
    for closed in (
        zarr.open_array(tmp_path / "x", mode="r"),
        zarr.open_array(LocalStore(tmp_path / "x", read_only=True), mode="r"),
    ):
        with pytest.raises(SpecError, match="read-only"):
            x.to_sharded_zarr(closed)


def test_an_array_of_zarr_v2_is_refused_by_name(store, x):
    array = zarr.create_array(store, shape=VALUES.shape, dtype="i4", chunks=(5, 5), zarr_format=2)
    for call in (
        lambda: x.to_sharded_zarr(array),
        lambda: x.to_sharded_zarr(array, region=...),
        lambda: x.to_sharded_zarr(store, mode="r+"),
        lambda: shardwrite.from_sharded_zarr(store),
    ):
        with pytest.raises(SpecError, match=r"Zarr v2.*use zarr-python for it, or copy it"):
            call()
    assert not array[...].any()


# ---- groups of both formats


def test_a_name_in_a_group_of_zarr_v2(store, x):
    root = zarr.create_group(store, zarr_format=2)
    root.create_array("old", shape=4, dtype="i4", chunks=(2,))[...] = 5
    with pytest.warns(UserWarning, match="group of Zarr v2, which lists no arrays of Zarr v3"):
        x.to_sharded_zarr(root, name="deep/new", **SIZES)
    np.testing.assert_array_equal(zarr.open_array(store, path="deep/new")[...], VALUES)
    assert zarr.open_group(store, path="deep").metadata.zarr_format == 3
    np.testing.assert_array_equal(zarr.open_group(store)["old"][...], 5)
    assert zarr.open_group(store).metadata.zarr_format == 2, "the group is what it was"
    assert shardwrite.verify(store, name="deep/new", deep=True, against=x).is_good
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shardwrite.write_region(1, root, np.s_[:2], name="deep/new")
        x.to_sharded_zarr(root, name="deep/other", **SIZES)  # in the new group, which lists it


def test_the_group_is_told_of_where_another_array_in_it_was_finished_before(store, x):
    root = zarr.create_group(store, zarr_format=2)
    names = [f"a{n:02}" for n in range(11)]
    for some in (names[:1], names):
        with pytest.warns(UserWarning, match="group of Zarr v2") as told:
            shardwrite.store([x] * len(some), [root] * len(some), names=some, **SIZES)
        assert sum("Zarr v2" in str(one.message) for one in told) == 1
    for name in names:
        np.testing.assert_array_equal(zarr.open_array(store, path=name)[...], VALUES)


def test_a_group_of_zarr_v2_is_no_place_for_an_array(store, x):
    root = zarr.create_group(store, zarr_format=2)
    for mode in ("w-", "w", "a"):
        with pytest.raises(SpecError, match="a Zarr v2 group stands there; give another name"):
            x.to_sharded_zarr(root, mode=mode, **SIZES)
    root.create_array("old", shape=4, dtype="i4", chunks=(2,))
    with pytest.raises(SpecError, match="a Zarr v2 array stands where its group should be"):
        x.to_sharded_zarr(root, name="old/x", **SIZES)


def test_a_group_in_both_formats_is_one_of_v3(tmp_path, x):
    zarr.create_group(tmp_path / "g", zarr_format=2)
    zarr.create_group(tmp_path / "h", zarr_format=3)
    (tmp_path / "h" / "zarr.json").rename(tmp_path / "g" / "zarr.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.to_sharded_zarr(tmp_path / "g", name="x", **SIZES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr warns of both documents
        np.testing.assert_array_equal(zarr.open_group(tmp_path / "g")["x"][...], VALUES)


# ---- modes


def test_mode_a_makes_what_is_not_there_and_fills_what_is(store, x):
    x.to_sharded_zarr(store, name="x", mode="a", fill_value=3, **SIZES)
    before = document(store, "x")
    (x + 1).to_sharded_zarr(store, name="x", mode="a", fill_value=3, **SIZES)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES + 1)
    (x + 2).to_sharded_zarr(store, name="x", mode="a")
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES + 2)
    assert document(store, "x") == before
    with pytest.raises(SpecError, match=r"shards=\(10, 10\): is not that of the array"):
        x.to_sharded_zarr(store, name="x", mode="a", shards=(10, 10), chunks=5)
    (x[:3]).to_sharded_zarr(store, name="x", mode="a", region=slice(3))
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[:3], VALUES[:3])


def test_mode_r_plus_needs_an_array(store, x):
    with pytest.raises(SpecError, match="no array"):
        x.to_sharded_zarr(store, name="x", mode="r+", **SIZES)
    with pytest.raises(SpecError, match="no array"):
        x.to_sharded_zarr(store, name="x", mode="r+", region=...)
    assert not list(shardwrite.stores.open_store(store).store.list_keys())
    x.to_sharded_zarr(store, name="x", **SIZES)
    (x + 1).to_sharded_zarr(store, name="x", mode="r+")
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES + 1)
    (x[:2]).to_sharded_zarr(store, name="x", mode="r+", region=slice(2))
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[:2], VALUES[:2])


@pytest.mark.parametrize("publish", ["last", "first"])
def test_a_run_in_mode_a_goes_on(store, x, publish):
    """Also where readers see the array already: it is the run's own, and no array to fill."""
    call = {"name": "x", "mode": "a", "memory_limit": "10kB", "publish": publish, **SIZES}
    x = x.rechunk((10, 30))
    with pytest.raises(Stop):
        x.to_sharded_zarr(store, progress=stop, **call)
    result = x.to_sharded_zarr(store, **call)
    assert 0 < result.n_resumed_shards < 6
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES)


def test_an_interrupted_fill_goes_on(store, x):
    array = make(store)
    call = {"source_id": "it", "memory_limit": "10kB"}
    x = x.rechunk((10, 30))
    with pytest.raises(Stop):
        x.to_sharded_zarr(array, progress=stop, **call)
    assert 0 < x.to_sharded_zarr(array, **call).n_resumed_shards < 6
    np.testing.assert_array_equal(array[...], VALUES)


@pytest.mark.parametrize("mode", ["r", "x", 1, "W"])
@pytest.mark.parametrize("region", [None, ...])
def test_what_is_no_mode(tmp_path, x, mode, region):
    with pytest.raises(SpecError) as raised:
        x.to_sharded_zarr(tmp_path / "x", mode=mode, region=region, **({} if region else SIZES))
    assert raised.value.field == "mode"
    assert "r+" in str(raised.value)
    assert not list(tmp_path.iterdir())


# ---- keywords of zarr-python


@pytest.mark.parametrize("how", ["write", "plan", "create", "store"])
@pytest.mark.parametrize("location", ["start", ShardingCodecIndexLocation.start])
def test_shards_as_zarr_takes_them(tmp_path, x, how, location):
    shards = {"shape": (10, 12), "index_location": location}
    path = tmp_path / "x"
    if how == "write":
        x.to_sharded_zarr(path, shards=shards, chunks=(5, 4))
    elif how == "plan":
        shardwrite.prepare(x, path, shardwrite.plan(x, shards=shards, chunks=(5, 4)))
        shardwrite.write_part(x, path, 0, 1)
        shardwrite.finalize(path)
    elif how == "create":
        shardwrite.create(path, x.shape, x.dtype, shards=shards, chunks=(5, 4))
        x.to_sharded_zarr(path, region=...)
    else:
        shardwrite.store([x], [path], shards=shards, chunks=(5, 4))
    array = zarr.open_array(path)
    assert array.metadata.codecs[0].to_dict()["configuration"]["index_location"] == "start"
    assert array.shards == (10, 12)
    np.testing.assert_array_equal(array[...], VALUES)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"shards": {}}, "shards={}: no description of shards"),
        ({"shards": {"shape": 8, "where": "end"}}, "no description of shards"),
        ({"shards": {"index_location": "end"}}, "no description of shards"),
        ({"shards": {"shape": {"shape": 8}}}, "no description of shards"),
        ({"shards": {"shape": (8,)}}, r"has 1 entries for 2 axes"),
        ({"shards": {"shape": 8, "index_location": "mid"}}, "index_location='mid': no such place"),
        (
            {"shards": {"shape": 8, "index_location": "end"}, "index_location": "start"},
            "index_location='start': is not what shards= says, which is 'end'; give it once",
        ),
        ({"zarr_format": 2}, "zarr_format=2: is not written: only arrays of Zarr v3 have shards"),
        ({"zarr_format": "3"}, "zarr_format='3': is not written"),
        ({"order": "K"}, 'order=\'K\': no such order; give "C" or "F"'),
    ],
    ids=str,
)
def test_keywords_that_are_refused(tmp_path, x, keywords, message):
    with pytest.raises(SpecError, match=message):
        x.to_sharded_zarr(tmp_path / "x", **{"chunks": 4, **keywords})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("order", ["C", "F", None])
def test_order_and_format_change_no_byte(tmp_path, x, order):
    x.to_sharded_zarr(tmp_path / "plain", **SIZES)
    x.to_sharded_zarr(tmp_path / "asked", order=order, zarr_format=3, **SIZES)
    for file in (tmp_path / "plain").rglob("*"):
        if file.is_file() and "receipt" not in file.name:
            other = tmp_path / "asked" / file.relative_to(tmp_path / "plain")
            assert other.read_bytes() == file.read_bytes()
