"""PNG images of 8 and 16 bits, of one to four channels, by Pillow (the ``precomputed`` extra).

Pillow holds no images of two to four channels of 16 bits. They are written here, with one filter
for all rows. They are read by Pillow as images of 8 bits: a byte of a row depends only on bytes of
the same place in other pixels.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CodecError, CorruptShardError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_COLOURS = (0, 4, 2, 6)  # grey, grey and alpha, red green blue, and these with alpha
_LEVEL = 6
_STRATEGIES = (zlib.Z_RLE, zlib.Z_FILTERED)
_SAMPLE_NBYTES = 2**14
_UP = 2  # number of the filter that takes the difference to the row above
_FRAME_NBYTES = 12  # of each chunk of a file: its size, its name and its checksum

Pixels = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Parts:
    """The header of a file, and the compressed rows of its image."""

    height: int
    width: int
    depth: int
    colour: int
    is_interlaced: bool
    data: bytes


def require_png() -> Any:
    """Pillow.

    - Raises CodecError if it is not installed.
    """
    try:
        return importlib.import_module("PIL.Image"), importlib.import_module("PIL.PngImagePlugin")
    except ImportError as error:
        raise CodecError(
            'png needs Pillow, which is not installed: pip install "shardwrite[precomputed]"',
            codec="png",
        ) from error


def most_png_nbytes(height: int, width: int, nbytes: int) -> int:
    """Upper bound of the size of an image whose pixels take `nbytes` bytes each."""
    raw = height * (1 + width * nbytes)
    return raw + raw // 8 + 65536


def _is_deep(n_channels: int, dtype: np.dtype[Any]) -> bool:
    """Whether Pillow holds no such images."""
    return dtype.itemsize > 1 and n_channels > 1


def encode_png(pixels: Pixels) -> bytes:
    """Encode an image.

    - `pixels`: uint8 or uint16, shape (height, width, channels). The image, of one to four
      channels.
    - Returns: the file. The same pixels give the same bytes with the same version of Pillow.
    """
    height, width, n_channels = pixels.shape
    if _is_deep(n_channels, pixels.dtype):
        stored = pixels.astype(pixels.dtype.newbyteorder(">"), order="C").reshape(height, -1)
        rows = stored.view(np.uint8)
        table = np.full((height, 1 + rows.shape[1]), _UP, np.uint8)
        table[0, 1:] = rows[0]
        np.subtract(rows[1:], rows[:-1], out=table[1:, 1:])
        return _file((width, height, 16, _COLOURS[n_channels - 1]), table, _LEVEL)
    # Noise is compressed as runs in a third of the time. A sample of rows tells.
    plain = np.ascontiguousarray(pixels[..., 0] if n_channels == 1 else pixels)
    n_rows = max(1, _SAMPLE_NBYTES // plain[0].nbytes)
    sample = plain[max(0, height - n_rows) // 2 :][:n_rows]
    sizes = {strategy: len(_saved(sample, strategy)) for strategy in _STRATEGIES}
    return _saved(plain, min(_STRATEGIES, key=lambda strategy: sizes[strategy]))


def _saved(pixels: Pixels, strategy: int) -> bytes:
    stream = BytesIO()
    image = require_png()[0].fromarray(pixels)
    image.save(stream, "PNG", compress_level=_LEVEL, compress_type=strategy)
    return stream.getvalue()


def _file(header: tuple[int, int, int, int], table: npt.NDArray[np.uint8], level: int) -> bytes:
    """A file of rows that have the number of their filter before them."""
    body = zlib.compress(table.data, level)
    chunks = ((b"IHDR", _HEADER.pack(*header, 0, 0, 0)), (b"IDAT", body), (b"IEND", b""))
    parts = (
        (struct.pack(">I", len(data)), name, data, struct.pack(">I", zlib.crc32(name + data)))
        for name, data in chunks
    )
    return b"".join((_SIGNATURE, *(piece for part in parts for piece in part)))


def decode_png(data: Buffer, shape: tuple[int, int], dtype: np.dtype[Any]) -> Pixels:
    """Decode an image.

    - `shape`: number of pixels, and of channels.
    - `dtype`: dtype of the pixels, ``uint8`` or ``uint16``.
    - Raises CorruptShardError if it is no such image, or is damaged. Its size is checked before
      anything is decoded.
    """
    n_pixels, n_channels = shape
    found = _parts(data)
    if found.height * found.width != n_pixels:
        raise CorruptShardError(
            f"png: an image of {found.width} by {found.height} pixels, where {n_pixels} must be"
        )
    if (found.depth, found.colour) != (8 * dtype.itemsize, _COLOURS[n_channels - 1]):
        raise CorruptShardError(
            f"png: an image of {found.depth} bits and colour type {found.colour}, which is not "
            f"{dtype} with {n_channels} channels"
        )
    if _is_deep(n_channels, dtype):
        pixels = _in_bytes(found, 2 * n_channels).view(dtype.newbyteorder(">"))
    else:
        pixels = _by_pillow(data)
    return pixels.reshape(n_pixels, n_channels).astype(dtype, copy=False)


def _parts(data: Buffer) -> _Parts:
    view = memoryview(data).cast("B")
    if view[: len(_SIGNATURE)] != _SIGNATURE:
        raise CorruptShardError("png: begins with another signature")
    at, header, rows = len(_SIGNATURE), None, list[memoryview]()
    while True:
        if len(view) < at + _FRAME_NBYTES:
            raise CorruptShardError("png: torn")
        nbytes, name = int.from_bytes(view[at : at + 4], "big"), bytes(view[at + 4 : at + 8])
        end = at + _FRAME_NBYTES + nbytes
        if end > len(view):
            raise CorruptShardError(f"png: {name!r} claims {nbytes} bytes, past the end")
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise CorruptShardError(f"png: the checksum of {name!r} does not fit")
        body, at = view[at + 8 : end - 4], end
        if header is None:
            if name != b"IHDR" or nbytes != _HEADER.size:
                raise CorruptShardError("png: begins with no header")
            header = _HEADER.unpack(body)
        elif name == b"IDAT":
            rows.append(body)
        elif name == b"IEND":
            break
    width, height, depth, colour, method, filters, interlace = header
    if method or filters or interlace > 1 or not width or not height:
        raise CorruptShardError("png: a header of no known image")
    return _Parts(height, width, depth, colour, bool(interlace), b"".join(rows))


def _by_pillow(data: Buffer) -> Pixels:
    _, plugin = require_png()
    try:
        with plugin.PngImageFile(BytesIO(data)) as image:
            image.load()
            return np.asarray(image)
    # The library raises many types here; each of them means wrong bytes.
    except Exception as error:
        raise CorruptShardError(f"png: {error}") from error


def _in_bytes(found: _Parts, size: int) -> Pixels:
    """Bytes of the pixels of an image, each of `size` bytes, by way of images of 8 bits.

    Of 6 or 8 bytes of a pixel, each half is that of an image of its own.
    """
    if found.is_interlaced:
        raise CorruptShardError("png: an interlaced image of several channels of 16 bits")
    wanted = found.height * (1 + found.width * size)
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(found.data, wanted + 1)
    except zlib.error as error:
        raise CorruptShardError(f"png: {error}") from error
    if len(raw) != wanted or not stream.eof:
        raise CorruptShardError(f"png: decodes to other than {wanted} bytes")
    table = np.frombuffer(raw, np.uint8).reshape(found.height, -1)
    rows = table[:, 1:].reshape(found.height, found.width, size)
    n, images = (size // 2 if size > 4 else size), []
    for first in range(0, size, n):
        part = rows[:, :, first : first + n].reshape(found.height, -1)
        alone = np.concatenate([table[:, :1], part], axis=1)
        header = (found.width, found.height, 8, _COLOURS[n - 1])
        image = _by_pillow(_file(header, alone, 0))
        images.append(image.reshape(found.height, found.width, n))
    return np.concatenate(images, axis=2)
