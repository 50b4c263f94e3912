"""What a user writes into a region, made into a dask array of the region's box.

A scalar is repeated, and axes that an integer of the region has dropped come back with length 1.
"""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

import shardwrite._dask as dask
from shardwrite.errors import SpecError
from shardwrite.grid import Box, Shape
from shardwrite.plan import Region
from shardwrite.plan.limits import check_region


def scalar(x: Any, dtype: np.dtype[Any], casting: str) -> npt.NDArray[Any] | None:
    """Make an array without axes of a scalar; None if `x` is not a scalar.

    A number of Python has no dtype of its own, as in numpy: it is taken in the dtype of the array
    if that can hold it.

    - `x`: A number, text or bytes, a scalar of numpy, or a numpy array without axes.
    - Raises SpecError if the array cannot hold the number of Python.
    """
    value: npt.NDArray[Any]
    if isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic):
        value = _python_number(x, dtype, casting)
    elif isinstance(x, str | bytes | np.generic) or _is_array_without_axes(x):
        value = np.asarray(x)
    else:
        return None
    if value.dtype.kind in "US" and dtype.hasobject:
        value = np.array(x, dtype=dtype)
    return value


def _is_array_without_axes(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.ndim == 0 and not isinstance(x, np.ma.MaskedArray)


def _python_number(x: complex, dtype: np.dtype[Any], casting: str) -> npt.NDArray[Any]:
    """A number of Python in the array's dtype; in its own if only a cast can make that of it."""
    value = np.asarray(x)
    if dtype.kind not in "biufc" or np.result_type(dtype, x) != dtype:
        return value
    try:
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            held = np.asarray(x, dtype=dtype)
    except OverflowError:
        held = None
    is_lost = held is None or (np.isfinite(x) and not np.isfinite(held))
    if held is None or is_lost or (isinstance(x, int) and int(held.real) != x):
        if casting == "unsafe" and value.dtype != object:
            return value
        raise SpecError(
            f"cannot be held by the array's {dtype}",
            field="x",
            value=x,
            remedy="give a number that it can hold",
        )
    return held


def fitted(x: dask.array.Array, region: Region, shards: Shape) -> dask.array.Array:
    """Lay a source into the box of a region.

    - `x`: the source: without axes, or of the region's shape, with or without the axes that
      integers have dropped.
    - `shards`: shape of a shard, in elements. A scalar is repeated in chunks of this shape.
    """
    box = region.box
    if not region.accepts(x.shape):
        why = "is not the region's"
        remedy = f"give an array of shape {region.shape}, a scalar, or another region"
        if region.beyond:
            axes = " and ".join(map(str, region.beyond))
            why += f": along axis {axes}, the array ends before the region does"
            remedy += ', or let the array grow with region="append"'
        raise SpecError(why, field="x.shape", value=x.shape, remedy=remedy)
    if x.shape == box.shape:
        return x
    if x.ndim == 0:
        check_region(box, shards)
        laid = dask.array.broadcast_to(x, box.shape, chunks=_cut_at_shards(box, shards))
    else:
        laid = x[tuple(slice(None) if keeps else None for keeps in region.keeps)]
    found: dask.array.Array = laid
    return found


def _cut_at_shards(box: Box, shards: Shape) -> tuple[tuple[int, ...], ...]:
    """Sizes of the pieces of a box, cut at the borders of shards."""
    sizes = []
    for a, b, n in zip(box.start, box.stop, shards, strict=True):
        edges = [a, *range((a // n + 1) * n, b, n), b]
        sizes.append(tuple(y - x for x, y in itertools.pairwise(edges)))
    return tuple(sizes)
