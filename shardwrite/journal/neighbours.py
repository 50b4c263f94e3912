"""Runs that may be under way on one array at once: updates of regions that share no shard. Others wait for each other."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwrite.errors import JournalError, UntrustedStateError
from shardwrite.journal.begin import facts_of, find_run, look_at_run, tidied_run
from shardwrite.journal.lease import live_holders
from shardwrite.journal.rundir import RunDirectory, discard_drafts, held, remove_empty
from shardwrite.journal.takeover import take_away, take_back
from shardwrite.journal.trust import require_trusted
from shardwrite.stores import is_there
from shardwrite.target import Target

__all__ = [
    "Beside",
    "begin_beside",
    "give_up",
    "give_up_passing",
    "look_beside",
    "make_way",
    "neighbours",
    "tidied_neighbours",
    "tidy",
    "unfinished",
    "unfinished_append",
]

_MAX_TRIES = 3


def neighbours(target: Target) -> Iterator[RunDirectory]:
    """Other runs on the same array that were begun and have not ended; a look, which changes nothing."""
    require_trusted(target)
    for other in target.others:
        found = find_run(other)
        if found is not None:
            yield found


def tidied_neighbours(target: Target) -> Iterator[RunDirectory]:
    """The same for writers, who first remove what the dead have left of runs that did not begin or had ended."""
    tidy(target)
    return neighbours(target)


def tidy(target: Target) -> None:
    """Finish the removals beside an array that were interrupted, and remove what dead processes have left there."""
    require_trusted(target)
    whole = replace(target, update="")
    for place in (whole, *whole.others):
        tidied_run(place)
        discard_drafts(place)
        remove_empty(place)


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands beside an array, as far as a look may believe it.

    Attributes
    ----------
    run : RunDirectory or None
        The run that has not ended.
    updates : tuple of RunDirectory
        Updates that have not ended.
    warnings : tuple of str
        What a reader should know: removals that were interrupted, and what is not trusted.
    untrusted : UntrustedStateError or None
        Why nothing of it is believed.
    """

    run: RunDirectory | None = None
    updates: tuple[RunDirectory, ...] = ()
    warnings: tuple[str, ...] = ()
    untrusted: UntrustedStateError | None = None


def look_beside(target: Target) -> Beside:
    """What stands beside an array; nothing is changed, and what is not trusted is told and not followed."""
    try:
        seen = require_trusted(target)
        looks = [look_at_run(each, seen) for each in (target, *target.others)]
        whole, *others = [run for run, _ in looks]
        updates = tuple(run for run in others if run is not None)
        return Beside(whole, updates, tuple(removal for _, removal in looks if removal))
    except UntrustedStateError as error:
        return Beside(warnings=(error.message,), untrusted=error)


def make_way(target: Target, facts: Mapping[str, Any], *, restart: bool) -> None:
    """Refuse to go on beside a run that writes some of the same shards.

    Parameters
    ----------
    target : Target
        Of this run.
    facts : mapping
        Its plan; ``shards_from`` says which shards it touches.
    restart : bool
        Give up updates of the dead that are in the way. A run that makes the array is never given up in passing.

    Raises
    ------
    JournalError
        Naming the other run, and who is at it.
    """
    for other in tidied_neighbours(target):
        shared = _shared(facts.get("shards_from"), other.facts.get("shards_from"))
        if shared == 0:
            continue
        if restart and not other.makes_array:
            give_up(other)
            continue
        holders = live_holders(other.path)
        if holders:
            raise held(other, holders[0])
        if _is_passing(other):
            give_up(other)
            continue
        raise unfinished(other, shared, is_replaced=facts.get("mode") != "r+")


def unfinished(
    run: RunDirectory, shared: int | None = None, *, is_replaced: bool = False
) -> JournalError:
    """The error that names a run which nobody works on, and says how it is finished or given up.

    Parameters
    ----------
    run : RunDirectory
        The run that is in the way.
    shared : int, optional
        Number of shards that the other run writes, too.
    is_replaced : bool
        Whether the other run replaces the array.
    """
    path = run.target.path
    if run.makes_array:
        return JournalError(
            f"the run that makes {path} has not ended. Make the same call again to finish it (shardwrite finalize, if "
            "all of its parts are written); abandon, and restart=True of an update, leave it alone. Only a write of "
            "the whole array with restart=True (--restart) takes its shards away and starts over",
            path=str(run.target.run_path),
        )
    shards = f"; {shared} shards are in both" if shared else ""
    if is_replaced:
        outcome = (
            "Replacing the array takes its shards away: give restart=True (--restart) to do so"
        )
    else:
        outcome = "An update with restart=True (--restart) gives it up, too"
    return JournalError(
        f"{_kind(run)} of {path} has not ended{shards}. Run that again to finish it, or give it up with abandon (shardwrite "
        f"abandon): each of its shards is then left as it is, old or new. {outcome}",
        path=str(run.target.run_path),
    )


def _kind(run: RunDirectory) -> str:
    region = run.facts.get("identity", {}).get("region")
    if run.target.update == "compaction":
        return "a compaction"
    return f"an update of the region {region}" if region else "a repair"


def _is_passing(run: RunDirectory) -> bool:
    """Whether nobody can go on with a run. The slices of a stream are gone, and a salvage always looks for torn shards anew."""
    identity = run.facts.get("identity", {})
    return bool(identity.get("stream") or identity.get("salvage"))


def give_up_passing(target: Target) -> None:
    """Take away the runs of streams and of salvages whose processes are dead."""
    for other in tidied_neighbours(target):
        if _is_passing(other) and not live_holders(other.path):
            give_up(other)


def begin_beside(
    target: Target, begin: Callable[[], tuple[RunDirectory, bool]]
) -> tuple[RunDirectory, bool]:
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


def give_up(run: RunDirectory) -> None:
    """Take an update or a repair of the dead away; its shards stay, but for those beyond an array that did not come to grow.

    Raises
    ------
    JournalError
        If a process works on it, or if it makes the array.
    """
    if run.makes_array:  # which goes with nothing but a write of the whole array
        holders = live_holders(run.path)
        raise held(run, holders[0]) if holders else unfinished(run)
    take_away(run)


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
