"""Plans of volumes count the indexes of their shards, which may be larger than the chunks."""

from __future__ import annotations

import tracemalloc

import dask
import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite.encode.unit import ShardBatches
from shardwrite.errors import PlanError
from shardwrite.volumes.hashed import gathering_nbytes

NEW = {"axes": "zyx", "resolution": (4, 4, 40), "chunks": 32}


def parameters(minishard_bits, code="identity", shard_bits=3):
    named = {"preshift_bits": 0, "minishard_bits": minishard_bits, "shard_bits": shard_bits}
    return {**NEW, "sharding": {**named, "hash": code}}


def peak_nbytes(x, path, **new):
    """Peak of the memory that one thread takes, once all modules are imported."""
    with dask.config.set(scheduler="threads", num_workers=1):
        shardwrite.to_precomputed(np.ones((4, 4, 4), "u1"), path / "first", **{**NEW, "chunks": 2})
        tracemalloc.start()
        try:
            shardwrite.to_precomputed(x, path / "v", **new)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.long
@pytest.mark.parametrize("code", ["identity", "murmurhash3_x86_128"])
def test_a_large_index_with_few_chunks(tmp_path, code):
    """The index takes 16 MiB, and all values 256 KiB. It is in memory only once."""
    x, new = da.ones((64, 64, 64), dtype="uint8", chunks=64), parameters(20, code)
    plan = shardwrite.plan_precomputed(x, **new)
    index_nbytes = 16 * 2**20
    told = plan.bound.total_nbytes
    if plan.gathering is not None:
        told = gathering_nbytes(plan.gathering, plan.n_shards)
        assert "16.9 MB of memory while it gathers" in str(plan)
    peak = peak_nbytes(x, tmp_path, **new)
    assert index_nbytes <= told < 1.1 * index_nbytes
    assert peak < told + 2**20
    small = {**new, "memory_limit": 12_000_000}
    with pytest.raises(PlanError):
        shardwrite.plan_precomputed(x, **small)


@pytest.mark.long
def test_an_index_of_many_chunks(tmp_path):
    """What is known of each chunk takes more than its entry."""
    x = da.ones((256, 256, 256), dtype="uint8", chunks=(8, 256, 256))
    new = {**parameters(9), "chunks": 4, "encoding": "raw"}
    new["sharding"] = {**new["sharding"], "preshift_bits": 9, "shard_bits": 0}
    plan = shardwrite.plan_precomputed(x, **new)
    assert peak_nbytes(x, tmp_path, durability="none", **new) < plan.memory.total_nbytes + 2**21


def test_each_task_counts_its_own():
    x = da.ones((128, 128, 128), dtype="uint8", chunks=64)
    with dask.config.set(scheduler="threads", num_workers=4):
        few = shardwrite.plan_precomputed(x, **parameters(1, shard_bits=9))
        many = shardwrite.plan_precomputed(x, **parameters(18, shard_bits=9))
        assert many.memory.total_nbytes >= few.memory.total_nbytes


def test_many_small_shards_are_no_large_batch():
    """Their indexes count, when so many are encoded as fit into a batch."""
    x = da.ones((64, 64, 64), dtype="uint8", chunks=64)
    new = {**parameters(0), "chunks": 8, "sharding": {**parameters(0)["sharding"], "shard_bits": 9}}
    few = shardwrite.plan_precomputed(x, **new).metadata
    assert few.sealing_nbytes == 16
    assert ShardBatches.is_worth_it(few, 2**21)
    new["sharding"] = {**new["sharding"], "minishard_bits": 17}
    many = shardwrite.plan_precomputed(x, **new).metadata
    assert many.sealing_nbytes >= 2**21
    assert not ShardBatches.is_worth_it(many, 2**21)


def test_ordinary_arrays_count_as_before():
    x = da.ones((64, 64), dtype="uint8", chunks=64)
    plan = shardwrite.plan(x, shards=64, chunks=1, index_location="start")
    assert plan.metadata.sealing_nbytes == 0
