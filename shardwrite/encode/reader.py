"""Reading of the index and the inner chunks of a stored shard.

All code that reads a shard uses this module: readers, updates, verification, salvage and recovery.
The contents of an object are checked before they are used, and no more is read than the metadata
allow.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.encode.cutting import decode_tile
from shardwrite.errors import CorruptShardError
from shardwrite.format.index import ShardIndex
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.placed import loader_of
from shardwrite.grid import unravel


class Ranges(Protocol):
    """An object whose bytes can be read in ranges."""

    @property
    def nbytes(self) -> int:
        """Size of the object."""

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Read exactly `nbytes` bytes from `offset`."""


class Loaded:
    """An object that was read as a whole."""

    def __init__(self, source: Ranges) -> None:
        self._data = memoryview(source.read(0, source.nbytes)).cast("B")
        self.nbytes = source.nbytes

    def read(self, offset: int, nbytes: int) -> Buffer:
        """See :meth:`Ranges.read`; the bytes are not copied."""
        return self._data[offset : offset + nbytes]


class ShardReader:
    """Reader of a shard, which reads the index at once and inner chunks on demand.

    - `nbytes`: size of the shard in bytes, if it is only the beginning of the object. The default
      is the size of the object.
    - Raises CorruptShardError if the object is shorter than `nbytes`, or has no valid index.
    """

    def __init__(
        self, metadata: ArrayMetadata, key: str, source: Ranges, nbytes: int | None = None
    ) -> None:
        self.metadata, self.key, self.source = metadata, key, source
        size = source.nbytes if nbytes is None else nbytes
        codec = metadata.format_of(key)
        load = loader_of(codec)
        try:
            if size > source.nbytes:
                raise CorruptShardError(  # noqa: TRY301
                    f"{source.nbytes} bytes are there, and the shard should have {size}"
                )
            self.index_span = codec.span(size)
            start, stop = self.index_span
            self.index_nbytes = stop - start
            if load is not None:
                self.index: ShardIndex
                self.index, self.index_nbytes = load(source.read, size)
            else:
                encoded = source.read(start, stop - start) if stop > start else b""
                self.index = codec.decode(encoded, size)
        except CorruptShardError as error:
            raise error.located(key=key) from error

    def present(self) -> list[int]:
        """Ranks of the inner chunks that hold data."""
        ranks: list[int] = np.flatnonzero(~self.index.is_empty).tolist()
        return ranks

    def chunk(self, rank: int) -> npt.NDArray[Any] | None:
        """Decode the inner chunk with a row-major rank; None if it is empty.

        - Raises CorruptShardError if the inner chunk takes more bytes than the metadata allow, or
          cannot be decoded. The error names the shard and the inner chunk.
        """
        if self.index.is_empty[rank]:
            return None
        offset, nbytes = (int(v) for v in self.index.table[rank])
        most = self.metadata.pipeline.most_encoded_nbytes
        try:
            if nbytes > most:
                raise CorruptShardError(  # noqa: TRY301
                    f"takes {nbytes} bytes where at most {most} can be"
                )
            return decode_tile(self.metadata, self.key, rank, self.source.read(offset, nbytes))
        except CorruptShardError as error:
            position = unravel(rank, self.metadata.grid.chunks_per_shard)
            raise error.located(
                key=self.key, inner_chunk=position, offset=offset, nbytes=nbytes
            ) from error
