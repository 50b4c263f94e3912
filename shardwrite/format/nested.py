"""Pipelines that contain a sharding: codecs around it, or a sharding inside another.

Such a sharding is one step of a pipeline. So its shards are encoded and decoded as a whole, and
readers of the array cannot take single inner chunks out of an object. They are decoded here, and
not by zarr, so that the size of each part has a bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs import FillPattern, Pipeline, build_pipeline
from shardwrite.codecs.documents import Codec, Document
from shardwrite.codecs.pipeline import serializer_named
from shardwrite.codecs.stages import Buffer, BytesStage, build_stage, most_added, undo
from shardwrite.errors import CodecError, CorruptShardError, SpecError
from shardwrite.format.index import IndexCodec, ShardIndex
from shardwrite.grid import Shape, unravel

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
    at = next((i for i, codec in enumerate(codecs) if codec["name"] == _NAME), None)
    if at is None:
        return build_pipeline(codecs, shape, dtype, document)
    axes = _transposed_axes(codecs[:at], len(shape))
    stages = [
        build_stage(codec["name"], codec.get("configuration", {}), 1) for codec in codecs[at + 1 :]
    ]
    if axes is None or None in stages:
        return build_pipeline(codecs, shape, dtype, document)
    configuration = codecs[at]["configuration"]
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
    found = sharding.get("configuration", {}).get("chunk_shape")
    if not _divides(found, shape):
        raise SpecError(
            f"shards of {shape} cannot be cut into such chunks",
            field="chunk_shape",
            value=found,
            remedy="give one number for each axis, which divides the shard there",
        )
    return tuple(found)


def chunks_of_sharding(codecs: Sequence[Codec], shape: Shape) -> Shape | None:
    """Shape of the inner chunks of a sharding among codecs, as the decoded array has its axes.

    The document gives it as the transpositions before the sharding leave it. The result is None
    without a sharding, and where something else than transpositions stands before it.
    """
    at = next((i for i, codec in enumerate(codecs) if codec["name"] == _NAME), None)
    if at is None:
        return None
    axes = _transposed_axes(codecs[:at], len(shape))
    if axes is None:
        return None
    stored = check_chunks_of(codecs[at], tuple(shape[a] for a in axes))
    return tuple(stored[axes.index(a)] for a in range(len(shape)))


def trial_shapes(codecs: Sequence[Codec], shape: Shape) -> Iterator[tuple[Sequence[Codec], Shape]]:
    """Lists of codecs to try, each with the shape of a small array that it must be able to encode.

    These are the codecs of each sharding, down to the innermost, and all codecs for a shard of one
    inner chunk. Without a sharding, they are the codecs for the whole shape.
    """
    at = next((i for i, codec in enumerate(codecs) if codec["name"] == _NAME), None)
    chunks = chunks_of_sharding(codecs, shape)
    if at is not None:
        inner = codecs[at]["configuration"]
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
