"""What stands at a path: nothing is an answer, and storage that cannot tell is an error.

The methods of `pathlib` pass over some errors, or over all of them, depending on the version of Python. A run whose directory
cannot be listed for a moment would seem to have no journals, and nobody at work on it.
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

import dask.config
from dask.utils import parse_bytes

from shardwrite.errors import SpecError, StoreError
from shardwrite.stores.reading import as_store_error, open_plain

__all__ = [
    "configured_nbytes",
    "is_file",
    "is_there",
    "listed",
    "mode_of",
    "owner_of",
    "parse_document",
    "parse_json",
    "read_blocks",
    "read_file",
    "read_json",
    "read_limit",
    "read_there",
]

READ_LIMIT = 32 * 2**20
_BLOCK_NBYTES = 2**20
_NBYTES_PER_VALUE = (
    16  # of a document's text; what a value takes in memory is a hundred bytes or two
)

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
    return [
        Path(directory, name)
        for name in sorted(names)
        if name.startswith(prefix) and name.endswith(suffix)
    ]


def read_limit() -> int:
    """Most bytes of one file of state or metadata that are read: ``shardwrite.read.limit`` in dask's configuration.

    Raises
    ------
    SpecError
        If the configuration gives no size.
    """
    return configured_nbytes("limit", READ_LIMIT)


def configured_nbytes(name: str, default: int) -> int:
    """A size below ``shardwrite.read`` in dask's configuration."""
    field = f"shardwrite.read.{name}"
    value = dask.config.get(field, default)
    try:
        nbytes = int(parse_bytes(value))
    except (AttributeError, TypeError, ValueError) as error:
        raise SpecError(
            "not a size", field=field, value=value, remedy='give for instance "32 MiB"'
        ) from error
    return nbytes


def read_blocks(path: AnyPath, limit_nbytes: int) -> Iterator[bytes]:
    """A plain file in blocks, to which at most `limit_nbytes` may add up.

    Raises
    ------
    StoreError
        If something else than a file stands there, or the file is larger.
    OSError
        What the system says.
    """
    name = os.fspath(path)
    fd = open_plain(path)
    try:
        nbytes = os.fstat(fd).st_size
        while nbytes <= limit_nbytes and (block := os.read(fd, _BLOCK_NBYTES)):
            yield block
            limit_nbytes -= len(block)
            nbytes -= len(block)
        if nbytes > limit_nbytes:
            remedy = "if that is right, raise shardwrite.read.limit in dask's configuration"
            raise StoreError(
                f"{name!r} is larger than what is read of such a file; {remedy}",
                key=name,
                errno=errno.EFBIG,
            )
    finally:
        os.close(fd)


def read_file(path: AnyPath, limit_nbytes: int | None = None) -> bytes | None:
    """All of a small file, None where none stands.

    Parameters
    ----------
    path : path
        The file.
    limit_nbytes : int, optional
        Most bytes that it may have; those of `read_limit` by default.

    Raises
    ------
    StoreError
        If it cannot be read, is no plain file, or is larger.
    """
    limit = read_limit() if limit_nbytes is None else limit_nbytes
    return _ask("cannot read", path, lambda: b"".join(read_blocks(path, limit)), None)


def parse_json(data: bytes) -> Any:
    """A document, if it is one that can be held.

    Raises
    ------
    ValueError
        If it is torn, nested too deep, or holds too many values.
    """
    is_short = len(data) <= _BLOCK_NBYTES
    if (
        not is_short
        and sum(data.count(mark) for mark in (b",", b"[", b"{")) > read_limit() // _NBYTES_PER_VALUE
    ):
        raise ValueError(
            "it holds too many values; if that is right, raise shardwrite.read.limit in dask's configuration"
        )
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def read_json(path: AnyPath) -> Any:
    """The document in a file, which must be there.

    Raises
    ------
    StoreError
        If it cannot be read.
    SpecError
        If it is torn.
    """
    return parse_document(read_there(path), path)


def read_there(path: AnyPath) -> bytes:
    """All of a small file, which must be there.

    Raises
    ------
    StoreError
        If it is not there, cannot be read, is no plain file, or is larger than `read_limit`.
    """
    with as_store_error(os.fspath(path), "cannot read"):
        return b"".join(read_blocks(path, read_limit()))


def parse_document(data: bytes, path: AnyPath) -> Any:
    """The document that a file holds.

    Raises
    ------
    SpecError
        If it is torn, naming the file.
    """
    try:
        return parse_json(data)
    except ValueError as error:
        message, remedy = (
            f"is no whole document ({error})",
            "remove it after a look, or write it again",
        )
        raise SpecError(
            message, field=Path(path).name, value=os.fspath(path), remedy=remedy
        ) from error
