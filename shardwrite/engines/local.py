"""Engines, which run task graphs: their protocol, and the one of dask's local schedulers.

Each engine hands results back one by one, as they are computed. This one runs tasks in threads, in
processes, or one after the other.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import dask
import dask.multiprocessing
import dask.threaded
from dask.callbacks import local_callbacks
from dask.highlevelgraph import HighLevelGraph
from dask.local import get_sync

from shardwrite.errors import SpecError
from shardwrite.host.resources import memory_limit_nbytes, n_cores
from shardwrite.host.stopping import is_draining

# ---- The protocol


OnResult = Callable[[Any, Any], None]

Explain = Callable[[Sequence[Any]], str]


class Stopped(Exception):  # noqa: N818 (it was asked for, so it is not an error)
    """A graph was left unfinished because this process is draining.

    The tasks that were running have ended.
    """


class Engine(Protocol):
    """Protocol of an engine that runs task graphs.

    Planner and graph builder adapt to an engine by its flags. Its `kind` is for people only.
    """

    kind: str
    """Name of the engine in messages."""
    shares_memory: bool
    """Whether all tasks run in this process, so that they take their inputs without a copy."""
    returns_through_parent: bool
    """Whether the result of each task is copied into this process, even if another task needs it.

    If so, encoded units go through part files.
    """
    gains_by_fusion: bool
    """Whether a graph of fewer, larger tasks runs faster."""
    retried: list[Any]
    """Keys that were computed again because workers died, listed once for each new attempt."""

    @property
    def n_processes(self) -> int:
        """Number of processes that run tasks."""

    @property
    def n_threads(self) -> int:
        """Number of threads in each process."""

    @property
    def memory_limit_nbytes(self) -> int:
        """Memory limit of each process, in bytes."""

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


# ---- The engine


class LocalEngine:
    """An engine that uses one of dask's local schedulers.

    - `kind`: kind of the scheduler.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.shares_memory = kind != "processes"
        self.returns_through_parent = kind == "processes"
        # dask fuses tasks for its processes itself, and one thread has no scheduler to spare.
        self.gains_by_fusion = kind == "threads"
        n_workers = _n_workers()
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
            # dask has one set of callbacks for all threads of a process, and the first run to begin
            # takes them all. So ours are given to our run only, beside those of the user.
            with local_callbacks() as others, self._pool() as pool:
                ours = (None, None, started, finished, None)
                self._get(graph.cull(set(keys)), list(keys), callbacks={*others, ours}, **pool)
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


def _n_workers() -> int:
    """Number of threads or processes in the configuration of dask, or else the number of cores.

    - Raises SpecError if the configuration holds no such number.
    """
    configured = dask.config.get("num_workers", None)
    if not configured:
        return n_cores()
    try:
        number = operator.index(int(configured) if isinstance(configured, str) else configured)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise SpecError(
            "is no number of threads or processes, in the configuration of dask",
            field="num_workers",
            value=configured,
            remedy="give 1 or more, or None for one for each core",
        )
    return number
