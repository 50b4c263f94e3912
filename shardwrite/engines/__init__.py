"""Engines: who runs a graph. They know nothing of shards.

The engine is chosen as dask chooses: the active `distributed` client, else the configured scheduler, else threads.
Local schedulers and the cluster differ in how results come back one by one; that is all that is here.
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
_ATTEMPTS = 3  # at tasks whose workers die


class Stopped(Exception):  # noqa: N818 (it is no error: it was asked for)
    """A graph was left unfinished because this process is draining; what was in flight has ended."""


class Engine(Protocol):
    """Runs graphs."""

    kind: str
    """``threads``, ``processes``, ``sync`` or ``distributed``."""
    n_processes: int
    n_threads: int
    """Threads in each process."""
    memory_limit_nbytes: int
    """Memory of each process."""
    retried: list[Any]
    """Keys that were computed again because workers died, each as often as that was done."""

    def run(
        self,
        graph: HighLevelGraph,
        keys: Sequence[Any],
        on_result: OnResult,
        explain: Explain | None = None,
    ) -> None:
        """Compute `keys` and call `on_result` with each key and value, in the caller's thread or another, one at a time.

        To what a task raises a note is added: what `explain` says of the tasks that ran then.

        Raises
        ------
        Stopped
            If this process drains before all is done.
        WorkersLostError
            If workers die, again and again, of some of the tasks; all others have been computed then.
        ClusterLostError
            If the scheduler is lost, or all workers are for too long.
        """

    def on_every_worker(self, function: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
        """Call a function in each worker process; results by worker."""


class LocalEngine:
    """One of dask's own schedulers on this machine.

    Parameters
    ----------
    kind : {"threads", "processes", "sync"}
        Which.
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
        """See :meth:`Engine.run`; of several threads' tasks, nothing tells which one raised."""
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
        """Threads of a run's own, all of which have ended when the run has, however it ends."""
        if self.kind != "threads":
            yield {}
            return
        pool = ThreadPoolExecutor(self.n_threads)
        try:
            yield {"pool": pool}
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def on_every_worker(self, function: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
        """See :meth:`Engine.on_every_worker`; the workers are on this machine and see what it sees."""
        return {"this process": function(*args)}


class ClusterEngine:
    """A `distributed` client.

    Parameters
    ----------
    client : distributed.Client
        Connected.
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
        """See :meth:`Engine.run`.

        Dask blames whatever runs where workers die. So what it has given up comes again once the others are done, and at last each
        by itself, so that nothing but what kills a worker can be blamed.
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
                f"{len(left)} tasks were given up, because the workers that ran them died, {_ATTEMPTS} times over; all others were "
                "done. Most often memory does not suffice: give workers more, or plan with a smaller limit, and run it again",
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
        """Compute `keys`; those are given back that dask has given up because their workers died."""
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
                        future.release()  # so that dask forgets that it has given it up
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
                        "dask has cancelled tasks: its scheduler is gone, or was restarted; run the same again"
                    ) from value
                on_result(keys_by_future[future.key], value)
                future.release()
        finally:
            if self._client.status == "running":  # a lost scheduler can be told nothing
                self._client.cancel([f for f in futures if not f.done()])
            if is_draining():
                self._wait_for_tasks()
        return killed

    def _wait_for_tasks(self) -> None:
        """Wait for what workers have begun; a worker that dies, or whose scheduler does, is not waited for."""
        with contextlib.suppress(OSError):  # the scheduler was lost during the call
            while self._client.status == "running" and any(
                self._client.run(n_busy, on_error="ignore").values()
            ):
                time.sleep(_POLL_SECONDS)

    def on_every_worker(self, function: Callable[..., Any], *args: Any) -> Mapping[str, Any]:
        """See :meth:`Engine.on_every_worker`."""
        results: Mapping[str, Any] = self._client.run(function, *args)
        return results


def active_engine() -> Engine:
    """The engine that dask would use now."""
    get = _scheduler()
    owner = getattr(get, "__self__", None)
    if owner is not None and hasattr(owner, "scheduler_info"):
        return ClusterEngine(owner)
    kinds = {dask.multiprocessing.get: "processes", get_sync: "sync"}
    return LocalEngine(kinds.get(get, "threads"))


def _scheduler() -> Any:
    """What dask would compute with; None stands for its default.

    Dask imports `distributed` to ask it for a client. Where nobody has imported it, there is none, and it stays so.
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
    """Threads of this process, whatever scheduler is active."""
    with dask.config.set(scheduler="threads"):
        yield LocalEngine("threads")
