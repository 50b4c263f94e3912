"""The values of an array that exists as a source of chunks, which are decoded and re-encoded.

A chunk that holds only the fill value is stored if the array stores one there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

import shardwrite._dask as dask
from shardwrite.encode.unit import Damaged
from shardwrite.errors import CorruptShardError
from shardwrite.format.passage import has_checksum
from shardwrite.grid import Box
from shardwrite.read.array import ShardedArray
from shardwrite.read.reread import read_again
from shardwrite.read.source import by_inner_chunks
from shardwrite.runs.array_chunks import ArrayChunks
from shardwrite.runs.source import Key, TaskBox
from shardwrite.write.donor import TWICE, Check


class ReencodedChunks(ArrayChunks):
    """Values of an array that exists, and which of its chunks are stored.

    - `array`: the array; None if it does not tell which chunks it stores, and `drop_empty` holds
      anyway.
    - `drop_empty`: store no chunk that holds only the fill value.
    """

    def __init__(
        self, x: dask.array.Array, array: ShardedArray | None, *, drop_empty: bool
    ) -> None:
        super().__init__(x)
        self._like = None if drop_empty else array
        self.copied = array

    @property
    def read_from(self) -> ShardedArray | None:
        """See :class:`ReadsArray`."""
        return self.copied

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        return super().write(self._keeping(at))

    def encode(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        return super().encode(self._keeping(at))

    def _keeping(self, at: TaskBox) -> TaskBox:
        return replace(at, spec=replace(at.spec, like=self._like))


def to_reencode(array: ShardedArray, check: Check) -> dask.array.Array:
    """Open an array as `by_inner_chunks` does; blocks that cannot be read are `Damaged`.

    - `check`: with ``"twice"``, what has no checksum is read twice, and compared.
    """
    like, source = by_inner_chunks(array), _Source(array, check)
    made: dask.array.Array = dask.array.from_array(
        source,
        chunks=like.chunks,
        name=f"reencoded-{like.name}",
        asarray=False,
        meta=np.empty((0,) * array.ndim, dtype=array.dtype),
    )
    return made


class _Source:
    """An array that gives `Damaged` blocks where shards cannot be read."""

    def __init__(self, array: ShardedArray, check: Check) -> None:
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self._array = array
        self._is_compared = check == TWICE and not has_checksum(array.metadata)

    def __getitem__(self, key: Any) -> npt.NDArray[Any] | Damaged:
        spans = [s.indices(n)[:2] for s, n in zip(key, self.shape, strict=True)]
        region = Box(tuple(a for a, _ in spans), tuple(b for _, b in spans))
        try:
            return self._read(region)
        except CorruptShardError:
            return self._by_shards(region)

    def _by_shards(self, region: Box) -> npt.NDArray[Any] | Damaged:
        """Read a region that cannot be read as a whole."""
        out = np.full(region.shape, self._array.metadata.fill_value, self.dtype)
        grid, bad = self._array.metadata.grid, []
        for index in grid.shards_in(region):
            part = grid.shard_box(index).intersect(region)
            inside = part.shift(region.start)
            try:
                out[inside.slices] = self._read(part)
            except CorruptShardError as error:
                bad.append((inside, error))
        return Damaged(out, tuple(bad)) if bad else out

    def _read(self, region: Box) -> npt.NDArray[Any]:
        found = self._array.read(region)
        return self._agreed(region, found) if self._is_compared else found

    def _agreed(self, region: Box, found: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What two reads, one after the other, give alike; there are three at most."""
        afresh, store, metadata = self._array.afresh(), self._array.store, self._array.metadata
        first = next(iter(metadata.grid.shards_in(region)), ())
        error = CorruptShardError(
            f"each read of the region {region.bounds} gives other values",
            key=metadata.shard_key(first),
        )
        for _ in range(2):
            again = afresh.read(region)
            if _same(again, found):
                return again
            read_again(store, "", error)
            found = again
        raise error


def _same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether two arrays of one shape have the same bits, or the same objects."""
    if one.dtype.hasobject or one.dtype.kind == "T":
        return bool(np.array_equal(one, other))
    return one.tobytes() == other.tobytes()
