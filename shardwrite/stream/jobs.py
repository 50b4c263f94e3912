"""Threads that work for a stream, and the memory that it holds meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shardwrite.host.stopping import busy

__all__ = ["Jobs"]


class Jobs:
    """Jobs under way. Whatever one raises is raised to the next caller, and no other begins.

    Parameters
    ----------
    n_threads : int
        Threads.

    Attributes
    ----------
    changed : threading.Condition
        Held where what jobs share is looked at or changed; told of every change.
    held_nbytes, peak_nbytes : int
        Bytes that are held, and the most that ever were.
    """

    def __init__(self, n_threads: int) -> None:
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix="shardwrite-stream")
        self.changed = threading.Condition()
        self.held_nbytes = self.peak_nbytes = 0
        self._n_jobs = 0
        self._error: BaseException | None = None

    def check(self) -> None:
        """Raise what a job has raised."""
        if self._error is not None:
            raise self._error

    def submit(self, job: Callable[..., None], *arguments: Any) -> None:
        """Have a thread do something."""
        with self.changed:
            self._n_jobs += 1
        self._pool.submit(self._run, job, arguments)

    def _run(self, job: Callable[..., None], arguments: Sequence[Any]) -> None:
        try:
            with busy():
                if self._error is None:
                    job(*arguments)
        except BaseException as error:  # noqa: BLE001 (it is kept, and raised)
            with self.changed:
                self._error = self._error or error
        finally:
            with self.changed:
                self._n_jobs -= 1
                self.changed.notify_all()

    def idle(self) -> None:
        """Wait for all jobs."""
        with self.changed:
            self.changed.wait_for(lambda: self._n_jobs == 0)
        self.check()

    def wait(self) -> bool:
        """Wait for something to change; False at once where no job is under way."""
        with self.changed:
            is_busy = self._n_jobs > 0
            if is_busy:
                self.changed.wait()
        self.check()
        return is_busy

    def hold(self, nbytes: int) -> None:
        """Count memory that is held from now on, or with a negative number, no more."""
        with self.changed:
            self.held_nbytes += nbytes
            self.peak_nbytes = max(self.peak_nbytes, self.held_nbytes)
            self.changed.notify_all()

    def shutdown(self) -> None:
        """End the threads, after what is under way."""
        self._pool.shutdown()
