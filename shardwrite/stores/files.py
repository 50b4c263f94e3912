"""Files beside shards and arrays, written by the same protocol as shards."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from shardwrite.errors import SpecError, StoreError
from shardwrite.stores.base import ObjectReader, ObjectWriter, Readable
from shardwrite.stores.looking import as_store_error
from shardwrite.stores.posix import PosixStore

COPIED_NBYTES = 4 * 2**20
"""Bytes that `copy_bytes` has in memory at a time."""


def write_file(
    path: Path,
    data: bytes,
    *,
    durability: str,
    attempt: str,
    guard: Callable[[], None] | None = None,
    like: Path | None = None,
) -> None:
    """Write a small file by the same protocol as a shard."""
    with PosixStore(path.parent).transaction(durability, attempt, guard) as transaction:
        writer = transaction.create(path.name, like=like)
        writer.write([data])
        writer.finish()


def discard_file(path: Path, attempt: str) -> None:
    """Remove the temporary that an attempt of `write_file` has left behind, if there is one."""
    with as_store_error(str(path), "cannot remove a temporary of"):
        PosixStore(path.parent).discard_temporary(path.name, attempt)


def sync_entry(path: Path) -> None:
    """Make the name of a file durable, and that of its directory."""
    PosixStore(path.parent).sync_parents(path, set())


def copy_file(source: Path, to: Path, durability: str) -> None:
    """Copy a file through this process's memory; the copy has the same mode, group and owner."""
    reader = PosixStore(source.parent).open(source.name)
    if reader is None:
        raise StoreError(f"{source.name!r} is gone", key=str(source), errno=errno.ENOENT)
    with (
        reader,
        PosixStore(to.parent).transaction(durability, uuid.uuid4().hex) as transaction,
    ):
        writer = transaction.create(to.name, like=source)
        copy_bytes(reader, writer, reader.nbytes)
        writer.finish()


def copy_bytes(reader: ObjectReader, writer: ObjectWriter, nbytes: int, offset: int = 0) -> None:
    """Append `nbytes` bytes of one object to another, through this process's memory.

    The objects may lie in different stores. The bytes begin at `offset`.
    """
    end = offset + nbytes
    for start in range(offset, end, COPIED_NBYTES):
        writer.write([reader.read(start, min(COPIED_NBYTES, end - start))])


def can_copy_between(source: Readable, target: Readable) -> bool:
    """Whether `ObjectWriter.copy` of one store takes objects of another: both hold files."""
    return isinstance(source, PosixStore) and isinstance(target, PosixStore)


def check_movable(path: Path, occupied: Path) -> None:
    """Refuse a directory that the system cannot rename. Nothing is renamed.

    In a container, overlayfs does not rename directories that come from the image. It says so
    before it looks at the new name, which is that of a directory that holds something. So every
    other system refuses, too.

    - `occupied`: another directory, which is not empty.
    """
    try:
        os.rename(path, occupied)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise SpecError(
                "the file system cannot rename this directory (in a container, overlayfs does not "
                "rename directories of the image), so it cannot be set aside; nothing was changed",
                field="store",
                value=str(path),
                remedy="give another path, or copy the directory, remove it, and give the copy its "
                "name",
            ) from error
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
    else:  # a file system that does not look at the new name
        os.rename(occupied, path)
        raise OSError(
            errno.EOPNOTSUPP,
            "the file system renames directories over others that hold something",
            str(path),
        )
