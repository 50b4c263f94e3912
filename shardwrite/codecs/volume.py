"""Encodings of the chunks of Neuroglancer's volumes, as array-to-bytes codecs.

A chunk has the axes z, y and x, or channel, z, y and x. In an image, x is the width, and y and z
follow each other as rows. If these are too many, the rows are those of z alone, and each holds all
of x and y. The pixels have the same order in both.

Codecs of these names stand in the ``zarr.json`` beside the shards of a volume only. No other reader
of Zarr knows them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import Codec
from shardwrite.codecs.jpeg import decode_jpeg, encode_jpeg, most_jpeg_nbytes, require_jpeg
from shardwrite.codecs.png import decode_png, encode_png, most_png_nbytes, require_png
from shardwrite.codecs.segmentation import CompressedSegmentation
from shardwrite.codecs.stages import Buffer, BytesStage, build_stage, most_added, undo
from shardwrite.errors import CodecError, SpecError

_PREFIX = "neuroglancer_"
IMAGE_SIDES = {"png": 1_000_000, "jpeg": 65_500}
"""Largest height and width that libpng and libjpeg take."""

_MOST_IN_BLOCK = 2**32  # voxels

Voxels = npt.NDArray[Any]


class VolumeEncoding(Protocol):
    """Encoder and decoder of chunks with the axes channel, z, y and x."""

    is_lossy: bool

    def most_nbytes(self, shape: tuple[int, ...]) -> int:
        """Upper bound of the size of an encoded chunk of a shape, in bytes."""

    def encode(self, voxels: Voxels) -> Buffer:
        """Encode a chunk.

        - Raises CodecError if it cannot be encoded here.
        """

    def decode(self, data: Buffer, shape: tuple[int, ...]) -> Voxels:
        """Decode a chunk to an array of a shape.

        - Raises CorruptShardError if the bytes cannot be those of such a chunk.
        - Raises CodecError if a library is not installed.
        """


def image_shape(shape: tuple[int, ...], side: int) -> tuple[int, int]:
    """Height and width of the image that holds a chunk.

    - Raises CodecError if an image of this many rows is too large.
    """
    z, y, x = shape
    for height, width in ((z * y, x), (z, y * x)):
        if height <= side and width <= side:
            return height, width
    raise CodecError(f"an image has sides of at most {side}; make chunks smaller", codec="image")


class _Png:
    """Chunks that are PNG images."""

    is_lossy = False

    def __init__(self, dtype: np.dtype[Any]) -> None:
        require_png()
        self._dtype = dtype

    def most_nbytes(self, shape: tuple[int, ...]) -> int:
        """See :meth:`VolumeEncoding.most_nbytes`."""
        return most_png_nbytes(math.prod(shape[1:]), 1, shape[0] * self._dtype.itemsize)

    def encode(self, voxels: Voxels) -> Buffer:
        """See :meth:`VolumeEncoding.encode`."""
        return encode_png(_pixels(voxels, IMAGE_SIDES["png"]))

    def decode(self, data: Buffer, shape: tuple[int, ...]) -> Voxels:
        """See :meth:`VolumeEncoding.decode`."""
        return _voxels(decode_png(data, (math.prod(shape[1:]), shape[0]), self._dtype), shape)


class _Jpeg:
    """Chunks that are JPEG images."""

    is_lossy = True

    def __init__(self, quality: int) -> None:
        require_jpeg()
        self._quality = quality

    def most_nbytes(self, shape: tuple[int, ...]) -> int:
        """See :meth:`VolumeEncoding.most_nbytes`."""
        return most_jpeg_nbytes(math.prod(shape[1:]), shape[0])

    def encode(self, voxels: Voxels) -> Buffer:
        """See :meth:`VolumeEncoding.encode`."""
        return encode_jpeg(_pixels(voxels, IMAGE_SIDES["jpeg"]), self._quality)

    def decode(self, data: Buffer, shape: tuple[int, ...]) -> Voxels:
        """See :meth:`VolumeEncoding.decode`."""
        return _voxels(decode_jpeg(data, math.prod(shape[1:]), shape[0]), shape)


def _pixels(voxels: Voxels, side: int) -> Voxels:
    """Image of a chunk, with the channels last."""
    height, width = image_shape(voxels.shape[1:], side)
    return voxels.reshape(len(voxels), height, width).transpose(1, 2, 0)


def _voxels(pixels: Voxels, shape: tuple[int, ...]) -> Voxels:
    """Chunk of an image, given its pixels as an array of shape (pixels, channels)."""
    return pixels.T.reshape(shape)


def volume_encoding(
    name: str, configuration: Codec, dtype: np.dtype[Any], n_channels: int
) -> VolumeEncoding:
    """Encoding of the chunks of a volume.

    - Raises CodecError if the encoding has no such voxels, the configuration does not fit, or a
      library is missing.
    """
    short = name.removeprefix(_PREFIX)
    dtypes = {"compressed_segmentation": ("uint32", "uint64"), "png": ("uint8", "uint16")}
    channels = {"png": (1, 2, 3, 4), "jpeg": (1, 3)}
    if dtype.name not in dtypes.get(short, ("uint8",)):
        raise CodecError(f"{short} does not hold {dtype}", codec=name)
    if n_channels not in channels.get(short, (n_channels,)):
        raise CodecError(f"{short} does not hold {n_channels} channels", codec=name)
    if short == "png":
        return _Png(dtype)
    if short == "jpeg":
        quality = configuration.get("quality")
        if type(quality) is not int or not 1 <= quality <= 100:
            raise CodecError(f"jpeg has no quality {quality!r}", codec=name)
        return _Jpeg(quality)
    given = configuration.get("block_size")
    block = tuple(given) if isinstance(given, list) else ()
    is_shape = len(block) == 3 and all(type(n) is int and n > 0 for n in block)
    if not is_shape or math.prod(block) > _MOST_IN_BLOCK:
        raise CodecError(f"compressed_segmentation has no block size {given!r}", codec=name)
    return CompressedSegmentation(block, dtype)


class VolumePipeline:
    """Pipeline of one encoding of volumes, and bytes-to-bytes stages.

    - `stages`: codecs after it.
    """

    encoded_nbytes: int | None = None
    is_identity = False

    def __init__(
        self,
        chunk_shape: tuple[int, ...],
        dtype: np.dtype[Any],
        encoding: VolumeEncoding,
        stages: Sequence[BytesStage],
    ) -> None:
        self._chunk_shape = chunk_shape
        self._with_channels = chunk_shape if len(chunk_shape) == 4 else (1, *chunk_shape)
        self._encoding = encoding
        self._stages = tuple(stages)
        self.stored_dtype = dtype
        self.is_lossy = encoding.is_lossy

    @property
    def most_encoded_nbytes(self) -> int:
        """See :attr:`Pipeline.most_encoded_nbytes`."""
        return most_added(self._stages, self._encoding.most_nbytes(self._with_channels))

    def encode(self, batch: Voxels, rows: npt.NDArray[np.int64] | None = None) -> Sequence[Buffer]:
        """See :meth:`Pipeline.encode`."""
        batch = batch.astype(self.stored_dtype, copy=False)
        encoded: Sequence[Buffer] = [
            self._encoding.encode(batch[row].reshape(self._with_channels))
            for row in (range(len(batch)) if rows is None else rows.tolist())
        ]
        for stage in self._stages:
            encoded = stage.encode(encoded)
        return encoded

    def decode(self, data: Buffer) -> Voxels:
        """See :meth:`Pipeline.decode`."""
        most = self._encoding.most_nbytes(self._with_channels)
        plain = undo(self._stages, data, most)
        return self._encoding.decode(plain, self._with_channels).reshape(self._chunk_shape)


class VolumeSerializer:
    """See :class:`Serializer`; all encodings of volumes have the same."""

    @staticmethod
    def build(
        codecs: Sequence[Codec], chunk_shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> VolumePipeline:
        """See :meth:`Serializer.build`."""
        name = str(codecs[0]["name"])
        if len(chunk_shape) not in (3, 4):
            raise CodecError(f"{name} is for chunks of three or four axes", codec=name)
        n_channels = chunk_shape[0] if len(chunk_shape) == 4 else 1
        encoding = volume_encoding(name, codecs[0].get("configuration", {}), dtype, n_channels)
        stages = []
        for codec in codecs[1:]:
            stage = build_stage(codec["name"], codec.get("configuration", {}), 1)
            if stage is None:
                raise CodecError(
                    f"{codec['name']!r} cannot follow {name}", codec=str(codec["name"])
                )
            stages.append(stage)
        return VolumePipeline(chunk_shape, dtype, encoding, stages)

    @staticmethod
    def check_format(shard_format: object, serializer: object) -> None:
        """See :meth:`Serializer.check_format`."""
        if not getattr(shard_format, "cuts_edges", False):
            raise SpecError(
                "a codec for the shards of volumes only",
                field="serializer",
                value=serializer,
                remedy="use shardwrite.to_precomputed",
            )
