"""What stands around the chunks of a shard of a volume, wherever these chunks lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CorruptShardError
from shardwrite.format.index import EMPTY, Seal, ShardIndex
from shardwrite.format.precomputed.parameters import ShardingParameters
from shardwrite.format.precomputed.shard import Minishard, check_ranges, parse_entries, seal
from shardwrite.grid import Shape

COLUMN_NBYTES = 24
"""Bytes that the index of a minishard has for each chunk, before it is compressed."""

# Memory for each chunk while the indexes of minishards are made, as it was measured. The first
# chunks take about 1 MiB, and are not counted.
_SEALING_NBYTES = 144
_FEW_CHUNKS = 2**13

Read = Callable[[int, int], Buffer]


def stray(number: int, found: Minishard, strays: npt.NDArray[np.bool_]) -> CorruptShardError:
    """The error that the index of a minishard names chunks which are none of the volume."""
    return CorruptShardError(
        f"index of minishard {number} names chunk {int(found.ids[strays][0])}, which is none of "
        "the volume"
    )


@dataclass(frozen=True)
class VolumeObject:
    """What stands around the chunks of a shard: its index first, indexes of minishards last.

    An instance of this class itself tells sizes only. Where the chunks of a shard are known, it is
    one of a class that is derived from it.
    """

    sharding: ShardingParameters  # the parameters
    chunks_per_shard: Shape  # shape of the shard's grid of chunks

    location: ClassVar[str] = "start and end"
    has_checksum: ClassVar[bool] = False

    @property
    def encoded_nbytes(self) -> int:
        """See :attr:`ObjectFormat.encoded_nbytes`; the most that all indexes take together."""
        return self.base_nbytes + COLUMN_NBYTES * math.prod(self.chunks_per_shard)

    @property
    def base_nbytes(self) -> int:
        """See :attr:`ObjectFormat.base_nbytes`."""
        return self.sharding.shard_index_nbytes

    @property
    def sealing_nbytes(self) -> int:
        """Memory that the indexes take while they are made, in bytes."""
        n_chunks = math.prod(self.chunks_per_shard)
        return self.base_nbytes + _SEALING_NBYTES * max(0, n_chunks - _FEW_CHUNKS)

    def _ids_of(self, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Ids of the chunks of some ranks."""
        raise _sizes_only(ranks)

    def _ranks_of(
        self, number: int, data: Buffer, shard_nbytes: int
    ) -> tuple[Minishard, npt.NDArray[np.int64]]:
        """What the index of a minishard says, and the ranks of its chunks.

        - Raises CorruptShardError if the index is damaged, or names chunks that the volume does not
          have.
        """
        raise _sizes_only((number, data, shard_nbytes))

    def seal(self, index: ShardIndex) -> Seal:
        """See :meth:`ObjectFormat.seal`."""
        present = np.flatnonzero(~index.is_empty)
        ids = self._ids_of(present)
        order = np.lexsort((ids, self.sharding.locate(ids)[1]))
        rows = index.table[present[order]]
        starts = rows[:, 0] - np.uint64(self.base_nbytes)
        sealed = seal(self.sharding, ids[order], rows[:, 1], starts)
        return Seal(index, sealed.prefix(self.base_nbytes), sealed.suffix)

    def seals(self, tables: npt.NDArray[np.uint64]) -> list[Seal]:
        """See :meth:`ObjectFormat.seals`."""
        return [self.seal(ShardIndex(table)) for table in tables]

    def span(self, shard_nbytes: int) -> tuple[int, int]:
        """See :meth:`ObjectFormat.span`: the index at the start."""
        if shard_nbytes < self.base_nbytes:
            raise CorruptShardError(
                f"{shard_nbytes} bytes are too few for an index of {self.base_nbytes}"
            )
        return 0, self.base_nbytes

    def decode(self, data: Buffer, shard_nbytes: int) -> ShardIndex:
        """See :meth:`ObjectFormat.decode`; `data` is the whole object here."""
        view = memoryview(data).cast("B")
        return self.load(lambda offset, nbytes: view[offset : offset + nbytes], shard_nbytes)[0]

    def load(self, read: Read, shard_nbytes: int) -> tuple[ShardIndex, int]:
        """See :meth:`LoadedFormat.load`. Each byte must belong to a chunk or to an index.

        - Raises CorruptShardError if an index is damaged, or bytes belong to nothing.
        """
        base = self.span(shard_nbytes)[1]
        entries = parse_entries(read(0, base))
        numbers = np.flatnonzero(entries[:, 0] != entries[:, 1])
        spans = entries[numbers]
        check_ranges(spans, shard_nbytes - base, "index of a minishard")
        table = np.full((math.prod(self.chunks_per_shard), 2), EMPTY, np.uint64)
        for number, (start, end) in zip(numbers.tolist(), spans.tolist(), strict=True):
            found, ranks = self._ranks_of(number, read(base + start, end - start), shard_nbytes)
            table[ranks, 0], table[ranks, 1] = found.offsets, found.nbytes
        index = ShardIndex(table)
        index.check(shard_nbytes, (0, base), self.chunks_per_shard)
        present = np.unique(table[~index.is_empty], axis=0)
        present[:, 1] += present[:, 0]
        taken = check_ranges(
            np.concatenate([spans + np.uint64(base), present]), shard_nbytes, "chunk or index"
        )
        unused = shard_nbytes - base - int((taken[:, 1] - taken[:, 0]).sum())
        if unused:  # There is no checksum, but whoever writes a scale leaves no byte out.
            raise CorruptShardError(
                f"{unused} bytes belong to no chunk and to no index, so a part of the index is lost"
            )
        return index, base + int((spans[:, 1] - spans[:, 0]).sum())


def _sizes_only(given: object) -> TypeError:
    return TypeError(f"an index of this format is that of a shard at a position: {given}")
