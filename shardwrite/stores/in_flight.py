"""Requests that are on their way while the task that made them goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait


class InFlight:
    """A few requests at a time, each in a thread of its own.

    The answer of a service takes long compared with the work for a small shard. So a task does not
    wait for it, but goes on with the next shards.

    One thread uses it. An error of a request is raised by the next call of `begin` or `join`; only
    the first one is, and no request is begun after it.
    """

    def __init__(self, n_at_once: int) -> None:
        self._n_at_once = n_at_once
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: set[Future[None]] = set()
        self._error: BaseException | None = None

    def begin(self, request: Callable[[], None]) -> None:
        """Begin a request, as soon as there are fewer than `n_at_once` on their way."""
        while len(self._waiting) >= self._n_at_once:
            self._take(wait(self._waiting, return_when=FIRST_COMPLETED).done)
        self._take({one for one in self._waiting if one.done()})
        self._raise()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._n_at_once, thread_name_prefix="shardwrite-put")
        self._waiting.add(self._pool.submit(request))

    def join(self, *, quiet: bool = False) -> None:
        """Wait for all requests."""
        self._take(wait(self._waiting).done)
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        if not quiet:
            self._raise()

    def _take(self, done: set[Future[None]]) -> None:
        self._waiting -= done
        for one in done:
            self._error = self._error or one.exception()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
