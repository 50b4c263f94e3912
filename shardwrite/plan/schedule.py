"""Source chunks that are in memory at a time, found by playing through the tasks of a graph.

Which chunks wait for a later task depends on the order in which dask runs tasks. So a graph like
that of the run is ordered by dask itself, and then played through with some threads. A large graph
is represented by a corner of it, and slabs that the same tasks need by a few thicker ones.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.order import order
from dask.task_spec import List, Task, TaskRef

from shardwrite._dataclass import dataclass
from shardwrite.grid import ceil_div
from shardwrite.plan.edges import Edges

_MOST_INPUTS = 2**12  # inputs of all tasks of a graph that is played through

_ENCODE_TIMES = (0.3, 1.0, 3.0)  # time to encode a byte, in those to make it

_UNEVEN = 0.2  # share by which equal tasks differ in time

_N_BETWEEN = 4  # chunks between two edges of blocks that are told apart, beside one for each thread

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Grids:
    """Positions of the edges of groups, of blocks inside them, and of source chunks, by axis."""

    groups: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[int, ...], ...]
    chunks: tuple[tuple[int, ...], ...]


def corner(
    groups: Sequence[Edges], blocks: Sequence[Edges], chunks: Sequence[Edges], n_threads: int
) -> Grids:
    """The corner of a wave that is played through, with thin chunks put together.

    - `groups`, `blocks`, `chunks`: edges along each axis, in the wave.
    """
    counts = [edges.n_pieces for edges in groups]
    most = n_threads + _N_BETWEEN
    while (
        max(counts) > 2
        and math.prod(
            _most_overlaps(*along, most)
            for along in zip(counts, groups, blocks, chunks, strict=True)
        )
        > _MOST_INPUTS
    ):
        longest = counts.index(max(counts))
        counts[longest] = ceil_div(counts[longest], 2)
    axes = []
    for n, of_groups, of_blocks, of_chunks in zip(counts, groups, blocks, chunks, strict=True):
        own = tuple(of_blocks.clipped(of_groups.start, of_groups[n]))
        ends = tuple(of_chunks.clipped(of_groups.start, of_groups[n]))
        if ends[-1] < of_chunks.stop:  # the last chunk as a whole
            ends = (*ends[:-1], of_chunks[of_chunks.n_before(ends[-1])])
        axes.append((tuple(of_groups[i] for i in range(n + 1)), own, _thicker(ends, own, most)))
    return Grids(*zip(*axes, strict=True))


def _most_overlaps(n: int, groups: Edges, blocks: Edges, chunks: Edges, most: int) -> int:
    """Overlaps of blocks and chunks in the first groups along an axis, at most."""
    own, cut = blocks.clipped(groups.start, groups[n]), chunks.clipped(groups.start, groups[n])
    return own.n_pieces + min(cut.n_pieces, most * own.n_pieces)


def _inside(edges: Sequence[int], start: int, stop: int) -> range:
    """Numbers of the pieces that overlap an interval."""
    first = int(np.searchsorted(edges, start, "right")) - 1
    return range(max(0, first), min(len(edges) - 1, int(np.searchsorted(edges, stop, "left"))))


def _thicker(chunks: tuple[int, ...], blocks: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Edges without those between chunks that the same blocks need, but for a few."""
    kept = {chunks[0], chunks[-1]}
    crossing = set(np.searchsorted(blocks, chunks).tolist())
    for number in crossing:
        start = blocks[number - 1] if number else chunks[0] - 1
        stop = blocks[number] if number < len(blocks) else chunks[-1] + 1
        own = [edge for edge in chunks if start < edge <= stop]
        step = ceil_div(len(own), most)
        kept.update((own[0], *own[::step], own[-1]))
    return tuple(sorted(kept))


def peak_elements(grids: Grids, n_threads: int, *, is_staged: bool) -> int:
    """Elements of source chunks that are in memory at a time.

    What is cut from a chunk for another task is a view, which keeps the chunk.

    - `is_staged`: whether no task waits for all blocks of a group.
    """
    graph = _Graph(grids, is_staged=is_staged)
    ranks = order(graph.tasks())
    return max(graph.play(ranks, n_threads, times) for times in _ENCODE_TIMES)


