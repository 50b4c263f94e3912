"""Commands that check, picture and repair an array."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import shardwrite
from shardwrite.cli.common import command, engine_of, looking_at, open_as_dask, open_to_write
from shardwrite.cli.completion import directories
from shardwrite.cli.options import (
    SOURCE_NAMES,
    dry_run_option,
    engine_options,
    name_option,
    option_of,
    options_of,
    page_option,
    refuse,
    source_options,
)
from shardwrite.cli.terminal import echo, tell
from shardwrite.cli.values import fill_of
from shardwrite.errors import SpecError
from shardwrite.operations.recover import RecoverArguments
from shardwrite.operations.repair import RepairArguments
from shardwrite.operations.verify import (
    VerifyArguments,
    census_opened,
    is_group,
    open_begun,
    verify_group,
    verify_opened,
)
from shardwrite.operations.write import dtype_of
from shardwrite.place.target import resolve_place
from shardwrite.read.stored_array import stored_at
from shardwrite.runs.outcome import INCOMPLETE, handling_signals
from shardwrite.show.page import html
from shardwrite.show.png import write_png
from shardwrite.show.terminal import terminal_picture
from shardwrite.sources.opening import place_of


@command()
@click.argument("array", shell_complete=directories)
@options_of(VerifyArguments)
@dry_run_option
@source_options
@engine_options
def verify(
    array: str,
    name: str | None,
    deep: bool,
    against: str | None,
    accept: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Check every shard of ARRAY, or the list of a group.

    By default this reads only the index of each shard: its checksum, and where inner chunks lie.
    --deep decodes every inner chunk, too. The exit code is 0 if all is good, 1 if anything is
    wrong, and 85 if the array is not finished.
    """
    with engine_of(options):
        compared = _compared(against, options) if against else None
        report = check(
            array, name, deep=deep, against=compared, accept=accept and not dry_run, quiet=as_json
        )
    tell(report, as_json=as_json)
    exit_unless_good(report)


def _compared(against: str, options: dict[str, Any]) -> Any:
    """What an array is compared with: an array as it is stored, or a dask array.

    An array that cannot be taken as it is stored is read by its values.
    """
    is_plain = all(options[name] is None for name in ("source_format", "dataset", "shape", "dtype"))
    if is_plain:
        with contextlib.suppress(SpecError):
            stored_at(place_of(against))
            return against
    return open_as_dask(against, options)[0]


def check(
    array: str,
    name: str | None,
    *,
    deep: bool,
    quiet: bool,
    against: Any = None,
    accept: bool = False,
) -> shardwrite.Report:
    """Verify an array, and show a progress bar if standard error is a terminal."""
    place = resolve_place(array, name, is_read=True)
    if is_group(place):
        return verify_group(place, deep=deep, accept=accept, against=against is not None)
    opened = open_begun(array, name)
    with looking_at(opened, quiet=quiet) as on_shards:
        return verify_opened(opened, deep=deep, against=against, accept=accept, on_shards=on_shards)


def tell_written(
    result: shardwrite.WriteResult, array: str, name: str | None, *, checks: bool, as_json: bool
) -> None:
    """Print what was written and the report on it, if it is checked; exit if that is not good."""
    report = check(array, name, deep=True, quiet=as_json) if checks else None
    if as_json:
        told = {**result.to_dict(), **({"verify": report.to_dict()} if report else {})}
        echo(json.dumps(told, indent=2))
    else:
        echo(f"{result}\n{report}" if report else str(result))
    exit_unless_good(report)


def exit_unless_good(report: shardwrite.Report | None) -> None:
    """Exit with 1 if a report has problems, or with 85 if it is incomplete; else return."""
    if report is not None and not report.is_good:
        raise SystemExit(1)
    if report is not None and not report.is_complete:
        raise SystemExit(INCOMPLETE)


