"""Opening of what a user gives as a store: a path, a store or node of zarr-python, or a store."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError
from shardwrite.stores.base import Store
from shardwrite.stores.looking import (
    BUCKET_KINDS,
    MEMORY_URL,
    is_bucket_url,
    is_icechunk,
    is_session,
    local_path,
)
from shardwrite.stores.posix import PosixStore

_lock = threading.Lock()
_stores_in_memory: dict[str, object] = {}

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:{1,2}/")


@dataclass(frozen=True, slots=True)
class Opened:
    """A store, and the path inside it that a user has given."""

    store: Store  # the store as a whole. ``store.at(path)`` is the part below the path.
    path: str = ""  # path of a group or an array inside the store; empty for the store as a whole


def open_store(given: Any, *, is_read: bool = False) -> Opened:
    """Open a store.

    - `given`: path of a directory; the URL of a bucket; a store of zarr-python, or what lies in
      one; a store of obstore; or a store of this package. The directory of a
      `zarr.storage.LocalStore` is opened as if its path were given, because zarr does not write
      files durably. A `zarr.storage.ObjectStore` stands for its store of obstore. A session of
      Icechunk is only read here; see :class:`SessionStore` for one that is written.
    - `is_read`: promise that nothing will be written, so that the store may be read-only.
    """
    if isinstance(given, str | os.PathLike):
        text = os.fspath(given)
        if isinstance(text, str) and text.startswith(MEMORY_URL):
            return Opened(_of_zarr(_in_memory(text), is_read=is_read))
        if isinstance(text, str) and is_bucket_url(text):
            from shardwrite.stores.bucket_url import open_bucket  # for buckets only

            return Opened(open_bucket(text, is_read=is_read))
        return Opened(_of_path(given))
    if isinstance(given, Store):
        return Opened(given)
    from shardwrite.stores.bucket import opened  # takes long, as zarr-python does
    from shardwrite.stores.bucket_kinds import is_bucket

    if is_bucket(given):
        return Opened(opened(given, is_read=is_read))
    if is_session(given):
        return Opened(_of_session(given, is_read=is_read))
    import zarr
    from zarr.abc.store import Store as AnyZarrStore

    path = ""
    if isinstance(given, zarr.Group | zarr.Array | zarr.AsyncGroup | zarr.AsyncArray):
        given = given.store_path
    if isinstance(given, zarr.storage.StorePath):
        given, path = given.store, given.path
    if not isinstance(given, AnyZarrStore):
        remedy = "give a path, or a store, group or array of zarr"
        if is_icechunk(given):
            remedy = 'give a session of it, such as repository.writable_session("main")'
        # Only the type is shown, since the text of an object may contain credentials.
        raise _refusal(given, "not a store", remedy)
    return Opened(_of_zarr(given, is_read=is_read), path)


def _in_memory(url: str) -> Any:
    """Objects in the memory of this process, which zarr-python finds by the same URL.

    All threads get the same store, so that they find the same run state.
    """
    from zarr.storage import FsspecStore

    try:
        with _lock:
            if url not in _stores_in_memory:
                _stores_in_memory[url] = FsspecStore.from_url(url)
            return _stores_in_memory[url]
    except ImportError:
        raise SpecError(
            "needs the library fsspec, which is not installed",
            field="store",
            value=url,
            remedy="install fsspec, or give a zarr.storage.MemoryStore",
        ) from None


def _of_path(given: str | os.PathLike[str]) -> PosixStore:
    text = os.fspath(given)
    if not isinstance(text, str) or not text or "\0" in text or not _is_name(text):
        raise _refusal(given, "not the path of a directory", "give one with a name")
    text = local_path(text)
    if _URL.match(text):
        remedy = (
            f"give a URL of {', '.join(BUCKET_KINDS)}, file or memory, the path of a directory, "
            "or zarr.storage.FsspecStore.from_url(...)"
        )
        raise SpecError("a URL of no known scheme", field="store", value=text, remedy=remedy)
    return PosixStore(Path(text).absolute())


def _is_name(text: str) -> bool:
    """Whether a text can be the name of a file; a surrogate cannot."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _of_zarr(given: Any, *, is_read: bool) -> Store:
    from zarr.storage import LocalStore, ObjectStore

    from shardwrite.stores.bucket import opened
    from shardwrite.stores.bucket_kinds import is_bucket
    from shardwrite.stores.zarr_store import ZarrStore

    if is_icechunk(given):
        return _of_session(given.session, is_read=is_read)
    if not is_read:
        if given.read_only or not given.supports_writes:
            raise _refusal(given, "a read-only store", "open it so that it can be written")
        if not given.supports_deletes:
            # A zip file keeps the old bytes of an object, and two entries of one name.
            remedy = "write to a directory, and pack it when it is complete"
            raise _refusal(given, "a store that cannot replace or remove objects", remedy)
    if not given.supports_listing:
        raise _refusal(given, "a store that cannot list its objects", "give one that can")
    # A subclass may do more than write files, or put objects.
    if type(given) is LocalStore:
        return PosixStore(given.root.absolute())
    if type(given) is ObjectStore and is_bucket(given.store):
        return opened(given.store, is_read=is_read)
    return ZarrStore(given)


def _of_session(given: Any, *, is_read: bool) -> Store:
    if not is_read:
        remedy = (
            "give the session itself to to_sharded_zarr, store, write_region or erase, which "
            "commit it"
        )
        raise _refusal(given, "a session of Icechunk, which this call does not commit", remedy)
    from shardwrite.stores.session_store import SessionStore

    return SessionStore(given)


def _refusal(given: object, message: str, remedy: str) -> SpecError:
    return SpecError(message, field="store", value=type(given).__name__, remedy=remedy)
