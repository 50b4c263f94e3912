"""Copies of bad shards, kept in ``<array>.quarantine/`` before the shards are replaced."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

from shardwrite.errors import StoreError
from shardwrite.stores import (
    ObjectReader,
    ObjectWriter,
    PosixStore,
    as_store_error,
    make_directories,
)

__all__ = ["copy_bytes", "keep_copy"]

_PIECE_NBYTES = 4 * 2**20


def keep_copy(array: Path, key: str, durability: str) -> str:
    """Keep a copy of a bad shard in the quarantine directory; the shard itself stays.

    Parameters
    ----------
    array : path
        Directory of the array.
    key : str
        Key of the shard.
    durability : str
        See :meth:`shardwrite.stores.Store.transaction`.

    Returns
    -------
    str
        Path of the copy.

    Raises
    ------
    StoreError
        If no copy can be kept.
    """
    directory = array.with_name(array.name + ".quarantine")
    copy = directory / f"{key.replace('/', '.')}.{uuid.uuid4().hex[:8]}"
    with as_store_error(str(copy), "cannot keep a copy as"):
        make_directories(directory, durability, like=array)
        try:
            os.link(array / key, copy, follow_symlinks=False)
        except OSError:  # no hard links here, or none to such a file
            _copy(PosixStore(array), key, PosixStore(directory), copy.name, durability)
    return str(copy)


def _copy(source: PosixStore, key: str, to: PosixStore, name: str, durability: str) -> None:
    reader = source.open(key)
    if reader is None:
        raise StoreError(f"{key!r} is gone", key=key, errno=errno.ENOENT)
    with reader, to.transaction(durability, uuid.uuid4().hex) as transaction:
        writer = transaction.create(name, like=Path(source.path_of(key)))
        copy_bytes(reader, writer, reader.nbytes)
        writer.finish()


def copy_bytes(reader: ObjectReader, writer: ObjectWriter, nbytes: int) -> None:
    """Append the first `nbytes` bytes of one object to another, through this process's memory."""
    for start in range(0, nbytes, _PIECE_NBYTES):
        writer.write([reader.read(start, min(_PIECE_NBYTES, nbytes - start))])
