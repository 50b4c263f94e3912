"""The report of a run as text for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from shardwrite.reporting.advice import advice_for
from shardwrite.reporting.facts import RunFacts, WorkerReport
from shardwrite.reporting.page import headline_of, rows_of, unit_of_time
from shardwrite.results import human

_STEPS = " ▁▂▃▄▅▆▇█"
_NAME = 20
_MAX_ROWS = 24


def lines_of(report: RunFacts, width: int) -> Iterator[Text]:
    """Lines that rich can print: the headline, the table, pictures of the course, and advice."""
    colour = {"running": "blue", "interrupted": "red"}.get(report.state, "green")
    yield Text.assemble("run, ", (report.state, f"bold {colour}"))
    rows = rows_of(report)
    yield Text("  ".join(f"{number} {words}." for number, words in headline_of(report)))
    space = max(len(name) for name, _ in rows)
    for name, cell in rows:
        yield Text.assemble(("  " + name.ljust(space), "dim"), "  ", cell)
    if report.seconds > 0 and any(worker.spans for worker in report.workers):
        yield Text("")
        yield from _pictures(report, max(10, width - _NAME - 16))
    yield Text("")
    advice = advice_for(report)
    yield Text("What to change", style="bold")
    if not advice:
        yield Text("  Nothing stands out.")
    for finding, remedy in advice:
        wrapped = textwrap.wrap(f"{finding} {remedy}", max(20, width - 4))
        yield Text("\n".join(f"  {'- ' if k == 0 else '  '}{t}" for k, t in enumerate(wrapped)))


def _pictures(report: RunFacts, n: int) -> Iterator[Text]:
    """Throughput and processes over time, in `n` columns of the same scale."""
    if report.throughput:
        rates = _resampled(report.throughput, n)
        top = max(rates) or 1.0
        bars = "".join(_STEPS[min(8, round(8 * max(0.0, rate) / top))] for rate in rates)
        yield Text.assemble("throughput".ljust(_NAME), " ", (bars, "blue"), f" to {human(top)}/s")
    for worker in report.workers[:_MAX_ROWS]:
        name = worker.name if len(worker.name) <= _NAME else "…" + worker.name[1 - _NAME :]
        row = "".join(_letters(report, worker, n))
        yield Text.assemble(name.ljust(_NAME), " ", (row, "cyan"), f" {human(worker.peak_nbytes)}")
    if len(report.workers) > _MAX_ROWS:
        yield Text(f"and {report.n_workers - _MAX_ROWS:,} more processes")
    unit, name = unit_of_time(report.seconds)
    end = f"{report.seconds / unit:.3g} {name}"
    yield Text.assemble(" " * (_NAME + 1), ("0" + end.rjust(n - 1), "dim"), "  peak memory")
    yield Text("# writes shards, . waits or reads, x ended in the middle", style="dim")


def _resampled(values: Sequence[float], n: int) -> list[float]:
    return [values[min(len(values) - 1, k * len(values) // n)] for k in range(n)]


def _letters(report: RunFacts, worker: WorkerReport, n: int) -> Iterator[str]:
    """What a process did, in `n` steps: see the legend. A space stands for its absence."""
    step = report.seconds / n
    cells = [" "] * n
    for k in range(n):
        if worker.start - step < k * step <= worker.stop:
            cells[k] = "."
    for span in worker.spans:
        is_cut = span.state == "open" and not (report.state == "running" and worker.is_alive)
        first = min(n - 1, max(0, int(span.start / step)))
        last = min(n - 1, max(first, int(span.stop / step)))
        if is_cut:
            cells[last] = "x"
            continue
        for k in range(first, last + 1):
            cells[k] = cells[k] if cells[k] == "x" else "#"
    yield from cells
