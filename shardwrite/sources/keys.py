"""Resolution of indexing keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwrite.grid import Box
from shardwrite.plan.regions import index_of_each_axis


def split_key(key: Any, shape: tuple[int, ...]) -> tuple[Box, tuple[Any, ...] | None]:
    """Split a key into the smallest box that it selects from, and a key within that box.

    - Returns: key to apply to the block of the box; None if the block is the result.
    - Raises IndexError if the key has too many axes or is out of bounds.
    """
    parts = index_of_each_axis(key, len(shape))
    split = [_split_axis(part, n) for part, n in zip(parts, shape, strict=True)]
    box = Box(tuple(start for start, _, _ in split), tuple(stop for _, stop, _ in split))
    plain = all(isinstance(rest, slice) and rest.step in (None, 1) for _, _, rest in split)
    return box, None if plain else tuple(rest for _, _, rest in split)


def _split_axis(part: Any, n: int) -> tuple[int, int, Any]:
    """Start and stop on an axis of extent `n`, and the key within that range."""
    if isinstance(part, slice):
        picked = range(n)[part]
        if not picked:
            return 0, 0, slice(None)
        return (
            min(picked[0], picked[-1]),
            max(picked[0], picked[-1]) + 1,
            slice(None, None, picked.step),
        )
    if isinstance(part, list | np.ndarray):
        # This resolves negative and boolean indices, and raises the errors of NumPy.
        every = np.arange(n)[part]
        low, high = (int(every.min()), int(every.max()) + 1) if every.size else (0, 0)
        return low, high, every - low
    if isinstance(part, bool | np.bool_):
        raise IndexError(f"{part!r}, which would add an axis")
    try:
        at = range(n)[part]
    except TypeError:
        raise IndexError(f"{part!r} is no integer, slice, or array of integers") from None
    return at, at + 1, 0
