"""The place of an array in the file system."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from shardwrite.errors import SpecError
from shardwrite.format.node import DOCUMENT
from shardwrite.stores import PosixStore, Store, listed, open_store

__all__ = [
    "RECEIPT_NAME",
    "RUN_SUFFIX",
    "UPDATES",
    "Target",
    "open_elsewhere",
    "resolve_target",
]

RUN_SUFFIX = ".shardwrite"
UPDATES = "updates"
RECEIPT_NAME = "shardwrite-receipt.json"
# One slash is enough, since a path object makes one slash of two.
_SCHEME = re.compile(r"(file(?=:)|[A-Za-z][A-Za-z0-9+.-]+(?=:/)):", re.IGNORECASE)
_NO_BYTE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# File systems allow 255 bytes, and the name of the run directory has the suffix in addition.
_MAX_NAME_NBYTES = 255 - len(RUN_SUFFIX)


@dataclass(frozen=True, slots=True)
class Target:
    """Place of an array, or of one update of it.

    Attributes
    ----------
    root : pathlib.Path
        Directory of the store.
    name : str
        Path of the array inside the store; empty if the store itself is the array.
    update : str
        Name of the update's directory; empty if the array is written as a whole.
    """

    root: Path
    name: str = ""
    update: str = ""

    @property
    def path(self) -> Path:
        """Directory of the array."""
        return self.root / self.name if self.name else self.root

    @property
    def store(self) -> PosixStore:
        """Store of the array's objects. This is the only place that makes it."""
        return PosixStore(self.path)

    @property
    def document_path(self) -> Path:
        """File of the array's document, which is what makes readers see the array."""
        return self.path / DOCUMENT

    @property
    def run_path(self) -> Path:
        """Directory of the run state: beside the array, or for an update a directory in there."""
        beside = self.path.with_name(self.path.name + RUN_SUFFIX)
        return beside / UPDATES / self.update if self.update else beside

    @property
    def others(self) -> list[Target]:
        """The array as a whole and all updates of it that were begun, without this target."""
        whole = replace(self, update="")
        updates = [replace(self, update=path.name) for path in listed(whole.run_path / UPDATES)]
        return [target for target in (whole, *updates) if target != self]

    @property
    def groups(self) -> list[Path]:
        """Directories of the groups above the array inside the store, outermost first."""
        parts = self.name.split("/")[:-1] if self.name else []
        return [self.root.joinpath(*parts[:n]) for n in range(len(parts) + 1)] if self.name else []


def resolve_target(store: Any, name: str | None, *, is_read: bool = False) -> Target:
    """Find the place of an array from a user's `store` and `name`.

    Parameters
    ----------
    store : str, path, or node of zarr-python
        Path or ``file:`` URL of the store's directory; or a `zarr.storage.LocalStore`, or a group,
        array or path of zarr-python that lies in one.
    name : str or None
        Path of the array inside the store or group; empty or None if `store` itself is the array.
    is_read : bool
        Promise that nothing will be written, so that the store may be read-only.

    Raises
    ------
    SpecError
        If `store` is not a local path that an array can have, or `name` is not a relative path of
        valid node names.
    """
    if _is_store(store):
        opened = open_store(store, is_read=is_read)
        if not isinstance(opened.store, PosixStore):
            remedy = "give the path of a directory, or a zarr.storage.LocalStore"
            if is_read:
                remedy += "; open_sharded and from_sharded_zarr read any store"
            raise SpecError(
                f"only directories can be {'looked at' if is_read else 'written'} yet",
                field="store",
                value=type(store).__name__,
                remedy=remedy,
            )
        store, name = opened.store.root, _joined(opened.path, name)
    root = _root_of(store)
    if root is None or (not name and root.name in ("", "..")):
        raise SpecError(
            "not the path of a directory that can be made",
            field="store",
            value=str(store),
            remedy="give one with a name",
        )
    if root.name.endswith(RUN_SUFFIX):
        remedy = f"give a path that does not end in {RUN_SUFFIX}, and rename what stands there"
        raise SpecError(
            "such names are for what lies beside an array",
            field="store",
            value=str(store),
            remedy=remedy,
        )
    if name is None or name == "":
        return Target(root)
    _check_name(name)
    return Target(root, name)


