"""Threads that work for a stream, and the count of the memory that it holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shardwrite.host.stopping import busy


class Jobs:
    """Thread pool of a stream.

    A job is a callable that is submitted to the pool. After a job has raised an exception, no
    further job starts, and the methods that check for errors raise the exception.

    - `changed`: lock of the state that jobs share. It is notified when a job ends, and when the
      held memory changes.
    """

    def __init__(self, n_threads: int) -> None:
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix="shardwrite-stream")
        self.changed = threading.Condition()
        self.held_nbytes = self.peak_nbytes = 0
        self._n_jobs = 0
        self._error: BaseException | None = None

    def check(self) -> None:
        """Raise the first exception of a job, if there was one."""
        if self._error is not None:
            raise self._error

    def fail(self, error: BaseException) -> None:
        """Keep an exception, as if a job had raised it."""
        with self.changed:
            self._error = self._error or error

    def submit(self, job: Callable[..., None], *arguments: Any) -> None:
        """Submit a callable to the pool.

        - Raises RuntimeError if the system allows no thread for it.
        """
        with self.changed:
            self._n_jobs += 1
        turn = threading.Lock()  # is taken by who counts the job as ended
        try:
            self._pool.submit(self._run, turn, job, arguments)
        except BaseException as error:
            self.fail(error)
            # The job is in the queue of the pool, where a thread may take it, if there is one.
            self._end(turn)
            raise

    def _run(
        self, turn: threading.Lock, job: Callable[..., None], arguments: Sequence[Any]
    ) -> None:
        try:
            with busy():
                if self._error is None:
                    job(*arguments)
        except BaseException as error:  # noqa: BLE001 (kept, and raised later)
            self.fail(error)
        finally:
            self._end(turn)

    def _end(self, turn: threading.Lock) -> None:
        """Count a job as ended, once."""
        if turn.acquire(blocking=False):
            with self.changed:
                self._n_jobs -= 1
                self.changed.notify_all()

    def idle(self) -> None:
        """Wait for the end of all jobs, and raise the exception of a job."""
        with self.changed:
            self.changed.wait_for(lambda: self._n_jobs == 0)
        self.check()

    def wait(self) -> bool:
        """Wait until `changed` is notified, and return True.

        If no job is submitted or running, return False at once. An exception of a job is raised.
        """
        with self.changed:
            is_busy = self._n_jobs > 0
            if is_busy:
                self.changed.wait()
        self.check()
        return is_busy

    def hold(self, nbytes: int) -> None:
        """Add to the count of held memory; a negative number subtracts from it."""
        with self.changed:
            self.held_nbytes += nbytes
            self.peak_nbytes = max(self.peak_nbytes, self.held_nbytes)
            self.changed.notify_all()

    def shutdown(self) -> None:
        """End the threads after all submitted jobs."""
        self._pool.shutdown()
