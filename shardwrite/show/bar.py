"""The bar of a run in a notebook: plain HTML that is drawn again in the same place."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Self

from shardwrite.results import duration, human
from shardwrite.show.html import Bar, bar_html
from shardwrite.write.context import GroupReport

_DRAW_SECONDS = 0.2  # least time between two drawings
_RATE_SECONDS = 1.0  # time after which a rate means something


Display = Callable[[object], Any]
"""Shows an object, and gives what replaces it by a method ``update``."""


def in_notebook(raw_nbytes: int) -> NotebookBar | None:
    """A bar that is shown until the block ends; None if this process has no notebook.

    - `raw_nbytes`: decoded bytes of everything that is written.
    """
    display = notebook_display()
    return None if display is None else NotebookBar(raw_nbytes, display)


def notebook_display() -> Display | None:
    """Return a function that shows an object in the notebook of this process, if there is one.

    IPython is used only where something else has imported it, as a notebook has. A terminal of
    IPython is no notebook.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    return partial(import_module("IPython.display").display, display_id=True)


class NotebookBar:
    """Progress of a run, shown as a bar with a text beside it until a block ends.

    - `raw_nbytes`: decoded bytes of everything that will be in the array.
    - `clock`: returns the time in seconds.
    """

    def __init__(
        self, raw_nbytes: int, display: Display, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._clock = raw_nbytes, clock
        self._earlier = self._written = 0
        self._state = "running"
        self._start = self._drawn = clock()
        self._handle = display(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        self.end(is_done=kind is None)

    def __call__(self, report: GroupReport) -> None:
        """Enter the report of a group, and draw the bar unless that was done a moment ago."""
        self._written += report.raw_nbytes
        if self._clock() - self._drawn >= _DRAW_SECONDS:
            self._draw()

    def add_earlier(self, raw_nbytes: int) -> None:
        """Enter decoded bytes that an earlier call had written."""
        self._earlier += raw_nbytes
        self._draw()

    def end(self, *, is_done: bool) -> None:
        """Draw the last state.

        - `is_done`: whether the call has ended without an error.
        """
        self._state = "done" if is_done else "stopped"
        self._draw()

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._handle.update(self)

    @property
    def _share(self) -> float:
        if self._state == "done":
            return 1.0
        return min(1.0, (self._earlier + self._written) / self._total) if self._total else 0.0

    @property
    def text(self) -> str:
        """The text beside the bar."""
        seconds = self._drawn - self._start  # the same in every form of one drawing
        rate = self._written / seconds if seconds else 0.0
        if self._state == "done":
            if not self._written:
                return "done; nothing was left to do"
            return f"done: {human(self._written)} in {duration(seconds)}, {human(rate)}/s"
        done = self._earlier + self._written
        text = f"{self._share:.0%}: {human(done)} of {human(self._total)}"
        if self._state == "stopped":
            return f"stopped at {text}, after {duration(seconds)}"
        if self._written and seconds >= _RATE_SECONDS:
            left = max(0, self._total - done) / rate
            text += f", {human(rate)}/s, about {duration(left)} left"
        return text

    def __repr__(self) -> str:
        return f"writing: {self.text}"

    def _repr_html_(self) -> str:
        return bar_html(Bar(share=self._share, text=self.text, state=self._state))
