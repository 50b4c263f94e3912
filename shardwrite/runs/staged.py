"""Updates that read what they change: their values are kept first, and then shards are written.

An update that is interrupted would read values that it has changed already, and change them twice.
So it is a run that has another one inside. All updates of a call that change what one of them
reads take these steps together, and in italics is what a crash after each step leaves behind:

1. Begin the run of each update, the *keeper* first, which is the first update of the call. From now
   on, nobody else changes these shards. *Runs that have changed nothing.*
2. Write the values of each update as a new array, in the directory of the keeper's run. If that
   lies in a bucket, the arrays lie there, too. This is a run as any other. *The same call goes on
   with it, and still reads what nobody has changed.*
3. Publish these arrays, and end that run. *From now on, the same call reads them, and nothing
   else.*
4. Write the shards out of them. *Shards that are old or new, and all values.*
5. End the runs, the keeper last, which takes the arrays along. *If some runs have ended, their
   shards are written out of the same values again, or their receipts say that they are done.*

Values of a run that is given up are gone. Where this happens to the keeper alone, the others are
refused until they are given up, too, as they may have changed shards.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import shardwrite._dask as dask
from shardwrite.checks import flag
from shardwrite.engines.local import Engine
from shardwrite.errors import ChangedError, JournalError, PlanError, RunEndedError, SpecError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.journal.begin import find_run
from shardwrite.plan.model import SourceLayout
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.plan import Plan
from shardwrite.read.array import as_dask_array, open_at
from shardwrite.results import human
from shardwrite.runs.array_plan import ArrayChunks, plan_into, warn_of_unnamed
from shardwrite.runs.begin import values_gone
from shardwrite.runs.execute import OnReport, Progress, Run, execute, tell_earlier
from shardwrite.runs.job import Job, RunOptions, TaskBox, target_of_update
from shardwrite.runs.reads import are_read
from shardwrite.runs.result import WriteResult
from shardwrite.runs.session import Session
from shardwrite.stores.directories import fsync_directory
from shardwrite.stores.looking import as_store_error, is_there

_ATTRIBUTES = {"shardwrite": "values of an update, which are kept until its shards are written"}


# ---- Which updates these are


def staged_where_read(
    jobs: Sequence[Job], engine: Engine, *, is_asked: bool = False
) -> Sequence[Job]:
    """The same jobs, of which updates keep their values first if one reads what they change.

    - `is_asked`: whether they do so in any case.
    - Raises PlanError if the values do not fit into memory, or on the disk. Nothing was begun.
    """
    flag("staged", is_asked)
    updates = [job for job in jobs if job.is_update]
    if is_asked and len(updates) < len(jobs):
        raise SpecError(
            "is for updates, and this call makes a new array",
            field="staged",
            value=True,
            remedy="give a region for each array, or leave it out",
        )
    if not (updates and (is_asked or are_read(updates))):
        return jobs
    name = _name_of(updates)
    staged = [_staged(job, name) if job.is_update else job for job in jobs]
    kept = [job for job in staged if job.is_update]
    for job in kept:
        _plan_of_values(job, engine)
    _check_room(kept)
    return staged


def _name_of(updates: Sequence[Job]) -> str:
    """Name of the regions that some updates change together."""
    regions = [(job.plan.array_region, job.plan.append_axis) for job in updates]
    facts = [
        (job.target.place.array_name, None if box is None else box.bounds, axis)
        for job, (box, axis) in zip(updates, regions, strict=True)
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def _staged(job: Job, name: str) -> Job:
    """An update that keeps its values first, and has a run of its own for that."""
    if not isinstance(job.source, ArrayChunks):
        raise TypeError("an update has values of a dask array")
    plan = replace(job.plan, staged_with=name)
    source = NotKeptYet(job.source.x, job.source.region)
    return replace(job, source=source, plan=plan, target=target_of_update(job.target, plan))


class NotKeptYet(ArrayChunks):
    """Values of an update that are not kept yet, so that no task may write shards of them."""

    def write(self, at: TaskBox) -> NoReturn:  # noqa: ARG002 (the protocol's)
        """Raise TypeError."""
        raise TypeError("the values of this update are not kept yet")

    def encode(self, at: TaskBox) -> NoReturn:
        """Raise TypeError."""
        self.write(at)


def _plan_of_values(job: Job, engine: Engine) -> Plan:
    """Plan of the array that holds the values of an update.

    Its codecs lose nothing, whatever those of the array are that is changed.
    """
    plan, x = job.plan, _values_of(job)
    grid, dtype = plan.metadata.grid, plan.metadata.dtype
    options = ArrayOptions(attributes=_ATTRIBUTES)
    if dtype.hasobject and dtype.kind != "T":
        options = replace(options, serializer="vlen-bytes")
    metadata = make_metadata(x.shape, dtype, grid.shards, grid.chunks, options)
    layout = SourceLayout(x.chunks, plan.source.n_tasks, plan.source.identity)
    limits = PlanOptions(
        memory_limit=plan.resources.memory_limit_nbytes, max_graph_tasks=plan.max_graph_tasks
    )
    store = job.target.store if job.target.in_store else None
    return plan_into(metadata, layout, engine, limits, store, x=x)


def _values_of(job: Job) -> dask.array.Array:
    if not isinstance(job.source, ArrayChunks):
        raise TypeError("an update has values of a dask array")
    return job.source.x


def _check_room(jobs: Sequence[Job]) -> None:
    """Refuse updates whose values do not fit on the disk, unless they were begun before."""
    keeper = jobs[0].target
    if keeper.in_store or find_run(keeper) is not None:
        return
    there = next(path for path in keeper.beside.parents if is_there(path))
    with as_store_error(str(there), "cannot look at"):
        facts = os.statvfs(there)
    needed, free = sum(job.plan.kept_nbytes for job in jobs), facts.f_bavail * facts.f_frsize
    if needed > free:
        raise PlanError(
            "the source reads what the update changes, so its values are kept until all shards are "
            f"written. They may take {human(needed)} in {keeper.beside}, and {human(free)} are "
            "free",
            needed_nbytes=needed,
            allowed_nbytes=free,
            remedy="make room there, or write the values to another file system, and then that "
            "array into this one",
        )


# ---- The values of an open run


def execute_staged(
    jobs: Sequence[Job], engine: Engine, progress: bool | OnReport = False
) -> list[WriteResult]:
    """Write arrays as `execute` does, after the values of those updates are kept that need it."""
    n_kept = sum(job.plan.staged_with is not None for job in jobs)
    if not n_kept:
        return execute(jobs, engine, progress)
    return execute(jobs, engine, progress, first=partial(_keep_values, n_kept))


def _keep_values(n_kept: int, run: Run) -> None:
    """Have the updates of a run write values that are kept; see the steps above.

    - `n_kept`: number of updates that the call has of this kind.
    """
    sessions = [each for each in run.sessions if each.job.plan.staged_with is not None]
    if not sessions:
        return
    if not any(len(each.ledger.missing) for each in sessions):
        _warn_if_unnamed(sessions[0].job)
        tell_earlier(run.on_report, sum(each.job.plan.kept_nbytes for each in sessions))
        return
    keeper = sessions[0]
    if len(sessions) < n_kept:  # the keeper has ended, or is not the first any more
        raise values_gone(keeper.job.target)
    with _unless_ended(keeper):
        jobs = [
            _job_of_values(session, keeper, number, run.engine)
            for number, session in enumerate(sessions)
        ]
        if all(job.target.is_published for job in jobs):
            _take_computed(jobs, run)
        elif any(each.n_resumed for each in sessions):
            raise _changed(jobs, "they are missing")
        else:
            if not keeper.job.target.in_store:
                _make(jobs[0].target.beside.parent, keeper.job.durability)
            # A function of the user counts shards of the array, and a bar all that is written.
            shown = run.on_report if isinstance(run.on_report, Progress) else False
            execute(jobs, run.engine, shown)
    for session, job in zip(sessions, jobs, strict=True):
        x, plan = _values_of(session.job), session.job.plan
        kept = as_dask_array(open_at(job.target.place), x.chunks)
        session.job = replace(session.job, source=ArrayChunks(kept, plan.region))


def _job_of_values(session: Session, keeper: Session, number: int, engine: Engine) -> Job:
    """The job that writes the values of an update as an array."""
    options = RunOptions(durability=keeper.job.durability)
    target, source = keeper.directory.staged(number), ArrayChunks(_values_of(session.job))
    return Job(source, _plan_of_values(session.job, engine), target, options)


def _take_computed(jobs: Sequence[Job], run: Run) -> None:
    """Take all values that an interrupted call has computed, without computing one of them.

    The run that wrote them is finished first, if that call could not do it.
    """
    _warn_if_unnamed(jobs[0])
    is_begun = any(session.n_resumed for session in run.sessions)
    try:
        with Run.open(jobs, run.engine, mode="prepare") as found:
            missing = any(len(session.ledger.missing) for session in found.sessions)
            if missing and is_begun:
                raise _changed(jobs, "shards are missing")
            if found.sessions:  # it was published and did not end, so no other shard has changed
                found.execute()
    except (ChangedError, SpecError) as error:
        raise _changed(jobs, error.message) from error
    tell_earlier(run.on_report, sum(job.plan.raw_nbytes for job in jobs))


def _make(directory: Path, durability: str) -> None:
    """Make the directory of values, but not that of the run, which may have ended."""
    with as_store_error(str(directory), "cannot make"):
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
        if durability != "none":
            fsync_directory(directory.parent)


def _warn_if_unnamed(job: Job) -> None:
    """Warn if values are taken that may be those of another source."""
    kept = "values are taken that an interrupted call has computed"
    warn_of_unnamed(job.plan.source.identity, kept, "give that call up with abandon")


def _changed(jobs: Sequence[Job], why: str) -> JournalError:
    """Error of values that are not what they were, and cannot be computed again."""
    return JournalError(
        f"the values that an update was to write are not what they were: {why}. Some of its shards "
        "may be new. Give it up with abandon (shardwrite abandon)",
        path=jobs[0].target.label,
    )


@contextlib.contextmanager
def _unless_ended(keeper: Session) -> Iterator[None]:
    """Report the end of the update's run as such, and not what is missing since then.

    - Raises RunEndedError if another process has ended the run.
    """
    try:
        yield
    except Exception as error:
        if not keeper.directory.has_ended:
            raise
        path = str(keeper.directory.path)
        raise RunEndedError("another process has ended this run", path=path) from error
