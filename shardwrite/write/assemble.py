"""Assembly of shards from encoded units and from inner chunks that the old shard keeps."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Buffer
from shardwrite.encode.unit import ranks_in_shard, units_of
from shardwrite.format.frame import framing_of
from shardwrite.format.index import Seal, ShardIndex
from shardwrite.format.order import KEEP, Placement, Ranks, Revision, own_ranges, place
from shardwrite.grid import Box, Shape, boundaries
from shardwrite.journal.lock import Claim
from shardwrite.journal.undo import Change, OldBytes, change_in_place
from shardwrite.read.signatures import refuse_change
from shardwrite.read.stored_shard import ExistingShard
from shardwrite.stores.base import ObjectWriter, Transaction
from shardwrite.write.context import WriteSpec, Written
from shardwrite.write.emitter import Emitter, WriteChunks
from shardwrite.write.spool import EncodedBlock, PartFile, Payload, Payloads


@dataclass(frozen=True, slots=True)
class EncodedUnit:
    """The share of one unit in an encoded block."""

    ranks: Ranks  # row-major ranks of its inner chunks in the shard
    sizes: Ranks  # encoded size of each inner chunk in bytes; negative where it is empty
    starts: Ranks  # offset of each inner chunk in the block's payload, in bytes
    block: int  # number of the block, which is also the position of its payload in `Payloads`


@dataclass(frozen=True, slots=True)
class OpenedShard:
    """A shard that is opened for an update."""

    old: ExistingShard | None  # the shard as it is. None if it has no object.
    claim: Claim | None  # the right to change the shard, if the strategy works in place
    is_missing: bool = False  # whether the shard was looked for and has no object


def split_block(
    spec: WriteSpec,
    box: Box,
    block: EncodedBlock,
    number: int,
    units: dict[Shape, list[EncodedUnit]],
    skip: frozenset[Shape],
) -> None:
    """Split an encoded block into its units.

    - `units`: units by the position of their shard. The block's units are added here.
    - `skip`: positions of shards whose units the block does not hold.
    """
    grid = spec.metadata.grid
    present = np.maximum(block.chunk_nbytes, 0)
    starts = np.cumsum(present) - present
    parts = [
        (index, ranks_in_shard(grid, index, unit))
        for index, unit in units_of(grid, spec.touched(box))
        if index not in skip
    ]
    edges = boundaries([len(ranks) for _, ranks in parts])
    for (index, ranks), a, b in zip(parts, edges[:-1], edges[1:], strict=True):
        units.setdefault(index, []).append(
            EncodedUnit(ranks, block.chunk_nbytes[a:b], starts[a:b], number)
        )


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Encoded inner chunks of one shard, by rank."""

    # Encoded size in bytes. It is -1 for an inner chunk that is empty, and `KEEP` for one that an
    # update does not touch.
    sizes: Ranks
    starts: Ranks  # offset in the payload of the block, in bytes
    block: Ranks  # number of the block
    payloads: Payloads  # the bytes of all blocks

    def write(self, writer: ObjectWriter, ranks: Ranks) -> None:
        """Append inner chunks in the given sequence."""
        if not len(ranks):
            return
        for buffers in self.payloads.read(self.block[ranks], self.starts[ranks], self.sizes[ranks]):
            writer.write(buffers)

    def read(self, rank: int) -> Buffer:
        """Encoded bytes of an inner chunk.

        They may be a view of a payload, and are valid only as long as the payloads are open.
        """
        pieces = self.payloads.read(self.block[[rank]], self.starts[[rank]], self.sizes[[rank]])
        parts = list(itertools.chain.from_iterable(pieces))
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _chunks_of(
    spec: WriteSpec, units: Sequence[EncodedUnit], payloads: Payloads, untouched: int
) -> _Chunks:
    """The inner chunks of some units; those in no unit have the size `untouched`."""
    n = spec.metadata.grid.n_chunks_per_shard
    sizes, starts, block = np.full(n, untouched, np.int64), *np.zeros((2, n), np.int64)
    for unit in units:
        sizes[unit.ranks], starts[unit.ranks] = unit.sizes, unit.starts
        block[unit.ranks] = unit.block
    return _Chunks(sizes, starts, block, payloads)


