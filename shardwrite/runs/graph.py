"""Task graphs made from a plan and a source of chunks.

A fused plan has one task for each group, which takes the source's chunks. Any other plan has one
encode task for each block, and one commit task for each group. The source makes the tasks that take
its chunks; see :mod:`shardwrite.runs.source`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof
from dask.task_spec import List, Task, TaskRef

from shardwrite.grid import Box, Shape
from shardwrite.journal import Ledger
from shardwrite.plan import Plan
from shardwrite.runs.source import ChunkSource, Key, TaskBox
from shardwrite.write.context import GroupReport, WriteSpec
from shardwrite.write.spool import EncodedBlock
from shardwrite.write.tasks import Unreadable, commit_group


@sizeof.register(EncodedBlock)  # type: ignore[untyped-decorator]
def _sizeof_encoded_block(block: EncodedBlock) -> int:
    """Memory of an encoded block, in bytes.

    Without this, dask counts 48 bytes for a dataclass with slots, and never spills one.
    """
    return block.resident_nbytes


class GroupGraph:
    """Builder of graphs for groups of a plan, without the shards that are done.

    - `source`: the source. It covers the plan's array, or its region.
    - `shares_memory`: whether tasks take their inputs from this process without a copy.
    """

    def __init__(
        self,
        plan: Plan,
        spec: WriteSpec,
        source: ChunkSource,
        ledger: Ledger,
        name: str,
        *,
        shares_memory: bool,
    ) -> None:
        self._plan, self._spec, self._source, self._ledger, self._name = (
            plan,
            spec,
            source,
            ledger,
            name,
        )
        self._shares_memory = shares_memory

    def committing(self, groups: Iterable[int]) -> tuple[HighLevelGraph, list[Key]]:
        """Graph of all tasks of some groups, and keys of those that return a `GroupReport`."""
        if self._plan.partition.is_fused or self._source.is_encoded:
            return self.fused(groups)
        return self.direct(groups)

    def fused(self, groups: Iterable[int]) -> tuple[HighLevelGraph, list[Key]]:
        """Graph and keys of tasks that encode and commit a group and return a `GroupReport`."""
        layer: dict[Key, Any] = {}
        keys = []
        for rank in groups:
            key = (f"shardwrite-write-{self._name}", rank)
            group = self._plan.partition.group_box(rank)
            layer |= self._source.write(self._at(key, group, self._ledger.done_within(group)))
            keys.append(key)
        return self._graph(layer), keys

    def encode(self, groups: Iterable[int]) -> tuple[HighLevelGraph, dict[int, list[Key]]]:
        """Graph of tasks that return an `EncodedBlock`, and their keys by the rank of the group."""
        layer: dict[Key, Any] = {}
        keys: dict[int, list[Key]] = {}
        for rank in groups:
            keys[rank] = []
            group = self._plan.partition.group_box(rank)
            done = self._ledger.done_within(group)
            for number, block in enumerate(self._blocks(group, done)):
                key = (f"shardwrite-encode-{self._name}", rank, number)
                layer |= self._source.encode(self._at(key, block, done))
                keys[rank].append(key)
        return self._graph(layer), keys

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
        """Layer and keys of commit tasks, each of which returns a `GroupReport`."""
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
        return self._source.graph(f"shardwrite-tasks-{self._name}", layer)

    def _at(self, key: Key, box: Box, skip: frozenset[Shape]) -> TaskBox:
        return TaskBox(
            key=key,
            name=self._name,
            spec=self._spec,
            box=box,
            skip=skip,
            shares_memory=self._shares_memory,
        )


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A group, its blocks, and the positions of its shards that are done."""

    group: Box
    blocks: tuple[Box, ...]
    skip: frozenset[Shape]


def _commit(
    spec: WriteSpec, where: _Blocks, encoded: Sequence[EncodedBlock | Unreadable]
) -> GroupReport:
    return commit_group(spec, where.group, where.blocks, encoded, where.skip)
