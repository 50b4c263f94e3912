"""All inner chunks that an array stores, from the indexes of its shards, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt

from shardwrite.engines.local import Engine
from shardwrite.grid import Shape, ceil_div, unravel
from shardwrite.host.resources import n_cores
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import look_in_batches
from shardwrite.read.stored_shard import open_shard

_BATCH_SHARDS = 1024

Coords = npt.NDArray[np.int64]


def stored_coords(
    engine: Engine, array: ShardedArray, on_shards: Callable[[int], None] | None = None
) -> Coords:
    """Positions of the inner chunks that an array stores. Nothing but indexes is read.

    - Returns: positions in the grid of inner chunks, in row-major order. Chunks that a shard stores
      outside of the array are left out.
    - Raises CorruptShardError if an index is not valid.
    """
    ranks = range(array.metadata.grid.n_shards)
    parts: list[Coords] = []

    def collect(_: int, part: tuple[int, Coords]) -> None:
        parts.append(part[1])
        if on_shards is not None:
            on_shards(part[0])

    look_in_batches(engine, array, _chunks, ranks, _BATCH_SHARDS, collect)
    return _together(parts, array.metadata.grid.ndim)


def _chunks(array: ShardedArray, ranks: Sequence[int]) -> tuple[int, Coords]:
    return len(ranks), _coords_in(array, ranks)


def stored_coords_here(array: ShardedArray) -> Coords:
    """Positions of the inner chunks that an array stores, as `stored_coords` finds them.

    Threads of this process read the indexes, whichever engine is active. A request to stop does not
    interrupt them, since this is for the end of a run.

    - Raises CorruptShardError if an index is not valid.
    """
    ranks, n_threads = range(array.metadata.grid.n_shards), n_cores()
    step = max(1, min(_BATCH_SHARDS, ceil_div(len(ranks), n_threads)))
    batches = [ranks[first : first + step] for first in ranks[::step]]
    with ThreadPoolExecutor(n_threads) as pool:
        return _together(pool.map(partial(_coords_in, array), batches), array.metadata.grid.ndim)


def _together(parts: Iterable[Coords], ndim: int) -> Coords:
    """Positions in all parts, in row-major order."""
    found = np.concatenate([np.empty((0, ndim), dtype=np.int64), *parts])
    return found[np.lexsort(found.T[::-1])] if ndim else found


def _coords_in(array: ShardedArray, ranks: Sequence[int]) -> Coords:
    """Positions of the inner chunks in the shards of some ranks, inside the array."""
    grid = array.metadata.grid
    per_shard = np.array(grid.chunks_per_shard, dtype=np.int64)
    counts = [ceil_div(n, c) for n, c in zip(grid.shape, grid.chunks, strict=True)]
    found = [np.empty((0, grid.ndim), dtype=np.int64)]
    for rank in ranks:
        index = unravel(rank, grid.counts)
        places = np.argwhere(_is_stored(array, index).reshape(grid.chunks_per_shard))
        coords = places + per_shard * np.array(index, dtype=np.int64)
        found.append(coords[(coords < counts).all(axis=1)])
    return np.concatenate(found)


def _is_stored(array: ShardedArray, index: Shape) -> npt.NDArray[np.bool_]:
    """Which inner chunks of a shard are stored, by rank; none if it has no object."""
    metadata = array.metadata
    if not metadata.is_sharded:
        return np.array([array.store.size(metadata.shard_key(index)) is not None])
    shard = open_shard(metadata, array.store, index)
    if shard is None:
        return np.zeros(metadata.grid.n_chunks_per_shard, dtype=bool)
    with shard:
        return ~shard.index.is_empty
