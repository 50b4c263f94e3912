"""Objects of an array that exists as a source of chunks. Each is copied as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.task_spec import Task

from shardwrite.engines import Engine
from shardwrite.journal.consuming import Listed
from shardwrite.plan import Plan, PlanOptions, SourceLayout, make_plan
from shardwrite.plan.identity import WHOLE
from shardwrite.read.array import ShardedArray
from shardwrite.read.stored_array import StoredArray
from shardwrite.runs.array_plan import by_groups, resources_of
from shardwrite.runs.lost import check_nothing_lost
from shardwrite.runs.source import Key, TaskBox
from shardwrite.runs.stored_chunks import EncodedChunks
from shardwrite.stores import Capability, require
from shardwrite.write.whole_objects import copy_objects


@dataclass(frozen=True, slots=True)
class WholeObjects(EncodedChunks):
    """Objects of another array whose document is that of the plan."""

    array: ShardedArray  # the other array
    listed: Listed | None = None  # objects that the other array must have

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`ChunkSource`."""
        return self.array.metadata.dtype

    @property
    def region(self) -> None:
        """See :class:`ChunkSource`."""
        return

    @property
    def read_from(self) -> ShardedArray:
        """See :class:`ReadsArray`."""
        return self.array

    @property
    def copied(self) -> ShardedArray | None:
        """See :class:`CopiesObjects`; nothing if the array's objects are removed meanwhile."""
        return self.array if self.listed is None else None

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        task = Task(at.key, copy_objects, at.spec, self.array, self.listed, at.box, at.skip)
        return {at.key: task}


def plan_transfer_of(source: StoredArray, engine: Engine) -> Plan:
    """Plan a copy of an array with the same document and the same objects.

    - Raises ChangedError if the array has lost objects.
    """
    if not engine.shares_memory:
        require(source.array.store, Capability.SHARED, field="src", value=source.label)
    check_nothing_lost(source)
    metadata = source.array.metadata
    made = make_plan(
        metadata,
        SourceLayout(metadata.grid.sizes, 0, f"{source.identity}{WHOLE}", False),
        resources_of(engine, None),
        PlanOptions(),
    )
    return by_groups(made)
