"""Frames: what a shard holds beside its inner chunks and its index.

Most strategies have none, and a shard is its inner chunks and the index. Where shards are files of
another format, too, the strategy has a `framing`, which gives the frame of each shard. The frame
says what lies before, between and behind the inner chunks.

By its signature the core knows such a shard, and does not make something else of it, whether what
writes such files is there or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Buffer, Ranges
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.order import Ranks
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Shape

# ---- Signatures, as data


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
    return tuple(signature for signature in SIGNATURES if names <= signature.codecs)


def signature_for_label(label: str | None) -> Signature | None:
    """Signature of the shards that the strategy of a label writes; None if they are plain ones."""
    return next((each for each in SIGNATURES if each.label.fullmatch(label or "")), None)


def places_of(signature: Signature, metadata: ArrayMetadata) -> list[int]:
    """Offsets in a shard at which a signature is looked for, ascending.

    They go up to a block that is more than large enough for an index at the start.
    """
    index, limit = metadata.index_codec, signature.most_block
    if metadata.is_sharded and index.location == "start":
        limit = max(limit, 2 * block_for(signature, index.encoded_nbytes))
    places = [0]
    while (place := max(signature.least_block, 2 * places[-1])) <= limit:
        places.append(place)
    return places


def block_for(signature: Signature, index_nbytes: int) -> int:
    """Size of the smallest block before a file that can hold an index.

    Examples
    --------
    >>> block_for(HDF5, 20), block_for(HDF5, 513)
    (512, 1024)
    """
    return max(signature.least_block, 1 << (index_nbytes - 1).bit_length())


# ---- Frames


_Found = TypeVar("_Found")


class Piece(NamedTuple):
    """Bytes of a shard that are neither inner chunks nor an index at the end."""

    n_before: int  # number of inner chunks that lie before it
    begin: int  # offset of its first byte
    data: Buffer


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the inner chunks of a shard lie, and what lies around them."""

    sequence: Ranks  # ranks of the stored inner chunks, in the sequence in which they lie
    offsets: Ranks  # offset of each inner chunk by rank; 0 where it is not stored
    # None is empty. The first one begins the shard, and has zeros where an index at the start goes.
    pieces: Sequence[Piece]
    total: int  # size of the shard without an index at the end, in bytes


class Frame(Protocol):
    """Frame of one shard."""

    @property
    def keeps(self) -> npt.NDArray[np.bool_]:
        """Whether each inner chunk, by rank, may be stored; others are left out."""

    def reserve(self) -> Sequence[tuple[int, int]]:
        """Room to leave while inner chunks are written, whose sizes are not known yet.

        - Returns: the number of inner chunks before each piece, ascending, and its size. A shard
          with fewer chunks has the same pieces as far as it goes, and then its last ones.
        """

    def close(self, nbytes: Ranks) -> Layout:
        """Lay out the shard.

        - `nbytes`: int64, shape (n,). Encoded size of each inner chunk by rank; negative where it
          is empty. At least one is stored.
        """


class OldShards(Protocol):
    """Shards of an array that exists, and what its receipt notes of them."""

    @property
    def metadata(self) -> ArrayMetadata:
        """Metadata of the array."""

    @property
    def labels(self) -> Sequence[str]:
        """Labels of the strategies that have written the array, the last one first."""

    def label_at(self, index: Shape) -> str | None:
        """Label of the strategy that has written a shard; None if the receipt does not tell."""

    def look(self, index: Shape, what: Callable[[Ranges], _Found]) -> _Found | None:
        """What a look at a shard gives; None if it is not there, or cannot be read."""

    def beside(self, index: Shape) -> Iterator[Shape]:
        """Positions of the shards beside one."""


class Framing(Protocol):
    """Frames of the shards that a strategy writes."""

    def choose(self, compressors: Any, index_location: str | None) -> tuple[Any, str | None]:
        """Compressors and place of the index of a new array, as far as they are left to choose.

        - `compressors`: as a user gives them; ``"auto"`` if they are left to choose.
        """

    def check_library(self) -> None:
        """Refuse to go on if a library is not installed that the frames need."""

    def check_fits(self, metadata: ArrayMetadata) -> None:
        """Refuse an array whose shards cannot have such frames."""

    def around_nbytes(self, metadata: ArrayMetadata) -> int:
        """Memory of a task for what is not inner chunks, in bytes."""

    def for_update(self, shards: OldShards, indices: Iterable[Shape], *, drops: bool) -> Strategy:
        """The strategy of an update, which keeps what such shards have beside their chunks.

        - `indices`: positions of the shards to look at.
        - `drops`: whether such files may be dropped.
        """

    def strategy_from_label(self, label: str) -> Strategy:
        """The strategy by which a call was begun, of which only the label is known."""

    def frame(self, metadata: ArrayMetadata, index: Shape) -> Frame:
        """Frame of the shard at a position of the shard grid."""

    def may_replace(self, metadata: ArrayMetadata, key: str, old: Ranges) -> None:
        """Refuse to replace a shard that has such a frame, if what is in it would be lost."""


def framing_of(strategy: Strategy) -> Framing | None:
    """Frames of the shards that a strategy writes; None if they have none."""
    give: Any = getattr(strategy, "framing", None)
    return None if give is None else give()


def frame_at(strategy: Strategy, metadata: ArrayMetadata, index: Shape) -> Frame | None:
    """Frame of the shard at a position, as a strategy gives it; None if it has none."""
    framing = framing_of(strategy)
    return None if framing is None else framing.frame(metadata, index)


def check_fits(strategy: Strategy, metadata: ArrayMetadata) -> None:
    """Refuse an array whose shards cannot have the frames of a strategy."""
    framing = framing_of(strategy)
    if framing is not None:
        framing.check_fits(metadata)
