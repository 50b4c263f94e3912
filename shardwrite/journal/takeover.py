"""The end of a run, however it ends, and what processes that do not know of it may still try.

A run ends by the rename of its directory, to ``ended-<run>`` where all is done and to
``taken-<run>`` where another run takes its place. From then on no process of the run can begin
anything, because every effect goes by a path in that directory or looks for a token there. What
was begun before is settled here, in this order, before anybody else writes to the array:

1. Tokens are removed: whoever still looks for one stops.
2. Shards amid a change in place get their old content back, in new files.
3. Temporaries are removed, so that a rename that comes late fails.
4. Of a run that was taken away: a new array goes, and an update leaves its shards as they are.
5. ``plan.json`` is moved into the directory, and the directory is removed.

Each step can be made again. Whoever comes after a crash finds the directory, and does what is left.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from dataclasses import replace

from shardwrite.errors import JournalError, RunEndedError, StoreError
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.grid import Box, ShardGrid
from shardwrite.journal.lease import live_holders
from shardwrite.journal.receipt import empty_after, read_receipt
from shardwrite.journal.replay import (
    Replay,
    discard,
    drivers_on,
    replay,
    shards_of,
    sweep_listed,
    unended,
)
from shardwrite.journal.rundir import (
    RunDirectory,
    discard_drafts,
    discard_ends,
    drivers_in,
    held,
    losing,
    remove_empty,
    run_in,
)
from shardwrite.journal.undo import recover_changes
from shardwrite.journal.writer import TOKEN
from shardwrite.stores import (
    PosixStore,
    as_store_error,
    data_in,
    is_there,
    listed,
    read_json,
    remove_data,
    remove_state,
    set_aside,
)
from shardwrite.target import Target

__all__ = ["end_run", "make_end", "remove_orphans", "settle", "take_away", "take_back"]

ENDED, TAKEN = "ended", "taken"


def end_run(run: RunDirectory, own_journals: str = "") -> None:
    """End a run whose array is whole.

    Parameters
    ----------
    run : RunDirectory
        The run.
    own_journals : str
        What the names of this process's journals begin with; all that it began has ended.
    """
    over = replace(run, state=ENDED)
    with contextlib.suppress(FileNotFoundError):  # another process was first
        os.rename(run.path, over.path)
    settle(over, own_journals)


def take_back(run: RunDirectory, *, is_claimed: bool) -> None:
    """End a run that has changed nothing yet; an error here must not hide the one that led here.

    Parameters
    ----------
    run : RunDirectory
        The run.
    is_claimed : bool
        Whether ``plan.json`` names it, so that others may have joined.
    """
    with contextlib.suppress(OSError):
        if is_claimed:
            end_run(run)
        else:
            remove_state(run.path)
            remove_empty(run.target)


def take_away(run: RunDirectory) -> None:
    """Take a run and its shards away; of an update, the shards stay, old or new, and whole.

    What the run was to replace and has not yet moved stays, too.

    Raises
    ------
    JournalError
        If a process works on it.
    """
    holders = live_holders(run.path)
    if holders:
        raise held(run, holders[0])
    over = replace(run, state=TAKEN)
    with as_store_error(str(run.path), "cannot take away"), contextlib.suppress(FileNotFoundError):
        os.rename(run.path, over.path)
    settle(over)


def settle(over: RunDirectory, own_journals: str = "") -> None:
    """Do what is left to do of a run that is over.

    Parameters
    ----------
    over : RunDirectory
        The run, in one of the states ``ended`` and ``taken``.
    own_journals : str
        See :func:`end_run`.
    """
    try:
        _settle(over, own_journals)
    except (StoreError, RunEndedError):
        if is_there(over.path):
            raise  # else another process has settled it meanwhile


def _settle(over: RunDirectory, own_journals: str) -> None:
    with as_store_error(str(over.path), "cannot remove"):
        if is_there(over.path / "zarr.json"):  # else its removal had begun
            metadata = _metadata_of(over)
            store = PosixStore(over.target.path)
            for token in listed(over.path, TOKEN):
                token.unlink(missing_ok=True)
            recover_changes(over.path, store, metadata)
            discard(store, metadata, unended(over, metadata, own_journals))
            discard_ends(over.target, [over.run, *drivers_in(over.path)])
            if over.state == TAKEN:
                _leave(over, metadata, store)
        _move_plan(over)
        _remove(over)
        discard_drafts(over.target)
        remove_empty(over.target)


def remove_orphans(target: Target) -> None:
    """Remove directories of runs that are over and settled, which a crash has left."""
    for state in (ENDED, TAKEN):
        for path in listed(target.run_path, f"{state}-"):
            with as_store_error(str(path), "cannot remove"):
                _remove(RunDirectory(target, {"run": path.name.removeprefix(f"{state}-")}, state))
    remove_empty(target)


def _remove(over: RunDirectory) -> None:
    """Remove a run's directory: what it has set aside first, as long as its plan is there to say whose that is."""
    for name in data_in(over.path):
        try:
            remove_data(over.path, name, over.proof())
        except FileNotFoundError:
            continue  # another process does the same
        except StoreError:
            if is_there(over.path / name):
                raise  # else another process has removed it, and then the plan that proves whose it was
    remove_state(over.path)


