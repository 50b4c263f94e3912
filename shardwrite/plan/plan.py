"""Plans as users see them: how they are shown, and the parts into which they can be divided."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.checks import is_whole
from shardwrite.errors import PlanError, SpecError
from shardwrite.format.frame import check_fits
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box
from shardwrite.plan.estimate import BATCH_NBYTES, Resources, entries_nbytes, overlap
from shardwrite.plan.model import PlanFacts, SourceLayout
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.partition import Partition, check_n_tasks, make_partition
from shardwrite.results import card_of

if TYPE_CHECKING:
    from shardwrite.plan.regions import ShardRef

# ---- Numbers of parts, and cuts between them


_MAX_PARTS = 2**53  # whole numbers up to there are exact in a float


def check_part(index: object, count: object) -> tuple[int, int]:
    """The number of a part and the number of all parts, if they can be that.

    - `index`, `count`: number of the part, from 0, and number of all parts, as a user has given
      them.
    - Raises SpecError unless they are whole numbers with ``0 <= index < count``.
    """
    if not (is_whole(index, 0) and is_whole(count, 1, _MAX_PARTS) and index < count):
        raise SpecError(
            "no such part",
            field="part",
            value=(index, count),
            remedy="give index i of count n with 0 <= i < n, as whole numbers up to 2**53",
        )
    return int(index), int(count)


def check_n_parts(n_parts: object) -> int | None:
    """The number of all parts, if it can be that; None stays None.

    - Raises SpecError unless it is a whole number of 1 or more.
    """
    if n_parts is None:
        return None
    if not is_whole(n_parts, 1, _MAX_PARTS):
        raise SpecError(
            "not a number of parts",
            field="n_parts",
            value=n_parts,
            remedy="give a whole number from 1 to 2**53, or None",
        )
    return int(n_parts)


@dataclass(frozen=True, slots=True)
class PartCuts:
    """Where groups are cut into parts. A group belongs to the part that contains its middle.

    Nothing here takes memory for each part, because there may be far more parts than groups.
    """

    middles: npt.NDArray[np.float64]  # elements before the middle of each group, in ascending order
    total: float  # all elements

    def groups(self, index: int, count: int) -> range:
        """Ranks of the groups of part `index` of `count`."""
        edges = self._start(np.array([index, index + 1], dtype=np.float64), count)
        first, last = np.searchsorted(self.middles, edges).tolist()
        return range(first, last if index + 1 < count else len(self.middles))

    def parts(self, count: int) -> npt.NDArray[np.int64]:
        """For each group, its part of `count`."""
        last = np.float64(count - 1)
        if not self.total:
            return np.full(len(self.middles), count - 1, dtype=np.int64)
        # Rounding may lead to a part beside the right one.
        numbers = np.clip(np.floor(self.middles * count / self.total), 0, last)
        while (is_late := (numbers > 0) & (self._start(numbers, count) > self.middles)).any():
            numbers[is_late] -= 1
        while (
            is_early := (numbers < last) & (self._start(numbers + 1, count) <= self.middles)
        ).any():
            numbers[is_early] += 1
        parts: npt.NDArray[np.int64] = numbers.astype(np.int64)
        return parts

    def _start(self, parts: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
        """Elements before some parts."""
        return self.total * parts / count


# ---- Plans and parts


@dataclass(frozen=True, slots=True)
class Stretch:
    """Place of a plan among several plans that are cut into parts together."""

    before_nbytes: int  # decoded bytes of the plans before it
    total_nbytes: int  # decoded bytes of all plans
    own_nbytes: int | None = None  # decoded bytes of this plan, if they are known

    def may_have(self, index: int, count: int) -> bool:
        """Whether part `index` of `count` may have a group of this plan."""
        if not self.own_nbytes:
            return True
        slack = (self.total_nbytes >> 40) * count  # where floats round; see `PartCuts`
        start = self.before_nbytes * count
        ends_before = start + self.own_nbytes * count <= index * self.total_nbytes - slack
        begins_after = start >= (index + 1) * self.total_nbytes + slack
        return not ends_before and not begins_after


@dataclass(frozen=True, kw_only=True)
class Plan(PlanFacts):
    """Plan of how an array will be written.

    Make one with :func:`shardwrite.plan`.

    Attributes
    ----------
    metadata : ArrayMetadata
        Metadata of the array that will be written.
    strategy : Strategy
        The write strategy.
    source : SourceLayout
        Chunks, tasks and identity of the source.
    partition : Partition
        Groups and blocks into which the array is cut.
    resources : Resources
        Threads and memory of the worker processes.
    is_staged : bool
        Whether every unit is encoded into a part file first, and shards are committed from the
        part files.
    write_empty_chunks : bool
        Whether inner chunks that hold only the fill value are stored.
    max_graph_tasks : int
        Tasks that the scheduler may hold at the same time.
    max_source_reruns : float
        How often a source task may run, on average.
    source_reruns : float
        How often a source task runs, on average; 1 unless waves share source tasks.
    compression_ratio : float, optional
        Expected ratio of decoded to encoded size.
    notes : tuple of str
        Explanations of choices that were left to the planner.
    region : Box, optional
        Region that the source covers, if the plan updates an existing array. `metadata` then
        describes the window of the array that the shards of the region form, and the coordinates
        of the region and of the partition are relative to this window.
    append_axis : int, optional
        Axis along which the array grows by the region.
    staged_with : str, optional
        Name of the regions that are changed together, if their values are all computed and kept
        before a shard changes. `kept_nbytes` is the decoded size of these values.
    traffic : Traffic, optional
        Requests and bytes, if the plan is for an array in a bucket.
    gathering : Plan, optional
        Plan of the run that gathers the chunks into their shards, if this plan writes them into
        the spool of a volume.
    scales : tuple of Plan
        Plans of further scales of a volume, which one call writes together with this one.
    """

    gathering: Plan | None = None
    scales: tuple[Plan, ...] = ()

    def __str__(self) -> str:
        from shardwrite.plan.card import plan_text  # for people who look at a plan

        return "\n\n".join(plan_text(plan, plan.gathering) for plan in (self, *self.scales))

    def __repr__(self) -> str:
        from shardwrite.plan.card import plan_line  # for people who look at a plan

        return plan_line(self, self.gathering)

    def _repr_html_(self) -> str:
        from shardwrite.plan.card import plan_facts  # for people who look at a plan

        plans = (self, *self.scales)
        return "".join(card_of(plan_facts(plan, plan.gathering)) for plan in plans)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of the plan, without the digest, as values that JSON can hold."""
        facts, scales = super().to_dict(), [plan.to_dict() for plan in self.scales]
        if self.gathering is not None:
            facts["gathering"] = self.gathering.to_dict()
        return facts | ({"scales": scales} if scales else {})

    def part(self, index: int, count: int, among: Stretch | None = None) -> Part:
        """Return part `index` of `count`.

        A part consists of whole groups. Parts are balanced by decoded bytes, and depend only on
        the plan and the two numbers. If several plans are cut together, `among` is this plan's
        place among them; the part may then be empty.

        Parameters
        ----------
        index, count : int
            Number of the part, from 0, and number of all parts.
        among : Stretch, optional
            Place of this plan among several that are cut together.

        Raises
        ------
        SpecError
            Unless they are whole numbers with ``0 <= index < count``.
        """
        index, count = check_part(index, count)
        return Part(self, index, count, self._cuts(among).groups(index, count))

    def _cuts(self, among: Stretch | None) -> PartCuts:
        """Where the groups are cut into parts."""
        sizes = np.ones((), dtype=np.float64)
        for edges in self.partition.group_edges:
            sizes = np.multiply.outer(sizes, np.diff(edges.positions).astype(np.float64))
        ends = np.cumsum(sizes.ravel())
        before, total = 0.0, ends[-1] if len(ends) else 0.0
        if among is not None:
            itemsize = self.metadata.itemsize
            before, total = among.before_nbytes / itemsize, among.total_nbytes / itemsize
        return PartCuts(before + ends - sizes.ravel() / 2, float(total))

    def parts_with(
        self, n_left: npt.NDArray[np.int64], count: int, among: Stretch | None = None
    ) -> list[int]:
        """List the unfinished parts.

        Parameters
        ----------
        n_left : numpy.ndarray of int64
            Number of unfinished shards of each group, in row-major order.
        count : int
            Number of all parts.
        among : Stretch, optional
            Place of this plan among several that are cut together.
        """
        parts = self._cuts(among).parts(count)
        unfinished: list[int] = np.unique(parts[n_left > 0]).tolist()
        return unfinished


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a plan: the groups that one rank writes.

    Attributes
    ----------
    plan : Plan
        The whole plan.
    index, count : int
        Number of this part, from 0, and number of all parts.
    groups : range
        Row-major ranks of the part's groups.
    """

    plan: Plan
    index: int
    count: int
    groups: range

    @property
    def raw_nbytes(self) -> int:
        """Decoded size of this part in bytes, including the margins of an update's window."""
        return sum(box.size for box in self.boxes()) * self.plan.metadata.itemsize

    def boxes(self) -> Iterator[Box]:
        """Iterate over the boxes of the part's groups, in the coordinates of the partition."""
        return (self.plan.partition.group_box(rank) for rank in self.groups)

    @property
    def shards(self) -> list[ShardRef]:
        """Shards of this part, in the order of its groups."""
        return [
            ref
            for box in self.boxes()
            for ref in self.plan.shards_for(box.shift(tuple(-o for o in self.plan.origin)))
        ]

    def __repr__(self) -> str:
        return f"<Part: {self}>"

    def __str__(self) -> str:
        of = self.plan.partition.n_groups
        return (
            f"part {self.index} of {self.count}: {len(self.groups)} groups of {of}, "
            f"{self.raw_nbytes:,} bytes"
        )


