"""Timings of the pure parts, taken with ``pytest tests/benchmarks/test_pure.py --benchmark-
enable``; else each runs once."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

import shardwrite
from benchmarks.cases import CODECS
from shardwrite.codecs.pipeline import build_pipeline
from shardwrite.encode.unit import Pieces
from shardwrite.format.index import IndexCodec, ShardIndex
from shardwrite.format.order import permutation, place
from shardwrite.grid import Box, ShardGrid
from shardwrite.plan.edges import Edges
from shardwrite.plan.estimate import overlap

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
CHUNKS_PER_SHARD = (32, 32, 32)
N = 32**3


@pytest.fixture
def sizes():
    return np.random.default_rng(0).integers(100, 10_000, N)


def test_shards_of_a_region(benchmark):
    grid = ShardGrid((25_000, 18_000, 6_000), (512, 512, 512), (64, 64, 64))
    assert len(benchmark(lambda: list(grid.shards_in(grid.whole)))) == grid.n_shards


@pytest.mark.parametrize("order", ["C", "F", "morton"])
def test_order(benchmark, order):
    assert (
        len(benchmark(permutation.__wrapped__, CHUNKS_PER_SHARD, order)) == N
    )  # without its cache


@pytest.mark.parametrize("order", ["C", "morton"])
def test_placement(benchmark, order, sizes):
    assert (
        benchmark(place, sizes, permutation(CHUNKS_PER_SHARD, order), 0).data_nbytes == sizes.sum()
    )


def test_index_encode(benchmark, sizes):
    codec = IndexCodec([LITTLE, {"name": "crc32c"}], CHUNKS_PER_SHARD, "end")
    index = ShardIndex.build(np.cumsum(sizes) - sizes, sizes)
    assert len(benchmark(codec.seal, index).suffix) == codec.encoded_nbytes


def test_index_decode(benchmark, sizes):
    codec = IndexCodec([LITTLE, {"name": "crc32c"}], CHUNKS_PER_SHARD, "end")
    encoded = codec.seal(ShardIndex.build(np.cumsum(sizes) - sizes, sizes)).suffix
    found = benchmark(codec.decode, encoded, int(sizes.sum()) + len(encoded))
    np.testing.assert_array_equal(found.table[:, 1], sizes)


@pytest.mark.parametrize("codec", CODECS)
def test_codec(benchmark, codec):
    batch = np.random.default_rng(0).poisson(160, (8, 32, 32, 32)).astype("u2")
    pipeline = build_pipeline([LITTLE, *CODECS[codec].metadata()], (32, 32, 32), batch.dtype, {})
    encoded = benchmark(pipeline.encode, batch)
    np.testing.assert_array_equal(pipeline.decode(encoded[0]), batch[0])


def test_tiles(benchmark):
    block = np.arange(128**3, dtype="u2").reshape(128, 128, 128)
    tiles, pieces = np.empty((64, 32, 32, 32), "u2"), Pieces([(0, 0, 0)], [block])
    benchmark(pieces.copy_into, tiles, (4, 4, 4), (32, 32, 32), Box((0, 0, 0), (128, 128, 128)))
    np.testing.assert_array_equal(tiles[-1], block[96:, 96:, 96:])


def test_overlap(benchmark):
    edges, chunks = Edges.regular(6_400_000, 64), Edges.regular(6_400_000, 100)
    assert benchmark(overlap, edges, chunks) == (200, 3, 2)


@pytest.mark.parametrize("blocks", [(512, 512, 512), (1, 18_000, 6_000)], ids=["cubes", "slabs"])
def test_plan(benchmark, blocks):
    x = da.zeros((25_000, 18_000, 6_000), chunks=blocks, dtype="u1")
    plan = benchmark(
        shardwrite.plan, x, shards=(512, 512, 512), chunks=(64, 64, 64), memory_limit="64GB"
    )
    assert plan.n_shards == 49 * 36 * 12
