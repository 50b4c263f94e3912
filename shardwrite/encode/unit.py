"""Encoding of a unit: pieces of the source become encoded inner chunks.

A unit is encoded in batches. For each batch, a box of whole inner chunks is copied from the pieces
into a buffer. Each thread keeps its buffer, because the first touch of memory costs more than the
copy. Empty inner chunks are dropped, and the others are encoded. A batch is valid until the next
one is requested.

In memory, all inner chunks of a batch have one shape, and those that reach beyond the array are
padded with the fill value. A format such as Neuroglancer's stores only what lies in the array.

For a small shard, most of the cost is in the steps of the interpreter, which has one lock for all
threads. Where a batch has room for several shards, these steps are taken once for all of them. The
bytes are the same as those of shards that are encoded one by one.
"""

from __future__ import annotations

import itertools
import math
import operator
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CodecError, CorruptShardError, SourceError
from shardwrite.format.index import EMPTY, Seal, ShardIndex
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.order import boxes, permutation
from shardwrite.grid import Box, Shape, ShardGrid, unravel

# ---- Inner chunks that the format cuts at the edges of the array


def encode_tiles(
    metadata: ArrayMetadata,
    tiles: npt.NDArray[Any],
    rows: npt.NDArray[np.int64] | None,
    region: Box,
) -> Sequence[Buffer]:
    """Encode inner chunks, cut at the edges of the array if the format says so.

    - `tiles`: shape (n, *chunks). Inner chunks of `region`, row-major.
    - `rows`: those to encode, in the order wanted; all by default.
    - Raises CodecError if the codecs cannot encode a chunk. It names the shard and the region of
      this chunk.
    """
    try:
        return _encoded(metadata, tiles, rows, region)
    except CodecError as error:
        raise _located(error, metadata, tiles, rows, region) from error


