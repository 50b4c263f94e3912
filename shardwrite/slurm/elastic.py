"""Workers that are jobs of their own: submitted as they are needed, replaced when they are lost, cancelled in the end.

This is `dask_jobqueue.SLURMCluster`, set up so that a run survives what SLURM does to its jobs: one process a job, with a nanny;
adaptive, because a fixed number of jobs is never made up for; and no task blamed for the workers it was on when they were lost.
Workers are not given a lifetime: one that retires goes on with its task while the scheduler has already given it to another
(distributed, issue 3141), and a task that the time limit cuts short costs no more than that. What is done is known from the disk;
nothing here is needed for it.
"""

from __future__ import annotations

import contextlib
import os
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

from shardwrite.errors import (
    ClusterError,
    IncompleteError,
    RunCancelledError,
    ShardwriteError,
    StoreError,
    SubmitError,
)
from shardwrite.host.environment import configured
from shardwrite.host.stopping import is_draining, on_leaving, request_drain, reset_drain
from shardwrite.journal import find_run
from shardwrite.slurm.client import cancel, endings, queue
from shardwrite.slurm.jobs import DriverNote, Submitted, cancel_left, refuse_second
from shardwrite.slurm.workers import (
    DEATH_SECONDS,
    Workers,
    arguments_of,
    configuration_of,
    package,
    workers_of,
)
from shardwrite.target import Target, resolve_target

__all__ = ["cluster", "opened"]

Tell = Callable[[str], None]

_LEAVE_SECONDS = 5.0
_LOOK_SECONDS = 30.0
_REPEAT_SECONDS = 600.0
_CANCELLED_SECONDS = 2.0  # until what waits for workers fails, once all were cancelled
_WAIT_COUNT = 120  # seconds for which a worker must be superfluous before it is given back: longer than a pause between two waves


@contextlib.contextmanager
def cluster(
    *,
    jobs: int,
    store: Any = None,
    name: str | None = None,
    tell: Tell | None = None,
    **keywords: Any,
) -> Iterator[Any]:
    """Have dask compute with workers that are SLURM jobs, as long as the block runs.

    Workers are submitted with `sbatch` from here, replaced when they are lost, and cancelled when the block is left, however it is;
    with :func:`shardwrite.runs.outcome.handling_signals` or under ``shardwrite exec``, also when a signal ends the process.

    Parameters
    ----------
    jobs : int
        Workers at most.
    store, name
        Where the array goes, as for :func:`shardwrite.to_sharded_zarr`: the jobs' ids are kept beside it once its run has begun,
        so that ``shardwrite slurm cancel`` finds them when this process was killed.
    tell : callable, optional
        Called with a line of text when there are no workers, and why.
    cores : int, optional
        Of each job, and threads of its worker.
    memory, time : str, optional
        Of each job, as `sbatch` takes them. These three by default are what ``~/.config/dask/jobqueue.yaml`` says, if it does.
    job_name : str
        Name of the jobs.
    directives, setup : sequence of str
        Options of `sbatch`, and lines of shell before the worker starts; those in dask's configuration hold, too.
    minimum_jobs : int
        Workers at least; the others are given back when they have had nothing to do for two minutes.
    interface, scheduler_interface : str, optional
        Networks such as ``"ib0"`` that workers and scheduler talk over; ``SHARDWRITE_INTERFACE`` and
        ``SHARDWRITE_SCHEDULER_INTERFACE`` by default.
    log_directory : path, optional
        On a file system that all nodes see; ``logs`` by default.
    encrypted : bool
        Whether they talk by TLS, with certificates made for this cluster.
    patience_seconds : float
        How long to be without any worker.
    config_name : str
        Section of dask's configuration ``jobqueue``.

    Yields
    ------
    distributed.Client
        The active one.

    Raises
    ------
    ClusterError
        If there was no worker for so long, or the process was asked to stop before there was one.
    RunCancelledError
        If the work was cancelled by ``shardwrite slurm cancel``.
    SubmitError
        If `sbatch` takes no job at all, or another driver or job array writes to the `store`.

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
    """The cluster that was asked for, once it has a worker; see :func:`cluster`."""
    jobqueue = package()
    from distributed import Client
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
            yield stack.enter_context(Client(made))
        except Exception as error:
            if jobs.is_cancelled:
                raise _cancelled(error) from error
            if isinstance(error, NoWorkerError) or isinstance(error.__cause__, NoWorkerError):
                raise watch.given_up("no worker came back") from error
            raise
        finally:
            if jobs.is_cancelled:
                reset_drain()  # the request was the watch's


def _cancelled(error: Exception) -> RunCancelledError:
    """What to say of an error that came of a cancellation."""
    missing = error.fields["missing"] if isinstance(error, IncompleteError) else []
    return RunCancelledError(
        "cancelled by shardwrite slurm cancel; run the same command again to go on", missing=missing
    )


def _ask_for_none(adaptive: Any) -> None:
    """Submit no more: what adaptive scaling is in the middle of would go on while the cluster closes."""
    adaptive.minimum = adaptive.maximum = 0
    adaptive.stop()


@contextlib.contextmanager
def _certificates(directory: Path) -> Iterator[Any]:
    """Certificates for one cluster, in files that only their owner can read, gone when the block is left."""
    from distributed import Security

    made = Security.temporary()
    place = Path(tempfile.mkdtemp(prefix=".certificates-", dir=directory))
    try:
        with on_leaving(lambda: shutil.rmtree(place, ignore_errors=True)):
            paths = {}
            for leaf, text in (
                ("ca", made.tls_ca_file),
                ("cert", made.tls_worker_cert),
                ("key", made.tls_worker_key),
            ):
                paths[leaf] = str(place / f"{leaf}.pem")
                with open(
                    os.open(paths[leaf], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w"
                ) as file:
                    file.write(text)
            roles = {
                f"tls_{role}_{leaf}": paths[leaf]
                for role in ("client", "scheduler", "worker")
                for leaf in ("cert", "key")
            }
            yield Security(require_encryption=True, tls_ca_file=paths["ca"], **roles)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _job_class(jobqueue: Any, jobs: _Jobs) -> Any:
    """SLURM's job as the package has it, which tells its number, or why there is none."""

    class RecordedJob(jobqueue.slurm.SLURMJob):  # type: ignore[misc]
        async def _submit_job(self, script_filename: str) -> str:
            if jobs.look_whether_cancelled():
                return ""
            try:
                return str(await super()._submit_job(script_filename))
            except (RuntimeError, OSError) as error:  # the watch has it tried again
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
    """Numbers of the workers' jobs, on disk as soon as there is a run to keep them with."""

    def __init__(self, target: Target | None) -> None:
        self.ids: list[str] = []
        self.refusal = ""
        self.is_cancelled = False
        self._target = target
        self._note = DriverNote(uuid.uuid4().hex[:12])

    def add(self, number: str) -> None:
        """One was submitted."""
        self.ids.append(number)
        self.keep()

    def keep(self, *, has_ended: bool = False) -> None:
        """Write them down, if that is not done."""
        if self._target is None:
            return
        with contextlib.suppress(
            ShardwriteError, OSError
        ):  # it has ended; or whoever works on it says what is wrong. Later again
            if not has_ended and self._note.is_kept(self.ids):
                return
            run = find_run(self._target)
            if run is not None:
                self._note.keep(run, self.ids[:], has_ended=has_ended)

    def look_whether_cancelled(self) -> bool:
        """Whether somebody has cancelled the work; from then on no job is submitted."""
        with contextlib.suppress(StoreError):  # whoever works on the run says what is wrong
            self.is_cancelled = self.is_cancelled or self._note.is_told_to_end
        return self.is_cancelled

    def abandon(self) -> None:
        """Cancel all without a look; for a process about to end."""
        self.keep(has_ended=True)
        cancel(self.ids, _LEAVE_SECONDS)

    def clear(self, tell: Tell) -> None:
        """Cancel what is still there."""
        try:
            cancel_left(lambda: Submitted(workers=tuple(self.ids)))
        except SubmitError as error:
            tell(
                f"cannot tell whether the workers' jobs are gone: {error}; they end by themselves in {DEATH_SECONDS} s"
            )
        self.keep(has_ended=True)


