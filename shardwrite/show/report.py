"""The report of a run, for people: facts, advice, text and pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.text import Text

from shardwrite.errors import printable
from shardwrite.results import Facts, counted, duration, human, table_text
from shardwrite.show.html import (
    Chart,
    Label,
    Line,
    Rect,
    Scale,
    Tick,
    card_html,
    chart_html,
    page_html,
    scale_of,
)
from shardwrite.show.report_facts import RunFacts, Span, WorkerReport, advice_for

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


# ---- Cards and pages of HTML


_WIDTH, _LEFT, _RIGHT, _TOP = 720, 150, 700, 26

_HEIGHT = 130  # of the plot area of the throughput

_LANE, _ROW_GAP = 9, 7  # height of a lane of the timeline, and space between processes

_MAX_ROWS = 24  # processes in the pictures

_MAX_LANES = 8  # threads of a process in the timeline

_TALLEST = 90  # height of a process with many lanes


def html(report: RunFacts) -> str:
    """Make a page of a report, which loads nothing from elsewhere and has no script."""
    return page_html(f"run of {report.path}", card_html(card_of(report)))


def card_of(report: RunFacts) -> Facts:
    """Make the card of a report."""
    charts = [chart_html(chart) for chart in _charts(report)]
    return Facts(
        title=f"run, {report.state}",
        subject=report.path,
        headline=headline_of(report),
        notes=advice_for(report),
        rows=rows_of(report),
        drawing="\n".join(charts),
    )


def text_of(report: RunFacts) -> str:
    """Format a report as plain text: the table and the advice."""
    numbers = [("numbers", "; ".join(f"{number} {words}" for number, words in headline_of(report)))]
    advice = [("advice", f"{finding}\n{remedy}") for finding, remedy in advice_for(report)]
    return table_text(f"run, {report.state}", [*numbers, *rows_of(report), *advice])


def headline_of(report: RunFacts) -> list[tuple[str, str]]:
    """The most important numbers, each with the words that follow it."""
    found = [
        (f"{report.n_done:,}", f"of {report.n_shards:,} shards are done"),
        (human(report.done_nbytes), f"of {human(report.raw_nbytes)} written"),
    ]
    if report.seconds:
        found.append((f"{human(report.nbytes_per_second)}/s", "on average"))
        found.append((duration(report.seconds), "so far" if report.state != "finished" else "time"))
    if report.peak_nbytes:
        found.append((human(report.peak_nbytes), "peak memory of a process"))
    return found


def rows_of(report: RunFacts) -> list[tuple[str, str]]:
    """Rows of the report as a table: pairs of a name and a cell."""
    plan = report.plan
    told = [f"{plan.layout}" if plan.layout else "", counted(plan.n_tasks, "task")]
    told += [counted(plan.n_waves, "wave")] if plan.n_waves > 1 else []
    rows = [("array", report.path)]
    if report.begun:
        begun = datetime.fromtimestamp(report.begun, UTC).isoformat(" ", "seconds")
        rows.append(("begun", begun.replace("+00:00", " UTC")))
    if plan.layout:
        rows.append(("plan", ", ".join(filter(None, told))))
    if plan.memory_nbytes:
        memory = f"{human(plan.memory_nbytes)} estimated"
        if report.peak_nbytes:
            memory = f"{human(report.peak_nbytes)} at most in a process; {memory}"
        if plan.memory_limit_nbytes:
            memory += f", {human(plan.memory_limit_nbytes)} allowed"
        rows.append(("memory", memory))
    elif report.peak_nbytes:
        rows.append(("memory", f"{human(report.peak_nbytes)} at most in a process"))
    n_files = report.n_done - report.n_empty
    files = counted(n_files, "file")
    if n_files:
        files += f", {human(report.stored_nbytes)}, {human(report.stored_nbytes / n_files)} each"
    rows.append(("stored", files + (f"; {report.n_empty:,} are empty" if report.n_empty else "")))
    if report.n_workers:
        alive = sum(worker.is_alive for worker in report.workers)
        there = f", {alive:,} at work" if report.state == "running" else ""
        rows.append(("processes", f"{report.n_workers:,}{there}"))
    if report.told_by != "receipt":
        again = f"{counted(report.n_again, 'task')} began again" if report.n_again else "none"
        rows.append(("retries", again))
    rows.append(("durability", report.durability))
    return rows + [("note", note) for note in report.notes]


def unit_of_time(seconds: float) -> tuple[float, str]:
    """Length in seconds and name of the unit in which a duration is shown."""
    return next(
        (pair for pair in ((3600.0, "h"), (60.0, "min")) if seconds >= 3 * pair[0]), (1.0, "s")
    )


def _charts(report: RunFacts) -> Iterator[Chart]:
    if report.seconds > 0 and any(worker.spans for worker in report.workers):
        yield from _over_time(report)
    if report.peak_nbytes:
        yield _memory(report)


def _over_time(report: RunFacts) -> Iterator[Chart]:
    """Charts with one axis of time."""
    unit, name = unit_of_time(report.seconds)
    scale = scale_of(report.seconds / unit, _LEFT, _RIGHT, 6)
    time = replace(scale, last=report.seconds, step=scale.step * unit)
    ticks = [Tick(time.at(k * time.step), tick.text) for k, tick in enumerate(scale.ticks())]
    x_name = f"time since the start ({name})"
    if report.throughput:
        yield _throughput(report, time, ticks, x_name)
    yield _timeline(report, time, ticks, x_name)


def _unit_of_bytes(largest: float) -> tuple[float, str]:
    return next(
        ((size, name) for size, name in _UNITS if largest >= size),
        (1.0, "B"),
    )


_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def _pauses(report: RunFacts, time: Scale, top: float, bottom: float) -> list[Line]:
    return [
        Line([(time.at(pause.at), top), (time.at(pause.at), bottom)], "pause")
        for pause in report.pauses
    ]


def _throughput(report: RunFacts, time: Scale, ticks: Sequence[Tick], x_name: str) -> Chart:
    bottom = _TOP + _HEIGHT
    unit, name = _unit_of_bytes(max(report.throughput))
    scale = scale_of(1.08 * max(report.throughput) / unit, bottom, _TOP, 4)
    step = report.seconds / len(report.throughput)
    edges = []
    for k, rate in enumerate(report.throughput):
        y = scale.at(max(0.0, rate) / unit)
        edges += [(time.at(k * step), y), (time.at((k + 1) * step), y)]
    mean = scale.at(report.nbytes_per_second / unit)
    lines = [
        Line([(_LEFT, bottom), *edges, (_RIGHT, bottom)], "area"),
        Line(edges, "curve"),
        Line([(_LEFT, mean), (_RIGHT, mean)], "mean"),
        *_pauses(report, time, _TOP, bottom),
    ]
    label = Label(_RIGHT, mean - 4, f"mean {human(report.nbytes_per_second)}/s", "end")
    return Chart(
        title="Throughput over time",
        caption="Decoded bytes of the shards that were committed. "
        "Those of a task are spread over its time."
        + (" Dotted lines: pauses, which are left out." if report.pauses else ""),
        width=_WIDTH,
        height=bottom + 36,
        left=_LEFT,
        top=_TOP,
        right=_RIGHT,
        bottom=bottom,
        x_name=x_name,
        y_name=f"decoded data written ({name}/s)",
        x_ticks=ticks,
        y_ticks=scale.ticks(),
        lines=lines,
        labels=[label],
    )


def _timeline(report: RunFacts, time: Scale, ticks: Sequence[Tick], x_name: str) -> Chart:
    rects: list[Rect] = []
    labels: list[Label] = []
    y = float(_TOP)
    for worker in report.workers[:_MAX_ROWS]:
        n_lanes = min(_MAX_LANES, max(1, worker.n_lanes))
        height = min(_TALLEST, n_lanes * _LANE)
        labels.append(Label(_LEFT - 8, y + height / 2 + 4, _shortened(worker.name), "end"))
        lane = height / n_lanes
        rects += [_rect(report, worker, span, time, y, lane) for span in worker.spans]
        y += height + _ROW_GAP
    kinds = {rect.kind for rect in rects}
    told = [text for kind, text in _KINDS.items() if kind in kinds]
    if len(report.workers) > _MAX_ROWS:
        told.append(f"Only the first {_MAX_ROWS} of {report.n_workers:,} processes are shown.")
    if report.plan.layout in ("direct", "staged"):
        told.append("Encoding is not in the journal; only commits are shown.")
    return Chart(
        title="Shards by process",
        caption=" ".join(told),
        width=_WIDTH,
        height=y + 36,
        left=_LEFT,
        top=_TOP,
        right=_RIGHT,
        bottom=y,
        x_name=x_name,
        y_name="process (host:pid), a row for each thread that wrote",
        x_ticks=ticks,
        rects=rects,
        lines=_pauses(report, time, _TOP, y),
        labels=labels,
    )


_KINDS = {
    "written": "Filled: shards that are committed.",
    "now": "Dashed: tasks that are at work.",
    "cut": "Red frame: tasks that ended in the middle.",
}


def _rect(
    report: RunFacts, worker: WorkerReport, span: Span, time: Scale, y: float, lane: float
) -> Rect:
    kind = "written"
    if span.state == "open":
        kind = "now" if report.state == "running" and worker.is_alive else "cut"
    x = time.at(span.start)
    title = (
        f"{worker.name}: {counted(span.n_shards, 'shard')}, "
        f"{duration(span.start)} to {duration(span.stop)}"
    )
    row = span.lane % _MAX_LANES
    width = max(1.5, round(time.at(span.stop) - x, 2) - 0.5)
    return Rect(x, round(y + row * lane, 2), width, round(lane - 1, 2), kind, title)


def _memory(report: RunFacts) -> Chart:
    plan, workers = report.plan, report.workers[:_MAX_ROWS]
    peak = max(report.peak_nbytes, plan.memory_nbytes)
    shows_limit = 0 < plan.memory_limit_nbytes <= 3 * peak
    largest = max(peak, plan.memory_limit_nbytes if shows_limit else 0)
    unit, name = _unit_of_bytes(largest)
    scale = scale_of(1.2 * largest / unit, _LEFT, _RIGHT, 6)
    rects, labels, lines = [], [], []
    y = float(_TOP + 16)
    for worker in workers:
        x = scale.at(worker.peak_nbytes / unit)
        rects.append(Rect(_LEFT, y, round(max(1.0, x - _LEFT), 2), 12, "written"))
        labels.append(Label(_LEFT - 8, y + 10, _shortened(worker.name), "end"))
        labels.append(Label(x + 5, y + 10, human(worker.peak_nbytes)))
        y += 18
    told = "Peak of the memory that the run took in each process, above what it had at the start."
    marks = [("estimate", plan.memory_nbytes, "mean"), ("limit", plan.memory_limit_nbytes, "limit")]
    for words, nbytes, kind in marks:
        if nbytes and (words == "estimate" or shows_limit):
            x = scale.at(nbytes / unit)
            lines.append(Line([(x, _TOP + 4), (x, y)], kind))
            labels.append(Label(x, _TOP + 1, f"{words} {human(nbytes)}", "middle"))
    if plan.memory_limit_nbytes and not shows_limit:
        told += f" The limit of {human(plan.memory_limit_nbytes)} lies beyond the scale."
    return Chart(
        title="Memory against estimate",
        caption=told,
        width=_WIDTH,
        height=y + 36,
        left=_LEFT,
        top=_TOP,
        right=_RIGHT,
        bottom=y,
        x_name=f"memory ({name})",
        y_name="process",
        x_ticks=scale.ticks(),
        rects=rects,
        lines=lines,
        labels=labels,
    )


def _shortened(name: str) -> str:
    """The end of a long name, which tells processes apart."""
    return name if len(name) <= 22 else "…" + name[-21:]


# ---- Text for the terminal


_STEPS = " ▁▂▃▄▅▆▇█"

_NAME = 20

_MAX_TEXT_ROWS = 24


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
    for worker in report.workers[:_MAX_TEXT_ROWS]:
        name = worker.name if len(worker.name) <= _NAME else "…" + worker.name[1 - _NAME :]
        row = "".join(_letters(report, worker, n))
        yield Text.assemble(name.ljust(_NAME), " ", (row, "cyan"), f" {human(worker.peak_nbytes)}")
    if len(report.workers) > _MAX_TEXT_ROWS:
        yield Text(f"and {report.n_workers - _MAX_TEXT_ROWS:,} more processes")
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


# ---- The report


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
        # rich is needed for terminals only

        yield from lines_of(self, min(100, options.max_width))
