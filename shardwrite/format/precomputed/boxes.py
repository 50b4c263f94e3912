"""Shards of a volume as those of an array: with the hash ``identity``, each is a box of chunks.

The array has the axes z, y and x, or channel, z, y and x, so that a chunk in row-major order has
the bytes that the format wants. Chunks at the end of an axis are cut there, and not padded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import Document
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import SpecError
from shardwrite.format.precomputed.by_chunk_id import ByChunkId
from shardwrite.format.precomputed.morton import MortonCode
from shardwrite.format.precomputed.parameters import TYPE, ShardingParameters
from shardwrite.format.precomputed.scattered import ScatteredObject, ScatteredShards
from shardwrite.format.precomputed.shard import Minishard, check_volume_index, decode_minishard
from shardwrite.format.precomputed.volume_object import COLUMN_NBYTES, VolumeObject, stray
from shardwrite.grid import Shape, ShardGrid

_SIZE = "volume_size"
_FROM_INFO = "give the size of the scale, as info has it"


def box_of_chunks(sharding: ShardingParameters, code: MortonCode) -> Shape:
    """Shape of the box of chunks that a shard holds, along x, y and z."""
    if sharding.hash != "identity":
        raise SpecError(
            "scatters the chunks of a shard over the volume, so that a shard is no box of it",
            field="hash",
            value=sharding.hash,
            remedy='give "identity", or write the array by shardwrite.to_precomputed',
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
    check_volume_index(sharding)
    return code.low_box(n_low)


@dataclass(frozen=True)
class PrecomputedShards:
    """The shard format of Neuroglancer for volumes."""

    sharding: ShardingParameters  # the parameters, as in ``info``
    # Size of the volume along x, y and z, in voxels, if the hash scatters its chunks. The array
    # then holds these chunks one after the other; see `ScatteredShards`.
    size: Shape | None = None

    name: ClassVar[str] = TYPE
    cuts_edges: ClassVar[bool] = True
    why_kept: ClassVar[str] = (
        "it is a scale of a volume of Neuroglancer, whose info would go on to list it"
    )
    own_strategy: ClassVar[ByChunkId] = ByChunkId()

    def to_dict(self) -> Document:
        """See :meth:`ShardFormat.to_dict`."""
        scattered = {} if self.size is None else {_SIZE: list(self.size)}
        return {**asdict(self.sharding), **scattered}

    @classmethod
    def from_dict(cls, configuration: Document) -> Self:
        """See :meth:`ShardFormat.from_dict`."""
        own = {k: v for k, v in configuration.items() if k not in ("chunk_shape", "codecs")}
        size = own.pop(_SIZE, None)
        sharding = ShardingParameters.from_dict({"@type": TYPE, **own})
        return cls(sharding, None if size is None else _checked_size(size))

    def build(self, chunks_per_shard: Shape) -> VolumeObject:
        """See :meth:`ShardFormat.build`; it tells sizes only, since ids depend on the place."""
        if self.size is not None:
            return ScatteredObject(self.sharding, chunks_per_shard)
        return VolumeObject(self.sharding, chunks_per_shard)

    def within(self, grid: ShardGrid) -> ShardBoxes | ScatteredShards:
        """See :meth:`PlacedShardFormat.within`."""
        if self.size is not None:
            return ScatteredShards(self.sharding, self.size, grid)
        return ShardBoxes(self.sharding, grid)


def _checked_size(found: object) -> Shape:
    if not isinstance(found, list) or len(found) != 3:
        raise SpecError("not three numbers", field=_SIZE, value=found, remedy=_FROM_INFO)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in found):
        raise SpecError("not a size in voxels", field=_SIZE, value=found, remedy=_FROM_INFO)
    return tuple(found)


@dataclass(frozen=True)
class ShardBoxes:
    """Shards of a volume, by their positions in the shard grid of its array."""

    sharding: ShardingParameters  # the parameters
    grid: ShardGrid  # the array

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

    def at(self, index: Sequence[int]) -> BoxObject:
        """What stands around the chunks of the shard at a position."""
        counts = self.grid.chunks_per_shard
        inside = tuple(
            min(n, -(-size // c) - i * n)
            for i, n, size, c in zip(index, counts, self.grid.shape, self.grid.chunks, strict=True)
        )
        first = self.first_id(index)
        table = _table(self.code, self.n_low)
        return BoxObject(self.sharding, counts, _Position(first, self.n_low, table, inside))


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
class BoxObject(VolumeObject):
    """The indexes around the chunks of a shard, if the shard is a box of the volume."""

    position: _Position  # where the shard lies

    def _ids_of(self, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Ids of the chunks of some ranks."""
        here = self.position
        return here.table.codes[ranks] | np.uint64(here.first)

    def _ranks_of(
        self, number: int, data: Buffer, shard_nbytes: int
    ) -> tuple[Minishard, npt.NDArray[np.int64]]:
        """See :meth:`VolumeObject._ranks_of`."""
        here, n = self.position, math.prod(self.chunks_per_shard)
        place = (here.first >> here.n_low, number)
        found = decode_minishard(self.sharding, data, shard_nbytes, place, COLUMN_NBYTES * n)
        codes = found.ids ^ np.uint64(here.first)
        strays = codes >= np.uint64(n)
        ranks = here.table.ranks[np.where(strays, 0, codes).astype(np.int64)]
        cells = np.unravel_index(ranks, self.chunks_per_shard)
        for cell, count in zip(cells, here.inside, strict=True):
            strays |= cell >= count
        if strays.any():
            raise stray(number, found, strays)
        return found, ranks