def _located(
    error: CodecError,
    metadata: ArrayMetadata,
    tiles: npt.NDArray[Any],
    rows: npt.NDArray[np.int64] | None,
    region: Box,
) -> CodecError:
    """The error of the first inner chunk that fails by itself; else the one that is given."""
    grid = metadata.grid
    for row in range(len(tiles)) if rows is None else rows.tolist():
        try:
            _encoded(metadata, tiles, np.array([row]), region)
        except CodecError as found:
            cell = np.unravel_index(row, grid.chunk_counts_in(region))
            start = tuple(
                a + int(i) * c for a, i, c in zip(region.start, cell, grid.chunks, strict=True)
            )
            stop = tuple(
                min(a + c, n) for a, c, n in zip(start, grid.chunks, grid.shape, strict=True)
            )
            shard = tuple(a // s for a, s in zip(start, grid.shards, strict=True))
            return found.located(metadata.shard_key(shard), Box(start, stop).bounds)
    return error


def _encoded(
    metadata: ArrayMetadata,
    tiles: npt.NDArray[Any],
    rows: npt.NDArray[np.int64] | None,
    region: Box,
) -> Sequence[Buffer]:
    """Encode inner chunks. The parameters are those of `encode_tiles`."""
    if not metadata.is_cut or metadata.grid.whole.contains(region):
        return metadata.pipeline.encode(tiles, rows)
    rows = np.arange(len(tiles)) if rows is None else rows
    buffers: list[Buffer] = [b""] * len(rows)
    for shape, members in _by_shape(metadata, region, rows).items():
        if shape == metadata.grid.chunks:
            encoded = metadata.pipeline.encode(tiles, rows[members])
        else:
            inside = (slice(None), *(slice(0, n) for n in shape))
            cut = np.ascontiguousarray(tiles[rows[members]][inside])
            encoded = metadata.pipeline_of(shape).encode(cut)
        for member, buffer in zip(members.tolist(), encoded, strict=True):
            buffers[member] = buffer
    return buffers


def _by_shape(
    metadata: ArrayMetadata, region: Box, rows: npt.NDArray[np.int64]
) -> dict[Shape, npt.NDArray[np.int64]]:
    """Positions in `rows` of the inner chunks of each shape; at most two to the number of axes."""
    grid = metadata.grid
    cells = np.unravel_index(rows, grid.chunk_counts_in(region))
    sizes = []
    for at, start, n, c in zip(cells, region.start, grid.shape, grid.chunks, strict=True):
        sizes.append(np.minimum(c, n - (start + at * c)))
    table = np.stack(sizes, axis=1)
    shapes, which = np.unique(table, axis=0, return_inverse=True)
    return {
        tuple(shape): np.flatnonzero(which.reshape(-1) == number)
        for shape, number in zip(shapes.tolist(), itertools.count())
    }


def decode_tile(metadata: ArrayMetadata, key: str, rank: int, data: Buffer) -> npt.NDArray[Any]:
    """Decode an inner chunk, and pad it with the fill value if it was cut.

    - Raises CorruptShardError if the bytes are not those of the chunk.
    """
    if not metadata.is_cut:
        return metadata.pipeline.decode(data)
    shape = metadata.chunk_box(key, rank).shape
    if shape == metadata.grid.chunks:
        return metadata.pipeline.decode(data)
    chunk = np.full(metadata.grid.chunks, metadata.fill_value, metadata.dtype)
    chunk[tuple(slice(0, n) for n in shape)] = metadata.pipeline_of(shape).decode(data)
    return chunk


# ---- Units and batches


Array = npt.NDArray[Any]

_ONLY_TEXT = np.dtypes.StringDType(coerce=False)

_LEAST_ROW_NBYTES = 32  # shorter rows are copied element by element

MOST_IN_BATCH = 2**13
"""Inner chunks that are encoded at a time, at most: each is an object of about 100 bytes."""


_MOST_KEPT = 2**17  # units with more inner chunks do not have their steps cached

_scratch = threading.local()


class Pieces:
    """Source arrays with their positions, to be cut into inner chunks."""

    def __init__(self, origins: Sequence[Shape], arrays: Sequence[Array]) -> None:
        self.arrays = arrays
        ndim = len(origins[0]) if origins else 0
        self._starts = np.array(origins, dtype=np.int64).reshape(len(arrays), ndim)
        self._stops = self._starts + np.array([a.shape for a in arrays], dtype=np.int64).reshape(
            len(arrays), ndim
        )

    def copy_into(self, tiles: Array, counts: Shape, chunks: Shape, region: Box) -> None:
        """Copy the elements of a region from the pieces into its inner chunks.

        Elements that no piece holds are left as they are.

        - `tiles`: shape (prod(counts), *chunks). Inner chunks of the region in row-major order,
          which are written to.
        """
        grid = tiles.reshape((*counts, *chunks))
        for array, first, last, begin in self._overlaps(region):
            _copy_box(grid, array[Box(tuple(first), tuple(last)).slices], begin, chunks)

    def _overlaps(
        self, region: Box
    ) -> Iterator[tuple[Array, Sequence[int], Sequence[int], Sequence[int]]]:
        """Overlaps of the pieces with a region.

        Each item is the array of the piece, the first and last corner of the overlap in that array,
        and its first corner in the region.
        """
        # One piece is the most frequent case, and Python integers are faster here than numpy.
        if len(self.arrays) == 1:
            start, stop = self._starts[0].tolist(), self._stops[0].tolist()
            firsts, lasts = [*map(max, start, region.start)], [*map(min, stop, region.stop)]
            if all(map(operator.lt, firsts, lasts)):
                yield (
                    self.arrays[0],
                    [*map(operator.sub, firsts, start)],
                    [*map(operator.sub, lasts, start)],
                    [*map(operator.sub, firsts, region.start)],
                )
            return
        origin = np.array(region.start, dtype=np.int64)
        first, last = np.maximum(self._starts, region.start), np.minimum(self._stops, region.stop)
        hits = np.flatnonzero((first < last).all(axis=1))
        inside = (first - self._starts)[hits].tolist(), (last - self._starts)[hits].tolist()
        for hit, *corners in zip(
            hits.tolist(), *inside, (first - origin)[hits].tolist(), strict=True
        ):
            yield self.arrays[hit], *corners


def _runs(start: int, stop: int, chunk: int) -> list[tuple[int, int, int, int]]:
    """Cut an interval into at most three runs of chunks that it covers in the same way.

    A run is (first chunk, number of chunks, offset in each chunk, length in each chunk).
    """
    first, offset = divmod(start, chunk)
    if stop <= (first + 1) * chunk:
        return [(first, 1, offset, stop - start)]
    runs = []
    if offset:
        runs.append((first, 1, offset, chunk - offset))
        first += 1
    last, rest = divmod(stop, chunk)
    if last > first:
        runs.append((first, last - first, 0, chunk))
    if rest:
        runs.append((last, 1, 0, rest))
    return runs


def _copy_box(grid: Array, source: Array, begin: Sequence[int], chunks: Shape) -> None:
    """Copy `source` into ``grid[chunk index..., element in chunk...]``, from element `begin` on."""
    per_axis = [_runs(a, a + n, c) for a, n, c in zip(begin, source.shape, chunks, strict=True)]
    is_object = source.dtype.kind in "OT"
    if source.dtype.hasobject and grid.dtype.kind == "T":
        # Otherwise numpy would make a text of any object.
        source = source.astype(_ONLY_TEXT)
    for runs in itertools.product(*per_axis):
        part = source
        if any(len(along) > 1 for along in per_axis):
            cut: Any = [
                slice(f * c + o - s, f * c + o - s + n * m)
                for (f, n, o, m), c, s in zip(runs, chunks, begin, strict=True)
            ]
            part = source[(*cut, ...)]
        place: Any = (
            *[slice(f, f + n) for f, n, _, _ in runs],
            *[slice(o, o + m) for _, _, o, m in runs],
            ...,
        )
        split = part.reshape([size for _, n, _, m in runs for size in (n, m)]).transpose(
            _axes(len(chunks))
        )
        np.copyto(*_by_rows(grid[place], split), casting="unsafe" if is_object else "same_kind")


def _by_rows(place: Array, part: Array) -> tuple[Array, Array]:
    """View both arrays with one element per row, if rows are contiguous in both.

    numpy then needs a third less time for the copy. Otherwise both arrays are returned unchanged.
    """
    nbytes = part.shape[-1] * part.itemsize if part.ndim else 0
    if (
        not _LEAST_ROW_NBYTES <= nbytes < 2**31
        or part.dtype != place.dtype
        or part.dtype.hasobject
        or part.dtype.kind == "T"
    ):
        return place, part
    if part.strides[-1] != part.itemsize or place.strides[-1] != place.itemsize:
        return place, part
    row = np.dtype((np.void, nbytes))
    return place.view(row), part.view(row)


@lru_cache
def _axes(ndim: int) -> tuple[int, ...]:
    """Permutation from (chunk, element) pairs for each axis to all chunk axes first."""
    return (*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2))


