"""Runs that begin now and are computed later, as part of a graph of dask."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import Task

from shardwrite._dataclass import dataclass
from shardwrite.engines.local import Engine
from shardwrite.errors import RunEndedError, SpecError
from shardwrite.journal.begin import find_run
from shardwrite.journal.lines import taking_part
from shardwrite.journal.rundir import holding
from shardwrite.place.target import in_this_process
from shardwrite.runs.execute import Run, one_graph
from shardwrite.runs.job import Job, NoChunks, in_one_state
from shardwrite.runs.result import WriteResult, filled_in, finished
from shardwrite.runs.session import Session, finish_together
from shardwrite.write.context import GroupReport, WriteSpec


def as_delayed(jobs: Sequence[Job], engine: Engine) -> Delayed:
    """Begin runs, and return the rest of :func:`execute` as one `Delayed`.

    A job that was finished before is not begun; its result is a part of the `Delayed`. No lease is
    held after this function returns. If the `Delayed` is computed again, nothing is written again,
    and the result is that of the first time.

    If the state of a run lies in the bucket, the tasks write no journal, wherever they run. The one
    that ends the run takes the lease, and enters the reports of all others.
    """
    if any(job.plan.staged_with is not None for job in jobs):
        raise SpecError(
            "the source reads what the update changes, so its values are kept before any shard is "
            "written, which one graph cannot do",
            field="compute",
            value=False,
            remedy="leave it out, or write the values to another path, and then that array into "
            "this one",
        )
    jobs = in_one_state(jobs)
    with holding(*(job.target for job in jobs)):
        with Run.open(jobs, engine, mode="later") as run:
            sessions = run.sessions
        for session in sessions:
            session.is_later = True
            session.make_parts()
        merged, keys = one_graph(sessions, engine)
    merged = HighLevelGraph(
        {name: _unless_ended(layer) for name, layer in merged.layers.items()}, merged.dependencies
    )
    name = f"shardwrite-finish-{sessions[0].driver if sessions else uuid.uuid4().hex}"
    kept = _Kept(
        tuple(replace(session, job=_finishing(session.job)) for session in sessions),
        tuple(run.before),
        tuple(_finishing(job) for job, done in zip(jobs, run.before, strict=True) if done),
    )
    layers: dict[str, Any] = {**merged.layers, name: {name: (_finish_delayed, kept, keys)}}
    return Delayed(name, HighLevelGraph(layers, {**merged.dependencies, name: set(merged.layers)}))


def _finishing(job: Job) -> Job:
    """The job without its source, which would travel with the task that finishes the run."""
    return replace(job, source=NoChunks(job.plan.region))


@dataclass(frozen=True, slots=True)
class _Kept:
    """Sessions, and results of jobs that were finished before; dask does not search it for keys."""

    sessions: tuple[Session, ...]  # sessions of the other jobs
    before: tuple[WriteResult | None, ...]  # for each job its result if it was finished before
    finished: tuple[Job, ...]  # these jobs


@dataclass(frozen=True, slots=True)
class _Ended:
    """What a task returns in place of its result if its run has ended."""

    path: str


def _unless_ended(layer: Any) -> Any:
    """The layer, in which tasks of a run do nothing if the run has ended."""
    own = {
        key: Task(key, _in_run, task.func, *task.args)
        for key, task in (layer.items() if layer.is_materialized() else ())
        if isinstance(task, Task) and task.args and isinstance(task.args[0], WriteSpec)
    }
    return MaterializedLayer({**layer.mapping, **own}) if own else layer


def _in_run(function: Callable[..., Any], spec: WriteSpec, *rest: Any) -> Any:
    """Call the function of a task, unless its run has ended."""
    try:
        spec.check_current()
        return function(spec, *rest)
    except RunEndedError as error:
        return _Ended(error.fields["path"])


def _ended(kept: _Kept, path: str) -> list[WriteResult]:
    """Results of runs that have ended, and of jobs that were finished before.

    The leases are held.

    - Raises RunEndedError if one of them has not written its plan: another run has taken its place.
    """
    found = [finished([each.job], each.directory.run)[0] for each in kept.sessions]
    if None in found:
        raise RunEndedError("this run has ended, or another has taken its place", path=path)
    return filled_in(kept.before, [result for result in found if result is not None])


def _check_finished(kept: _Kept) -> None:
    """Refuse to tell of jobs as finished if other calls have changed what they had written."""
    for job in kept.finished:
        here = replace(job, target=in_this_process(job.target))
        with holding(here.target):
            if finished([here]) == [None]:
                label, path = here.target.label, str(here.target.run_path)
                raise RunEndedError(
                    f"what this call had written to {label} before was changed since it was "
                    "planned; make the same call again",
                    path=path,
                )


def _finish_delayed(
    kept: _Kept, reports: Sequence[Sequence[GroupReport | _Ended]]
) -> WriteResult | list[WriteResult]:
    """Enter the reports of each session and end its run; a list of results if there are several."""
    kept = replace(kept, sessions=tuple(map(_here, kept.sessions)))
    _check_finished(kept)
    with holding(*(session.job.target for session in kept.sessions)):
        for report in itertools.chain.from_iterable(reports):
            if isinstance(report, _Ended):
                return _one_or_all(_ended(kept, report.path))
        done = cast("Sequence[Sequence[GroupReport]]", reports)
        with _taking_part(kept.sessions):
            for session, own in zip(kept.sessions, done, strict=True):
                for each in own:
                    session.enter(each)
            seconds = [sum(each.seconds for each in own) for own in done]
            return _one_or_all(filled_in(kept.before, finish_together(kept.sessions, seconds)))


def _one_or_all(results: list[WriteResult]) -> WriteResult | list[WriteResult]:
    return results[0] if len(results) == 1 else results


def _here(session: Session) -> Session:
    """The session with the run state's directory in this process, if the state is in a bucket."""
    target = in_this_process(session.job.target)
    job, directory = replace(session.job, target=target), replace(session.directory, target=target)
    return replace(session, job=job, directory=directory)


@contextlib.contextmanager
def _taking_part(sessions: Sequence[Session]) -> Iterator[None]:
    """Take part in the runs whose state lies in a bucket, under the lease that is held.

    - Raises RunEndedError if one of them has ended, or was given up.
    """
    with contextlib.ExitStack() as stack:
        for session in sessions:
            if session.job.target.in_store:
                found = find_run(session.job.target)
                if found is None or found.run != session.directory.run:
                    path = str(session.directory.path)
                    raise RunEndedError("this run has ended, or was given up", path=path)
                stack.enter_context(taking_part(found.shared, session.driver))
        yield
