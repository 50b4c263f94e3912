"""JPEG images of one or three channels, by Pillow (the ``precomputed`` extra)."""

from __future__ import annotations

import importlib
import os
import threading
from io import BytesIO, FileIO
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CodecError, CorruptShardError

__all__ = ["decode_jpeg", "encode_jpeg", "most_jpeg_nbytes", "require_jpeg"]

_MODES = {1: "L", 3: "RGB"}
_END = b"\xff\xd9"
_MOST_KEPT_NBYTES = 2**20
_scratch = threading.local()

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
    plain = np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    try:
        image = _library("PIL.Image").fromarray(plain)
        file = _scratch_file(plain.nbytes)
        if file is not None:
            _save(image, file, quality)
            nbytes = file.tell()
            if nbytes <= file.room:
                return os.pread(file.fileno(), nbytes, 0)
        stream = BytesIO()
        _save(image, stream, quality)
        return stream.getvalue()
    except (OSError, ValueError) as error:
        raise CodecError(f"jpeg: {error}", codec="jpeg") from error


def _save(image: Any, stream: Any, quality: int) -> None:
    image.save(stream, "JPEG", quality=quality, subsampling=0)


class _ScratchFile(FileIO):
    """File in memory, which Pillow writes an image to.

    Pillow keeps the lock of the interpreter while it encodes, unless it writes to a file of the
    system. It does not look whether the system has written all. So memory for `room` bytes is
    there before, and more is not used.
    """

    def __init__(self, room: int) -> None:
        super().__init__(os.memfd_create("jpeg"), "w+")
        self.room, self.process = room, os.getpid()
        os.posix_fallocate(self.fileno(), 0, room)

    def __del__(self) -> None:
        self.close()


def _scratch_file(room: int) -> _ScratchFile | None:
    """File of the current thread, at its start; None if the system gives no file in memory.

    Then images are encoded to the same bytes one at a time.
    """
    if not hasattr(os, "memfd_create"):
        return None
    found: _ScratchFile | None = getattr(_scratch, "file", None)
    # A process that was forked has the same file, and the same position in it.
    if found is None or found.room < room or found.process != os.getpid():
        try:
            found = _ScratchFile(room)
        except OSError:
            return None
        if room <= _MOST_KEPT_NBYTES:
            _scratch.file = found
    found.seek(0)
    return found


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
