"""Neighbouring runs on one array, and the rules by which they give way to each other.

Updates of regions that share no shard may be in progress at the same time. Otherwise, a run is
refused until the other one has ended or was given up.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document
from shardwrite.errors import JournalError, RunEndedError, StoreError, UntrustedStateError
from shardwrite.format.node import layout_in
from shardwrite.journal.begin import (
    Request,
    begin_runs,
    begun_with,
    differences,
    find_run,
    has_lost_array,
    look_at_run,
    record_of,
    tidied_run,
)
from shardwrite.journal.lease import live_holders
from shardwrite.journal.plan_record import Intent, new_name
from shardwrite.journal.rundir import (
    RunDirectory,
    discard_drafts,
    held,
    remove_around,
    remove_empty,
)
from shardwrite.journal.takeover import (
    TAKEN,
    cancel_begin,
    cancel_unused,
    discard_run,
    refuse_consuming,
)
from shardwrite.journal.trust import is_private, require_trusted
from shardwrite.place.directory import Directory, run_in
from shardwrite.place.target import UPDATES, Target
from shardwrite.plan.identity import Identity, ShardWindow
from shardwrite.stores.looking import as_store_error, is_there

_MAX_TRIES = 3


def neighbours(target: Target, seen: Collection[Path] | None = None) -> Iterator[RunDirectory]:
    """Other runs on the same array that have not ended.

    Nothing on disk is changed.

    - `seen`: what was there at an earlier look, as `require_trusted` returns it; by default, this
      looks now.
    - Raises UntrustedStateError if the run state beside the array is not trusted.
    """
    seen = require_trusted(target) if seen is None else seen
    for other in target.others_among(seen):
        found = find_run(other, seen)
        if found is not None:
            yield found


def tidied_neighbours(target: Target) -> Iterator[RunDirectory]:
    """Other runs on the same array that have not ended, after `tidy`.

    It is for writers, because it changes what lies beside the array. It raises what `neighbours`
    does.
    """
    seen, own = require_trusted(target), target.run_path / "plan.json"
    if target.update and own in seen and all(p == own or p in own.parents for p in seen):
        return iter(())  # nothing but the plan of this update
    return neighbours(target, tidy(target, seen))


def tidy(target: Target, seen: frozenset[Path] | None = None) -> frozenset[Path]:
    """Remove the remains of dead processes beside an array.

    Removals of runs that were interrupted are finished, and drafts of runs that never began are
    removed.

    - `seen`: what is there, as `require_trusted` returns it; by default, this looks now.
    - Returns: what was there before.
    """
    seen = require_trusted(target) if seen is None else seen
    if not is_there(target.beside):
        remove_around(target)  # where a process died before it did so
        return seen
    whole = replace(target, update="")
    for place in (whole, *whole.others_among(seen)):
        with as_store_error(str(place.run_path), "cannot remove what is left in"):
            tidied_run(place, seen)
            discard_drafts(place)
            remove_empty(place)
    return seen


@dataclass(frozen=True, slots=True)
class Beside:
    """Runs beside an array, as a command that only reads sees them."""

    run: RunDirectory | None = None  # the run on the target itself, if it has not ended
    # Other runs on the array that have not ended: updates of it, where the target is the array as a
    # whole
    updates: tuple[RunDirectory, ...] = ()
    # Messages for a reader, about removals that were interrupted and about state that is not
    # trusted
    warnings: tuple[str, ...] = ()
    # The error that says why the state beside the array is not trusted. The runs above are then not
    # given.
    untrusted: UntrustedStateError | None = None


def look_beside(target: Target) -> Beside:
    """Look for runs beside an array, without changing anything on disk.

    State that is not trusted is reported in the result, and not followed.
    """
    try:
        seen = require_trusted(target)
        looks = [look_at_run(each, seen) for each in (target, *target.others_among(seen))]
        whole, *others = [run for run, _ in looks]
        updates = tuple(run for run in others if run is not None)
        told = [removal for _, removal in looks]
        if whole is None or not whole.makes_array:
            unknown = target.place.unknown_run([run.run for run in updates])
            told.append("" if unknown is None else unknown.told)
        return Beside(whole, updates, tuple(filter(None, told)))
    except UntrustedStateError as error:
        return Beside(warnings=(error.message,), untrusted=error)


def refuse_overlapping_runs(target: Target, intent: Intent, *, restart: bool) -> None:
    """Refuse to go on beside a run that writes some of the same shards.

    Streams and salvages whose processes are dead are given up, because nobody can resume them.

    - `restart`: give up updates of dead processes that are in the way. A run that makes the array
      is never given up here.
    """
    known = {run_in(target.run_path / "plan.json")}
    for other in tidied_neighbours(target):
        known.add(other.run)
        shared = _shared(intent.shards_from, other.record.shards_from)
        if shared == 0:
            continue
        if restart and not other.makes_array:
            (give_up if intent.makes_array else give_up_for_restart)(other)
            continue
        holders = live_holders(other.shared)
        if holders:
            raise held(other, holders[0])
        if _is_passing(other):
            give_up(other)
            continue
        raise unfinished(other, shared, is_replaced=intent.makes_array)
    looks = isinstance(target.place, Directory) or not intent.makes_array
    unknown = target.place.unknown_run(known) if looks else None
    if unknown is not None:
        raise JournalError(f"{unknown.told}; {unknown.remedy}", path=str(target.run_path))
    if target.leaves_marks and is_there(target.directory.own_state):
        raise JournalError(
            f"another run on {target.label} has just begun, whose state lies in "
            f"{target.directory.own_state}. Make this call again when that run has ended",
            path=str(target.run_path),
        )


def unfinished(
    run: RunDirectory, shared: int | None = None, *, is_replaced: bool = False
) -> JournalError:
    """Error for a run that no process works on, with the ways to finish it or to give it up.

    - `shared`: number of shards that the new run writes, too.
    """
    path = run.target.label
    if run.can_put_back:
        told = (
            f"the run that replaces {path} has not ended. Make the same call again to finish it "
            "(shardwrite finalize, if all of its parts are written). Or give it up with abandon "
            '(shardwrite abandon), which keeps the old array. A write with mode="w" and '
            "restart=True (--overwrite --restart) takes its shards away and starts over"
        )
    elif run.replaces_array:
        told = (
            f"the run that replaces {path} has not ended. It overwrites the objects of the old "
            "array, so nothing can be put back. Make the same call again to finish it (shardwrite "
            'finalize, if all of its parts are written), or start over with mode="w" and '
            "restart=True (--overwrite --restart)"
        )
    elif run.makes_array:
        told = (
            f"the run that makes {path} has not ended. Make the same call again to finish it "
            "(shardwrite finalize, if all of its parts are written); abandon, and restart=True of "
            "an update, leave it alone. Only a write of the whole array with restart=True "
            "(--restart) takes its shards away and starts over"
        )
    else:
        outcome = (
            "Replacing the array takes its shards away: give restart=True (--restart) to do so"
            if is_replaced
            else "An update with restart=True (--restart) gives it up, too"
        )
        if run.record.identity.staged is not None and not is_replaced:
            outcome = ""
        told = (
            f"{_kind(run)} of {path} has not ended"
            f"{f'; {shared} shards are in both' if shared else ''}. Run that again to finish it, "
            "or give it up with abandon (shardwrite abandon): each of its shards is then left as "
            f"it is, old or new{outcome and '. '}{outcome}"
        )
    return JournalError(told, path=str(run.target.run_path))


def _kind(run: RunDirectory) -> str:
    """Kind of an update, in words."""
    region = run.record.identity.region
    if run.keeps_values:
        return "a compaction"
    if not region:
        return "a repair"
    return f"an update of the region {[list(pair) for pair in region]}"


def _is_passing(run: RunDirectory) -> bool:
    """Whether a run cannot be resumed.

    The slices of a stream are gone, and a salvage always looks for torn shards anew.
    """
    return run.record.identity.stream or run.record.identity.salvage


def give_up_passing(target: Target) -> None:
    """Give up the streams and salvages on an array whose processes are dead.

    - Raises UntrustedStateError if the run state beside the array is not trusted.
    """
    for other in tidied_neighbours(target):
        if _is_passing(other) and not live_holders(other.shared):
            give_up(other)


def begin_passing(
    target: Target,
    kind: str,
    text: str,
    identity: Identity,
    window: ShardWindow,
    durability: str | None = None,
) -> RunDirectory:
    """Begin a run that this process ends, or nobody: one that has died is given up.

    Its `driver` is the name in which this process takes part in it.

    - `kind`: what the run is, such as ``"salvage"``.
    - `text`: document of the array.
    - `window`: shards that no other run may write meanwhile.
    """
    name = uuid.uuid4().hex
    intent = Intent(digest=name, mode="r+", identity=identity, shards_from=window)
    own = replace(target, update=f"{kind}-{name[:16]}")
    refuse_overlapping_runs(own, intent, restart=False)
    level = target.durability() if durability is None else durability
    ((run, _),) = begin_beside([Request(own, intent, text)], restart=False, durability=level)
    return run.written_by(new_name(), durability)


@contextlib.contextmanager
def giving_up(run: RunDirectory) -> Iterator[None]:
    """Give up a run that this process has begun, if the block fails."""
    try:
        yield
    except Exception:
        # The first error is raised, not one of the clean-up.
        with contextlib.suppress(StoreError, JournalError, RunEndedError):
            give_up(run)
        raise


def begin_beside(
    requests: Sequence[Request],
    *,
    restart: bool,
    durability: str,
    free: Collection[Target] = frozenset(),
    are_checked: bool = False,
) -> list[tuple[RunDirectory, bool]]:
    """Begin or join runs as `begin_runs` does, and check again that no other writes these shards.

    If two processes begin such runs at the same moment, at least one of them notices, takes its
    own run back, and tries again after a random pause. Then check that no other process has
    replaced the array since a new update of it was planned. From here on, none can.
    """
    for attempt in itertools.count():
        begun = begin_runs(
            requests,
            restart=restart,
            durability=durability,
            free=frozenset() if attempt else free,
            are_checked=are_checked and not attempt,
        )
        new = next((run for run, is_new in begun if is_new), None)
        planned = [_planned(run) if is_new else None for run, is_new in begun]
        try:
            for run, is_new in begun:
                is_free = not attempt and run.target in free
                if not (is_new and run.makes_array and _is_alone(run, is_free=is_free)):
                    refuse_overlapping_runs(run.target, run.record, restart=False)
        except JournalError as error:
            if new is None:
                raise
            cancel_unused(new)
            if attempt == _MAX_TRIES or isinstance(error, UntrustedStateError):
                raise
            # The pause is random so that one of the two processes is alone.
            time.sleep(random.uniform(0.05, 0.5))  # noqa: S311
        else:
            break
    try:
        for (run, _), document in zip(begun, planned, strict=True):
            if document is not None:
                _check_same(run, document)
    except JournalError:
        if new is not None:
            cancel_begin(new, is_claimed=True)
        raise
    return begun


def _is_alone(run: RunDirectory, *, is_free: bool) -> bool:
    """Whether nothing but a new run that makes an array lies beside that array.

    - `is_free`: whether nothing lay there a moment ago, and so no update of an array either.
    - Raises UntrustedStateError if what lies there is not trusted.
    """
    target = run.target
    if target.leaves_marks and run.record.replaces:
        return False  # there may be marks of others
    if is_private(target.beside):  # nobody else has made anything there
        return is_free or not is_there(target.beside / UPDATES)
    own = target.run_path / "plan.json"
    return all(path == own or path.is_relative_to(run.path) for path in require_trusted(target))


def _planned(run: RunDirectory) -> Document | None:
    """Document of the array for which a new update was planned; None if the run makes the array.

    - Raises RunEndedError if another process has ended the run.
    """
    if run.makes_array:
        return None
    planned = begun_with(run)
    if planned is None:
        raise RunEndedError("another process has ended this run", path=str(run.path))
    return planned


def _check_same(run: RunDirectory, planned: Document) -> None:
    """Refuse to update an array that is not the one for which the update was planned.

    Its shards would be encoded, or found, as those of the other array.
    """
    label, found = run.target.label, run.target.document_if_there
    since = (
        "since a ShardWriter of it was opened; open another one"
        if run.record.identity.stream
        else "since an update of it was planned; make the same call again"
    )
    if found is None:
        raise JournalError(
            f"{label} was removed {since}. Another process may be replacing it, so wait for that",
            path=label,
        )
    changed = differences(layout_in(found), layout_in(planned))
    if changed:
        raise JournalError(
            f"{label} was replaced by another array {since}. It differs in {'; '.join(changed)}",
            path=label,
            differences=changed,
        )


def give_up(run: RunDirectory) -> None:
    """Take away an update, a repair or a replacement that no process works on.

    The shards of an update stay, except those of an append that lie beyond the array's shape, which
    was not yet enlarged. An array that was to be replaced is put back.
    """
    refuse_consuming(run)
    if run.makes_array and not run.can_put_back:
        holders = live_holders(run.shared)
        raise held(run, holders[0]) if holders else unfinished(run)
    discard_run(run)


def give_up_for_restart(run: RunDirectory) -> None:
    """Give up an update that stands in the way of a call with ``restart=True``.

    - Raises JournalError if it reads what it changes: the values that it has kept would go with it.
    """
    if run.record.identity.staged is not None:
        raise JournalError(
            f"an update of {run.target.label} that reads what it changes has not ended, and may "
            "have changed shards. It would read these now. Make the same call without restart to "
            "finish it, or give it up with abandon (shardwrite abandon): each of its shards is "
            "then left as it is, old or new",
            path=str(run.target.run_path),
        )
    give_up(run)


def _shared(mine: ShardWindow | None, theirs: ShardWindow | None) -> int | None:
    """Number of shards that two windows share.

    It is None, which stands for all, where one of the windows is the whole array or the windows
    differ in their number of axes.

    - `mine`, `theirs`: the windows; None for the whole array.
    """
    if mine is None or theirs is None or len(mine.first) != len(theirs.first):
        return None
    n = 1
    for a, k, b, m in zip(*mine, *theirs, strict=True):
        n *= max(0, min(a + k, b + m) - max(a, b))
    return n


def unfinished_updates(target: Target) -> Iterator[RunDirectory]:
    """Updates of an array that have not ended, and were not given up; nothing is changed."""
    for other in target.others:
        record = record_of(other) if other.update else None
        run = None if record is None else RunDirectory(other, record)
        if run is not None and not run.is_in(TAKEN):
            yield run


def unfinished_append(target: Target, source: str, axis: int) -> RunDirectory | None:
    """An append of the same source that has not ended, or whose end was interrupted.

    - Returns: the run, which has a region, or None where there is no such append.
    - Raises UntrustedStateError if the run state beside the array is not trusted.
    """
    for run in unfinished_updates(target):
        if is_there(run.path) and has_lost_array(run):
            continue
        identity = run.record.identity
        if identity.append_axis == axis and identity.source == source:
            return run
    return None
