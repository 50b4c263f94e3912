"""Shards put together: encoded units, and what stays of the shard that is there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwrite.codecs.stages import Buffer
from shardwrite.encode.unit import ranks_in_shard, units_of
from shardwrite.format.index import ShardIndex
from shardwrite.format.placement import KEEP, Placement, Ranks, Revision, Stored, place
from shardwrite.grid import Box, Shape, boundaries
from shardwrite.journal import Change, Claim, change_in_place
from shardwrite.read.stored_shard import ExistingShard
from shardwrite.stores import ObjectWriter, Transaction
from shardwrite.write.commit import EMPTY_SHARD, WriteSpec, Written
from shardwrite.write.spool import EncodedBlock, Payloads

__all__ = ["EncodedUnit", "OpenedShard", "assemble", "nothing", "revise", "rewrite", "split_block"]


@dataclass(frozen=True, slots=True)
class EncodedUnit:
    """A unit's share of an encoded block.

    Attributes
    ----------
    ranks : numpy.ndarray of int64, shape (n,)
        Row-major ranks of its inner chunks in the shard.
    sizes : numpy.ndarray of int64, shape (n,)
        Their encoded sizes; negative where empty.
    starts : numpy.ndarray of int64, shape (n,)
        Where each begins in the block's payload.
    block : int
        Number of the block.
    """

    ranks: Ranks
    sizes: Ranks
    starts: Ranks
    block: int


@dataclass(frozen=True, slots=True)
class OpenedShard:
    """A shard that is to be updated.

    Attributes
    ----------
    old : ExistingShard, optional
        The shard as it is; None where there is no object.
    claim : Claim, optional
        The right to change it where it stands, if that is what the strategy does.
    """

    old: ExistingShard | None
    claim: Claim | None


def split_block(
    spec: WriteSpec,
    box: Box,
    block: EncodedBlock,
    number: int,
    units: dict[Shape, list[EncodedUnit]],
    skip: frozenset[Shape],
) -> None:
    """Add the units of a block to their shards."""
    grid = spec.metadata.grid
    present = np.maximum(block.chunk_nbytes, 0)
    starts = np.cumsum(present) - present
    parts = [(index, ranks_in_shard(grid, index, unit)) for index, unit in units_of(grid, spec.touched(box)) if index not in skip]
    edges = boundaries([len(ranks) for _, ranks in parts])
    for (index, ranks), a, b in zip(parts, edges[:-1], edges[1:], strict=True):
        units.setdefault(index, []).append(EncodedUnit(ranks, block.chunk_nbytes[a:b], starts[a:b], number))


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Encoded inner chunks of one shard, by rank: sizes, and where the bytes lie."""

    sizes: Ranks
    starts: Ranks
    block: Ranks
    payloads: Payloads

    def write(self, writer: ObjectWriter, ranks: Ranks) -> None:
        """Append inner chunks in sequence."""
        if not len(ranks):
            return
        for buffers in self.payloads.read(self.block[ranks], self.starts[ranks], self.sizes[ranks]):
            writer.write(buffers)

    def read(self, rank: int) -> Buffer:
        """An inner chunk; not to be kept longer than the payloads."""
        parts = list(itertools.chain.from_iterable(self.payloads.read(self.block[[rank]], self.starts[[rank]], self.sizes[[rank]])))
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _chunks_of(spec: WriteSpec, units: Sequence[EncodedUnit], payloads: Payloads, untouched: int) -> _Chunks:
    n = spec.metadata.grid.n_chunks_per_shard
    sizes, starts, block = np.full(n, untouched, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    for unit in units:
        sizes[unit.ranks], starts[unit.ranks], block[unit.ranks] = unit.sizes, unit.starts, unit.block
    return _Chunks(sizes, starts, block, payloads)


def assemble(spec: WriteSpec, transaction: Transaction, index: Shape, units: Sequence[EncodedUnit], payloads: Payloads) -> Written:
    """Write a new shard from its units.

    Parameters
    ----------
    spec : WriteSpec
        The run.
    transaction : Transaction
        Where to.
    index : tuple of int
        Position of the shard.
    units : sequence of EncodedUnit
        What it is made of.
    payloads : Payloads
        Their bytes.
    """
    chunks = _chunks_of(spec, units, payloads, -1)
    sequence = spec.strategy.sequence(spec.metadata.grid.chunks_per_shard, [unit.ranks for unit in units])
    base = spec.metadata.index_codec.base_nbytes
    fixed_nbytes = spec.metadata.pipeline.encoded_nbytes if spec.exists else None
    placement = spec.strategy.lay_out(chunks.sizes, sequence, base, fixed_nbytes)
    return _write_new(spec, transaction, index, placement, chunks.sizes, chunks.write)


def _write_new(
    spec: WriteSpec,
    transaction: Transaction,
    index: Shape,
    placement: Placement,
    nbytes: Ranks,
    write: Callable[[ObjectWriter, Ranks], None],
    guard: Callable[[], None] | None = None,
) -> Written:
    """A new object: inner chunks of these sizes, by rank, where they are placed, and the index; `write` appends some of them."""
    codec, sequence = spec.metadata.index_codec, placement.sequence
    if not len(sequence):
        return nothing(spec, transaction, index, guard)
    table = ShardIndex.build(placement.offsets, nbytes)
    encoded_index = codec.encode(table)
    writer = transaction.create(spec.metadata.shard_key(index))
    if codec.base_nbytes:
        writer.write([encoded_index])
    begins = placement.offsets[sequence]
    ends = np.concatenate([[codec.base_nbytes], begins + nbytes[sequence]])
    free = np.append(begins, codec.base_nbytes + placement.data_nbytes) - ends
    breaks = [0, *(np.flatnonzero(free[1:-1]) + 1).tolist(), len(sequence)]
    for first, last in itertools.pairwise(breaks):
        if free[first]:
            writer.skip(int(free[first]))
        write(writer, sequence[first:last])
    if free[-1]:
        writer.skip(int(free[-1]))
    if not codec.base_nbytes:
        writer.write([encoded_index])
    writer.finish(guard)
    return Written(placement.data_nbytes + len(encoded_index), table.checksum, len(sequence))


def nothing(spec: WriteSpec, transaction: Transaction, index: Shape, guard: Callable[[], None] | None = None) -> Written:
    """A shard that is to hold nothing: where an array is updated, its object goes."""
    if spec.exists:
        transaction.remove(spec.metadata.shard_key(index), guard)
    return EMPTY_SHARD


def revise(
    spec: WriteSpec,
    transaction: Transaction,
    index: Shape,
    units: Sequence[EncodedUnit],
    payloads: Payloads,
    there: OpenedShard,
) -> Written:
    """Write the inner chunks of some units into a shard, and leave the others as they are, byte for byte.

    Parameters
    ----------
    spec, transaction, index, units, payloads
        See :func:`assemble`.
    there : OpenedShard
        The shard as it is.
    """
    old = there.old
    if old is None:
        return assemble(spec, transaction, index, units, payloads)
    metadata, base = spec.metadata, spec.metadata.index_codec.base_nbytes
    chunks = _chunks_of(spec, units, payloads, KEEP)
    stored = old.stored()
    if not ((chunks.sizes >= 0) | ((chunks.sizes == -1) & (stored.nbytes >= 0))).any():  # what was empty stays so
        return Written(stored.total_nbytes, old.index.checksum, int((stored.nbytes >= 0).sum()))
    sequence = spec.strategy.sequence(metadata.grid.chunks_per_shard, [unit.ranks for unit in units])
    revision = spec.strategy.revise(stored, chunks.sizes, sequence, base)
    if not (revision.nbytes >= 0).any():
        transaction.remove(metadata.shard_key(index), old.check_current)
        return EMPTY_SHARD
    if revision.how == "rewrite":
        placement = Placement(revision.offsets, revision.sequence, revision.end - base)
        return _write_new(spec, transaction, index, placement, revision.nbytes, _mixed(chunks, old), old.check_current)
    table = ShardIndex.build(revision.offsets, revision.nbytes)
    encoded_index = metadata.index_codec.encode(table)
    n_chunks = int((revision.nbytes >= 0).sum())
    if revision.how == "in place":
        place_of_index = None if _stays(table, revision, stored) else 0 if base else revision.end
        nbytes = _change(spec, there, revision, chunks, (place_of_index, encoded_index))
        transaction.committed.add(old.key)
        return Written(nbytes, table.checksum, n_chunks)
    writer = transaction.create(metadata.shard_key(index))
    writer.copy(old.reader, 0, revision.kept_nbytes)
    chunks.write(writer, revision.sequence)
    if base:
        writer.write_at(0, encoded_index)
    else:
        writer.write([encoded_index])
    writer.finish(old.check_current)
    return Written(revision.end + (0 if base else len(encoded_index)), table.checksum, n_chunks)


def rewrite(spec: WriteSpec, transaction: Transaction, index: Shape, old: ExistingShard) -> Written:
    """Write a shard anew, without what nobody refers to; its inner chunks are copied as they are.

    Parameters
    ----------
    spec, transaction, index
        See :func:`assemble`.
    old : ExistingShard
        The shard as it is.
    """
    metadata, stored = spec.metadata, old.stored()
    sequence = spec.strategy.sequence(metadata.grid.chunks_per_shard, [])
    placement = place(stored.nbytes, sequence, metadata.index_codec.base_nbytes, stored)
    return _write_new(spec, transaction, index, placement, stored.nbytes, old.copy_to, old.check_current)


def _stays(table: ShardIndex, revision: Revision, stored: Stored) -> bool:
    """Whether the index is the same as before: chunks of a fixed size take each other's places."""
    return revision.end <= stored.total_nbytes and (table.table == ShardIndex.build(stored.offsets, stored.nbytes).table).all()


def _change(spec: WriteSpec, there: OpenedShard, revision: Revision, chunks: _Chunks, index: tuple[int | None, Buffer]) -> int:
    """Write into the shard itself; gives its size."""
    old, claim = there.old, there.claim
    if old is None or claim is None:
        raise TypeError("a shard is changed in place under a claim")
    ranks, old_nbytes = revision.sequence.tolist(), old.reader.nbytes
    was_there = old.stored().nbytes >= 0
    ends = revision.offsets + np.maximum(revision.nbytes, 0)
    spans = [(int(revision.offsets[rank]), int(ends[rank])) for rank in ranks if was_there[rank]]
    writes: Iterable[tuple[int, Buffer]] = ((int(revision.offsets[rank]), chunks.read(rank)) for rank in ranks)
    if index[0] is not None:
        end = index[0] + len(index[1])
        spans.append((index[0], end))
        writes = itertools.chain(writes, [(index[0], index[1])])
    # Where an empty inner chunk goes, nothing stands that the old index refers to.
    saved = [(a, old.reader.read(a, min(b, old_nbytes) - a)) for a, b in spans if a < old_nbytes]
    change = Change(old.key, old_nbytes, writes, saved)
    change_in_place(claim, spec.store, change, spec.durability, old.reader.version, spec.check_current)
    return max([old_nbytes, *(b for _, b in spans), *(int(ends[rank]) for rank in ranks)])


def _mixed(chunks: _Chunks, old: ExistingShard) -> Callable[[ObjectWriter, Ranks], None]:
    """Writes inner chunks in sequence, each from where it is: a unit's payload, or the old shard."""

    def write(writer: ObjectWriter, ranks: Ranks) -> None:
        is_old = chunks.sizes[ranks] == KEEP
        breaks = [0, *(np.flatnonzero(is_old[1:] != is_old[:-1]) + 1).tolist(), len(ranks)]
        for first, last in itertools.pairwise(breaks):
            (old.copy_to if is_old[first] else chunks.write)(writer, ranks[first:last])

    return write
