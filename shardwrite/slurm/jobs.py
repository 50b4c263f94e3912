"""Notes beside a run about the jobs that were submitted for it, or that work on it.

The notes let the jobs be found and cancelled after the process that submitted them is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardwrite.errors import SubmitError
from shardwrite.host.resources import job_id
from shardwrite.journal import RunDirectory, find_run, live_holders
from shardwrite.journal.jobs import JOBS_PREFIX, write_note
from shardwrite.journal.lease import is_alive, lease_times, this_process
from shardwrite.journal.lock import exclusive
from shardwrite.place.target import Target
from shardwrite.plan import Stretch
from shardwrite.slurm.below import runs_at, targets_at
from shardwrite.slurm.client import cancel, command_words, queue
from shardwrite.stores import as_store_error, is_there, listed, read_file

_GONE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Driver:
    """A process that submits workers, as its note describes it."""

    path: Path  # path of the note
    data: bytes  # content of the note
    job: str  # id of the driver's own job; empty if it is not in a job
    workers: tuple[str, ...]  # ids of its workers' jobs
    process: str  # host and pid, as ``host:pid``
    has_ended: bool  # whether the note says that the driver has ended

    @property
    def is_alive(self) -> bool:
        """Whether the driver is alive, or may be.

        Asking writes a file into the run's directory, so commands that only look must not ask.
        """
        return not self.has_ended and is_alive(self.path, self.data)


@dataclass(frozen=True, slots=True)
class Submitted:
    """Drivers and jobs that were submitted for a run, or have worked on it."""

    drivers: tuple[Driver, ...] = ()  # processes that submit workers
    workers: tuple[str, ...] = ()  # ids of the workers' jobs
    # Ids of job arrays, of the jobs that follow them, and of jobs that have noted themselves
    others: tuple[str, ...] = ()
    # Number of parts of the job array that was submitted last; 0 if there was none
    n_parts: int = 0
    # Place of the run among those that this job array cuts into parts together
    among: Stretch | None = None

    @property
    def ids(self) -> list[str]:
        """Ids of all jobs, each once; first those of drivers, which would submit others."""
        return list(dict.fromkeys((*self.leaders, *self.others, *self.workers)))

    @property
    def leaders(self) -> list[str]:
        """Ids of the drivers' own jobs."""
        return [driver.job for driver in self.drivers if driver.job]


def record_jobs(
    target: Target, array: str, finalize: str, n_parts: int, among: Stretch | None = None
) -> None:
    """Note a job array beside the run that it was submitted for, unless this run has ended.

    - `among`: place of the array among several. By default as in the note before.
    """
    run = find_run(target)
    if run is None:
        return
    among = among or submitted(run).among
    place = {} if among is None else {"among": [among.before_nbytes, among.total_nbytes]}
    write_note(
        run.path / f"{JOBS_PREFIX}{array}.json",
        {"array": array, "finalize": finalize, "n_parts": n_parts, **place},
    )


class DriverNote:
    """The note of a driver beside its run, and the request of others that it end.

    The driver keeps the note up to date as long as it lives.

    - `name`: name of the driver. No other driver may have it, because it names the file.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._run_path: Path | None = None
        self._workers: list[str] = []
        self._touched = 0.0

    def is_kept(self, workers: Sequence[str]) -> bool:
        """Whether the run is there and the note lists these workers.

        If so, the note is touched from time to time, as a sign of life.
        """
        if self._run_path is None or list(workers) != self._workers or not is_there(self._run_path):
            return False
        if time.monotonic() > self._touched + lease_times()[0]:
            os.utime(_note_of(self._run_path, self.name))
            self._touched = time.monotonic()
        return True

    def keep(self, run: RunDirectory, workers: Sequence[str], *, has_ended: bool = False) -> None:
        """Write the note, with all workers."""
        facts = {
            **this_process().to_dict(),
            "driver": job_id(os.environ),
            "workers": list(workers),
            "has_ended": has_ended,
        }
        write_note(_note_of(run.path, self.name), facts)
        self._run_path, self._workers, self._touched = run.path, list(workers), time.monotonic()

    @property
    def is_told_to_end(self) -> bool:
        """Whether somebody has cancelled the driver's work."""
        return self._run_path is not None and is_there(_end_of(_note_of(self._run_path, self.name)))


def _note_of(run_path: Path, name: str) -> Path:
    return run_path / f"{JOBS_PREFIX}{name}.json"


def _end_of(note: Path) -> Path:
    """Path of the file that tells the driver of a note to end."""
    return note.with_name(f"cancel-{note.name.removeprefix(JOBS_PREFIX)}")


def submitted(run: RunDirectory) -> Submitted:
    """Read the notes beside a run's journal.

    Ids that are not numbers of jobs are left out, because they go to SLURM's commands.
    """
    found: list[tuple[float, Path, bytes, Mapping[str, object]]] = []
    for path in listed(run.path, JOBS_PREFIX, ".json"):
        # A note that is gone belongs to a run that has ended meanwhile.
        with as_store_error(str(path), "cannot read"), contextlib.suppress(FileNotFoundError):
            data = read_file(path)
            if data is not None:
                found.append((path.stat().st_mtime, path, data, _parse(data)))
    found.sort(key=lambda note: note[0])
    notes = [facts for *_, facts in found]
    return Submitted(
        drivers=tuple(
            _driver(path, data, facts) for _, path, data, facts in found if "workers" in facts
        ),
        workers=tuple(job for facts in notes for job in _workers_in(facts)),
        others=_numbers(
            facts[key] for facts in notes for key in ("array", "finalize", "job") if key in facts
        ),
        n_parts=next(
            (n for facts in reversed(notes) if isinstance(n := facts.get("n_parts"), int)), 0
        ),
        among=next(
            (among for facts in reversed(notes) if (among := _stretch_in(facts)) is not None), None
        ),
    )


