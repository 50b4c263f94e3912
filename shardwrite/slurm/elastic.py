"""Dask workers that are SLURM jobs of their own.

They are submitted as they are needed, replaced when they are lost, and cancelled in the end.

The cluster is a `dask_jobqueue.SLURMCluster`. It is set up so that a run survives what SLURM does
to its jobs:

- Every job has one worker process, with a nanny.
- Scaling is adaptive, because a cluster of a fixed size does not replace the jobs that it loses.
- A task is not blamed for the loss of the workers on which it ran.
- Workers have no lifetime. A worker that retires goes on with its task although the scheduler has
  given this task to another worker (distributed, issue 3141). A task that the time limit cuts short
  costs no more than that.

The disk tells what has been written. Nothing here is needed to know it.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import shutil
import tempfile
import threading
import time as clock
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
from dask.utils import parse_bytes

from shardwrite._dataclass import dataclass
from shardwrite.engines.cluster import new_client
from shardwrite.entry.public import taking
from shardwrite.errors import (
    ClusterError,
    IncompleteError,
    RunCancelledError,
    ShardwriteError,
    SpecError,
    StoreError,
    SubmitError,
)
from shardwrite.host.environment import LOOPBACK, configured, exports
from shardwrite.host.libraries import library
from shardwrite.host.stopping import (
    has_ended,
    is_draining,
    on_leaving,
    request_drain,
    reset_drain,
)
from shardwrite.options import options_from
from shardwrite.place.target import Target, resolve_target
from shardwrite.slurm.client import cancel, endings, environment_of, id_in, queue
from shardwrite.slurm.inside import OF_SCHEDULERS, OF_WORKERS, check_network, networks
from shardwrite.slurm.jobs import cancel_left, refuse_second_submission, runs_at
from shardwrite.slurm.keys import make_keys, security_of, write_keys
from shardwrite.slurm.keywords import CORES, MEMORY, TIME, ClusterArguments
from shardwrite.slurm.notes import DriverNote, Submitted
from shardwrite.slurm.script import Settings, directives_of, memory_nbytes, one_thread_each

# ---- Settings of the workers, as arguments of `dask_jobqueue.SLURMCluster`


DEATH_SECONDS = 120  # after which a worker that reaches no scheduler ends
_NANNY_NBYTES = 128 * 2**20  # memory of the nanny, which is in the job too
_SHARE = 0.9  # of the remaining memory of the job, for the worker
_OWN_LINES = tuple(
    f"#SBATCH {option}" for option in ("-J ", "-e ", "-o ", "--cpus-per-task=", "--mem=", "-t ")
)
_SCRATCH = (
    "SHARDWRITE_SCRATCH=/tmp",
    (
        'for place in "${TMPDIR:-}" "${SLURM_TMPDIR:-}" "${SHARDWRITE_LOCAL_DIR:-}"; do  '
        "# the last that is here"
    ),
    '    if [ -d "$place" ] && [ -w "$place" ]; then SHARDWRITE_SCRATCH=$place; fi',
    "done",
)
_ENVIRONMENT = [
    f'export DASK_{name.upper().replace(".", "__")}="{value}"' for name, value in OF_WORKERS.items()
]


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Checked settings of workers that are SLURM jobs."""

    asked: ClusterArguments
    settings: Settings  # settings of each worker's job
    memory_limit_nbytes: int  # bytes of its job's memory that a worker may use
    # Network interfaces of the workers and of the scheduler; empty for dask's choice
    interface: str
    scheduler_interface: str
    log_directory: Path


