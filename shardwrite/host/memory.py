"""Memory that a run takes in this process, above what the process had when the run began.

Only anonymous memory counts on Linux (``RssAnon`` of ``/proc/self/status``): arrays, buffers and
Python objects. The system can drop pages of mapped files at any time, such as those of libraries or
of a memory map. So no limit needs room for them. Other systems do not tell anonymous memory apart.
There the growth of the peak of the resident set counts. It includes mapped pages, and it is 0 until
the run needs more than the process ever had before.

Tasks take samples while they hold most: when their source has been loaded, after each batch that
they encode, and when they commit. Nothing runs in the background.
"""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["memory_nbytes", "note_memory", "peak_memory_nbytes", "watch_memory"]

_STATUS = Path("/proc/self/status")
_PAUSE_SECONDS = 0.005  # least time between two samples of a process, which take about 50 µs each
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
    with contextlib.suppress(OSError), _STATUS.open("rb") as status:
        for line in status:
            if line.startswith(b"RssAnon:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def watch_memory(run: str, held_nbytes: int = 0) -> None:
    """Take the memory that this process has now as the baseline of a run.

    Parameters
    ----------
    run : str
        Name of the run.
    held_nbytes : int
        Bytes in memory that belong to the run already.
    """
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

    Parameters
    ----------
    run : str
        Name of the run.
    held_nbytes : int
        Bytes of the source that the task has in memory.
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
