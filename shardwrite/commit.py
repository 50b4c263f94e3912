"""One shard, once: the tasks that encode units and commit shards.

A task is called with whole arrays and gives back numbers, or encoded bytes on their way to a commit. It
may run twice, or beside its own duplicate: temporary names differ by attempt, and the bytes are the same.
"""

from __future__ import annotations

import math
import os
import resource
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import ShardwriteError, SourceError
from shardwrite.grid import Box, Shape, boundaries, ravel
from shardwrite.index import ShardIndex
from shardwrite.metadata import ArrayMetadata
from shardwrite.payload import EncodedBlock, PartFile, Payload, Payloads
from shardwrite.shard import Pieces, check_block, encode_unit, ranks_in_shard, units_of
from shardwrite.stores import TEMPORARY_SUFFIX, Store, Transaction
from shardwrite.strategies import Strategy, place

__all__ = ["GroupReport", "SourcePieces", "WriteSpec", "commit_group", "encode_block", "write_group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSpec:
    """What every task of a run needs to know.

    Attributes
    ----------
    metadata : ArrayMetadata
        The array.
    strategy : Strategy
        Where encoded chunks go.
    store : Store
        Rooted at the array.
    parts : str
        Directory for part files.
    run : str
        Names the run in temporary names.
    durability : {"full", "batch", "none"}
        When a shard counts as committed.
    write_empty_chunks : bool
        Store chunks of the fill value only, too.
    batch_nbytes : int
        Decoded bytes that a thread encodes at a time.
    spool_ratio : float
        Encoded over decoded size above which a block goes to a part file.
    source_dtype : numpy.dtype
        What dask declared.
    """

    metadata: ArrayMetadata
    strategy: Strategy
    store: Store
    parts: str
    run: str
    durability: str
    write_empty_chunks: bool
    batch_nbytes: int
    spool_ratio: float
    source_dtype: np.dtype[Any]

    def attempt(self) -> str:
        """A name that no other attempt has."""
        return f"{self.run}.{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True)
class SourcePieces:
    """What a task takes from the source.

    Attributes
    ----------
    box : Box
        What the task writes.
    pieces : tuple of Box
        Where its source arrays lie.
    """

    box: Box
    pieces: tuple[Box, ...]

    def load(self, arrays: Sequence[Any], dtype: np.dtype[Any]) -> Pieces:
        """The arrays, checked against what dask declared."""
        checked = [check_block(array, box, dtype) for array, box in zip(arrays, self.pieces, strict=True)]
        return Pieces([box.start for box in self.pieces], checked)


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What a commit task did.

    Attributes
    ----------
    n_shards, n_empty_shards : int
        Shards written, and shards that hold nothing and have no file.
    n_chunks, n_empty_chunks : int
        In-bounds inner chunks, and those of them that are empty.
    raw_nbytes, stored_nbytes : int
        Decoded bytes, and bytes of files.
    seconds : float
        From start to end of the task.
    process : str
        Host and process.
    peak_nbytes : int
        Most memory that the process has had resident so far.
    shards : tuple of int
        Row-major ranks of its shards in the shard grid: all of them are committed, or empty by design.
    part_files : tuple of str
        Part files that are no longer needed once this report has arrived.
    """

    n_shards: int
    n_empty_shards: int
    n_chunks: int
    n_empty_chunks: int
    raw_nbytes: int
    stored_nbytes: int
    seconds: float
    process: str
    peak_nbytes: int
    shards: tuple[int, ...] = ()
    part_files: tuple[str, ...] = ()


def _peak_nbytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class _Tally:
    """Counts a group's shards as they are committed."""

    def __init__(self, spec: WriteSpec, group: Box) -> None:
        self._spec, self._group = spec, group
        self._start = time.perf_counter()
        self._shards: list[int] = []
        self._n_present = 0

    def add(self, stored_nbytes: int, n_present: int) -> None:
        """A shard of so many bytes and non-empty inner chunks; 0 bytes where it has no file."""
        self._shards.append(stored_nbytes)
        self._n_present += n_present

    def report(self, part_files: tuple[str, ...] = ()) -> GroupReport:
        n_written = sum(1 for nbytes in self._shards if nbytes)
        grid = self._spec.metadata.grid
        n_chunks = math.prod(grid.chunk_counts_in(self._group))
        return GroupReport(
            n_shards=n_written,
            n_empty_shards=len(self._shards) - n_written,
            n_chunks=n_chunks,
            n_empty_chunks=n_chunks - self._n_present,
            raw_nbytes=self._group.size * self._spec.metadata.itemsize,
            stored_nbytes=sum(self._shards),
            seconds=time.perf_counter() - self._start,
            process=f"{socket.gethostname()}:{os.getpid()}",
            peak_nbytes=_peak_nbytes(),
            shards=tuple(ravel(index, grid.counts) for index in grid.shards_in(self._group)),
            part_files=part_files,
        )


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
    tally = _Tally(spec, source.box)
    pieces = source.load(arrays, spec.source_dtype)
    with spec.store.transaction(spec.durability, spec.attempt()) as transaction:
        for index, unit in units_of(spec.metadata.grid, source.box):
            tally.add(*_stream_shard(spec, transaction, index, unit, pieces))
    return tally.report()


def _stream_shard(spec: WriteSpec, transaction: Transaction, index: Shape, unit: Box, pieces: Pieces) -> tuple[int, int]:
    """Encode one shard into the store; its size and number of inner chunks with data."""
    metadata, order = spec.metadata, spec.strategy.streaming_order
    base = metadata.index_codec.encoded_nbytes if metadata.index_codec.location == "start" else 0
    in_shard = ranks_in_shard(metadata.grid, index, unit)
    offsets = np.zeros(metadata.grid.n_chunks_per_shard, dtype=np.int64)
    sizes = np.full(metadata.grid.n_chunks_per_shard, -1, dtype=np.int64)
    writer, end, n_present, encoded_index = None, base, 0, b""
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
            encoded_index = metadata.index_codec.encode(ShardIndex.build(offsets, sizes))
            writer.write([*batch.buffers, encoded_index])
        else:
            writer.write(batch.buffers)
    if writer is None:
        return 0, 0
    if not encoded_index:
        encoded_index = metadata.index_codec.encode(ShardIndex.build(offsets, sizes))
        if base:
            writer.write_at(0, encoded_index)
        else:
            writer.write([encoded_index])
    writer.finish()
    return end - base + len(encoded_index), n_present


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
    metadata = spec.metadata
    pieces = source.load(arrays, spec.source_dtype)
    sizes = []
    path = Path(spec.parts) / f"{spec.attempt()}{TEMPORARY_SUFFIX}"
    with Payload(path, spec.spool_ratio * source.box.size * metadata.itemsize) as payload:
        for _, unit in units_of(metadata.grid, source.box):
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


def commit_group(spec: WriteSpec, group: Box, blocks: Sequence[Box], encoded: Sequence[EncodedBlock]) -> GroupReport:
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
    """
    tally = _Tally(spec, group)
    units: dict[Shape, list[_Unit]] = {}
    for number, (box, block) in enumerate(zip(blocks, encoded, strict=True)):
        _split(spec.metadata, box, block, number, units)
    with (
        Payloads([block.payload for block in encoded]) as payloads,
        spec.store.transaction(spec.durability, spec.attempt()) as transaction,
    ):
        for index in spec.metadata.grid.shards_in(group):
            tally.add(*_commit_shard(spec, transaction, index, units[index], payloads))
    return tally.report(tuple(b.payload.path for b in encoded if isinstance(b.payload, PartFile)))


def _split(metadata: ArrayMetadata, box: Box, block: EncodedBlock, number: int, units: dict[Shape, list[_Unit]]) -> None:
    """Add the units of a block to their shards."""
    present = np.maximum(block.chunk_nbytes, 0)
    starts = np.cumsum(present) - present
    parts = [(index, ranks_in_shard(metadata.grid, index, unit)) for index, unit in units_of(metadata.grid, box)]
    edges = boundaries([len(ranks) for _, ranks in parts])
    for (index, ranks), a, b in zip(parts, edges[:-1], edges[1:], strict=True):
        units.setdefault(index, []).append(_Unit(ranks, block.chunk_nbytes[a:b], starts[a:b], number))


def _commit_shard(
    spec: WriteSpec, transaction: Transaction, index: Shape, units: Sequence[_Unit], payloads: Payloads
) -> tuple[int, int]:
    """Write one shard from its units; its size and number of inner chunks with data."""
    metadata = spec.metadata
    n = metadata.grid.n_chunks_per_shard
    sizes, starts, block = np.full(n, -1, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    for unit in units:
        sizes[unit.ranks], starts[unit.ranks], block[unit.ranks] = unit.sizes, unit.starts, unit.block
    sequence = spec.strategy.sequence(metadata.grid.chunks_per_shard, [unit.ranks for unit in units])
    base = metadata.index_codec.encoded_nbytes if metadata.index_codec.location == "start" else 0
    placement = place(sizes, sequence, base)
    if not len(placement.sequence):
        return 0, 0
    encoded_index = metadata.index_codec.encode(ShardIndex.build(placement.offsets, sizes))
    writer = transaction.create(metadata.shard_key(index))
    if base:
        writer.write([encoded_index])
    chunks = placement.sequence
    for buffers in payloads.read(block[chunks], starts[chunks], sizes[chunks]):
        writer.write(buffers)
    if not base:
        writer.write([encoded_index])
    writer.finish()
    return placement.data_nbytes + len(encoded_index), len(chunks)
