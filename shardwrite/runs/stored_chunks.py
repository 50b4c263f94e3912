"""Encoded inner chunks of an array that exists as a source of chunks. Nothing is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task

from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Box
from shardwrite.runs.source import Key, TaskBox
from shardwrite.write.tasks import rewrite_group

__all__ = ["StoredChunks"]


@dataclass(frozen=True, slots=True)
class StoredChunks:
    """Encoded inner chunks of the array itself: each shard is rewritten from its own.

    Attributes
    ----------
    metadata : ArrayMetadata
        Metadata in the plan.
    region : Box, optional
        The plan's region, if it has one.
    """

    metadata: ArrayMetadata
    region: Box | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`ChunkSource`."""
        return self.metadata.dtype

    @property
    def is_encoded(self) -> bool:
        """See :class:`ChunkSource`."""
        return True

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        return {at.key: Task(at.key, rewrite_group, at.spec, at.box, at.skip)}

    def encode(self, at: TaskBox) -> NoReturn:
        """Raise TypeError, because the chunks are encoded already."""
        raise TypeError(f"{at.key} would encode chunks that are encoded already")

    def graph(self, name: str, tasks: dict[Key, Any]) -> HighLevelGraph:
        """See :class:`ChunkSource`."""
        layers: Any = {name: tasks}
        return HighLevelGraph(layers, {name: set()})

    def box_of(self, key: Any) -> None:
        """Do nothing, because the graph builder knows the boxes of all tasks."""
