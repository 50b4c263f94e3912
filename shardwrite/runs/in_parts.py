"""Runs that are written in parts by processes without a scheduler: begin, write a part, finish."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from shardwrite.engines.local import Engine, Stopped
from shardwrite.errors import IncompleteError
from shardwrite.grid import ravel
from shardwrite.host.resources import set_stripes
from shardwrite.journal.begin import find_run, tidied_run
from shardwrite.journal.bucket_shares import sharing
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.neighbours import tidy
from shardwrite.journal.parts import run_of_part
from shardwrite.journal.replay import replay
from shardwrite.journal.rundir import RunDirectory, holding
from shardwrite.place.target import Target
from shardwrite.plan.plan import Part, Stretch
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import ranks_of_objects
from shardwrite.runs.begin import Joining, begin, join
from shardwrite.runs.execute import OnReport, compute_waves, tell_found
from shardwrite.runs.job import Job, RunOptions, in_one_state
from shardwrite.runs.kept import accepted, check_kept
from shardwrite.runs.result import WriteResult, finished, incomplete
from shardwrite.runs.session import Session, finish_together


def prepare_jobs(jobs: Sequence[Job], engine: Engine, stripe_count: int | None = None) -> None:
    """Begin or join runs that are written in parts, and make the directories of their shards.

    - `jobs`: what to write. A job that was finished before is left out.
    - `stripe_count`: number of Lustre targets over which each shard is spread. By default, the
      setting of the directory is kept.
    - Raises ChangedError if a job was finished before, and the array is not what its last run left.
    """
    if stripe_count is not None:
        for job in jobs:
            _ = job.target.directory  # which refuses what is no directory, before a run begins
    jobs = in_one_state(jobs)
    with holding(*(job.target for job in jobs)), contextlib.ExitStack() as stack:
        todo = []
        for job in map(accepted, jobs):
            if finished(job) is None:
                todo.append(job)
            else:
                check_kept(job.target, engine)
        for session in begin(todo, engine, stack):
            if stripe_count is not None:
                # This comes first, because new directories inherit the setting.
                set_stripes(session.job.target.directory.path, stripe_count)
            session.make_shard_directories()


def execute_part(
    job: Job, run: RunDirectory, part: Part, engine: Engine, on_report: OnReport
) -> WriteResult:
    """Write one part of a run that another process has begun; see `execute_parts`."""
    return execute_parts([(job, run, part)], engine, on_report)[0]


def execute_parts(
    begun: Sequence[tuple[Job, RunDirectory, Part]], engine: Engine, on_report: OnReport
) -> list[WriteResult]:
    """Write what one part has of some arrays, whose runs another process has begun.

    - Raises IncompleteError if the process was asked to stop. The error names missing shards of
      this part and of one array only.
    - Raises RunEndedError if one of the runs has ended in the meantime.
    """
    start = time.perf_counter()
    runs = [Joining(job, run, _ranks_of(part)) for job, run, part in begun]
    number = (begun[0][2].index, begun[0][2].count) if begun else None
    with join(runs, engine, may_list=False, part=number) as sessions:
        for one, session in zip(runs, sessions, strict=True):
            session.note_resumed(list(one.only))
            tell_found(on_report, session.resumed_nbytes)
        return [
            _write_share(session, one, part, engine, on_report, start)
            for session, one, (_, _, part) in zip(sessions, runs, begun, strict=True)
        ]


def _ranks_of(part: Part) -> list[int]:
    """Ranks of the shards of a part."""
    grid = part.plan.metadata.grid
    return [ravel(index, grid.counts) for box in part.boxes() for index in grid.shards_in(box)]


def _write_share(
    session: Session,
    run: Joining,
    part: Part,
    engine: Engine,
    on_report: OnReport,
    start: float,
) -> WriteResult:
    """Write what a part has of one array."""
    job, ranks = run.job, list(run.only)
    try:
        compute_waves(session, engine, on_report, part.groups)
    except Stopped:
        session.learn()
        missing = [rank for rank in ranks if not session.ledger.is_done[rank]]
        if missing:  # else the tasks in flight have finished the part
            remedy = (
                f"these are of {part}; it was stopped on request, run the same command again to go "
                "on"
            )
            error = incomplete(job.plan.metadata, job.target, missing, remedy)
            n_written = len(ranks) - len(missing) - session.n_resumed
            raise IncompleteError(
                error.message, missing=error.fields["missing"], n_written=n_written
            ) from None
    session.refuse_bad()
    whole, session.ledger = session.ledger, Ledger(job.plan.metadata.grid)
    session.ledger.take(whole, ranks)
    return session.result(time.perf_counter() - start, n_tasks=len(part.groups))


def refuse_unwritten(
    job: Job, run: RunDirectory, n_parts: int | None, among: Stretch | None = None
) -> None:
    """Raise what `finish_parts` raises if shards are missing, without a look at their indexes.

    Shards that are there, but in no journal, are taken for written; `finish_parts` looks at them.

    - Raises IncompleteError if shards are missing.
    """
    metadata = job.plan.metadata
    ledger = replay(run, metadata).ledger
    if len(ledger.missing) and metadata.is_sharded:
        array = ShardedArray(metadata, job.target.store)
        ledger.is_done[ranks_of_objects(array, job.target.label)] = True
    refuse_missing(job, ledger, n_parts, among)


def refuse_missing(
    job: Job, ledger: Ledger, n_parts: int | None, among: Stretch | None = None
) -> None:
    """Raise what `finish_parts` raises if shards are missing in a ledger.

    - Raises IncompleteError if shards are missing.
    """
    plan, missing = job.plan, ledger.missing
    if len(missing):
        left = ledger.left_in_groups(plan.partition.group_edges)
        parts = [] if n_parts is None else plan.parts_with(left, n_parts, among)
        error = incomplete(plan.metadata, job.target, missing, remedy_of_parts(parts, n_parts))
        raise IncompleteError(error.message, missing=error.fields["missing"], parts=parts)


def finish_parts(
    job: Job,
    run: RunDirectory,
    engine: Engine,
    n_parts: int | None,
    *,
    trusts_journals: bool = False,
) -> WriteResult:
    """Check the index of every shard of a run, and publish the array if no shard is missing.

    - `job`: the plan of the run. Its source is not asked for chunks.
    - Raises IncompleteError if shards are missing. The error names them, and their parts if
      `n_parts` is given.
    - Raises RunEndedError if the run has ended in the meantime.
    """

    def check(sessions: Sequence[Session]) -> None:
        refuse_missing(job, sessions[0].ledger, n_parts)

    return finish_all([(job, run)], engine, check, trusts_journals=trusts_journals)[0]


def finish_all(
    begun: Sequence[tuple[Job, RunDirectory]],
    engine: Engine,
    check: Callable[[Sequence[Session]], None],
    *,
    trusts_journals: bool = False,
) -> list[WriteResult]:
    """Check the index of every shard of several runs, and publish all arrays together.

    - `check`: called with sessions that know which shards are good. If it raises, nothing is
      published.
    - `trusts_journals`: whether indexes are not read that tasks have noted.
    - Raises RunEndedError if one of the runs has ended in the meantime.
    """
    start = time.perf_counter()
    runs = [
        Joining(job, run, range(job.plan.n_shards), trusts_journals=trusts_journals)
        for job, run in begun
    ]
    with join(runs, engine, may_list=True) as sessions:
        check(sessions)
        return finish_together(sessions, [time.perf_counter() - start] * len(sessions))


def remedy_of_parts(parts: Sequence[int], n_parts: int | None) -> str:
    """Text that says which parts must be written again."""
    if n_parts is None:
        return "write their parts again; give the number of parts to be told which"
    listed = f"{', '.join(map(str, parts[:20]))}{', ...' if len(parts) > 20 else ''}"
    return f"part{'s' if len(parts) > 1 else ''} {listed} of {n_parts} must be written again"


def options_of_run(run: RunDirectory) -> RunOptions:
    """Mode and durability with which the run was begun."""
    return RunOptions(mode=run.record.mode, durability=run.record.durability)


@contextlib.contextmanager
def run_on(
    target: Target, check: Callable[[RunDirectory], None] | None
) -> Iterator[RunDirectory | None]:
    """The unfinished run of an array, for a process that writes a part, or ends it with `check`.

    - `check`: given by a process that ends the run; see `working_on`. None for a process that
      writes a part. Where the state lies in the bucket, several of these work at a time.
    - Yields: the run; None if there is none.
    """
    if target.in_store:
        with sharing(target) as shared:
            run = find_run(shared)
            if check is None:
                yield run
                return
            if run is not None and run.makes_array:
                check(run)
    with holding(target):
        found = run_of_part(target) if check is None else None
        if found is None:
            tidy(target)
            found = tidied_run(target) if check is not None else run_of_part(target)
        yield found


@contextlib.contextmanager
def runs_on(
    targets: Sequence[Target], check: Callable[[Mapping[int, RunDirectory]], None]
) -> Iterator[dict[int, RunDirectory]]:
    """The unfinished runs that make some arrays, by their numbers, for a process that ends them.

    - `check`: as in `run_on`, for those whose state lies in their bucket.
    """
    with contextlib.ExitStack() as stack:
        shared = {
            number: find_run(stack.enter_context(sharing(target)))
            for number, target in enumerate(targets)
            if target.in_store
        }
        check(_making(shared))
    with holding(*targets):
        yield _making(dict(enumerate(_found(targets))))


def _making(runs: Mapping[int, RunDirectory | None]) -> dict[int, RunDirectory]:
    return {n: run for n, run in runs.items() if run is not None and run.makes_array}


def _found(targets: Sequence[Target]) -> Iterator[RunDirectory | None]:
    """The run of each array. A run on several arrays is looked for once."""
    known = dict[Target, RunDirectory]()
    for target in targets:
        if target not in known:
            tidy(target)
            run = tidied_run(target)
            known |= {} if run is None else {one.target: one for one in run.outputs()}
        yield known.get(target)
