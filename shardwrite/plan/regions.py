"""Regions of an array: the one parser of index expressions, and references to shards."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError
from shardwrite.grid import Box, Shape


@dataclass(frozen=True, slots=True)
class ShardRef:
    """Shard that a region touches."""

    index: Shape  # position in the shard grid of the array
    key: str  # storage key, relative to the array
    box: Box  # elements of the shard that lie in the array, in array coordinates
    # Whether the region covers all of these elements. If not, other regions may share the shard.
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Region:
    """What an index expression selects, if that is a box."""

    box: Box  # the selected elements, in array coordinates
    # For each axis, whether the expression keeps it. An integer drops its axis.
    keeps: tuple[bool, ...]
    # Axes along which a slice goes beyond the end of the array, where it is clipped
    beyond: tuple[int, ...] = ()

    @property
    def shape(self) -> Shape:
        """Shape that numpy would return for the expression."""
        return tuple(n for n, keeps in zip(self.box.shape, self.keeps, strict=True) if keeps)

    def accepts(self, shape: Shape) -> bool:
        """Whether an array of this shape can be written into the region.

        A scalar can: it is repeated. Axes that an integer has dropped may also be there, with
        length 1.
        """
        return shape in ((), self.shape, self.box.shape)


def index_of_each_axis(key: Any, ndim: int) -> list[Any]:
    """Return one index for each axis. An axis that the expression leaves out is taken as a whole.

    - Raises IndexError if there are more indices than axes, or more than one ellipsis.
    """
    items = list(key) if isinstance(key, tuple) else [key]
    ellipses = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(ellipses) > 1:
        raise IndexError(f"{len(ellipses)} ellipses, where one can stand")
    n_given = len(items) - len(ellipses)
    if n_given > ndim:
        raise IndexError(f"{n_given} indices, and the array has {ndim} axes")
    first = ellipses[0] if ellipses else len(items)
    return [*items[:first], *[slice(None)] * (ndim - n_given), *items[first + 1 :]]


def as_region(region: Any, shape: Shape) -> Region:
    """Parse an index expression that selects a box.

    It means what it means in numpy. Slices are clipped to the array, negative numbers count from
    the end, and an integer drops its axis.
    """
    try:
        items = index_of_each_axis(region, len(shape))
    except IndexError as error:
        remedy = "give at most one slice or integer for each axis"
        raise SpecError(str(error), field="region", value=region, remedy=remedy) from None
    start, stop, keeps = [], [], []
    for axis, (item, n) in enumerate(zip(items, shape, strict=True)):
        try:
            a, b = _interval(item, n)
        except IndexError as error:
            message, remedy = error.args
            message = f"{message} along axis {axis}"
            raise SpecError(message, field="region", value=region, remedy=remedy) from None
        start.append(a)
        stop.append(b)
        keeps.append(isinstance(item, slice))
    beyond = tuple(
        axis for axis, pair in enumerate(zip(items, shape, strict=True)) if _is_beyond(*pair)
    )
    return Region(Box(tuple(start), tuple(stop)), tuple(keeps), beyond)


def _is_beyond(item: Any, n: int) -> bool:
    ends = (item.start, item.stop) if isinstance(item, slice) else ()
    return any(end is not None and operator.index(end) > n for end in ends)


def as_box(region: Any, shape: Shape) -> Box:
    """Elements that an index expression selects; see `as_region`."""
    return as_region(region, shape).box


def _interval(item: Any, n: int) -> tuple[int, int]:
    """First index, and index after the last, that one index selects along an axis.

    - Raises IndexError if it selects no interval. The arguments are a message and a remedy.
    """
    if isinstance(item, slice):
        return _interval_of_slice(item, n)
    if item is None:
        raise IndexError("None, which would add an axis,", "leave None out, and reshape the values")
    if isinstance(item, bool | np.bool_) or getattr(item, "dtype", None) == np.dtype(bool):
        raise IndexError("a mask", _ONE_BY_ONE)
    if isinstance(item, list | tuple | range) or np.ndim(item):
        raise IndexError("a list of single elements", _ONE_BY_ONE)
    try:
        index = operator.index(item)
    except TypeError:
        what = f"{type(item).__name__}, which is no integer and no slice,"
        raise IndexError(what, _BOX) from None
    if not -n <= index < n:
        raise IndexError(f"the index {index} is out of bounds for {n} elements", _WITHIN)
    return index % n, index % n + 1


_BOX = "give slices and integers"
_WITHIN = "give an index from -n to n - 1 for an axis of n elements"
_ONE_BY_ONE = "write box by box, with slices; or read the box around, change it and write it back"


def _interval_of_slice(item: slice, n: int) -> tuple[int, int]:
    """As `_interval`, for a slice."""
    try:
        step = 1 if item.step is None else operator.index(item.step)
        if step != 1:
            raise IndexError(f"a slice with the step {step}", _ONE_BY_ONE)
        start, stop, _ = item.indices(n)
    except TypeError:
        raise IndexError("a slice whose ends are no integers", _BOX) from None
    return start, max(start, stop)
