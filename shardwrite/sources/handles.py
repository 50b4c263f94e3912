"""Open files of this process, shared by all its threads and by all copies of a source.

Dask unpickles a source once for each task, so a handle kept in the source would be opened as often.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FILES", "WHOLE", "HandleCache"]


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    ready: bool = False
    value: Any = None


class HandleCache:
    """Least-recently-used cache of handles.

    A handle that falls out is not closed here, because a thread may be reading from it; it closes when
    the last reader lets go of it.

    Parameters
    ----------
    limit : int
        How many handles to keep.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inherited: list[object] = []
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        os.register_at_fork(after_in_child=self._after_fork)

    def get(self, key: str, opener: Callable[[], Any]) -> Any:
        """The handle of `key`, opened by `opener` if this process has none yet."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._limit:
                self._entries.popitem(last=False)
        # opening may take long (a compressed file is read whole), so only those who want this file wait
        with entry.lock:
            if not entry.ready:
                entry.value = opener()
                entry.ready = True
            return entry.value

    def _after_fork(self) -> None:
        # A child shares file positions with its parent, so it opens its own files. What it inherited is
        # kept alive: closing it here could wait for a library's lock that no thread of the child holds.
        self._inherited.append(self._entries)
        self._lock = threading.Lock()
        self._entries = OrderedDict()


FILES = HandleCache(limit=64)
WHOLE = HandleCache(
    limit=2
)  # whole arrays in memory, so as few as still let two sources be read in turn
