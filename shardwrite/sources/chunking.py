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

CHUNK_NBYTES = (
    64 << 20
)  # large enough that the cost of a task does not matter, small enough that many fit in memory


def merge_chunks(
    unit: Sequence[int],
    shape: Sequence[int],
    itemsize: int,
    *,
    target: int = CHUNK_NBYTES,
    order: str = "C",
) -> tuple[int, ...]:
    """Whole multiples of `unit`, up to `target` bytes, grown along the fastest axis first.

    Parameters
    ----------
    unit : sequence of int
        Smallest piece that the file can give without reading more than asked for.
    shape : sequence of int
        Extent of the array.
    itemsize : int
        Bytes of one element.
    target : int
        Bytes of one chunk; a `unit` above it is kept.
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
        # pieces of even size: nine and one of ten would leave one worker idle
        take = ceil_div(count, ceil_div(count, fit))
        chunk[axis] = max(1, min(take * chunk[axis], shape[axis]))
        if take < count:
            break
    return tuple(chunk)


def slabs(shape: Sequence[int], itemsize: int, order: str = "C") -> tuple[int, ...]:
    """Contiguous slabs along the slowest axis of an array stored in one piece."""
    return merge_chunks((1,) * len(shape), shape, itemsize, order=order)


def normalize(
    chunks: Any, shape: tuple[int, ...], dtype: Any, previous: Chunks
) -> tuple[tuple[int, ...], ...]:
    """Explicit chunks from whatever dask accepts, with our error where it refuses."""
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
