"""Shards of a volume as those of an array: with the hash ``identity``, each is a box of chunks.

The array has the axes z, y and x, or channel, z, y and x, so that a chunk in row-major order has
the bytes that the format wants. Chunks at the end of an axis are cut there, and not padded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import Document
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.format.index import EMPTY, Seal, ShardIndex
from shardwrite.format.precomputed.by_chunk_id import ByChunkId
from shardwrite.format.precomputed.morton import MortonCode
from shardwrite.format.precomputed.parameters import TYPE, ShardingParameters
from shardwrite.format.precomputed.shard import (
    check_ranges,
    check_shard_index,
    decode_minishard,
    parse_entries,
    seal,
)
from shardwrite.format.sharding import register_shard_format
from shardwrite.grid import Shape, ShardGrid

__all__ = ["INDEX_LIMIT_NBYTES", "PrecomputedShards", "ShardBoxes", "VolumeObject", "box_of_chunks"]

INDEX_LIMIT_NBYTES = 64 * 2**20
"""Largest index at the start of a shard."""

_COLUMN_NBYTES = 24
Read = Callable[[int, int], Buffer]


def box_of_chunks(sharding: ShardingParameters, code: MortonCode) -> Shape:
    """Shape of the box of chunks that a shard holds, along x, y and z.

    Parameters
    ----------
    sharding : ShardingParameters
        The parameters.
    code : MortonCode
        Code that gives chunks their ids.

    Raises
    ------
    SpecError
        If a shard holds no box of chunks, or its index is too large.
    """
    if sharding.hash != "identity":
        raise SpecError(
            "scatters the chunks of a shard over the volume, so that no task could write a whole "
            "shard",
            field="hash",
            value=sharding.hash,
            remedy='give "identity", with which a shard is a box of the volume',
        )
    n_low = sharding.preshift_bits + sharding.minishard_bits
    needed = code.n_bits - n_low
    if sharding.shard_bits < needed:
        raise SpecError(
            f"the chunk ids have {code.n_bits} bits, of which a shard takes {n_low}, so that far "
            "parts of the volume would share a shard",
            field="shard_bits",
            value=sharding.shard_bits,
            remedy=f"give at least {needed}, or more preshift_bits or minishard_bits",
        )
    check_shard_index(sharding, INDEX_LIMIT_NBYTES, "give fewer minishard_bits")
    return code.low_box(n_low)


@register_shard_format
@dataclass(frozen=True)
class PrecomputedShards:
    """The shard format of Neuroglancer for volumes.

    Attributes
    ----------
    sharding : ShardingParameters
        The parameters, as in ``info``.
    """

    sharding: ShardingParameters

    name: ClassVar[str] = TYPE
    cuts_edges: ClassVar[bool] = True
    own_strategy: ClassVar[ByChunkId] = ByChunkId()

    def to_dict(self) -> Document:
        """See :meth:`ShardFormat.to_dict`."""
        return asdict(self.sharding)

    @classmethod
    def from_dict(cls, configuration: Document) -> Self:
        """See :meth:`ShardFormat.from_dict`."""
        own = {k: v for k, v in configuration.items() if k not in ("chunk_shape", "codecs")}
        return cls(ShardingParameters.from_dict({"@type": TYPE, **own}))

    def build(self, chunks_per_shard: Shape) -> VolumeObject:
        """See :meth:`ShardFormat.build`; it tells sizes only, since ids depend on the place."""
        return VolumeObject(self.sharding, chunks_per_shard)

    def within(self, grid: ShardGrid) -> ShardBoxes:
        """See :meth:`PlacedShardFormat.within`."""
        return ShardBoxes(self.sharding, grid)


@dataclass(frozen=True)
class ShardBoxes:
    """Shards of a volume, by their positions in the shard grid of its array.

    Attributes
    ----------
    sharding : ShardingParameters
        The parameters.
    grid : ShardGrid
        The array.

    Raises
    ------
    SpecError
        If the shards of the grid are not those of the format.
    """

    sharding: ShardingParameters
    grid: ShardGrid

    def __post_init__(self) -> None:
        grid = self.grid
        is_volume = grid.ndim in (3, 4) and all(grid.shape)
        whole_channels = grid.shape[:-3] == grid.chunks[:-3] == grid.shards[:-3]
        if not is_volume or not whole_channels:
            raise SpecError(
                "no volume: its axes are z, y and x, or channel, z, y and x, and a chunk holds all "
                "channels",
                field="shape",
                value=grid.shape,
                remedy="use shardwrite.to_precomputed",
            )
        counts = box_of_chunks(self.sharding, self.code)[::-1]
        if counts != grid.chunks_per_shard[-3:]:
            remedy = f"give shards of {counts} inner chunks"
            raise SpecError(
                "shards that are not those of the format",
                field="shards",
                value=grid.shards,
                remedy=remedy,
            )

    @cached_property
    def code(self) -> MortonCode:
        """Code that gives chunks their ids."""
        grid = self.grid
        sizes = zip(grid.shape[-3:], grid.chunks[-3:], strict=True)
        return MortonCode(tuple(-(-n // c) for n, c in sizes)[::-1])

    @property
    def n_low(self) -> int:
        """Number of the low bits of an id that tell chunks of one shard apart."""
        return self.sharding.preshift_bits + self.sharding.minishard_bits

    def first_id(self, index: Sequence[int]) -> int:
        """Id of the first chunk of the shard at a position."""
        counts = self.grid.chunks_per_shard
        first = [i * n for i, n in zip(index, counts, strict=True)]
        return int(self.code.encode([first[:-4:-1]])[0])

    def key_of(self, index: Sequence[int]) -> str:
        """Key of the shard at a position."""
        return self.sharding.key_of(self.first_id(index) >> self.n_low)

    def index_of(self, key: str) -> Shape | None:
        """Position of the shard with a key; None if the key is that of no shard."""
        shard = self.sharding.shard_of(key)
        if shard is None or shard << self.n_low >> self.code.n_bits:
            return None
        try:
            cell = self.code.decode([shard << self.n_low])[0].tolist()[::-1]
        except SpecError:  # a position outside of the volume
            return None
        counts = self.grid.chunks_per_shard[-3:]
        spatial = tuple(i // n for i, n in zip(cell, counts, strict=True))
        return (*(0 for _ in self.grid.shape[:-3]), *spatial)

    def at(self, index: Sequence[int]) -> VolumeObject:
        """What stands around the chunks of the shard at a position."""
        counts = self.grid.chunks_per_shard
        inside = tuple(
            min(n, -(-size // c) - i * n)
            for i, n, size, c in zip(index, counts, self.grid.shape, self.grid.chunks, strict=True)
        )
        first = self.first_id(index)
        table = _table(self.code, self.n_low)
        return VolumeObject(self.sharding, counts, _Position(first, self.n_low, table, inside))


@dataclass(frozen=True)
class _Table:
    """Low bits of the ids of a shard's chunks, and the ranks of chunks by these bits."""

    codes: npt.NDArray[np.uint64]
    ranks: npt.NDArray[np.int64]


