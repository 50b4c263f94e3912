"""The document ``info`` of a volume, and where the chunks of a scale lie."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError
from shardwrite.format.precomputed.encodings import BLOCK_SIZE, QUALITY, ChunkEncoding
from shardwrite.format.precomputed.morton import MortonCode
from shardwrite.format.precomputed.parameters import ShardingParameters
from shardwrite.grid import Box, Shape, ceil_div

INFO = "info"
"""Key of the document."""

VOLUME_TYPE = "neuroglancer_multiscale_volume"
"""Member ``@type`` of the document."""

_MOST = sys.float_info.max
_MOST_WHOLE = 2**53  # JavaScript holds whole numbers exactly up to there
_WHOLE = re.compile(r"-?[0-9]{1,9}", re.ASCII)
# halves of characters, which JSON can escape, and no path of a file can hold
_SURROGATE = re.compile("[\ud800-\udfff]")
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
        return tuple(ceil_div(n, c) for n, c in zip(self.size, self.chunk_size, strict=True))

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
    if not isinstance(key, str) or _SURROGATE.search(key) is not None:
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
    if type(found) is not int or not 1 <= found <= _MOST_WHOLE:
        remedy = f"give a whole number of 1 to {_MOST_WHOLE}"
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
        and all(type(i) is int and (-_MOST_WHOLE if least is None else least) <= i for i in found)
        and all(i <= _MOST_WHOLE for i in found)
    )
    if not is_valid:
        smallest = -_MOST_WHOLE if least is None else least
        remedy = f"give {n} whole numbers of {smallest} to {_MOST_WHOLE}"
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
