"""Orders of inner chunks in a shard: row-major, column-major and Morton.

There are two Morton orders. The one that users can choose is that of zarr-python. The other is that
of the chunk ids of Neuroglancer, whose lowest axis, x, is the last axis of an array.

This module gives an order in two forms. The first is a permutation: the row-major ranks, listed in
the order's sequence. The second is a sequence of boxes whose contents, laid end to end, follow the
order. With boxes a writer can stream: it encodes one box at a time and never holds the whole shard.

Morton order uses the compressed code of zarr-python. The code takes bit `b` of each coordinate in
turn, with axis 0 as the lowest. An axis that is too short to have a bit `b` contributes none. Codes
outside the grid are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError
from shardwrite.grid import Box, Shape, ceil_div, unravel

BY_CHUNK_ID = "chunk-id"
"""Morton order whose lowest axis is the last one. It has no name for users."""

ORDER_ALIASES = {
    "C": "C",
    "F": "F",
    "morton": "morton",
    "lexicographic": "C",
    "colexicographic": "F",
    "unordered": "C",
}
ORDERS = (*dict.fromkeys(ORDER_ALIASES.values()), BY_CHUNK_ID)
"""Names of all orders that this module knows."""


def canonical_order(name: object) -> str:
    """Canonical name of an order: "C", "F" or "morton"."""
    if isinstance(name, str) and name in ORDER_ALIASES:
        return ORDER_ALIASES[name]
    raise SpecError(
        "no such order", field="order", value=name, remedy=f"use one of {sorted(ORDER_ALIASES)}"
    )


def _axis_bits(shape: Shape) -> list[int]:
    return [(n - 1).bit_length() for n in shape]


def _morton_bits(shape: Shape, order: str) -> list[int]:
    """Axis from which each bit of the compressed code comes, lowest bit first."""
    bits = _axis_bits(shape)
    axes = range(len(shape))[:: -1 if order == BY_CHUNK_ID else 1]
    return [axis for b in range(max(bits, default=0)) for axis in axes if b < bits[axis]]


def _codes(shape: Shape, axis_of_bit: list[int]) -> npt.NDArray[np.uint64]:
    """Code of every cell, where bit `i` is the next unused bit of axis ``axis_of_bit[i]``."""
    codes = np.zeros(shape, dtype=np.uint64)
    taken = [0] * len(shape)
    for bit, axis in enumerate(axis_of_bit):
        coords = np.arange(shape[axis], dtype=np.uint64)
        part = ((coords >> np.uint64(taken[axis])) & np.uint64(1)) << np.uint64(bit)
        codes |= part.reshape([-1 if a == axis else 1 for a in range(len(shape))])
        taken[axis] += 1
    return codes


@lru_cache(maxsize=256)
def permutation(shape: Shape, order: str) -> npt.NDArray[np.int64]:
    """Row-major ranks of the cells of a grid, in the sequence of `order`.

    - `order`: canonical name of the order.
    """
    n = math.prod(shape)
    ranks = np.arange(n, dtype=np.int64)
    if order == "F":
        ranks = ranks.reshape(shape).ravel(order="F").copy()
    elif order in ("morton", BY_CHUNK_ID):
        codes = _codes(shape, _morton_bits(shape, order)).ravel()
        ranks = np.argsort(codes, kind="stable").astype(np.int64)
    ranks.setflags(write=False)
    return ranks


def boxes(shape: Shape, order: str, max_cells: int) -> Iterator[Box]:
    """Boxes of at most `max_cells` cells that, one after another, follow `order`.

    Inside a box the cells follow :func:`permutation` of the box's own shape. Each box has at least
    one cell, also where `max_cells` is less than 1.
    """
    if order in ("morton", BY_CHUNK_ID):
        return _morton_boxes(shape, order, max_cells)
    axes = list(range(len(shape)))
    fastest_first = axes[::-1] if order == "C" else axes
    step = [1] * len(shape)
    room = max(1, max_cells)
    for axis in fastest_first:
        step[axis] = min(shape[axis], room)
        if step[axis] < shape[axis]:
            break
        room //= step[axis]
    return _tiles(shape, step, fastest_first[::-1])


def _tiles(shape: Shape, step: list[int], slowest_first: list[int]) -> Iterator[Box]:
    starts = [range(0, shape[axis], step[axis]) for axis in slowest_first]
    for corner in itertools.product(*starts):
        start = [0] * len(shape)
        for axis, value in zip(slowest_first, corner, strict=True):
            start[axis] = value
        yield Box(
            tuple(start), tuple(min(a + s, n) for a, s, n in zip(start, step, shape, strict=True))
        )


def _morton_boxes(shape: Shape, order: str, max_cells: int) -> Iterator[Box]:
    """Boxes in Morton order: the low bits of the code span a box, the high bits order the boxes."""
    axis_of_bit = _morton_bits(shape, order)
    step = [1] * len(shape)
    n_low = 0
    while n_low < len(axis_of_bit) and math.prod(step) * 2 <= max_cells:
        step[axis_of_bit[n_low]] *= 2
        n_low += 1
    coarse = tuple(ceil_div(n, s) for n, s in zip(shape, step, strict=True))
    for rank in np.argsort(_codes(coarse, axis_of_bit[n_low:]).ravel(), kind="stable"):
        start = tuple(i * s for i, s in zip(unravel(int(rank), coarse), step, strict=True))
        yield Box(start, tuple(min(a + s, n) for a, s, n in zip(start, step, shape, strict=True)))
