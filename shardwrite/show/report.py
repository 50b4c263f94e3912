"""The report of a run, for people: facts, which a file can hold, advice, text and pictures."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

from rich.text import Text

from shardwrite._dataclass import dataclass
from shardwrite.errors import printable
from shardwrite.records import Check, one_of, read
from shardwrite.results import ABOVE, Facts, counted, duration, human, table_text
from shardwrite.show.html import (
    LEFT,
    RIGHT,
    TOP,
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
from shardwrite.stores.looking import parse_json

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_FORMAT = 1

_MAX_TEXT = 500


# ---- Numbers


_STATE = one_of("done", "open")


class Span(NamedTuple):
    """Time for which a thread of a process wrote shards."""

    # number of the thread in the picture of the process, from 0
    lane: Annotated[int, range(256)]
    start: float  # seconds since the start of the run, without pauses
    stop: float
    n_shards: int  # number of shards that were committed
    # whether the shards were committed, or the task has not ended
    state: Annotated[str, _STATE] = "done"


_LASTS = Check(lambda span: span.start <= span.stop, "a span that stops after its start")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a process has done for a run."""

    name: str  # host and pid
    job: str = ""  # batch job, as text to display; empty if there is none
    is_alive: bool = False  # whether it may still work on the run
    # First and last sign of it, in seconds since the start of the run, without pauses
    start: float = 0.0
    stop: float = 0.0
    n_shards: int = 0  # number of shards that it has committed, and their decoded bytes
    raw_nbytes: int = 0
    # Time for which its threads wrote shards, and for which they were computing, in seconds. The
    # second is negative if it is not known.
    busy_seconds: float = 0.0
    cpu_seconds: float = -1.0
    peak_nbytes: int  # peak of the memory that the run took in it, in bytes
    # When it wrote. Neighbouring spans are joined if there are many.
    spans: tuple[Annotated[Span, _LASTS], ...] = ()

    @property
    def n_lanes(self) -> int:
        """Number of threads that wrote at the same time."""
        return max((span.lane for span in self.spans), default=-1) + 1


@dataclass(frozen=True, slots=True)
class Pause:
    """Time in which no process worked on the run. It is left out of all other times."""

    at: float  # seconds since the start of the run, without pauses
    seconds: float  # length of the pause in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """Figures of the plan. A number is 0 where it is not known."""

    layout: str = ""  # ``fused``, ``direct`` or ``staged``; empty for a stream
    n_tasks: int = 0  # number of tasks and of task graphs
    n_waves: int = 0
    threads_per_process: int = 0  # threads of a process on the machine that made the plan
    # Estimate of the memory that a process needs at most, and the memory that it may use
    memory_nbytes: int = 0
    memory_limit_nbytes: int = 0
    source_reruns: float = 0.0  # how often a task of the source runs on average


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
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

    _format = _FORMAT
    _grows = True  # since a file tells the advice, too

    path: str
    run: str
    state: str
    told_by: str
    begun: float
    seconds: float
    n_shards: int
    n_done: int
    n_empty: int
    raw_nbytes: int
    done_nbytes: int
    stored_nbytes: int
    durability: str
    plan: PlanFigures
    workers: tuple[WorkerReport, ...] = ()
    n_workers: int = 0
    pauses: tuple[Pause, ...] = ()
    throughput: tuple[float, ...] = ()
    n_again: int = 0
    n_redone: int = 0
    n_interrupted: int = 0
    failures: dict[str, int]
    notes: tuple[str, ...] = ()

    @property
    def nbytes_per_second(self) -> float:
        """Decoded bytes per second, without pauses; 0 if no time is known."""
        return self.done_nbytes / self.seconds if self.seconds else 0.0

    @property
    def peak_nbytes(self) -> int:
        """Largest memory that the run took in a process, in bytes."""
        return max((worker.peak_nbytes for worker in self.workers), default=0)

    @property
    def advice(self) -> list[tuple[str, str]]:
        """What could be changed: pairs of a finding and what to do about it."""
        return advice_for(self)

    def to_dict(self) -> dict[str, Any]:
        """All fields, and the advice, as a dictionary that JSON can hold."""
        advice = [list(pair) for pair in self.advice]
        return {"format": _FORMAT, **asdict(self), "advice": advice}

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Parse and check a report.

        Raises
        ------
        ValueError
            If the text is no report of this format.
        """
        return read(cls, _printed(parse_json(data)))

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
        yield from lines_of(self, min(100, options.max_width))


def printed(text: str) -> str:
    """A text of a journal, of limited length, without characters that control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:_MAX_TEXT])


