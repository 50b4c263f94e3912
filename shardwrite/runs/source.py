"""Sources of chunks: what a run writes, as the graph builder sees it.

A source makes the tasks that write groups or encode blocks, because only the source knows where
their input comes from. There are three:

- :class:`shardwrite.runs.array_plan.ArrayChunks` has the values of a dask array.
- :class:`shardwrite.runs.stored_chunks.StoredChunks` has encoded inner chunks of an array that
  exists.
- :class:`NoChunks` has nothing, for jobs that only look at a run or finish it.

Another source implements `ChunkSource`. If it has values, its tasks call `write_group` and
`encode_block` of :mod:`shardwrite.write.tasks`. These take any arrays, each with the box that it
fills.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from shardwrite.grid import Box, Shape
from shardwrite.write.context import WriteSpec

if TYPE_CHECKING:
    from shardwrite.read.array import ShardedArray

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBox:
    """Box of whole inner chunks that one task writes or encodes."""

    key: Key  # key of the task
    name: str  # name that is part of every key of the graph, and of no other graph's
    spec: WriteSpec  # facts that every task needs
    box: Box  # the box, in coordinates of the plan's grid
    skip: frozenset[Shape]  # positions of shards in the box that are done already
    shares_memory: bool  # whether tasks take their inputs from this process without a copy


@runtime_checkable
class ReadsPlaces(Protocol):
    """A source that tells which places it reads, so that none of them is changed meanwhile."""

    def places_read(self) -> Iterator[tuple[Any, str, str]]:
        """Places: a path, URL or store, the path of what is read in it, and its kind.

        The kind is ``"array"`` for a Zarr array, ``"objects"`` for what lies below a path of a
        store, and ``"file"`` for anything else.
        """


class ReadsArray(Protocol):
    """A source whose chunks or values come from an array that exists."""

    @property
    def read_from(self) -> ShardedArray | None:
        """The array; None if there is no such array, or the source is the array itself."""


class ChunkSource(Protocol):
    """Protocol of what a run writes."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values; that of the array if the chunks are encoded."""

    @property
    def region(self) -> Box | None:
        """Region that the source covers, as in the plan: all of the plan's array if None."""

    @property
    def is_encoded(self) -> bool:
        """Whether inner chunks are copied as they are stored, and never decoded.

        One task then commits a whole group; `encode` is not called.
        """

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """Tasks that write the shards of a group.

        The task of key `at.key` returns a `GroupReport`.
        """

    def encode(self, at: TaskBox) -> dict[Key, Any]:
        """Tasks that encode a block.

        The task of key `at.key` returns an `EncodedBlock`.
        """

    def graph(self, name: str, tasks: dict[Key, Any]) -> HighLevelGraph:
        """Graph of a layer of tasks and of everything that they need from the source."""

    def box_of(self, key: Any) -> Box | None:
        """Box of the chunk that one of the source's own tasks makes, as far as its key reveals it.

        Errors of that task name the box.
        """


@dataclass(frozen=True, slots=True)
class NoChunks:
    """The source of a job that only looks at a run or finishes it, and has no chunks."""

    region: Box | None = None  # the plan's region, if it has one
    # See :class:`ChunkSource`. It is True for a run that is begun now, and will copy chunks.
    is_encoded: bool = False

    @property
    def dtype(self) -> NoReturn:
        """Raise TypeError."""
        raise _nothing_to_write()

    def write(self, at: TaskBox) -> NoReturn:  # noqa: ARG002 (the protocol's)
        """Raise TypeError."""
        raise _nothing_to_write()

    def encode(self, at: TaskBox) -> NoReturn:  # noqa: ARG002 (the protocol's)
        """Raise TypeError."""
        raise _nothing_to_write()

    def graph(self, name: str, tasks: dict[Key, Any]) -> NoReturn:  # noqa: ARG002 (the protocol's)
        """Raise TypeError."""
        raise _nothing_to_write()

    def box_of(self, key: Any) -> None:
        """Do nothing, because there are no tasks."""


def _nothing_to_write() -> TypeError:
    return TypeError("this job finishes a run or looks at it; it has no chunks to write")
