"""What this process may use of its machine: cores, memory, scratch and stripes of files.

A job scheduler gives a job a part of a machine. SLURM describes this part in environment variables,
in the limit on the resident set and in control groups. The smallest of these limits applies.

*Stripes.* On a Lustre file system, the striping of a file is fixed when the file is created, and is
inherited from its directory.

*Memory of a run.* Only anonymous memory counts on Linux, which ``/proc/self/status`` calls
``RssAnon``: arrays, buffers and Python objects. The system can drop pages of mapped files at any
time, such as those of libraries or of a memory map. So no limit needs room for them. Other systems
do not tell anonymous memory apart. There the growth of the peak of the resident set counts. It
includes mapped pages, and it is 0 until the run needs more than the process ever had before.

Tasks take samples while they hold most: when their source has been loaded, after each batch that
they encode, and when they commit. Nothing runs in the background.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from dask.system import CPU_COUNT

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError, StoreError

USABLE_SHARE = 0.9
"""Usable share of a job's memory. Interpreter, libraries and dirty cached pages need the rest."""

_UNLIMITED = 2**60  # without a limit, version 1 of control groups gives a number of this order

_MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")

_ESCAPED = re.compile(r"\\([0-7]{3})")  # a character in a path that the system lists


# ---- Cores, memory and scratch directory


def job_id(environ: Mapping[str, str]) -> str | None:
    """Unambiguous name of this process's SLURM job, or None outside a job.

    The last task of a job array has the number of the array as its job number, so tasks of an array
    are named by array and task.

    Examples
    --------
    >>> job_id({"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"})
    '17_3'
    >>> job_id({"SLURM_JOB_ID": "18"})
    '18'
    """
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID")


def _number(environ: Mapping[str, str], name: str) -> int | None:
    """Read a positive number from the environment.

    The result is None if the variable is not set, or is 0, which is SLURM's value for no limit.

    - Raises SpecError if the variable is not a number.
    """
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise SpecError(
            "not a number",
            field=name,
            value=text,
            remedy="unset it, or run under SLURM, which sets it",
        )
    return int(text) or None


def tasks_on_node(environ: Mapping[str, str] | None = None) -> int:
    """Number of processes that share this node's part of the job.

    These are the tasks on this node if `srun` has started this process. Otherwise it is one.

    - Raises SpecError if SLURM's list of tasks or the number of the node cannot be parsed.

    Examples
    --------
    >>> step = {"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "1", "SLURM_PROCID": "5"}
    >>> tasks_on_node(step)
    4
    """
    environ = os.environ if environ is None else environ
    counts: list[int] = []
    for item in filter(None, environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item)
        if match is None:
            raise SpecError(
                "no list of tasks", field="SLURM_STEP_TASKS_PER_NODE", value=item, remedy="unset it"
            )
        counts += [int(match[1])] * int(match[2] or 1)
    node = _number(environ, "SLURM_NODEID") or 0
    return max(1, counts[node]) if node < len(counts) else 1


def n_cores(environ: Mapping[str, str] | None = None) -> int:
    """Number of cores available to this process.

    This is the number that SLURM gives a task, but at most the number that this process may run on.

    Examples
    --------
    >>> n_cores({"SLURM_CPUS_PER_TASK": "1"})
    1
    """
    environ = os.environ if environ is None else environ
    given = _number(environ, "SLURM_CPUS_PER_TASK")
    on_node = _number(environ, "SLURM_CPUS_ON_NODE")
    if given is None and on_node is not None:
        given = max(1, on_node // tasks_on_node(environ))
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else CPU_COUNT
    return min(n for n in (given, affinity, CPU_COUNT) if n is not None)


def memory_limit_nbytes(environ: Mapping[str, str] | None = None, root: str = "/") -> int:
    """Memory available to this process, in bytes.

    This is nine tenths of the job's memory on this node, divided by its tasks there, but at most
    the free memory of the machine.
    """
    environ = os.environ if environ is None else environ
    limits = [_of_job(environ), *_of_groups(Path(root))]
    soft, _ = resource.getrlimit(resource.RLIMIT_RSS)
    # SLURM sets this limit to the job's memory on the node
    limits.append(None if soft == resource.RLIM_INFINITY else soft)
    set_limits = [limit for limit in limits if limit is not None]
    share = min(set_limits) * USABLE_SHARE / tasks_on_node(environ) if set_limits else None
    free = _free(Path(root))
    return max(1, int(free if share is None else min(share, free)))


def _of_job(environ: Mapping[str, str]) -> int | None:
    """Memory of the job on this node in bytes, or None if SLURM sets no limit.

    SLURM's variables count in MiB.
    """
    per_node, per_core = (
        _number(environ, "SLURM_MEM_PER_NODE"),
        _number(environ, "SLURM_MEM_PER_CPU"),
    )
    if per_node is not None:
        return per_node * 2**20
    cores = _number(environ, "SLURM_CPUS_ON_NODE")
    return per_core * cores * 2**20 if per_core is not None and cores is not None else None


def _of_groups(root: Path) -> list[int]:
    """Memory limits, in bytes, of this process's control groups and all their parents.

    Both versions of control groups are read.
    """
    limits = []
    for line in filter(None, _read(root / "proc/self/cgroup").split("\n")):
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        group = mount / path.strip("/")
        for directory in (group, *group.parents):
            texts = [_read(directory / name).strip() for name in _MEMORY_FILES]
            limits += [int(text) for text in texts if text.isdigit() and int(text) < _UNLIMITED]
            if directory == mount:
                break
    return limits


def _free(root: Path) -> int:
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):  # the file does not exist on every machine
        return os.fsdecode(path.read_bytes())  # names hold any bytes
    return ""


