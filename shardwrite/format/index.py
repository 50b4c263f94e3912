"""The shard index: a table of offset and nbytes for each inner chunk, and its encoded form.

Source: sharding codec specification, version 1.0, "Binary shard format".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from shardwrite.codecs import build_pipeline
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CodecError, CorruptShardError, SpecError
from shardwrite.grid import Shape, unravel

__all__ = ["EMPTY", "IndexCodec", "Seal", "ShardIndex"]

EMPTY = np.uint64(2**64 - 1)


class ShardIndex:
    """Offsets and lengths of a shard's inner chunks, row-major.

    Parameters
    ----------
    table : numpy.ndarray of uint64, shape (n, 2)
        ``offset`` and ``nbytes`` in bytes from the start of the shard; both 2^64-1 where a chunk is empty.
    """

    __slots__ = ("__dict__", "table")

    def __init__(self, table: npt.NDArray[np.uint64]) -> None:
        self.table = table

    @classmethod
    def build(cls, offsets: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]) -> ShardIndex:
        """From signed vectors of shape (n,), in which a negative `nbytes` means empty."""
        table = np.stack([offsets, nbytes], axis=1).astype(np.uint64)
        table[nbytes < 0] = EMPTY
        return cls(table)

    @cached_property
    def is_empty(self) -> npt.NDArray[np.bool_]:
        """Which chunks are empty, shape (n,)."""
        result: npt.NDArray[np.bool_] = (self.table == EMPTY).all(axis=1)
        return result

    @property
    def n_present(self) -> int:
        """Number of inner chunks that hold data."""
        return int(np.count_nonzero(~self.is_empty))

    @property
    def used_nbytes(self) -> int:
        """Bytes that inner chunks occupy."""
        return sum(self.table[~self.is_empty, 1].tolist())

    @property
    def checksum(self) -> int:
        """crc32c of the table as little-endian pairs; the index codecs do not matter to it."""
        return crc32c(np.ascontiguousarray(self.table, dtype="<u8").data)

    def check(
        self, shard_nbytes: int, index_span: tuple[int, int], chunks_per_shard: Shape
    ) -> None:
        """Refuse entries that no writer makes.

        Parameters
        ----------
        shard_nbytes : int
            Size of the whole shard.
        index_span : tuple of int
            Start and stop of the encoded index in it.
        chunks_per_shard : tuple of int
            To name the offending inner chunk.

        Raises
        ------
        CorruptShardError
            Half-empty, out of bounds, inside the index, or overlapping.
        """
        present = ~self.is_empty
        if _lie_apart(self.table[present], shard_nbytes, index_span):
            return
        offset, nbytes = self.table[:, 0], self.table[:, 1]
        size = np.uint64(shard_nbytes)
        start, stop = (np.uint64(edge) for edge in index_span)
        self._refuse(
            present & ((offset == EMPTY) | (nbytes == EMPTY)),
            "index entry is half empty",
            chunks_per_shard,
        )
        # unsigned sums wrap, differences of ordered values do not
        past = present & ((offset > size) | (nbytes > size - np.minimum(offset, size)))
        self._refuse(past, f"lies past the end, {shard_nbytes} bytes", chunks_per_shard)
        end = offset + nbytes
        solid = present & (nbytes > 0)
        self._refuse(
            solid & (offset < stop) & (end > start), "lies inside the index", chunks_per_shard
        )
        ranks = np.flatnonzero(solid)
        ranks = ranks[np.argsort(offset[ranks], kind="stable")]
        overlaps = np.zeros(len(self.table), dtype=bool)
        overlaps[ranks[1:]] = offset[ranks[1:]] < np.maximum.accumulate(end[ranks])[:-1]
        self._refuse(overlaps, "overlaps another inner chunk", chunks_per_shard)

    def _refuse(self, bad: npt.NDArray[np.bool_], message: str, chunks_per_shard: Shape) -> None:
        if bad.any():
            rank = int(np.flatnonzero(bad)[0])
            raise CorruptShardError(
                message,
                inner_chunk=unravel(rank, chunks_per_shard),
                offset=int(self.table[rank, 0]),
                nbytes=int(self.table[rank, 1]),
            )


def _lie_apart(
    entries: npt.NDArray[np.uint64], shard_nbytes: int, index_span: tuple[int, int]
) -> bool:
    """Whether entries, none of them empty, begin one behind another's end, all on the same side of the index: most do."""
    if entries.max(initial=0) > min(shard_nbytes, 2**62):  # sums below cannot wrap
        return False
    offset, nbytes = entries[np.argsort(entries[:, 0])].T
    end = offset + nbytes
    if not (offset[1:] >= end[:-1]).all():
        return False
    start, stop = index_span
    return bool(
        len(end) == 0
        or int(end[-1]) <= start
        or (int(offset[0]) >= stop and int(end[-1]) <= shard_nbytes)
    )


