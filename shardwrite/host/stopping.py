"""Whether this process was asked to stop, what it is in the middle of, and what has come of it so far.

Draining begins no new shard and finishes those in flight. The library never asks itself: a program's signal handlers do.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

__all__ = [
    "before_leaving",
    "busy",
    "is_draining",
    "n_busy",
    "n_committed",
    "note_committed",
    "on_leaving",
    "request_drain",
    "reset_drain",
]

_drain = threading.Event()
_lock = threading.Lock()
_n_busy = 0
_leaving: list[Callable[[], None]] = []
_n_committed = 0


def request_drain() -> None:
    """Begin no new shard from now on."""
    _drain.set()


def reset_drain() -> None:
    """Take the request back."""
    _drain.clear()


def is_draining() -> bool:
    """Whether a drain was requested."""
    return _drain.is_set()


@contextlib.contextmanager
def on_leaving(action: Callable[[], None]) -> Iterator[None]:
    """Have something done if a signal makes the process leave at once while the block runs; it must take seconds, and no locks."""
    _leaving.append(action)
    try:
        yield
    finally:
        _leaving.remove(action)


def before_leaving() -> list[Callable[[], None]]:
    """What is to be done before the process leaves at once."""
    return list(_leaving)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Count a task that encodes or commits while it does."""
    global _n_busy
    with _lock:
        _n_busy += 1
    try:
        yield
    finally:
        with _lock:
            _n_busy -= 1


def n_busy() -> int:
    """Tasks of this process that encode or commit."""
    return _n_busy


def note_committed(n_shards: int) -> None:
    """Count shards that tasks, here or on workers of this process, have committed."""
    global _n_committed
    with _lock:
        _n_committed += n_shards


def n_committed() -> int:
    """Shards that were committed for this process since it began."""
    return _n_committed
