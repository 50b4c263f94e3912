"""The engine that uses a `distributed` cluster."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dask
from dask.highlevelgraph import HighLevelGraph
from dask.utils import parse_timedelta

from shardwrite.config.table import CLUSTER_ATTEMPTS, value_of
from shardwrite.engines.local import Explain, OnResult, Stopped
from shardwrite.errors import ClusterLostError, IncompleteError, WorkersLostError
from shardwrite.host.resources import memory_limit_nbytes
from shardwrite.host.stopping import RUNS, is_draining, n_busy, tell

_POLL_SECONDS = 0.02
_QUIET_SECONDS = 60.0
"""Time without a result after which the cluster is asked whether it has workers at all."""


def new_client(scheduler: Any, **keywords: Any) -> Any:
    """Client that dask uses from now on. If it cannot be had, dask goes on with what it used.

    On its own, `distributed` leaves a client that could not start as the one to use. Whatever dask
    computes later in this process would then fail.
    """
    from distributed import Client

    used = dask.config.get("scheduler", None)
    try:
        return Client(scheduler, **keywords)
    except BaseException:
        dask.config.set(scheduler=used)
        raise


class ClusterEngine:
    """An engine that uses a `distributed` cluster."""

    kind = "distributed"
    shares_memory = False
    returns_through_parent = False
    gains_by_fusion = True

    def __init__(self, client: Any) -> None:
        self._client = client
        self._seen = self._look_for_workers()
        self.retried: list[Any] = []

    @property
    def n_processes(self) -> int:
        """See :attr:`Engine.n_processes`."""
        return len(self._workers)

    @property
    def n_threads(self) -> int:
        """See :attr:`Engine.n_threads`."""
        return max(int(worker["nthreads"]) for worker in self._workers)

    @property
    def memory_limit_nbytes(self) -> int:
        """See :attr:`Engine.memory_limit_nbytes`."""
        limits = [worker["memory_limit"] for worker in self._workers if worker["memory_limit"]]
        return min(limits) if limits else memory_limit_nbytes() // self.n_processes

    @property
    def _workers(self) -> Sequence[Mapping[str, Any]]:
        """What the scheduler knows of the workers. The first one is waited for.

        It is given a task meanwhile, since some clusters start workers only when there is one.
        """
        while not self._seen:
            name = f"shardwrite-first-worker-{uuid.uuid4().hex}"
            try:
                self.run(HighLevelGraph({name: {name: (int,)}}, {name: set()}), [name], _ignore)
            except Stopped:
                message = "this process was asked to stop before a worker has come"
                raise IncompleteError(message, missing=[]) from None
            self._seen = self._look_for_workers()
        return self._seen

    def _look_for_workers(self) -> Sequence[Mapping[str, Any]]:
        with _reaching(self._client):
            return list(self._client.scheduler_info(n_workers=-1)["workers"].values())

    def run(
        self,
        graph: HighLevelGraph,
        keys: Sequence[Any],
        on_result: OnResult,
        explain: Explain | None = None,
    ) -> None:
        """Compute keys, as :meth:`Engine.run` does.

        When a worker dies, dask counts that against all tasks that ran on it. Tasks that it gives
        up are therefore run again once the others are done. In the last attempt they run one by
        one, so that only a task that kills its workers can fail.

        A call that a task of the cluster makes gives its thread back meanwhile.
        """
        with _thread_given_back():
            self._run(graph, keys, on_result, explain)

    def _run(
        self,
        graph: HighLevelGraph,
        keys: Sequence[Any],
        on_result: OnResult,
        explain: Explain | None,
    ) -> None:
        """Compute keys, in several attempts."""
        n_attempts = value_of(CLUSTER_ATTEMPTS)
        left = self._run_once(graph, keys, on_result, explain)
        for attempt in range(1, n_attempts):
            self.retried += left
            portions = [[key] for key in left] if attempt == n_attempts - 1 else [left]
            left = [
                key
                for some in portions
                if some
                for key in self._run_once(graph, some, on_result, explain)
            ]
        if left:
            error = WorkersLostError(
                f"{len(left)} tasks were given up, because the workers that ran them died, "
                f"{n_attempts} times over; all others were done. Most often memory does not "
                "suffice: give workers more, or plan with a smaller limit, and run it again",
                n_tasks=len(left),
            )
            if explain is not None:
                error.add_note(explain(left))
            raise error

    def _run_once(
        self,
        graph: HighLevelGraph,
        keys: Sequence[Any],
        on_result: OnResult,
        explain: Explain | None,
    ) -> list[Any]:
        """Compute keys, and return those that dask gave up because their workers died."""
        from distributed import KilledWorker, as_completed
        from distributed.scheduler import NoValidWorkerError, NoWorkerError

        if is_draining():
            raise Stopped
        killed = []
        futures = self._client.get(graph.cull(set(keys)), list(keys), sync=False)
        keys_by_future = {future.key: key for future, key in zip(futures, keys, strict=True)}
        completed = as_completed(futures, with_results=True, raise_errors=False)
        look_at = time.monotonic() + _QUIET_SECONDS
        try:
            while not completed.is_empty():
                if is_draining():
                    raise Stopped
                if not completed.has_ready():
                    if time.monotonic() > look_at:
                        is_told = self._tell_if_alone()
                        look_at = math.inf if is_told else time.monotonic() + _QUIET_SECONDS
                    time.sleep(_POLL_SECONDS)
                    continue
                look_at = time.monotonic() + _QUIET_SECONDS
                future, value = next(completed)
                if future.status == "error" and isinstance(value, tuple):
                    _, error, trace = value
                    if isinstance(error, KilledWorker):
                        killed.append(keys_by_future[future.key])
                        future.release()  # so that dask accepts the same key again
                        continue
                    if isinstance(error, NoValidWorkerError | NoWorkerError):
                        raise ClusterLostError(
                            "there have been no workers for too long; run the same again"
                        ) from error
                    if explain is not None:
                        error.add_note(explain([keys_by_future[future.key]]))
                    raise error.with_traceback(trace)
                if isinstance(value, BaseException):
                    raise ClusterLostError(
                        "the source is made of results that this cluster does not have, or has "
                        "lost; persist them there, and write the source that is made of these"
                        if getattr(value, "reason", None) == "lost dependencies"
                        else "dask has cancelled tasks: its scheduler is gone, or was restarted; "
                        "run the same again"
                    ) from value
                on_result(keys_by_future[future.key], value)
                future.release()
        finally:
            if self._client.status == "running":  # else the scheduler is lost
                self._client.cancel([f for f in futures if not f.done()])
            if is_draining():
                # Tasks that workers have begun are waited for. Workers that die are not.
                with contextlib.suppress(OSError):  # the scheduler was lost during the call
                    while self._has_busy_workers():
                        time.sleep(_POLL_SECONDS)
        return killed

    def _tell_if_alone(self) -> bool:
        """Warn if the cluster has no workers; whether it has none.

        By default dask waits for workers for ever, and in silence.
        """
        with contextlib.suppress(OSError):  # the scheduler is lost, which is found out otherwise
            if (
                self._client.status == "running"
                and not self._client.scheduler_info(n_workers=1)["workers"]
            ):
                message = (
                    "The cluster has no workers, so nothing is written. The run goes on when "
                    "workers come. If none will come, interrupt it, and make the same call again "
                    "with a cluster that has some"
                )
                warnings.warn(message, stacklevel=2)
                tell(RUNS, logging.WARNING, message, run="")
                return True
        return False

    def _has_busy_workers(self) -> bool:
        is_reached = self._client.status == "running"
        return is_reached and any(self._client.run(n_busy, on_error="ignore").values())

    def on_every_worker(self, function: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
        """Call a function once in each worker process, and return the results by worker address.

        Workers that are lost meanwhile are left out, because others run their tasks.
        """
        from distributed.comm.core import CommClosedError

        with _reaching(self._client):
            results: Mapping[str, Any] = self._client.run(function, *args, on_error="return")
            errors = {
                name: value for name, value in results.items() if isinstance(value, Exception)
            }
            workers = self._client.scheduler_info(n_workers=-1)["workers"] if errors else {}
        for name, error in errors.items():
            if name in workers and not isinstance(error, CommClosedError):
                raise error
        return {name: value for name, value in results.items() if name not in errors}


def _ignore(key: object, value: object) -> None:
    """Do nothing with a result."""


@contextlib.contextmanager
def _reaching(client: Any) -> Iterator[None]:
    """Turn whatever dask raises for a scheduler that is gone into one error.

    - Raises ClusterLostError if the client has lost its scheduler, before the block or while it
      ran. dask itself would wait for it to come back.
    """
    lost = ClusterLostError(
        "the scheduler of the dask client is gone; close the client, connect to another cluster, "
        "and run the same again"
    )
    if _is_in_task():
        _await_start(client)
    if client.status != "running":
        raise lost
    try:
        yield
    except Exception as error:
        if client.status == "running" and not isinstance(error, OSError):
            raise
        raise lost from error


def _is_in_task() -> bool:
    """Whether this thread runs a task of a cluster."""
    from dask.context import thread_state

    return getattr(thread_state, "key", None) is not None


def _await_start(client: Any) -> None:
    """Wait for a client that is about to connect, at most as long as dask itself tries.

    Tasks of one worker share a client. The first one starts it, and others may see it meanwhile.
    """
    limit = parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"))
    end = time.monotonic() + limit
    while client.status in ("newly-created", "connecting") and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _thread_given_back() -> Iterator[None]:
    """Context in which a task of a cluster leaves its thread to other tasks.

    The caller only waits for other tasks. If all threads of the cluster waited in this way, none
    of these would ever run. dask's own `compute` does the same.
    """
    from distributed import rejoin, secede

    if not _is_in_task():
        yield
        return
    try:
        secede()
    except KeyError:  # it has left already, as in a `worker_client`
        yield
        return
    try:
        yield
    finally:
        rejoin()
