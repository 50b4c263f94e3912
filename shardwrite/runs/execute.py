"""Execution of jobs: begin sessions, build graphs, run them on an engine, and collect reports.

This is the only place where these parts are put together.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from shardwrite.engines import Engine, Stopped
from shardwrite.errors import (
    CorruptShardError,
    IncompleteError,
    RunEndedError,
    SpecError,
    WorkersLostError,
)
from shardwrite.grid import ravel
from shardwrite.host.lustre import set_stripes
from shardwrite.journal import Ledger, RunDirectory, find_run, replay
from shardwrite.plan import Part
from shardwrite.runs.fusion import fuse_source, is_worth_fusing
from shardwrite.runs.job import Job, finished, incomplete
from shardwrite.runs.result import WriteResult
from shardwrite.runs.session import Session, begin, join
from shardwrite.runs.source import NoChunks
from shardwrite.write.commit import GroupReport

__all__ = [
    "as_delayed",
    "execute",
    "execute_missing",
    "execute_part",
    "finish_parts",
    "prepare_jobs",
]

OnReport = Callable[[GroupReport], None]
Collect = Callable[[Any, GroupReport], None]


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

    Parameters
    ----------
    job : Job
        What to write.
    engine : Engine
        The engine that runs the graphs.
    on_report : callable
        Called with the report of each group.
    look : callable
        Called when the run has begun. It returns a ledger in which the good shards are done.
    check : callable
        Called after all shards are written and before the run ends. An exception from it keeps
        the run from ending.

    Raises
    ------
    SpecError, JournalError, StoreError
        If the run cannot begin, continue or end.
    CorruptShardError
        If `check` raises it.
    IncompleteError
        If the process was asked to stop and shards are missing.
    RunEndedError
        If another run has taken this one's place.
    WorkersLostError
        If workers died while they ran tasks, or the cluster was lost.
    """
    start = time.perf_counter()
    with contextlib.ExitStack() as stack, _explaining([job]) as begun:
        (session,) = begin([job], engine, stack)
        begun.append(session)
        known = look()
        session.ledger.take(known, np.flatnonzero(known.is_done).tolist())
        session.n_resumed = session.ledger.n_done
        for number, wave in enumerate(job.plan.waves):
            _run_wave(session, engine, str(number), wave.ranks(), on_report)
        try:
            check()
        except CorruptShardError as error:
            if session.directory.has_ended:
                raise RunEndedError(
                    "another run has taken this one's place", path=str(session.directory.path)
                ) from error
            raise
        return session.finish(time.perf_counter() - start)


def execute(jobs: Sequence[Job], engine: Engine, on_report: OnReport) -> list[WriteResult]:
    """Write arrays.

    Jobs of one wave each that are not staged share one graph, so work on a common source is done
    once.

    Parameters
    ----------
    jobs : sequence of Job
        What to write. A job that was finished before is not run again.
    engine : Engine
        The engine that runs the graphs.
    on_report : callable
        Called with the report of each group.

    Returns
    -------
    list of WriteResult
        One for each job.

    Raises
    ------
    SpecError, JournalError, StoreError
        If a run cannot begin, continue or end.
    IncompleteError
        If the process was asked to stop and shards are missing.
    RunEndedError
        If another process took over a run, and has not finished the same plan.
    WorkersLostError
        If workers died while they ran tasks, or the cluster was lost.
    """
    start = time.perf_counter()
    results = [finished(job) for job in jobs]
    todo = [job for job, result in zip(jobs, results, strict=True) if result is None]
    try:
        with contextlib.ExitStack() as stack, _explaining(todo) as begun:
            sessions = begin(todo, engine, stack)
            begun += sessions
            together = [s for s in sessions if len(s.job.plan.waves) == 1 and not s.job.is_staged]
            _run_together(together, engine, on_report)
            for session in sessions:
                if session not in together:
                    for number, wave in enumerate(session.job.plan.waves):
                        _run_wave(session, engine, str(number), wave.ranks(), on_report)
            for session in sessions:
                session.n_retried = sum(session.driver in key[0] for key in engine.retried)
            done = iter([session.finish(time.perf_counter() - start) for session in sessions])
    except (RunEndedError, SpecError) as error:
        if isinstance(error, SpecError) and error.fields["field"] != "store":
            raise
        joined = (
            Path(error.fields["path"]).name.removeprefix("run-")
            if isinstance(error, RunEndedError)
            else ""
        )
        # Another process may have written the same plan, and finished first.
        ended = [finished(job, joined) for job in jobs]
        if any(result is None for result in ended):
            raise
        return cast("list[WriteResult]", ended)
    return [next(done) if result is None else result for result in results]


