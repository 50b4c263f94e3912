"""Comparison of an array with a source, bit by bit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.highlevelgraph import HighLevelGraph

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.encode.unit import check_block
from shardwrite.engines.local import Engine
from shardwrite.errors import ShardwriteError, StoreError
from shardwrite.format.sharding import ScatteredChunks
from shardwrite.grid import Box, boundaries, ravel, unravel
from shardwrite.read.array import ShardedArray


@dataclass(frozen=True, slots=True)
class _Difference:
    """Differences between a block of the source and one shard of the array."""

    rank: int
    n_elements: int
    first: tuple[int, ...]
    message: str = ""


def compare(
    engine: Engine, array: ShardedArray, source: dask.array.Array, skip: set[int]
) -> dict[int, str]:
    """Compare an array with a source, in one task for each chunk of the source.

    - `source`: the source, of the array's dtype. It has the array's shape, or that of the array
      which the inner chunks come from; see `ScatteredChunks`.
    - `skip`: ranks of the shards that are not compared.
    """
    edges = [boundaries(sizes) for sizes in source.chunks]
    name = f"shardwrite-compare-{id(skip)}"
    layer: dict[Any, Any] = {}
    for index in itertools.product(*(range(n) for n in source.numblocks)):
        box = Box(
            tuple(e[i] for e, i in zip(edges, index, strict=True)),
            tuple(e[i + 1] for e, i in zip(edges, index, strict=True)),
        )
        if box.size:
            layer[(name, *index)] = (
                _differences,
                array,
                _Skip(frozenset(skip)),
                (source.name, *index),
                box,
                source.dtype,
            )
    differences: list[_Difference] = []
    if layer:
        tasks: Any = layer
        sources: Any = [source]
        engine.run(
            HighLevelGraph.from_collections(name, tasks, sources),
            list(layer),
            lambda _, value: differences.extend(value),
        )
    return _messages(array, differences)


@dataclass(frozen=True, slots=True)
class _Skip:
    """Ranks of shards, wrapped so that dask does not search them for task keys."""

    ranks: frozenset[int]


def _differences(
    array: ShardedArray, skip: _Skip, block: Any, box: Box, dtype: np.dtype[Any]
) -> list[_Difference]:
    grid = array.metadata.grid
    wanted = check_block(block, box, dtype)
    differences = []
    if isinstance(array.metadata.placed, ScatteredChunks):
        return list(_scattered_differences(array, array.metadata.placed, skip, wanted, box))
    for index in grid.shards_in(box):
        rank = ravel(index, grid.counts)
        if rank in skip.ranks:
            continue
        part = grid.shard_box(index).intersect(box)
        expected = wanted[part.shift(box.start).slices]
        try:
            got = array.read_box(part)
        except StoreError:
            raise  # a storage that refuses says nothing about the values
        except ShardwriteError as error:
            differences.append(_Difference(rank, part.size, part.start, str(error)))
            continue
        differences += _difference(rank, part, got, expected)
    return differences


def _difference(
    rank: int, part: Box, got: npt.NDArray[Any], expected: npt.NDArray[Any]
) -> list[_Difference]:
    """What differs in a part of a shard; nothing if all is the same."""
    differs = _differs(got, expected)
    if not differs.any():
        return []
    position = np.unravel_index(int(np.argmax(differs)), differs.shape) if differs.ndim else ()
    first = tuple(int(a + i) for a, i in zip(part.start, position, strict=True))
    return [_Difference(rank, int(differs.sum()), first)]


def _scattered_differences(
    array: ShardedArray,
    placed: ScatteredChunks,
    skip: _Skip,
    wanted: npt.NDArray[Any],
    box: Box,
) -> Iterator[_Difference]:
    """Differences of a block, some of whose inner chunks lie in each of many shards."""
    metadata = array.metadata
    for rank, chunks in placed.chunks_in(box):
        if rank in skip.ranks:
            continue
        wholes = dict(chunks)
        try:
            for number, chunk in array.chunks(unravel(rank, metadata.grid.counts), list(wholes)):
                whole = wholes[number]
                part = whole.intersect(box)
                expected = wanted[part.shift(box.start).slices]
                if chunk is None:
                    got = np.full(part.shape, metadata.fill_value, metadata.dtype)
                else:
                    shape = chunk.shape[chunk.ndim - wanted.ndim :]
                    got = chunk.reshape(shape)[part.shift(whole.start).slices]
                yield from _difference(rank, part, got, expected)
        except StoreError:
            raise  # as above
        except ShardwriteError as error:
            yield _Difference(rank, math.prod(metadata.grid.chunks), box.start, str(error))


def _differs(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Mask of the elements that differ.

    Elements are compared by their bits, so that -0.0 differs from 0.0 and a NaN equals itself.
    """
    if got.dtype.kind in "OT" or got.dtype.itemsize == 0:
        return np.asarray(got.astype(object) != expected.astype(object), dtype=bool)
    nbytes = next(n for n in (8, 4, 2, 1) if got.dtype.itemsize % n == 0)
    shape = (*got.shape, got.dtype.itemsize // nbytes)
    words = [
        np.ascontiguousarray(array, dtype=got.dtype).reshape(-1).view(f"u{nbytes}")
        for array in (got, expected)
    ]
    differs: npt.NDArray[np.bool_] = (words[0] != words[1]).reshape(shape)
    result: npt.NDArray[np.bool_] = (
        np.logical_or.reduce(differs, axis=-1) if shape[-1] > 1 else differs[..., 0]
    )
    return result


def _messages(array: ShardedArray, differences: Sequence[_Difference]) -> dict[int, str]:
    """One message for each shard, with the first element that differs and its inner chunk."""
    grid = array.metadata.grid
    by_rank: dict[int, list[_Difference]] = {}
    for difference in differences:
        by_rank.setdefault(difference.rank, []).append(difference)
    messages = {}
    for rank, all_of_it in by_rank.items():
        first = min(all_of_it, key=lambda d: d.first)
        unreadable = next((d.message for d in all_of_it if d.message), "")
        n = sum(d.n_elements for d in all_of_it)
        where = f"first at {first.first}"
        if not isinstance(array.metadata.placed, ScatteredChunks):
            chunk = tuple(
                i % s // c for i, s, c in zip(first.first, grid.shards, grid.chunks, strict=True)
            )
            where += f", in inner chunk {chunk}"
        messages[rank] = unreadable or f"{n:,} elements differ from the source, {where}"
    return messages
