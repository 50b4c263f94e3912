"""A run: plan, begin, waves of tasks, publish. The one composition of all the parts."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import dask.array
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from shardwrite.commit import GroupReport, WriteSpec
from shardwrite.engines import Engine
from shardwrite.errors import IncompleteError, SpecError, StoreError
from shardwrite.graph import GroupGraph
from shardwrite.journal import RunDirectory, Target, check_target, probe
from shardwrite.plan import BATCH_NBYTES, Part, Plan, Wave
from shardwrite.result import WriteResult, merge_reports
from shardwrite.stores import DURABILITIES, PosixStore

__all__ = ["Job", "Options", "as_delayed", "begin", "execute", "execute_part", "finish_parts"]

OnReport = Callable[[GroupReport], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run, as against what to write.

    Attributes
    ----------
    mode : {"w-", "w"}
        Whether an array in the place may be replaced.
    publish : {"last", "first"}
        When ``zarr.json`` appears.
    durability : {"full", "batch", "none"}
        When a shard counts as committed.
    """

    mode: str = "w-"
    publish: str = "last"
    durability: str = "full"

    def __post_init__(self) -> None:
        for field, allowed in (("mode", ("w-", "w")), ("publish", ("last", "first")), ("durability", DURABILITIES)):
            value = getattr(self, field)
            if value not in allowed:
                raise SpecError("no such choice", field=field, value=value, remedy=f"use one of {list(allowed)}")


@dataclass(frozen=True, slots=True)
class Job:
    """One array to write."""

    source: dask.array.Array
    plan: Plan
    target: Target
    options: Options

    def spec(self, run: str) -> WriteSpec:
        """What its tasks need to know."""
        return WriteSpec(
            metadata=self.plan.metadata,
            strategy=self.plan.strategy,
            store=PosixStore(self.target.path),
            parts=str(RunDirectory(self.target).parts),
            run=run,
            durability=self.options.durability,
            write_empty_chunks=self.plan.write_empty_chunks,
            batch_nbytes=BATCH_NBYTES,
            spool_ratio=self.plan.memory.spool_ratio,
            source_dtype=self.source.dtype,
        )

    def graph(self, run: str, engine: Engine) -> GroupGraph:
        """The builder of its graphs."""
        return GroupGraph(self.plan, self.spec(run), self.source, cut_source=engine.kind not in ("threads", "sync"))


def begin(jobs: Sequence[Job], engine: Engine) -> None:
    """Look at every target, and only if all are good, prepare them.

    Raises
    ------
    SpecError, StoreError
        Something stands in a place, or a worker cannot write there.
    """
    paths = [str(job.target.path) for job in jobs]
    if len(set(paths)) < len(paths):
        raise SpecError("two arrays cannot go to one place", field="stores", value=paths, remedy="give each its own path or name")
    for job in jobs:
        check_target(job.target, job.options.mode)
    for job in jobs:
        RunDirectory(job.target).begin(job.plan.metadata.text, job.plan.to_json())
    try:
        for job in jobs:
            _probe(RunDirectory(job.target), engine)
    except BaseException:
        for job in jobs:
            RunDirectory(job.target).remove()
        raise
    for job in jobs:
        RunDirectory(job.target).make_room()
        if job.options.publish == "first":
            RunDirectory(job.target).publish(job.options.durability)


def _probe(run_directory: RunDirectory, engine: Engine) -> None:
    """Have every worker write there."""
    outcomes = engine.on_every_worker(probe, str(run_directory.path), "plan.json")
    troubles = [f"{worker}: {trouble}" for worker, trouble in outcomes.items() if trouble]
    if troubles:
        raise StoreError(
            f"{len(troubles)} of {len(outcomes)} workers cannot write to {run_directory.path}; {troubles[0]}",
            key=str(run_directory.path),
        )


