"""The Zarr array behind what a user has given, so that its encoded inner chunks can be copied."""

from __future__ import annotations

from typing import Any

from shardwrite.errors import SpecError
from shardwrite.place.target import resolve_place
from shardwrite.read.source import ReadsPlaces
from shardwrite.read.stored_array import StoredArray, stored_at

Behind = StoredArray | str | None
"""A stored array whose chunks may pass, or why they do not; None if there is none."""


def behind(x: Any) -> Behind:
    """The stored array that a user has given, or why its chunks are decoded; None without one."""
    try:
        return _stored(x)
    except SpecError as error:
        return error.message


def _stored(x: Any) -> StoredArray | None:
    if isinstance(x, ReadsPlaces):
        for where, name, kind in x.places_read():
            if kind == "array":
                return stored_at(resolve_place(where, name or None, is_read=True))
        return None
    if any(kind.__module__.partition(".")[0] == "zarr" for kind in type(x).__mro__):
        return stored_at(resolve_place(x, None, is_read=True))
    return None
