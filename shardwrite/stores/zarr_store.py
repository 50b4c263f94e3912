"""Adapter of zarr-python's stores, through zarr's public interface.

The stores of zarr-python are asynchronous. Their calls run on one event loop for each process, in a
daemon thread that starts with the first call. Nothing else in this package knows of event loops. A
process that was forked makes a loop of its own.

=================  ================================================================================
kind               what is known
=================  ================================================================================
``MemoryStore``    One process. A put is one assignment to a dict.
``LocalStore``     Files without a sync; older versions of zarr write them in their place.
``FsspecStore``    Depends on the file system: object stores put atomically and durably, and tag
                   each object. Others are only known to be shared, or nothing is known of them.
``ObjectStore``    Is no matter of the adapter: `BucketStore` talks to obstore without zarr.
``IcechunkStore``  Is no matter of the adapter as it is: see `SessionStore`, which derives from it.
others             Nothing is assumed. `ZarrStore` takes what its user knows.
=================  ================================================================================
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.abc.store import Store as AnyZarrStore
from zarr.buffer import default_buffer_prototype
from zarr.buffer.cpu import Buffer
from zarr.storage import (
    FsspecStore,
    LocalStore,
    MemoryStore,
    ObjectStore,
    StorePath,
    WrapperStore,
)

from shardwrite._dataclass import dataclass
from shardwrite.config.table import READ_GAP, READ_REQUEST, value_of
from shardwrite.errors import CorruptShardError, ShardwriteError, StoreError, text_of
from shardwrite.stores.base import (
    Capability,
    ObjectReader,
    changed_meanwhile,
    check_key,
    require,
    token_of,
)
from shardwrite.stores.whole import SnapshotReader, WholeStore

# ---- Facts: what each kind of store can do, and what its public interface leaves out


_BUCKET = frozenset({Capability.ATOMIC, Capability.DURABLE, Capability.SHARED})
# Protocols of fsspec whose files are objects in a bucket, and those of files that others see, too.
_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})

_FILES = frozenset({"file", "local", "sftp", "ssh", "hdfs", "webhdfs", "smb", "dbfs"})
_WEB = frozenset({"http", "https"})
# Options of a storage that say where it is. Others may be credentials, which change.
_LOCATIONS = (
    "endpoint",
    "endpoint_url",
    "bucket",
    "region",
    "account_name",
    "container_name",
    "host",
    "port",
    "instance",
)
# Those whose storage such options, the type and the path tell from any other one.
_KNOWN = _BUCKETS | _FILES | _WEB | {"memory"}
# What a connection string of Azure says of it.
_ACCOUNT = re.compile(r"(?:AccountName|BlobEndpoint)=[^;]+", re.IGNORECASE)

_TAGS = ("ETag", "etag", "generation")


@dataclass(frozen=True, slots=True)
class Facts:
    """Size and version of an object; the version is None if the object is missing."""

    nbytes: int
    version: Any


_MISSING = Facts(0, None)


class Kind:
    """What is known of a store, and what its interface leaves out.

    - `store`: the store. From `connect` on, its connections belong to the event loop of the
      adapter.
    - `capabilities`: what it can do, without what every adapted store can.
    """

    has_tags = False
    lists = True

    def __init__(self, store: AnyZarrStore, capabilities: frozenset[Capability]) -> None:
        self.store = store
        self.capabilities = capabilities
        self.is_open = False

    @property
    def identity(self) -> str:
        """Text that tells the storage apart from others; it holds no credentials."""
        if isinstance(self.store, WrapperStore):
            inner = self.store._store  # noqa: SLF001 (wrappers have no public name for it)
            return f"{type(self.store).__qualname__} {kind_of(inner).identity}"
        return f"{type(self.store).__qualname__} {self.local_root or self.store}"

    @property
    def is_in_memory(self) -> bool:
        """Whether the objects are gone when the process ends."""
        return type(self.store) is MemoryStore

    @property
    def local_root(self) -> Path | None:
        """Directory of this machine that holds the objects, if it is known."""
        return self.store.root.absolute() if isinstance(self.store, LocalStore) else None

    def divided(self) -> tuple[AnyZarrStore, str]:
        """The store from its top, and the path of this one in it."""
        return self.store, ""

    async def connect(self) -> None:
        """Open the store for the event loop that this runs on."""
        await StorePath.open(self.store, "")
        self.is_open = True

    async def look(self, name: str) -> Facts | None:
        """Size and tag of an object; None if its storage gives no tag."""
        raise NotImplementedError(name)

    async def remove(self, name: str) -> None:
        """Remove one object, which may be missing."""
        await self.store.delete(name)

    async def names(self, prefix: str) -> list[str]:
        """Names of the objects that begin with a prefix, and possibly of others."""
        try:
            return [name async for name in self.store.list_prefix(prefix)]
        except (FileNotFoundError, NotADirectoryError):
            return []


class _FsspecKind(Kind):
    """A file system of fsspec."""

    store: FsspecStore

    @property
    def identity(self) -> str:
        """See :attr:`Kind.identity`."""
        fs = getattr(self.store.fs, "sync_fs", self.store.fs)
        path = str(self.local_root or self.store.path)
        if not _protocols(self.store) & _KNOWN:  # any option may say where it is
            digest = blake2b(_all_of(fs).encode("utf-8", "surrogateescape"), digest_size=16)
            return f"{type(fs).__qualname__} {digest.hexdigest()} {path}"
        options = {**fs.storage_options, **fs.storage_options.get("client_kwargs", {})}
        where = [f"{key}={options[key]}" for key in _LOCATIONS if key in options]
        where += _ACCOUNT.findall(str(options.get("connection_string", "")))
        where += [repr(value) for value in fs.storage_args if isinstance(value, str | int)]
        return " ".join([type(fs).__qualname__, *where, path])

    @property
    def local_root(self) -> Path | None:
        """See :attr:`Kind.local_root`."""
        is_local = {"file", "local"} & _protocols(self.store)
        return Path(self.store.path).absolute() if is_local else None

    @property
    def is_in_memory(self) -> bool:
        """See :attr:`Kind.is_in_memory`."""
        return "memory" in _protocols(self.store)

    def divided(self) -> tuple[AnyZarrStore, str]:
        """See :meth:`Kind.divided`: the top is the first part of the path, such as a bucket."""
        store, path = self.store, self.store.path.rstrip("/")
        _, _, rest = path.rpartition("://")[2].lstrip("/").partition("/")  # it may be a URL
        if not rest:
            return store, ""
        top = FsspecStore(
            store.fs,
            read_only=store.read_only,
            path=path.removesuffix(f"/{rest}"),
            allowed_exceptions=store.allowed_exceptions,
        )
        return top, rest

    def path_of(self, name: str) -> str:
        """Path of an object in the file system."""
        return f"{self.store.path.rstrip('/')}/{name}"

    async def remove(self, name: str) -> None:
        """See :meth:`Kind.remove`; `FsspecStore.delete` takes a name for a pattern of names."""
        try:
            await self.store.fs._rm_file(self.path_of(name))  # noqa: SLF001 (fsspec's async names)
        except FileNotFoundError:
            return

    async def names(self, prefix: str) -> list[str]:
        """See :meth:`Kind.names`; what others have written meanwhile is listed, too."""
        self.store.fs.invalidate_cache()
        return [name.lstrip("/") for name in await super().names(prefix)]


class _ConnectedKind(_FsspecKind):
    """A file system of fsspec that reaches its files by connections of an event loop."""

    async def connect(self) -> None:
        """See :meth:`Kind.connect`.

        The connections of a file system belong to one event loop, and zarr-python uses the given
        one on another. Because fsspec keeps one file system for each thread, all adapters of a
        process share that of the thread of the event loop.
        """
        given, fs = self.store, self.store.fs
        self.store = FsspecStore(
            type(fs)(*fs.storage_args, **{**fs.storage_options, "asynchronous": True}),
            read_only=given.read_only,
            path=given.path,
            allowed_exceptions=given.allowed_exceptions,
        )
        await super().connect()


class _WebKind(_ConnectedKind):
    """A web server. What fsspec lists of one are the links on its pages, or nothing."""

    lists = False


class _BucketKind(_ConnectedKind):
    """A file system of fsspec that is an object store."""

    has_tags = True

    async def look(self, name: str) -> Facts | None:
        """See :meth:`Kind.look`."""
        fs, path = self.store.fs, self.path_of(name)
        fs.invalidate_cache(path)
        try:
            info = await fs._info(path)  # noqa: SLF001 (fsspec's async names)
        except FileNotFoundError:
            return _MISSING
        if info.get("type") == "directory":
            return _MISSING
        tag = next((info[key] for key in _TAGS if info.get(key)), None)
        return None if tag is None else Facts(int(info["size"]), (int(info["size"]), str(tag)))


def kind_of(store: AnyZarrStore) -> Kind:
    """What is known of a store; subclasses count as other kinds, since they may do anything."""
    if type(store) is FsspecStore:
        return _of_fsspec(store)
    known: frozenset[Capability] = frozenset()
    if type(store) is MemoryStore:
        known = frozenset({Capability.ATOMIC, Capability.EXCLUSIVE})
    elif type(store) is LocalStore:
        known = frozenset({Capability.SHARED, Capability.EXCLUSIVE})
    return Kind(store, known)


def _protocols(store: FsspecStore) -> set[str]:
    protocol = getattr(store.fs, "sync_fs", store.fs).protocol
    return {protocol} if isinstance(protocol, str) else set(protocol)


def _all_of(value: Any) -> str:
    """Text of a file system or an option, which no other one has."""
    if isinstance(value, str | bytes | int | float | None | os.PathLike):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{','.join(sorted(f'{key!r}:{_all_of(one)}' for key, one in value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_all_of, value))}]"
    given = getattr(value, "storage_args", None), getattr(value, "storage_options", None)
    if given == (None, None):
        return f"{type(value).__qualname__} {token_of(value)}"
    return f"{type(value).__qualname__} {_all_of(given)}"


def _of_fsspec(store: FsspecStore) -> Kind:
    protocols = _protocols(store)
    if protocols & _BUCKETS:
        return _BucketKind(store, _BUCKET)
    if protocols & _WEB:
        return _WebKind(store, frozenset({Capability.SHARED}))
    known = {Capability.SHARED} if protocols & _FILES else set()
    return _FsspecKind(store, frozenset(known))


# ---- The adapter


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
    """Have the child of a fork make an event loop of its own."""
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

    knows_ends = True
    """Whether the store gives what there is if more bytes than an object has are asked for."""

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
        self._is_of_obstore = _is_of_obstore(store)
        # Whether it has answered a request for a range with bytes; False if it cannot
        self._has_ranges: bool | None = None
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
    def lists(self) -> bool:  # type: ignore[override]
        """See :attr:`Store.lists`."""
        return self._kind.lists

    @property
    def is_distant(self) -> bool:  # type: ignore[override]
        """See :attr:`Store.is_distant`; of stores that nothing is known of, that is assumed."""
        return not self.is_in_memory and self.local_root is None

    @property
    def loses_changes(self) -> bool:
        """See :attr:`Store.loses_changes`; objects of buckets have tags."""
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

    def open_for(
        self,
        key: str,
        first: int,
        identity: Any = None,  # noqa: ARG002 (zarr's interface tells none)
        *,
        whole_nbytes: int = 0,
    ) -> ObjectReader | None:
        """See :meth:`Store.open_for`; ranges are read, and no more is known of the object.

        More is read than is asked for where the store `knows_ends`, so that a small object is read
        whole, by one request.
        """
        name = self.prefix + check_key(key)
        is_small = whole_nbytes <= value_of(READ_REQUEST)
        if not first or (whole_nbytes and is_small and not self.knows_ends):
            return self.open(key)
        more = max(value_of(READ_GAP), whole_nbytes if is_small else 0)
        n_first = abs(first) + (more if self.knows_ends else 0)
        data = self._first_of(name, n_first if first > 0 else -n_first)
        if data is None:
            return None
        if len(data) != n_first:  # the whole object: it is smaller, or ranges are ignored
            return SnapshotReader(name, data, None)
        return _UnsizedReader(self, name, data, first)

    def _first_of(self, name: str, first: int) -> memoryview | None:
        """First or last bytes of an object, or the whole if its store knows no ranges.

        A store may say that it knows none, or answer as if there were no object. So nothing counts
        as missing before it was asked for as a whole, or another range was answered.
        """
        if self._has_ranges is not False:
            try:
                data = self.read_end(name, first)
            except StoreError as error:
                if not isinstance(error.__cause__, NotImplementedError | TypeError | ValueError):
                    raise
                self._has_ranges = False
            else:
                if data is not None or self._has_ranges:
                    self._has_ranges = True
                    return data
        whole = self.read_object(name)
        if whole is not None:
            self._has_ranges = False
        return whole

    def has(self, key: str) -> bool:
        """See :meth:`Store.has`; one byte is read, because a store may hide why it fails."""
        return self._first_of(self.prefix + check_key(key), 1) is not None

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
        stored = self.read_object(name)  # zarr does not tell who has created it
        return stored is not None and bytes(stored) == data

    def remove_object(self, name: str) -> None:
        """See :meth:`WholeStore.remove_object`."""
        self._run(name, "remove", lambda kind: kind.remove(name))

    def list_names(self, prefix: str) -> Iterator[str]:
        """See :meth:`WholeStore.list_names`."""
        names = self._run(prefix, "list", lambda kind: kind.names(prefix))
        return (name for name in names if name.startswith(prefix))

    def read_object(self, name: str, start: int = 0, stop: int | None = None) -> memoryview | None:
        """Bytes of an object, or of a range that it has; None if the object is missing.

        - `start`: negative for the last bytes, as many as it says.
        """
        wanted: ByteRequest | None = None if stop is None else RangeByteRequest(start, stop)
        if start < 0:
            wanted = SuffixByteRequest(-start)
        prototype = default_buffer_prototype()
        buffer = self._run(name, "read", lambda kind: kind.store.get(name, prototype, wanted))
        return None if buffer is None else memoryview(buffer.as_buffer_like())

    def read_end(self, name: str, nbytes: int) -> memoryview | None:
        """The first bytes of an object, or the last ones if the number is negative."""
        return self.read_object(name, min(nbytes, 0), nbytes if nbytes > 0 else None)

    def _look(self, name: str) -> Facts | None:
        """Size and tag of an object; None if its storage gives no tags."""
        if not self._kind.has_tags:
            return None
        return self._run(name, "look at", lambda kind: kind.look(name))

    def _run(self, name: str, doing: str, call: Callable[[Kind], Coroutine[Any, Any, T]]) -> T:
        """Wait for a call; whatever it raises becomes a `StoreError`."""
        if self._is_of_obstore:
            from shardwrite.stores.bucket import check_process  # which most stores do not need

            check_process()
        try:
            return _loop.run(call(self._connected()), self._seconds)
        except ShardwriteError:
            raise
        except Exception as error:
            number = error.errno if isinstance(error, OSError) else None
            if isinstance(error, TimeoutError):
                number = errno.ETIMEDOUT
            message = f"cannot {doing} {name!r}: {text_of(error)}"
            raise StoreError(message, key=name, errno=number) from error

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


def _is_of_obstore(store: AnyZarrStore) -> bool:
    """Whether obstore makes the requests of a store, which may lie in others that wrap it."""
    while isinstance(store, WrapperStore):
        store = store._store  # noqa: SLF001 (zarr-python has no other way to it)
    return isinstance(store, ObjectStore)


def _digest(data: memoryview) -> tuple[int, bytes]:
    return len(data), blake2b(data, digest_size=16).digest()


class _RangeReader(ObjectReader):
    """An object of which ranges are read as they are asked for.

    They may be of several versions. So the version is compared by `check_same`.
    """

    is_distant = True

    def __init__(self, store: ZarrStore, name: str, facts: Facts) -> None:
        self._store, self._name = store, name
        self.nbytes, self.version = facts.nbytes, facts.version
        self._n_reads = 0

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`."""
        if nbytes == 0 and offset <= self.nbytes:
            return b""
        data = None
        self._n_reads += 1
        stop = offset + nbytes
        if stop <= self.nbytes:
            # One byte more at the end: there is none, unless a longer object has been put since.
            data = self._store.read_object(self._name, offset, stop + (stop == self.nbytes))
        if data is None or len(data) != nbytes:
            message = f"{self._name!r} ends before byte {offset + nbytes}, or was replaced"
            raise StoreError(message, key=self._name, errno=errno.EIO)
        return bytes(data)

    def check_same(self) -> None:
        """See :meth:`ObjectReader.check_same`."""
        if self._n_reads > 1 and self._store.version_of_object(self._name) != self.version:
            raise changed_meanwhile(self._name)
        self._n_reads = min(self._n_reads, 1)  # what is read from now on is looked at again


