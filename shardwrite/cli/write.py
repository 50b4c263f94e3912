"""Commands that write a new array, or show the plan for it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import click

import shardwrite
from shardwrite.cli.checks import check, exit_unless_good
from shardwrite.cli.common import command, engine, open_to_write, requeueing
from shardwrite.cli.elastic import cluster_options, taken, write_with_jobs
from shardwrite.cli.options import (
    engine_options,
    json_option,
    layout_options,
    name_option,
    requeue_option,
    source_options,
)
from shardwrite.cli.terminal import echo
from shardwrite.runs.outcome import handling_signals

__all__ = ["plan", "write"]


@click.command()
@click.argument("src")
@click.argument("dst", required=False)
@source_options
@layout_options
@json_option
@click.option(
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, writable=True),
    help="Also write the plan as an HTML page.",
)
@command
def plan(
    src: str,
    dst: str | None,  # noqa: ARG001 (accepted so that the arguments are those of write)
    as_json: bool,
    html_path: str | None,
    **options: Any,
) -> None:
    """Show how SRC would be written: shards, files, tasks and memory. Nothing is written."""
    x, identity = open_to_write(src, options)
    made = shardwrite.plan(x, source_id=identity, **options)
    if html_path:
        with open(html_path, "w") as page:
            page.write(
                f"<!doctype html><meta charset='utf-8'><title>plan</title>{made._repr_html_()}"
            )
    echo(made.to_json() if as_json else str(made))


@click.command()
@click.argument("src")
@click.argument("dst")
@name_option
@source_options
@layout_options
@click.option("--overwrite", is_flag=True, help="Replace an array that exists.")
@click.option(
    "--restart",
    is_flag=True,
    help="Take away what a run that did not end has written, and start over.",
)
@click.option(
    "--recheck",
    is_flag=True,
    help="Before going on with such a run, decode the shards that it has committed.",
)
@click.option(
    "--publish",
    type=click.Choice(["last", "first"]),
    default="last",
    help="When zarr.json appears.",
)
@click.option("--durability", type=click.Choice(["full", "batch", "none"]), default="full")
@engine_options
@cluster_options
@requeue_option
@click.option("--verify", "checks", is_flag=True, help="Decode every inner chunk afterwards.")
@json_option
@command
def write(
    src: str,
    dst: str,
    overwrite: bool,
    threads: int | None,
    workers: int | None,
    address: str | None,
    n_requeues: int | None,
    checks: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write SRC (Zarr, HDF5, NetCDF, .npy, TIFF, NIfTI or raw) as the sharded array DST.

    After an interruption the same command goes on where it was. USR1 finishes the shards in flight
    and exits with 85, TERM and INT exit with 85 at once: incomplete, run me again. 0 is complete, 1
    an error, 2 usage, 75 storage trouble that may pass.
    """
    has_jobs, asked = taken(options)
    if has_jobs and (threads or workers or address):
        raise click.UsageError(
            "--cluster goes with none of --threads, --workers and --scheduler: its workers are jobs"
        )
    x, identity = open_to_write(src, options)
    options["mode"] = "w" if overwrite else "w-"
    with requeueing(n_requeues), handling_signals(), contextlib.ExitStack() as stack:
        if has_jobs:
            result = write_with_jobs(x, dst, asked, identity, progress=not as_json, **options)
        else:
            stack.enter_context(engine(threads, workers, address))
            result = shardwrite.to_sharded_zarr(
                x, dst, source_id=identity, progress=not as_json, **options
            )
    report = check(dst, options["name"], deep=True, quiet=as_json) if checks else None
    if as_json:
        echo(
            json.dumps(
                {**result.to_dict(), **({"verify": report.to_dict()} if report else {})}, indent=2
            )
        )
    else:
        echo(f"{result}\n{report}" if report else str(result))
    exit_unless_good(report)
