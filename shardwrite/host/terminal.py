"""A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar_in_terminal(
    word: str, total: int, *, counts_nbytes: bool = False
) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar on standard error while the block runs, if that is a terminal.

    The block gets a function that moves the bar on, or None.

    - `total`: number of shards, or of bytes if it `counts_nbytes`.
    """
    # Most runs show no bar, and rich takes longer to import than a small array takes to write.
    # There is no standard error where the process was started with its descriptor closed.
    if sys.stderr is None or not (sys.stderr.isatty() or os.environ.get("FORCE_COLOR")):
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        # Older versions of rich print a line break even if the bar is disabled.
        yield None
        return
    amounts = (
        (DownloadColumn(), TransferSpeedColumn()) if counts_nbytes else (MofNCompleteColumn(),)
    )
    columns = (TextColumn(word), BarColumn(), *amounts, TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(word, total=total)
        yield lambda n: progress.update(task, advance=n)
