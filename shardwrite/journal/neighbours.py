"""Runs that may be under way on one array at once: updates of regions that share no shard. Others wait for each other."""

from __future__ import annotations

import itertools
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwrite.errors import JournalError
from shardwrite.grid import Box, ShardGrid
from shardwrite.journal.begin import facts_of, find_run
from shardwrite.journal.lease import live_holders
from shardwrite.journal.receipt import empty_after, read_receipt
from shardwrite.journal.redo import recover_changes
from shardwrite.journal.replay import Replay, replay, shards_of, sweep
from shardwrite.journal.rundir import RunDirectory, discard_drafts, held, remove_empty
from shardwrite.metadata import ArrayMetadata, parse_metadata
from shardwrite.stores import PosixStore, is_there, read_json
from shardwrite.target import Target

__all__ = ["begin_beside", "give_up", "give_up_streams", "make_way", "neighbours", "unfinished_append"]

_MAX_TRIES = 3


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
        if _is_stream(other):
            give_up(other)
            continue
        what = other.facts.get("identity", {}).get("region")
        where = f"an update of the region {what}" if what else "a run"
        shards = f"; {shared} shards are in both" if shared else ""
        raise JournalError(
            f"{where} of {target.path} has not ended{shards}. Run that again to finish it, or give it up with "
            "abandon, or restart=True (--restart): each of its shards is then left as it is, old or new",
            path=str(other.target.run_path),
        )


def _is_stream(run: RunDirectory) -> bool:
    """Whether nobody can run it again."""
    return bool(run.facts.get("identity", {}).get("stream"))


def give_up_streams(target: Target) -> None:
    """Take away what dead writers of streams have left."""
    for other in neighbours(target):
        if _is_stream(other) and not live_holders(other.path):
            give_up(other)


def begin_beside(target: Target, begin: Callable[[], tuple[RunDirectory, bool]]) -> tuple[RunDirectory, bool]:
    """Begin, and look again who else has begun: of two that did so at one moment, none goes on before the other has gone."""
    for attempt in itertools.count():
        directory, is_new = begin()
        try:
            make_way(target, directory.facts, restart=False)
        except JournalError:
            if not is_new:
                raise
            directory.take_back(is_claimed=True)
            if attempt == _MAX_TRIES:
                raise
            time.sleep(random.uniform(0.05, 0.5))  # noqa: S311 (so that one of them is alone)
        else:
            return directory, is_new
    raise AssertionError


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
            there = parse_metadata(json.dumps(read_json(run.target.path / "zarr.json")))
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
    is_known = found.ledger.is_done.reshape(counts).copy()
    is_empty = (found.ledger.nbytes == 0).reshape(counts)
    for index in {index for beginning in found.unended for index in shards_of(beginning, part)}:
        if not is_known[index]:
            is_known[index], is_empty[index] = True, store.version(part.shard_key(index)) is None
    empty = empty_after(receipt, grid, first, is_empty, is_known)
    document = replace(receipt, empty=empty, shape=list(grid.shape))
    run.leave(document, "full", uuid.uuid4().hex)


def _part(run: RunDirectory, first: Sequence[int], counts: Sequence[int]) -> ArrayMetadata:
    """The part of the array that an update touches."""
    metadata = parse_metadata(json.dumps(run.document))
    grid = metadata.grid
    if len(first) != grid.ndim or any(a + k > n for a, k, n in zip(first, counts, grid.counts, strict=True)):
        raise JournalError(
            f"{run.path} holds the metadata of another array; remove {run.target.run_path} after a look", path=str(run.path)
        )
    start = tuple(a * s for a, s in zip(first, grid.shards, strict=True))
    stop = tuple(min((a + k) * s, n) for a, k, s, n in zip(first, counts, grid.shards, grid.shape, strict=True))
    return metadata.part(Box(start, stop))[0]


def _shared(mine: Any, theirs: Any) -> int | None:
    """Shards that are in both of two windows; None where one of them is the whole array, or of an array with other axes."""
    if mine is None or theirs is None or len(mine[0]) != len(theirs[0]):
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
        if is_there(other.run_path / f"taken-{facts.get('run')}"):
            continue
        if identity.get("append_axis") == axis and identity.get("source") == source:
            region: Sequence[Sequence[int]] = identity["region"]
            return region
    return None
