"""SLURM's own commands, called."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from shardwrite.errors import SubmitError

__all__ = ["as_array_indices", "cancel", "job_id", "max_array_size", "queue", "requeue", "resubmission", "submit_chain"]

_TIMEOUT_SECONDS = 60.0


def _run(command: Sequence[str], directory: Path | None = None, seconds: float = _TIMEOUT_SECONDS) -> str:
    """What a command prints.

    Raises
    ------
    SubmitError
        If it is not here, fails, or does not answer.
    """
    shown = shlex.join(command)
    try:
        done = subprocess.run(  # noqa: S603 (SLURM's own commands, and no shell)
            command, cwd=directory, capture_output=True, text=True, check=False, timeout=seconds
        )
    except FileNotFoundError as error:
        raise SubmitError(f"{command[0]} is not in PATH here; run it where SLURM's commands are: {shown}", command=shown) from error
    except subprocess.TimeoutExpired as error:
        raise SubmitError(f"{shown}: no answer in {seconds:.0f} s; try again", command=shown) from error
    if done.returncode:
        raise SubmitError(f"{shown}: {(done.stderr or done.stdout).strip()} (exit code {done.returncode})", command=shown)
    return done.stdout


def max_array_size() -> int:
    """Tasks that a job array may have on this cluster."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _run(["scontrol", "show", "config"]), re.MULTILINE)
    if found is None:
        raise SubmitError("scontrol does not say MaxArraySize; give --parts", command="scontrol show config")
    return int(found[1])


def submit_chain(array: Path, finalize: Path) -> tuple[str, str]:
    """Submit the array, and the job that comes after it however it ends; ids of both.

    The second hangs on ``afterany``: with ``afterok`` it would wait for ever after one task that failed.
    """
    directory = array.parent
    first = _run(["sbatch", "--parsable", array.name], directory).strip().split(";")[0]
    second = _run(["sbatch", "--parsable", f"--dependency=afterany:{first}", finalize.name], directory)
    return first, second.strip().split(";")[0]


def queue(ids: Sequence[str]) -> list[dict[str, str]]:
    """Tasks of jobs that SLURM still has: ``id``, ``state``, ``reason``, ``node`` and ``left``.

    Raises
    ------
    SubmitError
        If `squeue` is not here, or does not answer.
    """
    if not ids:
        return []
    try:
        text = _run(["squeue", "--noheader", "--array", f"--jobs={','.join(ids)}", "--format=%i|%T|%r|%N|%L"])
    except SubmitError as error:
        if "Invalid job id" in error.message:  # it has forgotten them
            return []
        raise
    return [dict(zip(("id", "state", "reason", "node", "left"), line.split("|"), strict=True)) for line in text.split("\n") if line]


def cancel(ids: Sequence[str], seconds: float = _TIMEOUT_SECONDS) -> None:
    """Cancel jobs; those that have ended, or that SLURM has forgotten, are none any more.

    Raises
    ------
    SubmitError
        If `scancel` is not here, does not answer in so many seconds, or refuses for another reason.
    """
    if not ids:
        return
    try:
        _run(["scancel", *ids], seconds=seconds)
    except SubmitError as error:
        if "Invalid job id" not in error.message:
            raise


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


def requeue(limit: int, environ: Mapping[str, str] | None = None) -> str:
    """Put the job of this process back into the queue, unless that was done often enough; what came of it.

    Parameters
    ----------
    limit : int
        How often.
    environ : mapping, optional
        Instead of this process's environment.

    Raises
    ------
    SubmitError
        If SLURM refuses.
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


def resubmission(parts: Sequence[int], directory: str) -> str:
    """The command that submits some parts again, and the job that publishes after them.

    Examples
    --------
    >>> resubmission([1, 7], "/scratch/x-slurm")
    'cd /scratch/x-slurm && sbatch --dependency=afterany:$(sbatch --parsable --array=1,7 array.sbatch) finalize.sbatch'
    """
    array = f"sbatch --parsable --array={as_array_indices(parts)} array.sbatch"
    return f"cd {shlex.quote(directory)} && sbatch --dependency=afterany:$({array}) finalize.sbatch"


def as_array_indices(parts: Sequence[int]) -> str:
    """Indices as ``sbatch --array`` takes them.

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
