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
    help="As in SRC by default, or at the end.",
)


def _converting(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all conversions have."""
    for decorate in reversed(
        (
            click.option(
                "--checksum/--no-checksum",
                default=None,
                help="End each chunk with a crc32c, or drop that after a check. As in SRC by "
                "default.",
            ),
            click.option("--check", is_flag=True, help="Decode each chunk before it is copied."),
            click.option(
                "--drop-empty",
                is_flag=True,
                help="Leave out chunks that hold only the fill value; all chunks are decoded.",
            ),
            click.option(
                "--dimension-names",
                type=Names(),
                help="Name of each axis, such as time,y,x; those of SRC by default.",
            ),
            click.option(
                "--include",
                multiple=True,
                metavar="PATTERN",
                help="Convert only arrays of SRC whose paths fit, such as images/*; repeatable.",
            ),
            click.option(
                "--exclude",
                multiple=True,
                metavar="PATTERN",
                help="Leave out arrays of SRC whose paths fit; repeatable.",
            ),
            click.option(
                "--min-chunks",
                type=click.IntRange(0),
                default=2,
                help="In a group, arrays of fewer inner chunks keep the shards that they have.",
            ),
            click.option("--memory-limit", help="Memory of a worker process, such as 4GB."),
            click.option("--dry-run", is_flag=True, help="Show the plan. Nothing is written."),
            click.option("--overwrite", is_flag=True, help="Replace an array that exists."),
            click.option(
                "--restart",
                is_flag=True,
                help="Take away what a run that did not end has written, and start over.",
            ),
            click.option(
                "--recheck",
                is_flag=True,
                help="Before going on with such a run, decode the shards that it has committed.",
            ),
            click.option(
                "--durability",
                type=click.Choice(["full", "batch", "none"]),
                help="Sync shards one by one (full, the default), many at a time, or not at all.",
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

    DST is a new array. Without it, SRC is converted in its place. SRC may be a group: all of its
    arrays are converted. It may be a file of HDF5 or NetCDF-4, or a dataset in one, FILE::PATH.
    Nothing is decoded that need not be. After an interruption the same command goes on where it
    was. If SRC has the layout already, nothing is done.
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

    DST is a new array. Without it, SRC is converted in its place. SRC may be a group: all of its
    arrays are converted. Nothing is decoded. After an interruption the same command goes on where
    it was. If SRC has no shards, nothing is done.
    """
    _convert(src, dst, shards=None, **options)


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories, required=False)
@shards_option
@click.option("--chunks", type=Sizes(), help="Inner chunk shape in elements, or 1MB; as in SRC.")
@click.option(
    "--compressors",
    type=Json(),
    default="keep",
    help="JSON list of codecs, a codec's name, none, auto (zstd and crc32c), or keep.",
)
@index_option
@_converting
@command
def reshard(src: str, dst: str | None, **options: Any) -> None:
    """Write SRC again with other shards, inner chunks or codecs.

    DST is a new array. Without it, SRC is converted in its place. SRC may be a group: all of its
    arrays are converted. Encoded chunks are copied where inner chunks and codecs stay; otherwise
    all are decoded and re-encoded. After an interruption the same command goes on where it was.
    """
    if options["compressors"] == [{"name": "keep", "configuration": {}}]:
        options["compressors"] = "keep"
    _convert(src, dst, **options)
