"""Scripts for `sbatch`, as text. Each is a pure function of what is asked for.

A user's values get into a script in two ways. In directives, a line break would begin a line of its
own, so it is refused. In shell variables, values are quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from shardwrite._dataclass import dataclass
from shardwrite.checks import whole
from shardwrite.config.table import RUN_DIR, STORAGE, VIA
from shardwrite.errors import SpecError
from shardwrite.slurm.keywords import (
    CORES,
    MEMORY,
    TIME,
    AllocationKeywords,
    DriverKeywords,
    TaskKeywords,
    arguments_in,
    directives_in,
)

# ---- Number of parts


_SECONDS = 600  # least duration of a part: the starts of shorter tasks would cost too much


def parts_for(raw_nbytes: int, n_groups: int, nbytes_per_second: float, max_array_size: int) -> int:
    """Number of parts of an array, so that each takes ten minutes or more.

    - `raw_nbytes`: decoded bytes of the array.
    - `nbytes_per_second`: decoded bytes that one task writes in a second.

    Examples
    --------
    >>> parts_for(2_400_000_000_000, 20_000, 200e6, 1001)
    20
    >>> parts_for(10_000, 20_000, 200e6, 1001)
    1
    """
    if nbytes_per_second <= 0:
        remedy = "give for instance 200MB"
        raise SpecError(
            "not a positive number of bytes",
            field="throughput",
            value=nbytes_per_second,
            remedy=remedy,
        )
    return max(1, min(int(raw_nbytes / (nbytes_per_second * _SECONDS)), n_groups, max_array_size))


# ---- Settings of jobs, and the lines of a script that express them


_PLAIN = re.compile(r"[\w.,:/%@=+~\[\]-]+")

_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "BLOSC_NTHREADS",
)


@dataclass(frozen=True, kw_only=True)
class Settings(TaskKeywords):
    """Settings of SLURM jobs."""

    cores: int = CORES
    memory: str = MEMORY
    time: str = TIME
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
            whole(field_name, getattr(self, field_name), "a positive number")
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


def head(settings: Settings, own: Sequence[str]) -> list[str]:
    """First lines of a script: the shell, and the directives of the job."""
    return ["#!/bin/bash", *(f"#SBATCH {option}" for option in directives_of(settings, own))]


def directives_of(settings: Settings, own: Sequence[str]) -> list[str]:
    """Options of a job in the form that ``#SBATCH`` takes.

    The user's options come last, so they win.
    """
    every = (*directives_in(settings), "--open-mode=append", *own, *settings.directives)
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


def variable(name: str, value: str | Sequence[str]) -> str:
    """Line of a script that sets a variable of the shell, or an array of it."""
    return f"{name}={shlex.quote(value) if isinstance(value, str) else f'({words(value)})'}"


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


# ---- The scripts


def _script(
    settings: Settings,
    own: Sequence[str],
    what: str,
    variables: Mapping[str, str | Sequence[str]],
    steps: Sequence[str],
    traps: Sequence[str] = (),
) -> str:
    """Text of a script.

    - `own`: options of the job that the user does not give.
    - `what`: what the script does, as a comment.
    - `steps`: its last lines, which use the variables.
    - `traps`: lines that come before all others.
    """
    lines = [
        *head(settings, own),
        f"# {what}",
        "",
        *traps,
        *setup_lines(settings),
        *(variable(name, value) for name, value in variables.items()),
        "",
        *thread_lines(),
        *steps,
    ]
    return "\n".join(lines) + "\n"


_MAX_TASKS = 4_000_001  # which SLURM's MaxArraySize may not exceed

_LOOP = """
# Signals to this shell go to the program: USR1 as soon as it listens, \
before which it would be killed by it, and only once.
lives() { kill -0 "$1" 2>/dev/null; }
listens() { # USR1 is signal 10, so bit 9 of what it catches
    local caught
    caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    [ -n "$caught" ] && ((0x$caught & 0x200))
}
told='' alone=0 lost=''
while
    sleep 0.5 &
    wait $!
    lives "$program"
do
    if ! lives "$workers" || ! lives "$scheduler"; then
        [ "$alone" != 0 ] || echo "workers or scheduler have ended before the program, \
which is told to finish" >&2
        drain=1 alone=$((alone + 1))
        [ "$alone" != 120 ] || leave=1 lost=1
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
if [ -n "$lost" ] && [ "$code" = 85 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt REQUEUES ]; \
then # it could not ask itself
    scontrol requeue "$SLURM_JOB_ID" || echo "submit it again to go on" >&2
