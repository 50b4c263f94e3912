"""Memory that a thread keeps for what it makes again and again.

The first touch of new memory takes longer than all that is done with it.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

KEPT_NBYTES = 2**21
"""Largest array for which memory is kept."""

_memory = threading.local()


def kept(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Uninitialised array in memory that the current thread keeps, or a new one if it is large.

    - `name`: name of the memory. The next call with this name overwrites the array.
    """
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > KEPT_NBYTES:
        return np.empty(shape, dtype)
    memory: npt.NDArray[np.uint8] | None = getattr(_memory, name, None)
    if memory is None:
        memory = np.empty(KEPT_NBYTES, np.uint8)
        setattr(_memory, name, memory)
    return memory[:nbytes].view(dtype).reshape(shape)
