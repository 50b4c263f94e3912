"""Notes beside a run about the jobs that were submitted for it, or work on it.

With these notes, a job is found even while it waits in the queue again, and can be cancelled after
the process that submitted it is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.host.resources import job_id
from shardwrite.journal.begin import find_run
from shardwrite.journal.lease import is_alive, lease_times, this_process
from shardwrite.journal.process import Process, process_in
from shardwrite.journal.rundir import RunDirectory
from shardwrite.place.target import Target
from shardwrite.plan.plan import Stretch
from shardwrite.records import Record, rest
from shardwrite.stores.looking import as_store_error, is_there, listed, parse_json, read_file

JOBS_PREFIX = "jobs-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Record):
    """What a file beside a run says of jobs. A torn one says nothing."""

    _lenient = True

    job: str = ""  # a job that works on the run
    array: str = ""  # a job array that was submitted for it, and the job after that
    finalize: str = ""
    n_parts: int = 0  # number of parts of the job array; 0 if the note is of none
    # Where the array lies among those that the job array cuts into parts together: decoded bytes
    # before it, and of all
    among: tuple[int, int] | None = None
    driver: str = ""  # a driver's own job; empty if it is in none
    workers: tuple[str, ...] | None = None  # jobs of a driver's workers; None if it is of no driver
    has_ended: bool = False  # whether the driver has ended
    process: Mapping[str, JSON] = rest()  # what identifies a driver, as in a lease


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
                write_note(path, Note(job=job))


def write_note(path: Path, note: Record) -> None:
    """Write a small JSON file that appears whole.

    The file is not synced, so it is only for facts that may be lost in a power cut.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_bytes(note.to_json())
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
                write_note(path, this_process())


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
    place = None if among is None else (among.before_nbytes, among.total_nbytes)
    note = Note(array=array, finalize=finalize, n_parts=n_parts, among=place)
    write_note(run.path / f"{JOBS_PREFIX}{array}.json", note)


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
        note = Note(
            process=this_process().to_dict(),
            driver=job_id(os.environ) or "",
            workers=tuple(workers),
            has_ended=has_ended,
        )
        write_note(_note_of(run.shared, self.name), note)
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
    found: list[tuple[float, Path, bytes, Note]] = []
    where = dict.fromkeys((run.shared, run.path))  # of the whole run, and of this array
    for path in (note for each in where for note in listed(each, JOBS_PREFIX, ".json")):
        # A note that is gone belongs to a run that has ended meanwhile.
        with as_store_error(str(path), "cannot read"), contextlib.suppress(FileNotFoundError):
            data = read_file(path)
            if data is not None:
                found.append((path.stat().st_mtime, path, data, _parsed(data)))
    found.sort(key=lambda note: note[0])
    notes = [note for *_, note in found]
    last = [note for note in reversed(notes) if note.n_parts]
    places = [note.among for note in reversed(notes) if note.among is not None]
    return Submitted(
        drivers=tuple(
            _driver(path, data, note) for _, path, data, note in found if note.workers is not None
        ),
        workers=tuple(job for note in notes for job in _numbers(note.workers or ())),
        others=_numbers(
            job for note in notes for job in (note.array, note.finalize, note.job) if job
        ),
        n_parts=last[0].n_parts if last else 0,
        among=Stretch(*places[0]) if places else None,
    )


def _parsed(data: bytes) -> Note:
    try:
        return Note.from_dict(parse_json(data))
    except ValueError:  # torn by a power cut
        return Note()


def _numbers(jobs: Iterable[str]) -> tuple[str, ...]:
    return tuple(job for job in jobs if re.fullmatch(r"\d+(_\d+)?", job))


def _driver(path: Path, data: bytes, note: Note) -> Driver:
    who = process_in(data) or Process()
    return Driver(
        path,
        data,
        next(iter(_numbers([note.driver])), ""),
        _numbers(note.workers or ()),
        f"{who.host or 'unknown'}:{who.pid or 'unknown'}",
        note.has_ended,
    )
