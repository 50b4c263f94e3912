"""Write strategies: one contract for all of them, and what each promises beyond it."""

import copy
import itertools
import math
import pickle
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwrite.errors import SpecError
from shardwrite.format.order import ORDER_ALIASES, Stored, permutation, place
from shardwrite.format.strategies import AppendOnly, FixedOrder, as_strategy

STRATEGIES = [FixedOrder("C"), FixedOrder("F"), FixedOrder("morton"), AppendOnly()]
GRIDS = [(), (1,), (7,), (3, 4), (5, 2), (4, 4, 4), (2, 3, 2, 2)]


def cut(grid, step):
    """Ranks of the inner chunks in each box of `step`, as units of a shard in the plan's order."""
    ranks = np.arange(math.prod(grid), dtype=np.int64).reshape(grid)
    starts = itertools.product(*(range(0, n, step) for n in grid))
    return [ranks[tuple(slice(a, a + step) for a in corner)].ravel() for corner in starts]


def check_placement(nbytes, placement, base):
    """The chunks that hold data tile ``[base, base + data_nbytes)``: no gap, no overlap, none left
    out."""
    present = [rank for rank, n in enumerate(nbytes) if n >= 0]
    assert sorted(placement.sequence.tolist()) == present
    assert placement.data_nbytes == sum(int(nbytes[rank]) for rank in present)
    at = base
    for rank in placement.sequence.tolist():
        assert placement.offsets[rank] == at
        at += int(nbytes[rank])
    assert at == base + placement.data_nbytes


def check_strategy(strategy):
    """What every strategy must do; for use with strategies made elsewhere as well."""
    assert isinstance(strategy.label, str)
    assert strategy.label
    assert strategy.streaming_order in ("C", "F", "morton")
    again = pickle.loads(pickle.dumps(strategy))
    assert again == strategy
    assert hash(again) == hash(strategy)
    assert again.label == strategy.label
    assert copy.deepcopy(strategy) == strategy
    rng = np.random.default_rng(1)
    for grid in GRIDS:
        n = math.prod(grid)
        for step in (1, 2, 10):
            units = cut(grid, step)
            sequence = strategy.sequence(grid, units)
            assert sequence.dtype == np.int64
            assert sorted(sequence.tolist()) == list(range(n)), "sequence is no permutation"
            assert np.array_equal(sequence, again.sequence(grid, units)), (
                "must be a function of its arguments"
            )
            nbytes = rng.integers(-1, 50, n)
            for base in (0, 16 * n + 4):
                check_placement(nbytes, place(nbytes, sequence, base), base)
        whole = strategy.sequence(grid, [permutation(grid, "C")])
        assert np.array_equal(whole, permutation(grid, strategy.streaming_order)), (
            "a shard in one unit is streamed"
        )


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.label)
def test_contract(strategy):
    check_strategy(strategy)


class Forgetful(AppendOnly):
    __slots__ = ()

    def sequence(self, chunks_per_shard, units):
        return super().sequence(chunks_per_shard, units)[:-1]


class Wasteful(FixedOrder):
    __slots__ = ()

    def sequence(self, chunks_per_shard, units):
        ranks = super().sequence(chunks_per_shard, units)
        return np.concatenate([ranks, ranks])


@pytest.mark.parametrize("strategy", [Forgetful(), Wasteful()], ids=["forgetful", "wasteful"])
def test_contract_can_fail(strategy):
    with pytest.raises(AssertionError, match="sequence"):
        check_strategy(strategy)


@pytest.mark.parametrize("strategy", STRATEGIES[:3], ids=lambda s: s.label)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_fixed_order_does_not_depend_on_units(strategy, grid):
    expected = permutation(grid, strategy.order)
    for units in ([], cut(grid, 1), cut(grid, 2), cut(grid, 2)[::-1]):
        assert np.array_equal(strategy.sequence(grid, units), expected)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_append_only_follows_the_units(grid):
    units = cut(grid, 2)
    for given_units in (units, units[::-1]):
        expected = [rank for unit in given_units for rank in unit.tolist()]
        assert AppendOnly().sequence(grid, given_units).tolist() == expected
    assert AppendOnly().sequence(grid, []).tolist() == []


@pytest.mark.long
@settings(max_examples=200)
@given(
    st.lists(st.integers(-1, 2**40), max_size=40),
    st.integers(0, 2**40),
    st.randoms(use_true_random=False),
)
def test_placements_tile_the_data_region(sizes, base, random):
    nbytes = np.array(sizes, dtype=np.int64)
    sequence = list(range(len(sizes)))
    random.shuffle(sequence)
    placement = place(nbytes, np.array(sequence, dtype=np.int64), base)
    check_placement(sizes, placement, base)
    wanted = [rank for rank in sequence if sizes[rank] >= 0]
    assert placement.sequence.tolist() == wanted