def _printed(found: Any) -> Any:
    """What was parsed, of which all texts can be shown."""
    if isinstance(found, list):
        return [_printed(each) for each in found]
    if isinstance(found, dict):
        return {printed(name): _printed(each) for name, each in found.items()}
    return printed(found) if isinstance(found, str) else found


# ---- Advice on what to change


_SMALL_NBYTES = 1_000_000  # a shard below this costs more to open than to read

_MANY_SHARDS = 1_000

_SHORT_SECONDS = 2.0  # runs that are shorter tell nothing of speed

_FAR_BELOW = 0.25  # of the memory limit

_OVER = 1.2  # times the estimate

_SLACK_NBYTES = 32_000_000

_IDLE = 0.5

_WAITING = 0.5

_SLOW = 0.5  # of the median speed

_FEW_PER_THREAD = 2

_RERUNS = 0.1

Advice = Iterator[tuple[str, str]]


def advice_for(report: RunReport) -> list[tuple[str, str]]:
    """Find out what could be changed: pairs of a finding and what to do about it."""
    rules: tuple[Callable[[RunReport], Advice], ...] = (
        _state,
        _failures,
        _memory_taken,
        _shards,
        _idle,
        _storage,
        _uneven,
        _done_again,
    )
    return [found for rule in rules for found in rule(report)]


def _state(report: RunReport) -> Advice:
    if report.state == "interrupted" and report.n_done < report.n_shards:
        left = report.n_shards - report.n_done
        verb = "is" if left == 1 else "are"
        yield (
            f"The run was interrupted, and {counted(left, 'shard')} {verb} left.",
            "Make the same call again. It continues where the run stopped.",
        )
    elif report.state == "interrupted":
        yield (
            "All shards are written, but the run has not ended.",
            "Make the same call again (shardwrite finalize, if parts were written).",
        )


def _failures(report: RunReport) -> Advice:
    for cause, n in report.failures.items():
        remedy = "Look into the output of its process."
        if "ENOSPC" in cause or "EDQUOT" in cause:
            remedy = "Make room on the storage, and make the same call again."
        elif "MemoryError" in cause or "WorkersLost" in cause:
            remedy = "Give workers more memory, or use fewer threads or smaller shards."
        yield f"{cause} has ended the work of {counted(n, 'process')}.", remedy
    if report.n_interrupted and report.state != "running":
        yield (
            f"{counted(report.n_interrupted, 'task')} ended in the middle.",
            (
                "Their processes were killed or ran out of memory or time. "
                "Only the shards of these tasks are written again."
            ),
        )
    if report.n_again:
        yield (
            f"{counted(report.n_again, 'task')} began more than once.",
            (
                "Storage trouble that passes, or a process that died, makes a task begin again. "
                f"{counted(report.n_redone, 'shard')} had been committed before."
            ),
        )


def _memory_taken(report: RunReport) -> Advice:
    peak, plan = report.peak_nbytes, report.plan
    if not peak or not plan.memory_nbytes:
        return
    if peak > _OVER * plan.memory_nbytes + _SLACK_NBYTES:
        yield (
            f"A process took {human(peak)}, but the plan estimates {human(plan.memory_nbytes)}.",
            (
                "The source may keep memory of its own, such as caches and copies. "
                "Give workers more room than the plan asks for, or use smaller source chunks."
            ),
        )
    limit = plan.memory_limit_nbytes
    is_large = report.raw_nbytes > limit > 0 and report.seconds > _SHORT_SECONDS
    if is_large and peak < _FAR_BELOW * limit and plan.memory_nbytes < _FAR_BELOW * limit:
        yield (
            f"A process took {human(peak)} of the {human(limit)} that it may use.",
            "There is room for more threads, for larger shards, or for smaller jobs.",
        )