def execute(jobs: Sequence[Job], engine: Engine, on_report: OnReport) -> list[WriteResult]:
    """Write arrays; several share one graph where they fit in one, so that work on a common source is done once.

    Parameters
    ----------
    jobs : sequence of Job
        What to write.
    engine : Engine
        Who runs the graphs.
    on_report : callable
        Called with the report of each group.

    Returns
    -------
    list of WriteResult
        One for each job.
    """
    start = time.perf_counter()
    begin(jobs, engine)
    reports: list[list[GroupReport]] = [[] for _ in jobs]
    run = uuid.uuid4().hex[:12]
    with _cleaning(jobs):
        together = [number for number, job in enumerate(jobs) if len(job.plan.waves) == 1 and not job.plan.is_staged]
        _run_together([jobs[n] for n in together], engine, run, [reports[n] for n in together], on_report)
        for number, job in enumerate(jobs):
            if number not in together:
                for wave_number, wave in enumerate(job.plan.waves):
                    _run_wave(job, engine, f"{run}{number}x{wave_number}", wave, reports[number], on_report)
    return [_finish(job, done, time.perf_counter() - start) for job, done in zip(jobs, reports, strict=True)]


@contextlib.contextmanager
def _cleaning(jobs: Sequence[Job]) -> Any:
    """Remove part files if the run fails, whatever the reason, and let the reason through."""
    try:
        yield
    except BaseException:
        for job in jobs:
            with contextlib.suppress(OSError):  # what led here matters more
                RunDirectory(job.target).discard_parts()
        raise


def _collector(done: list[GroupReport], on_report: OnReport) -> Callable[[GroupReport], None]:
    def collect(report: GroupReport) -> None:
        for path in report.part_files:
            Path(path).unlink(missing_ok=True)
        done.append(report)
        on_report(report)

    return collect


def _run_together(jobs: Sequence[Job], engine: Engine, run: str, reports: Sequence[list[GroupReport]], on_report: OnReport) -> None:
    """All groups of all jobs as one graph."""
    graphs: list[HighLevelGraph] = []
    keys: list[Any] = []
    owner: dict[str, int] = {}
    for number, job in enumerate(jobs):
        builder = job.graph(f"{run}{number}", engine)
        build = builder.fused if job.plan.partition.is_fused else builder.direct
        graph, job_keys = build(range(job.plan.partition.n_groups))
        graphs.append(graph)
        keys += job_keys
        owner |= dict.fromkeys((key[0] for key in job_keys), number)
    if not keys:
        return
    collectors = [_collector(done, on_report) for done in reports]
    engine.run(HighLevelGraph.merge(*graphs), keys, lambda key, report: collectors[owner[key[0]]](report))


def _run_wave(job: Job, engine: Engine, run: str, wave: Wave | Part, done: list[GroupReport], on_report: OnReport) -> None:
    """Some groups of one job."""
    builder = job.graph(run, engine)
    ranks = list(wave.groups) if isinstance(wave, Part) else list(wave.ranks())
    if not ranks:
        return
    collect = _collector(done, on_report)
    if not job.plan.is_staged:
        build = builder.fused if job.plan.partition.is_fused else builder.direct
        graph, keys = build(ranks)
        engine.run(graph, keys, lambda _, report: collect(report))
        return
    graph, block_keys = builder.encode(ranks)
    encoded: dict[Any, Any] = {}
    engine.run(graph, [key for keys in block_keys.values() for key in keys], encoded.__setitem__)
    layer, keys = builder.commit({rank: [encoded[key] for key in blocks] for rank, blocks in block_keys.items()})
    engine.run(HighLevelGraph({"commit": cast("Any", layer)}, {"commit": set()}), keys, lambda _, report: collect(report))


def _finish(job: Job, reports: Sequence[GroupReport], seconds: float) -> WriteResult:
    """Check that all is there, publish, tidy up."""
    n_seen = sum(report.n_shards + report.n_empty_shards for report in reports)
    if n_seen != job.plan.n_shards:
        raise IncompleteError(f"{job.plan.n_shards - n_seen} of {job.plan.n_shards} shards were not committed", missing=[])
    run_directory = RunDirectory(job.target)
    if job.options.publish == "last":
        run_directory.publish(job.options.durability)
    run_directory.remove()
    return merge_reports(str(job.target.path), reports, seconds=seconds, n_tasks=job.plan.n_tasks, layout=job.plan.layout)


