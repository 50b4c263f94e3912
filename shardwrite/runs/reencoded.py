"""The values of an array that exists as a source of chunks, which are decoded and re-encoded.

A chunk that holds only the fill value is stored if the array stores one there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import shardwrite._dask as dask
from shardwrite.read.array import ShardedArray, as_dask_array
from shardwrite.runs.array_chunks import ArrayChunks
from shardwrite.runs.source import Key, TaskBox
from shardwrite.sources.chunking import merge_chunks

__all__ = ["ReencodedChunks", "by_inner_chunks"]

_READ_NBYTES = 32 * 2**20


class ReencodedChunks(ArrayChunks):
    """Values of an array that exists, and which of its chunks are stored.

    Parameters
    ----------
    x : dask.array.Array
        The values, as `by_inner_chunks` gives them.
    array : ShardedArray or None
        The array; None if it does not tell which chunks it stores, and `drop_empty` holds anyway.
    drop_empty : bool
        Store no chunk that holds only the fill value.

    Attributes
    ----------
    copied : ShardedArray or None
        See :class:`CopiesObjects`.
    """

    def __init__(
        self, x: dask.array.Array, array: ShardedArray | None, *, drop_empty: bool
    ) -> None:
        super().__init__(x)
        self._like = None if drop_empty else array
        self.copied = array

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        return super().write(self._keeping(at))

    def encode(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        return super().encode(self._keeping(at))

    def _keeping(self, at: TaskBox) -> TaskBox:
        return replace(at, spec=replace(at.spec, like=self._like))


def by_inner_chunks(array: ShardedArray) -> dask.array.Array:
    """Open an array as a dask array of which each chunk is whole inner chunks.

    Raises
    ------
    SpecError
        If the dask array would have too many chunks.
    """
    metadata = array.metadata
    sizes = merge_chunks(metadata.grid.chunks, array.shape, metadata.itemsize, target=_READ_NBYTES)
    return as_dask_array(array, sizes)
