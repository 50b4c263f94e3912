"""All inner chunks that an array stores, from the indexes of its shards, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.highlevelgraph import HighLevelGraph

from shardwrite.engines.local import Engine
from shardwrite.grid import Shape, ceil_div, unravel
from shardwrite.host.resources import n_cores
from shardwrite.read.array import ShardedArray
from shardwrite.read.stored_shard import open_shard
from shardwrite.stores.base import Capability, require

_BATCH_SHARDS = 1024
_N_BATCHES_AIMED_AT = 64

Coords = npt.NDArray[np.int64]


def stored_coords(
    engine: Engine, array: ShardedArray, on_shards: Callable[[int], None] | None = None
) -> Coords:
    """Positions of the inner chunks that an array stores. Nothing but indexes is read.

    - Returns: positions in the grid of inner chunks, in row-major order. Chunks that a shard stores
      outside of the array are left out.
    - Raises CorruptShardError if an index is not valid.
    """
    metadata = array.metadata
    if not engine.shares_memory:
        require(array.store, Capability.SHARED, field="store", value=repr(array.store))
    n_shards = metadata.grid.n_shards
    step = max(1, min(_BATCH_SHARDS, n_shards // _N_BATCHES_AIMED_AT))
    parts: dict[int, Coords] = {}
    name = f"shardwrite-chunks-{id(parts)}"
    layer: dict[Any, Any] = {
        (name, first): (_coords_in, array, first, min(first + step, n_shards))
        for first in range(0, n_shards, step)
    }

    def collect(key: Any, part: Coords) -> None:
        parts[key[1]] = part
        if on_shards is not None:
            on_shards(min(step, n_shards - key[1]))

    if layer:
        engine.run(HighLevelGraph({name: layer}, {name: set()}), list(layer), collect)
    return _together(parts.values(), metadata.grid.ndim)


def stored_coords_here(array: ShardedArray) -> Coords:
    """Positions of the inner chunks that an array stores, as `stored_coords` finds them.

    Threads of this process read the indexes, whichever engine is active. A request to stop does not
    interrupt them, since this is for the end of a run.

    - Raises CorruptShardError if an index is not valid.
    """
    n_shards, n_threads = array.metadata.grid.n_shards, n_cores()
    step = max(1, min(_BATCH_SHARDS, ceil_div(n_shards, n_threads)))
    firsts = range(0, n_shards, step)

    def read(first: int) -> Coords:
        return _coords_in(array, first, min(first + step, n_shards))

    with ThreadPoolExecutor(n_threads) as pool:
        return _together(pool.map(read, firsts), array.metadata.grid.ndim)


def _together(parts: Iterable[Coords], ndim: int) -> Coords:
    """Positions in all parts, in row-major order."""
    found = np.concatenate([np.empty((0, ndim), dtype=np.int64), *parts])
    return found[np.lexsort(found.T[::-1])] if ndim else found


def _coords_in(array: ShardedArray, first: int, last: int) -> Coords:
    """Positions of the inner chunks in the shards of some ranks, inside the array."""
    grid = array.metadata.grid
    per_shard = np.array(grid.chunks_per_shard, dtype=np.int64)
    counts = [ceil_div(n, c) for n, c in zip(grid.shape, grid.chunks, strict=True)]
    found = [np.empty((0, grid.ndim), dtype=np.int64)]
    for rank in range(first, last):
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
