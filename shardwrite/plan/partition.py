"""Cut of the shard grid into groups and blocks.

Along each axis the array is cut at *group* edges (whole shards) and, inside a group, at *block*
edges (whole inner chunks). One task commits a group, and one task encodes a block. If each group
has one block, the same task does both. No two commit tasks share a shard. If shards are small, a
group holds many neighbouring shards; if a shard is large, a block is a part of it. The edges along
one axis hold for the whole array, and are kept as runs of equal steps.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.errors import PlanError, SpecError
from shardwrite.grid import Box, Shape, ShardGrid, ceil_div, counts_of, unravel
from shardwrite.plan.edges import Edges, Runs, condensed, filled
from shardwrite.records import Record


@dataclass(frozen=True, slots=True)
class Cuts(Record):
    """Edges of groups and blocks along each axis, as they are stored on disk."""

    # For each axis, the runs of equal steps between the edges: ``(step, how many)``
    groups: tuple[Runs, ...]
    blocks: tuple[Runs, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """Groups and blocks of an array."""

    # Boundaries along each axis in elements, from 0 to the array's extent. All group edges are also
    # block edges.
    group_edges: tuple[Edges, ...]
    block_edges: tuple[Edges, ...]

    @property
    def cuts(self) -> Cuts:
        """Edges as they are stored on disk.

        Examples
        --------
        >>> edges = Edges.regular(25, 10)
        >>> Partition((edges,), (edges,)).cuts.groups
        (((10, 2), (5, 1)),)
        """
        return Cuts(
            tuple(edges.runs for edges in self.group_edges),
            tuple(edges.runs for edges in self.block_edges),
        )

    @classmethod
    def from_cuts(cls, cuts: Cuts, shape: Shape) -> Partition:
        """Make a partition of an array from edges as they are stored on disk."""
        groups, blocks = (
            tuple(_checked(runs, n) for runs, n in zip(axes, shape, strict=True))
            for axes in (cuts.groups, cuts.blocks)
        )
        return cls(groups, blocks)

    @property
    def group_counts(self) -> Shape:
        """Number of groups along each axis."""
        return tuple(edges.n_pieces for edges in self.group_edges)

    @property
    def n_groups(self) -> int:
        """Number of commit tasks."""
        return math.prod(self.group_counts)

    @property
    def n_blocks(self) -> int:
        """Number of encode tasks."""
        return math.prod(edges.n_pieces for edges in self.block_edges)

    @property
    def is_fused(self) -> bool:
        """Whether one task encodes and commits."""
        return self.group_edges == self.block_edges

    @property
    def largest_block(self) -> Shape:
        """Length of the longest block along each axis, in elements."""
        return tuple(edges.longest for edges in self.block_edges)

    @property
    def largest_group(self) -> Shape:
        """Length of the longest group along each axis, in elements."""
        return tuple(edges.longest for edges in self.group_edges)

    def group_box(self, rank: int) -> Box:
        """Box of elements of the group with row-major `rank`."""
        index = unravel(rank, self.group_counts)
        return Box(
            tuple(edges[i] for edges, i in zip(self.group_edges, index, strict=True)),
            tuple(edges[i + 1] for edges, i in zip(self.group_edges, index, strict=True)),
        )

    def blocks_in(self, group: Box) -> list[Box]:
        """List the blocks of a group in row-major order."""
        spans = []
        for edges, a, b in zip(self.block_edges, group.start, group.stop, strict=True):
            spans.append(list(itertools.pairwise(edges.between(a, b))))
        return [
            Box(tuple(s[0] for s in pair), tuple(s[1] for s in pair))
            for pair in itertools.product(*spans)
        ]


def _checked(runs: Runs, n: int) -> Edges:
    """Edges from 0 to `n`, from runs of equal steps."""
    if (
        any(value < 1 for run in runs for value in run)
        or sum(step * count for step, count in runs) != n
    ):
        raise ValueError(f"{runs!r:.100} does not lead from 0 to {n}")
    return Edges.from_runs(runs)


def make_partition(
    grid: ShardGrid,
    source_edges: Sequence[Edges],
    itemsize: int,
    *,
    task_nbytes: int,
    fused: bool,
    most_source_chunks: int | None = None,
) -> Partition:
    """Cut an array into groups and blocks.

    - `task_nbytes`: decoded bytes that a task should handle.
    - `most_source_chunks`: approximate limit of the source chunks that a group of several shards
      takes. A task that is killed has read them in vain.
    """
    task_size = max(1, task_nbytes // itemsize)
    largest_source = tuple(max(1, edges.longest) for edges in source_edges)
    group = _group_counts(grid, largest_source, task_size, most_source_chunks)
    check_cut(grid.shape, counts_of(grid.counts, group))
    group_edges = tuple(
        Edges.regular(n, k * s) for n, k, s in zip(grid.shape, group, grid.shards, strict=True)
    )
    return Partition(
        group_edges,
        group_edges if fused else _block_edges(grid, group_edges, source_edges, task_size),
    )


def _group_counts(
    grid: ShardGrid, largest_source: Shape, task_size: int, most_source_chunks: int | None
) -> Shape:
    """Choose the number of shards of a group along each axis.

    A group first grows until it covers a source chunk, and then as far as a task has room. Both
    times the last axis grows first.
    """
    counts = [1] * grid.ndim
    extent = [min(s, n) for s, n in zip(grid.shards, grid.shape, strict=True)]
    to_source = [
        min(ceil_div(m, s), k)
        for m, s, k in zip(largest_source, grid.shards, grid.counts, strict=True)
    ]
    for wanted in (to_source, list(grid.counts)):
        for axis in reversed(range(grid.ndim)):
            others = math.prod(extent[:axis] + extent[axis + 1 :])
            room = task_size // max(1, others * grid.shards[axis])
            if most_source_chunks is not None:
                n_each = counts_of(extent, largest_source)
                n_others = math.prod(n_each[:axis] + n_each[axis + 1 :])
                room = min(
                    room,
                    most_source_chunks
                    // max(1, n_others)
                    * largest_source[axis]
                    // grid.shards[axis],
                )
            if to_source[axis] < room < wanted[axis]:
                # a source chunk across two groups would stay in memory until the second needs it
                room -= room % to_source[axis]
            counts[axis] = max(counts[axis], min(wanted[axis], room))
            extent[axis] = min(counts[axis] * grid.shards[axis], grid.shape[axis])
    return tuple(counts)


def _block_edges(
    grid: ShardGrid,
    group_edges: Sequence[Edges],
    source_edges: Sequence[Edges],
    task_size: int,
) -> tuple[Edges, ...]:
    """Choose the block edges along each axis.

    They come from the group edges and from the edges of source chunks, rounded down to inner
    chunks. Short pieces are merged up to the size of a task, and pieces that are too long are cut.
    Groups whose source chunks lie alike are cut alike, so only some of them are looked at.
    """
    fine, some_groups, all_gaps = [], [], []
    for c, edges, source in zip(grid.chunks, group_edges, source_edges, strict=True):
        groups, chunks, gaps = condensed(edges, source)
        snapped = {edge // c * c for edge in chunks if edge < groups.stop}
        fine.append(sorted(snapped | set(groups)))
        some_groups.append(list(groups))
        all_gaps.append(gaps)
    lengths = [max((b - a for a, b in itertools.pairwise(edges)), default=0) for edges in fine]
    # along a slab axis an inner chunk spans several source chunks, and a thicker block needs more
    slab_axes = [
        axis for axis in range(grid.ndim) if source_edges[axis].longest < grid.chunks[axis]
    ]
    if slab_axes:
        lengths = _shrink(lengths, grid.chunks, task_size)
    for axis in reversed([axis for axis in range(grid.ndim) if axis not in slab_axes]):
        longest_group = group_edges[axis].longest or 1
        others = math.prod(lengths[:axis] + lengths[axis + 1 :])
        if lengths[axis] * others <= task_size:
            lengths[axis] = max(lengths[axis], min(longest_group, task_size // max(1, others)))
    check_cut(
        grid.shape,
        [
            n // max(c, length)
            for n, c, length in zip(grid.shape, grid.chunks, lengths, strict=True)
        ],
    )
    return tuple(
        filled(_cut(edges, groups, length, c), gaps)
        for edges, groups, length, c, gaps in zip(
            fine, some_groups, lengths, grid.chunks, all_gaps, strict=True
        )
    )


def _shrink(lengths: list[int], chunks: Shape, task_size: int) -> list[int]:
    """Halve the axis that spans most inner chunks until a block has at most `task_size` elements.

    The result may be larger, because no axis becomes shorter than an inner chunk.
    """
    lengths = list(lengths)
    while math.prod(lengths) > task_size:
        axis = max(range(len(lengths)), key=lambda a: lengths[a] / chunks[a])
        if lengths[axis] <= chunks[axis]:
            break
        lengths[axis] = ceil_div(ceil_div(lengths[axis], chunks[axis]), 2) * chunks[axis]
    return lengths


def _cut(fine: Sequence[int], group_edges: Sequence[int], length: int, chunk: int) -> list[int]:
    """Choose edges that are at most `length` apart, or one inner chunk if that is longer.

    They are group edges, edges of `fine` within reach, or else edges of the inner chunk grid.
    """
    chosen = [0]
    for group_stop in group_edges[1:]:
        while chosen[-1] < group_stop:
            reach = chosen[-1] + length
            edge = group_stop if reach >= group_stop else fine[bisect_right(fine, reach) - 1]
            chosen.append(
                edge
                if edge > chosen[-1]
                else min(group_stop, chosen[-1] + max(chunk, length // chunk * chunk))
            )
    return chosen


# ---- Upper limits of what can be planned, and of what can be read shard by shard
# The checks raise at once, before memory is allocated or a loop begins.


MAX_SHARDS = 2**26
"""Most shards of one run, or of one read of all indexes of an array.

