"""JPEG images of one or three channels, by simplejpeg (the ``precomputed`` extra)."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CodecError, CorruptShardError

_COLOURS = {1: "GRAY", 3: "RGB"}
_MODELS = {1: ("Gray",), 3: ("YCbCr", "RGB")}  # how a file may have them
_END = b"\xff\xd9"

Pixels = npt.NDArray[np.uint8]


def most_jpeg_nbytes(n_pixels: int, n_channels: int) -> int:
    """Upper bound of the size of an image, which may be larger than its pixels."""
    return 4 * n_pixels * n_channels + 65536


def require_jpeg() -> Any:
    """The library of images.

    - Raises CodecError if it is not installed.
    """
    try:
        return importlib.import_module("simplejpeg")
    except ImportError as error:
        raise CodecError(
            'jpeg needs simplejpeg, which is not installed: pip install "shardwrite[precomputed]"',
            codec="jpeg",
        ) from error


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Encode an image. Colours keep the resolution of the pixels (4:4:4).

    - `pixels`: uint8, shape (height, width, channels). The image, of one or three channels.
    - `quality`: quality, of 1 to 100.
    - Raises CodecError if simplejpeg is not installed, or refuses the image.
    """
    colours = _COLOURS[pixels.shape[2]]
    subsampling = "Gray" if colours == "GRAY" else "444"
    encode = require_jpeg().encode_jpeg
    try:
        encoded: bytes = encode(
            np.ascontiguousarray(pixels), quality, colours, subsampling, fastdct=False
        )
    except ValueError as error:
        raise CodecError(f"jpeg: {error}", codec="jpeg") from error
    return encoded


def decode_jpeg(data: Buffer, n_pixels: int, n_channels: int) -> Pixels:
    """Decode an image.

    - Raises CorruptShardError if it is no such image, or is damaged. Its size is checked before
      anything is decoded.
    - Raises CodecError if simplejpeg is not installed.
    """
    library = require_jpeg()
    if bytes(memoryview(data).cast("B")[-2:]) != _END:
        raise CorruptShardError("jpeg: torn, since it has no end")
    colours = _COLOURS[n_channels]
    try:
        height, width, model, _ = library.decode_jpeg_header(data)
        if width * height == n_pixels and model in _MODELS[n_channels]:
            decoded: Pixels = library.decode_jpeg(data, colours)
            return decoded.reshape(n_pixels, n_channels)
    except ValueError as error:
        raise CorruptShardError(f"jpeg: {error}") from error
    raise CorruptShardError(
        f"jpeg: an image of {width} by {height} pixels in {model}, "
        f"where {n_pixels} in {colours} must be"
    )
