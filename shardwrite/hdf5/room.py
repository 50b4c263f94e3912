"""Room in a file of HDF5 whose inner chunks are written while they are encoded.

What stands around the chunks is complete only when the sizes of all chunks are known. How long it
is depends on their number. So room is left for it, and filled in last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from shardwrite.codecs.stages import Buffer
from shardwrite.encode.unit import EncodedBatch
from shardwrite.format.hdf5_pattern import FileLayout
from shardwrite.hdf5.layout import surprise
from shardwrite.stores import ObjectWriter


class Room:
    """Room for what stands around the inner chunks of one file."""

    def __init__(self, full: FileLayout) -> None:
        sizes = map(len, full.around)
        self._coming = deque(zip(full.breaks, sizes, strict=True))
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

    def fill(self, writer: ObjectWriter, layout: FileLayout, pieces: Sequence[Buffer]) -> None:
        """Write what stands around the inner chunks, after all of them are written."""
        behind = [number for number in layout.breaks if number >= self._n_chunks]
        n_left = len(layout.breaks) - len(behind)
        sizes = list(map(len, pieces))
        if list(zip(layout.breaks, sizes, strict=True))[:n_left] != self._left:
            raise surprise("lays out files with fewer chunks in another way")
        for begin, piece in zip(layout.begins[:n_left], pieces[:n_left], strict=True):
            writer.write_at(begin, bytes(piece))
        if behind:
            writer.write(pieces[n_left:])
