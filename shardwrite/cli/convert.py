"""Commands that convert arrays that exist."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine, requeueing
from shardwrite.cli.completion import directories, files
from shardwrite.cli.helping import Grouped
from shardwrite.cli.options import engine_options, json_option, requeue_option
from shardwrite.cli.terminal import echo
from shardwrite.cli.values import Json, Names, Sizes
from shardwrite.runs.outcome import handling_signals

__all__ = ["reshard", "shard", "unshard"]

shards_option = click.option(
    "--shards",
    type=Sizes(),
    default="auto",
    help="Inner chunks of a shard: 8 along each axis or 4,4,16. Or its decoded size, 256MB. Or the "
    "dimensions that it spans whole, XYZ or lat,lon. Or none.",
)
index_option = click.option(
    "--index-location",
    type=click.Choice(["end", "start"]),
    help="Where a shard holds its index. Default: as in SRC, or at the end.",
)


def _converting(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all conversions have."""
    for decorate in reversed(
        (
            click.option(
                "--checksum/--no-checksum",
                default=None,
                help="Add a checksum (crc32c) to each chunk, or verify and drop it. "
                "Default: as in SRC.",
            ),
            click.option("--check", is_flag=True, help="Decode each chunk before it is copied."),
            click.option(
                "--drop-empty",
                is_flag=True,
                help="Leave out chunks that hold only the fill value. This decodes all chunks.",
            ),
            click.option(
                "--dimension-names",
                type=Names(),
                help="Names of the axes, such as time,y,x. Default: those of SRC.",
            ),
            click.option(
                "--include",
                multiple=True,
                metavar="PATTERN",
                help="Convert only arrays whose paths fit, such as images/*. May be repeated.",
            ),
            click.option(
                "--exclude",
                multiple=True,
                metavar="PATTERN",
                help="Leave out arrays whose paths fit. May be repeated.",
            ),
            click.option(
                "--min-chunks",
                type=click.IntRange(0),
                default=2,
                help="In a group, arrays with fewer inner chunks keep their shards.",
            ),
            click.option("--memory-limit", help="Memory of each worker process, such as 4GB."),
            click.option("--dry-run", is_flag=True, help="Show the plan, and write nothing."),
            click.option("--overwrite", is_flag=True, help="Replace DST if it exists."),
            click.option(
                "--restart",
                is_flag=True,
                help="Remove what an interrupted run has written, and start over.",
            ),
            click.option(
                "--recheck",
                is_flag=True,
                help="Decode the shards that an interrupted run has written before it goes on.",
            ),
            click.option(
                "--durability",
                type=click.Choice(["full", "batch", "none"]),
                default="full",
                help="What survives a power cut: full and batch sync shards to the disk, none does "
                "not.",
            ),
            engine_options,
            requeue_option,
            json_option,
        )
    ):
        function = decorate(function)
    return function


_IN_PLACE = (
    "Without DST, the new data take the name of SRC once they are complete and were compared with "
    "the old data, which are then removed. This needs room for both. Where the file system cannot "
    "exchange two names, nothing stands at SRC for a moment."
)
_OF_RUNS = ("durability", "restart", "recheck", "overwrite")


def _convert(
    src: str,
    dst: str | None,
    *,
    dry_run: bool,
    threads: int | None,
    workers: int | None,
    address: str | None,
    n_requeues: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert an array, or show the plan for that."""
    run = {name: options.pop(name) for name in _OF_RUNS}
    with requeueing(n_requeues), handling_signals(), engine(threads, workers, address):
        if dry_run:
            made = shardwrite.plan_reshard(src, **options)
            echo(made.to_json() if as_json else str(made))
            if dst is None and not as_json:
                echo(_IN_PLACE)
            return
        mode = "w" if run.pop("overwrite") else "w-"
        done = shardwrite.reshard(src, dst, mode=mode, progress=not as_json, **run, **options)
    echo(json.dumps(done.to_dict(), indent=2) if as_json else str(done))


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories, required=False)
@shards_option
@index_option
@_converting
@command
def shard(src: str, dst: str | None, **options: Any) -> None:
    """Put the encoded chunks of SRC into shards.

    DST is a new array. Without DST, SRC is converted in place. If SRC is a group, all of its arrays
    are converted. SRC can also be a file of HDF5 or NetCDF-4, a Zarr store in
    a ZIP file, or a part of one, FILE::PATH.

    Chunks are copied without decoding wherever that is possible. If the command was interrupted,
    run it again: it continues where it stopped. If SRC has these shards already, nothing is done.
    """
    if options["shards"] is None:
        raise click.UsageError("shards are needed; unshard makes an array without them")
    _convert(src, dst, **options)


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories, required=False)
@_converting
@command
def unshard(src: str, dst: str | None, **options: Any) -> None:
    """Make one file of each encoded chunk of SRC.

    DST is a new array. Without DST, SRC is converted in place. If SRC is a group, all of its arrays
    are converted. Nothing is decoded. If the command was interrupted, run it again: it continues
    where it stopped. If SRC has no shards, nothing is done.
    """
    _convert(src, dst, shards=None, **options)


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories, required=False)
@shards_option
@click.option(
    "--chunks",
    type=Sizes(),
    help="Size of an inner chunk: 64 or 64,64,16 elements, or 512kB. Default: as in SRC.",
)
@click.option(
    "--compressors",
    type=Json(),
    default="keep",
    help="A codec's name, a JSON list of codecs, none, auto (zstd with a checksum), or keep.",
)
@index_option
@_converting
@command
def reshard(src: str, dst: str | None, **options: Any) -> None:
    """Write SRC again with other shards, inner chunks or codecs.

    DST is a new array. Without DST, SRC is converted in place. If SRC is a group, all of its arrays
    are converted. If inner chunks and codecs stay the same, encoded chunks are copied. Otherwise
    all are decoded and encoded again. If the command was interrupted, run it again: it continues
    where it stopped.
    """
    if options["compressors"] == [{"name": "keep", "configuration": {}}]:
        options["compressors"] = "keep"
    _convert(src, dst, **options)
