"""State for stopping this process: drain requests, running tasks and committed shards.

A process that drains begins no new shard and finishes those in flight. A drain is requested by the
signal handlers of programs, and when a run with elastic workers is cancelled.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

_drain = threading.Event()
_lock = threading.Lock()
_n_busy = 0
_leaving: list[Callable[[], None]] = []
_n_committed = 0


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

    The action must end within seconds, and must not take locks.
    """
    _leaving.append(action)
    try:
        yield
    finally:
        _leaving.remove(action)


def before_leaving() -> list[Callable[[], None]]:
    """Actions to call before the process exits at once, in the order of their registration."""
    return list(_leaving)


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
