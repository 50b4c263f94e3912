"""Deadlines of processes that hold the lease of a run in a bucket.

Such a process must know by itself when its lease may have run out: another process then goes on in
its place. The deadline stands in its tokens, at which every task looks before it commits. The clock
is that of the host. It goes on while the host sleeps, and nobody sets it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from shardwrite.stores.descriptors import opened

_NBYTES = 32
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_deadlines: dict[str, float] = {}


def now() -> float:
    """Seconds since this host was started."""
    return time.clock_gettime(_CLOCK)


def deadline_text(run_path: Path) -> bytes:
    """Content of a new token of a run; empty if the run needs no deadline."""
    for above in run_path.parents:
        if str(above) in _deadlines:
            return _text(_deadlines[str(above)])
    return b""


def set_deadline(beside: Path, deadline: float, tokens: list[Path]) -> None:
    """Put off the deadline of all runs in a directory.

    - `deadline`: time in seconds, by the clock of `now`.
    """
    _deadlines[str(beside)] = deadline
    for token in tokens:
        with contextlib.suppress(FileNotFoundError):  # its run has ended
            fd = opened(token, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.pwrite(fd, _text(deadline), 0)
            finally:
                os.close(fd)


def forget_deadline(beside: Path) -> None:
    """Forget the deadline of the runs in a directory."""
    _deadlines.pop(str(beside), None)


def is_past(token: int) -> bool:
    """Whether the deadline in a token has passed."""
    text = os.read(token, _NBYTES)
    return bool(text) and now() > float(text)


def _text(deadline: float) -> bytes:
    return f"{deadline:<{_NBYTES}.3f}".encode()
