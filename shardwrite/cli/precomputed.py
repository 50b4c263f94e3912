"""The command that writes a scale of a volume of Neuroglancer precomputed."""

from __future__ import annotations

import os
from typing import Any

import click

import shardwrite
from shardwrite.cli.checks import check, tell_written
from shardwrite.cli.common import command, engine, requeueing
from shardwrite.cli.completion import directories, files
from shardwrite.cli.convert_options import open_volume, volume_options
from shardwrite.cli.options import (
    dry_run_option,
    durability_option,
    engine_options,
    json_option,
    keep_report_option,
    recheck_option,
    requeue_option,
    restart_option,
    source_options,
)
from shardwrite.cli.terminal import Grouped, echo
from shardwrite.errors import SpecError
from shardwrite.place.base import without_kind
from shardwrite.runs.outcome import handling_signals
from shardwrite.stores.looking import local_path

_OF_RUNS = ("restart", "recheck", "durability", "keep_report")


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories)
@source_options
@volume_options
@click.option(
    "--memory-limit",
    help="Memory of each worker process, such as 4GB. Default: what it may use.",
)
@restart_option
@recheck_option
@durability_option
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
    x, identity = open_volume(src, options, as_source=True)
    _check_apart(src, dst)
    if dry_run:
        of_array = {name: options[name] for name in options if name not in _OF_RUNS}
        with engine(threads, workers, address):
            made = shardwrite.plan_precomputed(x, dst, source_id=identity, **of_array)
        echo(made.to_json() if as_json else str(made))
        return
    with requeueing(n_requeues), handling_signals(), engine(threads, workers, address):
        result = shardwrite.to_precomputed(
            x, dst, source_id=identity, progress=not as_json, **options
        )
    report = check(result.path, None, deep=True, quiet=as_json) if checks else None
    tell_written(result, report, as_json=as_json)


def _check_apart(src: str, dst: str) -> None:
    """Refuse to add a scale to the volume that it is read from."""
    src, place = (local_path(without_kind(one)) for one in (src, dst))
    volume = src if os.path.exists(src) else src.rpartition("::")[0]
    if os.path.isdir(volume) and os.path.realpath(volume) == os.path.realpath(place):
        raise SpecError(
            "it is the source, which would have the same image twice",
            field="dst",
            value=dst,
            remedy="give another place",
        )
