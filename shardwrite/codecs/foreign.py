"""Pipelines of any codecs in zarr's registry, through zarr's public interface.

A one-chunk array in memory encodes and decodes. That is slower than a native pipeline and gives the
same bytes.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.buffer.cpu import Buffer as ZarrBuffer

from shardwrite.codecs.documents import Codec, Document
from shardwrite.codecs.stages import Buffer, BytesStage, chunk_limit, most_added, undo
from shardwrite.errors import CodecError, CorruptShardError

Array = npt.NDArray[Any]
# A setting of zarr holds for all threads. Two that set it at the same time would leave it changed.
_setting = threading.Lock()


class ForeignPipeline:
    """Pipeline of any codecs in zarr's registry.

    Each thread has a one-chunk zarr array in memory, which encodes and decodes. Bytes-to-bytes
    codecs at the end that have a stage of their own use that stage, since its decoding is bounded.

    Some codecs of numcodecs take elements in the order in which they lie in memory. In a transposed
    view, this is another one. So transpositions at the beginning are done here, and the rest of the
    codecs get an array in C order.
    """

    encoded_nbytes: int | None = None
    is_identity = False
    is_lossy = False  # as far as its codecs tell

    def __init__(
        self,
        chunk_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        document: Document,
        stages: Sequence[BytesStage],
        axes: tuple[int, ...],
    ) -> None:
        self._chunk_shape = chunk_shape
        self._axes = axes
        self.stored_dtype = dtype
        codecs = document["codecs"]
        self._stages = tuple(stages)
        self._document = {**document, "codecs": codecs[: len(codecs) - len(stages)]}
        # Filters take the bytes for numbers in the order that they have.
        wanted = _of(codecs[0], "dtype")
        is_other = isinstance(wanted, str) and wanted == dtype.newbyteorder("S").str
        self._dtype = np.dtype(wanted) if is_other else dtype
        endian = next((_of(codec, "endian") for codec in codecs if codec["name"] == "bytes"), None)
        orders = {str(_of(codec, "dtype"))[:1] for codec in codecs} & {"<", ">"}
        self._has_two_orders = endian in ("big", "little") and orders == {
            "<" if endian == "big" else ">"
        }
        self.names = "+".join(str(codec["name"]) for codec in codecs)
        self._key = "c/" + "/".join("0" * len(chunk_shape)) if chunk_shape else "c"
        self._local = threading.local()

    def open(self) -> tuple[zarr.Array[Any], dict[str, Any]]:
        """Array of this thread and the memory behind it, made at the first call.

        It raises whatever zarr and the codecs raise where a codec is not available.
        """
        if not hasattr(self._local, "array"):
            memory: dict[str, Any] = {
                "zarr.json": ZarrBuffer.from_bytes(json.dumps(self._document).encode())
            }
            with _setting, zarr.config.set({"array.write_empty_chunks": True}):
                self._local.array = zarr.open_array(
                    zarr.storage.MemoryStore(memory), mode="r+", zarr_format=3
                )
            self._local.memory = memory
        return self._local.array, self._local.memory

    def encode(self, batch: Array, rows: npt.NDArray[np.int64] | None = None) -> Sequence[Buffer]:
        """See :meth:`Pipeline.encode`."""
        if self._has_two_orders:
            raise CodecError(
                f"codecs {self.names}: the filter and the codec bytes have two orders of bytes, so "
                "no number would come back; give both the same order of bytes",
                codec=self.names,
            )
        array, memory = self.open()
        wanted = range(len(batch)) if rows is None else rows.tolist()
        return self._finish([self._encoded_by(array, memory, batch[row]) for row in wanted])

    def _encoded_by(self, array: zarr.Array[Any], memory: dict[str, Any], chunk: Array) -> bytes:
        """One chunk after the codecs, and before the stages."""
        try:
            array[...] = np.ascontiguousarray(chunk.transpose(self._axes), self._dtype)
        except (TypeError, ValueError, RuntimeError) as error:
            raise CodecError(
                f"codecs {self.names} failed to encode: {error}", codec=self.names
            ) from error
        encoded: bytes = memory.pop(self._key).to_bytes()
        return encoded

    def _finish(self, encoded: Sequence[Buffer]) -> Sequence[Buffer]:
        for stage in self._stages:
            encoded = stage.encode(encoded)
        return encoded

    @property
    def most_encoded_nbytes(self) -> int:
        """See :attr:`Pipeline.most_encoded_nbytes`."""
        return most_added(self._stages, self._limit_nbytes)

    @property
    def _limit_nbytes(self) -> int:
        """Upper bound of the input of the stages, in bytes."""
        is_variable = self.stored_dtype.hasobject or self.stored_dtype.kind == "T"
        return chunk_limit() if is_variable else self._fixed_nbytes

    @cached_property
    def _fixed_nbytes(self) -> int:
        """Upper bound of the input of the stages, if elements have a fixed length.

        It is exact where the serializer is ``bytes``, and a generous estimate elsewhere.

        - Raises CodecError if the codecs cannot encode a chunk.
        """
        nbytes = math.prod(self._chunk_shape) * self.stored_dtype.itemsize
        if self._document["codecs"][-1]["name"] != "bytes":
            # Room for each element in a frame of its own, with a checksum and an index entry.
            return 256 * nbytes + 2**20
        array, memory = self.open()
        return len(self._encoded_by(array, memory, np.zeros(self._chunk_shape, self.stored_dtype)))

    def decode(self, data: Buffer) -> Array:
        """See :meth:`Pipeline.decode`."""
        data = undo(self._stages, data, self._limit_nbytes)
        array, memory = self.open()
        memory[self._key] = ZarrBuffer.from_bytes(bytes(data))
        try:
            stored = np.asarray(array[...]).reshape(array.shape)
            return stored.transpose(np.argsort(self._axes))
        except MemoryError:
            raise
        # Codecs of third parties may raise anything; each other exception means wrong bytes here.
        except Exception as error:
            raise CorruptShardError(f"codecs {self.names}: {error}") from error
        finally:
            memory.pop(self._key, None)


def _of(codec: Codec, name: str) -> Any:
    """An item of the configuration of a codec; None if it has none of this name."""
    return codec.get("configuration", {}).get(name)
