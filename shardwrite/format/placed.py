"""What some formats of shards have beside the members of `ShardFormat` and `ObjectFormat`.

A format has ``within`` if the keys of its shards, or what stands around their inner chunks, depend
on the places of the shards. It has ``cuts_edges``, which is True, if inner chunks at the edges of
the array are cut there. It has ``own_strategy`` if all its shards are written by one strategy,
whatever a call asks for. Its objects have ``load`` if their index lies in several places, and
``sealing_nbytes`` if making their index takes memory that grows with the inner chunks.

These are the members by which a format, most often one of a wing, differs from that of the
specification. The core asks for them here, and knows none of these formats.

Shards by their positions have the members of `ScatteredChunks` if their inner chunks are not those
of a box of the array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.format.index import ShardIndex
from shardwrite.format.sharding import ObjectFormat, ShardFormat
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box, Shape, ShardGrid

Read = Callable[[int, int], Buffer]
Load = Callable[[Read, int], tuple[ShardIndex, int]]


class LoadedFormat(ObjectFormat, Protocol):
    """Format whose index lies in several places, so that it takes several reads."""

    def load(self, read: Callable[[int, int], Buffer], shard_nbytes: int) -> tuple[ShardIndex, int]:
        """Read the index of an object of `shard_nbytes`, and check it.

        - Raises CorruptShardError if an entry cannot be right.
        """


class PlacedShards(Protocol):
    """Shards of an array by their positions, as ``within`` of a format gives them for a grid."""

    def key_of(self, index: Sequence[int]) -> str:
        """Key of the shard at a position."""

    def index_of(self, key: str) -> Shape | None:
        """Position of the shard with a key; None if the key is that of no shard."""

    def at(self, index: Sequence[int]) -> ObjectFormat:
        """What stands around the inner chunks of the shard at a position."""


@runtime_checkable
class ScatteredChunks(PlacedShards, Protocol):
    """Shards whose inner chunks come from everywhere in another array."""

    @property
    def is_cut(self) -> bool:
        """Whether some inner chunks are stored smaller than the others. Memory has them padded."""

    @property
    def why(self) -> str:
        """What scatters the inner chunks, for messages."""

    how_to_read: ClassVar[str]  # remedy where the values are wanted

    @property
    def origin_shape(self) -> Shape:
        """Shape of the array that the inner chunks come from: what users know as the values."""

    def chunks_in(self, region: Box) -> Iterator[tuple[int, list[tuple[int, Box]]]]:
        """Inner chunks that hold elements of a box of that array, shard by shard."""

    def chunk_shape(self, index: Sequence[int], rank: int) -> Shape:
        """Shape in which the inner chunk of a rank is stored."""

    def origins(
        self, index: Sequence[int], other: ShardGrid
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the other array has the inner chunks of a shard.

        - Returns: for each inner chunk, the row-major rank of the other array's shard and the
          chunk's rank in it. The first is -1 where there is no chunk.
        """


def placed_shards(found: ShardFormat | None, grid: ShardGrid) -> PlacedShards | None:
    """Shards of an array by their positions; None if its format does not look at positions."""
    within = getattr(found, "within", None)
    made: PlacedShards | None = None if within is None else within(grid)
    return made


def cuts_edges(found: ShardFormat | None) -> bool:
    """Whether a format cuts inner chunks at the edges of the array, instead of padding them."""
    return bool(getattr(found, "cuts_edges", False))


def own_strategy(found: ShardFormat | None) -> Strategy | None:
    """Strategy by which all shards of a format are written; None if a call may choose one."""
    made: Strategy | None = getattr(found, "own_strategy", None)
    return made


def loader_of(found: ObjectFormat) -> Load | None:
    """Method that reads the index of an object; None if one read gives all of it."""
    load: Load | None = getattr(found, "load", None)
    return load
