"""Notes beside a run about the jobs that were submitted for it, or work on it.

With these notes, a job is found even while it waits in the queue again, and can be cancelled after
the process that submitted it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwrite.codecs.documents import JSON
from shardwrite.host.resources import job_id
from shardwrite.journal.begin import find_run
from shardwrite.journal.lease import is_alive, lease_times, this_process
from shardwrite.journal.rundir import RunDirectory
from shardwrite.place.target import Target
from shardwrite.plan.plan import Stretch
from shardwrite.stores.looking import as_store_error, is_there, listed, read_file

JOBS_PREFIX = "jobs-"


def note_job(run_path: str | os.PathLike[str]) -> None:
    """Note the number of this process's batch job in the directory of a run.

    Nothing is noted outside of a batch job. An interactive job is left to the user who started it.

    Where the environment variable ``SHARDWRITE_JOB`` is set, its number is noted instead. It names
    a job array whose tasks all work on this run.
    """
    if os.environ.get("ENVIRONMENT") != "BATCH":  # SLURM sets this in jobs submitted by sbatch
        return
    job = os.environ.get("SHARDWRITE_JOB") or job_id(os.environ) or ""
    if re.fullmatch(r"\d+(_\d+)?", job):
        path = Path(run_path) / f"{JOBS_PREFIX}{job}-at-work.json"
        with as_store_error(str(path), "cannot write"):
            if not is_there(path):
                write_note(path, {"job": job})


def write_note(path: Path, facts: Mapping[str, JSON]) -> None:
    """Write a small JSON file that appears whole.

    The file is not synced, so it is only for facts that may be lost in a power cut.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_text(json.dumps(facts))
    os.rename(draft, path)


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

    @property
    def lives_alone(self) -> bool:
        """Whether the driver is alive, and not in a job."""
        return self.is_alive and not self.job

    def tell_to_end(self) -> None:
        """Tell the driver by a file to end, unless the driver or its run has ended."""
        path = _end_of(self.path)
        with as_store_error(str(path), "cannot write"), contextlib.suppress(FileNotFoundError):
            if self.is_alive and not is_there(path):
                write_note(path, {"by": this_process().to_dict()})


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
        write_note(_note_of(run.shared, self.name), facts)
        self._run_path, self._workers, self._touched = run.shared, list(workers), time.monotonic()

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
    where = dict.fromkeys((run.shared, run.path))  # of the whole run, and of this array
    for path in (note for each in where for note in listed(each, JOBS_PREFIX, ".json")):
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
