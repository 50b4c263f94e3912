"""Engines, which run task graphs. They know nothing of shards.

The engine is chosen as dask chooses: the active `distributed` client, else the configured
scheduler, else threads. Each engine hands results back one by one, as they are computed.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import dask
import dask.multiprocessing
import dask.threaded
from dask.base import get_scheduler, named_schedulers
from dask.callbacks import Callback
from dask.highlevelgraph import HighLevelGraph
from dask.local import get_sync

from shardwrite.errors import ClusterLostError, WorkersLostError
from shardwrite.host.resources import memory_limit_nbytes, n_cores
from shardwrite.host.stopping import is_draining, n_busy

__all__ = ["ClusterEngine", "Engine", "LocalEngine", "Stopped", "active_engine", "local_threads"]

OnResult = Callable[[Any, Any], None]
Explain = Callable[[Sequence[Any]], str]
_POLL_SECONDS = 0.02
_ATTEMPTS = 3  # attempts at a task whose workers die


class Stopped(Exception):  # noqa: N818 (it was asked for, so it is not an error)
    """A graph was left unfinished because this process is draining.

    The tasks that were running have ended.
    """


class Engine(Protocol):
    """Protocol of an engine that runs task graphs."""

    kind: str
    """``threads``, ``processes``, ``sync`` or ``distributed``."""
    n_processes: int
    """Number of processes that run tasks."""
    n_threads: int
    """Number of threads in each process."""
    memory_limit_nbytes: int
    """Memory limit of each process, in bytes."""
    retried: list[Any]
    """Keys that were computed again because workers died, listed once for each new attempt."""

    def run(
        self,
        graph: HighLevelGraph,
        keys: Sequence[Any],
        on_result: OnResult,
        explain: Explain | None = None,
    ) -> None:
        """Compute the values of some keys of a graph.

        An error that a task raises is raised here, with a note from `explain`.

        Parameters
        ----------
        graph : HighLevelGraph
            The graph. Tasks that `keys` do not need are not run.
        keys : sequence
            Keys to compute.
        on_result : callable
            Called with each key and its value, one at a time, in the caller's thread or another.
        explain : callable, optional
            Called with the keys of the tasks that may have caused an error. It returns the text of
            the note.

        Raises
        ------
        Stopped
            If this process starts to drain before all keys are computed.
        WorkersLostError
            If workers die each time that they run some of the tasks. All other keys have been
            computed then.
        ClusterLostError
            If the scheduler is lost, or there are no workers for too long.
        """

    def on_every_worker(self, function: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
        """Call a function once in each worker process, and return the results by worker name."""


class LocalEngine:
    """An engine that uses one of dask's local schedulers.

    Parameters
    ----------
    kind : {"threads", "processes", "sync"}
        Kind of the scheduler.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        n_workers = int(dask.config.get("num_workers", None) or n_cores())
        self.n_processes = n_workers if kind == "processes" else 1
        self.n_threads = n_workers if kind == "threads" else 1
        self.memory_limit_nbytes = memory_limit_nbytes() // self.n_processes
        self.retried: list[Any] = []
        self._get: Any = {
            "threads": dask.threaded.get,
            "processes": dask.multiprocessing.get,
            "sync": get_sync,
        }[kind]

    def run(
        self,
        graph: HighLevelGraph,
        keys: Sequence[Any],
        on_result: OnResult,
        explain: Explain | None = None,
    ) -> None:
        """Compute keys, as :meth:`Engine.run` does.

        If several tasks run when one raises, `explain` is called with all of them, because dask
        does not tell which one it was.
        """
        wanted, running = set(keys), set()

        def started(key: Any, *_: Any) -> None:
            running.add(key)

        def finished(key: Any, value: Any, *_: Any) -> None:
            running.discard(key)
            if key in wanted:
                wanted.discard(key)
                on_result(key, value)
            if wanted and is_draining():
                raise Stopped

        if is_draining():
            raise Stopped
        try:
            with Callback(pretask=started, posttask=finished), self._pool() as pool:
                self._get(graph.cull(set(keys)), list(keys), **pool)
        except Stopped:
            raise
        except Exception as error:
            if explain is not None:
                error.add_note(explain(sorted(running, key=str)))
            raise

    @contextlib.contextmanager
    def _pool(self) -> Iterator[dict[str, Any]]:
        """Thread pool for one run, as a keyword of dask; empty for other schedulers.

        All of its threads have ended at the end of the block, even after an error.
        """
        if self.kind != "threads":
            yield {}
            return
        pool = ThreadPoolExecutor(self.n_threads)
        try:
            yield {"pool": pool}
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def on_every_worker(self, function: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
        """Call a function once, in this process.

        All workers are on this machine, and have the same view of its files.
        """
        return {"this process": function(*args)}


class ClusterEngine:
    """An engine that uses a `distributed` cluster.

    Parameters
    ----------
    client : distributed.Client
        A connected client.
    """

    kind = "distributed"

    def __init__(self, client: Any) -> None:
        self._client = client
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        self.n_processes = max(1, len(workers))
        self.n_threads = max((w["nthreads"] for w in workers), default=1)
        limits = [w["memory_limit"] for w in workers if w["memory_limit"]]
        self.memory_limit_nbytes = min(limits, default=memory_limit_nbytes() // self.n_processes)
        self.retried: list[Any] = []

    def run(
        self,
        graph: HighLevelGraph,
        keys: Sequence[Any],
        on_result: OnResult,
        explain: Explain | None = None,
    ) -> None:
        """Compute keys, as :meth:`Engine.run` does.

        When a worker dies, dask counts that against all tasks that ran on it. Tasks that it gives
        up are therefore run again once the others are done, and in the last attempt one by one, so
        that only a task that kills its workers can fail.
        """
        left = self._run_once(graph, keys, on_result, explain)
        for attempt in range(1, _ATTEMPTS):
            self.retried += left
            portions = [[key] for key in left] if attempt == _ATTEMPTS - 1 else [left]
            left = [
                key
                for some in portions
                if some
                for key in self._run_once(graph, some, on_result, explain)
            ]
        if left:
            error = WorkersLostError(
                f"{len(left)} tasks were given up, because the workers that ran them died, "
                f"{_ATTEMPTS} times over; all others were done. Most often memory does not "
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
        try:
            while not completed.is_empty():
                if is_draining():
                    raise Stopped
                if not completed.has_ready():
                    time.sleep(_POLL_SECONDS)
                    continue
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
                        "dask has cancelled tasks: its scheduler is gone, or was restarted; "
                        "run the same again"
                    ) from value
                on_result(keys_by_future[future.key], value)
                future.release()
        finally:
            if self._client.status == "running":  # else the scheduler is lost
                self._client.cancel([f for f in futures if not f.done()])
            if is_draining():
                self._wait_for_tasks()
        return killed

    def _wait_for_tasks(self) -> None:
        """Wait until workers have finished the tasks that they have begun.

        Workers that die are not waited for. If the scheduler is lost, none is.
        """
        with contextlib.suppress(OSError):  # the scheduler was lost during the call
            while self._client.status == "running" and any(
                self._client.run(n_busy, on_error="ignore").values()
            ):
                time.sleep(_POLL_SECONDS)

    def on_every_worker(self, function: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
        """Call a function once in each worker process, and return the results by worker address."""
        results: Mapping[str, Any] = self._client.run(function, *args)
        return results


def active_engine() -> Engine:
    """Engine for the scheduler that dask would use now."""
    get = _scheduler()
    owner = getattr(get, "__self__", None)
    if owner is not None and hasattr(owner, "scheduler_info"):
        return ClusterEngine(owner)
    kinds = {dask.multiprocessing.get: "processes", get_sync: "sync"}
    return LocalEngine(kinds.get(get, "threads"))


def _scheduler() -> Any:
    """Function that dask would compute with; None stands for dask's default.

    Dask imports `distributed` to look for a client. If nothing has imported it yet, there is no
    client, and the import is avoided.
    """
    if "distributed" not in sys.modules:
        chosen = dask.config.get("scheduler", None)
        if isinstance(chosen, str) and chosen.lower() in named_schedulers:
            return named_schedulers[chosen.lower()]
        if not chosen and not dask.config.get("get", None):
            return None
    return get_scheduler()


@contextlib.contextmanager
def local_threads() -> Iterator[Engine]:
    """Engine that uses threads of this process, whichever scheduler is active.

    While the block runs, threads are dask's scheduler.
    """
    with dask.config.set(scheduler="threads"):
        yield LocalEngine("threads")