def _shards(report: RunReport) -> Advice:
    n_files = report.n_done - report.n_empty
    if n_files >= _MANY_SHARDS and report.stored_nbytes < _SMALL_NBYTES * n_files:
        mean = report.stored_nbytes / n_files
        times = 2 ** max(1, math.ceil(math.log2(10 * _SMALL_NBYTES / max(1.0, mean))))
        yield (
            f"{n_files:,} shards are small: {human(mean)} each on average.",
            (
                f"Larger shards make fewer files. With {times:,} times the elements, a shard would "
                f"have about {human(mean * times)}; see shards=."
            ),
        )
    n_threads = report.plan.threads_per_process * max(1, _n_at_once(report))
    if n_threads > 1 and report.n_shards < _FEW_PER_THREAD * n_threads and _is_long(report):
        yield (
            (
                f"{counted(report.n_shards, 'shard')} for {counted(n_threads, 'thread')} leave "
                "threads without work at the end."
            ),
            "Use smaller shards, or fewer threads.",
        )


def _idle(report: RunReport) -> Advice:
    if not _is_long(report) or report.plan.layout != "fused":
        return  # encoding of blocks is not in the journal
    n_threads = report.plan.threads_per_process
    there = sum((w.stop - w.start) * max(n_threads, w.n_lanes) for w in report.workers)
    share = _busy(report) / there if there else 1.0
    if share < _IDLE:
        yield (
            f"Threads wrote shards for {share:.0%} of the time.",
            (
                "In the rest they read the source, or waited for tasks. A faster source, larger "
                "source chunks, or fewer workers would help."
            ),
        )


def _storage(report: RunReport) -> Advice:
    busy = _busy(report)
    cpu = sum(w.cpu_seconds for w in report.workers)
    if not _is_long(report) or busy < 1 or any(w.cpu_seconds < 0 for w in report.workers):
        return
    share = 1 - cpu / busy
    if share > _WAITING:
        remedy = (
            'With durability="batch" (--durability batch), shards are synced many at a time.'
            if report.durability == "full"
            else "Fewer threads may do as well, and larger shards are written with fewer calls."
        )
        yield (
            f"Commits are slow: tasks waited for {share:.0%} of their time.",
            f"They waited for the storage, or for a core that others used. {remedy}",
        )


def _uneven(report: RunReport) -> Advice:
    speeds = {worker: _speed(worker) for worker in report.workers if _speed(worker) > 0}
    if len(speeds) < 3 or not _is_long(report):
        return
    usual = median(speeds.values())
    slow = [(speed, worker) for worker, speed in speeds.items() if speed < _SLOW * usual]
    for speed, worker in sorted(slow, key=lambda pair: pair[0])[:3]:
        yield (
            f"{worker.name} is slow: {human(speed)}/s, and others {human(usual)}/s.",
            "Look what else runs on that node, and whether its network or disk is slower.",
        )


def _done_again(report: RunReport) -> Advice:
    """Work of the source that runs again, and time in which nobody worked."""
    if report.plan.source_reruns > 1 + _RERUNS:
        yield (
            f"Each task of the source runs {report.plan.source_reruns:.2g} times on average.",
            "Larger shards, or more memory for a process, let more source chunks be used once.",
        )
    if report.pauses:
        lost = sum(pause.seconds for pause in report.pauses)
        yield (
            f"No process worked on the run for {duration(lost)}.",
            (
                f"It was interrupted {counted(len(report.pauses), 'time')}. "
                "This time is left out of the pictures."
            ),
        )


def _is_long(report: RunReport) -> bool:
    return report.seconds > _SHORT_SECONDS


def _busy(report: RunReport) -> float:
    return sum(worker.busy_seconds for worker in report.workers)


