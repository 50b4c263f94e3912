"""Encoding of many small shards at a time.

For a small shard, most of the cost is in the steps of the interpreter, which has one lock for all
threads. Where a batch has room for several shards, these steps are taken once for all of them. A
batch makes one copy, one test for empty inner chunks and one call of the codecs. The bytes are the
same as those of shards that are encoded one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.encode.unit import (
    MOST_IN_BATCH,
    EncodeOptions,
    Pieces,
    encode_tiles,
    ranks_in_box,
    tiles_of,
)
from shardwrite.format.index import EMPTY, Seal, ShardIndex
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.order import boxes, permutation
from shardwrite.grid import Box, Shape

Tables = npt.NDArray[np.uint64]
"""Tables of shards as in `ShardIndex`, shape (n, chunks per shard, 2)."""


@dataclass(frozen=True, slots=True)
class EncodedShard:
    """A whole encoded shard."""

    # Encoded inner chunks in the order of the file; none if the shard is empty
    buffers: Sequence[Buffer]
    seal: Seal  # bytes before and after these buffers
    nbytes: int  # size of the file, in bytes
    n_chunks: int  # number of inner chunks that hold data


class ShardBatches:
    """Encoder of the shards of a group, as many at a time as fit into a batch.

    An encoded shard is valid until another batch is encoded.

    - `skip`: positions of shards in the group that are not needed. The pieces need not cover them.
    """

    def __init__(
        self,
        metadata: ArrayMetadata,
        group: Box,
        pieces: Pieces,
        options: EncodeOptions,
        skip: Collection[Shape] = (),
    ) -> None:
        self._metadata, self._group, self._pieces = metadata, group, pieces
        self._options, self._skip = options, skip
        shards = metadata.grid.shard_range(group)
        per_batch = min(
            options.batch_nbytes // max(1, _nbytes_of(metadata)),
            MOST_IN_BATCH // metadata.grid.n_chunks_per_shard,
        )
        self._batch_of: dict[Shape, Box] = {}
        for box in boxes(shards.shape, "C", per_batch):
            batch = box.shift(tuple(-first for first in shards.start))
            for index in itertools.product(*map(range, batch.start, batch.stop)):
                self._batch_of[index] = batch
        self._current: Box | None = None
        self._encoded: dict[Shape, EncodedShard] = {}

    @staticmethod
    def is_worth_it(metadata: ArrayMetadata, batch_nbytes: int) -> bool:
        """Whether a batch has room for at least two shards."""
        has_room = 2 * metadata.grid.n_chunks_per_shard <= MOST_IN_BATCH
        return has_room and 2 * _nbytes_of(metadata) <= batch_nbytes

    @property
    def shards(self) -> list[Shape]:
        """Positions of the shards to encode, batch by batch; ask for them in this order."""
        return [index for index in self._batch_of if index not in self._skip]

    def has(self, index: Shape) -> bool:
        """Whether a shard belongs to the batch that was encoded last."""
        return self._batch_of[index] is self._current

    def n_with(self, index: Shape) -> int:
        """Number of shards in the batch of a shard, skipped ones included."""
        return self._batch_of[index].size

    def encode(self, index: Shape) -> None:
        """Encode the batch to which a shard belongs."""
        self._encoded, self._current = {}, None  # their memory is used again
        batch = self._batch_of[index]
        self._encoded, self._current = self._encode(batch), batch

    def encoded(self, index: Shape) -> EncodedShard:
        """Encoded shard, which must belong to the batch that was encoded last."""
        return self._encoded[index]

    def _encode(self, batch: Box) -> dict[Shape, EncodedShard]:
        """Encode a batch, given as a box of shard positions."""
        metadata, grid = self._metadata, self._metadata.grid
        start = tuple(i * s for i, s in zip(batch.start, grid.shards, strict=True))
        stop = tuple(
            min(i * s, n) for i, s, n in zip(batch.stop, grid.shards, self._group.stop, strict=True)
        )
        unit = Box(start, stop)
        counts = grid.chunk_counts_in(unit)
        region = Box.from_shape(start, [n * c for n, c in zip(counts, grid.chunks, strict=True)])
        tiles = tiles_of(metadata, math.prod(counts))
        places = itertools.product(*map(range, batch.start, batch.stop))
        skipped = [index in self._skip for index in places] if self._skip else []
        # The pieces may not cover inner chunks at the array's edge and those of skipped shards.
        if region != unit or any(skipped):
            tiles[...] = metadata.fill_value
        self._pieces.copy_into(tiles, counts, grid.chunks, region)
        which, shard, rank = _sequence(counts, grid.chunks_per_shard, self._options.order)
        if any(skipped):
            wanted = ~np.array(skipped)[shard]
            which, shard, rank = which[wanted], shard[wanted], rank[wanted]
        is_dropped = self._options.dropped(metadata, tiles, region)
        if is_dropped.any():
            is_stored = ~is_dropped[which]
            which, shard, rank = which[is_stored], shard[is_stored], rank[is_stored]
        buffers = encode_tiles(metadata, tiles, which, region)
        return self._split(batch, buffers, shard, rank)

    def _split(
        self,
        batch: Box,
        buffers: Sequence[Buffer],
        shard: npt.NDArray[np.int64],
        rank: npt.NDArray[np.int64],
    ) -> dict[Shape, EncodedShard]:
        metadata = self._metadata
        nbytes = np.fromiter(map(len, buffers), np.int64, len(buffers))
        edges = np.searchsorted(shard, np.arange(batch.size + 1))
        ends = np.concatenate([[0], np.cumsum(nbytes)])
        offsets = ends[:-1] - ends[edges[shard]] + metadata.index_codec.base_nbytes
        tables = np.full((batch.size, metadata.grid.n_chunks_per_shard, 2), EMPTY, dtype=np.uint64)
        tables[shard, rank, 0], tables[shard, rank, 1] = offsets, nbytes
        places = list(itertools.product(*map(range, batch.start, batch.stop)))
        own = [buffers[start:stop] for start, stop in itertools.pairwise(edges.tolist())]
        return dict(zip(places, self._completed(places, tables, own), strict=True))

    def _completed(
        self, places: Sequence[Shape], tables: Tables, buffers: Sequence[Sequence[Buffer]]
    ) -> list[EncodedShard]:
        """Whole shards, whose inner chunks lie end to end."""
        metadata = self._metadata
        if metadata.placed is None:
            seals = metadata.index_codec.seals(tables)
        else:
            pairs = zip(places, tables, strict=True)
            seals = [metadata.format_at(index).seal(ShardIndex(table)) for index, table in pairs]
        sizes = tables[:, :, 1].sum(axis=1, where=tables[:, :, 1] != EMPTY).tolist()
        return [
            EncodedShard(own, seal, size + len(seal.prefix) + len(seal.suffix), len(own))
            for own, seal, size in zip(buffers, seals, sizes, strict=True)
        ]


def _nbytes_of(metadata: ArrayMetadata) -> int:
    """Decoded bytes of a shard, and those of its indexes if it is one of a volume."""
    return metadata.shard_nbytes + metadata.sealing_nbytes


@lru_cache(maxsize=64)
def _sequence(
    counts: Shape, per_shard: Shape, order: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Sequence of the inner chunks of a box, shard after shard, in the order of the files.

    - `counts`: inner chunks along each axis of the box. The box begins at the corner of a shard;
      the last shard along an axis may be clipped.
    - `order`: order of inner chunks in a shard.
    """
    which, shard, rank = [], [], []
    starts = [range(0, n, k) for n, k in zip(counts, per_shard, strict=True)]
    for number, start in enumerate(itertools.product(*starts)):
        inside = tuple(min(k, n - a) for k, n, a in zip(per_shard, counts, start, strict=True))
        sequence = permutation(inside, order)
        which.append(ranks_in_box(counts, start, inside)[sequence])
        rank.append(ranks_in_box(per_shard, (0,) * len(inside), inside)[sequence])
        shard.append(np.full(len(sequence), number, dtype=np.int64))
    return np.concatenate(which), np.concatenate(shard), np.concatenate(rank)
