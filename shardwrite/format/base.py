"""The format of an object: what stands around its inner chunks, and how they are found.

`IndexCodec` is the format of the sharding specification, and `NoIndex` is that of arrays without
shards.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.format.index import Seal, ShardIndex


class ObjectFormat(Protocol):
    """Where the index of an object lies, and how it is encoded and decoded."""

    @property
    def location(self) -> str:
        """``"start"``, ``"end"``, or ``"none"`` where there is no index."""

    @property
    def encoded_nbytes(self) -> int:
        """Size of an encoded index."""

    @property
    def base_nbytes(self) -> int:
        """Offset of the first inner chunk: the size of the index where that comes first, else 0."""

    @property
    def has_checksum(self) -> bool:
        """Whether an index that is torn can be told."""

    def seal(self, index: ShardIndex) -> Seal:
        """Encode the index of an object."""

    def seals(self, tables: npt.NDArray[np.uint64]) -> list[Seal]:
        """Encode the indexes of several objects.

        Parameters
        ----------
        tables : numpy.ndarray of uint64, shape (n, chunks per shard, 2)
            Offset and size of each inner chunk, in bytes.
        """

    def span(self, shard_nbytes: int) -> tuple[int, int]:
        """Start and stop of the encoded index in an object of `shard_nbytes`.

        Raises
        ------
        CorruptShardError
            If the object is too short to have one.
        """

    def decode(self, data: Buffer, shard_nbytes: int) -> ShardIndex:
        """The index of an object of `shard_nbytes`, from its encoded bytes, and checked.

        Raises
        ------
        CorruptShardError
            If the checksum differs, or an entry cannot be right.
        """
