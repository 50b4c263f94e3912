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
from shardwrite.cli.options import name_option, option_of, page_option
from shardwrite.cli.terminal import echo, printable
from shardwrite.errors import redacted
from shardwrite.options import RunArguments
from shardwrite.show.report import html, lines_of


@command()
@click.argument("array", shell_complete=directories)
@name_option
@option_of(RunArguments, "run_dir")
@page_option("an HTML page with charts")
def report(
    array: str,
    name: str | None,
    run_dir: str | None,
    html_path: str | None,
    as_json: bool,
) -> None:
    """Show how the run on ARRAY goes or went, and what could be changed.

    This works while the run goes on, after it was interrupted, and after it has ended. To keep the
    timeline of a run beyond its end, give --keep-report to `write`. Nothing is changed.
    """
    found = shardwrite.report(array, name=name, run_dir=run_dir)
    if html_path:
        Path(html_path).write_text(html(found), encoding="utf-8")
    if as_json:
        echo(json.dumps(found.to_dict(), indent=2))
        return
    console = Console(highlight=False)
    for line in lines_of(found, min(100, console.width)):
        plain = printable(redacted(line.plain))
        console.print(line if plain == line.plain else Text(plain))
