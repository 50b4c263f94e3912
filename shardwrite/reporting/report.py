"""The report of a run, for people: facts, advice, text and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwrite.errors import printable
from shardwrite.notebook.html import card_html
from shardwrite.reporting.advice import advice_for
from shardwrite.reporting.facts import RunFacts
from shardwrite.reporting.page import card_of, text_of
from shardwrite.results import human

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(RunFacts):
    """Report of a run: its plan, its course, and what could be changed.

    All times are seconds since the start of the run, without the pauses in which no process worked
    on it. The clocks of several hosts may differ.

    Attributes
    ----------
    path : str
        Path of the array.
    run : str
        Name of the run.
    state : {"running", "interrupted", "finished"}
        Whether processes work on the run, none does, or it has ended.
    told_by : {"journal", "report", "receipt"}
        What the report was read from: the journals of a run that has not ended, a report that was
        kept, or the receipt, which tells no times and no processes.
    begun : float
        Time of the first line of a journal, in seconds since 1970; 0 if it is not known.
    seconds : float
        Duration of the run without pauses, in seconds.
    n_shards, n_done, n_empty : int
        Number of shards of the run, of those that are done, and of those that are empty by design.
    raw_nbytes, done_nbytes, stored_nbytes : int
        Decoded bytes of all shards and of those that are done, and bytes of the shards' objects.
    durability : str
        Durability level of the commits.
    plan : PlanFigures
        Figures of the plan.
    workers : tuple of WorkerReport
        The processes, by the time at which they began; at most 128.
    n_workers : int
        Number of all processes.
    pauses : tuple of Pause
        Times in which no process worked on the run.
    throughput : tuple of float
        Decoded bytes per second, in equal steps from the start of the run to its end.
    n_again, n_redone, n_interrupted : int
        Number of tasks that began again, of shards that were committed again, and of tasks of
        processes that have died in the middle of them.
    failures : dict of str to int
        Errors that ended the work of a process, and how often each of them did.
    notes : tuple of str
        What the report could not tell.
    """

    @property
    def advice(self) -> list[tuple[str, str]]:
        """What could be changed: pairs of a finding and what to do about it."""
        return advice_for(self)

    def to_dict(self) -> dict[str, Any]:
        """All fields, and the advice, as a dictionary that JSON can hold."""
        return {**RunFacts.to_dict(self), "advice": [list(pair) for pair in self.advice]}

    def __str__(self) -> str:
        return text_of(self)

    def __repr__(self) -> str:
        return (
            f"<RunReport of {printable(self.path)}: {self.state}, "
            f"{self.n_done:,} of {self.n_shards:,} shards, {human(self.nbytes_per_second)}/s>"
        )

    def _repr_html_(self) -> str:
        return card_html(card_of(self))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from shardwrite.reporting.text import lines_of  # rich is needed for terminals only

        yield from lines_of(self, min(100, options.max_width))
