"""What stands at a path: nothing is an answer, and storage that cannot tell is an error.

The methods of `pathlib` pass over some errors, or over all of them, depending on the version of Python. A run whose directory
cannot be listed for a moment would seem to have no journals, and nobody at work on it.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from shardwrite.stores.reading import as_store_error

__all__ = ["is_file", "is_there", "listed", "mode_of", "read_file", "read_json"]

AnyPath = str | os.PathLike[str]


def mode_of(path: AnyPath, *, follow: bool = True) -> int:
    """Type and permissions of what stands at a path, 0 for nothing.

    Raises
    ------
    StoreError
        If storage cannot tell.
    """
    with as_store_error(os.fspath(path), "cannot look at"):
        try:
            return os.stat(path, follow_symlinks=follow).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0


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
    with as_store_error(os.fspath(directory), "cannot list"):
        try:
            names = os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            names = []
    return [Path(directory, name) for name in sorted(names) if name.startswith(prefix) and name.endswith(suffix)]


def read_file(path: AnyPath) -> bytes | None:
    """All of a small file, None where none stands.

    Raises
    ------
    StoreError
        If it cannot be read.
    """
    with as_store_error(os.fspath(path), "cannot read"):
        try:
            return Path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None


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
