"""Opens what lies under the name of Zarr: an array of format 2 or 3, or one of 2022."""

from __future__ import annotations

import os

from shardwrite.legacy.source import open_in_hierarchy
from shardwrite.sources.base import Request, Source
from shardwrite.sources.zarr_array import open_ as open_array
from shardwrite.stores.looking import is_bucket_url


def open_(request: Request) -> Source:
    """Open an array; only metadata are read."""
    path = request.path if is_bucket_url(request.path) else os.path.abspath(request.path)
    try:
        return open_array(request)
    except Exception:  # zarr-python has many for a hierarchy that it does not know
        found = open_in_hierarchy(path, (request.dataset or "").strip("/"))
        if found is None:
            raise
        return found
