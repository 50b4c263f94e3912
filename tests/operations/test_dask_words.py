"""Keywords that dask's functions have: they mean here what they mean there, or an error names ours."""

from __future__ import annotations

import inspect
from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import shardwrite
from shardwrite import SpecError

VALUES = np.arange(20 * 30, dtype="i4").reshape(20, 30)
SIZES = {"shards": (10, 12), "chunks": (5, 4)}


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=(7, 30))


def refused(call, match=None):
    with pytest.raises(SpecError, match=match) as caught:
        call()
    return caught.value.fields["field"]


def test_every_parameter_of_dasks_functions_has_a_word():
    """Those of the installed version. `name` of `from_zarr` is `dask_name`, since ours is a path."""
    of_store = {"sources", "targets", "lock", "load_stored", "kwargs"}  # which are of other targets
    for theirs, ours, others in (
        (da.to_zarr, shardwrite.to_sharded_zarr, {"arr", "url", "kwargs", "zarr_read_kwargs"}),
        (da.from_zarr, shardwrite.from_sharded_zarr, {"url", "kwargs"}),
        (da.store, shardwrite.store, of_store),
    ):
        known = set(inspect.signature(ours).parameters)
        assert not set(inspect.signature(theirs).parameters) - others - known
    assert {"overwrite", "zarr_array_kwargs"} <= set(
        inspect.signature(shardwrite.to_sharded_zarr).parameters
    )


# ---- component, storage_options


def test_component_is_the_name_by_place_and_by_word(x, tmp_path):
    x.to_sharded_zarr(tmp_path, "a/x", **SIZES)
    x.to_sharded_zarr(tmp_path, component="a/y", **SIZES)
    x.to_sharded_zarr(tmp_path, component="a/z", name="a/z", **SIZES)
    for name in "xyz":
        np.testing.assert_array_equal(zarr.open_group(tmp_path)[f"a/{name}"][...], VALUES)
        found = shardwrite.from_sharded_zarr(tmp_path, f"a/{name}")
        np.testing.assert_array_equal(found, VALUES)
        assert found.name == shardwrite.from_sharded_zarr(tmp_path, component=f"a/{name}").name
    x[:5].to_sharded_zarr(tmp_path, component="a/x", region=np.s_[5:10])
    np.testing.assert_array_equal(zarr.open_group(tmp_path)["a/x"][5:10], VALUES[:5])


def test_two_names_are_refused(x, tmp_path):
    call = {"name": "a", "component": "b"}
    assert refused(lambda: x.to_sharded_zarr(tmp_path, **call)) == "component"
    assert refused(lambda: shardwrite.from_sharded_zarr(tmp_path, **call)) == "component"
    words = {"zarr_array_kwargs": {"name": "c"}}
    assert refused(lambda: x.to_sharded_zarr(tmp_path, name="b", **words)) == "component"
    assert not list(tmp_path.iterdir())


def test_a_url_of_fsspec_is_opened_with_its_options(x):
    url = "memory://words/x.zarr"
    x.to_sharded_zarr(url, storage_options={}, **SIZES)
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(url, None, {}), VALUES)
    np.testing.assert_array_equal(da.from_zarr(url, storage_options={}), VALUES)