def _check_name(name: Any) -> None:
    """Refuse a name of an array that is not a relative path of plain names."""
    if (
        not isinstance(name, str)
        or _SCHEME.match(name)
        or not all(_is_plain(part) for part in name.split("/"))
    ):
        raise SpecError(
            "not a relative path of plain names",
            field="name",
            value=name,
            remedy='give for instance "images/raw"',
        )


def open_elsewhere(store: Any, name: str | None) -> Store | None:
    """Store of the objects of an array that lies in no directory, for reading.

    Parameters
    ----------
    store : store or node of zarr-python, or Store
        What the user has given.
    name : str or None
        Path of the array inside the store or group.

    Returns
    -------
    Store or None
        The store; None if `store` is a path or lies in a directory.

    Raises
    ------
    SpecError
        If `store` cannot be read, or `name` is not a relative path of plain names.
    """
    if not _is_store(store):
        return None
    opened = open_store(store, is_read=True)
    at = _joined(opened.path, name)
    if isinstance(opened.store, PosixStore):
        return None
    if not at:
        return opened.store
    _check_name(at)
    return opened.store.at(at)


def _is_store(store: Any) -> bool:
    """Whether a value is a store of this package, or belongs to zarr-python, and so is no path."""
    kinds = type(store).__mro__
    return isinstance(store, Store) or any(
        kind.__module__.partition(".")[0] == "zarr" for kind in kinds
    )


def _joined(path: str, name: Any) -> Any:
    """Name of an array inside a store, from its name inside a group of the store."""
    if name is not None and not isinstance(name, str):
        return name  # is refused
    return "/".join(part for part in (path, name) if part) or None


def _root_of(store: Any) -> Path | None:
    """Directory of a path or ``file:`` URL; None if no directory can have that name.

    Raises
    ------
    SpecError
        If `store` is not a path, or is a URL that is not of a local directory.
    """
    text = os.fspath(store) if isinstance(store, str | os.PathLike) else None
    if not isinstance(text, str):
        # Only the type of other objects is shown, since their text may contain credentials.
        given = store if isinstance(store, int | float | None) else type(store).__name__
        raise SpecError(
            "not a path",
            field="store",
            value=given,
            remedy="give a directory's path or a file:// URL",
        )
    scheme = _SCHEME.match(text)
    if scheme is not None:
        if scheme[1].lower() != "file":
            remedy = "give a directory's path or a file:// URL"
            raise SpecError(
                "only local files can be written yet", field="store", value=text, remedy=remedy
            )
        text = _path_of_url(text)
    return Path(text).absolute() if text and _can_be_a_path(text) else None


def _path_of_url(url: str) -> str:
    """Absolute path in a ``file:`` URL, with percent-encoding decoded.

    Raises
    ------
    SpecError
        If the URL is not of a local directory, or its percent-encoding is not valid.
    """
    rest = url.partition(":")[2]
    host, slash, path = (
        rest.removeprefix("//").partition("/")
        if rest.startswith("//")
        else ("", rest[:1], rest[1:])
    )
    if host.lower() not in ("", "localhost") or slash != "/" or "?" in path or "#" in path:
        remedy = "give file:///an/absolute/path, where %3F and %23 stand for ? and #, or a path"
        raise SpecError("no URL of a local directory", field="store", value=url, remedy=remedy)
    if _NO_BYTE.search(path):
        raise SpecError(
            "a percent sign without two digits after it",
            field="store",
            value=url,
            remedy="write %25 for %, or give a path",
        )
    return "/" + os.fsdecode(unquote_to_bytes(path))


def _can_be_a_path(text: str) -> bool:
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return b"\0" not in encoded and all(
        len(part) <= _MAX_NAME_NBYTES for part in encoded.split(b"/")
    )


def _is_plain(part: str) -> bool:
    """Whether the Zarr specification allows a node name, and shardwrite does not reserve it."""
    is_taken = part == DOCUMENT or part.startswith("__") or part.endswith(RUN_SUFFIX)
    return bool(part.strip(".")) and not is_taken and _can_be_a_path(part)
