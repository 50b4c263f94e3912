"""Opening of what a user gives as a store: a path, a store or node of zarr-python, or a store."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwrite.errors import SpecError
from shardwrite.stores.base import Store
from shardwrite.stores.posix import PosixStore

__all__ = ["Opened", "open_store"]

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:{1,2}/")


@dataclass(frozen=True, slots=True)
class Opened:
    """A store, and the path inside it that a user has given.

    Attributes
    ----------
    store : Store
        The store as a whole. ``store.at(path)`` is the part below the path.
    path : str
        Path of a group or an array inside the store; empty for the store as a whole.
    """

    store: Store
    path: str = ""


def open_store(given: Any, *, is_read: bool = False) -> Opened:
    """Open a store.

    Parameters
    ----------
    given : path, zarr store, StorePath, Group, Array, or Store
        Path of a directory; or a store of zarr-python, or what lies in one; or a store of this
        package, which is taken as it is. The directory of a `zarr.storage.LocalStore` is opened
        as if its path were given, because zarr does not write files durably.
    is_read : bool
        Promise that nothing will be written, so that the store may be read-only.

    Raises
    ------
    SpecError
        If `given` is none of these, is read-only, or cannot list or remove its objects.
    """
    if isinstance(given, str | os.PathLike):
        return Opened(_of_path(given))
    if isinstance(given, Store):
        return Opened(given)
    # zarr is imported late, because its import takes long.
    import zarr
    from zarr.abc.store import Store as AnyZarrStore

    path = ""
    if isinstance(given, zarr.Group | zarr.Array | zarr.AsyncGroup | zarr.AsyncArray):
        given = given.store_path
    if isinstance(given, zarr.storage.StorePath):
        given, path = given.store, given.path
    if not isinstance(given, AnyZarrStore):
        # Only the type is shown, since the text of an object may contain credentials.
        raise _refusal(given, "not a store", "give a path, or a store, group or array of zarr")
    return Opened(_of_zarr(given, is_read=is_read), path)


def _of_path(given: str | os.PathLike[str]) -> PosixStore:
    text = os.fspath(given)
    if not isinstance(text, str) or not text or "\0" in text:
        raise _refusal(given, "not the path of a directory", "give one with a name")
    if _URL.match(text):
        remedy = "give zarr.storage.FsspecStore.from_url(...) or the path of a directory"
        raise SpecError("a URL and not a path", field="store", value=text, remedy=remedy)
    return PosixStore(Path(text).absolute())


def _of_zarr(given: Any, *, is_read: bool) -> Store:
    from zarr.storage import LocalStore

    from shardwrite.stores.zarr_store import ZarrStore

    if not is_read:
        if given.read_only or not given.supports_writes:
            raise _refusal(given, "a read-only store", "open it so that it can be written")
        if not given.supports_deletes:
            # A zip file keeps the old bytes of an object, and two entries of one name.
            remedy = "write to a directory, and pack it when it is complete"
            raise _refusal(given, "a store that cannot replace or remove objects", remedy)
    if not given.supports_listing:
        raise _refusal(given, "a store that cannot list its objects", "give one that can")
    # A subclass may do more than write files.
    return PosixStore(given.root.absolute()) if type(given) is LocalStore else ZarrStore(given)


def _refusal(given: object, message: str, remedy: str) -> SpecError:
    return SpecError(message, field="store", value=type(given).__name__, remedy=remedy)