def test_options_of_a_local_path_have_no_effect_as_in_dask(x, tmp_path):
    options = {"storage_options": {"anon": True}}
    for given in (tmp_path / "x", str(tmp_path / "y"), f"file://{tmp_path}/z"):
        x.to_sharded_zarr(given, **options, **SIZES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y", "z"]


def test_options_that_nothing_can_be_done_with_are_refused(x, tmp_path):
    secret = {"key": "SECRET"}
    for store, options, field in (
        (MemoryStore(), secret, "storage_options"),
        (tmp_path / "x", ["anon"], "storage_options"),
        ("nosuch://bucket/x", secret, "store"),
        ("memory://x", {3: 4}, "store"),
    ):
        with pytest.raises(SpecError) as caught:
            x.to_sharded_zarr(store, storage_options=options, **SIZES)
        assert caught.value.fields["field"] == field
        assert "SECRET" not in str(caught.value)
    assert not list(tmp_path.iterdir())


# ---- overwrite and mode


@pytest.mark.parametrize(
    ("mode", "overwrite", "replaces"),
    [
        (None, True, True),
        ("w", True, True),
        (None, False, False),
        ("w-", False, False),
        (None, None, False),
    ],
)
def test_overwrite_is_a_mode(x, mode, overwrite, replaces, tmp_path):
    x.to_sharded_zarr(tmp_path / "x.zarr", **SIZES)
    call = {"mode": mode, "overwrite": overwrite, **SIZES}
    if replaces:
        (x + 1).to_sharded_zarr(tmp_path / "x.zarr", **call)
    else:
        assert refused(lambda: (x + 1).to_sharded_zarr(tmp_path / "x.zarr", **call)) == "store"
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr")[...], VALUES + replaces)


@pytest.mark.parametrize(
    ("mode", "overwrite"), [("w-", True), ("w", False), ("r+", True), (None, "yes"), (None, 1)]
)
def test_overwrite_against_mode(x, mode, overwrite, tmp_path):
    call = {"mode": mode, "overwrite": overwrite}
    assert refused(lambda: x.to_sharded_zarr(tmp_path / "x.zarr", **call)) == "overwrite"
    assert refused(lambda: shardwrite.store([x], [tmp_path / "x.zarr"], **call)) == "overwrite"
    assert not list(tmp_path.iterdir())


def test_overwrite_says_nothing_about_a_region(x, tmp_path):
    x.to_sharded_zarr(tmp_path / "x.zarr", **SIZES)
    call = {"region": np.s_[:5]}
    assert (
        refused(lambda: x[:5].to_sharded_zarr(tmp_path / "x.zarr", overwrite=True, **call))
        == "mode"
    )
    (x[:5] + 1).to_sharded_zarr(tmp_path / "x.zarr", overwrite=False, **call)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr")[:5], VALUES[:5] + 1)


# ---- zarr_array_kwargs


def test_keywords_of_zarr_in_a_mapping(x, tmp_path):
    words = {
        **SIZES,
        "name": "a/x",
        "shape": VALUES.shape,
        "dtype": "int32",
        "compressors": None,
        "fill_value": 3,
        "dimension_names": ["y", "x"],
        "attributes": {"a": 1},
        "zarr_format": 3,
        "order": "C",
        "overwrite": False,
        "config": None,
    }
    x.to_sharded_zarr(tmp_path, zarr_array_kwargs=words)
    made = zarr.open_group(tmp_path)["a/x"]
    np.testing.assert_array_equal(made[...], VALUES)
    assert (made.shards, made.chunks, made.compressors) == ((10, 12), (5, 4), ())
    assert (made.fill_value, made.metadata.dimension_names) == (3, ("y", "x"))
    assert dict(made.attrs) == {"a": 1}
    (x + 1).to_sharded_zarr(tmp_path, zarr_array_kwargs={**words, "overwrite": True})
    np.testing.assert_array_equal(zarr.open_group(tmp_path)["a/x"][...], VALUES + 1)
    shardwrite.store([x], [tmp_path], zarr_array_kwargs={**words, "name": "b"})
    np.testing.assert_array_equal(zarr.open_group(tmp_path)["b"][...], VALUES)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"compressor": "zstd"}, "give compressors"),
        ({"dimension_separator": "."}, "give chunk_key_encoding"),
        ({"path": "x"}, "give name"),
        ({"config": {"write_empty_chunks": True}}, "give write_empty_chunks to to_sharded_zarr"),
        ({"nothing_like_it": 3}, "these are known"),
        ({"shape": (3, 3)}, "is not the source's"),
        ({"dtype": "f4"}, "is not the source's"),
        ({"dtype": "no dtype"}, "is not the source's"),
        ({"chunks": 3}, "says something else than chunks"),
        (["shards"], "not a mapping"),
    ],
    ids=str,
)
def test_keywords_of_zarr_that_are_refused_by_name(x, words, told, tmp_path):
    call = {"zarr_array_kwargs": words, **SIZES}
    assert (
        refused(lambda: x.to_sharded_zarr(tmp_path / "x.zarr", **call), told) == "zarr_array_kwargs"
    )
    assert not list(tmp_path.iterdir())


