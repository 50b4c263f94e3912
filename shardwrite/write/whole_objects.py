"""Tasks that copy the objects of another array as they are, each as a whole."""

from __future__ import annotations

from shardwrite.grid import Box, Shape
from shardwrite.read.array import ShardedArray
from shardwrite.read.stored_shard import open_shard
from shardwrite.stores import Transaction
from shardwrite.write.commit import commit_shards, in_turns
from shardwrite.write.context import GroupReport, WriteSpec, Written
from shardwrite.write.copying import sizes_in
from shardwrite.write.emitter import Emitter

__all__ = ["copy_objects"]


def copy_objects(
    spec: WriteSpec, source: ShardedArray, group: Box, skip: frozenset[Shape]
) -> GroupReport:
    """Copy the objects of a group byte by byte. Objects that the source lacks stay missing.

    The index of each shard is checked before the shard is copied. Nothing is decoded.

    Parameters
    ----------
    spec : WriteSpec
        Facts about the run. Its array has the same document as the source.
    source : ShardedArray
        The array whose objects are copied.
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
        If the index of a shard is not valid, or an inner chunk has a size that it cannot have.
    StoreError
        If the storage refuses. The error number is ESTALE if the source has changed meanwhile.
    RunEndedError
        If the run has ended, or was taken over.
    """

    def write(transaction: Transaction, index: Shape) -> Written:
        shard = open_shard(source.metadata, source.store, index)
        if shard is None:
            return Emitter(spec, transaction, index).nothing()
        with shard:
            sizes_in(source.metadata, shard)
            emitter = Emitter(spec, transaction, index, shard.check_current)
            return emitter.whole(shard.reader, shard.index)

    wanted = [index for index in spec.metadata.grid.shards_in(group) if index not in skip]
    with spec.at_work(), in_turns(spec, len(wanted), write) as write_in_turn:
        return commit_shards(spec, group, wanted, write_in_turn)
