"""An array that is replaced by what is read from it: in a directory, it stays until then."""

from __future__ import annotations

import contextlib
import os
from unittest import mock

import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from helpers import Killed
from zarr.storage import MemoryStore

import shardwrite
from shardwrite import ChangedError, JournalError, SpecError, patch_dask
from shardwrite.sources import as_dask, open_source

VALUES = np.arange(1, 20 * 30 + 1, dtype="i4").reshape(20, 30)
SIZES = {"shards": (10, 12), "chunks": (5, 4)}
NEW = {"mode": "w", "shards": (20, 30), "chunks": (5, 10)}

READERS = {
    "zarr array": zarr.open_array,
    "open array": shardwrite.open_sharded,
    "source": lambda path: open_source(str(path)),
    "from_zarr": da.from_zarr,
    "from_zarr, inline": lambda path: da.from_zarr(path, inline_array=True),
    "from_sharded_zarr": shardwrite.from_sharded_zarr,
    "as_dask": lambda path: as_dask(open_source(str(path))),
    "computed from it": lambda path: (da.from_zarr(path).T + 1).T[:, ::-1],
    "xarray": lambda path: (
        pytest.importorskip("xarray").open_zarr(path.parent, consolidated=False)["x"] * 2
    ),
    "stored": lambda path: shardwrite.to_sharded_zarr(VALUES, path, return_stored=True, **SIZES),
}


def make(path, reader):
    """An array, and what a reader makes of it."""
    known = {"dimension_names": ("y", "x")} if reader == "xarray" else {}
    shardwrite.to_sharded_zarr(VALUES, path, **known, **SIZES)
    x = READERS[reader](path)
    shardwrite.to_sharded_zarr(x, path.parent / "other", **NEW)
    return x, zarr.open_array(path.parent / "other")[...]


@pytest.mark.parametrize("reader", READERS)
def test_it_is_read_until_the_new_one_is_whole(reader, tmp_path):
    zarr.create_group(tmp_path)
    x, wanted = make(tmp_path / "x", reader)
    with pytest.raises(SpecError, match="the same call is known again"):
        shardwrite.to_sharded_zarr(x, tmp_path / "x", **NEW)
    shardwrite.to_sharded_zarr(x, tmp_path / "x", **NEW, source_id="it")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x")[...], wanted)


@pytest.mark.parametrize("reader", READERS)
def test_it_is_refused_where_it_would_be_hidden_first(reader, tmp_path):
    zarr.create_group(tmp_path)
    x, _ = make(tmp_path / "x", reader)
    before = sorted(os.walk(tmp_path))
    with pytest.raises(SpecError, match="the source reads the array that it is to replace"):
        shardwrite.to_sharded_zarr(x, tmp_path / "x", **NEW, publish="first")
    assert sorted(os.walk(tmp_path)) == before


@pytest.mark.parametrize("step", ["enter shards", "exchange two names", "end a run"])
@pytest.mark.parametrize("shards", [(20, 30), (5, 10)])
def test_an_interrupted_call_computes_from_the_old_array_again(tmp_path, step, shards):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)

    def write():
        x = da.from_zarr(tmp_path / "x")
        doubled = 2 * x[::-1]
        how = NEW | {"shards": shards, "source_id": "doubled"}
        return shardwrite.to_sharded_zarr(doubled, tmp_path / "x", **how)

    with pytest.MonkeyPatch.context() as patch:
        seams.kill_before(patch, step, Killed)
        with pytest.raises(Killed):
            write()
    write()
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x")[...], 2 * VALUES[::-1])
    write()  # it is done, and nothing is doubled again
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x")[...], 2 * VALUES[::-1])


