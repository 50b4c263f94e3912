"""The values of a dask array as a source of chunks.

If tasks do not share this process's memory, a task of its own cuts each chunk that reaches beyond a
task's box. So only the elements that are needed are sent. Otherwise each task cuts its chunks
itself, because that copies nothing.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.blockwise import Blockwise
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef

import shardwrite._dask as dask
from shardwrite.grid import Box, boundaries
from shardwrite.plan import Plan
from shardwrite.write.tasks import SourcePieces, cut_block, encode_block, write_group

if TYPE_CHECKING:
    from shardwrite.runs.source import Key, TaskBox

__all__ = ["ArrayChunks", "waves_reruns"]


class ArrayChunks:
    """Values of a dask array."""

    is_encoded = False

    def __init__(self, x: dask.array.Array, region: Box | None = None) -> None:
        self.x, self.region = x, region
        self._spans: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`ChunkSource`."""
        found: np.dtype[Any] = self.x.dtype
        return found

    @cached_property
    def edges(self) -> list[list[int]]:
        """Edges of the chunks along each axis, in the coordinates of the plan's grid."""
        start = (0,) * self.x.ndim if self.region is None else self.region.start
        return [
            [a + edge for edge in boundaries(sizes)]
            for a, sizes in zip(start, self.x.chunks, strict=True)
        ]

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        return self._tasks(write_group, at)

    def encode(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        return self._tasks(encode_block, at)

    def graph(self, name: str, tasks: dict[Key, Any]) -> HighLevelGraph:
        """See :class:`ChunkSource`."""
        layer: Any = tasks
        source: Any = self.x
        return HighLevelGraph.from_collections(name, layer, dependencies=[source])

    def box_of(self, key: Any) -> Box | None:
        """See :class:`ChunkSource`."""
        index = key[1:] if isinstance(key, tuple) else ()
        if len(index) != self.x.ndim or not all(
            isinstance(i, int) and i < n for i, n in zip(index, self.x.numblocks, strict=True)
        ):
            return None
        spans = [edges[i : i + 2] for edges, i in zip(self.edges, index, strict=True)]
        return Box(tuple(a for a, _ in spans), tuple(b for _, b in spans))

    def _tasks(self, function: Any, at: TaskBox) -> dict[Key, Any]:
        """A task that takes the chunks under a box, and the tasks that cut chunks for it.

        Chunks that touch only shards in `at.skip` are left out.
        """
        tasks: dict[Key, Any] = {}
        pieces, keys = [], []
        spans = [self._overlapped(axis, a, b) for axis, (a, b) in enumerate(at.box.bounds)]
        grid = at.spec.metadata.grid
        for number, combination in enumerate(itertools.product(*spans)):
            chunk = Box(tuple(c[1] for c in combination), tuple(c[2] for c in combination))
            if at.skip and all(
                index in at.skip for index in grid.shards_in(chunk.intersect(at.box))
            ):
                continue
            key: Key = (self.x.name, *(c[0] for c in combination))
            if not at.shares_memory and not at.box.contains(chunk):
                inside = chunk.intersect(at.box)
                cut_key = (f"shardwrite-cut-{at.name}", *at.key[1:], number)
                tasks[cut_key] = Task(cut_key, cut_block, TaskRef(key), chunk, inside, self.dtype)
                chunk, key = inside, cut_key
            pieces.append(chunk)
            keys.append(TaskRef(key))
        where = SourcePieces(at.box, tuple(pieces), at.skip)
        tasks[at.key] = Task(at.key, function, at.spec, where, List(*keys))
        return tasks

    def _overlapped(self, axis: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Number, start and stop of each chunk under an interval, along one axis."""
        known = (axis, start, stop)
        if known not in self._spans:
            edges = self.edges[axis]
            # No task needs the block of a chunk without elements.
            self._spans[known] = [
                (i, edges[i], edges[i + 1])
                for i in _span(edges, start, stop)
                if edges[i] < edges[i + 1]
            ]
        return self._spans[known]


def _span(edges: Sequence[int], start: int, stop: int) -> range:
    """Numbers of the pieces between `edges` that an interval touches."""
    return range(
        max(0, bisect_right(edges, start) - 1), min(len(edges) - 1, bisect_left(edges, stop))
    )


def waves_reruns(plan: Plan, x: dask.array.Array) -> Plan:
    """The plan with `source_reruns` counted on the graph of the source `x`.

    A task that several waves need runs once in each of them. The chunks alone do not show that:
    every wave of ``x - x.mean()`` needs all of ``x``.
    """
    # If each chunk is made from one chunk, the count by chunks that the plan has already is exact.
    if len(plan.waves) == 1 or len(x.dask.layers) == 1 or _is_by_chunks(x):
        return plan
    edges = ArrayChunks(x, plan.region).edges
    seen: set[Any] = set()
    n_run = 0
    for wave in plan.waves:
        spans = [_span(e, a, b) for e, (a, b) in zip(edges, wave.box.bounds, strict=True)]
        needed = x.dask.cull({(x.name, *index) for index in itertools.product(*spans)})
        keys = set(needed.to_dict())
        n_run += len(keys)
        seen |= keys
    return replace(plan, source_reruns=n_run / len(seen) if seen else 1.0)


def _is_by_chunks(x: dask.array.Array) -> bool:
    """Whether each task makes one chunk from one chunk of each array before it.

    So it is with ``x.transpose()`` and ``x + 1``, but not with ``x + x.transpose()``, which takes
    two chunks of `x`. This is seen without making the tasks, of which there may be millions.
    """
    n_chunks = math.prod(x.numblocks)
    taken: set[str] = set()
    for layer in x.dask.layers.values():
        if not isinstance(layer, Blockwise):
            return False
        for name, found in layer.indices:
            if found is None:  # not an array
                continue
            if not isinstance(name, str) or name in taken:
                return False
            n_taken = math.prod(int(n) for n in layer.numblocks[name])
            if set(found) != set(layer.output_indices) or n_taken != n_chunks:
                return False
            taken.add(name)
    return True
