"""Choosing a plan: how large tasks are, and whether encode and commit are one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from shardwrite.errors import PlanError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import AppendOnly, Strategy
from shardwrite.grid import Box, boundaries
from shardwrite.plan.estimate import Resources, overlap
from shardwrite.plan.limits import check_n_tasks
from shardwrite.plan.model import MAX_GRAPH_TASKS, Plan, SourceLayout
from shardwrite.plan.partition import Partition, make_partition

__all__ = ["make_plan"]

_TASK_NBYTES = (4 * 2**20, 32 * 2**20)
_FUSE_NBYTES = 64 * 2**20
_N_TASKS_AIMED_AT = 64
_SOURCE_CHUNKS = 16  # that a task may take even if there are then fewer tasks


def make_plan(
    metadata: ArrayMetadata,
    strategy: Strategy,
    source: SourceLayout,
    resources: Resources,
    *,
    write_empty_chunks: bool = False,
    stage_units: bool = False,
    max_graph_tasks: int = MAX_GRAPH_TASKS,
    compression_ratio: float | None = None,
    notes: Sequence[str] = (),
    region: Box | None = None,
    append_axis: int | None = None,
) -> Plan:
    """The plan for writing a source as an array; if none fits into the memory, the one that needs least.

    Parameters
    ----------
    metadata : ArrayMetadata
        The array to be.
    strategy : Strategy
        The write strategy.
    source : SourceLayout
        Chunks, tasks and identity of the source.
    resources : Resources
        What a worker process offers.
    write_empty_chunks : bool
        Store inner chunks of the fill value only, too.
    stage_units : bool
        Never pass encoded units between tasks: the engine would copy them through one process.
    max_graph_tasks : int
        Tasks that the scheduler may hold at a time.
    compression_ratio : float, optional
        Decoded over encoded size that is expected; the worst case is 1.
    notes : sequence of str
        Explanations of choices made before.
    region : Box, optional
        What the source covers of a part of an array that exists; margins beside it are among the source's chunks.
    append_axis : int, optional
        The axis along which the array grows by the region.
    """
    low, high = _TASK_NBYTES
    room = resources.memory_limit_nbytes // (8 * resources.n_threads)
    inner_nbytes = metadata.itemsize * math.prod(metadata.grid.chunks)
    # the bytes of AppendOnly depend on the cut, which therefore stays what it always was
    is_free = not isinstance(strategy, AppendOnly)
    most_source_chunks = (
        max(_SOURCE_CHUNKS, source.n_chunks // _N_TASKS_AIMED_AT) if is_free else None
    )

    def cut(task_nbytes: int, *, fused: bool) -> Partition:
        return make_partition(
            metadata.grid,
            source.chunks,
            metadata.itemsize,
            task_nbytes=task_nbytes,
            fused=fused,
            most_source_chunks=most_source_chunks,
        )

    def plan_for(partition: Partition, *, is_staged: bool) -> Plan:
        return Plan(
            metadata=metadata,
            strategy=strategy,
            source=source,
            partition=partition,
            resources=resources,
            is_staged=is_staged,
            write_empty_chunks=write_empty_chunks,
            max_graph_tasks=max_graph_tasks,
            compression_ratio=compression_ratio,
            notes=tuple(notes),
            region=region,
            append_axis=append_axis,
        )

    def plan_of(task_nbytes: int) -> Plan:
        plan = plan_for(cut(task_nbytes, fused=True), is_staged=False)
        group_nbytes = metadata.itemsize * math.prod(plan.partition.largest_group)
        is_small = group_nbytes <= max(task_nbytes, min(_FUSE_NBYTES, room)) or _lies_in_source(
            plan
        )
        if not is_small or plan.least_memory.total_nbytes > resources.memory_limit_nbytes // 2:
            blocks = cut(task_nbytes, fused=False)
            if not blocks.is_fused:
                plan = plan_for(blocks, is_staged=stage_units or _is_slab_like(blocks, source))
        return plan

    check_n_tasks(metadata.grid.shape, metadata.raw_nbytes // high)
    largest = max(1, min(max(low, metadata.raw_nbytes // _N_TASKS_AIMED_AT), high, room))
    return _first_that_fits(
        plan_of,
        (
            largest >> n
            for n in range(largest.bit_length())
            if n == 0 or largest >> n >= inner_nbytes
        ),
    )


def _first_that_fits(plan_of: Callable[[int], Plan], sizes: Iterable[int]) -> Plan:
    """The plan of the largest tasks that fit into the memory; if none do, the one that needs least."""
    tried: list[Plan] = []
    for task_nbytes in sizes:
        try:
            plan = plan_of(task_nbytes)
        except PlanError:  # too many tasks
            if not tried:
                raise
            break
        if plan.fits:
            return replace(plan, source_reruns=_reruns_by_chunks(plan))
        tried.append(plan)  # finer tasks may hold less of the source at a time
    return min(tried, key=lambda plan: plan.least_memory.total_nbytes)


def _lies_in_source(plan: Plan) -> bool:
    """Whether a source chunk is at least as large as a group, so that finer tasks would hold no less."""
    return all(
        max(sizes, default=1) >= e
        for sizes, e in zip(plan.source.chunks, plan.partition.largest_group, strict=True)
    )


def _is_slab_like(partition: Partition, source: SourceLayout) -> bool:
    """Whether source chunks reach across several groups.

    A scheduler that goes for the first shard to commit would then load all source chunks of a row of shards, and keep them.
    """
    return any(
        overlap(edges, boundaries(sizes))[1] > 2
        for edges, sizes in zip(partition.group_edges, source.chunks, strict=True)
    )


def _reruns_by_chunks(plan: Plan) -> float:
    """Source chunks that the waves touch, over all source chunks."""
    if len(plan.waves) == 1 or not plan.source.n_chunks:
        return 1.0
    touched = 0
    edges = [np.asarray(boundaries(sizes)) for sizes in plan.source.chunks]
    for wave in plan.waves:
        box = wave.box
        spans = [
            np.searchsorted(e, b, side="left") - (np.searchsorted(e, a, side="right") - 1)
            for e, a, b in zip(edges, box.start, box.stop, strict=True)
        ]
        touched += math.prod(int(n) for n in spans)
    return touched / plan.source.n_chunks
