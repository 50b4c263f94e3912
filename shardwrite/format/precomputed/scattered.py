"""Shards of a volume whose chunks are scattered: each shard holds chunks from everywhere.

A hash scatters them, or parameters that leave out the high bits of the ids. Such a shard is no box
of the volume. So the array that describes it to this package has the chunks
of the volume one after the other. Along its first axis, each shard has as many places as the
fullest shard holds chunks. In a shard, the chunks are ordered by minishard and by id.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import SpecError
from shardwrite.format.precomputed.morton import MortonCode
from shardwrite.format.precomputed.parameters import ShardingParameters
from shardwrite.format.precomputed.shard import Minishard, check_volume_index, decode_minishard
from shardwrite.format.precomputed.volume_object import COLUMN_NBYTES, VolumeObject, stray
from shardwrite.grid import Box, Shape, ShardGrid

MOST_CHUNKS = 2**27
"""Most chunks of a volume. Each process that writes its shards holds all ids in memory."""

Ids = npt.NDArray[np.uint64]
_BOXES = 'give "identity"'
_GZIP_NBYTES = 40  # that gzip may add to the index of a minishard


@dataclass(frozen=True, slots=True)
class ScatteredIds:
    """Ids of all chunks of a volume, by shard."""

    numbers: Ids  # numbers of the shards that hold chunks of the volume, ascending
    ids: Ids  # ids of the chunks, ordered by shard, by minishard and by id
    edges: npt.NDArray[np.int64]  # position in `ids` at which each shard begins

    @property
    def n_slots(self) -> int:
        """Number of chunks of the fullest shard."""
        return int(np.diff(self.edges).max())

    def most_in_a_minishard(self, sharding: ShardingParameters) -> int:
        """Number of chunks of the fullest minishard."""
        shards, minishards = sharding.locate(self.ids)
        is_first = np.ones(len(self.ids), dtype=bool)
        is_first[1:] = (np.diff(shards) != 0) | (np.diff(minishards) != 0)
        edges = np.append(np.flatnonzero(is_first), len(self.ids))
        return int(np.diff(edges).max())

    def of(self, number: int) -> Ids:
        """Ids of the chunks of the shard at a position in `numbers`."""
        return self.ids[self.edges[number] : self.edges[number + 1]]


@lru_cache(maxsize=4)
def scattered_ids(sharding: ShardingParameters, code: MortonCode) -> ScatteredIds:
    """Ids of all chunks of a volume, by shard."""
    n = math.prod(code.grid)
    if n > MOST_CHUNKS:
        is_hashed = sharding.hash != "identity"
        n_low = sharding.preshift_bits + sharding.minishard_bits
        raise SpecError(
            f"scatters the chunks over the shards, and there are {n:,} of them; up to "
            f"{MOST_CHUNKS:,} are scattered",
            field="hash" if is_hashed else "shard_bits",
            value=sharding.hash if is_hashed else sharding.shard_bits,
            remedy=f"{_BOXES if is_hashed else f'give at least {code.n_bits - n_low}'}, or "
            "larger chunks",
        )
    ids = np.zeros((1,) * len(code.grid), np.uint64)
    for axis, size in enumerate(code.grid):
        cells = np.zeros((size, len(code.grid)), np.int64)
        cells[:, axis] = np.arange(size)
        shape = [-1 if other == axis else 1 for other in range(len(code.grid))]
        ids = ids | code.encode(cells).reshape(shape)
    ids = ids.ravel()
    shards, minishards = sharding.locate(ids)
    order = np.lexsort((ids, minishards, shards))
    numbers, firsts = np.unique(shards[order], return_index=True)
    return ScatteredIds(numbers, ids[order], np.append(firsts, n).astype(np.int64))


@dataclass(frozen=True)
class ScatteredShards:
    """Shards of a volume, by their positions in the shard grid of their array."""

    sharding: ShardingParameters  # the parameters
    size: Shape  # size of the volume along x, y and z, in voxels
    grid: ShardGrid  # the array

    how_to_read: ClassVar[str] = (
        "read the volume in place of the scale: shardwrite.from_precomputed (shardwrite write "
        "VOLUME DST)"
    )

    def __post_init__(self) -> None:
        grid = self.grid
        is_volume = grid.ndim == 4 and all(grid.chunks) and all(grid.shape)
        if not is_volume or grid.shape[1:] != grid.chunks[1:]:
            raise SpecError(
                "no chunks of a volume, one after the other",
                field="shape",
                value=grid.shape,
                remedy="use shardwrite.to_precomputed",
            )
        check_volume_index(self.sharding)
        wanted = (self.ids.n_slots, len(self.ids.numbers))
        if (grid.chunks_per_shard[0], grid.counts[0]) != wanted:
            raise SpecError(
                f"shards that are not those of the format: there are {wanted[1]}, of up to "
                f"{wanted[0]} chunks",
                field="shards",
                value=grid.shards,
                remedy="use shardwrite.to_precomputed",
            )

    @property
    def why(self) -> str:
        """See :class:`ScatteredChunks`."""
        return f"the hash {self.sharding.hash} scatters the chunks of this scale"

    @cached_property
    def code(self) -> MortonCode:
        """Code that gives chunks their ids."""
        sizes = zip(self.size, self._chunk, strict=True)
        return MortonCode(tuple(-(-n // c) for n, c in sizes))

    @property
    def _chunk(self) -> Shape:
        """Shape of a chunk along x, y and z."""
        return self.grid.chunks[:-4:-1]

    @property
    def ids(self) -> ScatteredIds:
        """Ids of all chunks, by shard."""
        return scattered_ids(self.sharding, self.code)

    @property
    def is_cut(self) -> bool:
        """Whether chunks at the end of an axis of the volume are smaller."""
        return any(n % c for n, c in zip(self.size, self._chunk, strict=True))

    @property
    def origin_shape(self) -> Shape:
        """Shape of the volume: z, y and x, with channels before them if there are several."""
        n_channels = self.grid.chunks[0]
        return (*((n_channels,) if n_channels > 1 else ()), *self.size[::-1])

    def chunks_in(self, region: Box) -> Iterator[tuple[int, list[tuple[int, Box]]]]:
        """See :meth:`ScatteredChunks.chunks_in`."""
        if not region.size:
            return
        chunk, channels = self._chunk[::-1], region.bounds[:-3]
        spatial = zip(region.bounds[-3:], chunk, strict=True)
        axes = [np.arange(a // c, -(-b // c)) for (a, b), c in spatial]
        cells = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)[:, ::-1]
        ids = self.code.encode(cells)
        shards = self.sharding.locate(ids)[0]
        order = np.argsort(shards, kind="stable")
        edges = [0, *(np.flatnonzero(np.diff(shards[order])) + 1).tolist(), len(ids)]
        for first, last in itertools.pairwise(edges):
            here = order[first:last]
            number = int(np.searchsorted(self.ids.numbers, shards[here[0]]))
            known = self.ids.of(number)
            by_id = np.argsort(known)
            ranks = by_id[np.searchsorted(known, ids[here], sorter=by_id)]
            yield (
                number,
                [
                    (rank, self._box_of(cell, channels))
                    for rank, cell in zip(ranks.tolist(), cells[here].tolist(), strict=True)
                ],
            )

    def _box_of(self, cell: list[int], channels: tuple[tuple[int, int], ...]) -> Box:
        """Elements of the volume that a chunk holds, of all channels or of none."""
        starts = [i * c for i, c in zip(cell, self._chunk, strict=True)]
        stops = [min(a + c, n) for a, c, n in zip(starts, self._chunk, self.size, strict=True)]
        of_all = self.origin_shape[:-3]
        return Box((*(0 for _ in channels), *starts[::-1]), (*of_all, *stops[::-1]))

    def key_of(self, index: Sequence[int]) -> str:
        """Key of the shard at a position."""
        return self.sharding.key_of(int(self.ids.numbers[index[0]]))

    def index_of(self, key: str) -> Shape | None:
        """Position of the shard with a key; None if the key is that of no shard."""
        shard = self.sharding.shard_of(key)
        if shard is None:
            return None
        numbers = self.ids.numbers
        at = int(np.searchsorted(numbers, np.uint64(shard)))
        return (at, 0, 0, 0) if at < len(numbers) and int(numbers[at]) == shard else None

    def at(self, index: Sequence[int]) -> ScatteredObject:
        """What stands around the chunks of the shard at a position."""
        number = int(index[0])
        return ScatteredObject(
            self.sharding,
            self.grid.chunks_per_shard,
            ids=self.ids.of(number),
            shard=int(self.ids.numbers[number]),
        )

    def chunk_shape(self, index: Sequence[int], rank: int) -> Shape:
        """Shape of an inner chunk, cut at the end of the volume."""
        ids = self.ids.of(index[0])
        if rank >= len(ids):
            return self.grid.chunks
        cell = self.code.decode(ids[rank : rank + 1])[0].tolist()
        cut = (min(c, n - i * c) for i, c, n in zip(cell, self._chunk, self.size, strict=True))
        return (self.grid.chunks[0], *tuple(cut)[::-1])

    def origins(
        self, index: Sequence[int], other: ShardGrid
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where an array of the volume has the chunks of a shard.

        - Returns: for each chunk, the row-major rank of the other array's shard and the chunk's
          rank in it. The first is -1 for places that hold no chunk.
        """
        ids = self.ids.of(index[0])
        cells = self.code.decode(ids).astype(np.int64).T[::-1]
        n = self.grid.chunks_per_shard[0]
        numbers, ranks = np.full(n, -1, np.int64), np.zeros(n, np.int64)
        numbers[: len(ids)] = 0
        axes = zip(cells, other.counts[-3:], other.chunks_per_shard[-3:], strict=True)
        for cell, count, per_shard in axes:
            shard, inside = np.divmod(cell, per_shard)
            numbers[: len(ids)] = numbers[: len(ids)] * count + shard
            ranks[: len(ids)] = ranks[: len(ids)] * per_shard + inside
        return numbers, ranks


