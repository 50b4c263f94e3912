"""The end of a run, and how processes that have not noticed it are kept from doing harm.

A run ends when its directory is renamed: to ``ended-<run>`` if all is done, to ``taken-<run>`` if
the run is given up or another run takes its place. From then on no process of the run can begin
anything, because every effect uses a path in that directory or looks for a token there. What was
begun before is settled here, before any other process writes to the array, in this order:

1. Remove the tokens. A process that still looks for one stops. Give back the room that the plan
   keeps, so that the steps below find some on a full disk.
2. Give shards that were left amid a change in place their old content back, in new files.
3. Remove temporary files, so that a late rename fails. A bucket has none. There, a shard is
   replaced only if it is still the version that was read. Before it removes a shard, the process
   makes sure that it still holds the lease.
4. If the run has handed over one of several arrays that it replaces, hand over all others that are
   whole. If it was taken away: take the array that it was making out of the consolidated metadata
   above, and set it aside. Put back the old array that it was to replace, enter that into the
   metadata above, and rename the directory to ``ended-<run>``. If it was an update, leave the
   array's shards as they are.
5. Move ``plan.json`` into the directory, and remove the directory.

A run on several arrays takes each step for all of them before the next. Before step 5, its
directory has the name ``ended-<run>`` in any case. So a process that comes late with step 4 of one
array cannot touch what another run makes there once its ``plan.json`` is gone.

Each step can be repeated. After a crash, the next process finds the directory and does the rest.

*Elements beyond the shape* that an append or a stream has written are cleared; see
:mod:`shardwrite.journal.edges`. An append to several arrays may have enlarged some of them when it
is given up. All of them get their old shape back first.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import stat
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import Document
from shardwrite.errors import CorruptShardError, JournalError, RunEndedError, StoreError
from shardwrite.format.metadata import ArrayMetadata, metadata_of_document
from shardwrite.format.node import DOCUMENT, with_shape
from shardwrite.grid import ShardGrid
from shardwrite.host.stopping import TAKEOVERS, tell
from shardwrite.journal.documents import discard_ends, present_listed
from shardwrite.journal.lease import is_left_behind, live_holders, work_files
from shardwrite.journal.lines import CLAIM, TOKEN, Beginning, close_journals_in, shards_of
from shardwrite.journal.receipt import (
    Receipt,
    UpdateEntry,
    changed_region,
    read_receipt,
)
from shardwrite.journal.replay import (
    Replay,
    begun,
    discard,
    drivers_on,
    journals,
    replay,
    unended,
)
from shardwrite.journal.rundir import (
    RunDirectory,
    confirm,
    discard_drafts,
    drivers_in,
    held,
    is_resumed,
    proof_in,
    record_in,
    refuse_other_version,
    remove_empty,
    remove_empty_home,
)
from shardwrite.place.directory import Directory, run_in
from shardwrite.place.target import CONSUMES, TOGETHER, Target
from shardwrite.plan.identity import Bounds, ShardWindow
from shardwrite.stores.base import Store
from shardwrite.stores.looking import as_store_error, is_there, listed, mode_of
from shardwrite.stores.posix import give_room
from shardwrite.stores.removal import (
    Proof,
    data_in,
    leaves_temporary,
    link_from,
    remove_data,
    remove_state,
)

if TYPE_CHECKING:
    from shardwrite.journal.plan_record import RunRecord

ENDED, TAKEN = "ended", "taken"
_MAX_TRIES = 3


def end_run(
    run: RunDirectory, own_journals: str = "", known: Collection[RunDirectory] = ()
) -> None:
    """End a run whose array is complete.

    - `own_journals`: prefix of the names of this process's journals, if it has written all that it
      wanted to. All tasks in them have ended, so these journals need not be read; by default, all
      journals are read.
    - `known`: the run's outputs that are open already; others are looked up.
    """
    over, is_ended_here = replace(run, state=ENDED), bool(own_journals)
    try:
        os.rename(run.shared, over.shared)
    except FileNotFoundError:  # another process was first, and may have given the run up
        own_journals, is_ended_here = "", False
    close_journals_in(run.shared)  # NFS keeps a file that is removed while it is open
    settle(over, own_journals, known, is_ended_here=is_ended_here)


def cancel_begin(
    run: RunDirectory, *, is_claimed: bool, known: Collection[RunDirectory] = ()
) -> None:
    """End a run that has changed nothing yet.

    Errors of the system are ignored, since they would hide the error for which the run is ended.

    - `known`: the run's outputs that are open already; others are looked up.
    """
    with contextlib.suppress(OSError):
        if is_claimed:
            end_run(run, known=known)
        else:
            outputs = list(run.outputs(known=known))
            remove_state(run.shared)
            for one in outputs:
                remove_empty(one.target)
            remove_empty_home(run.home, run.target)


def cancel_unused(run: RunDirectory, own_drivers: Collection[str] = ()) -> None:
    """Take a new run back, unless another process has joined it meanwhile."""
    with contextlib.suppress(StoreError):  # the error for which it is taken back is to be reported
        if all(holder.driver in own_drivers for holder in live_holders(run.shared)):
            cancel_begin(run, is_claimed=True)


def discard_run(run: RunDirectory) -> None:
    """Give up a run, and remove the array that it was making.

    If the run is an update, the array and all of its shards stay; each shard is whole, either old
    or new. An array in a directory that the run was to replace stays, or is put back.
    """
    holders = live_holders(run.shared)
    if holders:
        raise held(run, holders[0])
    over = replace(run, state=TAKEN)
    path = str(run.shared)
    with as_store_error(path, "cannot take away"), contextlib.suppress(FileNotFoundError):
        os.rename(run.shared, over.shared)
    settle(over)


def refuse_consuming(run: RunDirectory) -> None:
    """Refuse to take away shards that hold what was removed elsewhere."""
    if is_there(run.path / CONSUMES):
        raise JournalError(
            f"shards of {run.target.label} hold data that a conversion with consume=True has "
            "removed from its source. They are not taken away. Make that call again, without "
            "restart, to finish it",
            path=str(run.path),
        )


def drop_orphan(run: RunDirectory) -> None:
    """Remove a run whose array is gone. What stands in its place now is not touched."""
    over = replace(run, state=TAKEN)
    with as_store_error(str(run.path), "cannot remove"):
        with contextlib.suppress(FileNotFoundError):
            os.rename(run.shared, over.shared)
        _remove_tokens(work_files(over.shared))
        for one in over.outputs():
            one.document_path.unlink(missing_ok=True)  # without it, nothing is left to settle
    settle(over)


def recover_changes(run_path: Path, store: Store, metadata: ArrayMetadata) -> None:
    """Undo all interrupted changes in place of a run.

    - Raises CorruptShardError if the recovered shard has no valid index.
    """
    for path in listed(run_path, CLAIM):
        if stat.S_ISDIR(mode_of(path, follow=False)):
            from shardwrite.journal.lock import exclusive  # for changes in place
            from shardwrite.journal.undo import recover_shard

            with exclusive(path, run_path) as claim:
                recover_shard(claim, store, metadata)


def is_of_another(error: OSError | RunEndedError) -> bool:
    """Whether an error may come from what another process has removed or taken over."""
    return isinstance(error, RunEndedError) or error.errno in (errno.ENOENT, errno.ESTALE)


def is_amid_end(run: RunDirectory, error: OSError | RunEndedError) -> bool:
    """Whether an error may come from the removal of what a run has left, by this process."""
    return not is_of_another(error) and is_there(replace(run, state=ENDED).shared)


def settle(
    over: RunDirectory,
    own_journals: str = "",
    known: Collection[RunDirectory] = (),
    *,
    is_ended_here: bool = False,
) -> None:
    """Finish the end of a run that is over; see the steps in the module's docstring.

    - `own_journals`: prefix of the names of journals that need not be read; empty for none.
    - `known`: the run's outputs that are open already; others are looked up.
    - `is_ended_here`: whether this process has ended the run, and written all that it wanted to.
    """
    for n_tries in itertools.count(1):
        try:
            with as_store_error(str(over.shared), "cannot remove what is left in"):
                _settle(over, own_journals, known, is_ended_here=is_ended_here)
            break
        except (StoreError, RunEndedError) as error:
            if not is_there(over.shared):
                # A run that was given up has another name from a step on; see `_settle_arrays`.
                over = replace(over, state=ENDED)
                if not is_there(over.shared):
                    break  # another process has settled the run
            # Another one may be at it, and what it has removed is missing here. Else the error may
            # have passed.
            if n_tries == (_MAX_TRIES if is_of_another(error) else 2):
                raise


def _settle(
    over: RunDirectory, own_journals: str, known: Collection[RunDirectory], *, is_ended_here: bool
) -> None:
    # Whoever ends a run writes documents in the name of the run.
    outputs = [one.written_by(one.run) for one in list(over.outputs(known=known)) or [over]]
    left = {one.number: m for one in outputs if (m := _metadata_left(one)) is not None}
    if left:
        confirm(over.target)
        _stop_stragglers(over, outputs, left, own_journals, is_ended_here=is_ended_here)
        over, outputs = _settle_arrays(over, outputs, left, is_ended_here=is_ended_here)
    _remove_run(over, outputs, is_ended_here=is_ended_here)


def _stop_stragglers(
    over: RunDirectory,
    outputs: Sequence[RunDirectory],
    left: Mapping[int, ArrayMetadata],
    own_journals: str,
    *,
    is_ended_here: bool,
) -> None:
    """Take steps 1 to 3: nothing that other processes have begun has an effect any more.

    - `left`: metadata of the arrays that are to be settled, by their numbers in the run.
    """
    there = work_files(over.shared)  # since it was renamed, nobody can add a file
    _remove_tokens(there)
    but = "" if leaves_temporary() else own_journals  # which tell what is left
    files = journals(over, left[max(left)].grid.n_shards, but=but)
    # Nothing is left of documents that this process has written. Only whoever gives up a run
    # writes documents in the name of the run.
    others = drivers_in(there)
    if is_ended_here:
        drivers = [name for name in others if not own_journals.startswith(f"journal-{name}-")]
    else:
        drivers = [over.run, *others]
    for one in outputs:
        if one.number == 0:  # which alone keeps some
            give_room(one.path / "plan.json")
        if (metadata := left.get(one.number)) is not None:
            if not one.makes_array:
                recover_changes(one.path, one.store, metadata)
            if left_behind := unended(files, one.number):
                discard(one.store, metadata, left_behind)
    discard_ends([one.target for one in outputs], drivers)


def _settle_arrays(
    over: RunDirectory,
    outputs: list[RunDirectory],
    left: Mapping[int, ArrayMetadata],
    *,
    is_ended_here: bool,
) -> tuple[RunDirectory, list[RunDirectory]]:
    """Take step 4: hand the arrays over, or undo them, and remove their marks.

    - `left`: metadata of the arrays that are to be settled, by their numbers in the run.
    - Returns: the run and its outputs, whose directory may have another name now.
    """
    is_committed = not is_ended_here and _has_committed(over, outputs, left)
    for one in outputs:
        if is_committed and one.number in left:
            one.hand_over(())
    if over.state == TAKEN:
        given_up = [one for one in outputs if not (is_committed and one.is_written)]
        if given_up:
            told = f"an unfinished run is given up: {over.target.label}"
            tell(TAKEOVERS, logging.INFO, told, run=over.shared)
        unsettled = [one for one in given_up if one.number in left and _may_have_changed(one)]
        _shrink(unsettled)
        for one in unsettled:
            _give_up_output(one, left[one.number], one.store)
        _list_together(unsettled)
        if any(one.record.replaces for one in outputs) or len(outputs) > 1:
            # Whoever comes late finds no path by which it could move an old array again.
            ended = replace(over, state=ENDED)
            os.rename(over.shared, ended.shared)
            over, outputs = ended, [replace(one, state=ENDED) for one in outputs]
    for one in outputs:
        if one.number in left and (one.is_marked or one.target.leaves_marks):
            if one.record.aside and not is_ended_here:
                _list_again(one)
            if one.may_have_mark:
                one.target.place.remove_mark(one)
    return over, outputs


def _remove_run(
    over: RunDirectory, outputs: Sequence[RunDirectory], *, is_ended_here: bool
) -> None:
    """Take step 5: remove the plans, and then the directory of the run."""
    for one in outputs:
        one.remove_staged()
    for one in outputs:
        _move_plan(one)
    for one in outputs:
        is_alone = one.record.together is None  # several arrays of a run are all new
        if one.record.replaces or is_alone or not is_ended_here:
            _remove_data(one.path, one.proof)
        else:
            _remove_record(one)
    if over.path != over.shared:
        _remove_data(over.shared, lambda: replace(over.proof(), run_path=over.shared))
    remove_state(over.shared)
    for one in outputs:
        if not remove_empty(one.target) and is_there(one.target.run_path):
            discard_drafts(one.target)
            remove_empty(one.target)
    remove_empty_home(over.home, over.target)


def _has_committed(
    over: RunDirectory, outputs: Sequence[RunDirectory], left: Mapping[int, ArrayMetadata]
) -> bool:
    """Whether all arrays of a run that are built aside and whole get their names.

    If it replaces some, it has handed over one of them. Else all are whole, and it was not given
    up. Without durability, a power cut may have taken shards of them.
    """
    aside = [one for one in outputs if one.record.aside]
    replaced = [one for one in aside if one.record.replaces]
    if replaced:
        is_begun = any(one.is_handed_over for one in replaced)
    else:
        is_begun = bool(aside) and over.state == ENDED and all(one.is_written for one in outputs)
    if not is_begun:
        return False
    is_durable = over.record.durability != "none"
    return is_durable or not any(
        replay(one, left[one.number]).lost_boot for one in outputs if one.number in left
    )


def _remove_tokens(there: Iterable[Path]) -> None:
    """Remove the tokens of all processes of a run that is over, among all of its files."""
    for path in there:
        if path.name.startswith(TOKEN):
            path.unlink(missing_ok=True)


def _metadata_left(over: RunDirectory) -> ArrayMetadata | None:
    """Metadata of a run that is to be settled; None if its removal has begun, here or elsewhere."""
    if not is_there(over.document_path):
        return None
    try:
        return metadata_of(over)
    except StoreError:
        if is_there(over.document_path):
            raise
        return None  # another process has removed the document meanwhile


def remove_orphans(target: Target) -> None:
    """Remove directories of settled runs that a crash has left behind."""
    for path in listed(target.run_path):
        state, _, run = path.name.partition("-")
        if run and state in (ENDED, TAKEN):
            with as_store_error(str(path), "cannot remove"):
                refuse_other_version(target, path)
                _remove_data(path, partial(proof_in, path, target, run))
                remove_state(path)
    remove_empty(target)


def tidy_home(target: Target, *, is_group: bool = False) -> None:
    """Remove what is left of runs on several arrays of a hierarchy that nobody can go on with.

    These are drafts of dead processes, and directories of runs that have ended, whose arrays are
    all settled. So are runs that no array names: they have claimed none, or somebody has removed
    all of them.

    - `is_group`: whether the target may be the root of the hierarchy, or a group in it.
    """
    # The path may be that of the array's own directory, and name no hierarchy.
    homes = [state / TOGETHER for state in target.state_around(target.beside)]
    if target.home is not None:
        homes = [target.home]
    if is_group and isinstance(target.place, Directory):
        homes.append(target.beside / TOGETHER)
    for home in homes:
        if not is_there(home.parent):
            continue
        for path in listed(home):
            state, _, _ = path.name.partition("-")
            with as_store_error(str(path), "cannot remove"):
                if state == "draft" and is_left_behind(path):
                    remove_state(path)
                elif state in ("run", ENDED, TAKEN) and not _is_claimed(path):
                    _remove_unclaimed(path, target)
        remove_empty_home(home, target)


def _records_in(path: Path) -> Iterator[tuple[Path, RunRecord]]:
    """Directories of the arrays of a run, and the records of their plans."""
    for part in [part for part in listed(path) if part.name.isdecimal()]:
        record = record_in(part / "plan.json") or record_in(part / "plan-moved.json")
        if record is not None:
            yield part, record


def _is_claimed(path: Path) -> bool:
    """Whether the plan of an array names the run whose directory this is, or may do so soon.

    A run has claimed all of its arrays before a process is allowed to commit.
    """
    _, _, run = path.name.partition("-")
    is_run = path.name.startswith("run-")
    may_commit = is_run and bool(work_files(path, TOKEN))
    for part, record in _records_in(path):
        if record.together is None:
            continue
        if run_in(path.parent / record.together.state / "plan.json") == run:
            return True
        if is_run and not may_commit and not is_left_behind(part):
            return True
    return may_commit and bool(live_holders(path))


def _remove_unclaimed(path: Path, target: Target) -> None:
    """Remove the directory of a run that no array names any more."""
    for part, record in _records_in(path):
        _remove_data(part, partial(proof_in, part, target, record.run))
    remove_state(path)


def _remove_data(path: Path, proof: Callable[[], Proof]) -> None:
    """Remove the data that a run has set aside in a directory.

    They go before the plan in the directory, which is the proof that they are the run's own.
    """
    for name in data_in(path):
        try:
            remove_data(path, name, proof())
        except FileNotFoundError:
            continue  # another process does the same
        except StoreError:
            if is_there(path / name):
                raise  # otherwise another process has removed the data, and then the plan


def make_end(over: RunDirectory) -> None:
    """Make the directory of an ended run of which only ``plan.json`` is left.

    The first version removed the directory before the plan. With an empty directory, the end of
    such a run is settled like any other.
    """
    plan, states = over.target.run_path / "plan.json", ("run", ENDED, TAKEN)
    # The directories are looked for first, since this version removes the plan before the
    # directory.
    if any(over.is_in(state) for state in states) or run_in(plan) != over.run:
        return
    with (
        as_store_error(str(over.path), "cannot make"),
        contextlib.suppress(FileExistsError, FileNotFoundError),
    ):
        if over.record.together is None:
            # Without parents: where another process has settled the run, they must not come back.
            os.mkdir(over.path)
        else:  # no process removes its directory before all plans, so somebody else has done so
            os.makedirs(over.path)
        # The plan is now that of a newer run, or another process has moved it into the directory.
        if run_in(plan) != over.run:
            try:
                for path in dict.fromkeys((over.path, over.shared)):
                    os.rmdir(path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                    raise


def _move_plan(over: RunDirectory) -> None:
    """Move ``plan.json`` into the directory if it is this run's.

    A process that comes late finds no directory to which it could move the file. A plan that turns
    out to be another run's is linked back.
    """
    plan, moved = over.target.run_path / "plan.json", over.path / "plan-moved.json"
    try:
        os.rename(plan, moved)
    except FileNotFoundError:
        return
    # Most often, it is another name of the same file.
    with contextlib.suppress(OSError):
        if os.path.samefile(moved, over.path / "plan.json"):
            return
    found = run_in(moved)
    # An empty name without a file means that another process has removed the file meanwhile.
    if found != over.run and (found or is_there(moved)):
        with contextlib.suppress(FileExistsError):
            link_from(moved, plan)


def _remove_record(over: RunDirectory) -> None:
    """Remove the directory of one of several arrays, if nothing else is in it."""
    for name in (DOCUMENT, "plan.json", "plan-moved.json"):
        (over.path / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # or it goes with the directory of the run
        over.path.rmdir()


def _give_up_output(over: RunDirectory, metadata: ArrayMetadata, store: Store) -> None:
    """Take step 4: set aside the array that the run was making, or settle what an update leaves."""
    if not over.makes_array:
        _give_up_update(over, metadata, store)
        return
    if over.record.aside:
        from shardwrite.journal.handover import put_back_old  # of arrays that are built aside

        if over.record.replaces:
            put_back_old(over, over.target)
            _list_again(over)
        elif over.is_handed_over:
            over.withdraw()
            over.target.place.take_away(over)
        return
    is_marked = not over.target.leaves_marks or over.target.directory.has_mark(over)
    if is_marked and (not over.record.replaces or is_there(over.path / "replaced")):
        over.withdraw(partial(_is_own, over))
        over.target.place.take_away(over)
    if over.record.replaces:
        _list_again(over)


def _may_have_changed(over: RunDirectory) -> bool:
    """Whether a run may have changed an array; it changes none before it has claimed all of them.

    An array that was to be made is set aside in any case.
    """
    if over.lacks_mark:
        return False
    is_claimed = run_in(over.target.run_path / "plan.json") == over.run
    return not over.is_listed_with_others or is_claimed


def _shrink(outputs: Sequence[RunDirectory]) -> None:
    """Give arrays the length back that they had before an append to several of them.

    An array that has grown further since then keeps its length.
    """
    for one in outputs:
        if one.record.length is not None and not one.record.identity.stream:
            with one.ending():
                one.change(partial(_before_append, one))
    _list_together(outputs)


def _before_append(over: RunDirectory, document: Document) -> Document:
    """Document of an array without the elements that an append has added."""
    identity, shape = over.record.identity, list(document["shape"])
    axis, length = identity.append_axis or 0, over.record.length
    region = identity.region or ()
    if length is None or len(region) != len(shape) or shape[axis] != region[axis][1]:
        return document
    shape[axis] = min(length, shape[axis])
    return document if shape == document["shape"] else with_shape(document, shape)


def _list_together(outputs: Sequence[RunDirectory]) -> None:
    """Have groups list arrays that they list together, if a run was to update several."""
    together = [one for one in outputs if one.is_listed_with_others]
    if together:
        together[0].list_again([one.target for one in together])


def _list_again(over: RunDirectory) -> None:
    """Have groups list the array that stands there, which they may have left out for a while."""
    document = over.target.document_if_there
    if document is not None:
        over.consolidate(document)


def _is_own(over: RunDirectory) -> bool:
    """Whether what stands in the array's place is the run's own, if anything stands there."""
    try:
        over.target.place.check_mark(over)
    except JournalError:
        return not over.target.place.has(DOCUMENT)
    return True


def _give_up_update(over: RunDirectory, part: ArrayMetadata, store: Store) -> None:
    """Settle what an update that was given up leaves in the array.

    If the array was not enlarged before, the shards beyond it are removed. The receipt is brought
    up to date with the shards that are now empty by design.
    """
    with over.ending() as claim:  # no other process changes the shape meanwhile

        def check() -> None:
            claim.check()
            over.check_held()

        found = replay(over, part)
        if found.lost_boot or found.n_bad_lines:  # names of temporary files may be lost
            over.target.place.sweep(lambda: drivers_on(over.target))
        array = metadata_of_document(over.target.document)
        may_be_there = _may_be_there(over, part, store)
        _remove_outside(over, part, array.grid, found, may_be_there, check)
        maybe_committed = _maybe_committed(over, part, found)
        identity = over.record.identity
        if identity.append_axis is not None or identity.stream:
            is_changed = _touched(part, found, maybe_committed) & may_be_there
            from shardwrite.journal.edges import clear_edges  # of appends and streams

            clear_edges(over, array, part, store, found, is_changed, check)
        # Where an index is bad, the manifest stays as it is: it lists too much and not too little.
        with contextlib.suppress(CorruptShardError):
            over.change(present_listed(part, over))
        _update_receipt(over, part, array.grid, store, found, maybe_committed, may_be_there)


def _may_be_there(over: RunDirectory, part: ArrayMetadata, store: Store) -> npt.NDArray[np.bool_]:
    """Mask of the shards that may have an object.

    If the journals come from a bucket, where the last lines may be missing, the run may have put
    each of its shards, and a stream has thousands. One listing tells which are there.
    """
    may_be = np.ones(part.grid.counts, dtype=bool)
    if is_resumed(over.target, over.run):
        may_be[...] = False
        for index in map(part.shard_index, store.list_keys()):
            if index is not None:
                may_be[index] = True
    return may_be


def _maybe_committed(
    over: RunDirectory, part: ArrayMetadata, found: Replay
) -> npt.NDArray[np.bool_]:
    """Mask of the shards that an update was about to commit, and may have committed.

    If the journals come from a bucket, where the last lines may be missing, these are all of its
    shards that no line names.
    """
    is_missing: npt.NDArray[np.bool_] = ~found.ledger.is_done.reshape(part.grid.counts)
    if is_resumed(over.target, over.run):
        return is_missing
    files = journals(over, part.grid.n_shards)
    return _shards_in(unended(files, over.number), part) & is_missing


def _shards_in(tasks: Iterable[Beginning], part: ArrayMetadata) -> npt.NDArray[np.bool_]:
    """Mask of the shards of tasks."""
    is_theirs = np.zeros(part.grid.counts, dtype=bool)
    for task in tasks:
        for index in shards_of(task, part):
            is_theirs[index] = True
    return is_theirs


def _touched(
    part: ArrayMetadata, found: Replay, maybe_committed: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Mask of all shards that an update may have changed."""
    is_done = found.ledger.is_done.reshape(part.grid.counts)
    is_touched: npt.NDArray[np.bool_] = maybe_committed | is_done
    if found.lost_boot or found.n_bad_lines:  # lines may be lost that name further shards
        is_touched[...] = True
    return is_touched


