"""Calls of SLURM's own commands, such as `sbatch` and `squeue`."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

from shardwrite._dataclass import dataclass
from shardwrite.config.table import SLURM_TIMEOUT, value_of
from shardwrite.errors import SubmitError
from shardwrite.host.resources import job_id
from shardwrite.place.objects import InStore
from shardwrite.place.target import Target

LOOK_SECONDS = 1.0
"""Time for which SLURM is asked, in all, if somebody only looks at a run.

An answer then comes within two seconds, whatever SLURM does.
"""
_FORGOTTEN, _COMPLETED = "Invalid job id", "already completing or completed"
"""What SLURM's commands say of jobs that are over."""

_deadline: ContextVar[float] = ContextVar("shardwrite_slurm_deadline", default=math.inf)


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """Have all commands in the block answer within `LOOK_SECONDS`, together."""
    token = _deadline.set(min(_deadline.get(), time.monotonic() + LOOK_SECONDS))
    try:
        yield
    finally:
        _deadline.reset(token)


_OF_QUESTIONS = ("SQUEUE_", "SACCT_", "SCANCEL_")
"""Variables by which a user hides jobs from the commands that look for them, or keeps them."""

_OTHER_NAMES = {
    "mem": ["MEM_PER_NODE", "MEM_PER_CPU", "MEM_PER_GPU"],
    "time": ["TIMELIMIT"],
    "requeue": ["NO_REQUEUE"],
    "no-requeue": ["REQUEUE"],
}
"""Ends of the variables of `sbatch` that an option contradicts, but for that of its own name."""


def environment_of(script: Path) -> dict[str, str]:
    """The environment of a script's `sbatch`, without variables that win over its directives.

    Without those, too, that make a job array of any script, or wait for the end of its job.
    """
    text = script.read_text(errors="replace")
    options = re.findall(r"^#SBATCH --([a-z-]+)", text, re.MULTILINE)
    ends = [end for option in options for end in (option, *_OTHER_NAMES.get(option, ()))]
    above = {f"SBATCH_{end.upper().replace('-', '_')}" for end in (*ends, "array-inx", "wait")}
    return {name: value for name, value in os.environ.items() if name not in above}


