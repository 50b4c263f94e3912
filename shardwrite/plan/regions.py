"""Regions: what users write between brackets, and the shards that it touches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwrite.errors import SpecError
from shardwrite.grid import Box, Shape

__all__ = ["ShardRef", "as_box", "indexed_shape"]


@dataclass(frozen=True, slots=True)
class ShardRef:
    """A shard as a region sees it.

    Attributes
    ----------
    index : tuple of int
        Position in the shard grid.
    key : str
        Storage key, relative to the array.
    box : Box
        In-bounds elements of the shard.
    is_whole : bool
        Whether the region covers all of them; if not, other writers may share the shard.
    """

    index: Shape
    key: str
    box: Box
    is_whole: bool


def _items(region: Any, ndim: int) -> list[Any]:
    """An index for each axis."""
    items = list(region) if isinstance(region, tuple) else [region]
    if any(item is Ellipsis for item in items):
        at = next(i for i, item in enumerate(items) if item is Ellipsis)
        items[at : at + 1] = [slice(None)] * (ndim - len(items) + 1)
    return items + [slice(None)] * (ndim - len(items))


def indexed_shape(region: Any, box: Box) -> Shape:
    """Shape of what an array of numpy's would give for a region, which is a box here: without the axes of integers."""
    items = _items(region, len(box.start))
    return tuple(n for n, item in zip(box.shape, items, strict=True) if isinstance(item, slice))


def as_box(region: Any, shape: Shape) -> Box:
    """A region as a box.

    Raises
    ------
    SpecError
        Other steps than 1, too many axes, or a start outside the array.
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
