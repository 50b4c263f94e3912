"""Parts: every group belongs to one of them, and their number takes no memory."""

from __future__ import annotations

import itertools

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwrite
from shardwrite.errors import SpecError
from shardwrite.plan.plan import PartCuts, Stretch, check_n_parts, check_part

MANY = 10**12


def edges_of(middles, total, count):
    """Rank of the first group of each part, and the number of groups, one part after the other."""
    starts = total * np.arange(count, dtype=np.float64) / count
    return [*np.searchsorted(middles, starts).tolist(), len(middles)]


@given(
    st.lists(st.integers(0, 50), max_size=12),
    st.integers(1, 40),
    st.sampled_from([0, 1, 17, 1000]),
    st.sampled_from([0, 3, 100_000]),
)
def test_parts_are_those_of_all_edges(sizes, count, before, after):
    sizes = np.array(sizes, dtype=np.float64)
    middles = before + np.cumsum(sizes) - sizes / 2
    total = float(before + sizes.sum() + after)
    cuts, edges = PartCuts(middles, total), edges_of(middles, total, count)
    found = [cuts.groups(k, count) for k in range(count)]
    assert found == list(itertools.starmap(range, itertools.pairwise(edges)))
    wanted = [k for k, groups in enumerate(found) for _ in groups]
    assert cuts.parts(count).tolist() == wanted


@pytest.fixture
def plan():
    return shardwrite.plan(da.zeros((60, 7), chunks=5), shards=(4, 7), chunks=1, memory_limit="9kB")


def test_a_large_number_of_parts_takes_no_memory(plan):
    n = plan.partition.n_groups
    assert n > 1
    assert list(plan.part(0, MANY).groups) == []
    left = np.zeros(n, dtype=np.int64)
    left[[0, n - 1]] = 1
    first, last = plan.parts_with(left, MANY)
    assert list(plan.part(first, MANY).groups) == [0]
    assert list(plan.part(last, MANY).groups) == [n - 1]
    assert plan.part(0, 1).groups == range(n)
    among = Stretch(10 * plan.raw_nbytes, 20 * plan.raw_nbytes)
    (part,) = plan.parts_with(left[:1].repeat(n) * (np.arange(n) == 2), MANY, among)
    assert list(plan.part(part, MANY, among).groups) == [2]


@pytest.mark.parametrize("index", [-1, 3, 1.5, 1.0, True, None, "0", np.array([0, 1]), 2**70])
def test_a_part_that_is_none(plan, index):
    with pytest.raises(SpecError, match=r"^part=.*no such part"):
        plan.part(index, 3)


@pytest.mark.parametrize("count", [0, -1, 2.5, True, None, "3", 2**53 + 1, 10**400])
def test_a_number_of_parts_that_is_none(plan, count):
    with pytest.raises(SpecError, match=r"^part=.*no such part"):
        plan.part(0, count)
    if count is not None:
        with pytest.raises(SpecError, match=r"^n_parts=.*from 1 to 2\*\*53, or None"):
            check_n_parts(count)


def test_numbers_of_numpy(plan):
    assert check_part(np.int32(1), np.uint64(2**53)) == (1, 2**53)
    assert (check_n_parts(np.int16(3)), check_n_parts(None)) == (3, None)
    assert plan.part(np.int8(1), np.int8(3)).groups == plan.part(1, 3).groups
