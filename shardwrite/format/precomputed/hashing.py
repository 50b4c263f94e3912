"""Hashes of chunk ids: the identity, and the 128-bit MurmurHash3 for x86."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint64]
_Words = npt.NDArray[np.uint32]

HASHES = ("identity", "murmurhash3_x86_128")
_C1, _C2, _C3 = np.uint32(0x239B961B), np.uint32(0xAB0E9789), np.uint32(0x38B34AE5)
_M1, _M2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_KEY_NBYTES = np.uint32(8)


def hashed(ids: Ids, name: str) -> Ids:
    """Hash ids.

    - `ids`: uint64, shape (n,). The ids, already shifted by ``preshift_bits``.
    - `name`: name of the hash function.
    """
    return ids if name == "identity" else murmurhash3_x86_128(ids)


def murmurhash3_x86_128(ids: Ids) -> Ids:
    """Low 64 bits of MurmurHash3_x86_128 of ids, with seed 0.

    Each id is hashed as its eight little-endian bytes.

    - `ids`: uint64, shape (n,). The ids.

    Examples
    --------
    >>> int(murmurhash3_x86_128(np.array([0], np.uint64))[0])
    5148371408780832321
    """
    low = (ids & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (ids >> np.uint64(32)).astype(np.uint32)
    # Eight bytes are less than one block of 16, so only the steps for the tail and the end count.
    # The state h2 takes the second word, h1 the first, and h3 and h4 begin equal.
    h1 = _rotated(low * _C1, 15) * _C2 ^ _KEY_NBYTES
    h2 = _rotated(high * _C2, 16) * _C3 ^ _KEY_NBYTES
    h3 = np.full_like(h1, _KEY_NBYTES)
    h1 = h1 + h2 + h3 + h3
    h2, h3 = h2 + h1, h3 + h1
    h1, h2, h3 = _mixed(h1), _mixed(h2), _mixed(h3)
    h1 = h1 + h2 + h3 + h3
    h2 = h2 + h1
    return h1.astype(np.uint64) | h2.astype(np.uint64) << np.uint64(32)


def _rotated(words: _Words, n_bits: int) -> _Words:
    result: _Words = words << np.uint32(n_bits) | words >> np.uint32(32 - n_bits)
    return result


def _mixed(words: _Words) -> _Words:
    words = (words ^ words >> np.uint32(16)) * _M1
    words = (words ^ words >> np.uint32(13)) * _M2
    return words ^ words >> np.uint32(16)
