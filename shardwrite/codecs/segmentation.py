"""The encoding ``compressed_segmentation`` of Neuroglancer: blocks of labels, each with a table.

A chunk begins with the position of each channel. A channel begins with a header of two words for
each block, with x as the fastest axis. It tells where the table of the block lies, how many bits a
voxel takes, and where these bits lie. All positions count words of 32 bits from the start of the
channel. Blocks with the same labels share a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.limits import chunk_limit
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CodecError, CorruptShardError

__all__ = ["CompressedSegmentation"]

_WIDTHS = np.array([0, 1, 2, 4, 8, 16, 32], np.int64)
_WORD_NBYTES = 4
_TABLE_LIMIT = 2**24  # words; a header has 24 bits for the position of a table
_BATCH_VOXELS = 2**18
_FEW_LABELS = 8
"""Number of labels up to which those of a block are found one after the other."""

Labels = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]


class CompressedSegmentation:
    """Encoder and decoder of chunks of labels.

    Parameters
    ----------
    block : tuple of int
        Shape of a block along x, y and z, in voxels.
    dtype : numpy.dtype
        Dtype of the labels, ``uint32`` or ``uint64``.
    """

    name = "compressed_segmentation"

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

        Parameters
        ----------
        voxels : numpy.ndarray, shape (channels, z, y, x)
            The labels.

        Raises
        ------
        CodecError
            If the tables take more than a header can address.
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
        widths = [(0, n * b - s) for n, b, s in zip(counts, self._block, labels.shape, strict=True)]
        is_cut = any(after for _, after in widths)
        blocks = _apart(np.pad(labels, widths, mode="edge") if is_cut else labels, self._block)
        inside = _inside(labels.shape, counts, self._block) if is_cut else None
        headers = np.zeros((len(blocks), 2), "<u4")
        at, seen, parts = headers.size, dict[bytes, int](), list[bytes]()
        for number, (n_bits, bits, table) in enumerate(self._encoded_blocks(blocks, inside)):
            headers[number, 1] = at
            parts.append(bits)
            at += len(bits) // _WORD_NBYTES
            place = seen.get(table)
            if place is None:
                place = seen[table] = at
                parts.append(table)
                at += len(table) // _WORD_NBYTES
            if place >= _TABLE_LIMIT:
                raise CodecError(
                    "compressed_segmentation: the labels of a chunk take more than 64 MiB, which a "
                    "block header cannot address; make chunks smaller",
                    codec=self.name,
                )
            headers[number, 0] = place | n_bits << 24
        return b"".join((headers.tobytes(), *parts))

    def _encoded_blocks(
        self, blocks: Labels, inside: npt.NDArray[np.bool_] | None
    ) -> Iterator[tuple[int, bytes, bytes]]:
        """Bits of a voxel, the bits of all voxels, and the table, for each block."""
        for first, stop in _batches(len(blocks), blocks.shape[1]):
            part = blocks[first:stop]
            is_mixed = part.min(axis=1) != part.max(axis=1)
            mixed = iter(
                self._encode_mixed(
                    part[is_mixed], None if inside is None else inside[first:stop][is_mixed]
                )
            )
            for labels, has_several in zip(part, is_mixed.tolist(), strict=True):
                yield next(mixed) if has_several else (0, b"", labels[:1].tobytes())

    def _encode_mixed(
        self, blocks: Labels, inside: npt.NDArray[np.bool_] | None
    ) -> list[tuple[int, bytes, bytes]]:
        """What `_encoded_blocks` gives, for blocks of several labels."""
        codes, n_labels, tables = _ranked(blocks)
        if inside is not None:
            codes[~inside] = 0
        widths = _WIDTHS[np.searchsorted(2**_WIDTHS, n_labels)]
        packed: dict[int, bytes] = {}
        for n_bits in np.unique(widths).tolist():
            rows = np.flatnonzero(widths == n_bits)
            for row, bits in zip(rows.tolist(), _packed(codes[rows], n_bits), strict=True):
                packed[row] = bits.tobytes()
        return [
            (n_bits, packed[row], tables[row].tobytes())
            for row, n_bits in enumerate(widths.tolist())
        ]

    def decode(self, data: Buffer, shape: tuple[int, ...]) -> Labels:
        """Decode a chunk.

        Parameters
        ----------
        data : buffer
            The encoded chunk.
        shape : tuple of int
            Number of channels, and size along z, y and x.

        Returns
        -------
        numpy.ndarray
            The labels, of this shape.

        Raises
        ------
        CorruptShardError
            If something lies past the end, or the bytes cannot be those of such a chunk.
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
        return np.stack(channels)

    def _decode_channel(self, words: Words, shape: tuple[int, ...]) -> Labels:
        counts = _counts(shape, self._block)
        n_blocks = math.prod(counts)
        if len(words) < 2 * n_blocks:
            raise CorruptShardError(f"{self.name}: the headers of {n_blocks} blocks do not fit")
        headers = words[: 2 * n_blocks].reshape(-1, 2).astype(np.int64)
        tables, widths, places = headers[:, 0] & 0xFFFFFF, headers[:, 0] >> 24, headers[:, 1]
        if (bad := np.flatnonzero(~np.isin(widths, _WIDTHS))).size:
            raise CorruptShardError(
                f"{self.name}: block {int(bad[0])} claims {int(widths[bad[0]])} bits for a voxel"
            )
        # A block that is larger than the chunk is decoded only where the chunk is.
        extent = tuple(min(b, n) for b, n in zip(self._block, shape, strict=True))
        positions = _positions(extent, self._block)
        inside = _inside(shape, counts, extent)
        blocks = np.empty((n_blocks, len(positions)), self._dtype)
        for n_bits in np.unique(widths).tolist():
            rows = np.flatnonzero(widths == n_bits)
            for first, stop in _batches(len(rows), len(positions)):
                some = rows[first:stop]
                codes = np.zeros((len(some), len(positions)), np.int64)
                if n_bits:
                    bits = positions * n_bits
                    at = places[some, None] + np.where(inside[some], bits >> 5, 0)
                    found = self._taken(words, at).astype(np.int64)
                    codes = np.where(inside[some], found >> (bits & 31) & (2**n_bits - 1), 0)
                blocks[some] = self._labels(words, tables[some, None], codes)
        sizes = [n for pair in zip(counts, extent, strict=True) for n in pair]
        grid = blocks.reshape(*counts, *extent).transpose(0, 3, 1, 4, 2, 5)
        whole: Labels = grid.reshape([a * b for a, b in zip(sizes[::2], sizes[1::2], strict=True)])
        cut: Labels = whole[tuple(slice(0, n) for n in shape)]
        return cut

    def _labels(self, words: Words, tables: Numbers, codes: Numbers) -> Labels:
        at = tables + codes * self._words_per_label
        low: Labels = self._taken(words, at)
        if self._words_per_label == 1:
            return low
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


