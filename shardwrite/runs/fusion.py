"""Fusion of source tasks with the tasks that need them.

A scheduler spends about a millisecond on each task, however small it is. Fusion saves that time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dask.base import get_annotations
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import GraphNode, Task

from shardwrite.engines import Engine
from shardwrite.plan import Plan

# bytes that a task copies in about the time that it takes to schedule it
_SMALL_NBYTES = 2**20


def is_worth_fusing(plan: Plan, engine: Engine) -> bool:
    """Whether to fuse source tasks with the tasks that write groups.

    This is worthwhile if there are no more source chunks than groups. It is also worthwhile if the
    source tasks are small and there is a group for each thread.

    - `plan`: the plan. Source tasks are only fused if its layout is fused.
    """
    n_threads = engine.n_processes * engine.n_threads
    n_groups, is_small = (
        plan.partition.n_groups,
        plan.raw_nbytes <= _SMALL_NBYTES * plan.source.n_tasks,
    )
    is_better = plan.source.n_chunks <= n_groups or (is_small and n_groups >= n_threads)
    return engine.gains_by_fusion and plan.partition.is_fused and is_better


def fuse_source(graph: HighLevelGraph, keys: Sequence[Any]) -> HighLevelGraph:
    """Fuse each of `keys` with the tasks that only it needs.

    Tasks with annotations of dask, such as resources or a number of retries, are not fused. They
    would run without them.

    - Returns: a graph without the tasks that no result needs. It has one layer if tasks were fused.
    """
    culled = graph.cull(set(keys))
    here = get_annotations()  # are those of all tasks that are made now
    if any(layer.annotations and layer.annotations != here for layer in culled.layers.values()):
        return culled
    tasks = culled.to_dict()
    # A `GraphNode` knows its dependencies. In other tasks, dask has to search for them.
    is_plain = all(isinstance(task, GraphNode) for task in tasks.values())
    needs = (
        {key: task.dependencies for key, task in tasks.items()}
        if is_plain
        else culled.get_all_dependencies()
    )
    n_needed = Counter(itertools.chain.from_iterable(needs.values()))
    wanted = set(keys)
    for key in keys:
        own = [key]
        for one in own:  # the list grows during the loop
            alone = [
                needed for needed in needs[one] if n_needed[needed] == 1 and needed not in wanted
            ]
            own += [needed for needed in alone if isinstance(tasks[needed], Task)]
        if len(own) > 1:
            tasks[key] = Task.fuse(*map(tasks.pop, own), key=key)
    layers: Any = {"shardwrite-fused": tasks}
    return HighLevelGraph(layers, {"shardwrite-fused": set()})