def _run(
    command: Sequence[str],
    directory: Path | None = None,
    seconds: float | None = None,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Run a command and return its standard output.

    - Raises SubmitError if the command is not in PATH, fails, or does not answer within `seconds`,
      by default ``shardwrite.slurm.command-timeout``, or in the time that `looking` leaves.
    """
    seconds = value_of(SLURM_TIMEOUT) if seconds is None else seconds
    shown, left = shlex.join(command), _deadline.get() - time.monotonic()
    if left <= 0:
        raise SubmitError(
            f"{command[0]} was not asked: SLURM took {LOOK_SECONDS:.0f} s before; try again",
            command=shown,
        )
    seconds = min(seconds, left)
    try:
        done = subprocess.run(  # noqa: S603 (SLURM's own commands, and no shell)
            command,
            cwd=directory,
            env={
                name: value for name, value in environ.items() if not name.startswith(_OF_QUESTIONS)
            },
            capture_output=True,
            text=True,
            errors="replace",  # jobs of others may have any names
            check=False,
            timeout=seconds,
        )
    except FileNotFoundError as error:
        raise SubmitError(
            f"{command[0]} is not in PATH here; run it where SLURM's commands are: {shown}",
            command=shown,
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SubmitError(
            f"{shown}: no answer in {seconds:.0f} s; try again", command=shown
        ) from error
    if done.returncode:
        raise SubmitError(
            f"{shown}: {(done.stderr or done.stdout).strip()} (exit code {done.returncode})",
            command=shown,
        )
    return done.stdout


def max_array_size() -> int:
    """Largest number of tasks that a job array may have on this cluster.

    - Raises SubmitError if `scontrol` cannot be called, or does not say the number.
    """
    found = re.search(
        r"^MaxArraySize\s*=\s*(\d+)", _run(["scontrol", "show", "config"]), re.MULTILINE
    )
    if found is None:
        raise SubmitError(
            "scontrol does not say MaxArraySize; give --parts", command="scontrol show config"
        )
    return int(found[1])


def submit_chain(
    array: Path,
    finalize: Path,
    record: Callable[[Sequence[str], str], None],
    tasks: str = "",
    n_rounds: int = 1,
) -> tuple[list[str], str]:
    """Submit a job array and the job that follows it, and return the ids of both.

    `sbatch` runs in the directory of the scripts. Each job depends on the one before by
    ``afterany``, so it starts however that ends. With ``afterok`` it would wait for ever after one
    task that failed.

    - `record`: called each time `sbatch` has answered, with the ids of the arrays so far, and that
      of the last job, which is empty before that is submitted.
    - `n_rounds`: how often the array is submitted. All tasks belong to later rounds.
    - Raises SubmitError if `sbatch` cannot be called, or refuses a script.
    """
    directory = array.parent
    ids: list[str] = []
    try:
        for script in [*[array] * n_rounds, finalize]:
            some = [f"--array={tasks}"] if tasks and not ids else []
            after = [f"--dependency=afterany:{ids[-1]}"] if ids else []
            command = ["sbatch", "--parsable", *some, *after, script.name]
            try:
                said = _run(command, directory, environ=environment_of(script))
            except KeyboardInterrupt as error:
                raise SubmitError(
                    f"interrupted before sbatch has answered, so the job of {script.name} may be "
                    "in the queue; look with squeue --me",
                    command=shlex.join(command),
                ) from error
            ids.append(id_in(said))
            record(ids[:n_rounds], "".join(ids[n_rounds:]))
    except Exception as error:
        if ids:
            error.add_note(
                f"These jobs are in the queue: {', '.join(ids)}. Before you make the call again, "
                f"end them: scancel {' '.join(ids)}"
            )
        raise
    return ids[:-1], ids[-1]


def id_in(said: str) -> str:
    r"""Id of the job in what `sbatch` prints, to which a site may add lines of its own.

    - Raises SubmitError if no line is an id.

    Examples
    --------
    >>> id_in("Welcome, 12 nodes are free\n41;cluster\n"), id_in("Submitted batch job 42")
    ('41', '42')
    """
    answer = r"^(?:Submitted batch job )?(\d+)(?:;\S+| on cluster \S+)?\s*$"
    found = re.findall(answer, said, re.MULTILINE)
    if not found:
        raise SubmitError(
            f"sbatch prints no id of a job, so there may be one in the queue; look with "
            f"squeue --me: {said.strip()}",
            command="sbatch",
        )
    return str(found[-1])


def queue(ids: Sequence[str]) -> list[dict[str, str]]:
    """Tasks of jobs that are in the queue or run.

    Each is a dictionary with the keys ``id``, ``state``, ``reason``, ``node`` and ``left``. The
    last is the time that is left, as `squeue` prints it.

    - Raises SubmitError if `squeue` cannot be called, fails, or does not answer.
    """
    return [
        dict(zip(("id", "state", "reason", "node", "left"), line.split("|"), strict=True))
        for line in _squeue(ids, "--format=%i|%T|%r|%N|%L").split("\n")
        if line.count("|") == 4
    ]


def _squeue(ids: Sequence[str], *how: str) -> str:
    """What `squeue` prints of the tasks of jobs; nothing if SLURM has forgotten the jobs."""
    if not ids:
        return ""
    try:
        return _run(["squeue", "--noheader", "--array", f"--jobs={','.join(ids)}", *how])
    except SubmitError as error:
        if _FORGOTTEN in error.message:
            return ""
        raise


def endings(ids: Sequence[str]) -> dict[str, tuple[str, str]]:
    """States of the tasks of jobs, ended tasks included, as far as SLURM still knows them.

    The keys are the numbers of the tasks' own jobs. The values are a task's name, such as ``17_3``,
    and its state. `squeue` knows a task for some minutes after its end. `sacct` knows it for
    longer, if the site has it.

    - Raises SubmitError if `squeue` cannot be called, fails, or does not answer.
    """
    found = _ended(_squeue(ids, "--states=all", "--format=%A|%i|%T"))
    forgotten = [job for job in ids if not any(_is_task(name, job) for name, _ in found.values())]
    if forgotten:
        # Many sites have no accounting. Tasks that nobody knows are left out.
        with contextlib.suppress(SubmitError):
            fields = "--format=JobIDRaw,JobID,State"
            told = _run(
                [
                    "sacct",
                    "--noheader",
                    "--parsable2",
                    "--allocations",
                    f"--jobs={','.join(forgotten)}",
                    fields,
                ]
            )
            found = {**_ended(told), **found}
    return found


_WITHOUT_PROCESSES = (
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY"),
    *("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "PENDING"),
)
"""States in which no process of a job runs. A job that waits again has lost those that it had."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What SLURM has said of some jobs, or why it has not. Whoever asks soon again gets it, too."""

    until: float = -math.inf  # time from which it is asked again, by `time.monotonic`
    ids: tuple[str, ...] = ()
    over: frozenset[str] = frozenset()
    doubt: str = ""


_answer = _Answer()


def over(ids: Sequence[str]) -> tuple[frozenset[str], str]:
    """Those of some jobs of which no process runs any more, as SLURM says.

    - Returns: their numbers, and why nothing is known of all others; empty if SLURM has answered.
    """
    global _answer
    if time.monotonic() < _answer.until and (_answer.doubt or _answer.ids == tuple(ids)):
        return _answer.over, _answer.doubt
    try:
        with looking():
            found, doubt = endings(ids), ""
    except SubmitError as error:
        told = error.message.replace(str(error.fields["command"]), "squeue")
        found, doubt = {}, f"not known whether its job goes on: {told}"
    gone = (number for number, (_, state) in found.items() if state in _WITHOUT_PROCESSES)
    _answer = _Answer(time.monotonic() + LOOK_SECONDS, tuple(ids), frozenset(gone), doubt)
    return _answer.over, _answer.doubt


def _ended(text: str) -> dict[str, tuple[str, str]]:
    lines = [line.split("|") for line in text.splitlines() if line.count("|") == 2]
    return {number: (name, state.split()[0]) for number, name, state in lines if state.strip()}


def _is_task(name: str, job: str) -> bool:
    """Whether a task is the job of a number, or belongs to the job array of that number."""
    return name == job or name.startswith(f"{job}_")


def cancel(ids: Sequence[str], seconds: float | None = None) -> None:
    """Cancel jobs; jobs that have ended or that SLURM has forgotten are no error.

    - Raises SubmitError if `scancel` cannot be called, does not answer within `seconds`, or fails
      otherwise.
    """
    if not ids:
        return
    try:
        _run(["scancel", *ids], seconds=seconds)
    except SubmitError as error:
        if not any(said in error.message for said in (_FORGOTTEN, _COMPLETED)):
            raise


def requeue(limit: int, environ: Mapping[str, str] | None = None) -> str:
    """Put the job of this process back into the queue, and return a text that says what happened.

    Nothing is done outside a job, in a process that is not the first task of its step, or if the
    job was requeued `limit` times already.

    - `environ`: used instead of this process's environment.
    - Raises SubmitError if `scontrol` cannot be called, or SLURM refuses.
    """
    environ = os.environ if environ is None else environ
    own = job_id(environ)
    if own is None:
        return "not in a SLURM job, so nothing was requeued"
    if environ.get("SLURM_PROCID", "0") != "0":
        return "the first task of the step requeues the job"
    restarts = int(environ.get("SLURM_RESTART_COUNT") or 0)
    if restarts >= limit:
        return f"job {own} was requeued {restarts} times, and not again; submit it again to go on"
    _run(["scontrol", "requeue", own])
    return f"job {own} is requeued"


def resubmission(parts: Sequence[int], directory: str, target: Target) -> str:
    """Command line that submits some parts again, and the job that publishes after them.

    Examples
    --------
    >>> from shardwrite.place.target import resolve_target
    >>> resubmission([1, 7], "/scratch/x-slurm", resolve_target("/scratch/x.zarr", None))
    'shardwrite slurm resubmit /scratch/x.zarr --array=1,7 --directory /scratch/x-slurm'
    """
    return (
        f"shardwrite slurm resubmit {command_words(target)} --array={as_array_indices(parts)} "
        f"--directory {shlex.quote(directory)}"
    )


def command_words(target: Target) -> str:
    """Arguments that name a target on a command line, quoted for the shell.

    Examples
    --------
    >>> from shardwrite.place.target import resolve_target
    >>> command_words(resolve_target("/scratch/my x.zarr", "images/raw"))
    "'/scratch/my x.zarr' --name images/raw"
    """
    name = target.place.name
    return shlex.join([root_of(target), *(["--name", name] if name else [])])


def root_of(target: Target) -> str:
    """Path or URL of the store of a target, as another process finds it.

    Examples
    --------
    >>> from shardwrite.place.target import resolve_target
    >>> root_of(resolve_target("/scratch/x.zarr", "images/raw"))
    '/scratch/x.zarr'
    """
    place = target.place
    if type(place) is InStore and not place.base.is_in_memory and place.base.url is not None:
        return place.base.url
    return str(target.directory.root)


def as_array_indices(parts: Sequence[int]) -> str:
    """Task indices in the form that ``sbatch --array`` takes.

    Examples
    --------
    >>> as_array_indices([1, 3, 4, 5, 9])
    '1,3-5,9'
    """
    runs: list[list[int]] = []
    for part in sorted(set(parts)):
        if runs and runs[-1][1] == part - 1:
            runs[-1][1] = part
        else:
            runs.append([part, part])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
