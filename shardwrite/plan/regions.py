"""Regions of an array: conversion from index expressions to boxes, and references to shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwrite.errors import SpecError
from shardwrite.grid import Box, Shape

__all__ = ["ShardRef", "as_box", "indexed_shape"]


@dataclass(frozen=True, slots=True)
class ShardRef:
    """Shard that a region touches.

    Attributes
    ----------
    index : tuple of int
        Position in the shard grid of the array.
    key : str
        Storage key, relative to the array.
    box : Box
        Elements of the shard that lie in the array, in array coordinates.
    is_whole : bool
        Whether the region covers all of these elements. If not, other regions may share the shard.
    """

    index: Shape
    key: str
    box: Box
    is_whole: bool


def _items(region: Any, ndim: int) -> list[Any]:
    """Return one index for each axis, with `Ellipsis` and omitted axes filled in."""
    items = list(region) if isinstance(region, tuple) else [region]
    if any(item is Ellipsis for item in items):
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = [slice(None)] * (ndim - len(items) + 1)
    return items + [slice(None)] * (ndim - len(items))


def indexed_shape(region: Any, box: Box) -> Shape:
    """Shape that a numpy array would return for a region.

    Axes with an integer index are left out.

    Parameters
    ----------
    region : tuple of slice or int, slice, int or Ellipsis
        The index expression.
    box : Box
        The same region as a box.
    """
    items = _items(region, len(box.start))
    return tuple(n for n, item in zip(box.shape, items, strict=True) if isinstance(item, slice))


def as_box(region: Any, shape: Shape) -> Box:
    """Convert a region to a box.

    Slices are clipped to the array, as in numpy.

    Parameters
    ----------
    region : tuple of slice or int, slice, int or Ellipsis
        The index expression.
    shape : tuple of int
        Shape of the array.

    Raises
    ------
    SpecError
        If the region has too many axes, an integer outside the array, a step other than 1, or an
        entry that is neither a slice nor an integer.
    """
    items = _items(region, len(shape))
    if len(items) != len(shape):
        raise SpecError(
            "too many axes", field="region", value=region, remedy=f"the array has {len(shape)}"
        )
    start, stop = [], []
    for item, n in zip(items, shape, strict=True):
        try:
            a, b, step = (
                item.indices(n)
                if isinstance(item, slice)
                else (range(n)[item], range(n)[item] + 1, 1)
            )
        except (IndexError, TypeError, ValueError):
            step = 0
        if step != 1:
            raise SpecError(
                "not a box of the array",
                field="region",
                value=region,
                remedy="give slices of step 1 within the shape",
            )
        start.append(a)
        stop.append(min(max(a, b), n))
    return Box(tuple(start), tuple(stop))