def scratch_directory(environ: Mapping[str, str] | None = None) -> str:
    """Directory for temporary files of this machine.

    It is ``SHARDWRITE_LOCAL_DIR`` if the user has set it. Otherwise it is the first of
    ``SLURM_TMPDIR`` and ``TMPDIR`` that can be written to, or the default of `tempfile`.
    """
    environ = os.environ if environ is None else environ
    wanted = environ.get("SHARDWRITE_LOCAL_DIR")
    if wanted:
        if not _is_usable(wanted):
            remedy = "give a directory that can be written to, or unset it"
            raise SpecError(
                "no directory for scratch files",
                field="SHARDWRITE_LOCAL_DIR",
                value=wanted,
                remedy=remedy,
            )
        return wanted
    # TMPDIR may come from the machine that submitted the job
    names = (environ.get("SLURM_TMPDIR"), environ.get("TMPDIR"))
    return next((name for name in names if name and _is_usable(name)), tempfile.gettempdir())


def _is_usable(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def file_system(path: Path, root: str = "/") -> str:
    """Type of the file system that a path is on; empty if the system does not list its mounts."""
    file_system_type, longest, real = "", -1, Path(os.path.realpath(path))
    for line in _read(Path(root) / "proc/self/mounts").split("\n")[:-1]:  # no other end of a line
        _, mount, kind, *_ = line.split(" ")
        place = Path(_ESCAPED.sub(lambda escaped: chr(int(escaped[1], 8)), mount))
        if real.is_relative_to(place) and len(place.parts) >= longest:
            file_system_type, longest = kind, len(place.parts)
    return file_system_type


# ---- Stripes: how files are spread over the targets of a Lustre file system


def set_stripes(directory: Path, count: int) -> bool:
    """Set the stripe count for everything that is created in a directory from now on.

    - Returns: True if the stripe count was set, False if the directory is not on Lustre.
    """
    if file_system(directory) != "lustre":
        return False
    command = ["lfs", "setstripe", "--stripe-count", str(count), str(directory)]
    try:
        done = subprocess.run(  # noqa: S603 (no shell)
            command, capture_output=True, text=True, check=False, timeout=60
        )
    except FileNotFoundError as error:
        message = (
            f"lfs is not in PATH, so that the stripe count of {directory} cannot be set; "
            "do without it, or run this where lfs is"
        )
        raise StoreError(message, key=str(directory)) from error
    except subprocess.TimeoutExpired as error:
        raise StoreError(
            f"lfs setstripe {directory}: no answer in 60 s", key=str(directory)
        ) from error
    if done.returncode:
        raise StoreError(
            f"lfs setstripe {directory}: {(done.stderr or done.stdout).strip()}", key=str(directory)
        )
    return True


# ---- Memory of a run, above what the process had before it


_STATM = "/proc/self/statm"  # the system writes it in a fraction of the time of /proc/self/status

_PAGE_NBYTES = resource.getpagesize()

_PAUSE_SECONDS = 0.005  # least time between two samples of a process, which take about 7 µs each

_MOST_RUNS = 64  # runs that are remembered; older ones have ended


@dataclass(slots=True)
class _Watched:
    baseline: int
    peak: int


_watched: dict[str, _Watched] = {}

_lock = threading.Lock()

_sampled = 0.0


def memory_nbytes() -> int:
    """Anonymous resident memory of this process in bytes; on other systems see this module."""
    try:
        _, resident, mapped, *_ = _pages()
    except OSError:
        return _most_resident_nbytes()
    return (resident - mapped) * _PAGE_NBYTES


def _pages() -> list[int]:
    """Pages of this process by kind. Threads wait for the lock of Python after each system call."""
    file = os.open(_STATM, os.O_RDONLY)
    try:
        return [*map(int, os.read(file, 256).split())]
    finally:
        os.close(file)


def _most_resident_nbytes() -> int:
    """Peak of the resident set of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def watch_memory(run: str, held_nbytes: int = 0) -> None:
    """Take the memory that this process has now as the baseline of a run."""
    now = memory_nbytes()
    with _lock:
        _watched.pop(run, None)
        while len(_watched) >= _MOST_RUNS:
            del _watched[next(iter(_watched))]
        _watched[run] = _Watched(max(0, now - held_nbytes), now)


def note_memory(run: str, held_nbytes: int = 0) -> None:
    """Take a sample for a run, unless one was taken a moment ago.

    If the process does not know the run, as one that was started later, its baseline is the memory
    without the bytes that the task holds.
    """
    global _sampled
    if run not in _watched:
        watch_memory(run, held_nbytes)
        return
    now = time.monotonic()
    if now - _sampled < _PAUSE_SECONDS:
        return
    _sampled = now
    _enter(memory_nbytes())


def peak_memory_nbytes(run: str) -> int:
    """Peak of the memory of a run in this process so far, in bytes above its baseline."""
    if run not in _watched:
        watch_memory(run)
    _enter(memory_nbytes())
    with _lock:
        watched = _watched.get(run)
        return 0 if watched is None else watched.peak - watched.baseline


def _enter(nbytes: int) -> None:
    """Enter a sample for all runs, as they share the process."""
    with _lock:
        for watched in _watched.values():
            watched.peak = max(watched.peak, nbytes)
