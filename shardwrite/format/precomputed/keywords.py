"""Keywords that describe a new scale of a volume."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from shardwrite.options import Keywords, described, option

KINDS = ("image", "segmentation")
OF_SHARDS = ("raw", "gzip")
ENCODINGS = (*OF_SHARDS, "compressed_segmentation", "png", "jpeg")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ScaleKeywords(Keywords):
    """Keywords that describe a new scale, with the words of the format."""

    section: ClassVar[str] = "Array"

    resolution: Any = field(
        metadata=described(
            "Size of a voxel in nanometres, along x, y and z.",
            kind="sequence of float",
            parser="numbers",
            command_help="Size of a voxel in nanometres along x, y and z, such as 4,4,40. Default: "
            "that of SRC, if it is a volume of Neuroglancer.",
        )
    )
    voxel_offset: Any = option(
        (0, 0, 0),
        "Position of the first voxel, along x, y and z.",
        kind="sequence of int",
        parser="numbers",
        command_help="Position of the first voxel along x, y and z. Default: that of SRC, or 0.",
    )
    type: str = option(
        "image",
        "Kind of the volume.",
        choices=KINDS,
        command_help="Kind of the volume. Default: that of SRC, or image.",
    )
    encoding: str | None = option(
        None,
        """Encoding of the chunks. By default what `sharding` says, or else gzip. In the format,
        ``gzip`` and ``raw`` both have the encoding ``raw``, and gzip is the ``data_encoding`` of
        the shards. So raw chunks are gzipped if `sharding` says so.
        ``compressed_segmentation`` is for labels, ``uint32`` or ``uint64``, and the shards compress
        it once more. ``png`` is for one to four channels of ``uint8`` or ``uint16``. ``jpeg`` is
        for one or three channels of ``uint8``, and changes values. It needs simplejpeg, and is
        refused for a segmentation.""",
        choices=ENCODINGS,
        command_help="Encoding of the chunks. compressed_segmentation is for labels of uint32 or "
        "uint64, png for uint8 or uint16, and jpeg for uint8. jpeg changes values. Default: what "
        "--sharding says, or gzip.",
    )
    compressed_segmentation_block_size: Any = option(
        None,
        """Shape of a block along x, y and z, in voxels; by default ``(8, 8, 8)``. Each block has a
        table of its labels. It may be larger than a chunk.""",
        kind="sequence of int",
        parser="sizes",
        command_help="Size of a block along x, y and z, in voxels, for --encoding "
        "compressed_segmentation. Default: 8,8,8.",
    )
    jpeg_quality: int | None = option(
        None,
        "Quality of 1 to 100; by default 75. Channels are stored with all pixels (4:4:4).",
        least=1,
        most=100,
        command_help="Quality, for --encoding jpeg. Default: 75.",
    )
    chunks: Any = option(
        64,
        "Shape of a chunk along x, y and z. A chunk holds all channels.",
        kind="int or sequence of int",
        parser="sizes",
        command_help="Size of a chunk along x, y and z, in voxels: 64 or 64,64,16.",
    )
    sharding: Any = option(
        "auto",
        """Parameters of the shards, as in ``info``. A mapping may leave out ``@type``, ``hash`` and
        the encodings. With the hash ``"identity"``, a shard is a box of the volume, unless the bits
        are too few for all ids. Then, and with ``"murmurhash3_x86_128"``, its chunks lie all over
        the volume, and all chunks are written twice; see the notes.""",
        kind='"auto", mapping or ShardingParameters',
        parser="json",
        example='{"preshift_bits": 0, "minishard_bits": 6, "shard_bits": 2}',
        command_help="Parameters of the shards, as a JSON object such as info has under sharding, "
        "or auto.",
    )
    shard_nbytes: int | str = option(
        "128 MiB",
        'Largest decoded size of a shard, for ``sharding="auto"``.',
        command_help="Largest decoded size of a shard, if its parameters are chosen.",
    )
    index_nbytes: int | str = option(
        "12.5 kB",
        'Largest index that a reader fetches before a chunk, for ``sharding="auto"``.',
        command_help="Largest index that a reader fetches before a chunk, if parameters are "
        "chosen.",
    )
    key: str | None = option(
        None,
        """Name of the scale, which is its directory in that of the volume. By default it is made of
        the resolution, such as ``"4_4_40"``.""",
        command_help="Name of the scale. Default: made of the resolution, such as 4_4_40.",
    )
