"""Turns at the files of small shards: one thread at a time, but nobody waits for a thread that
waits for storage."""

from __future__ import annotations

import threading
import time

import dask
import dask.array as da
import numpy as np
import pytest
import seams

import shardwrite
from shardwrite.host import stopping
from shardwrite.host.stopping import Turn
from shardwrite.write import tasks


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def test_a_turn_that_is_given_back_is_somebody_elses():
    taken = threading.Event()

    def wait():
        with Turn() as turn:
            turn.take(1)
            taken.set()

    with Turn() as turn:
        turn.take(60)
        thread = in_thread(wait)
        assert not taken.wait(0.1)
        turn.take(60)  # goes on, and does not wait for itself
        assert not taken.wait(0.1)
    assert taken.wait(5), "it is not waited for to the end of the minute"
    thread.join()


def test_nobody_waits_longer_than_a_turn_should_last():
    with Turn() as slow, Turn() as other:
        slow.take(0.05)
        begun = time.monotonic()
        other.take(60)
        assert 0.04 < time.monotonic() - begun < 5
        slow.give()  # of which nothing is left
        assert stopping._holder is other
    assert stopping._holder is None


@pytest.mark.parametrize("operation", ["write", "update", "rewrite"])
def test_no_turn_is_left(tmp_path, operation):
    x = da.from_array(np.arange(64 * 64, dtype="u2").reshape(64, 64), chunks=32)
    x.to_sharded_zarr(tmp_path / "x", shards=8, chunks=4, durability="none", strategy="append-only")
    inside = (slice(1, 63), slice(1, 62))
    if operation != "write":
        (x + 1)[inside].to_sharded_zarr(
            tmp_path / "x", region=inside, strategy=shardwrite.AppendOnly(), durability="none"
        )
    if operation == "rewrite":
        assert shardwrite.compact(tmp_path / "x", above=0.0, durability="none").n_rewritten
    assert stopping._holder is None
    assert shardwrite.verify(tmp_path / "x", deep=True).is_good


def write_by_two_threads(path, compressors):
    """Write several groups of small shards."""
    x = da.from_array(np.ones((128, 128), "u2"), chunks=(64, 128))
    layout = {"shards": 8, "chunks": 4, "memory_limit": "200kB", "compressors": compressors}
    with dask.config.set(scheduler="threads", num_workers=2):
        assert shardwrite.plan(x, **layout).partition.n_groups > 1
        x.to_sharded_zarr(path, durability="none", **layout)


@pytest.mark.parametrize("compressors", [None, "auto"])
def test_small_shards_are_committed_by_one_thread_at_a_time(tmp_path, monkeypatch, compressors):
    """As long as storage answers in time: here each turn lasts for minutes, and ends with its
    group."""
    real, under_way, n_together = seams.real("rename a file"), [], []

    def noted(self):
        under_way.append(self)
        time.sleep(0.001)
        n_together.append(len(under_way))
        real(self)
        under_way.remove(self)

    monkeypatch.setattr(*seams.step("rename a file"), noted)
    monkeypatch.setattr(tasks, "_SHARD_SECONDS", 60)
    write_by_two_threads(tmp_path / "x", compressors)
    assert len(n_together) >= 256
    assert max(n_together) == 1


@pytest.mark.parametrize("compressors", [None, "auto"])
def test_threads_wait_for_storage_together(tmp_path, monkeypatch, compressors):
    """Where each rename takes 5 ms, one goes on beside another, as before there were turns."""
    real, under_way, beside_another = seams.real("rename a file"), [], []

    def slow(self):
        under_way.append(self)
        time.sleep(0.005)
        beside_another.append(len(under_way) > 1)
        under_way.remove(self)
        real(self)

    monkeypatch.setattr(*seams.step("rename a file"), slow)
    write_by_two_threads(tmp_path / "x", compressors)
    assert sum(beside_another) > len(beside_another) // 2 > 100
