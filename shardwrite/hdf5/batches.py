"""Small shards that are files of HDF5, completed many at a time.

What stands around the inner chunks of a small shard takes longer to lay out than the chunks take to
encode, if it is done shard by shard. So the shards of a batch are laid out together, and their
indexes are encoded together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwrite.codecs.stages import Buffer
from shardwrite.encode.batches import EncodedShard, Tables
from shardwrite.format.hdf5_file import describe
from shardwrite.format.hdf5_pattern import FileLayout
from shardwrite.format.hdf5_strategy import Hdf5
from shardwrite.format.index import EMPTY, Seal
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Shape
from shardwrite.hdf5.files import extents_of
from shardwrite.hdf5.patterns import lay_out_all, lay_out_full

# memory in which pieces are put together, for each chunk of a shard
_CHUNK_NBYTES = 256


class Hdf5Completion:
    """Makes files of HDF5 of encoded inner chunks; see `encode.batches.Completion`."""

    def __init__(self, metadata: ArrayMetadata, strategy: Hdf5) -> None:
        self._metadata, self._file = metadata, describe(metadata, strategy)
        # The bound that plans use is several times as large, and would make batches smaller.
        full = lay_out_full(self._file, metadata.grid.shards)
        n_chunks = metadata.grid.n_chunks_per_shard
        self.around_nbytes = sum(map(len, full.around)) + n_chunks * _CHUNK_NBYTES

    def complete(
        self, places: Sequence[Shape], tables: Tables, buffers: Sequence[Sequence[Buffer]]
    ) -> list[EncodedShard]:
        """See :meth:`Completion.complete`."""
        codec = self._metadata.index_codec
        # An empty chunk has the size 2^64-1, which is -1 as a signed integer.
        nbytes = tables[:, :, 1].astype(np.int64)
        filled = [number for number, own in enumerate(buffers) if own]
        extents = extents_of(self._metadata, [places[number] for number in filled])
        found = lay_out_all(self._file, extents, nbytes[filled])
        layouts: dict[int, FileLayout] = dict(zip(filled, found, strict=True))
        if found:
            offsets = np.concatenate([layout.offsets for layout in found])
            tables[filled, :, 0] = offsets.reshape(len(found), -1)
        tables[nbytes < 0] = EMPTY
        return [
            _completed(own, seal, layouts.get(number))
            for number, (own, seal) in enumerate(zip(buffers, codec.seals(tables), strict=True))
        ]


def _completed(chunks: Sequence[Buffer], seal: Seal, layout: FileLayout | None) -> EncodedShard:
    """A shard with what stands around its chunks; it has no layout if it has no chunks."""
    if layout is None:
        return EncodedShard([], seal, 0, 0)
    pieces, breaks = layout.around, layout.breaks
    # An index at the start takes the place of the first bytes, which are zeros.
    head = [seal.prefix, memoryview(pieces[0])[len(seal.prefix) :]] if seal.prefix else pieces[:1]
    if len(pieces) == 1:
        buffers = [*head, *chunks]
    else:
        buffers = [*head, *chunks[: breaks[1]]]
        ends = [*breaks[2:], len(chunks)]
        for piece, first, last in zip(pieces[1:], breaks[1:], ends, strict=True):
            buffers += [piece, *chunks[first:last]]
    inside = Seal(seal.index, b"", seal.suffix) if seal.prefix else seal
    return EncodedShard(buffers, inside, layout.nbytes + len(seal.suffix), len(chunks))
