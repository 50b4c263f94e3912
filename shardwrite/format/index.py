"""The shard index: offset and size of each inner chunk, and the encoded form of that table.

The format is that of the sharding codec specification, version 1.0, "Binary shard format".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Codec
from shardwrite.codecs.pipeline import build_pipeline
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CodecError, CorruptShardError, SpecError
from shardwrite.grid import Shape, unravel

__all__ = ["EMPTY", "IndexCodec", "Seal", "ShardIndex"]

EMPTY = np.uint64(2**64 - 1)
_MOST_NBYTES = 2**62
"""No shard has more bytes. Sums of two sizes below do not wrap in signed integers."""


class ShardIndex:
    """Offsets and sizes of a shard's inner chunks, in row-major order.

    - `table`: uint64, shape (n, 2). For each inner chunk its offset from the start of the shard and
      its encoded size, in bytes. Both are 2^64-1 where the chunk is empty.
    """

    __slots__ = ("__dict__", "table")

    def __init__(self, table: npt.NDArray[np.uint64]) -> None:
        self.table: npt.NDArray[np.uint64] = table

    @classmethod
    def build(cls, offsets: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]) -> ShardIndex:
        """Make an index from signed vectors of shape (n,); a negative `nbytes` means empty."""
        table = np.stack([offsets, nbytes], axis=1).astype(np.uint64)
        table[nbytes < 0] = EMPTY
        return cls(table)

    @cached_property
    def is_empty(self) -> npt.NDArray[np.bool_]:
        """Whether each inner chunk is empty, shape (n,)."""
        result: npt.NDArray[np.bool_] = (self.table == EMPTY).all(axis=1)
        return result

    @property
    def n_present(self) -> int:
        """Number of inner chunks that hold data."""
        return int(np.count_nonzero(~self.is_empty))

    @cached_property
    def _span(self) -> tuple[int, int] | None:
        """Where the first inner chunk begins and the last one ends, if no two share a byte.

        None if a byte may. Almost all correct indexes pass this quick test.
        """
        entries = self.table[~self.is_empty]
        if entries.max(initial=0) > _MOST_NBYTES:  # so the sums below cannot wrap
            return None
        offset, nbytes = entries[np.argsort(entries[:, 0])].T
        end = offset + nbytes
        if (offset[1:] < end[:-1]).any():
            return None
        return (int(offset[0]), int(end[-1])) if len(entries) else (0, 0)

    @property
    def used_nbytes(self) -> int:
        """Number of bytes that inner chunks take. Those that several of them share count once."""
        if self._span is not None:
            return int(self.table[:, 1].sum(where=~self.is_empty))
        entries = self.table[~self.is_empty]
        offset, nbytes = entries[np.lexsort(entries.T[::-1])].T
        is_first = np.append(True, (np.diff(offset) != 0) | (np.diff(nbytes) != 0))[: len(entries)]
        return sum(nbytes[is_first].tolist())

    @property
    def n_shared(self) -> int:
        """Number of inner chunks that have the same bytes as one before them."""
        if self._span is not None:
            return 0
        entries = self.table[~self.is_empty & (self.table[:, 1] > 0)]
        return len(entries) - len(np.unique(entries[:, 0]))

    @property
    def checksum(self) -> int:
        """CRC-32C of the table as little-endian pairs, independent of the index codecs."""
        return crc32c(np.ascontiguousarray(self.table, dtype="<u8").data)

    def check(
        self, shard_nbytes: int | None, index_span: tuple[int, int], chunks_per_shard: Shape
    ) -> None:
        """Check that the entries can come from a correct writer.

        Several inner chunks may have the same bytes, as far as their entries are equal.

        - `shard_nbytes`: size of the whole shard, in bytes; None if it is not known.
        - Raises CorruptShardError if an entry is half empty, reaches past the end of the shard or
          into the index, or overlaps another entry and is not equal to it.
        """
        most = _MOST_NBYTES if shard_nbytes is None else shard_nbytes
        if self._span is not None:
            first, last = self._span
            before, after = index_span
            if last <= before or (first >= after and last <= most):
                return
        present = ~self.is_empty
        offset, nbytes = self.table[:, 0], self.table[:, 1]
        size = np.uint64(most)
        start, stop = (np.uint64(edge) for edge in index_span)
        self._refuse(
            present & ((offset == EMPTY) | (nbytes == EMPTY)),
            "index entry is half empty",
            chunks_per_shard,
        )
        # Sums of unsigned integers can wrap. A smaller value subtracted from a larger one cannot.
        past = present & ((offset > size) | (nbytes > size - np.minimum(offset, size)))
        of_what = " of any shard" if shard_nbytes is None else f", {shard_nbytes} bytes"
        self._refuse(past, f"lies past the end{of_what}", chunks_per_shard)
        end = offset + nbytes
        solid = present & (nbytes > 0)
        self._refuse(
            solid & (offset < stop) & (end > start), "lies inside the index", chunks_per_shard
        )
        ranks = np.flatnonzero(solid)
        ranks = ranks[np.lexsort((nbytes[ranks], offset[ranks]))]
        is_equal = (np.diff(offset[ranks]) == 0) & (np.diff(nbytes[ranks]) == 0)
        ranks = ranks[np.append(True, ~is_equal)[: len(ranks)]]
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


@dataclass(frozen=True, slots=True)
class Seal:
    """Bytes before and after the inner chunks of a shard."""

    index: ShardIndex  # where the inner chunks lie
    # Bytes before the first inner chunk, and after the last one. In shards of the sharding
    # specification one of them is the encoded index, and the other is empty.
    prefix: Buffer
    suffix: Buffer


class IndexCodec:
    """Encoder and decoder of shard indexes of one shape.

    - `location`: ``index_location`` of the metadata.
    - `base_nbytes`: offset at which inner chunks may begin: the size of the index if it comes
      first, else 0.
    """

    def __init__(self, codecs: Sequence[Codec], chunks_per_shard: Shape, location: str) -> None:
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
            ) from None
        if self._pipeline.encoded_nbytes is None:
            raise SpecError(
                "the encoded size of an index must not depend on its values",
                field="index_codecs",
                value=names,
                remedy='use "bytes" and checksums such as "crc32c" only',
            )
        self.encoded_nbytes: int = self._pipeline.encoded_nbytes
        self.base_nbytes: int = self.encoded_nbytes if location == "start" else 0
        self.has_checksum: bool = self.encoded_nbytes > 16 * math.prod(chunks_per_shard)

    def seal(self, index: ShardIndex) -> Seal:
        """Encode the index of a shard."""
        return self.seals(index.table[np.newaxis])[0]

    def seals(self, tables: npt.NDArray[np.uint64]) -> list[Seal]:
        """Encode the indexes of n shards, given as one array.

        - `tables`: uint64, shape (n, chunks per shard, 2). The table of each shard, as in
          :class:`ShardIndex`.
        """
        encoded = map(bytes, self._pipeline.encode(tables.reshape(len(tables), *self._shape)))
        if self.base_nbytes:
            return [
                Seal(ShardIndex(table), data, b"")
                for table, data in zip(tables, encoded, strict=True)
            ]
        return [
            Seal(ShardIndex(table), b"", data) for table, data in zip(tables, encoded, strict=True)
        ]

    def span(self, shard_nbytes: int | None) -> tuple[int, int]:
        """Start and stop of the index in a shard of `shard_nbytes` bytes.

        If the size is not known, an index at the end lies behind all that a shard can hold.

        - Raises CorruptShardError if the shard is too short to hold an index.
        """
        if shard_nbytes is not None and shard_nbytes < self.encoded_nbytes:
            raise CorruptShardError(
                f"{shard_nbytes} bytes are too few for an index of {self.encoded_nbytes}"
            )
        if self.location == "start":
            return 0, self.encoded_nbytes
        if shard_nbytes is None:
            return _MOST_NBYTES, _MOST_NBYTES + self.encoded_nbytes
        return shard_nbytes - self.encoded_nbytes, shard_nbytes

    def decode(self, data: Buffer, shard_nbytes: int | None) -> ShardIndex:
        """Decode an index, and check it against the size of its shard.

        - `shard_nbytes`: size of the whole shard, in bytes; None if it is not known.
        - Raises CorruptShardError if the checksum differs, or an entry fails
          :meth:`ShardIndex.check`.
        """
        table = self._pipeline.decode(data).reshape(-1, 2)
        # A copy, because who keeps the index would keep the whole shard that it was read with.
        index = ShardIndex(np.array(table, dtype=np.uint64, order="C"))
        index.check(shard_nbytes, self.span(shard_nbytes), self._chunks_per_shard)
        return index
