"""Versions of the objects of an array, to tell later which of them were replaced or changed."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from shardwrite.engines import Engine
from shardwrite.grid import unravel
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import of_objects


def object_versions(
    engine: Engine, array: ShardedArray, ranks: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Digests of the versions of some objects, by :meth:`Readable.version`.

    - `ranks`: int64, shape (n,). Row-major ranks of the shards.
    """
    return of_objects(engine, array, ranks, _versions_of)


def _versions_of(array: ShardedArray, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    metadata, store = array.metadata, array.store
    keys = (metadata.shard_key(unravel(rank, metadata.grid.counts)) for rank in ranks.tolist())
    return np.array([_digest(store.version(key)) for key in keys], dtype=np.int64)


def _digest(version: object) -> int:
    """A number for a version, the same one in every process."""
    if version is None:
        return 0
    found = hashlib.blake2b(repr(version).encode(), digest_size=8).digest()
    return int.from_bytes(found, "little", signed=True) or 1
