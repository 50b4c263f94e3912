"""Small shards are put a few at a time by each task, and one that fails loses none of the others."""

from __future__ import annotations

import threading
import time
from urllib.parse import unquote

import dask
import dask.array as da
import numpy as np
import proxy
import pytest
from servers import on

import shardwrite
from shardwrite import StoreError

VALUES = np.random.default_rng(0).integers(1, 2**32, (64, 64), dtype="u4")
LAYOUT = {"shards": 8, "chunks": 4}
AT_ONCE = 8
ONE_TRY = {"shardwrite.retry-pauses": [], "scheduler": "sync"}


class Seen:
    """PUTs of shards: their keys, and how many there were at a time.

    A PUT lasts until so many have been there as `awaited` says, but no longer than ten seconds.
    """

    def __init__(self, awaited=1):
        self.now, self.most, self.keys, self.awaited = 0, 0, [], awaited
        self.changed = threading.Condition()


class Slow(proxy.Passing):
    """Makes each PUT of a shard last."""

    puts: Seen

    def forwarded(self, body):
        key = unquote(self.path).partition("x.zarr/")[2].partition("?")[0]
        if self.command != "PUT" or not key.startswith("c/"):
            return super().forwarded(body)
        puts = self.puts
        with puts.changed:
            puts.now += 1
            puts.most = max(puts.most, puts.now)
            puts.keys.append(key)
            puts.changed.notify_all()
            puts.changed.wait_for(lambda: puts.most >= puts.awaited, timeout=10)
        time.sleep(0.03)
        try:
            return super().forwarded(body)
        finally:
            with puts.changed:
                puts.now -= 1


def is_of_one(method, path, number):
    """Break the connection at each PUT of one shard."""
    return "before" if method == "PUT" and "/c/3/4" in path else None


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=64)


@on("seaweed", long=["moto", "azurite"])
def test_one_task_puts_a_few_at_a_time(service, environment, url, x):
    puts = Seen(awaited=AT_ONCE)
    with (
        proxy.before(service, kind=Slow, puts=puts) as (server, _),
        dask.config.set(scheduler="sync"),
    ):
        environment(server)
        x.to_sharded_zarr(url, **LAYOUT)
        assert puts.most == AT_ONCE
        assert sorted(puts.keys) == sorted(set(puts.keys)), "each shard is put once"
        assert len(puts.keys) == 64
        puts.most = 0
        inside = np.s_[4:60, 4:60]
        (x[inside] + np.uint32(1)).to_sharded_zarr(url, region=inside)
        assert puts.most == AT_ONCE, "an update, too"
    environment(service)
    wanted = VALUES.copy()
    wanted[inside] += np.uint32(1)
    assert shardwrite.verify(url, deep=True, against=wanted).is_good


@on("seaweed", long=["moto", "azurite"])
def test_large_shards_are_put_one_by_one(service, environment, url):
    values = np.random.default_rng(0).integers(0, 2**32, (2, 2048, 1024), dtype="u4")
    puts = Seen()
    with (
        proxy.before(service, kind=Slow, puts=puts) as (server, _),
        dask.config.set(scheduler="sync"),
    ):
        environment(server)
        da.from_array(values).to_sharded_zarr(
            url, shards=(1, 2048, 1024), chunks=(1, 1024, 1024), compressors=None
        )
    assert puts.most == 1


@on("seaweed", long=["moto", "azurite"])
def test_those_that_are_put_are_done_though_another_fails(service, environment, url, x):
    puts = Seen()
    with (
        proxy.before(service, is_of_one, Slow, puts=puts) as (server, faults),
        dask.config.set(ONE_TRY),
    ):
        environment(server)
        retries = {"retry_config": {"max_retries": 0}}
        with pytest.raises(StoreError, match="c/3/4"):
            x.to_sharded_zarr(url, storage_options=retries, **LAYOUT)
        before = set(puts.keys)
        assert len(before) >= 3 * 8
        assert len(before) < 64, "no shard is begun after the one that failed"
        puts.keys.clear()
        faults.plan = None
        done = x.to_sharded_zarr(url, **LAYOUT)
        assert not before & set(puts.keys), "what was acknowledged is not put again"
        assert len(before) + len(puts.keys) == 64
    assert done.n_shards == 64
    environment(service)
    assert shardwrite.verify(url, deep=True, against=VALUES).is_good
