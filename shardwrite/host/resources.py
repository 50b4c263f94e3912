"""What a process may use of the machine that it is on: cores, memory, a place for scratch files.

A job scheduler gives a part of a machine. SLURM says which part in its environment; where it says nothing, its limit on the
resident set and the control group tell. Whatever is smallest holds.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import tempfile
from collections.abc import Mapping
from pathlib import Path

from dask.system import CPU_COUNT

from shardwrite.errors import SpecError

__all__ = [
    "file_system",
    "job_id",
    "memory_limit_nbytes",
    "n_cores",
    "scratch_directory",
    "tasks_on_node",
]

_SHARE = 0.9  # of a job's memory: the interpreter, its libraries and the page cache's dirty pages need the rest
_UNLIMITED = 2**60  # version 1 of control groups writes a number of this order for no limit
_MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")


def job_id(environ: Mapping[str, str]) -> str | None:
    """Names the job of this process so that nothing else is meant: an array's last task has the array's own number for its job.

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
    """A positive number in the environment; 0 is how SLURM says that there is no limit.

    Raises
    ------
    SpecError
        If something else stands there.
    """
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdigit():
        raise SpecError(
            "not a number",
            field=name,
            value=text,
            remedy="unset it, or run under SLURM, which sets it",
        )
    return int(text) or None


def tasks_on_node(environ: Mapping[str, str] | None = None) -> int:
    """Processes that share this node's part of the job: those of the step where `srun` has started this one, else one.

    Examples
    --------
    >>> tasks_on_node({"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "1", "SLURM_PROCID": "5"})
    4
    """
    environ = os.environ if environ is None else environ
    counts: list[int] = []
    for item in filter(None, environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(",")):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item)
        if found is None:
            raise SpecError(
                "no list of tasks", field="SLURM_STEP_TASKS_PER_NODE", value=item, remedy="unset it"
            )
        counts += [int(found[1])] * int(found[2] or 1)
    node = _number(environ, "SLURM_NODEID") or 0
    return max(1, counts[node]) if node < len(counts) else 1


def n_cores(environ: Mapping[str, str] | None = None) -> int:
    """Cores for this process: what SLURM gives a task, and never more than it may run on.

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
    """Memory for this process in bytes: nine tenths of the job's on this node, over its tasks there; or what is free.

    Parameters
    ----------
    environ : mapping, optional
        Instead of this process's environment.
    root : str
        Where ``proc`` and ``sys`` are.
    """
    environ = os.environ if environ is None else environ
    limits = [_of_job(environ), *_of_groups(Path(root))]
    soft, _ = resource.getrlimit(resource.RLIMIT_RSS)
    limits.append(
        None if soft == resource.RLIM_INFINITY else soft
    )  # SLURM sets it to what the job has on the node
    known = [limit for limit in limits if limit is not None]
    share = min(known) * _SHARE / tasks_on_node(environ) if known else None
    free = _free(Path(root))
    return max(1, int(free if share is None else min(share, free)))


def _of_job(environ: Mapping[str, str]) -> int | None:
    """What SLURM says that a job has on this node; it counts in MiB."""
    per_node, per_core = (
        _number(environ, "SLURM_MEM_PER_NODE"),
        _number(environ, "SLURM_MEM_PER_CPU"),
    )
    if per_node is not None:
        return per_node * 2**20
    cores = _number(environ, "SLURM_CPUS_ON_NODE")
    return per_core * cores * 2**20 if per_core is not None and cores is not None else None


def _of_groups(root: Path) -> list[int]:
    """Limits of this process's control groups and of those above them, of both versions."""
    limits = []
    for line in _read(root / "proc/self/cgroup").splitlines():
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
    with contextlib.suppress(OSError):  # not every machine has it
        return path.read_text()
    return ""


def scratch_directory(environ: Mapping[str, str] | None = None) -> str:
    """A directory on this machine for files that nobody else needs: the user's, the job's, else the system's.

    Raises
    ------
    SpecError
        If the user names one that cannot be written to.
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
    names = (
        environ.get("SLURM_TMPDIR"),
        environ.get("TMPDIR"),
    )  # the second may come from the machine that submitted
    return next((name for name in names if name and _is_usable(name)), tempfile.gettempdir())


def _is_usable(path: str) -> bool:
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def file_system(path: Path) -> str:
    """Type of the file system that a path is on; empty where the system does not tell."""
    found, longest = "", -1
    with contextlib.suppress(OSError):  # not every system has it
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mount, kind, *_ = line.split()
            place = Path(mount.replace("\\040", " "))
            if path.resolve().is_relative_to(place) and len(place.parts) >= longest:
                found, longest = kind, len(place.parts)
    return found
