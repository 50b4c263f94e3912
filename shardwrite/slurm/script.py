"""Scripts for `sbatch`, as text: a pure function of what is asked for.

What a user gives goes into a script in two ways: into directives, where a line break would begin a line of its own and is refused;
and into shell variables, quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwrite.errors import SpecError

__all__ = ["AllocationJob", "ArrayJob", "Settings", "allocation_script", "array_script", "finalize_script"]

_PLAIN = re.compile(r"[\w.,:/%@=+~\[\]-]+")
_LEAD_SECONDS = 120
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "BLOSC_NTHREADS")
_LOOP = """
# Signals to this shell go to the program: USR1 as soon as it listens, before which it would be killed by it, and only once.
lives() { kill -0 "$1" 2>/dev/null; }
listens() { # USR1 is signal 10, so bit 9 of what it catches
    local caught
    caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    [ -n "$caught" ] && ((0x$caught & 0x200))
}
told='' alone=0
while
    sleep 0.5 &
    wait $!
    lives "$program"
do
    if ! lives "$workers" || ! lives "$scheduler"; then
        [ "$alone" != 0 ] || echo "workers or scheduler have ended before the program, which is told to finish" >&2
        drain=1 alone=$((alone + 1))
        [ "$alone" != 120 ] || leave=1
    fi
    if [ -n "$leave" ]; then
        kill -TERM "$program" 2>/dev/null
        leave=''
    elif [ -n "$drain" ] && [ -z "$told" ] && listens "$program"; then
        kill -USR1 "$program"
        told=1
    fi
done
wait "$program"
code=$?
kill -TERM "$scheduler" 2>/dev/null # the workers end by themselves then, and tidy up
for ((i = 0; i < 6; i++)); do
    lives "$workers" || break
    sleep 0.5 &
    wait $!
done
kill -TERM "$workers" 2>/dev/null
wait "$workers"
rm -rf -- "$RUN"
exit "$code"
"""


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
class AllocationJob:
    """What is written by a dask cluster inside one allocation: a source to an array, or whatever a program of the user's writes.

    Attributes
    ----------
    n_nodes : int
        Nodes.
    n_workers : int
        Workers on each of them, of as many cores as a task has.
    src, dst : str
        Source and array.
    options : tuple of str
        Options of ``shardwrite write``.
    program : str
        Instead of a source and an array, a Python script of the user's.
    arguments : tuple of str
        The program's.
    """

    n_nodes: int = 4
    n_workers: int = 1
    src: str = ""
    dst: str = ""
    options: tuple[str, ...] = ()
    program: str = ""
    arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("n_nodes", "n_workers"):
            if getattr(self, name) < 1:
                raise SpecError("there is at least one", field=name, value=getattr(self, name), remedy="give 1 or more")
        if bool(self.program) == bool(self.src and self.dst):
            remedy = "give one of them"
            raise SpecError("a program, or a source and an array", field="program", value=self.program, remedy=remedy)


def allocation_script(job: AllocationJob, settings: Settings) -> str:
    """The script of one job of several nodes with a dask cluster inside.

    Examples
    --------
    >>> script = allocation_script(AllocationJob(program="my.py", arguments=("--fast",)), Settings())
    >>> [line for line in script.splitlines() if line.startswith("shardwrite exec")]
    ['shardwrite exec --scheduler "$RUN/scheduler.json" --requeue 10 "$PROGRAM" "${ARGUMENTS[@]}" &']
    """
    own = (
        f"--nodes={job.n_nodes}",
        f"--ntasks-per-node={job.n_workers}",
        "--no-kill",
        "--output=logs/%x-%j.out",
        "--requeue",
        f"--signal=B:USR1@{settings.lead_seconds}",
    )
    cluster = f'--scheduler "$RUN/scheduler.json" --requeue {settings.requeues}'
    if job.program:
        what = [f"PROGRAM={shlex.quote(job.program)}", f"ARGUMENTS=({_words(job.arguments)})"]
        program = f'shardwrite exec {cluster} "$PROGRAM" "${{ARGUMENTS[@]}}" &'
    else:
        what = [f"SRC={shlex.quote(job.src)}", f"DST={shlex.quote(job.dst)}", f"OPTIONS=({_words(job.options)})"]
        program = f'shardwrite write "$SRC" "$DST" "${{OPTIONS[@]}}" {cluster} &'
    lines = [
        *_head(settings, settings.name, own),
        "# A dask scheduler here, workers on all nodes, and the program. What is done lies on disk: submit it again to go on.",
        "",
        "drain='' leave=''",
        "trap 'drain=1' USR1",
        "trap 'leave=1' TERM",
        "",
        *_setup(settings),
        *what,
        "",
        *_threads(),
        "RUN=$(shardwrite slurm run-directory) || exit",
        'shardwrite slurm scheduler "$RUN" &',
        "scheduler=$!",
        'srun --no-kill --kill-on-bad-exit=0 --wait=0 shardwrite slurm worker "$RUN" &',
        "workers=$!",
        program,
        "program=$!",
    ]
    return "\n".join(lines) + "\n" + _LOOP


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


def _head(settings: Settings, name: str, own: Sequence[str]) -> list[str]:
    every = (
        f"--job-name={name}",
        f"--cpus-per-task={settings.cores}",
        f"--mem={settings.memory}",
        f"--time={settings.time}",
        "--open-mode=append",
        *own,
        *settings.directives,
    )
    return ["#!/bin/bash", *(f"#SBATCH {_directive(option)}" for option in every)]


def _directive(option: str) -> str:
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


def _threads() -> list[str]:
    """Libraries shall not start threads of their own beside those that encode."""
    return [*(f"export {name}=${{{name}:-1}}" for name in _THREADS), 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"']
