"""Memory that a run takes in this process, above what the process had when the run began.

Only anonymous memory counts on Linux, which ``/proc/self/status`` calls ``RssAnon``: arrays,
buffers and Python objects. The system can drop pages of mapped files at any time, such as those of
libraries or of a memory map. So no limit needs room for them. Other systems do not tell anonymous
memory apart. There the growth of the peak of the resident set counts. It includes mapped pages, and
it is 0 until the run needs more than the process ever had before.

Tasks take samples while they hold most: when their source has been loaded, after each batch that
they encode, and when they commit. Nothing runs in the background.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from dataclasses import dataclass

_STATM = "/proc/self/statm"  # the system writes it in a fraction of the time of /proc/self/status
_PAGE_NBYTES = resource.getpagesize()
_PAUSE_SECONDS = 0.005  # least time between two samples of a process, which take about 7 µs each
_MOST_RUNS = 64  # runs that are remembered; older ones have ended


@dataclass(slots=True)
class _Watched:
    baseline: int
    peak: int


_watched: dict[str, _Watched] = {}
_lock = threading.Lock()
_sampled = 0.0


def memory_nbytes() -> int:
    """Anonymous resident memory of this process in bytes; on other systems see this module."""
    try:
        _, resident, mapped, *_ = _pages()
    except OSError:
        return _most_resident_nbytes()
    return (resident - mapped) * _PAGE_NBYTES


def _pages() -> list[int]:
    """Pages of this process by kind. Threads wait for the lock of Python after each system call."""
    file = os.open(_STATM, os.O_RDONLY)
    try:
        return [*map(int, os.read(file, 256).split())]
    finally:
        os.close(file)


def _most_resident_nbytes() -> int:
    """Peak of the resident set of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def watch_memory(run: str, held_nbytes: int = 0) -> None:
    """Take the memory that this process has now as the baseline of a run."""
    now = memory_nbytes()
    with _lock:
        _watched.pop(run, None)
        while len(_watched) >= _MOST_RUNS:
            del _watched[next(iter(_watched))]
        _watched[run] = _Watched(max(0, now - held_nbytes), now)


def note_memory(run: str, held_nbytes: int = 0) -> None:
    """Take a sample for a run, unless one was taken a moment ago.

    If the process does not know the run, as one that was started later, its baseline is the memory
    without the bytes that the task holds.
    """
    global _sampled
    if run not in _watched:
        watch_memory(run, held_nbytes)
        return
    now = time.monotonic()
    if now - _sampled < _PAUSE_SECONDS:
        return
    _sampled = now
    _enter(memory_nbytes())


def peak_memory_nbytes(run: str) -> int:
    """Peak of the memory of a run in this process so far, in bytes above its baseline."""
    if run not in _watched:
        watch_memory(run)
    _enter(memory_nbytes())
    with _lock:
        found = _watched.get(run)
        return 0 if found is None else found.peak - found.baseline


def _enter(nbytes: int) -> None:
    """Enter a sample for all runs, as they share the process."""
    with _lock:
        for one in _watched.values():
            one.peak = max(one.peak, nbytes)
