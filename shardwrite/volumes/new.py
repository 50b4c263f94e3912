"""New scales of volumes: the keywords of users, parameters of shards that fit, and the ``info``."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.checks import choice, is_number, is_whole
from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.codecs.stages import chunk_limit
from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata, metadata_of_document
from shardwrite.format.node import DOCUMENT
from shardwrite.grid import Shape
from shardwrite.results import counted, human
from shardwrite.stores.directories import RUN_SUFFIX
from shardwrite.stores.removal import TEMPORARY_SUFFIX
from shardwrite.volumes.info import (
    ATTRIBUTE,
    INFO,
    MOST_WHOLE,
    VOLUME_TYPE,
    ChunkEncoding,
    Scale,
    Volume,
    parse_info,
)
from shardwrite.volumes.keywords import ENCODINGS, KINDS, OF_SHARDS, ScaleKeywords
from shardwrite.volumes.scale import PrecomputedShards, ScatteredIds, box_of_chunks, scattered_ids
from shardwrite.volumes.sharding import (
    COLUMN_NBYTES,
    ENTRY_NBYTES,
    TYPE,
    MortonCode,
    ShardingParameters,
    check_volume_index,
)

ROW_MAJOR = "czyx"
"""Axes of an array that is a scale; the bytes of its chunks are in the order of the format."""

_COMPRESSED = ("png", "jpeg")

_NOT_WRITTEN = ("compresso", "jpegxl", "jxl", "crackle", "fpzip", "kempressed", "zfpc")

_DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "float32")

_INSTEAD = {"bool": "uint8", "int64": "int32", "float64": "float32", "float16": "float32"}

_MOST_NBYTES = 2**63

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")

_TAKEN = (INFO, DOCUMENT, "provenance", "shardwrite-receipt.json")

_ENDINGS = (RUN_SUFFIX, TEMPORARY_SUFFIX, ".quarantine")

OTHER_PARTS = ("mesh", "skeletons", "segment_properties")
"""Members of an ``info`` that name directories with other things than scales."""

_NAMES = {"channel": "c", "channels": "c"}


@dataclass(frozen=True, kw_only=True)
class ScaleOptions(ScaleKeywords):
    """Keywords that describe a new scale, with sizes in bytes."""

    shard_nbytes: int
    index_nbytes: int


@dataclass(frozen=True, slots=True)
class NewScale:
    """A scale that is to be written, and what its volume must be."""

    volume: Volume  # the volume with this scale alone
    entry: Document  # the scale as ``info`` holds it

    @classmethod
    def of(cls, kind: object, data_type: str, n_channels: int, entry: Document) -> Self:
        """The scale of an entry, after a check of all that it says."""
        return cls(parse_info(_info_of(kind, data_type, n_channels, entry)), entry)

    @property
    def scale(self) -> Scale:
        """The scale."""
        return self.volume.scales[0]

    @property
    def sharding(self) -> ShardingParameters:
        """Parameters of its shards."""
        sharding = self.scale.sharding
        assert sharding is not None
        return sharding

    @property
    def chunk_nbytes(self) -> int:
        """Decoded size of a chunk."""
        n_voxels = math.prod(self.scale.chunk_size) * self.volume.n_channels
        return n_voxels * self.volume.dtype.itemsize

    @property
    def box(self) -> Shape:
        """Shape of the box of chunks that a shard holds, along x, y and z."""
        return box_of_chunks(self.sharding, self.scale.code)

    @property
    def is_scattered(self) -> bool:
        """Whether the chunks of a shard lie all over the volume, so that it is no box.

        A hash scatters them. So do parameters that leave out the high bits of the ids.
        """
        covers = self.sharding.covers(self.scale.code.n_bits)
        return self.sharding.hash != "identity" or not covers

    @property
    def scattered(self) -> ScatteredIds:
        """Ids of the chunks of all shards, if they are scattered."""
        return scattered_ids(self.sharding, self.scale.code)

    def spooled(self, shard_nbytes: int, index_nbytes: int) -> NewScale:
        """The scale in whose shards encoded chunks wait until those of this scale are gathered.

        Each of its shards is a box of the volume, and its chunks have the same bytes.

        - `shard_nbytes`, `index_nbytes`: largest decoded size of a shard, and largest index that is
          read before a chunk.
        """
        encoding, limits = self.sharding.data_encoding, (shard_nbytes, index_nbytes)
        sharding = sharding_for(self.scale.code, self.chunk_nbytes, limits, encoding)
        scale = replace(self.scale, sharding=sharding)
        return NewScale(
            replace(self.volume, scales=(scale,)), {**self.entry, "sharding": sharding.to_dict()}
        )


def _info_of(kind: object, data_type: str, n_channels: int, entry: Document) -> Document:
    """The ``info`` of a volume with a single scale."""
    return {
        "@type": VOLUME_TYPE,
        "type": kind,
        "data_type": data_type,
        "num_channels": n_channels,
        "scales": [entry],
    }


def shard_notes(
    new: NewScale, n_files: int, file_nbytes: int, per_minishard: int
) -> tuple[str, ...]:
    """What the parameters of the shards mean, for a plan.

    - `n_files`, `file_nbytes`: how many shards there are at most, and the decoded size of one.
    - `per_minishard`: number of chunks in a minishard.
    """
    sharding = new.sharding
    return (
        (
            f"preshift_bits {sharding.preshift_bits}, minishard_bits {sharding.minishard_bits}, "
            f"shard_bits {sharding.shard_bits}: up to {counted(n_files, 'file')} of "
            f"{human(file_nbytes)} decoded"
        ),
        (
            f"index per read: {human(ENTRY_NBYTES)}, and up to "
            f"{human(COLUMN_NBYTES * per_minishard)} for a minishard of "
            f"{counted(per_minishard, 'chunk')}"
        ),
        f"each file begins with an index of {human(sharding.shard_index_nbytes)}",
    )


def loss_notes(new: NewScale) -> tuple[str, ...]:
    """That values change, for a plan."""
    is_lossy = new.scale.encoding.name == "jpeg"
    return ("values change, since the encoding is jpeg",) if is_lossy else ()


def checked_axes(axes: object, names: Sequence[str | None] | None, ndim: int) -> str:
    """Axes of an array as letters.

    - `names`: names of the dimensions. If they are those of axes, the keyword must not say
      otherwise.
    """
    found: str
    value: object
    letters = "x, y and z in any order, with c for channels if there are any"
    if axes is None:
        if not names or None in names:
            remedy = f'give the letters {letters}, such as "zyx"'
            raise SpecError(
                "no name of an axis tells them", field="axes", value=None, remedy=remedy
            )
        found, value = _by_name(names), tuple(names)
    else:
        found, value = axes if isinstance(axes, str) else "", axes
    if not _are_axes(found):
        remedy = f"give the letters {letters}; select a point of other axes first, such as x[0]"
        raise SpecError("not the axes of a volume", field="axes", value=value, remedy=remedy)
    if len(found) != ndim:
        remedy = "give a letter for each axis; select a point of other axes first, such as x[0]"
        raise SpecError(
            f"{len(found)} for an array of {ndim} axes", field="axes", value=value, remedy=remedy
        )
    named = named_axes(names, ndim)
    if named not in (None, found):
        raise SpecError(
            f"the names of the dimensions say {named!r}",
            field="axes",
            value=axes,
            remedy="leave axes out. If the names are wrong, give the values as an array without "
            "names",
        )
    return found


def named_axes(names: Sequence[str | None] | None, ndim: int) -> str | None:
    """Axes of an array as letters, by the names of its dimensions; None if these tell no axes."""
    letters = _by_name(names or ())
    return letters if _are_axes(letters) and len(letters) == ndim else None


def _by_name(names: Sequence[str | None]) -> str:
    """Letters of axes, by the names of dimensions; names of none make the text that of no axes."""
    lower = [str(name).lower() for name in names]
    letters = [_NAMES.get(name, name) for name in lower]
    return "".join(letters) if all(len(letter) == 1 for letter in letters) else ""


def _are_axes(letters: str) -> bool:
    """Whether these are the letters of a volume's axes, in any order."""
    return sorted(letters) in (sorted("xyz"), sorted("xyzc"))


