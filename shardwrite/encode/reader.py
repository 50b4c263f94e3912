"""The one way from an object to the index and the inner chunks of a shard.

Whoever reads a shard does so here: readers, updates, verification, salvage and recovery. Nothing
that the object says is believed before it is checked, and no more is read than the metadata allow.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CorruptShardError
from shardwrite.format.index import ShardIndex
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import unravel

__all__ = ["Loaded", "Ranges", "ShardReader", "decode_object"]


class Ranges(Protocol):
    """An object whose bytes can be read in ranges."""

    @property
    def nbytes(self) -> int:
        """Size of the object."""

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Exactly `nbytes` bytes."""


class Loaded:
    """An object that was read as a whole.

    Parameters
    ----------
    source : Ranges
        The object.
    """

    def __init__(self, source: Ranges) -> None:
        self._data = memoryview(source.read(0, source.nbytes)).cast("B")
        self.nbytes = source.nbytes

    def read(self, offset: int, nbytes: int) -> Buffer:
        """See :meth:`Ranges.read`; the bytes are not copied."""
        return self._data[offset : offset + nbytes]


class ShardReader:
    """The index of a shard, which is read at once, and its inner chunks, which are read when they are asked for.

    Parameters
    ----------
    metadata : ArrayMetadata
        The array.
    key : str
        Key of the shard, for errors.
    source : Ranges
        The object.
    nbytes : int, optional
        Size of the shard where it is only the first bytes of the object. By default it is all of them.

    Attributes
    ----------
    index : ShardIndex
        Where the inner chunks lie.
    index_span : tuple of int
        Start and stop of the encoded index in the object.

    Raises
    ------
    CorruptShardError
        If the index cannot be right.
    """

    def __init__(
        self, metadata: ArrayMetadata, key: str, source: Ranges, nbytes: int | None = None
    ) -> None:
        self.metadata, self.key, self.source = metadata, key, source
        size = source.nbytes if nbytes is None else nbytes
        codec = metadata.index_codec
        try:
            if size > source.nbytes:
                raise CorruptShardError(
                    f"{source.nbytes} bytes are there, and the shard should have {size}"
                )  # noqa: TRY301
            self.index_span = codec.span(size)
            start, stop = self.index_span
            encoded = source.read(start, stop - start) if stop > start else b""
            self.index: ShardIndex = codec.decode(encoded, size)
        except CorruptShardError as error:
            raise error.located(key=key) from error

    def present(self) -> list[int]:
        """Ranks of the inner chunks that hold data."""
        ranks: list[int] = np.flatnonzero(~self.index.is_empty).tolist()
        return ranks

    def chunk(self, rank: int) -> npt.NDArray[Any] | None:
        """An inner chunk, decoded; None where it is empty.

        Raises
        ------
        CorruptShardError
            If it takes more bytes than the metadata allow, or cannot be decoded. The error names shard and inner chunk.
        """
        if self.index.is_empty[rank]:
            return None
        offset, nbytes = (int(v) for v in self.index.table[rank])
        most = self.metadata.pipeline.most_encoded_nbytes
        try:
            if nbytes > most:
                raise CorruptShardError(f"takes {nbytes} bytes where at most {most} can be")  # noqa: TRY301
            return self.metadata.pipeline.decode(self.source.read(offset, nbytes))
        except CorruptShardError as error:
            position = unravel(rank, self.metadata.grid.chunks_per_shard)
            raise error.located(
                key=self.key, inner_chunk=position, offset=offset, nbytes=nbytes
            ) from error


def decode_object(metadata: ArrayMetadata, key: str, source: Ranges) -> npt.NDArray[Any]:
    """All elements of a shard of an array that has codecs around its sharding: less cannot be read.

    Parameters
    ----------
    metadata, key, source
        See :class:`ShardReader`.

    Returns
    -------
    numpy.ndarray
        Of shard shape.

    Raises
    ------
    CorruptShardError
        If the object is larger than the codecs can make it, or cannot be decoded.
    """
    pipeline = metadata.shard_pipeline
    most = pipeline.most_encoded_nbytes
    try:
        if source.nbytes > most:
            raise CorruptShardError(f"takes {source.nbytes} bytes where at most {most} can be")  # noqa: TRY301
        return pipeline.decode(source.read(0, source.nbytes))
    except CorruptShardError as error:
        raise error.located(key=key) from error
