"""Scales of volumes of Neuroglancer as arrays with a shard format of their own.

The array has the axes z, y and x, or channel, z, y and x, so that a chunk in row-major order has
the bytes that the format wants. Chunks at the end of an axis are cut there, and not padded. In a
shard, chunks lie in the order of their ids.

With the hash ``identity``, each shard is a box of the volume. Another hash scatters the chunks, and
so do parameters that leave out the high bits of the ids. Such a shard is no box of the volume. So
the array that describes it to this package has the chunks of the volume one after the other. Along
its first axis, each shard has as many places as the fullest shard holds chunks. In a shard, the
chunks are ordered by minishard and by id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, field
from functools import cached_property, lru_cache
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.checks import is_whole
from shardwrite.codecs.documents import Document
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.format.index import EMPTY, Seal, ShardIndex
from shardwrite.format.order import BY_CHUNK_ID
from shardwrite.format.strategies import Strategy, register_strategy
from shardwrite.grid import Box, Shape, ShardGrid
from shardwrite.volumes.sharding import (
    COLUMN_NBYTES,
    TYPE,
    MortonCode,
    ShardingParameters,
    by_shard,
    check_volume_index,
    seal,
    sequence,
)
from shardwrite.volumes.uint64_shard import UInt64ShardReader

# ---- The write strategy: chunks in the order of their ids


@register_strategy
@dataclass(frozen=True, slots=True)
class ByChunkId(Strategy):
    """Strategy that writes the chunks of a shard end to end, by ascending chunk id."""

    name: ClassVar[str] = "chunk-id"
    label: ClassVar[str] = "chunk-id"
    streaming_order: ClassVar[str] = BY_CHUNK_ID


# ---- What stands around the chunks of a shard, wherever these chunks lie


# Memory for each chunk while the indexes of minishards are made, as it was measured. The first
# chunks take about 1 MiB, and are not counted.
_SEALING_NBYTES = 144

_FEW_CHUNKS = 2**13

_SIZES_ONLY = "an index of this format is that of a shard at a position"

_GZIP_NBYTES = 40  # that gzip may add to the index of a minishard

Ids = npt.NDArray[np.uint64]

Read = Callable[[int, int], Buffer]


@dataclass(frozen=True, slots=True)
class _Object:
    """An object of which a function reads ranges; see `Ranges`."""

    nbytes: int  # its size
    get: Read

    def read(self, offset: int, nbytes: int) -> Buffer:
        """See :meth:`Ranges.read`."""
        return self.get(offset, nbytes)


@dataclass(frozen=True)
class VolumeObject:
    """What stands around the chunks of a shard: its index first, indexes of minishards last.

    An instance of this class itself tells sizes only. Where the chunks of a shard are known, it is
    one of a class that is derived from it.
    """

    sharding: ShardingParameters  # the parameters
    chunks_per_shard: Shape  # shape of the shard's grid of chunks
    shard: int = field(kw_only=True, default=0)  # number of the shard

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

    def _ids_of(self, ranks: npt.NDArray[np.int64]) -> Ids:  # noqa: ARG002
        """Ids of the chunks of some ranks."""
        raise TypeError(_SIZES_ONLY)

    def _ranks_of(self, ids: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:  # noqa: ARG002
        """Ranks of some chunks, and whether each is none of the volume."""
        raise TypeError(_SIZES_ONLY)

    def seal(self, index: ShardIndex) -> Seal:
        """See :meth:`ObjectFormat.seal`."""
        present = np.flatnonzero(~index.is_empty)
        ids = self._ids_of(present)
        order = sequence(self.sharding, ids)
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
        """See :mod:`shardwrite.format.sharding`. Each byte must belong to a chunk or to an index.

        - Raises CorruptShardError if an index is damaged, or bytes belong to nothing.
        """
        span, n = self.span(shard_nbytes), math.prod(self.chunks_per_shard)
        limit = max(self.base_nbytes, COLUMN_NBYTES * n + _GZIP_NBYTES)
        source = _Object(shard_nbytes, read)
        found = UInt64ShardReader(self.sharding, self.shard, source, limit).checked_contents()
        ranks, strays = self._ranks_of(found.ids)
        if strays.any():
            raise CorruptShardError(
                f"its index names chunk {int(found.ids[strays][0])}, which is none of the volume"
            )
        table = np.full((n, 2), EMPTY, np.uint64)
        table[ranks, 0], table[ranks, 1] = found.offsets, found.nbytes
        index = ShardIndex(table)
        index.check(shard_nbytes, span, self.chunks_per_shard)
        used = int((found.ranges[:, 1] - found.ranges[:, 0]).sum())
        if used < shard_nbytes:  # There is no checksum, but whoever writes a scale leaves none out.
            raise CorruptShardError(
                f"{shard_nbytes - used} bytes belong to no chunk and to no index, so a part of the "
                "index is lost"
            )
        return index, found.index_nbytes


# ---- Shards with scattered chunks


MOST_CHUNKS = 2**27
"""Most chunks of a volume. Each process that writes its shards holds all ids in memory."""

_BOXES = 'give "identity"'


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
        return MortonCode.of(self.size, self._chunk)

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
        for shard, here in by_shard(self.sharding, ids):
            number = int(np.searchsorted(self.ids.numbers, np.uint64(shard)))
            ids_of_shard = self.ids.of(number)
            by_id = np.argsort(ids_of_shard)
            ranks = by_id[np.searchsorted(ids_of_shard, ids[here], sorter=by_id)]
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

    @property
    def encoded_nbytes(self) -> int:
        """See :attr:`ObjectFormat.encoded_nbytes`; each chunk may have a minishard of its own."""
        is_gzip = self.sharding.minishard_index_encoding == "gzip"
        each = COLUMN_NBYTES + (_GZIP_NBYTES if is_gzip else 0)
        return self.base_nbytes + each * self.chunks_per_shard[0]

    @cached_property
    def _known(self) -> Ids:
        if self.ids is None:
            raise TypeError(_SIZES_ONLY)
        return self.ids

    @cached_property
    def _sorted(self) -> npt.NDArray[np.int64]:
        """Ranks of the chunks, by ascending id."""
        return np.argsort(self._known)

    def _ids_of(self, ranks: npt.NDArray[np.int64]) -> Ids:
        """Ids of the chunks of some ranks."""
        return self._known[ranks]

    def _ranks_of(self, ids: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """See :meth:`VolumeObject._ranks_of`."""
        at = np.searchsorted(self._known, ids, sorter=self._sorted)
        ranks = self._sorted[np.minimum(at, len(self._known) - 1)]
        return ranks, self._known[ranks] != ids


# ---- Shards that are boxes of chunks


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
    if not all(is_whole(n, 1) for n in found):
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
        return MortonCode.of(self.grid.shape[:-4:-1], self.grid.chunks[:-4:-1])

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
        codes, ranks = _low_codes(self.code, self.n_low)
        shard = first >> self.n_low
        return BoxObject(self.sharding, counts, first, inside, codes, ranks, shard=shard)


@lru_cache(maxsize=8)
def _low_codes(
    code: MortonCode, n_low: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Low bits of the ids of a shard's chunks, and the ranks of chunks by these bits."""
    codes = code.low_codes(n_low).T.ravel()  # from x, y, z to row-major order of z, y, x
    ranks = np.empty(len(codes), np.int64)
    ranks[codes.astype(np.int64)] = np.arange(len(codes))
    return codes, ranks


@dataclass(frozen=True)
class BoxObject(VolumeObject):
    """The indexes around the chunks of a shard, if the shard is a box of the volume."""

    first: int  # id of its first chunk
    inside: Shape  # how many of its chunks are in the volume, along each axis
    codes: npt.NDArray[np.uint64]  # see `_low_codes`
    ranks: npt.NDArray[np.int64]

    def _ids_of(self, ranks: npt.NDArray[np.int64]) -> Ids:
        """Ids of the chunks of some ranks."""
        return self.codes[ranks] | np.uint64(self.first)

    def _ranks_of(self, ids: Ids) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """See :meth:`VolumeObject._ranks_of`."""
        codes = ids ^ np.uint64(self.first)
        strays = codes >= np.uint64(math.prod(self.chunks_per_shard))
        ranks = self.ranks[np.where(strays, 0, codes).astype(np.int64)]
        cells = np.unravel_index(ranks, self.chunks_per_shard)
        for cell, count in zip(cells, self.inside, strict=True):
            strays |= cell >= count
        return ranks, strays
