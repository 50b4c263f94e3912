"""Source tasks taken into the tasks that need them: a scheduler takes about a millisecond for each task, however small it is."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import GraphNode, Task

from shardwrite.engines import Engine
from shardwrite.plan import Plan

__all__ = ["fuse_source", "is_worth_fusing"]

_SMALL_NBYTES = 2**20  # what a task copies in about the time that scheduling it takes


def is_worth_fusing(plan: Plan, engine: Engine) -> bool:
    """Whether source tasks are better done by the tasks that write groups.

    They are where no group needs several, and where they are small and groups enough to keep all threads busy.

    Parameters
    ----------
    plan : Plan
        Whose groups are written by one task each; otherwise never.
    engine : Engine
        Who runs the tasks.
    """
    n_threads = engine.n_processes * engine.n_threads
    n_groups, is_small = (
        plan.partition.n_groups,
        plan.raw_nbytes <= _SMALL_NBYTES * plan.source.n_tasks,
    )
    is_better = plan.source.n_chunks <= n_groups or (is_small and n_groups >= n_threads)
    return engine.kind in ("distributed", "threads") and plan.partition.is_fused and is_better


def fuse_source(graph: HighLevelGraph, keys: Sequence[Any]) -> HighLevelGraph:
    """The graph, in which each of `keys` is one task with all that nothing else needs.

    Parameters
    ----------
    graph : HighLevelGraph
        Of tasks and their source.
    keys : sequence of key
        Its results.
    """
    culled = graph.cull(set(keys))
    tasks = culled.to_dict()
    is_plain = all(
        isinstance(task, GraphNode) for task in tasks.values()
    )  # then they know; else dask looks for it
    needs = (
        {key: task.dependencies for key, task in tasks.items()}
        if is_plain
        else culled.get_all_dependencies()
    )
    n_needed = Counter(itertools.chain.from_iterable(needs.values()))
    wanted = set(keys)
    for key in keys:
        own = [key]
        for one in own:  # which grows meanwhile
            alone = [
                needed for needed in needs[one] if n_needed[needed] == 1 and needed not in wanted
            ]
            own += [needed for needed in alone if isinstance(tasks[needed], Task)]
        if len(own) > 1:
            tasks[key] = Task.fuse(*map(tasks.pop, own), key=key)
    layers: Any = {"shardwrite-fused": tasks}
    return HighLevelGraph(layers, {"shardwrite-fused": set()})
