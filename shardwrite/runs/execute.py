"""Runs: open one, compute the graphs of what is missing, and end it.

Every operation goes through `Run`. What it does before, and what follows a commit, it says by
`Mode` and by the arguments of `Run.execute`.

A scheduler spends about a millisecond on each task, however small it is. So source tasks are fused
with the tasks that need them.

Nothing is committed before a scheduler has a whole graph, and a graph of 100,000 tasks takes
seconds. So a tenth of the groups has a graph of its own, which runs first, unless both graphs would
run the same tasks of the source.

A task copies one version of an object. If a program writes the array meanwhile, a copy would
otherwise hold old and new objects that never were together. If a program replaces the array, the
copy would hold chunks that its own document does not describe. So a watch compares the array with
what it was when the copy was planned.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
from dask.base import get_annotations
from dask.core import keys_in_tasks
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import GraphNode, Task

from shardwrite._dataclass import dataclass
from shardwrite.config.table import ACCEPT_SOURCE, value_of
from shardwrite.engines.local import Engine, Stopped
from shardwrite.errors import (
    IncompleteError,
    RunEndedError,
    SpecError,
    StoreError,
    WorkersLostError,
)
from shardwrite.format.node import DOCUMENT, layout_in
from shardwrite.grid import ravel, unravel
from shardwrite.host.stopping import RUNS, tell
from shardwrite.journal.begin import differences, find_run
from shardwrite.journal.lines import begun_at
from shardwrite.journal.replay import replay
from shardwrite.journal.rundir import holding, run_at
from shardwrite.place.target import Target, remembering, untouched
from shardwrite.plan.partition import MAX_SHARDS
from shardwrite.plan.plan import Plan
from shardwrite.runs.array_plan import BY_CHUNKS, SMALL_NBYTES, warn_of_unnamed
from shardwrite.runs.begin import begin, join
from shardwrite.runs.job import Job, RunOptions, in_one_state
from shardwrite.runs.result import (
    WriteResult,
    filled_in,
    finished,
    incomplete,
    with_others_staged,
)
from shardwrite.runs.session import Session, finish_together
from shardwrite.seams import resolve
from shardwrite.stores.looking import parse_document, read_limit
from shardwrite.write.context import GroupReport
from shardwrite.write.tasks import Row, cut_block

if TYPE_CHECKING:
    from shardwrite.read.array import ShardedArray


__all__ = ["Mode", "Run", "execute"]


# ---- Runs


Mode = Literal["write", "again", "later", "prepare", "part", "join", "end"]
"""How a process opens a run.

With these modes it begins a run or goes on with it, and looks whether that was finished before:

- ``write``: if so, objects that are lost are written again.
- ``later``: if so, the receipt is believed. Tasks of a graph write the rest later.
- ``prepare``: if so, the array must be what its receipt says. Parts write the rest.
- ``again``: it does not look, since the caller knows which shards are good.

With these modes it joins a run that another process has begun; see `Job.begun`:

