"""Reports of runs, from their timeline: of a run that goes on, was interrupted, or has ended.

The timeline says which process committed which shards, and when, as the journals of a run tell it.
Only reports to people depend on it. Times come from the clocks of the processes' hosts.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import time
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.entry.public import taking
from shardwrite.errors import IncompleteError, JournalError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.journal.lease import live_holders
from shardwrite.journal.ledger import Ledger, elements_in_shards
from shardwrite.journal.lines import Beginning, Entry, Head, time_in
from shardwrite.journal.neighbours import Beside, look_beside
from shardwrite.journal.plan_record import RunRecord
from shardwrite.journal.receipt import Receipt, read_receipt
from shardwrite.journal.replay import drivers_of, journals_of, lines_of
from shardwrite.journal.rundir import RunDirectory
from shardwrite.journal.state_work import fetched
from shardwrite.journal.takeover import metadata_of
from shardwrite.options import RunArguments
from shardwrite.place.base import REPORT_NAME
from shardwrite.place.target import Target, resolve_target
from shardwrite.runs.result import WriteResult, stored_result
from shardwrite.show.report import (
    Pause,
    PlanFigures,
    RunReport,
    Span,
    WorkerReport,
    printed,
)
from shardwrite.stores.looking import as_store_error

# ---- The timeline of a run, from its journals


_COLUMNS = ("worker", "start", "stop", "n_shards", "raw_nbytes", "stored_nbytes", "cpu_seconds")
_MAX_FAILURES = 20
_LARGEST = 2**62


@dataclass(slots=True)
class Worker:
    """A process that has committed shards, or has begun to."""

    name: str  # host and pid
    job: str  # batch job, as text to display; empty if there is none
    is_alive: bool  # whether the driver for which it works holds a lease
    # Times of its first line and of its last commit, in seconds since 1970. None if they are not
    # known.
    begun: float | None
    last: float | None
    peak_nbytes: int = 0  # peak of the memory that the run took in it, in bytes
    failures: list[str] = field(default_factory=list)  # errors that ended its work


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task that has begun and not ended."""

    worker: int  # position of its process in `Timeline.workers`
    start: float  # time at which it began, in seconds since 1970
    n_shards: int  # number of shards that it is about to commit


@dataclass(frozen=True, slots=True, eq=False)
class Commits:
    """Commits whose times are known, one element of each column for an entry of a journal."""

    worker: npt.NDArray[np.int64]  # position of the process in `Timeline.workers`
    # Time of the previous entry of the task, or of its beginning, and time of this entry, in
    # seconds since 1970
    start: npt.NDArray[np.float64]
    stop: npt.NDArray[np.float64]
    # Number of shards, their decoded bytes inside the array, and the bytes of their objects
    n_shards: npt.NDArray[np.int64]
    raw_nbytes: npt.NDArray[np.int64]
    stored_nbytes: npt.NDArray[np.int64]
    # Time for which the thread was computing between `start` and `stop`; NaN if it is not known
    cpu_seconds: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.worker)


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """What the journals of a run tell of its course."""

    ledger: Ledger  # the shards that are committed
    raw_nbytes: npt.NDArray[np.int64]  # decoded bytes of each shard inside the array
    workers: list[Worker]  # the processes, by the time at which they began
    commits: Commits  # the commits whose times are known
    open_tasks: list[OpenTask]  # tasks that have begun and not ended, and whose times are known
    # Number of times that a task began although a task for the same shards had begun before
    n_again: int
    n_redone: int  # number of times that a shard was committed although it was committed already
    n_untimed: int  # number of commits without a time, as older versions have entered them


def timeline_of(run: RunDirectory, metadata: ArrayMetadata) -> Timeline:
    """Read the timeline of a run from its journals. Nothing is written."""
    reader = _Reader(metadata, run)
    for path in journals_of(run):
        # A journal disappears if the run ends meanwhile.
        with as_store_error(str(path), "cannot read"), contextlib.suppress(FileNotFoundError):
            reader.read(path)
    alive = drivers_of(run, looking=True)  # read last, as in `replay`
    return reader.timeline(alive)


