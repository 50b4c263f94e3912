"""Arrays that give their encoded inner chunks to another, and what happens to the bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.encode.cutting import decode_tile, encode_tiles
from shardwrite.errors import CorruptShardError, StoreError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.passage import Passage, check_size, has_checksum
from shardwrite.grid import Box, Shape, ravel
from shardwrite.read.array import ShardedArray
from shardwrite.stores import Store, can_copy_between

Check = bool | Literal["twice"]
TWICE: Check = "twice"

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
    """Array whose encoded inner chunks are copied into another array."""

    array: ShardedArray
    passage: Passage  # how the bytes of an inner chunk change
    # Decode each inner chunk before it is copied. ``"twice"`` also reads those that have no
    # checksum a second time, and compares.
    check: Check = False
    drop_empty: bool = False  # leave out inner chunks that hold only the fill value
    # Objects that the array must have. One of them that is missing is an error.
    listed: Listing | None = None
    # The other array, if inner chunks at the edges are decoded and encoded again
    into: ArrayMetadata | None = None

    @property
    def is_compared(self) -> bool:
        """Whether each inner chunk is read twice, and what was read is compared."""
        return self.check == TWICE and not has_checksum(self.array.metadata)

    def copies_ranges(self, store: Store, shard: Box) -> bool:
        """Whether ranges are copied without a look at the bytes, by the system where it can.

        Small objects are read and written instead, because each of them would be opened twice.
        """
        metadata = self.array.metadata
        if not self.passage.is_plain or self.check or self.drop_empty:
            return False
        if self.into is not None and not self._is_inside(shard.intersect(metadata.grid.whole)):
            return False
        is_large = math.prod(metadata.grid.chunks) * metadata.itemsize >= _LARGE_NBYTES
        return metadata.is_sharded or (is_large and can_copy_between(self.array.store, store))

    def passed(self, data: Buffer, index: Shape, place: Shape) -> Buffer | None:
        """Bytes of an inner chunk in the other array; None if the chunk is left out.

        - `data`: encoded bytes of the chunk.
        - Raises CorruptShardError if the bytes cannot be those of an inner chunk. The error names
          the shard.
        """
        metadata = self.array.metadata
        try:
            check_size(metadata, len(memoryview(data)))
            region = self._box_of(index, place)
            into = None if self._is_inside(region) else self.into
            if self.check or self.drop_empty or into is not None:
                rank = ravel(place, metadata.grid.chunks_per_shard)
                chunk = decode_tile(metadata, metadata.shard_key(index), rank, data)
                if self.drop_empty and self.is_empty(chunk, index, place):
                    return None
                if into is not None:
                    return encode_tiles(into, chunk[np.newaxis], None, region)[0]
            return self.passage.apply(data)
        except CorruptShardError as error:
            raise error.located(key=metadata.shard_key(index), inner_chunk=place) from error

    def _is_inside(self, region: Box) -> bool:
        """Whether no inner chunk of a region reaches beyond the array."""
        grid = self.array.metadata.grid
        return all(
            stop <= n - n % c
            for stop, n, c in zip(region.stop, grid.shape, grid.chunks, strict=True)
        )

    def _box_of(self, index: Shape, place: Shape) -> Box:
        """Box of an inner chunk, which may reach beyond the array."""
        grid = self.array.metadata.grid
        start = tuple(
            i * s + p * c for i, s, p, c in zip(index, grid.shards, place, grid.chunks, strict=True)
        )
        return Box(start, tuple(a + c for a, c in zip(start, grid.chunks, strict=True)))

    def is_empty(self, chunk: npt.NDArray[Any], index: Shape, place: Shape) -> bool:
        """Whether the elements of a chunk that lie in the array hold only the fill value."""
        metadata = self.array.metadata
        starts = self._box_of(index, place).start
        inside: Any = tuple(
            slice(0, max(0, n - a)) for n, a in zip(metadata.grid.shape, starts, strict=True)
        )
        part = chunk[(*inside, ...)].astype(metadata.pipeline.stored_dtype, copy=False)
        return bool(metadata.fill_pattern.empty(np.ascontiguousarray(part).reshape(1, -1))[0])
