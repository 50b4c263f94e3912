"""Boxes and grids against enumeration of cells."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwrite.grid import Box, ShardGrid, boundaries, ceil_div, ravel, unravel


def cells(box):
    return set(itertools.product(*(range(a, b) for a, b in box.bounds)))


@st.composite
def grids(draw, max_ndim=3):
    ndim = draw(st.integers(0, max_ndim))
    shape = tuple(draw(st.integers(0, 13)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    shards = tuple(c * draw(st.integers(1, 3)) for c in chunks)
    return ShardGrid(shape, shards, chunks)


@st.composite
def boxes_in(draw, ndim, low=-3, high=9):
    start = tuple(draw(st.integers(low, high)) for _ in range(ndim))
    stop = tuple(draw(st.integers(low, high)) for _ in range(ndim))
    return Box(start, stop)


@given(st.integers(-(10**40), 10**40), st.integers(1, 10**30))
def test_ceil_div_is_the_smallest_integer_not_below(a, b):
    q = ceil_div(a, b)
    assert (q - 1) * b < a <= q * b


@given(
    st.lists(st.integers(1, 10**20), max_size=5).flatmap(
        lambda s: st.tuples(st.just(s), st.tuples(*(st.integers(0, n - 1) for n in s)))
    )
)
def test_ravel_and_unravel_are_inverse_and_exact_for_big_shapes(case):
    shape, index = case
    rank = ravel(index, shape)
    assert 0 <= rank < math.prod(shape)
    assert unravel(rank, shape) == tuple(index)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 1, 5), (2, 3, 2, 2)])
def test_ravel_counts_row_major(shape):
    indices = list(itertools.product(*map(range, shape)))
    assert [ravel(i, shape) for i in indices] == list(range(math.prod(shape)))
    assert [unravel(r, shape) for r in range(math.prod(shape))] == indices


def test_ravel_refuses_a_wrong_rank():
    with pytest.raises(ValueError, match="argument"):
        ravel((1, 2), (3,))


@given(st.lists(st.integers(0, 10**18), max_size=8))
def test_boundaries_are_cumulative(sizes):
    assert boundaries(sizes) == [sum(sizes[:k]) for k in range(len(sizes) + 1)]


def test_box_refuses_corners_of_different_rank():
    with pytest.raises(ValueError, match="rank"):
        Box((0,), (1, 2))


@given(
    st.integers(0, 3).flatmap(
        lambda n: st.tuples(boxes_in(n), boxes_in(n), st.tuples(*[st.integers(-5, 5)] * n))
    )
)
def test_box_arithmetic_equals_sets_of_cells(case):
    a, b, origin = case
    assert a.size == len(cells(a))
    assert a.intersect(b).size == len(cells(a) & cells(b))
    assert cells(a.intersect(b)) == cells(a) & cells(b)
    assert cells(a.shift(origin)) == {
        tuple(i - o for i, o in zip(c, origin, strict=True)) for c in cells(a)
    }
    assert a.shift(origin).shape == a.shape
    if a.size and b.size:
        assert a.contains(b) == (cells(b) <= cells(a))
    assert a.slices == (*(slice(*pair) for pair in a.bounds), ...)


def test_box_of_no_axes_has_one_element():
    box = Box((), ())
    assert box.size == 1
    assert box.shape == box.bounds == ()
    assert box.slices == (...,)
    assert box.intersect(box) == box
    assert box.contains(box)


@given(grids())
def test_grid_counts_equal_enumeration(grid):
    whole = cells(grid.whole)
    shards = {tuple(i // s for i, s in zip(c, grid.shards, strict=True)) for c in whole}
    inner = {tuple(i // s for i, s in zip(c, grid.chunks, strict=True)) for c in whole}
    assert grid.n_shards == len(shards)
    assert grid.n_inner_chunks == len(inner)
    assert set(grid.shards_in(grid.whole)) == shards
    volume = sum(grid.shard_box(i).size for i in shards)
    assert grid.overhang_fraction == pytest.approx(1 - len(whole) / volume if volume else 0.0)
    assert grid.n_chunks_per_shard == math.prod(grid.shards) // math.prod(grid.chunks)
    assert grid.chunks_per_shard == grid.chunk_counts_in(Box((0,) * grid.ndim, grid.shards))


@given(grids())
def test_shard_boxes_tile_the_array(grid):
    seen = [
        c
        for i in grid.shards_in(grid.whole)
        for c in cells(grid.shard_box(i).intersect(grid.whole))
    ]
    assert len(seen) == len(set(seen)) == grid.whole.size
    assert set(seen) == cells(grid.whole)


@given(grids(2).flatmap(lambda g: st.tuples(st.just(g), boxes_in(g.ndim, 0, 13))))
def test_shards_in_region_equal_brute_force_in_row_major_order(case):
    grid, region = case
    touched = sorted(
        {tuple(i // s for i, s in zip(c, grid.shards, strict=True)) for c in cells(region)}
    )
    assert list(grid.shards_in(region)) == touched


@given(
    grids(2).flatmap(
        lambda g: st.tuples(st.just(g), boxes_in(g.ndim, 0, 5), boxes_in(g.ndim, 0, 13))
    )
)
def test_chunk_counts_equal_brute_force(case):
    grid, corner, far = case
    start = tuple(i * c for i, c in zip(corner.start, grid.chunks, strict=True))
    box = Box(start, tuple(max(a + 1, b) for a, b in zip(start, far.stop, strict=True)))
    touched = {tuple(i // s for i, s in zip(c, grid.chunks, strict=True)) for c in cells(box)}
    assert math.prod(grid.chunk_counts_in(box)) == len(touched)


@pytest.mark.parametrize(
    ("shape", "shards", "chunks"),
    [
        ((4,), (4, 4), (2, 2)),
        ((4, 4), (4, 4), (2,)),
        ((4,), (3,), (2,)),
        ((4,), (0,), (1,)),
        ((4,), (4,), (0,)),
        ((4,), (-2,), (-1,)),
    ],
)
def test_grid_refuses_what_does_not_fit(shape, shards, chunks):
    with pytest.raises(ValueError, match=r"differ|multiples"):
        ShardGrid(shape, shards, chunks)


def test_grid_of_the_proposal_and_of_no_axes():
    grid = ShardGrid((25000, 18000, 6000), (2048,) * 3, (64,) * 3)
    assert grid.counts == (13, 9, 3)
    assert grid.n_chunks_per_shard == 32**3
    assert grid.n_inner_chunks == 391 * 282 * 94
    scalar = ShardGrid((), (), ())
    assert scalar.n_shards == scalar.n_chunks_per_shard == scalar.n_inner_chunks == 1
    assert list(scalar.shards_in(scalar.whole)) == [()]


def test_grid_larger_than_64_bits_is_exact():
    grid = ShardGrid((10**25, 3), (10**3, 3), (10, 3))
    assert grid.n_shards == 10**22
    assert list(grid.shards_in(Box((10**25 - 1, 0), (10**25, 1)))) == [(10**22 - 1, 0)]
