"""Shards that were inspected, compared with what was noted of them, against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from shardwrite.grid import ShardGrid
from shardwrite.journal.ledger import Ledger
from shardwrite.read.inspection import ShardTable

N = 200


def tables(seed, *, has_crcs):
    """What was noted of all shards, and what was found of half of them."""
    draw = np.random.default_rng(seed)
    nbytes, crcs = draw.integers(-2, 3, N), draw.integers(0, 2, N).astype(np.uint32)
    table = ShardTable.empty(np.sort(draw.choice(N, N // 2, replace=False)))
    table.is_present[:] = draw.random(N // 2) < 0.8
    for row, rank in enumerate(table.ranks.tolist()):
        if not table.is_present[row]:
            continue
        if draw.random() < 0.2:
            table.problems.append((rank, "bad"))
        else:
            is_same = draw.random() < 0.5
            table.columns[0, row] = max(1, nbytes[rank] if is_same else draw.integers(1, 3))
            table.columns[4, row] = crcs[rank] if is_same else draw.integers(0, 2)
    return table, nbytes, crcs if has_crcs else None


@pytest.mark.parametrize("has_crcs", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_each_shard_is_missing_changed_bad_or_as_noted(seed, has_crcs):
    table, nbytes, crcs = tables(seed, has_crcs=has_crcs)
    missing, changed, bad = [], [], [rank for rank, _ in table.problems]
    for row, rank in enumerate(table.ranks.tolist()):
        noted, now = int(nbytes[rank]), int(table.stored_nbytes[row])
        if not table.is_present[row]:
            missing += [rank] if noted in (-1, 1, 2) else []
        elif rank not in bad and noted >= 0:
            is_other_index = has_crcs and int(table.index_crcs[row]) != int(crcs[rank])
            changed += [rank] if now != noted or is_other_index else []
    found = table.against(nbytes, crcs)
    assert [ranks.tolist() for ranks in found] == [missing, changed, bad]
    assert found.all.tolist() == sorted([*missing, *changed, *bad])
    assert len(missing) > 3
    assert len(changed) > 3
    assert len(bad) > 3


def test_sizes_alone():
    table = ShardTable.of_sizes(np.array([1, 2, 4]), np.array([-1, 7, 5]))
    missing, changed, bad = table.against(np.array([0, 3, 7, 9, 6]))
    assert [missing.tolist(), changed.tolist(), bad.tolist()] == [[1], [4], []]


def test_a_ledger_of_a_table_differs_from_it_in_nothing():
    table, _, _ = tables(3, has_crcs=True)
    ledger = Ledger.of(ShardGrid((N,), (1,), (1,)), table)
    ledger.forget(table.bad)
    assert ledger.n_done == N // 2 - len(table.bad)
    missing, changed, bad = table.against(ledger.nbytes, ledger.index_crcs)
    assert len(missing) == len(changed) == 0
    assert bad.tolist() == table.bad
    there = table.ranks[table.is_present]
    assert len(ledger.gone(there)) == 0
    assert ledger.gone(there[1:]).tolist() == [r for r in [there[0]] if ledger.nbytes[r]]
