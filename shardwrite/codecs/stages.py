"""Bytes-to-bytes codecs, each a small class (a stage) that is built from the metadata's JSON.

A stage encodes a batch of buffers. Where a library can, it takes small buffers in one call. Two
threads that release and take the interpreter's lock for each small buffer would spend more time on
the lock than on the data.

Decoding is bounded: `limit_nbytes` is the largest size of a correct buffer after decoding. Memory
is never allocated from the size that a frame's header claims before that size is checked.

Where two libraries write or read the same format, the faster one is used if it is installed (the
``fast`` extra). Each stage imports its library when it is made, because numcodecs takes long, and
most arrays need one codec.
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import crc32c
import numpy as np

from shardwrite.codecs.documents import Codec
from shardwrite.config.table import CHUNK_LIMIT, INDEX_LIMIT, value_of
from shardwrite.errors import CodecError, CorruptShardError

# ---- Size limits of what is read whose size no metadata tell


def chunk_limit() -> int:
    """Largest allowed size, in bytes, of an inner chunk of variable-length elements.

    The size is that of the serialized elements with their lengths, before any compression.
    """
    return value_of(CHUNK_LIMIT)


def index_limit() -> int:
    """Largest index of a shard in Neuroglancer's format that is written or read, in bytes."""
    return value_of(INDEX_LIMIT)


# ---- The stages


_SMALL_NBYTES = 128 * 2**10

_GZIP_WBITS = 31  # the largest window, with gzip's header and trailer

_GZIP_USUAL_LEVELS = range(4, 7)

_GZIP_QUICK_LEVEL = 2

_GZIP_HARD_SHARE = 0.8  # of its size that data must still take

_GZIP_SAMPLE_NBYTES = 2**12

_ZSTD_BLOCK_NBYTES = 128 * 2**10  # a block holds at most this (RFC 8878, 3.1.1.2)

_ZSTD_MAX_RATIO = _ZSTD_BLOCK_NBYTES // 4  # a block takes 4 bytes or more in its frame

_ZSTD_PIECE_NBYTES = 2**10  # piece of a frame to decode at a time; it may become 32 MiB

_ZSTD_AT_ONCE_NBYTES = 2**25  # largest buffer that is allocated for a frame of unknown size

_FIRST_WINDOW_NBYTES, _WINDOW_NBYTES = 2**20, 2**16


_LZMA_NBYTES = 2**28  # memory limit of the decoder, which depends on the dictionary's size

_LZ4_MAX_RATIO = 255  # each byte that lengthens a match stands for at most 255 bytes

Buffer = Any  # any object with the buffer protocol: bytes, memoryview, contiguous uint8 ndarray