class _Watch(threading.Thread):
    """Says why there are no workers, has jobs that ended before they became one submitted again, and ends cancelled work."""

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
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Look from time to time."""
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
        """End cancelled work: no job more, no task more, and what is not ours fails for want of workers."""
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
            self._cluster.loop.add_callback(
                self._cluster.scale_down, lost
            )  # adaptive scaling asks for others
        if not self._cluster.scheduler.workers:
            self._say(self._why())

    def _say(self, text: str) -> None:
        """Tell what is new, and what is not from time to time."""
        if text != self._said[0] or clock.monotonic() > self._said[1] + _REPEAT_SECONDS:
            self._said = (text, clock.monotonic())
            self._tell(text)

    def _why(self) -> str:
        """What is known."""
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
            f"listens at {self._cluster.scheduler_address}, which the nodes must reach (networks here: {', '.join(networks[:8])})"
        )

    def _how_they_ended(self) -> str:
        """What SLURM says of jobs that it no longer has."""
        with contextlib.suppress(SubmitError):  # the message tells of it where squeue fails
            ended = [f"job {name} {state}" for name, state in endings(self._jobs.ids[-8:]).values()]
            if ended:
                return "; ".join(ended)
        return "SLURM has none of their jobs"

    def first_worker(self) -> None:
        """Wait for it.

        Raises
        ------
        ClusterError
            If it does not come, or the process is asked to stop before.
        SubmitError
            If no job was taken.
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
        """The error that says so, with what SLURM says now."""
        seconds = self._workers.patience_seconds if seconds is None else seconds
        with contextlib.suppress(SubmitError):  # what was known before stays
            self._found = queue(self._jobs.ids)
        message = f"{what} in {seconds:.0f} s: {self._why()}; run the same command again to go on"
        return ClusterError(message, waited_seconds=seconds, jobs=self._found)