def make_end(over: RunDirectory) -> None:
    """Make the directory of an ended run, if its plan is there and its directory is not. Then its end is settled like any other.

    The first version removed the directory before the plan.
    """
    plan, states = over.target.run_path / "plan.json", ("run", ENDED, TAKEN)
    # In this order, because a run that this version ends loses its plan before its directory.
    if any(over.is_in(state) for state in states) or run_in(plan) != over.run:
        return
    with (
        as_store_error(str(over.path), "cannot make"),
        contextlib.suppress(FileExistsError, FileNotFoundError),
    ):
        os.mkdir(
            over.path
        )  # no parents: where another process has settled the run, they must not come back
        if (
            run_in(plan) != over.run
        ):  # the plan of a run that has begun since, or another process has moved it there
            with losing(errno.ENOTEMPTY, errno.ENOENT):
                os.rmdir(over.path)


def _move_plan(over: RunDirectory) -> None:
    """Take ``plan.json`` away, if it is this run's; a process that comes late finds no directory to move it to."""
    plan, moved = over.target.run_path / "plan.json", over.path / "plan-moved.json"
    try:
        os.rename(plan, moved)
    except FileNotFoundError:
        return
    found = run_in(moved)
    if found != over.run and (
        found or is_there(moved)
    ):  # else another process has removed it meanwhile
        with contextlib.suppress(FileExistsError):
            os.link(moved, plan)


def _leave(over: RunDirectory, metadata: ArrayMetadata, store: PosixStore) -> None:
    """Step 4: a new array goes with its run; of an update, what it has committed stays."""
    if not over.makes_array:
        _leave_update(over, metadata, store)
    else:
        is_untouched = over.facts["replaces"] and not is_there(over.path / "replaced")
        if not is_untouched and is_there(over.target.path):
            with losing(errno.ENOENT):  # another process was first
                set_aside(over.target.path, "", over.proof(), f"array-{uuid.uuid4().hex}")


def _leave_update(over: RunDirectory, part: ArrayMetadata, store: PosixStore) -> None:
    """Remove what an update wrote beyond an array that did not come to grow, and have the receipt know what is empty."""
    with over.ending():  # nobody else changes the shape meanwhile
        found = replay(over, part)
        if found.lost_boot or found.n_bad_lines:  # names may be lost
            sweep_listed(over.target.path, lambda: drivers_on(over.target))
        grid = parse_metadata(json.dumps(read_json(over.target.path / "zarr.json"))).grid
        _remove_outside(over, part, store, grid)
        _tell_receipt(over, part, store, found, grid)


def _remove_outside(
    over: RunDirectory, part: ArrayMetadata, store: PosixStore, grid: ShardGrid
) -> None:
    first, _ = part.window or ((), ())
    outside = [
        part.shard_key(index)
        for index in part.grid.shards_in(part.grid.whole)
        if any(i + f >= n for i, f, n in zip(index, first, grid.counts, strict=True))
    ]
    with store.transaction(
        "none", uuid.uuid4().hex, proof=over.proof(lambda: outside)
    ) as transaction:
        for key in outside:
            transaction.remove(key)


def _tell_receipt(
    over: RunDirectory, part: ArrayMetadata, store: PosixStore, found: Replay, grid: ShardGrid
) -> None:
    receipt = read_receipt(over.target)
    if receipt is None or receipt.empty is None:
        return
    first, _ = part.window or ((), ())
    counts = part.grid.counts
    is_known = found.ledger.is_done.reshape(counts).copy()
    is_empty = (found.ledger.nbytes == 0).reshape(counts)
    # A shard that an update was about to commit may be gone because it became empty; one of a repair may have been lost before.
    begun = unended(over, part) if over.target.update else []
    for index in {index for beginning in begun for index in shards_of(beginning, part)}:
        if not is_known[index]:
            is_known[index], is_empty[index] = True, store.version(part.shard_key(index)) is None
    empty = empty_after(receipt, grid, first, is_empty, is_known)
    over.leave(replace(receipt, empty=empty, shape=list(grid.shape)), "full", over.run)


def _metadata_of(run: RunDirectory) -> ArrayMetadata:
    """The array, or the part of it that an update touches; all of it where that is a repair."""
    metadata = parse_metadata(json.dumps(run.document))
    if run.makes_array:
        return metadata
    grid = metadata.grid
    first, counts = run.facts.get("shards_from") or ([0] * grid.ndim, grid.counts)
    if len(first) != grid.ndim or any(
        a + k > n for a, k, n in zip(first, counts, grid.counts, strict=True)
    ):
        raise JournalError(
            f"{run.path} holds the metadata of another array. Move {run.target.run_path} away after a look, and keep it",
            path=str(run.path),
        )
    start = tuple(a * s for a, s in zip(first, grid.shards, strict=True))
    stop = tuple(
        min((a + k) * s, n)
        for a, k, s, n in zip(first, counts, grid.shards, grid.shape, strict=True)
    )
    return metadata.part(Box(start, stop))[0]
