"""Execution of jobs: begin sessions, compute their graphs, and end their runs.

Every operation ends here. Jobs that are written in parts, or later, have modules of their own:
:mod:`shardwrite.runs.in_parts` and :mod:`shardwrite.runs.delayed`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from shardwrite.engines.local import Engine, Stopped
from shardwrite.errors import (
    CorruptShardError,
    IncompleteError,
    RunEndedError,
    SpecError,
    WorkersLostError,
)
from shardwrite.journal.begin import find_run
from shardwrite.journal.holding import holding
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.replay import replay
from shardwrite.runs.begin import begin
from shardwrite.runs.compute import compute_again, compute_together, compute_waves
from shardwrite.runs.finished import finished, incomplete
from shardwrite.runs.job import Job, RunOptions
from shardwrite.runs.kept import accepted, check_finished_array
from shardwrite.runs.progress import OnReport, tell_found
from shardwrite.runs.result import WriteResult
from shardwrite.runs.session import Session, finish_together

__all__ = ["execute", "execute_missing", "explaining", "finished_before"]


def execute(
    jobs: Sequence[Job], engine: Engine, on_report: OnReport, *, looks_again: bool = False
) -> list[WriteResult]:
    """Write arrays.

    Jobs of one wave share one graph if they are not staged. Work on a common source is done once.

    - `jobs`: what to write. A job that was finished before is not run again.
    - `engine`: such as `active_engine` returns.
    - `looks_again`: see `looks_at_copy` of `compute_again`. This is done before any array is
      published.
    - Raises ChangedError if a job was finished before, and the array is not what its last run left.
    - Raises IncompleteError if the process was asked to stop and shards are missing.
    - Raises RunEndedError if another process took over a run, and has not finished the same plan.
    - Raises WorkersLostError if workers died while they ran tasks, or the cluster was lost.
    """
    start = time.perf_counter()
    with holding(*(job.target for job in jobs)):
        jobs = [accepted(job) for job in jobs]
        results = [finished_before(job, engine, on_report) for job in jobs]
        todo = [job for job, result in zip(jobs, results, strict=True) if result is None]
        try:
            with contextlib.ExitStack() as stack, explaining(todo) as begun:
                sessions = begin(todo, engine, stack)
                begun += sessions
                for session in sessions:
                    tell_found(on_report, session.resumed_nbytes)
                together = [
                    s for s in sessions if len(s.job.plan.waves) == 1 and not s.job.is_staged
                ]
                compute_together(together, engine, on_report)
                for session in (s for s in sessions if s not in together):
                    compute_waves(session, engine, on_report)
                for session in sessions:
                    compute_again(session, engine, on_report, looks_at_copy=looks_again)
                for session in sessions:
                    session.n_retried = sum(session.driver in key[0] for key in engine.retried)
                seconds = [time.perf_counter() - start] * len(sessions)
                done = iter(finish_together(sessions, seconds))
        except (RunEndedError, SpecError) as error:
            if isinstance(error, SpecError) and error.fields["field"] != "store":
                raise
            path = error.fields["path"] if isinstance(error, RunEndedError) else ""
            joined = Path(path).name.removeprefix("run-")
            # Another process may have written the same plan, and finished first.
            ended = [finished(job, joined) for job in jobs]
            if any(result is None for result in ended):
                raise
            return cast("list[WriteResult]", ended)
    return [next(done) if result is None else result for result in results]


def finished_before(job: Job, engine: Engine, on_report: OnReport) -> WriteResult | None:
    """The result of a job that was finished before, after lost objects are written again."""
    found = check_finished_array(job, engine)
    there = found.good_shards
    if there is None:
        if found.result is not None:
            tell_found(on_report, found.result.raw_nbytes)
        return found.result
    again = replace(job, options=RunOptions(mode="r+", durability=job.options.durability))
    return execute_missing(again, engine, on_report, lambda: there)


@contextlib.contextmanager
def explaining(jobs: Sequence[Job]) -> Iterator[list[Session]]:
    """Report the missing shards if the block is stopped, or its workers are lost.

    - Raises IncompleteError in place of `Stopped`, if a run has not ended.
    - Raises WorkersLostError with a note about the missing shards of each run that has not ended.
    """
    begun: list[Session] = []
    try:
        yield begun
    except Stopped:
        for error in _missing(
            jobs, begun, "it was stopped on request; run the same command again to go on"
        ):
            raise error from None
        raise
    except WorkersLostError as error:
        for missing in _missing(jobs, begun, "what is there is kept"):
            error.add_note(missing.message)
        raise


def _missing(
    jobs: Sequence[Job], begun: Sequence[Session], remedy: str
) -> Iterator[IncompleteError]:
    """One error for each run that was begun and has not ended, with its missing shards."""
    # Tasks that were in flight have ended since then, and their reports did not arrive.
    for session in begun:
        session.learn()
    sessions = {session.job.target: session for session in begun}
    for job in jobs:
        directory = find_run(job.target)
        if directory is not None:
            ledger = (
                sessions[job.target].ledger
                if job.target in sessions
                else replay(directory, job.plan.metadata).ledger
            )
            yield incomplete(job.plan.metadata, job.target, ledger.missing, remedy)


def execute_missing(
    job: Job,
    engine: Engine,
    on_report: OnReport,
    look: Callable[[], Ledger],
    check: Callable[[], None] = lambda: None,
) -> WriteResult:
    """Write the shards of an existing array that `look` does not find good.

    While the run lasts, no other run writes these shards. So `look` sees everything that was
    written before.

    - `look`: called when the run has begun. It returns a ledger in which the good shards are done.
    - `check`: called after all shards are written and before the run ends. An exception from it
      keeps the run from ending.
    - Raises CorruptShardError if `check` raises it.
    """
    start = time.perf_counter()
    with holding(job.target), contextlib.ExitStack() as stack, explaining([job]) as begun:
        (session,) = begin([job], engine, stack)
        begun.append(session)
        session.ledger.become(look())
        session.note_resumed()
        tell_found(on_report, session.resumed_nbytes)
        compute_waves(session, engine, on_report)
        try:
            check()
        except CorruptShardError as error:
            if session.directory.has_ended:
                raise RunEndedError(
                    "another run has taken this one's place", path=str(session.directory.path)
                ) from error
            raise
        return session.finish(time.perf_counter() - start)
