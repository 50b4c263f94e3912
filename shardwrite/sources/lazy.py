"""Sources as dask arrays."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np

import shardwrite._dask as dask
from shardwrite.errors import SpecError
from shardwrite.grid import ceil_div
from shardwrite.plan.limits import MAX_SHARDS
from shardwrite.read.chunking import normalize
from shardwrite.sources.base import Source


def as_dask(source: Source, chunks: Any = None) -> dask.array.Array:
    """Dask array that reads from a source; its construction reads nothing."""
    _check_number(source)
    full = normalize(
        source.chunks if chunks is None else chunks, source.shape, source.dtype, source.chunks
    )
    token = hashlib.sha256(
        f"{source.identity}\n{full}".encode("utf-8", "surrogateescape")
    ).hexdigest()[:32]
    meta = np.empty((0,) * len(source.shape), source.dtype)
    # inline_array: as a task of its own, the source would be sent between workers, and every read
    # would wait for it. fancy: dask fuses slices into a read only if it may fuse lists too, which
    # all sources accept.
    array: dask.array.Array = dask.array.from_array(
        source, full, name=f"source-{token}", asarray=True, fancy=True, meta=meta, inline_array=True
    )
    return array


def _check_number(source: Source) -> None:
    """Refuse a source that claims a shape of too many chunks, before dask makes a list of them."""
    n_chunks = math.prod(
        len(size) if isinstance(size, tuple) else ceil_div(n, max(1, size))
        for n, size in zip(source.shape, source.chunks, strict=True)
    )
    if n_chunks > MAX_SHARDS:
        raise SpecError(
            f"it would be read in {n_chunks:,} pieces, and at most {MAX_SHARDS:,} are possible",
            field="shape",
            value=source.shape,
            remedy="check the metadata of the source",
        )