def workers_of(asked: ClusterArguments) -> Workers:
    """Check the arguments of :func:`cluster`, and fill in what dask's configuration says."""
    if not 1 <= asked.minimum_jobs <= asked.jobs:
        message = (
            "not between 1 and the number of jobs"
            if asked.jobs >= 1
            else "there is at least one job"
        )
        raise SpecError(
            message,
            field="jobs",
            value=(asked.minimum_jobs, asked.jobs),
            remedy="give 1 or more, and no minimum above it",
        )
    section = _section(asked.config_name)
    is_of_dask = not asked.memory and section["memory"]
    size = asked.memory or section["memory"] or MEMORY
    nbytes = int(parse_bytes(size)) if is_of_dask else memory_nbytes(size)
    limit = int(_SHARE * (nbytes - _NANNY_NBYTES))
    if limit < _NANNY_NBYTES:
        raise SpecError(
            "too little for a worker", field="memory", value=size, remedy="give 512M or more"
        )
    settings = options_from(
        asked,
        Settings,
        cores=asked.cores or section["cores"] or CORES,
        memory=f"{math.ceil(nbytes / 2**20)}M" if is_of_dask else size,
        time=asked.time or section["walltime"] or TIME,
    )
    directives_of(settings, ())  # refuses bad options here, before sbatch does
    environ = os.environ.get
    return Workers(
        asked=asked,
        settings=settings,
        memory_limit_nbytes=limit,
        interface=asked.interface or environ("SHARDWRITE_INTERFACE") or section["interface"] or "",
        scheduler_interface=asked.scheduler_interface
        or environ("SHARDWRITE_SCHEDULER_INTERFACE")
        or "",
        log_directory=Path(asked.log_directory or section["log-directory"] or "logs").absolute(),
    )


def package() -> Any:
    """Import dask_jobqueue, which submits workers."""
    return library("dask_jobqueue", "slurm", field="cluster", value="slurm")


def _section(name: str) -> dict[str, Any]:
    """Section of dask's configuration ``jobqueue``, with every key that is read here.

    Importing dask_jobqueue loads its defaults.
    """
    package()
    found = dask.config.get(f"jobqueue.{name}", None)
    if not isinstance(found, dict):
        remedy = f"put it into {Path(dask.config.PATH) / 'jobqueue.yaml'}"
        raise SpecError(
            "no such section of jobqueue in dask's configuration",
            field="config_name",
            value=name,
            remedy=remedy,
        )
    fields = (
        "cores",
        "memory",
        "walltime",
        "interface",
        "log-directory",
        "local-directory",
        "scheduler-options",
    )
    lists = (
        "job-extra-directives",
        "job-directives-skip",
        "job-script-prologue",
        "worker-extra-args",
    )
    return {
        **dict.fromkeys(fields),
        **{key: value or [] for key, value in dict.fromkeys(lists).items()},
        **found,
    }


def configuration_of(workers: Workers) -> dict[str, Any]:
    """Settings of dask's configuration that the scheduler of these workers needs."""
    return {
        **OF_SCHEDULERS,
        "distributed.scheduler.no-workers-timeout": workers.asked.patience_seconds,
    }


def arguments_of(workers: Workers) -> dict[str, Any]:
    """Arguments of `dask_jobqueue.SLURMCluster`.

    Directives that SLURMCluster writes itself are left out where shardwrite writes the same option
    with its value quoted.
    """
    section = _section(workers.asked.config_name)
    # A job that is lost is replaced by a new one, so SLURM must not requeue it.
    own = (f"--output={workers.log_directory}/%x-%j.out", "--no-requeue")
    job = replace(workers.settings, job_name=f"{workers.settings.job_name}-worker")
    options = {
        "dashboard": False,
        "dashboard_address": LOOPBACK,
        **_address(workers, section["scheduler-options"] or {}),
    }
    return {
        "config_name": workers.asked.config_name,
        "cores": workers.settings.cores,
        "processes": 1,
        "nanny": True,
        "memory": f"{workers.memory_limit_nbytes}B",
        "interface": workers.interface or None,
        "scheduler_options": options,
        "death_timeout": DEATH_SECONDS,
        "local_directory": section["local-directory"] or '"$SHARDWRITE_SCRATCH"',
        "job_directives_skip": [*section["job-directives-skip"], *_OWN_LINES],
        "job_extra_directives": [
            *section["job-extra-directives"],
            *directives_of(job, own),
        ],
        "job_script_prologue": [
            *section["job-script-prologue"],
            *workers.settings.setup,
            *_SCRATCH,
            *one_thread_each(),
            *_ENVIRONMENT,
            *exports(),
        ],
        "worker_extra_args": [
            *section["worker-extra-args"],
            "--no-dashboard",
            "--dashboard-address",
            LOOPBACK,
        ],
    }


