"""Formats of shards, and the codecs by which the document of an array names them.

A shard format is a codec that turns the inner chunks of a shard into one object. Its configuration
holds ``chunk_shape``, the shape of an inner chunk, and ``codecs``, those of the inner chunks. All
other fields are its own. `ShardingIndexed` is the format of the sharding specification.

A wing brings a format under the kind ``shard format``, and the name of its codec. The core knows
that name, and so it refuses what has this format where the wing is missing.

`IndexCodec` is the format of the sharding specification, and `NoIndex` is that of arrays without
shards.

By further members a format, most often one of a wing, differs from that of the specification. The
core asks for them by name, and knows none of these formats:

- ``within`` gives `PlacedShards` for a grid, if the keys of shards, or what stands around their
  inner chunks, depend on the places of the shards.
- ``cuts_edges`` is True if inner chunks at the edges of the array are cut there, and not padded.
- ``own_strategy`` is the strategy by which all its shards are written, whatever a call asks for.
- ``load`` of its objects reads an index that lies in several places, and checks it. Its arguments
  are a function that reads a range, and the size of the shard. It returns the index, and the size
  of its parts together.
- ``sealing_nbytes`` of its objects is the memory that making their index takes, if that grows with
  the inner chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Codec, Document
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import SpecError
from shardwrite.format.index import IndexCodec, Seal, ShardIndex
from shardwrite.grid import Box, Shape, ShardGrid
from shardwrite.seams import installed, is_same_class, needed, registered

__all__ = [
    "ShardFormat",
    "ShardingIndexed",
    "register_shard_format",
    "shard_format_named",
    "why_kept",
]


# ---- The format of an object


class ObjectFormat(Protocol):
    """Where the index of an object lies, and how it is encoded and decoded."""

    @property
    def location(self) -> str:
        """``"start"``, ``"end"``, or ``"none"`` where there is no index."""

    @property
    def encoded_nbytes(self) -> int:
        """Size of an encoded index."""

    @property
    def base_nbytes(self) -> int:
        """Offset of the first inner chunk: the size of the index where that comes first, else 0."""

    @property
    def has_checksum(self) -> bool:
        """Whether an index that is torn can be told."""

    def seal(self, index: ShardIndex) -> Seal:
        """Encode the index of an object."""

    def seals(self, tables: npt.NDArray[np.uint64]) -> list[Seal]:
        """Encode the indexes of several objects.

        Parameters
        ----------
        tables : numpy.ndarray of uint64, shape (n, chunks per shard, 2)
            Offset and size of each inner chunk, in bytes.
        """

    def span(self, shard_nbytes: int) -> tuple[int, int]:
        """Start and stop of the encoded index in an object of `shard_nbytes`.

        Raises
        ------
        CorruptShardError
            If the object is too short to have one.
        """

    def decode(self, data: Buffer, shard_nbytes: int) -> ShardIndex:
        """The index of an object of `shard_nbytes`, from its encoded bytes, and checked.

        Raises
        ------
        CorruptShardError
            If the checksum differs, or an entry cannot be right.
        """


# ---- Shards by their positions


class PlacedShards(Protocol):
    """Shards of an array by their positions, as ``within`` of a format gives them for a grid."""

    def key_of(self, index: Sequence[int]) -> str:
        """Key of the shard at a position."""

    def index_of(self, key: str) -> Shape | None:
        """Position of the shard with a key; None if the key is that of no shard."""

    def at(self, index: Sequence[int]) -> ObjectFormat:
        """What stands around the inner chunks of the shard at a position."""


@runtime_checkable
class ScatteredChunks(PlacedShards, Protocol):
    """Shards whose inner chunks come from everywhere in another array."""

    @property
    def is_cut(self) -> bool:
        """Whether some inner chunks are stored smaller than the others. Memory has them padded."""

    @property
    def why(self) -> str:
        """What scatters the inner chunks, for messages."""

    how_to_read: ClassVar[str]  # remedy where the values are wanted

    @property
    def origin_shape(self) -> Shape:
        """Shape of the array that the inner chunks come from: what users know as the values."""

    def chunks_in(self, region: Box) -> Iterator[tuple[int, list[tuple[int, Box]]]]:
        """Inner chunks that hold elements of a box of that array, shard by shard."""

    def chunk_shape(self, index: Sequence[int], rank: int) -> Shape:
        """Shape in which the inner chunk of a rank is stored."""

    def origins(
        self, index: Sequence[int], other: ShardGrid
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the other array has the inner chunks of a shard.

        - Returns: for each inner chunk, the row-major rank of the other array's shard and the
          chunk's rank in it. The first is -1 where there is no chunk.
        """


# ---- Codecs that name a format


