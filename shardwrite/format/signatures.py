"""Signatures of shards that are files of another format, too, as data.

By them the core knows such a shard, and does not make something else of it, whether what writes
such files is there or not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from shardwrite.format.metadata import ArrayMetadata


@dataclass(frozen=True, slots=True)
class Signature:
    """How files of a format are known."""

    strategy: str  # name of the strategy that writes such shards
    title: str  # what such a file is called, and several of them
    title_of_many: str
    magic: bytes  # its first bytes, after a block that may precede them
    least_block: int  # size of the smallest such block; larger ones are twice as large
    most_block: int  # and of the largest one that is looked for
    codecs: frozenset[str]  # codecs that such files can have
    label: re.Pattern[str]  # labels of the strategy, as a receipt notes them
    remedy: str  # what can be done where a strategy would make plain shards of such files


HDF5 = Signature(
    strategy="hdf5",
    title="file of HDF5",
    title_of_many="files of HDF5",
    magic=b"\x89HDF\r\n\x1a\n",
    least_block=512,
    most_block=8192,
    codecs=frozenset(
        {
            *("bytes", "zstd", "blosc", "numcodecs.zlib", "numcodecs.bz2"),
            *("numcodecs.shuffle", "numcodecs.fletcher32"),
        }
    ),
    label=re.compile(r"hdf5 \((.+)\)", re.DOTALL),
    remedy='give strategy="hdf5", which keeps such files. For plain shards, give drop_hdf5=True to '
    "write_region, erase or repair, with a strategy that writes whole shards, such as "
    '"fixed-order"',
)

SIGNATURES = (HDF5,)


@lru_cache(maxsize=32)
def signatures_in(metadata: ArrayMetadata) -> tuple[Signature, ...]:
    """Signatures that shards of an array may have, as far as its codecs tell."""
    if not metadata.is_sharded or metadata.document["codecs"][0]["name"] != "sharding_indexed":
        return ()
    names = {str(codec["name"]) for codec in metadata.inner_codecs}
    return tuple(one for one in SIGNATURES if names <= one.codecs)


def labelled(label: str | None) -> Signature | None:
    """Signature of the shards that the strategy of a label writes; None if they are plain ones."""
    return next((one for one in SIGNATURES if one.label.fullmatch(label or "")), None)


def places_of(signature: Signature, metadata: ArrayMetadata) -> list[int]:
    """Offsets in a shard at which a signature is looked for, ascending.

    They go up to a block that is more than large enough for an index at the start.
    """
    index, limit = metadata.index_codec, signature.most_block
    if metadata.is_sharded and index.location == "start":
        limit = max(limit, 2 * block_for(signature, index.encoded_nbytes))
    places = [0]
    while (at := max(signature.least_block, 2 * places[-1])) <= limit:
        places.append(at)
    return places


def block_for(signature: Signature, index_nbytes: int) -> int:
    """Size of the smallest block before a file that can hold an index.

    Examples
    --------
    >>> block_for(HDF5, 20), block_for(HDF5, 513)
    (512, 1024)
    """
    return max(signature.least_block, 1 << (index_nbytes - 1).bit_length())
