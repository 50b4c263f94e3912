"""The engine ``shardwrite`` of xarray: chunks are whole shards, and this package reads them.

xarray's own engine opens groups, decodes values, and reads what has no shards. It also reads what
steps and arrays select, since it fetches only the inner chunks that hold such elements.

An entry point in ``pyproject.toml`` names this module, so xarray imports it when it first looks for
an engine. What takes long to import is imported later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from inspect import signature
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from xarray import Dataset, Variable
from xarray.backends.zarr import ZarrArrayWrapper, ZarrBackendEntrypoint, ZarrStore
from xarray.core.indexing import LazilyIndexedArray

from shardwrite.errors import CodecError, SpecError

if TYPE_CHECKING:
    import zarr

    from shardwrite.read.array import ShardedArray


class ShardsBackend(ZarrBackendEntrypoint):
    """Engine that opens groups of Zarr, of whose arrays whole shards are chunks."""

    description = "Open Zarr with whole shards as chunks, using shardwrite"
    # xarray takes them from the signature, unless they are told.
    open_dataset_parameters = tuple(signature(ZarrBackendEntrypoint.open_dataset).parameters)

    def guess_can_open(self, filename_or_obj: Any) -> bool:  # noqa: ARG002 (of xarray)
        """Whether to open something without being named: never, since xarray's own engine does."""
        return False

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        group: str | None = None,
        consolidated: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        zarr_format: int | None = None,
        **decoders: Any,
    ) -> Dataset:
        """Open a group, as `xarray.open_dataset` asks for it."""
        opened = _opened(filename_or_obj, storage_options, group, consolidated)
        store = _Store.open_group(
            opened, group=group, consolidated=consolidated, zarr_format=zarr_format
        )
        return super().open_dataset(filename_or_obj, store=store, **decoders)

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        group: str | None = None,
        consolidated: bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
        zarr_format: int | None = None,
        **decoders: Any,
    ) -> dict[str, Dataset]:
        """Open a group and all below it, as `xarray.open_datatree` asks for them."""
        opened = _opened(filename_or_obj, storage_options, group, consolidated)
        top = PurePosixPath("/", group or "")
        stores = _Store.open_store(
            opened, group=str(top), consolidated=consolidated, zarr_format=zarr_format
        )
        found = {}
        for path, store in stores.items():
            name = str(PurePosixPath(path).relative_to(top)) if group else path
            found[name] = super().open_dataset(filename_or_obj, store=store, **decoders)
        return found


def _opened(
    given: Any,
    storage_options: Mapping[str, Any] | None,
    group: str | None,
    consolidated: bool | None,
) -> Any:
    """What zarr-python opens; a bucket is opened by this package.

    - Raises SpecError for a group on a web server whose members nothing tells.
    """
    from zarr import Group

    from shardwrite.place.base import at_url
    from shardwrite.place.target import resolve_place
    from shardwrite.stores.bucket import opened
    from shardwrite.stores.bucket_kinds import is_bucket
    from shardwrite.stores.looking import is_bucket_url, is_session, local_path

    if is_session(given):  # of Icechunk
        return given.store
    if isinstance(given, Group):
        return given.store_path
    if is_bucket(given):
        return opened(given, is_read=True).as_zarr()
    if not isinstance(given, str | os.PathLike):
        return given
    path = local_path(os.fspath(given))
    store = at_url(path, storage_options or {}, is_read=True)
    if not is_bucket_url(path):
        return store
    if not store.lists:
        from shardwrite.read.hierarchy import check_listed

        place = resolve_place(store, group or None, is_read=True)
        check_listed(place, consolidated, field="filename_or_obj")
    return store.as_zarr()


class _Store(ZarrStore):
    """A group, of whose sharded arrays shards are the preferred chunks."""

    __slots__ = ()

    def open_store_variable(self, name: str) -> Variable:
        """See `xarray.backends.ZarrStore`, which calls this for each array."""
        variable: Variable = super().open_store_variable(name)  # type: ignore[no-untyped-call]
        shards = variable.encoding.get("shards")
        if shards is None:
            return variable
        array: Any = self.members[name]
        variable.encoding["preferred_chunks"] = dict(zip(variable.dims, shards, strict=True))
        reader = _reader_of(array)
        if reader is None:
            return variable
        data = LazilyIndexedArray(_Shards(array, reader))
        return Variable(variable.dims, data, variable.attrs, variable.encoding)


def _reader_of(array: zarr.Array[Any]) -> ShardedArray | None:
    """Reader of a sharded array, as its group describes it; None if zarr-python must read it.

    That has codecs, data types and stores that this package does not know. Stores that only one
    process sees cannot be pickled here.
    """
    from zarr.core.buffer import default_buffer_prototype

    from shardwrite.format.node import DOCUMENT
    from shardwrite.place.target import resolve_place
    from shardwrite.read.array import described_by
    from shardwrite.stores.base import Capability

    document = array.metadata.to_buffer_dict(default_buffer_prototype())[DOCUMENT]
    try:
        reader = described_by(document.to_bytes(), resolve_place(array, None, is_read=True))
    except (SpecError, CodecError):
        return None
    is_known = reader.metadata.is_sharded and reader.dtype == array.dtype
    return reader if is_known and Capability.SHARED in reader.store.capabilities else None


class _Shards(ZarrArrayWrapper):
    """An array of which this package reads boxes."""

    __slots__ = ("_reader",)

    def __init__(self, array: zarr.Array[Any], reader: ShardedArray) -> None:
        super().__init__(array)  # type: ignore[no-untyped-call]
        self._reader = reader

    def _getitem(self, key: tuple[Any, ...]) -> Any:
        """Elements that integers and slices select; see `xarray.backends.zarr`."""
        if any(isinstance(k, slice) and k.step not in (None, 1) for k in key):
            return super()._getitem(key)  # type: ignore[no-untyped-call]
        return self._reader[key]
