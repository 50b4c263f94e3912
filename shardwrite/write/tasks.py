"""Functions that dask runs as tasks: encode a block, commit a group, or both at once.

A task takes whole arrays, and returns numbers, or encoded bytes for a commit. It may run twice, or
at the same time as its own duplicate: each attempt has its own names for temporaries, and the bytes
are the same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.encode.unit import (
    Background,
    Damaged,
    EncodedBatch,
    Pieces,
    ShardBatches,
    check_block,
    encode_unit,
    ranks_in_shard,
    units_of,
)
from shardwrite.errors import CorruptShardError, ShardwriteError, SourceError
from shardwrite.format.frame import framing_of
from shardwrite.grid import Box, Shape, ShardGrid, boundaries
from shardwrite.host.resources import note_memory
from shardwrite.host.stopping import Turn
from shardwrite.plan.estimate import HELD_NBYTES
from shardwrite.stores.base import Transaction
from shardwrite.stores.looking import as_store_error
from shardwrite.write.commit import commit_shards, has_small_shards, in_turns, retried
from shardwrite.write.context import EMPTY_SHARD, GroupReport, WriteSpec, Written
from shardwrite.write.emitter import Emitter

if TYPE_CHECKING:
    from shardwrite.read.stored_shard import ExistingShard
    from shardwrite.write.assemble import EncodedUnit, OpenedShard
    from shardwrite.write.spool import EncodedBlock, Payload

# seconds for each of many small shards: twice as long as on a memory file system
_SHARD_SECONDS = 1e-4


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What a task that encodes a block gives if the source could not read all of it."""

    error: CorruptShardError  # why it could not


@dataclass(frozen=True, slots=True)
class SourcePieces:
    """Boxes of a task and of its source arrays."""

    box: Box  # box that the task writes: a group or a block
    # Box of each source array, or of each block that was encoded, in coordinates of the grid
    pieces: tuple[Box, ...]
    skip: frozenset[Shape] = frozenset()  # positions of shards in the box that are done already

    def load(self, arrays: Sequence[Any], dtype: np.dtype[Any]) -> Pieces:
        """The source arrays with their positions, after a check of their shapes and dtypes."""
        checked = [
            check_block(array, box, dtype) for array, box in zip(arrays, self.pieces, strict=True)
        ]
        return Pieces([box.start for box in self.pieces], checked)

    def shards_in(self, grid: ShardGrid) -> list[Shape]:
        """Positions of the shards in the box that are not done."""
        return [index for index in grid.shards_in(self.box) if index not in self.skip]

    def damaged(self, arrays: Sequence[Any], grid: ShardGrid) -> dict[Shape, CorruptShardError]:
        """Positions of the shards of which the source could not read all, and why."""
        bad: dict[Shape, CorruptShardError] = {}
        for array, piece in zip(arrays, self.pieces, strict=True):
            for part, error in array.bad if isinstance(array, Damaged) else ():
                box = part.shift(tuple(-a for a in piece.start)).intersect(self.box)
                for index in grid.shards_in(box) if box.size else ():
                    if index not in self.skip:
                        bad.setdefault(index, error)
        return bad


@dataclass(frozen=True, slots=True)
class Row:
    """Source arrays that are neighbours along an axis, and were made by one task."""

    blocks: Sequence[Any]
    axis: int
    lengths: tuple[int, ...]  # length of each along the axis, as dask declares it

    def __sizeof__(self) -> int:
        """Memory that the row takes, in bytes; dask asks for it to decide where tasks run."""
        return sum(
            (block.values if isinstance(block, Damaged) else np.asarray(block)).nbytes
            for block in self.blocks
        )

    def cut(self, chunk: Box, inside: Box, dtype: np.dtype[Any]) -> npt.NDArray[Any] | Damaged:
        """Copy the box `inside` of the arrays into one array. `chunk` is the box that they fill."""
        values: npt.NDArray[Any] = np.empty(inside.shape, dtype)
        bad: list[tuple[Box, CorruptShardError]] = []
        edges = boundaries(self.lengths)
        for block, first, last in zip(self.blocks, edges[:-1], edges[1:], strict=True):
            start, stop = list(chunk.start), list(chunk.stop)
            start[self.axis], stop[self.axis] = start[self.axis] + first, start[self.axis] + last
            own = Box(tuple(start), tuple(stop))
            part = own.intersect(inside)
            if not part.size:
                continue
            cut, place = cut_block(block, own, part, dtype), part.shift(inside.start)
            if isinstance(cut, Damaged):
                back = tuple(-a for a in place.start)
                bad += [(piece.shift(back), error) for piece, error in cut.bad]
                cut = cut.values
            values[place.slices] = cut
        return Damaged(values, tuple(bad)) if bad else values


