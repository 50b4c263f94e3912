"""Frames: what a shard holds beside its inner chunks and its index.

Most strategies have none, and a shard is its inner chunks and the index. Where shards are files of
another format, too, the strategy has a `framing`, which gives the frame of each shard. The frame
says what lies before, between and behind the inner chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.placement import Ranks
from shardwrite.format.strategy import Strategy
from shardwrite.grid import Shape

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


class OldShard(Protocol):
    """An object whose bytes can be read in ranges."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Read exactly `nbytes` bytes from `offset`."""


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

    def look(self, index: Shape, what: Callable[[OldShard], _Found]) -> _Found | None:
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

    def labelled(self, label: str) -> Strategy:
        """The strategy by which a call was begun, of which only the label is known."""

    def frame(self, metadata: ArrayMetadata, index: Shape) -> Frame:
        """Frame of the shard at a position of the shard grid."""

    def may_replace(self, metadata: ArrayMetadata, key: str, old: OldShard) -> None:
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
