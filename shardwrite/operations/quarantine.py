"""Copies of bad shards, kept in ``<array>.quarantine/`` before the shards are replaced.

That directory lies where the run state of the array lies. If that state lies in the array's bucket,
the copies lie there, too, below ``shardwrite-quarantine/`` in the array: the directory of this
process would be removed at its exit.
"""

from __future__ import annotations

import errno
import uuid

from shardwrite.errors import StoreError
from shardwrite.journal import require_trusted_copies
from shardwrite.place.base import QUARANTINE_PREFIX, RUN_SUFFIX
from shardwrite.place.target import Target
from shardwrite.stores import as_store_error, make_directories


def keep_copy(target: Target, key: str, durability: str) -> str:
    """Keep a copy of a bad shard in the quarantine directory; the shard itself stays.

    - Raises UntrustedStateError if the directory is a link, or another user's.
    """
    leaf = f"{key.replace('/', '.')}.{uuid.uuid4().hex[:8]}"
    if target.in_store:
        return _kept_in_bucket(target, key, f"{QUARANTINE_PREFIX}{leaf}", durability)
    beside = target.beside.name.removesuffix(RUN_SUFFIX)
    directory = target.beside.with_name(f"{beside}.quarantine")
    with as_store_error(str(directory), "cannot make"):
        make_directories(directory, durability, like=target.place.rights_like)
    require_trusted_copies(directory)  # anybody may have put it there before
    target.place.keep_copy(key, directory / leaf, durability)
    return str(directory / leaf)


def _kept_in_bucket(target: Target, key: str, leaf: str, durability: str) -> str:
    reader = target.store.open(key)
    if reader is None:
        raise StoreError(f"{key!r} is gone", key=key, errno=errno.ENOENT)
    with reader:
        data = reader.read(0, reader.nbytes)
    target.place.write(leaf, data, durability=durability, attempt=f"{uuid.uuid4().hex}.0")
    return f"{target.label}/{leaf}"
