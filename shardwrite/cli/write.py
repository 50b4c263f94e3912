"""Commands that write a new array, or show the plan for it."""

from __future__ import annotations

import contextlib
from typing import Any

import click

import shardwrite
from shardwrite.cli.checks import check, tell_written
from shardwrite.cli.common import command, engine, open_to_write, requeueing
from shardwrite.cli.completion import directories, files
from shardwrite.cli.elastic import cluster_options, taken, write_with_jobs
from shardwrite.cli.options import (
    dry_run_option,
    engine_options,
    json_option,
    layout_options,
    options_of,
    requeue_option,
    source_options,
)
from shardwrite.cli.terminal import Grouped, echo
from shardwrite.format.node import DOCUMENT
from shardwrite.journal.begin import find_run
from shardwrite.journal.bucket_runs import fetched
from shardwrite.operations.keywords import PlanArguments, WriteKeywords
from shardwrite.options import names
from shardwrite.place.target import resolve_new, target_via
from shardwrite.runs.outcome import handling_signals
from shardwrite.show.html import page_html
from shardwrite.stores.opening import is_store_url


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories, required=False)
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
    dst: str | None,
    as_json: bool,
    html_path: str | None,
    **options: Any,
) -> None:
    """Show how SRC would be written, without writing anything.

    The table shows shards, files, tasks and memory. If you give a DST in a bucket, it also shows
    requests and bytes. Any other DST is not looked at.
    """
    x, identity = open_to_write(src, options)
    store = dst if dst is not None and is_store_url(dst) else None
    made = shardwrite.plan(x, source_id=identity, store=store, **options)
    if html_path:
        with open(html_path, "w", encoding="utf-8") as page:
            page.write(page_html("plan", made._repr_html_()))
    echo(made.to_json() if as_json else str(made))


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories)
@source_options
@options_of(WriteKeywords, without=("casting", "exclusive"))
@engine_options
@cluster_options
@requeue_option
@dry_run_option
@click.option("--verify", "checks", is_flag=True, help="Decode every inner chunk at the end.")
@json_option
@command
def write(
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
    """Write the file SRC as the sharded array DST.

    SRC can be Zarr, HDF5, NetCDF, NumPy, TIFF, NIfTI, Neuroglancer precomputed or raw. FILE::PATH
    names an array in a file.
    If the command was interrupted, run it again: it continues where it stopped.

    Exit codes: 0 complete; 1 an error; 2 wrong usage; 75 storage trouble that may pass, such as a
    full disk; 85 incomplete, so run the command again. The signal USR1 finishes the shards in
    flight and exits with 85; TERM and INT exit with 85 at once.
    """
    has_jobs, asked = taken(options)
    if has_jobs and (threads or workers or address):
        raise click.UsageError(
            "--cluster goes with none of --threads, --workers and --scheduler: its workers are jobs"
        )
    x, identity = open_to_write(src, options)
    if dry_run:
        with engine(threads, workers, address):
            _show_plan(x, dst, identity, options, as_json=as_json)
        return
    with requeueing(n_requeues), handling_signals(), contextlib.ExitStack() as stack:
        if has_jobs:
            result = write_with_jobs(x, dst, asked, identity, progress=not as_json, **options)
        else:
            stack.enter_context(engine(threads, workers, address))
            result = shardwrite.to_sharded_zarr(
                x, dst, source_id=identity, progress=not as_json, **options
            )
    report = check(dst, options["name"], deep=True, quiet=as_json) if checks else None
    tell_written(result, report, as_json=as_json)


def _show_plan(x: Any, dst: str, identity: str, options: dict[str, Any], *, as_json: bool) -> None:
    """Print the plan of a new array, and what stands at its place."""
    target = resolve_new(dst, options["name"], layout=options["format"])
    target = target_via(target, options["via"])
    run = find_run(fetched(target))
    of_plan = {name: options[name] for name in names(PlanArguments) if name in options}
    made = shardwrite.plan(x, source_id=identity, store=dst, **of_plan)
    if as_json:
        echo(made.to_json())
        return
    there = "nothing" if target.place.read(DOCUMENT) is None else "an array or a group"
    if run is not None:
        is_same = run.digest == made.digest
        there = f"an unfinished run, of {'this' if is_same else 'another'} plan"
    echo(f"{made}\n\nat {target.label} there is {there}")
