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
from shardwrite.cli.options import (
    accept_source_option,
    dry_run_option,
    engine_options,
    json_option,
    restart_option,
)
from shardwrite.cli.terminal import Grouped, echo
from shardwrite.cli.values import Extents
from shardwrite.hdf5.adopt import preview_adopt
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
@click.option(
    "--strategy",
    "way",  # the setting `strategy` is not its default
    shell_complete=one_of("fixed-order", "append-only", "C", "F", "morton", "hdf5"),
    help="How the shards are written: fixed-order, append-only, C, F, morton, hdf5 or "
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
    way: str | None,
    restart: bool,
    dry_run: bool,
    threads: int | None,
    workers: int | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Make ARRAY of HDF5 or NetCDF-4 files, with a shard for each file.

    FILE... are in their order along an axis, or in row-major order of a grid. Their chunks are
    copied, and nothing is decoded. The files stay as they are.

    If the command was interrupted, run it again: it continues where it stopped.
    """
    if os.path.isfile(array):
        raise click.UsageError(
            f"ARRAY comes last, and {array} is a file: give the path of the new array behind the "
            "files"
        )
    counts = (grid,) if isinstance(grid, int) else grid
    given: dict[str, Any] = {"dataset": dataset, "axis": axis, "grid": counts}
    with contextlib.ExitStack() as stack:
        stack.enter_context(handling_signals())
        stack.enter_context(engine(threads, workers, address))
        if dry_run:
            done = preview_adopt(paths, array, strategy=way, **given)
        else:
            done = shardwrite.adopt(
                paths, array, progress=not as_json, strategy=way, restart=restart, **given
            )
    echo(json.dumps(done.to_dict(), indent=2) if as_json else str(done))
