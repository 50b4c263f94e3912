"""Filters of PNG images: each row with the one after which its bytes are smallest.

All rows of a batch lie one after the other in memory, so that numpy takes 16 or more bytes in one
step. Their numbers wrap around at 256, as those of the format do.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["Rows", "filtered"]

_BATCH_NBYTES = 2**17
_WORD_NBYTES = 8
_N_FILTERS = 5

Rows = npt.NDArray[np.uint8]


def filtered(rows: Rows) -> Iterator[bytes]:
    """Rows of an image, each with the number of its filter before it.

    Parameters
    ----------
    rows : numpy.ndarray of uint8, shape (height, width, size)
        Bytes of the pixels, of which each has `size`.

    Yields
    ------
    bytes
        Some rows, one after the other.
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
    # If the corner does not lie between the other two, it is never nearer than both.
    is_between = (left >= corner) != (up >= corner)
    of_corner = np.maximum(of_left, of_up) - np.minimum(of_left, of_up)
    is_left = (of_left <= of_up) & ((of_left <= of_corner) | ~is_between)
    is_up = ((of_up <= of_corner) | ~is_between) & ~is_left
    # Masks of all bits take a tenth of the time of numpy.where.
    mask_left, mask_up = (0 - mask.view(np.uint8) for mask in (is_left, is_up))
    nearest: Rows = corner ^ ((corner ^ left) & mask_left) ^ ((corner ^ up) & mask_up)
    return nearest


def _weights(found: Rows) -> npt.NDArray[np.uint64]:
    """Sum of the absolute values of the bytes of each row, as signed numbers.

    A word holds the sums of several bytes side by side: four at first, and then two.
    """
    words = np.minimum(found, 0 - found).view(np.uint64)
    for nbytes in (1, 2):
        mask = np.uint64(int.from_bytes((bytes(nbytes) + b"\xff" * nbytes) * (4 // nbytes)))
        words = (words & mask) + ((words >> np.uint64(8 * nbytes)) & mask)
    sums: npt.NDArray[np.uint64] = words.sum(axis=2)
    return (sums & np.uint64(2**32 - 1)) + (sums >> np.uint64(32))