fi
exit "$code"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayJob:
    """What a job array writes, or converts: one part in each of its tasks.

    - Raises SpecError if `n_parts` is no whole number from 1 to 4,000,001, which is the most that
      SLURM can take.
    """

    src: str | tuple[str, ...]  # source, or one for each of several arrays
    dst: str  # store that is written
    n_parts: int  # number of parts, and of tasks of the job array
    at_once: int = 0  # largest number of tasks that run at a time; 0 for no limit
    # Options of ``shardwrite write-part`` that say how to read the source, or options of the
    # conversion
    source_options: tuple[str, ...] = field(default=())
    name: str = ""  # path of the array in the store; empty if the store is the array
    names: tuple[str, ...] = ()  # those of several arrays
    conversion: str = ""  # command of a conversion; empty for a write

    def __post_init__(self) -> None:
        what = "a number of tasks that a job array of SLURM can have"
        whole("n_parts", self.n_parts, what, most=_MAX_TASKS)

    @property
    def name_options(self) -> tuple[str, ...]:
        """Options of a command line that name the array, or several of them."""
        one = ("--name", self.name) if self.name else ()
        return ("--names", ",".join(self.names)) if self.names else one

    @property
    def source_word(self) -> str:
        """The source, or all of them, in a later line."""
        return '"$SRC"' if isinstance(self.src, str) else '"${SRC[@]}"'


@dataclass(frozen=True, kw_only=True)
class ElasticJob(DriverKeywords):
    """What a driver job writes with workers that are jobs of their own."""

    src: str  # source, and store that is written
    dst: str
    n_jobs: int  # largest number of workers
    # More options of ``shardwrite write``, for the source and for the layout of the array
    options: tuple[str, ...] = field(default=())
    driver_memory: str = "2G"  # memory of the driver, as `sbatch` takes it

    def __post_init__(self) -> None:
        whole("jobs", self.n_jobs, "a positive number")


@dataclass(frozen=True, kw_only=True)
class AllocationJob(AllocationKeywords):
    """What a dask cluster inside one allocation runs: a write, or a program of the user.

    Each worker has as many cores as a task of the job.
    """

    src: str = ""  # source, and store that is written
    dst: str = ""
    options: tuple[str, ...] = ()  # options of ``shardwrite write``
    arguments: tuple[str, ...] = ()  # arguments of the program

    def __post_init__(self) -> None:
        for name in ("n_nodes", "n_workers"):
            whole(name, getattr(self, name), "a positive number")
        if bool(self.program) == bool(self.src and self.dst):
            remedy = "give one of them"
            raise SpecError(
                "a program, or a source and an array",
                field="program",
                value=self.program,
                remedy=remedy,
            )


def allocation_script(job: AllocationJob, settings: Settings) -> str:
    """Script of one job of several nodes with a dask cluster inside.

    Examples
    --------
    >>> script = allocation_script(
    ...     AllocationJob(program="my.py", arguments=("--fast",)), Settings()
    ... )
    >>> [
    ...     line for line in script.splitlines() if line.startswith("shardwrite exec")
    ... ]  # doctest: +NORMALIZE_WHITESPACE
    ['shardwrite exec --scheduler "$RUN/scheduler.json" --requeue 10
    "$PROGRAM" "${ARGUMENTS[@]}" &']
    """
    own = (
        f"--nodes={job.n_nodes}",
        f"--ntasks-per-node={job.n_workers}",
        "--no-kill",
        "--output=logs/%x-%j.out",
        "--requeue",
        f"--signal=B:USR1@{settings.lead_seconds}",
    )
    cluster = f'--scheduler "$RUN/scheduler.json" --requeue {settings.n_requeues}'
    variables: dict[str, str | Sequence[str]]
    if job.program:
        variables = {"PROGRAM": job.program, "ARGUMENTS": job.arguments}
        program = f'shardwrite exec {cluster} "$PROGRAM" "${{ARGUMENTS[@]}}" &'
    else:
        variables = {"SRC": job.src, "DST": job.dst, "OPTIONS": job.options}
        program = f'shardwrite write "$SRC" "$DST" "${{OPTIONS[@]}}" {cluster} &'
    steps = (
        "RUN=$(shardwrite slurm run-directory) || exit",
        """trap 'rm -rf -- "$RUN"' EXIT # with the keys in it""",
        'shardwrite slurm scheduler "$RUN" &',
        "scheduler=$!",
        'srun --no-kill --kill-on-bad-exit=0 --wait=0 shardwrite slurm worker "$RUN" &',
        "workers=$!",
        program,
        "program=$!",
    )
    what = (
        "A dask scheduler here, workers on all nodes, and the program. "
        "What is done lies on disk: submit it again to go on."
    )
    traps = ("drain='' leave=''", "trap 'drain=1' USR1", "trap 'leave=1' TERM", "")
    script = _script(settings, own, what, variables, steps, traps)
    return script + _LOOP.replace("REQUEUES", str(settings.n_requeues))