@contextlib.contextmanager
def _explaining(jobs: Sequence[Job]) -> Iterator[list[Session]]:
    """Report the missing shards if the block is stopped, or its workers are lost.

    Yields
    ------
    list of Session
        An empty list. The block adds the sessions that it has begun.

    Raises
    ------
    IncompleteError
        In place of `Stopped`, if a run has not ended.
    WorkersLostError
        With a note about the missing shards of each run that has not ended.
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


def _collector(session: Session, on_report: OnReport) -> Collect:
    def collect(_: Any, report: GroupReport) -> None:
        session.enter(report)
        on_report(report)

    return collect


def _explainer(sessions: Sequence[Session]) -> Callable[[Sequence[Any]], str]:
    """A function that names the regions of tasks, as far as their keys reveal them."""

    def explain(keys: Sequence[Any]) -> str:
        regions = [
            region for key in keys for session in sessions if (region := session.region_of(key))
        ]
        return f"shardwrite: while computing {' or '.join(dict.fromkeys(regions)) or 'the source'}"

    return explain


def _compute(
    graph: HighLevelGraph,
    keys: Sequence[Any],
    sessions: Sequence[Session],
    engine: Engine,
    collect: Collect,
) -> None:
    """Run tasks that commit, and collect their reports.

    Raises
    ------
    Stopped
        If a task did not begin all of its shards because its process was asked to stop, or if this
        process is asked to stop.
    """
    engine.run(graph, keys, collect, _explainer(sessions))
    if any(session.n_left for session in sessions):
        raise Stopped


def _one_graph(
    sessions: Sequence[Session], engine: Engine
) -> tuple[HighLevelGraph, list[list[Any]]]:
    """One graph of all groups of several sessions, and the keys of each session."""
    graphs, keys = [], []
    for session in sessions:
        groups = session.left(range(session.job.plan.partition.n_groups))
        graph, session_keys = session.graph("all", engine).committing(groups)
        graphs.append(graph)
        keys.append(session_keys)
    return HighLevelGraph.merge(*graphs), keys


def _run_together(sessions: Sequence[Session], engine: Engine, on_report: OnReport) -> None:
    graph, keys = _one_graph(sessions, engine)
    collectors = {
        own[0][0]: _collector(session, on_report)
        for session, own in zip(sessions, keys, strict=True)
        if own
    }
    if collectors:
        wanted = [key for own in keys for key in own]
        if all(is_worth_fusing(session.job.plan, engine) for session in sessions):
            graph = fuse_source(graph, wanted)
        _compute(
            graph, wanted, sessions, engine, lambda key, report: collectors[key[0]](key, report)
        )


def _run_wave(
    session: Session, engine: Engine, name: str, groups: Iterable[int], on_report: OnReport
) -> None:
    """Write some groups of one session. If nothing is left to write, the source is not asked."""
    left = session.left(groups)
    if not left:
        return
    collect, builder = _collector(session, on_report), session.graph(name, engine)
    if not session.job.is_staged:
        graph, keys = builder.committing(left)
        fused = fuse_source(graph, keys) if is_worth_fusing(session.job.plan, engine) else graph
        _compute(fused, keys, [session], engine, collect)
        return
    graph, block_keys = builder.encode(left)
    encoded: dict[Any, Any] = {}
    engine.run(
        graph,
        [key for keys in block_keys.values() for key in keys],
        encoded.__setitem__,
        _explainer([session]),
    )
    layer, keys = builder.commit(
        {rank: [encoded[key] for key in blocks] for rank, blocks in block_keys.items()}
    )
    _compute(
        HighLevelGraph({"commit": cast("Any", layer)}, {"commit": set()}),
        keys,
        [session],
        engine,
        collect,
    )


def prepare_jobs(jobs: Sequence[Job], engine: Engine, stripe_count: int | None = None) -> None:
    """Begin or join runs that are written in parts, and make the directories of their shards.

    Parameters
    ----------
    jobs : sequence of Job
        What to write. A job that was finished before is left out.
    engine : Engine
        The engine whose workers are probed.
    stripe_count : int, optional
        Number of Lustre targets over which each shard is spread. By default, the setting of the
        directory is kept.

    Raises
    ------
    SpecError, JournalError, StoreError
        If a run cannot begin, or the striping cannot be set.
    """
    with contextlib.ExitStack() as stack:
        for session in begin([job for job in jobs if finished(job) is None], engine, stack):
            if stripe_count is not None:
                # This comes first, because new directories inherit the setting.
                set_stripes(session.job.target.path, stripe_count)
            session.make_shard_directories()


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
    merged, keys = _one_graph(sessions, engine)
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
    results = []
    for session, done in zip(todo.sessions, reports, strict=True):
        for report in done:
            session.enter(report)
        results.append(session.finish(sum(report.seconds for report in done)))
    return results[0] if len(results) == 1 else results


def execute_part(
    job: Job, run: RunDirectory, part: Part, engine: Engine, on_report: OnReport
) -> WriteResult:
    """Write one part of a run that another process has begun.

    Parameters
    ----------
    job : Job
        The source and the plan of the run.
    run : RunDirectory
        The run.
    part : Part
        The groups to write.
    engine : Engine
        The engine that runs the graphs.
    on_report : callable
        Called with the report of each group.

    Returns
    -------
    WriteResult
        The result of this part only.

    Raises
    ------
    IncompleteError
        If the process was asked to stop. The error names missing shards of this part only.
    JournalError
        If the run was begun for another source.
    RunEndedError
        If the run has ended in the meantime.
    """
    start = time.perf_counter()
    grid = job.plan.metadata.grid
    ranks = [ravel(shard.index, grid.counts) for shard in part.shards]
    with join(job, engine, run, only=ranks, may_list=False) as session:
        session.n_resumed = int(session.ledger.is_done[ranks].sum())
        try:
            for number, wave in enumerate(job.plan.waves):
                groups = [rank for rank in wave.ranks() if rank in part.groups]
                _run_wave(session, engine, f"part-{number}", groups, on_report)
        except Stopped:
            session.learn()
            missing = [rank for rank in ranks if not session.ledger.is_done[rank]]
            if missing:  # else the tasks in flight have finished the part
                remedy = (
                    f"these are of {part}; it was stopped on request, run the same command again "
                    "to go on"
                )
                error = incomplete(job.plan.metadata, job.target, missing, remedy)
                n_written = len(ranks) - len(missing) - session.n_resumed
                raise IncompleteError(
                    error.message, missing=error.fields["missing"], n_written=n_written
                ) from None
        whole, session.ledger = session.ledger, Ledger(grid)
        session.ledger.take(whole, ranks)
        return session.result(time.perf_counter() - start, n_tasks=len(part.groups))


def finish_parts(job: Job, run: RunDirectory, engine: Engine, n_parts: int | None) -> WriteResult:
    """Check the index of every shard of a run, and publish the array if no shard is missing.

    Parameters
    ----------
    job : Job
        The plan of the run. Its source is not asked for chunks.
    run : RunDirectory
        The run.
    engine : Engine
        The engine that checks the shards.
    n_parts : int, optional
        Number of parts, so that the error can name the parts to write again.

    Raises
    ------
    IncompleteError
        If shards are missing. The error names them, and their parts if `n_parts` is given.
    RunEndedError
        If the run has ended in the meantime.
    """
    start = time.perf_counter()
    plan = job.plan
    with join(job, engine, run, only=range(plan.n_shards), may_list=True) as session:
        missing = session.ledger.missing
        if len(missing):
            left = session.ledger.left_in_groups(plan.partition.group_edges)
            parts = [] if n_parts is None else plan.parts_with(left, n_parts)
            error = incomplete(plan.metadata, job.target, missing, _remedy(parts, n_parts))
            raise IncompleteError(error.message, missing=error.fields["missing"], parts=parts)
        return session.finish(time.perf_counter() - start)


def _remedy(parts: Sequence[int], n_parts: int | None) -> str:
    """Text that says which parts must be written again."""
    if n_parts is None:
        return "write their parts again; give the number of parts to be told which"
    listed = f"{', '.join(map(str, parts[:20]))}{', ...' if len(parts) > 20 else ''}"
    return f"part{'s' if len(parts) > 1 else ''} {listed} of {n_parts} must be written again"
