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
import shutil
import socket
import tempfile
import threading
import time as clock
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask

from shardwrite.engines.cluster import new_client
from shardwrite.errors import (
    ClusterError,
    IncompleteError,
    RunCancelledError,
    ShardwriteError,
    StoreError,
    SubmitError,
)
from shardwrite.host.environment import configured
from shardwrite.host.stopping import (
    has_ended,
    is_draining,
    on_leaving,
    request_drain,
    reset_drain,
)
from shardwrite.place.target import Target, resolve_target
from shardwrite.slurm.client import cancel, endings, queue
from shardwrite.slurm.jobs import DriverNote, Submitted, cancel_left, refuse_second, runs_at
from shardwrite.slurm.keys import make_keys, security_of, write_keys
from shardwrite.slurm.workers import (
    DEATH_SECONDS,
    Workers,
    arguments_of,
    configuration_of,
    package,
    workers_of,
)

Tell = Callable[[str], None]

_LEAVE_SECONDS = 5.0  # time limit of scancel when a signal ends the process
_LOOK_SECONDS = 30.0  # between two looks at the queue
_REPEAT_SECONDS = 600.0  # until an unchanged text is told again
_CANCELLED_SECONDS = 2.0  # after a cancellation, time after which tasks without a worker fail
# Seconds for which a worker must be superfluous before it is given back. This is longer than the
# pause between two waves.
_WAIT_COUNT = 120


@contextlib.contextmanager
def cluster(
    *,
    jobs: int,
    store: Any = None,
    name: str | None = None,
    tell: Tell | None = None,
    **keywords: Any,
) -> Iterator[Any]:
    """Run dask on workers that are SLURM jobs, as long as the block lasts.

    The jobs are submitted with `sbatch` from this process, replaced when they are lost, and
    cancelled when the block is left, also by an error. With
    :func:`shardwrite.runs.outcome.handling_signals`, or under ``shardwrite exec``, they are also
    cancelled when a signal ends the process.

    - `store`, `name`: where the array goes, as for :func:`shardwrite.to_sharded_zarr`. Once the run
      of this array has begun, the ids of the jobs are kept beside it, so that ``shardwrite slurm
      cancel`` finds them even if this process was killed.
    - `cores`: cores of each job, and threads of its worker; by default what dask's configuration
      says, for instance in ``~/.config/dask/jobqueue.yaml``, or else 4.
    - `memory`, `time`: memory and time limit of each job, as `sbatch` takes them; by default what
      dask's configuration says, or else ``8G`` and the half hour that is dask-jobqueue's default.
    - `directives`, `setup`: options of `sbatch`, and lines of shell to run before the worker
      starts. They are added to those of dask's configuration.
    - `minimum_jobs`: smallest number of workers. Workers beyond it are given back after two minutes
      without work.
    - `interface`, `scheduler_interface`: network interfaces, such as ``"ib0"``, of the workers and
      of the scheduler. ``SHARDWRITE_INTERFACE`` and ``SHARDWRITE_SCHEDULER_INTERFACE`` by default.
    - `patience_seconds`: how long to wait while there is no worker at all.
    - Raises ClusterError if there is no worker for `patience_seconds`, or if the process is asked
      to stop before the first worker comes.
    - Raises RunCancelledError if the work was cancelled by ``shardwrite slurm cancel``.
    - Raises SubmitError if `sbatch` takes no job at all, if another driver or job array writes to
      `store`, or if SLURM cannot be asked about that.

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
    target = None if store is None else resolve_target(store, name)
    with opened(workers_of(jobs=jobs, **keywords), target, tell or (lambda _: None)) as client:
        yield client


@contextlib.contextmanager
def opened(workers: Workers, target: Target | None, tell: Tell) -> Iterator[Any]:
    """Start a cluster, and yield its client once it has a worker; see :func:`cluster`."""
    jobqueue = package()
    from distributed.scheduler import NoWorkerError

    workers.log_directory.mkdir(parents=True, exist_ok=True)
    if target is not None:
        refuse_second(target)
    jobs = _Jobs(target)
    with contextlib.ExitStack() as stack:
        stack.enter_context(configured({"distributed.scheduler.http.routes": []}))
        stack.enter_context(dask.config.set(configuration_of(workers)))
        stack.enter_context(on_leaving(jobs.abandon))
        security = (
            stack.enter_context(_certificates(workers.log_directory))
            if workers.is_encrypted
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
            minimum_jobs=workers.jobs, maximum_jobs=workers.jobs, wait_count=_WAIT_COUNT
        )
        watch = _Watch(made, adaptive, jobs, workers, tell)
        stack.callback(watch.stop)
        stack.callback(_ask_for_none, adaptive)
        watch.start()
        try:
            watch.first_worker()
            adaptive.minimum = workers.minimum_jobs
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
                return str(await super()._submit_job(script_filename))
            except (RuntimeError, OSError) as error:  # the watch has it submitted again
                jobs.refusal = " ".join(str(error).split())
                return ""

        def _job_id_from_submit_output(self, out: str) -> str:
            if not out:
                return ""
            number = str(super()._job_id_from_submit_output(out))
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
        next_look = clock.monotonic() + min(_LOOK_SECONDS, self._workers.patience_seconds / 4)
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
        networks = [name for _, name in socket.if_nameindex() if name != "lo"]
        refusal = f"; sbatch: {self._jobs.refusal}" if self._jobs.refusal else ""
        return (
            f"no workers; {jobs}{refusal}; logs in {self._workers.log_directory}; the scheduler "
            f"listens at {self._cluster.scheduler_address}, which the nodes must reach "
            f"(networks here: {', '.join(networks[:8])})"
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
            if clock.monotonic() - begun > self._workers.patience_seconds:
                raise self.given_up("no worker came", clock.monotonic() - begun)
            clock.sleep(0.1)

    def given_up(self, what: str, seconds: float | None = None) -> ClusterError:
        """Error that tells why the cluster is given up, with what SLURM says of its jobs now."""
        seconds = self._workers.patience_seconds if seconds is None else seconds
        with contextlib.suppress(SubmitError):  # the last answer stays
            self._found = queue(self._jobs.ids)
        message = f"{what} in {seconds:.0f} s: {self._why()}; run the same command again to go on"
        return ClusterError(message, waited_seconds=seconds, jobs=self._found)
