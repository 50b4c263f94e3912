"""What becomes of reports: a bar with bytes per second and the time that is left, or the user's own function."""

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

from shardwrite.write.commit import GroupReport

__all__ = ["reporting"]


@contextlib.contextmanager
def _bar(raw_nbytes: int) -> Iterator[Callable[[GroupReport], None]]:
    """Show a bar on standard error; nothing where that is no terminal.

    Parameters
    ----------
    raw_nbytes : int
        Decoded bytes of everything.

    Yields
    ------
    callable
        To be called with each report.
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
    """What to call with each report.

    Parameters
    ----------
    progress : bool or callable
        Whether to show a bar, or what to call.
    raw_nbytes : int
        Decoded bytes of everything.
    """
    if callable(progress):
        yield progress
    elif progress:
        with _bar(raw_nbytes) as on_report:
            yield on_report
    else:
        yield lambda _: None
