"""A bar with bytes per second and the time that is left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from shardwrite.commit import GroupReport

__all__ = ["progress_bar"]


@contextlib.contextmanager
def progress_bar(raw_nbytes: int) -> Iterator[Callable[[GroupReport], None]]:
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
    columns = (TextColumn("writing"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("writing", total=raw_nbytes)
        yield lambda report: progress.update(task, advance=report.raw_nbytes)
