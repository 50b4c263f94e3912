"""Sources as dask arrays."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

import shardwrite._dask as dask
from shardwrite.sources.base import Source
from shardwrite.sources.chunking import normalize

__all__ = ["as_dask"]


def as_dask(source: Source, chunks: Any = None) -> dask.array.Array:
    """A dask array over a source; building it reads nothing.

    Parameters
    ----------
    source : Source
        What to read.
    chunks : optional
        Chunks in place of those of the source, as dask takes them.

    Returns
    -------
    dask.array.Array
        Its name follows from the identity of the source and the chunks alone.
    """
    full = normalize(
        source.chunks if chunks is None else chunks, source.shape, source.dtype, source.chunks
    )
    token = hashlib.sha256(
        f"{source.identity}\n{full}".encode("utf-8", "surrogateescape")
    ).hexdigest()[:32]
    meta = np.empty((0,) * len(source.shape), source.dtype)
    # Inlined: as a task of its own, the source would be sent around, and every read would wait for it.
    # Fancy: dask fuses slices into the read only where lists may be fused too; the sources take them.
    array: dask.array.Array = dask.array.from_array(
        source, full, name=f"source-{token}", asarray=True, fancy=True, meta=meta, inline_array=True
    )
    return array