@dataclass(frozen=True, slots=True)
class Seal:
    """What stands around the inner chunks of a shard.

    Attributes
    ----------
    index : ShardIndex
        Where the inner chunks lie.
    prefix, suffix : buffer
        Bytes before the first inner chunk, and behind the last: one of them is the encoded index, and the other is empty.
    """

    index: ShardIndex
    prefix: Buffer
    suffix: Buffer


class IndexCodec:
    """Encodes and decodes indexes of one shape.

    Parameters
    ----------
    codecs : sequence of mapping
        ``index_codecs`` of the metadata.
    chunks_per_shard : tuple of int
        Shape of the grid of inner chunks.
    location : {"start", "end"}
        ``index_location`` of the metadata.

    Attributes
    ----------
    encoded_nbytes : int
        Size of an encoded index.
    base_nbytes : int
        Where inner chunks may begin: behind the index, if it comes first.
    has_checksum : bool
        Whether an index that is torn can be told.

    Raises
    ------
    SpecError
        If the codecs do not give a fixed size.
    """

    def __init__(
        self, codecs: Sequence[Mapping[str, Any]], chunks_per_shard: Shape, location: str
    ) -> None:
        if location not in ("start", "end"):
            raise SpecError(
                "no such place",
                field="index_location",
                value=location,
                remedy='use "start" or "end"',
            )
        self._shape = (*chunks_per_shard, 2)
        self._chunks_per_shard = chunks_per_shard
        self.location = location
        document = {"zarr_format": 3, "node_type": "array", "data_type": "uint64", "fill_value": 0}
        names = [codec["name"] for codec in codecs]
        try:
            self._pipeline = build_pipeline(codecs, self._shape, np.dtype(np.uint64), document)
        except CodecError as error:
            raise SpecError(
                str(error), field="index_codecs", value=names, remedy='use "bytes" and "crc32c"'
            ) from error
        if self._pipeline.encoded_nbytes is None:
            raise SpecError(
                "the encoded size of an index must not depend on its values",
                field="index_codecs",
                value=names,
                remedy='use "bytes" and checksums such as "crc32c" only',
            )
        self.encoded_nbytes: int = self._pipeline.encoded_nbytes
        self.base_nbytes = self.encoded_nbytes if location == "start" else 0
        self.has_checksum = self.encoded_nbytes > 16 * math.prod(chunks_per_shard)

    def seal(self, index: ShardIndex) -> Seal:
        """Encode the index of a shard."""
        return self.seals(index.table[np.newaxis])[0]

    def seals(self, tables: npt.NDArray[np.uint64]) -> list[Seal]:
        """Encode the indexes of several shards, their tables in one array of shape (n, chunks per shard, 2)."""
        encoded = map(bytes, self._pipeline.encode(tables.reshape(len(tables), *self._shape)))
        if self.base_nbytes:
            return [
                Seal(ShardIndex(table), data, b"")
                for table, data in zip(tables, encoded, strict=True)
            ]
        return [
            Seal(ShardIndex(table), b"", data) for table, data in zip(tables, encoded, strict=True)
        ]

    def span(self, shard_nbytes: int) -> tuple[int, int]:
        """Where the index lies in a shard of `shard_nbytes`.

        Raises
        ------
        CorruptShardError
            If the shard is too short to have one.
        """
        if shard_nbytes < self.encoded_nbytes:
            raise CorruptShardError(
                f"{shard_nbytes} bytes are too few for an index of {self.encoded_nbytes}"
            )
        if self.location == "start":
            return 0, self.encoded_nbytes
        return shard_nbytes - self.encoded_nbytes, shard_nbytes

    def decode(self, data: Buffer, shard_nbytes: int) -> ShardIndex:
        """The index from its encoded bytes, checked against the shard's size.

        Raises
        ------
        CorruptShardError
            If the checksum differs or an entry cannot be right.
        """
        table = self._pipeline.decode(data).reshape(-1, 2)
        index = ShardIndex(np.ascontiguousarray(table, dtype=np.uint64))
        index.check(shard_nbytes, self.span(shard_nbytes), self._chunks_per_shard)
        return index