class _Reader:
    """Reads journals one after the other, and keeps numbers instead of their lines.

    A million commits take about 60 MB.
    """

    def __init__(self, metadata: ArrayMetadata, run: RunDirectory) -> None:
        self._metadata, self._run = metadata, run
        self._ledger = Ledger(metadata.grid)
        self._sizes = elements_in_shards(metadata.grid) * metadata.itemsize
        self._workers: list[Worker] = []
        self._drivers: list[str] = []
        self._columns = {name: array("d") for name in _COLUMNS}
        self._open: list[OpenTask] = []
        self._begun: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
        self._n_redone = self._n_untimed = 0

    def read(self, path: Path) -> None:
        """Read a journal."""
        lines = lines_of(self._run, path, self._metadata.grid.n_shards)
        first = next(lines, None)
        head = Head.from_dict(first or {})
        writer = head.writer
        name = f"{writer.host or '?'}:{writer.pid or '?'}"
        worker = Worker(name, writer.job or "", False, head.begun, head.begun)
        self._workers.append(worker)
        self._drivers.append(head.driver)
        tasks: dict[str, tuple[Beginning, float | None]] = {}
        spent: dict[str, tuple[float, float]] = {}  # time of a task's last entry, and its cpu time
        for line in lines:
            if line is None or line.get("output", 0) != self._run.number:
                continue
            at = time_in(line)
            now = None if at is None or head.begun is None else head.begun + at
            # Lines that cannot be parsed count as lost; `replay` reports them.
            with contextlib.suppress(ValueError):
                if "begins" in line:
                    beginning = Beginning.from_dict(line)
                    tasks[beginning.attempt] = (beginning, now)
                    self._begun[beginning.begins] += 1
                elif "failed" in line:
                    worker.failures[_MAX_FAILURES:] = []
                    worker.failures.append(str(line["failed"])[:200])
                else:
                    entry = self._entered(line, worker)
                    start = tasks.get(entry.attempt, (None, None))[1]
                    self._place(entry, now, start, spent)
                    if not entry.more:
                        tasks.pop(entry.attempt, None)
                        spent.pop(entry.attempt, None)
            worker.last = now if now is not None else worker.last
        number = len(self._workers) - 1
        for beginning, start in tasks.values():
            if start is not None:
                self._open.append(OpenTask(number, start, self._n_shards(beginning)))

    def _entered(self, line: Mapping[str, JSON], worker: Worker) -> Entry:
        """Parse an entry, and enter its shards into the ledger."""
        entry = Entry.parsed(line)
        if not entry.fits(self._metadata.grid.n_shards):
            raise ValueError("it has shards of another array")
        self._n_redone += int(self._ledger.is_done[list(entry.shards)].sum())
        self._ledger.enter(entry, worker.name)
        worker.peak_nbytes = max(worker.peak_nbytes, entry.peak_nbytes)
        return entry

    def _place(
        self,
        entry: Entry,
        now: float | None,
        start: float | None,
        spent: dict[str, tuple[float, float]],
    ) -> None:
        """Add the commits of an entry to the columns."""
        if not entry.shards:
            return
        if now is None:
            self._n_untimed += 1
            return
        since = now - max(0.0, entry.seconds) if start is None else start
        before, used = spent.get(entry.attempt, (since, 0.0))
        cpu = math.nan if entry.cpu_seconds is None else max(0.0, entry.cpu_seconds - used)
        spent[entry.attempt] = (now, entry.cpu_seconds or 0.0)
        row = (
            len(self._workers) - 1,
            min(before, now),
            now,
            len(entry.shards),
            int(self._sizes[list(entry.shards)].sum()),
            min(sum(entry.nbytes), _LARGEST),
            cpu,
        )
        for column, value in zip(self._columns.values(), row, strict=True):
            column.append(value)

    def _n_shards(self, beginning: Beginning) -> int:
        """Number of shards in the box of a task, without those outside of the grid."""
        counts = self._metadata.grid.counts
        start, stop = beginning.begins
        if not len(start) == len(stop) == len(counts):
            return 0
        corners = zip(start, stop, counts, strict=True)
        return math.prod(max(0, min(b, n) - max(0, a)) for a, b, n in corners)

    def timeline(self, alive: set[str]) -> Timeline:
        """The timeline, with processes in the order in which they began."""
        for worker, driver in zip(self._workers, self._drivers, strict=True):
            worker.is_alive = driver in alive
        order = sorted(range(len(self._workers)), key=lambda k: self._workers[k].begun or 0.0)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        columns = {name: np.array(values) for name, values in self._columns.items()}
        whole = {
            name: columns[name].astype(np.int64)
            for name in ("n_shards", "raw_nbytes", "stored_nbytes")
        }
        return Timeline(
            ledger=self._ledger,
            raw_nbytes=self._sizes,
            workers=[self._workers[k] for k in order],
            commits=Commits(
                worker=place[columns["worker"].astype(np.int64)],
                start=columns["start"],
                stop=columns["stop"],
                cpu_seconds=columns["cpu_seconds"],
                **whole,
            ),
            open_tasks=[
                OpenTask(int(place[task.worker]), task.start, task.n_shards) for task in self._open
            ],
            n_again=sum(self._begun.values()) - len(self._begun),
            n_redone=self._n_redone,
            n_untimed=self._n_untimed,
        )


