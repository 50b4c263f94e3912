"""PNG images of 8 and 16 bits, of one to four channels: all that a volume can hold.

They are written here, so that all four numbers of channels have 16 bits, too. They are also
decompressed here. Pillow does so row by row, which takes twice the time for the narrow images of
chunks. But it undoes the filters if it is installed, since it is a hundred times as fast. It would
lose bits of two to four channels of 16 bits, so it gets images of 16 bits as images of 8 bits.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.png_filters import Rows, filtered
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CorruptShardError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
_COLOURS = (0, 4, 2, 6)  # grey, grey and alpha, red green blue, and these with alpha
_LEVEL = 6
_MEMORY = 9
_STRATEGIES = (zlib.Z_RLE, zlib.Z_FILTERED)
_SAMPLE_NBYTES = 2**14
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


def most_png_nbytes(height: int, width: int, nbytes: int) -> int:
    """Upper bound of the size of an image whose pixels take `nbytes` bytes each."""
    raw = height * (1 + width * nbytes)
    return raw + raw // 8 + 65536


def encode_png(pixels: Pixels) -> bytes:
    """Encode an image.

    - `pixels`: uint8 or uint16, shape (height, width, channels). The image, of one to four
      channels.
    - Returns: the file. The same pixels give the same bytes with the same library, which is zlib-ng
      if it is installed, and zlib otherwise.
    """
    height, width, n_channels = pixels.shape
    header = _HEADER.pack(
        width, height, 8 * pixels.dtype.itemsize, _COLOURS[n_channels - 1], 0, 0, 0
    )
    size = n_channels * pixels.dtype.itemsize
    stored = pixels.astype(pixels.dtype.newbyteorder(">"), order="C", copy=False)
    rows = stored.reshape(height, -1).view(np.uint8).reshape(height, width, size)
    return _file(header, _deflated(filtered(rows)))


@cache
def _module(package: str, name: str) -> Any:
    """Module of an optional package; None if the package is not installed."""
    found = importlib.util.find_spec(package)
    return None if found is None else importlib.import_module(f"{package}.{name}")


def _quick_zlib() -> Any:
    """ISA-L if it is installed: it decodes in half the time, and finds checksums in a tenth."""
    return _module("isal", "isal_zlib") or zlib


def _zlib_ng() -> Any:
    """zlib-ng if it is installed: it compresses in an eighth of the time."""
    return _module("zlib_ng", "zlib_ng") or zlib


def _file(header: bytes, data: bytes) -> bytes:
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"".join((_SIGNATURE, *(_chunk(name, body) for name, body in chunks)))


def _chunk(name: bytes, body: bytes) -> bytes:
    crc32 = _quick_zlib().crc32
    checksum = crc32(body, crc32(name))
    return b"".join((struct.pack(">I", len(body)), name, body, struct.pack(">I", checksum)))


def _deflated(batches: Iterator[bytes]) -> bytes:
    """Compress the rows of an image.

    In most images, only bytes that follow each other are alike after the filters. Then zlib's
    strategy for runs of equal bytes takes a third of the time, and gives less. If it gives more for
    a sample, the usual strategy is taken.
    """
    library = _zlib_ng()
    first = next(batches)
    at = max(0, len(first) - _SAMPLE_NBYTES) // 2
    sample = memoryview(first)[at : at + _SAMPLE_NBYTES]
    sizes = {kind: len(_compressed(library, kind, [sample])) for kind in _STRATEGIES}
    best = min(_STRATEGIES, key=lambda kind: sizes[kind])
    return _compressed(library, best, itertools.chain([first], batches))


def _compressed(library: Any, strategy: int, parts: Iterable[Buffer]) -> bytes:
    compressor = library.compressobj(_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS, _MEMORY, strategy)
    return b"".join([*map(compressor.compress, parts), compressor.flush()])


def _paeth(left: Any, up: Any, corner: Any) -> Any:
    """The neighbour that predicts each byte best: to the left, above, or above to the left."""
    of_left, of_up = np.abs(up - corner), np.abs(left - corner)
    of_corner = np.abs(left + up - 2 * corner)
    is_left = (of_left <= of_up) & (of_left <= of_corner)
    return np.where(is_left, left, np.where(of_up <= of_corner, up, corner))


def decode_png(data: Buffer, shape: tuple[int, int], dtype: np.dtype[Any]) -> Pixels:
    """Decode an image.

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
    plugin = _module("PIL", "PngImagePlugin")
    try:
        rows = _inflated(found, n_channels * dtype.itemsize)
    except CorruptShardError:
        if plugin is None or (found.depth > 8 and n_channels > 1):
            raise
        # It may be interlaced, or have bytes after its rows. Pillow tells these from damaged ones.
        return _by_pillow(plugin, data).reshape(n_pixels, n_channels).astype(dtype)
    pixels = _unfiltered(rows) if plugin is None else _in_bytes(plugin, rows)
    stored = pixels.view(dtype.newbyteorder(">"))
    return stored.reshape(n_pixels, n_channels).astype(dtype)


