"""Shards of very many tiny inner chunks take no more memory than the plan says."""

from __future__ import annotations

import tracemalloc

import dask
import dask.array as da
import numpy as np
import pytest
import seams

import shardwrite
from shardwrite.encode.unit import ShardBatches
from shardwrite.plan import estimate

N = 2**18
SLACK_NBYTES = 2 * 2**20


def source(n=N, n_chunks=1):
    return da.from_array(np.arange(n, dtype="u1") | 1, chunks=n // n_chunks)


def peak_nbytes(call):
    """Peak of the memory that one thread takes, once a small call has imported all modules."""
    with dask.config.set(scheduler="threads", num_workers=1):
        call(64)
        tracemalloc.start()
        try:
            call(N)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    ("new", "n_chunks"),
    [
        ({"compressors": None}, 1),
        ({"compressors": None, "strategy": shardwrite.FixedOrder("morton")}, 1),
        ({"compressors": None, "memory_limit": "60MB"}, 8),
    ],
    ids=["raw", "morton", "in blocks"],
)
def test_one_shard_of_chunks_of_a_byte(tmp_path, new, n_chunks):
    def call(n):
        x = source(n, n_chunks)
        return x.to_sharded_zarr(tmp_path / f"{n}.zarr", shards=n, chunks=1, **new)

    with dask.config.set(scheduler="threads", num_workers=1):
        plan = shardwrite.plan(source(N, n_chunks), shards=N, chunks=1, **new)
    assert peak_nbytes(call) < plan.memory.total_nbytes + SLACK_NBYTES
    np.testing.assert_array_equal(
        shardwrite.open_sharded(tmp_path / f"{N}.zarr")[...], source().compute()
    )


@pytest.mark.long
def test_many_shards_of_tiny_chunks_make_no_large_batch(tmp_path):
    """In a batch of 2 MiB there would be room for 2**18 chunks in 64 shards."""
    new = {"shards": 2**12, "chunks": 1, "compressors": None}
    metadata = shardwrite.plan(source(), **new).metadata
    assert ShardBatches.is_worth_it(metadata, estimate.BATCH_NBYTES)
    many = shardwrite.plan(source(), **{**new, "shards": 2**13}).metadata
    assert not ShardBatches.is_worth_it(many, estimate.BATCH_NBYTES)

    def call(n):
        layout = {**new, "shards": min(n, 2**12)}
        return source(n).to_sharded_zarr(tmp_path / f"{n}.zarr", durability="none", **layout)

    with dask.config.set(scheduler="threads", num_workers=1):
        plan = shardwrite.plan(source(), **new)
    assert peak_nbytes(call) < plan.memory.total_nbytes + 2 * SLACK_NBYTES


@pytest.mark.long
def test_the_size_of_batches_does_not_change_the_bytes(tmp_path, monkeypatch):
    values = np.random.default_rng(0).integers(0, 3, (64, 48, 8)).astype("u1")
    x = da.from_array(values, chunks=(64, 48, 8))
    written = []
    for most in (2**13, 100):
        monkeypatch.setattr("shardwrite.encode.unit.MOST_IN_BATCH", most)
        monkeypatch.setattr("shardwrite.encode.unit.MOST_IN_BATCH", most)
        for n, strategy in enumerate(
            (*map(shardwrite.FixedOrder, ("C", "F", "morton")), shardwrite.AppendOnly())
        ):
            path = tmp_path / f"{most}-{n}"
            x.to_sharded_zarr(path, shards=(32, 48, 8), chunks=(2, 3, 1), strategy=strategy)
            written.append({p.relative_to(path): p.read_bytes() for p in path.rglob("c/*/*/*")})
    assert written[:4] == written[4:]
    assert all(len(found) == 2 for found in written)


@pytest.mark.long
def test_an_update_of_a_shard_of_tiny_chunks(tmp_path, monkeypatch):
    told = []
    seams.before(monkeypatch, "begin runs", lambda jobs, *_: told.extend(jobs))

    def call(n):
        y = source(n)[: n // 2] + 1
        return y.to_sharded_zarr(tmp_path / f"{n}.zarr", region=(slice(n // 4, n // 4 + n // 2),))

    for n in (64, N):
        source(n).to_sharded_zarr(tmp_path / f"{n}.zarr", shards=n, chunks=1, compressors=None)
    told.clear()
    peak = peak_nbytes(call)
    assert peak < told[-1].plan.memory.total_nbytes + SLACK_NBYTES
    wanted = source().compute()
    wanted[N // 4 : N // 4 + N // 2] = wanted[: N // 2] + 1
    found = shardwrite.open_sharded(tmp_path / f"{N}.zarr")[...]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("encoding", ["raw", pytest.param("gzip", marks=pytest.mark.long)])
def test_a_volume_of_chunks_of_a_voxel(tmp_path, encoding):
    new = {"axes": "zyx", "resolution": (1, 1, 1), "chunks": 1, "encoding": encoding}
    new |= {"shard_nbytes": "1GB", "index_nbytes": "100MB"}

    def volume(n):
        return da.ones((round(n ** (1 / 3)),) * 3, dtype="u1", chunks=-1)

    with dask.config.set(scheduler="threads", num_workers=1):
        plan = shardwrite.plan_precomputed(volume(N), **new)
    assert plan.n_shards == 1
    peak = peak_nbytes(lambda n: shardwrite.to_precomputed(volume(n), tmp_path / f"{n}", **new))
    assert peak < plan.memory.total_nbytes + SLACK_NBYTES


@pytest.mark.long
def test_a_shard_that_is_a_file_of_hdf5(tmp_path):
    pytest.importorskip("h5py")
    new = {"compressors": None, "strategy": "hdf5", "chunks": 1}
    n_chunks = 2**15  # HDF5 takes long for each

    def call(n):
        n = min(n, n_chunks)
        return source(n).to_sharded_zarr(tmp_path / f"{n}.zarr", shards=n, **new)

    with dask.config.set(scheduler="threads", num_workers=1):
        plan = shardwrite.plan(source(n_chunks), shards=n_chunks, **new)
    assert peak_nbytes(call) < plan.memory.total_nbytes + SLACK_NBYTES
