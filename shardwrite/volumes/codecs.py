"""Encodings of the chunks of volumes, by the ``precomputed`` extra: JPEG, PNG, segmentation.

*Images.* A chunk has the axes z, y and x, or channel, z, y and x. In an image, x is the width, and
y and z follow each other as rows. If these are too many, the rows are those of z alone, and each
holds all of x and y. The pixels have the same order in both.

*PNG.* Pillow holds no images of two to four channels of 16 bits. They are written here, with one
filter for all rows. They are read by Pillow as images of 8 bits: a byte of a row depends only on
bytes of the same place in other pixels.

*Compressed segmentation.* The package of that name encodes and decodes single channels. A chunk
begins with the position of each channel. A channel begins with a header of two words for each
block, with x as the fastest axis. It tells where the table of labels of the block lies, how many
bits a voxel takes, and where these bits lie. All positions count words of 32 bits from the start of
the channel. The package reads whatever memory these headers point to, so they are checked here
before. It also takes codes of at most 16 bits. So blocks of more labels are refused, and read here.

*In metadata.* Codecs of these names stand in the ``zarr.json`` beside the shards of a volume only.
No other reader of Zarr knows them.
"""

from __future__ import annotations

import importlib
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Codec
from shardwrite.codecs.stages import Buffer, BytesStage, build_stage, chunk_limit, most_added, undo
from shardwrite.errors import CodecError, CorruptShardError, SpecError

_JPEG_COLOURS = {1: "GRAY", 3: "RGB"}

_MODELS = {1: ("Gray",), 3: ("YCbCr", "RGB")}  # how a file may have them

_END = b"\xff\xd9"

JpegPixels = npt.NDArray[np.uint8]


# ---- JPEG images of one or three channels, by simplejpeg


def most_jpeg_nbytes(n_pixels: int, n_channels: int) -> int:
    """Upper bound of the size of an image, which may be larger than its pixels."""
    return 4 * n_pixels * n_channels + 65536


def _library(module: str, package: str, codec: str) -> Any:
    """A library that encodes and decodes.

    - Raises CodecError if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CodecError(
            f"{codec} needs {package}, which is not installed: pip install "
            '"shardwrite[precomputed]"',
            codec=codec,
        ) from error


def _simplejpeg() -> Any:
    return _library("simplejpeg", "simplejpeg", "jpeg")


def encode_jpeg(pixels: JpegPixels, quality: int) -> bytes:
    """Encode an image. Colours keep the resolution of the pixels (4:4:4).

    - `pixels`: uint8, shape (height, width, channels). The image, of one or three channels.
    - `quality`: quality, of 1 to 100.
    - Raises CodecError if simplejpeg is not installed, or refuses the image.
    """
    colours = _JPEG_COLOURS[pixels.shape[2]]
    subsampling = "Gray" if colours == "GRAY" else "444"
    encode = _simplejpeg().encode_jpeg
    try:
        encoded: bytes = encode(
            np.ascontiguousarray(pixels), quality, colours, subsampling, fastdct=False
        )
    except ValueError as error:
        raise CodecError(f"jpeg: {error}", codec="jpeg") from error
    return encoded


def decode_jpeg(data: Buffer, n_pixels: int, n_channels: int) -> JpegPixels:
    """Decode an image.

    - Raises CorruptShardError if it is no such image, or is damaged. Its size is checked before
      anything is decoded.
    - Raises CodecError if simplejpeg is not installed.
    """
    library = _simplejpeg()
    if bytes(memoryview(data).cast("B")[-2:]) != _END:
        raise CorruptShardError("jpeg: torn, since it has no end")
    colours = _JPEG_COLOURS[n_channels]
    try:
        height, width, model, _ = library.decode_jpeg_header(data)
        if width * height == n_pixels and model in _MODELS[n_channels]:
            decoded: JpegPixels = library.decode_jpeg(data, colours)
            return decoded.reshape(n_pixels, n_channels)
    except ValueError as error:
        raise CorruptShardError(f"jpeg: {error}") from error
    raise CorruptShardError(
        f"jpeg: an image of {width} by {height} pixels in {model}, "
        f"where {n_pixels} in {colours} must be"
    )


# ---- PNG images of 8 and 16 bits, of one to four channels, by Pillow


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


def _pillow(module: str = "PIL.Image") -> Any:
    return _library(module, "Pillow", "png")


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
    """A file, encoded by Pillow with a strategy of zlib."""
    stream = BytesIO()
    image = _pillow().fromarray(pixels)
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
    file = _parts(data)
    if file.height * file.width != n_pixels:
        raise CorruptShardError(
            f"png: an image of {file.width} by {file.height} pixels, where {n_pixels} must be"
        )
    if (file.depth, file.colour) != (8 * dtype.itemsize, _COLOURS[n_channels - 1]):
        raise CorruptShardError(
            f"png: an image of {file.depth} bits and colour type {file.colour}, which is not "
            f"{dtype} with {n_channels} channels"
        )
    if _is_deep(n_channels, dtype):
        pixels = _decoded_by_byte(file, 2 * n_channels).view(dtype.newbyteorder(">"))
    else:
        pixels = _by_pillow(data)
    return pixels.reshape(n_pixels, n_channels).astype(dtype, copy=False)


def _parts(data: Buffer) -> _Parts:
    """The header and the rows of a file, whose checksums are compared."""
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
    """Pixels of a file, decoded by Pillow."""
    plugin = _pillow("PIL.PngImagePlugin")
    try:
        with plugin.PngImageFile(BytesIO(data)) as image:
            image.load()
            return np.asarray(image)
    except MemoryError:
        raise
    # The library raises many types here; each other one means wrong bytes.
    except Exception as error:
        raise CorruptShardError(f"png: {error}") from error


def _decoded_by_byte(found: _Parts, size: int) -> Pixels:
    """Pixels, each as `size` bytes, of an image that Pillow does not hold; see `_is_deep`.

    Pillow decodes the bytes as channels of 8 bits, which have the same filters. If a pixel has more
    bytes than an image can have channels, each half of them is an image of its own.
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


