"""Locks of the shards that views write: all views of a store in one event loop share them."""

from __future__ import annotations

import asyncio
import os
from weakref import WeakValueDictionary

from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, MemoryStore, WrapperStore

from shardwrite.stores import BucketStore, is_bucket
from shardwrite.stores.zarr_kinds import kind_of

_Which = tuple[int, object, str]
_locks: WeakValueDictionary[_Which, asyncio.Lock] = WeakValueDictionary()


def lock_of(store: Store, key: str) -> asyncio.Lock:
    """Lock of an object in the running event loop, which exists as long as somebody uses it.

    - `store`: the store of the object. Two stores of zarr-python give the same lock if they are
      known to hold the same object: the same directory, the same memory, or the same place of a
      bucket.
    """
    which = (id(asyncio.get_running_loop()), *_identity(store, key))
    lock = _locks.get(which)
    if lock is None:
        lock = _locks[which] = asyncio.Lock()
    return lock


def _identity(store: Store, key: str) -> tuple[object, str]:
    """What two stores share that hold the same object."""
    while isinstance(store, WrapperStore):
        store = store._store  # noqa: SLF001 (subclasses use it, too)
    if isinstance(store, LocalStore):
        return "file", os.path.realpath(store.root / key)
    if isinstance(store, MemoryStore):
        return id(store._store_dict), key  # noqa: SLF001 (all copies of the store have this one)
    below = getattr(store, "store", None)
    if is_bucket(below):
        return BucketStore(below, is_read=True).token, key
    if type(store) is FsspecStore:
        return kind_of(store).identity, key
    return id(store), key
