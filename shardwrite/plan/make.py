"""Choice of a plan: the size of tasks, and whether one task encodes and commits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwrite.errors import PlanError
from shardwrite.format.frame import check_fits
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box, boundaries
from shardwrite.plan.estimate import BATCH_NBYTES, Resources, entries_nbytes, overlap
from shardwrite.plan.limits import check_n_tasks
from shardwrite.plan.model import PlanFacts, SourceLayout
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.partition import Partition, make_partition
from shardwrite.plan.plan import Plan

# ---- Memory of tasks that copy encoded inner chunks


def copying_nbytes(plan: PlanFacts, each_nbytes: int) -> int:
    """Memory of a worker process that copies encoded inner chunks, in bytes, at most."""
    grid = plan.metadata.grid
    batch_nbytes = min(BATCH_NBYTES, plan.metadata.shard_nbytes)
    n_tasks = min(plan.resources.n_threads, max(1, plan.partition.n_groups))
    per_task = 2 * batch_nbytes + entries_nbytes(grid.n_chunks_per_shard) + each_nbytes
    return n_tasks * per_task + plan.memory.held_nbytes


def check_copying(plan: PlanFacts, needed_nbytes: int, action: str, remedy: str) -> None:
    """Refuse to copy encoded inner chunks if this takes more memory than a process may use."""
    allowed, waits_nbytes = plan.resources.memory_limit_nbytes, plan.memory.held_nbytes
    if needed_nbytes <= allowed:
        return
    waits = f", {waits_nbytes:,} of them for shards that wait until they are put"
    raise PlanError(
        f"a worker process of {plan.resources.n_threads} threads that {action} needs up to "
        f"{needed_nbytes:,} bytes{waits if waits_nbytes else ''}, and may use {allowed:,}",
        needed_nbytes=needed_nbytes,
        allowed_nbytes=allowed,
        remedy=remedy,
    )


def copied_nbytes(plan: PlanFacts, *, decodes: bool) -> int:
    """Memory of a worker process that copies encoded chunks, if it may use that much, in bytes.

    - `decodes`: whether chunks are also decoded.
    """
    chunks_nbytes = (2 if decodes else 1) * plan.metadata.chunk_nbytes
    needed = copying_nbytes(plan, chunks_nbytes + plan.held_nbytes)
    remedy = (
        "use fewer threads per process, or smaller shards. If the chunks are well compressed, it "
        "needs less: raise memory_limit"
    )
    check_copying(plan, needed, "copies encoded chunks", remedy)
    return needed


# ---- Choice of a plan


_TASK_NBYTES = (4 * 2**20, 32 * 2**20)

_FUSE_NBYTES = 64 * 2**20

_N_TASKS_AIMED_AT = 64
# source chunks that a task may always take, even if there are then fewer tasks than aimed at
_SOURCE_CHUNKS = 16


@dataclass(frozen=True, slots=True)
class Update:
    """Part of an existing array that a source covers."""

    # The region, in the coordinates of the metadata that describe the window of the array
    region: Box
    append_axis: int | None = None  # axis along which the array grows by the region


def make_plan(
    metadata: ArrayMetadata,
    source: SourceLayout,
    resources: Resources,
    options: PlanOptions,
    update: Update | None = None,
    notes: Sequence[str] = (),
) -> Plan:
    """Make the plan for writing a source as an array.

    If no plan fits into the memory, the plan that needs least memory is returned.

    - `source`: chunks, tasks and identity of the source. For an update, its chunks include the
      margins beside the region.
    - `notes`: explanations of choices that were made before.
    """
    own: Strategy | None = getattr(metadata.shard_format, "own_strategy", None)
    options = options if own is None else replace(options, strategy=own)
    check_fits(options.strategy, metadata)
    low, high = _TASK_NBYTES
    room = resources.memory_limit_nbytes // (8 * resources.n_threads)
    # where bytes depend on the cut, the cut must stay as in older versions
    most_source_chunks = (
        None
        if options.strategy.depends_on_cut
        else max(_SOURCE_CHUNKS, source.n_chunks // _N_TASKS_AIMED_AT)
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
            strategy=options.strategy,
            source=source,
            partition=partition,
            resources=resources,
            is_staged=is_staged,
            write_empty_chunks=options.write_empty_chunks,
            max_graph_tasks=options.max_graph_tasks,
            max_source_reruns=options.max_source_reruns,
            compression_ratio=options.compression_ratio,
            notes=tuple(notes),
            region=None if update is None else update.region,
            append_axis=None if update is None else update.append_axis,
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
                is_staged = resources.returns_through_parent or _is_slab_like(blocks, source)
                plan = plan_for(blocks, is_staged=is_staged)
        return plan

    check_n_tasks(metadata.grid.shape, metadata.raw_nbytes // high)
    largest = max(1, min(max(low, metadata.raw_nbytes // _N_TASKS_AIMED_AT), high, room))
    return _first_that_fits(
        plan_of,
        (
            largest >> n
            for n in range(largest.bit_length())
            if n == 0 or largest >> n >= metadata.chunk_nbytes
        ),
    )


def _first_that_fits(plan_of: Callable[[int], Plan], sizes: Iterable[int]) -> Plan:
    """Return the first plan that fits into the memory, or the one that needs least memory.

    `sizes` are the sizes of a task in bytes, largest first.
    """
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
        tried.append(plan)  # smaller tasks may hold less of the source at a time
    return min(tried, key=lambda plan: plan.least_memory.total_nbytes)


def _lies_in_source(plan: Plan) -> bool:
    """Whether the largest source chunk is at least as large as a group along every axis.

    Smaller tasks would then hold no less of the source in memory.
    """
    return all(
        max(sizes, default=1) >= e
        for sizes, e in zip(plan.source.chunks, plan.partition.largest_group, strict=True)
    )


def _is_slab_like(partition: Partition, source: SourceLayout) -> bool:
    """Whether a source chunk overlaps more than two groups along an axis.

    A scheduler that works towards the first commit would then load all source chunks of a row of
    shards, and keep them.
    """
    return any(
        overlap(edges, boundaries(sizes))[1] > 2
        for edges, sizes in zip(partition.group_edges, source.chunks, strict=True)
    )


def _reruns_by_chunks(plan: Plan) -> float:
    """Average number of waves that touch a source chunk."""
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
