"""State of this process: whether it is to stop, what it tells in the log, and turns of its threads.

*Stopping.* A process that drains begins no new shard and finishes those in flight. A drain is
requested by the signal handlers of programs, and when a run with elastic workers is cancelled.

*The log.* Each record has the attributes ``run``, the directory of the run, and ``shard``, the key
of a shard; they are empty where there is none. Credentials are removed. The package installs no
handler but `logging.NullHandler`, so a program sees records only if it configures logging.

*Turns.* Each short file operation releases the interpreter's lock and then waits to take it again.
Two threads that do so at the same time spend longer on passing the lock on than on the operations.
So the threads take turns. A turn lasts as long as the operations take if nothing waits for storage.
A thread that needs longer waits for a disk or a network, and threads should wait for these
together. So the next turn begins after this time, even if the last one has not ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType

from shardwrite.errors import printable, redacted

_drain = threading.Event()

_lock = threading.Lock()

_n_busy = 0

_leaving: list[Callable[[], None]] = []

_n_committed = 0


# ---- Stopping


def request_drain() -> None:
    """Request a drain: no new shard is begun from now on."""
    _drain.set()


def reset_drain() -> None:
    """Withdraw the request for a drain."""
    _drain.clear()


def is_draining() -> bool:
    """Whether a drain was requested."""
    return _drain.is_set()


@contextlib.contextmanager
def on_leaving(action: Callable[[], None]) -> Iterator[None]:
    """Context in which `action` is called if a signal makes the process exit at once.

    The action must end within seconds, and must not wait for locks without a limit.
    """
    _leaving.append(action)
    try:
        yield
    finally:
        _leaving.remove(action)


def before_leaving() -> list[Callable[[], None]]:
    """Actions to call before the process exits at once, the latest first.

    So what a task still writes for a run is there when the run leaves.
    """
    return _leaving[::-1]


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Context in which a task that encodes or commits is counted as running."""
    global _n_busy
    with _lock:
        _n_busy += 1
    try:
        yield
    finally:
        with _lock:
            _n_busy -= 1


def n_busy() -> int:
    """Number of tasks of this process that are encoding or committing."""
    return _n_busy


def note_committed(n_shards: int) -> None:
    """Add shards that tasks of this process or of its workers have committed to the count."""
    global _n_committed
    with _lock:
        _n_committed += n_shards


def n_committed() -> int:
    """Number of shards committed by this process and its workers since it started."""
    return _n_committed


def has_ended(thread: threading.Thread) -> bool:
    """Wait until a thread has ended that was told to end.

    Return False if the interpreter itself ends. Its daemon threads are gone then, with the locks
    that they hold, and some versions of Python would wait for them for ever.
    """
    if sys.is_finalizing():
        return False
    if thread.is_alive():
        thread.join()
    return True


# ---- The log


RUNS = logging.getLogger("shardwrite.runs")
"""Runs that begin, are joined, go on, end or fail, and their waves."""

SHARDS = logging.getLogger("shardwrite.shards")
"""Commits that are tried again; at the level DEBUG, each shard."""

TAKEOVERS = logging.getLogger("shardwrite.takeovers")
"""What is done about processes that have died: their claims, changes and runs."""

logging.getLogger("shardwrite").addHandler(logging.NullHandler())


def is_told(logger: logging.Logger, level: int) -> bool:
    """Whether records of a level go anywhere, so that it is worth to make them."""
    return logger.isEnabledFor(level)


def tell(
    logger: logging.Logger,
    level: int,
    message: str,
    *,
    run: str | os.PathLike[str],
    shard: str = "",
) -> None:
    """Make a record.

    - `message`: one sentence. Credentials in URLs are removed.
    """
    if logger.isEnabledFor(level):
        facts = {"run": redacted(os.fspath(run)), "shard": redacted(shard)}
        logger.log(level, "%s", printable(redacted(message)), extra=facts, stacklevel=2)


# ---- Turns of threads at short file operations


SMALL_NBYTES = 64 * 2**10
"""Largest decoded size of a small shard, in bytes.

Copying the bytes of a small shard takes less time than opening and renaming its file.
"""

_changed = threading.Condition()

_holder: Turn | None = None

_ends = 0.0


class Turn:
    """Turns of one thread, as a context.

    The context begins without a turn. A turn that is still held at its end is given back.
    """

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.give()

    def take(self, seconds: float) -> None:
        """Take a turn of `seconds` from now.

        The call waits until another thread's turn has been given back or its time is over. A thread
        that has the turn keeps it and does not wait.
        """
        global _holder, _ends
        with _changed:
            while _holder not in (None, self) and (left := _ends - time.monotonic()) > 0:
                _changed.wait(left)
            _holder, _ends = self, time.monotonic() + seconds

    def give(self) -> None:
        """Give the turn back, if another thread has not taken it."""
        global _holder
        with _changed:
            if _holder is self:
                _holder = None
                _changed.notify()
