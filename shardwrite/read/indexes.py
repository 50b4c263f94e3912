"""Indexes of shards and decoded inner chunks that this process has read, kept for the next read.

Each belongs to one state of one object (`ObjectReader.identity`). It is used only while the object
is opened in that state, and the storage is asked for that at least once. Where a store cannot tell
states apart, nothing is kept. Arrays are pickled without what is kept.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.config.table import CHUNK_CACHE, INDEX_CACHE, value_of
from shardwrite.encode.reader import LoadedIndex

ENTRY_NBYTES = 512  # of an entry, beside its table or elements


class _Kept(Protocol):
    """What is kept of an object in one state."""

    @property
    def memory_nbytes(self) -> int:
        """Memory that it takes."""


@dataclass(frozen=True, slots=True)
class KeptIndex:
    """The index of a shard in one state."""

    identity: Any
    loaded: LoadedIndex

    @property
    def memory_nbytes(self) -> int:
        """Memory that it takes: a table, and a flag for each of its rows."""
        table = self.loaded.index.table
        return ENTRY_NBYTES + table.nbytes + len(table)


@dataclass(frozen=True, slots=True, eq=False)
class KeptChunk:
    """The elements of an inner chunk in one state of its shard; nobody changes them."""

    identity: Any
    elements: npt.NDArray[Any]

    @property
    def memory_nbytes(self) -> int:
        """Memory that it takes."""
        return ENTRY_NBYTES + self.elements.nbytes


K = TypeVar("K", bound=_Kept)


class Cache(Generic[K]):
    """What is kept, by names, up to a number of bytes in all. Threads may share it.

    What was not used for the longest time is dropped first.

    - `limit_nbytes`: returns the number of bytes, which a setting may change.
    """

    def __init__(self, limit_nbytes: Callable[[], int]) -> None:
        self.limit_nbytes = limit_nbytes
        self.after_fork()

    def after_fork(self) -> None:
        """Begin anew in a child: another thread of the parent may have the lock."""
        self._kept: OrderedDict[Hashable, K] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def find(self, name: Hashable) -> K | None:
        """What is kept under a name."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None:
                self._kept.move_to_end(name)
            return kept

    def keep(self, name: Hashable, kept: K) -> None:
        """Keep something under a name, if it fits."""
        most = self.limit_nbytes()
        with self._lock:
            self._drop(name)
            if kept.memory_nbytes <= most:
                self._kept[name] = kept
                self.nbytes += kept.memory_nbytes
            while self.nbytes > most:
                self._drop(next(iter(self._kept)))

    def drop(self, name: Hashable) -> None:
        """Drop what is kept under a name, because the object is another one now, or is damaged."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: Hashable) -> None:
        dropped = self._kept.pop(name, None)
        if dropped is not None:
            self.nbytes -= dropped.memory_nbytes


INDEXES: Cache[KeptIndex] = Cache(lambda: value_of(INDEX_CACHE))
"""Indexes of this process, by the token of a store and the key of a shard."""

CHUNKS: Cache[KeptChunk] = Cache(lambda: value_of(CHUNK_CACHE) or 0)
"""Inner chunks of this process, by the token of a store, the key of a shard, and their rank in it.
"""

os.register_at_fork(after_in_child=INDEXES.after_fork)
os.register_at_fork(after_in_child=CHUNKS.after_fork)
