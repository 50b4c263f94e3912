"""Waves: sets of groups small enough for a scheduler to hold."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from shardwrite.grid import Box, Shape, ceil_div, ravel
from shardwrite.plan.partition import Partition

__all__ = ["Wave", "cut_waves"]

_FIRST_SHARE = 10


@dataclass(frozen=True, slots=True)
class Wave:
    """A box of groups.

    Parameters
    ----------
    groups : Box
        In the grid of groups.
    box : Box
        In array coordinates.
    counts : tuple of int
        The grid of groups.
    """

    groups: Box
    box: Box
    counts: Shape

    def ranks(self) -> Iterator[int]:
        """Row-major ranks of its groups."""
        axes = (range(a, b) for a, b in self.groups.bounds)
        return (ravel(index, self.counts) for index in itertools.product(*axes))


def cut_waves(
    partition: Partition, n_tasks: int, max_tasks: int, *, n_thin: int
) -> tuple[Wave, ...]:
    """Cut the groups into boxes of about `max_tasks` tasks at most, along the slowest axis first; the first of several is smaller.

    Parameters
    ----------
    partition : Partition
        Groups and blocks.
    n_tasks : int
        Tasks of the whole, the source's included.
    max_tasks : int
        Tasks that the scheduler may hold at a time.
    n_thin : int
        Along so many of the first axes a wave is one group thick: less lies about between groups.
    """
    counts = partition.group_counts
    n_left = ceil_div(max(1, n_tasks), max(1, max_tasks))
    steps = []
    for n in counts:
        pieces = min(n, n_left) or 1
        steps.append(max(1, ceil_div(n, pieces)))
        n_left = ceil_div(n_left, pieces)
    steps[:n_thin] = [1] * min(n_thin, len(steps))
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


def _begin_small(groups: Box, axis: int) -> list[Box]:
    """The first wave in two: nothing is committed before the scheduler has taken in all of a graph.

    It is cut along an axis along which waves are cut anyhow, so that no more of the source is needed twice.
    """
    cut = groups.stop[axis] // _FIRST_SHARE
    if not cut:
        return [groups]
    start, stop = groups.start, groups.stop
    return [
        Box(start, (*stop[:axis], cut, *stop[axis + 1 :])),
        Box((*start[:axis], cut, *start[axis + 1 :]), stop),
    ]