def cut_block(
    block: Any, chunk: Box, inside: Box, dtype: np.dtype[Any]
) -> npt.NDArray[Any] | Damaged:
    """Cut a box out of a source array, or a row of them, after a check of shapes and dtypes."""
    if isinstance(block, Row):
        return block.cut(chunk, inside, dtype)
    if isinstance(block, Damaged):
        check_block(block, chunk, dtype)
        return block.cut(inside.shift(chunk.start))
    cut: npt.NDArray[Any] = check_block(block, chunk, dtype)[inside.shift(chunk.start).slices]
    return cut


def _loaded(spec: WriteSpec, source: SourcePieces, arrays: Sequence[Any]) -> Pieces:
    """Load the source arrays of a task, and note the memory that is in use then."""
    pieces = source.load(arrays, spec.source_dtype)
    note_memory(spec.run_path, sum(array.nbytes for array in pieces.arrays))
    return pieces


def write_group(spec: WriteSpec, source: SourcePieces, arrays: Sequence[Any]) -> GroupReport:
    """Encode and commit the shards of a group.

    Shards are streamed: inner chunks are written as they are encoded. This is not possible if the
    strategy must know all inner chunks first, or if the source covers a shard only in part. The
    unit of such a shard is encoded first, in memory or in a part file.

    - Raises CorruptShardError if an existing shard that the source covers in part is not valid.
    - Raises RunEndedError if the run has ended, or was taken over.
    """
    with spec.at_work():
        pieces = _loaded(spec, source, arrays)
        bad = source.damaged(arrays, spec.metadata.grid)
        touched = spec.touched(source.box)
        if (
            not bad
            and spec.covers_all(source.box)
            and spec.streams
            and framing_of(spec.strategy) is None
            and ShardBatches.is_worth_it(spec.metadata, spec.batch_nbytes)
        ):
            return _write_small_shards(spec, source, pieces)
        units = dict(units_of(spec.metadata.grid, touched))
        units = {index: units[index] for index in units if index not in source.skip}

        def write(transaction: Transaction, index: Shape) -> Written:
            if index in bad:
                raise bad[index]
            write_one = _stream_shard if spec.covers(index) and spec.streams else _splice_shard
            return write_one(spec, transaction, index, units[index], pieces)

        with in_turns(spec, len(units), write) as write_in_turn:
            return commit_shards(spec, source.box, list(units), write_in_turn)


def _refused(spec: WriteSpec, where: SourcePieces, error: CorruptShardError) -> GroupReport:
    """Write none of the shards of a group, because a part of the source cannot be read."""

    def write(*_: Any) -> NoReturn:
        raise error

    return commit_shards(spec, where.box, where.shards_in(spec.metadata.grid), write)


def _write_small_shards(spec: WriteSpec, source: SourcePieces, pieces: Pieces) -> GroupReport:
    """Encode and commit the shards of a group, several shards in one batch."""
    metadata = spec.metadata
    is_small = has_small_shards(metadata)
    # Threads compress at the same time, but take turns at files of small shards.
    compresses = metadata.pipeline.encoded_nbytes is None
    with Turn() as turn:
        if is_small and not compresses:
            turn.take(_SHARD_SECONDS)
        how = spec.encoding(spec.strategy.streaming_order)
        batches = ShardBatches(metadata, source.box, pieces, how, source.skip)

        def encode(index: Shape) -> None:
            if compresses:
                turn.give()
                batches.encode(index)
            if is_small:
                turn.take(batches.n_with(index) * _SHARD_SECONDS)
            if not compresses:
                batches.encode(index)

        def write(transaction: Transaction, index: Shape) -> Written:
            if not batches.has(index):
                with _as_source_error(spec, source.box):
                    encode(index)
                note_memory(spec.run_path)
            return Emitter(spec, transaction, index).put(batches.encoded(index))

        return commit_shards(spec, source.box, batches.shards, write)


