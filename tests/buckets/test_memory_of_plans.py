"""Plans count the shards that wait in memory until a bucket has them, for whatever is written."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite import PlanError

LAYOUT = {"shards": (64, 64, 64), "chunks": (16, 16, 16), "compressors": None}
VOLUME = {"axes": "zyx", "resolution": (4, 4, 4), "encoding": "raw", "chunks": 16}
SHARD_NBYTES = 2 * 64**3


@pytest.fixture(autouse=True)
def two_threads():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


@pytest.fixture
def x():
    values = np.random.default_rng(0).integers(1, 2**16, (64, 64, 192), dtype="u2")
    return da.from_array(values, chunks=(16, 64, 64))


def test_of_a_new_array(moto, url, x):
    beside = shardwrite.plan(x, **LAYOUT)
    into = shardwrite.plan(x, store=url, **LAYOUT)
    assert beside.memory.held_nbytes == 0
    assert into.memory.held_nbytes >= SHARD_NBYTES
    with pytest.raises(PlanError, match="wait until they are put"):
        shardwrite.plan(x, store=url, memory_limit=SHARD_NBYTES, **LAYOUT)
    with pytest.raises(PlanError, match="wait until they are put"):
        x.to_sharded_zarr(url, memory_limit=SHARD_NBYTES, **LAYOUT)
    assert moto.keys_of(url) == []


def test_shards_that_wait_on_a_disk(moto, url, x, tmp_path):
    in_memory, on_disk = (
        shardwrite.plan(x, store=url, via=via, **LAYOUT) for via in (None, str(tmp_path))
    )
    assert on_disk.scratch_nbytes >= SHARD_NBYTES > in_memory.scratch_nbytes == 0
    assert on_disk.digest == in_memory.digest


def test_large_files_of_hdf5_that_wait(moto, url, tmp_path):
    """They are filled in where they wait, while they are encoded: no task collects them first."""
    x = da.zeros((1024, 512, 512), chunks=512, dtype="u2")
    layout = {"shards": (512, 512, 512), "chunks": 64, "compressors": None, "strategy": "hdf5"}
    at_home, in_memory, on_disk = (
        shardwrite.plan(x, store=store, via=via, **layout)
        for store, via in ((None, None), (url, None), (url, str(tmp_path)))
    )
    for plan in (in_memory, on_disk):
        assert plan.memory.encode_nbytes == at_home.memory.encode_nbytes
    assert in_memory.memory.held_nbytes > on_disk.memory.held_nbytes > 0


def test_blocks_of_many_threads_wait_in_memory_if_it_suffices(moto, url):
    """Part files would need a directory that all machines see."""
    x = da.zeros((4096, 512, 512), chunks=(64, 256, 256), dtype="u2")
    layout = {"shards": (256, 512, 512), "chunks": 32}
    with dask.config.set(num_workers=16):
        ample, scarce = (
            shardwrite.plan(x, store=url, memory_limit=limit, **layout).bound
            for limit in ("6GB", "4GB")
        )
    assert ample.spool_ratio == np.inf
    assert scarce.spool_ratio < 1
    assert scarce.total_nbytes <= 4 * 10**9


def test_of_a_volume(moto, url, x):
    bits = {"preshift_bits": 0, "minishard_bits": 2, "shard_bits": 1}
    for how in ({}, {"sharding": {"hash": "murmurhash3_x86_128", **bits}}):
        beside = shardwrite.plan_precomputed(x, **VOLUME, **how)
        into = shardwrite.plan_precomputed(x, url, **VOLUME, **how)
        assert into.memory.total_nbytes > beside.memory.total_nbytes + SHARD_NBYTES // 2
        if how:
            assert into.gathering.memory.held_nbytes > beside.gathering.memory.held_nbytes == 0
        with pytest.raises(PlanError, match="wait until they are put"):
            x.to_precomputed(url, memory_limit=SHARD_NBYTES // 2, **VOLUME, **how)
    assert moto.keys_of(url) == []


@pytest.mark.long
def test_of_a_copy(moto, url, x, tmp_path):
    """Encoded chunks are copied one after the other, and a large shard waits all the same."""
    dask.config.set(scheduler="sync")
    x.to_sharded_zarr(tmp_path / "a", **{**LAYOUT, "shards": 16})
    beside = shardwrite.plan_reshard(tmp_path / "a", shards=4, dst=tmp_path / "b")
    into = shardwrite.plan_reshard(tmp_path / "a", shards=4, dst=url)
    (told,), (counted,) = (
        [array.memory_nbytes for array in made.arrays] for made in (beside, into)
    )
    assert counted >= told + SHARD_NBYTES
    shardwrite.reshard(tmp_path / "a", tmp_path / "b", shards=4, memory_limit=counted - 1)
    with pytest.raises(PlanError, match=r"copies encoded chunks.*wait until they are put"):
        shardwrite.reshard(tmp_path / "a", url, shards=4, memory_limit=counted - 1)
    assert moto.keys_of(url) == []
    shardwrite.reshard(tmp_path / "a", url, shards=4, memory_limit=counted)
    assert shardwrite.verify(url, against=tmp_path / "a").is_good
