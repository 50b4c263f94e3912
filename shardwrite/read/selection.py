"""What an index expression selects of an array, shard by shard.

A selection is a box, orthogonal (each axis has an index of its own), or single points. Each says
which inner chunks of a shard it takes, and where their elements go. So nothing is read that lies
between the elements that are wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.grid import Box, Shape, ShardGrid, ceil_div, unravel
from shardwrite.plan.regions import index_of_each_axis

Numbers: TypeAlias = npt.NDArray[np.int64]
Place: TypeAlias = Callable[[npt.NDArray[Any], int, npt.NDArray[Any]], None]
"""Copies elements of an inner chunk with a rank to where they go in an output."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a selection takes of one shard."""

    ranks: Numbers  # the inner chunks that it needs, by their ranks in the shard
    where: Any  # index in the output of all elements that come from the shard
    place: Place


class Selection(Protocol):
    """Elements of an array that are read together."""

    shape: Shape
    """Shape of the output."""

    @property
    def n_chunks(self) -> int:
        """Number of inner chunks that hold the elements."""

    def shards(self) -> Sequence[Shape]:
        """Shards that hold the elements, by their positions in the shard grid."""

    def part(self, index: Shape) -> Part:
        """What is taken of one of these shards."""


def _ranks(cells: Sequence[Numbers], counts: Shape) -> Numbers:
    """Ranks of the inner chunks at these positions along each axis, as an array of the axes.

    It takes memory for these chunks only, since nobody has looked yet whether a shard can hold the
    number of inner chunks that its document gives.
    """
    ranks: Numbers = np.zeros((), np.int64)
    for numbers, n in zip(cells, counts, strict=True):
        ranks = ranks[..., None] * n + numbers
    return ranks


# ---- A box


