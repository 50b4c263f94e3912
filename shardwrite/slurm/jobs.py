"""Jobs that were submitted for a run or work on it, kept with it on disk: so that they are found when whoever knew them is gone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwrite.errors import SubmitError
from shardwrite.host.resources import job_id
from shardwrite.journal import JOBS_PREFIX, RunDirectory, find_run, live_holders, write_note
from shardwrite.journal.lease import identity, is_alive, lease_times
from shardwrite.journal.lock import exclusive
from shardwrite.slurm.client import cancel, command_words, queue
from shardwrite.stores import as_store_error, is_there, listed, read_file
from shardwrite.target import Target

__all__ = [
    "Cancelled",
    "Driver",
    "DriverNote",
    "Submitted",
    "cancel_all",
    "cancel_left",
    "record_jobs",
    "refuse_second",
    "submitted",
    "submitting",
]

_GONE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Driver:
    """A process that submits workers, as its note tells.

    Attributes
    ----------
    path : Path
        Its note.
    data : bytes
        What stands in it.
    job : str
        Its own job; empty where it is none.
    workers : tuple of str
        Their jobs.
    process : str
        Host and pid.
    has_ended : bool
        Whether it says so itself.
    """

    path: Path
    data: bytes
    job: str
    workers: tuple[str, ...]
    process: str
    has_ended: bool

    @property
    def is_alive(self) -> bool:
        """Whether it lives, or may; to ask writes into the run's directory, so commands that only look do not."""
        return not self.has_ended and is_alive(self.path, self.data)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What was submitted for a run, and what has worked on it.

    Attributes
    ----------
    drivers : tuple of Driver
        Those that submit workers.
    workers, others : tuple of str
        Ids of jobs: the workers; arrays with their last jobs, and jobs that have noted themselves.
    n_parts : int
        Of the job array that was submitted last; 0 if there was none.
    """

    drivers: tuple[Driver, ...] = ()
    workers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    n_parts: int = 0

    @property
    def ids(self) -> list[str]:
        """All; those first that would submit others."""
        return list(dict.fromkeys((*self.leaders, *self.others, *self.workers)))

    @property
    def leaders(self) -> list[str]:
        """Jobs of drivers."""
        return [driver.job for driver in self.drivers if driver.job]


def record_jobs(target: Target, array: str, finalize: str, n_parts: int) -> None:
    """Keep with the run the array that was submitted for it; nothing if it has ended meanwhile."""
    run = find_run(target)
    if run is not None:
        facts = {"array": array, "finalize": finalize, "n_parts": n_parts}
        write_note(run.path / f"{JOBS_PREFIX}{array}.json", facts)


class DriverNote:
    """The note of a driver, which keeps it as long as it lives; and the word of somebody else that it shall end.

    Parameters
    ----------
    name : str
        Of the driver, so that no other writes that file.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._run_path: Path | None = None
        self._workers: list[str] = []
        self._touched = 0.0

    def is_kept(self, workers: Sequence[str]) -> bool:
        """Whether the run is there and the note says so; gives a sign of life from time to time."""
        if self._run_path is None or list(workers) != self._workers or not is_there(self._run_path):
            return False
        if time.monotonic() > self._touched + lease_times()[0]:
            os.utime(_note_of(self._run_path, self.name))
            self._touched = time.monotonic()
        return True

    def keep(self, run: RunDirectory, workers: Sequence[str], *, has_ended: bool = False) -> None:
        """Write all of it down."""
        facts = {
            **identity(),
            "driver": job_id(os.environ),
            "workers": list(workers),
            "has_ended": has_ended,
        }
        write_note(_note_of(run.path, self.name), facts)
        self._run_path, self._workers, self._touched = run.path, list(workers), time.monotonic()

    @property
    def is_told_to_end(self) -> bool:
        """Whether the driver's work was cancelled."""
        return self._run_path is not None and is_there(_end_of(_note_of(self._run_path, self.name)))