_FAR = 2**62
"""Where the last bytes of an object lie whose size is not known: no object reaches that far."""


class _UnsizedReader(ObjectReader):
    """An object of which ranges are read, and whose size is not known.

    It counts as one that ends far away. It may be replaced between two reads. Bytes that are not
    there are told as an error of the object, so that it is read once more as a whole. Others may be
    those of another version, so the first ones are read again by `check_same`, and compared.

    - `data`: its first bytes, or its last ones.
    - `first`: how many of them are compared: those of the index. See :meth:`Store.open_for`.
    """

    is_distant = True
    version = None

    def __init__(self, store: ZarrStore, name: str, data: memoryview, first: int) -> None:
        self._store, self._name, self._data, self._first = store, name, data, first
        self._start = _FAR if first < 0 else 0
        self._has_more = False  # whether it has read other bytes than these
        self.nbytes = _FAR + len(data)

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`."""
        first = offset - self._start
        if 0 <= first <= first + nbytes <= len(self._data):
            return bytes(self._data[first : first + nbytes])
        self._has_more = True
        data = self._store.read_object(self._name, offset, offset + nbytes)
        if data is not None and len(data) > nbytes:  # the whole object: ranges are ignored
            data = data[offset : offset + nbytes]
        if data is None or len(data) != nbytes:
            raise CorruptShardError(f"ends before byte {offset + nbytes}, or was replaced")
        return bytes(data)

    def check_same(self) -> None:
        """See :meth:`ObjectReader.check_same`."""
        if not self._has_more:
            return
        first = self._first
        now = self._store.read_end(self._name, first)
        before = self._data[:first] if first > 0 else self._data[first:]
        if now is None or bytes(now) != bytes(before):
            raise changed_meanwhile(self._name)