# ---- From a timeline to a report

_MAX_WORKERS = 128  # processes that a report names

_MAX_LANES = 32  # threads of a process that the picture tells apart

_MANY_SPANS = 1_500  # spans of all processes that are kept as they are

_N_SPANS = 8_000  # most spans of a report, if neighbours are joined

_N_STEPS = 120  # steps of the throughput

_SHORTEST_PAUSE = 5.0  # seconds

_PAUSE_SHARE = 0.1  # of the duration without pauses

_TOLERANCE = 0.005  # seconds by which spans of one thread may overlap: times are rounded

_SHORTEST = 0.001  # seconds


def figures_in(record: RunRecord) -> PlanFigures:
    """Figures of the plan that the record of a run holds. What is no number counts as unknown."""

    def number(name: str) -> float:
        figure: JSON = record.figures.get(name)
        is_number = isinstance(figure, int | float) and not isinstance(figure, bool)
        return float(figure) if is_number and 0 <= figure < 2**62 else 0.0  # type: ignore[arg-type, operator]

    return PlanFigures(
        layout=record.layout if record.layout in ("fused", "direct", "staged") else "",
        n_tasks=int(number("tasks")),
        n_waves=int(number("waves")),
        threads_per_process=int(number("threads_per_process")),
        memory_nbytes=int(number("memory_nbytes")),
        memory_limit_nbytes=int(number("memory_limit_nbytes")),
        source_reruns=number("source_reruns"),
    )


