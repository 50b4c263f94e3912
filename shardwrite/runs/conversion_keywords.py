"""Keywords that say what a conversion makes of an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from shardwrite.grid import Sized
from shardwrite.options import ArrayKeywords, Keywords, Manifest, option

if TYPE_CHECKING:  # commands read the keywords, and need not import what runs
    from shardwrite.write.donor import Check


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class CodecKeywords(Keywords):
    """What chunks become, if they do not stay as they are."""

    section: ClassVar[str] = "Array"

    chunks: Sized = option(
        None,
        """Shape of an inner chunk **in elements**, or its decoded size, such as ``"1MB"``. By
        default the inner chunks stay.""",
        kind="int, sequence of int or str",
        parser="sizes",
        command_help="Size of an inner chunk: 64 or 64,64,16 elements, or 512kB. Default: as in "
        "SRC.",
    )
    compressors: Any = option(
        "keep",
        """Compressors of the inner chunks, as in :func:`to_sharded_zarr`: a name alone is followed
        by crc32c, and a list is taken as it is. ``"keep"`` leaves them as they are. With others, an
        array of shards within shards gets a single level of shards.""",
        kind='codec, sequence of codec, "auto", "keep" or None',
        parser="json",
        command_help="A codec's name (a checksum follows), a JSON list of exactly these codecs, "
        "none, auto (zstd with a checksum), or keep.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class IndexKeywords(Keywords):
    """What the shards become."""

    section: ClassVar[str] = "Array"

    index_location: str | None = option(
        None,
        "Position of the index in each shard. By default as in the source, or at the end.",
        choices=("end", "start"),
        command_help="Where a shard holds its index. Default: as in SRC, or at the end.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class CheckKeywords(Keywords):
    """How chunks are looked at."""

    section: ClassVar[str] = "Run"

    check: Check = option(
        False,
        """Decode each chunk before it is copied. ``"twice"`` also reads chunks that have no
        checksum a second time, from the storage and not from a cache, and compares.""",
        kind='bool or "twice"',
        command_help="Decode each chunk before it is copied.",
    )
    drop_empty: bool = option(
        False,
        "Leave out chunks that hold only the fill value. All chunks are decoded for that.",
        command_help="Leave out chunks that hold only the fill value. This decodes all chunks.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class CopyKeywords(CheckKeywords):
    """What becomes of chunks that are copied."""

    section: ClassVar[str] = "Array"

    checksum: bool | None = option(
        None,
        """True adds a crc32c at the end of each chunk. False checks it and drops it. None leaves
        chunks as they are. A new crc32c cannot show that the bytes were damaged before; see
        `check`.""",
        has_opposite=True,
        command_help="Add a checksum (crc32c) to each chunk, or verify and drop it. Default: as in "
        "SRC.",
    )
    dimension_names: Sequence[str | None] | None = option(
        None,
        "Names of the dimensions. By default as in the source.",
        kind="sequence of str or None",
        parser="names",
        command_help="Names of the axes, such as time,y,x. Default: those of SRC.",
    )
    manifest: Manifest = option(
        ArrayKeywords.manifest,
        """Keep the list of the inner chunks that hold data in an attribute of this name, as
        zarr-vectors does. shardwrite keeps it up to date. If the source has the list, the new array
        has it, too.""",
        choices=("nonempty_chunks",),
        command_help="Keep the list of the inner chunks that hold data in an attribute of this "
        "name.",
    )
