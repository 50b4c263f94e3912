"""The command that makes an array of HDF5 files."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine
from shardwrite.cli.completion import directories, files, one_of
from shardwrite.cli.helping import Grouped
from shardwrite.cli.options import (
    accept_source_option,
    dry_run_option,
    engine_options,
    json_option,
    restart_option,
)
from shardwrite.cli.terminal import echo
from shardwrite.cli.values import Extents
from shardwrite.operations.adopt import preview_adopt
from shardwrite.runs.outcome import handling_signals


@click.command(cls=Grouped)
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, shell_complete=files)
@click.argument("array", shell_complete=directories)
@click.option("--dataset", help="Name of the dataset. Not needed if each file has only one.")
@click.option(
    "--axis",
    type=int,
    help="The axis along which the files follow one another, counted from 0. Default: 0.",
)
@click.option(
    "--grid",
    type=Extents(),
    help="Number of files along each axis, such as 2,3, in place of --axis. The last axis runs "
    "fastest.",
)
@click.option("--move", is_flag=True, help="Move the files into ARRAY, and copy nothing.")
@click.option(
    "--link",
    is_flag=True,
    help="Give the files a second name in ARRAY, and copy nothing. They change under both names.",
)
@click.option(
    "--strategy",
    "way",  # the setting `strategy` is not its default
    shell_complete=one_of("fixed-order", "append-only", "C", "F", "morton", "hdf5"),
    help="How the shards of copies are written: fixed-order, append-only, C, F, morton, hdf5 or "
    "hdf5:NAME. Default: hdf5, with the name of the dataset in the files.",
)
@restart_option
@accept_source_option
@dry_run_option
@engine_options
@json_option
@command
def adopt(
    paths: tuple[str, ...],
    array: str,
    dataset: str | None,
    axis: int | None,
    grid: int | tuple[int, ...] | None,
    move: bool,
    link: bool,
    way: str | None,
    restart: bool,
    dry_run: bool,
    threads: int | None,
    workers: int | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Make ARRAY of HDF5 or NetCDF-4 files, of which each becomes a shard.

    FILE... are in their order along an axis, or in row-major order of a grid. Nothing is decoded.
    By default, the files stay as they are, and their chunks are copied. With --move or --link, each
    file gets an index of Zarr, and stays a valid HDF5 file.

    If the command was interrupted, run it again: it continues where it stopped. `shardwrite abandon
    ARRAY` restores the files instead, as long as ARRAY has not appeared.
    """
    if os.path.isfile(array):
        raise click.UsageError(
            f"ARRAY comes last, and {array} is a file: give the path of the new array behind the "
            "files"
        )
    if move and link:
        raise click.UsageError("give --move or --link, not both")
    if way is not None and (move or link):
        raise click.UsageError("--strategy is for copies, without --move and --link")
    how = "move" if move else "link" if link else "copy"
    counts = (grid,) if isinstance(grid, int) else grid
    given: dict[str, Any] = {"dataset": dataset, "axis": axis, "grid": counts, "how": how}
    with contextlib.ExitStack() as stack:
        stack.enter_context(handling_signals())
        stack.enter_context(engine(threads, workers, address))
        if dry_run:
            done = preview_adopt(paths, array, strategy=way, **given)
        else:
            shows = not as_json and how == "copy"
            done = shardwrite.adopt(
                paths, array, progress=shows, strategy=way, restart=restart, **given
            )
    echo(json.dumps(done.to_dict(), indent=2) if as_json else str(done))
