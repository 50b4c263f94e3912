"""Arrangement of a shard grid of any number of dimensions as a picture of two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.grid import ceil_div
from shardwrite.read.census import LEGEND_ORDER, STATES, Array, Census, ShardState, times
from shardwrite.results import human

GAP = 255  # cell of a picture without a shard

CELLS_WITH_LINES = 72  # most cells along an axis that leave room for lines between them

_SEVERITY = np.array([2, 1, 0, 3, 4], np.uint8)  # by state: a cell shows its most severe one

_BY_SEVERITY = np.argsort(_SEVERITY).astype(np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """Shard grid in two dimensions. All arrays have the shape of the picture."""

    states: Array  # worst state of the cell's shards; ``GAP`` if the cell has no shard
    mean_nbytes: Array  # mean size of the cell's written shards in bytes; 0 if there are none
    n_shards: Array  # number of shards of the cell
    first: Array  # row-major rank of the cell's first and last shard; -1 if the cell has no shard
    last: Array


def fold(states: Array, stored: Array, max_rows: int, max_columns: int) -> Folded:
    """Arrange a shard grid of any number of dimensions in two.

    A line of shards is wrapped into rows. The planes of the last two axes are tiled, with a gap of
    one cell. If the picture is too large, a cell stands for a block of shards and shows the worst
    state among them. From worst to best, the states are bad, missing, pending, written, empty.

    - `states`, `stored`: :class:`ShardState` and stored bytes of each shard, in the shape of the
      grid.
    - `max_rows`, `max_columns`: most rows and columns of the picture; at least 1.

    Examples
    --------
    >>> fold(np.ones((3, 2, 2), np.uint8), np.zeros((3, 2, 2)), 9, 9).states
    array([[  1,   1, 255,   1,   1],
           [  1,   1, 255,   1,   1],
           [255, 255, 255, 255, 255],
           [  1,   1, 255, 255, 255],
           [  1,   1, 255, 255, 255]], dtype=uint8)
    """
    if not states.size:
        none = np.zeros((0, 0), np.int64)
        return Folded(none.astype(np.uint8), none.astype(np.float64), none, none, none)
    is_line = states.ndim < 2
    shape = (states.size, 1, 1) if is_line else (math.prod(states.shape[:-2]), *states.shape[-2:])
    gap = 0 if is_line else 1
    factors = _factors(shape, max_rows, max_columns, gap)
    n_tiles, rows, columns = map(ceil_div, shape, factors)
    across = (max_columns + gap) // (columns + gap)
    if not is_line:  # as square as the limits allow
        least = ceil_div(n_tiles, (max_rows + gap) // (rows + gap))
        across = min(across, max(least, round(math.sqrt(n_tiles * (rows + gap) / (columns + gap)))))
    down = ceil_div(n_tiles, across)
    across = ceil_div(n_tiles, down)

    def mosaic(cells: Array, fill: int) -> Array:
        padding = ((0, down * across - n_tiles), (0, gap), (0, gap))
        tiles = np.pad(cells, padding, constant_values=fill).reshape(
            down, across, rows + gap, columns + gap
        )
        plane = tiles.transpose(0, 2, 1, 3).reshape(down * (rows + gap), across * (columns + gap))
        return plane[: plane.shape[0] - gap, : plane.shape[1] - gap]

    worst = _BY_SEVERITY[_reduce(np.maximum, _SEVERITY[states].reshape(shape), factors)]
    is_written = (states == ShardState.WRITTEN).reshape(shape)
    n_written = _reduce(np.add, is_written.astype(np.int64), factors)
    nbytes = _reduce(
        np.add, np.where(is_written, stored.reshape(shape), 0).astype(np.float64), factors
    )
    starts = [np.arange(0, n, factor) for n, factor in zip(shape, factors, strict=True)]
    stops = [np.append(start[1:], n) for start, n in zip(starts, shape, strict=True)]
    sizes = [stop - start for start, stop in zip(starts, stops, strict=True)]
    first = np.ravel_multi_index(np.ix_(*starts), shape)
    last = np.ravel_multi_index(np.ix_(*(stop - 1 for stop in stops)), shape)
    return Folded(
        states=mosaic(worst, GAP),
        mean_nbytes=mosaic(nbytes / np.maximum(n_written, 1), 0),
        # the factors are arrays, which broadcast
        n_shards=mosaic(math.prod(np.ix_(*sizes)), 0),  # type: ignore[arg-type]
        first=mosaic(first, -1),
        last=mosaic(last, -1),
    )


def _factors(
    shape: tuple[int, ...], max_rows: int, max_columns: int, gap: int
) -> tuple[int, int, int]:
    """Choose how many planes, rows and columns are reduced to one.

    They are as few as possible, so that the mosaic just fits. Planes are only reduced if the
    mosaic has no room for one cell of each.
    """

    def n_fitting(rows: int, columns: int) -> int:
        return ((max_rows + gap) // (rows + gap)) * ((max_columns + gap) // (columns + gap))

    planes = ceil_div(shape[0], n_fitting(1, 1))
    n_tiles = ceil_div(shape[0], planes)
    # the longer of rows and columns shrinks first
    for side in range(max(max_rows, max_columns), 1, -1):
        by_row, by_column = (
            ceil_div(n, min(side, limit))
            for n, limit in zip(shape[1:], (max_rows, max_columns), strict=True)
        )
        if n_fitting(ceil_div(shape[1], by_row), ceil_div(shape[2], by_column)) >= n_tiles:
            return planes, by_row, by_column
    return planes, shape[1], shape[2]


def _reduce(operation: np.ufunc, values: Array, factors: tuple[int, ...]) -> Array:
    for axis, factor in enumerate(factors):
        values = operation.reduceat(values, np.arange(0, values.shape[axis], factor), axis=axis)
    return values


# ---- Colours, legend and caption


RGB = tuple[int, int, int]

STATE_COLOURS: tuple[RGB, ...] = (
    (185, 60, 255),
    (0, 0, 0),
    (44, 46, 58),
    (255, 156, 225),
    (226, 38, 38),
)
# The states differ from each other and from all steps of the scale, also to colour-blind readers.
# viridis has steps that look even, also to colour-blind readers; its darkest fifth is left out,
# because it would look like empty shards
SIZE_COLOURS: tuple[RGB, ...] = (
    (65, 68, 135), (51, 98, 141), (39, 127, 142), (31, 154, 138), (74, 193, 109),
    (160, 218, 57), (253, 231, 37),
)  # fmt: skip

PALETTE = np.array(STATE_COLOURS + SIZE_COLOURS, np.uint8)


def shades_of(picture: Folded, census: Census) -> Array:
    """Map the cells of a picture to indices of `PALETTE`; ``GAP`` stays ``GAP``."""
    low, high, n = census.min_nbytes, census.max_nbytes, len(SIZE_COLOURS)
    position = (
        (picture.mean_nbytes - low) / (high - low)
        if high > low
        else np.full(picture.states.shape, 0.5)
    )
    steps = len(STATES) + np.clip(position * n, 0, n - 1).astype(np.uint8)
    return np.where(picture.states == ShardState.WRITTEN, steps, picture.states).astype(np.uint8)


def legend_of(census: Census) -> Iterator[tuple[ShardState, tuple[RGB, ...], str]]:
    """Iterate over the states that occur, each with its colours and its text."""
    low, high = human(census.min_nbytes), human(census.max_nbytes)
    for state in LEGEND_ORDER:
        name = STATES[state]
        count = census.counts[name]
        if count and state == ShardState.WRITTEN:
            is_even = census.min_nbytes == census.max_nbytes
            middle = len(SIZE_COLOURS) // 2
            colours = SIZE_COLOURS[middle : middle + 1] if is_even else SIZE_COLOURS
            yield state, colours, f"{count:,} {name}, {low}" + ("" if is_even else f" to {high}")
        elif count:
            yield state, STATE_COLOURS[state : state + 1], f"{count:,} {name}"


def caption_of(census: Census, picture: Folded) -> str:
    """Describe in one line what a picture shows."""
    grid = census.states.shape
    parts = [f"shard grid {times(grid)}"]
    if len(grid) > 2 and census.states.size:
        parts.append(f"{math.prod(grid[:-2]):,} planes of the last two axes")
    if (largest := int(picture.n_shards.max(initial=0))) > 1:
        parts.append(f"each cell shows the worst of up to {largest:,} shards")
    return "; ".join(parts)


def hex_of(colour: Iterable[int]) -> str:
    """Format a colour for HTML, such as ``#2c2e3a``."""
    return "#" + "".join(f"{value:02x}" for value in colour)
