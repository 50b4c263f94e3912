"""Cut of the shard grid into groups and blocks.

Along each axis the array is cut at *group* edges (whole shards) and, inside a group, at *block*
edges (whole inner chunks). One task commits a group, and one task encodes a block. If each group
has one block, the same task does both. No two commit tasks share a shard. If shards are small, a
group holds many neighbouring shards; if a shard is large, a block is a part of it. The edges along
one axis hold for the whole array, so a million shards need only a short list of edges per axis.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwrite.codecs.documents import JSON
from shardwrite.grid import Box, Shape, ShardGrid, boundaries, ceil_div, unravel
from shardwrite.plan.limits import check_cut

Runs = tuple[tuple[int, int], ...]
"""Steps from one edge to the next, as runs of equal steps: ``(step, how many)``."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Edges of groups and blocks along each axis, as they are stored on disk.

    A long axis has millions of edges, so they are given as runs of equal steps.
    """

    # For each axis, the runs of equal steps between the edges: ``(step, how many)``
    groups: tuple[Runs, ...]
    blocks: tuple[Runs, ...]

    def to_dict(self) -> dict[str, JSON]:
        """Return the runs as values that JSON can hold."""
        return {"groups": self.groups, "blocks": self.blocks}

    @classmethod
    def from_json(cls, found: JSON) -> Cuts:
        """Parse the value that `to_dict` returns."""
        if not isinstance(found, Mapping):
            raise ValueError("it does not say how its tasks are cut")  # noqa: TRY004 (of the file)
        return cls(_axes_in(found.get("groups")), _axes_in(found.get("blocks")))


@dataclass(frozen=True, slots=True)
class Partition:
    """Groups and blocks of an array."""

    # Boundaries along each axis in elements, from 0 to the array's extent. All group edges are also
    # block edges.
    group_edges: tuple[tuple[int, ...], ...]
    block_edges: tuple[tuple[int, ...], ...]

    @property
    def cuts(self) -> Cuts:
        """Edges as they are stored on disk.

        Examples
        --------
        >>> Partition(((0, 10, 20, 25),), ((0, 10, 20, 25),)).cuts.groups
        (((10, 2), (5, 1)),)
        """
        return Cuts(
            tuple(_runs(edges) for edges in self.group_edges),
            tuple(_runs(edges) for edges in self.block_edges),
        )

    @classmethod
    def from_cuts(cls, cuts: Cuts, shape: Shape) -> Partition:
        """Make a partition of an array from edges as they are stored on disk."""
        groups, blocks = (
            tuple(_expanded(runs, n) for runs, n in zip(axes, shape, strict=True))
            for axes in (cuts.groups, cuts.blocks)
        )
        return cls(groups, blocks)

    @property
    def group_counts(self) -> Shape:
        """Number of groups along each axis."""
        return tuple(len(edges) - 1 for edges in self.group_edges)

    @property
    def n_groups(self) -> int:
        """Number of commit tasks."""
        return math.prod(self.group_counts)

    @property
    def n_blocks(self) -> int:
        """Number of encode tasks."""
        return math.prod(len(edges) - 1 for edges in self.block_edges)

    @property
    def is_fused(self) -> bool:
        """Whether one task encodes and commits."""
        return self.group_edges == self.block_edges

    @property
    def largest_block(self) -> Shape:
        """Length of the longest block along each axis, in elements."""
        return _longest(self.block_edges)

    @property
    def largest_group(self) -> Shape:
        """Length of the longest group along each axis, in elements."""
        return _longest(self.group_edges)

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
            inside = edges[bisect_left(edges, a) : bisect_right(edges, b)]
            spans.append(list(itertools.pairwise(inside)))
        return [
            Box(tuple(s[0] for s in pair), tuple(s[1] for s in pair))
            for pair in itertools.product(*spans)
        ]

    def group_boxes(self) -> Iterator[Box]:
        """Iterate over the boxes of all groups in row-major order."""
        return (self.group_box(rank) for rank in range(self.n_groups))


def _axes_in(found: JSON) -> tuple[Runs, ...]:
    """Runs for each axis from parsed JSON."""
    if not isinstance(found, list):
        raise ValueError("it does not say how its tasks are cut")  # noqa: TRY004 (of the file)
    return tuple(_runs_in(axis) for axis in found)


def _runs_in(found: JSON) -> Runs:
    """Runs along one axis from parsed JSON."""
    pairs = found if isinstance(found, list) else [None]
    runs = [(pair[0], pair[1]) for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    steps = tuple((a, b) for a, b in runs if type(a) is int and type(b) is int)
    if len(steps) != len(pairs):
        raise ValueError(f"{found!r:.100} are no runs of steps")
    return steps


def _runs(edges: Sequence[int]) -> Runs:
    steps = np.diff(np.asarray(edges, dtype=np.int64))
    firsts = np.flatnonzero(np.diff(steps, prepend=-1))
    return tuple(
        zip(steps[firsts].tolist(), np.diff(firsts, append=len(steps)).tolist(), strict=True)
    )


def _expanded(runs: Runs, n: int) -> tuple[int, ...]:
    """Edges from 0 to `n`, from runs of equal steps."""
    if (
        any(value < 1 for run in runs for value in run)
        or sum(step * count for step, count in runs) != n
    ):
        raise ValueError(f"{runs!r:.100} does not lead from 0 to {n}")
    steps = np.repeat([step for step, _ in runs], [count for _, count in runs])
    return (0, *np.cumsum(steps, dtype=np.int64).tolist())


def _longest(all_edges: Sequence[Sequence[int]]) -> Shape:
    return tuple(int(np.diff(np.asarray(edges)).max(initial=0)) for edges in all_edges)


def make_partition(
    grid: ShardGrid,
    source_chunks: Sequence[Sequence[int]],
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
    largest_source = tuple(max(1, *sizes) if sizes else 1 for sizes in source_chunks)
    group = _group_counts(grid, largest_source, task_size, most_source_chunks)
    check_cut(grid.shape, [ceil_div(n, k) for n, k in zip(grid.counts, group, strict=True)])
    group_edges = tuple(
        (*range(0, n, k * s), n) for n, k, s in zip(grid.shape, group, grid.shards, strict=True)
    )
    return Partition(
        group_edges,
        group_edges if fused else _block_edges(grid, group_edges, source_chunks, task_size),
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
                n_each = [ceil_div(e, m) for e, m in zip(extent, largest_source, strict=True)]
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
    group_edges: Sequence[Sequence[int]],
    source_chunks: Sequence[Sequence[int]],
    task_size: int,
) -> tuple[tuple[int, ...], ...]:
    """Choose the block edges along each axis.

    They come from the group edges and from the edges of source chunks, rounded down to inner
    chunks. Short pieces are merged up to the size of a task, and pieces that are too long are cut.
    """
    fine = []
    for n, c, edges, sizes in zip(grid.shape, grid.chunks, group_edges, source_chunks, strict=True):
        snapped = {edge // c * c for edge in boundaries(sizes) if edge < n}
        fine.append(sorted(snapped | set(edges)))
    lengths = list(_longest(fine))
    # along a slab axis an inner chunk spans several source chunks, and a thicker block needs more
    slab_axes = [
        axis for axis in range(grid.ndim) if max(source_chunks[axis], default=1) < grid.chunks[axis]
    ]
    if slab_axes:
        lengths = _shrink(lengths, grid.chunks, task_size)
    for axis in reversed([axis for axis in range(grid.ndim) if axis not in slab_axes]):
        longest_group = max((b - a for a, b in itertools.pairwise(group_edges[axis])), default=1)
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
        tuple(_cut(edges, groups, length, c))
        for edges, groups, length, c in zip(fine, group_edges, lengths, grid.chunks, strict=True)
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
