"""The encoding ``compressed_segmentation`` of Neuroglancer: blocks of labels, each with a table.

A chunk begins with the position of each channel. A channel begins with a header of two words for
each block, with x as the fastest axis. It tells where the table of the block lies, how many bits a
voxel takes, and where these bits lie. All positions count words of 32 bits from the start of the
channel. Blocks with the same labels share a table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.labels import Labels, Numbers, Words, first_equal, packed, rank, unpacked
from shardwrite.codecs.limits import chunk_limit
from shardwrite.codecs.memory import kept
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CodecError, CorruptShardError

_WIDTHS = np.array([0, 1, 2, 4, 8, 16, 32], np.int64)
_IS_WIDTH = np.isin(np.arange(256), _WIDTHS)
_WORD_NBYTES = 4
_TABLE_LIMIT = 2**24  # words; a header has 24 bits for the position of a table
_BATCH_VOXELS = 2**18
_MOST_AT_ONCE = 8
"""Bits of a voxel up to which the tables of many blocks are taken at once."""


class CompressedSegmentation:
    """Encoder and decoder of chunks of labels.

    - `dtype`: dtype of the labels, ``uint32`` or ``uint64``.
    """

    name = "compressed_segmentation"
    is_lossy = False

    def __init__(self, block: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._block = block[::-1]
        self._dtype = dtype
        self._words_per_label = dtype.itemsize // _WORD_NBYTES

    def most_nbytes(self, shape: tuple[int, ...]) -> int:
        """Upper bound of the size of an encoded chunk of a shape, in bytes."""
        n_blocks = math.prod(_counts(shape[1:], self._block))
        per_block = 2 + math.prod(self._block) * (1 + self._words_per_label)
        return _WORD_NBYTES * shape[0] * (1 + n_blocks * per_block)

    def encode(self, voxels: Labels) -> Buffer:
        """Encode a chunk.

        - `voxels`: shape (channels, z, y, x). The labels.
        - Raises CodecError if the tables take more than a header can address.
        """
        starts, parts, at = [], [], len(voxels)
        for labels in voxels:
            starts.append(at)
            encoded = self._encode_channel(labels)
            parts.append(encoded)
            at += len(encoded) // _WORD_NBYTES
        return b"".join((np.array(starts, "<u4").tobytes(), *parts))

    def _encode_channel(self, labels: Labels) -> bytes:
        counts = _counts(labels.shape, self._block)
        n_labels, tables, bits = [], [], list[tuple[Numbers, Words]]()
        # Of a block that is larger than the chunk, only the part in it is looked at.
        extent = tuple(min(b, n) for b, n in zip(self._block, labels.shape, strict=True))
        number, size = 0, math.prod(extent)
        positions = None if extent == self._block else _positions(extent, self._block)
        for slab in self._slabs(counts):
            part = labels[slab]
            inside = None
            if any(n % b for n, b in zip(part.shape, extent, strict=True)):
                inside = _inside(part.shape, _counts(part.shape, extent), extent)
                part = _padded(part, extent)
            blocks = kept("blocks", (part.size // size, size), self._dtype)
            _apart(part, extent, blocks)
            for first, stop in _batches(len(blocks), blocks.shape[1]):
                found = rank(blocks[first:stop])
                n_labels.append(found.n_labels)
                tables.append(found.tables)
                for rows, codes in found.groups:
                    if inside is not None:
                        codes[~inside[first + rows]] = 0
                    if positions is not None:
                        whole = np.zeros((len(codes), math.prod(self._block)), codes.dtype)
                        whole[:, positions] = codes
                        codes = whole
                    bits += _packed_groups(number + first, rows, codes, found.n_labels[rows])
            number += len(blocks)
        return self._joined(np.concatenate(n_labels), np.concatenate(tables), bits)

    def _slabs(self, counts: tuple[int, ...]) -> Iterator[slice]:
        """Parts of a chunk along z that are worked on one after the other.

        They are small, so that what is made of one takes the memory of the one before.
        """
        depth = self._block[0]
        step = max(1, _BATCH_VOXELS // math.prod((*counts[1:], *self._block)))
        return (slice(first * depth, (first + step) * depth) for first in range(0, counts[0], step))

    def _joined(
        self, n_labels: Numbers, tables: Labels, bits: list[tuple[Numbers, Words]]
    ) -> bytes:
        """Bytes of a channel: headers, and then bits and table of each block."""
        n_blocks, first = len(n_labels), first_equal(tables, n_labels)
        is_new = first == np.arange(n_blocks)
        n_table_words = np.where(is_new, n_labels * self._words_per_label, 0)
        n_bits_words = np.zeros(n_blocks, np.int64)
        for rows, words in bits:
            n_bits_words[rows] = words.shape[1]
        ends = 2 * n_blocks + np.cumsum(n_bits_words + n_table_words)
        bits_at, table_at = ends - n_table_words - n_bits_words, (ends - n_table_words)[first]
        if table_at.max() >= _TABLE_LIMIT:
            raise CodecError(
                "compressed_segmentation: the labels of a chunk take more than 64 MiB, which a "
                "block header cannot address; make chunks smaller",
                codec=self.name,
            )
        out = np.empty(ends[-1], "<u4")
        out[0 : 2 * n_blocks : 2] = table_at | _widths(n_labels) << 24
        out[1 : 2 * n_blocks : 2] = bits_at
        is_table = np.ones(len(out), bool)
        is_table[: 2 * n_blocks] = False
        for rows, words in bits:
            at = bits_at[rows, None] + np.arange(words.shape[1])
            out[at], is_table[at] = words, False
        new = tables[np.repeat(is_new, n_labels)]
        out[is_table] = new.astype(new.dtype.newbyteorder("<"), copy=False).view("<u4")
        return out.tobytes()

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
        counts = _counts(shape, self._block)
        n_blocks = math.prod(counts)
        if len(words) < 2 * n_blocks:
            raise CorruptShardError(f"{self.name}: the headers of {n_blocks} blocks do not fit")
        headers = words[: 2 * n_blocks].reshape(-1, 2).astype(np.int64)
        tables, widths, places = headers[:, 0] & 0xFFFFFF, headers[:, 0] >> 24, headers[:, 1]
        if not (is_known := _IS_WIDTH[widths]).all():
            bad = int(np.argmin(is_known))
            raise CorruptShardError(
                f"{self.name}: block {bad} claims {int(widths[bad])} bits for a voxel"
            )
        out, number = np.empty(shape, self._dtype), 0
        is_cut = any(n % b for n, b in zip(shape, self._block, strict=True))
        for slab in self._slabs(counts):
            part = out[slab]
            some = slice(number, number + math.prod(_counts(part.shape, self._block)))
            found = tables[some], widths[some], places[some]
            if is_cut or not self._decode_whole(words, found, part):
                self._decode_slab(words, found, part)
            number = some.stop
        return out

    def _decode_whole(
        self, words: Words, headers: tuple[Numbers, Numbers, Numbers], out: Labels
    ) -> bool:
        """Decode some layers of blocks of which none is cut.

        Each voxel gets the place of its label among those of all blocks. These places take less
        memory than labels, so they are put into the order of the voxels in less time. Nothing is
        decoded, and the answer is False, if codes have more than 8 bits.
        """
        tables, widths, places = headers
        if widths.max() > _MOST_AT_ONCE:
            return False
        size = math.prod(self._block)
        codes = kept("codes", (len(tables), size), np.uint8)
        for n_bits in np.unique(widths).tolist():
            rows = np.flatnonzero(widths == n_bits)
            if not n_bits:
                codes[rows] = 0
                continue
            at = places[rows, None] + np.arange(-(-size * n_bits // (8 * _WORD_NBYTES)))
            codes[rows] = unpacked(self._taken(words, at), n_bits, size)
        # A table may be shorter than what its codes could tell.
        n_labels = codes.max(axis=1).astype(np.int64) + 1
        ends = np.cumsum(n_labels)
        n_all, firsts = int(ends[-1]), ends - n_labels
        if n_all > codes.size:  # which no writer does, and takes much memory
            return False
        ranks = np.arange(n_all) - np.repeat(firsts, n_labels)
        labels = self._labels(words, np.repeat(tables, n_labels), ranks)
        dtype = np.dtype(np.uint16 if n_all <= 2**16 else np.uint32)
        which = kept("which", codes.shape, dtype)
        np.add(firsts.astype(dtype)[:, None], codes, out=which)
        ordered = kept("ordered", out.shape, dtype)
        _put_together(which, _counts(out.shape, self._block), self._block, ordered)
        # numpy would make the same in new memory.
        at = kept("at", out.shape, np.intp)
        at[...] = ordered
        labels.take(at, out=out, mode="clip")  # all fit, and are not checked again
        return True

    def _decode_slab(
        self, words: Words, headers: tuple[Numbers, Numbers, Numbers], out: Labels
    ) -> None:
        """Decode some layers of blocks, given where their tables lie, their widths and places."""
        tables, widths, places = headers
        counts = _counts(out.shape, self._block)
        # A block that is larger than the chunk is decoded only where the chunk is.
        extent = tuple(min(b, n) for b, n in zip(self._block, out.shape, strict=True))
        positions = _positions(extent, self._block)
        is_whole = _is_whole(out.shape, counts, self._block)
        inside = np.ones(0, bool) if is_whole.all() else _inside(out.shape, counts, extent)
        blocks = kept("blocks", (len(tables), len(positions)), self._dtype)
        for n_bits, whole in itertools.product(np.unique(widths).tolist(), (True, False)):
            rows = np.flatnonzero((widths == n_bits) & (is_whole == whole))
            for first, stop in _batches(len(rows), len(positions)):
                some = rows[first:stop]
                if whole:
                    blocks[some] = self._whole(words, tables[some], places[some], n_bits)
                    continue
                is_in = inside[some]
                codes = np.zeros((len(some), len(positions)), np.int64)
                if n_bits:
                    bits = positions * n_bits
                    at = places[some, None] + np.where(is_in, bits >> 5, 0)
                    found = self._taken(words, at).astype(np.int64)
                    codes = np.where(is_in, found >> (bits & 31) & (2**n_bits - 1), 0)
                blocks[some] = self._labels(words, tables[some, None], codes)
        _put_together(blocks, counts, extent, out)

    def _whole(self, words: Words, tables: Numbers, places: Numbers, n_bits: int) -> Labels:
        """Labels of blocks that are not cut; of one for each where all voxels have the same."""
        if not n_bits:
            return self._labels(words, tables[:, None], np.zeros((1, 1), np.int64))
        size = math.prod(self._block)
        at = places[:, None] + np.arange(-(-size * n_bits // (8 * _WORD_NBYTES)))
        codes = unpacked(self._taken(words, at), n_bits, size)
        if n_bits > _MOST_AT_ONCE:
            return self._labels(words, tables[:, None], codes.astype(np.int64))
        # A table may be shorter than what its codes could tell.
        last = codes.max(axis=1).astype(np.int64)
        columns = np.minimum(np.arange(int(last.max()) + 1), last[:, None])
        labels = self._labels(words, tables[:, None], columns)
        first = np.arange(len(labels)) * labels.shape[1]
        which = np.add(first[:, None], codes, out=kept("which", codes.shape, first.dtype))
        taken = kept("taken", codes.shape, self._dtype)
        labels.reshape(-1).take(which, out=taken, mode="clip")  # all fit, and are not checked again
        return taken

    def _labels(self, words: Words, tables: Numbers, codes: Numbers) -> Labels:
        at = tables + codes * self._words_per_label
        low: Labels = self._taken(words, at)
        if self._words_per_label == 1:
            return low.astype(self._dtype, copy=False)
        high = self._taken(words, at + 1)
        whole: Labels = low.astype(self._dtype) | high.astype(self._dtype) << np.uint64(32)
        return whole

    def _taken(self, words: Words, at: Numbers) -> Words:
        if at.size and int(at.max()) >= len(words):
            raise CorruptShardError(
                f"{self.name}: word {int(at.max())} of a channel lies past its end at {len(words)}"
            )
        return words[at]


def _counts(shape: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
    """Number of blocks along each axis."""
    return tuple(-(-n // b) for n, b in zip(shape, block, strict=True))


def _apart(labels: Labels, block: tuple[int, ...], out: Labels) -> None:
    """Copy the blocks of an array that consists of whole ones.

    They are row-major, in an array of shape (n, size).
    """
    rows = _rows(np.ascontiguousarray(labels), block[-1])
    z, y, x = rows.shape
    pairs = rows.reshape(z // block[0], block[0], y // block[1], block[1], x)
    apart = pairs.transpose(0, 2, 4, 1, 3)
    _rows(out, block[-1]).reshape(apart.shape)[...] = apart


def _padded(labels: Labels, block: tuple[int, ...]) -> Labels:
    """Labels that are repeated at the ends, up to whole blocks."""
    counts = _counts(labels.shape, block)
    widths = [(0, n * b - s) for n, b, s in zip(counts, block, labels.shape, strict=True)]
    return np.pad(labels, widths, mode="edge")


def _put_together(
    blocks: Labels, counts: tuple[int, ...], extent: tuple[int, ...], out: Labels
) -> None:
    """Copy blocks into the array that they are of; the reverse of `_apart`."""
    whole = tuple(n * b for n, b in zip(counts, extent, strict=True))
    parts = _rows(blocks, extent[-1]).reshape(*counts, *extent[:-1]).transpose(0, 3, 1, 4, 2)
    if out.shape == whole:
        shape = [n for pair in zip(counts[:-1], extent[:-1], strict=True) for n in pair]
        _rows(out, extent[-1]).reshape(*shape, counts[-1])[...] = parts
        return
    together = np.ascontiguousarray(parts).view(blocks.dtype).reshape(whole)
    out[...] = together[tuple(slice(0, n) for n in out.shape)]


def _packed_groups(
    number: int, rows: Numbers, codes: Labels, n_labels: Numbers
) -> Iterator[tuple[Numbers, Words]]:
    """Packed codes of blocks, those with the same width together, and the numbers of blocks."""
    widths = _widths(n_labels)
    for n_bits in np.unique(widths).tolist():
        which = widths == n_bits
        yield number + rows[which], packed(codes[which], n_bits)


def _rows(labels: Labels, n: int) -> npt.NDArray[np.void]:
    """The same labels with `n` of a row as one element, which numpy copies faster."""
    return labels.view(np.dtype((np.void, n * labels.itemsize)))


def _is_whole(
    shape: tuple[int, ...], counts: tuple[int, ...], block: tuple[int, ...]
) -> npt.NDArray[np.bool_]:
    """Whether each block is whole, in row-major order. Blocks at the end of an axis may be cut."""
    z, y, x = (np.arange(1, n + 1) * b <= s for s, n, b in zip(shape, counts, block, strict=True))
    return np.asarray(z[:, None, None] & y[:, None] & x).reshape(-1)


def _inside(
    shape: tuple[int, ...], counts: tuple[int, ...], extent: tuple[int, ...]
) -> npt.NDArray[np.bool_]:
    """Mask of the voxels of blocks that lie in the chunk, as an array of shape (n, size)."""
    whole = np.zeros([n * b for n, b in zip(counts, extent, strict=True)], bool)
    whole[tuple(slice(0, n) for n in shape)] = True
    apart = np.empty((whole.size // math.prod(extent), math.prod(extent)), bool)
    _apart(whole, extent, apart)
    return apart


def _positions(extent: tuple[int, ...], block: tuple[int, ...]) -> Numbers:
    """Positions in a block of the voxels of a box at its start, row-major."""
    z, y, x = (np.arange(n, dtype=np.int64) for n in extent)
    return np.asarray((z[:, None, None] * block[1] + y[:, None]) * block[2] + x).reshape(-1)


def _batches(n: int, n_voxels: int) -> Iterator[tuple[int, int]]:
    """First and last number of the blocks that are taken together."""
    step = max(1, _BATCH_VOXELS // n_voxels)
    return ((first, min(n, first + step)) for first in range(0, n, step))


def _widths(n_labels: Numbers) -> Numbers:
    """Bits of a voxel in blocks of so many labels."""
    return _WIDTHS[np.searchsorted(2**_WIDTHS, n_labels)]
