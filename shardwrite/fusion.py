"""Source tasks taken into the tasks that need them: a scheduler takes about a millisecond for each task, however small it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dask._task_spec import Task, convert_legacy_graph
from dask.highlevelgraph import HighLevelGraph

from shardwrite.engines import Engine
from shardwrite.plan import Plan

__all__ = ["fuse_source", "is_worth_fusing"]

_SMALL_NBYTES = 2**20  # what a task copies in about the time that scheduling it takes


def is_worth_fusing(plan: Plan, engine: Engine) -> bool:
    """Whether source tasks are better done by the tasks that write groups.

    They are where no group needs several, and where they are small and groups enough to keep all threads of a cluster busy.

    Parameters
    ----------
    plan : Plan
        Whose groups are written by one task each; otherwise never.
    engine : Engine
        Who runs the tasks.
    """
    n_threads = engine.n_processes * engine.n_threads
    n_groups, is_small = plan.partition.n_groups, plan.raw_nbytes <= _SMALL_NBYTES * plan.source.n_tasks
    is_better = plan.source.n_chunks <= n_groups or (is_small and n_groups >= n_threads)
    return engine.kind == "distributed" and plan.partition.is_fused and is_better


def fuse_source(graph: HighLevelGraph, keys: Sequence[Any]) -> HighLevelGraph:
    """The graph, in which each of `keys` is one task with all that nothing else needs.

    Parameters
    ----------
    graph : HighLevelGraph
        Of tasks and their source.
    keys : sequence of key
        Its results.
    """
    tasks = convert_legacy_graph(graph.cull(set(keys)).to_dict())
    n_needed = Counter(needed for task in tasks.values() for needed in task.dependencies)
    wanted = set(keys)
    for key in keys:
        own = [tasks[key]]
        for task in own:  # which grows meanwhile
            alone = [needed for needed in task.dependencies if n_needed[needed] == 1 and needed not in wanted]
            own += [tasks[needed] for needed in alone if isinstance(tasks[needed], Task)]
        for task in own[1:]:
            del tasks[task.key]
        tasks[key] = Task.fuse(*own, key=key)
    layers: Any = {"shardwrite-fused": tasks}
    return HighLevelGraph(layers, {"shardwrite-fused": set()})
