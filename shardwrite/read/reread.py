"""Chunks whose bytes were wrong, and that are read from the storage once more.

A network file system or a proxy may answer with wrong bytes now and then, and the system keeps them
in its cache. What is read again is told in the log and counted, so that a fault does not hide.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from shardwrite.errors import CorruptShardError
from shardwrite.host.events import SHARDS, tell
from shardwrite.stores import ObjectReader, Store

Open = Callable[[str], ObjectReader | None]
"""Opens an object: `Store.open`, or `Store.open_again`."""
T = TypeVar("T")

_lock = threading.Lock()
_counted: Counter[str] = Counter()


def take_n_reread(token: str) -> int:
    """Number of reads of a store that this process has made again since the last call."""
    with _lock:
        return _counted.pop(token, 0)


def read_again(store: Store, key: str, error: CorruptShardError) -> None:
    """Note that an object of a store is read once more, after an error."""
    with _lock:
        _counted[store.token] += 1
    told = f"read a second time from the storage, past what is cached: {error}"
    tell(SHARDS, logging.WARNING, told, run="", shard=key)


def reading_twice(store: Store, key: str, read: Callable[[Open], T]) -> T:
    """Call a function that reads an object; once more if the bytes cannot be right.

    - Raises CorruptShardError if the bytes are wrong the second time, too.
    """
    try:
        return read(store.open)
    except CorruptShardError as error:
        read_again(store, key, error)
    return read(store.open_again)
