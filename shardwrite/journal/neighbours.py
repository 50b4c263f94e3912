"""Runs that may be under way on one array at once: updates of regions that share no shard. Others wait for each other."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from shardwrite.errors import JournalError
from shardwrite.journal.begin import facts_of, find_run
from shardwrite.journal.lease import live_holders
from shardwrite.journal.rundir import RunDirectory, discard_drafts, held, remove_empty
from shardwrite.journal.takeover import take_away, take_back
from shardwrite.stores import is_there
from shardwrite.target import Target

__all__ = ["begin_beside", "give_up_streams", "make_way", "neighbours", "unfinished_append"]

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
            take_away(other)
            continue
        holders = live_holders(other.path)
        if holders:
            raise held(other, holders[0])
        if _is_stream(other):
            take_away(other)
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
            take_away(other)


def begin_beside(target: Target, begin: Callable[[], tuple[RunDirectory, bool]]) -> tuple[RunDirectory, bool]:
    """Begin, and look again who else has begun: of two that did so at one moment, none goes on before the other has gone."""
    for attempt in itertools.count():
        directory, is_new = begin()
        try:
            make_way(target, directory.facts, restart=False)
        except JournalError:
            if not is_new:
                raise
            take_back(directory, is_claimed=True)
            if attempt == _MAX_TRIES:
                raise
            time.sleep(random.uniform(0.05, 0.5))  # noqa: S311 (so that one of them is alone)
        else:
            return directory, is_new
    raise AssertionError


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
        if is_there(other.run_path / f"taken-{facts.get('run')}"):
            continue
        if identity.get("append_axis") == axis and identity.get("source") == source:
            region: Sequence[Sequence[int]] = identity["region"]
            return region
    return None
