"""What a dask task does: encode the units of a block, commit the shards of a group, or both at once.

A task is called with whole arrays and gives back numbers, or encoded bytes on their way to a commit. It
may run twice, or beside its own duplicate: temporary names differ by attempt, and the bytes are the same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.encode.batches import ShardBatches
from shardwrite.encode.unit import (
    Background,
    Pieces,
    check_block,
    encode_unit,
    ranks_in_shard,
    units_of,
)
from shardwrite.errors import ShardwriteError, SourceError
from shardwrite.grid import Box, Shape
from shardwrite.host.stopping import busy
from shardwrite.host.turns import Turn
from shardwrite.journal import recover_shard, shard_claim
from shardwrite.read.stored_shard import Backdrop, ExistingShard, open_shard
from shardwrite.stores import TEMPORARY_SUFFIX, Transaction, as_store_error
from shardwrite.write.assemble import (
    EncodedUnit,
    OpenedShard,
    assemble,
    revise,
    rewrite,
    split_block,
)
from shardwrite.write.commit import (
    EMPTY_SHARD,
    GroupReport,
    WriteSpec,
    Written,
    commit_shards,
    has_small_shards,
    in_turns,
    retried,
)
from shardwrite.write.emitter import Emitter
from shardwrite.write.spool import EncodedBlock, PartFile, Payload, Payloads

__all__ = ["SourcePieces", "commit_group", "encode_block", "opened", "rewrite_group", "write_group"]

_SHARD_SECONDS = 1e-4  # for one of many small shards: twice what it takes on a memory file system
_UPDATE_NBYTES = (
    64 * 2**20
)  # of what a task encodes for a shard that exists; more goes by way of a part file


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
        checked = [
            check_block(array, box, dtype) for array, box in zip(arrays, self.pieces, strict=True)
        ]
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
        touched = spec.touched(source.box)
        if (
            spec.region is None
            and spec.streams
            and ShardBatches.is_worth_it(spec.metadata, spec.batch_nbytes)
        ):
            return _write_small_shards(spec, source, pieces)
        units = {
            index: unit
            for index, unit in units_of(spec.metadata.grid, touched)
            if index not in source.skip
        }

        def write(transaction: Transaction, index: Shape) -> Written:
            write_one = _stream_shard if spec.covers(index) and spec.streams else _splice_shard
            return write_one(spec, transaction, index, units[index], pieces)

        with in_turns(spec, len(units), write) as write_in_turn:
            return commit_shards(spec, source.box, list(units), write_in_turn)


def _write_small_shards(spec: WriteSpec, source: SourcePieces, pieces: Pieces) -> GroupReport:
    """Encode several shards at a time, and commit each."""
    metadata = spec.metadata
    is_small = has_small_shards(metadata)
    compresses = metadata.pipeline.encoded_nbytes is None  # which threads had better do at a time
    with Turn() as turn:
        if is_small and not compresses:
            turn.take(_SHARD_SECONDS)
        batches = ShardBatches(
            metadata,
            source.box,
            pieces,
            order=spec.strategy.streaming_order,
            batch_nbytes=spec.batch_nbytes,
            write_empty_chunks=spec.write_empty_chunks,
            skip=source.skip,
        )

        def encode(index: Shape) -> None:
            if compresses:
                turn.give()
                batches.encode(index)
            if is_small:
                turn.take(batches.n_with(index) * _SHARD_SECONDS)
            if not compresses:
                batches.encode(index)

        def write(transaction: Transaction, index: Shape) -> Written:
            with _as_source_error(spec, source.box):
                if not batches.has(index):
                    encode(index)
                shard = batches.encoded(index)
            return Emitter(spec, transaction, index).put(shard)

        return commit_shards(spec, source.box, batches.shards, write)


def _stream_shard(
    spec: WriteSpec, transaction: Transaction, index: Shape, unit: Box, pieces: Pieces
) -> Written:
    """Encode one shard into the store."""
    in_shard = ranks_in_shard(spec.metadata.grid, index, unit)
    batches = _encoded(spec, unit, pieces, spec.strategy.streaming_order)
    return Emitter(spec, transaction, index).stream(
        replace(batch, ranks=in_shard[batch.ranks]) for batch in batches
    )


@contextlib.contextmanager
def opened(spec: WriteSpec, index: Shape) -> Iterator[OpenedShard]:
    """A shard to be updated; under a claim, and whole again, if it is to be changed where it stands."""
    key = spec.metadata.shard_key(index)
    with as_store_error(key, "cannot update"), contextlib.ExitStack() as stack:
        claim = None
        if spec.strategy.in_place:
            claim = stack.enter_context(shard_claim(spec.run_path, key))
            recover_shard(claim, spec.store, spec.metadata)
        old = open_shard(spec.metadata, spec.store, index)
        yield OpenedShard(old if old is None else stack.enter_context(old), claim)


def _splice_shard(
    spec: WriteSpec, transaction: Transaction, index: Shape, unit: Box, pieces: Pieces
) -> Written:
    """Encode what the source touches of a shard, then have the strategy place it: in a new shard, or among what is there."""
    metadata = spec.metadata
    with contextlib.ExitStack() as stack:
        there = (
            OpenedShard(None, None)
            if spec.covers(index)
            else stack.enter_context(opened(spec, index))
        )
        path = Path(spec.parts) / f"{spec.attempt()}{TEMPORARY_SUFFIX}"
        payload = stack.enter_context(
            Payload(path, min(_UPDATE_NBYTES, spec.spool_ratio * unit.size * metadata.itemsize))
        )
        sizes = _extend(spec, payload, index, unit, pieces, there.old)
        starts = np.cumsum(np.maximum(sizes, 0)) - np.maximum(sizes, 0)
        encoded = EncodedUnit(ranks_in_shard(metadata.grid, index, unit), sizes, starts, 0)
        result = payload.result()
        payloads = stack.enter_context(Payloads([result]))
        written = revise(spec, transaction, index, [encoded], payloads, there)
        if isinstance(result, PartFile):
            Path(result.path).unlink(missing_ok=True)
        return written


def _extend(
    spec: WriteSpec,
    payload: Payload,
    index: Shape,
    unit: Box,
    pieces: Pieces,
    old: ExistingShard | None,
) -> npt.NDArray[np.int64]:
    """Add an encoded unit to a payload; gives the sizes of its inner chunks, row-major."""
    sizes = np.full(math.prod(spec.metadata.grid.chunk_counts_in(unit)), -1, dtype=np.int64)
    backdrop = Backdrop(spec.metadata, index, old, spec.region) if spec.region is not None else None
    for batch in _encoded(spec, unit, pieces, "C", backdrop):
        sizes[batch.ranks] = batch.nbytes
        payload.extend(batch.buffers)
    return sizes


def _encoded(
    spec: WriteSpec, unit: Box, pieces: Pieces, order: str, background: Background | None = None
) -> Iterator[Any]:
    """Batches of a unit."""
    batches = encode_unit(
        spec.metadata,
        unit,
        pieces,
        order=order,
        batch_nbytes=spec.batch_nbytes,
        write_empty_chunks=spec.write_empty_chunks,
        covered=spec.region,
        background=background,
    )
    with _as_source_error(spec, unit):
        yield from batches


@contextlib.contextmanager
def _as_source_error(spec: WriteSpec, box: Box) -> Iterator[None]:
    """What the source's values make a codec raise is told with the region."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, ShardwriteError):
            raise
        raise SourceError(
            f"cannot be encoded as {spec.metadata.dtype}: {error}", region=box.bounds
        ) from error


