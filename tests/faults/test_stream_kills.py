"""Fault family 10 for streams: killed before any effect, what was flushed is there, and the next
writer goes on."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter

sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams
from helpers import Killed, scratch
from test_updates_machine import killed_at

WHOLE = oracle.values((11, 6, 8), 1)
BEGUN = 3
CASES = [
    (AppendOnly(), "end", True),
    (AppendOnly(), "start", False),
    (AppendOnly(in_place=True), "end", True),
    (AppendOnly(in_place=True), "start", True),
    (FixedOrder(in_place=True, max_unused=1.0), "end", False),
    (FixedOrder(in_place=True, max_unused=1.0), "start", False),
    (FixedOrder("F"), "end", True),
]
QUICK = [CASES[2]]


def stream(path, strategy, first):
    """Slices from `first` on, of inner chunks that are two deep, with flushes between them; yields
    how many are flushed."""
    with ShardWriter(path, strategy=strategy, durability="none", n_threads=1) as writer:
        for t in range(first, len(WHOLE)):
            writer.append(WHOLE[t])
            if t % 3 == 1:
                writer.flush()
                yield t + 1
    yield len(WHOLE)


def check(path, n_flushed):
    """What was flushed is there; of the others each inner chunk's depth is there or is empty."""
    found = oracle.read_everywhere(path, oracle.metadata_of(path))
    for seen in found.values():
        assert len(seen) >= n_flushed
        np.testing.assert_array_equal(seen[:n_flushed], WHOLE[:n_flushed])
        for t in range(n_flushed, len(seen)):
            chunks = (
                seen[t].reshape(3, 2, 2, 4).swapaxes(1, 2),
                WHOLE[t].reshape(3, 2, 2, 4).swapaxes(1, 2),
            )
            assert (
                (chunks[0] == chunks[1]).all(axis=(2, 3)) | (chunks[0] == 0).all(axis=(2, 3))
            ).all()
    assert shardwrite.verify(path, deep=True).is_good
    oracle.check_tidy(path)


@pytest.mark.parametrize(
    ("strategy", "location", "compressed", "first", "every"),
    [
        *(
            pytest.param(*case, 1, 9, id=f"{case[0]}-{case[1]}-{case[2]}, every ninth")
            for case in QUICK
        ),
        *(
            pytest.param(
                *case,
                1 + number % 3,
                3,
                marks=pytest.mark.long,
                id=f"{case[0]}-{case[1]}-{case[2]}",
            )
            for number, case in enumerate(CASES)
        ),
    ],
)
@seams.stale_at_once()  # also what a kill left
def test_killed_at_a_step(strategy, location, compressed, first, every):
    top = scratch("streams-")
    layout = {} if compressed else {"compressors": None}
    shards, chunks = (4, 6, 8), (2, 2, 4)
    made = da.from_array(WHOLE[:BEGUN], chunks=4)
    made.to_sharded_zarr(
        top / "made",
        shards=shards,
        chunks=chunks,
        index_location=location,
        durability="none",
        **layout,
    )
    n_kills, n_seen = 0, set()
    for at in range(first, 2000, every):
        home = top / str(at)
        shutil.copytree(top / "made", home / "x")
        n_flushed = BEGUN
        try:
            with killed_at(at):
                for n_flushed in stream(home / "x", strategy, BEGUN):  # noqa: B007 (the last one counts)
                    pass
        except Killed:
            n_kills += 1
            n_seen.add(n_flushed)
            shutil.copytree(home, home / "given-up")
            shardwrite.abandon(home / "given-up" / "x")
            check(home / "given-up" / "x", n_flushed)
            first = shardwrite.open_sharded(home / "x").shape[0]
            assert list(stream(home / "x", strategy, first))[-1] == len(WHOLE)
            check(home / "x", len(WHOLE))
            shutil.rmtree(home)
        else:
            break
    assert n_kills > 100 // every
    assert {BEGUN, 5, 8, 11} >= n_seen >= {BEGUN, 5, 8}
    check(home / "x", len(WHOLE))
    shutil.rmtree(top)