def _address(workers: Workers, options: dict[str, Any]) -> dict[str, Any]:
    """Scheduler options of dask that say where the scheduler listens.

    The interface that the user asks for comes first, and what `options` say comes second. Without
    them, it is the workers' interface if this machine has one of that name. The last resort is the
    address that dask finds.
    """
    from distributed.utils import get_ip

    if workers.scheduler_interface:
        check_network("scheduler_interface", workers.scheduler_interface)
        return {**options, "interface": workers.scheduler_interface}
    if "host" in options or "interface" in options:
        return options
    return {
        **options,
        **(
            {"interface": workers.interface}
            if workers.interface in networks()
            else {"host": get_ip()}
        ),
    }


# ---- The cluster


Tell = Callable[[str], None]

_LEAVE_SECONDS = 5.0  # time limit of scancel when a signal ends the process
_LOOK_SECONDS = 30.0  # between two looks at the queue
_REPEAT_SECONDS = 600.0  # until an unchanged text is told again
_CANCELLED_SECONDS = 2.0  # after a cancellation, time after which tasks without a worker fail
# Seconds for which a worker must be superfluous before it is given back. This is longer than the
# pause between two waves.
_WAIT_COUNT = 120


@contextlib.contextmanager
@taking(ClusterArguments)
def cluster(asked: ClusterArguments) -> Iterator[Any]:
    """Run dask on workers that are SLURM jobs, as long as the block lasts.

    The jobs are submitted with `sbatch` from this process, replaced when they are lost, and
    cancelled when the block is left, also by an error. With
    :func:`shardwrite.runs.outcome.handling_signals`, or under ``shardwrite exec``, they are also
    cancelled when a signal ends the process.

    Raises
    ------
    ClusterError
        If there is no worker for `patience_seconds`, or if the process is asked to stop before the
        first worker comes.
    RunCancelledError
        If the work was cancelled by ``shardwrite slurm cancel``.
    SubmitError
        If `sbatch` takes no job at all, if another driver or job array writes to `store`, or if
        SLURM cannot be asked about that.

    Examples
    --------
    >>> with cluster(jobs=20, cores=8, memory="16G", store="x.zarr"):  # doctest: +SKIP
    ...     x.to_sharded_zarr("x.zarr")
    >>> with cluster(jobs=20, memory="all"):
    ...     pass
    Traceback (most recent call last):
        ...
    shardwrite.errors.SpecError: memory='all': not a size of memory; give for instance 16G
    """
    target = None if asked.store is None else resolve_target(asked.store, asked.name)
    with opened(workers_of(asked), target, asked.tell or (lambda _: None)) as client:
        yield client


@contextlib.contextmanager
def opened(workers: Workers, target: Target | None, tell: Tell) -> Iterator[Any]:
    """Start a cluster, and yield its client once it has a worker; see :func:`cluster`."""
    jobqueue = package()
    from distributed.scheduler import NoWorkerError

    workers.log_directory.mkdir(parents=True, exist_ok=True)
    if target is not None:
        cancel(refuse_second_submission(target))
    jobs = _Jobs(target)
    with contextlib.ExitStack() as stack:
        stack.enter_context(configured({"distributed.scheduler.http.routes": []}))
        stack.enter_context(dask.config.set(configuration_of(workers)))
        stack.enter_context(on_leaving(jobs.abandon))
        security = (
            stack.enter_context(_certificates(workers.log_directory))
            if workers.asked.encrypted
            else None
        )
        stack.callback(jobs.clear, tell)
        jobs.keep()
        given = {
            **arguments_of(workers),
            "security": security,
            "job_cls": _job_class(jobqueue, jobs),
        }
        made = stack.enter_context(jobqueue.SLURMCluster(**given))
        adaptive = made.adapt(
            minimum_jobs=workers.asked.jobs,
            maximum_jobs=workers.asked.jobs,
            wait_count=_WAIT_COUNT,
        )
        watch = _Watch(made, adaptive, jobs, workers, tell)
        stack.callback(watch.stop)
        stack.callback(_ask_for_none, adaptive)
        watch.start()
        try:
            watch.first_worker()
            adaptive.minimum = workers.asked.minimum_jobs
            yield stack.enter_context(new_client(made))
        except Exception as error:
            if jobs.is_cancelled:
                raise _cancelled(error) from error
            if isinstance(error, NoWorkerError) or isinstance(error.__cause__, NoWorkerError):
                raise watch.given_up("no worker came back") from error
            raise
        finally:
            if jobs.is_cancelled:
                reset_drain()  # the watch requested the drain


