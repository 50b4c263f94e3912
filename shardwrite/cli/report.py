"""The command that reports on a run."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

import shardwrite
from shardwrite.cli.common import command
from shardwrite.cli.completion import directories
from shardwrite.cli.helping import Grouped
from shardwrite.cli.live import serve
from shardwrite.cli.options import json_option, name_option
from shardwrite.cli.terminal import echo, printable
from shardwrite.errors import redacted
from shardwrite.reporting.page import html
from shardwrite.reporting.report import RunReport
from shardwrite.reporting.text import lines_of


@click.command(cls=Grouped)
@click.argument("array", shell_complete=directories)
@name_option
@click.option("--run-dir", help="Directory of the run's state, if ARRAY lies in no directory.")
@click.option(
    "--html",
    "html_path",
    type=click.Path(dir_okay=False, writable=True),
    help="Also write an HTML page with charts.",
)
@click.option(
    "--live",
    "port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve the page to browsers of this machine until Ctrl-C; 0 takes a free port.",
)
@click.option(
    "--every",
    type=click.IntRange(1, 3600),
    default=5,
    metavar="SECONDS",
    help="With --live: time between two looks at the run.",
)
@json_option
@command
def report(
    array: str,
    name: str | None,
    run_dir: str | None,
    html_path: str | None,
    port: int | None,
    every: int,
    as_json: bool,
) -> None:
    """Show how the run on ARRAY goes or went, and what could be changed.

    This works while the run goes on, after it was interrupted, and after it has ended. To keep the
    timeline of a run beyond its end, give --keep-report to `write`. Nothing is changed.

    With --live, the command serves a page that follows the run, on the loopback interface. On a
    cluster, forward the port from your own machine: ssh -L PORT:localhost:PORT LOGIN-NODE.
    """
    if port is not None and (as_json or html_path):
        raise click.UsageError("--live goes with neither --json nor --html")

    def look() -> RunReport:
        return shardwrite.report(array, name=name, run_dir=run_dir)

    found = look()
    if port is not None:
        serve(look, found, port, every)
        return
    if html_path:
        Path(html_path).write_text(html(found), encoding="utf-8")
    if as_json:
        echo(json.dumps(found.to_dict(), indent=2))
        return
    console = Console(highlight=False)
    for line in lines_of(found, min(100, console.width)):
        plain = printable(redacted(line.plain))
        console.print(line if plain == line.plain else Text(plain))
