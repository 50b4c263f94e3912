"""Inner chunks at the edges of an array, where the format of its shards cuts them.

In memory, all inner chunks of a batch have one shape, and those that reach beyond the array are
padded with the fill value. A format such as Neuroglancer's stores only what lies in the array.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CodecError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Box, Shape


def encode_tiles(
    metadata: ArrayMetadata,
    tiles: npt.NDArray[Any],
    rows: npt.NDArray[np.int64] | None,
    region: Box,
) -> Sequence[Buffer]:
    """Encode inner chunks, cut at the edges of the array if the format says so.

    - `tiles`: shape (n, *chunks). Inner chunks of `region`, row-major.
    - `rows`: those to encode, in the order wanted; all by default.
    - Raises CodecError if the codecs cannot encode a chunk. It names the shard and the region of
      this chunk.
    """
    try:
        return _encoded(metadata, tiles, rows, region)
    except CodecError as error:
        raise _located(error, metadata, tiles, rows, region) from error


def _located(
    error: CodecError,
    metadata: ArrayMetadata,
    tiles: npt.NDArray[Any],
    rows: npt.NDArray[np.int64] | None,
    region: Box,
) -> CodecError:
    """The error of the first inner chunk that fails by itself; else the one that is given."""
    grid = metadata.grid
    for row in range(len(tiles)) if rows is None else rows.tolist():
        try:
            _encoded(metadata, tiles, np.array([row]), region)
        except CodecError as found:
            cell = np.unravel_index(row, grid.chunk_counts_in(region))
            start = tuple(
                a + int(i) * c for a, i, c in zip(region.start, cell, grid.chunks, strict=True)
            )
            stop = tuple(
                min(a + c, n) for a, c, n in zip(start, grid.chunks, grid.shape, strict=True)
            )
            shard = tuple(a // s for a, s in zip(start, grid.shards, strict=True))
            return found.located(metadata.shard_key(shard), Box(start, stop).bounds)
    return error


def _encoded(
    metadata: ArrayMetadata,
    tiles: npt.NDArray[Any],
    rows: npt.NDArray[np.int64] | None,
    region: Box,
) -> Sequence[Buffer]:
    """Encode inner chunks. The parameters are those of `encode_tiles`."""
    if not metadata.is_cut or metadata.grid.whole.contains(region):
        return metadata.pipeline.encode(tiles, rows)
    rows = np.arange(len(tiles)) if rows is None else rows
    found: list[Buffer] = [b""] * len(rows)
    for shape, members in _by_shape(metadata, region, rows).items():
        if shape == metadata.grid.chunks:
            encoded = metadata.pipeline.encode(tiles, rows[members])
        else:
            inside = (slice(None), *(slice(0, n) for n in shape))
            cut = np.ascontiguousarray(tiles[rows[members]][inside])
            encoded = metadata.pipeline_of(shape).encode(cut)
        for member, buffer in zip(members.tolist(), encoded, strict=True):
            found[member] = buffer
    return found


def _by_shape(
    metadata: ArrayMetadata, region: Box, rows: npt.NDArray[np.int64]
) -> dict[Shape, npt.NDArray[np.int64]]:
    """Positions in `rows` of the inner chunks of each shape; at most two to the number of axes."""
    grid = metadata.grid
    cells = np.unravel_index(rows, grid.chunk_counts_in(region))
    sizes = []
    for at, start, n, c in zip(cells, region.start, grid.shape, grid.chunks, strict=True):
        sizes.append(np.minimum(c, n - (start + at * c)))
    table = np.stack(sizes, axis=1)
    shapes, which = np.unique(table, axis=0, return_inverse=True)
    return {
        tuple(shape): np.flatnonzero(which.reshape(-1) == number)
        for shape, number in zip(shapes.tolist(), itertools.count())
    }


def decode_tile(metadata: ArrayMetadata, key: str, rank: int, data: Buffer) -> npt.NDArray[Any]:
    """Decode an inner chunk, and pad it with the fill value if it was cut.

    - Raises CorruptShardError if the bytes are not those of the chunk.
    """
    if not metadata.is_cut:
        return metadata.pipeline.decode(data)
    shape = metadata.chunk_box(key, rank).shape
    if shape == metadata.grid.chunks:
        return metadata.pipeline.decode(data)
    chunk = np.full(metadata.grid.chunks, metadata.fill_value, metadata.dtype)
    chunk[tuple(slice(0, n) for n in shape)] = metadata.pipeline_of(shape).decode(data)
    return chunk