@lru_cache(maxsize=8)
def _table(code: MortonCode, n_low: int) -> _Table:
    codes = code.low_codes(n_low).T.ravel()  # from x, y, z to row-major order of z, y, x
    ranks = np.empty(len(codes), np.int64)
    ranks[codes.astype(np.int64)] = np.arange(len(codes))
    return _Table(codes, ranks)


@dataclass(frozen=True)
class _Position:
    """Where a shard lies: id of its first chunk, and how many of its chunks are in the volume."""

    first: int
    n_low: int
    table: _Table
    inside: Shape


@dataclass(frozen=True)
class VolumeObject:
    """What stands around the chunks of a shard: its index first, indexes of minishards last.

    Attributes
    ----------
    sharding : ShardingParameters
        The parameters.
    chunks_per_shard : tuple of int
        Shape of the shard's grid of chunks.
    position : _Position, optional
        Where the shard lies. Without it the object tells sizes only.
    """

    sharding: ShardingParameters
    chunks_per_shard: Shape
    position: _Position | None = None

    location: ClassVar[str] = "start and end"
    has_checksum: ClassVar[bool] = False

    @property
    def encoded_nbytes(self) -> int:
        """See :attr:`ObjectFormat.encoded_nbytes`; the most that all indexes take together."""
        return self.base_nbytes + _COLUMN_NBYTES * math.prod(self.chunks_per_shard)

    @property
    def base_nbytes(self) -> int:
        """See :attr:`ObjectFormat.base_nbytes`."""
        return self.sharding.shard_index_nbytes

    @property
    def _at(self) -> _Position:
        if self.position is None:
            raise TypeError("an index of this format is that of a shard at a position")
        return self.position

    def seal(self, index: ShardIndex) -> Seal:
        """See :meth:`ObjectFormat.seal`."""
        here = self._at
        present = np.flatnonzero(~index.is_empty)
        codes = here.table.codes[present]
        order = np.argsort(codes)  # by minishard and by id, because no hash is between them
        rows = index.table[present[order]]
        ids = codes[order] | np.uint64(here.first)
        starts = rows[:, 0] - np.uint64(self.base_nbytes)
        sealed = seal(self.sharding, ids, rows[:, 1], starts)
        prefix = bytearray(self.base_nbytes)
        for offset, piece in sealed.entries:
            prefix[offset : offset + len(piece)] = piece
        return Seal(index, bytes(prefix), sealed.suffix)

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
        """See :meth:`LoadedFormat.load`."""
        base = self.span(shard_nbytes)[1]
        entries = parse_entries(read(0, base))
        numbers = np.flatnonzero(entries[:, 0] != entries[:, 1])
        spans = entries[numbers]
        check_ranges(spans, shard_nbytes - base, "index of a minishard")
        table = np.full((math.prod(self.chunks_per_shard), 2), EMPTY, np.uint64)
        for number, (start, end) in zip(numbers.tolist(), spans.tolist(), strict=True):
            self._enter(table, number, read(base + start, end - start), shard_nbytes)
        index = ShardIndex(table)
        index.check(shard_nbytes, (0, base), self.chunks_per_shard)
        present = np.unique(table[~index.is_empty], axis=0)
        present[:, 1] += present[:, 0]
        check_ranges(
            np.concatenate([spans + np.uint64(base), present]), shard_nbytes, "chunk or index"
        )
        return index, base + int((spans[:, 1] - spans[:, 0]).sum())

    def _enter(
        self, table: npt.NDArray[np.uint64], number: int, data: Buffer, shard_nbytes: int
    ) -> None:
        """Enter the chunks of a minishard into the table of the shard."""
        here, limit = self._at, _COLUMN_NBYTES * len(table)
        place = (here.first >> here.n_low, number)
        found = decode_minishard(self.sharding, data, shard_nbytes, place, limit)
        codes = found.ids ^ np.uint64(here.first)
        strays = codes >= np.uint64(len(table))
        ranks = here.table.ranks[np.where(strays, 0, codes).astype(np.int64)]
        for cells, n in zip(
            np.unravel_index(ranks, self.chunks_per_shard), here.inside, strict=True
        ):
            strays |= cells >= n
        if strays.any():
            raise CorruptShardError(
                f"index of minishard {number} names chunk {int(found.ids[strays][0])}, which is "
                "none of the volume"
            )
        table[ranks, 0], table[ranks, 1] = found.offsets, found.nbytes
