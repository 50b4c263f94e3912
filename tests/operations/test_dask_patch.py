"""`patch_dask`: dask's own call writes shards, whatever its chunks, and loses nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore

import shardwrite
from shardwrite import SpecError, WriteResult, patch_dask
from shardwrite.entry.patch import named_arguments
from shardwrite.operations.dask_patch import instead_of_to_zarr

pytestmark = pytest.mark.compat

VALUES = np.arange(1, 20 * 30 + 1, dtype="i4").reshape(20, 30)
SIZES = {"shards": (10, 12), "chunks": (5, 4)}
# No chunk of these lies in one shard, and no chunk is as large as another.
CHUNKS = ((7, 6, 7), (5, 11, 3, 11))


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=CHUNKS)


@pytest.fixture(autouse=True)
def _own():
    """Every test leaves dask as it was."""
    before = (da.to_zarr, da.core.to_zarr)
    yield
    assert (da.to_zarr, da.core.to_zarr) == before


def test_the_function_and_the_method_are_ours_with_shards(x, tmp_path):
    with patch_dask() as patch:
        assert isinstance(patch, shardwrite.DaskPatch)
        one = da.to_zarr(x, tmp_path / "one.zarr", **SIZES)
        two = x.to_zarr(str(tmp_path / "two.zarr"), **SIZES)
        assert isinstance(one, WriteResult)
        assert isinstance(two, WriteResult)
    for name in ("one", "two"):
        made = zarr.open_array(tmp_path / f"{name}.zarr")
        assert (made.shards, made.chunks) == ((10, 12), (5, 4))
        np.testing.assert_array_equal(made[...], VALUES)
        assert shardwrite.verify(tmp_path / f"{name}.zarr", deep=True, against=x).is_good


def test_without_shards_dask_writes(x, tmp_path):
    x = x.rechunk((7, 30))
    with patch_dask():
        assert not isinstance(x.to_zarr(tmp_path / "x.zarr"), WriteResult)
        da.to_zarr(x, tmp_path / "y.zarr")
        x.to_zarr(tmp_path / "v2.zarr", zarr_format=2)
        plain = zarr.create_array({}, shape=VALUES.shape, chunks=(7, 30), dtype="i4")
        x.to_zarr(plain)
        np.testing.assert_array_equal(plain[...], VALUES)
    for name in "xy":
        np.testing.assert_array_equal(zarr.open_array(tmp_path / f"{name}.zarr")[...], VALUES)
        assert not (tmp_path / f"{name}.zarr" / "shardwrite-receipt.json").exists()


def test_into_an_array_with_shards_that_exists(x):
    """dask 2025.7 loses shards here: its tasks write chunks, and share shards."""
    z = zarr.create_array({}, shape=VALUES.shape, dtype="i4", **SIZES)
    with patch_dask():
        x.to_zarr(z)
        np.testing.assert_array_equal(z[...], VALUES)
        (-x[3:8, 2:13]).to_zarr(z, region=(slice(5, 10), slice(3, 14)))
        wanted = VALUES.copy()
        wanted[5:10, 3:14] = -VALUES[3:8, 2:13]
        np.testing.assert_array_equal(z[...], wanted)
        with pytest.raises(SpecError, match="casting"):
            (x + 0.5).to_zarr(z)
        (x + 0.5).to_zarr(z, casting="unsafe")
        np.testing.assert_array_equal(z[...], VALUES)
        with pytest.raises(SpecError, match=r"x\.shape"):
            x[:5].to_zarr(z)


def test_without_chunks_an_inner_chunk_is_a_chunk_of_dask(x, tmp_path):
    x = x.rechunk((5, 10))
    theirs = zarr.create_array(
        tmp_path / "zarr.zarr", shape=x.shape, dtype="i4", shards=(20, 30), chunks=(5, 10)
    )
    with patch_dask():
        x.to_zarr(tmp_path / "ours.zarr", shards=(20, 30))
        with pytest.raises(ValueError, match="not a multiple of the inner chunk"):
            x.to_zarr(tmp_path / "bad.zarr", shards=(7, 30))
    ours = zarr.open_array(tmp_path / "ours.zarr")
    assert (ours.shape, ours.chunks, ours.shards) == (theirs.shape, theirs.chunks, theirs.shards)
    assert (ours.dtype, ours.fill_value) == (theirs.dtype, theirs.fill_value)
    np.testing.assert_array_equal(ours[...], VALUES)


@pytest.mark.parametrize("how", ["component", "positional", "name"])
def test_a_component(x, how, tmp_path):
    with patch_dask():
        if how == "positional":
            x.to_zarr(tmp_path, "a/x", **SIZES)
        else:
            x.to_zarr(tmp_path, **{how: "a/x"}, **SIZES)
    np.testing.assert_array_equal(da.from_zarr(tmp_path, component="a/x"), VALUES)


def test_stores_of_all_kinds(x, tmp_path):
    stores = [{}, MemoryStore(), zarr.storage.LocalStore(tmp_path / "local"), "memory://patch/x"]
    with patch_dask():
        for store in stores:
            x.to_zarr(store, **SIZES)
            np.testing.assert_array_equal(zarr.open_array(store)[...], VALUES)
        x.to_zarr("memory://patch/y", storage_options={}, **SIZES)
    assert "zarr.json" in stores[0]


def test_modes(x, tmp_path):
    path = tmp_path / "x.zarr"
    with patch_dask():
        x.to_zarr(path, mode="a", **SIZES)
        for more in ({}, {"mode": "a"}, {"mode": "w-"}, {"overwrite": False}):
            with pytest.raises(ValueError, match="an array exists there"):
                (x + 1).to_zarr(path, **more, **SIZES)
        (x + 1).to_zarr(path, mode="w", **SIZES)
        np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES + 1)
        (x + 2).to_zarr(path, overwrite=True, **SIZES)
        np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES + 2)
        for mode in ("r", "r+"):
            with pytest.raises(ValueError, match="Cannot use"):
                x.to_zarr(path, mode=mode, **SIZES)


def test_a_call_by_any_version_of_dask(tmp_path):
    """The same call, named as 2025.7, 2025.12 and 2026.3 name its parameters."""
    x = da.from_array(VALUES, chunks=CHUNKS)
    x.to_sharded_zarr(tmp_path / "x.zarr", **SIZES)

    def of_2025_7(arr, url, component=None, storage_options=None, overwrite=False, **kwargs): ...

    def of_2025_12(arr, url, component=None, zarr_array_kwargs=None, zarr_read_kwargs=None): ...

    def of_2026_3(arr, url, component=None, mode="a", **zarr_array_kwargs): ...

    for n, (version, arguments, keywords) in enumerate(
        (
            (of_2025_7, (None, None, True), SIZES),
            (of_2025_7, (None,), {"mode": "w", **SIZES}),
            (of_2025_12, (None, SIZES), {"zarr_read_kwargs": {"mode": "w"}}),
            (of_2026_3, (None, "w"), SIZES),
        ),
        start=1,
    ):
        call = (x + n, tmp_path / "x.zarr", *arguments), keywords
        write = instead_of_to_zarr(*named_arguments(inspect.signature(version), *call))
        assert write is not None
        write()
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr")[...], VALUES + n)


@pytest.mark.parametrize("compute", [True, False])
def test_what_was_stored_is_returned(x, compute, tmp_path):
    with patch_dask():
        found = x.to_zarr(tmp_path / "x.zarr", compute=compute, return_stored=True, **SIZES)
    assert isinstance(found, da.Array)
    assert found.chunks == x.chunks
    np.testing.assert_array_equal(found.compute(), VALUES)


def test_computed_later_as_dask_does(x, tmp_path):
    theirs = x.rechunk(10).to_zarr(tmp_path / "theirs.zarr", compute=False)
    with patch_dask():
        later = x.to_zarr(tmp_path / "x.zarr", compute=False, **SIZES)
    assert type(later) is type(theirs)
    assert not (tmp_path / "x.zarr" / "zarr.json").exists()
    dask.compute(later)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr")[...], VALUES)


def test_keywords_of_ours_are_taken_and_others_refused_by_name(x, tmp_path):
    with patch_dask():
        result = x.to_zarr(
            tmp_path / "x.zarr", source_id="it", strategy="morton", index_location="start", **SIZES
        )
        assert result.n_shards == 6
        with pytest.raises(SpecError, match="give compressors"):
            x.to_zarr(tmp_path / "y.zarr", compressor="zstd", **SIZES)
        with pytest.raises(ValueError, match="unknown chunk sizes"):
            x[x > 5].to_zarr(tmp_path / "y.zarr", shards=(4,))
    assert not (tmp_path / "y.zarr").exists()


def test_an_interrupted_call_goes_on(x, tmp_path):
    class NotNowError(Exception):
        pass

    def stop(report):
        raise NotNowError

    call = {"memory_limit": "10kB", "source_id": "it", **SIZES}
    with patch_dask(), dask.config.set(scheduler="sync"):
        with pytest.raises(NotNowError):
            x.to_zarr(tmp_path / "x.zarr", progress=stop, **call)
        assert x.to_zarr(tmp_path / "x.zarr", **call).n_resumed_shards > 0
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr")[...], VALUES)


def test_patches_are_taken_back_in_any_order(x, tmp_path):
    own = da.to_zarr
    one, two = patch_dask(), patch_dask()
    ours = da.to_zarr
    assert ours is not own
    assert ours.__doc__ == own.__doc__
    one.restore()
    one.restore()
    assert da.to_zarr is ours
    with two:
        assert isinstance(x.to_zarr(tmp_path / "x.zarr", **SIZES), WriteResult)
    assert da.to_zarr is own
    with pytest.raises(RuntimeError), patch_dask():
        raise RuntimeError
    assert da.to_zarr is own
    # Who has kept the function has dask's.
    assert not isinstance(ours(x.rechunk(10), tmp_path / "y.zarr"), WriteResult)


def test_the_patch_of_somebody_else_stays(monkeypatch):
    patch = patch_dask()
    ours = da.to_zarr

    def theirs(*arguments, **keywords):
        return ours(*arguments, **keywords)

    own = patch and ours.__wrapped__
    da.to_zarr = theirs
    patch.restore()
    assert da.to_zarr is theirs
    assert da.core.to_zarr is own
    da.to_zarr = own


def test_threads_patch_at_once():
    own, ready = da.to_zarr, threading.Barrier(8)

    def patch_and_restore():
        ready.wait()
        for _ in range(50):
            with patch_dask():
                assert da.to_zarr is not own

    threads = [threading.Thread(target=patch_and_restore) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert da.to_zarr is own


def test_nothing_is_patched_unless_it_is_asked_for():
    program = (
        "import dask.array as da, shardwrite; own = da.to_zarr; "
        "shardwrite.plan(da.ones(3), shards=2, chunks=1); assert da.to_zarr is own; "
        "assert own.__module__ == 'dask.array.core'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def sharded(path, name="x"):
    return zarr.create_array(f"{path}/{name}", shape=VALUES.shape, dtype="i4", **SIZES)


STORES = {
    "function": lambda x, z: da.store(x, z),
    "method": lambda x, z: x.store(z),
    "of core": lambda x, z: da.core.store([x], [z], lock=False),
    "lock": lambda x, z: da.store([x], [z], lock=threading.Lock()),
    "scheduler": lambda x, z: da.store(x, z, True, scheduler="sync"),
    "region": lambda x, z: x.store(z, regions=(slice(0, 20), slice(0, 30))),
    "region of each": lambda x, z: da.store(
        [x[:10], x[10:]], [z, z], regions=[(slice(0, 10), slice(30)), (slice(10, 20), slice(30))]
    ),
    "later": lambda x, z: dask.compute(x.store(z, compute=False)),
    "returned": lambda x, z: x.store(z, return_stored=True),
    "later, and returned": lambda x, z: da.store(x, z, compute=False, return_stored=True).compute(),
    "keyword of ours": lambda x, z: x.store(z, strategy="append-only"),
}


@pytest.mark.parametrize("how", STORES)
def test_store_into_shards_loses_nothing(how, x, tmp_path):
    z = sharded(tmp_path)
    with patch_dask():
        STORES[how](x, z)
    np.testing.assert_array_equal(z[...], VALUES)
    assert shardwrite.verify(z.store_path, deep=True, against=VALUES).is_good


def test_store_returns_what_dask_returns(x, tmp_path):
    a, b = sharded(tmp_path, "a"), sharded(tmp_path, "b")
    plain = np.zeros_like(VALUES)
    theirs = [
        da.store([x, x], [plain, plain], **how)
        for how in ({"compute": False}, {"return_stored": True})
    ]
    with patch_dask():
        assert isinstance(da.store(x, a), WriteResult)
        results = da.store([x, -x], [a, b])
        assert [type(result) for result in results] == [WriteResult] * 2
        later = da.store([x, x], [a, b], compute=False)
        dask.compute(later)
        stored = da.store([x + 1, x + 2], [a, b], return_stored=True)
    np.testing.assert_array_equal(stored[1], VALUES + 2)
    for ours, their in zip((later, stored), theirs, strict=True):
        assert [type(each) for each in ours] == [type(each) for each in their]
        assert [each.chunks for each in ours] == [each.chunks for each in their]


def test_store_elsewhere_is_dask_s_own(x, tmp_path):
    own = da.core.store
    plain = zarr.create_array({}, shape=VALUES.shape, chunks=(7, 30), dtype="i4")
    memory = np.zeros_like(VALUES)
    z = sharded(tmp_path)
    with patch_dask():
        assert da.core.store is not own
        x.rechunk((7, 30)).store(plain)
        da.store(x, memory)
        with pytest.raises(ValueError, match="Different number"):
            da.store([x, x], [memory])
        with pytest.raises(SpecError, match="store those with shards by a call of their own"):
            da.store([x, x], [memory, z])
        with pytest.raises(TypeError, match="num_cpus"):
            x.store(z, num_cpus=3)
        with pytest.raises(SpecError, match="which one graph cannot do"):
            da.from_zarr(z)[::-1].store(z, compute=False)
        da.store([x], [memory])
        da.store([x[::-1]], [z])  # those with shards, by a call of their own
        da.from_zarr(z)[::-1].store(z)  # which reads what it changes
    assert da.store is da.core.store is own
    for each in (plain, memory, z):
        np.testing.assert_array_equal(each[...], VALUES)
