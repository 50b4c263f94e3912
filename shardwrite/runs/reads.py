"""Which arrays a source reads, as far as its graph tells, and whether one is to be replaced."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from dask.blockwise import Blockwise

from shardwrite.errors import SpecError
from shardwrite.place.target import resolve_place
from shardwrite.read.array import ShardedArray
from shardwrite.runs.array_chunks import ArrayChunks
from shardwrite.runs.job import Job
from shardwrite.sources.zarr_array import ZarrSource
from shardwrite.stores import Store

__all__ = ["check_not_replaced"]

# Readers wrap each other: those of xarray up to five times.
_MAX_DEPTH = 8
_INSIDE = ("array", "_array", "x", "value")


def check_not_replaced(jobs: Sequence[Job]) -> None:
    """Refuse to replace an array that a source reads.

    The old array is set aside before the source is read, and would read as its fill value.

    Raises
    ------
    SpecError
        If a job replaces an array that it, or another of the jobs, reads.
    """
    replaced = [job for job in jobs if job.options.mode == "w" and job.target.is_published]
    if not replaced:
        return
    read = [store for job in jobs for store in _stores_read(job)]
    for job in replaced:
        if any(_is_same(job.target.store, store) for store in read):
            raise SpecError(
                "the source reads the array that it is to replace",
                field="store",
                value=job.target.label,
                remedy="write to another path, or compute the source first",
            )


def _stores_read(job: Job) -> Iterator[Store]:
    """Stores of the Zarr arrays that a job's source reads."""
    if not isinstance(job.source, ArrayChunks):
        return
    for layer in job.source.x.dask.layers.values():
        # Readers are literals of a blockwise layer, or alone in a layer of their own.
        if isinstance(layer, Blockwise):
            literals = [value for value, indices in layer.indices if indices is None]
        else:
            literals = list(layer.values()) if layer.is_materialized() and len(layer) == 1 else []
        for literal in literals:
            yield from _store_of(literal)


def _store_of(reader: Any) -> Iterator[Store]:
    """Store of the array that an object reads, if it reads one."""
    for _ in range(_MAX_DEPTH):
        if isinstance(reader, ShardedArray):
            yield reader.store
            return
        # What cannot be opened as a store here is no place that is written, either.
        with contextlib.suppress(SpecError):
            if isinstance(reader, ZarrSource):
                yield resolve_place(reader.path, reader.dataset or None, is_read=True).store
                return
            if type(reader).__module__.partition(".")[0] == "zarr":
                yield resolve_place(reader, None, is_read=True).store
                return
        inner = vars(type(reader)), getattr(reader, "__dict__", {})
        name = next((name for name in _INSIDE if any(name in known for known in inner)), None)
        if name is None:
            return
        reader = getattr(reader, name)


def _is_same(one: Store, other: Store) -> bool:
    """Whether two stores hold the same objects."""
    directories = [_directory_of(store) for store in (one, other)]
    if None in directories:
        return one.token.rstrip("/") == other.token.rstrip("/")
    return directories[0] == directories[1]


def _directory_of(store: Store) -> str | None:
    """Directory of this machine that holds the objects of a store, if it is known."""
    root = store.local_root
    if root is None:
        return None
    return os.path.realpath(os.path.join(root, getattr(store, "prefix", "")))
