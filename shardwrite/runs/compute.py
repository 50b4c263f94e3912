"""Computation of the graphs of sessions: run them on an engine, and collect the reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, cast

from dask.highlevelgraph import HighLevelGraph

from shardwrite.engines import Engine, Stopped
from shardwrite.host.events import RUNS, tell
from shardwrite.runs.fusion import fuse_source, is_worth_fusing
from shardwrite.runs.progress import OnReport
from shardwrite.runs.session import Session
from shardwrite.write.context import GroupReport

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
            if session.driver in key[0]:
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
    graph, keys = one_graph(sessions, engine)
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


def compute_waves(
    session: Session,
    engine: Engine,
    on_report: OnReport,
    only: Container[int] | None = None,
) -> None:
    """Write the groups of a session wave by wave.

    - `only`: ranks of the groups to write. All groups by default.
    """
    waves = session.job.plan.waves
    for number, wave in enumerate(waves):
        told = f"wave {number + 1} of {len(waves)} begins"
        tell(RUNS, logging.INFO, told, run=session.directory.path)
        groups = [rank for rank in wave.ranks() if only is None or rank in only]
        _compute_wave(session, engine, str(number), groups, on_report)


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
    if getattr(source, "copied", None) is not None:
        from shardwrite.runs.watching import (  # only where objects may change
            CopiesObjects,
            SourceWatch,
        )

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