class Ranges(Protocol):
    """An object whose bytes can be read in ranges."""

    @property
    def nbytes(self) -> int:
        """Size of the object."""

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Read exactly `nbytes` bytes from `offset`."""


class BytesStage(Protocol):
    """A bytes-to-bytes codec."""

    added_nbytes: int | None
    """Number of bytes that encoding adds, or None if the encoded size depends on the data."""

    def encode(self, batch: Sequence[Buffer]) -> Sequence[Buffer]:
        """Encode each buffer of a batch.

        - Raises CodecError if the library here does not support the codec's configuration.
        """

    def decode(self, data: Buffer, limit_nbytes: int) -> Buffer:
        """Decode a buffer to at most `limit_nbytes` bytes.

        - Raises CorruptShardError if the buffer cannot be decoded, or would give more bytes.
        """


def undo(stages: Sequence[BytesStage], data: Buffer, limit: int) -> Buffer:
    """Decode the output of some stages; their input had at most `limit` bytes.

    - Raises CorruptShardError if a stage cannot decode the bytes within its limit.
    """
    for i in range(len(stages) - 1, -1, -1):
        # The bytes that earlier stages added are still there.
        data = stages[i].decode(data, most_added(stages[:i], limit))
    return data


def most_added(stages: Sequence[BytesStage], nbytes: int) -> int:
    """Upper bound of the size that stages give for `nbytes` bytes.

    Compressors add a little to data that they cannot compress.
    """
    return nbytes + sum(
        s.added_nbytes if s.added_nbytes is not None else nbytes // 8 + 65536 for s in stages
    )


class Crc32cStage:
    """Stage that appends a CRC-32C checksum, four bytes little-endian."""

    added_nbytes: int | None = 4

    def encode(self, batch: Sequence[Buffer]) -> Sequence[Buffer]:
        """See :meth:`BytesStage.encode`."""
        checksum = crc32c.crc32c
        return [b"".join((data, checksum(data).to_bytes(4, "little"))) for data in batch]

    def decode(self, data: Buffer, limit_nbytes: int) -> Buffer:  # noqa: ARG002 (only shrinks)
        """See :meth:`BytesStage.decode`."""
        view = memoryview(data)
        if len(view) < 4:
            raise CorruptShardError("too short for its crc32c checksum")
        body, stored = view[:-4], int.from_bytes(view[-4:], "little")
        computed = crc32c.crc32c(body)
        if computed != stored:
            raise CorruptShardError(f"crc32c is {computed:#010x}, stored is {stored:#010x}")
        return body


def _within(value: Any, least: int, most: int) -> int:
    """Integer value of a setting; ValueError if it is out of bounds."""
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"{number} is not between {least} and {most}")
    return number


class ZstdStage:
    """Zstandard stage, with one context per thread if python-zstandard is installed.

    Without python-zstandard, numcodecs encodes and decodes.
    """

    added_nbytes: int | None = None

    def __init__(self, configuration: Codec) -> None:
        self.level = _within(configuration.get("level", 0), -131072, 22)
        self.checksum = bool(configuration.get("checksum", False))
        self._local = threading.local()
        self._zstandard: Any = (
            importlib.import_module("zstandard") if importlib.util.find_spec("zstandard") else None
        )
        self._error: type[Exception] = (
            self._zstandard.ZstdError if self._zstandard else RuntimeError
        )
        if self._zstandard is None:
            import numcodecs

            self._numcodec = numcodecs.Zstd(level=self.level, checksum=self.checksum)

    def encode(self, batch: Sequence[Buffer]) -> Sequence[Buffer]:
        """See :meth:`BytesStage.encode`."""
        if self._zstandard is None:
            return [self._numcodec.encode(data) for data in batch]
        context = self._contexts[0]
        if (
            len(batch) > 1
            and 0 < len(batch[0]) <= _SMALL_NBYTES
            and hasattr(context, "multi_compress_to_buffer")
        ):
            return list(context.multi_compress_to_buffer(list(batch)))
        return [context.compress(data) for data in batch]

    @property
    def _contexts(self) -> tuple[Any, Any]:
        """Compressor and decompressor of the current thread."""
        contexts: tuple[Any, Any] | None = getattr(self._local, "contexts", None)
        if contexts is None:
            level = self.level or 3  # level 0 stands for zstd's default, which is 3
            compressor = self._zstandard.ZstdCompressor(level=level, write_checksum=self.checksum)
            contexts = self._local.contexts = compressor, self._zstandard.ZstdDecompressor()
        return contexts

    def decode(self, data: Buffer, limit_nbytes: int) -> Buffer:
        """See :meth:`BytesStage.decode`."""
        claimed = _zstd_content_nbytes(memoryview(data))
        limit_nbytes = min(limit_nbytes, len(memoryview(data)) * _ZSTD_MAX_RATIO)
        if claimed is not None and claimed > limit_nbytes:
            raise CorruptShardError(
                f"zstd frame claims {claimed} bytes where at most {limit_nbytes} can be"
            )
        try:
            if claimed is None:
                return self._decode_unsized(data, limit_nbytes)
            if self._zstandard is not None:
                # The library decodes no more than the size in the frame.
                return self._contexts[1].decompress(data, allow_extra_data=False)
            return self._numcodec.decode(data, out=np.empty(claimed, np.uint8))
        except (RuntimeError, ValueError, self._error) as error:
            raise CorruptShardError(f"zstd: {error}") from error

    def _decode_unsized(self, data: Buffer, limit_nbytes: int) -> Buffer:
        """Decode a frame whose header does not give the decoded size.

        A frame with a large limit is decoded piece by piece, so that memory grows with the data and
        not with the limit. Without python-zstandard, the headers of its blocks are checked first.
        """
        if self._zstandard is None:
            most = _zstd_most_nbytes(memoryview(data))
            # Blocks need not be full, so `most` may be larger than the decoded size.
            if most > 2 * limit_nbytes + _ZSTD_BLOCK_NBYTES:
                raise CorruptShardError(
                    f"zstd frame has room for {most} bytes where at most {limit_nbytes} can be"
                )
            decoded: Buffer = self._numcodec.decode(data)
            if len(decoded) > limit_nbytes:
                raise CorruptShardError(
                    f"zstd frame holds {len(decoded)} bytes where at most {limit_nbytes} can be"
                )
            return decoded
        if limit_nbytes <= _ZSTD_AT_ONCE_NBYTES:
            return self._contexts[1].decompress(
                data, max_output_size=limit_nbytes, allow_extra_data=False
            )
        stream, view, pieces, room = (
            self._contexts[1].decompressobj(),
            memoryview(data),
            [],
            limit_nbytes,
        )
        for start in range(0, len(view), _ZSTD_PIECE_NBYTES):
            if stream.eof:
                raise CorruptShardError("zstd: bytes after the end of the frame")
            pieces.append(stream.decompress(view[start : start + _ZSTD_PIECE_NBYTES]))
            room -= len(pieces[-1])
            if room < 0:
                raise CorruptShardError(f"zstd frame holds more than {limit_nbytes} bytes")
        if not stream.eof or stream.unused_data:
            raise CorruptShardError("zstd: torn, or bytes after the end of the frame")
        return b"".join(pieces)


def _zstd_most_nbytes(frame: memoryview) -> int:
    """Upper bound of the content of one whole frame, from its block headers.

    Blocks are described in RFC 8878, 3.1.1.2. A frame that is torn, or that other bytes follow,
    raises CorruptShardError.
    """
    descriptor = frame[4]
    single_segment, dictionary = descriptor >> 5 & 1, descriptor & 3
    offset = (
        5
        + (not single_segment)
        + (0, 1, 2, 4)[dictionary]
        + ((1 if single_segment else 0), 2, 4, 8)[descriptor >> 6]
    )
    most = 0
    while offset + 3 <= len(frame):
        header = int.from_bytes(frame[offset : offset + 3], "little")
        is_last, kind, nbytes = header & 1, header >> 1 & 3, header >> 3
        # Kind 0 is a raw block, kind 1 repeats one byte, and kind 2 is compressed.
        most += nbytes if kind < 2 else _ZSTD_BLOCK_NBYTES
        offset += 3 + (1 if kind == 1 else nbytes)
        if is_last:
            break
    if offset + (descriptor >> 2 & 1) * 4 != len(frame):
        raise CorruptShardError("zstd: torn, or bytes after the end of the frame")
    return most


def _zstd_content_nbytes(frame: memoryview) -> int | None:
    """Content size in a Zstandard frame header (RFC 8878, 3.1.1.1), or None if it has none."""
    if len(frame) < 6 or bytes(frame[:4]) != b"\x28\xb5\x2f\xfd":
        raise CorruptShardError("not a zstd frame")
    descriptor = frame[4]
    single_segment, dictionary = descriptor >> 5 & 1, descriptor & 3
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    offset = 5 + (not single_segment) + (0, 1, 2, 4)[dictionary]
    if width == 0:
        return None
    return int.from_bytes(frame[offset : offset + width], "little") + (256 if width == 2 else 0)


class GzipStage:
    """Gzip stage.

    It encodes with the fastest deflate library installed that compresses about as well as zlib at
    the same level. ISA-L has levels up to 3. But data that it makes little smaller, such as noise,
    do not become smaller at the levels 4 to 6 either. So it encodes these as well, in a sixth of
    the time. Which library it is depends on the data only.
    """

    added_nbytes: int | None = None

    def __init__(self, configuration: Codec) -> None:
        self.level = _within(configuration.get("level", 5), -1, 9)
        self._zlib: Any = zlib
        package, module = ("isal", "isal_zlib") if self.level <= 3 else ("zlib_ng", "zlib_ng")
        if self.level >= 1 and importlib.util.find_spec(package):
            self._zlib = importlib.import_module(f"{package}.{module}")
        self._inflater: Any = _inflater()
        has_both = self.level in _GZIP_USUAL_LEVELS and importlib.util.find_spec("isal")
        self._quick: Any = importlib.import_module("isal.isal_zlib") if has_both else None

    def encode(self, batch: Sequence[Buffer]) -> Sequence[Buffer]:
        """See :meth:`BytesStage.encode`."""
        compress, level = self._zlib.compress, self.level
        if self._quick is not None:
            return [self._encoded(data) for data in batch]
        return [compress(data, level, _GZIP_WBITS) for data in batch]

    def _encoded(self, data: Buffer) -> bytes:
        """Encode with ISA-L if it makes a sample, and then the data, only a little smaller."""
        nbytes = memoryview(data).nbytes
        if nbytes >= _GZIP_SAMPLE_NBYTES:
            n = max(_GZIP_SAMPLE_NBYTES, nbytes // 16)
            start = (nbytes - n) // 2
            for part in (memoryview(data).cast("B")[start : start + n], data):
                quick: bytes = self._quick.compress(part, _GZIP_QUICK_LEVEL, _GZIP_WBITS)
                if len(quick) < _GZIP_HARD_SHARE * memoryview(part).nbytes:
                    break
            else:
                return quick
        encoded: bytes = self._zlib.compress(data, self.level, _GZIP_WBITS)
        return encoded

    def decode(self, data: Buffer, limit_nbytes: int) -> Buffer:
        """See :meth:`BytesStage.decode`."""
        library = self._inflater
        try:
            return _bounded(lambda: library.decompressobj(_GZIP_WBITS), data, limit_nbytes)
        except (library.error, EOFError) as error:
            raise CorruptShardError(f"gzip: {error}") from error


def _inflater() -> Any:
    """Module that decodes deflate streams. ISA-L takes half the time that zlib takes.

    The errors of ISA-L are of a type of their own.
    """
    isal = importlib.util.find_spec("isal")
    return zlib if isal is None else importlib.import_module("isal.isal_zlib")


def _bounded(decompressor: Callable[[], Any], data: Buffer, limit_nbytes: int) -> bytes:
    """Decompress streams that follow each other, to at most `limit_nbytes` bytes in all.

    - Raises EOFError if a stream is torn, or the streams hold more.
    """
    view = memoryview(data).cast("B")
    pieces: list[bytes] = []
    room, offset, stream = limit_nbytes + 1, 0, decompressor()
    while not stream.eof or offset < len(view):
        if stream.eof:
            stream = decompressor()
        # Windows are small, because bytes after a stream's end are copied each time. The first one
        # holds most chunks, which then are in one piece.
        window = view[offset : offset + (_WINDOW_NBYTES if offset else _FIRST_WINDOW_NBYTES)]
        pieces.append(stream.decompress(window, room))
        room -= len(pieces[-1])
        offset += len(window) - (len(stream.unused_data) if stream.eof else 0)
        if room < 1 or (offset == len(view) and not stream.eof):
            raise EOFError(f"torn, or more than {limit_nbytes} bytes")
    return b"".join(pieces)


class BloscStage:
    """Blosc stage, without threads of its own, because tasks already run in parallel."""

    added_nbytes: int | None = None
    _SHUFFLES: ClassVar = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}

    def __init__(self, configuration: Codec, itemsize: int) -> None:
        cname, clevel = (
            configuration.get("cname", "zstd"),
            _within(configuration.get("clevel", 5), 0, 9),
        )
        shuffle = self._SHUFFLES[configuration.get("shuffle") or "noshuffle"]
        blocksize = _within(configuration.get("blocksize", 0), 0, 2**31 - 1)
        typesize = _within(configuration.get("typesize") or itemsize, 1, 2**31 - 1)
        import numcodecs
        from numcodecs import blosc

        self._codec = numcodecs.Blosc(
            cname=cname, clevel=clevel, shuffle=shuffle, blocksize=blocksize, typesize=typesize
        )
        self._settings = (cname.encode(), clevel, shuffle, blocksize, typesize)
        # Only encoding needs the compressor's name: a frame names the compressor that made it.
        self._is_known = cname in blosc.list_compressors()
        self._blosc = blosc

    def encode(self, batch: Sequence[Buffer]) -> Sequence[Buffer]:
        """See :meth:`BytesStage.encode`."""
        if not self._is_known:
            raise CodecError(
                f"blosc has no compressor {self._settings[0].decode()!r} here", codec="blosc"
            )
        self._blosc.use_threads = False
        # Small buffers take a path with less Python, for which threads would wait for each other.
        if batch and len(batch[0]) <= _SMALL_NBYTES:
            compress, settings = self._blosc.compress, self._settings
            return [compress(data, *settings) for data in batch]
        return [self._codec.encode(data) for data in batch]

    def decode(self, data: Buffer, limit_nbytes: int) -> Buffer:
        """See :meth:`BytesStage.decode`."""
        view = memoryview(data)
        if len(view) < 16:
            raise CorruptShardError("too short for a blosc header")
        claimed, stored = int.from_bytes(view[4:8], "little"), int.from_bytes(view[12:16], "little")
        # No library inside Blosc compresses better than zstd's largest ratio.
        limit_nbytes = min(limit_nbytes, len(view) * _ZSTD_MAX_RATIO)
        if claimed > limit_nbytes or stored != len(view):
            raise CorruptShardError(
                f"blosc header claims {claimed} bytes in {stored}; "
                f"at most {limit_nbytes} in {len(view)}"
            )
        try:
            return self._codec.decode(data)
        except (RuntimeError, ValueError) as error:
            raise CorruptShardError(f"blosc: {error}") from error


class NumcodecsStage:
    """Stage for the ``numcodecs.*`` checksums and compressors, which numcodecs encodes."""

    CHECKSUMS = frozenset({"crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"})
    COMPRESSORS = frozenset({"zstd", "zlib", "gzip", "bz2", "lzma", "lz4", "blosc", "shuffle"})

    def __init__(self, identifier: str, configuration: Codec, itemsize: int) -> None:
        settings = dict(configuration)
        if identifier == "shuffle" and settings.get("elementsize") is None:
            settings["elementsize"] = itemsize
        import numcodecs

        self._name = f"numcodecs.{identifier}"
        self._codec = numcodecs.get_codec({"id": identifier, **settings})
        self._decode = self._bounded_decoder(identifier, settings, itemsize)
        # The encoder of numcodecs writes the time into each gzip stream, so that the same chunk
        # would have other bytes a second later.
        level = _within(self._codec.level, -1, 9) if identifier == "gzip" else 0
        self._encode: Callable[[Buffer], Any] = (
            (lambda data: zlib.compress(data, level, _GZIP_WBITS))
            if identifier == "gzip"
            else self._codec.encode
        )
        self.added_nbytes: int | None = (
            4 if identifier in self.CHECKSUMS else 0 if identifier == "shuffle" else None
        )

    def encode(self, batch: Sequence[Buffer]) -> Sequence[Buffer]:
        """See :meth:`BytesStage.encode`."""
        encoded = (self._encode(data) for data in batch)
        return [data if isinstance(data, bytes) else memoryview(data).cast("B") for data in encoded]

    def decode(self, data: Buffer, limit_nbytes: int) -> Buffer:
        """See :meth:`BytesStage.decode`."""
        try:
            decoded = memoryview(self._decode(data, limit_nbytes)).cast("B")
        except MemoryError:
            raise
        # numcodecs raises what its libraries raise; each other exception means wrong bytes here.
        except Exception as error:
            raise CorruptShardError(f"{self._name}: {error}") from error
        if len(decoded) > limit_nbytes:
            raise CorruptShardError(
                f"{self._name} holds {len(decoded)} bytes where at most {limit_nbytes} can be"
            )
        return decoded

    def _bounded_decoder(
        self, identifier: str, settings: Codec, itemsize: int
    ) -> Callable[[Buffer, int], Buffer]:
        """Decoder with a limit for codecs whose output can be larger than their input.

        The decoders of numcodecs themselves have no limit.
        """
        if identifier == "zstd":
            return ZstdStage(settings).decode
        if identifier == "gzip":
            return GzipStage(settings).decode
        if identifier == "blosc":
            # A frame names the compressor that made it, so the name given here does not matter.
            return BloscStage({"cname": "lz4"}, itemsize).decode
        if identifier == "zlib":
            inflater = _inflater()
            return lambda data, limit: _bounded(inflater.decompressobj, data, limit)
        if identifier == "bz2":
            import bz2

            return lambda data, limit: _bounded(bz2.BZ2Decompressor, data, limit)
        if identifier == "lzma":
            import lzma

            form, filters = self._codec.format, self._codec.filters
            most = None if form == lzma.FORMAT_RAW else _LZMA_NBYTES
            return lambda data, limit: _bounded(
                lambda: lzma.LZMADecompressor(form, most, filters), data, limit
            )
        return self._decode_lz4 if identifier == "lz4" else self._decode_plain

    def _decode_lz4(self, data: Buffer, limit_nbytes: int) -> Buffer:
        claimed = int.from_bytes(memoryview(data)[:4], "little")
        limit_nbytes = min(limit_nbytes, len(memoryview(data)) * _LZ4_MAX_RATIO)
        if claimed > limit_nbytes:
            raise CorruptShardError(
                f"header claims {claimed} bytes where at most {limit_nbytes} can be"
            )
        return self._codec.decode(bytes(data))

    def _decode_plain(self, data: Buffer, limit_nbytes: int) -> Buffer:  # noqa: ARG002 (no growth)
        return self._codec.decode(bytes(data))


def build_stage(name: str, configuration: Codec, itemsize: int) -> BytesStage | None:
    """Build the stage for a codec, or return None if this module has no stage for it.

    - Raises CodecError if the configuration does not fit the codec.
    """
    try:
        if name == "crc32c":
            return Crc32cStage()
        if name == "zstd":
            return ZstdStage(configuration)
        if name == "gzip":
            return GzipStage(configuration)
        if name == "blosc":
            return BloscStage(configuration, itemsize)
        identifier = name.removeprefix("numcodecs.")
        if (
            identifier != name
            and identifier in NumcodecsStage.CHECKSUMS | NumcodecsStage.COMPRESSORS
        ):
            return NumcodecsStage(identifier, configuration, itemsize)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CodecError(
            f"codec {name!r} does not take {dict(configuration)}: {error}", codec=name
        ) from error
    return None
