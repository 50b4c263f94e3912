"""Indexes of shards and decoded inner chunks that this process has read, kept for the next read.

Each belongs to one state of one object (`ObjectReader.identity`). It is used only while the object
is opened in that state, and the storage is asked for that at least once. Where a store cannot tell
states apart, nothing is kept. Arrays are pickled without what is kept.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Generic, Protocol, TypeVar

import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.config.table import CHUNK_CACHE, INDEX_CACHE, value_of
from shardwrite.encode.reader import LoadedIndex

_ENTRY_NBYTES = 512  # of an entry, beside its table or elements


class _Kept(Protocol):
    """What is kept of an object in one state."""

    @property
    def identity(self) -> Any:
        """The state."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""


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


@dataclass(frozen=True, slots=True, eq=False)
class KeptChunk:
    """The elements of an inner chunk in one state of its shard; nobody changes them."""

    identity: Any
    elements: npt.NDArray[Any]

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return _ENTRY_NBYTES + self.elements.nbytes


K = TypeVar("K", bound=_Kept)


class _Cache(Generic[K]):
    """What is kept, by names, up to a number of bytes in all, which a setting gives.

    What was not used for the longest time is dropped first.
    """

    @property
    def limit_nbytes(self) -> int:
        """The number of bytes."""
        raise NotImplementedError

    def __init__(self) -> None:
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
        most = self.limit_nbytes
        with self._lock:
            self._drop(name)
            if kept.nbytes <= most:
                self._kept[name] = kept
                self.nbytes += kept.nbytes
            while self.nbytes > most:
                self._drop(next(iter(self._kept)))

    def drop(self, name: Hashable) -> None:
        """Drop what is kept under a name, because the object is another one now, or is damaged."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: Hashable) -> None:
        dropped = self._kept.pop(name, None)
        if dropped is not None:
            self.nbytes -= dropped.nbytes


class IndexCache(_Cache[KeptIndex]):
    """Indexes by the token of a store and the key of a shard."""

    @property
    def limit_nbytes(self) -> int:
        """See :attr:`_Cache.limit_nbytes`."""
        return value_of(INDEX_CACHE)


class ChunkCache(_Cache[KeptChunk]):
    """Inner chunks by the token of a store, the key of a shard, and their rank in it."""

    @property
    def limit_nbytes(self) -> int:
        """See :attr:`_Cache.limit_nbytes`."""
        return value_of(CHUNK_CACHE) or 0


INDEXES, CHUNKS = IndexCache(), ChunkCache()
"""Those of this process."""

os.register_at_fork(after_in_child=INDEXES.after_fork)
os.register_at_fork(after_in_child=CHUNKS.after_fork)