def stored(sizes, generator, *, is_checked=True):
    """A shard of inner chunks in some sequence, and its layout."""
    nbytes, sequence = np.array(sizes, dtype=np.int64), list(range(len(sizes)))
    generator.shuffle(sequence)
    placement = place(nbytes, np.array(sequence, dtype=np.int64), 0)
    offsets = np.where(nbytes >= 0, placement.offsets, -1)
    return Stored(
        offsets,
        nbytes,
        placement.data_nbytes + 20,
        (placement.data_nbytes, placement.data_nbytes + 20),
        is_checked,
    )


SMALL = st.lists(st.sampled_from([-1, 1, 2, 3, 4]), min_size=12, max_size=12)


@pytest.mark.long
@settings(max_examples=300)
@given(SMALL, SMALL, st.sampled_from([0, 7]), st.randoms(use_true_random=False))
def test_no_chunk_begins_where_another_began_in_the_shard_that_is_replaced(
    before, after, base, generator
):
    old, nbytes, sequence = (
        stored(before, generator),
        np.array(after, dtype=np.int64),
        np.array(generator.sample(range(12), 12)),
    )
    placement = place(nbytes, sequence, base, old)
    plain = place(nbytes, sequence, base)
    assert placement.sequence.tolist() == plain.sequence.tolist()
    end = base
    for rank in placement.sequence.tolist():
        offset = int(placement.offsets[rank])
        forbidden = set(old.offsets.tolist()) - {int(old.offsets[rank])}
        assert offset not in forbidden
        assert all(between in forbidden for between in range(end, offset)), (
            "free bytes only where they are needed"
        )
        end = offset + after[rank]
    assert placement.data_nbytes == max(end - base, 0)


def test_chunks_that_nobody_can_tell_apart_stay_aligned():
    sizes, sequence = [64] * 6, np.arange(6)
    old = stored(sizes, random.Random(1), is_checked=False)
    assert place(np.array([-1, *sizes[1:]]), sequence, 0, old).data_nbytes == 5 * 64
    checked = stored(sizes, random.Random(1))
    assert place(np.array([-1, *sizes[1:]]), sequence, 0, checked).data_nbytes > 5 * 64


def test_placement_of_a_shard_without_data():
    placement = place(np.array([-1, -1], np.int64), np.array([1, 0], np.int64), 36)
    assert placement.data_nbytes == 0
    assert len(placement.sequence) == 0
    zero = place(np.array([0, -1, 0], np.int64), np.array([2, 1, 0], np.int64), 7)
    assert zero.sequence.tolist() == [2, 0]
    assert zero.data_nbytes == 0
    assert zero.offsets[[0, 2]].tolist() == [7, 7]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("fixed-order", FixedOrder("C")),
        ("append-only", AppendOnly()),
        ("C", FixedOrder("C")),
        ("F", FixedOrder("F")),
        ("morton", FixedOrder("morton")),
        ("lexicographic", FixedOrder("C")),
        ("colexicographic", FixedOrder("F")),
        ("unordered", FixedOrder("C")),
        (FixedOrder("F"), FixedOrder("F")),
        (AppendOnly(), AppendOnly()),
    ],
    ids=str,
)
def test_names_and_aliases(value, expected):
    assert as_strategy(value) == expected


@pytest.mark.parametrize("name", sorted(ORDER_ALIASES))
def test_fixed_order_keeps_the_canonical_name(name):
    strategy = FixedOrder(name)
    assert strategy.order == ORDER_ALIASES[name]
    assert strategy == FixedOrder(strategy.order)
    assert strategy.label == f"fixed-order ({strategy.order})"


NO_STRATEGIES = ["hilbert", "", None, 3, FixedOrder, AppendOnly, ["C"], object()]


@pytest.mark.parametrize("value", NO_STRATEGIES, ids=lambda v: f"{type(v).__name__} {v}"[:12])
def test_unknown_strategy_is_refused(value):
    with pytest.raises(SpecError) as caught:
        as_strategy(value)
    assert caught.value.field == "strategy"
    assert caught.value.value is value
    for name in ("append-only", "fixed-order", "morton"):
        assert name in caught.value.remedy


def test_unknown_order_is_refused():
    with pytest.raises(SpecError) as caught:
        FixedOrder("hilbert")
    assert caught.value.field == "order"
