"""Begin a run, or join one that goes on: what is checked first, and in which order."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from shardwrite.engines.local import Engine, Stopped
from shardwrite.errors import (
    JournalError,
    PlanError,
    RunEndedError,
    SpecError,
    StoreError,
    text_of,
)
from shardwrite.format.frame import framing_of
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.node import DOCUMENT
from shardwrite.format.sharding import why_kept
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box
from shardwrite.host.stopping import RUNS, tell
from shardwrite.journal.begin import (
    Request,
    differences,
    drop_removed,
    same_source_remedy,
    tidied_run,
)
from shardwrite.journal.documents import check_groups_above, check_lists
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.lines import taking_part
from shardwrite.journal.neighbours import (
    begin_beside,
    give_up_for_restart,
    refuse_overlapping_runs,
)
from shardwrite.journal.plan_record import new_name
from shardwrite.journal.receipt import read_receipt
from shardwrite.journal.replay import JournalFile, journals, replay, sweep_run
from shardwrite.journal.rundir import RunDirectory, begin_group, confirm, fence_of
from shardwrite.journal.takeover import cancel_begin, cancel_unused, is_amid_end, tidy_home
from shardwrite.place.directory import Directory
from shardwrite.place.target import (
    Target,
    check_around,
    check_surroundings,
    check_target,
    firsts_of,
    refuse_kept,
    warn_of_v2,
    ways_to,
)
from shardwrite.plan.plan import Part, Plan
from shardwrite.runs.array_plan import waiting, warn_of_unnamed
from shardwrite.runs.job import Job, intent_of, update_in
from shardwrite.runs.result import refuse_another
from shardwrite.runs.session import Session
from shardwrite.stores.base import Capability, Store, require
from shardwrite.stores.directories import NEW, fsync_directory
from shardwrite.stores.looking import as_store_error, is_there
from shardwrite.stores.posix import note_synced
from shardwrite.write.context import Scratch, probe_here

if TYPE_CHECKING:
    from shardwrite.journal.parts import PartDirectory
    from shardwrite.place.base import Place
    from shardwrite.place.objects import InStore

_FEW_SHARDS = 64  # whose places are all looked at before an update begins

# ---- Scratch: room on the disks of workers for shards that wait there


def needed_by(job: Job) -> int:
    """Bytes on its disk that each worker process of a job needs, at most.

    How large shards are that are copied as they are is known when they are copied.
    """
    if job.source.is_encoded:
        return 0
    plan = job.plan
    known = waiting(plan.resources, job.target.store, plan.metadata)
    return replace(plan, resources=known).scratch_nbytes


def check_scratch(
    found: Mapping[str, Scratch], directory: str, needed_nbytes: int, n_processes: int
) -> None:
    """Refuse a directory in which the shards of all workers cannot wait, before any task runs.

    - `needed_nbytes`: bytes that each worker process needs, at most.
    - `n_processes`: number of worker processes, if only one of them has looked.
    """
    for worker, one in found.items():
        if one.room is None:
            raise SpecError(
                f"shards cannot wait there on {one.host} ({worker}): {one.trouble}",
                field="via",
                value=directory,
                remedy="give a directory on a disk that each worker has and can write to, or "
                "leave it out",
            )
    n_on = Counter((one.host, one.room.disk) for one in found.values() if one.room is not None)
    for one in found.values():
        if one.room is None:
            continue
        n_here = n_processes if len(found) == 1 else n_on[one.host, one.room.disk]
        if n_here * needed_nbytes > one.room.free_nbytes:
            raise PlanError(
                f"shards that wait until they are put may take {n_here * needed_nbytes:,} bytes in "
                f"{os.path.expandvars(directory)} on {one.host}, and {one.room.free_nbytes:,} are "
                "free",
                needed_nbytes=n_here * needed_nbytes,
                allowed_nbytes=one.room.free_nbytes,
                remedy="make room there, or give another directory as via, fewer threads, smaller "
                "shards, or compression_ratio= if all shards will be so much smaller",
            )


# ---- Beginning and joining


def begin(
    jobs: Sequence[Job], engine: Engine, stack: contextlib.ExitStack, free: Collection[Target]
) -> list[Session]:
    """Begin or join a run for each job, after all targets were checked.

    - `free`: targets where nothing stood a moment ago, as `untouched` tells.

    - Raises RunEndedError if another process ends a run in the meantime.
    """
    _check_apart(jobs)
    if len(jobs) > 1:
        _check_not_nested(jobs)
    for job in jobs:
        check_needs(job, engine)
    if any(job.options.mode != "w-" or job.options.publish == "first" for job in jobs):
        from shardwrite.runs.reads import check_not_read  # of arrays that change

        check_not_read(jobs)
    first_free = firsts_of(job.target for job in jobs if job.target in free)
    firsts = firsts_of(job.target for job in jobs if job.target not in free)
    for job in jobs:
        if job.target not in free:
            check_surroundings(job.target, looks_above=job.target in firsts)
            check_place(job, looks_above=job.target in firsts)
        elif job.target in first_free:
            _check_above(job.target)
    check_lists({job.target: job.plan.metadata for job in jobs if _is_listed_anew(job)})
    there = [job for job in jobs if job.target not in free]
    _refuse_left_alone(there)
    for job in there:
        _refuse_overlapping(job)
    sessions, new = _begin_all(jobs, engine, stack, free)
    files, plain = dict[Path, list[JournalFile]](), set[object]()
    for session in sessions:
        begin_group(session.directory.target)
    # Of two calls for some of the same arrays, one finds all of these free.
    for session in sorted(sessions, key=lambda session: session.job.target.label):
        with _going_on(session.directory), _cancelling_updates(new, sessions):
            session.directory.make_room(plain)
    for directory in {session.directory.shared: session.directory for session in sessions}.values():
        with _going_on(directory):
            confirm(directory.target)
    for session in sessions:
        with _going_on(session.directory):
            if session.job.target.store.commits_later:
                session.put_document()
            elif session.job.options.publish == "first" and session.job.options.mode != "r+":
                session.publish_first()
            session.list_before()
            session.catch_up(engine, may_list=True, files=_journals_of(session, sessions, files))
        _tell_source(session)
    _check_sources(sessions)
    _sync_above(sessions)
    return sessions


def _is_listed_anew(job: Job) -> bool:
    """Whether a job changes what groups above list of its array."""
    return job.makes_array or job.plan.append_axis is not None


def _check_above(target: Target) -> None:
    """Check what lies above a new array where nothing stands; it holds for all in the same group.

    What is left there of runs that nobody goes on with is removed.
    """
    kinds = check_surroundings(target)
    check_around(target.place)
    check_groups_above(target.place)
    warn_of_v2(target, kinds)
    if target.home is None or is_there(target.home.parent):
        drop_removed(target)
        with as_store_error(str(target.run_path), "cannot remove what is left above"):
            tidy_home(target)


def _check_sources(sessions: Sequence[Session]) -> None:
    """Check that nothing is computed from arrays that the same run has replaced already."""
    records = [session.directory.record for session in sessions]
    if any(record.aside and record.replaces for record in records):
        from shardwrite.runs.reads import check_not_replaced  # of arrays that change

        check_not_replaced(sessions)


def _sync_above(sessions: Sequence[Session]) -> None:
    """Make the names of arrays durable that lie beside another one, by one sync for all.

    Else the first commit to each of them would do so. Arrays that are built aside get their names
    later, and what they are built in was synced with the directory of the run.
    """
    above: dict[Path, list[Session]] = {}
    for session in sessions:
        job, run = session.job, session.directory
        if run.record.aside:
            if not run.record.replaces:
                note_synced(session.driver, [run.path / NEW])
            continue
        if job.durability != "none" and isinstance(job.target.place, Directory):
            above.setdefault(job.target.place.path.parent, []).append(session)
    for directory, beside in above.items():
        if len(beside) > 1:
            with as_store_error(str(directory), "cannot make durable"):
                fsync_directory(directory)
            for session in beside:
                note_synced(session.driver, [session.job.target.directory.path])


def _journals_of(
    session: Session, sessions: Sequence[Session], read: dict[Path, list[JournalFile]]
) -> Sequence[JournalFile]:
    """Content of the journals of a session's run, which are read once for all of its arrays.

    Then also what dead processes have left in the directory of the run is removed.
    """
    path, among = session.directory.shared, session.journal_directories
    if path not in read:
        n_shards = session.job.plan.metadata.grid.n_shards
        read[path] = journals(session.directory, n_shards, among=among)
        targets = [each.job.target for each in sessions if each.directory.shared == path]
        sweep_run(session.directory, targets, among)
    return read[path]


def _tell_source(session: Session) -> None:
    """Warn if shards are kept that may have been written from other data."""
    plan = session.job.plan
    if plan.staged_with is not None:
        return  # `runs.staged` does so, with its own remedy
    if session.n_resumed:
        kept = f"{session.n_resumed:,} shards of {session.job.target.label} are kept from an "
        warn_of_unnamed(
            plan.source.identity, kept + "interrupted run", "start over with restart=True"
        )


def _begin_all(
    jobs: Sequence[Job], engine: Engine, stack: contextlib.ExitStack, free: Collection[Target]
) -> tuple[list[Session], list[RunDirectory]]:
    """Begin or join the runs of all jobs, none of which has changed an array yet.

    - Returns: a session for each job, and the runs that are new.

    New arrays of one hierarchy are written by one run. If one of the runs cannot begin, the new
    runs of the others are taken back.
    """
    begun: dict[Target, RunDirectory] = {}
    sessions: dict[Target, Session] = {}
    new: list[RunDirectory] = []
    try:
        for together in _in_one_run(jobs):
            first = together[0]
            directories = begin_beside(
                [_request(job) for job in together],
                restart=first.options.restart,
                durability=first.durability,
                free=free,
                are_checked=True,
            )
            new += [run for run, is_new in directories if is_new][:1]
            for job, (directory, is_new) in zip(together, directories, strict=True):
                begun[job.target] = directory
                _check_shape(job, directory, is_new=is_new)
                verb = "begun" if is_new else "joined"
                tell(RUNS, logging.INFO, f"{verb}: {_described(job)}", run=directory.path)
            for directory in {directory.shared: directory for directory, _ in directories}.values():
                own = [job for job in together if begun[job.target].shared == directory.shared]
                _probe(own, directory, engine)
                opened = stack.enter_context(_open(own, [begun[job.target] for job in own]))
                sessions |= {session.job.target: session for session in opened}
    except BaseException:
        drivers = [session.driver for session in sessions.values()]
        for directory in reversed(new):  # see `runs.staged`
            cancel_unused(directory, drivers)
        raise
    return [sessions[job.target] for job in jobs], new


@contextlib.contextmanager
def _cancelling_updates(new: Sequence[RunDirectory], sessions: Sequence[Session]) -> Iterator[None]:
    """Take new updates back if the block is refused, since what they were planned for is gone."""
    try:
        yield
    except JournalError:
        drivers = [session.driver for session in sessions]
        for directory in new:
            if not directory.makes_array:
                cancel_unused(directory, drivers)
        raise


def _in_one_run(jobs: Sequence[Job]) -> list[list[Job]]:
    """The jobs, by the runs that write them."""
    runs: dict[object, list[Job]] = {}
    can_be_made = cache(_can_be_made)
    for job, way in zip(jobs, ways_to([job.target for job in jobs]), strict=True):
        home = job.target.home if job.makes_array or job.is_together else None
        is_alone = home is None or not can_be_made(home)
        if is_alone and job.is_together and job.plan.append_axis is not None and len(jobs) > 1:
            raise _no_common_run(job)
        how = way, job.options.restart, job.durability, job.makes_array
        key = job.target if is_alone else (home, how)
        runs.setdefault(key, []).append(job)
    return list(runs.values())


def _no_common_run(job: Job) -> SpecError:
    """Error of appends that could only have runs apart, one of which may end without the others."""
    return SpecError(
        "an append to several arrays is one run, whose state needs a directory beside the root of "
        "their store",
        field="store",
        value=job.target.label,
        remedy="ask for the right to write there",
    )


def _can_be_made(directory: Path) -> bool:
    """Whether this user may make a directory, as far as the rights of those above it tell."""
    there = next(path for path in (directory, *directory.parents) if is_there(path))
    return os.access(there, os.W_OK | os.X_OK)


def _request(job: Job) -> Request:
    """What a run is begun for."""
    metadata = job.plan.metadata
    intent = intent_of(job.plan, job.options.mode)
    return Request(job.target, intent, metadata.text, metadata.grid.n_shards, job.keeps_old)


def _described(job: Job) -> str:
    """A run in a few words."""
    what = "update" if job.is_update else "array" if job.makes_array else "repair"
    return (
        f"{what} {job.target.label}, {job.plan.metadata.grid.n_shards:,} shards, "
        f"{job.plan.strategy.label}, durability {job.durability}"
    )


def join(
    jobs: Sequence[Job],
    engine: Engine,
    stack: contextlib.ExitStack,
    *,
    may_list: bool,
    trusts_journals: bool = False,
) -> list[Session]:
    """Work on the runs of some jobs, or of one on several arrays, which others have begun.

    A process that writes a part looks at nothing that other parts have in the directories.

    - `may_list`: whether arrays may be listed; see `sweep`.
    - `trusts_journals`: see `Session.catch_up`.
    - Raises RunEndedError if another process has ended one of the runs.
    """
    together = dict[Path, list[tuple[Job, RunDirectory]]]()
    for job in jobs:
        if job.begun is None:
            raise ValueError(f"no run was given for {job.target.label}")
        _refuse_other_plan(job, job.begun)
        together.setdefault(job.begun.shared, []).append((job, job.begun))
    opened = dict[Target, Session]()
    for each in together.values():
        (job, directory), own = each[0], None
        if job.part is not None and directory.view is not None:
            from shardwrite.journal.parts import enter_part  # for runs written in parts

            own = enter_part(directory, job.part.index, job.part.count)
        runs = [run for _, run in each]
        sessions = stack.enter_context(_open([job for job, _ in each], runs, own))
        opened |= {session.job.target: session for session in sessions}
    joined = [opened[job.target] for job in jobs]
    files = dict[Path, list[JournalFile]]()
    for session in joined:
        job, path = session.job, session.directory.path
        session.only = None if job.part is None else _shards_of(job.part)
        told = f"joined for {session.n_selected:,} shards: {_described(job)}"
        tell(RUNS, logging.INFO, told, run=path)
        with as_store_error(str(path), "cannot go on with"):
            if session.directory.record.aside:  # whoever has begun the run may have been killed
                session.directory.make_room(set())
            session.list_before()
            read = _journals_of(session, joined, files)
            session.catch_up(engine, may_list=may_list, files=read, trusts_journals=trusts_journals)
    _check_sources(joined)
    return joined


def _shards_of(part: Part) -> npt.NDArray[np.bool_]:
    """Whether each shard of an array belongs to a part, bool, shape (n_shards,)."""
    grid = part.plan.metadata.grid
    shards = np.zeros(grid.counts, dtype=bool)
    for box in part.boxes():
        shards[grid.shard_range(box).slices] = True
    return shards.ravel()


def _refuse_other_plan(job: Job, directory: RunDirectory) -> None:
    """Refuse to join a run of another plan."""
    if directory.digest != job.plan.digest:
        changed = differences(directory.record.identity.to_dict(), job.plan.identity.to_dict())
        raise JournalError(
            f"another plan was begun for {job.target.label}; it differs in {'; '.join(changed)}"
            f"{same_source_remedy(changed)}",
            path=str(directory.target.run_path),
            differences=changed,
        )


@contextlib.contextmanager
def _going_on(directory: RunDirectory) -> Iterator[None]:
    """Name the run in errors of the storage, unless it has ended in the meantime."""
    with ended_or(directory), as_store_error(str(directory.path), "cannot go on with"):
        yield


@contextlib.contextmanager
def ended_or(directory: RunDirectory) -> Iterator[None]:
    """Turn an error of the storage into `RunEndedError` if the run has ended in the meantime."""
    try:
        yield
    except OSError as error:
        if not directory.has_ended and not _is_published_elsewhere(directory, error):
            raise
        if is_amid_end(directory, error):
            raise
        raise RunEndedError(
            "another process has ended this run", path=str(directory.path)
        ) from error


def _is_published_elsewhere(directory: RunDirectory, error: OSError) -> bool:
    """Whether a path is missing because another process is handing over the array of the run."""
    return error.errno == errno.ENOENT and directory.is_closed


@contextlib.contextmanager
def _open(
    jobs: Sequence[Job], directories: Sequence[RunDirectory], part: PartDirectory | None = None
) -> Iterator[list[Session]]:
    """Work on a run under a lease, with a session for each of its arrays.

    A failure is noted in the journal, and part files are removed at the end.

    - `part`: where this process works, if it only writes a part.
    """
    driver, path = new_name(), directories[0].shared
    own = None if part is None else part.path
    sessions = [
        Session(job, directory, driver, Ledger(job.plan.metadata.grid), part=part)
        for job, directory in zip(jobs, directories, strict=True)
    ]
    with ended_or(directories[0]), taking_part(path, driver, own):
        try:
            sessions[0].make_parts()  # for all of them
            yield sessions
        except (Stopped, RunEndedError):  # not a failure: requested, or caused by another process
            tell(RUNS, logging.INFO, "this process leaves the run", run=path)
            raise
        except Exception as error:
            # INFO, since the error is raised
            tell(RUNS, logging.INFO, f"failed: {text_of(error)}", run=path)
            sessions[0].note_failure(error)
            raise
        finally:
            sessions[0].discard_parts()


def _check_apart(jobs: Sequence[Job]) -> None:
    """Refuse two jobs for one place, unless they update different shards of one array."""
    places: dict[tuple[str, str], list[Job]] = {}
    real = cache(os.path.realpath)
    for job in jobs:
        beside = job.target.beside
        places.setdefault((real(beside.parent), beside.name), []).append(job)
    pairs = (itertools.combinations(of_place, 2) for of_place in places.values())
    for one, other in itertools.chain.from_iterable(pairs):
        paths = [one.target.label, other.target.label]
        if not one.is_update or not other.is_update:
            raise SpecError(
                "two arrays cannot go to one place",
                field="stores",
                value=paths,
                remedy="give each its own path or name",
            )
        regions = [one.plan.array_region, other.plan.array_region]
        grows = one.plan.append_axis is not None or other.plan.append_axis is not None
        if grows or _shards(one).intersect(_shards(other)).size:
            raise SpecError(
                "two of them change the same shards, or the shape",
                field="regions",
                value=[None if at is None else at.bounds for at in regions],
                remedy="write them in two calls, or cut them where shards meet",
            )


def _check_not_nested(jobs: Sequence[Job]) -> None:
    """Refuse arrays of which one would lie inside another; `check_target` sees those that exist."""
    real = cache(os.path.realpath)

    def where(place: Place) -> str:
        if isinstance(place, Directory):
            return os.path.join(real(place.path.parent), place.path.name)
        store = cast("InStore", place)
        return "/".join(filter(None, (store.base.token.rstrip("/"), store.name)))

    made = {where(job.target.place): job.target.label for job in jobs if job.makes_array}
    for path, label in made.items():
        parts = path.split("/")
        around = ("/".join(parts[:n]) for n in range(len(parts) - 1, 0, -1))
        outer = next((made[one] for one in around if one in made), None)
        if outer is not None:
            raise SpecError(
                f"would lie inside the array {outer}, which this call makes, too",
                field="store",
                value=label,
                remedy="give a path outside of it, or a group for both",
            )


def _shards(job: Job) -> Box:
    """Positions of the shards that an update touches."""
    return Box.from_shape(job.plan.first_shard, job.plan.metadata.grid.counts)


def check_place(job: Job, *, looks_above: bool = True) -> None:
    """Refuse to write where something stands that must not be overwritten.

    The shards of a run that has not ended look like files of somebody else. Another process may
    begin such a run right after this one has looked for runs. So this looks again before it
    refuses.
    """
    if _is_begun(job):
        return
    try:
        _check_place(job, looks_above=looks_above)
        is_refused = False
    except SpecError:
        is_refused = True
    if is_refused:
        job.target.place.forget()  # nothing is refused because of an earlier look
        if not _is_begun(job):
            _check_place(job, looks_above=looks_above)
    if job.makes_array and looks_above:
        warn_of_v2(job.target)


def _check_place(job: Job, *, looks_above: bool) -> None:
    refuse_another(job)
    mode, remedy = job.options.mode, job.options.remedy_if_there
    check_target(job.target, mode, remedy, looks_above=looks_above)
    if job.options.mode == "w" and not why_kept(job.plan.metadata.document):
        refuse_kept(job.target)


def _is_begun(job: Job) -> bool:
    """Whether there is a run of the same kind that has not ended."""
    found = tidied_run(job.target)
    return found is not None and found.makes_array == job.makes_array


def _refuse_overlapping(job: Job) -> None:
    """Refuse to go on if other runs write the same shards.

    With ``restart=True``, updates that nobody works on are given up instead.
    """
    intent, restart = intent_of(job.plan, job.options.mode), job.options.restart
    with as_store_error(str(job.target.run_path), "cannot give up what stands in the way in"):
        found = tidied_run(job.target)
        if restart and found is not None and not found.makes_array:
            give_up_for_restart(found)
        refuse_overlapping_runs(job.target, intent, restart=restart)


def _refuse_left_alone(jobs: Sequence[Job]) -> None:
    """Refuse to go on with updates whose values the first of them kept, if its run is gone.

    They may have changed shards that it reads; see `runs.staged`.
    """
    staged = [job for job in jobs if job.plan.staged_with is not None]
    if len(staged) > 1 and tidied_run(staged[0].target) is None:
        left = next((job for job in staged if tidied_run(job.target) is not None), None)
        if left is not None:
            raise values_gone(left.target)


def values_gone(target: Target) -> JournalError:
    """Error of an update whose values went with the run of another one of the same call."""
    return JournalError(
        f"the values that an update was to write to {target.label} are gone, since another update "
        "of the same call was given up, or has ended. Some of its shards may be new. Give it up, "
        "too, with abandon (shardwrite abandon)",
        path=str(target.run_path),
    )


def _check_shape(job: Job, directory: RunDirectory, *, is_new: bool) -> None:
    """Refuse an update if the array's shape has changed between its plan and its begin.

    Such an update would treat elements that were added in between as if they did not exist.
    """
    region = job.plan.array_region
    if region is None:
        return
    found, label = job.target.shape, job.target.label
    planned = list(job.plan.metadata.document["shape"])
    before = [
        region.start[axis] if axis == job.plan.append_axis else n for axis, n in enumerate(planned)
    ]
    # The array may have grown by an earlier attempt at this append itself.
    is_known = not is_new or job.options.restart or was_left(job.target, job.plan)
    if found != before and not (found == planned and (is_known or _is_written(job, directory))):
        if is_new:
            cancel_begin(directory, is_claimed=True)
        raise JournalError(
            f"the shape of {label} became {found} while an update of {planned} was planned; make "
            "the same call again",
            path=label,
        )


def _is_written(job: Job, directory: RunDirectory) -> bool:
    """Whether others have joined a new run, and have written all shards of an array already.

    - Raises RunEndedError if they have ended it, too.
    """
    missing = replay(directory, job.plan.metadata).ledger.missing
    if len(missing) and directory.has_ended:
        raise RunEndedError("another process has ended this run", path=str(directory.path))
    return not len(missing)


def was_left(target: Target, plan: Plan) -> bool:
    """Whether the receipt of an array has this update."""
    return update_in(read_receipt(target), plan) is not None


def _probe(jobs: Sequence[Job], directory: RunDirectory, engine: Engine) -> None:
    """Check that every worker can write into the run directory, or finds the lease in the bucket.

    - Raises RunEndedError if another process has ended the run.
    """
    job = jobs[0]
    path, fence = str(directory.shared), fence_of(job.target)
    scratch = job.target.store.scratch
    token = str((directory.path / DOCUMENT).relative_to(directory.shared))
    outcomes = engine.on_every_worker(probe_here, path, token, fence, scratch)
    troubles = [(worker, one.trouble) for worker, one in outcomes.items() if one.trouble]
    if troubles:
        if directory.has_ended:
            raise RunEndedError("another process has ended this run", path=str(directory.path))
        worker, (message, number) = troubles[0]
        remedy = "give a directory that every worker can write to"
        if job.target.store.local_root is None:
            remedy = "give one as run_dir that every worker can write to"
        if fence is not None:
            remedy = "give all workers the same access to the bucket"
        raise StoreError(
            f"store={directory.target.label!r}: {len(troubles)} of {len(outcomes)} workers "
            f"cannot write there; {worker}: {message}; {remedy}",
            key=path,
            errno=number,
        )
    if scratch is not None:
        rooms = {worker: one.scratch for worker, one in outcomes.items() if one.scratch}
        check_scratch(rooms, scratch, max(map(needed_by, jobs)), engine.n_processes)
    is_spooled = any(not math.isinf(each.plan.bound.spool_ratio) for each in jobs)
    if is_spooled and any(one.is_far for one in outcomes.values()):
        from shardwrite.write.spool import no_spool  # for its error

        raise no_spool(path)


# ---- What a run needs of the store that it writes to


def check_needs(job: Job, engine: Engine) -> None:
    """Refuse a job whose store cannot do what the job needs, before anything is written."""
    store, label = job.target.store, job.target.label
    store.prepare()
    _check_size(job)
    grid = job.plan.metadata.grid
    if grid.n_shards:
        store.check_new_key(job.plan.metadata.shard_key((0,) * grid.ndim))
    if not engine.shares_memory:
        require(store, Capability.SHARED, field="store", value=label)
    if not job.makes_array:
        check_updatable(store, job.plan.strategy)
        check_unshared(job.target)
        if not (job.options.drop_hdf5 and job.plan.strategy.replaces):
            check_kind(job.plan.metadata, job.plan.strategy, store)
        _check_no_links(job.plan, store)
    _check_library(job.plan.strategy)
    _ = job.durability  # which refuses a level that the store cannot promise


def _check_size(job: Job) -> None:
    """Refuse shards that are larger than the store can take, or memory can hold until then.

    How large encoded chunks are that another array gives is known when they are copied.
    """
    if job.source.is_encoded:
        return
    plan, store = job.plan, job.target.store
    nbytes = int(plan.metadata.plain_nbytes / (plan.compression_ratio or 1))
    store.check_nbytes(nbytes, exists=not job.makes_array)
    held = waiting(plan.resources, store, plan.metadata)
    if held != plan.resources:
        replace(plan, resources=held).check_fits()


def check_updatable(store: Store, strategy: Strategy) -> None:
    """Refuse to change the shards of an array whose store cannot replace or edit objects."""
    store.check_writable()
    _check_library(strategy)
    if strategy.in_place:
        require(store, Capability.EDIT, field="strategy", value=strategy.label)
    remedy = "write the array again, or to a store that can"
    require(store, Capability.ATOMIC, field="store", value=type(store).__name__, remedy=remedy)


def check_unshared(target: Target) -> None:
    """Refuse to update an array where a change by another program meanwhile would be lost.

    A bucket of a service without conditions is such a place, unless the user says that nobody else
    writes there. What the service can do is found out here.
    """
    store = target.store
    store.prepare()
    if store.loses_changes:
        raise SpecError(
            f"{target.label} is in a bucket that cannot refuse a request if an object has changed "
            "meanwhile (CONDITIONAL), so an update could replace what another program has written, "
            "without an error",
            field="exclusive",
            value=False,
            remedy="give exclusive=True if nobody else writes to this array meanwhile",
        )


def check_kind(metadata: ArrayMetadata, strategy: Strategy, store: Store) -> None:
    """Refuse to change files of another format, as far as the first and the last shard tell.

    Tasks look at every shard before they change it. This tells earlier, so that nothing is begun.
    """
    grid = metadata.grid
    if grid.n_shards:
        ends = {(0,) * grid.ndim, tuple(n - 1 for n in grid.counts)}
        from shardwrite.read.signatures import refuse_change_among  # for updates

        refuse_change_among(metadata, strategy, store, sorted(ends))


def _check_no_links(plan: Plan, store: Store) -> None:
    """Refuse an update that would meet a link where a shard should be, before it begins.

    Of many shards, this looks at the first and the last one. Tasks look at each.
    """
    grid, region = plan.metadata.grid, plan.region
    if region is None:  # a repair, which writes few of the shards
        return
    from shardwrite.runs.old_shards import shards_at_ends  # for updates

    is_short = grid.shard_range(region).size <= _FEW_SHARDS
    indices = grid.shards_in(region) if is_short else shards_at_ends(grid, region)
    keys: dict[bool, list[str]] = {}
    for index in indices:
        is_whole = region.contains(grid.shard_box(index).intersect(grid.whole))
        keys.setdefault(is_whole, []).append(plan.metadata.shard_key(index))
    for is_whole, some in keys.items():
        store.check_no_links(some, are_whole=is_whole)


def _check_library(strategy: Strategy) -> None:
    """Refuse a strategy whose library is not installed."""
    framing = framing_of(strategy)
    if framing is not None:
        framing.check_library()