def _stream_shard(
    spec: WriteSpec, transaction: Transaction, index: Shape, unit: Box, pieces: Pieces
) -> Written:
    """Encode one shard, and write its inner chunks as they are encoded."""
    in_shard = ranks_in_shard(spec.metadata.grid, index, unit)
    batches = _encoded(spec, unit, pieces, spec.strategy.streaming_order)

    def placed(batch: EncodedBatch) -> EncodedBatch:
        return replace(batch, ranks=in_shard[batch.ranks])

    # `map`, as a generator would keep a batch while the next one is encoded
    return Emitter(spec, transaction, index).stream(map(placed, batches))


@contextlib.contextmanager
def opened(spec: WriteSpec, index: Shape) -> Iterator[OpenedShard]:
    """Open a shard for an update.

    If the strategy works in place, the shard is claimed first, and a change that was interrupted is
    undone.

    - Yields: the shard, and the claim if there is one.
    """
    from shardwrite.read.stored_shard import open_shard  # of a shard that is changed
    from shardwrite.write.assemble import OpenedShard  # of shards that are assembled

    key = spec.metadata.shard_key(index)
    with as_store_error(key, "cannot update"), contextlib.ExitStack() as stack:
        claim = None
        if spec.strategy.in_place:
            from shardwrite.journal.undo import recover_shard, shard_claim  # in place

            claim = stack.enter_context(shard_claim(spec.claims, key))
            recover_shard(claim, spec.store, spec.metadata)
        old = open_shard(spec.metadata, spec.store, index)
        if old is not None:
            stack.enter_context(old)
        yield OpenedShard(old, claim, is_missing=old is None)


def _splice_shard(
    spec: WriteSpec, transaction: Transaction, index: Shape, unit: Box, pieces: Pieces
) -> Written:
    """Encode the inner chunks of a shard that the source touches, and let the strategy place them.

    They go into a new shard if the source covers all of it, else into the existing shard.
    """
    # of shards that are assembled
    from shardwrite.write.assemble import EncodedUnit, OpenedShard, revise_from
    from shardwrite.write.spool import Payload

    metadata = spec.metadata
    with contextlib.ExitStack() as stack:
        there = OpenedShard(None, None)
        if not spec.covers(index):
            there = stack.enter_context(opened(spec, index))
        limit_nbytes = min(HELD_NBYTES, spec.spool_ratio * unit.size * metadata.itemsize)
        payload = stack.enter_context(Payload(spec.part_file(), limit_nbytes))
        sizes = _extend(spec, payload, index, unit, pieces, there.old)
        starts = np.cumsum(np.maximum(sizes, 0)) - np.maximum(sizes, 0)
        encoded = EncodedUnit(ranks_in_shard(metadata.grid, index, unit), sizes, starts, 0)
        return revise_from(spec, transaction, index, encoded, payload, there)


def _extend(
    spec: WriteSpec,
    payload: Payload,
    index: Shape,
    unit: Box,
    pieces: Pieces,
    old: ExistingShard | None,
) -> npt.NDArray[np.int64]:
    """Encode a unit into a payload."""
    from shardwrite.read.stored_shard import Backdrop  # of a shard that is changed

    sizes = np.full(math.prod(spec.metadata.grid.chunk_counts_in(unit)), -1, dtype=np.int64)
    backdrop = Backdrop(spec.metadata, index, old, spec.region) if spec.region is not None else None
    for batch in _encoded(spec, unit, pieces, "C", backdrop):
        sizes[batch.ranks] = batch.nbytes
        payload.extend(batch.buffers)
    return sizes


def _encoded(
    spec: WriteSpec, unit: Box, pieces: Pieces, order: str, background: Background | None = None
) -> Iterator[Any]:
    """Encode a unit, batch by batch."""
    batches = encode_unit(
        spec.metadata, unit, pieces, spec.encoding(order), spec.region, background
    )
    with _as_source_error(spec, unit):
        for batch in batches:
            note_memory(spec.run_path)
            yield batch
            del batch


