"""Arrays without shards: each inner chunk is an object of its own, and there is no index.

Such an array is treated as one whose shards hold a single inner chunk. Its index follows from the
size of the object.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CorruptShardError
from shardwrite.format.index import Seal, ShardIndex


class NoIndex:
    """What `IndexCodec` is for shards: nothing stands around the only inner chunk of an object."""

    location = "none"
    encoded_nbytes = 0
    base_nbytes = 0
    has_checksum = False

    def seal(self, index: ShardIndex) -> Seal:
        """Nothing before the inner chunk, and nothing behind it."""
        return Seal(index, b"", b"")

    def seals(self, tables: npt.NDArray[np.uint64]) -> list[Seal]:
        """The same for several objects, their tables in one array of shape (n, 1, 2)."""
        return [self.seal(ShardIndex(table)) for table in tables]

    def span(self, shard_nbytes: int) -> tuple[int, int]:
        """An empty span at the end of the object.

        - Raises CorruptShardError if the object is empty: no codec leaves nothing of an inner
          chunk.
        """
        if not shard_nbytes:
            raise CorruptShardError("the object is empty")
        return shard_nbytes, shard_nbytes

    def decode(self, data: Buffer, shard_nbytes: int) -> ShardIndex:  # noqa: ARG002 (there is none)
        """The index of an object of `shard_nbytes`: its inner chunk is all of it."""
        return ShardIndex(np.array([[0, shard_nbytes]], dtype=np.uint64))