def assemble(
    spec: WriteSpec,
    transaction: Transaction,
    index: Shape,
    units: Sequence[EncodedUnit],
    payloads: Payloads,
    *,
    is_missing: bool = False,
) -> Written:
    """Write a new shard from its units.

    Inner chunks that are in none of the units are empty.

    - `payloads`: encoded bytes of the units.
    - `is_missing`: whether the shard was looked for and has no object. Then no other may appear
      meanwhile.
    - Raises RunEndedError if the run has ended, or was taken over.
    """
    chunks = _chunks_of(spec, units, payloads, -1)
    placement = spec.lay_out(chunks.sizes, [unit.ranks for unit in units])
    emitter = Emitter(spec, transaction, index, replaced=(None,) if is_missing else None)
    return emitter.place(placement, chunks.sizes, chunks.write)


def revise(
    spec: WriteSpec,
    transaction: Transaction,
    index: Shape,
    units: Sequence[EncodedUnit],
    payloads: Payloads,
    there: OpenedShard,
) -> Written:
    """Write the inner chunks of some units into an existing shard.

    All other inner chunks keep their encoded bytes. A shard without an object is written as a new
    one.

    - Raises StoreError if the storage refuses. The error number is ESTALE if another writer has
      changed the shard in the meantime.
    - Raises RunEndedError if the run has ended, or was taken over.
    """
    old = there.old
    if old is None:
        return assemble(spec, transaction, index, units, payloads, is_missing=there.is_missing)
    metadata, base = spec.metadata, spec.metadata.index_codec.base_nbytes
    replaced = (old.reader.version,)
    emitter = Emitter(spec, transaction, index, old.check_current, replaced, old.reader)
    chunks = _chunks_of(spec, units, payloads, KEEP)
    stored = old.stored()
    # Nothing is written if the update only leaves inner chunks empty that are empty already. But
    # the frame of a shard at the end grows with the array.
    is_changed = (chunks.sizes >= 0) | ((chunks.sizes == -1) & (stored.nbytes >= 0))
    if not is_changed.any() and framing_of(spec.strategy) is None:
        return Written(stored.total_nbytes, old.index.checksum, old.index.n_present)
    sequence = spec.strategy.sequence(
        metadata.grid.chunks_per_shard, [unit.ranks for unit in units]
    )
    own, shared = own_ranges(stored, chunks.sizes)
    revision = spec.strategy.revise(own, chunks.sizes, sequence, base)
    if not (revision.nbytes >= 0).any():
        return emitter.nothing()
    if revision.how == "rewrite":
        placement = Placement(revision.offsets, revision.sequence, revision.end - base)
        return emitter.place(placement, revision.nbytes, _mixed(chunks, old), shared)
    revision = replace(
        revision,
        offsets=shared.entered(revision.offsets),
        nbytes=shared.entered(revision.nbytes),
    )
    if revision.how == "append":
        return emitter.extend(old.reader, revision, chunks.write)
    seal = metadata.index_codec.seal(ShardIndex.build(revision.offsets, revision.nbytes))
    return _change(emitter, there, revision, chunks, seal)


def revise_from(
    spec: WriteSpec,
    transaction: Transaction,
    index: Shape,
    unit: EncodedUnit,
    payload: Payload,
    there: OpenedShard,
) -> Written:
    """Write one unit into a shard, as `revise` does, and remove the part file of its payload."""
    result = payload.result()
    with Payloads([result]) as payloads:
        written = revise(spec, transaction, index, [unit], payloads, there)
        if isinstance(result, PartFile):
            Path(result.path).unlink(missing_ok=True)
        return written


def rewrite(spec: WriteSpec, transaction: Transaction, index: Shape, old: ExistingShard) -> Written:
    """Rewrite a shard from its own inner chunks, without the bytes that its index does not use.

    The encoded inner chunks are copied unchanged.

    - Raises StoreError if the storage refuses. The error number is ESTALE if another writer has
      changed the shard in the meantime.
    - Raises RunEndedError if the run has ended, or was taken over.
    """
    metadata, whole = spec.metadata, old.stored()
    stored, shared = own_ranges(whole, np.full(len(whole.nbytes), KEEP, dtype=np.int64))
    sequence = spec.strategy.sequence(metadata.grid.chunks_per_shard, [])
    placement = place(stored.nbytes, sequence, metadata.index_codec.base_nbytes, stored)
    replaced = (old.reader.version,)
    emitter = Emitter(spec, transaction, index, old.check_current, replaced, old.reader)
    return emitter.place(placement, stored.nbytes, old.copy_to, shared)


def _change(
    emitter: Emitter, there: OpenedShard, revision: Revision, chunks: _Chunks, seal: Seal
) -> Written:
    """Change a shard in place, under its claim.

    The old bytes that the change overwrites are saved in a record first; see `journal.undo`. Then
    the new inner chunks are written, and the index if it changes. A file that has other names is
    replaced instead by one with the same change, since the other names are not this array's.
    """
    spec, old, claim = emitter.spec, there.old, there.claim
    if old is None or claim is None:
        raise TypeError("a shard is changed in place under a claim")
    refuse_change(spec.metadata, spec.strategy, old.key, old.reader)
    ranks, old_nbytes = revision.sequence.tolist(), old.reader.nbytes
    was_there = ~old.index.is_empty
    ends = revision.offsets + np.maximum(revision.nbytes, 0)
    written_to = [(int(revision.offsets[rank]), int(ends[rank])) for rank in ranks]
    spans = [span for rank, span in zip(ranks, written_to, strict=True) if was_there[rank]]
    writes: Iterable[tuple[int, Buffer]] = (
        (int(revision.offsets[rank]), chunks.read(rank)) for rank in ranks
    )
    # New inner chunks of a fixed size may take the places of the old ones.
    is_same_index = (seal.index.table == old.index.table).all()
    if not is_same_index or revision.end > old_nbytes:
        offset = 0 if seal.prefix else revision.end
        data = seal.prefix or seal.suffix
        spans.append((offset, offset + len(data)))
        written_to.append(spans[-1])
        writes = itertools.chain(writes, [(offset, data)])
    nbytes = max([old_nbytes, *(b for _, b in spans), *(int(ends[rank]) for rank in ranks)])
    written = Written(nbytes, seal.index.checksum, seal.index.n_present)
    if old.reader.has_other_names():
        return emitter.changed(old.reader, writes, written)
    # `spans` has no inner chunks that were empty: the old index refers to nothing where they go.
    saved = OldBytes(old.reader, [(a, min(b, old_nbytes)) for a, b in spans if a < old_nbytes])
    change = Change(old.key, old_nbytes, writes, saved, written_to)
    change_in_place(
        claim, spec.store, change, spec.durability, old.reader.version, spec.check_current
    )
    emitter.transaction.committed.add(old.key)
    return written


def _mixed(chunks: _Chunks, old: ExistingShard) -> WriteChunks:
    """Function that appends inner chunks, each from its unit's payload or from the old shard."""

    def write(writer: ObjectWriter, ranks: Ranks) -> None:
        is_old = chunks.sizes[ranks] == KEEP
        breaks = [0, *(np.flatnonzero(is_old[1:] != is_old[:-1]) + 1).tolist(), len(ranks)]
        for first, last in itertools.pairwise(breaks):
            (old.copy_to if is_old[first] else chunks.write)(writer, ranks[first:last])

    return write