The state of so many shards takes gigabytes of memory.
"""

_MAX_EXTENT = 2**62  # the sum of two extents still fits into 64 bits
_MAX_NBYTES = _MAX_END = 2**63 - 1
_MAX_CHUNKS_PER_SHARD = 2**27  # an index of 2 GiB
_MAX_EDGES = 2**25  # tasks along one axis
_MAX_TASKS = 2**32
# memory for an inner chunk's entry while an index is made: offset and size, table, encoded table
_INDEX_NBYTES = 48


# numpy has 64, and an array that is cut into inner chunks has two for each axis
_MAX_AXES = 32


def check_extents(field: str, value: Any, sizes: Sequence[int]) -> None:
    """Refuse more axes than can be cut into inner chunks, and sizes too large for 64 bits."""
    if len(sizes) > _MAX_AXES:
        raise SpecError(
            f"has {len(sizes)} axes, and at most {_MAX_AXES} can be written",
            field=field,
            value=value,
            remedy="reshape the array, so that axes of one element go",
        )
    if any(size > _MAX_EXTENT for size in sizes):
        raise SpecError(
            "is too large", field=field, value=value, remedy=f"give sizes up to {_MAX_EXTENT:,}"
        )


def check_new(shape: Shape, itemsize: int, shards: Shape, chunks: Shape) -> None:
    """Refuse the shapes of a new array if it cannot be planned.

    - Raises SpecError if the array, an inner chunk, the index of a shard or the number of shards is
      too large.
    """
    if itemsize * math.prod(shape) > _MAX_NBYTES:
        raise SpecError(
            f"holds more than {_MAX_NBYTES:,} bytes",
            field="shape",
            value=shape,
            remedy="give a smaller array",
        )
    if itemsize * math.prod(chunks) > _MAX_NBYTES:
        raise SpecError(
            f"holds more than {_MAX_NBYTES:,} bytes",
            field="chunks",
            value=chunks,
            remedy="give smaller inner chunks",
        )
    if math.prod(shards) // math.prod(chunks) > _MAX_CHUNKS_PER_SHARD:
        remedy = (
            "give smaller shards, or larger inner chunks: "
            f"a shard holds at most {_MAX_CHUNKS_PER_SHARD:,}"
        )
        raise SpecError("holds too many inner chunks", field="shards", value=shards, remedy=remedy)
    n_shards = math.prod(counts_of(shape, shards))
    if n_shards > MAX_SHARDS:
        remedy = f"give larger shards: at most {MAX_SHARDS:,} can be planned"
        raise SpecError(f"makes {n_shards:,} shards", field="shards", value=shards, remedy=remedy)


def check_whole(grid: ShardGrid, path: str) -> None:
    """Refuse to read every shard of an array that has too many shards.

    - Raises SpecError if the array has more than `MAX_SHARDS` shards. The error names their number.
    """
    if grid.n_shards > MAX_SHARDS:
        remedy = f"at most {MAX_SHARDS:,} can be looked at; read and write it by region"
        raise SpecError(f"has {grid.n_shards:,} shards", field="store", value=path, remedy=remedy)


def check_region(box: Box, shards: Shape) -> None:
    """Refuse a region that touches too many shards, or whose end does not fit into 64 bits."""
    check_extents("region", box.bounds, (0,) * len(box.stop))
    if any(b > _MAX_END for b in box.stop):
        raise SpecError(
            "lies too far out",
            field="region",
            value=box.bounds,
            remedy=f"give one that ends at {_MAX_END:,} or before",
        )
    n_shards = math.prod(
        ceil_div(b, s) - a // s for a, b, s in zip(box.start, box.stop, shards, strict=True)
    )
    if box.size and n_shards > MAX_SHARDS:
        remedy = f"give a smaller region: at most {MAX_SHARDS:,} can be planned"
        raise SpecError(
            f"touches {n_shards:,} shards", field="region", value=box.bounds, remedy=remedy
        )


def check_chunks(shape: Shape, chunks: Shape) -> None:
    """Refuse to make a dask array of too many chunks.

    - Raises SpecError if there were more than `MAX_SHARDS` chunks. The error names their number.
    """
    n_chunks = math.prod(counts_of(shape, chunks))
    if n_chunks > MAX_SHARDS:
        remedy = (
            f"give larger ones, at most {MAX_SHARDS:,}; "
            "or read a region with open_sharded(...)[...]"
        )
        raise SpecError(f"makes {n_chunks:,} chunks", field="chunks", value=chunks, remedy=remedy)


def check_growth(grid: ShardGrid, shape: Sequence[int]) -> None:
    """Refuse to let an array grow beyond the number of shards that can be read."""
    check_extents("shape", tuple(shape), shape)
    n_shards = math.prod(counts_of(shape, grid.shards))
    if n_shards > max(MAX_SHARDS, grid.n_shards):
        remedy = f"write nearer to the array's end: at most {MAX_SHARDS:,} can be looked at"
        raise SpecError(
            f"would have {n_shards:,} shards", field="shape", value=tuple(shape), remedy=remedy
        )


def check_memory(grid: ShardGrid, itemsize: int, allowed_nbytes: int) -> None:
    """Refuse inner chunks or shard indexes that do not fit into the memory of a process."""
    for what, value, nbytes in (
        ("an inner chunk", f"chunks={grid.chunks}", itemsize * math.prod(grid.chunks)),
        ("the index of a shard", f"shards={grid.shards}", _INDEX_NBYTES * grid.n_chunks_per_shard),
    ):
        if nbytes > allowed_nbytes:
            raise PlanError(
                f"{value}: {what} takes {nbytes:,} bytes, and a process may use {allowed_nbytes:,}",
                needed_nbytes=nbytes,
                allowed_nbytes=allowed_nbytes,
                remedy=(
                    "use smaller inner chunks, and fewer of them in a shard, or raise memory_limit"
                ),
            )


def check_n_tasks(shape: Shape, n_tasks: int) -> None:
    """Refuse more tasks than a plan can hold.

    - Raises PlanError if there are more than 2**32 tasks. The error names their number.
    """
    if n_tasks > _MAX_TASKS:
        raise _too_many_tasks(shape, n_tasks)


def check_cut(shape: Shape, counts: Sequence[int]) -> None:
    """Refuse to cut an array into more tasks than a plan can hold.

    - Raises PlanError if there are more than 2**32 tasks, or more than 2**25 along one axis. The
      error names their number.
    """
    n_tasks = math.prod(counts)
    if n_tasks > _MAX_TASKS or max(counts, default=0) > _MAX_EDGES:
        raise _too_many_tasks(shape, n_tasks)


def _too_many_tasks(shape: Shape, n_tasks: int) -> PlanError:
    return PlanError(
        f"shape={shape}: {n_tasks:,} tasks are more than a plan can hold",
        needed_nbytes=0,
        allowed_nbytes=0,
        remedy="make the array with create(), and write it region by region",
    )
