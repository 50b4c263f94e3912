"""Blocks of labels, as ``compressed_segmentation`` packs them: ranks, tables and bits.

All blocks are worked on at once. If they were taken one after the other, threads would wait for the
lock of the interpreter most of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.memory import kept

_FEW = 16
"""Number of labels up to which those of a block are found one after the other."""

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_WORD_BITS = 32

Labels = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]
Numbers = npt.NDArray[np.int64]
Codes = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Labels of some blocks."""

    n_labels: Numbers  # number of labels of each block
    tables: Labels  # labels of each block, ascending, block after block
    # Numbers of blocks that have several labels, ascending, and the rank of the label of each of
    # their voxels. Each such block is in one group. The next call in this thread overwrites the
    # ranks.
    groups: list[tuple[Numbers, Codes]]


def rank(blocks: Labels) -> Ranked:
    """Find the labels of blocks, and the ranks of voxels.

    - `blocks`: uint32 or uint64, shape (n, size). Label of each voxel.
    """
    low, top = blocks.min(axis=1), blocks.max(axis=1)
    n_labels = np.ones(len(blocks), np.int64)
    found = np.empty((len(blocks), _FEW), blocks.dtype)
    found[:, 0] = low
    several = rows = np.flatnonzero(low != top)
    part = kept("several", (len(rows), blocks.shape[1]), blocks.dtype)
    blocks.take(rows, axis=0, out=part, mode="clip")  # all are there, and are not checked again
    low, top = low[rows], top[rows]
    found[rows, 1], n_labels[rows] = top, 2
    # In most blocks, each voxel has the lowest or the highest label.
    is_above = np.not_equal(part, low[:, None], out=kept("above", part.shape, bool))
    is_below = np.not_equal(part, top[:, None], out=kept("below", part.shape, bool))
    few_codes = is_above.view(np.uint8)
    at = np.flatnonzero(np.logical_and(is_above, is_below, out=is_below).any(axis=1))
    rows, part, codes, low, top = rows[at], part[at], few_codes[at], low[at], top[at]
    # Most others have a few labels, which are found one after the other sooner than by sorting.
    for n in range(1, _FEW):
        if not rows.size:
            break
        # The next label is the least one above `low`: all others wrap around and become large.
        low = low + 1
        low += (part - low[:, None]).min(axis=1)
        found[rows, n], n_labels[rows] = low, n + 1
        is_last = low == top
        if is_last.any():
            few_codes[at[is_last]] = codes[is_last]
            more = ~is_last
            rows, part, codes, low, top, at = (a[more] for a in (rows, part, codes, low, top, at))
        codes += part > low[:, None]
    is_few = np.ones(len(blocks), bool)
    is_few[rows] = False
    more_tables, groups = found[:0, 0], list[tuple[Numbers, Codes]]()
    if not rows.size:
        groups.append((several, few_codes))
    else:
        groups.append((np.delete(several, at), np.delete(few_codes, at, axis=0)))
        order = np.argsort(part, axis=1)
        ordered = np.take_along_axis(part, order, axis=1)
        is_new = np.ones(part.shape, bool)
        is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        ranks = np.cumsum(is_new, axis=1, dtype=np.uint32) - np.uint32(1)
        sorted_codes = np.empty(part.shape, np.uint32)
        np.put_along_axis(sorted_codes, order, ranks, axis=1)
        n_labels[rows], more_tables = is_new.sum(axis=1), ordered[is_new]
        groups.append((rows, sorted_codes))
    tables = np.empty(n_labels.sum(), blocks.dtype)
    is_few_label = np.repeat(is_few, n_labels)
    tables[is_few_label] = found[is_few[:, None] & (np.arange(_FEW) < n_labels[:, None])]
    tables[~is_few_label] = more_tables
    return Ranked(n_labels, tables, groups)


def first_equal(tables: Labels, n_labels: Numbers) -> Numbers:
    """Number of the first block that has the same table, for each block."""
    starts = np.cumsum(n_labels) - n_labels
    places = np.arange(len(tables)) - np.repeat(starts, n_labels)
    factors = np.cumprod(np.full(n_labels.max(), _FACTOR))
    sums = np.add.reduceat(tables.astype(np.uint64) * factors[places], starts)
    _, firsts, which = np.unique(sums, return_index=True, return_inverse=True)
    first: Numbers = firsts[which.reshape(-1)]
    is_same = bool((n_labels == n_labels[first]).all())
    if is_same and (tables == tables[np.repeat(starts[first], n_labels) + places]).all():
        return first
    # Tables that differ have the same sum.
    seen: dict[bytes, int] = {}
    ends = (starts + n_labels).tolist()
    parts = (tables[a:b].tobytes() for a, b in zip(starts.tolist(), ends, strict=True))
    return np.array([seen.setdefault(part, number) for number, part in enumerate(parts)])


def packed(codes: Codes, n_bits: int) -> Words:
    """Codes of some blocks, each in a number of bits.

    - `codes`: unsigned integers, shape (n, size). The codes.
    - `n_bits`: bits of a code: 1, 2, 4, 8, 16 or 32.
    """
    per_word, (n, size) = _WORD_BITS // n_bits, codes.shape
    whole = -(-size // per_word) * per_word
    dtype = np.dtype(f"<u{max(1, n_bits // 8)}")
    padded = np.zeros((n, whole), dtype) if whole > size else np.empty((n, whole), dtype)
    padded[:, :size] = codes
    if n_bits == 1:
        padded = np.packbits(padded, axis=1, bitorder="little")
    elif n_bits < 8:
        step = 8 // n_bits
        for place in range(1, step):
            padded[:, ::step] |= padded[:, place::step] << np.uint8(place * n_bits)
        padded = np.ascontiguousarray(padded[:, ::step])
    return padded.view("<u4")


def unpacked(words: Words, n_bits: int, size: int) -> Codes:
    """Codes of some blocks; the reverse of `packed`.

    - `words`: uint32, shape (n, words of a block). Words, little-endian.
    """
    if n_bits >= 8:
        return words.view(f"<u{n_bits // 8}")[:, :size]
    found = words.view(np.uint8)
    if n_bits == 1:
        return np.unpackbits(found, axis=1, count=size, bitorder="little")
    step, mask = 8 // n_bits, np.uint8(2**n_bits - 1)
    codes = np.empty((len(words), found.shape[1] * step), np.uint8)
    for place in range(step):
        codes[:, place::step] = found >> np.uint8(place * n_bits) & mask
    return codes[:, :size]
