"""Copies of bad shards, kept in ``<array>.quarantine/`` before the shards are replaced.

That directory lies where the run state of the array lies.
"""

from __future__ import annotations

import uuid

from shardwrite.place.base import RUN_SUFFIX
from shardwrite.place.target import Target

__all__ = ["keep_copy"]


def keep_copy(target: Target, key: str, durability: str) -> str:
    """Keep a copy of a bad shard in the quarantine directory; the shard itself stays.

    Parameters
    ----------
    target : Target
        The array.
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
    beside = target.beside.name.removesuffix(RUN_SUFFIX)
    directory = target.beside.with_name(f"{beside}.quarantine")
    copy = directory / f"{key.replace('/', '.')}.{uuid.uuid4().hex[:8]}"
    target.place.keep_copy(key, copy, durability)
    return str(copy)