def _remove_outside(
    over: RunDirectory,
    part: ArrayMetadata,
    grid: ShardGrid,
    found: Replay,
    may_be_there: npt.NDArray[np.bool_],
    check: Callable[[], None],
) -> None:
    """Remove the shards of an update that lie outside of the array's shard grid.

    Shards of tasks that have ended are looked for, too, because a task that failed may have put
    them into the store before. Shards of no task are not: the stretch of a stream holds thousands.
    """
    is_touched = _touched(part, found, _shards_in(begun(over, part), part))
    indexes = np.argwhere(is_touched & may_be_there)
    is_outside = (indexes + part.first_shard >= grid.counts).any(axis=1)
    outside = [part.shard_key(tuple(index)) for index in indexes[is_outside].tolist()]
    with over.target.store.transaction(
        "none", uuid.uuid4().hex, check, proof=over.proof(lambda: outside)
    ) as transaction:
        for key in outside:
            transaction.remove(key)


def _update_receipt(
    over: RunDirectory,
    part: ArrayMetadata,
    grid: ShardGrid,
    store: Store,
    found: Replay,
    maybe_committed: npt.NDArray[np.bool_],
    may_be_there: npt.NDArray[np.bool_],
) -> None:
    """Enter into the array's receipt what an update has changed before it was given up.

    These are the sizes of the shards, the shape, and the updates whose elements may have been
    replaced.
    """
    receipt = read_receipt(over.target)
    if receipt is None:
        return
    counts = part.grid.counts
    is_known = found.ledger.is_done.reshape(counts).copy()
    nbytes = found.ledger.nbytes.reshape(counts).copy()
    for index in map(tuple, np.argwhere(maybe_committed).tolist()):
        size = store.size(part.shard_key(index)) if may_be_there[index] else None
        # A shard that an update was about to commit may be missing because it became empty. A shard
        # of a repair may be missing because it was lost before, so nothing is known of it.
        if size is not None or over.target.update:
            is_known[index], nbytes[index] = True, size or 0
    updated = receipt.updated(grid, part.first_shard, nbytes, is_known)
    changes = changed_region(
        over.record.identity, part.grid, part.first_shard, _touched(part, found, maybe_committed)
    )
    if changes is not None and not over.keeps_values:
        updated = _given_up(updated, over, changes)
    over.write_receipt(updated)


def _given_up(receipt: Receipt, over: RunDirectory, changes: Bounds) -> Receipt:
    """The receipt, in which the updates no longer count that a run has changed and left."""
    if not over.target.update:  # a repair
        return receipt.all_replaced()
    identity = replace(over.record.identity, metadata=None, window=None, region=changes)
    entry = UpdateEntry(digest=over.digest, identity=identity, run=over.run, given_up=True)
    return receipt.with_update(entry, changes=changes)


def metadata_of(run: RunDirectory) -> ArrayMetadata:
    """Metadata of the array, or of the part of it whose shards an update writes."""
    metadata = metadata_of_document(run.document)
    if run.makes_array:
        return metadata
    grid = metadata.grid
    first, counts = run.record.shards_from or ShardWindow((0,) * grid.ndim, grid.counts)
    if len(first) != grid.ndim or any(
        a + k > n for a, k, n in zip(first, counts, grid.counts, strict=True)
    ):
        raise JournalError(
            f"{run.path} holds the metadata of another array. Move {run.target.run_path} away "
            "after a look, and keep it",
            path=str(run.path),
        )
    return metadata.window_of(grid.box_of_shards(first, counts))[0]
