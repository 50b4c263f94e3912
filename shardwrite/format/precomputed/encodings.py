"""Encodings of the chunks of a volume: fields in ``info``, what they hold, and their codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from shardwrite.codecs.documents import Codec, Document
from shardwrite.codecs.volume import IMAGE_SIDES, image_shape
from shardwrite.errors import CodecError, SpecError
from shardwrite.grid import Shape

BLOCK_SIZE = "compressed_segmentation_block_size"
"""Field of the shape of a block."""

QUALITY = "jpeg_quality"
"""Field of the quality."""

DEFAULT_BLOCK = (8, 8, 8)
DEFAULT_QUALITY = 75

_PREFIX = "neuroglancer_"
_FIELDS = {"block_size": BLOCK_SIZE, "quality": QUALITY}
_BYTES: Codec = {"name": "bytes", "configuration": {"endian": "little"}}
_DTYPES = {
    "jpeg": ("uint8",),
    "png": ("uint8", "uint16"),
    "compressed_segmentation": ("uint32", "uint64"),
}
_CHANNELS = {"jpeg": (1, 3), "png": (1, 2, 3, 4)}
_MOST_IN_BLOCK = 2**32
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
        known = {_FIELDS[name]: value for name, value in codec.get("configuration", {}).items()}
        return cls.parse({"encoding": codec["name"].removeprefix(_PREFIX), **known})

    @property
    def fields(self) -> Document:
        """Members of an entry of ``scales``."""
        made: Document = {"encoding": self.name}
        if self.block_size is not None:
            made[BLOCK_SIZE] = list(self.block_size)
        if self.quality is not None:
            made[QUALITY] = self.quality
        return made

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
        named: Codec = {"name": f"{_PREFIX}{self.name}"}
        return {**named, "configuration": configuration} if configuration else named

    def check(self, dtype: np.dtype[Any], n_channels: int, *, is_read: bool = False) -> None:
        """Refuse voxels that the encoding does not hold.

        - Raises SpecError if it holds none of this dtype or number of channels, or is not known.
        """
        if self.name != "raw" and self.name not in _DTYPES:
            remedy = f"choose a scale with one of the encodings {['raw', *_DTYPES]}"
            raise SpecError(
                "chunks of this encoding are not decoded",
                field="encoding",
                value=self.name,
                remedy=remedy,
            )
        dtypes = _DTYPES.get(self.name, (dtype.name,))
        if dtype.name not in dtypes:
            raise SpecError(
                f"holds no {dtype.name}, but only {' and '.join(dtypes)}",
                field="encoding",
                value=self.name,
                remedy=_FOR_READERS if is_read else _remedy(dtype),
            )
        channels = _CHANNELS.get(self.name, (n_channels,))
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
    is_valid = all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1 for n in numbers
    )
    if not numbers or not is_valid or math.prod(map(int, numbers)) > _MOST_IN_BLOCK:
        remedy = "give three whole numbers along x, y and z, such as (8, 8, 8)"
        raise SpecError("not valid", field=BLOCK_SIZE, value=found, remedy=remedy)
    return tuple(int(n) for n in numbers)


def _checked_quality(found: Any, least: int) -> int:
    is_number = isinstance(found, int | np.integer) and not isinstance(found, bool)
    if not is_number or not least <= found <= 100:
        remedy = f"give a whole number of {least} to 100"
        raise SpecError("no quality", field=QUALITY, value=found, remedy=remedy)
    return int(found)
