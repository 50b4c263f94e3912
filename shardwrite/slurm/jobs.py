"""Jobs of a run: their scripts, and those in the queue.

Scripts of another array are never overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from pathlib import Path

from shardwrite._dataclass import dataclass
from shardwrite.convert.swap import new_tree_of
from shardwrite.errors import SpecError, SubmitError
from shardwrite.host.resources import job_id
from shardwrite.journal.begin import find_run
from shardwrite.journal.lease import live_holders
from shardwrite.journal.lock import exclusive
from shardwrite.journal.neighbours import look_beside
from shardwrite.journal.rundir import RunDirectory, record_in
from shardwrite.journal.state_work import fetched
from shardwrite.place.directory import Directory
from shardwrite.place.target import TOGETHER, Target, resolve_target
from shardwrite.slurm.client import cancel, command_words, queue, root_of
from shardwrite.slurm.notes import Submitted, submitted
from shardwrite.stores.directories import RUN_SUFFIX
from shardwrite.stores.looking import is_store_url, listed, mode_of
from shardwrite.volumes.documents import scale_targets_of
from shardwrite.volumes.hashed import is_gathering

# ---- Runs that belong to one target: that of an array, or those of all arrays in a group


def targets_at(target: Target) -> list[Target]:
    """The arrays that commands for a target mean.

    - Returns: the target itself, and its spool if it has one; see `spool_at`. If a group stands
      there, or is to be made by a run, each array in it that is there, or that was begun. If it is
      being converted in its place, the new arrays.
    """
    spool = spool_at(target)
    if spool is not None:
        return [target, spool]
    if not isinstance(target.place, Directory):
        return [target]
    new = new_tree_of(target.place.path)
    place = target.place if new is None else Directory(new)
    if place.kind() != "group":
        root = target if new is None else resolve_target(new, None)
        return [run.target for run in _runs_below(root)] or [root]
    return list(_arrays_in(place, ""))


def _runs_below(target: Target) -> list[RunDirectory]:
    """Runs that write several arrays of the hierarchy at a place: one for each of these arrays.

    Nothing on disk is changed.
    """
    found = []
    for shared in listed(target.beside / TOGETHER, "run-"):
        for part in sorted(listed(shared), key=lambda part: (len(part.name), part.name)):
            record = record_in(part / "plan.json")
            if record is None or record.together is None:
                continue
            own = record.together
            run_path = Path(os.path.normpath(shared.parent / own.state))
            update = "" if record.makes_array else run_path.name
            place = target.place.member(own.name)
            array = Target(place, run_path, update=update).with_run_path(run_path)
            run = find_run(array)
            if run is not None and run.shared == shared:
                found.append(run)
    return found


def spool_at(target: Target) -> Target | None:
    """Place of the spool of a scale that is being made, if its hash scatters the chunks."""
    run = look_beside(target).run
    places = scale_targets_of(target, None) if run is not None and is_gathering(run) else None
    spool = None if places is None else fetched(places.spool)
    return None if spool is None or look_beside(spool).run is None else spool


def runs_at(target: Target) -> list[RunDirectory]:
    """Runs of a target that have not ended; see `targets_at`."""
    found = (find_run(each) for each in targets_at(target))
    return [run for run in found if run is not None]


def _arrays_in(root: Directory, name: str) -> Iterator[Target]:
    """Arrays in a group that are there, or that were begun, in the order of their names."""
    group = root.member(name) if name else root
    leaves = {
        entry.name.removesuffix(RUN_SUFFIX)
        for entry in listed(group.path)
        if stat.S_ISDIR(mode_of(entry, follow=False))
    } | {begun.partition("/")[0] for begun in group.begun_below()}
    for leaf in sorted(leaves):
        path = f"{name}/{leaf}" if name else leaf
        member = root.member(path)
        kind = member.kind()
        if kind == "group" or (kind == "nothing" and any(member.begun_below())):
            yield from _arrays_in(root, path)
            continue
        target = resolve_target(root.path, path)
        if kind == "array" or find_run(target) is not None:
            yield target


# ---- The directory of job scripts


ARRAY, FINALIZE = "array.sbatch", "finalize.sbatch"

_DIGITS = 8

_STEM_NBYTES = 200  # leaves room for the suffix: file systems allow names of 255 bytes


@dataclass(frozen=True, slots=True)
class Scripts:
    """What the scripts in a directory do, as read from their text."""

    # The array that they write. None if they write different arrays, or if their text does not
    # tell, for instance because a user has edited them.
    target: Target | None
    n_parts: int  # number of the array's parts; 0 if the scripts do not tell
    at_once: str  # limit of tasks that run at a time, such as ``%4``; empty if there is none


def default_directory(target: Target) -> Path:
    """Default directory for the scripts of an array, relative to the working directory.

    Its name holds the array's name, and a digest of the array's path, which tells arrays of the
    same name apart.

    Examples
    --------
    >>> (
    ...     default_directory(resolve_target("/x/scan.zarr", None)),
    ...     default_directory(resolve_target("/y/scan.zarr", None)),
    ... )
    (PosixPath('scan-slurm-c6959afd'), PosixPath('scan-slurm-8419f783'))
    """
    path = _path_of(target)
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:_DIGITS]
    stem = os.fsencode(path.stem)[:_STEM_NBYTES].decode(errors="ignore")
    return Path(f"{stem}-slurm-{digest}")


def read_scripts(directory: Path) -> Scripts | None:
    """Read what the scripts in a directory do; None if it holds no scripts."""
    texts = [
        path.read_text(errors="replace")
        for name in (ARRAY, FINALIZE)
        if (path := directory / name).is_file()
    ]
    if not texts:
        return None
    targets = [_target_in(text, directory) for text in texts]
    is_one = len({None if target is None else _path_of(target) for target in targets}) == 1
    parts = {
        found[1] for text in texts if (found := re.search(r"^PARTS=(\d+)$", text, re.MULTILINE))
    }
    throttle = re.search(r"^#SBATCH --array=[\d,:-]+(%\d+)$", texts[0], re.MULTILINE)
    return Scripts(
        target=targets[0] if is_one else None,
        n_parts=int(parts.pop()) if len(parts) == 1 else 0,
        at_once=throttle[1] if throttle else "",
    )


def _target_in(text: str, directory: Path) -> Target | None:
    """Array that a script writes, by its lines ``DST=`` and ``OPTIONS=``.

    None if the lines do not tell.
    """
    root = _values(text, "DST", r"(.*)")
    options = _values(text, "OPTIONS", r"\((.*)\)")
    if root is None or options is None or len(root) != 1:
        return None
    names = [value for option, value in pairwise(options) if option == "--name"]
    if "--name" in options and not names:
        return None
    path = root[0] if is_store_url(root[0]) else os.path.normpath(directory / root[0])
    return resolve_target(path, names[-1] if names else None)


def _path_of(target: Target) -> Path:
    """Path of an array, or its URL as a path, which tells it from all other arrays."""
    return Path(root_of(target)) / target.place.name


def _values(text: str, name: str, pattern: str) -> list[str] | None:
    """Words that a script assigns to a variable.

    None if there is not exactly one such line, or if only a shell could expand it.
    """
    found = re.findall(rf"^{name}={pattern}$", text, re.MULTILINE)
    if len(found) != 1:
        return None
    bare = re.sub(r"'[^']*'", "", found[0])
    if any(character in bare for character in "$`\\~"):
        return None
    try:
        return shlex.split(found[0])
    except ValueError:
        return None


def write_scripts(directory: Path, target: Target, scripts: Mapping[str, str]) -> None:
    """Write the scripts of an array, and make the directory ``logs`` beside them."""
    check_directory(directory, target)
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    for leaf, text in scripts.items():
        (directory / leaf).write_text(text)


def check_directory(directory: Path, target: Target) -> None:
    """Refuse a directory that holds scripts of another array."""
    there = read_scripts(directory)
    if there is not None and (there.target is None or _path_of(there.target) != _path_of(target)):
        whose = (
            "scripts of your own"
            if there.target is None
            else f"the scripts that write {there.target.label}"
        )
        remedy = f"give another, or leave it out: that is {default_directory(target)}"
        raise SpecError(
            f"{whose} are there", field="directory", value=str(directory), remedy=remedy
        )


# ---- Jobs that are in the queue


_GONE_SECONDS = 30.0


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
        at_work = [driver for driver in known.drivers if driver.lives_alone]
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
        known = _merged([submitted(run) for run in runs])
        for driver in known.drivers:
            driver.tell_to_end()
        return known

    if not runs:
        return Cancelled([], 0)
    cancelled = cancel_left(find)
    known = find()
    holders = [holder for run in runs for holder in live_holders(run.shared)]
    alive = [
        f"{h.process.host or 'unknown'}:{h.process.pid or 'unknown'} {h.process.job or ''}".strip()
        for h in holders
    ]
    alive += [driver.process for driver in known.drivers if driver.lives_alone]
    return Cancelled(cancelled, len(known.ids), list(dict.fromkeys(alive)))


def jobs_known(target: Target) -> list[str]:
    """Ids of all jobs of the runs at a target that have not ended, in the queue or not."""
    runs = [run for each in (target, *target.others) if (run := find_run(each)) is not None]
    return sorted(_merged([submitted(run) for run in runs]).ids)


def _merged(each: Sequence[Submitted]) -> Submitted:
    """Merge what is known of several runs; the number of parts is not kept."""
    return Submitted(
        drivers=tuple(driver for one in each for driver in one.drivers),
        workers=tuple(job for one in each for job in one.workers),
        others=tuple(job for one in each for job in one.others),
    )


def refuse_second_submission(target: Target) -> list[str]:
    """Refuse to submit jobs for a run that is being written.

    It is if jobs of the run are in the queue, or if a driver of the run lives. The job of this
    process does not count. Workers whose driver is gone do not count either, because nobody has
    work for them.

    - Returns: ids of the workers whose driver is gone, which are to be cancelled.
    - Raises SubmitError if the run is being written, naming the jobs and the remedy. Also if SLURM
      cannot be asked.
    """
    runs = runs_at(target)
    if not runs:
        return []
    known, own = _merged([submitted(run) for run in runs]), job_id(os.environ)
    queued = queue(known.ids)
    ids = {job["id"] for job in queued}
    live_drivers = [
        driver
        for driver in known.drivers
        if driver.job != own and (driver.job in ids or driver.lives_alone)
    ]
    workers_of_live = {job for driver in live_drivers for job in driver.workers}
    orphans = [job["id"] for job in queued if job["id"] in set(known.workers) - workers_of_live]
    live = [
        f"job {job['id']} {job['state']}"
        for job in queued
        if job["id"] not in orphans and job["id"] != own
    ]
    live += [
        f"process {driver.process}, which submits workers"
        for driver in live_drivers
        if not driver.job
    ]
    if live:
        many = f"{', '.join(live[:8])}{f' and {len(live) - 8} more' if len(live) > 8 else ''}"
        raise SubmitError(
            f"{target.label} is being written already: {many}. A second submission would write it "
            "twice. Wait for them, or end them "
            f"first: shardwrite slurm cancel {command_words(target)}",
            command="squeue",
        )
    return orphans


@contextlib.contextmanager
def submitting(target: Target) -> Iterator[None]:
    """Hold the exclusive right to submit jobs for a run, as long as the block lasts.

    Nothing is held if no run has begun at the target.

    - Raises SubmitError if the run is being written already, as in `refuse_second_submission`.
    """
    runs = runs_at(target)
    with contextlib.ExitStack() as stack:
        if runs:
            stack.enter_context(exclusive(runs[0].path / "submitting", runs[0].path))
            cancel(refuse_second_submission(target))
        yield
