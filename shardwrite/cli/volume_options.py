"""Options of commands that write a scale of a Neuroglancer volume, and the source of one."""

from __future__ import annotations

from typing import Any

import click

from shardwrite.cli.common import open_to_write
from shardwrite.cli.options import combined
from shardwrite.cli.values import Json, Numbers, Sizes
from shardwrite.format.precomputed.new import ENCODINGS, KINDS, checked_axes, row_major
from shardwrite.runs.given import take

volume_options = combined(
    click.option(
        "--axes",
        help="Axes of SRC, the letters x, y and z in any order, with c for channels if "
        "there are any. Default: the names of its dimensions.",
    ),
    click.option(
        "--resolution",
        type=Numbers(),
        help="Size of a voxel in nanometres along x, y and z, such as 4,4,40. Default: "
        "that of SRC, if it is a volume of Neuroglancer.",
    ),
    click.option(
        "--voxel-offset",
        type=Numbers(),
        help="Position of the first voxel along x, y and z. Default: that of SRC, or 0.",
    ),
    click.option(
        "--type",
        type=click.Choice(KINDS),
        help="Kind of the volume. Default: that of SRC, or image.",
    ),
    click.option(
        "--encoding",
        type=click.Choice(ENCODINGS),
        help="Encoding of the chunks. compressed_segmentation is for labels of uint32 or"
        " uint64, png for uint8 or uint16, and jpeg for uint8. jpeg changes values."
        " Default: what --sharding says, or gzip.",
    ),
    click.option(
        "--compressed-segmentation-block-size",
        type=Sizes(),
        help="Size of a block along x, y and z, in voxels, for --encoding "
        "compressed_segmentation. Default: 8,8,8.",
    ),
    click.option(
        "--jpeg-quality",
        type=click.IntRange(1, 100),
        help="Quality, for --encoding jpeg. Default: 75.",
    ),
    click.option(
        "--chunks",
        type=Sizes(),
        default="64",
        help="Size of a chunk along x, y and z, in voxels: 64 or 64,64,16.",
    ),
    click.option(
        "--sharding",
        type=Json('{"preshift_bits": 0, "minishard_bits": 6, "shard_bits": 2}'),
        default="auto",
        help="Parameters of the shards, as a JSON object such as info has under sharding, or auto.",
    ),
    click.option(
        "--shard-nbytes",
        default="128 MiB",
        help="Largest decoded size of a shard, if its parameters are chosen.",
    ),
    click.option(
        "--index-nbytes",
        default="12.5 kB",
        help="Largest index that a reader fetches before a chunk, if parameters are chosen.",
    ),
    click.option(
        "--key", help="Name of the scale. Default: made of the resolution, such as 4_4_40."
    ),
    click.option(
        "--write-empty-chunks", is_flag=True, help="Also store chunks that hold only zeros."
    ),
)
"""Options that describe a scale."""


def open_volume(src: str, options: dict[str, Any], *, as_source: bool = False) -> Any:
    """Open the source, and take from it what the options leave out."""
    known: dict[str, Any] = {"fill_value": None, "dimension_names": None, "attributes": None}
    options.update(known)
    x, identity = open_to_write(src, options, as_source=as_source)
    known = {name: options.pop(name) for name in known}
    of_volume = (known["attributes"] or {}).get("precomputed")
    of_volume = of_volume if isinstance(of_volume, dict) else {}
    for name, default in (("resolution", None), ("voxel_offset", (0, 0, 0)), ("type", "image")):
        if options[name] is None:
            options[name] = of_volume.get(name, default)
    options["axes"] = checked_axes(options["axes"], known["dimension_names"], len(x.shape))
    return x, identity


def in_order(x: Any, axes: str | None) -> Any:
    """A source whose axes have the order of a scale that is written in parts.

    - `axes`: letters of its axes; None if they are in order.
    """
    n_axes = len(x.shape)
    order = [*range(n_axes)] if axes is None else row_major(checked_axes(axes, None, n_axes))
    return x if order == [*range(n_axes)] else take(x).array.transpose(order)
