"""What dask's functions of Zarr arrays call by other words: a component, and options of a URL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shardwrite.config.table import STORAGE
from shardwrite.config.values import value_of
from shardwrite.errors import SpecError
from shardwrite.stores import is_bucket_url, open_bucket

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(::|://)")
_LOCAL = ("file", "local")
_KIND = "precomputed://"


def named(name: str | None, component: str | None) -> str | None:
    """Path of the array in its store, from the two words for it."""
    if component is None:
        return name
    if name is not None and name != component:
        raise SpecError(
            f"is another word for name, and name={name!r} is given, too",
            field="component",
            value=component,
            remedy="give one of the two",
        )
    return component


def without_kind(path: Any) -> Any:
    """The address of a volume without ``precomputed://``, by which Neuroglancer tells its kind.

    Examples
    --------
    >>> from shardwrite.place.url import without_kind
    >>> without_kind("precomputed://s3://bucket/volume"), without_kind("volume")
    ('s3://bucket/volume', 'volume')
    """
    return path.removeprefix(_KIND) if isinstance(path, str) else path


def at_url(store: Any, storage_options: Mapping[str, Any] | None, *, is_read: bool = False) -> Any:
    """The store at a URL, opened with options of obstore for a bucket, else with those of fsspec.

    - `storage_options`: the options. Without them, `store` is returned as it is. The path of a
      directory needs none and is returned as it is, too.
    - `is_read`: whether the store will only be read.
    """
    if storage_options is None:
        return store
    if not isinstance(storage_options, Mapping):
        raise _refused("not a mapping", "storage_options", type(storage_options).__name__)
    if not isinstance(store, str):
        if storage_options and not hasattr(store, "__fspath__"):
            raise SpecError(
                "is for a URL, and the store is no URL",
                field="storage_options",
                value=sorted(map(str, storage_options)),  # the values may be credentials
                remedy="leave it out: a store has its options already",
            )
        return store
    if is_bucket_url(store):
        known = value_of(STORAGE)
        return open_bucket(store, {**known, **storage_options}, is_read=is_read)
    url = _URL.match(store)
    if url is None or url[1].lower() in _LOCAL:
        return store
    # zarr is imported late, because its import takes long.
    from zarr.storage import FsspecStore

    try:
        return FsspecStore.from_url(store, storage_options=dict(storage_options), read_only=is_read)
    except (ImportError, TypeError, ValueError, OSError) as error:
        raise _refused(f"cannot be opened ({error})", "store", store) from None


def _refused(why: str, field: str, value: Any) -> SpecError:
    remedy = "give what fsspec needs for this protocol, such as {'anon': True}, or a store of zarr"
    return SpecError(why, field=field, value=value, remedy=remedy)
