"""Shards with a frame, as they are written: their pieces, and room for those that come last."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from shardwrite.codecs.stages import Buffer
from shardwrite.encode.unit import EncodedBatch
from shardwrite.errors import StoreError
from shardwrite.format.frame import Frame, Layout
from shardwrite.format.index import Seal
from shardwrite.format.order import Ranks
from shardwrite.stores.base import ObjectWriter


def write_framed(
    writer: ObjectWriter,
    layout: Layout,
    seal: Seal,
    write: Callable[[ObjectWriter, Ranks], None],
    origin: Ranks | None = None,
) -> None:
    """Write a shard from its start to its end, and protect it.

    - `writer`: the object, which is not finished.
    - `origin`: int64, shape (n,), optional. Rank of the inner chunk whose bytes each inner chunk
      gets; by default its own.
    """
    sequence = layout.sequence if origin is None else origin[layout.sequence]
    starts = [piece.n_before for piece in layout.pieces]
    ends = [*starts[1:], len(sequence)]
    for data, first, last in zip(_with_index(layout, seal), starts, ends, strict=True):
        writer.write([data])
        if first < last:
            write(writer, sequence[first:last])
    _end(writer, seal)


def _with_index(layout: Layout, seal: Seal) -> list[Buffer]:
    """The pieces. They begin with the index if it comes first."""
    pieces = [piece.data for piece in layout.pieces]
    if seal.prefix:
        pieces[0] = head = bytearray(pieces[0])
        head[: len(seal.prefix)] = seal.prefix
    return pieces


def _end(writer: ObjectWriter, seal: Seal) -> None:
    if seal.suffix:
        writer.write([seal.suffix])
    # A program that changes a shard as a file of its own format would make the index wrong.
    writer.protect(True)


class PieceRoom:
    """Room for the pieces of a shard whose inner chunks are written while they are encoded."""

    def __init__(self, frame: Frame) -> None:
        self._coming = deque(frame.reserve())
        self._left: list[tuple[int, int]] = []
        self._zeros = memoryview(bytes(max(size for _, size in self._coming)))
        self._n_chunks = 0

    def around(self, batch: EncodedBatch) -> list[Buffer]:
        """Buffers of the next inner chunks, with room before and between them."""
        ends, first = np.cumsum(batch.nbytes), self._n_chunks
        self._n_chunks += len(batch.ranks)
        rooms: deque[tuple[int, int]] = deque()
        while self._coming and self._coming[0][0] < self._n_chunks:
            number, nbytes = self._coming.popleft()
            self._left.append((number, nbytes))
            rooms.append((int(ends[number - first - 1]) if number > first else 0, nbytes))
        if not rooms:
            return list(batch.buffers)
        found: list[Buffer] = []
        begin = 0
        for buffer in batch.buffers:
            view = memoryview(buffer)
            at = 0
            while rooms and rooms[0][0] < begin + len(view):
                place, nbytes = rooms.popleft()
                found += [view[at : place - begin], self._zeros[:nbytes]]
                at = place - begin
            found.append(view[at:])
            begin += len(view)
        return found

    def fill(self, writer: ObjectWriter, layout: Layout, seal: Seal) -> None:
        """Write the pieces, after all inner chunks are written, and protect the object."""
        inside = [piece for piece in layout.pieces if piece.n_before < self._n_chunks]
        if [(piece.n_before, len(piece.data)) for piece in inside] != self._left:
            raise StoreError(
                "shards with fewer chunks are laid out in another way than those with all of them; "
                "install another version of the library that lays them out",
                key="",
                errno=errno.ENOTSUP,
            )
        pieces: Sequence[Buffer] = _with_index(layout, seal)
        for piece, data in zip(inside, pieces[: len(inside)], strict=True):
            writer.write_at(piece.begin, bytes(data))
        if len(inside) < len(pieces):
            writer.write(pieces[len(inside) :])
        _end(writer, seal)