def array_script(job: ArrayJob, settings: Settings) -> str:
    """Script of a job array whose tasks write one part each.

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
    variables = {
        "SRC": job.src,
        "DST": job.dst,
        "PARTS": str(job.n_parts),
        "OPTIONS": (*job.name_options, *job.source_options),
    }
    steps = (
        (
            'export SHARDWRITE_JOB="${SLURM_ARRAY_JOB_ID:-}" '
            "# all tasks write one array, and are cancelled together"
        ),
        "trap '' USR1  # until the program listens",
        _step_of(job, settings.n_requeues),
    )
    what = (
        "One task of this array writes one part. "
        "A task that was interrupted goes on where it was: submit it again."
    )
    return _script(settings, own, what, variables, steps)


def _step_of(job: ArrayJob, n_requeues: int) -> str:
    """Command of one task of a job array."""
    command = f'{job.conversion or "write-part"} {job.source_word} "$DST"'
    part = f'{"--part " if job.conversion else ""}"$SLURM_ARRAY_TASK_ID/$PARTS"'
    return f'exec shardwrite {command} {part} "${{OPTIONS[@]}}" --requeue {n_requeues}'


def _last_step_of(job: ArrayJob) -> str:
    """Command of the job that follows a job array."""
    if job.conversion:
        return (
            f'exec shardwrite {job.conversion} "$SRC" "$DST" --finalize --parts "$PARTS" '
            '--resubmit "$SLURM_SUBMIT_DIR" "${OPTIONS[@]}"'
        )
    return (
        'exec shardwrite finalize "$DST" --parts "$PARTS" '
        '--resubmit "$SLURM_SUBMIT_DIR" "${OPTIONS[@]}"'
    )


def finalize_script(job: ArrayJob, settings: Settings) -> str:
    """Script of the job that follows a job array, checks all shards and publishes the array.

    If parts are missing, that job says which ones to submit again.
    """
    variables = {
        **({"SRC": job.src} if job.conversion else {}),
        "DST": job.dst,
        "PARTS": str(job.n_parts),
        "OPTIONS": job.source_options if job.conversion else job.name_options,
    }
    what = (
        "Looks at every shard and publishes the array; "
        "if parts are missing it says how to submit them again, and fails with 85."
    )
    last = replace(settings, job_name=f"{settings.job_name}-finalize")
    own = ("--output=logs/%x-%j.out", "--requeue")
    return _script(last, own, what, variables, ("trap '' USR1", _last_step_of(job)))


def elastic_script(job: ElasticJob, settings: Settings) -> str:
    """Script of a small driver job, which submits its workers as jobs.

    The driver replaces workers that are lost, and cancels them in the end. `settings` are those of
    the workers; the driver has one core, and memory and time of its own.

    Examples
    --------
    >>> script = elastic_script(ElasticJob(src="x.npy", dst="x.zarr", n_jobs=20), Settings(cores=8))
    >>> [line for line in script.splitlines() if "--cpus" in line or "WORKERS=" in line]
    ['#SBATCH --cpus-per-task=1', 'WORKERS=(--jobs 20 --cores 8 --memory 8G --time 01:00:00)']
    """
    own = ("--output=logs/%x-%j.out", "--requeue", f"--signal=B:USR1@{settings.lead_seconds}")
    driver = replace(
        settings,
        job_name=f"{settings.job_name}-driver",
        cores=1,
        memory=job.driver_memory,
        time=job.driver_time,
    )
    variables = {
        "SRC": job.src,
        "DST": job.dst,
        "WORKERS": ("--jobs", str(job.n_jobs), *arguments_in(settings)),
        "OPTIONS": job.options,
    }
    steps = (
        "trap '' USR1  # until the program listens",
        (
            'exec shardwrite write "$SRC" "$DST" --cluster slurm '
            f'"${{WORKERS[@]}}" "${{OPTIONS[@]}}" --requeue {settings.n_requeues}'
        ),
    )
    what = (
        "This job drives workers, which are jobs that it submits. "
        "Interrupted, it goes on where it was: submit it again."
    )
    return _script(driver, own, what, variables, steps)
