"""Inspection of paths, and reading of small files.

A missing file is a normal answer; storage that cannot tell is an error. The methods of `pathlib`
ignore some or all errors, depending on the version of Python. With them, a run whose directory
cannot be listed for a moment would seem to have no journals and no active process.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from shardwrite.config.table import READ_LIMIT
from shardwrite.config.values import value_of
from shardwrite.errors import SpecError, StoreError
from shardwrite.stores.reading import as_store_error, no_file, open_plain

PATH_MAX = 4096
"""Bytes of a path that the system takes, with a zero at its end."""
_BLOCK_NBYTES = 2**20
# Bytes of JSON text for each value that is allowed; in memory a value takes 100 to 200 bytes.
_NBYTES_PER_VALUE = 16

AnyPath = str | os.PathLike[str]
A = TypeVar("A")
B = TypeVar("B")


def _ask(doing: str, path: AnyPath, call: Callable[[], A], nothing: B) -> A | B:
    """Result of `call` for a path, or `nothing` if the path is missing."""
    with as_store_error(os.fspath(path), doing):
        try:
            return call()
        except (FileNotFoundError, NotADirectoryError):
            return nothing
        except OSError as error:
            # Nothing has a name that is too long. A path may be too long here, and not for others.
            if error.errno == errno.ENAMETOOLONG and len(os.fsencode(path)) < PATH_MAX:
                return nothing
            raise


def mode_of(path: AnyPath, *, follow: bool = True) -> int:
    """Mode bits (file type and permissions) of a path; 0 if nothing exists there."""
    return _ask("cannot look at", path, lambda: os.stat(path, follow_symlinks=follow).st_mode, 0)


def owner_of(path: AnyPath) -> str:
    """Name of the user who owns a path, or ``uid <number>`` if the user has no name.

    Links are not followed.
    """
    user = _ask("cannot look at", path, lambda: os.lstat(path).st_uid, -1)
    try:
        return pwd.getpwuid(user).pw_name
    except (KeyError, OverflowError):
        return f"uid {user}"


def is_there(path: AnyPath) -> bool:
    """Whether something exists at a path."""
    return mode_of(path) != 0


def is_file(path: AnyPath) -> bool:
    """Whether a path is a regular file or a link to one."""
    return stat.S_ISREG(mode_of(path))


def listed(directory: AnyPath, prefix: str = "", suffix: str = "") -> list[Path]:
    """Sorted paths of the entries of a directory; empty if the directory is missing."""
    names: list[str] = _ask("cannot list", directory, lambda: os.listdir(directory), [])
    return [
        Path(directory, name)
        for name in sorted(names)
        if name.startswith(prefix) and name.endswith(suffix)
    ]


def read_limit() -> int:
    """Maximum size in bytes of a file of state or metadata that is read.

    It is ``shardwrite.read.limit`` in the configuration of dask.
    """
    return value_of(READ_LIMIT)


def read_blocks(path: AnyPath, limit_nbytes: int) -> Iterator[bytes]:
    """Yield the content of a regular file in blocks of at most 1 MiB."""
    name = os.fspath(path)
    fd = open_plain(path)
    try:
        nbytes = os.fstat(fd).st_size
        while nbytes <= limit_nbytes and (block := os.read(fd, _BLOCK_NBYTES)):
            yield block
            limit_nbytes -= len(block)
            nbytes -= len(block)
        if nbytes > limit_nbytes:
            raise _too_large(name)
    finally:
        os.close(fd)


def _too_large(name: str) -> StoreError:
    remedy = "if that is right, raise shardwrite.read.limit in dask's configuration"
    message = f"{name!r} is larger than what is read of such a file; {remedy}"
    return StoreError(message, key=name, errno=errno.EFBIG)


def check_regular(
    path: AnyPath, limit_nbytes: int | None = None, remedy: str | None = None
) -> None:
    """Refuse what is no regular file, before a library opens it that would wait for a pipe.

    A missing file is no matter of this function. Links count as what they lead to.

    - `remedy`: what the user can do if it is no regular file. By default, remove it.
    """
    name = os.fspath(path)
    found = _ask("cannot look at", path, lambda: os.stat(path), None)
    if found is None:
        return
    if not stat.S_ISREG(found.st_mode):
        raise no_file(name, found.st_mode, remedy)
    if limit_nbytes is not None and found.st_size > limit_nbytes:
        raise _too_large(name)


def read_file(path: AnyPath, limit_nbytes: int | None = None) -> bytes | None:
    """Content of a small file; None if it is missing."""
    limit = read_limit() if limit_nbytes is None else limit_nbytes
    return _ask("cannot read", path, lambda: b"".join(read_blocks(path, limit)), None)


def parse_json(data: bytes) -> Any:
    """Parse a JSON document of reasonable size."""
    is_short = len(data) <= _BLOCK_NBYTES
    if (
        not is_short
        and sum(data.count(mark) for mark in (b",", b"[", b"{")) > read_limit() // _NBYTES_PER_VALUE
    ):
        raise ValueError(
            "it holds too many values; if that is right, raise shardwrite.read.limit in dask's "
            "configuration"
        )
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def read_json(path: AnyPath) -> Any:
    """Read and parse a JSON file, which must exist."""
    return parse_document(read_there(path), path)


def read_there(path: AnyPath) -> bytes:
    """Content of a small file, which must exist."""
    with as_store_error(os.fspath(path), "cannot read"):
        return b"".join(read_blocks(path, read_limit()))


def parse_document(data: bytes, path: AnyPath) -> Any:
    """Parse the JSON document in `data`, the content of the file `path`."""
    try:
        return parse_json(data)
    except ValueError as error:
        message, remedy = (
            f"is no whole document ({error})",
            "remove it after a look, or write it again",
        )
        raise SpecError(
            message, field=Path(path).name, value=os.fspath(path), remedy=remedy
        ) from None
