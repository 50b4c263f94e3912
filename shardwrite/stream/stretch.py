"""A stretch of the array that one stream writes under a lease.

A stretch is a range of whole shards along the stream's axis. Writing it is an update with a run of
its own beside the array. The shape of the array changes at a flush, and its receipt when the
stretch ends, both under the lock of the array. A stream cannot be resumed. After a crash, the next
writer or ``abandon`` gives the run up.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON, Document
from shardwrite.codecs.stages import Buffer
from shardwrite.encode.unit import Pieces, encode_unit, ranks_in_shard
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box, Shape, ceil_div
from shardwrite.journal.documents import DocumentChange, all_listed, enlarged, present_listed
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.lines import own_journals, taking_part
from shardwrite.journal.neighbours import begin_passing
from shardwrite.journal.rundir import RunDirectory, holding
from shardwrite.journal.takeover import cancel_begin, end_run
from shardwrite.place.base import shape_of
from shardwrite.place.target import Target
from shardwrite.plan.identity import Identity, ShardWindow
from shardwrite.read.stored_shard import Backdrop, open_shard
from shardwrite.runs.result import updated_receipt
from shardwrite.stores.base import Transaction
from shardwrite.stores.looking import as_store_error
from shardwrite.stream.layers import Buffers, Layer
from shardwrite.write.assemble import EncodedUnit, assemble, revise
from shardwrite.write.commit import commit_shard, in_turns
from shardwrite.write.context import WriteSpec, Written
from shardwrite.write.spool import Payloads
from shardwrite.write.tasks import opened

_SHARDS = 4096
"""Approximate number of shards in a stretch."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encoded inner chunks of a layer."""

    # Sequence number; of two versions of one layer, the one with the greater number is later
    number: int
    is_whole: bool  # whether the stream has given all elements of the layer
    ranks: npt.NDArray[np.int64]  # row-major ranks of the inner chunks in the shard
    sizes: npt.NDArray[np.int64]  # encoded sizes in bytes; -1 for an empty inner chunk
    payload: npt.NDArray[np.uint8]  # encoded bytes of all inner chunks, in the same order
    memory: npt.NDArray[np.uint8] | None  # buffer that contains `payload`, if it can be reused


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of the array, with its run and lease."""

    axis: int  # axis of the stream
    box: Box  # box of the stretch, which consists of whole shards, in coordinates of the array
    directory: RunDirectory  # directory of the run
    spec: WriteSpec  # settings of the commits
    ledger: Ledger  # shards that are committed
    # Releases the leases when it is closed: of the run, and of the array if the state of the run
    # lies in the bucket
    lease: contextlib.ExitStack
    buffers: Buffers  # buffers for encoded inner chunks

    @classmethod
    def begin(
        cls,
        target: Target,
        metadata: ArrayMetadata,
        axis: int,
        around: Box,
        strategy: Strategy,
        durability: str,
        buffers: Buffers,
        *,
        write_empty: bool,
    ) -> Stretch:
        """Begin the run of a stretch around a box, and take its lease.

        - `around`: box that the stretch must contain, in coordinates of the array.
        - `write_empty`: store inner chunks that contain only the fill value.
        """
        grid = metadata.grid
        box = _stretch(metadata, axis, around)
        reach = tuple(max(n, box.stop[axis]) if i == axis else n for i, n in enumerate(grid.shape))
        whole = metadata.with_shape(reach)
        part, _ = whole.window_of(box)
        identity = Identity(mode="r+", stream=True, region=box.bounds, strategy=strategy.label)
        window = ShardWindow(part.first_shard, part.grid.counts)
        with contextlib.ExitStack() as stack:
            stack.enter_context(holding(target))
            directory = begin_passing(target, "stream", whole.text, identity, window, durability)
            stack.enter_context(taking_part(directory.shared, directory.driver))
            lease = stack.pop_all()
        spec = WriteSpec.of_passing(
            directory, target.store, part, strategy, write_empty_chunks=write_empty
        )
        return cls(axis, box, directory, spec, Ledger(part.grid), lease, buffers)

    def _local(self, shard: Shape) -> Shape:
        return tuple(i - f for i, f in zip(shard, self.spec.metadata.first_shard, strict=True))

    def encode(self, layer: Layer, number: int, *, is_whole: bool) -> Encoded:
        """Encode the inner chunks of a layer that its blocks touch.

        Elements of these chunks that are in no block are read from the stored shard; if it is
        missing, they get the fill value.

        - `is_whole`: whether the blocks cover the whole layer; the stored shard is then not read.
        """
        metadata, local = self.spec.metadata, self._local(layer.shard)
        grid = metadata.grid
        box = (layer.box if is_whole else layer.touched(grid.chunks)).shift(self.box.start)
        pieces = Pieces(
            [block.box.shift(self.box.start).start for block in layer.blocks],
            [block.array for block in layer.blocks],
        )
        empty_box = Box(box.start, box.start)
        with contextlib.ExitStack() as stack:
            background = None
            if not is_whole:
                old = open_shard(metadata, self.spec.store, local)
                if old is not None:
                    background = Backdrop(metadata, local, stack.enter_context(old), empty_box)
            n_chunks = math.prod(grid.chunk_counts_in(box))
            sizes = np.full(n_chunks, -1, dtype=np.int64)
            payload = _Payload(self.buffers, n_chunks * (metadata.pipeline.encoded_nbytes or 0))
            for batch in encode_unit(
                metadata,
                box,
                pieces,
                self.spec.encoding("C"),
                covered=None if is_whole else empty_box,
                background=background,
            ):
                sizes[batch.ranks] = batch.nbytes
                payload.extend(batch.buffers)
            ranks = ranks_in_shard(grid, local, box)
            return Encoded(number, is_whole, ranks, sizes, payload.result(), payload.memory)

    def commit(self, shard: Shape, encoded_layers: Sequence[Encoded]) -> None:
        """Commit encoded layers of a shard.

        If these are all layers of the shard, and whole, a new shard is written. Otherwise the
        stored shard is revised.

        - `encoded_layers`: in ascending order along the axis.
        - Raises IncompleteError if this process was asked to stop.
        """
        grid, local = self.spec.metadata.grid, self._local(shard)
        units = []
        for number, layer in enumerate(encoded_layers):
            present = np.maximum(layer.sizes, 0)
            starts = np.cumsum(present) - present
            units.append(EncodedUnit(layer.ranks, layer.sizes, starts, number))
        is_full = len(encoded_layers) == grid.chunks_per_shard[self.axis] and all(
            layer.is_whole for layer in encoded_layers
        )

        def write(transaction: Transaction, index: Shape) -> Written:
            with Payloads([layer.payload for layer in encoded_layers]) as payloads:
                if is_full:
                    return assemble(self.spec, transaction, index, units, payloads)
                with opened(self.spec, index) as there:
                    return revise(self.spec, transaction, index, units, payloads, there)

        with in_turns(self.spec, 1, write) as write_in_turn:
            entry = commit_shard(self.spec, local, write_in_turn)
        self.ledger.enter(entry)

    def cancel(self) -> None:
        """End the run and release the lease of a stretch in which nothing was committed."""
        cancel_begin(self.directory, is_claimed=True)
        self.lease.close()

    def list_before(self) -> None:
        """List the inner chunks of the stretch in the array's manifest, if it keeps one."""
        with as_store_error(self.directory.target.label, "cannot begin"):
            self.directory.list_before(self.spec.metadata, self.box)

    def _grown(self, shape: Sequence[int], document: Document) -> Document:
        """Document of the array with a larger shape; a manifest lists all chunks that are new."""
        label = self.directory.target.label
        grown = enlarged(shape, label, document)
        start = list(self.box.start)
        start[self.axis] = max(start[self.axis], shape_of(document, label)[self.axis])
        return all_listed(self.spec.metadata, Box(tuple(start), self.box.stop), grown)

    def publish(self, shape: Sequence[int], listed: DocumentChange = lambda same: same) -> None:
        """Grow the array to a shape in its metadata, so that readers see it.

        The array never shrinks.
        """
        with (
            as_store_error(self.directory.target.label, "cannot publish"),
            self.directory.ending(),
        ):
            self.directory.change(lambda document: listed(self._grown(shape, document)))

    def end(self, shape: Sequence[int], result: Mapping[str, JSON]) -> None:
        """Publish the shape and the receipt, end the run, and release the lease."""
        with as_store_error(self.directory.target.label, "cannot publish"):
            listed = present_listed(self.spec.metadata, self.spec)
        self.publish(shape, listed)
        with as_store_error(self.directory.target.label, "cannot end"):
            with self.directory.ending():
                receipt = updated_receipt(
                    self.directory, self.spec.metadata, self.ledger, result, self.spec.durability
                )
                self.directory.write_receipt(receipt)
            end_run(self.directory, own_journals(self.spec.driver))
            self.lease.close()