def test_keywords_of_zarr_may_be_arrays_of_numpy_where_they_are_sequences(x, tmp_path):
    arrays = {"shards": np.array([10, 12]), "chunks": np.array([5, 4], "u1")}
    arrays |= {"dimension_names": np.array(["y", "x"])}
    given = {**arrays, "shape": np.array(VALUES.shape)}
    x.to_sharded_zarr(tmp_path / "a", zarr_array_kwargs=given)
    x.to_sharded_zarr(tmp_path / "b", zarr_array_kwargs=arrays, shards=(10, 12), chunks=(5, 4))
    x.to_sharded_zarr(tmp_path / "c", **arrays)
    x.to_sharded_zarr(tmp_path / "c", mode="r+", **arrays)
    documents = {(tmp_path / name / "zarr.json").read_text() for name in "abc"}
    assert len(documents) == 1
    made = zarr.open_array(tmp_path / "a")
    assert (made.shards, made.chunks) == ((10, 12), (5, 4))
    assert made.metadata.dimension_names == ("y", "x")
    other = {"shape": np.array([3, 3])}
    call = {"zarr_array_kwargs": other, **SIZES}
    assert refused(lambda: x.to_sharded_zarr(tmp_path / "d", **call)) == "zarr_array_kwargs"
    call = {"zarr_array_kwargs": arrays, "shards": (10, 24)}
    assert refused(lambda: x.to_sharded_zarr(tmp_path / "d", **call)) == "zarr_array_kwargs"
    assert refused(lambda: x.to_sharded_zarr(tmp_path / "a", region=..., **arrays)) == "shards"
    for wrong in (np.array([[10, 12]]), np.array([10.0, 12.0]), np.array([10]), np.array([1, 0])):
        assert refused(lambda wrong=wrong: x.to_sharded_zarr(tmp_path / "d", shards=wrong)) == (
            "shards"
        )
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize(
    "field",
    [
        *("fill_value", "index_location", "shard_format", "chunk_key_encoding", "order", "format"),
        *("zarr_format", "manifest", "name", "overwrite", "attributes", "compressors", "filters"),
        *("serializer", "index_codecs"),
    ],
)
def test_an_array_is_no_single_keyword_of_zarr(x, tmp_path, field):
    several = np.array([1, 2])
    words = {"zarr_array_kwargs": {field: several}}
    assert refused(lambda: x.to_sharded_zarr(tmp_path / "x.zarr", **words)) == field
    with pytest.raises(SpecError) as caught:
        shardwrite.store([x], [tmp_path / "x.zarr"], **words)
    assert caught.value.fields["field"] == field
    if field not in ("name", "overwrite"):
        assert refused(lambda: x.to_sharded_zarr(tmp_path / "x.zarr", **{field: several})) == field
    assert not list(tmp_path.iterdir())


def test_a_region_takes_no_keywords_of_new_arrays(x, tmp_path):
    x.to_sharded_zarr(tmp_path / "x.zarr", **SIZES)
    call = {"region": np.s_[:5], "zarr_array_kwargs": {"fill_value": 3}}
    assert refused(lambda: x[:5].to_sharded_zarr(tmp_path / "x.zarr", **call)) == "fill_value"


# ---- return_stored, compute


