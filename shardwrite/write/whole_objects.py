"""Tasks that copy the objects of another array as they are, each as a whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwrite.errors import CorruptShardError
from shardwrite.grid import Box, Shape, ravel, unravel
from shardwrite.journal.consuming import Listed
from shardwrite.read.array import ShardedArray
from shardwrite.read.reread import read_again
from shardwrite.read.stored_shard import open_shard
from shardwrite.stores import COPIED_NBYTES, ObjectReader, Transaction
from shardwrite.write.commit import commit_shards, in_turns
from shardwrite.write.context import GroupReport, WriteSpec, Written
from shardwrite.write.copying import check_missing, sizes_in
from shardwrite.write.emitter import Emitter


def copy_objects(
    spec: WriteSpec,
    source: ShardedArray,
    listed: Listed | None,
    group: Box,
    skip: frozenset[Shape],
) -> GroupReport:
    """Copy the objects of a group byte by byte. Objects that the source lacks stay missing.

    The index of each shard is checked before the shard is copied. Nothing is decoded.

    - `spec`: facts about the run. Its array has the same document as the source.
    - `listed`: objects that the source must have.
    - Raises CorruptShardError if the index of a shard is not valid, or an inner chunk has a size
      that it cannot have.
    - Raises StoreError if the storage refuses. The error number is ESTALE if the source has changed
      meanwhile.
    - Raises RunEndedError if the run has ended, or was taken over.
    """

    def write(transaction: Transaction, index: Shape) -> Written:
        shard = open_shard(source.metadata, source.store, index)
        if shard is None:
            check_missing(listed, source.metadata, index, ravel(index, spec.metadata.grid.counts))
            return Emitter(spec, transaction, index).nothing()
        with shard:
            sizes_in(source.metadata, shard)
            emitter = Emitter(spec, transaction, index, shard.check_current)
            return emitter.whole(shard.reader, shard.index)

    wanted = [index for index in spec.metadata.grid.shards_in(group) if index not in skip]
    with spec.at_work(), in_turns(spec, len(wanted), write) as write_in_turn:
        return commit_shards(spec, group, wanted, write_in_turn)


def differing_objects(
    array: ShardedArray, source: ShardedArray, ranks: npt.NDArray[np.int64]
) -> dict[int, str]:
    """Compare some objects of an array with those of another, byte by byte."""
    found = {}
    metadata = array.metadata
    for rank in ranks.tolist():
        key = metadata.shard_key(unravel(rank, metadata.grid.counts))
        # What was copied may have come from what this machine has kept of the source.
        if _differs(array.store.open(key), source.store.open_again(key)):
            message = "is not the same as in the source"
            read_again(source.store, key, CorruptShardError(message, key=key))
            if _differs(array.store.open_again(key), source.store.open_again(key)):
                found[rank] = message
    return found


def _differs(ours: ObjectReader | None, theirs: ObjectReader | None) -> bool:
    """Whether two open objects, which are closed then, do not have the same bytes."""
    if ours is None or theirs is None:
        for reader in (ours, theirs):
            if reader is not None:
                reader.__exit__(None, None, None)
        return ours is not theirs
    with ours, theirs:
        return not _is_same(ours, theirs)


def _is_same(one: ObjectReader, other: ObjectReader) -> bool:
    """Whether two objects have the same bytes."""
    return one.nbytes == other.nbytes and all(
        one.read(start, nbytes) == other.read(start, nbytes)
        for start in range(0, one.nbytes, COPIED_NBYTES)
        for nbytes in (min(COPIED_NBYTES, one.nbytes - start),)
    )
