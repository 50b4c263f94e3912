"""Several arrays of one call: none is published before all are whole, and each goes on by itself."""

from __future__ import annotations

import contextlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr

import shardwrite

VALUES = np.arange(32 * 32, dtype="i4").reshape(32, 32)
NAMES = ["a", "b", "c"]
SIZES = {"shards": 16, "chunks": 4, "source_id": "it"}


def write(root, arrays, **more):
    return shardwrite.store(arrays, [root] * 3, names=NAMES, **SIZES, **more)


def arrays_of(function=lambda block: block):
    x = da.from_array(VALUES, chunks=(16, 32))
    return [x, x + 1, (x + 2).map_blocks(function, dtype="i4")]


def published(root):
    return [name for name in NAMES if (root / name / "zarr.json").exists()]


def refuse(block):
    raise ValueError("not this one")


@pytest.mark.parametrize(
    ("more", "compute"),
    [({}, True), ({"max_graph_tasks": 9}, True), ({}, False)],
    ids=["one graph", "many graphs", "delayed"],
)
def test_a_failure_of_one_keeps_all_unpublished(tmp_path, more, compute):
    call = {**more, "compute": compute}

    def done(arrays):
        made = write(tmp_path, arrays, **call)
        return made if compute else made.compute()

    with dask.config.set(scheduler="sync"):
        with pytest.raises(ValueError, match="not this one"):
            done(arrays_of(refuse))
        assert published(tmp_path) == []
        results = done(arrays_of())
    assert [result.n_shards for result in results] == [4, 4, 4]
    for n, name in enumerate(NAMES):
        found = shardwrite.open_sharded(tmp_path, name)[...]
        np.testing.assert_array_equal(found, VALUES + n)


@pytest.mark.parametrize("then", ["another call", "abandon", "abandon what is gone"])
def test_a_run_whose_arrays_were_removed_is_removed_by_the_same_process(tmp_path, then):
    root = tmp_path / "x"
    with dask.config.set(scheduler="sync"), pytest.raises(ValueError, match="not this one"):
        write(root, arrays_of(refuse))
    assert (tmp_path / "x.shardwrite" / "together").exists()
    shutil.rmtree(root)
    if then == "another call":
        write(root, [x + 1 for x in arrays_of()])
    elif then == "abandon":
        zarr.create_group(root)
        assert shardwrite.abandon(root) == []
    else:
        with pytest.raises(shardwrite.SpecError, match="there is no"):
            shardwrite.abandon(root)
    assert not (tmp_path / "x.shardwrite").exists()


def test_a_run_whose_group_was_removed_is_removed_by_the_next_call(tmp_path):
    root = tmp_path / "x"
    zarr.create_group(root)
    with pytest.raises(ValueError, match="not this one"):
        write(root, arrays_of(refuse))
    assert list((tmp_path / "x.shardwrite" / "together").glob("run-*"))
    shutil.rmtree(root)
    shardwrite.store([VALUES], [root / "a"], shards=16, chunks=4, source_id="other")
    np.testing.assert_array_equal(shardwrite.open_sharded(root / "a")[...], VALUES)
    assert not (tmp_path / "x.shardwrite").exists()


@contextlib.contextmanager
def a_removed_hierarchy_that_is_written(root):
    begun, goes_on = threading.Event(), threading.Event()

    def wait(block):
        if block.size:
            begun.set()
            assert goes_on.wait(60)
        return block

    with dask.config.set(scheduler="sync"), ThreadPoolExecutor() as pool:
        first = pool.submit(write, root, arrays_of(wait))
        try:
            assert begun.wait(60)
            shutil.rmtree(root)
            yield first
            assert list(Path(f"{root}.shardwrite", "together").glob("run-*"))
        finally:
            goes_on.set()


def test_a_run_whose_arrays_were_removed_stays_while_somebody_works_on_it(tmp_path):
    root = tmp_path / "x"
    with (
        a_removed_hierarchy_that_is_written(root) as first,
        pytest.raises(shardwrite.SpecError, match="there is no"),
    ):
        shardwrite.abandon(root)
    assert isinstance(first.exception(), shardwrite.ShardwriteError)


def test_a_run_whose_group_was_removed_stays_while_somebody_works_on_it(tmp_path):
    root = tmp_path / "x"
    zarr.create_group(root)
    with (
        a_removed_hierarchy_that_is_written(root) as first,
        pytest.raises(shardwrite.JournalError, match=r"was removed.*and remove .*x\.shardwrite"),
    ):
        write(root, arrays_of())
    assert len(first.result()) == len(NAMES)
    assert published(root) == NAMES


def test_one_that_is_not_whole_keeps_all_unpublished(tmp_path, monkeypatch):
    def forget(session):
        if session.job.target.place.name == "c":
            session.ledger.forget([2])

    with monkeypatch.context() as patch:
        seams.before(patch, "look for missing shards", forget)
        with pytest.raises(shardwrite.IncompleteError, match="1 of 4 shards"):
            write(tmp_path, arrays_of())
    assert published(tmp_path) == []
    write(tmp_path, arrays_of())
    assert published(tmp_path) == NAMES


