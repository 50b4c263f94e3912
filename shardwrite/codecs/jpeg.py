"""JPEG images of one or three channels, by Pillow (the ``precomputed`` extra)."""

from __future__ import annotations

import importlib
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CodecError, CorruptShardError

__all__ = ["decode_jpeg", "encode_jpeg", "most_jpeg_nbytes", "require_jpeg"]

_MODES = {1: "L", 3: "RGB"}
_END = b"\xff\xd9"

Pixels = npt.NDArray[np.uint8]


def most_jpeg_nbytes(n_pixels: int, n_channels: int) -> int:
    """Upper bound of the size of an image, which may be larger than its pixels."""
    return 4 * n_pixels * n_channels + 65536


def require_jpeg() -> None:
    """Refuse images if their library is missing.

    Raises
    ------
    CodecError
        If Pillow is not installed.
    """
    _library("PIL.JpegImagePlugin")


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CodecError(
            'jpeg needs Pillow, which is not installed: pip install "shardwrite[precomputed]"',
            codec="jpeg",
        ) from error


def encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """Encode an image. Colours keep the resolution of the pixels (4:4:4).

    Parameters
    ----------
    pixels : numpy.ndarray of uint8, shape (height, width, channels)
        The image, of one or three channels.
    quality : int
        Quality, of 1 to 100.

    Raises
    ------
    CodecError
        If Pillow is not installed, or refuses the image.
    """
    require_jpeg()  # which also makes the format known to the library
    library, stream = _library("PIL.Image"), BytesIO()
    plain = np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    try:
        library.fromarray(plain).save(stream, "JPEG", quality=quality, subsampling=0)
    except (OSError, ValueError) as error:
        raise CodecError(f"jpeg: {error}", codec="jpeg") from error
    return stream.getvalue()


def decode_jpeg(data: Buffer, n_pixels: int, n_channels: int) -> Pixels:
    """Decode an image.

    Parameters
    ----------
    data : buffer
        The file.
    n_pixels, n_channels : int
        Number of pixels, which the image may have in any height and width, and of channels.

    Returns
    -------
    numpy.ndarray of uint8, shape (pixels, channels)
        The pixels, row after row.

    Raises
    ------
    CorruptShardError
        If it is no such image, or is damaged. Its size is checked before anything is decoded.
    CodecError
        If Pillow is not installed.
    """
    plugin = _library("PIL.JpegImagePlugin")
    if bytes(memoryview(data).cast("B")[-2:]) != _END:
        raise CorruptShardError("jpeg: torn, since it has no end")
    try:
        with plugin.JpegImageFile(BytesIO(data)) as image:
            width, height = image.size
            if width * height == n_pixels and image.mode == _MODES[n_channels]:
                image.load()
                return np.asarray(image).reshape(n_pixels, n_channels)
            claim = f"an image of {width} by {height} pixels in {image.mode}"
    # The library raises many types here; each of them means wrong bytes.
    except Exception as error:
        raise CorruptShardError(f"jpeg: {error}") from error
    raise CorruptShardError(f"jpeg: {claim}, where {n_pixels} in {_MODES[n_channels]} must be")
