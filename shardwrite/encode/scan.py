"""A search for the last whole state of a torn shard. The index must lie at the end, and have a checksum."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwrite.encode.reader import Ranges, ShardReader
from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.format.metadata import ArrayMetadata

__all__ = ["scan_for_end", "shard_up_to"]

_ENTRY_NBYTES = 16
_WINDOW_NBYTES = 4 * 2**20


def shard_up_to(metadata: ArrayMetadata, source: Ranges, end: int) -> ShardReader | None:
    """The shard that the first `end` bytes of an object are; None where they are none."""
    try:
        return ShardReader(metadata, "", source, end)
    except CorruptShardError:
        return None


def scan_for_end(metadata: ArrayMetadata, source: Ranges) -> int | None:
    """The largest size below the shard's own at which it is a shard, or None.

    A shard whose index fits at its own size is not torn, whatever is wrong with its inner chunks: it
    is left as it is. The index of a shard inside this one can fit, too; so the inner chunks must
    decode. What is searched is about what one append can have torn: all inner chunks of the shard and two indexes.

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
    if shard_up_to(metadata, source, source.nbytes) is not None:
        return None
    stop = (
        source.nbytes - codec.encoded_nbytes
    )  # where the last index can begin, and the first that is of interest cannot
    least = max(0, stop - 2 * codec.encoded_nbytes - _most_torn(metadata))
    while stop > least:
        start = max(least, stop - _WINDOW_NBYTES)
        window = source.read(start, stop - start + _ENTRY_NBYTES - 1)
        for at in _candidates(window, source.nbytes).tolist():
            end = int(start + at + codec.encoded_nbytes)
            shard = shard_up_to(metadata, source, end)
            if shard is not None and _decodes(shard):
                return end
        stop = start
    return None


def _decodes(shard: ShardReader) -> bool:
    """Whether all inner chunks of a shard decode."""
    try:
        for rank in shard.present():
            shard.chunk(rank)
    except CorruptShardError:
        return False
    return True


def _most_torn(metadata: ArrayMetadata) -> int:
    """Bytes of all inner chunks; of those of variable length together no more than one of them may have."""
    n_chunks, most = metadata.grid.n_chunks_per_shard, metadata.pipeline.most_encoded_nbytes
    is_variable = metadata.dtype.hasobject or metadata.dtype.kind == "T"
    return most if is_variable else n_chunks * most


def _candidates(window: bytes, shard_nbytes: int) -> npt.NDArray[np.int64]:
    """Places at which an index may begin, the last first: its first entry is empty or lies inside the file."""
    found = []
    limit, empty = np.uint64(shard_nbytes), np.uint64(2**64 - 1)
    for first in range(min(8, len(window))):
        words = np.frombuffer(window, dtype="<u8", offset=first, count=(len(window) - first) // 8)
        offset, nbytes = words[:-1], words[1:]
        fits = ((offset <= limit) & (nbytes <= limit) & (nbytes > 0)) | (
            (offset == empty) & (nbytes == empty)
        )
        found.append(np.flatnonzero(fits) * 8 + first)
    return np.sort(np.concatenate([np.empty(0, np.int64), *found]))[::-1]
