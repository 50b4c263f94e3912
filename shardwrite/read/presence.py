"""Which inner chunks of an array are stored, from the indexes of its shards."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Box, Shape, ceil_div, ravel
from shardwrite.read.array import ShardedArray
from shardwrite.read.stored_shard import open_shard

_MAX_KEPT = 64


class Presence:
    """Test whether an array stores an inner chunk that overlaps a box.

    Indexes that were read are kept for a while, so an instance is for one task.

    - `array`: the array. If it has codecs around its sharding, no chunk counts as stored, because
      its indexes are encoded.
    """

    def __init__(self, array: ShardedArray) -> None:
        self._array = array
        self._kept: OrderedDict[Shape, npt.NDArray[np.bool_] | None] = OrderedDict()

    def __call__(self, box: Box) -> bool:
        """Whether a chunk that overlaps a box of elements is stored.

        - Raises CorruptShardError if the index of a shard is not valid.
        """
        grid = self._array.metadata.grid
        inside = box.intersect(grid.whole)
        # An object with codecs around its sharding does not tell which of its inner chunks it has.
        if self._array.metadata.has_codecs_around or not inside.size:
            return False
        numbers = [
            range(a // c, ceil_div(b, c))
            for a, b, c in zip(inside.start, inside.stop, grid.chunks, strict=True)
        ]
        return any(self._has(chunk) for chunk in itertools.product(*numbers))

    def _has(self, chunk: Shape) -> bool:
        per_shard = self._array.metadata.grid.chunks_per_shard
        index = tuple(i // k for i, k in zip(chunk, per_shard, strict=True))
        stored = self._stored(index)
        place = tuple(i % k for i, k in zip(chunk, per_shard, strict=True))
        return stored is not None and bool(stored[ravel(place, per_shard)])

    def _stored(self, index: Shape) -> npt.NDArray[np.bool_] | None:
        """Which inner chunks of a shard are stored, by rank; None if it has no object."""
        if index not in self._kept:
            shard = open_shard(self._array.metadata, self._array.store, index)
            if shard is None:
                self._kept[index] = None
            else:
                with shard:
                    self._kept[index] = ~shard.index.is_empty
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return self._kept.get(index)
