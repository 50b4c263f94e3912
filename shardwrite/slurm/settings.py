"""What a site and a user want of their jobs, and how that stands in a script.

What a user gives goes into a script in two ways: into directives, where a line break would begin a line of its own and is refused;
and into shell variables, quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from shardwrite.errors import SpecError

__all__ = [
    "Settings",
    "directives_of",
    "head",
    "memory_nbytes",
    "one_thread_each",
    "setup_lines",
    "thread_lines",
    "words",
]

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
        raise SpecError(
            "not a size of memory", field="memory", value=text, remedy="give for instance 16G"
        )
    return int(found[1]) << (10 * (" KMGT".index(found[2].upper() or "M")))


def head(settings: Settings, name: str, own: Sequence[str]) -> list[str]:
    """A script's first lines."""
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
    """Elements of an array of the shell's."""
    return " ".join(
        f"'{text}'" if "," in text and shlex.quote(text) == text else shlex.quote(text)
        for text in texts
    )


def setup_lines(settings: Settings) -> list[str]:
    """Lines that make the command known."""
    return [
        *(
            settings.setup
            or ("# Here go modules, or an environment, that have the command shardwrite.",)
        ),
        "",
        "set -u",
    ]


def one_thread_each() -> list[str]:
    """Libraries shall not start threads of their own beside those that encode."""
    return [f"export {name}=${{{name}:-1}}" for name in _THREADS]


def thread_lines() -> list[str]:
    """Lines that keep threads and cores to those of the task."""
    return [*one_thread_each(), 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"']
