"""Adapter of zarr-python's stores, through zarr's public interface.

The stores of zarr-python are asynchronous. Their calls run on one event loop for each process, in a
daemon thread that starts with the first call. Nothing else in this package knows of event loops. A
process that was forked makes a loop of its own.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self, TypeVar

from zarr.abc.store import RangeByteRequest
from zarr.abc.store import Store as AnyZarrStore
from zarr.buffer import default_buffer_prototype
from zarr.buffer.cpu import Buffer

from shardwrite.errors import ShardwriteError, StoreError
from shardwrite.stores.base import ObjectReader
from shardwrite.stores.capabilities import Capability, require
from shardwrite.stores.keys import check_key
from shardwrite.stores.whole import SnapshotReader, WholeStore
from shardwrite.stores.zarr_kinds import Facts, Kind, kind_of

T = TypeVar("T")


class _Loop:
    """Event loop in a daemon thread, which starts with the first call."""

    def __init__(self) -> None:
        self.opening = threading.Lock()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, coroutine: Coroutine[Any, Any, T], seconds: float | None) -> T:
        """Wait for a coroutine; if the wait is interrupted, the coroutine is cancelled."""
        with self._lock:
            if self._loop is None:
                loop, name = asyncio.new_event_loop(), "shardwrite-zarr-stores"
                try:
                    threading.Thread(target=loop.run_forever, name=name, daemon=True).start()
                except BaseException:
                    coroutine.close()
                    loop.close()
                    raise
                self._loop = loop  # not before, as a loop without its thread never answers
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(seconds)
        finally:
            future.cancel()  # has no effect on one that is done


_loop = _Loop()


def _forget_loop() -> None:
    global _loop
    _loop = _Loop()


os.register_at_fork(after_in_child=_forget_loop)  # its thread exists only in the parent


class ZarrStore(WholeStore):
    """A store of zarr-python.

    Each object is put in one call. Until then it lies in one buffer of its encoded size. A
    `FsspecStore` copies it once more for the call.

    zarr's interface has no versions. Where the object has a tag in its storage (an ETag or a
    generation), that is the version, and only the ranges that are asked for are read. Otherwise
    the version is a digest of the content, and an object is read whole when it is opened.

    - `store`: the store. Its data are reached only through its public methods.
    - `capabilities`: what the store can do. By default it is what is known of this kind of store;
      of an unknown kind nothing is assumed. `PATCH`, `SKIP` and `COPY` are added, since an object
      that is being written lies in memory.
    - `timeout_seconds`: longest time for one call. After it, a `StoreError` is raised, and the
      outcome of the call is unknown. By default only the store itself limits the time.
    """

    def __init__(
        self,
        store: AnyZarrStore,
        capabilities: Collection[Capability] | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> None:
        self._zarr = store
        self._given = capabilities
        self._seconds = timeout_seconds
        self._pid, self._kind = os.getpid(), kind_of(store)
        can = self._kind.capabilities if capabilities is None else frozenset(capabilities)
        snapshot = frozenset(() if self._kind.has_tags else {Capability.SNAPSHOT})
        self.capabilities = WholeStore.capabilities | can | snapshot

    def __reduce__(self) -> tuple[Any, ...]:
        require(self, Capability.SHARED, field="store", value=type(self._zarr).__name__)
        return _rebuild, (self._zarr, self._given, self._seconds, self.prefix)

    @property
    def owner(self) -> object:
        """See :attr:`Store.owner`."""
        return self._zarr

    @property
    def token(self) -> str:
        """See :attr:`Store.token`."""
        if self.is_in_memory:
            return super().token
        return f"{self._kind.identity}/{self.prefix}"

    def whole(self) -> tuple[WholeStore, str]:
        """See :meth:`Store.whole`; for a path of fsspec, from the first part of that path."""
        root, path = kind_of(self._zarr).divided()
        if not path:
            return super().whole()
        top = ZarrStore(root, self._given, timeout_seconds=self._seconds)
        top.is_exclusive = self.is_exclusive
        return top, f"{path}/{self.prefix}".removesuffix("/")

    @property
    def is_in_memory(self) -> bool:
        """See :attr:`Store.is_in_memory`."""
        return self._kind.is_in_memory

    @property
    def loses_changes(self) -> bool:
        """See :class:`Unguarded`; objects of buckets have tags."""
        is_safe = Capability.CONDITIONAL in self.capabilities or self.is_exclusive
        return self._kind.has_tags and not is_safe

    @property
    def local_root(self) -> Path | None:
        """See :attr:`Store.local_root`."""
        return self._kind.local_root

    def __repr__(self) -> str:
        below = f"/{self.prefix}" if self.prefix else ""
        return f"{self._zarr}{below}"

    def open_object(self, name: str) -> ObjectReader | None:
        """See :meth:`WholeStore.open_object`."""
        facts = self._look(name)
        if facts is not None:
            return None if facts.version is None else _RangeReader(self, name, facts)
        data = self.read_object(name)
        return None if data is None else SnapshotReader(name, data, _digest(data))

    def version_of_object(self, name: str) -> Any:
        """See :meth:`WholeStore.version_of_object`."""
        facts = self._look(name)
        if facts is not None:
            return facts.version
        data = self.read_object(name)
        return None if data is None else _digest(data)

    def put_object(self, name: str, data: bytearray | bytes) -> None:
        """See :meth:`WholeStore.put_object`."""
        buffer = Buffer.from_bytes(data)
        self._run(name, "write", lambda kind: kind.store.set(name, buffer))

    def create_new(self, key: str, data: bytes) -> bool:
        """See :meth:`Store.create_new`."""
        if Capability.EXCLUSIVE not in self.capabilities:
            return super().create_new(key, data)
        name, buffer = self.prefix + check_key(key), Buffer.from_bytes(data)
        self._run(name, "create", lambda kind: kind.store.set_if_not_exists(name, buffer))
        found = self.read_object(name)  # zarr does not tell who has created it
        return found is not None and bytes(found) == data

    def remove_object(self, name: str) -> None:
        """See :meth:`WholeStore.remove_object`."""
        self._run(name, "remove", lambda kind: kind.remove(name))

    def list_names(self, prefix: str) -> Iterator[str]:
        """See :meth:`WholeStore.list_names`."""
        names = self._run(prefix, "list", lambda kind: kind.names(prefix))
        return (name for name in names if name.startswith(prefix))

    def read_object(self, name: str, start: int = 0, stop: int | None = None) -> memoryview | None:
        """Bytes of an object, or of a range that it has; None if the object is missing."""
        wanted = None if stop is None else RangeByteRequest(start, stop)
        prototype = default_buffer_prototype()
        buffer = self._run(name, "read", lambda kind: kind.store.get(name, prototype, wanted))
        return None if buffer is None else memoryview(buffer.as_buffer_like())

    def _look(self, name: str) -> Facts | None:
        """Size and tag of an object; None if its storage gives no tags."""
        if not self._kind.has_tags:
            return None
        return self._run(name, "look at", lambda kind: kind.look(name))

    def _run(self, name: str, doing: str, call: Callable[[Kind], Coroutine[Any, Any, T]]) -> T:
        """Wait for a call; whatever it raises becomes a `StoreError`."""
        try:
            return _loop.run(call(self._connected()), self._seconds)
        except ShardwriteError:
            raise
        except Exception as error:
            number = error.errno if isinstance(error, OSError) else None
            if isinstance(error, TimeoutError):
                number = errno.ETIMEDOUT
            reason = f"{type(error).__name__}: {error}"
            raise StoreError(
                f"cannot {doing} {name!r}: {reason}", key=name, errno=number
            ) from error

    def _connected(self) -> Kind:
        """The store, open and connected in this process."""
        with _loop.opening:
            if self._pid != os.getpid():
                self._pid, self._kind = os.getpid(), kind_of(self._zarr)
            if not self._kind.is_open:
                _loop.run(self._kind.connect(), self._seconds)
        return self._kind


def _rebuild(
    store: AnyZarrStore,
    capabilities: Collection[Capability] | None,
    seconds: float | None,
    prefix: str,
) -> ZarrStore:
    return ZarrStore(store, capabilities, timeout_seconds=seconds).at(prefix.removesuffix("/"))


def _digest(data: memoryview) -> tuple[int, bytes]:
    return len(data), blake2b(data, digest_size=16).digest()


class _RangeReader(ObjectReader):
    """An object of which ranges are read as they are asked for."""

    def __init__(self, store: ZarrStore, name: str, facts: Facts) -> None:
        self._store, self._name = store, name
        self.nbytes, self.version = facts.nbytes, facts.version

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`."""
        if nbytes == 0 and offset <= self.nbytes:
            return b""
        data = None
        if offset + nbytes <= self.nbytes:
            data = self._store.read_object(self._name, offset, offset + nbytes)
        if data is None or len(data) != nbytes:
            message = f"{self._name!r} ends before byte {offset + nbytes}, or was replaced"
            raise StoreError(message, key=self._name, errno=errno.EIO)
        return bytes(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None: ...
