"""Metadata of sharded arrays, parsed from ``zarr.json`` and checked.

A sharding that is one step of a longer pipeline is decoded here, and not by zarr, so that the size
of each part has a bound. Shards of such an array are encoded and decoded as a whole, because
readers cannot take single inner chunks out of an object.

An array without shards is treated as one whose shards hold a single inner chunk. Its index follows
from the size of the object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.datatypes import fill_from_json, is_same_type, native_dtype
from shardwrite.codecs.documents import JSON, Codec, Document, named_today
from shardwrite.codecs.pipeline import FillPattern, Pipeline, build_pipeline, serializer_named
from shardwrite.codecs.stages import Buffer, BytesStage, build_stage, most_added, undo
from shardwrite.errors import CodecError, CorruptShardError, SpecError
from shardwrite.format.index import IndexCodec, Seal, ShardIndex
from shardwrite.format.node import DOCUMENT, emptied
from shardwrite.format.sharding import (
    ObjectFormat,
    PlacedShards,
    ScatteredChunks,
    ShardFormat,
    ShardingIndexed,
    register_shard_format,
    shard_format_named,
)
from shardwrite.grid import Box, Shape, ShardGrid, unravel

# ---- Limits of lengths and sizes, which must fit into 64 bits


MOST = 2**63 - 1
"""The longest that an axis can be in numpy, and the most bytes that an inner chunk can have."""


def why_too_long(sizes: Sequence[int], itemsize: int | None = None) -> str | None:
    """Why a shape is refused; None if it is not."""
    if any(size > MOST for size in sizes):
        return f"is longer than {MOST:,}, the longest that an axis can be"
    if itemsize is not None and math.prod(sizes) * itemsize > MOST:
        return f"holds more than {MOST:,} bytes"
    return None


# ---- Shardings inside of a pipeline: with codecs around them, or one in another


_NAME = "sharding_indexed"


@dataclass(frozen=True, slots=True)
class Sharding:
    """A sharding among other codecs."""

    chunks: Shape  # shape of an inner chunk
    inner: Pipeline  # pipeline of the inner chunks
    index_codec: IndexCodec


class ShardingPipeline:
    """Pipeline of transpositions, a sharding, and bytes-to-bytes stages.

    Inner chunks lie in the shard in row-major order. Those of the fill value are left out.

    - `stages`: codecs after the sharding.
    """

    encoded_nbytes: int | None = None
    is_identity = False

    def __init__(
        self,
        axes: Shape,
        shape: Shape,
        sharding: Sharding,
        stages: Sequence[BytesStage],
        fill_value: Any,
        dtype: np.dtype[Any],
    ) -> None:
        self._axes = axes
        self._stored_shape = tuple(shape[a] for a in axes)
        self._axes_back = tuple(axes.index(a) for a in range(len(axes)))
        self._counts = tuple(
            n // c for n, c in zip(self._stored_shape, sharding.chunks, strict=True)
        )
        self._inner, self._chunks = sharding.inner, sharding.chunks
        self._index_codec = sharding.index_codec
        self._stages = tuple(stages)
        self._fill_value = fill_value
        self.stored_dtype = dtype
        self.is_lossy = sharding.inner.is_lossy

    @property
    def _limit_nbytes(self) -> int:
        return (
            self._index_codec.encoded_nbytes
            + math.prod(self._counts) * self._inner.most_encoded_nbytes
        )

    @property
    def most_encoded_nbytes(self) -> int:
        """See :attr:`Pipeline.most_encoded_nbytes`."""
        return most_added(self._stages, self._limit_nbytes)

    @cached_property
    def _fill(self) -> FillPattern:
        return FillPattern(self._fill_value, self._inner.stored_dtype)

    def encode(
        self, batch: npt.NDArray[Any], rows: npt.NDArray[np.int64] | None = None
    ) -> Sequence[Buffer]:
        """See :meth:`Pipeline.encode`."""
        encoded: Sequence[Buffer] = [
            self._encode_shard(batch[row].transpose(self._axes))
            for row in (range(len(batch)) if rows is None else rows.tolist())
        ]
        for stage in self._stages:
            encoded = stage.encode(encoded)
        return encoded

    def _encode_shard(self, stored: npt.NDArray[Any]) -> bytearray:
        """Encode a shard, whose axes are in the order in which they are stored.

        One row of inner chunks is cut out at a time, so that the shard is not copied as a whole.
        """
        n_chunks = math.prod(self._counts)
        offsets, nbytes = np.zeros(n_chunks, dtype=np.int64), np.full(n_chunks, -1, dtype=np.int64)
        out = bytearray(self._index_codec.base_nbytes)
        first = 0
        for row in self._rows(stored):
            tiles = self._cut(row)
            ranks = np.flatnonzero(~self._fill.empty(tiles))
            for rank, buffer in zip(
                (first + ranks).tolist(), self._inner.encode(tiles, ranks), strict=True
            ):
                offsets[rank] = len(out)
                out += memoryview(buffer).cast("B")
                nbytes[rank] = len(out) - offsets[rank]
            first += len(tiles)
        seal = self._index_codec.seal(ShardIndex.build(offsets, nbytes))
        out[: len(seal.prefix)] = seal.prefix
        out += seal.suffix
        return out

    def _rows(self, stored: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
        """Parts of a shard that are one inner chunk long along the first axis."""
        if not self._chunks:
            yield stored
            return
        for start in range(0, len(stored), self._chunks[0]):
            yield stored[start : start + self._chunks[0]]

    def _cut(self, row: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Inner chunks of a row as an array of shape (n, *chunks), in row-major order."""
        counts = [n // c for n, c in zip(row.shape, self._chunks, strict=True)]
        pairs = [size for pair in zip(counts, self._chunks, strict=True) for size in pair]
        n_axes = len(self._chunks)
        order = [*range(0, 2 * n_axes, 2), *range(1, 2 * n_axes, 2)]
        apart = row.astype(self._inner.stored_dtype, copy=False).reshape(pairs)
        return np.ascontiguousarray(apart.transpose(order).reshape(-1, *self._chunks))

    def decode(self, data: Buffer) -> npt.NDArray[Any]:
        """See :meth:`Pipeline.decode`."""
        view = memoryview(undo(self._stages, data, self._limit_nbytes)).cast("B")
        start, stop = self._index_codec.span(len(view))
        table = self._index_codec.decode(view[start:stop], len(view))
        out = np.full(self._stored_shape, self._fill_value, dtype=self.stored_dtype)
        most = self._inner.most_encoded_nbytes
        for rank in np.flatnonzero(~table.is_empty).tolist():
            offset, nbytes = (int(v) for v in table.table[rank])
            if nbytes > most:
                raise CorruptShardError(
                    f"an inner chunk of an inner shard takes {nbytes} bytes "
                    f"where at most {most} can be"
                )
            position = unravel(rank, self._counts)
            place = tuple(
                slice(i * c, (i + 1) * c) for i, c in zip(position, self._chunks, strict=True)
            )
            out[place] = self._inner.decode(view[offset : offset + nbytes])
        return out.transpose(self._axes_back)


def build_with_sharding(
    codecs: Sequence[Codec],
    shape: Shape,
    dtype: np.dtype[Any],
    document: Document,
    fill_value: Any,
) -> Pipeline:
    """Build the pipeline for a list of codecs, which may contain a sharding.

    A sharding whose neighbours are not transpositions before it and known stages after it is left
    to zarr's own codec.

    - Raises CodecError if inner chunks do not divide a shard, or a codec cannot be used here.
    """
    serializer = serializer_named(str(codecs[0]["name"])) if codecs else None
    if serializer is not None:
        return serializer.build(codecs, shape, dtype)
    position = next((i for i, codec in enumerate(codecs) if codec["name"] == _NAME), None)
    if position is None:
        return build_pipeline(codecs, shape, dtype, document)
    axes = _transposed_axes(codecs[:position], len(shape))
    stages = [
        build_stage(codec["name"], codec.get("configuration", {}), 1)
        for codec in codecs[position + 1 :]
    ]
    if axes is None or None in stages:
        return build_pipeline(codecs, shape, dtype, document)
    configuration = codecs[position]["configuration"]
    chunks, stored = configuration.get("chunk_shape"), tuple(shape[a] for a in axes)
    if not _divides(chunks, stored):
        raise CodecError(f"shards of {stored} cannot be cut into chunks of {chunks}", codec=_NAME)
    chunks = tuple(chunks)
    counts = tuple(n // c for n, c in zip(stored, chunks, strict=True))
    sharding = Sharding(
        chunks,
        build_with_sharding(configuration["codecs"], chunks, dtype, document, fill_value),
        IndexCodec(
            configuration["index_codecs"], counts, configuration.get("index_location", "end")
        ),
    )
    return ShardingPipeline(
        axes,
        shape,
        sharding,
        [stage for stage in stages if stage is not None],
        fill_value,
        dtype,
    )


def _divides(chunks: Any, shape: Shape) -> bool:
    """Whether `chunks`, as a document gives it, is a shape that divides `shape`."""
    if not isinstance(chunks, list) or len(chunks) != len(shape):
        return False
    return all(type(c) is int and c > 0 and n % c == 0 for n, c in zip(shape, chunks, strict=True))


def check_chunks_of(sharding: Codec, shape: Shape) -> Shape:
    """Shape of the inner chunks of a sharding, as its document gives it.

    - `shape`: shape of a shard, as the codecs before the sharding leave it.
    """
    chunks = sharding.get("configuration", {}).get("chunk_shape")
    if not _divides(chunks, shape):
        raise SpecError(
            f"shards of {shape} cannot be cut into such chunks",
            field="chunk_shape",
            value=chunks,
            remedy="give one number for each axis, which divides the shard there",
        )
    return tuple(chunks)


def chunks_of_sharding(codecs: Sequence[Codec], shape: Shape) -> Shape | None:
    """Shape of the inner chunks of a sharding among codecs, as the decoded array has its axes.

    The document gives it as the transpositions before the sharding leave it. The result is None
    without a sharding, and where something else than transpositions stands before it.
    """
    position = next((i for i, codec in enumerate(codecs) if codec["name"] == _NAME), None)
    if position is None:
        return None
    axes = _transposed_axes(codecs[:position], len(shape))
    if axes is None:
        return None
    stored = check_chunks_of(codecs[position], tuple(shape[a] for a in axes))
    return tuple(stored[axes.index(a)] for a in range(len(shape)))


def trial_shapes(codecs: Sequence[Codec], shape: Shape) -> Iterator[tuple[Sequence[Codec], Shape]]:
    """Lists of codecs to try, each with the shape of a small array that it must be able to encode.

    These are the codecs of each sharding, down to the innermost, and all codecs for a shard of one
    inner chunk. Without a sharding, they are the codecs for the whole shape.
    """
    position = next((i for i, codec in enumerate(codecs) if codec["name"] == _NAME), None)
    chunks = chunks_of_sharding(codecs, shape)
    if position is not None:
        inner = codecs[position]["configuration"]
        yield from trial_shapes(inner["codecs"], tuple(inner["chunk_shape"]))
    yield codecs, shape if chunks is None else chunks


def _transposed_axes(codecs: Sequence[Codec], ndim: int) -> Shape | None:
    """Axes of the decoded array in the order that transpositions give them.

    The result is None if a codec is not a valid transposition.
    """
    axes = tuple(range(ndim))
    for codec in codecs:
        order = codec.get("configuration", {}).get("order")
        is_axes = isinstance(order, list) and all(type(i) is int for i in order)
        if codec["name"] != "transpose" or not is_axes or sorted(order) != list(range(ndim)):
            return None
        axes = tuple(axes[i] for i in order)
    return axes


# ---- The index of arrays without shards


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


# ---- The metadata of an array


# What may stand around an inner chunk: a checksum, the frame of a compressor, a key in a file of
# HDF5. What compressors add to data that they cannot compress is at most an eighth.
_AROUND_NBYTES = 128
_REST_NBYTES = 2**16


@dataclass(frozen=True)
class ArrayMetadata:
    """The metadata document of an array, and the values derived from it.

    The objects of an array without sharding count as shards of one inner chunk. So do objects
    whose sharding has other codecs around it, since those can be read only as a whole.

    An instance is hashable and small when pickled. All derived values are computed when they are
    first needed, and cached in each process.
    """

    text: str  # the document as it stands in the store
    # Position of the first shard and shape in elements of a part of the array. If it is given, the
    # grid and the shard keys are those of the part.
    window: tuple[Shape, Shape] | None = None

    @cached_property
    def document(self) -> Document:
        """The parsed document."""
        parsed: Document = json.loads(self.text)
        return parsed

    def __getstate__(self) -> dict[str, object]:
        state: dict[str, object] = {"text": self.text, "window": self.window}
        if type(self.shard_format) not in (ShardingIndexed, type(None)):
            state["shard_format"] = self.shard_format
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        if "shard_format" in state:  # this process may not know it
            register_shard_format(type(state["shard_format"]))
        vars(self).update(state)

    @cached_property
    def grid(self) -> ShardGrid:
        """Shapes of the array (or the window), of its shards and of its inner chunks."""
        return ShardGrid(
            tuple(self.document["shape"]) if self.window is None else self.window[1],
            tuple(self._regular_shape),
            tuple(self.sharding["chunk_shape"]) if self.is_sharded else tuple(self._regular_shape),
        )

    @property
    def _regular_shape(self) -> list[int]:
        """Shape of the boxes of the chunk grid, each of which is an object."""
        shape: list[int] = self.document["chunk_grid"]["configuration"]["chunk_shape"]
        return shape

    @cached_property
    def is_sharded(self) -> bool:
        """Whether an object holds several inner chunks and an index; else it is one chunk."""
        codecs = self.document["codecs"]
        return len(codecs) == 1 and _is_shard_format(codecs[0])

    @property
    def sharding(self) -> Document:
        """Configuration of the codec that is the shard format, such as ``sharding_indexed``."""
        configuration: Document = self.document["codecs"][0].get("configuration", {})
        return configuration

    @cached_property
    def has_codecs_around(self) -> bool:
        """Whether an object is a shard with other codecs around its sharding."""
        codecs = self.document["codecs"]
        return len(codecs) > 1 and any(map(_is_shard_format, codecs))

    @property
    def without_codecs_around(self) -> ArrayMetadata:
        """Metadata of this array as it would be without the codecs around its sharding.

        It is this metadata itself if there are none. Transpositions before the sharding are
        dropped, too, so its inner chunks have the axes of the array.
        """
        if not self.has_codecs_around:
            return self
        codecs = self.document["codecs"]
        sharding = next(filter(_is_shard_format, codecs))
        chunks = chunks_of_sharding(codecs, self.grid.shards)
        if chunks is None:
            chunks = check_chunks_of(sharding, self.grid.shards)
        configuration = {**sharding["configuration"], "chunk_shape": list(chunks)}
        alone = [{**sharding, "configuration": configuration}]
        return ArrayMetadata(json.dumps({**self.document, "codecs": alone}, indent=2), self.window)

    @property
    def inner_codecs(self) -> list[Document]:
        """Codecs of the inner chunks, by the names that they have today."""
        holder = self.sharding if self.is_sharded else self.document
        codecs: list[Document] = holder["codecs"]
        return named_today(codecs)

    @property
    def is_lossy(self) -> bool:
        """Whether decoded values may differ from those that were encoded."""
        return self.pipeline.is_lossy

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the elements in memory."""
        return native_dtype(self.document["data_type"])

    @cached_property
    def fill_value(self) -> Any:
        """Fill value, with exactly the bits that the document gives."""
        return fill_from_json(self.document["data_type"], self.dtype, self.document["fill_value"])

    @cached_property
    def pipeline(self) -> Pipeline:
        """Pipeline that encodes and decodes inner chunks.

        - Raises CodecError if a codec cannot be used here.
        """
        pipeline = self.pipeline_of(self.grid.chunks)
        if self.is_cut:  # chunks at the edges have other sizes
            pipeline.encoded_nbytes, pipeline.is_identity = None, False
        return pipeline

    def pipeline_of(self, shape: Shape) -> Pipeline:
        """Pipeline of inner chunks of a shape, such as those that are cut at an edge.

        - Raises CodecError if a codec cannot be used here.
        """
        pipeline = self._pipelines.get(shape)
        if pipeline is None:
            pipeline = self._pipelines[shape] = build_with_sharding(
                self.inner_codecs, shape, self.dtype, self.document, self.fill_value
            )
        return pipeline

    @cached_property
    def _pipelines(self) -> dict[Shape, Pipeline]:
        """Pipelines that were made, by the shapes of their inner chunks."""
        return {}

    @cached_property
    def is_cut(self) -> bool:
        """Whether inner chunks at the edges of the array are cut there, and so are smaller."""
        if isinstance(self.placed, ScatteredChunks):
            return self.placed.is_cut
        grid = self.grid
        cuts_edges = bool(getattr(self.shard_format, "cuts_edges", False))
        return cuts_edges and any(n % c for n, c in zip(grid.shape, grid.chunks, strict=True))

    @cached_property
    def index_codec(self) -> ObjectFormat:
        """What stands around the inner chunks of a shard; `NoIndex` for an array without shards."""
        if self.shard_format is None:
            return NoIndex()
        return self.shard_format.build(self.grid.chunks_per_shard)

    @cached_property
    def placed(self) -> PlacedShards | None:
        """Shards by their positions in the whole array, if their format looks at positions."""
        if self.window is not None:
            return ArrayMetadata(self.text).placed
        within = getattr(self.shard_format, "within", None)
        placed: PlacedShards | None = None if within is None else within(self.grid)
        return placed

    @property
    def values_shape(self) -> Shape:
        """Shape of the values, as users know them; see `ScatteredChunks`."""
        placed = self.placed
        return placed.origin_shape if isinstance(placed, ScatteredChunks) else self.grid.shape

    def format_at(self, index: Sequence[int]) -> ObjectFormat:
        """What stands around the inner chunks of the shard at a position."""
        return self.index_codec if self.placed is None else self.placed.at(self._in_array(index))

    def format_of(self, key: str) -> ObjectFormat:
        """What stands around the inner chunks of the shard with a key."""
        index = None if self.placed is None else self.placed.index_of(key)
        if self.placed is None or index is None:
            return self.index_codec
        return self.placed.at(index)

    def chunk_box(self, key: str, rank: int) -> Box:
        """Box of an inner chunk in the whole array, cut at the array's edges."""
        grid = self.grid
        index = None if self.placed is None else self.placed.index_of(key)
        if index is None:
            raise KeyError(key)
        box = grid.chunk_box(index, unravel(rank, grid.chunks_per_shard))
        if isinstance(self.placed, ScatteredChunks):
            return Box.from_shape(box.start, self.placed.chunk_shape(index, rank))
        sizes = zip(box.start, box.stop, self.document["shape"], strict=True)
        return Box(box.start, tuple(max(a, min(b, n)) for a, b, n in sizes))

    @property
    def first_shard(self) -> Shape:
        """Position of the first shard in the shard grid of the whole array."""
        return self.window[0] if self.window else (0,) * self.grid.ndim

    def _in_array(self, index: Sequence[int]) -> Shape:
        """Position of a shard in the whole array."""
        if self.window is None:
            return tuple(index)
        return tuple(i + f for i, f in zip(index, self.first_shard, strict=True))

    def _in_part(self, index: Sequence[int]) -> Shape | None:
        """Position in this part of a shard of the whole array; None if it lies outside."""
        local = tuple(i - f for i, f in zip(index, self.first_shard, strict=True))
        is_inside = all(0 <= i < n for i, n in zip(local, self.grid.counts, strict=True))
        return local if is_inside else None

    @property
    def format_name(self) -> str:
        """Name of the format of the shards; empty for an array without shards."""
        return str(self.document["codecs"][0]["name"]) if self.is_sharded else ""

    @cached_property
    def shard_format(self) -> ShardFormat | None:
        """Format of the shards; None for an array without shards."""
        cls = shard_format_named(self.format_name)
        return None if cls is None else cls.from_dict(self.sharding)

    @cached_property
    def fill_pattern(self) -> FillPattern:
        """Test for empty inner chunks in batches of the pipeline's stored dtype."""
        return FillPattern(self.fill_value, self.pipeline.stored_dtype)

    @cached_property
    def _key_encoding(self) -> tuple[tuple[str, ...], str]:
        """First parts of every shard key, and the separator between the parts."""
        encoding = self.document["chunk_key_encoding"]
        is_default = encoding["name"] == "default"
        separator = str(
            encoding.get("configuration", {}).get("separator", "/" if is_default else ".")
        )
        return ("c",) if is_default else (), separator

    def shard_key(self, index: Sequence[int]) -> str:
        """Storage key of a shard, relative to the array."""
        prefix, separator = self._key_encoding
        index = self._in_array(index)
        if self.placed is not None:
            return self.placed.key_of(index)
        return separator.join([*prefix, *map(str, index)]) or "0"

    def key_of_rank(self, rank: int) -> str:
        """Storage key of the shard with a row-major rank in the grid of shards."""
        return self.shard_key(unravel(int(rank), self.grid.counts))

    def shard_index(self, key: str) -> Shape | None:
        """Position of the shard with a storage key; None if the key is that of no shard."""
        if self.placed is not None:
            position = self.placed.index_of(key)
            return None if position is None else self._in_part(position)
        prefix, separator = self._key_encoding
        parts = key.split(separator)
        if tuple(parts[: len(prefix)]) != prefix:
            return None
        numbers = parts[len(prefix) :]
        if not self.grid.ndim:
            return () if key == self.shard_key(()) else None
        if len(numbers) != self.grid.ndim or not all(
            part.isascii() and part.isdigit() and len(part) < 20 for part in numbers
        ):
            return None
        index = self._in_part(tuple(map(int, numbers)))
        return index if index is not None and self.shard_key(index) == key else None

    def window_of(self, region: Box) -> tuple[ArrayMetadata, Box]:
        """Metadata of the window on the shards that a region touches, and the region in it.

        Call it on the metadata of a whole array: the origin of a window is not added.
        """
        grid = self.grid
        box = grid.rounded_to_shards(region)
        stop = tuple(map(min, box.stop, grid.shape))
        window = grid.shard_range(region).start, Box(box.start, stop).shape
        return ArrayMetadata(self.text, window), region.shift(box.start)

    def with_shape(self, shape: Shape) -> ArrayMetadata:
        """Metadata of the whole array with another shape."""
        return ArrayMetadata(json.dumps({**self.document, "shape": list(shape)}, indent=2))

    @property
    def raw_nbytes(self) -> int:
        """Decoded size of the array in bytes; see `itemsize` for elements of variable length."""
        return math.prod(self.grid.shape) * self.itemsize

    @property
    def chunk_nbytes(self) -> int:
        """Decoded size of an inner chunk, in bytes."""
        return math.prod(self.grid.chunks) * self.itemsize

    @property
    def shard_nbytes(self) -> int:
        """Decoded size of a shard, in bytes."""
        return math.prod(self.grid.shards) * self.itemsize

    @property
    def plain_nbytes(self) -> int:
        """Size of a shard whose inner chunks are not compressed, with its index, in bytes.

        Elements of variable length count as references, so that such a shard may be larger.
        """
        return self.shard_nbytes + self.index_codec.encoded_nbytes

    @property
    def most_nbytes(self) -> int:
        """Upper bound of the size of a shard, in bytes, unless elements have a variable length."""
        plain = self.plain_nbytes
        added = 0 if self.pipeline.encoded_nbytes is not None else plain // 8
        rest = min(_REST_NBYTES, plain)
        return plain + added + _AROUND_NBYTES * self.grid.n_chunks_per_shard + rest

    @property
    def sealing_nbytes(self) -> int:
        """Memory that the index of a shard takes while it is made, in bytes.

        It is 0 for most formats, whose index is counted with what is known of the inner chunks.
        """
        nbytes: int = getattr(self.index_codec, "sealing_nbytes", 0)
        return nbytes

    @property
    def itemsize(self) -> int:
        """Bytes that an element's dtype takes in memory, at least 1.

        For elements of variable length this is the size of a reference: 8 bytes for Python
        objects, 16 for numpy's StringDType.
        """
        return self.dtype.itemsize or 1


def metadata_of_document(document: Mapping[str, Any], *, writing: bool = False) -> ArrayMetadata:
    """Check a ``zarr.json`` that was parsed before; see `parse_metadata`.

    - `writing`: also indent its text, because that is written.
    """
    return parse_metadata(json.dumps(document, indent=2 if writing else None), writing=writing)


def parse_metadata(text: str, *, writing: bool = False) -> ArrayMetadata:
    """Parse and check the text of a ``zarr.json``.

    A manifest in the attributes is emptied, since plans do not depend on what it lists.

    - `writing`: also refuse arrays that can be read but not written.
    """
    try:
        metadata = ArrayMetadata(emptied(text))
        document = metadata.document
    except (ValueError, RecursionError) as error:
        raise SpecError(
            f"not JSON ({error})",
            field=DOCUMENT,
            value=text[:60],
            remedy="give a whole document",
        ) from None
    if not isinstance(document, dict) or document.get("zarr_format") != 3:
        found = _get(document, "zarr_format")
        raise SpecError(
            "not a Zarr v3 document",
            field="zarr_format",
            value=found,
            remedy="only version 3 can be sharded",
        )
    if document.get("node_type") != "array":
        raise SpecError(
            "not an array",
            field="node_type",
            value=document.get("node_type"),
            remedy="give the path of an array",
        )
    _check_codecs(document.get("codecs"), "codecs")
    names = [codec["name"] for codec in document["codecs"]]
    if sum(map(_is_shard_format, document["codecs"])) > 1:
        raise SpecError(
            "several shardings around each other's bytes",
            field="codecs",
            value=names,
            remedy='at most one codec may be "sharding_indexed" or another shard format',
        )
    _check_members(document)
    if document.get("storage_transformers"):
        found = document["storage_transformers"]
        raise SpecError(
            "not supported", field="storage_transformers", value=found, remedy="none may be set"
        )
    if _get(document.get("chunk_grid"), "name") != "regular":
        raise SpecError(
            "not supported",
            field="chunk_grid",
            value=document.get("chunk_grid"),
            remedy='use the grid "regular"',
        )
    _check_keys(document.get("chunk_key_encoding"))
    try:
        _check_structure(metadata)
        metadata.grid, metadata.fill_value  # noqa: B018 (checks them)
        field = "chunk_shape" if metadata.is_sharded else "chunk_grid"
        chunks = metadata.grid.chunks
        _refuse_lengths(field, chunks, why_too_long(chunks, metadata.itemsize))
        if metadata.grid.n_chunks_per_shard * _ENTRY_NBYTES > MOST:
            _refuse_lengths(
                "chunk_grid", metadata.grid.shards, "makes an index that no program can hold"
            )
        metadata.index_codec, metadata.placed  # noqa: B018 (checks them, too)
        chunks_of_sharding(document["codecs"], metadata.grid.shards)
    except (SpecError, CodecError):
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SpecError(
            f"metadata does not add up: {error}",
            field=DOCUMENT,
            value=names,
            remedy="correct the document",
        ) from None
    if writing:
        _check_writable(metadata)
    return metadata


def _is_shard_format(codec: Codec) -> bool:
    return shard_format_named(codec["name"]) is not None


_ENTRY_NBYTES = 16  # of an inner chunk in the index

_MAKE_NO_BYTES = frozenset({"transpose", "blosc", "crc32c", "gzip", "zstd"})
"""Usual codecs that turn arrays into arrays, or bytes into bytes."""


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


_MOST_SHARDINGS = (
    32  # in each other; each takes some frames of the stack wherever codecs are walked
)


def _check_codecs(codecs: Any, field: str, depth: int = 0) -> None:
    """Check that every codec, also inside a sharding, has a name and a configuration."""
    if depth > _MOST_SHARDINGS:
        raise SpecError(
            f"more than {_MOST_SHARDINGS} shardings in each other",
            field=field,
            value=depth,
            remedy="correct the document",
        )
    if not isinstance(codecs, list):
        raise SpecError("not a list", field=field, value=codecs, remedy="give a list of codecs")
    for codec in codecs:
        configuration = codec.get("configuration", {}) if isinstance(codec, dict) else None
        if not isinstance(configuration, dict) or not isinstance(codec.get("name"), str):
            raise SpecError(
                "not a codec",
                field=field,
                value=codec,
                remedy='give an object with "name" and "configuration"',
            )
        if _is_shard_format(codec):
            _check_codecs(configuration.get("codecs"), "codecs", depth + 1)
        if codec["name"] == ShardingIndexed.name:
            _check_codecs(configuration.get("index_codecs"), "index_codecs", depth + 1)
    if all(codec["name"] in _MAKE_NO_BYTES for codec in codecs):
        raise SpecError(
            "no codec here makes bytes of an array",
            field=field,
            value=codecs,
            remedy='put one that does into the list, such as "bytes"',
        )


_MEMBERS = frozenset(
    {"zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding"}
    | {"fill_value", "codecs", "attributes", "dimension_names", "storage_transformers"}
)
"""Members that the document of an array has by the specification."""


def _check_members(document: Document) -> None:
    """Refuse members that are not known, unless they say that a reader need not understand them."""
    for name in sorted(document.keys() - _MEMBERS):
        if _get(document[name], "must_understand") is not False:
            raise SpecError(
                "not known, and it does not say that readers may pass over it",
                field=name,
                value=document[name],
                remedy="read the array with a program that knows it, or correct the document: "
                '"must_understand" is false in what may be passed over',
            )


def _check_keys(encoding: Any) -> None:
    configuration = encoding.get("configuration", {}) if isinstance(encoding, dict) else None
    separator = configuration.get("separator", "/") if isinstance(configuration, dict) else None
    if _get(encoding, "name") not in ("default", "v2") or separator not in ("/", "."):
        remedy = 'use "default" or "v2" with the separator "/" or "."'
        raise SpecError("not supported", field="chunk_key_encoding", value=encoding, remedy=remedy)


def _check_structure(metadata: ArrayMetadata) -> None:
    """Check that shapes are lists of integers, and that names, if any, fit the axes."""
    document = metadata.document
    shapes = {
        "shape": (document["shape"], 0),
        "chunk_grid": (document["chunk_grid"]["configuration"]["chunk_shape"], 1),
    }
    if metadata.is_sharded:
        shapes["chunk_shape"] = (metadata.sharding["chunk_shape"], 1)
    for name, (sizes, least) in shapes.items():
        if not isinstance(sizes, list) or any(
            type(size) is not int or size < least for size in sizes
        ):
            raise SpecError(
                "not a shape",
                field=name,
                value=sizes,
                remedy=f"give a list of integers, {least} or more",
            )
        _refuse_lengths(name, sizes, why_too_long(sizes))
    names = document.get("dimension_names")
    if names is not None and not (
        isinstance(names, list) and all(name is None or isinstance(name, str) for name in names)
    ):
        raise SpecError(
            "not names",
            field="dimension_names",
            value=names,
            remedy="give a list of texts or nulls",
        )
    if names is not None and len(names) != len(document["shape"]):
        raise SpecError(
            "not one for each axis",
            field="dimension_names",
            value=names,
            remedy=f"give {len(document['shape'])}",
        )


def _refuse_lengths(field: str, sizes: Sequence[int], why: str | None) -> None:
    """Refuse a shape, if there is a reason."""
    if why is not None:
        raise SpecError(why, field=field, value=list(sizes), remedy="correct the document")


def _check_writable(metadata: ArrayMetadata) -> None:
    try:
        trials = list(trial_shapes(metadata.inner_codecs, metadata.grid.chunks))
        metadata.pipeline  # noqa: B018 (builds the pipeline)
        for codecs, shape in trials:
            _try_codecs(metadata, codecs, shape)
    except CodecError as error:
        text, codec = str(error), error.fields["codec"]
        remedy = "install its library, correct its configuration, or choose another codec"
        raise SpecError(text, field="codecs", value=codec, remedy=remedy) from None


def _try_codecs(metadata: ArrayMetadata, codecs: Sequence[Codec], chunks: Shape) -> None:
    """Encode and decode an inner chunk of the fill value.

    This shows that the libraries of the codecs are here, and that the codecs fit the dtype. A chunk
    of one element is enough. Codecs that cannot encode that get a whole one.

    - Raises CodecError if the codecs cannot encode a whole inner chunk, or do not give it back.
    """
    dtype, fill_value = metadata.dtype, metadata.fill_value
    for shape in ((1,) * len(chunks), chunks):
        batch = np.full((1, *shape), fill_value, dtype=dtype)
        try:
            pipeline = build_with_sharding(codecs, shape, dtype, metadata.document, fill_value)
            (encoded,) = pipeline.encode(batch)
            decoded = pipeline.decode(bytes(encoded))
            if decoded.shape != shape or not is_same_type(decoded.dtype, dtype):
                raise TypeError(  # noqa: TRY301
                    f"{dtype} of {shape} comes back as {decoded.dtype} of {decoded.shape}"
                )
        # Each codec and library raises errors of its own, ImportError among them.
        except Exception as error:
            if shape == chunks:
                names = "+".join(str(codec["name"]) for codec in codecs)
                raise CodecError(f"codecs {names} cannot encode: {error}", codec=names) from error
        else:
            return


@dataclass(frozen=True, slots=True)
class SourceMetadata:
    """What a file says about an array besides its values."""

    fill_value: Any = None  # of elements that were never written; None if the file does not say
    dimension_names: tuple[str | None, ...] | None = None  # one for each axis
    attributes: Mapping[str, JSON] = field(default_factory=dict)  # of the array
    serializer: str | None = None  # codec of elements that are objects, such as bytes
    # attributes by which xarray decodes values, as numbers of the types that the file has
    typed: Mapping[str, Any] = field(default_factory=dict, compare=False)