class _Graph:
    """Tasks that make source chunks, encode blocks and commit groups."""

    def __init__(self, grids: Grids, *, is_staged: bool) -> None:
        self.nbytes: dict[Any, int] = {}  # what each task holds until all that need it have ended
        self.seconds: dict[Any, float] = {}  # time of each task, but for those that encode
        self.inputs: dict[Any, list[Any]] = {}
        self.encoded: dict[Any, int] = {}  # elements that a task encodes
        counts = [len(edges) - 1 for edges in grids.groups]
        waiting: dict[int, list[Any]] = {}
        for cell in itertools.product(*(range(len(edges) - 1) for edges in grids.blocks)):
            bounds = [(e[i], e[i + 1]) for e, i in zip(grids.blocks, cell, strict=True)]
            group = [
                int(np.searchsorted(edges, a, "right")) - 1
                for edges, (a, _) in zip(grids.groups, bounds, strict=True)
            ]
            rank = int(np.ravel_multi_index(group, counts)) if counts else 0
            key = ("encode", rank, len(waiting.setdefault(rank, [])))
            waiting[rank].append(key)
            self._add(key, bounds, grids.chunks)
        if is_staged or grids.groups == grids.blocks:
            return
        for rank, blocks in waiting.items():
            self.inputs["commit", rank] = blocks
            self.nbytes["commit", rank], self.seconds["commit", rank] = 0, 1.0

    def _add(
        self, key: Any, bounds: Sequence[tuple[int, int]], chunks: Sequence[Sequence[int]]
    ) -> None:
        """Add the task of a block, and those of its input."""
        axes = [_inside(edges, *pair) for edges, pair in zip(chunks, bounds, strict=True)]
        needed = []
        for at in itertools.product(*axes):
            source = ("a source", *at)
            self.inputs.setdefault(source, [])
            size = math.prod(edges[i + 1] - edges[i] for edges, i in zip(chunks, at, strict=True))
            self.nbytes[source] = self.seconds[source] = size
            needed.append(source)
        self.inputs[key], self.nbytes[key] = needed, 0
        self.encoded[key] = math.prod(b - a for a, b in bounds)

    def tasks(self) -> dict[Any, Any]:
        """The graph as dask takes it."""
        return {
            key: Task(key, int, List(*map(TaskRef, inputs))) for key, inputs in self.inputs.items()
        }

    def play(self, ranks: dict[Any, Any], n_threads: int, encode_time: float) -> int:
        """Run the tasks as dask's threads do, and tell what was in memory at most."""
        uneven = random.Random(0)  # noqa: S311 (the same each time)
        seconds = self.seconds | {k: encode_time * n for k, n in self.encoded.items()}
        missing = {key: set(inputs) for key, inputs in self.inputs.items()}
        users: dict[Any, set[Any]] = {key: set() for key in self.inputs}
        for key, inputs in self.inputs.items():
            for needed in inputs:
                users[needed].add(key)
        ready = [key for key, inputs in missing.items() if not inputs]
        ready.sort(key=ranks.__getitem__, reverse=True)
        running: list[tuple[float, Any]] = []
        now, held, most = 0.0, 0, 0
        while ready or running:
            while ready and len(running) < n_threads:
                key = ready.pop()
                held += self.nbytes[key]
                most = max(most, held)
                takes = seconds[key] * (1 + _UNEVEN * uneven.random())
                heapq.heappush(running, (now + takes, key))
            now, key = heapq.heappop(running)
            begun = []
            for user in users[key]:
                missing[user].discard(key)
                if not missing[user]:
                    begun.append(user)
            ready += sorted(begun, key=ranks.__getitem__, reverse=True)
            for needed in self.inputs[key]:
                users[needed].discard(key)
                if not users[needed]:
                    held -= self.nbytes[needed]
        return most