class BoxSelection:
    """All elements of a box."""

    def __init__(self, grid: ShardGrid, box: Box) -> None:
        self._grid, self.box = grid, box
        self.shape = box.shape

    @property
    def n_chunks(self) -> int:
        """See :attr:`Selection.n_chunks`."""
        return math.prod(
            ceil_div(b, c) - a // c if b > a else 0
            for (a, b), c in zip(self.box.bounds, self._grid.chunks, strict=True)
        )

    def shards(self) -> Sequence[Shape]:
        """See :meth:`Selection.shards`."""
        return list(self._grid.shards_in(self.box))

    def part(self, index: Shape) -> Part:
        """See :meth:`Selection.part`."""
        grid = self._grid
        shard = grid.shard_box(index)
        wanted = shard.intersect(self.box)
        inside = wanted.shift(shard.start)
        first = tuple(a // c for a, c in zip(inside.start, grid.chunks, strict=True))
        last = tuple(ceil_div(b, c) for b, c in zip(inside.stop, grid.chunks, strict=True))
        cells = [np.arange(a, b) for a, b in zip(first, last, strict=True)]
        where = wanted.shift(self.box.start).slices

        def place(chunk: npt.NDArray[Any], rank: int, out: npt.NDArray[Any]) -> None:
            """Slices may reach past the ends of the arrays: numpy clips them."""
            position = unravel(rank, grid.chunks_per_shard)
            begins = [
                i * c - a for i, c, a in zip(position, grid.chunks, inside.start, strict=True)
            ]
            here: Any = [slice(max(0, a), a + c) for a, c in zip(begins, grid.chunks, strict=True)]
            there: Any = [
                slice(max(0, -a), n - a) for a, n in zip(begins, inside.shape, strict=True)
            ]
            out[where][(*here, ...)] = chunk[(*there, ...)]

        return Part(_ranks(cells, grid.chunks_per_shard), where, place)


# ---- Orthogonal selections


class _SteppedAxis:
    """Elements of an axis at equal distances, upward or downward."""

    def __init__(self, numbers: range) -> None:
        self.n = len(numbers)
        self._is_down = numbers.step < 0
        self._up = numbers[::-1] if self._is_down else numbers

    def cells(self, start: int, stop: int, size: int) -> Numbers:
        """Cells of a size in an interval that hold elements, in ascending order from its start."""
        inside, _ = self.within(start, stop)
        numbers = range(inside.start, inside.stop, inside.step)
        if not numbers:
            return np.empty(0, np.int64)
        if numbers.step <= size:
            return np.arange(numbers[0] // size, numbers[-1] // size + 1)
        return np.arange(numbers.start, numbers.stop, numbers.step) // size

    def within(self, start: int, stop: int) -> tuple[slice, slice]:
        """Elements of an interval, counted from its start, and their places in the output."""
        first, step = self._up.start, self._up.step
        low, high = (min(self.n, max(0, ceil_div(end - first, step))) for end in (start, stop))
        inside = slice(first + low * step - start, first + high * step - start, step)
        if not self._is_down:
            return inside, slice(low, high)
        end = self.n - 1 - high
        return inside, slice(self.n - 1 - low, None if end < 0 else end, -1)


class _ListedAxis:
    """Elements of an axis in any sequence."""

    def __init__(self, numbers: Numbers) -> None:
        self.n = len(numbers)
        self._order = np.argsort(numbers, kind="stable")
        self._sorted = numbers[self._order]

    def cells(self, start: int, stop: int, size: int) -> Numbers:
        """See :meth:`_SteppedAxis.cells`."""
        return np.unique(self.within(start, stop)[0] // size)

    def within(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """See :meth:`_SteppedAxis.within`."""
        low, high = np.searchsorted(self._sorted, [start, stop])
        return self._sorted[low:high] - start, self._order[low:high]


class OrthogonalSelection:
    """Elements by an index of each axis, independently of the other axes.

    - `axes`: for each axis, the numbers of its elements.
    """

    def __init__(self, grid: ShardGrid, axes: Sequence[range | Numbers]) -> None:
        self._grid = grid
        self._axes = [
            _SteppedAxis(axis) if isinstance(axis, range) else _ListedAxis(axis) for axis in axes
        ]
        self.shape = tuple(axis.n for axis in self._axes)

    @property
    def n_chunks(self) -> int:
        """See :attr:`Selection.n_chunks`."""
        sizes = zip(self._axes, self._grid.shape, self._grid.chunks, strict=True)
        return math.prod(len(axis.cells(0, n, size)) for axis, n, size in sizes)

    def shards(self) -> Sequence[Shape]:
        """See :meth:`Selection.shards`."""
        cells = [
            axis.cells(0, n, size).tolist()
            for axis, n, size in zip(self._axes, self._grid.shape, self._grid.shards, strict=True)
        ]
        return list(product(*cells))

    def part(self, index: Shape) -> Part:
        """See :meth:`Selection.part`."""
        grid = self._grid
        box = grid.shard_box(index)
        cells = [
            axis.cells(*bounds, size)
            for axis, bounds, size in zip(self._axes, box.bounds, grid.chunks, strict=True)
        ]
        spans = [
            axis.within(*bounds)[1] for axis, bounds in zip(self._axes, box.bounds, strict=True)
        ]

        def place(chunk: npt.NDArray[Any], rank: int, out: npt.NDArray[Any]) -> None:
            position = unravel(rank, grid.chunks_per_shard)
            starts = [a + i * c for a, i, c in zip(box.start, position, grid.chunks, strict=True)]
            pairs = [
                axis.within(start, start + size)
                for axis, start, size in zip(self._axes, starts, grid.chunks, strict=True)
            ]
            inside, there = _joint([pair[0] for pair in pairs], chunk.shape), [p[1] for p in pairs]
            out[_joint(there, out.shape)] = chunk[inside]

        return Part(_ranks(cells, grid.chunks_per_shard), _joint(spans, self.shape), place)


def _joint(indices: Sequence[Any], shape: Shape) -> Any:
    """One index of numpy that takes an index of each axis, independently of the others."""
    if all(isinstance(index, slice) for index in indices):
        return tuple(indices)
    numbers = [
        np.arange(n)[index] if isinstance(index, slice) else index
        for index, n in zip(indices, shape, strict=True)
    ]
    return np.ix_(*numbers)


# ---- Points


class PointSelection:
    """Single elements.

    - `coords`: for each axis, the numbers of all elements; arrays of one shape, that of the output.
    """

    def __init__(self, grid: ShardGrid, coords: Sequence[Numbers]) -> None:
        self._grid = grid
        self.shape = coords[0].shape
        flat = [numbers.reshape(-1) for numbers in coords]
        cells = [numbers // size for numbers, size in zip(flat, grid.chunks, strict=True)]
        per_shard = grid.chunks_per_shard
        shards = [cell // n for cell, n in zip(cells, per_shard, strict=True)]
        ranks = np.ravel_multi_index(
            [cell % n for cell, n in zip(cells, per_shard, strict=True)], per_shard
        )
        order = np.lexsort((ranks, *reversed(shards)))
        self._ranks = ranks[order]
        self._inside = [
            (numbers % size)[order] for numbers, size in zip(flat, grid.chunks, strict=True)
        ]
        self._where = np.unravel_index(order, self.shape) if self.shape else ()
        indices = np.stack([numbers[order] for numbers in shards], axis=1)
        is_new = np.ones(len(order), bool)
        is_new[1:] = (indices[1:] != indices[:-1]).any(axis=1)
        self.n_chunks = len(order) and 1 + int(
            np.count_nonzero(is_new[1:] | (self._ranks[1:] != self._ranks[:-1]))
        )
        starts = np.flatnonzero(is_new)
        bounds = pairwise([*starts.tolist(), len(order)])
        self._bounds = dict(zip(map(tuple, indices[starts].tolist()), bounds, strict=True))

    def shards(self) -> Sequence[Shape]:
        """See :meth:`Selection.shards`."""
        return list(self._bounds)

    def part(self, index: Shape) -> Part:
        """See :meth:`Selection.part`."""
        first, last = self._bounds[index]

        def place(chunk: npt.NDArray[Any], rank: int, out: npt.NDArray[Any]) -> None:
            low, high = np.searchsorted(self._ranks[first:last], [rank, rank + 1]) + first
            inside = tuple(numbers[low:high] for numbers in self._inside)
            there = self._positions(low, high)
            out[there] = chunk[inside] if self.shape else chunk[inside][0]

        return Part(np.unique(self._ranks[first:last]), self._positions(first, last), place)

    def _positions(self, first: int, last: int) -> tuple[Numbers, ...]:
        return tuple(numbers[first:last] for numbers in self._where)


# ---- Index expressions


@dataclass(frozen=True, slots=True)
class Selected:
    """A parsed index expression."""

    selection: Selection
    # Index of the output that gives what the expression gives: an integer has dropped its axis.
    view: Any
    shape: Shape | None = None  # of the result, where an array of several axes stood for one axis

    @property
    def result_shape(self) -> Shape:
        """Shape of the result."""
        if self.shape is not None or self.view is Ellipsis:
            return self.selection.shape if self.shape is None else self.shape
        pairs = zip(self.selection.shape, self.view, strict=True)
        return tuple(n for n, item in pairs if isinstance(item, slice))

    def with_axes(self, result: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A result with the axes of the selection: of length one where integers drop them."""
        if self.view is Ellipsis:
            return result
        return result[(*(None if item == 0 else slice(None) for item in self.view), ...)]

    def result(self, elements: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What the expression gives, from the elements of its selection."""
        if self.view is not Ellipsis and 0 in self.view:
            elements = elements[self.view]
        return elements if self.shape is None else elements.reshape(self.shape)


def basic(key: Any, grid: ShardGrid) -> Selected:
    """What an index expression selects in the way of numpy.

    - Raises IndexError if it holds what is no index, is out of bounds, or would be taken for
      something else by numpy than axis by axis.
    """
    only = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if _is_mask(only, grid.ndim):
        return points(only, grid)
    items = index_of_each_axis(key, grid.ndim)
    if sum(map(_is_listed, items)) > 1:
        if any(isinstance(item, slice) for item in items):
            raise IndexError(
                "lists for several axes beside a slice: oindex takes each axis by itself, and "
                "vindex takes points"
            )
        return points(tuple(items), grid)
    if _is_moved(items):
        raise IndexError(
            "a list and an integer with a slice between them, for which numpy moves an axis to the "
            "front: oindex leaves each axis where it is"
        )
    return _of_each_axis(items, grid)


def _is_moved(items: Sequence[Any]) -> bool:
    """Whether numpy gives the axis of a list another place than it has among the items.

    It does so if a slice parts the list from an integer, and stands before the list.
    """
    is_slice = [isinstance(item, slice) for item in items]
    listed = next((axis for axis, item in enumerate(items) if _is_listed(item)), 0)
    numbered = [axis for axis, is_kept in enumerate(is_slice) if not is_kept]
    is_parted = any(is_slice[numbered[0] : numbered[-1]]) if numbered else False
    return is_parted and any(is_slice[:listed])


def orthogonal(key: Any, grid: ShardGrid) -> Selected:
    """What an index expression selects if each axis is taken by itself."""
    items = index_of_each_axis(key, grid.ndim)
    for item in items:
        if _is_listed(item) and np.ndim(item) > 1:
            raise IndexError(f"an array of {np.ndim(item)} axes, where an axis takes a list")
    return _of_each_axis(items, grid)


def points(key: Any, grid: ShardGrid) -> Selected:
    """The points that arrays of their numbers along each axis select, or a mask of the array.

    - Raises IndexError if it is neither.
    """
    mask = key[0] if isinstance(key, tuple) and len(key) == 1 else key
    if _is_mask(mask, grid.ndim):
        wanted = np.asarray(mask)
        if wanted.shape != grid.shape:
            raise IndexError(f"a mask of shape {wanted.shape} for an array of shape {grid.shape}")
        return Selected(PointSelection(grid, np.nonzero(wanted)), ...)
    items = key if isinstance(key, tuple) else (key,)
    if len(items) != grid.ndim or not items or any(_is_no_point(item) for item in items):
        raise IndexError(
            f"points want one array of integers for each of {grid.ndim} axes, or a mask of the "
            "whole array"
        )
    numbers = [
        _numbers(item, n, axis)
        for axis, (item, n) in enumerate(zip(items, grid.shape, strict=True))
    ]
    try:
        coords = np.broadcast_arrays(*numbers)
    except ValueError as error:
        raise IndexError(f"the arrays of numbers do not fit each other: {error}") from None
    return Selected(PointSelection(grid, coords), ...)


def _of_each_axis(items: Sequence[Any], grid: ShardGrid) -> Selected:
    """See `orthogonal`; one of the items may be an array of several axes."""
    axes: list[range | Numbers] = []
    view: list[Any] = []
    shape: list[int] = []
    for axis, (item, n) in enumerate(zip(items, grid.shape, strict=True)):
        if isinstance(item, slice):
            axes.append(range(*item.indices(n)))
            view.append(slice(None))
            shape.append(len(axes[-1]))
            continue
        numbers = _numbers(item, n, axis)
        is_kept = numbers.ndim > 0
        flat = numbers.reshape(-1)
        axes.append(flat if is_kept else range(int(flat[0]), int(flat[0]) + 1))
        view.append(slice(None) if is_kept else 0)
        shape += numbers.shape
    is_box = all(isinstance(axis, range) and (axis.step == 1 or not axis) for axis in axes)
    selection: Selection
    if is_box:
        bounds = [(axis[0], axis[-1] + 1) if axis else (0, 0) for axis in axes]
        box = Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds))
        selection = BoxSelection(grid, box)
    else:
        selection = OrthogonalSelection(grid, axes)
    is_flat = len(shape) == view.count(slice(None))
    return Selected(selection, tuple(view), None if is_flat else tuple(shape))


def _is_listed(item: Any) -> bool:
    return not isinstance(item, slice) and np.ndim(item) > 0


def _is_mask(item: Any, ndim: int) -> bool:
    """Whether an item is a mask of a whole array, which has several axes."""
    if isinstance(item, slice | tuple) or item is Ellipsis or item is None:
        return False
    wanted = np.asarray(item)
    return wanted.dtype == bool and wanted.ndim == ndim > 0


def _is_no_point(item: Any) -> bool:
    if isinstance(item, slice) or item is Ellipsis:
        return True
    wanted = np.asarray(item)
    return wanted.dtype.kind not in ("iu" if wanted.size else "iuf")


def _numbers(item: Any, n: int, axis: int) -> Numbers:
    """Numbers of the elements that an integer, a list or a mask selects of an axis of `n`."""
    wanted = np.asarray(item)
    if wanted.size == 0 and wanted.dtype.kind in "iuf":
        return np.empty(wanted.shape, np.int64)
    if wanted.dtype == bool:
        if wanted.shape != (n,):
            raise IndexError(f"a mask of shape {wanted.shape} for an axis of {n} elements")
        return np.flatnonzero(wanted).astype(np.int64)
    if wanted.dtype.kind not in "iu":
        raise IndexError(f"{item!r} is no integer, slice, or array of integers or booleans")
    if (wanted < -n).any() or (wanted >= n).any():
        raise IndexError(f"{item!r} is out of bounds for axis {axis}, which has {n} elements")
    numbers = wanted.astype(np.int64)  # small integers may not hold n
    return np.asarray(np.where(numbers < 0, numbers + n, numbers))