def _note_of(run_path: Path, name: str) -> Path:
    return run_path / f"{JOBS_PREFIX}{name}.json"


def _end_of(note: Path) -> Path:
    """What tells the driver of a note to end."""
    return note.with_name(f"cancel-{note.name.removeprefix(JOBS_PREFIX)}")


def submitted(run: RunDirectory) -> Submitted:
    """What the notes beside a run's journal say; what is no number of a job is left out, as it goes to SLURM's commands."""
    found: list[tuple[float, Path, bytes, dict[str, Any]]] = []
    for path in listed(run.path, JOBS_PREFIX, ".json"):
        with (
            as_store_error(str(path), "cannot read"),
            contextlib.suppress(FileNotFoundError),
        ):  # the run has ended meanwhile
            data = read_file(path)
            if data is not None:
                found.append((path.stat().st_mtime, path, data, _parse(data)))
    found.sort(key=lambda note: note[0])
    notes = [facts for *_, facts in found]
    return Submitted(
        drivers=tuple(
            _driver(path, data, facts) for _, path, data, facts in found if "workers" in facts
        ),
        workers=_numbers(
            job
            for facts in notes
            if isinstance(facts.get("workers"), list)
            for job in facts["workers"]
        ),
        others=_numbers(
            facts[key] for facts in notes for key in ("array", "finalize", "job") if key in facts
        ),
        n_parts=next(
            (
                facts["n_parts"]
                for facts in reversed(notes)
                if isinstance(facts.get("n_parts"), int)
            ),
            0,
        ),
    )


