"""Description of shards that are files of HDF5, and how such a file is known.

A description is computed from the metadata of the array. It says which dataset the file holds, with
which filters, and how large the block before it is. The library of HDF5 makes files from it, in
`hdf5.layout`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions
from shardwrite.format.hdf5 import Filter, filters_of
from shardwrite.format.hdf5_strategy import Hdf5
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.placement import Ranks
from shardwrite.format.strategy import Strategy
from shardwrite.grid import Shape

SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""First bytes of a file of HDF5, after its user block."""

LOOKED_AT = 8192
"""Offset up to which the signature is looked for in files of other programs, in one read."""

_COMPRESSORS = ({"name": "zstd", "configuration": {"level": 0, "checksum": False}},)
_LEAST_BLOCK = 512
_NUMBERS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
_DTYPES = tuple(np.dtype(name) for name in ("?", *_NUMBERS))
_MAX_DIMENSIONS = 32
_MAX_CHUNK_NBYTES = 2**32 - 1
# Bytes around the inner chunks, at most: the rest, and for each inner chunk its key in a tree whose
# nodes are at least half full. A key has 8 bytes for each axis.
_REST_NBYTES = 8192
_KEY_NBYTES = 24


@dataclass(frozen=True)
class Hdf5File:
    """What each shard of an array holds as a file of HDF5."""

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
    def key(self) -> tuple[Any, ...]:
        """Key of dictionaries, which is equal for files that hold the same."""
        fill_value = self.fill_value.tobytes()
        shapes = (self.shards, self.chunks, self.block_nbytes, self.index_nbytes)
        return (self.dataset, *shapes, self.dtype.str, fill_value, self.filters)

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

    def around_nbytes(self, batch_nbytes: int) -> int:
        """Memory of a task for what is not inner chunks, in bytes.

        - `batch_nbytes`: size of the shards that are encoded together, if several fit. What is
          around their inner chunks takes no more.
        """
        each = self.most_overhead_nbytes
        n_together = batch_nbytes // max(1, math.prod(self.shards) * self.dtype.itemsize)
        return max(4 * each, min(n_together * each, batch_nbytes))

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
    block_nbytes = block_for(index_nbytes) if location == "start" else 0
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


def for_new_array(array: ArrayOptions, strategy: Strategy) -> ArrayOptions:
    """Keywords of a new array whose shards may be files of HDF5.

    The default compression is then zstd without the checksum crc32c, which HDF5 does not know. Nor
    does a compressor that is given by its name bring that checksum. An
    array of 2022 keeps its own default, which HDF5 knows, too. The index lies where the strategy
    says.
    """
    if not isinstance(strategy, Hdf5):
        return array
    if array.format is None:
        array = replace(array, compressors=_without_checksum(array.compressors))
    if strategy.index is not None and array.index_location == "end":
        array = replace(array, index_location=strategy.index)
    return array


def _without_checksum(compressors: Any) -> Any:
    """Compressors as a user gives them, of which a name alone brings no crc32c."""
    if not isinstance(compressors, str) or compressors == "keep":
        return compressors
    return _COMPRESSORS if compressors == "auto" else [compressors]


def for_conversion(
    compressors: Any, index_location: str | None, strategy: Strategy
) -> tuple[Any, str | None]:
    """Keywords of a conversion to an array whose shards may be files of HDF5.

    - `compressors`: the compressors; ``"auto"`` is then zstd without the checksum crc32c.
    - `index_location`: where the index lies. If it is not given, it lies where the strategy says.
    """
    if not isinstance(strategy, Hdf5):
        return compressors, index_location
    compressors = _without_checksum(compressors)
    return compressors, strategy.index if index_location is None else index_location


def check_fits_hdf5(metadata: ArrayMetadata, strategy: Strategy) -> Hdf5File | None:
    """Refuse an array whose shards cannot be files of HDF5, if the strategy is to make them.

    - Returns: what `describe` returns; None for another strategy.
    """
    return describe(metadata, strategy) if isinstance(strategy, Hdf5) else None


def block_for(index_nbytes: int) -> int:
    """Size of the smallest user block that can hold an index.

    Examples
    --------
    >>> block_for(20), block_for(513)
    (512, 1024)
    """
    return max(_LEAST_BLOCK, 1 << (index_nbytes - 1).bit_length())


def signature_places(metadata: ArrayMetadata) -> list[int]:
    """Offsets in a shard at which the signature of HDF5 is looked for, ascending.

    User blocks that are more than twice as large as the index needs are looked for up to 8 KiB.
    """
    index = metadata.index_codec
    limit = LOOKED_AT
    if metadata.is_sharded and index.location == "start":
        limit = max(limit, 2 * block_for(index.encoded_nbytes))
    places = [0]
    while (at := max(_LEAST_BLOCK, 2 * places[-1])) <= limit:
        places.append(at)
    return places


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
