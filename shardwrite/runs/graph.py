"""Task graphs made from a plan and a dask array.

A fused plan has one task for each group, which takes the source's chunks. Any other plan has one
encode task for each block, and one commit task for each group.

If tasks run in other processes, a source chunk that reaches beyond a task's box is cut by a task of
its own, so only the elements that are needed are sent. In one process, each task cuts its chunks
itself, because that copies nothing.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof
from dask.task_spec import List, Task, TaskRef

import shardwrite._dask as dask
from shardwrite.grid import Box, Shape, boundaries
from shardwrite.journal import Ledger
from shardwrite.plan import Plan
from shardwrite.write.commit import GroupReport, WriteSpec
from shardwrite.write.spool import EncodedBlock
from shardwrite.write.tasks import (
    SourcePieces,
    commit_group,
    encode_block,
    rewrite_group,
    write_group,
)

__all__ = ["GroupGraph", "rewriting", "source_edges", "waves_reruns"]

Key = tuple[Any, ...]


@sizeof.register(EncodedBlock)  # type: ignore[untyped-decorator]
def _sizeof_encoded_block(block: EncodedBlock) -> int:
    """Memory of an encoded block, in bytes.

    Without this, dask counts 48 bytes for a dataclass with slots, and never spills one.
    """
    return block.resident_nbytes


class GroupGraph:
    """Builder of graphs for groups of a plan, without the shards that are done.

    Parameters
    ----------
    plan : Plan
        The plan.
    spec : WriteSpec
        Facts that every task needs.
    source : dask.array.Array
        The source; it covers the plan's array, or its region.
    ledger : Ledger
        The shards that are done.
    name : str
        Part of every key, so that keys differ from those of other graphs.
    cut_source : bool
        Whether tasks cut source chunks before they are sent, because they run in other processes.
    """

    def __init__(
        self,
        plan: Plan,
        spec: WriteSpec,
        source: dask.array.Array,
        ledger: Ledger,
        name: str,
        *,
        cut_source: bool,
    ) -> None:
        self._plan, self._spec, self._source, self._ledger, self._name = (
            plan,
            spec,
            source,
            ledger,
            name,
        )
        self._n_left = ledger.left_in_groups(plan.partition.group_edges)
        self._cut_source = cut_source
        self._edges = source_edges(plan, source)
        self._spans: list[dict[tuple[int, int], list[tuple[int, int, int]]]] = [
            {} for _ in self._edges
        ]

    def fused(self, groups: Iterable[int]) -> tuple[HighLevelGraph, list[Key]]:
        """Graph and keys of tasks that encode and commit a group and return a `GroupReport`."""
        layer: dict[Key, Any] = {}
        keys = []
        for rank in self._left(groups):
            key = (f"shardwrite-write-{self._name}", rank)
            group = self._plan.partition.group_box(rank)
            layer[key] = self._task(layer, write_group, key, group, self._ledger.done_within(group))
            keys.append(key)
        return self._graph(layer), keys

    def encode(self, groups: Iterable[int]) -> tuple[HighLevelGraph, dict[int, list[Key]]]:
        """Graph of tasks that return an `EncodedBlock`, and their keys by the rank of the group."""
        layer: dict[Key, Any] = {}
        keys: dict[int, list[Key]] = {}
        for rank in self._left(groups):
            keys[rank] = []
            group = self._plan.partition.group_box(rank)
            done = self._ledger.done_within(group)
            for number, block in enumerate(self._blocks(group, done)):
                key = (f"shardwrite-encode-{self._name}", rank, number)
                layer[key] = self._task(layer, encode_block, key, block, done)
                keys[rank].append(key)
        return self._graph(layer), keys

    def _left(self, groups: Iterable[int]) -> Iterable[int]:
        """Groups that still have unwritten shards."""
        return (rank for rank in groups if self._n_left[rank])

    def _blocks(self, group: Box, done: frozenset[Shape]) -> tuple[Box, ...]:
        """Blocks of a group that touch the region and a shard that is not done."""
        blocks = self._plan.partition.blocks_in(group)
        if self._plan.region is not None:
            blocks = [block for block in blocks if block.intersect(self._plan.region).size]
        if done:
            grid = self._plan.metadata.grid
            blocks = [
                block
                for block in blocks
                if any(index not in done for index in grid.shards_in(block))
            ]
        return tuple(blocks)

    def commit(self, encoded: dict[int, list[Any]]) -> tuple[dict[Key, Any], list[Key]]:
        """Layer and keys of commit tasks, each of which returns a `GroupReport`.

        Parameters
        ----------
        encoded : dict of int to list
            Encoded blocks, or references to them, by the rank of the group.
        """
        layer: dict[Key, Any] = {}
        for rank, blocks in encoded.items():
            group = self._plan.partition.group_box(rank)
            done = self._ledger.done_within(group)
            where = _Blocks(group, self._blocks(group, done), done)
            key = (f"shardwrite-commit-{self._name}", rank)
            layer[key] = Task(key, _commit, self._spec, where, List(*blocks))
        return layer, list(layer)

    def direct(self, groups: Iterable[int]) -> tuple[HighLevelGraph, list[Key]]:
        """Graph of encode and commit tasks, and the keys of the commit tasks."""
        graph, keys = self.encode(groups)
        layer, commits = self.commit(
            {rank: [TaskRef(key) for key in blocks] for rank, blocks in keys.items()}
        )
        name = f"shardwrite-commit-{self._name}"
        encode = f"shardwrite-tasks-{self._name}"
        layers: dict[str, Any] = {**graph.layers, name: layer}
        return HighLevelGraph(layers, {**graph.dependencies, name: {encode}}), commits

    def _graph(self, layer: dict[Key, Any]) -> HighLevelGraph:
        name = f"shardwrite-tasks-{self._name}"
        source: Any = self._source
        tasks: Any = layer
        return HighLevelGraph.from_collections(name, tasks, dependencies=[source])

    def _task(
        self, layer: dict[Key, Any], function: Any, key: Key, box: Box, done: frozenset[Shape]
    ) -> Task:
        """Make a task that takes the source chunks under a box.

        Chunks that touch only shards in `done` are left out. Tasks that cut chunks are added to
        `layer`.
        """
        pieces, keys = [], []
        spans = [self._overlapped(axis, a, b) for axis, (a, b) in enumerate(box.bounds)]
        for number, combination in enumerate(itertools.product(*spans)):
            chunk = Box(tuple(c[1] for c in combination), tuple(c[2] for c in combination))
            if done and all(
                index in done for index in self._plan.metadata.grid.shards_in(chunk.intersect(box))
            ):
                continue
            chunk_key: Key = (self._source.name, *(c[0] for c in combination))
            if self._cut_source and not box.contains(chunk):
                inside = chunk.intersect(box)
                cut_key = (f"shardwrite-cut-{self._name}", *key[1:], number)
                layer[cut_key] = Task(cut_key, _cut, TaskRef(chunk_key), inside.shift(chunk.start))
                chunk, chunk_key = inside, cut_key
            pieces.append(chunk)
            keys.append(TaskRef(chunk_key))
        return Task(key, function, self._spec, SourcePieces(box, tuple(pieces), done), List(*keys))

    def _overlapped(self, axis: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Number, start and stop of each source chunk under an interval, along one axis."""
        known = self._spans[axis]
        if (start, stop) not in known:
            edges = self._edges[axis]
            first, last = _span(edges, start, stop)
            # No task needs the block of a chunk without elements.
            known[start, stop] = [
                (i, edges[i], edges[i + 1]) for i in range(first, last) if edges[i] < edges[i + 1]
            ]
        return known[start, stop]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A group, its blocks, and the positions of its shards that are done."""

    group: Box
    blocks: tuple[Box, ...]
    skip: frozenset[Shape]


def _cut(block: Any, box: Box) -> Any:
    return block[box.slices]


def _commit(spec: WriteSpec, where: _Blocks, encoded: Sequence[EncodedBlock]) -> GroupReport:
    return commit_group(spec, where.group, where.blocks, encoded, where.skip)


def rewriting(
    plan: Plan, spec: WriteSpec, ledger: Ledger, name: str, groups: Iterable[int]
) -> tuple[HighLevelGraph, list[Key]]:
    """Graph and keys of tasks that rewrite shards from their own inner chunks.

    Each task rewrites the shards of a group that are not done, and returns a `GroupReport`.
    """
    left = ledger.left_in_groups(plan.partition.group_edges)
    layer: Any = {}
    for rank in groups:
        if left[rank]:
            group = plan.partition.group_box(rank)
            key = (f"shardwrite-rewrite-{name}", rank)
            layer[key] = Task(key, rewrite_group, spec, group, ledger.done_within(group))
    return HighLevelGraph({"rewrite": layer}, {"rewrite": set()}), list(layer)


def source_edges(plan: Plan, source: dask.array.Array) -> list[list[int]]:
    """Edges of the source's chunks along each axis, in the coordinates of the plan's grid."""
    start = (0,) * source.ndim if plan.region is None else plan.region.start
    return [
        [a + edge for edge in boundaries(sizes)]
        for a, sizes in zip(start, source.chunks, strict=True)
    ]


def _span(edges: Sequence[int], start: int, stop: int) -> tuple[int, int]:
    """First piece between `edges` that an interval touches, and the piece after the last one."""
    return max(0, bisect_right(edges, start) - 1), min(len(edges) - 1, bisect_left(edges, stop))


def waves_reruns(plan: Plan, source: dask.array.Array) -> Plan:
    """The plan with `source_reruns` counted on the source's graph.

    A task that several waves need runs once in each of them. The chunks alone do not show that:
    every wave of ``x - x.mean()`` needs all of ``x``.
    """
    # With one layer, the count by chunks that the plan has already is exact.
    if len(plan.waves) == 1 or len(source.dask.layers) == 1:
        return plan
    edges = source_edges(plan, source)
    seen: set[Any] = set()
    n_run = 0
    for wave in plan.waves:
        spans = [range(*_span(e, a, b)) for e, (a, b) in zip(edges, wave.box.bounds, strict=True)]
        needed = source.dask.cull({(source.name, *index) for index in itertools.product(*spans)})
        keys = set(needed.to_dict())
        n_run += len(keys)
        seen |= keys
    return replace(plan, source_reruns=n_run / len(seen) if seen else 1.0)
