"""Scripts for `sbatch`, as text. Each is a pure function of what is asked for."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from numbers import Integral

from shardwrite.errors import SpecError
from shardwrite.slurm.settings import Settings, head, setup_lines, thread_lines, words

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

    src: str  # source, and store that is written
    dst: str
    n_parts: int  # number of parts, and of tasks of the job array
    at_once: int = 0  # largest number of tasks that run at a time; 0 for no limit
    # Options of ``shardwrite write-part`` that say how to read the source, or options of the
    # conversion
    source_options: tuple[str, ...] = field(default=())
    name: str = ""  # path of the array in the store; empty if the store is the array
    conversion: str = ""  # command of a conversion; empty for a write

    def __post_init__(self) -> None:
        n: object = self.n_parts
        is_whole = isinstance(n, Integral) and not isinstance(n, bool)
        if not is_whole or not 1 <= self.n_parts <= _MAX_TASKS:
            raise SpecError(
                "not a number of tasks that a job array of SLURM can have",
                field="n_parts",
                value=self.n_parts,
                remedy=f"give a whole number from 1 to {_MAX_TASKS:,}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticJob:
    """What a driver job writes with workers that are jobs of their own."""

    src: str  # source, and store that is written
    dst: str
    n_jobs: int  # largest number of workers
    # More options of ``shardwrite write``, for the source and for the layout of the array
    options: tuple[str, ...] = field(default=())
    driver_memory: str = "2G"  # memory of the driver, as `sbatch` takes it
    # Time limit of the driver, as `sbatch` takes it. It is longer than that of the workers, because
    # the driver also waits for them in the queue.
    driver_time: str = "1-00:00:00"

    def __post_init__(self) -> None:
        if self.n_jobs < 1:
            raise SpecError(
                "there is at least one job",
                field="jobs",
                value=self.n_jobs,
                remedy="give 1 or more",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationJob:
    """What a dask cluster inside one allocation runs: a write, or a program of the user."""

    n_nodes: int = 4  # number of nodes
    # Number of workers on each node. Each has as many cores as a task of the job.
    n_workers: int = 1
    src: str = ""  # source, and store that is written
    dst: str = ""
    options: tuple[str, ...] = ()  # options of ``shardwrite write``
    program: str = ""  # path of a Python script, instead of a source and a store
    arguments: tuple[str, ...] = ()  # arguments of the program

    def __post_init__(self) -> None:
        for name in ("n_nodes", "n_workers"):
            if getattr(self, name) < 1:
                raise SpecError(
                    "there is at least one",
                    field=name,
                    value=getattr(self, name),
                    remedy="give 1 or more",
                )
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
    cluster = f'--scheduler "$RUN/scheduler.json" --requeue {settings.requeues}'
    if job.program:
        what = [f"PROGRAM={shlex.quote(job.program)}", f"ARGUMENTS=({words(job.arguments)})"]
        program = f'shardwrite exec {cluster} "$PROGRAM" "${{ARGUMENTS[@]}}" &'
    else:
        what = [
            f"SRC={shlex.quote(job.src)}",
            f"DST={shlex.quote(job.dst)}",
            f"OPTIONS=({words(job.options)})",
        ]
        program = f'shardwrite write "$SRC" "$DST" "${{OPTIONS[@]}}" {cluster} &'
    lines = [
        *head(settings, settings.name, own),
        (
            "# A dask scheduler here, workers on all nodes, and the program. "
            "What is done lies on disk: submit it again to go on."
        ),
        "",
        "drain='' leave=''",
        "trap 'drain=1' USR1",
        "trap 'leave=1' TERM",
        "",
        *setup_lines(settings),
        *what,
        "",
        *thread_lines(),
        "RUN=$(shardwrite slurm run-directory) || exit",
        """trap 'rm -rf -- "$RUN"' EXIT # with the keys in it""",
        'shardwrite slurm scheduler "$RUN" &',
        "scheduler=$!",
        'srun --no-kill --kill-on-bad-exit=0 --wait=0 shardwrite slurm worker "$RUN" &',
        "workers=$!",
        program,
        "program=$!",
    ]
    return "\n".join(lines) + "\n" + _LOOP.replace("REQUEUES", str(settings.requeues))


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
    name = ("--name", job.name) if job.name else ()
    lines = [
        *head(settings, settings.name, own),
        (
            "# One task of this array writes one part. "
            "A task that was interrupted goes on where it was: submit it again."
        ),
        "",
        *setup_lines(settings),
        f"SRC={shlex.quote(job.src)}",
        f"DST={shlex.quote(job.dst)}",
        f"PARTS={job.n_parts}",
        f"OPTIONS=({words((*name, *job.source_options))})",
        "",
        *thread_lines(),
        (
            'export SHARDWRITE_JOB="${SLURM_ARRAY_JOB_ID:-}" '
            "# all tasks write one array, and are cancelled together"
        ),
        "trap '' USR1  # until the program listens",
        _step_of(job, settings.requeues),
    ]
    return "\n".join(lines) + "\n"


def _step_of(job: ArrayJob, n_requeues: int) -> str:
    """Command of one task of a job array."""
    if job.conversion:
        return (
            f'exec shardwrite {job.conversion} "$SRC" "$DST" --part "$SLURM_ARRAY_TASK_ID/$PARTS" '
            f'"${{OPTIONS[@]}}" --requeue {n_requeues}'
        )
    return (
        'exec shardwrite write-part "$SRC" "$DST" "$SLURM_ARRAY_TASK_ID/$PARTS" '
        f'"${{OPTIONS[@]}}" --requeue {n_requeues}'
    )


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
    name = ("--name", job.name) if job.name else ()
    options = job.source_options if job.conversion else name
    lines = [
        *head(settings, f"{settings.name}-finalize", ("--output=logs/%x-%j.out", "--requeue")),
        (
            "# Looks at every shard and publishes the array; "
            "if parts are missing it says how to submit them again, and fails with 85."
        ),
        "",
        *setup_lines(settings),
        *([f"SRC={shlex.quote(job.src)}"] if job.conversion else []),
        f"DST={shlex.quote(job.dst)}",
        f"PARTS={job.n_parts}",
        f"OPTIONS=({words(options)})",
        "",
        *thread_lines(),
        "trap '' USR1",
        _last_step_of(job),
    ]
    return "\n".join(lines) + "\n"


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
    driver = replace(settings, cores=1, memory=job.driver_memory, time=job.driver_time)
    workers = [
        "--jobs",
        str(job.n_jobs),
        "--cores",
        str(settings.cores),
        "--memory",
        settings.memory,
        "--time",
        settings.time,
    ]
    for option in settings.directives:
        workers += [f"--sbatch={option}"]
    for line in settings.setup:
        workers += ["--setup", line]
    lines = [
        *head(driver, f"{settings.name}-driver", own),
        (
            "# This job drives workers, which are jobs that it submits. "
            "Interrupted, it goes on where it was: submit it again."
        ),
        "",
        *setup_lines(settings),
        f"SRC={shlex.quote(job.src)}",
        f"DST={shlex.quote(job.dst)}",
        f"WORKERS=({words(workers)})",
        f"OPTIONS=({words(job.options)})",
        "",
        *thread_lines(),
        "trap '' USR1  # until the program listens",
        (
            'exec shardwrite write "$SRC" "$DST" --cluster slurm '
            f'"${{WORKERS[@]}}" "${{OPTIONS[@]}}" --requeue {settings.requeues}'
        ),
    ]
    return "\n".join(lines) + "\n"
