"""The plugin that puts shardwrite's conversions in the place of those of zarr-vectors."""

from __future__ import annotations

from redirecting import Redirection
from zarr.storage import MemoryStore

import shardwrite

here = Redirection({})


def _in_place(function, store, *arguments):
    """Convert what zarr-vectors takes: a path, or a handle of a store."""
    here.counts[function.__name__] += 1
    if not hasattr(store, "zarr_group"):
        return function(store, *arguments)
    memory = store.zarr_group.store
    if not isinstance(memory, MemoryStore):
        return function(memory.root, *arguments)
    # Only directories are converted in place. What is in memory goes to another store and back.
    here.counts["in memory"] += 1
    other = MemoryStore()
    done = shardwrite.reshard(memory, other, *(arguments or (None,)), min_chunks=0)
    memory._store_dict.clear()
    memory._store_dict.update(other._store_dict)
    return done


def shard_store(store_path, *, shard_shape=8):
    return _in_place(shardwrite.shard_store, store_path, shard_shape)


def unshard_store(store_path):
    return _in_place(shardwrite.unshard_store, store_path)


def reshard(store_path, shard_shape):
    return _in_place(shardwrite.reshard, store_path, shard_shape)


def pytest_configure():
    from zarr_vectors import building, sharding
    from zarr_vectors.sharding import io

    for ours in (shard_store, unshard_store, reshard):
        for module in (building, sharding, io):
            assert hasattr(module, ours.__name__)
            setattr(module, ours.__name__, ours)


def pytest_sessionfinish():
    here.tell()