- ``part``: for the shards of one part, of which nothing is published.
- ``join``: for all shards, whose indexes are looked at.
- ``end``: likewise, and what dead processes have left is looked for in a list of the array.
"""


@dataclass(slots=True, eq=False)
class Run:
    """What one process does in a run on one array or several, from its begin to its end."""

    engine: Engine
    on_report: OnReport  # is shown the progress
    mode: Mode
    before: Sequence[WriteResult | None]  # for each job, its result if it was finished before
    sessions: Sequence[Session]  # one for each of the other jobs
    start: float  # when the run was opened, by `time.perf_counter`

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        jobs: Sequence[Job],
        engine: Engine,
        progress: bool | OnReport = False,
        mode: Mode = "write",
        *,
        trusts_journals: bool = False,
    ) -> Iterator[Run]:
        """Take part in the run of some jobs while the block lasts.

        Whoever joins a run holds the leases already that `holding` takes.

        - `progress`: as in :func:`reporting`, for all that the plans or their parts write.
        - `trusts_journals`: whether indexes are not read that tasks have noted, where a run is
          joined.
        - Raises ChangedError if a job was finished before, and the array is not what its last run
          left.
        - Raises IncompleteError if the process was asked to stop and shards are missing.
        - Raises RunEndedError if another process has ended the run, or taken it over.
        - Raises WorkersLostError if workers died while they ran tasks, or the cluster was lost.
        """
        start = time.perf_counter()
        joins, looks_before = mode in ("part", "join", "end"), mode in ("write", "later", "prepare")
        total = sum((job.part or job.plan).raw_nbytes + job.plan.kept_nbytes for job in jobs)
        with contextlib.ExitStack() as stack:
            on_report = stack.enter_context(reporting(progress, total))
            if not joins:
                jobs = in_one_state(jobs)
                stack.enter_context(holding(*(job.target for job in jobs)))
                jobs = _accepted(jobs, mode)
            looks = stack.enter_context(contextlib.ExitStack())
            if not joins:
                looks.enter_context(remembering([job.target for job in jobs]))
            free = (
                frozenset[Target]() if joins else untouched(j.target for j in jobs if j.makes_array)
            )
            looked = [job for job in jobs if job.target not in free] if looks_before else []
            ended = dict(zip((job.target for job in looked), finished(looked), strict=True))
            if any(result is not None for result in ended.values()):
                looks.close()  # shards are looked at, which may take long
            before = [
                None
                if (result := ended.get(job.target)) is None
                else _checked(job, jobs, result, engine, on_report, mode)
                for job in jobs
            ]
            before = list(with_others_staged(jobs, before))
            _tell_finished(jobs, before)
            todo = [job for job, result in zip(jobs, before, strict=True) if result is None]
            with _explaining(todo) as begun:
                begun += (
                    join(
                        todo, engine, stack, may_list=mode == "end", trusts_journals=trusts_journals
                    )
                    if joins
                    else begin(todo, engine, stack, free)
                )
                looks.close()
                yield cls(engine, on_report, mode, before, begun, start)

    @property
    def session(self) -> Session:
        """The session of a run on one array."""
        (session,) = self.sessions
        return session

    def execute(
        self,
        *,
        select: npt.NDArray[np.bool_] | None = None,
        on_commit: OnReport = lambda _: None,
        publish: bool = True,
        looks_again: bool = False,
    ) -> list[WriteResult]:
        """Write the shards that are missing, publish the arrays, and end the run.

        Jobs of one wave share one graph if they are not staged. Work on a common source is done
        once.

        - `select`: bool, shape (n_shards,), for a run on one array. Other shards are left to later
          calls. As long as some of these are missing, nothing is published.
        - `on_commit`: called with the report of each group after it is in the journal.
        - `publish`: whether to publish, and to end the run. A part never does so.
        - `looks_again`: also compare all objects with the journal, and write those that are not
          what it says.
        - Returns: one result for each job. That of a part tells of its own shards only.
        """
        for session in self.sessions:
            session.only = session.only if select is None else select
            tell_found(self.on_report, session.resumed_nbytes)

        def committed(report: GroupReport) -> None:
            on_commit(report)
            self.on_report(report)

        try:
            self._compute(committed)
        except Stopped:
            for session in self.sessions:
                session.learn()  # tasks that were in flight may have written the rest
            if any(len(session.missing) for session in self.sessions):
                raise
        if self.mode == "write" and select is None:
            for session in self.sessions:
                compute_again(session, self.engine, committed, looks_at_copy=looks_again)
        for session in self.sessions:
            session.n_retried = sum(session.name in key[0] for key in self.engine.retried)
        is_whole = not any(len(session.ledger.missing) for session in self.sessions)
        if publish and self.mode != "part" and (is_whole or select is None):
            return self.finish()
        for session in self.sessions:
            session.check_written()
        return filled_in(self.before, (one.result(self.seconds) for one in self.sessions))

    def _compute(self, on_report: OnReport) -> None:
        with contextlib.ExitStack() as stack:
            for session in self.sessions:
                stack.enter_context(session.leaving_others())
            together = [
                s for s in self.sessions if len(s.job.plan.waves) == 1 and not s.job.is_staged
            ]
            compute_together(together, self.engine, on_report)
            for session in (s for s in self.sessions if s not in together):
                compute_waves(session, self.engine, on_report)

    @property
    def seconds(self) -> float:
        """Seconds since the run was opened."""
        return time.perf_counter() - self.start

    def finish(self) -> list[WriteResult]:
        """Publish the arrays and end the run; see `finish_together`."""
        seconds = [self.seconds] * len(self.sessions)
        return filled_in(self.before, finish_together(self.sessions, seconds))


def execute(
    jobs: Sequence[Job],
    engine: Engine,
    progress: bool | OnReport = False,
    *,
    looks_again: bool = False,
    first: Callable[[Run], None] = lambda _: None,
    n_more: int = 3,
) -> list[WriteResult]:
    """Write arrays. If another process ends the run of the same plan first, that is the result.

    - `jobs`: what to write. A job that was finished before is not run again.
    - `engine`: such as `active_engine` returns.
    - `looks_again`: see `Run.execute`. This is done before any array is published.
    - `first`: called with the run that is open, before anything is computed.
    - `n_more`: how often to begin again if a run has ended that this process was about to join.
    - Raises what `Run.open` raises. RunEndedError only if the plan is not finished.
    """
    jobs, is_open = in_one_state(jobs), False
    with holding(*(job.target for job in jobs)):
        try:
            with Run.open(jobs, engine, progress) as run:
                is_open = True
                first(run)
                return run.execute(looks_again=looks_again)
        except (RunEndedError, SpecError) as error:
            if isinstance(error, SpecError) and error.fields["field"] != "store":
                raise
            path = error.fields["path"] if isinstance(error, RunEndedError) else ""
            joined = run_at(path)
            # Another process may have written the same plan, and finished first.
            jobs = _accepted(jobs, "write")
            ended = with_others_staged(jobs, finished(jobs, joined))
            left = [job for job, result in zip(jobs, ended, strict=True) if result is None]
            # Another process may have taken its run back, which this one was about to join.
            is_begun = is_open or not joined or n_more < 1
            if len(left) == len(jobs) and is_begun:
                raise
            again = partial(execute, left, engine, progress, looks_again=looks_again, first=first)
            done = again(n_more=n_more - 1) if left else ()
            return filled_in(ended, done)


def _accepted(jobs: Sequence[Job], mode: Mode) -> Sequence[Job]:
    """The jobs, with sources for which a user vouches that they are those of what was begun."""
    if mode == "again" or not value_of(ACCEPT_SOURCE):
        return jobs
    from shardwrite.runs.kept import accepted  # of sources that a user vouches for

    return [accepted(job) for job in jobs]


def _checked(
    job: Job,
    jobs: Sequence[Job],
    result: WriteResult,
    engine: Engine,
    on_report: OnReport,
    mode: Mode,
) -> WriteResult | None:
    """The result of one of some jobs that was finished before, after the looks of `Mode`."""
    if mode == "later":
        return result
    from shardwrite.runs.kept import check_finished_array, check_kept  # of arrays that are there

    if mode == "prepare":
        check_kept(job.target, engine)
        return result
    found = check_finished_array(job, result, engine, jobs)
    if found.good_shards is None:
        if found.result is not None:
            tell_found(on_report, found.result.raw_nbytes)
        return found.result
    again = replace(job, options=RunOptions(mode="r+", durability=job.options.durability))
    with Run.open([again], engine, on_report, "again") as run:
        run.session.resume_from(found.good_shards)
        return run.execute()[0]


def _tell_finished(jobs: Sequence[Job], before: Sequence[WriteResult | None]) -> None:
    """Warn if new arrays are taken for finished that may have been written from other data."""
    finished_before = (job for job, result in zip(jobs, before, strict=True) if result is not None)
    unnamed = {
        job.target.label: job.plan.source.identity
        for job in finished_before
        if job.makes_array and job.plan.source.identity.startswith(BY_CHUNKS)
    }
    for label, identity in [*unnamed.items()][:1]:
        n_others = len(unnamed) - 1
        kept = (
            f"{label} and {n_others:,} more arrays are kept, as an earlier call has written them"
            if n_others
            else f"{label} is kept, as an earlier call has written it"
        )
        warn_of_unnamed(identity, kept, 'replace what is there with mode="w"')


@contextlib.contextmanager
def _explaining(jobs: Sequence[Job]) -> Iterator[list[Session]]:
    """Report the missing shards if the block is stopped, or its workers are lost.

    - Raises IncompleteError in place of `Stopped`, if a run has not ended.
    - Raises WorkersLostError with a note about the missing shards of each run.
    """
    begun: list[Session] = []
    try:
        yield begun
    except Stopped:
        errors = [*_missing(jobs, begun, _how_to_go_on)]
        for error in sorted(errors, key=lambda error: not error.fields["missing"]):
            raise error from None
        raise
    except WorkersLostError as error:
        for missing in _missing(jobs, begun, lambda _: "what is there is kept"):
            if missing.fields["missing"]:
                error.add_note(missing.message)
        raise


def _how_to_go_on(job: Job) -> str:
    if job.part is None:
        return "it was stopped on request; run the same command again to go on"
    return (
        f"these are of {job.part}; it was stopped on request, run the same command again to go on"
    )


def _missing(
    jobs: Sequence[Job], begun: Sequence[Session], remedy: Callable[[Job], str]
) -> Iterator[IncompleteError]:
    """One error for each run that has not ended, with the shards that this process must write."""
    sessions = {session.job.target: session for session in begun}
    for job in jobs:
        directory = job.begun or find_run(job.target)
        if directory is None:
            continue
        session, n_written = sessions.get(job.target), 0
        if session is None:
            missing = replay(directory, job.plan.metadata).ledger.missing
        else:
            session.learn()  # Tasks that were in flight have ended, and their reports are not here.
            missing = session.missing
            n_written = session.n_selected - len(missing) - session.n_resumed
        told, metadata = remedy(job), job.plan.metadata
        yield incomplete(metadata, job.target, missing, told, n_written=n_written)


# ---- Computation of the graphs of sessions: run them on an engine, and collect the reports


# ---- Fusion of source tasks with the tasks that need them


def is_worth_fusing(plan: Plan, engine: Engine) -> bool:
    """Whether to fuse source tasks with the tasks that write groups.

    This is worthwhile if there are no more source chunks than groups. It is also worthwhile if the
    source tasks are small and there is a group for each thread.

    - `plan`: the plan. Source tasks are only fused if its layout is fused.
    """
    n_threads = engine.n_processes * engine.n_threads
    n_groups, is_small = (
        plan.partition.n_groups,
        plan.raw_nbytes <= SMALL_NBYTES * plan.source.n_tasks,
    )
    is_better = plan.source.n_chunks <= n_groups or (is_small and n_groups >= n_threads)
    return engine.gains_by_fusion and plan.partition.is_fused and is_better


def fuse_source(
    graph: HighLevelGraph, keys: Sequence[Any], *, only_chains: bool = False
) -> HighLevelGraph:
    """Fuse each of `keys` with the tasks that only it needs.

    Tasks with annotations of dask, such as resources or a number of retries, are not fused. They
    would run without them.

    Rows of source chunks are fused with these chunks in any case.

    - `only_chains`: fuse tasks anywhere that follow each other and need nothing else, and no
      others, which may run at the same time.
    - Returns: a graph without the tasks that no result needs. It has one layer if tasks were fused.
    """
    culled = graph.cull(set(keys))
    here = get_annotations()  # are those of all tasks that are made now
    if any(layer.annotations and layer.annotations != here for layer in culled.layers.values()):
        return culled
    tasks = culled.to_dict()
    # A `GraphNode` knows its dependencies. In other tasks, dask has to search for them. The graph
    # itself would do that, too, but go through all keys once for each layer.
    all_keys = tasks.keys()
    needs = {
        key: task.dependencies if isinstance(task, GraphNode) else keys_in_tasks(all_keys, [task])
        for key, task in tasks.items()
    }
    n_needed = Counter(itertools.chain.from_iterable(needs.values()))
    wanted = set(keys)

    made_by = {key: getattr(task, "func", None) for key, task in tasks.items()}

    def is_taken(key: Any) -> bool:
        """Whether a task goes into the only one that needs it."""
        if n_needed[key] > 1 or key in wanted or not isinstance(tasks[key], Task):
            return False
        if made_by[key] is not cut_block or all(n_needed[one] == 1 for one in needs[key]):
            return True
        _, chunk, _, dtype = tasks[key].args
        return bool(chunk.size * dtype.itemsize <= SMALL_NBYTES)  # else all of it would be sent

    def taken(key: Any) -> list[Any]:
        if not isinstance(tasks[key], Task):  # as in graphs that users have made by hand
            return []
        needed = [one for one in needs[key] if isinstance(tasks[one], Task)]
        is_chain = len(needed) == 1 or made_by[key] is Row
        return [] if only_chains and not is_chain else [*filter(is_taken, needed)]

    inner = {one for key in tasks for one in taken(key)} if only_chains else set[Any]()
    heads = tasks if only_chains else [*keys, *(key for key in tasks if made_by[key] is Row)]
    is_fused = False
    for key in [key for key in heads if key not in inner]:
        own = [key] if key in tasks else []
        for one in own:  # the list grows during the loop
            own += taken(one)
        if len(own) > 1:
            tasks[key], is_fused = Task.fuse(*map(tasks.pop, own), key=key), True
    if not is_fused:
        return culled
    layers: Any = {"shardwrite-fused": tasks}
    return HighLevelGraph(layers, {"shardwrite-fused": set()})


def _fused(
    graph: HighLevelGraph, keys: Sequence[Any], sessions: Sequence[Session], engine: Engine
) -> HighLevelGraph:
    """The graph of some sessions with as few tasks as are good for the engine."""
    if not engine.gains_by_fusion:
        return graph
    is_worth_it = all(is_worth_fusing(session.job.plan, engine) for session in sessions)
    return fuse_source(graph, keys, only_chains=not is_worth_it)


# ---- Watch over an array that is copied


@runtime_checkable
class CopiesObjects(Protocol):
    """A source of chunks that come from the objects of another array."""

    @property
    def copied(self) -> ShardedArray | None:
        """The other array, if its objects are to stay as they are until the run ends."""


class SourceWatch:
    """The objects of an array in a directory, from which a session makes another array.

    An object has changed if its file was changed after the run had begun. The first time is by the
    clock of the file system of the object, the second by that of the state of the run.

    - `source`: the array. If it lies in no directory, or has too many objects to list, the objects
      are not looked at. A document of another format than Zarr v3 is only looked for.
    """

    def __init__(self, session: Session, source: ShardedArray) -> None:
        self.session, self._source = session, source
        is_listed = source.metadata.grid.n_shards <= MAX_SHARDS
        self._is_watched = is_listed and source.store.has_mtime
        self._since: int | None = None

    def look_again(self, engine: Engine) -> int:
        """Mark shards as missing that were made of objects which have changed, and count them.

        Objects that have changed since the last look are an error, because a program seems to write
        them again and again.

        - Raises StoreError with ESTALE, if objects have changed again, or an object is gone whose
          copy is there. Also if another array has taken the place of the source.
        """
        self._check_document()
        if not self._is_watched:
            return 0
        session, source = self.session, self._source
        from shardwrite.read.inspection import change_time_of, of_objects, ranks_of_objects

        key_of = source.metadata.key_of_rank
        ranks = ranks_of_objects(source, str(source.store.local_root))
        times = of_objects(engine, source, ranks, change_time_of)
        is_again = self._since is not None
        since = begun_at(session.directory.path) if self._since is None else self._since
        changed = ranks[times > since]
        self._since = max(since, int(times.max(initial=0)))
        if is_again and len(changed):
            raise _refusal(key_of(changed[0]), "is changed again and again")
        ledger = session.ledger
        if source.metadata.grid == session.job.plan.metadata.grid:
            gone = ledger.gone(ranks)
            if len(gone):
                raise _refusal(key_of(gone[0]), "was copied, and is gone")
        lost = [rank for rank in self._made_of(changed.tolist()) if ledger.is_done[rank]]
        ledger.forget(lost)
        return len(lost)

    def _check_document(self) -> None:
        """Refuse to go on if the source was removed, or another array has taken its place."""
        source = self._source
        if source.metadata.placed is not None:
            return
        data = source.store.read_whole(source.document or DOCUMENT, read_limit())
        if data is None and source.document:
            raise _refusal(source.document, "is gone")
        if data is None or source.document not in ("", DOCUMENT):
            return
        found = parse_document(data, DOCUMENT)
        changed = differences(layout_in(source.metadata.document), layout_in(found))
        if changed:
            raise _refusal(DOCUMENT, f"describes another array now ({'; '.join(changed)})")

    def _made_of(self, changed: Sequence[int]) -> set[int]:
        """Ranks of the shards that are made of some objects of the source."""
        source, made = self._source.metadata.grid, self.session.job.plan.metadata.grid
        return {
            ravel(index, made.counts)
            for rank in changed
            for index in made.shards_in(
                source.shard_box(unravel(rank, source.counts)).intersect(source.whole)
            )
        }


def _refusal(key: str, what: str) -> StoreError:
    return StoreError(
        f"{key!r} of the source {what} while the array is copied. Nothing is published. When "
        "no program changes the source any more, make the same call with restart=True",
        key=key,
        errno=errno.ESTALE,
    )


# ---- Computation


_MANY_TASKS = 10_000  # a graph of fewer tasks is made in less than a second
_FIRST_SHARE = 10  # the first of two graphs has a tenth of the groups


@runtime_checkable
class CanSplit(Protocol):
    """A source of chunks that knows whether groups may be written by several graphs."""

    def shares_nothing(self, plan: Plan) -> bool:
        """Whether no two groups of a plan need the same task of the source."""


def _pieces(session: Session, groups: Sequence[int]) -> list[Sequence[int]]:
    """Groups of each graph of a wave, in the order in which the graphs run."""
    source, plan = session.job.source, session.job.plan
    n_tasks = len(groups) * plan.n_tasks // max(1, plan.partition.n_groups)
    n_first = len(groups) // _FIRST_SHARE
    is_long = n_first > 0 and n_tasks > _MANY_TASKS
    if is_long and isinstance(source, CanSplit) and source.shares_nothing(plan):
        return [groups[:n_first], groups[n_first:]]
    return [groups]


Collect = Callable[[Any, GroupReport], None]


def _collector(session: Session, on_report: OnReport) -> Collect:
    def collect(_: Any, report: GroupReport) -> None:
        session.enter(report)
        on_report(report)

    return collect


def _explainer(sessions: Sequence[Session]) -> Callable[[Sequence[Any]], str]:
    """A function that names the regions of tasks, as far as their keys reveal them."""

    def explain(keys: Sequence[Any]) -> str:
        from shardwrite.runs.outcome import WHILE_COMPUTING  # after an error

        regions = [
            region for key in keys for session in sessions if (region := session.region_of(key))
        ]
        return f"{WHILE_COMPUTING} {' or '.join(dict.fromkeys(regions)) or 'the source'}"

    return explain


def _compute(
    graph: HighLevelGraph,
    keys: Sequence[Any],
    sessions: Sequence[Session],
    engine: Engine,
    collect: Collect,
) -> None:
    """Run tasks that commit, and collect their reports.

    - Raises Stopped if a task did not begin all of its shards because its process was asked to
      stop, or if this process is asked to stop.
    """
    n_before = len(engine.retried)
    engine.run(graph, keys, collect, _explainer(sessions))
    for key in engine.retried[n_before:]:
        for session in sessions:
            if session.name in key[0]:
                told = f"task {key} was run again, because workers that ran it died"
                tell(RUNS, logging.WARNING, told, run=session.directory.path)
    if any(session.n_left for session in sessions):
        raise Stopped


def one_graph(
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


def compute_together(sessions: Sequence[Session], engine: Engine, on_report: OnReport) -> None:
    """Write all groups of several sessions in one graph, so that they share a common source."""
    if len(sessions) == 1:
        (session,) = sessions
        _compute_wave(session, engine, "all", range(session.job.plan.partition.n_groups), on_report)
        return
    graph, keys = one_graph(sessions, engine)
    collectors = {
        own[0][0]: _collector(session, on_report)
        for session, own in zip(sessions, keys, strict=True)
        if own
    }
    if collectors:
        wanted = [key for own in keys for key in own]
        graph = _fused(graph, wanted, sessions, engine)
        _compute(
            graph, wanted, sessions, engine, lambda key, report: collectors[key[0]](key, report)
        )


def compute_waves(session: Session, engine: Engine, on_report: OnReport) -> None:
    """Write the groups of a session wave by wave."""
    waves = session.job.plan.waves
    for number, wave in enumerate(waves):
        told = f"wave {number + 1} of {len(waves)} begins"
        tell(RUNS, logging.INFO, told, run=session.directory.path)
        _compute_wave(session, engine, str(number), wave.ranks(), on_report)


def compute_again(
    session: Session, engine: Engine, on_report: OnReport, *, looks_at_copy: bool
) -> None:
    """Write shards once more that were made of objects which have changed since.

    - `looks_at_copy`: also compare all objects with the journal, and write those that are not what
      it says.
    - Raises StoreError with ESTALE, if objects of the source change again and again; see
      `SourceWatch`.
    """
    source = session.job.source
    looks = [session.look_again] if looks_at_copy else []
    if isinstance(source, CopiesObjects) and source.copied is not None:
        looks.append(SourceWatch(session, source.copied).look_again)
    if sum(look(engine) for look in looks):
        groups = range(session.job.plan.partition.n_groups)
        _compute_wave(session, engine, "again", groups, on_report)
        for look in looks:
            look(engine)


def _compute_wave(
    session: Session, engine: Engine, name: str, groups: Iterable[int], on_report: OnReport
) -> None:
    """Write some groups of one session. If nothing is left to write, the source is not asked."""
    left = session.left(groups)
    if not left:
        return
    collect, builder = _collector(session, on_report), session.graph(name, engine)
    if not session.job.is_staged:
        for piece in _pieces(session, left):
            graph, keys = builder.committing(piece)
            graph = _fused(graph, keys, [session], engine)
            _compute(graph, keys, [session], engine, collect)
        return
    graph, block_keys = builder.encode(left)
    encoded: dict[Any, Any] = {}
    keys = [key for keys in block_keys.values() for key in keys]
    graph = _fused(graph, keys, [session], engine)
    engine.run(graph, keys, encoded.__setitem__, _explainer([session]))
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


# ---- Progress of a run: a bar with throughput and remaining time, or the user's own function


OnReport = Callable[[GroupReport], None]


@runtime_checkable
class Progress(Protocol):
    """A receiver of reports that also wants to know what was there before."""

    def __call__(self, report: GroupReport) -> None:
        """Take the report of a group."""

    def found(self, raw_nbytes: int) -> None:
        """Take the number of decoded bytes that an earlier call had written."""


def tell_found(on_report: OnReport, raw_nbytes: int) -> None:
    """Tell a receiver of reports what an earlier call had written, if it wants to know."""
    if raw_nbytes and isinstance(on_report, Progress):
        on_report.found(raw_nbytes)


@contextlib.contextmanager
def _in_terminal(raw_nbytes: int) -> Iterator[OnReport]:
    from shardwrite.host.terminal import bar_in_terminal  # most runs show no bar

    with bar_in_terminal("writing", raw_nbytes, counts_nbytes=True) as advance:
        yield (lambda _: None) if advance is None else _TerminalBar(advance)


class _TerminalBar:
    """Bar of rich, which is moved on by a function."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance

    def __call__(self, report: GroupReport) -> None:
        self._advance(report.raw_nbytes)

    def found(self, raw_nbytes: int) -> None:
        self._advance(raw_nbytes)


@contextlib.contextmanager
def reporting(progress: bool | OnReport, raw_nbytes: int) -> Iterator[OnReport]:
    """Report the progress of the block.

    - `raw_nbytes`: decoded bytes of everything that is written.
    """
    if callable(progress):
        yield progress
    elif not isinstance(progress, bool | np.bool_ | None):
        raise SpecError(
            "no kind of progress",
            field="progress",
            value=progress,
            remedy="give True, False, or a function that takes a report",
        )
    elif progress:
        bar = None
        if "IPython" in sys.modules:
            with contextlib.suppress(LookupError):  # where that part is missing, as in a terminal
                bar = resolve("view", "bar")(raw_nbytes)
        with bar or _in_terminal(raw_nbytes) as on_report:
            yield on_report
    else:
        yield lambda _: None
