"""Shapes that are chosen, and what reads of them cost, against brute force."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwrite.encode.reader import WHOLE_SHARE
from shardwrite.grid import Box, ShardGrid
from shardwrite.plan import design
from shardwrite.plan.options import resolve_shapes

MB = 10**6
NEAR = design.RequestRules(is_distant=False, gap=0, most=1, tail=0, whole_share=WHOLE_SHARE)


def even(n, size):
    return tuple(min(size, n - a) for a in range(0, n, size))


def counted(stored, read, how):
    """Requests, bytes and inner chunks of a read, as the mean over all places, chunk by chunk."""
    grid, size = stored.grid, int(stored.chunk_nbytes)
    totals, n_places = [0, 0, 0], 0
    for start in itertools.product(
        *(range(n - r + 1) for n, r in zip(grid.shape, read, strict=True))
    ):
        box, n_places = Box.from_shape(start, read), n_places + 1
        for index in grid.shards_in(box):
            shard = grid.shard_box(index)
            there = grid.chunk_counts_in(shard.intersect(grid.whole))
            inside = box.intersect(shard).shift(shard.start)
            cells = [
                range(a // c, -(-b // c))
                for (a, b), c in zip(inside.bounds, grid.chunks, strict=True)
            ]
            ranks = []
            for cell in itertools.product(*cells):
                rank = 0
                for i, n in zip(cell, there, strict=True):
                    rank = rank * n + i
                ranks.append(rank)
            n_requests, nbytes = ranges(ranks, math.prod(there), size, stored.index_nbytes, how)
            totals = [totals[0] + n_requests, totals[1] + nbytes, totals[2] + len(ranks)]
    return [total / n_places for total in totals]


def ranges(ranks, n_there, size, index_nbytes, how):
    """Requests and bytes for inner chunks of one shard."""
    held = n_there * size
    if not how.is_distant:
        if 2 * len(ranks) >= n_there:
            return 1, held + index_nbytes
        return 1 + len(ranks), index_nbytes + len(ranks) * size
    tail = max(how.tail, index_nbytes)
    if len(ranks) == n_there:  # all of the shard: its end is as much as a request takes
        tail = max(how.most, how.tail)
    n_requests, nbytes = 1, min(held + index_nbytes, tail)
    known = held + index_nbytes - nbytes  # first byte of the tail
    stretches = []
    for rank in ranks:
        start, stop = rank * size, (rank + 1) * size
        if (
            stretches
            and start - stretches[-1][1] <= how.gap
            and stop - stretches[-1][0] <= how.most
        ):
            stretches[-1][1] = stop
        else:
            stretches.append([start, stop])
    for start, stop in stretches:
        if start < known:
            n_requests, nbytes = n_requests + 1, nbytes + stop - start
    return n_requests, nbytes


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_costs_of_reads_are_those_that_are_counted(data):
    ndim = data.draw(st.integers(1, 3))
    axes = [
        (data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 14)))
        for _ in range(ndim)
    ]
    chunks, per_shard, shape = zip(*axes, strict=True)
    grid = ShardGrid(shape, tuple(k * c for k, c in zip(per_shard, chunks, strict=True)), chunks)
    read = tuple(data.draw(st.integers(1, n)) for n in shape)
    stored = design.Stored(grid, 100, 16 * grid.n_chunks_per_shard + 4, is_padded=True)
    found = design._counted(read, stored, NEAR)
    assert found == pytest.approx(counted(stored, read, NEAR))
    distant = design.RequestRules(
        is_distant=True,
        gap=data.draw(st.sampled_from([0, 100, 250])),
        most=10**6,
        tail=0,
        whole_share=WHOLE_SHARE,
    )
    found = design._counted(read, stored, distant)
    assert found == pytest.approx(counted(stored, read, distant))


@pytest.mark.parametrize("tail", [0, 300, 700, 10**4])
@pytest.mark.parametrize("most", [250, 10**6])
def test_what_the_first_request_brings_is_not_asked_for_again(tail, most):
    grid = ShardGrid((24, 24), (12, 12), (3, 3))
    stored = design.Stored(grid, 100, 0, is_padded=True)
    how = design.RequestRules(
        is_distant=True, gap=50, most=most, tail=tail, whole_share=WHOLE_SHARE
    )
    for read in ((1, 1), (1, 24), (24, 1), (6, 6), (24, 24)):
        expected = counted(stored, read, how)
        found = design._counted(read, stored, how)
        assert found == pytest.approx(expected, rel=0.1), read


def test_places_of_large_arrays_are_sampled():
    grid = ShardGrid((10**7, 10**6), (10**5, 10**5), (1000, 1000))
    stored = design.Stored(grid, 10**6, 160_004)
    n_requests, nbytes, n_chunks = design._counted((2500, 100), stored, NEAR)
    expected = (1 + 2499 / 1000) * (1 + 99 / 1000)
    assert n_chunks == pytest.approx(expected, rel=0.02)
    assert n_requests == pytest.approx(expected + 1, rel=0.02)
    assert nbytes == pytest.approx(expected * 10**6 + 160_004, rel=0.03)


def test_shards_end_where_source_chunks_end_if_inner_chunks_can():
    source = (even(1024, 100),) * 3
    shards, chunks, notes = resolve_shapes((1024,) * 3, 1, "auto", "auto", source)
    assert design.nests(shards, design.steps_of(source))
    assert 10 * MB <= math.prod(shards) <= 100 * MB
    assert all(100 % c == 0 or c % 100 == 0 for c in chunks)
    assert 2**15 <= math.prod(chunks) <= 2**19
    assert notes


def test_sources_of_any_chunks_keep_the_usual_shapes():
    """Chunks of no one length, or of a prime one, cannot be met without tiny inner chunks."""
    for source in (((300, 724), (500, 524), (1024,)), (even(1024, 997),) * 3):
        found = resolve_shapes((1024,) * 3, 1, "auto", "auto", source)
        assert found[:2] == ((256, 512, 512), (64, 64, 128))


def test_many_files_make_larger_shards():
    shape = (20_000,) * 3
    shards, chunks, notes = resolve_shapes(shape, 2, "auto", "auto", [(n,) for n in shape])
    grid = ShardGrid(shape, shards, chunks)
    assert grid.n_shards <= design.MOST_FILES
    assert 2 * math.prod(shards) <= design.LARGEST_NBYTES
    assert f"{grid.n_shards:,}" in notes[1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=4),
    st.integers(1, 8),
    st.sampled_from(design.PURPOSES),
    st.data(),
)
def test_candidates_keep_to_the_limits(shape, itemsize, purpose, data):
    shape = tuple(shape)
    source = [even(n, data.draw(st.integers(1, n))) for n in shape]
    reads = list(design.reads_for(purpose, shape, [None] * len(shape)).values())
    assert all(1 <= r <= n for read in reads for r, n in zip(read, shape, strict=True))
    limits = design.Limits(10**6, 2**30)
    found = design.shapes_for(shape, itemsize, source, reads, limits)
    assert found
    assert len(set(found)) == len(found)
    for shards, chunks in found:
        grid = ShardGrid(shape, shards, chunks)
        assert itemsize * math.prod(shards) <= limits.most_nbytes
        assert grid.n_shards <= limits.most_files
        assert itemsize * math.prod(shards) >= min(
            design.SMALLEST_FILE, itemsize * math.prod(shape)
        )


def test_the_best_candidate_is_bad_for_no_read():
    grids = [ShardGrid((8, 8), (8, 8), (c, c)) for c in (1, 2, 4)]
    rows = [
        [design.ReadCost("", (1, 1), 1, 1, 1, seconds) for seconds in row]
        for row in ([1, 8], [2, 2], [8, 1])
    ]
    assert design.ranked_candidates(rows, grids, 1)[0] == (1, 2)


@pytest.mark.parametrize(
    ("purpose", "names", "expected"),
    [
        ("viewer", (), {(1, 1, 256, 200), (1, 40, 1, 200), (1, 40, 256, 1)}),
        ("viewer", ("z", "c", "y", "x"), {(1, 1, 256, 200), (30, 1, 1, 200), (30, 1, 256, 1)}),
        ("ml", (), {(1, 40, 64, 64)}),
        ("ml", ("t", "c", "y", "x"), {(1, 1, 256, 200)}),
        ("timeseries", (), {(30, 1, 1, 1), (1, 40, 500, 200)}),
        ("timeseries", ("z", "time", "y", "x"), {(1, 40, 1, 1), (30, 1, 500, 200)}),
        ("archive", (), {(30, 40, 500, 200)}),
    ],
)
def test_each_purpose_stands_for_reads(purpose, names, expected):
    found = design.reads_for(purpose, (30, 40, 500, 200), names)
    assert set(found.values()) == expected
