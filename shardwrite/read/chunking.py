"""Chunks of dask arrays, from any form that dask accepts, or of a convenient size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import shardwrite._dask as dask
from shardwrite.config.table import SOURCE_CHUNKS
from shardwrite.config.values import value_of
from shardwrite.errors import SpecError
from shardwrite.grid import Shape, ceil_div
from shardwrite.plan.limits import check_chunks
from shardwrite.plan.sizes import explicit_sizes, parse_nbytes


def normalize(
    chunks: Any, shape: Shape, dtype: Any, previous: tuple[int | tuple[int, ...], ...] | None
) -> tuple[tuple[int, ...], ...]:
    """Chunk sizes along each axis, from any form that dask accepts."""
    full: tuple[tuple[int, ...], ...]
    try:
        known = (
            None
            if previous is None
            else dask.array.core.normalize_chunks(previous, shape=shape, dtype=dtype)
        )
        full = dask.array.core.normalize_chunks(
            chunks, shape=shape, dtype=dtype, previous_chunks=known
        )
    except (ArithmeticError, TypeError, ValueError, NotImplementedError) as error:
        why = "sizes are positive" if isinstance(error, ArithmeticError) else str(error)
        raise SpecError(
            f"these chunks do not fit the shape {shape}: {why}",
            field="chunks",
            value=chunks,
            remedy='give one size, or one tuple of sizes, for each axis, or "auto"',
        ) from None
    return full


def bounded(chunks: Any, shape: Shape, dtype: Any, shards: Shape) -> tuple[tuple[int, ...], ...]:
    """Chunk sizes along each axis of a sharded array, at most as many as can be handled.

    - `chunks`: requested chunks: the shards if None, one size for all axes, or any form of dask.
    """
    least = tuple(max(1, min(size, n)) for size, n in zip(shards, shape, strict=True))
    if chunks is None:
        chunks = least
    if isinstance(chunks, int) and (isinstance(chunks, bool) or chunks != -1):
        chunks = explicit_sizes(chunks, len(shape), "chunks")
    if isinstance(chunks, tuple | list):
        sizes = [
            max(1, n) if size in (-1, None) else size
            for size, n in zip(chunks, shape, strict=False)
        ]
        if len(chunks) == len(shape) and not any(isinstance(size, tuple | str) for size in sizes):
            # Before dask makes a list of them all.
            whole = explicit_sizes(sizes, len(shape), "chunks") or ()
            chunks = tuple(min(size, max(1, n)) for size, n in zip(whole, shape, strict=True))
            check_chunks(shape, chunks)
    # Elements without a size are taken for bytes.
    counted = np.dtype("u1") if dtype.hasobject or not dtype.itemsize else dtype
    given = chunks if isinstance(chunks, tuple | list) else [chunks]
    texts = [size for size in given if isinstance(size, str)]
    for text in texts:
        check_chunks(shape, least)
        if text != "auto":
            n_elements = max(1, parse_nbytes(text, "chunks") // counted.itemsize)
            check_chunks((math.prod(shape),), (n_elements,))
    full = normalize(chunks, shape, counted, least if texts else None)
    check_chunks(shape, tuple(max(sizes, default=1) or 1 for sizes in full))
    return full


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