def _speed(worker: WorkerReport) -> float:
    """Decoded bytes per second since the process began."""
    seconds = worker.stop - worker.start
    return worker.raw_nbytes / seconds if seconds > 0 else 0.0


def _n_at_once(report: RunReport) -> int:
    """Largest number of processes that worked at the same time."""
    changes = sorted(
        change
        for worker in report.workers
        for change in ((worker.start, 1), (max(worker.stop, worker.start), -1))
    )
    n = most = 0
    for _, change in sorted(changes, key=lambda pair: (pair[0], -pair[1])):
        n += change
        most = max(most, n)
    return most


# ---- Cards and pages of HTML


_HEIGHT = 130  # of the plot area of the throughput

_LANE, _ROW_GAP = 9, 7  # height of a lane of the timeline, and space between processes

_MAX_ROWS = 24  # processes in the pictures

_MAX_LANES = 8  # threads of a process in the timeline

_TALLEST = 90  # height of a process with many lanes


def html(report: RunReport) -> str:
    """Make a page of a report, which loads nothing from elsewhere and has no script."""
    return page_html(f"run of {report.path}", card_html(card_of(report)))


def card_of(report: RunReport) -> Facts:
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


def text_of(report: RunReport) -> str:
    """Format a report as plain text: the table and the advice."""
    numbers = [("numbers", "; ".join(f"{number} {words}" for number, words in headline_of(report)))]
    advice = [("advice", f"{finding}\n{remedy}") for finding, remedy in advice_for(report)]
    return table_text(f"run, {report.state}", [*numbers, *rows_of(report), *advice])


def headline_of(report: RunReport) -> list[tuple[str, str]]:
    """The most important numbers, each with the words that follow it."""
    numbers = [
        (f"{report.n_done:,}", f"of {report.n_shards:,} shards are done"),
        (human(report.done_nbytes), f"of {human(report.raw_nbytes)} written"),
    ]
    if report.seconds:
        numbers.append((f"{human(report.nbytes_per_second)}/s", "on average"))
        numbers.append(
            (duration(report.seconds), "so far" if report.state != "finished" else "time")
        )
    if report.peak_nbytes:
        numbers.append((human(report.peak_nbytes), "peak memory of a process"))
    return numbers


def rows_of(report: RunReport) -> list[tuple[str, str]]:
    """Rows of the report as a table: pairs of a name and a cell."""
    plan, rows = report.plan, [("array", report.path)]
    if report.begun:
        begun = datetime.fromtimestamp(report.begun, UTC).isoformat(" ", "seconds")
        rows.append(("begun", begun.replace("+00:00", " UTC")))
    if plan.layout:
        waves = f", {counted(plan.n_waves, 'wave')}" if plan.n_waves > 1 else ""
        rows.append(("plan", f"{plan.layout}, {counted(plan.n_tasks, 'task')}{waves}"))
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
    units = ((3600.0, "h"), (60.0, "min"))
    return next((unit for unit in units if seconds >= 3 * unit[0]), (1.0, "s"))


def _charts(report: RunReport) -> Iterator[Chart]:
    if report.seconds > 0 and any(worker.spans for worker in report.workers):
        yield from _over_time(report)
    if report.peak_nbytes:
        yield _memory(report)


def _over_time(report: RunReport) -> Iterator[Chart]:
    """Charts with one axis of time."""
    unit, name = unit_of_time(report.seconds)
    scale = scale_of(report.seconds / unit, LEFT, RIGHT, 6)
    time = replace(scale, last=report.seconds, step=scale.step * unit)
    ticks = [Tick(time.at(k * time.step), tick.text) for k, tick in enumerate(scale.ticks())]
    x_name = f"time since the start ({name})"
    if report.throughput:
        yield _throughput(report, time, ticks, x_name)
    yield _timeline(report, time, ticks, x_name)


def _unit_of_bytes(largest: float) -> tuple[float, str]:
    """Size in bytes and name of the unit in which sizes up to one are shown."""
    units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next((unit for unit in units if largest >= unit[0]), (1.0, "B"))


