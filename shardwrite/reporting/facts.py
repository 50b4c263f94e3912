"""The report of a run, as plain numbers that a file in the array can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import UnionType
from typing import Any, Self

from shardwrite.stores import parse_json

_FORMAT = 1
_MAX_TEXT = 500
_LARGEST = 2.0**62


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

    The fields are described in :class:`~shardwrite.reporting.report.RunReport`.
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
