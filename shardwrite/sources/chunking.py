"""Chunks of a convenient size that respect the layout of a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import shardwrite._dask as dask
from shardwrite.errors import SpecError
from shardwrite.grid import ceil_div
from shardwrite.sources.base import Chunks

__all__ = ["CHUNK_NBYTES", "merge_chunks", "normalize", "slabs"]

# Large enough that the overhead of a task is small, small enough that many chunks fit in memory.
CHUNK_NBYTES = 64 << 20


def merge_chunks(
    unit: Sequence[int],
    shape: Sequence[int],
    itemsize: int,
    *,
    target: int = CHUNK_NBYTES,
    order: str = "C",
) -> tuple[int, ...]:
    """Chunk shape of whole multiples of `unit`, grown along the fastest axis first.

    Parameters
    ----------
    unit : sequence of int
        Shape of the smallest piece that can be read without reading more of the file.
    shape : sequence of int
        Shape of the array.
    itemsize : int
        Size of one element, in bytes.
    target : int
        Maximum size of a chunk, in bytes. A larger `unit` is kept as it is.
    order : {"C", "F"}
        Whether the last or the first axis is the fastest.
    """
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


def normalize(
    chunks: Any, shape: tuple[int, ...], dtype: Any, previous: Chunks
) -> tuple[tuple[int, ...], ...]:
    """Chunk sizes along each axis, from any form that dask accepts.

    Parameters
    ----------
    chunks
        Requested chunks.
    shape : tuple of int
        Shape of the array.
    dtype : numpy.dtype
        Data type of the array.
    previous : tuple
        Natural chunks, which ``"auto"`` takes into account.

    Raises
    ------
    SpecError
        If the chunks do not fit the shape.
    """
    full: tuple[tuple[int, ...], ...]
    try:
        known = dask.array.core.normalize_chunks(previous, shape=shape, dtype=dtype)
        full = dask.array.core.normalize_chunks(
            chunks, shape=shape, dtype=dtype, previous_chunks=known
        )
    except (TypeError, ValueError, NotImplementedError) as error:
        raise SpecError(
            f"these chunks do not fit the shape {shape}: {error}",
            field="chunks",
            value=chunks,
            remedy='give one size, or one tuple of sizes, for each axis, or "auto"',
        ) from error
    return full
