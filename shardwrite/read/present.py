"""Which inner chunks of an array hold data, by the indexes of its shards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.encode.reader import ShardReader
from shardwrite.format.manifest import keys_of
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Shape, ceil_div, ravel, unravel
from shardwrite.host.resources import n_cores
from shardwrite.host.threads import in_threads
from shardwrite.read.stored_shard import Open, open_for_index, reading_twice
from shardwrite.stores.base import Store

BATCH_INDEXES = 1024
"""Indexes that one task reads, at most."""

Coords = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PresentChunks:
    """Inner chunks of an array that hold data. :func:`shardwrite.present` makes one.

    Attributes
    ----------
    coords : numpy.ndarray of int64, shape (n, ndim)
        Positions in the grid of inner chunks, in row-major order.
    chunks : tuple of int
        Shape of an inner chunk, in elements. ``coords * chunks`` are the first elements.
    origin : numpy.ndarray of int64, shape (ndim,)
        Coordinates of the first chunk in the keys: the attribute ``"chunk_grid_origin"``, which
        zarr-vectors writes, or zeros.
    """

    coords: npt.NDArray[np.int64]
    chunks: Shape
    origin: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Number of the chunks."""
        return len(self.coords)

    @property
    def keys(self) -> list[str]:
        """Keys such as ``"0.3.12"``, sorted as text, as zarr-vectors lists them."""
        return keys_of(self.coords, self.origin)

    def __repr__(self) -> str:
        return f"<PresentChunks: {len(self):,} inner chunks of {self.chunks}>"


def ranks_with_objects(metadata: ArrayMetadata, store: Store) -> Sequence[int]:
    """List an array, and return the row-major ranks of the shards that have an object.

    Of an array that cannot be listed, all shards may have one.
    """
    counts = metadata.grid.counts
    if not store.lists:
        return range(metadata.grid.n_shards)
    positions = (metadata.shard_index(key) for key in store.list_keys())
    return sorted(ravel(at, counts) for at in positions if at is not None)


def stored_coords_here(
    metadata: ArrayMetadata, store: Store, ranks: Sequence[int] | None = None
) -> Coords:
    """Positions of the inner chunks that an array stores, as `stored_coords` of `inspection` does.

    Threads of this process read the indexes, whichever engine is active. A request to stop does not
    interrupt them, since this is for the end of a run.

    - `ranks`: of the shards that may have an object; by default all of them.
    - Raises CorruptShardError if an index is not valid.
    """
    ranks = range(metadata.grid.n_shards) if ranks is None else ranks
    n_threads = n_cores()
    step = max(1, min(BATCH_INDEXES, ceil_div(len(ranks), n_threads)))
    batches = [ranks[first : first + step] for first in range(0, len(ranks), step)]
    found = in_threads(partial(coords_in, metadata, store), batches, n_threads)
    return together(found, metadata.grid.ndim)


def together(parts: Iterable[Coords], ndim: int) -> Coords:
    """Positions in all parts, in row-major order."""
    coords = np.concatenate([np.empty((0, ndim), dtype=np.int64), *parts])
    return coords[np.lexsort(coords.T[::-1])] if ndim else coords


def coords_in(metadata: ArrayMetadata, store: Store, ranks: Sequence[int]) -> Coords:
    """Positions of the inner chunks in the shards of some ranks, inside the array."""
    grid = metadata.grid
    per_shard = np.array(grid.chunks_per_shard, dtype=np.int64)
    counts = [ceil_div(n, c) for n, c in zip(grid.shape, grid.chunks, strict=True)]
    parts = [np.empty((0, grid.ndim), dtype=np.int64)]
    for rank in ranks:
        index = unravel(rank, grid.counts)
        places = np.argwhere(_is_stored(metadata, store, index).reshape(grid.chunks_per_shard))
        coords = places + per_shard * np.array(index, dtype=np.int64)
        parts.append(coords[(coords < counts).all(axis=1)])
    return np.concatenate(parts)


def _is_stored(metadata: ArrayMetadata, store: Store, index: Shape) -> npt.NDArray[np.bool_]:
    """Which inner chunks of a shard are stored, by rank; none if it has no object."""
    key = metadata.shard_key(index)
    if not metadata.is_sharded:
        return np.array([store.has(key)])

    def read(opener: Open) -> npt.NDArray[np.bool_]:
        reader = opener(key)
        if reader is None:
            return np.zeros(metadata.grid.n_chunks_per_shard, dtype=bool)
        with reader:
            return ~ShardReader(metadata, key, reader).index.is_empty

    return reading_twice(store, key, read, partial(open_for_index, metadata, store))
