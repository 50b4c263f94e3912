"""Orders of inner chunks in a shard, and layouts of shards as numbers.

There are two Morton orders. The one that users can choose is that of zarr-python. The other is that
of the chunk ids of Neuroglancer, whose lowest axis, x, is the last axis of an array.

An order has two forms. The first is a permutation: the row-major ranks, listed in the order's
sequence. The second is a sequence of boxes whose contents, laid end to end, follow the order. With
boxes a writer can stream: it encodes one box at a time and never holds the whole shard.

Morton order uses the compressed code of zarr-python. The code takes bit `b` of each coordinate in
turn, with axis 0 as the lowest. An axis that is too short to have a bit `b` contributes none. Codes
outside the grid are left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError
from shardwrite.grid import Box, Shape, ceil_div, unravel

__all__ = ["KEEP", "Placement", "Ranks", "Revision", "Shared", "Stored", "own_ranges", "place"]


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


# ---- Orders: row-major, column-major and Morton


def canonical_order(name: object) -> str:
    """Canonical name of an order: "C", "F" or "morton"."""
    if isinstance(name, str) and name in ORDER_ALIASES:
        return ORDER_ALIASES[name]
    raise SpecError(
        "no such order", field="order", value=name, remedy=f"use one of {sorted(ORDER_ALIASES)}"
    )


def _morton_bits(shape: Shape, order: str) -> list[int]:
    """Axis from which each bit of the compressed code comes, lowest bit first."""
    bits = [(n - 1).bit_length() for n in shape]
    axes = range(len(shape))[:: -1 if order == BY_CHUNK_ID else 1]
    return [axis for b in range(max(bits, default=0)) for axis in axes if b < bits[axis]]


def _codes(shape: Shape, axis_of_bit: list[int]) -> npt.NDArray[np.uint64]:
    """Code of every cell, where bit `i` is the next unused bit of axis ``axis_of_bit[i]``."""
    codes = np.zeros(shape, dtype=np.uint64)
    n_used = [0] * len(shape)
    for bit, axis in enumerate(axis_of_bit):
        coords = np.arange(shape[axis], dtype=np.uint64)
        part = ((coords >> np.uint64(n_used[axis])) & np.uint64(1)) << np.uint64(bit)
        codes |= part.reshape([-1 if a == axis else 1 for a in range(len(shape))])
        n_used[axis] += 1
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


# ---- Layouts: of a stored shard, of a new one, and of an updated one


Ranks = npt.NDArray[np.int64]

KEEP = -2
"""Encoded size that marks an inner chunk which an update does not touch; -1 marks an empty one."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Layout of a shard in the store."""

    # Offset and encoded size of each inner chunk by rank, in bytes; -1 where it is empty
    offsets: Ranks
    nbytes: Ranks
    total_nbytes: int  # size of the object, in bytes
    index_span: tuple[int, int]  # start and stop of the index in the object
    # Whether inner chunks are compressed or have a checksum, so that decoding fails on bytes that
    # are not an inner chunk
    is_checked: bool
    # Encoded size of every inner chunk, if it does not depend on values
    fixed_nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """Layout of a shard after an update."""

    # How the update is made: as a new object, as a clone of the old object with new bytes after it,
    # or as a change of the old object itself
    how: str
    # Offset and encoded size of each inner chunk by rank, in bytes; `nbytes` is negative where the
    # chunk is empty
    offsets: Ranks
    nbytes: Ranks
    # Ranks of the inner chunks to write: all chunks of a new object, else the new ones only
    sequence: Ranks
    # Bytes at the start of the old object that the clone takes over. It is 0 for a rewrite, and the
    # size of the old object for a change in place.
    kept_nbytes: int
    end: int  # end of the inner chunks: the offset of the index, unless the index comes first


@dataclass(frozen=True, slots=True)
class Placement:
    """Layout of the encoded inner chunks in a new shard."""

    # Byte offset of each inner chunk by rank; without meaning where the chunk is empty
    offsets: npt.NDArray[np.int64]
    # Ranks of the chunks that hold data, in the sequence in which they lie in the shard
    sequence: Ranks
    data_nbytes: int  # bytes that the inner chunks span, free bytes between them included


@dataclass(frozen=True, slots=True)
class Shared:
    """Inner chunks that have no bytes of their own, since other programs may share them."""

    ranks: Ranks  # ranks of these inner chunks
    owners: Ranks  # for each of them, the rank of the inner chunk that has the same bytes

    def entered(self, column: Ranks) -> Ranks:
        """Offsets or sizes by rank, in which each of these chunks has those of its owner."""
        entered = column.copy()
        entered[self.ranks] = column[self.owners]
        return entered


def own_ranges(old: Stored, nbytes: Ranks) -> tuple[Stored, Shared]:
    """Layout of a shard in which no two inner chunks have the same bytes.

    Bytes that several chunks share belong to one of them. It is one that the update keeps, if there
    is any. So a strategy neither overwrites them nor regards them as unused, and a rewrite copies
    them once.

    - `old`: layout of the shard before the update.
    - `nbytes`: int64, shape (n,). Encoded sizes as :meth:`Strategy.revise` takes them.
    """
    ranks = np.flatnonzero(old.nbytes > 0)
    order = np.lexsort((nbytes[ranks] != KEEP, old.offsets[ranks]))
    ranks = ranks[order]
    is_owner = np.append(True, np.diff(old.offsets[ranks]) != 0)[: len(ranks)]
    owners = ranks[is_owner][np.cumsum(is_owner) - 1]
    others = ~is_owner
    if not others.any():
        return old, Shared(ranks[:0], ranks[:0])
    offsets, sizes = old.offsets.copy(), old.nbytes.copy()
    offsets[ranks[others]] = sizes[ranks[others]] = -1
    is_kept = others & (nbytes[ranks] == KEEP)
    return replace(old, offsets=offsets, nbytes=sizes), Shared(ranks[is_kept], owners[is_kept])


def place(nbytes: Ranks, sequence: Ranks, base: int, old: Stored | None = None) -> Placement:
    """Place inner chunks end to end.

    If the new shard replaces one whose chunks are checked, no chunk begins where another chunk
    began in the old shard: free bytes are left between chunks where needed. A reader that has the
    old index and reads the new object then gets an error, and not the values of another chunk.

    - `nbytes`: int64, shape (n,). Encoded size of each inner chunk by rank, in bytes; negative
      where it is empty.
    - `base`: offset of the first chunk: the size of the index if it comes first, else 0.
    """
    present = sequence[nbytes[sequence] >= 0]
    sizes = nbytes[present]
    ends = base + np.cumsum(sizes)
    offsets = np.zeros(len(nbytes), dtype=np.int64)
    offsets[present] = ends - sizes
    end = int(ends[-1]) if len(ends) else base
    if (
        old is not None
        and old.is_checked
        and (np.isin(offsets[present], old.offsets) & (offsets != old.offsets)[present]).any()
    ):
        end = _move_apart(offsets, nbytes, present, base, old)
    return Placement(offsets, present, end - base)


def _move_apart(offsets: Ranks, nbytes: Ranks, present: Ranks, base: int, old: Stored) -> int:
    """Shift chunks that would begin where another chunk began, and return the end of the last.

    The new offsets are entered into `offsets`.
    """
    began = {offset: rank for rank, offset in enumerate(old.offsets.tolist()) if offset >= 0}
    end = base
    for rank in present.tolist():
        while began.get(end, rank) != rank:
            end += 1
        offsets[rank] = end
        end += int(nbytes[rank])
    return end