@command()
@click.argument("array", shell_complete=directories)
@name_option
@page_option("an HTML page with the picture")
@click.option(
    "--png",
    "png_path",
    type=click.Path(dir_okay=False, writable=True),
    help="Also write the picture as PNG (needs the extra plot).",
)
@click.option("--dark", "is_dark", is_flag=True, help="Draw the PNG on a dark ground.")
def census(
    array: str,
    name: str | None,
    html_path: str | None,
    png_path: str | None,
    is_dark: bool,
    as_json: bool,
) -> None:
    """Show which parts of ARRAY hold data.

    This reads only the index of each shard. It prints counts, and a picture of the shard grid.
    """
    if is_dark and not png_path:
        raise click.UsageError("--dark goes with --png")
    opened = open_begun(array, name)
    with looking_at(opened, quiet=as_json) as on_shards:
        found = census_opened(opened, on_shards)
    if html_path:
        Path(html_path).write_text(html(found), encoding="utf-8")
    if png_path:
        write_png(found, png_path, is_dark=is_dark)
    if as_json:
        echo(found.to_json())
        return
    echo(str(found))
    console = Console()
    console.print(terminal_picture(found, console.width))


@command()
@click.argument("array", shell_complete=directories)
@option_of(RepairArguments, "x")
@source_options
@click.option("--shallow", is_flag=True, help="Check only indexes, and decode nothing.")
@options_of(RepairArguments)
@dry_run_option
@engine_options
def repair(
    array: str,
    x: str | None,
    shallow: bool,
    compare: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the bad shards of ARRAY, and write them again from a source.

    Without --source, --salvage or --scan, nothing is changed: the command lists the shards to write
    again, and exits with 85 if there are any. With --source, bad shards are kept in
    ARRAY.quarantine, exactly these shards are written again, and leftover temporary files are
    removed. With --compare, so are shards whose values differ from the source.
    """
    if compare and not x:
        raise click.UsageError("--compare needs a source to compare with; give --source SRC")
    if compare and dry_run:
        raise click.UsageError(
            "--compare does not go with --dry-run; to see which shards differ, run "
            "`shardwrite verify ARRAY --against SRC`"
        )
    source = {name: options.pop(name) for name in SOURCE_NAMES if name in options}
    if dry_run:
        options |= {"salvage": False, "scan": False}
    with engine_of(options):
        done = shardwrite.repair(
            array,
            open_as_dask(x, source)[0] if x and not dry_run else None,
            deep=not shallow,
            compare=compare,
            progress=not as_json,
            **options,
        )
    tell(done, as_json=as_json)
    if not done.is_done:
        raise SystemExit(INCOMPLETE)


_OF_ARRAY = ("shape", "dtype")  # which a raw file has, too


@command()
@click.argument("array", shell_complete=directories)
@option_of(RecoverArguments, "x")
@source_options
@options_of(RecoverArguments)
@dry_run_option
@engine_options
def recover(
    array: str,
    x: str | None,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Publish ARRAY from its shards, if the state of its run is lost.

    Give the options with which the array was written. Each shard is decoded, and good ones are
    kept. Bad and missing ones are written from --source. Without --source, give --shape and
    --dtype; the command exits with 85 if shards are bad or missing.
    """
    if x is None:
        refuse({*SOURCE_NAMES}.difference(_OF_ARRAY), "goes with --source")
        source = {name: options.pop(name) for name in SOURCE_NAMES if name in options}
        shape, dtype = (source[name] for name in _OF_ARRAY)
        if options["fill_value"] is not None and dtype is not None:
            options["fill_value"] = fill_of(options["fill_value"], dtype_of(dtype))
        given: dict[str, Any] = {"shape": shape, "dtype": dtype}
    else:
        opened, identity = open_to_write(x, options)
        given = {"x": opened, "source_id": identity}
    with engine_of(options), handling_signals():
        done = shardwrite.recover(array, **given, dry_run=dry_run, progress=not as_json, **options)
    tell(done, as_json=as_json)
    if dry_run and (done.bad or done.n_missing):
        raise SystemExit(INCOMPLETE)
