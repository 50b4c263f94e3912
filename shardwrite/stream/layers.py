"""Layers of shards: blocks that a stream has accepted, and that are not encoded yet.

A layer is the part of one shard that is one inner chunk thick along the stream's axis. When blocks
cover all of it, its inner chunks can be encoded and need not be changed again.
"""

from __future__ import annotations

import threading
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.grid import Box, Shape, ShardGrid, ceil_div

# ---- Buffers, used again because the first access to new memory takes long


class Buffers:
    """Pool of spare buffers, by size.

    - `limit_nbytes`: maximum number of bytes to keep.
    """

    def __init__(self, limit_nbytes: int) -> None:
        self._limit = limit_nbytes
        self._nbytes = 0
        self._spare: dict[int, list[npt.NDArray[np.uint8]]] = {}
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return a buffer of exactly `nbytes` bytes with arbitrary content."""
        with self._lock:
            spare = self._spare.get(nbytes)
            if spare:
                self._nbytes -= nbytes
                return spare.pop()
        return np.empty(nbytes, dtype=np.uint8)

    def give(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Return a buffer to the pool; the caller must not use it any more."""
        with self._lock:
            if self._nbytes + buffer.nbytes <= self._limit:
                self._nbytes += buffer.nbytes
                self._spare.setdefault(buffer.nbytes, []).append(buffer)


# ---- Layers: accepted blocks that are not yet encoded


@dataclass(slots=True, eq=False)
class Block:
    """A box of elements that was given to the stream."""

    box: Box  # place of the elements, in coordinates of the array
    array: npt.NDArray[Any]  # the elements, with the shape of the box
    memory: npt.NDArray[np.uint8] | None = None  # buffer that contains `array`, if it can be reused
    n_layers: int = 0  # number of layers that still need the block


@dataclass(slots=True, eq=False)
class Layer:
    """Part of one shard that is one inner chunk thick along the stream's axis."""

    shard: Shape  # position of the shard in the array
    depth: int  # position along the stream's axis in the array's grid of inner chunks
    # Box of the layer, in coordinates of the array. Along the other axes it is clipped to the
    # array.
    box: Box
    # Blocks in the layer, in the order in which they were given
    blocks: list[Block] = field(default_factory=list)
    is_fresh: bool = False  # whether a block was added since the layer was encoded last
    _parts: list[Box] = field(default_factory=list)
    _n_covered: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether blocks cover every element of the layer."""
        return self._n_covered == self.box.size

    def add(self, block: Block) -> list[Block]:
        """Add a block, and return the blocks that it replaces completely in this layer."""
        common = block.box.intersect(self.box)
        needless: list[Block] = []
        if common == self.box:
            needless, self.blocks, self._parts, self._n_covered = self.blocks, [], [], 0
        new = [common]
        for part in self._parts:
            new = [piece for box in new for piece in box.minus(part)]
        self._parts += new
        self._n_covered += sum(box.size for box in new)
        self.blocks.append(block)
        block.n_layers += 1
        self.is_fresh = True
        return needless

    def touched(self, chunks: Shape) -> Box:
        """Smallest box of whole inner chunks in the layer that contains all of its blocks.

        `chunks` is the shape of an inner chunk.
        """
        boxes = [block.box.intersect(self.box) for block in self.blocks]
        start = tuple(
            min(values) // c * c
            for *values, c in zip(*(box.start for box in boxes), chunks, strict=True)
        )
        stop = tuple(max(values) for values in zip(*(box.stop for box in boxes), strict=True))
        stop = tuple(
            min(ceil_div(b, c) * c, end)
            for b, c, end in zip(stop, chunks, self.box.stop, strict=True)
        )
        return Box(start, stop)


class Layers:
    """Open layers of a stream, which blocks do not cover yet.

    - `grid`: grid of the array; its extent along `axis` does not matter.
    """

    def __init__(self, grid: ShardGrid, axis: int) -> None:
        self._grid, self._axis = grid, axis
        self._open: dict[tuple[Shape, int], Layer] = {}

    def add(self, block: Block) -> tuple[list[Layer], list[Block]]:
        """Add a block to its layers; return those that are whole now, and needless blocks."""
        depth = self._grid.chunks[self._axis]
        whole, needless = [], []
        for shard in self._grid.shards_in(block.box):
            part = self._grid.shard_box(shard).intersect(block.box)
            for k in range(part.start[self._axis] // depth, ceil_div(part.stop[self._axis], depth)):
                layer = self._open.get((shard, k)) or self._layer(shard, k)
                needless += layer.add(block)
                if layer.is_whole:
                    self._open.pop((shard, k), None)
                    whole.append(layer)
                else:
                    self._open[shard, k] = layer
        return whole, needless

    def _layer(self, shard: Shape, k: int) -> Layer:
        box, axis, depth = self._grid.shard_box(shard), self._axis, self._grid.chunks[self._axis]
        stop = [min(b, n) for b, n in zip(box.stop, self._grid.shape, strict=True)]
        start = list(box.start)
        start[axis], stop[axis] = k * depth, (k + 1) * depth
        return Layer(shard, k, Box(tuple(start), tuple(stop)))

    @property
    def fresh(self) -> list[Layer]:
        """Open layers to which a block was added since they were encoded last."""
        return [layer for layer in self._open.values() if layer.is_fresh]

    def close(self) -> list[Layer]:
        """Close all open layers, and return them."""
        layers, self._open = list(self._open.values()), {}
        return layers
