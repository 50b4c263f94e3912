"""What stands at a path: nothing is an answer, and storage that cannot tell is an error.

The methods of `pathlib` pass over some errors, or over all of them, depending on the version of Python. A run whose directory
cannot be listed for a moment would seem to have no journals, and nobody at work on it.
"""

from __future__ import annotations

import json
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from shardwrite.stores.reading import as_store_error

__all__ = ["is_file", "is_there", "listed", "mode_of", "owner_of", "read_file", "read_json"]

AnyPath = str | os.PathLike[str]
A = TypeVar("A")
B = TypeVar("B")


def _ask(doing: str, path: AnyPath, call: Callable[[], A], nothing: B) -> A | B:
    """What a call says of a path, or what stands for nothing there."""
    with as_store_error(os.fspath(path), doing):
        try:
            return call()
        except (FileNotFoundError, NotADirectoryError):
            return nothing


def mode_of(path: AnyPath, *, follow: bool = True) -> int:
    """Type and permissions of what stands at a path, 0 for nothing.

    Raises
    ------
    StoreError
        If storage cannot tell.
    """
    return _ask("cannot look at", path, lambda: os.stat(path, follow_symlinks=follow).st_mode, 0)


def owner_of(path: AnyPath) -> str:
    """Name of the user who owns what stands at a path, or the user's number; a link is not followed."""
    user = _ask("cannot look at", path, lambda: os.lstat(path).st_uid, -1)
    try:
        return pwd.getpwuid(user).pw_name
    except (KeyError, OverflowError):
        return f"uid {user}"


def is_there(path: AnyPath) -> bool:
    """Whether something stands at a path; see :func:`mode_of`."""
    return mode_of(path) != 0


def is_file(path: AnyPath) -> bool:
    """Whether a plain file stands there; see :func:`mode_of`."""
    return stat.S_ISREG(mode_of(path))


def listed(directory: AnyPath, prefix: str = "", suffix: str = "") -> list[Path]:
    """What lies in a directory, sorted; nothing where none stands.

    Raises
    ------
    StoreError
        If it cannot be listed.
    """
    names: list[str] = _ask("cannot list", directory, lambda: os.listdir(directory), [])
    return [Path(directory, name) for name in sorted(names) if name.startswith(prefix) and name.endswith(suffix)]


def read_file(path: AnyPath) -> bytes | None:
    """All of a small file, None where none stands.

    Raises
    ------
    StoreError
        If it cannot be read.
    """
    return _ask("cannot read", path, Path(path).read_bytes, None)


def read_json(path: AnyPath) -> Any:
    """The document in a file, which must be there.

    Raises
    ------
    StoreError
        If it cannot be read.
    ValueError
        If it is torn.
    """
    with as_store_error(os.fspath(path), "cannot read"):
        return json.loads(Path(path).read_bytes())
