"""A plan and a dask array, turned into a task graph.

Tasks of a fused plan: one for each group, from the source's chunks. Otherwise one for each block, and one commit for each group.
Where tasks run in other processes, a source chunk that several of them need is first cut, so that no more than what a task
needs travels; in one process tasks cut for themselves, which copies nothing.
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
    """Else dask counts a slotted dataclass as 48 bytes and spills nothing."""
    return block.resident_nbytes


class GroupGraph:
    """Builds the graph for some groups of a plan, less what is done already.

    Parameters
    ----------
    plan : Plan
        The plan.
    spec : WriteSpec
        What tasks need to know.
    source : dask.array.Array
        Of the plan's shape and chunks.
    ledger : Ledger
        What is done.
    name : str
        Tells its tasks from those of other graphs.
    cut_source : bool
        Whether tasks run in other processes.
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
        """Graph and keys of tasks that encode and commit; each gives a `GroupReport`."""
        layer: dict[Key, Any] = {}
        keys = []
        for rank in self._left(groups):
            key = (f"shardwrite-write-{self._name}", rank)
            group = self._plan.partition.group_box(rank)
            layer[key] = self._task(layer, write_group, key, group, self._ledger.done_within(group))
            keys.append(key)
        return self._graph(layer), keys

    def encode(self, groups: Iterable[int]) -> tuple[HighLevelGraph, dict[int, list[Key]]]:
        """Graph of encode tasks, and for each group its keys; each gives an `EncodedBlock`."""
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
        """Those of the groups in which something is left to do."""
        return (rank for rank in groups if self._n_left[rank])

    def _blocks(self, group: Box, done: frozenset[Shape]) -> tuple[Box, ...]:
        """Blocks of a group that hold a unit of a shard that is left to do."""
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
        """Layer and keys of commit tasks, from encoded blocks or references to them; each gives a `GroupReport`."""
        layer: dict[Key, Any] = {}
        for rank, blocks in encoded.items():
            group = self._plan.partition.group_box(rank)
            done = self._ledger.done_within(group)
            where = _Blocks(group, self._blocks(group, done), done)
            key = (f"shardwrite-commit-{self._name}", rank)
            layer[key] = Task(key, _commit, self._spec, where, List(*blocks))
        return layer, list(layer)

    def direct(self, groups: Iterable[int]) -> tuple[HighLevelGraph, list[Key]]:
        """Graph and keys of encode and commit tasks in one."""
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
        """A task on the source chunks that it needs of those under a box; adds the cuts that it needs to the layer."""
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
        """Number, start and stop of the source chunks under an interval."""
        known = self._spans[axis]
        if (start, stop) not in known:
            edges = self._edges[axis]
            first, last = _span(edges, start, stop)
            # a chunk of no elements has a block that nobody needs
            known[start, stop] = [
                (i, edges[i], edges[i + 1]) for i in range(first, last) if edges[i] < edges[i + 1]
            ]
        return known[start, stop]


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A group and its blocks."""

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
    """Graph and keys of tasks that write shards anew from themselves; each gives a `GroupReport`."""
    left = ledger.left_in_groups(plan.partition.group_edges)
    layer: Any = {}
    for rank in groups:
        if left[rank]:
            group = plan.partition.group_box(rank)
            key = (f"shardwrite-rewrite-{name}", rank)
            layer[key] = Task(key, rewrite_group, spec, group, ledger.done_within(group))
    return HighLevelGraph({"rewrite": layer}, {"rewrite": set()}), list(layer)


def source_edges(plan: Plan, source: dask.array.Array) -> list[list[int]]:
    """Boundaries of the source's chunks along each axis, in the coordinates of the plan's grid."""
    start = (0,) * source.ndim if plan.region is None else plan.region.start
    return [
        [a + edge for edge in boundaries(sizes)]
        for a, sizes in zip(start, source.chunks, strict=True)
    ]


def _span(edges: Sequence[int], start: int, stop: int) -> tuple[int, int]:
    """First of the pieces between `edges` that an interval touches, and the one after the last."""
    return max(0, bisect_right(edges, start) - 1), min(len(edges) - 1, bisect_left(edges, stop))


def waves_reruns(plan: Plan, source: dask.array.Array) -> Plan:
    """The plan, with `source_reruns` counted on the graph: what several waves need runs once in each.

    Chunks alone do not tell: every wave of ``x - x.mean()`` needs all of ``x``.
    """
    if len(plan.waves) == 1 or len(source.dask.layers) == 1:  # with one layer, the chunks do tell
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