def rewrite_group(spec: WriteSpec, group: Box, skip: frozenset[Shape]) -> GroupReport:
    """Write the shards of a group anew, from themselves.

    Parameters
    ----------
    spec : WriteSpec
        The run.
    group : Box
        Whole shards.
    skip : frozenset of tuple of int
        Positions of shards in the group that stay as they are.
    """

    def write(transaction: Transaction, index: Shape) -> Written:
        old = open_shard(spec.metadata, spec.store, index)
        if old is None:
            return EMPTY_SHARD
        with old:
            return rewrite(spec, transaction, index, old)

    shards = [index for index in spec.metadata.grid.shards_in(group) if index not in skip]
    with busy(), in_turns(spec, len(shards), write) as write_in_turn:
        return commit_shards(spec, group, shards, write_in_turn)


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
        for index, unit in units_of(metadata.grid, spec.touched(source.box)):
            if index in source.skip:
                continue
            is_covered = spec.region is None or spec.region.contains(unit)
            with contextlib.ExitStack() as stack:
                old = None if is_covered else open_shard(metadata, spec.store, index)
                if old is not None:
                    stack.enter_context(old)
                sizes.append(_extend(spec, payload, index, unit, pieces, old))
        return EncodedBlock(np.concatenate(sizes), payload.result())


def commit_group(
    spec: WriteSpec,
    group: Box,
    blocks: Sequence[Box],
    encoded: Sequence[EncodedBlock],
    skip: frozenset[Shape] = frozenset(),
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
    units: dict[Shape, list[EncodedUnit]] = {}
    for number, (box, block) in enumerate(zip(blocks, encoded, strict=True)):
        split_block(spec, box, block, number, units, skip)
    with busy(), Payloads([block.payload for block in encoded]) as payloads:

        def write(transaction: Transaction, index: Shape) -> Written:
            if spec.covers(index):
                return assemble(spec, transaction, index, units[index], payloads)
            with opened(spec, index) as there:
                return revise(spec, transaction, index, units[index], payloads, there)

        shards = [index for index in spec.metadata.grid.shards_in(group) if index not in skip]
        with in_turns(spec, len(shards), write) as write_in_turn:
            report = commit_shards(spec, group, shards, write_in_turn)
    return replace(
        report, part_files=tuple(b.payload.path for b in encoded if isinstance(b.payload, PartFile))
    )
