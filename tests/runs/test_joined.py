"""A process that has joined a run, which another process then ends."""

from __future__ import annotations

import errno
import os

import dask.array as da
import numpy as np
import pytest
import seams

import shardwrite
from shardwrite.errors import RunEndedError, StoreError

VALUES = np.arange(1, 65, dtype="u2").reshape(8, 8)


@pytest.mark.parametrize("is_update", [False, True])
def test_a_run_that_begins_while_another_ends_hides_no_success(tmp_path, monkeypatch, is_update):
    """Four processes begin one plan at once. One has ended the run, one has begun another, which it
    will take back, and one that had joined the first run must learn that it is done."""
    path, x = tmp_path / "x", da.from_array(VALUES, chunks=4)
    if is_update:
        shardwrite.create(path, (8, 8), "u2", shards=4, chunks=2)

    def write():
        if is_update:
            return shardwrite.write_region(x, path, ..., source_id="x")
        return x.to_sharded_zarr(path, shards=4, chunks=2, source_id="x")

    real, begun = seams.real("begin runs"), []

    def ended_by_another(jobs, *_):
        monkeypatch.setattr(*seams.step("begin runs"), real)
        write()
        (job,) = jobs
        receipt = seams.receipt_in(path)
        run = receipt.updates[-1].run if is_update else receipt.run
        begun.append(seams.begin_unseen(job))
        raise RunEndedError("another process has ended this run", path=f"run-{run}")

    monkeypatch.setattr(*seams.step("begin runs"), ended_by_another)
    result = write()
    assert begun[0] is not None
    assert result.n_shards == 4
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], VALUES)


def test_nothing_is_left_of_a_run_that_ends_while_another_process_is_at_its_end(
    tmp_path, monkeypatch
):
    """That process holds the claim on the array when the directory beside it is removed."""
    path, x = tmp_path / "x", da.from_array(VALUES, chunks=4)
    shardwrite.create(path, (8, 8), "u2", shards=4, chunks=2)

    def write():
        return [shardwrite.write_region(x, path, ..., source_id="x")]

    joiner = seams.Joiner(monkeypatch, write, "leave a receipt")
    seams.before(monkeypatch, "end a run", joiner.come, once=True)
    results = write() + joiner.end()
    assert [result.n_shards for result in results] == [4, 4]
    assert os.listdir(tmp_path) == ["x"]
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], VALUES)


def write_new(root, n_arrays):
    x = da.from_array(VALUES, chunks=4)
    how = {"shards": 4, "chunks": 2, "source_id": "x"}
    names = [str(number) for number in range(n_arrays)]
    if n_arrays == 1:
        return [x.to_sharded_zarr(root, name="0", **how)]
    return shardwrite.store([x] * n_arrays, [root] * n_arrays, names=names, **how)


def check_new(root, n_arrays):
    for number in range(n_arrays):
        found = shardwrite.open_sharded(root / str(number))[...]
        np.testing.assert_array_equal(found, VALUES)
    assert os.listdir(root.parent) == [root.name]
    assert not list(root.rglob("*.shardwrite"))


@pytest.mark.parametrize("n_arrays", [1, 2])
@pytest.mark.parametrize("step", ["commit shards", "publish the array", "leave a receipt"])
def test_whoever_joins_a_run_may_be_at_its_end_before_its_begin_is_over(
    tmp_path, monkeypatch, n_arrays, step
):
    """What stands in the place of the array is its work, and no reason to take the run back."""
    root = tmp_path / "x"
    joiner = seams.Joiner(monkeypatch, lambda: write_new(root, n_arrays), step)
    seams.after(monkeypatch, "claim the arrays of a run", joiner.come, once=True)
    results = write_new(root, n_arrays)
    assert [result.n_shards for result in results + joiner.end()] == [4] * 2 * n_arrays
    check_new(root, n_arrays)


def test_whoever_joins_a_run_may_end_it_while_its_arrays_are_claimed(tmp_path, monkeypatch):
    root, link, n_links = tmp_path / "x", os.link, []

    def end_first(*arguments, **more):
        n_links.append(1)
        if len(n_links) == 2:
            assert len(write_new(root, 3)) == 3
        link(*arguments, **more)

    monkeypatch.setattr(os, "link", end_first)
    results = write_new(root, 3)
    assert [result.n_resumed_shards for result in results] == [4, 4, 4]
    check_new(root, 3)


def test_a_run_that_is_taken_back_while_another_process_is_about_to_join_it(tmp_path, monkeypatch):
    """It has failed in the process that began it, and not in the other."""
    root, x = tmp_path / "x", da.from_array(VALUES, chunks=4)
    seams.begin_unseen(seams.job_of(x, root, shards=4, chunks=2, source_id="x"))
    seams.before(monkeypatch, "probe a run", lambda *_: seams.cancel(seams.run_of(root)), once=True)
    result = x.to_sharded_zarr(root, shards=4, chunks=2, source_id="x")
    assert result.n_shards == 4
    assert os.listdir(tmp_path) == ["x"]


def test_a_place_that_is_gone_is_not_told_as_a_run_that_has_ended(tmp_path, monkeypatch):
    def gone(*_, **__):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(os, "link", gone)
    with pytest.raises(StoreError, match="cannot write beside it"):
        write_new(tmp_path / "x", 1)
    assert not list(tmp_path.rglob("*.shardwrite"))