def _apart(labels: Labels, block: tuple[int, ...]) -> Labels:
    """Blocks of an array that consists of whole ones, row-major, as an array of shape (n, size)."""
    pairs = [n for s, b in zip(labels.shape, block, strict=True) for n in (s // b, b)]
    return labels.reshape(pairs).transpose(0, 2, 4, 1, 3, 5).reshape(-1, math.prod(block))


def _inside(
    shape: tuple[int, ...], counts: tuple[int, ...], extent: tuple[int, ...]
) -> npt.NDArray[np.bool_]:
    """Mask of the voxels of blocks that lie in the chunk, as an array of shape (n, size)."""
    whole = np.zeros([n * b for n, b in zip(counts, extent, strict=True)], bool)
    whole[tuple(slice(0, n) for n in shape)] = True
    return _apart(whole, extent)


def _positions(extent: tuple[int, ...], block: tuple[int, ...]) -> Numbers:
    """Positions in a block of the voxels of a box at its start, row-major."""
    z, y, x = (np.arange(n, dtype=np.int64) for n in extent)
    return np.asarray((z[:, None, None] * block[1] + y[:, None]) * block[2] + x).reshape(-1)


def _batches(n: int, n_voxels: int) -> Iterator[tuple[int, int]]:
    """First and last number of the blocks that are taken together."""
    step = max(1, _BATCH_VOXELS // n_voxels)
    return ((first, min(n, first + step)) for first in range(0, n, step))


def _ranked(blocks: Labels) -> tuple[Words, Numbers, list[Labels]]:
    """Ranks of the labels of some blocks, and the sorted labels of each, which are several.

    Returns
    -------
    codes : numpy.ndarray of uint32, shape (n, size)
        Rank of the label of each voxel in its block.
    n_labels : numpy.ndarray of int64, shape (n,)
        Number of labels of each block.
    tables : list of numpy.ndarray
        Labels of each block, ascending.
    """
    codes = np.zeros(blocks.shape, np.uint32)
    n_labels = np.ones(len(blocks), np.int64)
    found = np.empty((len(blocks), _FEW_LABELS), blocks.dtype)
    # Most blocks have a few labels, which are found one after the other sooner than by sorting.
    rows, part, low, top = np.arange(len(blocks)), blocks, blocks.min(axis=1), blocks.max(axis=1)
    found[:, 0] = low
    for n in range(1, _FEW_LABELS):
        above = part > low[:, None]
        codes[rows] += above
        low = np.where(above, part, top[:, None]).min(axis=1)
        found[rows, n], n_labels[rows] = low, n + 1
        has_more = low < top
        rows, part, low, top = rows[has_more], part[has_more], low[has_more], top[has_more]
        if not rows.size:
            break
    tables: list[Labels] = [found[row, :n] for row, n in enumerate(n_labels.tolist())]
    if rows.size:
        order = np.argsort(part, axis=1)
        ordered = np.take_along_axis(part, order, axis=1)
        is_new = np.ones(part.shape, bool)
        is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        ranks = np.cumsum(is_new, axis=1, dtype=np.uint32) - np.uint32(1)
        sorted_codes = np.empty(part.shape, np.uint32)
        np.put_along_axis(sorted_codes, order, ranks, axis=1)
        codes[rows], n_labels[rows] = sorted_codes, is_new.sum(axis=1)
        for row, labels, which in zip(rows.tolist(), ordered, is_new, strict=True):
            tables[row] = labels[which]
    return codes, n_labels, tables


def _packed(codes: Words, n_bits: int) -> npt.NDArray[Any]:
    """Codes of some blocks, each in a number of bits, as words of shape (n, words of a block)."""
    per_word = 32 // n_bits
    n_words = -(-codes.shape[1] // per_word)
    padded = np.zeros((len(codes), n_words * per_word), np.uint32)
    padded[:, : codes.shape[1]] = codes
    shifts = np.arange(0, 32, n_bits, dtype=np.uint32)
    parts = padded.reshape(len(codes), n_words, per_word) << shifts
    words: npt.NDArray[np.uint32] = np.bitwise_or.reduce(parts, axis=2)
    return words.astype("<u4")
