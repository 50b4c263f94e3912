"""Copies of bad shards, kept in ``<array>.quarantine/`` before the shards are replaced."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from shardwrite.stores import as_store_error, copy_file, make_directories

__all__ = ["keep_copy"]


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
            copy_file(array / key, copy, durability)
    return str(copy)