class ShardFormat(Protocol):
    """A format of shards, with its parameters."""

    name: str

    def to_dict(self) -> Document:
        """Fields of the codec's configuration, except ``chunk_shape`` and ``codecs``."""

    @classmethod
    def from_dict(cls, configuration: Document) -> Self:
        """Make the format from the configuration of its codec."""

    def build(self, chunks_per_shard: Shape) -> ObjectFormat:
        """What stands around the inner chunks of a shard."""


_CODECS = frozenset({"bytes", "endian", "transpose", "vlen-utf8", "vlen-bytes", "crc32c"})

_CODECS |= {"blosc", "gzip", "zstd"}  # what the specification and its extensions name

_FORMATS: dict[str, type[ShardFormat]] = {}

_KIND = "shard-format"

_Class = TypeVar("_Class", bound=type[Any])


def register_shard_format(cls: _Class) -> _Class:
    """Make a shard format known by the name of its codec.

    Arrays of this format can then be read and written in this process, and in worker processes
    that can import the class.

    Parameters
    ----------
    cls : type
        A class with the members of `ShardFormat`.

    Returns
    -------
    type
        The same class, so that this function can be used as a decorator.

    Raises
    ------
    SpecError
        If a member is missing, or the name is not a text or belongs to another class.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> from shardwrite.format.sharding import ShardingIndexed
    >>> @shardwrite.register_shard_format
    ... class OfMyOwn(ShardingIndexed):
    ...     name = "of_my_own"
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> own = OfMyOwn([{"name": "bytes", "configuration": {"endian": "big"}}])
    >>> _ = da.arange(100).to_sharded_zarr(path, shards=50, chunks=10, shard_format=own)
    >>> int(shardwrite.from_sharded_zarr(path)[7].compute())
    7
    """
    missing = [name for name in ("name", "to_dict", "from_dict", "build") if not hasattr(cls, name)]
    if missing:
        raise SpecError(
            f"no shard format: it lacks {missing}",
            field="shard_format",
            value=cls,
            remedy="give a class with the members of shardwrite.format.sharding.ShardFormat",
        )
    if not isinstance(cls.name, str) or not cls.name:
        raise SpecError("not a name", field="name", value=cls.name, remedy="give it a text")
    is_of_wing = cls.name in registered(_KIND)  # whose class is imported to compare
    known = shard_format_named(cls.name) if is_of_wing else _FORMATS.get(cls.name)
    if not is_same_class(known, cls) or cls.name in _CODECS:
        remedy = "give the shard format another name"
        raise SpecError("not a free name", field="name", value=cls.name, remedy=remedy)
    _FORMATS[cls.name] = cls
    return cls


def shard_format_named(name: str) -> type[ShardFormat] | None:
    """Class of the shard format of a codec; None if the codec is none.

    If the name is none that was registered here, wings and installed packages are asked for it.
    """
    if name not in _FORMATS and name in registered(_KIND):
        _FORMATS[name] = needed(_KIND, name, f"a shard of {name}", field="codecs", value=name)
    if name not in _FORMATS and name not in _CODECS and name in installed(_KIND):
        what = f"an array of the shard format {name!r}"
        register_shard_format(needed(_KIND, name, what, field="codecs", value=name))
    return _FORMATS.get(name)


def shard_format_opener(name: str) -> Callable[[Document], ShardFormat]:
    """What makes a shard format that a record names; see `shardwrite.seams.open_ref`."""
    try:
        found = shard_format_named(name)
    except SpecError as error:
        raise LookupError(f"cannot be loaded ({error})") from error
    if found is None:
        raise LookupError("is not registered in this process; import the module that registers it")
    return found.from_dict


def why_kept(document: Document) -> str:
    """Why an array must not be replaced by something else; empty if its shard format allows it.

    A shard format forbids it by ``why_kept``, a text. One whose wing is missing is not asked.
    """
    codecs: object = document.get("codecs")
    for codec in codecs if isinstance(codecs, list) else []:
        name: object = codec.get("name") if isinstance(codec, dict) else None
        try:
            shard_format = shard_format_named(name) if isinstance(name, str) else None
        except SpecError as error:
            return error.message
        reason: str = getattr(shard_format, "why_kept", "")
        if reason:
            return reason
    return ""


@register_shard_format
@dataclass(frozen=True)
class ShardingIndexed:
    """The format of the sharding specification: an index at the start or the end of each shard."""

    index_codecs: list[Codec]  # codecs of the index, as in the document
    location: str = "end"  # where the index lies

    name = "sharding_indexed"

    def to_dict(self) -> Document:
        """See :meth:`ShardFormat.to_dict`."""
        return {"index_codecs": self.index_codecs, "index_location": self.location}

    @classmethod
    def from_dict(cls, configuration: Mapping[str, Any]) -> Self:
        """See :meth:`ShardFormat.from_dict`."""
        return cls(configuration["index_codecs"], configuration.get("index_location", "end"))

    def build(self, chunks_per_shard: Shape) -> IndexCodec:
        """See :meth:`ShardFormat.build`."""
        return IndexCodec(self.index_codecs, chunks_per_shard, self.location)
