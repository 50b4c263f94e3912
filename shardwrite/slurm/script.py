"""Scripts for `sbatch`, as text: a pure function of what is asked for.

What a user gives goes into a script in two ways: into directives, where a line break would begin a line of its own and is refused;
and into shell variables, quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shardwrite.errors import SpecError

__all__ = [
    "ArrayJob",
    "ElasticJob",
    "Settings",
    "array_script",
    "directives_of",
    "elastic_script",
    "finalize_script",
    "memory_nbytes",
    "one_thread_each",
]

_PLAIN = re.compile(r"[\w.,:/%@=+~\[\]-]+")
_LEAD_SECONDS = 120
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "BLOSC_NTHREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a site and a user want of their jobs.

    Attributes
    ----------
    name : str
        Of the jobs.
    cores : int
        Of each task.
    memory : str
        Of each task, as `sbatch` takes it.
    time : str
        Limit of each task, likewise.
    lead_seconds : int
        How long before the limit a task is told to finish the shards in flight; longer than the longest of them takes.
    requeues : int
        How often a task that was told so puts itself back into the queue.
    directives : tuple of str
        More options of `sbatch`, such as ``--partition=main``.
    setup : tuple of str
        Lines of shell that make the command ``shardwrite`` known: modules, an environment.
    """

    name: str = "shardwrite"
    cores: int = 4
    memory: str = "8G"
    time: str = "01:00:00"
    lead_seconds: int = _LEAD_SECONDS
    requeues: int = 10
    directives: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field_name in ("cores", "lead_seconds"):
            if getattr(self, field_name) < 1:
                raise SpecError("must be positive", field=field_name, value=getattr(self, field_name), remedy="give 1 or more")
        for line in self.setup:
            if not line.isprintable():
                raise SpecError("not one printable line", field="setup", value=line, remedy="give each line by itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayJob:
    """What a job array writes.

    Attributes
    ----------
    src, dst : str
        Source and array.
    n_parts : int
        Parts, and tasks of the array.
    at_once : int
        Tasks that may run at a time; 0 is no limit.
    source_options : tuple of str
        Options of ``shardwrite write-part`` that say how the source is to be read.
    name : str
        Path of the array in the store, if it has one.
    """

    src: str
    dst: str
    n_parts: int
    at_once: int = 0
    source_options: tuple[str, ...] = field(default=())
    name: str = ""

    def __post_init__(self) -> None:
        if self.n_parts < 1:
            raise SpecError("there is at least one part", field="n_parts", value=self.n_parts, remedy="give 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """What a driver has workers write, which are jobs of their own.

    Attributes
    ----------
    src, dst : str
        Source and array.
    n_jobs : int
        Workers at most.
    options : tuple of str
        More options of ``shardwrite write``: how the source is read, and how the array is to be.
    driver_memory : str
        Memory of the driver, as `sbatch` takes it.
    driver_time : str
        Its limit, likewise; longer than that of the workers, because it waits for them, too.
    """

    src: str
    dst: str
    n_jobs: int
    options: tuple[str, ...] = field(default=())
    driver_memory: str = "2G"
    driver_time: str = "1-00:00:00"

    def __post_init__(self) -> None:
        if self.n_jobs < 1:
            raise SpecError("there is at least one job", field="jobs", value=self.n_jobs, remedy="give 1 or more")


def array_script(job: ArrayJob, settings: Settings) -> str:
    """The script of a job array of which each task writes a part.

    Examples
    --------
    >>> script = array_script(ArrayJob(src="a b.npy", dst="x.zarr", n_parts=20), Settings())
    >>> [line for line in script.splitlines() if "SRC=" in line or "--array" in line]
    ['#SBATCH --array=0-19', "SRC='a b.npy'"]
    """
    throttle = f"%{job.at_once}" if job.at_once else ""
    own = (
        f"--array=0-{job.n_parts - 1}{throttle}",
        "--output=logs/%x-%A_%a.out",
        "--requeue",
        f"--signal=B:USR1@{settings.lead_seconds}",
    )
    name = ("--name", job.name) if job.name else ()
    lines = [
        *_head(settings, settings.name, own),
        "# One task of this array writes one part. A task that was interrupted goes on where it was: submit it again.",
        "",
        *_setup(settings),
        f"SRC={shlex.quote(job.src)}",
        f"DST={shlex.quote(job.dst)}",
        f"PARTS={job.n_parts}",
        f"OPTIONS=({_words((*name, *job.source_options))})",
        "",
        *_threads(),
        "trap '' USR1  # until the program listens",
        f'exec shardwrite write-part "$SRC" "$DST" "$SLURM_ARRAY_TASK_ID/$PARTS" "${{OPTIONS[@]}}" --requeue {settings.requeues}',
    ]
    return "\n".join(lines) + "\n"


def finalize_script(job: ArrayJob, settings: Settings) -> str:
    """The script of the job that looks at all parts and publishes the array, or says which to submit again."""
    name = ("--name", job.name) if job.name else ()
    lines = [
        *_head(settings, f"{settings.name}-finalize", ("--output=logs/%x-%j.out", "--requeue")),
        "# Looks at every shard and publishes the array; if parts are missing it says how to submit them again, and fails with 85.",
        "",
        *_setup(settings),
        f"DST={shlex.quote(job.dst)}",
        f"PARTS={job.n_parts}",
        f"OPTIONS=({_words(name)})",
        "",
        *_threads(),
        "trap '' USR1",
        'exec shardwrite finalize "$DST" --parts "$PARTS" --resubmit "$SLURM_SUBMIT_DIR" "${OPTIONS[@]}"',
    ]
    return "\n".join(lines) + "\n"


def elastic_script(job: ElasticJob, settings: Settings) -> str:
    """The script of a small job that drives: it submits workers with `settings`, replaces those that are lost, and cancels them.

    Examples
    --------
    >>> script = elastic_script(ElasticJob(src="x.npy", dst="x.zarr", n_jobs=20), Settings(cores=8))
    >>> [line for line in script.splitlines() if "--cpus" in line or "WORKERS=" in line]
    ['#SBATCH --cpus-per-task=1', 'WORKERS=(--jobs 20 --cores 8 --memory 8G --time 01:00:00)']
    """
    own = ("--output=logs/%x-%j.out", "--requeue", f"--signal=B:USR1@{settings.lead_seconds}")
    driver = replace(settings, cores=1, memory=job.driver_memory, time=job.driver_time)
    workers = ["--jobs", str(job.n_jobs), "--cores", str(settings.cores), "--memory", settings.memory, "--time", settings.time]
    for option in settings.directives:
        workers += [f"--sbatch={option}"]
    for line in settings.setup:
        workers += ["--setup", line]
    lines = [
        *_head(driver, f"{settings.name}-driver", own),
        "# This job drives workers, which are jobs that it submits. Interrupted, it goes on where it was: submit it again.",
        "",
        *_setup(settings),
        f"SRC={shlex.quote(job.src)}",
        f"DST={shlex.quote(job.dst)}",
        f"WORKERS=({_words(workers)})",
        f"OPTIONS=({_words(job.options)})",
        "",
        *_threads(),
        "trap '' USR1  # until the program listens",
        f'exec shardwrite write "$SRC" "$DST" --cluster slurm "${{WORKERS[@]}}" "${{OPTIONS[@]}}" --requeue {settings.requeues}',
    ]
    return "\n".join(lines) + "\n"


def memory_nbytes(text: str) -> int:
    """Bytes that `sbatch` understands by a size.

    Raises
    ------
    SpecError
        If it is none, or all of a node, which is not known beforehand.

    Examples
    --------
    >>> memory_nbytes("8G"), memory_nbytes("500") // 2**20
    (8589934592, 500)
    """
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text, re.IGNORECASE)
    if found is None or not int(found[1]):
        raise SpecError("not a size of memory", field="memory", value=text, remedy="give for instance 16G")
    return int(found[1]) << (10 * (" KMGT".index(found[2].upper() or "M")))


def _head(settings: Settings, name: str, own: Sequence[str]) -> list[str]:
    return ["#!/bin/bash", *(f"#SBATCH {option}" for option in directives_of(settings, name, own))]


def directives_of(settings: Settings, name: str, own: Sequence[str]) -> list[str]:
    """Options of a job as they stand behind ``#SBATCH``; the user's come last, and win."""
    every = (
        f"--job-name={name}",
        f"--cpus-per-task={settings.cores}",
        f"--mem={settings.memory}",
        f"--time={settings.time}",
        "--open-mode=append",
        *own,
        *settings.directives,
    )
    return [directive(option) for option in every]


def directive(option: str) -> str:
    """An option as `sbatch` reads it from a comment: quoted where it is not plain.

    Raises
    ------
    SpecError
        If it would not stay one option on one line.
    """
    name, separator, value = option.partition("=")
    if re.fullmatch(r"--[a-z][a-z-]*|-[a-zA-Z]", name) is None:
        raise SpecError("no option of sbatch", field="directive", value=option, remedy="give for instance --partition=main")
    if separator and not value:
        raise SpecError("has no value", field="directive", value=option, remedy="leave it out")
    if not separator or _PLAIN.fullmatch(value):
        return option
    if not value.isprintable() or '"' in value or "\\" in value:
        remedy = "leave out line breaks, quotes and backslashes"
        raise SpecError("cannot stand in a directive", field="directive", value=option, remedy=remedy)
    return f'{name}="{value}"'


def _words(texts: Sequence[str]) -> str:
    """Elements of an array of the shell's."""
    return " ".join(f"'{text}'" if "," in text and shlex.quote(text) == text else shlex.quote(text) for text in texts)


def _setup(settings: Settings) -> list[str]:
    return [*(settings.setup or ("# Here go modules, or an environment, that have the command shardwrite.",)), "", "set -u"]


def one_thread_each() -> list[str]:
    """Libraries shall not start threads of their own beside those that encode."""
    return [f"export {name}=${{{name}:-1}}" for name in _THREADS]


def _threads() -> list[str]:
    return [*one_thread_each(), 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"']