def _stretch_in(facts: Mapping[str, object]) -> Stretch | None:
    found = facts.get("among")
    if not isinstance(found, list) or len(found) != 2:
        return None
    start, stop = found
    return Stretch(start, stop) if isinstance(start, int) and isinstance(stop, int) else None


def _workers_in(facts: Mapping[str, object]) -> tuple[str, ...]:
    """Jobs of a driver's workers."""
    found = facts.get("workers")
    return _numbers(found) if isinstance(found, list) else ()


def _parse(data: bytes) -> Mapping[str, object]:
    try:
        facts = json.loads(data)
    except ValueError:  # torn by a power cut
        return {}
    return facts if isinstance(facts, dict) else {}


def _numbers(jobs: Iterable[object]) -> tuple[str, ...]:
    return tuple(str(job) for job in jobs if re.fullmatch(r"\d+(_\d+)?", str(job)))


def _driver(path: Path, data: bytes, facts: Mapping[str, object]) -> Driver:
    job = _numbers([facts.get("driver")])
    process = f"{facts.get('host', 'unknown')}:{facts.get('pid', 'unknown')}"
    return Driver(
        path,
        data,
        job[0] if job else "",
        _workers_in(facts),
        process,
        bool(facts.get("has_ended")),
    )


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Outcome of cancelling a run's jobs."""

    jobs: list[str]  # ids of the jobs that were cancelled. All others had ended.
    n_known: int  # number of jobs known to be submitted for the run, or to have worked on it
    # Processes that still work on the run, or seem to: host, pid, and the job if there is one
    alive: list[str] = field(default_factory=list)


def cancel_left(
    find: Callable[[], Submitted], wait: Callable[[float], None] = time.sleep
) -> list[str]:
    """Cancel jobs until none is left, and return the ids of those that were cancelled.

    The jobs of drivers are cancelled first, because drivers would replace their workers. A job that
    is completing is cancelled too, unless it is a worker's, because it may have put itself back
    into the queue. Drivers that are in no job are waited for, but no longer than half a minute.

    - `find`: returns the jobs. It is called again in each round, because a driver may submit more.
    - `wait`: sleeps for a number of seconds.
    - Raises SubmitError if SLURM's commands cannot be called or fail, or if jobs are left after
      half a minute.
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
    """Cancel all jobs of the runs at a target that have not ended.

    The runs are that of the whole array, and those of its updates. Drivers are told by a file
    beside their note to end by themselves; see `DriverNote`.

    - Raises SubmitError if SLURM's commands cannot be called or fail, or if jobs are left after
      half a minute.
    """
    targets = (each for one in targets_at(target) for each in (one, *one.others))
    runs = [run for each in targets if (run := find_run(each)) is not None]

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
        f"{h.process.host or 'unknown'}:{h.process.pid or 'unknown'} {h.process.job or ''}".strip()
        for h in holders
    ]
    alive += [driver.process for driver in known.drivers if driver.is_alive and not driver.job]
    return Cancelled(cancelled, len(known.ids), list(dict.fromkeys(alive)))


def jobs_known(target: Target) -> list[str]:
    """Ids of all jobs of the runs at a target that have not ended, in the queue or not."""
    runs = [run for each in (target, *target.others) if (run := find_run(each)) is not None]
    return sorted(_together([submitted(run) for run in runs]).ids)


def _together(each: Sequence[Submitted]) -> Submitted:
    """Merge what is known of several runs; the number of parts is not kept."""
    return Submitted(
        drivers=tuple(driver for one in each for driver in one.drivers),
        workers=tuple(job for one in each for job in one.workers),
        others=tuple(job for one in each for job in one.others),
    )


def _tell_to_end(driver: Driver) -> None:
    """Tell a driver by a file to end, unless the driver or its run has ended."""
    path = _end_of(driver.path)
    with as_store_error(str(path), "cannot write"), contextlib.suppress(FileNotFoundError):
        if driver.is_alive and not is_there(path):
            write_note(path, {"by": this_process().to_dict()})


def refuse_second(target: Target) -> None:
    """Refuse a submission that would write a run a second time.

    It is refused if jobs of the run are in the queue, or if a driver of the run lives. The job of
    this process does not count. Workers whose driver is gone do not count either: they are
    cancelled, because nobody has work for them.

    - Raises SubmitError if the run is being written, naming the jobs and the remedy. Also if SLURM
      cannot be asked.
    """
    runs = runs_at(target)
    if not runs:
        return
    known, own = _together([submitted(run) for run in runs]), job_id(os.environ)
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
            f"{target.label} is being written already: {many}. A second submission would write it "
            "twice. Wait for them, or end them "
            f"first: shardwrite slurm cancel {command_words(target)}",
            command="squeue",
        )
    cancel(orphans)


@contextlib.contextmanager
def submitting(target: Target) -> Iterator[None]:
    """Hold the exclusive right to submit jobs for a run, as long as the block lasts.

    Nothing is held if no run has begun at the target.

    - Raises SubmitError if the run is being written already, as in `refuse_second`.
    """
    runs = runs_at(target)
    with contextlib.ExitStack() as stack:
        if runs:
            stack.enter_context(exclusive(runs[0].path / "submitting", runs[0].path))
            refuse_second(target)
        yield


def _lives_alone(driver: Driver) -> bool:
    """Whether a driver lives, and is not in a job."""
    return driver.is_alive and not driver.job
