"""Edges along an axis, compared with lists of them, and what a plan of very many shards takes."""

import itertools
import tracemalloc
from bisect import bisect_left, bisect_right

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.grid import ShardGrid
from shardwrite.plan import edges as edges_module
from shardwrite.plan.edges import Edges, condensed
from shardwrite.plan.estimate import Resources, _along, mean_pieces
from shardwrite.plan.model import SourceLayout, wave_thickness
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.partition import make_partition
from shardwrite.plan.plan import make_plan

sizes_of_chunks = st.lists(st.integers(0, 4), max_size=8)


def listed(sizes, start=0):
    return list(itertools.accumulate(sizes, initial=start))


@given(sizes_of_chunks, st.integers(-3, 3), st.integers(-5, 40), st.integers(-5, 40))
def test_edges_are_those_of_the_pieces(sizes, start, a, b):
    edges, positions = Edges.from_sizes(sizes).shifted(start), listed(sizes, start)
    assert list(edges) == positions
    assert [edges[i] for i in range(-len(positions), len(positions))] == positions * 2
    assert len(edges) == len(positions)
    assert (edges.stop, edges.longest) == (positions[-1], max(sizes, default=0))
    assert edges == Edges.from_positions(positions)
    assert edges.n_before(a) == bisect_left(positions, a)
    assert edges.n_up_to(a) == bisect_right(positions, a)
    assert edges.between(a, b) == [at for at in positions if a <= at <= b]
    pieces = [(max(a, p), min(b, q)) for p, q in itertools.pairwise(positions)]
    inside = [q - p for p, q in pieces if p < q]
    assert list(edges.clipped(a, b)) == listed(inside, max(a, start))


@pytest.mark.parametrize("index", [3, -4])
def test_there_is_no_edge_beyond_the_last(index):
    with pytest.raises(IndexError):
        Edges.from_sizes((2, 2))[index]


@pytest.mark.long
@given(sizes_of_chunks.filter(any), st.integers(1, 4))
def test_the_last_edge_may_be_no_multiple(sizes, step):
    positions = sorted(set(listed(sizes)))
    found = Edges.from_positions(positions).are_multiples_of(step)
    assert found == all(at % step == 0 for at in positions[:-1])


@st.composite
def long_axes(draw):
    """Group step, inner chunk and sizes of source chunks of an axis with many of each."""
    chunk = draw(st.integers(1, 4))
    shard = chunk * draw(st.integers(1, 4))
    runs = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 200)), min_size=1, max_size=3))
    sizes = [size for size, count in runs for _ in range(count)]
    return (sizes, shard, chunk) if sum(sizes) else ([shard], shard, chunk)


@pytest.fixture
def nothing_is_left_out(monkeypatch):
    def compute(function):
        with monkeypatch.context() as patch:
            patch.setattr(edges_module, "_MANY_RUNS", 0)
            _along.cache_clear()
            return function()

    return compute


@pytest.mark.long
@settings(max_examples=200, suppress_health_check=["function_scoped_fixture"])
@given(long_axes(), st.integers(1, 60), st.booleans(), st.floats(1, 3))
def test_a_few_periods_tell_what_all_tell(nothing_is_left_out, axis, task_size, is_fused, most):
    sizes, shard, chunk = axis
    source = Edges.from_sizes(sizes)
    grid = ShardGrid((source.stop,), (shard,), (chunk,))

    def facts():
        _along.cache_clear()
        partition = make_partition(grid, [source], 1, task_nbytes=task_size, fused=is_fused)
        (groups,), (blocks,) = partition.group_edges, partition.block_edges
        return (
            partition,
            _along(blocks, source, None),
            pytest.approx(mean_pieces(groups, source)),
            wave_thickness(groups, source, most),
            blocks.include(groups),
            groups.include(blocks),
        )

    assert facts() == nothing_is_left_out(facts)


def test_a_long_pattern_becomes_short():
    first, second, gaps = condensed(Edges.regular(192 * 10**7, 64), Edges.regular(192 * 10**7, 48))
    assert (first.n_pieces, second.n_pieces) == (21, 28)
    assert [(gap.at, gap.period) for gap in gaps] == [(3 * 192, 192)]
    assert np.isin(gaps[0].at, first.positions)


def peak_of_plan(n_shards, n_bytes):
    """Memory for the plan of a line of shards of some bytes, each with a source chunk."""
    shape, shards = (n_shards * n_bytes,), (n_bytes,)
    metadata = make_metadata(shape, np.dtype("u1"), shards, (2**10,), ArrayOptions())
    source = SourceLayout(((n_bytes,) * n_shards,), n_shards, "x")
    tracemalloc.start()
    plan = make_plan(metadata, source, Resources(2, 2**33), PlanOptions())
    assert len(plan.waves) < 500
    assert len(str(plan.to_dict())) + len(str(plan.partition.cuts)) < 5000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("n_bytes", [2**10, 2**26], ids=["many in a task", "one in a task"])
def test_a_plan_of_ten_million_shards_takes_no_memory_for_each(n_bytes):
    """Along a line, where there are as many groups, or source chunks, as shards."""
    peak_of_plan(4, n_bytes)  # what is imported at the first time does not count
    assert peak_of_plan(10**7, n_bytes) < 2**24  # a list of the edges alone would take more