@pytest.mark.parametrize("compute", [True, False])
def test_what_was_stored_is_returned(x, compute, tmp_path):
    call = {"compute": compute, "return_stored": True}
    found = x.to_sharded_zarr(tmp_path / "x.zarr", **call, **SIZES)
    assert isinstance(found, da.Array)
    assert (found.chunks, found.dtype) == (x.chunks, x.dtype)
    assert (tmp_path / "x.zarr").exists() == compute or not compute
    np.testing.assert_array_equal(found.compute(), VALUES)
    assert shardwrite.verify(tmp_path / "x.zarr", against=x).is_good
    found = (x[:5] + 0.5).to_sharded_zarr(
        tmp_path / "x.zarr", region=np.s_[3:8], casting="unsafe", **call
    )
    assert (found.shape, found.dtype) == ((5, 30), np.int32)
    np.testing.assert_array_equal(found.compute(), VALUES[:5])
    found = x[:3].to_sharded_zarr(tmp_path / "x.zarr", region="append", **call)
    np.testing.assert_array_equal(found.compute(), VALUES[:3])
    assert zarr.open_array(tmp_path / "x.zarr").shape == (23, 30)


@pytest.mark.parametrize(("memory_limit", "layout"), [("1MB", "fused"), ("30kB", "direct")])
def test_what_is_computed_again_is_not_written_again(memory_limit, layout, tmp_path):
    values = np.arange(64 * 64, dtype="i4").reshape(64, 64)
    x, path = da.from_array(values, chunks=(7, 64)), tmp_path / "x.zarr"
    call = {"compute": False, "memory_limit": memory_limit, "shards": 32, "chunks": 8}
    later = x.to_sharded_zarr(path, **call)
    first = later.compute()
    assert first.layout == layout
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    assert later.compute().n_shards == first.n_shards == 4
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before
    found = x[:5].to_sharded_zarr(path, region=np.s_[5:10], return_stored=True, compute=False)
    for _ in range(2):
        np.testing.assert_array_equal(found.compute(), values[:5])
    several = shardwrite.store([x, x + 1], [tmp_path / "g"] * 2, names=["a", "b"], **call)
    assert [r.n_shards for r in several.compute()] == [r.n_shards for r in several.compute()]


def test_a_run_that_was_taken_over_is_not_the_result_of_another(x, tmp_path):
    later = x.to_sharded_zarr(tmp_path / "x.zarr", compute=False, **SIZES)
    (x + 1).to_sharded_zarr(tmp_path / "x.zarr", restart=True, **SIZES)
    with pytest.raises(shardwrite.RunEndedError):
        later.compute()
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr")[...], VALUES + 1)


def test_several_that_were_stored(x, tmp_path):
    for compute in (True, False):
        call = {"compute": compute, "return_stored": True, "names": [f"a{compute}", f"b{compute}"]}
        found = shardwrite.store([x, x + 1], [tmp_path] * 2, **call, **SIZES)
        for n, stored in enumerate(dask.compute(*found)):
            np.testing.assert_array_equal(stored, VALUES + n)


@pytest.mark.parametrize("shape", [(), (0, 4), (3,)])
def test_what_was_stored_of_odd_shapes(shape, tmp_path):
    for compute in (True, False):
        x = da.ones(shape, chunks=2, dtype="i2")
        found = x.to_sharded_zarr(
            tmp_path / f"{compute}", shards=2, chunks=1, compute=compute, return_stored=True
        )
        np.testing.assert_array_equal(found.compute(), np.ones(shape))


@pytest.mark.long
@pytest.mark.usefixtures("children_as_users_start_them")
def test_a_cluster_returns_what_it_stored(x, tmp_path):
    with dask.config.set(scheduler="processes"):
        found = x.to_sharded_zarr(tmp_path / "x", compute=False, return_stored=True, **SIZES)
        np.testing.assert_array_equal(found.compute(), VALUES)


# ---- store


def test_one_array_is_a_sequence_of_one(x, tmp_path):
    (result,) = shardwrite.store(x, tmp_path / "x.zarr", **SIZES)
    assert result.n_shards == 6


