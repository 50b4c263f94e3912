"""Files of HDF5 that are written as shards: their datasets, and the sequence of their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

import numpy as np

from shardwrite.codecs.stages import Buffer
from shardwrite.format.hdf5_pattern import FileLayout
from shardwrite.format.index import Seal
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.placement import Ranks
from shardwrite.grid import Shape
from shardwrite.stores import ObjectWriter, Protectable


def extent_of(metadata: ArrayMetadata, index: Shape) -> Shape:
    """Shape of the dataset in a shard: that of the shard, clipped at the end of the array."""
    return extents_of(metadata, [index])[0]


def extents_of(metadata: ArrayMetadata, places: Sequence[Shape]) -> list[Shape]:
    """Shapes of the datasets in some shards."""
    grid = metadata.grid
    shards = np.array(grid.shards, np.int64)
    starts = np.array(places, np.int64).reshape(-1, len(shards)) * shards
    left = np.array(grid.shape, np.int64) - starts
    return list(map(tuple, np.minimum(shards, left).tolist()))


def pieces_of(layout: FileLayout, seal: Seal) -> Sequence[Buffer]:
    """The bytes around the inner chunks. They begin with the index if it comes first."""
    if not seal.prefix:
        return layout.around
    head = bytearray(layout.around[0])
    head[: len(seal.prefix)] = seal.prefix
    return [head, *layout.around[1:]]


def write_parts(
    writer: ObjectWriter,
    layout: FileLayout,
    seal: Seal,
    write: Callable[[ObjectWriter, Ranks], None],
    origin: Ranks | None = None,
) -> None:
    """Write a file from its start to its end, and protect it.

    - `writer`: the file, which is not finished.
    - `origin`: int64, shape (n,), optional. Rank of the inner chunk whose bytes each inner chunk
      gets; by default its own.
    """
    sequence = layout.sequence if origin is None else origin[layout.sequence]
    ends = [*layout.breaks[1:], len(sequence)]
    for piece, first, last in zip(pieces_of(layout, seal), layout.breaks, ends, strict=True):
        writer.write([piece])
        if first < last:
            write(writer, sequence[first:last])
    if seal.suffix:
        writer.write([seal.suffix])
    protect(writer)


def protect(writer: ObjectWriter) -> None:
    """Have a file published without the permission to write, if the store has such."""
    if can_protect(type(writer)):
        cast("Protectable", writer).protect(True)


@cache
def can_protect(kind: type) -> bool:
    """Whether writers of a class can protect objects; to look takes long for small shards."""
    return issubclass(kind, Protectable)
