"""Cache of open files, shared by all threads of a process and all copies of a source.

Dask unpickles a source once for each task. A handle in the source would be opened as often.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    ready: bool = False
    value: Any = None


class HandleCache:
    """Least-recently-used cache of handles.

    A handle that leaves the cache is not closed here, because a thread may be reading from it. It
    closes when its last reader releases it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inherited: list[object] = []
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        os.register_at_fork(after_in_child=self._after_fork)

    def get(self, key: str, opener: Callable[[], Any]) -> Any:
        """Return the handle of `key`, and call `opener` if the cache has none."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._limit:
                self._entries.popitem(last=False)
        # Opening may be slow (a compressed file is read whole), so only readers of this file wait.
        with entry.lock:
            if not entry.ready:
                entry.value = opener()
                entry.ready = True
            return entry.value

    def _after_fork(self) -> None:
        # A child shares file positions with its parent, so it opens its own files. The inherited
        # handles are kept alive: closing one here could wait forever for a lock of a library that
        # no thread of the child can release.
        self._inherited.append(self._entries)
        self._lock = threading.Lock()
        self._entries = OrderedDict()


FILES = HandleCache(limit=64)
WHOLE = HandleCache(limit=2)  # whole arrays in memory: few, but two sources can be read in turn
