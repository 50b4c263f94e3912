"""Conversions of arrays that another program still writes: what will not change is converted.

The program is taken to write one step along an axis after the other, a step being one layer of
chunks (or of shards) of the array. A step counts as complete if all of its objects are there and
one of a later step is, too. A chunk that is there may still be in the making.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwrite.grid import ShardGrid
from shardwrite.read.array import ShardedArray
from shardwrite.runs.consuming import ranks_there


def settled_shards(source: ShardedArray, grid: ShardGrid, axis: int) -> npt.NDArray[np.bool_]:
    """For each shard of a new array, whether no chunk can come any more that belongs into it.

    - `source`: the array that is still written. It is listed once.
    """
    of_source = source.metadata.grid
    others = tuple(other for other in range(of_source.ndim) if other != axis)
    there = ranks_there(source).reshape(of_source.counts)
    is_complete = np.atleast_1d(there.all(axis=others))
    begun = np.flatnonzero(there.any(axis=others))
    n_before_last = int(begun[-1]) if len(begun) else 0
    complete = np.flatnonzero(is_complete[:n_before_last])
    end = (int(complete[-1]) + 1) * of_source.shards[axis] if len(complete) else 0
    ends = np.minimum((np.arange(grid.counts[axis]) + 1) * grid.shards[axis], grid.shape[axis])
    shape = [1] * grid.ndim
    shape[axis] = grid.counts[axis]
    return np.broadcast_to((ends <= end).reshape(shape), grid.counts).ravel()
