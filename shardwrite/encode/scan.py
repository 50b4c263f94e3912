"""Search for the last whole state of a torn shard.

The index must lie at the end of the shard and have a checksum.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwrite.encode.reader import Ranges, ShardReader
from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.format.metadata import ArrayMetadata

_ENTRY_NBYTES = 16
_WINDOW_NBYTES = 4 * 2**20


def shard_up_to(metadata: ArrayMetadata, source: Ranges, end: int) -> ShardReader | None:
    """Reader of the shard in the first `end` bytes of an object; None if they are not a shard."""
    try:
        return ShardReader(metadata, "", source, end)
    except CorruptShardError:
        return None


def scan_for_end(metadata: ArrayMetadata, source: Ranges) -> int | None:
    """Largest size at which the beginning of a torn object is a whole shard, in bytes, or None.

    An object whose index is valid at its full size is not torn, whatever is wrong with its inner
    chunks, and the result is None. At a smaller size, bytes of an inner chunk may happen to be a
    valid index, such as that of a shard stored inside this one. So all inner chunks must decode as
    well.

    The search covers about what one append can have torn: all inner chunks of the shard, and two
    indexes.
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
    # The last index of the object would begin at `stop` itself, and was not valid.
    stop = source.nbytes - codec.encoded_nbytes
    least = max(0, stop - 2 * codec.encoded_nbytes - _most_torn(metadata))
    while stop > least:
        start = max(least, stop - _WINDOW_NBYTES)
        window = source.read(start, stop - start + _ENTRY_NBYTES - 1)
        for at in _candidates(window, source.nbytes).tolist():
            end = int(start + at + codec.encoded_nbytes)
            shard = shard_up_to(metadata, source, end)
            if shard is not None and decodes(shard):
                return end
        stop = start
    return None


def decodes(shard: ShardReader) -> bool:
    """Whether all inner chunks of a shard decode."""
    try:
        for rank in shard.present():
            shard.chunk(rank)
    except CorruptShardError:
        return False
    return True


def _most_torn(metadata: ArrayMetadata) -> int:
    """Upper bound of the inner chunks' bytes that an append can have torn.

    For elements of variable length it is the limit of one inner chunk, for all chunks together.
    """
    n_chunks, most = metadata.grid.n_chunks_per_shard, metadata.pipeline.most_encoded_nbytes
    is_variable = metadata.dtype.hasobject or metadata.dtype.kind == "T"
    return most if is_variable else n_chunks * most


def _candidates(window: bytes, shard_nbytes: int) -> npt.NDArray[np.int64]:
    """Offsets in the window at which an index may begin, the last first.

    The first entry of an index is empty, or has an offset and a size that fit into the file.
    """
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