def _pauses(report: RunReport, time: Scale, top: float, bottom: float) -> list[Line]:
    return [
        Line([(time.at(pause.at), top), (time.at(pause.at), bottom)], "pause")
        for pause in report.pauses
    ]


def _throughput(report: RunReport, time: Scale, ticks: Sequence[Tick], x_name: str) -> Chart:
    """Chart of the decoded bytes that were written per second, and of their mean."""
    bottom = TOP + _HEIGHT
    unit, name = _unit_of_bytes(max(report.throughput))
    scale = scale_of(1.08 * max(report.throughput) / unit, bottom, TOP, 4)
    step = report.seconds / len(report.throughput)
    edges = []
    for k, rate in enumerate(report.throughput):
        y = scale.at(max(0.0, rate) / unit)
        edges += [(time.at(k * step), y), (time.at((k + 1) * step), y)]
    mean = scale.at(report.nbytes_per_second / unit)
    lines = [
        Line([(LEFT, bottom), *edges, (RIGHT, bottom)], "area"),
        Line(edges, "curve"),
        Line([(LEFT, mean), (RIGHT, mean)], "mean"),
        *_pauses(report, time, TOP, bottom),
    ]
    label = Label(RIGHT, mean - 4, f"mean {human(report.nbytes_per_second)}/s", "end")
    return Chart(
        title="Throughput over time",
        caption="Decoded bytes of the shards that were committed. "
        "Those of a task are spread over its time."
        + (" Dotted lines: pauses, which are left out." if report.pauses else ""),
        bottom=bottom,
        x_name=x_name,
        y_name=f"decoded data written ({name}/s)",
        x_ticks=ticks,
        y_ticks=scale.ticks(),
        lines=lines,
        labels=[label],
    )


def _timeline(report: RunReport, time: Scale, ticks: Sequence[Tick], x_name: str) -> Chart:
    """Chart of when each process wrote which shards, one row for each."""
    rects: list[Rect] = []
    labels: list[Label] = []
    y = float(TOP)
    for worker in report.workers[:_MAX_ROWS]:
        n_lanes = min(_MAX_LANES, max(1, worker.n_lanes))
        height = min(_TALLEST, n_lanes * _LANE)
        labels.append(Label(LEFT - 8, y + height / 2 + 4, _shortened(worker.name), "end"))
        lane = height / n_lanes
        rects += [_rect(report, worker, span, time, y, lane) for span in worker.spans]
        y += height + _ROW_GAP
    kinds = {rect.kind for rect in rects}
    texts = [text for kind, text in _KINDS.items() if kind in kinds]
    if len(report.workers) > _MAX_ROWS:
        texts.append(f"Only the first {_MAX_ROWS} of {report.n_workers:,} processes are shown.")
    if report.plan.layout in ("direct", "staged"):
        texts.append("Encoding is not in the journal; only commits are shown.")
    return Chart(
        title="Shards by process",
        caption=" ".join(texts),
        bottom=y,
        x_name=x_name,
        y_name="process (host:pid), a row for each thread that wrote",
        x_ticks=ticks,
        rects=rects,
        lines=_pauses(report, time, TOP, y),
        labels=labels,
    )


_KINDS = {
    "written": "Filled: shards that are committed.",
    "now": "Dashed: tasks that are at work.",
    "cut": "Red frame: tasks that ended in the middle.",
}


def _is_cut(report: RunReport, worker: WorkerReport, span: Span) -> bool:
    """Whether a task ended in the middle."""
    is_at_work = report.state == "running" and worker.is_alive
    return span.state == "open" and not is_at_work


def _rect(
    report: RunReport, worker: WorkerReport, span: Span, time: Scale, y: float, lane: float
) -> Rect:
    kind = "written" if span.state != "open" else "now"
    kind = "cut" if _is_cut(report, worker, span) else kind
    x = time.at(span.start)
    title = (
        f"{worker.name}: {counted(span.n_shards, 'shard')}, "
        f"{duration(span.start)} to {duration(span.stop)}"
    )
    row = span.lane % _MAX_LANES
    width = max(1.5, round(time.at(span.stop) - x, 2) - 0.5)
    return Rect(x, round(y + row * lane, 2), width, round(lane - 1, 2), kind, title)


