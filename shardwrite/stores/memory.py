"""Objects in the memory of one process, and the shortest example of a store."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import NoReturn

from shardwrite.stores.base import Capability, check_key, require
from shardwrite.stores.whole import SnapshotReader, WholeStore


class MemoryStore(WholeStore):
    """A store in memory, for the threads of one process.

    Examples
    --------
    >>> store = MemoryStore()
    >>> with store.transaction("none", "run.1") as transaction:
    ...     writer = transaction.create("c/0")
    ...     n = writer.write([b"abc", b"def"])
    ...     writer.finish()
    >>> store.open("c/0").read(2, 3)
    b'cde'
    """

    capabilities = WholeStore.capabilities | {
        Capability.ATOMIC,
        Capability.SNAPSHOT,
        Capability.EXCLUSIVE,
    }

    @property
    def is_in_memory(self) -> bool:
        """See :attr:`Store.is_in_memory`."""
        return True

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytearray, int]] = {}
        self._versions = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def owner(self) -> object:
        """See :attr:`Store.owner`."""
        return self._lock  # which `at` shares, as it does the objects

    def __reduce__(self) -> NoReturn:
        require(self, Capability.SHARED, field="store", value=type(self).__name__)
        raise AssertionError("a store in memory is never shared")

    def open_object(self, name: str) -> SnapshotReader | None:
        """See :meth:`WholeStore.open_object`."""
        entry = self._objects.get(name)
        return None if entry is None else SnapshotReader(name, *entry)

    def version_of_object(self, name: str) -> int | None:
        """See :meth:`WholeStore.version_of_object`."""
        entry = self._objects.get(name)
        return None if entry is None else entry[1]

    def put_object(self, name: str, data: bytearray) -> None:
        """See :meth:`WholeStore.put_object`."""
        with self._lock:
            self._objects[name] = data, next(self._versions)

    def create_new(self, key: str, data: bytes) -> bool:
        """See :meth:`Store.create_new`."""
        with self._lock:
            mine = bytearray(data), next(self._versions)
            return self._objects.setdefault(self.prefix + check_key(key), mine) is mine

    def remove_object(self, name: str) -> None:
        """See :meth:`WholeStore.remove_object`."""
        with self._lock:
            self._objects.pop(name, None)

    def list_names(self, prefix: str) -> Iterator[str]:
        """See :meth:`WholeStore.list_names`."""
        with self._lock:
            names = list(self._objects)
        return (name for name in names if name.startswith(prefix))
