"""Shards that are files of HDF5: their description, and the filters that stand for codecs.

Filters of HDF5 and codecs of Zarr v3 can give the same bytes. Filters are looked up by their
registered numbers, before anything is made of them. The way from codecs to filters is the reverse,
and refuses every codec whose bytes no filter can decode.

A description is computed from the metadata of the array. It says which dataset the file holds, with
which filters, and how large the block before it is. The library of HDF5 makes files from it, in
`hdf5.layout`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Codec
from shardwrite.errors import SpecError
from shardwrite.format.frame import HDF5, block_for
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.order import Ranks
from shardwrite.grid import Shape
from shardwrite.hdf5.strategy import Hdf5

_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3

_BZIP2, _BLOSC, _ZSTD = 307, 32001, 32015

_NAMES = {
    4: "szip",
    5: "nbit",
    6: "scale-offset",
    32000: "lzf",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    32026: "blosc2",
}

_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")

_BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")

CHECKSUM_NBYTES = 4
"""Size of a fletcher32 checksum."""

# version of the filter blosc, and of the format of blosc, which that filter writes into a dataset
_BLOSC_VERSIONS = (2, 2)

_WHY_NOT = {
    "crc32c": "HDF5 does not know this checksum",
    "gzip": "HDF5 compresses with the same method, and stores it without the header of gzip",
    "numcodecs.gzip": "HDF5 stores the same without the header of gzip",
    "sharding_indexed": "HDF5 has one level of chunks only",
    "transpose": "HDF5 stores all chunks in row-major order",
    "vlen-utf8": "HDF5 does not store elements of variable length in chunks",
    "vlen-bytes": "HDF5 does not store elements of variable length in chunks",
    "numcodecs.lz4": "the filter lz4 of HDF5 frames its blocks in another way",
}

_REMEDY = (
    'give compressors="zstd", or another of "numcodecs.zlib", "blosc", "numcodecs.bz2", '
    '"numcodecs.shuffle" and "numcodecs.fletcher32", alone or in a list; and no crc32c'
)

_NO_FILTERS = (
    "leave out filters=; an array that has them must be written again from its values, with "
    "shardwrite write or to_sharded_zarr"
)

_REMEDIES = {
    "sharding_indexed": "leave out serializer=, so that there are no shards within shards; for an "
    'array that has them, give compressors="zstd" to shardwrite.reshard',
}


# ---- Filters and codecs


@dataclass(frozen=True, slots=True)
class Filter:
    """One filter of a dataset."""

    number: int  # its registered number
    values: tuple[int, ...] = ()  # its parameters, as the file has them


@dataclass(frozen=True, slots=True)
class Mapped:
    """Codecs that give the same bytes as the filters of a dataset."""

    codecs: tuple[Codec, ...] = ()  # bytes-to-bytes codecs of Zarr v3, in order of encoding
    # Whether a fletcher32 checksum follows the encoded bytes of each chunk in the file
    is_checked: bool = False
    why_not: str = ""  # why there are no such codecs; empty if there are

    @property
    def with_checksum(self) -> Mapped:
        """The same with a codec for the checksum that follows the encoded bytes."""
        if not self.is_checked:
            return self
        return Mapped((*self.codecs, _codec_of("numcodecs.fletcher32")), why_not=self.why_not)

    @property
    def foreign(self) -> list[str]:
        """Names of the codecs that not every reader of Zarr v3 knows."""
        names = [str(codec["name"]) for codec in self.codecs]
        return [name for name in names if name.startswith("numcodecs.")]


def mapped(filters: Sequence[Filter], itemsize: int) -> Mapped:
    """Find the codecs for the filters of a dataset.

    - `filters`: the filters, in order of encoding.
    """
    rest = list(filters)
    is_checked = bool(rest) and rest[-1].number == _FLETCHER32
    if is_checked:
        rest.pop()
    codecs: list[Codec] = []
    for number, filter_ in enumerate(rest):
        is_after_checksum = any(before.number == _FLETCHER32 for before in rest[:number])
        equal = _codec(filter_, itemsize, is_after_checksum=is_after_checksum)
        if isinstance(equal, str):
            return Mapped(why_not=equal)
        codecs += equal
    return Mapped(tuple(codecs), is_checked)


def _codec(filter_: Filter, itemsize: int, *, is_after_checksum: bool) -> list[Codec] | str:
    """Codecs for one filter, or why there are none."""
    values, number = filter_.values, filter_.number
    if number == _DEFLATE:
        return [_codec_of("numcodecs.zlib", level=min(_at(values, 0, 6), 9))]
    if number == _SHUFFLE:
        # numcodecs shuffles whole elements only, and a checksum before it adds four bytes.
        if is_after_checksum and CHECKSUM_NBYTES % itemsize:
            return "the filter shuffle after fletcher32"
        size = _at(values, 0, itemsize)
        return [_codec_of("numcodecs.shuffle", elementsize=size)] if size > 1 else []
    if number == _FLETCHER32:
        return [_codec_of("numcodecs.fletcher32")]
    if number == _BZIP2:
        return [_codec_of("numcodecs.bz2", level=min(max(_at(values, 0, 9), 1), 9))]
    if number == _ZSTD:
        return [_codec_of("zstd", level=min(_at(values, 0, 3), 22), checksum=False)]
    if number == _BLOSC:
        return _blosc(values, itemsize)
    return f"the filter {_NAMES.get(number, number)}, which no codec of Zarr v3 equals"


def _blosc(values: Sequence[int], itemsize: int) -> list[Codec] | str:
    """The codec for the filter blosc, of which the last four parameters may be missing."""
    level, shuffle, compressor = _at(values, 4, 5), _at(values, 5, 1), _at(values, 6, 0)
    if shuffle >= len(_BLOSC_SHUFFLES) or compressor >= len(_BLOSC_COMPRESSORS):
        return "a parameter of the filter blosc that is not known"
    if _BLOSC_COMPRESSORS[compressor] == "snappy":
        return "the compressor snappy of the filter blosc, which few readers have"
    size = _at(values, 2, itemsize)
    return [
        _codec_of(
            "blosc",
            typesize=size if 0 < size < 256 else 1,
            cname=_BLOSC_COMPRESSORS[compressor],
            clevel=min(level, 9),
            shuffle=_BLOSC_SHUFFLES[shuffle],
            blocksize=0,
        )
    ]


def _at(values: Sequence[int], place: int, default: int) -> int:
    """A parameter of a filter, or its default where the file leaves it out."""
    return int(values[place]) if place < len(values) else default


def _codec_of(name: str, **configuration: int | str | bool) -> Codec:
    return {"name": name, "configuration": configuration}


def filters_of(codecs: Sequence[Codec], itemsize: int, chunk_nbytes: int) -> tuple[Filter, ...]:
    """Find the filters by which HDF5 decodes what the codecs of inner chunks encode.

    - `codecs`: all codecs of the inner chunks, in order of encoding.

    Examples
    --------
    >>> filters_of([{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 3}}], 4, 4096)
    (Filter(number=32015, values=(3,)),)
    """
    names = [str(codec["name"]) for codec in codecs]
    if names[:1] != ["bytes"]:
        first = names[0] if names else "none"
        raise _unknown(first, remedy=_NO_FILTERS if "bytes" in names else "")
    filters: list[Filter] = []
    for place, codec in enumerate(codecs[1:]):
        # A checksum before it adds four bytes, and numcodecs shuffles whole elements only.
        is_whole = place == 0 or not CHECKSUM_NBYTES % itemsize
        may_shuffle = is_whole and set(names[1 : place + 1]) <= {"numcodecs.fletcher32"}
        filters.append(_filter(codec, itemsize, chunk_nbytes, may_shuffle=may_shuffle))
    return tuple(filters)


def _filter(codec: Codec, itemsize: int, chunk_nbytes: int, *, may_shuffle: bool) -> Filter:
    """The filter that decodes the bytes of one codec."""
    name, settings = str(codec["name"]), codec.get("configuration", {})
    if name == "numcodecs.zlib":
        level = int(settings.get("level", 1))
        return Filter(_DEFLATE, (level if 0 <= level <= 9 else 6,))
    if name == "zstd":
        return Filter(_ZSTD, (min(max(int(settings.get("level", 0)), 0), 22),))
    if name == "numcodecs.bz2":
        return Filter(_BZIP2, (int(settings.get("level", 1)),))
    if name == "numcodecs.fletcher32":
        return Filter(_FLETCHER32)
    if name == "numcodecs.shuffle":
        size = int(settings.get("elementsize", 4))
        if size != itemsize:
            why = f"HDF5 shuffles elements of the dataset, {itemsize} bytes each"
            raise _unknown(name, f"elementsize={size}: {why}")
        if not may_shuffle:
            raise _unknown(name, "HDF5 and Zarr shuffle the same bytes only before other codecs")
        return Filter(_SHUFFLE, (size,))
    if name == "blosc" and settings.get("cname") in _BLOSC_COMPRESSORS:
        return Filter(
            _BLOSC,
            (
                *_BLOSC_VERSIONS,
                int(settings.get("typesize", itemsize)),
                chunk_nbytes,
                int(settings.get("clevel", 5)),
                _BLOSC_SHUFFLES.index(str(settings.get("shuffle", "noshuffle"))),
                _BLOSC_COMPRESSORS.index(str(settings["cname"])),
            ),
        )
    raise _unknown(name)


def _unknown(name: str, why: str = "", remedy: str = "") -> SpecError:
    why = why or _WHY_NOT.get(name, "no filter of HDF5 has the same bytes")
    return SpecError(
        f"a codec that a shard which is an HDF5 file cannot have: {why}",
        field="codecs",
        value=name,
        remedy=remedy or _REMEDIES.get(name, _REMEDY),
    )


# ---- Descriptions


END_OF_FILE = {0: 40, 1: 44, 2: 28, 3: 28}
"""By version of the superblock, the place in it of the end-of-file address, of 8 bytes.

A program that opens the file for writing cuts it off at that address. Versions from 2 on have a
checksum behind it.
"""

ADDRESS = struct.Struct("<Q")
"""How an address stands in a file."""

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
    inside = np.ones(counts, dtype=bool)
    for axis, (count, n, c) in enumerate(zip(counts, extent, chunks, strict=True)):
        here = np.arange(count) * c < n
        inside &= here.reshape([-1 if i == axis else 1 for i in range(len(extent))])
    flat = inside.ravel()
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
