"""Progress of a run: a bar with throughput and remaining time, or the user's own function."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import numpy as np

from shardwrite.errors import SpecError
from shardwrite.seams import resolve
from shardwrite.write.context import GroupReport

OnReport = Callable[[GroupReport], None]


@runtime_checkable
class Progress(Protocol):
    """A receiver of reports that also wants to know what was there before."""

    def __call__(self, report: GroupReport) -> None:
        """Take the report of a group."""

    def found(self, raw_nbytes: int) -> None:
        """Take the number of decoded bytes that an earlier call had written."""


def tell_found(on_report: OnReport, raw_nbytes: int) -> None:
    """Tell a receiver of reports what an earlier call had written, if it wants to know."""
    if raw_nbytes and isinstance(on_report, Progress):
        on_report.found(raw_nbytes)


@contextlib.contextmanager
def _in_terminal(raw_nbytes: int) -> Iterator[OnReport]:
    """Show a progress bar on standard error, if that is a terminal.

    - `raw_nbytes`: decoded bytes of everything that is written.
    """
    # Most runs show no bar, and rich takes longer to import than a small array takes to write.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        # Older versions of rich print a line break even if the bar is disabled.
        yield lambda _: None
        return
    columns = (
        TextColumn("writing"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("writing", total=raw_nbytes)
        yield _TerminalBar(lambda nbytes: progress.update(task, advance=nbytes))


class _TerminalBar:
    """Bar of rich, which is moved on by a function."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance

    def __call__(self, report: GroupReport) -> None:
        self._advance(report.raw_nbytes)

    def found(self, raw_nbytes: int) -> None:
        self._advance(raw_nbytes)


@contextlib.contextmanager
def reporting(progress: bool | OnReport, raw_nbytes: int) -> Iterator[OnReport]:
    """Report the progress of the block.

    - `raw_nbytes`: decoded bytes of everything that is written.
    """
    if callable(progress):
        yield progress
    elif not isinstance(progress, bool | np.bool_ | None):
        raise SpecError(
            "no kind of progress",
            field="progress",
            value=progress,
            remedy="give True, False, or a function that takes a report",
        )
    elif progress:
        bar = None
        if "IPython" in sys.modules:
            with contextlib.suppress(LookupError):  # where that part is missing, as in a terminal
                bar = resolve("view", "bar")(raw_nbytes)
        with bar or _in_terminal(raw_nbytes) as on_report:
            yield on_report
    else:
        yield lambda _: None
