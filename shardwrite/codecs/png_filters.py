"""Filters of PNG images: each row with the one after which its bytes are smallest.

All rows of a batch lie one after the other in memory, so that numpy takes 16 or more bytes in one
step. Their numbers wrap around at 256, as those of the format do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_BATCH_NBYTES = 2**17
_WORD_NBYTES = 8
_N_FILTERS = 5
# Sums of two bytes, which are 256 at most, fit into two bytes for so many words.
_MOST_WORDS = 255

Rows = npt.NDArray[np.uint8]


def filtered(rows: Rows) -> Iterator[bytes]:
    """Rows of an image, each with the number of its filter before it.

    - `rows`: uint8, shape (height, width, size). Bytes of the pixels, of which each has `size`.
    """
    height, width, size = rows.shape
    nbytes = width * size
    stride = -(-(size + nbytes) // _WORD_NBYTES) * _WORD_NBYTES
    step = max(1, _BATCH_NBYTES // stride)
    for first in range(0, height, step):
        some = rows[first : first + step].reshape(-1, nbytes)
        # Before each row lies a pixel of zeros, and before all of them the row above.
        padded = np.zeros(size + (len(some) + 1) * stride, np.uint8)
        table = padded[size:].reshape(-1, stride)
        table[1:, size : size + nbytes] = some
        if first:
            table[0, size : size + nbytes] = rows[first - 1].reshape(-1)
        found = _each(padded, size, stride).reshape(_N_FILTERS, len(some), stride)
        found[:, :, :size] = 0
        found[:, :, size + nbytes :] = 0
        best = np.argmin(_weights(found), axis=0)
        out = np.empty((len(some), 1 + nbytes), np.uint8)
        out[:, 0] = best
        out[:, 1:] = found[best, np.arange(len(some)), size : size + nbytes]
        yield out.tobytes()


def _each(padded: Rows, size: int, stride: int) -> Rows:
    """Bytes after each filter, of the rows after the first one."""
    n = len(padded) - size - stride
    here, left, up, corner = (padded[at : at + n] for at in (size + stride, stride, size, 0))
    found = np.empty((_N_FILTERS, n), np.uint8)
    found[0] = here
    np.subtract(here, left, out=found[1])
    np.subtract(here, up, out=found[2])
    np.subtract(here, (left & up) + ((left ^ up) >> 1), out=found[3])
    np.subtract(here, _paeth(left, up, corner), out=found[4])
    return found


def _paeth(left: Rows, up: Rows, corner: Rows) -> Rows:
    """The neighbour that is nearest to ``left + up - corner``, in numbers that wrap around."""
    of_left = np.maximum(up, corner) - np.minimum(up, corner)
    of_up = np.maximum(left, corner) - np.minimum(left, corner)
    of_corner = np.maximum(of_left, of_up) - np.minimum(of_left, of_up)
    # If the corner does not lie between the other two, it is never nearer than both.
    is_between = (left >= corner) != (up >= corner)
    of_corner |= is_between.view(np.uint8) - 1
    is_left = (of_left <= of_up) & (of_left <= of_corner)
    is_up = of_up <= of_corner
    # Masks of all bits take a tenth of the time of numpy.where.
    mask_left, mask_up = (0 - mask.view(np.uint8) for mask in (is_left, is_up))
    other = corner ^ ((corner ^ up) & mask_up)
    nearest: Rows = other ^ ((other ^ left) & mask_left)
    return nearest


def _weights(found: Rows) -> npt.NDArray[np.uint64]:
    """Sum of the absolute values of the bytes of each row, as signed numbers.

    A word holds the sums of several bytes side by side: of two at first, then of four, and then of
    eight. Words are added before that, as soon as the sums of a whole row fit.
    """
    # The absolute value of -128 has the same byte.
    sums = _halved(np.abs(found.view(np.int8)).view(np.uint64), 1)
    is_wide = sums.shape[2] > _MOST_WORDS
    if is_wide:
        sums = _halved(sums, 2)
    sums = np.einsum("ijk->ij", sums)  # takes a quarter of the time of numpy.sum
    if not is_wide:
        sums = _halved(sums, 2)
    return _halved(sums, 4)


def _halved(words: npt.NDArray[np.uint64], nbytes: int) -> npt.NDArray[np.uint64]:
    """Sums of the numbers of so many bytes that lie side by side in each word."""
    mask = np.uint64(int.from_bytes((b"\xff" * nbytes + bytes(nbytes)) * (4 // nbytes), "little"))
    return (words & mask) + ((words >> np.uint64(8 * nbytes)) & mask)
