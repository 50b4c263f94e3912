"""Finding the last whole state in a shard whose tail is torn. The index must lie at the end.

Appending leaves the old index where it was, until the new one stands behind it. So a torn append is undone by
cutting the shard to the size that a journal recorded. Without a journal the file can be searched backwards for an index whose
checksum fits: that is salvage, and says nothing of when that state was current.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.metadata import ArrayMetadata

__all__ = ["index_ends_at", "scan_for_index"]


def index_ends_at(metadata: ArrayMetadata, data: bytes, end: int) -> bool:
    """Whether the first `end` bytes of a shard are a shard."""
    codec = metadata.index_codec
    if end > len(data) or end < codec.encoded_nbytes:
        return False
    try:
        codec.decode(data[end - codec.encoded_nbytes : end], end)
    except CorruptShardError:
        return False
    return True


def scan_for_index(metadata: ArrayMetadata, data: bytes) -> int | None:
    """The largest size below the shard's own at which it is a shard, or None.

    Raises
    ------
    SpecError
        If the index has no checksum, or does not lie at the end: then a fit would prove nothing.
    """
    codec = metadata.index_codec
    if codec.location != "end" or not codec.has_checksum:
        raise SpecError(
            "the index has no checksum, or does not lie at the end",
            field="scan",
            value=True,
            remedy="write the shard again from its source",
        )
    for end in _candidates(data, codec.encoded_nbytes):
        if end < len(data) and index_ends_at(metadata, data, int(end)):
            return int(end)
    return None


def _candidates(data: bytes, index_nbytes: int) -> npt.NDArray[np.int64]:
    """Ends at which an index may stand, the last first: where its first entry is empty or lies inside the file."""
    n = len(data) - index_nbytes + 1
    if n < 1:
        return np.empty(0, dtype=np.int64)
    raw = np.frombuffer(data, dtype=np.uint8)
    words = np.zeros((2, n), dtype=np.uint64)
    for row, at in enumerate((0, 8)):
        for byte in range(8):
            words[row] |= raw[at + byte : at + byte + n].astype(np.uint64) << np.uint64(8 * byte)
    offset, nbytes = words
    limit = np.uint64(len(data))
    is_empty = (offset == np.uint64(2**64 - 1)) & (nbytes == offset)
    starts = np.flatnonzero(is_empty | ((offset <= limit) & (nbytes <= limit)))
    return (starts[::-1] + index_nbytes).astype(np.int64)
