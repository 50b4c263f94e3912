"""Progress of a run: a bar with throughput and remaining time, or the user's own function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from shardwrite.write.context import GroupReport

__all__ = ["reporting"]


@contextlib.contextmanager
def _bar(raw_nbytes: int) -> Iterator[Callable[[GroupReport], None]]:
    """Show a progress bar on standard error, if that is a terminal.

    Parameters
    ----------
    raw_nbytes : int
        Decoded bytes of everything that is written.

    Yields
    ------
    callable
        Function to call with each report.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("writing"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("writing", total=raw_nbytes)
        yield lambda report: progress.update(task, advance=report.raw_nbytes)


@contextlib.contextmanager
def reporting(
    progress: bool | Callable[[GroupReport], None], raw_nbytes: int
) -> Iterator[Callable[[GroupReport], None]]:
    """Report the progress of the block.

    Parameters
    ----------
    progress : bool or callable
        Whether to show a bar, or the function to call with each report.
    raw_nbytes : int
        Decoded bytes of everything that is written.

    Yields
    ------
    callable
        Function to call with each report.
    """
    if callable(progress):
        yield progress
    elif progress:
        with _bar(raw_nbytes) as on_report:
            yield on_report
    else:
        yield lambda _: None
