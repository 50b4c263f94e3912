"""Upper bounds of the sizes of shards, as far as the metadata of an array tell them."""

from __future__ import annotations

import math

from shardwrite.format.metadata import ArrayMetadata

# What may stand around an inner chunk: a checksum, the frame of a compressor, a key in a file of
# HDF5. What compressors add to data that they cannot compress is at most an eighth.
_AROUND_NBYTES = 128
_REST_NBYTES = 2**16


def plain_nbytes_of(metadata: ArrayMetadata) -> int:
    """Size of a shard whose inner chunks are not compressed, with its index, in bytes.

    Elements of variable length count as references, so that such a shard may be larger.
    """
    grid = metadata.grid
    decoded = math.prod(grid.shards) * metadata.itemsize
    return decoded + metadata.index_codec.encoded_nbytes


def most_nbytes_of(metadata: ArrayMetadata) -> int:
    """Upper bound of the size of a shard, in bytes, unless elements have a variable length."""
    plain = plain_nbytes_of(metadata)
    added = 0 if metadata.pipeline.encoded_nbytes is not None else plain // 8
    rest = min(_REST_NBYTES, plain)
    return plain + added + _AROUND_NBYTES * metadata.grid.n_chunks_per_shard + rest


def head_nbytes_of(metadata: ArrayMetadata) -> int:
    """Bytes at the start of a shard that are known when all inner chunks are encoded."""
    return metadata.index_codec.base_nbytes


def sealing_nbytes_of(metadata: ArrayMetadata) -> int:
    """Memory that the index of a shard takes while it is made, in bytes.

    It is 0 for most formats, whose index is counted with what is known of the inner chunks. Others
    tell it as ``sealing_nbytes``; see :mod:`shardwrite.format.placed`.
    """
    nbytes: int = getattr(metadata.index_codec, "sealing_nbytes", 0)
    return nbytes