def _memory(report: RunReport) -> Chart:
    plan, workers = report.plan, report.workers[:_MAX_ROWS]
    peak = max(report.peak_nbytes, plan.memory_nbytes)
    shows_limit = 0 < plan.memory_limit_nbytes <= 3 * peak
    largest = max(peak, plan.memory_limit_nbytes if shows_limit else 0)
    unit, name = _unit_of_bytes(largest)
    scale = scale_of(1.2 * largest / unit, LEFT, RIGHT, 6)
    rects, labels, lines = [], [], []
    y = float(TOP + 16)
    for worker in workers:
        x = scale.at(worker.peak_nbytes / unit)
        rects.append(Rect(LEFT, y, round(max(1.0, x - LEFT), 2), 12, "written"))
        labels.append(Label(LEFT - 8, y + 10, _shortened(worker.name), "end"))
        labels.append(Label(x + 5, y + 10, human(worker.peak_nbytes)))
        y += 18
    caption = f"Peak of the memory of each process, {ABOVE}."
    marks = [("estimate", plan.memory_nbytes, "mean"), ("limit", plan.memory_limit_nbytes, "limit")]
    for words, nbytes, kind in marks:
        if nbytes and (words == "estimate" or shows_limit):
            x = scale.at(nbytes / unit)
            lines.append(Line([(x, TOP + 4), (x, y)], kind))
            labels.append(Label(x, TOP + 1, f"{words} {human(nbytes)}", "middle"))
    if plan.memory_limit_nbytes and not shows_limit:
        caption += f" The limit of {human(plan.memory_limit_nbytes)} lies beyond the scale."
    return Chart(
        title="Memory against estimate",
        caption=caption,
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


def lines_of(report: RunReport, width: int) -> Iterator[Text]:
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


def _pictures(report: RunReport, n: int) -> Iterator[Text]:
    """Throughput and processes over time, in `n` columns of the same scale."""
    if report.throughput:
        rates_given = report.throughput
        rates = [
            rates_given[min(len(rates_given) - 1, k * len(rates_given) // n)] for k in range(n)
        ]
        top = max(rates) or 1.0
        bars = "".join(_STEPS[min(8, round(8 * max(0.0, rate) / top))] for rate in rates)
        yield Text.assemble("throughput".ljust(_NAME), " ", (bars, "blue"), f" to {human(top)}/s")
    for worker in report.workers[:_MAX_TEXT_ROWS]:
        name = worker.name if len(worker.name) <= _NAME else "…" + worker.name[1 - _NAME :]
        row = _letters(report, worker, n)
        yield Text.assemble(name.ljust(_NAME), " ", (row, "cyan"), f" {human(worker.peak_nbytes)}")
    if len(report.workers) > _MAX_TEXT_ROWS:
        yield Text(f"and {report.n_workers - _MAX_TEXT_ROWS:,} more processes")
    unit, name = unit_of_time(report.seconds)
    end = f"{report.seconds / unit:.3g} {name}"
    yield Text.assemble(" " * (_NAME + 1), ("0" + end.rjust(n - 1), "dim"), "  peak memory")
    yield Text("# writes shards, . waits or reads, x ended in the middle", style="dim")


def _letters(report: RunReport, worker: WorkerReport, n: int) -> str:
    """What a process did, in `n` steps: see the legend. A space stands for its absence."""
    step = report.seconds / n
    cells = ["." if worker.start - step < k * step <= worker.stop else " " for k in range(n)]
    for span in worker.spans:
        first = min(n - 1, max(0, int(span.start / step)))
        last = min(n - 1, max(first, int(span.stop / step)))
        if _is_cut(report, worker, span):
            cells[last] = "x"
            continue
        for k in range(first, last + 1):
            cells[k] = cells[k] if cells[k] == "x" else "#"
    return "".join(cells)