@contextlib.contextmanager
def _as_source_error(spec: WriteSpec, box: Box) -> Iterator[None]:
    """Turn an error about values of the source into a SourceError with the region."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if isinstance(error, ShardwriteError):
            raise
        raise SourceError(
            f"cannot be encoded as {spec.metadata.dtype}: {error}", region=box.bounds
        ) from error


def rewrite_group(spec: WriteSpec, group: Box, skip: frozenset[Shape]) -> GroupReport:
    """Rewrite the shards of a group from their own inner chunks.

    Shards without an object stay empty.

    - Raises CorruptShardError if the index of a shard is not valid.
    - Raises RunEndedError if the run has ended, or was taken over.
    """
    from shardwrite.read.stored_shard import open_shard  # of a shard that is changed
    from shardwrite.write.assemble import rewrite  # of shards that are assembled

    def write(transaction: Transaction, index: Shape) -> Written:
        old = open_shard(spec.metadata, spec.store, index)
        if old is None:
            return EMPTY_SHARD
        with old:
            return rewrite(spec, transaction, index, old)

    shards = [index for index in spec.metadata.grid.shards_in(group) if index not in skip]
    with spec.at_work(), in_turns(spec, len(shards), write) as write_in_turn:
        return commit_shards(spec, group, shards, write_in_turn)


def encode_block(
    spec: WriteSpec, source: SourcePieces, arrays: Sequence[Any]
) -> EncodedBlock | Unreadable:
    """Encode the units of a block, so that another task can commit them.

    - Returns: the encoded units, in memory or in a part file; or why there are none, if the run
      goes on then.
    - Raises CorruptShardError if an existing shard that the source covers in part is not valid.
    """
    with spec.at_work():
        try:
            pieces = _loaded(spec, source, arrays)
            for error in source.damaged(arrays, spec.metadata.grid).values():
                raise error
            return retried(lambda: _encode_units(spec, source, pieces), spec.run_path)
        except CorruptShardError as error:
            if not spec.goes_on:
                raise
            return Unreadable(error)


def _encode_units(spec: WriteSpec, source: SourcePieces, pieces: Pieces) -> EncodedBlock:
    """Make one attempt to encode the units of a block."""
    from shardwrite.read.stored_shard import open_shard  # of a shard that is changed
    from shardwrite.write.spool import EncodedBlock, Payload, no_spool  # of blocks that wait

    metadata = spec.metadata
    sizes = [np.empty(0, dtype=np.int64)]
    touched = spec.touched(source.box)
    limit_nbytes = spec.spool_ratio * touched.size * metadata.itemsize
    if spec.is_far and not math.isinf(spec.spool_ratio):
        raise no_spool(spec.run_path)
    with Payload(spec.part_file(), limit_nbytes) as payload:
        for index, unit in units_of(metadata.grid, touched):
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
    spec: WriteSpec, where: SourcePieces, encoded: Sequence[EncodedBlock | Unreadable]
) -> GroupReport:
    """Place encoded units into the shards of a group, and commit the shards.

    - `where`: the group, and its blocks in the plan's order.
    - Raises CorruptShardError if an existing shard that the source covers in part is not valid.
    - Raises RunEndedError if the run has ended, or was taken over.
    """
    # of shards that are assembled
    from shardwrite.write.assemble import assemble, revise, split_block
    from shardwrite.write.spool import EncodedBlock, PartFile, Payloads

    units: dict[Shape, list[EncodedUnit]] = {}
    good = [block for block in encoded if isinstance(block, EncodedBlock)]
    files = tuple(b.payload.path for b in good if isinstance(b.payload, PartFile))
    for bad in encoded:
        if isinstance(bad, Unreadable):
            with spec.at_work():
                return replace(_refused(spec, where, bad.error), part_files=files)
    for number, (box, block) in enumerate(zip(where.pieces, good, strict=True)):
        split_block(spec, box, block, number, units, where.skip)
    with spec.at_work(), Payloads([block.payload for block in good]) as payloads:
        note_memory(spec.run_path)

        def write(transaction: Transaction, index: Shape) -> Written:
            if spec.covers(index):
                return assemble(spec, transaction, index, units[index], payloads)
            with opened(spec, index) as there:
                return revise(spec, transaction, index, units[index], payloads, there)

        shards = where.shards_in(spec.metadata.grid)
        with in_turns(spec, len(shards), write) as write_in_turn:
            report = commit_shards(spec, where.box, shards, write_in_turn)
    return replace(report, part_files=files)