def as_delayed(jobs: Sequence[Job], engine: Engine) -> Delayed:
    """Everything that :func:`execute` does after the targets are prepared, as one `Delayed`."""
    begin(jobs, engine)
    graphs, job_keys = [], []
    run = uuid.uuid4().hex[:12]
    for number, job in enumerate(jobs):
        builder = job.graph(f"{run}{number}", engine)
        build = builder.fused if job.plan.partition.is_fused else builder.direct
        graph, keys = build(range(job.plan.partition.n_groups))
        graphs.append(graph)
        job_keys.append(keys)
    name = f"shardwrite-finish-{run}"
    last = {name: (_finish_delayed, _Jobs(tuple(_Finish(job.plan, job.target, job.options) for job in jobs)), job_keys)}
    merged = HighLevelGraph.merge(*graphs)
    layers: dict[str, Any] = {**merged.layers, name: last}
    dependencies = {**merged.dependencies, name: set(merged.layers)}
    return Delayed(name, HighLevelGraph(layers, dependencies))


@dataclass(frozen=True, slots=True)
class _Finish:
    """What is left of a job when its source is done."""

    plan: Plan
    target: Target
    options: Options


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Several; no tuple, so that dask does not search it for keys."""

    jobs: tuple[_Finish, ...]


def _finish_delayed(todo: _Jobs, reports: Sequence[Sequence[GroupReport]]) -> Any:
    results = []
    for job, done in zip(todo.jobs, reports, strict=True):
        seconds = sum(report.seconds for report in done)
        results.append(_finish(job, done, seconds))  # type: ignore[arg-type]
    return results[0] if len(results) == 1 else results


def execute_part(job: Job, part: Part, engine: Engine, on_report: OnReport) -> WriteResult:
    """Write one part of a plan that was begun elsewhere, and note that it is done.

    Raises
    ------
    JournalError
        If another plan was begun.
    IncompleteError
        If none was.
    """
    run_directory = RunDirectory(job.target)
    if not run_directory.is_begun(job.plan.digest):
        raise IncompleteError(f"nothing was begun for {job.target.path}; call prepare first", missing=[str(run_directory.path)])
    start = time.perf_counter()
    done: list[GroupReport] = []
    _run_wave(job, engine, uuid.uuid4().hex[:12], part, done, on_report)
    result = merge_reports(
        str(job.target.path), done, seconds=time.perf_counter() - start, n_tasks=len(part.groups), layout=job.plan.layout
    )
    run_directory.finish_part(part.index, part.count, result.to_dict())
    return result


def finish_parts(plan: Plan, target: Target, durability: str) -> WriteResult:
    """Publish an array whose parts are all done.

    Raises
    ------
    IncompleteError
        Naming the parts that are missing.
    """
    run_directory = RunDirectory(target)
    if not run_directory.is_begun(plan.digest):
        raise IncompleteError(f"nothing was begun for {target.path}; call prepare first", missing=[str(run_directory.path)])
    best: dict[int, dict[str, Any]] = {}
    count = 0
    for n, done in run_directory.parts_done().items():
        if len(done) == n:
            count, best = n, done
            break
        if len(done) > len(best):
            count, best = n, done
    missing = [f"part {i} of {count}" for i in range(count) if i not in best] or ([] if count else ["all parts"])
    if missing:
        raise IncompleteError(f"{target.path} is not whole: {', '.join(missing)}", missing=missing)
    totals = {
        name: sum(done[name] for done in best.values())
        for name in ("n_shards", "n_empty_shards", "n_chunks", "n_empty_chunks", "raw_nbytes", "stored_nbytes", "n_tasks")
    }
    if totals["n_shards"] + totals["n_empty_shards"] != plan.n_shards:
        raise IncompleteError(
            f"the parts have {totals['n_shards'] + totals['n_empty_shards']} of {plan.n_shards} shards", missing=[]
        )
    peaks = {process: peak for done in best.values() for process, peak in done["peak_nbytes_by_process"].items()}
    run_directory.publish(durability)
    run_directory.remove()
    return WriteResult(
        path=str(target.path),
        **totals,
        seconds=max(done["seconds"] for done in best.values()),
        layout=plan.layout,
        peak_nbytes_by_process=peaks,
    )
