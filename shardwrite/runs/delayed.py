"""Runs that begin now and are computed later, as part of a graph of dask."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from shardwrite.engines import Engine
from shardwrite.runs.begin import begin
from shardwrite.runs.compute import one_graph
from shardwrite.runs.job import Job
from shardwrite.runs.session import Session, finish_together
from shardwrite.runs.source import NoChunks
from shardwrite.write.context import GroupReport

__all__ = ["as_delayed"]


def as_delayed(jobs: Sequence[Job], engine: Engine) -> Delayed:
    """Begin runs, and return the rest of :func:`execute` as one `Delayed`.

    No lease is held after this function returns.

    Raises
    ------
    SpecError, JournalError, StoreError
        If a run cannot begin.
    """
    with contextlib.ExitStack() as stack:
        sessions = begin(jobs, engine, stack)
    for session in sessions:
        session.directory.parts(session.driver).mkdir()
    merged, keys = one_graph(sessions, engine)
    name = f"shardwrite-finish-{sessions[0].driver if sessions else 'nothing'}"
    todo = _Sessions(tuple(replace(session, job=_finishing(session.job)) for session in sessions))
    layers: dict[str, Any] = {**merged.layers, name: {name: (_finish_delayed, todo, keys)}}
    return Delayed(name, HighLevelGraph(layers, {**merged.dependencies, name: set(merged.layers)}))


def _finishing(job: Job) -> Job:
    """The job without its source, which would travel with the task that finishes the run."""
    return replace(job, source=NoChunks(job.plan.region))


@dataclass(frozen=True, slots=True)
class _Sessions:
    """A tuple of sessions, wrapped so that dask does not search it for keys."""

    sessions: tuple[Session, ...]


def _finish_delayed(todo: _Sessions, reports: Sequence[Sequence[GroupReport]]) -> Any:
    """Enter the reports of each session and end its run; a list of results if there are several."""
    for session, done in zip(todo.sessions, reports, strict=True):
        for report in done:
            session.enter(report)
    seconds = [sum(report.seconds for report in done) for done in reports]
    results = finish_together(todo.sessions, seconds)
    return results[0] if len(results) == 1 else results