def _cancelled(error: Exception) -> RunCancelledError:
    """Error that tells of a cancellation, in place of the error that it caused."""
    missing = error.fields["missing"] if isinstance(error, IncompleteError) else []
    return RunCancelledError(
        "cancelled by shardwrite slurm cancel; run the same command again to go on", missing=missing
    )


def _ask_for_none(adaptive: Any) -> None:
    """Stop adaptive scaling, so that no more jobs are submitted."""
    # A scaling step that is under way goes on while the cluster closes, so the limits become 0.
    adaptive.minimum = adaptive.maximum = 0
    adaptive.stop()


@contextlib.contextmanager
def _certificates(directory: Path) -> Iterator[Any]:
    """TLS settings of one cluster, with new certificates in files that only their owner can read.

    The files are removed when the block is left, or when a signal ends the process.
    """
    keys = make_keys()
    place = Path(tempfile.mkdtemp(prefix=".certificates-", dir=directory))
    try:
        with on_leaving(lambda: shutil.rmtree(place, ignore_errors=True)):
            write_keys(keys, place)
            yield security_of(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _job_class(jobqueue: Any, jobs: _Jobs) -> Any:
    """Class of dask_jobqueue's SLURM jobs that records each job's number, or why there is none."""

    class RecordedJob(jobqueue.slurm.SLURMJob):  # type: ignore[misc]
        async def _submit_job(self, script_filename: str) -> str:
            if jobs.look_whether_cancelled():
                return ""
            try:
                words = [*shlex.split(self.submit_command), script_filename]
                environ = environment_of(Path(script_filename))
                return str(await self._call(words, env=environ))
            except (RuntimeError, OSError) as error:  # the watch has it submitted again
                jobs.refusal = " ".join(str(error).split())
                return ""

        def _job_id_from_submit_output(self, out: str) -> str:
            if not out:
                return ""
            try:
                number = id_in(out)
            except SubmitError as error:
                jobs.refusal = error.message
                return ""
            jobs.add(number)
            return number

    return RecordedJob


class _Jobs:
    """Numbers of the workers' jobs, kept on disk as soon as there is a run to keep them with."""

    def __init__(self, target: Target | None) -> None:
        self.ids: list[str] = []
        self.refusal = ""
        self.is_cancelled = False
        self._target = target
        self._note = DriverNote(uuid.uuid4().hex[:12])

    def add(self, number: str) -> None:
        """Record a job that was submitted."""
        self.ids.append(number)
        self.keep()

    def keep(self, *, has_ended: bool = False) -> None:
        """Write the numbers beside the run, if there is a run and its note lacks them."""
        if self._target is None:
            return
        # An error is told by whoever works on the run, if it has not ended. Tried again later.
        with contextlib.suppress(ShardwriteError, OSError):
            if not has_ended and self._note.is_kept(self.ids):
                return
            for run in runs_at(self._target)[:1]:
                self._note.keep(run, self.ids[:], has_ended=has_ended)

    def look_whether_cancelled(self) -> bool:
        """Whether somebody has cancelled the work. From then on, no job is submitted."""
        with contextlib.suppress(StoreError):  # whoever works on the run tells what is wrong
            self.is_cancelled = self.is_cancelled or self._note.is_told_to_end
        return self.is_cancelled

    def abandon(self) -> None:
        """Cancel all jobs without asking SLURM first, for a process that is about to end."""
        self.keep(has_ended=True)
        cancel(self.ids, _LEAVE_SECONDS)

    def clear(self, tell: Tell) -> None:
        """Cancel the jobs that are left, and note that this driver has ended."""
        try:
            cancel_left(lambda: Submitted(workers=tuple(self.ids)))
        except SubmitError as error:
            tell(
                f"cannot tell whether the workers' jobs are gone: {error}; "
                f"they end by themselves in {DEATH_SECONDS} s"
            )
        self.keep(has_ended=True)


class _Watch(threading.Thread):
    """Thread that watches over the workers and their jobs.

    It tells why there are no workers, and ends work that is cancelled. It also has jobs
    replaced that ended before they became workers.
    """

    def __init__(self, made: Any, adaptive: Any, jobs: _Jobs, workers: Workers, tell: Tell) -> None:
        super().__init__(name="shardwrite-workers", daemon=True)
        self._cluster, self._adaptive, self._jobs, self._workers, self._tell = (
            made,
            adaptive,
            jobs,
            workers,
            tell,
        )
        self._stopped = threading.Event()
        self._found: list[dict[str, str]] = []
        self._said = ("", 0.0)

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        has_ended(self)

    def run(self) -> None:
        """Look for a cancellation every second, and at the queue every half minute."""
        next_look = clock.monotonic() + min(_LOOK_SECONDS, self._workers.asked.patience_seconds / 4)
        while not self._stopped.wait(1.0):
            self._jobs.keep()
            if self._jobs.look_whether_cancelled():
                self._end()
                return
            if clock.monotonic() >= next_look:
                self._look()
                next_look = clock.monotonic() + _LOOK_SECONDS

    def _end(self) -> None:
        """End cancelled work: nothing more is begun, and other tasks fail for want of workers."""
        _ask_for_none(self._adaptive)
        request_drain()
        self._cluster.scheduler.no_workers_timeout = _CANCELLED_SECONDS
        self._say("cancelled by shardwrite slurm cancel")

    def _look(self) -> None:
        expected = {name: worker.job_id for name, worker in dict(self._cluster.workers).items()}
        try:
            self._found = queue(self._jobs.ids)
        except SubmitError as error:
            if not self._cluster.scheduler.workers:
                self._say(f"no workers; {error}")
            return
        there = {job["id"] for job in self._found}
        names = {str(worker.name) for worker in list(self._cluster.scheduler.workers.values())}
        lost = [
            name
            for name, number in expected.items()
            if number not in there and str(name) not in names
        ]
        if lost:
            # Adaptive scaling then asks for other workers.
            self._cluster.loop.add_callback(self._cluster.scale_down, lost)
        if not self._cluster.scheduler.workers:
            self._say(self._why())

    def _say(self, text: str) -> None:
        """Tell a text if it is new, or if it was last told ten minutes ago."""
        if text != self._said[0] or clock.monotonic() > self._said[1] + _REPEAT_SECONDS:
            self._said = (text, clock.monotonic())
            self._tell(text)

    def _why(self) -> str:
        """What is known about the missing workers, as one line of text."""
        jobs = (
            "; ".join(
                f"job {job['id']} {job['state']} ({job['reason']})" for job in self._found[:8]
            )
            or self._how_they_ended()
        )
        others = [name for name in networks() if name != "lo"]
        refusal = f"; sbatch: {self._jobs.refusal}" if self._jobs.refusal else ""
        return (
            f"no workers; {jobs}{refusal}; logs in {self._workers.log_directory}; the scheduler "
            f"listens at {self._cluster.scheduler_address}, which the nodes must reach "
            f"(networks here: {', '.join(others[:8])})"
        )

    def _how_they_ended(self) -> str:
        """How the latest jobs ended, as far as SLURM tells."""
        with contextlib.suppress(SubmitError):  # `_look` tells when squeue fails
            ended = [f"job {name} {state}" for name, state in endings(self._jobs.ids[-8:]).values()]
            if ended:
                return "; ".join(ended)
        return "SLURM has none of their jobs"

    def first_worker(self) -> None:
        """Wait for the first worker.

        - Raises ClusterError if no worker comes in time, or if the process is asked to stop before.
        - Raises SubmitError if `sbatch` refuses and has taken no job so far.
        """
        begun = clock.monotonic()
        while not self._cluster.scheduler.workers:
            if is_draining():
                raise self.given_up(
                    "asked to stop before there was a worker", clock.monotonic() - begun
                )
            if self._jobs.refusal and not self._jobs.ids:
                raise SubmitError(self._jobs.refusal, command="sbatch")
            if clock.monotonic() - begun > self._workers.asked.patience_seconds:
                raise self.given_up("no worker came", clock.monotonic() - begun)
            clock.sleep(0.1)

    def given_up(self, what: str, seconds: float | None = None) -> ClusterError:
        """Error that tells why the cluster is given up, with what SLURM says of its jobs now."""
        seconds = self._workers.asked.patience_seconds if seconds is None else seconds
        with contextlib.suppress(SubmitError):  # the last answer stays
            self._found = queue(self._jobs.ids)
        message = f"{what} in {seconds:.0f} s: {self._why()}; run the same command again to go on"
        return ClusterError(message, waited_seconds=seconds, jobs=self._found)
