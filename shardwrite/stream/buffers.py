"""Memory that is used again: the first touch of new memory costs more than what is done with it."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

__all__ = ["Buffers"]


class Buffers:
    """Buffers that were given back, by size.

    Parameters
    ----------
    limit_nbytes : int
        Bytes to keep at most.
    """

    def __init__(self, limit_nbytes: int) -> None:
        self._limit = limit_nbytes
        self._nbytes = 0
        self._spare: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """A buffer of a size, with whatever is in it."""
        with self._lock:
            spare = self._spare.get(nbytes)
            if spare:
                self._nbytes -= nbytes
                return spare.pop()
        return np.empty(nbytes, dtype=np.uint8)

    def give(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Give a buffer back; nobody may look at it any more."""
        with self._lock:
            if self._nbytes + buffer.nbytes <= self._limit:
                self._nbytes += buffer.nbytes
                self._spare.setdefault(buffer.nbytes, []).append(buffer)