# ---- Compressed segmentation, by the package of that name


_WIDTHS = (0, 1, 2, 4, 8, 16, 32)

_MOST_LABELS = 2**16  # of a block

_WORD_NBYTES = 4

Labels = npt.NDArray[Any]

Words = npt.NDArray[np.uint32]

Slices = tuple[slice, ...]


class CompressedSegmentation:
    """Encoder and decoder of chunks of labels.

    - `block`: shape of a block along x, y and z.
    - `dtype`: dtype of the labels, ``uint32`` or ``uint64``.
    """

    name = "compressed_segmentation"
    is_lossy = False

    def __init__(self, block: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        package = "the package of this name"
        self._library = _library("compressed_segmentation", package, self.name)
        self._block = block
        self._dtype = dtype
        self._words_per_label = dtype.itemsize // _WORD_NBYTES

    def most_nbytes(self, shape: tuple[int, ...]) -> int:
        """Upper bound of the size of an encoded chunk of a shape, in bytes."""
        n_blocks = math.prod(self._counts(shape[1:]))
        per_block = 2 + math.prod(self._block) * (1 + self._words_per_label)
        return _WORD_NBYTES * shape[0] * (1 + n_blocks * per_block)

    def _counts(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Number of blocks along z, y and x."""
        return tuple(-(-n // b) for n, b in zip(shape, self._block[::-1], strict=True))

    def encode(self, voxels: Labels) -> Buffer:
        """Encode a chunk.

        - `voxels`: shape (channels, z, y, x). The labels.
        - Raises CodecError if a block has too many labels, or their tables take more than 64 MiB.
        """
        self._check_labels(voxels)
        try:
            # What the package writes of one channel begins with the position of this channel.
            parts = [
                memoryview(
                    self._library.compress(labels.transpose(), block_size=self._block, order="F")
                )[_WORD_NBYTES:]
                for labels in np.ascontiguousarray(voxels)
            ]
        except OverflowError as error:
            raise CodecError(
                "compressed_segmentation: the labels of a chunk take more than 64 MiB, which a "
                "block header cannot address; make chunks smaller",
                codec=self.name,
            ) from error
        sizes = [len(part) // _WORD_NBYTES for part in parts[:-1]]
        starts = np.cumsum([len(parts), *sizes]).astype("<u4")
        return b"".join((starts.tobytes(), *parts))

    def _check_labels(self, voxels: Labels) -> None:
        """Refuse blocks of so many labels that the package would never return."""
        z, y, x = (min(b, n) for b, n in zip(self._block[::-1], voxels.shape[1:], strict=True))
        if z * y * x <= _MOST_LABELS:
            return
        for corner in np.ndindex(len(voxels), *self._counts(voxels.shape[1:])):
            part = voxels[corner[0]]
            for axis, (n, size) in enumerate(zip(corner[1:], (z, y, x), strict=True)):
                part = part[(slice(None),) * axis + (slice(n * size, (n + 1) * size),)]
            if len(np.unique(part)) > _MOST_LABELS:
                raise CodecError(
                    f"compressed_segmentation: a block has more than {_MOST_LABELS:,} labels; make "
                    "blocks smaller",
                    codec=self.name,
                )

    def decode(self, data: Buffer, shape: tuple[int, ...]) -> Labels:
        """Decode a chunk.

        - Raises CorruptShardError if something lies past the end, or the bytes cannot be those of
          such a chunk.
        """
        nbytes, limit = math.prod(shape) * self._dtype.itemsize, chunk_limit()
        if nbytes > limit:  # a few bytes could stand for any number of equal labels
            raise CorruptShardError(
                f"{self.name}: a chunk of {nbytes} bytes, and {limit} are allowed; if that is "
                "right, raise shardwrite.read.chunk-limit in dask's configuration"
            )
        view = memoryview(data).cast("B")
        if len(view) % _WORD_NBYTES or len(view) < _WORD_NBYTES * shape[0]:
            raise CorruptShardError(f"{self.name}: {len(view)} bytes are no whole chunk")
        words = np.frombuffer(view, "<u4")
        if int(words[: shape[0]].min()) < shape[0]:
            raise CorruptShardError(f"{self.name}: a channel begins before the first one can")
        channels = [
            self._decode_channel(words[start:], shape[1:]) for start in words[: shape[0]].tolist()
        ]
        return channels[0][np.newaxis] if len(channels) == 1 else np.stack(channels)

    def _decode_channel(self, words: Words, shape: tuple[int, ...]) -> Labels:
        wide = self._check(words, shape)
        alone = b"".join((np.array([1], "<u4").tobytes(), words.tobytes()))
        labels: Labels = self._library.decompress(
            alone, shape[::-1], self._dtype, block_size=self._block, order="F"
        ).transpose()
        for box, found in wide:
            labels[box] = found
        return labels

    def _check(self, words: Words, shape: tuple[int, ...]) -> list[tuple[Slices, Labels]]:
        """Check that all that a channel points to lies in it.

        - Returns: the labels of blocks whose codes have 32 bits, and where they lie.
        - Raises CorruptShardError if something lies past the end.
        """
        counts, block = self._counts(shape), self._block[::-1]
        n_blocks = math.prod(counts)
        if len(words) < 2 * n_blocks:
            raise CorruptShardError(f"{self.name}: the headers of {n_blocks} blocks do not fit")
        headers = words[: 2 * n_blocks].reshape(-1, 2).astype(np.int64)
        tables, widths, places = headers[:, 0] & 0xFFFFFF, headers[:, 0] >> 24, headers[:, 1]
        is_known = np.isin(widths, _WIDTHS)
        if not is_known.all():
            bad = int(np.argmin(is_known))
            raise CorruptShardError(
                f"{self.name}: block {bad} claims {int(widths[bad])} bits for a voxel"
            )
        # Of a block at the end of an axis, or one larger than the chunk, only a part is there.
        extents = [
            np.minimum(b, n - b * np.arange(count))
            for n, b, count in zip(shape, block, counts, strict=True)
        ]
        z, y, x = (axis.reshape(-1) for axis in np.meshgrid(*extents, indexing="ij"))
        last = ((z - 1) * block[1] + y - 1) * block[2] + x - 1
        self._check_ends(words, np.where(widths > 0, places + (last * widths >> 5), 0))
        self._check_ends(words, tables + self._words_per_label - 1)
        # A table may be shorter than what its codes could tell, so these count near the end.
        most = tables + (1 << widths) * self._words_per_label
        wide = []
        for n in np.flatnonzero((most > len(words)) & (widths > 0)).tolist():
            extent = int(z[n]), int(y[n]), int(x[n])
            inside = np.ix_(*map(np.arange, extent))
            bits = ((inside[0] * block[1] + inside[1]) * block[2] + inside[2]) * int(widths[n])
            codes = words[int(places[n]) + (bits >> 5)].astype(np.int64) >> (bits & 31)
            codes &= (1 << int(widths[n])) - 1
            at = int(tables[n]) + codes * self._words_per_label
            self._check_ends(words, at + self._words_per_label - 1)
            if widths[n] == max(_WIDTHS):  # whose table could be larger than any channel
                corner = zip(np.unravel_index(n, counts), block, extent, strict=True)
                box = tuple(slice(int(i) * b, int(i) * b + size) for i, b, size in corner)
                parts = [words[at + k] for k in range(self._words_per_label)]
                wide_labels = np.stack(parts, axis=-1).view(self._dtype.newbyteorder("<"))
                wide.append((box, wide_labels[..., 0]))
        return wide

    def _check_ends(self, words: Words, at: Any) -> None:
        top = int(np.max(at))
        if top >= len(words):
            raise CorruptShardError(
                f"{self.name}: word {top} of a channel lies past its end at {len(words)}"
            )


# ---- The encodings as array-to-bytes codecs


PREFIX = "neuroglancer_"
"""Beginning of the names of these codecs."""

DTYPES = {
    "jpeg": ("uint8",),
    "png": ("uint8", "uint16"),
    "compressed_segmentation": ("uint32", "uint64"),
}
"""Data types that each encoding holds."""

CHANNELS = {"jpeg": (1, 3), "png": (1, 2, 3, 4)}
"""Numbers of channels that images hold."""

IMAGE_SIDES = {"png": 1_000_000, "jpeg": 65_500}
"""Largest height and width that libpng and libjpeg take."""

MOST_IN_BLOCK = 2**32  # voxels

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


class _Images:
    """Chunks that are images of a format.

    - `most`, `encode`, `decode`: functions of the format. The first takes the number of pixels and
      of channels, the second the pixels, and the third bytes and these numbers.
    """

    def __init__(
        self,
        side: int,
        most: Callable[[int, int], int],
        encode: Callable[[Voxels], Buffer],
        decode: Callable[[Buffer, int, int], Voxels],
        *,
        is_lossy: bool,
    ) -> None:
        self._side, self._most, self._encode, self._decode = side, most, encode, decode
        self.is_lossy = is_lossy

    def most_nbytes(self, shape: tuple[int, ...]) -> int:
        """See :meth:`VolumeEncoding.most_nbytes`."""
        return self._most(math.prod(shape[1:]), shape[0])

    def encode(self, voxels: Voxels) -> Buffer:
        """See :meth:`VolumeEncoding.encode`; the image has the channels last."""
        height, width = image_shape(voxels.shape[1:], self._side)
        return self._encode(voxels.reshape(len(voxels), height, width).transpose(1, 2, 0))

    def decode(self, data: Buffer, shape: tuple[int, ...]) -> Voxels:
        """See :meth:`VolumeEncoding.decode`."""
        return self._decode(data, math.prod(shape[1:]), shape[0]).T.reshape(shape)


def volume_encoding(
    name: str, configuration: Codec, dtype: np.dtype[Any], n_channels: int
) -> VolumeEncoding:
    """Encoding of the chunks of a volume.

    - Raises CodecError if the encoding has no such voxels, the configuration does not fit, or a
      library is missing.
    """
    short = name.removeprefix(PREFIX)
    if dtype.name not in DTYPES[short]:
        raise CodecError(f"{short} does not hold {dtype}", codec=name)
    if n_channels not in CHANNELS.get(short, (n_channels,)):
        raise CodecError(f"{short} does not hold {n_channels} channels", codec=name)
    if short == "png":
        _pillow()  # which may be missing
        return _Images(
            IMAGE_SIDES["png"],
            lambda n_pixels, n: most_png_nbytes(n_pixels, 1, n * dtype.itemsize),
            encode_png,
            lambda data, n_pixels, n: decode_png(data, (n_pixels, n), dtype),
            is_lossy=False,
        )
    if short == "jpeg":
        quality = configuration.get("quality")
        if type(quality) is not int or not 1 <= quality <= 100:
            raise CodecError(f"jpeg has no quality {quality!r}", codec=name)
        _simplejpeg()  # which may be missing
        encode = partial(encode_jpeg, quality=quality)
        return _Images(IMAGE_SIDES["jpeg"], most_jpeg_nbytes, encode, decode_jpeg, is_lossy=True)
    listed = configuration.get("block_size")
    block = tuple(listed) if isinstance(listed, list) else ()
    is_shape = len(block) == 3 and all(type(n) is int and n > 0 for n in block)
    if not is_shape or math.prod(block) > MOST_IN_BLOCK:
        raise CodecError(f"compressed_segmentation has no block size {listed!r}", codec=name)
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
