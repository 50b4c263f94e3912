"""Waves: boxes of groups that are small enough for one task graph."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from shardwrite.grid import Box, Shape, boundaries, ceil_div, ravel
from shardwrite.plan.estimate import pieces_of_chunks
from shardwrite.plan.partition import Partition

_FIRST_SHARE = 10  # the first of several waves has a tenth of the thickness of the others


@dataclass(frozen=True, slots=True)
class Wave:
    """Box of groups that is one task graph."""

    groups: Box  # the box in the grid of groups
    box: Box  # the box in elements, in the coordinates of the partition
    counts: Shape  # shape of the grid of groups

    def ranks(self) -> Iterator[int]:
        """Iterate over the row-major ranks of the wave's groups."""
        axes = (range(a, b) for a, b in self.groups.bounds)
        return (ravel(index, self.counts) for index in itertools.product(*axes))


def cut_waves(
    partition: Partition, n_tasks: int, max_tasks: int, *, n_thin: int, thickness: int = 1
) -> tuple[Wave, ...]:
    """Cut the groups into boxes of at most about `max_tasks` tasks.

    The first axis is cut first. If there are several waves and `n_thin` is 0, the first wave is
    smaller than the others.

    - `n_thin`: number of leading axes along which a wave is one group thick. Fewer source chunks
      and units then wait between groups.
    - `thickness`: groups of such a wave along the first axis, at most.
    """
    counts = partition.group_counts
    n_left = ceil_div(max(1, n_tasks), max(1, max_tasks))
    steps = []
    for n in counts:
        pieces = min(n, n_left) or 1
        steps.append(max(1, ceil_div(n, pieces)))
        n_left = ceil_div(n_left, pieces)
    most = [thickness, *[1] * n_thin][:n_thin]
    steps[:n_thin] = map(min, steps, most)
    boxes = [
        Box(
            corner,
            tuple(min(a + step, n) for a, step, n in zip(corner, steps, counts, strict=True)),
        )
        for corner in itertools.product(
            *(range(0, n, step) for n, step in zip(counts, steps, strict=True))
        )
    ]
    axis = next(
        (a for a, (step, n) in enumerate(zip(steps, counts, strict=True)) if step < n), None
    )
    if axis is not None and not n_thin:
        boxes[:1] = _begin_small(boxes[0], axis)
    edges = partition.group_edges
    return tuple(
        Wave(
            groups,
            Box(
                *(
                    tuple(e[i] for e, i in zip(edges, at, strict=True))
                    for at in (groups.start, groups.stop)
                )
            ),
            counts,
        )
        for groups in boxes
    )


def wave_thickness(
    group_edges: Sequence[int], source_sizes: Sequence[int], most_reruns: float
) -> int:
    """Groups along an axis that a wave needs, so that few source chunks lie in several waves."""
    n_groups = len(group_edges) - 1
    source, groups = np.asarray(boundaries(source_sizes)), np.asarray(group_edges)
    # Waves that are as thick as several whole source chunks may share none.
    spanned = max(1, int(pieces_of_chunks(groups, source).max(initial=1)))
    doubled = [2**n for n in range(max(1, n_groups).bit_length())]
    for n in sorted({m * k for m in doubled for k in (1, spanned) if m * k < n_groups}):
        if pieces_of_chunks(np.append(groups[:-1:n], groups[-1]), source).mean() <= most_reruns:
            return int(n)
    return max(1, n_groups)


def _begin_small(groups: Box, axis: int) -> list[Box]:
    """Split the first wave in two.

    Nothing is committed before the scheduler has received a whole graph, so a small first graph
    commits its first shards earlier. The cut lies along an axis along which waves are cut in any
    case, so that no further axis has source chunks that are needed twice.
    """
    cut = groups.stop[axis] // _FIRST_SHARE
    if not cut:
        return [groups]
    start, stop = groups.start, groups.stop
    return [
        Box(start, (*stop[:axis], cut, *stop[axis + 1 :])),
        Box((*start[:axis], cut, *start[axis + 1 :]), stop),
    ]
