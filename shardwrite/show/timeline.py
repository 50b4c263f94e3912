"""Timeline of a run: which process committed which shards, and when, as its journals tell it.

Only reports to people depend on it. Times come from the clocks of the processes' hosts.
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.journal.ledger import Ledger, elements_in_shards
from shardwrite.journal.lines import Beginning, Entry, Head, time_in
from shardwrite.journal.replay import drivers_of, journals_of, lines_of
from shardwrite.journal.rundir import RunDirectory
from shardwrite.stores.looking import as_store_error

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