def test_the_same_call_goes_on_between_two_publications(tmp_path, monkeypatch):
    def kill(writer):
        if writer.path == str(tmp_path / "b/zarr.json"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        seams.before(patch, "rename a file", kill)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, arrays_of())
    assert published(tmp_path) == ["a"]
    results = write(tmp_path, arrays_of())
    assert [result.n_resumed_shards for result in results] == [4, 4, 4], "nothing is written again"
    assert published(tmp_path) == NAMES
    assert sorted(path.name for path in tmp_path.iterdir()) == [*NAMES, "zarr.json"]


@pytest.mark.parametrize("is_in_group", [False, True], ids=["a new root", "in a group"])
@pytest.mark.parametrize("leaf", ["zarr.json", "shardwrite-receipt.json"])
def test_who_is_frozen_before_documents_become_visible_publishes_none(
    tmp_path, monkeypatch, is_in_group, leaf
):
    """Another process gives the run up. It finds the temporaries of all documents, and removes
    them."""
    root, frozen = tmp_path / "r", []
    if is_in_group:
        zarr.create_group(root)

    def freeze(writer):
        if writer.path.endswith(f"/{leaf}") and not frozen:
            frozen.append(writer.path)
            run = seams.run_of(root / "a")
            for lease in seams.leases_in(run.shared):
                lease.unlink()
            seams.give_up(run)

    with monkeypatch.context() as patch:
        seams.before(patch, "rename a file", freeze)
        with pytest.raises((shardwrite.errors.RunEndedError, shardwrite.StoreError)):
            write(root, arrays_of())
    assert frozen
    assert published(root) == []
    assert not [*tmp_path.rglob("*.swtmp"), *tmp_path.rglob("*.shardwrite")]
    results = write(root, arrays_of())
    assert [result.n_resumed_shards for result in results] == [0, 0, 0]
    assert published(root) == NAMES


@pytest.mark.parametrize("is_in_group", [False, True], ids=["a new root", "in a group"])
def test_one_look_at_the_run_is_enough_for_the_documents_of_all(tmp_path, monkeypatch, is_in_group):
    looks, n_looks = [], []
    seams.before(monkeypatch, "look whether a run goes on", lambda *_, **__: looks.append(1))
    for n_arrays in (3, 12):
        root = tmp_path / str(n_arrays)
        if is_in_group:
            zarr.create_group(root)
        names = [f"a{number}" for number in range(n_arrays)]
        shardwrite.store(arrays_of() * (n_arrays // 3), [root] * n_arrays, names=names, **SIZES)
        n_looks.append(len(looks))
        looks.clear()
    assert n_looks[0] == n_looks[1] <= 3


def test_a_receipt_without_a_document_is_no_array_that_was_written(tmp_path, monkeypatch):
    """A power cut took the name of the one, and not that of the other, in an array in a group."""
    zarr.create_group(tmp_path)

    def kill(*_):
        (seams.run_of(tmp_path / "b").path / "array-new/zarr.json").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        seams.before(patch, "give a new array its name", kill)
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path, arrays_of())
    x = da.from_array(VALUES, chunks=(16, 32))
    with pytest.raises(shardwrite.JournalError, match="another plan was begun"):
        x.to_sharded_zarr(tmp_path, name="b", **{**SIZES, "shards": 8})
    assert published(tmp_path) == []
    results = write(tmp_path, arrays_of())
    assert [result.n_resumed_shards for result in results] == [4, 4, 4]
    assert published(tmp_path) == NAMES


def test_a_run_that_cannot_begin_leaves_no_other_behind(tmp_path):
    x = da.from_array(VALUES, chunks=(16, 32))
    x.to_sharded_zarr(tmp_path, name="a", **SIZES)
    with dask.config.set(scheduler="sync"), pytest.raises(ValueError, match="not this one"):
        x.map_blocks(refuse, dtype="i4").to_sharded_zarr(
            tmp_path, name="c", **{**SIZES, "source_id": "another"}
        )
    with pytest.raises(shardwrite.JournalError, match="another plan was begun"):
        write(tmp_path, arrays_of(), mode="w", restart=False, attributes={"a": 1})
    assert not seams.state_beside(tmp_path / "a").exists()
    assert not seams.state_beside(tmp_path / "b").exists()
    shardwrite.write_region(x[:1], tmp_path, slice(0, 1), name="a")


def test_one_place_by_two_names_is_one_place(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    x = da.from_array(VALUES, chunks=(16, 32))
    for other in ("link/x", "../" + tmp_path.name + "/x"):
        with pytest.raises(shardwrite.SpecError, match="cannot go to one place"):
            shardwrite.store([x, x + 1], [tmp_path / "x", tmp_path / other], **SIZES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link"]
