"""Chunks of a convenient size that respect the layout of a file."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardwrite.config.table import SOURCE_CHUNKS
from shardwrite.config.values import value_of
from shardwrite.grid import ceil_div

__all__ = ["merge_chunks", "slabs"]


def merge_chunks(
    unit: Sequence[int],
    shape: Sequence[int],
    itemsize: int,
    *,
    target: int | None = None,
    order: str = "C",
) -> tuple[int, ...]:
    """Chunk shape of whole multiples of `unit`, grown along the fastest axis first.

    - `unit`: shape of the smallest piece that can be read without reading more of the file.
    - `target`: maximum size of a chunk, in bytes; by default ``shardwrite.source.chunk-size``. A
      larger `unit` is kept as it is.
    - `order`: whether the last or the first axis is the fastest.
    """
    target = value_of(SOURCE_CHUNKS) if target is None else target
    chunk = [max(1, min(u, n)) for u, n in zip(unit, shape, strict=True)]
    axes = range(len(chunk))
    for axis in reversed(axes) if order == "C" else axes:
        fit = target // max(1, math.prod(chunk) * itemsize)
        count = ceil_div(max(1, shape[axis]), chunk[axis])
        if fit < 1:
            break
        # chunks of similar size: of ten units, 5 + 5 balance the workers better than 9 + 1
        take = ceil_div(count, ceil_div(count, fit))
        chunk[axis] = max(1, min(take * chunk[axis], shape[axis]))
        if take < count:
            break
    return tuple(chunk)


def slabs(shape: Sequence[int], itemsize: int, order: str = "C") -> tuple[int, ...]:
    """Shape of contiguous slabs along the slowest axis of an array that is stored in one piece."""
    return merge_chunks((1,) * len(shape), shape, itemsize, order=order)