def units_of(grid: ShardGrid, block: Box) -> list[tuple[Shape, Box]]:
    """Units of a block: position of each shard that it touches, and its part of that shard.

    Shards come in row-major order.
    """
    return [(index, grid.shard_box(index).intersect(block)) for index in grid.shards_in(block)]


def ranks_in_shard(grid: ShardGrid, index: Shape, unit: Box) -> npt.NDArray[np.int64]:
    """Ranks of a unit's inner chunks in the grid of their shard, all in row-major order."""
    first = [
        (a - i * s) // c
        for a, i, s, c in zip(unit.start, index, grid.shards, grid.chunks, strict=True)
    ]
    return ranks_in_box(grid.chunks_per_shard, tuple(first), grid.chunk_counts_in(unit))


def ranks_in_box(shape: Shape, first: Shape, counts: Shape) -> npt.NDArray[np.int64]:
    """Ranks in a grid of the cells of a box inside it, all in row-major order."""
    ranks = np.zeros((), dtype=np.int64)
    for n, f, k in zip(shape, first, counts, strict=True):
        ranks = np.add.outer(ranks * n, np.arange(f, f + k, dtype=np.int64))
    return ranks.ravel()


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Encoded inner chunks of a unit."""

    ranks: npt.NDArray[np.int64]  # row-major ranks in the unit's grid, in the order requested
    nbytes: npt.NDArray[np.int64]  # encoded size of each inner chunk, in bytes
    buffers: Sequence[Buffer]  # encoded bytes, in the same order. Neighbours may share one buffer.
    # Whether no other batch can follow. A batch may be the last although this is False, since inner
    # chunks that remain may all be empty.
    is_last: bool


Background = Callable[[Array, Box], None]
"""Function that fills a batch of inner chunks with stored elements, given the box they cover."""


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How inner chunks are encoded."""

    order: str  # order of the inner chunks, in a unit or in a shard
    batch_nbytes: int  # decoded bytes to encode at a time. A batch holds at least one inner chunk.
    write_empty_chunks: bool  # also encode inner chunks that hold only the fill value
    # Function that says of the box of an inner chunk, in array coordinates, whether the chunk is
    # encoded although it holds only the fill value
    is_kept: Callable[[Box], bool] | None = None

    def dropped(self, metadata: ArrayMetadata, tiles: Array, region: Box) -> npt.NDArray[np.bool_]:
        """Whether each inner chunk of a batch is left out.

        - `tiles`: shape (n, *chunks). Inner chunks of `region`, row-major.
        """
        if self.write_empty_chunks:
            return np.zeros(len(tiles), dtype=bool)
        is_empty = metadata.fill_pattern.empty(tiles)
        if self.is_kept is None or not is_empty.any():
            return is_empty
        chunks = metadata.grid.chunks
        counts = metadata.grid.chunk_counts_in(region)
        for tile in np.flatnonzero(is_empty).tolist():
            start = tuple(
                a + i * c
                for a, i, c in zip(region.start, unravel(tile, counts), chunks, strict=True)
            )
            is_empty[tile] = not self.is_kept(Box.from_shape(start, chunks))
        return is_empty