class _Payload:
    """Concatenation of encoded inner chunks.

    If their maximum size is known, the bytes are collected in one buffer, else in pieces that
    :meth:`result` joins. `most_nbytes` is this maximum; 0 means that it is unknown.
    """

    def __init__(self, buffers: Buffers, most_nbytes: int) -> None:
        self.memory = buffers.take(most_nbytes) if most_nbytes else None
        self._pieces: list[bytes] = []
        self._end = 0

    def extend(self, buffers: Sequence[Buffer]) -> None:
        """Append a copy of each buffer."""
        for buffer in buffers:
            if self.memory is None:
                self._pieces.append(bytes(buffer))
            else:
                piece = np.frombuffer(buffer, dtype=np.uint8)
                self.memory[self._end : self._end + piece.nbytes] = piece
                self._end += piece.nbytes

    def result(self) -> npt.NDArray[np.uint8]:
        """Return all bytes."""
        if self.memory is None:
            return np.frombuffer(b"".join(self._pieces), dtype=np.uint8)
        return self.memory[: self._end]


def _stretch(metadata: ArrayMetadata, axis: int, around: Box) -> Box:
    """Box of whole shards around a box.

    It is so long along the axis that a stream seldom needs another stretch.
    """
    grid = metadata.grid
    others = math.prod(max(1, n) for i, n in enumerate(grid.counts) if i != axis)
    step = max(1, _SHARDS // others) * grid.shards[axis]
    start, stop = around.start[axis] // step * step, ceil_div(around.stop[axis], step) * step
    return Box(
        tuple(start if i == axis else 0 for i in range(grid.ndim)),
        tuple(stop if i == axis else n for i, n in enumerate(grid.shape)),
    )
