"""Runs that another step watches, and runs that write only some of the shards for now."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from shardwrite.engines import Engine
from shardwrite.journal import holding
from shardwrite.runs.accepted import accepted
from shardwrite.runs.begin import begin
from shardwrite.runs.compute import compute_waves
from shardwrite.runs.execute import explaining, finished_before
from shardwrite.runs.job import Job
from shardwrite.runs.progress import OnReport, tell_found
from shardwrite.runs.result import WriteResult
from shardwrite.runs.session import Session
from shardwrite.write.context import GroupReport


def execute_watched(
    job: Job,
    engine: Engine,
    on_report: OnReport,
    on_begun: Callable[[Session], None],
    on_entered: OnReport,
) -> tuple[WriteResult, bool]:
    """Write an array, and say when the run has begun, and what is in its ledger.

    - `on_begun`: called with the session before the first task. It may enter shards into the
      ledger.
    - `on_entered`: called with the report of each group before `on_report` is.
    - Returns: False if the job was finished before.
    """
    with holding(job.target):
        job = accepted(job)
        result = finished_before(job, engine, on_report)
        if result is not None:
            return result, False
        return _watched(job, engine, on_report, on_begun, on_entered), True


def _watched(
    job: Job,
    engine: Engine,
    on_report: OnReport,
    on_begun: Callable[[Session], None],
    on_entered: OnReport,
) -> WriteResult:
    """See `execute_watched`, for a job that was not finished before."""
    start = time.perf_counter()
    with contextlib.ExitStack() as stack, explaining([job]) as begun:
        (session,) = begin([job], engine, stack)
        begun.append(session)
        on_begun(session)
        tell_found(on_report, session.resumed_nbytes)

        def entered(report: GroupReport) -> None:
            on_entered(report)
            on_report(report)

        compute_waves(session, engine, entered)
        session.n_retried = sum(session.driver in key[0] for key in engine.retried)
        return session.finish(time.perf_counter() - start)


def execute_settled(
    job: Job, engine: Engine, on_report: OnReport, is_settled: npt.NDArray[np.bool_]
) -> tuple[WriteResult, int]:
    """Write only some shards of an array, and end the run if no other is left.

    - `is_settled`: bool, shape (n_shards,). Whether a shard is to be written now.
    """
    with holding(job.target):
        job = accepted(job)
        result = finished_before(job, engine, on_report)
        return (result, 0) if result is not None else _settled(job, engine, on_report, is_settled)


def _settled(
    job: Job, engine: Engine, on_report: OnReport, is_settled: npt.NDArray[np.bool_]
) -> tuple[WriteResult, int]:
    """See `execute_settled`, for a job that was not finished before."""
    start = time.perf_counter()
    with contextlib.ExitStack() as stack, explaining([job]) as begun:
        (session,) = begin([job], engine, stack)
        begun.append(session)
        tell_found(on_report, session.resumed_nbytes)
        left = np.flatnonzero(~is_settled & ~session.ledger.is_done)
        session.ledger.is_done[left] = True  # for the graph only, and not in the journal
        try:
            compute_waves(session, engine, on_report)
        finally:
            session.ledger.is_done[left] = False
        if len(left):
            session.refuse_bad()
            return session.result(time.perf_counter() - start), len(left)
        return session.finish(time.perf_counter() - start), 0
