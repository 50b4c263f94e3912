"""Pipelines that encode inner chunks to bytes and decode them.

:class:`NativePipeline` handles the core codecs and calls the compression libraries directly. It
takes a batch of inner chunks as one array. Every other codec in zarr's registry is for
:class:`shardwrite.codecs.foreign.ForeignPipeline`, and only that one imports zarr-python.

An inner chunk is empty if all of its elements are the fill value, bit by bit: two NaN are equal if
their payloads are, and -0.0 differs from 0.0. Only elements of variable length are compared by
value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import Codec, Document
from shardwrite.codecs.stages import Buffer, BytesStage, build_stage, chunk_limit, most_added, undo
from shardwrite.errors import CodecError, CorruptShardError
from shardwrite.seams import find

# ---- Empty inner chunks


_WORDS = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}


class FillPattern:
    """Test for the inner chunks of a batch that hold only the fill value.

    - `dtype`: dtype of the batches, byte order included.
    """

    def __init__(self, fill_value: Any, dtype: np.dtype[Any]) -> None:
        self._is_text = dtype.hasobject or dtype.kind == "T"
        self._fill_value = fill_value
        self._item = b"" if self._is_text else np.full((), fill_value, dtype=dtype).tobytes()
        itemsize = len(self._item)
        width = next((w for w in _WORDS if itemsize and itemsize % w == 0), 1)
        self._word = np.dtype(_WORDS[width])
        self._item_words = np.frombuffer(self._item, self._word)
        if itemsize and len(set(self._item_words.tolist())) == 1:
            self._item_words = self._item_words[:1]
        # Wider words compare faster. They can be used only where a word holds whole items.
        if 0 < itemsize < 8 and 8 % itemsize == 0:
            self._wide = np.frombuffer(self._item * (8 // itemsize), np.uint64)[0]
        else:
            self._wide = None

    def empty(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether each inner chunk of a batch is empty.

        - `batch`: shape (n, ...). Inner chunks, C-contiguous.
        - Returns: True where the inner chunk holds only the fill value, or has no elements.
        """
        n = len(batch)
        if n == 0:
            return np.ones(0, dtype=bool)
        flat = batch.reshape(n, -1)
        if self._is_text:
            return np.array(
                [all(item == self._fill_value for item in chunk) for chunk in flat], dtype=bool
            )
        if flat.size == 0 or not self._item:
            return np.ones(n, dtype=bool)
        words = flat.view(np.uint8)
        if self._wide is not None and words.shape[1] % 8 == 0:
            return self._equal(words.view(np.uint64), self._wide)
        words = words.view(self._word)
        if len(self._item_words) == 1:
            return self._equal(words, self._item_words[0])
        result: npt.NDArray[np.bool_] = (
            words.reshape(n, -1, len(self._item_words)) == self._item_words
        ).all(axis=(1, 2))
        return result

    @staticmethod
    def _equal(words: npt.NDArray[Any], word: Any) -> npt.NDArray[np.bool_]:
        """Whether each row holds only `word`.

        A few probes decide most rows, so that only the other rows are read whole.
        """
        probes = words[:, :: max(1, words.shape[1] // 4)]
        result: npt.NDArray[np.bool_] = (probes == word).all(axis=1)
        for row in np.flatnonzero(result):
            result[row] = bool((words[row] == word).all())
        return result


# ---- Pipelines


Array = npt.NDArray[Any]

_VLEN = {"vlen-utf8": "VLenUTF8", "vlen-bytes": "VLenBytes"}


class Pipeline(Protocol):
    """Encoder and decoder of inner chunks of one shape and dtype."""

    stored_dtype: np.dtype[Any]
    """Dtype that batches for `encode` should have, so that they need no conversion."""
    encoded_nbytes: int | None
    """Size of every encoded chunk in bytes, or None if it depends on the data."""
    is_identity: bool
    """Whether the encoded bytes are those of the batch in memory."""
    is_lossy: bool
    """Whether decoded values may differ from those that were encoded."""

    @property
    def most_encoded_nbytes(self) -> int:
        """Upper bound of the size of an encoded chunk, in bytes; a larger one is not read."""

    def encode(self, batch: Array, rows: npt.NDArray[np.int64] | None = None) -> Sequence[Buffer]:
        """Encode inner chunks.

        - `batch`: shape (n, *chunk_shape). Inner chunks, C-contiguous.
        - `rows`: rows of the inner chunks to encode, in the order wanted; all by default.
        - Raises CodecError if the codecs cannot encode a chunk.
        """

    def decode(self, data: Buffer) -> Array:
        """Decode one inner chunk.

        - Raises CorruptShardError if the bytes cannot be those of an inner chunk of this shape and
          dtype.
        """


class Serializer(Protocol):
    """An array-to-bytes codec that zarr-python does not know.

    A wing brings it under the kind ``serializer``, and the name of the codec.
    """

    def build(
        self, codecs: Sequence[Codec], chunk_shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Pipeline:
        """Build the pipeline for codecs that begin with this one.

        - Raises CodecError if it does not fit, or another codec is not known here.
        """

    def check_format(self, shard_format: object, serializer: object) -> None:
        """Refuse a format of shards, as a user gives it, whose chunks may not have this codec."""


def serializer_named(name: str) -> Serializer | None:
    """A codec that a wing brings; None if no wing has one of this name.

    - Raises CodecError if its wing is missing.
    """
    try:
        serializer: Serializer | None = find("serializer", name)
    except LookupError as error:
        raise CodecError(str(error), codec=name) from error
    return serializer


class NativePipeline:
    """Pipeline of transpositions, one ``bytes`` or ``vlen-*`` codec, and bytes-to-bytes stages."""

    is_lossy = False

    def __init__(
        self,
        chunk_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        axes: tuple[int, ...],
        stored_dtype: np.dtype[Any],
        vlen: Any,
        stages: Sequence[BytesStage],
    ) -> None:
        self._chunk_shape = chunk_shape
        self._dtype = dtype
        self._axes = axes
        self._vlen = vlen
        self._stages = tuple(stages)
        self.stored_dtype = stored_dtype
        self._transposed = axes != tuple(range(len(axes)))
        self._stored_shape = tuple(chunk_shape[a] for a in axes)
        self._axes_back = tuple(axes.index(a) for a in range(len(axes)))
        self._nbytes = math.prod(chunk_shape) * dtype.itemsize
        added = [stage.added_nbytes for stage in stages]
        fixed = vlen is None and all(n is not None for n in added)
        self.encoded_nbytes = self._nbytes + sum(n or 0 for n in added) if fixed else None
        self._most_encoded_nbytes = most_added(stages, self._nbytes)
        self.is_identity = not stages and vlen is None and not self._transposed

    @property
    def _limit_nbytes(self) -> int:
        return self._nbytes if self._vlen is None else chunk_limit()

    @property
    def most_encoded_nbytes(self) -> int:
        """See :attr:`Pipeline.most_encoded_nbytes`."""
        if self._vlen is None:
            return self._most_encoded_nbytes
        return most_added(self._stages, self._limit_nbytes)

    def encode(self, batch: Array, rows: npt.NDArray[np.int64] | None = None) -> Sequence[Buffer]:
        """See :meth:`Pipeline.encode`."""
        batch = batch.astype(self.stored_dtype, copy=False)
        if self._vlen is not None:
            # numpy before 2.2 may crash where rows of its StringDType are taken by their numbers.
            batch = batch.astype(object, copy=False)
        if self._transposed or self._vlen is not None:
            batch, rows = batch if rows is None else batch[rows], None
        if self._transposed:
            batch = batch.transpose(0, *(a + 1 for a in self._axes))
        n_chunks = len(batch) if rows is None else len(rows)
        if n_chunks == 0:
            return []
        encoded: Sequence[Buffer]
        if self._vlen is not None:
            encoded = [self._vlen.encode(chunk) for chunk in batch.reshape(n_chunks, -1)]
            _check_readable(encoded)
        elif self._nbytes:
            flat = np.ascontiguousarray(batch).reshape(len(batch), -1).view(np.uint8)
            encoded = list(flat) if rows is None else [flat[row] for row in rows.tolist()]
        else:
            encoded = [b""] * n_chunks
        for stage in self._stages:
            encoded = stage.encode(encoded)
        return encoded

    def decode(self, data: Buffer) -> Array:
        """See :meth:`Pipeline.decode`."""
        data = undo(self._stages, data, self._limit_nbytes)
        shape = self._stored_shape
        if self._vlen is not None:
            claimed, n_found = (
                int.from_bytes(memoryview(data)[:4], "little"),
                len(memoryview(data)) // 4,
            )
            # Each element has its length before it, in four bytes.
            if claimed != math.prod(shape) or claimed > n_found:
                raise CorruptShardError(
                    f"claims {claimed} elements, not {math.prod(shape)}, in {4 * n_found} bytes"
                )
            try:
                stored = np.asarray(
                    self._vlen.decode(data if isinstance(data, bytes) else bytes(data)),
                    dtype=object,
                )
            except (ValueError, TypeError, UnicodeDecodeError) as error:
                raise CorruptShardError(f"variable-length elements: {error}") from error
            stored = stored.astype(self._dtype)
        else:
            if len(memoryview(data)) != self._nbytes:
                raise CorruptShardError(
                    f"decodes to {len(memoryview(data))} bytes, not {self._nbytes}"
                )
            stored = (
                np.frombuffer(data, dtype=np.uint8).view(self.stored_dtype)
                if self._nbytes
                else np.zeros(shape, self._dtype)
            )
        chunk = stored.reshape(shape).transpose(self._axes_back)
        return chunk.astype(self._dtype, copy=False)


def _check_readable(encoded: Sequence[Buffer]) -> None:
    """Raise CodecError if an inner chunk is too large to be read again."""
    limit = chunk_limit()
    largest = max(map(len, encoded))
    if largest > limit:
        raise CodecError(
            f"an inner chunk of variable-length elements takes {largest} bytes, "
            f"and at most {limit} would be read again; make "
            "chunks smaller, or raise shardwrite.read.chunk-limit in dask's configuration, "
            "here and wherever the array is read",
            codec="vlen",
        )


def build_pipeline(
    codecs: Sequence[Codec],
    chunk_shape: tuple[int, ...],
    dtype: np.dtype[Any],
    document: Document,
) -> Pipeline:
    """Build the pipeline for a list of codecs.

    - `codecs`: codecs as in ``zarr.json``: any number of array-to-array codecs, one array-to-bytes
      codec, and any number of bytes-to-bytes codecs.
    - `document`: the array's ``zarr.json``. A foreign pipeline takes data type and fill value from
      it.
    - Raises CodecError if zarr's registry does not have a codec, or a configuration does not fit
      its codec.
    """
    native = _native(codecs, chunk_shape, dtype)
    if native is not None:
        return native
    axes, rest = _transposed(codecs, len(chunk_shape))
    stored_shape = [chunk_shape[axis] for axis in axes]
    inner = {
        **{k: document[k] for k in ("zarr_format", "node_type", "data_type", "fill_value")},
        "shape": stored_shape,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": stored_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [dict(codec) for codec in rest],
        "attributes": {},
    }
    from shardwrite.codecs.foreign import ForeignPipeline  # imports zarr-python, which takes long

    try:
        stages = _stages_at_the_end(rest, dtype)
        pipeline = ForeignPipeline(chunk_shape, dtype, inner, stages, axes)
        pipeline.open()
    # An unknown codec raises KeyError. For a bad configuration each class raises its own errors.
    except Exception as error:
        names = "+".join(str(codec["name"]) for codec in codecs)
        raise CodecError(f"codecs {names} cannot be used here: {error}", codec=names) from error
    return pipeline


def _stages_at_the_end(codecs: Sequence[Codec], dtype: np.dtype[Any]) -> list[BytesStage]:
    """Stages for the last codecs, back to the first one that has no stage."""
    stages: list[BytesStage] = []
    for codec in reversed(codecs):
        stage = build_stage(codec["name"], codec.get("configuration", {}), max(1, dtype.itemsize))
        if stage is None:
            break
        stages.insert(0, stage)
    return stages


def _transposed(codecs: Sequence[Codec], ndim: int) -> tuple[tuple[int, ...], list[Codec]]:
    """Axes of a chunk after the transpositions at the beginning, and the codecs after these."""
    axes = tuple(range(ndim))
    rest = list(codecs)
    while rest and rest[0]["name"] == "transpose":
        order = rest.pop(0).get("configuration", {}).get("order")
        is_axes = isinstance(order, list) and all(type(i) is int for i in order)
        if not is_axes or sorted(order) != list(range(ndim)):
            raise CodecError(
                f"transpose order {order!r} is no permutation of {ndim} axes",
                codec="transpose",
            )
        axes = tuple(axes[i] for i in order)
    return axes, rest


def _native(
    codecs: Sequence[Codec], chunk_shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NativePipeline | None:
    axes, rest = _transposed(codecs, len(chunk_shape))
    if not rest:
        return None
    serializer = rest.pop(0)
    vlen = None
    stored_dtype = dtype
    if serializer["name"] in ("bytes", "endian"):  # the proposal of 2023 called it so
        endian = serializer.get("configuration", {}).get("endian", "little")
        if dtype.hasobject or dtype.kind == "T":
            return None
        if dtype.fields is None:
            stored_dtype = dtype.newbyteorder(">" if endian == "big" else "<")
        elif endian == "big":
            return None
    elif serializer["name"] in _VLEN:
        import numcodecs  # takes long, and other dtypes do not need it

        vlen = getattr(numcodecs, _VLEN[serializer["name"]])()
    else:
        return None
    stages = []
    for codec in rest:
        stage = build_stage(codec["name"], codec.get("configuration", {}), max(1, dtype.itemsize))
        if stage is None:
            return None
        stages.append(stage)
    return NativePipeline(
        chunk_shape, dtype, axes=axes, stored_dtype=stored_dtype, vlen=vlen, stages=stages
    )
