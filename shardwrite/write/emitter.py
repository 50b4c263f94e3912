"""Emitter: writes each whole shard into a store as a prefix, the inner chunks, and a suffix.

All shards that are not changed in place are written here. Where the strategy gives a frame, inner
chunks lie where the frame places them. The index tells where each inner chunk
lies, so it is complete only when all of them are encoded. There are five ways to write a shard:

- `put` writes a shard that is encoded already.
- `stream` writes inner chunks as they are encoded. For an index at the start, it leaves room, and
  fills it in last.
- `place` writes inner chunks of known sizes to the offsets that a strategy has chosen.
- `extend` copies the old shard and appends new inner chunks.
- `whole` copies a shard of another array as it is, with its index.

A shard whose inner chunks are all empty has no object. If the array existed before the run, an old
object is removed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Buffer
from shardwrite.encode.unit import EncodedBatch, EncodedShard
from shardwrite.errors import SpecError
from shardwrite.format.frame import Frame, frame_at
from shardwrite.format.index import Seal, ShardIndex
from shardwrite.format.order import Placement, Ranks, Revision, Shared
from shardwrite.format.sharding import ObjectFormat
from shardwrite.grid import Shape
from shardwrite.stores.base import (
    COPIED_NBYTES,
    Capability,
    ObjectReader,
    ObjectWriter,
    Transaction,
    copy_bytes,
)
from shardwrite.write.context import EMPTY_SHARD, WriteSpec, Written

WriteChunks = Callable[[ObjectWriter, Ranks], None]
"""Appends the inner chunks of the given ranks to an object, in that sequence."""


@dataclass(frozen=True, slots=True)
class Emitter:
    """Writer of one shard.

    All methods return facts about the shard, and raise StoreError if the storage refuses, and
    RunEndedError if the run has ended or was taken over. They raise SpecError if the old object is
    a file of another format, too, and the new one would not be one.
    """

    spec: WriteSpec  # facts about the run
    transaction: Transaction  # the transaction to write in
    index: Shape  # position of the shard in the shard grid
    # Called right before the object becomes visible or is removed; an exception from it prevents
    # that
    guard: Callable[[], None] | None = None
    # The version that the new object replaces, or None if there is no object. A store that can
    # (`CONDITIONAL`) publishes the new object only then.
    replaced: tuple[Any] | None = None
    old: ObjectReader | None = None  # the object that the new one replaces, if it is open

    def nothing(self) -> Written:
        """Leave the shard without an object."""
        if self.spec.exists:
            self._check_kind()
            self.transaction.remove(self._key, self.guard)
        return EMPTY_SHARD

    def put(self, shard: EncodedShard) -> Written:
        """Write an encoded shard in one call."""
        if not shard.buffers:
            return self.nothing()
        writer = self._create()
        writer.write([shard.seal.prefix, *shard.buffers, shard.seal.suffix])
        checksum = shard.seal.index.checksum
        self._publish(writer, checksum)
        return Written(shard.nbytes, checksum, shard.n_chunks)

    def stream(self, batches: Iterable[EncodedBatch]) -> Written:
        """Write inner chunks end to end, as they are encoded.

        - `batches`: batches of encoded inner chunks. Their `ranks` are ranks in the shard, in the
          order in which the strategy streams.
        """
        frame = self._frame
        if frame is not None:
            return self._stream_framed(frame, batches)
        base = end = self._codec.base_nbytes
        offsets, nbytes = np.zeros(self._n_chunks, np.int64), np.full(self._n_chunks, -1, np.int64)
        writer, seal = None, None
        for batch in batches:
            if writer is None:
                writer = self._create()
                if base:
                    writer.write([bytes(base)])
            ends = end + np.cumsum(batch.nbytes)
            offsets[batch.ranks], nbytes[batch.ranks] = ends - batch.nbytes, batch.nbytes
            end = int(ends[-1])
            if batch.is_last and not base:  # this saves a system call
                seal = self._seal(offsets, nbytes)
                writer.write([*batch.buffers, seal.suffix])
            else:
                writer.write(batch.buffers)
            del batch  # before the next one is encoded
        if writer is None:
            return self.nothing()
        if seal is None:
            seal = self._seal(offsets, nbytes)
            _close(writer, seal)
        return self._finished(writer, seal, end)

    def place(
        self,
        placement: Placement,
        nbytes: Ranks,
        write: WriteChunks,
        shared: Shared | None = None,
    ) -> Written:
        """Write inner chunks at the offsets that a strategy has chosen.

        - `nbytes`: int64, shape (n,). Encoded size of each inner chunk by rank, in bytes; negative
          where it is empty.
        - `shared`: inner chunks that have the bytes of others. They are empty in `nbytes`.
        """
        frame = self._frame
        if frame is not None:
            return self._place_framed(frame, nbytes, write, shared)
        sequence, base = placement.sequence, self._codec.base_nbytes
        begins, end = placement.offsets[sequence], base + placement.data_nbytes
        free = np.append(begins, end) - np.concatenate([[base], begins + nbytes[sequence]])
        if len(sequence) != (nbytes >= 0).sum() or (len(sequence) and (free < 0).any()):
            raise SpecError(
                "places inner chunks over each other or out of sequence, or leaves some out",
                field="strategy",
                value=self.spec.strategy.label,
                remedy="mend the strategy: nothing is wrong with the data",
            )
        if not len(sequence):
            return self.nothing()
        offsets = placement.offsets
        if shared is not None:
            offsets, nbytes = shared.entered(offsets), shared.entered(nbytes)
        seal = self._seal(offsets, nbytes)
        writer = self._create()
        if seal.prefix:
            writer.write([seal.prefix])
        breaks = [0, *(np.flatnonzero(free[1:-1]) + 1).tolist(), len(sequence)]
        for first, last in itertools.pairwise(breaks):
            if free[first]:
                writer.skip(int(free[first]))
            write(writer, sequence[first:last])
        if free[-1]:
            writer.skip(int(free[-1]))
        if seal.suffix:
            writer.write([seal.suffix])
        return self._finished(writer, seal, end)

    @property
    def _frame(self) -> Frame | None:
        """What the shard holds beside its inner chunks and its index; None if nothing."""
        return frame_at(self.spec.strategy, self.spec.metadata, self.index)

    def _place_framed(
        self, frame: Frame, nbytes: Ranks, write: WriteChunks, shared: Shared | None
    ) -> Written:
        """Write inner chunks to where the frame places them, and all that is around them.

        Those that the frame does not keep are left out. Those that share bytes get their own.
        """
        origin = np.arange(len(nbytes), dtype=np.int64)
        if shared is not None:
            nbytes, origin = shared.entered(nbytes), shared.entered(origin)
        nbytes = np.where(frame.keeps, nbytes, -1)
        if not (nbytes >= 0).any():
            return self.nothing()
        layout = frame.close(nbytes)
        seal = self._seal(layout.offsets, nbytes)
        writer = self._create()
        from shardwrite.place.framed import (
            write_framed,  # for shards that are files of another format
        )

        write_framed(writer, layout, seal, write, origin)
        return self._finished(writer, seal, layout.total)

    def _stream_framed(self, frame: Frame, batches: Iterable[EncodedBatch]) -> Written:
        """Leave room for what is around the inner chunks, and fill it in last.

        Inner chunks that the frame does not keep are left out.
        """
        from shardwrite.place.framed import PieceRoom  # for shards that are files of another format

        keeps, room = frame.keeps, PieceRoom(frame)
        nbytes, writer = np.full(len(keeps), -1, np.int64), None
        for whole in batches:
            batch = _only(whole, keeps[whole.ranks])
            if not len(batch.ranks):
                continue
            if writer is None:
                writer = self._create()
            nbytes[batch.ranks] = batch.nbytes
            writer.write(room.around(batch))
        if writer is None:
            return self.nothing()
        layout = frame.close(nbytes)
        seal = self._seal(layout.offsets, nbytes)
        room.fill(writer, layout, seal)
        return self._finished(writer, seal, layout.total)

    def extend(self, reader: ObjectReader, revision: Revision, write: WriteChunks) -> Written:
        """Copy the part of an object that a revision keeps, and append new inner chunks.

        - `revision`: the bytes to keep, and the index of the new object.
        """
        seal = self._seal(revision.offsets, revision.nbytes)
        writer = self._create()
        writer.copy(reader, 0, revision.kept_nbytes)
        write(writer, revision.sequence)
        _close(writer, seal)
        return self._finished(writer, seal, revision.end)

    def changed(
        self, reader: ObjectReader, writes: Iterable[tuple[int, Buffer]], written: Written
    ) -> Written:
        """Copy an object as it is, and change the copy.

        - `writes`: offsets and data, in the order in which they are written.
        - `written`: facts about the new object, which is not smaller than the old one.
        """
        writer = self._create()
        writer.copy(reader, 0, reader.nbytes)
        if written.nbytes > reader.nbytes:
            writer.skip(written.nbytes - reader.nbytes)
        for offset, data in writes:
            writer.write_at(offset, data)
        writer.finish(self.guard)
        return written

    def whole(self, reader: ObjectReader, table: ShardIndex) -> Written:
        """Copy an object of another array. One that is a file of another format is protected."""
        writer = self._create()
        nbytes = min(COPIED_NBYTES, reader.nbytes)
        first = reader.read(0, nbytes)
        writer.write([first])
        from shardwrite.read.signatures import Begun, signature_of  # for arrays that were there

        metadata, begun = self.spec.metadata, Begun(reader, first)
        if writer.has_permissions and signature_of(metadata, begun) is not None:
            writer.protect(True)
        del first, begun  # as much memory as one further piece takes
        copy_bytes(reader.read, writer, reader.nbytes - nbytes, nbytes)
        checksum = table.checksum
        self._publish(writer, checksum)
        return Written(reader.nbytes, checksum, table.n_present)

    @property
    def _codec(self) -> ObjectFormat:
        return self.spec.metadata.format_at(self.index)

    @property
    def _n_chunks(self) -> int:
        return self.spec.metadata.grid.n_chunks_per_shard

    @property
    def _key(self) -> str:
        return self.spec.metadata.shard_key(self.index)

    def _check_kind(self) -> None:
        """Refuse to replace a file of another format by something else."""
        spec = self.spec
        if not spec.exists or self.replaced == (None,):
            return
        if spec.drops_hdf5 and spec.strategy.replaces:
            return
        from shardwrite.read.signatures import (  # for arrays that were there
            refuse_change,
            refuse_change_among,
        )

        if self.old is None:
            refuse_change_among(spec.metadata, spec.strategy, spec.store, [self.index])
        else:
            refuse_change(spec.metadata, spec.strategy, self._key, self.old)

    def _create(self) -> ObjectWriter:
        self._check_kind()
        writer = self.transaction.create(self._key)
        spec = self.spec
        writer.describe("run", spec.digest)
        if spec.drops_hdf5 and spec.exists and writer.has_permissions:
            # The file that goes has no permission to write, and its successor needs one.
            from shardwrite.read.signatures import signature_at  # for arrays that were there

            signature = signature_at(spec.metadata, spec.store, self.index)
            writer.protect(None if signature is None else False)
        if self.replaced is not None and Capability.CONDITIONAL in self.spec.store.capabilities:
            writer.expect(*self.replaced)
        return writer

    def _seal(self, offsets: Ranks, nbytes: Ranks) -> Seal:
        return self._codec.seal(ShardIndex.build(offsets, nbytes))

    def _publish(self, writer: ObjectWriter, checksum: int) -> None:
        """Finish an object whose index has a checksum."""
        writer.describe("index-crc32c", f"{checksum:08x}")
        writer.finish(self.guard)

    def _finished(self, writer: ObjectWriter, seal: Seal, end: int) -> Written:
        """Finish an object whose inner chunks end at byte `end`."""
        checksum = seal.index.checksum
        self._publish(writer, checksum)
        return Written(end + len(seal.suffix), checksum, seal.index.n_present)


def _close(writer: ObjectWriter, seal: Seal) -> None:
    """Write the index, which was not known when the object was begun."""
    if seal.suffix:
        writer.write([seal.suffix])
    if seal.prefix:
        writer.write_at(0, seal.prefix)


def _only(batch: EncodedBatch, wanted: npt.NDArray[np.bool_]) -> EncodedBatch:
    """Some inner chunks of a batch."""
    if wanted.all():
        return batch
    buffers = list(itertools.compress(batch.buffers, wanted))
    return EncodedBatch(batch.ranks[wanted], batch.nbytes[wanted], buffers, batch.is_last)
