"""The command that makes an array of HDF5 files."""

from __future__ import annotations

import os
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine_of
from shardwrite.cli.completion import directories, files
from shardwrite.cli.options import (
    accept_source_option,
    dry_run_option,
    engine_options,
    options_of,
)
from shardwrite.cli.terminal import tell
from shardwrite.hdf5.adopt import AdoptArguments, preview_adopt
from shardwrite.runs.outcome import handling_signals


@command()
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, shell_complete=files)
@click.argument("array", shell_complete=directories)
@options_of(AdoptArguments)
@accept_source_option
@dry_run_option
@engine_options
def adopt(
    paths: tuple[str, ...],
    array: str,
    dry_run: bool,
    as_json: bool,
    **options: Any,
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
    if isinstance(options["grid"], int):
        options["grid"] = (options["grid"],)
    with handling_signals(), engine_of(options):
        if dry_run:
            done = preview_adopt(AdoptArguments(paths, array, **options))
        else:
            done = shardwrite.adopt(paths, array, progress=not as_json, **options)
    tell(done, as_json=as_json)
