"""Settings of SLURM jobs, and the lines of a script that express them.

A user's values get into a script in two ways. In directives, a line break would begin a line of its
own, so it is refused. In shell variables, values are quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from shardwrite.config.table import RUN_DIR, STORAGE, VIA
from shardwrite.errors import SpecError

_PLAIN = re.compile(r"[\w.,:/%@=+~\[\]-]+")
_LEAD_SECONDS = 120
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "BLOSC_NTHREADS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of SLURM jobs."""

    name: str = "shardwrite"  # name of the jobs
    cores: int = 4  # cores of each task
    memory: str = "8G"  # memory of each task, as `sbatch` takes it
    time: str = "01:00:00"  # time limit of each task, as `sbatch` takes it
    # Seconds before the time limit at which a task is told to finish its shards in flight. This
    # must be longer than the slowest of these shards takes.
    lead_seconds: int = _LEAD_SECONDS
    # How often a task that was told to finish may put itself back into the queue
    requeues: int = 10
    directives: tuple[str, ...] = ()  # more options of `sbatch`, such as ``--partition=main``
    # Lines of shell that make the command ``shardwrite`` known, such as ``module load python``
    setup: tuple[str, ...] = ()
    # Directory for the state of runs on arrays in a bucket. All nodes must see it. Empty if the
    # array lies in a directory.
    run_dir: str = ""
    # Directory on each node's own disk in which shards wait until they are put into a bucket. Empty
    # if they wait in memory.
    via: str = ""
    # Name of the function that gives the credentials for a bucket; empty if none is named
    credential_provider: str = ""

    def __post_init__(self) -> None:
        for field_name in ("cores", "lead_seconds"):
            if getattr(self, field_name) < 1:
                raise SpecError(
                    "must be positive",
                    field=field_name,
                    value=getattr(self, field_name),
                    remedy="give 1 or more",
                )
        for line in self.setup:
            if not line.isprintable():
                raise SpecError(
                    "not one printable line",
                    field="setup",
                    value=line,
                    remedy="give each line by itself",
                )


def memory_nbytes(text: str) -> int:
    """Number of bytes that a memory size of `sbatch` stands for; without a unit it counts in MiB.

    Examples
    --------
    >>> memory_nbytes("8G"), memory_nbytes("500") // 2**20
    (8589934592, 500)
    """
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text, re.IGNORECASE)
    if found is None or not int(found[1]):
        raise SpecError(
            "not a size of memory", field="memory", value=text, remedy="give for instance 16G"
        )
    return int(found[1]) << (10 * (" KMGT".index(found[2].upper() or "M")))


def head(settings: Settings, name: str, own: Sequence[str]) -> list[str]:
    """First lines of a script: the shell, and the directives of the job."""
    return ["#!/bin/bash", *(f"#SBATCH {option}" for option in directives_of(settings, name, own))]


def directives_of(settings: Settings, name: str, own: Sequence[str]) -> list[str]:
    """Options of a job in the form that ``#SBATCH`` takes.

    The user's options come last, so they win.
    """
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
    """Option in the form that `sbatch` reads from a directive; its value is quoted if necessary."""
    name, separator, value = option.partition("=")
    if re.fullmatch(r"--[a-z][a-z-]*|-[a-zA-Z]", name) is None:
        raise SpecError(
            "no option of sbatch",
            field="directive",
            value=option,
            remedy="give for instance --partition=main",
        )
    if separator and not value:
        raise SpecError("has no value", field="directive", value=option, remedy="leave it out")
    if not separator or _PLAIN.fullmatch(value):
        return option
    if not value.isprintable() or '"' in value or "\\" in value:
        remedy = "leave out line breaks, quotes and backslashes"
        raise SpecError(
            "cannot stand in a directive", field="directive", value=option, remedy=remedy
        )
    return f'{name}="{value}"'


def words(texts: Sequence[str]) -> str:
    """Elements of a shell array, quoted and separated by spaces."""
    return " ".join(
        f"'{text}'" if "," in text and shlex.quote(text) == text else shlex.quote(text)
        for text in texts
    )


def setup_lines(settings: Settings) -> list[str]:
    """Lines of a script that make the command ``shardwrite`` known, and set its configuration."""
    exported = {
        RUN_DIR.variable: (settings.run_dir, "the state of the run"),
        VIA.variable: (settings.via, "shards until they are put"),
        f"{STORAGE.variable}__CREDENTIAL_PROVIDER": (
            settings.credential_provider,
            "gives each process its keys",
        ),
    }
    return [
        *(
            settings.setup
            or ("# Here go modules, or an environment, that have the command shardwrite.",)
        ),
        *(
            f"export {variable}={shlex.quote(value)}  # {what}"
            for variable, (value, what) in exported.items()
            if value
        ),
        "",
        "set -u",
    ]


def one_thread_each() -> list[str]:
    """Lines of a script that limit numerical libraries to one thread each.

    Otherwise they would start threads of their own beside those that encode.
    """
    return [f"export {name}=${{{name}:-1}}" for name in _THREADS]


def thread_lines() -> list[str]:
    """Lines of a script that limit threads and cores to those of the task."""
    return [*one_thread_each(), 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"']
