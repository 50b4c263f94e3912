"""Arrays that give their encoded inner chunks to another, and what happens to the bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CorruptShardError, StoreError
from shardwrite.format.passage import Passage, check_size
from shardwrite.grid import Shape
from shardwrite.read.array import ShardedArray
from shardwrite.stores import Store, can_copy_between

__all__ = ["Donor", "Listing"]

# decoded bytes of a chunk from which a copy by the system is faster than one through this process
_LARGE_NBYTES = 2**20


class Listing(Protocol):
    """Objects that an array must have."""

    def has(self, rank: int) -> bool:
        """Whether the array must have the object of the shard of a row-major rank."""

    def missing(self, key: str) -> StoreError:
        """The error that such an object is missing."""


@dataclass(frozen=True, slots=True)
class Donor:
    """Array whose encoded inner chunks are copied into another array.

    Attributes
    ----------
    array : ShardedArray
        The array.
    passage : Passage
        How the bytes of an inner chunk change.
    check : bool
        Decode each inner chunk before it is copied.
    drop_empty : bool
        Leave out inner chunks that hold only the fill value.
    listed : Listing, optional
        Objects that the array must have. One of them that is missing is an error.
    """

    array: ShardedArray
    passage: Passage
    check: bool = False
    drop_empty: bool = False
    listed: Listing | None = None

    def copies_ranges(self, store: Store) -> bool:
        """Whether ranges are copied without a look at the bytes, by the system where it can.

        Small objects are read and written instead, because each of them would be opened twice.
        """
        metadata = self.array.metadata
        if not self.passage.is_plain or self.check or self.drop_empty:
            return False
        is_large = math.prod(metadata.grid.chunks) * metadata.itemsize >= _LARGE_NBYTES
        return metadata.is_sharded or (is_large and can_copy_between(self.array.store, store))

    def passed(self, data: Buffer, index: Shape, place: Shape) -> Buffer | None:
        """Bytes of an inner chunk in the other array; None if the chunk is left out.

        Parameters
        ----------
        data : buffer
            Encoded bytes of the chunk.
        index, place : tuple of int
            Position of its shard in the array, and of the chunk in the shard.

        Raises
        ------
        CorruptShardError
            If the bytes cannot be those of an inner chunk. The error names the shard.
        """
        metadata = self.array.metadata
        try:
            check_size(metadata, len(memoryview(data)))
            if self.check or self.drop_empty:
                chunk = metadata.pipeline.decode(data)
                if self.drop_empty and self.is_empty(chunk, index, place):
                    return None
            return self.passage.apply(data)
        except CorruptShardError as error:
            raise error.located(key=metadata.shard_key(index), inner_chunk=place) from error

    def is_empty(self, chunk: npt.NDArray[Any], index: Shape, place: Shape) -> bool:
        """Whether the elements of a chunk that lie in the array hold only the fill value."""
        metadata, grid = self.array.metadata, self.array.metadata.grid
        starts = [
            i * s + p * c for i, s, p, c in zip(index, grid.shards, place, grid.chunks, strict=True)
        ]
        inside: Any = tuple(
            slice(0, max(0, n - a)) for n, a in zip(grid.shape, starts, strict=True)
        )
        part = chunk[(*inside, ...)].astype(metadata.pipeline.stored_dtype, copy=False)
        return bool(metadata.fill_pattern.empty(np.ascontiguousarray(part).reshape(1, -1))[0])