@dataclass(frozen=True)
class ScatteredObject(VolumeObject):
    """What stands around the chunks of a shard that holds chunks from everywhere."""

    ids: Ids | None = None  # ids of the chunks that the shard may hold, by rank
    shard: int = 0  # number of the shard

    @property
    def encoded_nbytes(self) -> int:
        """See :attr:`ObjectFormat.encoded_nbytes`; each chunk may have a minishard of its own."""
        is_gzip = self.sharding.minishard_index_encoding == "gzip"
        each = COLUMN_NBYTES + (_GZIP_NBYTES if is_gzip else 0)
        return self.base_nbytes + each * self.chunks_per_shard[0]

    @cached_property
    def _known(self) -> Ids:
        if self.ids is None:
            raise TypeError("an index of this format is that of a shard at a position")
        return self.ids

    @cached_property
    def _sorted(self) -> npt.NDArray[np.int64]:
        """Ranks of the chunks, by ascending id."""
        return np.argsort(self._known)

    def _ids_of(self, ranks: npt.NDArray[np.int64]) -> Ids:
        """Ids of the chunks of some ranks."""
        return self._known[ranks]

    def _ranks_of(
        self, number: int, data: Buffer, shard_nbytes: int
    ) -> tuple[Minishard, npt.NDArray[np.int64]]:
        """See :meth:`VolumeObject._ranks_of`."""
        limit = COLUMN_NBYTES * self.chunks_per_shard[0]
        found = decode_minishard(self.sharding, data, shard_nbytes, (self.shard, number), limit)
        at = np.searchsorted(self._known, found.ids, sorter=self._sorted)
        ranks = self._sorted[np.minimum(at, len(self._known) - 1)]
        strays = self._known[ranks] != found.ids
        if strays.any():
            raise stray(number, found, strays)
        return found, ranks
