"""Records of changes in place, and shards composed of a file and the byte ranges of a record.

A record is a crc32c in hexadecimal, a head in JSON that it is the checksum of, a newline, and the
bytes of the ranges. The metadata and the shard that is there bound how much of a record is read,
and how large the shard that it describes can have been.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from crc32c import crc32c

from shardwrite.codecs.documents import JSON
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.stores import ObjectReader, read_limit

_MOST_NBYTES = 2**36  # most bytes of ranges; reached only by inner chunks of variable length
_RANGE_NBYTES = 64  # bytes of an offset and a size in the head
_SMALL_NBYTES = 2**20


def record_limit(metadata: ArrayMetadata) -> int:
    """Largest size in bytes of a record for one shard.

    It is twice what all inner chunks and the index of a shard can take, or 64 GiB if that is less,
    and room for the head.
    """
    n_chunks, codec = metadata.grid.n_chunks_per_shard, metadata.index_codec
    most = 2 * (n_chunks * metadata.pipeline.most_encoded_nbytes + codec.encoded_nbytes)
    return min(_MOST_NBYTES, most) + n_chunks * _RANGE_NBYTES + read_limit()


def check_fits(metadata: ArrayMetadata, reader: ObjectReader, composed: ObjectReader) -> None:
    """Refuse a composed shard that is larger than the shard can have been.

    A change in place never makes a file smaller. But a file that was not synced can be shorter
    after a power cut. The limit therefore includes the bytes in the record and the decoded size of
    a shard, too.
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


def encode_record(fields: Mapping[str, JSON], data: bytes) -> bytes:
    """Encode a record as the content of a file.

    - `fields`: fields of the head. The crc32c of `data` is added to them.
    - `data`: bytes of all ranges, one after the other.
    """
    return encode_head(fields, crc32c(data)) + data


def encode_head(fields: Mapping[str, JSON], checksum: int) -> bytes:
    """Encode what stands in a record before the bytes of its ranges.

    - `checksum`: the crc32c of the bytes of all ranges, one after the other.
    """
    head = json.dumps({**fields, "crc32c": checksum}).encode()
    return b"%08x %s\n" % (crc32c(head), head)


def parse_record(data: bytes) -> tuple[Mapping[str, JSON], bytes] | None:
    """Split a record into its head and the bytes after it; None where the head is torn.

    The checksum of the bytes after the head is not compared.
    """
    head, _, rest = data.partition(b"\n")
    if head[:8] != b"%08x" % crc32c(head[9:]):
        return None
    found = json.loads(head[9:])
    if not isinstance(found, dict):
        raise TypeError("the head is no object")
    return found, rest


def shard_of(head: Mapping[str, JSON]) -> tuple[str, int]:
    """Key of the shard that a record is about, and the shard's size before the change in bytes."""
    key, nbytes = head["key"], head["old_nbytes"]
    if not isinstance(key, str) or type(nbytes) is not int:
        raise ValueError("it does not say of which shard it is")
    return key, nbytes


def ranges_of(pairs: JSON, data: bytes) -> list[tuple[int, bytes]]:
    """Offsets and bytes of the ranges in a record.

    - `pairs`: offset and size in bytes of each range, from the head.
    - `data`: bytes of all ranges, one after the other.
    """
    sizes = []
    for pair in pairs if isinstance(pairs, list) else [None]:
        offset, nbytes = pair if isinstance(pair, list) else (None, None)
        if type(offset) is not int or type(nbytes) is not int:
            raise ValueError("a range has no offset or no size")
        sizes.append((offset, nbytes))
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
    """A readable object that is composed of another object and of ranges that replace its bytes.

    - `nbytes`: size in bytes of the composed object: that of the shard before the change, or after
      it.
    - `ranges`: offsets and bytes of the ranges that replace those of `reader`.
    - `nbytes`: size in bytes of the composed object.
    """

    def __init__(
        self, reader: ObjectReader, nbytes: int, ranges: Sequence[tuple[int, bytes]]
    ) -> None:
        self.nbytes = nbytes
        self.version = reader.version
        self.held_nbytes = sum(len(data) for _, data in ranges)
        self._reader, self._ranges = reader, ranges

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` bytes from byte `offset` on, as :meth:`ObjectReader.read` does.

        Bytes that are neither in the shard nor in a range read as zeros. Checksums reveal them.
        """
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
