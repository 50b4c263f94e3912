"""The document ``info`` of a volume, and where the chunks of a scale lie."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.checks import is_whole, whole
from shardwrite.codecs.documents import Codec, Document, has_surrogates
from shardwrite.errors import CodecError, SpecError
from shardwrite.grid import Box, Shape, counts_of
from shardwrite.volumes.codecs import (
    CHANNELS,
    DTYPES,
    IMAGE_SIDES,
    MOST_IN_BLOCK,
    PREFIX,
    image_shape,
)
from shardwrite.volumes.sharding import MortonCode, ShardingParameters

# ---- Encodings: their fields in ``info``, and their codecs


BLOCK_SIZE = "compressed_segmentation_block_size"
"""Field of the shape of a block."""

QUALITY = "jpeg_quality"
"""Field of the quality."""

DEFAULT_BLOCK = (8, 8, 8)

DEFAULT_QUALITY = 75

_FIELDS = {"block_size": BLOCK_SIZE, "quality": QUALITY}

_BYTES: Codec = {"name": "bytes", "configuration": {"endian": "little"}}

_MOST_IN_NEW_BLOCK = 2**18

_FEWER_CHANNELS = 'select some channels, or give encoding="gzip"'

_FOR_READERS = (
    "choose another scale, or correct data_type, num_channels or encoding in the info if they are "
    "not those of the chunks"
)


@dataclass(frozen=True, slots=True)
class ChunkEncoding:
    """How chunks are encoded, before the shards compress them."""

    name: str  # the word of the format, such as ``raw``
    # Shape of a block along x, y and z, for ``compressed_segmentation``
    block_size: Shape | None = None
    quality: int | None = None  # quality of 0 to 100, for ``jpeg``. Readers need none.

    @classmethod
    def parse(cls, scale: Mapping[str, Any]) -> Self:
        """Read the encoding from an entry of ``scales``. An unknown encoding is no error here."""
        name = str(scale.get("encoding"))
        if name == "compressed_segmentation":
            return cls(name, block_size=_checked_block(scale.get(BLOCK_SIZE, [*DEFAULT_BLOCK])))
        if name == "jpeg" and scale.get(QUALITY) is not None:
            return cls(name, quality=_checked_quality(scale[QUALITY], 0))
        return cls(name)

    @classmethod
    def new(cls, name: str, block_size: Any, quality: Any) -> Self:
        """What the keywords of a user say. A keyword of another encoding is refused."""
        for field, value, own in (
            (BLOCK_SIZE, block_size, "compressed_segmentation"),
            (QUALITY, quality, "jpeg"),
        ):
            if value is not None and name != own:
                remedy = f'leave it out, or give encoding="{own}"'
                raise SpecError(f"is for {own}", field=field, value=value, remedy=remedy)
        if name == "compressed_segmentation":
            given = DEFAULT_BLOCK if block_size is None else block_size
            listed = list(given) if isinstance(given, tuple | np.ndarray) else given
            return cls(name, block_size=_checked_block(listed))
        if name == "jpeg":
            return cls(
                name, quality=DEFAULT_QUALITY if quality is None else _checked_quality(quality, 1)
            )
        return cls(name)

    @classmethod
    def of_codec(cls, codec: Codec) -> Self:
        """The encoding that a codec in a ``zarr.json`` stands for; see `codec`."""
        if codec["name"] == _BYTES["name"]:
            return cls("raw")
        fields = {_FIELDS[name]: value for name, value in codec.get("configuration", {}).items()}
        return cls.parse({"encoding": codec["name"].removeprefix(PREFIX), **fields})

    @property
    def fields(self) -> Document:
        """Members of an entry of ``scales``."""
        members: Document = {"encoding": self.name}
        if self.block_size is not None:
            members[BLOCK_SIZE] = list(self.block_size)
        if self.quality is not None:
            members[QUALITY] = self.quality
        return members

    @property
    def codec(self) -> Codec:
        """The codec in a ``zarr.json``."""
        if self.name == "raw":
            return _BYTES
        configuration: Document = {}
        if self.block_size is not None:
            configuration = {"block_size": list(self.block_size)}
        if self.name == "jpeg":
            configuration = {"quality": self.quality or DEFAULT_QUALITY}
        named: Codec = {"name": f"{PREFIX}{self.name}"}
        return {**named, "configuration": configuration} if configuration else named

    def check(self, dtype: np.dtype[Any], n_channels: int, *, is_read: bool = False) -> None:
        """Refuse voxels that the encoding does not hold.

        - Raises SpecError if it holds none of this dtype or number of channels, or is not known.
        """
        if self.name != "raw" and self.name not in DTYPES:
            remedy = f"choose a scale with one of the encodings {['raw', *DTYPES]}"
            raise SpecError(
                "chunks of this encoding are not decoded",
                field="encoding",
                value=self.name,
                remedy=remedy,
            )
        dtypes = DTYPES.get(self.name, (dtype.name,))
        if dtype.name not in dtypes:
            raise SpecError(
                f"holds no {dtype.name}, but only {' and '.join(dtypes)}",
                field="encoding",
                value=self.name,
                remedy=_FOR_READERS if is_read else _remedy(dtype),
            )
        channels = CHANNELS.get(self.name, (n_channels,))
        if n_channels not in channels:
            raise SpecError(
                f"holds {' or '.join(map(str, channels))} channels, and there are {n_channels}",
                field="encoding",
                value=self.name,
                remedy=_FOR_READERS if is_read else _FEWER_CHANNELS,
            )

    def check_new(self, kind: str, chunk: Shape) -> None:
        """Refuse what is readable but should not, or cannot, be written."""
        if self.name == "jpeg" and kind == "segmentation":
            remedy = 'use "compressed_segmentation" or "gzip", or give type="image"'
            raise SpecError(
                "changes values, so that labels would be lost",
                field="encoding",
                value=self.name,
                remedy=remedy,
            )
        if self.name in IMAGE_SIDES:
            try:
                image_shape(chunk[::-1], IMAGE_SIDES[self.name])
            except CodecError as error:
                remedy = "make chunks smaller along y or z"
                why = f"{self.name}: {error}"
                raise SpecError(why, field="chunks", value=chunk, remedy=remedy) from None
        # A block may be larger than a chunk. The bits of a whole one are then stored.
        most = max(_MOST_IN_NEW_BLOCK, math.prod(max(8, n) for n in chunk))
        if self.block_size is not None and math.prod(self.block_size) > most:
            raise SpecError(
                f"has more than {most} voxels, and chunks are {chunk}",
                field=BLOCK_SIZE,
                value=self.block_size,
                remedy="give a smaller block, such as (8, 8, 8)",
            )


def _remedy(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "f":
        return 'scale and convert the values first, or use "gzip", which loses nothing'
    return 'convert the values with astype, or use "gzip"'


def _checked_block(found: Any) -> Shape:
    is_shape = isinstance(found, list) and len(found) == 3
    numbers = list(found) if is_shape else []
    is_valid = all(is_whole(n, 1) for n in numbers)
    if not numbers or not is_valid or math.prod(map(int, numbers)) > MOST_IN_BLOCK:
        remedy = "give three whole numbers along x, y and z, such as (8, 8, 8)"
        raise SpecError("not valid", field=BLOCK_SIZE, value=found, remedy=remedy)
    return tuple(int(n) for n in numbers)


def _checked_quality(found: Any, least: int) -> int:
    return whole(QUALITY, found, "a quality", least, 100)


# ---- What arrays say of a scale


ATTRIBUTE = "precomputed"
"""Attribute of an array that is a scale, or has its values."""

AXIS_NAMES = {"x": "x", "y": "y", "z": "z", "c": "channel"}
"""Names of dimensions, by the letters of axes."""


def scale_attributes(
    kind: str, resolution: Sequence[float], voxel_offset: Sequence[int]
) -> Document:
    """Attributes of an array that has the voxels of a scale."""
    members = {"type": kind, "resolution": [*resolution], "voxel_offset": [*voxel_offset]}
    return {ATTRIBUTE: members}


# ---- The document


INFO = "info"
"""Key of the document."""

VOLUME_TYPE = "neuroglancer_multiscale_volume"
"""Member ``@type`` of the document."""


_MOST = sys.float_info.max

MOST_WHOLE = 2**53
"""Largest whole number up to which JavaScript holds all of them exactly."""

_WHOLE = re.compile(r"-?[0-9]{1,9}", re.ASCII)

_DATA_TYPES = frozenset(
    {*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float32"}
)


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale of a volume. Axes are x, y and z, and chunks hold all channels."""

    key: str  # path of the chunks, relative to ``info``
    size: Shape  # shape of the scale, position of its first voxel, and shape of a chunk
    voxel_offset: Shape
    chunk_size: Shape
    resolution: tuple[float, ...]  # size of a voxel in nanometres
    encoding: ChunkEncoding
    sharding: ShardingParameters | None  # parameters of the shards; None if each chunk is a file

    @property
    def grid(self) -> Shape:
        """Number of chunks along each axis."""
        return counts_of(self.size, self.chunk_size)

    @property
    def code(self) -> MortonCode:
        """Code that gives chunks their ids."""
        return MortonCode(self.grid)

    def box(self, position: Sequence[int]) -> Box:
        """Voxels of a chunk, relative to the first voxel of the scale. Chunks at edges are cut."""
        start = tuple(i * c for i, c in zip(position, self.chunk_size, strict=True))
        ends = zip(start, self.chunk_size, self.size, strict=True)
        return Box(start, tuple(min(a + c, n) for a, c, n in ends))

    def name(self, position: Sequence[int]) -> str:
        """Key of the file of a chunk below the scale's key, if there are no shards."""
        box = self.box(position)
        return "_".join(
            f"{o + a}-{o + b}"
            for o, a, b in zip(self.voxel_offset, box.start, box.stop, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Volume:
    """What an ``info`` says."""

    kind: str  # ``image``, or ``segmentation``
    dtype: np.dtype[Any]  # data type, little-endian
    n_channels: int  # number of channels
    scales: tuple[Scale, ...]  # the scales, the finest first

    def scale(self, wanted: int | str | None) -> Scale:
        """A scale by its number or key; by default the first one.

        A text of digits is a number if no scale has it as its key.
        """
        keys = [scale.key for scale in self.scales]
        if isinstance(wanted, str) and wanted in keys:
            return self.scales[keys.index(wanted)]
        number: object = 0 if wanted is None else wanted
        if isinstance(number, str) and _WHOLE.fullmatch(number):
            number = int(number)
        if type(number) is int and -len(keys) <= number < len(keys):
            return self.scales[number]
        remedy = f"give a number below {len(keys)} or one of {keys}"
        raise SpecError("no such scale", field="scale", value=wanted, remedy=remedy)


def parse_info(document: Any, *, may_be_empty: bool = False) -> Volume:
    """Parse and check an ``info``. Members that are not known do not matter.

    - `may_be_empty`: accept a document without scales, which is what is left when the last scale
      was removed.
    """
    if not isinstance(document, Mapping) or document.get("@type", VOLUME_TYPE) != VOLUME_TYPE:
        value = document.get("@type") if isinstance(document, Mapping) else None
        remedy = "give the directory of an image or a segmentation"
        raise SpecError("info of no volume", field="@type", value=value, remedy=remedy)
    data_type = document.get("data_type")
    if not isinstance(data_type, str) or data_type.lower() not in _DATA_TYPES:
        remedy = f"use one of {sorted(_DATA_TYPES)}"
        raise SpecError("not supported", field="data_type", value=data_type, remedy=remedy)
    n_channels = document.get("num_channels")
    scales = document.get("scales")
    if not isinstance(scales, list) or not (scales or may_be_empty):
        remedy = "give a list with at least one scale"
        raise SpecError("no scales", field="scales", value=scales, remedy=remedy)
    return Volume(
        str(document.get("type", "image")).lower(),
        np.dtype(data_type.lower()).newbyteorder("<"),
        _n_channels(n_channels),
        tuple(_scale(scale) for scale in scales),
    )


def _scale(document: Any) -> Scale:
    key = document.get("key") if isinstance(document, Mapping) else None
    if not isinstance(key, str) or has_surrogates(key):
        remedy = 'give an object with a text as its "key"'
        raise SpecError("not a scale", field="scales", value=document, remedy=remedy)
    chunk_sizes = document.get("chunk_sizes")
    if not isinstance(chunk_sizes, list) or not chunk_sizes:
        remedy = "give a list with at least one shape"
        raise SpecError("no shapes", field="chunk_sizes", value=chunk_sizes, remedy=remedy)
    sharding = document.get("sharding")
    numbers = {name: _whole(document[name]) for name in (BLOCK_SIZE, QUALITY) if name in document}
    scale = Scale(
        key,
        _numbers(document.get("size"), "size", 3, least=1),
        _numbers(document.get("voxel_offset", [0, 0, 0]), "voxel_offset", 3),
        _numbers(chunk_sizes[0], "chunk_sizes", 3, least=1),
        _resolution(document),
        ChunkEncoding.parse({**document, **numbers}),
        None if sharding is None else parse_sharding(sharding),
    )
    if scale.sharding is not None:
        scale.code.n_bits  # noqa: B018 (checks that ids have room)
    return scale


def parse_sharding(found: Any) -> ShardingParameters:
    """Parameters of shards, as an ``info`` has them."""
    is_object = isinstance(found, Mapping)
    members = {name: _whole(value) for name, value in found.items()} if is_object else found
    return ShardingParameters.from_dict(members)


def _n_channels(found: Any) -> int:
    found = _whole(found)
    if type(found) is not int or not 1 <= found <= MOST_WHOLE:
        remedy = f"give a whole number of 1 to {MOST_WHOLE}"
        raise SpecError("not valid", field="num_channels", value=found, remedy=remedy)
    return found


def _whole(found: Any) -> Any:
    """A number of JSON as an integer, if it is whole: JavaScript does not tell 4.0 from 4.

    Numbers in a list are taken so, too.
    """
    if isinstance(found, list):
        return [n if isinstance(n, list) else _whole(n) for n in found]
    return int(found) if type(found) is float and found.is_integer() else found


def _numbers(found: Any, field: str, n: int, *, least: int | None = None) -> Shape:
    found = _whole(found)
    is_valid = (
        isinstance(found, list)
        and len(found) == n
        and all(type(i) is int and (-MOST_WHOLE if least is None else least) <= i for i in found)
        and all(i <= MOST_WHOLE for i in found)
    )
    if not is_valid:
        smallest = -MOST_WHOLE if least is None else least
        remedy = f"give {n} whole numbers of {smallest} to {MOST_WHOLE}"
        raise SpecError("not valid", field=field, value=found, remedy=remedy)
    return tuple(found)


def _resolution(document: Mapping[str, Any] | Document) -> tuple[float, ...]:
    found = document.get("resolution")
    is_valid = (
        isinstance(found, list)
        and len(found) == 3
        and all(type(i) in (int, float) and abs(i) <= _MOST for i in found)
    )
    if not is_valid:
        remedy = "give the size of a voxel along x, y and z, in nanometres"
        raise SpecError("not valid", field="resolution", value=found, remedy=remedy)
    return tuple(map(float, found or []))