class _Clock:
    """Seconds since the start of a run, without the pauses in which no process worked on it.

    - `stretches`: times in which a process worked, in seconds since 1970.
    """

    def __init__(self, stretches: Sequence[tuple[float, float]]) -> None:
        merged: list[list[float]] = []
        for start, stop in sorted(stretches):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], stop)
            else:
                merged.append([start, stop])
        worked = sum(stop - start for start, stop in merged)
        least = max(_SHORTEST_PAUSE, _PAUSE_SHARE * worked)
        self.begun = merged[0][0] if merged else 0.0
        self.pauses: list[Pause] = []
        wall, own = [self.begun], [0.0]
        for (_, stop), (start, _) in itertools.pairwise(merged):
            if start - stop > least:
                at = own[-1] + stop - wall[-1]
                self.pauses.append(Pause(round(at, 3), round(start - stop, 3)))
                wall += [stop, start]
                own += [at, at]
        last = merged[-1][1] if merged else 0.0
        wall.append(max(last, wall[-1]))
        own.append(own[-1] + wall[-1] - wall[-2])
        self._wall, self._own = np.array(wall), np.array(own)

    @property
    def seconds(self) -> float:
        """Duration of the run without pauses."""
        return float(self._own[-1])

    def at(self, times: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Convert times in seconds since 1970 to seconds of work."""
        own: npt.NDArray[np.float64] = np.interp(
            np.asarray(times, dtype=np.float64), self._wall, self._own
        )
        return own


def report_file(run: RunDirectory, metadata: ArrayMetadata, *, call_seconds: float) -> bytes:
    """Content of the file with the report of a run whose shards are all written."""
    report = make_report(
        run.target.label,
        run.record,
        timeline_of(run, metadata),
        state="finished",
        now=time.time(),
        call_seconds=call_seconds,
    )
    return report.to_json().encode() + b"\n"


def make_report(
    path: str,
    record: RunRecord,
    timeline: Timeline,
    *,
    state: str,
    now: float,
    call_seconds: float = 0.0,
) -> RunReport:
    """Make the report of a run from its timeline.

    - `state`: state of the run.
    - `now`: the current time, in seconds since 1970. Processes that are alive have worked until
      now.
    - `call_seconds`: duration of the one call that has done all of it, which begins before the
      first task; 0 if there were several.
    """
    ledger, commits = timeline.ledger, timeline.commits
    is_running = state == "running"
    stretches = [s for w in timeline.workers if (s := _stretch(w, now, is_running))]
    if call_seconds and stretches:
        end = max(stop for _, stop in stretches)
        stretches.append((end - call_seconds, end))
    clock = _Clock(stretches)
    spans = _spans(timeline, clock, now if is_running else None)
    return RunReport(
        path=path,
        run=record.run,
        state=state,
        told_by="journal",
        begun=clock.begun,
        seconds=round(clock.seconds, 3),
        n_shards=ledger.grid.n_shards,
        n_done=ledger.n_done,
        n_empty=len(ledger.empty),
        raw_nbytes=int(timeline.raw_nbytes.sum()),
        done_nbytes=int(timeline.raw_nbytes[ledger.is_done].sum()),
        stored_nbytes=int(ledger.nbytes.sum()),
        durability=record.durability,
        plan=figures_in(record),
        workers=_workers(timeline, clock, spans, now),
        n_workers=len(timeline.workers),
        pauses=tuple(clock.pauses[:_MAX_WORKERS]),
        throughput=_throughput(commits, clock),
        n_again=timeline.n_again,
        n_redone=timeline.n_redone,
        n_interrupted=sum(not timeline.workers[t.worker].is_alive for t in timeline.open_tasks)
        if state != "finished"
        else 0,
        failures=dict(
            Counter(printed(c) for w in timeline.workers for c in w.failures).most_common(20)
        ),
        notes=_notes(timeline),
    )


def _notes(timeline: Timeline) -> tuple[str, ...]:
    notes = []
    if timeline.n_untimed:
        notes.append(
            f"{timeline.n_untimed:,} commits have no time, because an older version of shardwrite "
            "has written them. They are missing in the pictures."
        )
    if len(timeline.workers) > _MAX_WORKERS:
        notes.append(
            f"Only the first {_MAX_WORKERS} of {len(timeline.workers):,} processes are shown."
        )
    return tuple(notes)


def _stretch(worker: Worker, now: float, is_running: bool) -> tuple[float, float] | None:
    if worker.begun is None:
        return None
    last = worker.begun if worker.last is None else max(worker.begun, worker.last)
    return worker.begun, max(last, now) if is_running and worker.is_alive else last


def _spans(timeline: Timeline, clock: _Clock, now: float | None) -> list[list[Span]]:
    """Spans of each process: commits, and tasks that have not ended."""
    commits = timeline.commits
    starts, stops = clock.at(commits.start), clock.at(commits.stop)
    order = np.argsort(starts, kind="stable")
    spans: list[list[Span]] = [[] for _ in timeline.workers]
    ends: list[list[tuple[float, int]]] = [[] for _ in timeline.workers]  # heaps: end of each lane
    rows = zip(
        commits.worker[order].tolist(),
        starts[order].tolist(),
        stops[order].tolist(),
        commits.n_shards[order].tolist(),
        strict=True,
    )
    for worker, start, stop, n in rows:
        lane = _lane(ends[worker], start, stop)
        spans[worker].append(Span(lane, round(start, 3), round(stop, 3), n))
    for task in timeline.open_tasks:
        worker = timeline.workers[task.worker]
        until = now if now is not None and worker.is_alive else worker.last
        start = float(clock.at(task.start))
        stop = max(start, float(clock.at(until if until is not None else task.start)))
        lane = _lane(ends[task.worker], start, stop)
        spans[task.worker].append(
            Span(lane, round(start, 3), round(stop, 3), task.n_shards, "open")
        )
    if sum(map(len, spans)) <= _MANY_SPANS:
        return spans
    n_lanes = sum(min(len(lanes), _MAX_LANES) for lanes in ends)
    gap = clock.seconds / max(4, min(200, _N_SPANS // max(1, 2 * n_lanes)))
    return [_joined(each, gap) for each in spans]


def _lane(ends: list[tuple[float, int]], start: float, stop: float) -> int:
    """Lane of the next span: the one that is free for longest, or a new one."""
    if ends and (ends[0][0] <= start + _TOLERANCE or len(ends) == _MAX_LANES):
        lane = ends[0][1]
        heapq.heapreplace(ends, (max(stop, ends[0][0]), lane))
        return lane
    lane = len(ends)
    heapq.heappush(ends, (stop, lane))
    return lane


def _joined(spans: Sequence[Span], gap: float) -> list[Span]:
    """Join spans of a lane whose distance is below `gap` seconds, so that few are left."""
    last: dict[tuple[int, str], int] = {}
    joined: list[Span] = []
    for span in spans:
        key = (span.lane, span.state)
        if key in last and span.start - joined[last[key]].stop < gap:
            before = joined[last[key]]
            stop, n = max(before.stop, span.stop), before.n_shards + span.n_shards
            joined[last[key]] = before._replace(stop=stop, n_shards=n)
        else:
            last[key] = len(joined)
            joined.append(span)
    return joined


def _workers(
    timeline: Timeline, clock: _Clock, spans: Sequence[Sequence[Span]], now: float
) -> tuple[WorkerReport, ...]:
    commits, n = timeline.commits, len(timeline.workers)

    def total(values: npt.NDArray[np.float64] | npt.NDArray[np.int64]) -> list[float]:
        sums: list[float] = np.bincount(commits.worker, values, minlength=n).tolist()
        return sums

    n_shards, raw = total(commits.n_shards), total(commits.raw_nbytes)
    busy, cpu = total(commits.stop - commits.start), total(commits.cpu_seconds)
    reports = []
    for k, worker in enumerate(timeline.workers[:_MAX_WORKERS]):
        start, stop = clock.at(_stretch(worker, now, worker.is_alive) or (clock.begun,) * 2)
        reports.append(
            WorkerReport(
                name=printed(worker.name),
                job=printed(worker.job),
                is_alive=worker.is_alive,
                start=round(float(start), 3),
                stop=round(float(stop), 3),
                n_shards=int(n_shards[k]),
                raw_nbytes=int(raw[k]),
                busy_seconds=round(busy[k], 3),
                cpu_seconds=-1.0 if math.isnan(cpu[k]) else round(cpu[k], 3),
                peak_nbytes=min(max(0, worker.peak_nbytes), 2**62),
                spans=tuple(spans[k]),
            )
        )
    return tuple(reports)


def _throughput(commits: Commits, clock: _Clock) -> tuple[float, ...]:
    """Decoded bytes per second in equal steps; those of a commit are spread over its time."""
    if not len(commits) or clock.seconds <= 0:
        return ()
    start, stop = clock.at(commits.start), clock.at(commits.stop)
    start = np.minimum(start, stop - min(_SHORTEST, clock.seconds / _N_STEPS))
    n_steps = max(1, min(_N_STEPS, 2 * len(commits)))
    edges = np.linspace(0.0, clock.seconds, n_steps + 1)
    done = [
        float((commits.raw_nbytes * np.clip((t - start) / (stop - start), 0.0, 1.0)).sum())
        for t in edges
    ]
    done[0] = 0.0
    return tuple(round(rate, 1) for rate in (np.diff(done) * n_steps / clock.seconds).tolist())


# ---- The report of an array


_NO_TIMES = (
    "The journal of a run is removed when it ends. Write with keep_report=True (--keep-report) to "
    "keep its report, with a timeline, in the array."
)


@taking(RunArguments)
def report(call: RunArguments) -> RunReport:
    """Report how the run on an array goes, or went. Nothing is written.

    The report of a run that has not ended is made from its journals. Of a run that has ended, it is
    the one that ``keep_report=True`` has kept. Without one, only totals are known.

    Returns
    -------
    RunReport
        The report. Print it, show it in a notebook, or see its fields.

    Raises
    ------
    IncompleteError
        If nothing was begun there, or another program has written the array.
    JournalError
        If the state of the run, the report or the receipt is damaged.
    UntrustedStateError
        If the state beside the array is not trusted, and the array holds neither a report nor a
        receipt.
    StoreError
        If something cannot be read.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> x = da.ones((400, 400), chunks=100)
    >>> result = x.to_sharded_zarr(path, shards=200, chunks=100, keep_report=True)
    >>> report = shardwrite.report(path)
    >>> report.state, report.n_done
    ('finished', 4)
    """
    target = fetched(resolve_target(call.store, call.name, call.run_dir, is_read=True))
    beside = look_beside(target)
    # the run that makes the array, or else an update, best one that somebody makes now
    at_work = [run for run in beside.updates if live_holders(run.shared, looking=True)]
    run = next((run for run in (beside.run, *at_work, *beside.updates) if run is not None), None)
    if run is not None:
        timeline = timeline_of(run, metadata_of(run))
        # Read after the journals: a process that has a journal here has a lease, if it lives.
        holders = live_holders(run.shared, looking=True)
        state = "running" if holders else "interrupted"
        made = make_report(run.target.label, run.record, timeline, state=state, now=time.time())
        return replace(made, notes=(*made.notes, *(f"{h.told}." for h in holders)))
    receipt = read_receipt(target) if target.place.kind() == "array" else None
    report_kept = _kept(target, receipt)
    if report_kept is not None:
        return report_kept
    if receipt is not None and receipt.result:
        result = stored_result(receipt.result, target.label)
        return _of_receipt(receipt, result, beside)
    if beside.untrusted is not None:
        raise beside.untrusted
    raise IncompleteError(
        f"no run of shardwrite is known for {target.label}; check the path, or write the array",
        missing=[str(target.run_path)],
    )


def _kept(target: Target, receipt: Receipt | None) -> RunReport | None:
    """The report that the array holds, if there is one."""
    data = target.place.read(REPORT_NAME)
    if data is None:
        return None
    try:
        report = RunReport.from_json(data)
    except ValueError as error:
        path = f"{target.label}/{REPORT_NAME}"
        raise JournalError(f"{path} is no report ({error}); remove it", path=path) from error
    runs = [] if receipt is None else [receipt.run, *(e.run for e in receipt.updates)]
    notes = report.notes
    if report.run not in runs:
        notes += ("The receipt of the array does not know this run.",)
    elif runs[-1] != report.run:
        notes += ("The array was changed by later runs, of which no report was kept.",)
    # The array may lie at another path now.
    return replace(report, path=target.label, notes=notes, told_by="report", state="finished")


def _of_receipt(receipt: Receipt, result: WriteResult, beside: Beside) -> RunReport:
    """Report of a run of which only the receipt is left."""
    n = result.n_shards + result.n_empty_shards
    seconds = receipt.result.get("seconds")
    return RunReport(
        path=result.path,
        run=receipt.run,
        state="finished",
        told_by="receipt",
        begun=0.0,
        seconds=float(seconds) if isinstance(seconds, int | float) and 0 < seconds < 2**40 else 0.0,
        n_shards=n,
        n_done=n,
        n_empty=result.n_empty_shards,
        raw_nbytes=result.raw_nbytes,
        done_nbytes=result.raw_nbytes,
        stored_nbytes=result.stored_nbytes,
        durability=receipt.durability,
        plan=PlanFigures(layout=result.layout, n_tasks=result.n_tasks),
        workers=tuple(
            WorkerReport(name=printed(str(process)), peak_nbytes=peak)
            for process, peak in list(result.peak_nbytes_by_process.items())[:128]
            if type(peak) is int and peak >= 0
        ),
        n_workers=len(result.peak_nbytes_by_process),
        failures={},
        notes=(_NO_TIMES, *beside.warnings),
    )
