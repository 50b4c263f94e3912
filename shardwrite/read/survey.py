"""Survey of an array before its conversion: its objects, their sizes and chunks.

The array is listed once. Sizes and chunks are those of all objects, or of a sample of a large
array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwrite.engines import Engine
from shardwrite.errors import CorruptShardError
from shardwrite.grid import ShardGrid, ravel
from shardwrite.plan.limits import check_whole
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import inspect_shards

_MOST_LOOKED_AT = 20_000


@dataclass(frozen=True, slots=True)
class Survey:
    """What an array consists of."""

    # Row-major ranks of the shards that have an object. None if any may have one.
    ranks: npt.NDArray[np.int64] | None
    n_chunks: int  # number of inner chunks that hold data
    nbytes: int  # size of all objects, in bytes
    is_estimate: bool  # whether the last two are estimated from a sample
    # Number of objects, if these hold other chunks than the shards of the array
    n_files: int | None = None

    @property
    def n_objects(self) -> int:
        """Number of objects."""
        if self.n_files is not None:
            return self.n_files
        return 0 if self.ranks is None else len(self.ranks)

    def n_objects_in(self, source: ShardGrid, target: ShardGrid, *, is_sharded: bool) -> int:
        """Number of objects that the same chunks make in another grid, at most."""
        if not is_sharded and source.chunks == target.chunks and not self.is_estimate:
            return self.n_chunks
        if self.ranks is None:
            return target.n_shards
        if not len(self.ranks):
            return 0
        if not source.ndim:
            return 1
        index = np.unravel_index(self.ranks, source.counts)
        firsts, n_each = [], np.ones(len(self.ranks), dtype=np.int64)
        for at, s, t, n in zip(index, source.shards, target.shards, source.shape, strict=True):
            first = at * s // t
            last = (np.minimum((at + 1) * s, n) - 1) // t
            firsts.append(first)
            n_each *= last - first + 1
        if (n_each == 1).all():
            return len(np.unique(np.ravel_multi_index(firsts, target.counts)))
        return int(min(n_each.sum(), target.n_shards))


def ranks_of_objects(array: ShardedArray, label: str) -> npt.NDArray[np.int64]:
    """List an array, and return the row-major ranks of the shards that have an object."""
    metadata = array.metadata
    check_whole(metadata.grid, label)
    found = (metadata.shard_index(key) for key in array.store.list_keys())
    counts = metadata.grid.counts
    return np.array(
        sorted(ravel(index, counts) for index in found if index is not None), dtype=np.int64
    )


def survey(array: ShardedArray, engine: Engine, label: str) -> Survey:
    """List an array, and look at its objects.

    - Raises CorruptShardError if an object that was looked at is bad.
    """
    ranks = ranks_of_objects(array, label)
    looked_at = ranks
    if len(ranks) > _MOST_LOOKED_AT:
        looked_at = ranks[np.linspace(0, len(ranks) - 1, _MOST_LOOKED_AT).astype(np.int64)]
    table = inspect_shards(engine, array, looked_at, deep=False)
    table.refuse_unread(label)
    if table.problems:
        raise CorruptShardError(
            f"{len(table.problems)} shards of {label} are bad: {table.problems[0][1]}"
        )
    share = len(ranks) / len(looked_at) if len(looked_at) else 1.0
    return Survey(
        ranks,
        round(int(table.n_chunks.sum()) * share),
        round(int(table.stored_nbytes.sum()) * share),
        share > 1,
    )
