"""Reuse of memory, because the first access to new memory takes longer than the work on it."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt


class Buffers:
    """Pool of spare buffers, by size.

    - `limit_nbytes`: maximum number of bytes to keep.
    """

    def __init__(self, limit_nbytes: int) -> None:
        self._limit = limit_nbytes
        self._nbytes = 0
        self._spare: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return a buffer of exactly `nbytes` bytes with arbitrary content."""
        with self._lock:
            spare = self._spare.get(nbytes)
            if spare:
                self._nbytes -= nbytes
                return spare.pop()
        return np.empty(nbytes, dtype=np.uint8)

    def give(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Return a buffer to the pool; the caller must not use it any more."""
        with self._lock:
            if self._nbytes + buffer.nbytes <= self._limit:
                self._nbytes += buffer.nbytes
                self._spare.setdefault(buffer.nbytes, []).append(buffer)
