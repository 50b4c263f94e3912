"""What the stores of zarr-python can do, and what their public interface leaves out.

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

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zarr.abc.store import Store as AnyZarrStore
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath

from shardwrite.stores.capabilities import Capability

_BUCKET = frozenset({Capability.ATOMIC, Capability.DURABLE, Capability.SHARED})
# Protocols of fsspec whose files are objects in a bucket, and those of files that others see, too.
_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss"})
_FILES = frozenset({"file", "local", "sftp", "ssh", "hdfs", "webhdfs", "smb", "dbfs"})
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
)
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

    def __init__(self, store: AnyZarrStore, capabilities: frozenset[Capability]) -> None:
        self.store = store
        self.capabilities = capabilities
        self.is_open = False

    @property
    def identity(self) -> str:
        """Text that tells the storage apart from others; it holds no credentials."""
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
        given = {**fs.storage_options, **fs.storage_options.get("client_kwargs", {})}
        where = [f"{key}={given[key]}" for key in _LOCATIONS if key in given]
        where += [repr(value) for value in fs.storage_args if isinstance(value, str | int)]
        return " ".join([type(fs).__qualname__, *where, str(self.local_root or self.store.path)])

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
        given, path = self.store, self.store.path.rstrip("/")
        _, _, rest = path.rpartition("://")[2].lstrip("/").partition("/")  # it may be a URL
        if not rest:
            return given, ""
        top = FsspecStore(
            given.fs,
            read_only=given.read_only,
            path=path.removesuffix(f"/{rest}"),
            allowed_exceptions=given.allowed_exceptions,
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


class _BucketKind(_FsspecKind):
    """A file system of fsspec that is an object store."""

    has_tags = True

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
    given = getattr(store.fs, "sync_fs", store.fs).protocol
    return {given} if isinstance(given, str) else set(given)


def _of_fsspec(store: FsspecStore) -> Kind:
    protocols = _protocols(store)
    if not protocols & _BUCKETS:
        known = {Capability.SHARED} if protocols & _FILES else set()
        return _FsspecKind(store, frozenset(known))
    return _BucketKind(store, _BUCKET)