# ---- Memory of tasks that copy encoded inner chunks


def copying_nbytes(plan: PlanFacts, each_nbytes: int) -> int:
    """Memory of a worker process that copies encoded inner chunks, in bytes, at most."""
    grid = plan.metadata.grid
    batch_nbytes = min(BATCH_NBYTES, plan.metadata.shard_nbytes)
    n_tasks = min(plan.resources.n_threads, max(1, plan.partition.n_groups))
    per_task = 2 * batch_nbytes + entries_nbytes(grid.n_chunks_per_shard) + each_nbytes
    return n_tasks * per_task + plan.bound.held_nbytes


def check_copying(plan: PlanFacts, needed_nbytes: int, action: str, remedy: str) -> None:
    """Refuse to copy encoded inner chunks if this takes more memory than a process may use."""
    allowed, waits_nbytes = plan.resources.memory_limit_nbytes, plan.bound.held_nbytes
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


# ---- Choice of a plan: the size of tasks, and whether one task encodes and commits


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
            source.edges,
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
        edges.longest >= n
        for edges, n in zip(plan.source.edges, plan.partition.largest_group, strict=True)
    )


def _is_slab_like(partition: Partition, source: SourceLayout) -> bool:
    """Whether a source chunk overlaps more than two groups along an axis.

    A scheduler that works towards the first commit would then load all source chunks of a row of
    shards, and keep them.
    """
    return any(
        overlap(*edges)[1] > 2 for edges in zip(partition.group_edges, source.edges, strict=True)
    )


def _reruns_by_chunks(plan: Plan) -> float:
    """Average number of waves that touch a source chunk."""
    if len(plan.waves) == 1 or not plan.source.n_chunks:
        return 1.0
    touched = 0
    for wave in plan.waves:
        touched += math.prod(
            edges.n_before(b) - edges.n_up_to(a) + 1
            for edges, (a, b) in zip(plan.source.edges, wave.box.bounds, strict=True)
        )
    return touched / plan.source.n_chunks
