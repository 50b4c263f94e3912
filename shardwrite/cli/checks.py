"""Commands that check, picture and repair an array."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import shardwrite
from shardwrite.cli.common import command, engine, open_as_dask
from shardwrite.cli.options import engine_options, json_option, name_option, source_options
from shardwrite.cli.terminal import echo
from shardwrite.operations.verify import open_begun, verify_opened
from shardwrite.picture import html, terminal_picture, write_png
from shardwrite.runs.outcome import INCOMPLETE

__all__ = ["census", "check", "exit_unless_good", "repair", "verify"]


@click.command()
@click.argument("array")
@name_option
@click.option("--deep", is_flag=True, help="Decode every inner chunk, too.")
@click.option("--against", metavar="SRC", help="Compare every value with this source, bit by bit.")
@source_options
@engine_options
@json_option
@command
def verify(
    array: str,
    name: str | None,
    deep: bool,
    against: str | None,
    threads: int | None,
    workers: int | None,
    address: str | None,
    as_json: bool,
    **source: Any,
) -> None:
    """Check every shard of ARRAY: index checksum, bounds, overlaps, order, shards that are missing.

    Exit code 1 if anything is wrong, 85 if a run has still to write some.
    """
    with engine(threads, workers, address):
        compared = open_as_dask(against, source)[0] if against else None
        report = check(array, name, deep=deep, against=compared, quiet=as_json)
    echo(json.dumps(report.to_dict(), indent=2) if as_json else str(report))
    exit_unless_good(report)


def check(
    array: str, name: str | None, *, deep: bool, quiet: bool, against: Any = None
) -> shardwrite.Report:
    """Verify an array, and show a progress bar if standard error is a terminal."""
    console, opened = Console(stderr=True), open_begun(array, name)
    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal or quiet) as progress:
        task = progress.add_task("checking", total=opened.array.metadata.grid.n_shards)

        def advance(n: int) -> None:
            progress.update(task, advance=n)

        return verify_opened(opened, deep=deep, against=against, on_shards=advance)


def exit_unless_good(report: shardwrite.Report | None) -> None:
    """Exit with 1 if a report has problems, or with 85 if it is incomplete; else return."""
    if report is not None and not report.is_good:
        raise SystemExit(1)
    if report is not None and not report.is_complete:
        raise SystemExit(INCOMPLETE)


@click.command()
@click.argument("array")
@name_option
@click.option(
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, writable=True),
    help="Also write a page with the picture.",
)
@click.option(
    "--png",
    "png_path",
    type=click.Path(dir_okay=False, writable=True),
    help="Also write the picture (extra: plot).",
)
@json_option
@command
def census(
    array: str, name: str | None, html_path: str | None, png_path: str | None, as_json: bool
) -> None:
    """Count the inner chunks of ARRAY that hold data, from indexes only, and show the shard grid
    as a picture.
    """  # noqa: D205 (help text)
    found = shardwrite.census(array, name=name)
    if html_path:
        Path(html_path).write_text(html(found))
    if png_path:
        write_png(found, png_path)
    if as_json:
        echo(json.dumps(found.to_dict(), indent=2))
        return
    echo(str(found))
    console = Console()
    console.print(terminal_picture(found, console.width))


@click.command()
@click.argument("array")
@name_option
@click.option(
    "--source",
    "src",
    metavar="SRC",
    help="Write the bad and missing shards again from this source.",
)
@source_options
@click.option("--shallow", is_flag=True, help="Look at indexes only, and do not decode.")
@click.option(
    "--salvage",
    is_flag=True,
    help="Cut a shard whose tail is torn back to the size in the journal.",
)
@click.option(
    "--scan",
    is_flag=True,
    help="Without a journal, search such a shard backwards for an index whose checksum fits.",
)
@click.option("--memory-limit", help="Memory of a worker process, such as 4GB.")
@engine_options
@json_option
@command
def repair(
    array: str,
    name: str | None,
    src: str | None,
    shallow: bool,
    salvage: bool,
    scan: bool,
    memory_limit: str | None,
    threads: int | None,
    workers: int | None,
    address: str | None,
    as_json: bool,
    **source: Any,
) -> None:
    """Find torn and missing shards of ARRAY; with --source, quarantine them and write exactly these
    again.

    Stale temporaries are then swept, too. Without --source, --salvage or --scan nothing is changed:
    it prints what is to be written, and the exit code is 85 if that is anything.
    """  # noqa: D205 (help text)
    with engine(threads, workers, address):
        x = open_as_dask(src, source)[0] if src else None
        done = shardwrite.repair(
            array,
            x,
            name=name,
            deep=not shallow,
            salvage=salvage,
            scan=scan,
            memory_limit=memory_limit,
            progress=not as_json,
        )
    echo(json.dumps(done.to_dict(), indent=2) if as_json else str(done))
    if not done.is_done:
        raise SystemExit(INCOMPLETE)
