"""Keywords of the functions that write volumes, in groups, and the arguments made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from shardwrite.operations.keywords import OF_URLS, ProgressKeywords
from shardwrite.options import (
    EmptyKeywords,
    GraphKeywords,
    Keywords,
    PlanKeywords,
    RunKeywords,
    StateKeywords,
    argument,
    arguments,
    keywords,
    option,
    same_as,
)

KINDS = ("image", "segmentation")

OF_SHARDS = ("raw", "gzip")

ENCODINGS = (*OF_SHARDS, "compressed_segmentation", "png", "jpeg")


# ---- A new scale


@keywords
class ScaleKeywords(Keywords):
    """Keywords that describe a new scale, with the words of the format."""

    section: ClassVar[str] = "Array"

    resolution: Any = argument(
        "Size of a voxel in nanometres, along x, y and z.",
        kind="sequence of float",
        parser="numbers",
        command_help="Size of a voxel in nanometres along x, y and z, such as 4,4,40. Default: "
        "that of SRC, if it is a volume of Neuroglancer.",
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


# ---- Arguments of functions


@keywords
class VolumeKeywords(EmptyKeywords, GraphKeywords, ScaleKeywords):
    """What makes a plan of a volume."""

    section: ClassVar[str] = "Array"
    HELP: ClassVar[Mapping[str, str]] = {
        "write_empty_chunks": """Store also chunks that hold only zeros. Readers take a chunk that
        is missing for zeros.""",
    }

    axes: str | None = option(
        None,
        """Axes of `x`: the letters x, y and z in any order, with c for channels if there are any.
        By default the names of its dimensions tell them, and they must not say otherwise. With
        ``"zyx"`` or ``"czyx"`` no bytes are transposed.""",
        command_help="Axes of SRC, the letters x, y and z in any order, with c for channels if "
        "there are any. Default: the names of its dimensions.",
    )
    scales: Mapping[Sequence[float], Any] | None = option(
        None,
        """Coarser or finer arrays of the same image, by the sizes of their voxels in nanometres.
        Each becomes one more scale, with the axes and the other parameters of `x`. Its offset is
        where `x` begins, in its own voxels. All scales enter ``info`` at the end, together. They
        are written in one task graph, so that work which they share with `x` is done once. Only
        arrays that take several graphs, and chunks that are scattered, are written one after the
        other.""",
        kind="mapping of sequence of float to array_like",
        flag=None,
    )
    max_source_reruns: float = same_as(
        PlanKeywords, "max_source_reruns", default=PlanKeywords.max_source_reruns
    )


@arguments
class VolumeArguments(VolumeKeywords):
    """What becomes a volume."""

    x: Any = argument(
        """The source, as in :func:`to_sharded_zarr`. Its dtype is ``uint8``, ``uint16``,
        ``uint32``, ``uint64``, ``int8``, ``int16``, ``int32`` or ``float32``. The encoded chunks of
        a `zarr.Array` are copied if they are what the scale needs; see the notes of
        :func:`to_precomputed`.""",
        kind="array_like",
    )


@arguments
class PlanPrecomputedArguments(VolumeArguments):
    """Arguments of `plan_precomputed`."""

    path: Any = option(
        None,
        """Where the volume would go. In a bucket, shards wait in memory until they are put, and the
        plan counts that. By default they do not wait.""",
        kind="str, path, or store",
    )
    storage_options: Mapping[str, Any] | None = option(None, OF_URLS, kind="mapping")


@arguments
class PrecomputedArguments(ProgressKeywords, RunKeywords, StateKeywords, VolumeArguments):
    """Arguments of `to_precomputed`."""

    path: Any = argument(
        """The directory of the volume, the URL of a bucket such as ``"s3://bucket/volume"``, or
        a store as in :func:`to_sharded_zarr`. If it has an ``info``, the scale is added to it.
        A URL may begin with ``precomputed://``, as in Neuroglancer.""",
        kind="str, path, or store",
    )
    storage_options: Mapping[str, Any] | None = option(None, OF_URLS, kind="mapping")