def row_major(letters: str) -> list[int]:
    """Order of the axes of an array that has the bytes of chunks in their order.

    Examples
    --------
    >>> row_major("xyzc")
    [3, 2, 1, 0]
    """
    return [letters.index(axis) for axis in ROW_MAJOR if axis in letters]


def sharding_for(
    code: MortonCode, chunk_nbytes: int, limits: tuple[int, int], encoding: str
) -> ShardingParameters:
    """Parameters of shards that are as large as they may be.

    - `limits`: what the parameters are chosen for: the largest decoded size of a shard, and the
      largest index that a reader fetches before a chunk.
    - `encoding`: encoding of the chunks by the shards.
    """
    shard_nbytes, index_nbytes = limits
    n_low = max(0, min(code.n_bits, (shard_nbytes // max(1, chunk_nbytes)).bit_length() - 1))
    per_minishard = (index_nbytes - ENTRY_NBYTES) // COLUMN_NBYTES
    preshift = max(0, min(n_low, per_minishard.bit_length() - 1))
    return ShardingParameters(
        preshift_bits=preshift,
        minishard_bits=n_low - preshift,
        shard_bits=code.n_bits - n_low,
        minishard_index_encoding="gzip",
        data_encoding=encoding,
    )


def new_scale(shape: Sequence[int], dtype: np.dtype[Any], options: ScaleOptions) -> NewScale:
    """Check the keywords of a user, and make a scale of them."""
    kind, n_channels = options.type, int(shape[3])
    _check_kind(kind, dtype, n_channels)
    chunk = _three(options.chunks, "chunks", least=1)
    chunk_nbytes = math.prod(chunk) * n_channels * dtype.itemsize
    if chunk_nbytes >= _MOST_NBYTES:
        why, remedy = f"a chunk holds {_MOST_NBYTES} bytes or more", "give smaller chunks"
        raise SpecError(why, field="chunks", value=options.chunks, remedy=remedy)
    resolution = _resolution(options.resolution)
    encoding = _encoding(options, dtype, n_channels, chunk)
    offset = _three(options.voxel_offset, "voxel_offset")
    if any(max(abs(o), abs(o + n)) > MOST_WHOLE for o, n in zip(offset, shape, strict=False)):
        remedy = f"give numbers that lie between -{MOST_WHOLE} and {MOST_WHOLE} with the size"
        why = "too large for readers"
        raise SpecError(why, field="voxel_offset", value=offset, remedy=remedy)
    entry: Document = {
        "key": checked_key(options.key, resolution),
        "size": [int(n) for n in shape[:3]],
        "voxel_offset": list(offset),
        "resolution": resolution,
        "chunk_sizes": [list(chunk)],
        **encoding.fields,
    }
    code = MortonCode.of(entry["size"], chunk)
    if encoding.block_size is not None and chunk_nbytes > chunk_limit():
        raise SpecError(
            f"{encoding.name} is read up to a size of {chunk_limit()} bytes decoded",
            field="chunks",
            value=chunk,
            remedy="make chunks smaller",
        )
    sharding = _sharding(options, code, chunk_nbytes)
    entry["sharding"] = sharding.to_dict()
    scale = NewScale.of(kind, dtype.name, n_channels, entry)
    if scale.is_scattered:
        check_volume_index(sharding)
        scale.scattered  # noqa: B018 (checks the number of chunks)
    else:
        scale.box  # noqa: B018 (checks that shards are boxes)
    return scale


def _check_kind(kind: object, dtype: np.dtype[Any], n_channels: int) -> None:
    choice("type", kind, KINDS, what="kind of volume")
    if dtype.name not in _DTYPES:
        is_of_labels = dtype.name == "int64" and kind == "segmentation"
        instead = "uint64" if is_of_labels else _INSTEAD.get(dtype.name)
        remedy = f'convert it with astype("{instead}")' if instead else f"use one of {_DTYPES}"
        raise SpecError("not in the format", field="x.dtype", value=str(dtype), remedy=remedy)
    if kind == "segmentation" and dtype.kind not in "ui":
        remedy = 'convert it with astype("uint64"), or give type="image"'
        raise SpecError(
            "labels of segments are whole numbers",
            field="x.dtype",
            value=str(dtype),
            remedy=remedy,
        )
    if kind == "segmentation" and n_channels != 1:
        remedy = 'select one of them, or give type="image"'
        raise SpecError("a segmentation has one channel", field="type", value=kind, remedy=remedy)


def _encoding(
    options: ScaleOptions, dtype: np.dtype[Any], n_channels: int, chunk: Shape
) -> ChunkEncoding:
    """Encoding of the chunks in the words of the format, in which gzip is one of the shards."""
    wanted = options.encoding
    if wanted not in (None, *ENCODINGS):
        why = "is not written" if wanted in _NOT_WRITTEN else "not known"
        remedy = f"use one of {list(ENCODINGS)}"
        raise SpecError(why, field="encoding", value=wanted, remedy=remedy)
    encoding = ChunkEncoding.new(
        "raw" if wanted is None or wanted in OF_SHARDS else wanted,
        options.compressed_segmentation_block_size,
        options.jpeg_quality,
    )
    encoding.check(dtype, n_channels)
    encoding.check_new(options.type, chunk)
    return encoding


def _sharding(options: ScaleOptions, code: MortonCode, chunk_nbytes: int) -> ShardingParameters:
    wanted = options.sharding
    encoding = options.encoding if options.encoding in OF_SHARDS else None
    usual_encoding = "raw" if options.encoding in _COMPRESSED else "gzip"
    if isinstance(wanted, str) and wanted == "auto":
        limits = (options.shard_nbytes, options.index_nbytes)
        return sharding_for(code, chunk_nbytes, limits, encoding or usual_encoding)
    if isinstance(wanted, ShardingParameters):
        made = wanted
    elif isinstance(wanted, Mapping):
        usual = {
            "hash": "identity",
            "minishard_index_encoding": "gzip",
            "data_encoding": encoding or usual_encoding,
        }
        made = ShardingParameters.from_dict({"@type": TYPE, **usual, **wanted})
    else:
        remedy = 'give "auto", or the parameters as info has them under sharding'
        raise SpecError("no parameters", field="sharding", value=wanted, remedy=remedy)
    # In the words of the format, raw chunks may be gzipped by their shards.
    if encoding == "gzip" != made.data_encoding:
        remedy = f'leave it out, or give "data_encoding": "{encoding}"'
        raise SpecError(
            f"sharding says {made.data_encoding!r}",
            field="encoding",
            value=encoding,
            remedy=remedy,
        )
    return made


def _several(found: Any) -> list[Any] | None:
    """Numbers that were given as a sequence or an array; None if it is none."""
    if isinstance(found, np.ndarray):
        return list(found) if found.ndim else None
    is_sequence = isinstance(found, Sequence) and not isinstance(found, str)
    return list(found) if is_sequence else None


def _three(found: Any, field: str, *, least: int | None = None) -> Shape:
    """Three whole numbers along x, y and z, or one for all of them."""
    several = _several(found)
    numbers = [found] * 3 if several is None else several
    is_valid = len(numbers) == 3 and all(is_whole(n, least) for n in numbers)
    if not is_valid:
        remedy = "give whole numbers along x, y and z" + (
            "" if least is None else f" of {least} or more, or one for all"
        )
        raise SpecError("not valid", field=field, value=found, remedy=remedy)
    return tuple(int(n) for n in numbers)


def _resolution(found: Any) -> list[int | float]:
    numbers = _several(found) or []
    is_valid = len(numbers) == 3 and all(
        is_number(n) and 0 < n <= sys.float_info.max for n in numbers
    )
    if not is_valid:
        remedy = "give the size of a voxel along x, y and z in nanometres, such as (4, 4, 40)"
        raise SpecError("not valid", field="resolution", value=found, remedy=remedy)
    values = [float(n) for n in numbers]
    return [int(n) if n.is_integer() and n <= MOST_WHOLE else n for n in values]


def checked_key(found: Any, resolution: Sequence[int | float]) -> str:
    """Name of a scale.

    - `found`: what the user has given. By default the name is made of the resolution.
    """
    if found is None:
        return "_".join(f"{n:.12g}" for n in resolution)
    is_plain = isinstance(found, str) and _KEY.fullmatch(found) is not None
    if not is_plain or found in _TAKEN or found.endswith(_ENDINGS):
        remedy = 'give the name of a directory, such as "4_4_40"'
        raise SpecError("no key of a scale", field="key", value=found, remedy=remedy)
    return str(found)


def merged_info(old: Any, new: NewScale) -> Document:
    """An ``info`` with a new scale. All else that it holds stays.

    - `old`: the parsed ``info`` that stands there; None if there is none.
    """
    volume = new.volume
    if old is None:
        return _info_of(volume.kind, volume.dtype.name, volume.n_channels, new.entry)
    there = parse_info(old, may_be_empty=True)
    for field, found, wanted in (
        ("type", there.kind, volume.kind),
        ("data_type", there.dtype.name, volume.dtype.name),
        ("num_channels", there.n_channels, volume.n_channels),
    ):
        if found != wanted:
            raise SpecError(
                f"the {INFO} that stands there says {found!r}",
                field=field,
                value=wanted,
                remedy="write to another directory, or give an array and keywords that fit it",
            )
    if new.scale.key in [old.get(part) for part in OTHER_PARTS]:
        remedy = "give another key"
        why = f"the {INFO} that stands there has other things than a scale in this directory"
        raise SpecError(why, field="key", value=new.scale.key, remedy=remedy)
    scales: list[Document] = list(old["scales"])
    keys = [scale.key for scale in there.scales]
    if new.scale.key in keys:
        at = keys.index(new.scale.key)
        if replace(there.scales[at], key=new.scale.key) != new.scale:
            raise SpecError(
                f"the {INFO} that stands there has another scale of this key",
                field="key",
                value=new.scale.key,
                remedy="give another key, or remove that scale yourself",
            )
        return {**old}
    size = math.prod(new.scale.resolution)
    coarser = [math.prod(scale.resolution) > size for scale in there.scales]
    at = coarser.index(True) if True in coarser else len(scales)
    return {**old, "scales": [*scales[:at], new.entry, *scales[at:]]}


# ---- Scales that are arrays already: what the ``info`` says of them


_AXES = "source_axes"


def _noted(metadata: ArrayMetadata) -> Document | None:
    """What a scale notes of its volume, in its attributes; None if it notes nothing."""
    noted: object = attributes_of(metadata.document).get(ATTRIBUTE)
    return noted if isinstance(noted, dict) else None


def with_source_axes(metadata: ArrayMetadata, letters: str) -> ArrayMetadata:
    """Metadata of a scale that say in which order the axes of its source were.

    They are as they were if that is the order of the scale itself.
    """
    noted = _noted(metadata)
    if ROW_MAJOR.endswith(letters) or noted is None:
        return metadata
    attributes = {**metadata.document["attributes"], ATTRIBUTE: {**noted, _AXES: letters}}
    document = {**metadata.document, "attributes": attributes}
    return metadata_of_document(document, writing=True)


def source_axes(
    metadata: ArrayMetadata, names: Sequence[str | None] | None, shape: Shape, field: str
) -> tuple[int | None, ...] | None:
    """See :class:`SourceAxes`. The names tell the axes, or else the scale notes them."""
    letters = named_axes(names, len(shape))
    if letters is None:
        axes = (_noted(metadata) or {}).get(_AXES)
        letters = named_axes(list(axes), len(shape)) if isinstance(axes, str) else None
    if letters is None:
        return None
    wanted = metadata.values_shape
    own = ROW_MAJOR[-len(wanted) :]
    sizes = dict(zip(own, wanted, strict=True))
    expected = tuple(sizes.get(letter, 1) for letter in letters)
    if shape != expected:
        raise SpecError(
            "is not the array's",
            field=f"{field}.shape",
            value=shape,
            remedy=f"give a source of shape {expected}, whose axes are {letters!r} as those of "
            f"this one, or of shape {wanted} with the names {list(own)} for its dimensions",
        )
    return tuple(letters.index(axis) if axis in letters else None for axis in own)


def has_scattered_chunks(metadata: ArrayMetadata) -> bool:
    """Whether an array is a scale whose hash scatters the chunks. Their ids are not computed."""
    shards: object = metadata.shard_format
    return isinstance(shards, PrecomputedShards) and shards.size is not None


def is_scale(metadata: ArrayMetadata) -> bool:
    """Whether an array is a scale of a volume, of either hash, and no spool."""
    shards: object = metadata.shard_format
    return isinstance(shards, PrecomputedShards) and _noted(metadata) is not None


def stored_scale(metadata: ArrayMetadata, key: str) -> NewScale | None:
    """The scale that an array is; None if it is no scale of a volume."""
    shards: object = metadata.shard_format
    noted = _noted(metadata)
    if not isinstance(shards, PrecomputedShards) or noted is None:
        return None
    shape, chunks = metadata.grid.shape, metadata.grid.chunks
    size = shape[:-4:-1] if shards.size is None else shards.size
    entry: Document = {
        "key": key,
        "size": list(size),
        "voxel_offset": noted.get("voxel_offset"),
        "resolution": noted.get("resolution"),
        "chunk_sizes": [list(chunks[:-4:-1])],
        **ChunkEncoding.of_codec(metadata.inner_codecs[0]).fields,
        "sharding": shards.sharding.to_dict(),
    }
    n_channels = chunks[0] if len(shape) == 4 else 1
    return NewScale.of(noted.get("type"), metadata.dtype.name, n_channels, entry)