def _parts(data: Buffer) -> _Parts:
    view = memoryview(data).cast("B")
    if view[: len(_SIGNATURE)] != _SIGNATURE:
        raise CorruptShardError("png: begins with another signature")
    at, header, rows = len(_SIGNATURE), None, list[memoryview]()
    crc32 = _quick_zlib().crc32
    while True:
        if len(view) < at + _FRAME_NBYTES:
            raise CorruptShardError("png: torn")
        nbytes, name = int.from_bytes(view[at : at + 4], "big"), bytes(view[at + 4 : at + 8])
        end = at + _FRAME_NBYTES + nbytes
        if end > len(view):
            raise CorruptShardError(f"png: {name!r} claims {nbytes} bytes, past the end")
        if crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
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


def _by_pillow(plugin: Any, data: Buffer) -> Pixels:
    try:
        with plugin.PngImageFile(BytesIO(data)) as image:
            image.load()
            return np.asarray(image)
    # The library raises many types here; each of them means wrong bytes.
    except Exception as error:
        raise CorruptShardError(f"png: {error}") from error


@dataclass(frozen=True, slots=True)
class _Filtered:
    """Rows of an image before their filters are undone."""

    table: Rows  # A row has the number of its filter, and then the bytes of its pixels
    size: int  # bytes of a pixel

    @property
    def kinds(self) -> Rows:
        """Number of the filter of each row."""
        return self.table[:, 0]

    @property
    def pixels(self) -> Rows:
        """Bytes of the pixels, as an array of shape (height, width, size)."""
        return self.table[:, 1:].reshape(len(self.table), -1, self.size)


def _inflated(found: _Parts, size: int) -> _Filtered:
    """Rows of an image of which each pixel has `size` bytes."""
    if found.is_interlaced:
        raise CorruptShardError("png: an interlaced image, which is read by Pillow only")
    height, width = found.height, found.width
    wanted = height * (1 + width * size)
    library = _quick_zlib()
    stream = library.decompressobj()
    try:
        raw = stream.decompress(found.data, wanted + 1)
    except library.error as error:
        raise CorruptShardError(f"png: {error}") from error
    if len(raw) != wanted or not stream.eof:
        raise CorruptShardError(f"png: decodes to other than {wanted} bytes")
    table = np.frombuffer(raw, np.uint8).reshape(height, -1)
    if table[:, 0].max() > 4:
        raise CorruptShardError(f"png: a row has the filter {int(table[:, 0].max())}")
    return _Filtered(table, size)


def _in_bytes(plugin: Any, rows: _Filtered) -> Rows:
    """Bytes of the pixels of an image, by way of images with channels of 8 bits.

    Each byte depends on bytes of the same place in other pixels only. So if there are 6 or 8 bytes
    of each pixel, three or four of them are those of an image of its own.
    """
    if rows.size <= 4:
        return _of_bytes(plugin, rows.table, rows.size)
    height, width, size = rows.pixels.shape
    n = 3 if size == 6 else 4
    halves = []
    for first in range(0, size, n):
        table = np.empty((height, 1 + width * n), np.uint8)
        table[:, 0] = rows.kinds
        table[:, 1:] = rows.pixels[:, :, first : first + n].reshape(height, -1)
        halves.append(_of_bytes(plugin, table, n))
    return np.concatenate(halves, axis=2)


def _of_bytes(plugin: Any, table: Rows, n: int) -> Rows:
    """Pixels of an image with `n` channels of 8 bits, given its filtered rows."""
    height, width = len(table), (table.shape[1] - 1) // n
    header = _HEADER.pack(width, height, 8, _COLOURS[n - 1], 0, 0, 0)
    pixels = _by_pillow(plugin, _file(header, _zlib_ng().compress(table.data, 0)))
    return pixels.reshape(height, width, n)


def _unfiltered(rows: _Filtered) -> Rows:
    """Bytes of the pixels of an image.

    The bytes on a diagonal depend on those of the diagonals before it only, so each diagonal is
    decoded at once.
    """
    kinds, (height, width, size) = rows.kinds, rows.pixels.shape
    filtered = rows.pixels.reshape(height * width, size)
    stride = width + 1
    out = np.zeros(((height + 1) * stride, size), np.int16)  # a row and a column of zeros before it
    for diagonal in range(height + width - 1):
        top, last = max(0, diagonal - width + 1), min(height - 1, diagonal)
        n, step = last - top + 1, stride - 1
        here = (top + 1) * stride + 1 + diagonal - top
        left, up, corner = (
            out[start : start + (n - 1) * step + 1 : step]
            for start in (here - 1, here - stride, here - stride - 1)
        )
        guesses: Any = (0, left, up, (left + up) >> 1, _paeth(left, up, corner))
        guess: Any = np.choose(kinds[top : last + 1, None], guesses)
        source = top * width + diagonal - top
        bytes_here = filtered[source : source + (n - 1) * max(1, width - 1) + 1 : max(1, width - 1)]
        out[here : here + (n - 1) * step + 1 : step] = (bytes_here + guess) & 255
    return np.ascontiguousarray(out.reshape(height + 1, stride, size)[1:, 1:].astype(np.uint8))
