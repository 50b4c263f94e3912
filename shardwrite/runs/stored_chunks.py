"""Encoded inner chunks of an array that exists as a source of chunks. Nothing is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task

from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.passage import Passage, passage_between, what_differs
from shardwrite.grid import Box
from shardwrite.read.array import ShardedArray
from shardwrite.runs.source import Key, TaskBox
from shardwrite.write.copying import copy_group
from shardwrite.write.donor import Check, Donor, Listing
from shardwrite.write.tasks import rewrite_group

__all__ = ["EncodedChunks", "StoredChunks"]


class EncodedChunks:
    """What all sources of chunks have in common that are encoded already."""

    __slots__ = ()

    @property
    def is_encoded(self) -> bool:
        """See :class:`ChunkSource`."""
        return True

    def encode(self, at: TaskBox) -> NoReturn:
        """Raise TypeError, because the chunks are encoded already."""
        raise TypeError(f"{at.key} would encode chunks that are encoded already")

    def graph(self, name: str, tasks: dict[Key, Any]) -> HighLevelGraph:
        """See :class:`ChunkSource`."""
        layers: Any = {name: tasks}
        return HighLevelGraph(layers, {name: set()})

    def box_of(self, key: Any) -> None:
        """Do nothing, because the graph builder knows the boxes of all tasks."""


@dataclass(frozen=True, slots=True)
class StoredChunks(EncodedChunks):
    """Encoded inner chunks of the array itself, or of another array with the same inner chunks."""

    metadata: ArrayMetadata  # metadata in the plan
    region: Box | None = None  # the plan's region, if it has one
    # The other array. Without it, each shard is rewritten from its own inner chunks.
    other: ShardedArray | None = None
    # Decode each inner chunk of the other array before it is copied; see `Donor`
    check: Check = False
    drop_empty: bool = False  # leave out inner chunks that hold only the fill value
    listed: Listing | None = None  # objects that the other array must have

    def __post_init__(self) -> None:
        if self.other is None:
            return
        remedy = "read the array with from_sharded_zarr and write its values"
        if self.region is not None:
            raise SpecError(
                "encoded chunks of another array make a whole array",
                field="region",
                value=self.region.bounds,
                remedy=remedy,
            )
        differing = what_differs(self.other.metadata, self.metadata)
        if differing:
            raise SpecError(
                f"encoded chunks cannot be taken over, since {' and '.join(differing)} differ",
                field="source",
                value=self.other.shape,
                remedy=remedy,
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`ChunkSource`."""
        return self.metadata.dtype

    @property
    def copied(self) -> ShardedArray | None:
        """See :class:`CopiesObjects`; nothing if the array's objects are removed meanwhile."""
        return self.other if self.listed is None else None

    @property
    def read_from(self) -> ShardedArray | None:
        """See :class:`ReadsArray`."""
        return self.other

    @property
    def decodes(self) -> bool:
        """Whether inner chunks of the other array are also decoded, be it those at the edges."""
        if self.other is None:
            return False
        return bool(self.check) or self.drop_empty or self._passage(self.other).n_encoded > 0

    def _passage(self, other: ShardedArray) -> Passage:
        passage = passage_between(other.metadata, self.metadata)
        if passage is None:
            raise TypeError("checked when the source was made")
        return passage

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        if self.other is None:
            return {at.key: Task(at.key, rewrite_group, at.spec, at.box, at.skip)}
        passage = self._passage(self.other)
        into = self.metadata if passage.n_encoded else None
        donor = Donor(self.other, passage, self.check, self.drop_empty, self.listed, into)
        return {at.key: Task(at.key, copy_group, at.spec, donor, at.box, at.skip)}