def test_regions_of_arrays_that_exist(x, tmp_path):
    path, other = tmp_path / "x.zarr", tmp_path / "y.zarr"
    shardwrite.create(path, (40, 30), "i4", **SIZES)
    parts = [np.s_[:20, :], np.s_[20:, :]]
    shardwrite.store([x, x + 1], [path, path], regions=parts)
    np.testing.assert_array_equal(zarr.open_array(path)[...], np.concatenate([VALUES, VALUES + 1]))
    shardwrite.store([x + 2, x + 3], [path, tmp_path / "one.zarr"], regions=[parts[0], None])
    np.testing.assert_array_equal(zarr.open_array(path)[:20], VALUES + 2)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "one.zarr")[...], VALUES + 3)
    shardwrite.create(other, (40, 30), "i4", **SIZES)
    shardwrite.store([x, x + 1], [path, other], regions=(slice(20), slice(None)))
    np.testing.assert_array_equal(zarr.open_array(other)[:20], VALUES + 1)
    shardwrite.store([x[:1], x[:2]], [path, other], regions="append")
    assert [zarr.open_array(p).shape[0] for p in (path, other)] == [41, 42]


def test_regions_that_do_not_go_together(x, tmp_path):
    path = tmp_path / "x.zarr"
    shardwrite.create(path, (40, 30), "i4", **SIZES)
    before = sorted(p.name for p in tmp_path.iterdir())
    for arrays, regions, field in (
        ([x, x], [np.s_[:20], np.s_[19:39]], "regions"),
        ([x[:5], x[:5]], [np.s_[:5], np.s_[5:10]], "regions"),  # one shard
        ([x, x], ["append", "append"], "regions"),
        ([x, x], ["append", np.s_[:20]], "regions"),
        ([x, x], [np.s_[:20]], "regions"),
        ([x, x], [np.s_[:20], None], "stores"),
        ([x, x], [np.s_[:20], np.s_[20:30]], "x.shape"),
    ):
        call = partial(shardwrite.store, arrays, [path] * 2, regions=regions)
        assert refused(call) == field
        assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert refused(lambda: shardwrite.store([x], [path], regions=np.s_[:20], shards=3)) == "shards"
    assert refused(lambda: shardwrite.store([x], str(path))) == "stores"
    for arrays in (3, VALUES, {"x": x}):
        assert refused(lambda given=arrays: shardwrite.store(given, [path])) == "arrays"
    with pytest.raises(TypeError, match="unexpected keyword argument 'lock'"):
        shardwrite.store([x], [path], lock=True)


# ---- from_sharded_zarr


@pytest.mark.parametrize(
    ("chunks", "wanted"),
    [
        (None, ((10, 10), (12, 12, 6))),
        (-1, ((20,), (30,))),
        ((-1, 7), ((20,), (7, 7, 7, 7, 2))),
        ((None, 30), ((20,), (30,))),
        ({0: 5}, ((5, 5, 5, 5), (30,))),
        (((3, 17), (30,)), ((3, 17), (30,))),
        ("auto", ((20,), (30,))),
        ("1kB", None),
        ((np.int64(8), 30), ((8, 8, 4), (30,))),
    ],
    ids=str,
)
def test_chunks_in_any_form_of_dask(x, chunks, wanted, tmp_path):
    x.to_sharded_zarr(tmp_path / "x.zarr", **SIZES)
    found = shardwrite.from_sharded_zarr(tmp_path / "x.zarr", chunks=chunks)
    assert wanted is None or found.chunks == wanted
    np.testing.assert_array_equal(found, VALUES)


def test_the_name_and_the_form_of_the_dask_array(x, tmp_path):
    x.to_sharded_zarr(tmp_path / "x.zarr", **SIZES)
    named = shardwrite.from_sharded_zarr(tmp_path / "x.zarr", dask_name="mine", chunks=-1)
    assert named.name == "mine"
    inline = shardwrite.from_sharded_zarr(tmp_path / "x.zarr", chunks=-1, inline_array=True)
    assert (len(dict(inline.dask)), len(dict(named.dask))) == (1, 2)
    np.testing.assert_array_equal(inline, VALUES)
