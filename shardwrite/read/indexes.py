"""Indexes of shards that this process has read, kept for the next read.

Each belongs to one state of one object (`ObjectReader.identity`). It is used only while the object
is opened in that state, and the storage is asked for that at least once. Where a store cannot tell
states apart, nothing is kept. Arrays are pickled without what is kept.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.config.table import INDEX_CACHE, value_of
from shardwrite.encode.reader import LoadedIndex

_ENTRY_NBYTES = 512  # of an entry, beside its table


@dataclass(frozen=True, slots=True)
class KeptIndex:
    """The index of a shard in one state."""

    identity: Any
    loaded: LoadedIndex

    @property
    def nbytes(self) -> int:
        """Memory that it takes: a table, and a flag for each of its rows."""
        table = self.loaded.index.table
        return _ENTRY_NBYTES + table.nbytes + len(table)


class IndexCache:
    """Indexes by the token of a store and the key of a shard, up to a number of bytes in all.

    The number is the setting ``shardwrite.read.index-cache``. The indexes that were not used for
    the longest time are dropped first.
    """

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Begin anew in a child: another thread of the parent may have the lock."""
        self._kept: OrderedDict[tuple[str, str], KeptIndex] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def find(self, name: tuple[str, str]) -> KeptIndex | None:
        """The index that is kept of a shard."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None:
                self._kept.move_to_end(name)
            return kept

    def keep(self, name: tuple[str, str], kept: KeptIndex) -> None:
        """Keep the index of a shard, if it fits."""
        most = value_of(INDEX_CACHE)
        with self._lock:
            self._drop(name)
            if kept.nbytes <= most:
                self._kept[name] = kept
                self.nbytes += kept.nbytes
            while self.nbytes > most:
                self._drop(next(iter(self._kept)))

    def drop(self, name: tuple[str, str]) -> None:
        """Drop the index of a shard, which is another one now, or is damaged."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: tuple[str, str]) -> None:
        dropped = self._kept.pop(name, None)
        if dropped is not None:
            self.nbytes -= dropped.nbytes


INDEXES = IndexCache()
"""Those of this process."""

os.register_at_fork(after_in_child=INDEXES.after_fork)
