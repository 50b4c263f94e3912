"""Runs that may be under way on one array at once: updates of regions that share no shard. Others wait for each other."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardwrite.errors import JournalError
from shardwrite.grid import Box, ShardGrid, ravel
from shardwrite.journal.begin import facts_of, find_run
from shardwrite.journal.lease import live_holders
from shardwrite.journal.receipt import empty_after, read_receipt
from shardwrite.journal.redo import recover_changes
from shardwrite.journal.replay import Replay, replay, shards_of, sweep
from shardwrite.journal.rundir import RunDirectory, discard_drafts, held, remove_empty
from shardwrite.metadata import ArrayMetadata
from shardwrite.stores import PosixStore
from shardwrite.target import Target

__all__ = ["give_up", "make_way", "neighbours", "unfinished_append"]


def neighbours(target: Target) -> Iterator[RunDirectory]:
    """Other runs on the same array that were begun and have not ended."""
    for other in target.others:
        found = find_run(other)
        if found is not None:
            yield found
        elif other.update:
            discard_drafts(other)
    remove_empty(target)


def make_way(target: Target, facts: Mapping[str, Any], *, restart: bool) -> None:
    """Refuse to go on beside a run that writes some of the same shards.

    Parameters
    ----------
    target : Target
        Of this run.
    facts : mapping
        Its plan; ``shards_from`` says which shards it touches.
    restart : bool
        Take away runs of the dead that are in the way.

    Raises
    ------
    JournalError
        Naming the other run, and who is at it.
    """
    for other in neighbours(target):
        shared = _shared(facts.get("shards_from"), other.facts.get("shards_from"))
        if shared == 0:
            continue
        if restart:
            give_up(other)
            continue
        holders = live_holders(other.path)
        if holders:
            raise held(other, holders[0])
        what = other.facts.get("identity", {}).get("region")
        where = f"an update of the region {what}" if what else "a run"
        shards = f"; {shared} shards are in both" if shared else ""
        raise JournalError(
            f"{where} of {target.path} has not ended{shards}. Run that again to finish it, or give it up with "
            "abandon, or restart=True (--restart): each of its shards is then left as it is, old or new",
            path=str(other.target.run_path),
        )


def give_up(run: RunDirectory) -> None:
    """Take a run of the dead away; of an update, the shards stay, but for those beyond an array that did not come to grow.

    Raises
    ------
    JournalError
        If a process works on it.
    """
    holders = live_holders(run.path)
    if holders:
        raise held(run, holders[0])
    window = run.facts.get("shards_from")
    if window is not None:
        first, counts = window
        part = _part(run, first, counts)
        store = PosixStore(run.target.path)
        with run.ending():  # nobody else changes the shape meanwhile
            recover_changes(run.path, store)
            found = replay(run, part)
            sweep(run, part, found, may_list=True)
            there = ArrayMetadata((run.target.path / "zarr.json").read_text())
            _remove_outside(part, store, there.grid)
            _tell_receipt(run, part, store, found, there.grid)
    run.start_over()


def _remove_outside(part: ArrayMetadata, store: PosixStore, grid: ShardGrid) -> None:
    """Remove shards that an append has written beyond an array that did not come to grow."""
    first, _ = part.window or ((), ())
    with store.transaction("none", uuid.uuid4().hex) as transaction:
        for index in part.grid.shards_in(part.grid.whole):
            if any(i + f >= n for i, f, n in zip(index, first, grid.counts, strict=True)):
                transaction.remove(part.shard_key(index))


def _tell_receipt(run: RunDirectory, part: ArrayMetadata, store: PosixStore, found: Replay, grid: ShardGrid) -> None:
    """Have the receipt know which of the shards that the update came to are empty."""
    receipt = read_receipt(run.target)
    if receipt is None or receipt.empty is None:
        return
    first, _ = part.window or ((), ())
    counts = part.grid.counts
    known = np.zeros(grid.n_shards, dtype=bool)
    known[receipt.empty_ranks(grid.n_shards)] = True
    inside = tuple(slice(a, min(a + n, m)) for a, n, m in zip(first, counts, grid.counts, strict=True))
    is_empty = known.reshape(grid.counts)[inside].copy()
    at_risk = {index for beginning in found.unended for index in shards_of(beginning, part)}
    for index in np.ndindex(is_empty.shape):
        if found.ledger.is_done[ravel(index, counts)]:
            is_empty[index] = found.ledger.nbytes[ravel(index, counts)] == 0
        elif index in at_risk:
            is_empty[index] = store.version(part.shard_key(index)) is None
    document = replace(receipt, empty=empty_after(receipt, grid, first, is_empty))
    run.leave(document, "full", uuid.uuid4().hex)


def _part(run: RunDirectory, first: Sequence[int], counts: Sequence[int]) -> ArrayMetadata:
    """The part of the array that an update touches."""
    metadata = ArrayMetadata(json.dumps(run.document))
    grid = metadata.grid
    start = tuple(a * s for a, s in zip(first, grid.shards, strict=True))
    stop = tuple(min((a + k) * s, n) for a, k, s, n in zip(first, counts, grid.shards, grid.shape, strict=True))
    return metadata.part(Box(start, stop))[0]


def _shared(mine: Any, theirs: Any) -> int | None:
    """Shards that are in both of two windows; None where one of them is the whole array."""
    if mine is None or theirs is None:
        return None
    n = 1
    for a, k, b, m in zip(*mine, *theirs, strict=True):
        n *= max(0, min(a + k, b + m) - max(a, b))
    return n


def unfinished_append(target: Target, source: str, axis: int) -> Sequence[Sequence[int]] | None:
    """The region of an update that was to append the same source along an axis, and has not ended, or was interrupted in that."""
    for other in target.others:
        facts = facts_of(other) if other.update else {}
        identity = facts.get("identity", {})
        if (other.run_path / f"taken-{facts.get('run')}").exists():
            continue
        if identity.get("append_axis") == axis and identity.get("source") == source:
            region: Sequence[Sequence[int]] = identity["region"]
            return region
    return None
