"""Decoding of arrays with codecs around a sharding, or with a sharding inside another.

Such arrays can be read but not written. They are decoded here, and not by zarr, so that the size of
each part has a bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs import Pipeline, build_pipeline
from shardwrite.codecs.documents import Codec, Document
from shardwrite.codecs.pipeline import most_added, undo
from shardwrite.codecs.stages import Buffer, BytesStage, build_stage
from shardwrite.errors import CodecError, CorruptShardError
from shardwrite.format.index import IndexCodec
from shardwrite.grid import Shape, unravel

__all__ = ["build_with_sharding", "transposed_axes"]

_NAME = "sharding_indexed"


@dataclass(frozen=True, slots=True)
class Sharding:
    """A sharding among other codecs.

    Attributes
    ----------
    chunks : tuple of int
        Shape of an inner chunk.
    inner : Pipeline
        Pipeline of the inner chunks.
    index_codec : IndexCodec
        Codec of the index.
    """

    chunks: Shape
    inner: Pipeline
    index_codec: IndexCodec


class ShardingPipeline:
    """Pipeline of transpositions, a sharding, and bytes-to-bytes stages.

    Parameters
    ----------
    axes : tuple of int
        For each axis of the stored array, the axis of the decoded array that it holds.
    shape : tuple of int
        Shape of the decoded array.
    sharding : Sharding
        The sharding.
    stages : sequence of BytesStage
        Codecs after the sharding.
    fill_value : scalar
        Value of the elements of empty inner chunks.
    dtype : numpy.dtype
        Dtype in memory.
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

    def encode(
        self,
        batch: npt.NDArray[Any],  # noqa: ARG002
        rows: npt.NDArray[np.int64] | None = None,  # noqa: ARG002
    ) -> Sequence[Buffer]:
        """Raise CodecError, because such arrays are not written."""
        raise CodecError("can be read but not written", codec=_NAME)

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

    Parameters
    ----------
    codecs, shape, dtype, document
        See :func:`build_pipeline`.
    fill_value : scalar
        Fill value of the array.

    Raises
    ------
    CodecError
        If inner chunks do not divide a shard, or a codec cannot be used here.
    SpecError
        If the codecs of a shard index do not fit.
    """
    at = next((i for i, codec in enumerate(codecs) if codec["name"] == _NAME), None)
    if at is None:
        return build_pipeline(codecs, shape, dtype, document)
    axes = transposed_axes(codecs[:at], len(shape))
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


def transposed_axes(codecs: Sequence[Codec], ndim: int) -> Shape | None:
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
