"""Tasks that write shards from encoded inner chunks that another array has. Nothing is decoded.

The two arrays have the same inner chunks; see :func:`shardwrite.runs.stored_chunks.same_chunks`.
Their shards may differ in shape and form, so that the inner chunks of one shard come from many.
"""

from __future__ import annotations

import errno
import itertools
from collections import OrderedDict
from typing import Any

import numpy as np

from shardwrite.errors import StoreError
from shardwrite.format.placement import Ranks
from shardwrite.grid import Box, Shape, ShardGrid, unravel
from shardwrite.host.stopping import busy
from shardwrite.read.array import ShardedArray
from shardwrite.read.stored_shard import ExistingShard, open_shard
from shardwrite.stores import ObjectWriter, Transaction
from shardwrite.write.commit import commit_shards, in_turns
from shardwrite.write.context import GroupReport, WriteSpec, Written
from shardwrite.write.emitter import Emitter

__all__ = ["copy_group"]

# shards of the other array that a task has open at a time
_MAX_OPEN = 64


def copy_group(
    spec: WriteSpec, other: ShardedArray, group: Box, skip: frozenset[Shape]
) -> GroupReport:
    """Write the shards of a group from the inner chunks of another array.

    Inner chunks that the other array does not store stay empty.

    Parameters
    ----------
    spec : WriteSpec
        Facts about the run.
    other : ShardedArray
        The other array.
    group : Box
        Box of the group.
    skip : frozenset of tuple of int
        Positions of shards in the group that are done already.

    Returns
    -------
    GroupReport
        The shards that are committed.

    Raises
    ------
    CorruptShardError
        If the index of a shard of the other array is not valid.
    StoreError
        If the storage refuses. The error number is ESTALE if the other array has changed in the
        meantime.
    RunEndedError
        If the run has ended, or was taken over.
    """

    def write(transaction: Transaction, index: Shape) -> Written:
        with _Shards(other) as shards:
            return _copy_shard(spec, transaction, index, shards)

    wanted = [index for index in spec.metadata.grid.shards_in(group) if index not in skip]
    with busy(), in_turns(spec, len(wanted), write) as write_in_turn:
        return commit_shards(spec, group, wanted, write_in_turn)


class _Shards:
    """Shards of an array, of which the last few that were asked for are open.

    Parameters
    ----------
    array : ShardedArray
        The array.
    """

    def __init__(self, array: ShardedArray) -> None:
        self.metadata = array.metadata
        self._store = array.store
        self._open: OrderedDict[int, ExistingShard] = OrderedDict()
        self._versions: dict[int, Any] = {}

    def __enter__(self) -> _Shards:
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._open:
            self._open.popitem()[1].__exit__(*exc_info)

    def get(self, number: int) -> ExistingShard | None:
        """The shard of a row-major rank, as it was when it was first asked for.

        Raises
        ------
        StoreError
            With ESTALE, if it has changed since then.
        """
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        index = unravel(number, self.metadata.grid.counts)
        shard = open_shard(self.metadata, self._store, index)
        version = None if shard is None else shard.reader.version
        if shard is not None:
            self._open[number] = shard
        if self._versions.setdefault(number, version) != version:
            key = self.metadata.shard_key(index)
            raise StoreError(f"{key!r} was changed meanwhile", key=key, errno=errno.ESTALE)
        if len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)[1].__exit__(None, None, None)
        return shard


def _copy_shard(
    spec: WriteSpec, transaction: Transaction, index: Shape, shards: _Shards
) -> Written:
    """Write one shard from inner chunks of others."""
    grid = spec.metadata.grid
    numbers, ranks = _origins(grid, index, shards.metadata.grid)
    sizes = np.full(grid.n_chunks_per_shard, -1, dtype=np.int64)
    for number in np.unique(numbers[numbers >= 0]).tolist():
        shard = shards.get(number)
        if shard is not None:
            here = numbers == number
            sizes[here] = shard.stored().nbytes[ranks[here]]
    placement = spec.lay_out(sizes, [np.arange(len(sizes))])

    def write(writer: ObjectWriter, wanted: Ranks) -> None:
        breaks = np.flatnonzero(np.diff(numbers[wanted])) + 1
        for first, last in itertools.pairwise([0, *breaks.tolist(), len(wanted)]):
            shard = shards.get(int(numbers[wanted[first]]))
            if shard is None:
                raise TypeError("an inner chunk that has a size lies in a shard")
            shard.copy_to(writer, ranks[wanted[first:last]], is_same_store=False)

    return Emitter(spec, transaction, index).place(placement, sizes, write)


def _origins(grid: ShardGrid, index: Shape, other: ShardGrid) -> tuple[Ranks, Ranks]:
    """Where another array of the same inner chunks has those of a shard.

    Returns
    -------
    numbers, ranks : numpy.ndarray of int64, shape (n,)
        For each inner chunk of the shard by rank, the row-major rank of the other array's shard and
        the chunk's rank in it. The first is -1 for inner chunks beyond the end of the array.
    """
    n, per_shard = grid.n_chunks_per_shard, grid.chunks_per_shard
    numbers, ranks = np.zeros(n, np.int64), np.zeros(n, np.int64)
    is_inside = np.ones(n, dtype=bool)
    local = np.unravel_index(np.arange(n), per_shard) if per_shard else ()
    for axis, place in enumerate(local):
        chunk = index[axis] * per_shard[axis] + place
        shard, inside = np.divmod(chunk, other.chunks_per_shard[axis])
        numbers = numbers * other.counts[axis] + shard
        ranks = ranks * other.chunks_per_shard[axis] + inside
        is_inside &= chunk * grid.chunks[axis] < grid.shape[axis]
    return np.where(is_inside, numbers, -1), ranks