def encode_unit(
    metadata: ArrayMetadata,
    unit: Box,
    pieces: Pieces,
    options: EncodeOptions,
    covered: Box | None = None,
    background: Background | None = None,
) -> Iterator[EncodedBatch]:
    """Encode a box of whole inner chunks.

    - `unit`: the box, clipped to the array. It starts on the inner chunk grid.
    - `covered`: the part of the unit that the source covers. The default is the whole unit.
    - `background`: function that fills in the elements of the unit that the source does not cover.
      Without it they have the fill value.
    - Raises CodecError if the codecs cannot encode an inner chunk.
    """
    grid, pipeline = metadata.grid, metadata.pipeline
    chunk_nbytes = max(1, metadata.chunk_nbytes)
    per_batch = max(1, min(options.batch_nbytes // chunk_nbytes, MOST_IN_BATCH))
    for step in _steps(grid.chunk_counts_in(unit), options.order, per_batch):
        start = tuple(
            u + a * c for u, a, c in zip(unit.start, step.start, grid.chunks, strict=True)
        )
        extent = [n * c for n, c in zip(step.shape, grid.chunks, strict=True)]
        region = Box.from_shape(start, extent)
        tiles = tiles_of(metadata, len(step.ranks))
        # Inner chunks may reach beyond the array's edge, or beyond the source.
        if not (covered or unit).contains(region):
            tiles[...] = metadata.fill_value
            if background is not None:
                background(tiles, region)
        pieces.copy_into(tiles, step.shape, grid.chunks, region)
        ranks, rows = step.ranks, step.rows
        is_dropped = options.dropped(metadata, tiles, region)
        if is_dropped.any():
            rows = np.arange(len(tiles)) if rows is None else rows
            is_stored = ~is_dropped[rows]
            ranks, rows = ranks[is_stored], rows[is_stored]
        if not len(ranks):
            continue
        if rows is None and pipeline.is_identity:
            sizes = np.full(len(ranks), tiles.nbytes // len(tiles), dtype=np.int64)
            yield EncodedBatch(ranks, sizes, [tiles.reshape(-1).view(np.uint8)], step.is_last)
            continue
        buffers = encode_tiles(metadata, tiles, rows, region)
        sizes = np.fromiter(map(len, buffers), np.int64, len(buffers))
        yield EncodedBatch(ranks, sizes, buffers, step.is_last)
        del buffers  # before the next ones are made


@dataclass(frozen=True, slots=True)
class _Step:
    """A box of inner chunks that are encoded together."""

    start: Shape  # first corner and shape of the box, in inner chunks of the unit
    shape: Shape
    # Row-major ranks of the inner chunks in the unit, in the order requested
    ranks: npt.NDArray[np.int64]
    # Row-major ranks of the inner chunks in the box, in the same order; None if that order is
    # row-major
    rows: npt.NDArray[np.int64] | None
    is_last: bool  # whether this is the last step of the unit


def _steps(counts: Shape, order: str, max_chunks: int) -> Iterable[_Step]:
    """Steps in which a unit is encoded.

    They depend only on the numbers of inner chunks along the axes, so those of small units are
    cached.
    """
    is_kept = math.prod(counts) <= _MOST_KEPT
    return (
        _kept_steps(counts, order, max_chunks)
        if is_kept
        else _make_steps(counts, order, max_chunks)
    )


@lru_cache(maxsize=16)
def _kept_steps(counts: Shape, order: str, max_chunks: int) -> tuple[_Step, ...]:
    return tuple(_make_steps(counts, order, max_chunks))


def _make_steps(counts: Shape, order: str, max_chunks: int) -> Iterator[_Step]:
    for cells in boxes(counts, order, max_chunks):
        rows = permutation(cells.shape, order)
        ranks = ranks_in_box(counts, cells.start, cells.shape)[rows]
        ranks.setflags(write=False)
        is_row_major = order == "C" or len(rows) == 1
        yield _Step(
            cells.start, cells.shape, ranks, None if is_row_major else rows, cells.stop == counts
        )


def tiles_of(metadata: ArrayMetadata, n_chunks: int) -> Array:
    """Uninitialised batch of `n_chunks` inner chunks.

    It lies in memory that the current thread keeps, so the next call overwrites it. Batches of
    variable-length elements have memory of their own.
    """
    dtype, shape = metadata.pipeline.stored_dtype, (n_chunks, *metadata.grid.chunks)
    nbytes = math.prod(shape) * dtype.itemsize
    if dtype.hasobject or dtype.kind == "T" or nbytes == 0:
        return np.empty(shape, dtype=dtype)
    memory: Array | None = getattr(_scratch, "memory", None)
    if memory is None or memory.nbytes < nbytes:
        memory = _scratch.memory = np.empty(nbytes, dtype=np.uint8)
    return memory[:nbytes].view(dtype).reshape(shape)


@dataclass(frozen=True, slots=True)
class Damaged:
    """A block of which parts cannot be read, so that what is made of the others goes on."""

    values: Array  # the block, with anything in these parts
    # Each of these parts, in coordinates of the block, and why it cannot be read
    bad: tuple[tuple[Box, CorruptShardError], ...]

    def cut(self, inside: Box) -> Array | Damaged:
        """A box of the block; the array itself if all of it could be read."""
        values = self.values[inside.slices]
        bad = tuple(
            (part.intersect(inside).shift(inside.start), error)
            for part, error in self.bad
            if part.intersect(inside).size
        )
        return Damaged(values, bad) if bad else values


def check_block(block: Any, region: Box, dtype: np.dtype[Any]) -> Array:
    """Convert a source block to an array, and check that it is what dask declared."""
    if isinstance(block, Damaged):
        block = block.values
    if isinstance(block, np.ma.MaskedArray):
        if np.ma.is_masked(block):
            raise SourceError(
                "holds masked elements; say what they become with dask.array.ma.filled",
                region=region.bounds,
            )
        block = block.data
    try:
        array, reason = np.asarray(block), ""
    except (TypeError, RuntimeError, ValueError) as error:  # as sparse and cupy refuse
        array, reason = np.asarray(None), f" ({type(error).__name__}: {error})"
    if reason or (array.shape == () and getattr(block, "shape", ()) != ()):
        raise SourceError(
            f"the block is a {type(block).__name__}, and no array of numpy{reason}; convert it "
            "with map_blocks, for instance by its method toarray, todense or get",
            region=region.bounds,
        )
    if array.shape != region.shape:
        message = (
            f"dask declared shape {region.shape}, the block has {array.shape}; "
            "say so with map_blocks(chunks=...)"
        )
        raise SourceError(message, region=region.bounds)
    if array.dtype != dtype:
        message = (
            f"dask declared dtype {dtype}, the block has {array.dtype}; "
            "say so with map_blocks(dtype=...), or convert it"
        )
        raise SourceError(message, region=region.bounds)
    return array


# ---- Encoding of many small shards at a time


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
