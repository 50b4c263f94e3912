"""The protocol of engines, and what a run asks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dask.highlevelgraph import HighLevelGraph

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
