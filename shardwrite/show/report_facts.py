"""The report of a run as plain numbers, which a file in the array can hold, and as advice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from statistics import median
from types import UnionType
from typing import Any, Self

from shardwrite.results import counted, duration, human
from shardwrite.stores.looking import parse_json

_FORMAT = 1

_MAX_TEXT = 500

_LARGEST = 2.0**62


# ---- Numbers


@dataclass(frozen=True, slots=True)
class Span:
    """Time for which a thread of a process wrote shards."""

    lane: int  # number of the thread in the picture of the process, from 0
    start: float  # seconds since the start of the run, without pauses
    stop: float
    n_shards: int  # number of shards that were committed
    state: str = "done"  # whether the shards were committed, or the task has not ended


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """What a process has done for a run."""

    name: str  # host and pid
    job: str  # batch job, as text to display; empty if there is none
    is_alive: bool  # whether it may still work on the run
    start: float  # first and last sign of it, in seconds since the start of the run, without pauses
    stop: float
    n_shards: int  # number of shards that it has committed, and their decoded bytes
    raw_nbytes: int
    # Time for which its threads wrote shards, and for which they were computing, in seconds. The
    # second is negative if it is not known.
    busy_seconds: float
    cpu_seconds: float
    peak_nbytes: int  # peak of the memory that the run took in it, in bytes
    spans: tuple[Span, ...] = ()  # when it wrote. Neighbouring spans are joined if there are many.

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
class RunFacts:
    """Facts about a run, without any presentation.

    The fields are described in :class:`~shardwrite.show.report.RunReport`.
    """

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

    def to_dict(self) -> dict[str, Any]:
        """All fields as a dictionary that JSON can hold."""
        found = asdict(self)
        for worker, told in zip(self.workers, found["workers"], strict=True):
            told["spans"] = [_row(span) for span in worker.spans]
        return {"format": _FORMAT, **found}

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
        found = parse_json(data)
        if not isinstance(found, dict) or found.get("format") != _FORMAT:
            raise ValueError(f"it is not of format {_FORMAT}")
        own: dict[str, Any] = _checked(cls, found)
        own["plan"] = PlanFigures(**_checked(PlanFigures, _mapping(found.get("plan"))))
        own["workers"] = tuple(_worker_in(_mapping(each)) for each in own["workers"])
        own["pauses"] = tuple(Pause(**_checked(Pause, _mapping(each))) for each in own["pauses"])
        own["throughput"] = tuple(_number(each) for each in own["throughput"])
        causes = own["failures"].items()
        own["failures"] = {printed(str(cause)): int(_number(n)) for cause, n in causes}
        own["notes"] = tuple(printed(str(note)) for note in own["notes"])
        return cls(**own)


def printed(text: str) -> str:
    """A text of a journal, of limited length, without characters that control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:_MAX_TEXT])


def _row(span: Span) -> list[Any]:
    return [span.lane, round(span.start, 3), round(span.stop, 3), span.n_shards, span.state]


def _worker_in(found: Mapping[str, Any]) -> WorkerReport:
    own = _checked(WorkerReport, found)
    spans = []
    for row in own["spans"]:
        if not isinstance(row, list) or len(row) != 5 or row[4] not in ("done", "open"):
            raise ValueError("spans that are none")
        lane, start, stop, n = map(_number, row[:4])
        if not 0 <= lane < _MAX_LANES:
            raise ValueError("spans that are none")
        spans.append(Span(int(lane), start, max(start, stop), int(n), row[4]))
    return WorkerReport(**{**own, "spans": tuple(spans)})


_MAX_LANES = 256

_KINDS: dict[str, type | UnionType] = {
    "str": str,
    "int": int,
    "float": int | float,
    "bool": bool,
}


def _checked(kind: type[Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the fields of a dataclass, each of which has its type."""
    own = {}
    for each in fields(kind):
        value = found.get(each.name)
        name = str(each.type)
        wanted = _KINDS.get(name, dict if name.startswith(("dict", "PlanFigures")) else list)
        is_bool = isinstance(value, bool)
        if not isinstance(value, wanted) or is_bool != (name == "bool"):
            raise ValueError(f"{each.name} is missing, or has a wrong type")
        if name in ("int", "float"):
            _number(value)
        own[each.name] = printed(str(value)) if name == "str" else value
    return own


def _number(found: Any) -> float:
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not is_number or not math.isfinite(found) or abs(found) > _LARGEST:
        raise ValueError("a number that is none")
    return found  # type: ignore[no-any-return]


def _mapping(found: Any) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise ValueError("fields that are no objects")  # noqa: TRY004 (of the file)
    return found


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


def advice_for(report: RunFacts) -> list[tuple[str, str]]:
    """Find out what could be changed: pairs of a finding and what to do about it."""
    rules: tuple[Callable[[RunFacts], Advice], ...] = (
        _state,
        _failures,
        _memory,
        _shards,
        _idle,
        _storage,
        _uneven,
        _source,
    )
    return [found for rule in rules for found in rule(report)]


def _state(report: RunFacts) -> Advice:
    if report.state == "interrupted" and report.n_done < report.n_shards:
        left = report.n_shards - report.n_done
        yield (
            f"The run was interrupted, and {counted(left, 'shard')} {_are(left)} left.",
            "Make the same call again. It continues where the run stopped.",
        )
    elif report.state == "interrupted":
        yield (
            "All shards are written, but the run has not ended.",
            "Make the same call again (shardwrite finalize, if parts were written).",
        )


def _failures(report: RunFacts) -> Advice:
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


def _memory(report: RunFacts) -> Advice:
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


def _shards(report: RunFacts) -> Advice:
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


def _idle(report: RunFacts) -> Advice:
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


def _storage(report: RunFacts) -> Advice:
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


def _uneven(report: RunFacts) -> Advice:
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


def _source(report: RunFacts) -> Advice:
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


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _is_long(report: RunFacts) -> bool:
    return report.seconds > _SHORT_SECONDS


def _busy(report: RunFacts) -> float:
    return sum(worker.busy_seconds for worker in report.workers)


def _speed(worker: WorkerReport) -> float:
    """Decoded bytes per second since the process began."""
    seconds = worker.stop - worker.start
    return worker.raw_nbytes / seconds if seconds > 0 else 0.0


def _n_at_once(report: RunFacts) -> int:
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
