"""The Zarr array behind what a user has given, so that its encoded inner chunks can be copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardwrite.place.target import resolve_place
from shardwrite.read.stored_array import StoredArray, stored_at
from shardwrite.sources.zarr_array import ZarrSource
from shardwrite.stores import is_bucket_url, is_file


def stored_behind(x: Any) -> StoredArray | None:
    """The stored array that a user has given, or None if `x` is anything else."""
    if isinstance(x, ZarrSource):
        if not is_bucket_url(x.path) and is_file(Path(x.path)):
            return None  # a zip file
        return stored_at(resolve_place(x.path, x.dataset or None, is_read=True))
    if any(kind.__module__.partition(".")[0] == "zarr" for kind in type(x).__mro__):
        return stored_at(resolve_place(x, None, is_read=True))
    return None