def _parse(data: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(data)
    except ValueError:  # torn by a power cut
        return {}
    return facts if isinstance(facts, dict) else {}


def _numbers(jobs: Any) -> tuple[str, ...]:
    return tuple(str(job) for job in jobs if re.fullmatch(r"\d+(_\d+)?", str(job)))


def _driver(path: Path, data: bytes, facts: dict[str, Any]) -> Driver:
    job = _numbers([facts.get("driver")])
    workers = facts["workers"] if isinstance(facts["workers"], list) else []
    process = f"{facts.get('host', 'unknown')}:{facts.get('pid', 'unknown')}"
    return Driver(
        path, data, job[0] if job else "", _numbers(workers), process, bool(facts.get("has_ended"))
    )


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of a run's jobs.

    Attributes
    ----------
    jobs : list of str
        Those that were cancelled; all others had ended.
    n_known : int
        Jobs that were submitted for the run, or have worked on it, as far as it is known.
    alive : list of str
        Processes that are at the run, or seem to be: host, pid, and job if it is one.
    """

    jobs: list[str]
    n_known: int
    alive: list[str] = field(default_factory=list)


def cancel_left(
    find: Callable[[], Submitted], wait: Callable[[float], None] = time.sleep
) -> list[str]:
    """Cancel jobs until none of them is left and no driver would submit more; those that were cancelled.

    Drivers come first, as they would replace their workers. A job that has put itself back into the queue is cancelled, too, while
    its processes still end.

    Parameters
    ----------
    find : callable
        Gives the jobs, each time anew: a driver may submit more meanwhile.
    wait : callable
        Sleeps.

    Raises
    ------
    SubmitError
        If SLURM's commands are not here or fail, or jobs are still there after half a minute.
    """
    cancelled: dict[str, None] = {}
    deadline = time.monotonic() + _GONE_SECONDS
    while True:
        known = find()
        found = queue(known.ids)
        left = [job["id"] for job in found if job["state"] != "COMPLETING"]
        ending = [
            job["id"]
            for job in found
            if job["state"] == "COMPLETING" and job["id"] not in known.workers
        ]
        again = [job for job in ending if job not in cancelled]
        at_work = [driver for driver in known.drivers if driver.is_alive and not driver.job]
        is_late = time.monotonic() > deadline
        if not left and not again and (is_late or not at_work):
            return list(cancelled)
        if is_late:
            raise SubmitError(
                f"still there after {_GONE_SECONDS:.0f} s: {', '.join(left)}; try again",
                command="scancel",
            )
        now = [job for job in (*left, *again) if job in known.leaders] or [*left, *again]
        cancel(now)
        cancelled.update(dict.fromkeys(now))
        wait(0.5)


def cancel_all(target: Target) -> Cancelled:
    """Cancel what was submitted for the runs at a target, or has worked on them, and has not ended.

    Drivers that are no jobs are told by a file beside their note, and end by themselves; see `DriverNote`.

    Raises
    ------
    SubmitError
        See `cancel_left`.
    """
    runs = [run for each in (target, *target.others) if (run := find_run(each)) is not None]

    def find() -> Submitted:
        known = _together([submitted(run) for run in runs])
        for driver in known.drivers:
            _tell_to_end(driver)
        return known

    if not runs:
        return Cancelled([], 0)
    cancelled = cancel_left(find)
    known = find()
    holders = [holder for run in runs for holder in live_holders(run.path)]
    alive = [
        " ".join(f"{h.get('host', 'unknown')}:{h.get('pid', 'unknown')} {h.get('job', '')}".split())
        for h in holders
    ]
    alive += [driver.process for driver in known.drivers if driver.is_alive and not driver.job]
    return Cancelled(cancelled, len(known.ids), list(dict.fromkeys(alive)))


def _together(each: Sequence[Submitted]) -> Submitted:
    """What is known of several runs."""
    return Submitted(
        drivers=tuple(driver for one in each for driver in one.drivers),
        workers=tuple(job for one in each for job in one.workers),
        others=tuple(job for one in each for job in one.others),
    )


def _tell_to_end(driver: Driver) -> None:
    """Leave the word for a driver that it shall end; nothing where its run has."""
    path = _end_of(driver.path)
    with as_store_error(str(path), "cannot write"), contextlib.suppress(FileNotFoundError):
        if driver.is_alive and not is_there(path):
            write_note(path, {"by": identity()})


def refuse_second(target: Target) -> None:
    """Refuse to submit for a run what would write it a second time, beside jobs that are in the queue or a driver that lives.

    The job of this process is not meant, nor are workers whose driver is gone: those are cancelled, as nobody has work for them.

    Raises
    ------
    SubmitError
        Naming the jobs and the remedy; and if SLURM cannot be asked.
    """
    run = find_run(target)
    if run is None:
        return
    known, own = submitted(run), job_id(os.environ)
    there = queue(known.ids)
    ids = {job["id"] for job in there}
    leading = [
        driver
        for driver in known.drivers
        if driver.job != own and (driver.job in ids or _lives_alone(driver))
    ]
    led = {job for driver in leading for job in driver.workers}
    orphans = [job["id"] for job in there if job["id"] in set(known.workers) - led]
    live = [
        f"job {job['id']} {job['state']}"
        for job in there
        if job["id"] not in orphans and job["id"] != own
    ]
    live += [
        f"process {driver.process}, which submits workers" for driver in leading if not driver.job
    ]
    if live:
        many = f"{', '.join(live[:8])}{f' and {len(live) - 8} more' if len(live) > 8 else ''}"
        raise SubmitError(
            f"{target.path} is being written already: {many}. A second submission would write it twice. Wait for them, or end them "
            f"first: shardwrite slurm cancel {command_words(target)}",
            command="squeue",
        )
    cancel(orphans)


@contextlib.contextmanager
def submitting(target: Target) -> Iterator[None]:
    """Submit for a run in this block: one submission at a time, and none beside another; see `refuse_second`."""
    run = find_run(target)
    with contextlib.ExitStack() as stack:
        if run is not None:
            stack.enter_context(exclusive(run.path / "submitting", run.path))
            refuse_second(target)
        yield


def _lives_alone(driver: Driver) -> bool:
    """Whether a driver that is no job lives."""
    return driver.is_alive and not driver.job
