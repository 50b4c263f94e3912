"""Boxes and regular grids: arithmetic on arrays, shards and inner chunks.

All functions are pure, and use Python integers, so no shape is too large for them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardwrite._dataclass import dataclass

__all__ = ["Box", "ShardGrid", "boundaries", "ceil_div", "counts_of", "ravel", "unravel"]

Shape = tuple[int, ...]
Sized = int | str | Sequence[int] | Mapping[Any, int | str] | None
"""Shape as users give it: for each axis, by the names of axes, one for all axes, as bytes, as a
number of inner chunks, or as ``"auto"``."""


def as_sizes(value: Any) -> Any:
    """A shape that is given as an array of numpy, as a tuple; anything else as it is."""
    is_array = getattr(value, "ndim", 0) and hasattr(value, "tolist")  # one of dask has no values
    return tuple(value.tolist()) if is_array else value


def ceil_div(a: int, b: int) -> int:
    """Smallest integer that is not less than ``a / b``, for a positive `b`."""
    return -(-a // b)


def counts_of(shape: Sequence[int], step: Sequence[int]) -> Shape:
    """Number of steps along each axis that reach from 0 to the end of a shape."""
    return tuple(ceil_div(n, s) for n, s in zip(shape, step, strict=True))


def ravel(index: Sequence[int], shape: Sequence[int]) -> int:
    """Row-major rank of the position `index` in a grid of shape `shape`."""
    rank = 0
    for i, n in zip(index, shape, strict=True):
        rank = rank * n + i
    return rank


def unravel(rank: int, shape: Sequence[int]) -> Shape:
    """Position of a row-major rank in a grid of shape `shape`; the inverse of :func:`ravel`."""
    index = []
    for n in reversed(shape):
        rank, i = divmod(rank, n)
        index.append(i)
    return tuple(reversed(index))


def boundaries(sizes: Sequence[int]) -> list[int]:
    """Boundaries ``[0, s0, s0+s1, ...]`` of adjacent pieces with the given sizes."""
    return [0, *itertools.accumulate(sizes)]


@dataclass(frozen=True, slots=True)
class Box:
    """A half-open box of array elements."""

    start: Shape  # first position in the box, and the position after the last one, along each axis
    stop: Shape

    def __post_init__(self) -> None:
        if len(self.start) != len(self.stop):
            raise ValueError(f"box corners differ in rank: {self.start}, {self.stop}")

    @classmethod
    def from_shape(cls, start: Shape, shape: Sequence[int]) -> Box:
        """Box that begins at `start` and has a shape."""
        return cls(start, tuple(a + n for a, n in zip(start, shape, strict=True)))

    @property
    def shape(self) -> Shape:
        """Number of elements along each axis."""
        return tuple(max(0, b - a) for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[Any, ...]:
        """The box as an index into an array. It gives a view even of an array without axes."""
        return (*(slice(a, b) for a, b in zip(self.start, self.stop, strict=True)), ...)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """``(start, stop)`` for each axis."""
        return tuple(zip(self.start, self.stop, strict=True))

    def intersect(self, other: Box) -> Box:
        """Common part of both boxes; its `size` is 0 if they do not overlap."""
        start = tuple(map(max, self.start, other.start))
        return Box(
            start,
            tuple(max(a, b) for a, b in zip(start, map(min, self.stop, other.stop), strict=True)),
        )

    def shift(self, origin: Sequence[int]) -> Box:
        """The same box in coordinates relative to `origin`."""
        return Box(
            tuple(a - o for a, o in zip(self.start, origin, strict=True)),
            tuple(b - o for b, o in zip(self.stop, origin, strict=True)),
        )

    def minus(self, other: Box) -> list[Box]:
        """Part of this box that is outside of `other`, as boxes that do not overlap."""
        common = self.intersect(other)
        if not common.size:
            return [self]
        pieces, start, stop = [], self.start, self.stop
        for axis, (a, b) in enumerate(common.bounds):
            pieces.append(Box(start, (*stop[:axis], a, *stop[axis + 1 :])))
            pieces.append(Box((*start[:axis], b, *start[axis + 1 :]), stop))
            start, stop = (
                (*start[:axis], a, *start[axis + 1 :]),
                (*stop[:axis], b, *stop[axis + 1 :]),
            )
        return [piece for piece in pieces if piece.size]

    def contains(self, other: Box) -> bool:
        """Whether `other` lies completely inside this box."""
        return all(
            a <= c and d <= b
            for a, b, c, d in zip(self.start, self.stop, other.start, other.stop, strict=True)
        )


@dataclass(frozen=True, slots=True)
class ShardGrid:
    """Grid of an array: its shape, divided into shards, and these into inner chunks."""

    shape: Shape  # shape of the array
    shards: Shape  # shape of a shard. Each entry is a positive multiple of the entry in `chunks`.
    chunks: Shape  # shape of an inner chunk

    def __post_init__(self) -> None:
        if not len(self.shape) == len(self.shards) == len(self.chunks):
            raise ValueError(
                f"ranks differ: shape {self.shape}, shards {self.shards}, chunks {self.chunks}"
            )
        if any(c < 1 or s < 1 or s % c for s, c in zip(self.shards, self.chunks, strict=True)):
            raise ValueError(f"shards {self.shards} are not multiples of chunks {self.chunks}")

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def counts(self) -> Shape:
        """Number of shards along each axis."""
        return counts_of(self.shape, self.shards)

    @property
    def n_shards(self) -> int:
        """Number of shards of the array."""
        return math.prod(self.counts)

    @property
    def sizes(self) -> tuple[Shape, ...]:
        """Numbers of elements of the array in successive shards, along each axis."""
        return tuple(
            tuple(min(s, n - a) for a in range(0, n, s)) or (0,)
            for n, s in zip(self.shape, self.shards, strict=True)
        )

    @property
    def chunks_per_shard(self) -> Shape:
        """Number of inner chunks along each axis of a shard."""
        return tuple(s // c for s, c in zip(self.shards, self.chunks, strict=True))

    @property
    def n_chunks_per_shard(self) -> int:
        """Number of entries in a shard's index, including inner chunks beyond the array."""
        return math.prod(self.chunks_per_shard)

    @property
    def n_inner_chunks(self) -> int:
        """Number of inner chunks that overlap the array."""
        return math.prod(counts_of(self.shape, self.chunks))

    @property
    def whole(self) -> Box:
        """Box of the whole array."""
        return Box((0,) * self.ndim, self.shape)

    def shard_box(self, index: Sequence[int]) -> Box:
        """Box of the shard at position `index`, not clipped to the array."""
        start = tuple(i * s for i, s in zip(index, self.shards, strict=True))
        return Box.from_shape(start, self.shards)

    def chunk_box(self, index: Sequence[int], cell: Sequence[int]) -> Box:
        """Box of the inner chunk at position `cell` of a shard, not clipped to the array."""
        start = tuple(
            i * s + k * c for i, s, k, c in zip(index, self.shards, cell, self.chunks, strict=True)
        )
        return Box.from_shape(start, self.chunks)

    def shard_range(self, region: Box) -> Box:
        """Box in the grid of shards that `region` touches."""
        return Box(
            tuple(a // s for a, s in zip(region.start, self.shards, strict=True)),
            counts_of(region.stop, self.shards),
        )

    def box_of_shards(self, first: Sequence[int], counts: Sequence[int]) -> Box:
        """Box of the elements that some shards have inside the array.

        - `first`, `counts`: position of the first of them, and their number along each axis.
        """
        start = tuple(a * s for a, s in zip(first, self.shards, strict=True))
        ends = ((a + k) * s for a, k, s in zip(first, counts, self.shards, strict=True))
        return Box(start, tuple(map(min, ends, self.shape)))

    def shards_in(self, region: Box) -> Iterator[Shape]:
        """Positions of the shards that overlap `region`, in row-major order."""
        if region.size == 0:
            return iter(())
        shards = self.shard_range(region)
        return itertools.product(*map(range, shards.start, shards.stop))

    def rounded_to_shards(self, box: Box) -> Box:
        """Box of the whole shards that a box touches, which may reach past the array's end."""
        return Box(
            tuple(a // s * s for a, s in zip(box.start, self.shards, strict=True)),
            tuple(ceil_div(b, s) * s for b, s in zip(box.stop, self.shards, strict=True)),
        )

    def rounded_out(self, box: Box) -> Box:
        """Box of the whole inner chunks that a box touches, clipped at the end of the array."""
        start = tuple(a // c * c for a, c in zip(box.start, self.chunks, strict=True))
        stop = tuple(ceil_div(b, c) * c for b, c in zip(box.stop, self.chunks, strict=True))
        return Box(start, stop).intersect(self.whole)

    def chunk_counts_in(self, box: Box) -> Shape:
        """Number of inner chunks along each axis of a `box` that starts on the inner chunk grid."""
        return tuple(
            ceil_div(b, c) - a // c
            for a, b, c in zip(box.start, box.stop, self.chunks, strict=True)
        )

    @property
    def overhang_fraction(self) -> float:
        """Fraction of the shards' total volume that lies beyond the array."""
        volume = self.n_shards * math.prod(self.shards)
        return 1 - math.prod(self.shape) / volume if volume else 0.0