def test_two_arrays_change_places(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    zarr.create_group(tmp_path)
    for path, values in zip(paths, (VALUES, -VALUES), strict=True):
        shardwrite.to_sharded_zarr(values, path, **SIZES)
    a, b = map(da.from_zarr, paths)
    shardwrite.store([b, a], [tmp_path] * 2, names=["a", "b"], source_id="swap", **NEW)
    np.testing.assert_array_equal(zarr.open_array(paths[0])[...], -VALUES)
    np.testing.assert_array_equal(zarr.open_array(paths[1])[...], VALUES)


def exchange_dying(n):
    """A stand-in for the exchange of names that ends the process after it has been done n times."""
    real, calls = seams.real("exchange two names"), []

    def exchange(one, other):
        real(one, other)
        calls.append(one)
        if len(calls) == n:
            raise Killed
        return True

    return mock.patch.object(*seams.step("exchange two names"), exchange)


@pytest.mark.parametrize("level", ["full", "none"])
def test_what_was_replaced_is_not_read_for_shards_that_are_lost(tmp_path, level):
    """Without durability, a power cut may take them, and then the second array stays."""
    paths = [tmp_path / "r" / "a", tmp_path / "r" / "b"]
    zarr.create_group(tmp_path / "r")
    for path, values in zip(paths, (VALUES, -VALUES), strict=True):
        shardwrite.to_sharded_zarr(values, path, **SIZES)

    def swap(**keywords):
        a, b = map(da.from_zarr, paths)
        to = {"names": ["a", "b"], "source_id": "swap", "durability": level, **NEW, **keywords}
        return shardwrite.store([b, a], [tmp_path / "r"] * 2, **to)

    with exchange_dying(1), pytest.raises(Killed):
        swap()
    (lost,) = tmp_path.rglob("1/array-*/c/0/0")
    lost.unlink()
    if level == "full":
        for _ in range(2):
            with pytest.raises(ChangedError, match="c/0/0: gone"):
                swap()
        assert shardwrite.verify(paths[1]).n_missing == 1
    else:
        with seams.after_restart("later"):
            with pytest.raises(JournalError, match="has its new values already"):
                swap()
            shardwrite.abandon(paths[1])
        np.testing.assert_array_equal(zarr.open_array(paths[1])[...], -VALUES)
    np.testing.assert_array_equal(zarr.open_array(paths[0])[...], -VALUES)


@pytest.mark.long
def test_no_task_writes_while_arrays_change_places(tmp_path):
    paths = [tmp_path / "r" / "a", tmp_path / "r" / "b"]
    zarr.create_group(tmp_path / "r")
    for path, values in zip(paths, (VALUES, -VALUES), strict=True):
        shardwrite.to_sharded_zarr(values, path, **SIZES)
    a, b = map(da.from_zarr, paths)
    real, seen = seams.real("exchange two names"), []

    def exchange(one, other):
        seen.extend(tmp_path.rglob("array-new"))
        return real(one, other)

    with mock.patch.object(*seams.step("exchange two names"), exchange):
        shardwrite.store([b, a], [tmp_path / "r"] * 2, names=["a", "b"], source_id="swap", **NEW)
    assert not seen


def test_a_process_goes_on_after_another_was_killed_behind_the_exchange(tmp_path):
    """Its later tasks would read new values, and write what they compute from these."""
    path, has_begun = tmp_path / "x", []
    shardwrite.to_sharded_zarr(VALUES, path, **SIZES)
    waves = {"max_graph_tasks": 6, "max_source_reruns": 9, "memory_limit": 30_000}

    def write(**keywords):
        how = {"mode": "w", "source_id": "doubled", **SIZES, **waves, **keywords}
        return shardwrite.to_sharded_zarr(2 * da.from_zarr(path), path, **how)

    def progress(_):
        if not has_begun:
            has_begun.append(True)
            with exchange_dying(1), pytest.raises(Killed):
                write()

    write(progress=progress)
    np.testing.assert_array_equal(zarr.open_array(path)[...], 2 * VALUES)
    write()
    np.testing.assert_array_equal(zarr.open_array(path)[...], 2 * VALUES)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_call_that_starts_over_changes_nothing_twice(tmp_path, is_killed):
    path = tmp_path / "x"
    shardwrite.to_sharded_zarr(VALUES, path, **SIZES)

    def write(**keywords):
        how = {"source_id": "doubled", **NEW, **keywords}
        return shardwrite.to_sharded_zarr(2 * da.from_zarr(path), path, **how)

    with exchange_dying(1) if is_killed else contextlib.nullcontext(), contextlib.suppress(Killed):
        write()
    with pytest.raises(SpecError, match="the same call has replaced the array before"):
        write(restart=True)
    np.testing.assert_array_equal(zarr.open_array(path)[...], 2 * VALUES)
    write(restart=True, source_id="once more")
    np.testing.assert_array_equal(zarr.open_array(path)[...], 4 * VALUES)


def test_under_another_path_and_by_the_patch(tmp_path):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", **SIZES)
    os.symlink(tmp_path, tmp_path / "link")
    with patch_dask():
        with pytest.raises(SpecError, match="is to replace"):
            da.from_zarr(tmp_path / "link" / "x").to_zarr(tmp_path / "x", **NEW, publish="first")
        da.from_zarr(tmp_path / "link" / "x").to_zarr(tmp_path / "x", **NEW, source_id="it")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x")[...], VALUES)


def test_in_memory_only_the_same_array_is_refused():
    store = MemoryStore()
    for name in "ab":
        shardwrite.to_sharded_zarr(VALUES, store, name=name, **SIZES)
    a, b = (zarr.open_group(store)[name] for name in "ab")
    with pytest.raises(SpecError, match="is to replace"):
        shardwrite.to_sharded_zarr(a, store, name="a", **NEW)
    with pytest.raises(SpecError, match="is to replace"):  # each would read the other
        shardwrite.store([da.from_zarr(b) + 1, a], [store] * 2, names=["a", "b"], **NEW)
    shardwrite.to_sharded_zarr(da.from_zarr(a) + 1, store, name="b", **NEW)
    np.testing.assert_array_equal(zarr.open_group(store)["a"][...], VALUES)
    np.testing.assert_array_equal(zarr.open_group(store)["b"][...], VALUES + 1)


def test_parts_that_read_it(tmp_path):
    path = tmp_path / "x"
    shardwrite.to_sharded_zarr(VALUES, path, **SIZES)
    x = shardwrite.from_sharded_zarr(path) + 1
    shardwrite.prepare(x, path, shardwrite.plan(x, **SIZES, source_id="it"), mode="w")
    for index in range(2):
        shardwrite.write_part(x, path, index, 2, source_id="it")
    shardwrite.finalize(path)
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES + 1)
