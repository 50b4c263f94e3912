"""The command that writes a scale of a volume of Neuroglancer precomputed."""

from __future__ import annotations

from typing import Any

import click

import shardwrite
from shardwrite.cli.checks import check, tell_written
from shardwrite.cli.common import command, engine, open_to_write, requeueing
from shardwrite.cli.completion import directories, files
from shardwrite.cli.helping import Grouped
from shardwrite.cli.options import (
    dry_run_option,
    engine_options,
    json_option,
    keep_report_option,
    requeue_option,
    source_options,
)
from shardwrite.cli.terminal import echo
from shardwrite.cli.values import Json, Numbers, Sizes
from shardwrite.format.precomputed.new import ENCODINGS, KINDS, checked_axes
from shardwrite.runs.outcome import handling_signals

__all__ = ["precomputed"]

_OF_RUNS = ("restart", "recheck", "durability", "keep_report")


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories)
@source_options
@click.option(
    "--axes",
    help="Axes of SRC, the letters x, y and z in any order, with c for channels if there are any. "
    "Default: the names of its dimensions.",
)
@click.option(
    "--resolution",
    type=Numbers(),
    help="Size of a voxel in nanometres along x, y and z, such as 4,4,40. Default: that of SRC, if "
    "it is a volume of Neuroglancer.",
)
@click.option(
    "--voxel-offset",
    type=Numbers(),
    help="Position of the first voxel along x, y and z. Default: that of SRC, or 0.",
)
@click.option(
    "--type",
    type=click.Choice(KINDS),
    help="Kind of the volume. Default: that of SRC, or image.",
)
@click.option(
    "--encoding",
    type=click.Choice(ENCODINGS),
    help="Encoding of the chunks. compressed_segmentation is for labels of uint32 or uint64, png "
    "for uint8 or uint16, and jpeg for uint8. jpeg changes values. Default: what --sharding says, "
    "or gzip.",
)
@click.option(
    "--compressed-segmentation-block-size",
    type=Sizes(),
    help="Size of a block along x, y and z, in voxels, for --encoding compressed_segmentation. "
    "Default: 8,8,8.",
)
@click.option(
    "--jpeg-quality",
    type=click.IntRange(1, 100),
    help="Quality, for --encoding jpeg. Default: 75.",
)
@click.option(
    "--chunks",
    type=Sizes(),
    default="64",
    help="Size of a chunk along x, y and z, in voxels: 64 or 64,64,16.",
)
@click.option(
    "--sharding",
    type=Json('{"preshift_bits": 0, "minishard_bits": 6, "shard_bits": 2}'),
    default="auto",
    help="Parameters of the shards, as a JSON object such as info has under sharding, or auto.",
)
@click.option(
    "--shard-nbytes",
    default="128 MiB",
    help="Largest decoded size of a shard, if its parameters are chosen.",
)
@click.option(
    "--index-nbytes",
    default="12.5 kB",
    help="Largest index that a reader fetches before a chunk, if parameters are chosen.",
)
@click.option("--key", help="Name of the scale. Default: made of the resolution, such as 4_4_40.")
@click.option("--write-empty-chunks", is_flag=True, help="Also store chunks that hold only zeros.")
@click.option(
    "--memory-limit",
    help="Memory of each worker process, such as 4GB. Default: what it may use.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="Remove what an interrupted run has written, and start over.",
)
@click.option(
    "--recheck",
    is_flag=True,
    help="Before an interrupted run continues, decode the shards that it has written.",
)
@click.option(
    "--durability",
    type=click.Choice(["full", "batch", "none"]),
    help="What survives a power cut: full and batch sync shards to the disk, none does not. "
    "Default: full.",
)
@keep_report_option
@engine_options
@requeue_option
@dry_run_option
@click.option("--verify", "checks", is_flag=True, help="Decode every chunk at the end.")
@json_option
@command
def precomputed(
    src: str,
    dst: str,
    threads: int | None,
    workers: int | None,
    address: str | None,
    n_requeues: int | None,
    dry_run: bool,
    checks: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write SRC as a scale of the Neuroglancer volume DST, in shards.

    If DST has an info file, the scale is added to it. The info file is written last. If the command
    was interrupted, run it again: it continues where it stopped.
    """
    x, identity = _opened(src, options)
    if dry_run:
        of_array = {name: options[name] for name in options if name not in _OF_RUNS}
        with engine(threads, workers, address):
            made = shardwrite.plan_precomputed(x, source_id=identity, **of_array)
        echo(made.to_json() if as_json else str(made))
        return
    with requeueing(n_requeues), handling_signals(), engine(threads, workers, address):
        result = shardwrite.to_precomputed(
            x, dst, source_id=identity, progress=not as_json, **options
        )
    report = check(result.path, None, deep=True, quiet=as_json) if checks else None
    tell_written(result, report, as_json=as_json)


def _opened(src: str, options: dict[str, Any]) -> Any:
    """Open the source, and take from it what the options leave out."""
    known: dict[str, Any] = {"fill_value": None, "dimension_names": None, "attributes": None}
    options.update(known)
    x, identity = open_to_write(src, options)
    known = {name: options.pop(name) for name in known}
    of_volume = (known["attributes"] or {}).get("precomputed", {})
    for name, default in (("resolution", None), ("voxel_offset", (0, 0, 0)), ("type", "image")):
        if options[name] is None:
            options[name] = of_volume.get(name, default)
    options["axes"] = checked_axes(options["axes"], known["dimension_names"], x.ndim)
    return x, identity
