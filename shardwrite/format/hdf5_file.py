"""Description of shards that are files of HDF5, and how such a file is known.

A description is computed from the metadata of the array. It says which dataset the file holds, with
which filters, and how large the block before it is. The library of HDF5 makes files from it, in
`hdf5.layout`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError
from shardwrite.format.hdf5 import Filter, filters_of
from shardwrite.format.hdf5_strategy import Hdf5
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.placement import Ranks
from shardwrite.format.signatures import HDF5, block_for
from shardwrite.grid import Shape

END_OF_FILE = {0: 40, 1: 44, 2: 28, 3: 28}
"""By version of the superblock, the place in it of the end-of-file address, of 8 bytes.

A program that opens the file for writing cuts it off at that address. Versions from 2 on have a
checksum behind it.
"""

_NUMBERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
_DTYPES = tuple(np.dtype(name) for name in ("?", *_NUMBERS))
_MAX_DIMENSIONS = 32
_MAX_CHUNK_NBYTES = 2**32 - 1
# Bytes around the inner chunks, at most: the rest, and for each inner chunk its key in a tree whose
# nodes are at least half full. A key has 8 bytes for each axis.
_REST_NBYTES = 8192
_KEY_NBYTES = 24


@dataclass(frozen=True, eq=False)
class Hdf5File:
    """What each shard of an array holds as a file of HDF5; as a key, each is its own."""

    dataset: str  # name of the dataset
    shards: Shape  # shape of a shard and of an inner chunk
    chunks: Shape
    dtype: np.dtype[Any]  # dtype of the elements as they are stored
    fill_value: npt.NDArray[Any]  # fill value, an array without axes
    filters: tuple[Filter, ...]  # filters of the chunks, in order of encoding
    # Size of the user block at the start of the file, which then holds the index; else 0
    block_nbytes: int
    index_nbytes: int  # size of the encoded index, in bytes

    @cached_property
    def chunks_per_shard(self) -> Shape:
        """Shape of the grid of inner chunks in a shard."""
        return tuple(s // c for s, c in zip(self.shards, self.chunks, strict=True))

    @property
    def most_overhead_nbytes(self) -> int:
        """Upper bound of the bytes of a file that are not inner chunks."""
        n_chunks = math.prod(self.chunks_per_shard)
        keys = 2 * n_chunks * (_KEY_NBYTES + 8 * (len(self.chunks) + 1))
        return self.block_nbytes + self.index_nbytes + _REST_NBYTES + len(self.dataset) + keys

    def positions(self, ranks: Ranks) -> list[Shape]:
        """Positions in the dataset, in elements, of inner chunks with the given ranks."""
        places = np.stack(np.unravel_index(ranks, self.chunks_per_shard), axis=1)
        return [tuple(at) for at in (places * np.array(self.chunks, np.int64)).tolist()]

    def is_inside(self, extent: Shape) -> npt.NDArray[np.bool_]:
        """Whether each inner chunk, by rank, has elements in a dataset of the given shape."""
        return _is_inside(self.chunks_per_shard, self.chunks, extent)


@lru_cache(maxsize=16)
def _is_inside(counts: Shape, chunks: Shape, extent: Shape) -> npt.NDArray[np.bool_]:
    """See :meth:`Hdf5File.is_inside`; most shards of an array have the same extent."""
    found = np.ones(counts, dtype=bool)
    for axis, (count, n, c) in enumerate(zip(counts, extent, chunks, strict=True)):
        here = np.arange(count) * c < n
        found &= here.reshape([-1 if i == axis else 1 for i in range(len(extent))])
    flat = found.ravel()
    flat.flags.writeable = False
    return flat


@lru_cache(maxsize=32)
def describe(metadata: ArrayMetadata, strategy: Hdf5) -> Hdf5File:
    """Describe the files of HDF5 that the shards of an array are."""
    if not metadata.is_sharded or metadata.document["codecs"][0]["name"] != "sharding_indexed":
        raise SpecError(
            "makes files of HDF5 from shards, and the array has none of the format "
            '"sharding_indexed"',
            field="strategy",
            value=strategy.label,
            remedy='give shards, or "fixed-order"',
        )
    location = metadata.index_codec.location
    if strategy.index not in (None, location):
        raise SpecError(
            f"the shards of the array have their index at the {location}",
            field="strategy.index",
            value=strategy.index,
            remedy=f'give Hdf5(index="{location}"), or leave index out',
        )
    grid, dtype = metadata.grid, metadata.dtype
    chunk_nbytes = math.prod(grid.chunks) * metadata.itemsize
    _check_shapes(grid.chunks, chunk_nbytes)
    # Only numbers have an order of bytes; text of variable length has none.
    if dtype.kind not in "biufc" or dtype.newbyteorder("=") not in _DTYPES:
        raise SpecError(
            "HDF5 has no counterpart of this type",
            field="dtype",
            value=str(metadata.document["data_type"]),
            remedy="use bool, or a usual type of integers, floating-point or complex numbers",
        )
    filters = filters_of(metadata.inner_codecs, dtype.itemsize, chunk_nbytes)
    stored = metadata.pipeline.stored_dtype
    index_nbytes = metadata.index_codec.encoded_nbytes
    block_nbytes = block_for(HDF5, index_nbytes) if location == "start" else 0
    return Hdf5File(
        strategy.name_in_file,
        grid.shards,
        grid.chunks,
        stored,
        np.asarray(metadata.fill_value, dtype=stored),
        filters,
        block_nbytes,
        index_nbytes,
    )


def _check_shapes(chunks: Sequence[int], chunk_nbytes: int) -> None:
    if not 1 <= len(chunks) <= _MAX_DIMENSIONS:
        raise SpecError(
            "HDF5 stores chunks of datasets with 1 to 32 axes",
            field="shape",
            value=f"{len(chunks)} axes",
            remedy='give "fixed-order" as strategy',
        )
    if chunk_nbytes > _MAX_CHUNK_NBYTES:
        raise SpecError(
            f"takes {chunk_nbytes:,} bytes, and HDF5 stores chunks of less than 4 GiB",
            field="chunks",
            value=tuple(chunks),
            remedy="give smaller inner chunks",
        )
