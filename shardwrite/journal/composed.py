"""Records of changes in place, and a shard made of what is there and of ranges from a record.

A record is a head in JSON behind a crc32c of it, a newline, and the bytes of the ranges. How much of a record is read, and how
large the shard can have been that it tells of, follows from the metadata and from what is there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from crc32c import crc32c

from shardwrite.format.metadata import ArrayMetadata
from shardwrite.stores import ObjectReader, read_limit

__all__ = ["Composed", "check_fits", "encode_record", "parse_record", "ranges_of", "record_limit"]

_MOST_NBYTES = 2**36  # of a record; reached only where inner chunks are of variable length
_RANGE_NBYTES = 64  # of an offset and a size in the head
_SMALL_NBYTES = 2**20


def record_limit(metadata: ArrayMetadata) -> int:
    """Most bytes of a record of a shard: what all of its inner chunks and its index can take, with room to spare."""
    n_chunks, codec = metadata.grid.n_chunks_per_shard, metadata.index_codec
    most = 2 * (n_chunks * metadata.pipeline.most_encoded_nbytes + codec.encoded_nbytes)
    return min(_MOST_NBYTES, most) + n_chunks * _RANGE_NBYTES + read_limit()


def check_fits(metadata: ArrayMetadata, reader: ObjectReader, composed: ObjectReader) -> None:
    """Refuse a shard that is larger than it can have been.

    A change in place never makes a file smaller. But a file that was not synced can come back shorter
    after a power cut, so that what the record holds and the decoded size of a shard are allowed for, too.

    Raises
    ------
    ValueError
        If it is.
    """
    grid = metadata.grid
    decoded = grid.n_chunks_per_shard * math.prod(grid.chunks) * metadata.itemsize
    held = composed.held_nbytes if isinstance(composed, Composed) else 0
    most = (
        reader.nbytes + held + 2 * decoded + 2 * metadata.index_codec.encoded_nbytes + _SMALL_NBYTES
    )
    if composed.nbytes > most:
        raise ValueError(
            f"its shard would have {composed.nbytes} bytes where at most {most} can be"
        )


def encode_record(fields: dict[str, Any], data: bytes) -> bytes:
    """A record, as it lies in a file."""
    head = json.dumps({**fields, "crc32c": crc32c(data)}).encode()
    return b"%08x %s\n" % (crc32c(head), head) + data


def parse_record(data: bytes) -> tuple[dict[str, Any], bytes] | None:
    """The head of a record and what follows it, or None where the head is torn.

    Raises
    ------
    ValueError, TypeError
        If the head is whole, and not one that this package wrote.
    """
    head, _, rest = data.partition(b"\n")
    if head[:8] != b"%08x" % crc32c(head[9:]):
        return None
    found = json.loads(head[9:])
    if not isinstance(found, dict):
        raise TypeError("the head is no object")
    return found, rest


def ranges_of(pairs: Any, data: bytes) -> list[tuple[int, bytes]]:
    """Offsets and bytes of the ranges in a record.

    Raises
    ------
    ValueError, TypeError
        If `pairs` are no offsets and sizes that make up `data`.
    """
    sizes = [(int(offset), int(nbytes)) for offset, nbytes in pairs]
    if any(offset < 0 or nbytes < 0 for offset, nbytes in sizes) or sum(n for _, n in sizes) != len(
        data
    ):
        raise ValueError("the ranges do not fit")
    ranges, at = [], 0
    for offset, nbytes in sizes:
        ranges.append((offset, data[at : at + nbytes]))
        at += nbytes
    return ranges


class Composed:
    """An object to read, made of another and of ranges that take the place of its own.

    Parameters
    ----------
    reader : ObjectReader
        The shard as it is.
    nbytes : int
        Its size as it was, or was to become.
    ranges : sequence of (int, bytes)
        Offsets and bytes of what was different.
    """

    def __init__(
        self, reader: ObjectReader, nbytes: int, ranges: Sequence[tuple[int, bytes]]
    ) -> None:
        self.nbytes = nbytes
        self.version = reader.version
        self.held_nbytes = sum(len(data) for _, data in ranges)
        self._reader, self._ranges = reader, ranges

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`; what stands nowhere reads as zeros, and checksums tell."""
        stop = offset + nbytes
        there = max(0, min(stop, self._reader.nbytes) - offset)
        data = bytearray(self._reader.read(offset, there) if there else b"")
        data.extend(bytes(nbytes - there))
        for start, new in self._ranges:
            a, b = max(offset, start), min(stop, start + len(new))
            if a < b:
                data[a - offset : b - offset] = new[a - start : b - start]
        return bytes(data)

    def __enter__(self) -> Composed:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass
