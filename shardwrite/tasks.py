"""What a dask task does: encode the units of a block, commit the shards of a group, or both at once.

A task is called with whole arrays and gives back numbers, or encoded bytes on their way to a commit. It
may run twice, or beside its own duplicate: temporary names differ by attempt, and the bytes are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.commit import EMPTY_SHARD, GroupReport, WriteSpec, Written, commit_shards, retried
from shardwrite.errors import ShardwriteError, SourceError
from shardwrite.grid import Box, Shape, boundaries
from shardwrite.index import ShardIndex
from shardwrite.metadata import ArrayMetadata
from shardwrite.payload import EncodedBlock, PartFile, Payload, Payloads
from shardwrite.shard import Pieces, check_block, encode_unit, ranks_in_shard, units_of
from shardwrite.stopping import busy
from shardwrite.stores import TEMPORARY_SUFFIX, Transaction
from shardwrite.strategies import place

__all__ = ["SourcePieces", "commit_group", "encode_block", "write_group"]


@dataclass(frozen=True, slots=True)
class SourcePieces:
    """What a task takes from the source.

    Attributes
    ----------
    box : Box
        What the task writes.
    pieces : tuple of Box
        Where its source arrays lie.
    skip : frozenset of tuple of int
        Positions of shards in the box that are done already.
    """

    box: Box
    pieces: tuple[Box, ...]
    skip: frozenset[Shape] = frozenset()

    def load(self, arrays: Sequence[Any], dtype: np.dtype[Any]) -> Pieces:
        """The arrays, checked against what dask declared."""
        checked = [check_block(array, box, dtype) for array, box in zip(arrays, self.pieces, strict=True)]
        return Pieces([box.start for box in self.pieces], checked)


def write_group(spec: WriteSpec, source: SourcePieces, arrays: Sequence[Any]) -> GroupReport:
    """Encode and commit the shards of a group, streaming: no encoded shard is ever held.

    Parameters
    ----------
    spec : WriteSpec
        The run.
    source : SourcePieces
        The group, and where the arrays lie.
    arrays : sequence of numpy.ndarray
        The source's pieces.
    """
    with busy():
        pieces = source.load(arrays, spec.source_dtype)
        units = {index: unit for index, unit in units_of(spec.metadata.grid, source.box) if index not in source.skip}

        def write(transaction: Transaction, index: Shape) -> Written:
            return _stream_shard(spec, transaction, index, units[index], pieces)

        return commit_shards(spec, source.box, list(units), write)


def _stream_shard(spec: WriteSpec, transaction: Transaction, index: Shape, unit: Box, pieces: Pieces) -> Written:
    """Encode one shard into the store."""
    metadata, order = spec.metadata, spec.strategy.streaming_order
    base = metadata.index_codec.encoded_nbytes if metadata.index_codec.location == "start" else 0
    in_shard = ranks_in_shard(metadata.grid, index, unit)
    offsets = np.zeros(metadata.grid.n_chunks_per_shard, dtype=np.int64)
    sizes = np.full(metadata.grid.n_chunks_per_shard, -1, dtype=np.int64)
    writer, end, n_present, table, encoded_index = None, base, 0, None, b""
    for batch in _encoded(spec, unit, pieces, order):
        if writer is None:
            writer = transaction.create(metadata.shard_key(index))
            if base:
                writer.write([bytes(base)])
        ranks = in_shard[batch.ranks]
        ends = end + np.cumsum(batch.nbytes)
        offsets[ranks], sizes[ranks] = ends - batch.nbytes, batch.nbytes
        end, n_present = int(ends[-1]), n_present + len(ranks)
        if batch.is_last and not base:  # one call less for shards of one batch
            table = ShardIndex.build(offsets, sizes)
            encoded_index = metadata.index_codec.encode(table)
            writer.write([*batch.buffers, encoded_index])
        else:
            writer.write(batch.buffers)
    if writer is None:
        return _leave_empty(spec, transaction, index)
    if table is None:
        table = ShardIndex.build(offsets, sizes)
        encoded_index = metadata.index_codec.encode(table)
        if base:
            writer.write_at(0, encoded_index)
        else:
            writer.write([encoded_index])
    writer.finish()
    return Written(end - base + len(encoded_index), table.checksum, n_present)


def _leave_empty(spec: WriteSpec, transaction: Transaction, index: Shape) -> Written:
    """A shard of the fill value only has no object."""
    if spec.in_place:
        transaction.remove(spec.metadata.shard_key(index))
    return EMPTY_SHARD


def _encoded(spec: WriteSpec, unit: Box, pieces: Pieces, order: str) -> Iterator[Any]:
    """Batches of a unit; what the source's values make a codec raise is told with the region."""
    batches = encode_unit(
        spec.metadata, unit, pieces, order=order, batch_nbytes=spec.batch_nbytes, write_empty_chunks=spec.write_empty_chunks
    )
    try:
        yield from batches
    except (TypeError, ValueError) as error:
        if isinstance(error, ShardwriteError):
            raise
        raise SourceError(f"cannot be encoded as {spec.metadata.dtype}: {error}", region=unit.bounds) from error


def encode_block(spec: WriteSpec, source: SourcePieces, arrays: Sequence[Any]) -> EncodedBlock:
    """Encode a block's units, to be committed by another task.

    Parameters
    ----------
    spec : WriteSpec
        The run.
    source : SourcePieces
        The block, and where the arrays lie.
    arrays : sequence of numpy.ndarray
        The source's pieces.
    """
    with busy():
        pieces = source.load(arrays, spec.source_dtype)
        return retried(lambda: _encode_units(spec, source, pieces))


def _encode_units(spec: WriteSpec, source: SourcePieces, pieces: Pieces) -> EncodedBlock:
    """One attempt."""
    metadata = spec.metadata
    sizes = [np.empty(0, dtype=np.int64)]
    path = Path(spec.parts) / f"{spec.attempt()}{TEMPORARY_SUFFIX}"
    with Payload(path, spec.spool_ratio * source.box.size * metadata.itemsize) as payload:
        for index, unit in units_of(metadata.grid, source.box):
            if index in source.skip:
                continue
            unit_sizes = np.full(math.prod(metadata.grid.chunk_counts_in(unit)), -1, dtype=np.int64)
            for batch in _encoded(spec, unit, pieces, "C"):
                unit_sizes[batch.ranks] = batch.nbytes
                payload.extend(batch.buffers)
            sizes.append(unit_sizes)
        return EncodedBlock(np.concatenate(sizes), payload.result())


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit's share of an encoded block."""

    ranks: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    block: int


def commit_group(
    spec: WriteSpec, group: Box, blocks: Sequence[Box], encoded: Sequence[EncodedBlock], skip: frozenset[Shape] = frozenset()
) -> GroupReport:
    """Place encoded units into shards, and commit these.

    Parameters
    ----------
    spec : WriteSpec
        The run.
    group : Box
        Whole shards.
    blocks : sequence of Box
        The group's blocks, in the plan's order.
    encoded : sequence of EncodedBlock
        What each became.
    skip : frozenset of tuple of int
        Positions of shards in the group that are done already.
    """
    units: dict[Shape, list[_Unit]] = {}
    for number, (box, block) in enumerate(zip(blocks, encoded, strict=True)):
        _split(spec.metadata, box, block, number, units, skip)
    with busy(), Payloads([block.payload for block in encoded]) as payloads:

        def write(transaction: Transaction, index: Shape) -> Written:
            return _commit_shard(spec, transaction, index, units[index], payloads)

        shards = [index for index in spec.metadata.grid.shards_in(group) if index not in skip]
        report = commit_shards(spec, group, shards, write)
    return replace(report, part_files=tuple(b.payload.path for b in encoded if isinstance(b.payload, PartFile)))


def _split(
    metadata: ArrayMetadata,
    box: Box,
    block: EncodedBlock,
    number: int,
    units: dict[Shape, list[_Unit]],
    skip: frozenset[Shape],
) -> None:
    """Add the units of a block to their shards."""
    present = np.maximum(block.chunk_nbytes, 0)
    starts = np.cumsum(present) - present
    parts = [
        (index, ranks_in_shard(metadata.grid, index, unit)) for index, unit in units_of(metadata.grid, box) if index not in skip
    ]
    edges = boundaries([len(ranks) for _, ranks in parts])
    for (index, ranks), a, b in zip(parts, edges[:-1], edges[1:], strict=True):
        units.setdefault(index, []).append(_Unit(ranks, block.chunk_nbytes[a:b], starts[a:b], number))


def _commit_shard(spec: WriteSpec, transaction: Transaction, index: Shape, units: Sequence[_Unit], payloads: Payloads) -> Written:
    """Write one shard from its units."""
    metadata = spec.metadata
    n = metadata.grid.n_chunks_per_shard
    sizes, starts, block = np.full(n, -1, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    for unit in units:
        sizes[unit.ranks], starts[unit.ranks], block[unit.ranks] = unit.sizes, unit.starts, unit.block
    sequence = spec.strategy.sequence(metadata.grid.chunks_per_shard, [unit.ranks for unit in units])
    base = metadata.index_codec.encoded_nbytes if metadata.index_codec.location == "start" else 0
    placement = place(sizes, sequence, base)
    if not len(placement.sequence):
        return _leave_empty(spec, transaction, index)
    table = ShardIndex.build(placement.offsets, sizes)
    encoded_index = metadata.index_codec.encode(table)
    writer = transaction.create(metadata.shard_key(index))
    if base:
        writer.write([encoded_index])
    chunks = placement.sequence
    for buffers in payloads.read(block[chunks], starts[chunks], sizes[chunks]):
        writer.write(buffers)
    if not base:
        writer.write([encoded_index])
    writer.finish()
    return Written(placement.data_nbytes + len(encoded_index), table.checksum, len(chunks))
