"""Arrays of 2022, whose shards a storage transformer has made, as sources of values."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from shardwrite._dataclass import dataclass
from shardwrite.format.node import DOCUMENT
from shardwrite.legacy.place import TransformerPlace, hierarchy_of
from shardwrite.legacy.zip import ZippedStore
from shardwrite.place.directory import Directory
from shardwrite.place.target import in_hierarchy, resolve_place
from shardwrite.read.array import ShardedArray, merge_chunks
from shardwrite.read.source import MERGED_NBYTES
from shardwrite.read.stored_array import stored_at
from shardwrite.sources.base import SourceMetadata
from shardwrite.sources.common import choose_dataset, identify, identity_text
from shardwrite.sources.zarr_array import ZarrSource
from shardwrite.stores.looking import is_bucket_url


@dataclass(frozen=True, slots=True)
class TransformerSource(ZarrSource):
    """An array of 2022; `path` is that of its hierarchy, and `dataset` its name in that."""

    def _view(self) -> ShardedArray:
        place = _place(self.path, self.dataset)
        assert place is not None  # it was one when the source was opened
        return stored_at(place).array


def _identity(place: TransformerPlace, path: str) -> str:
    """Identity of an array, which changes when its document is replaced."""
    name, root = place.base.name or None, place.base.hierarchy_root
    if is_bucket_url(path):
        return identity_text("zarr", place.base.token, version=place.base.version(DOCUMENT))
    if root is None:  # in a ZIP file, of which no part is replaced alone
        return identify("zarr", path, dataset=name)
    document = root / place.base.key_below(DOCUMENT)
    return identify("zarr", path, stat_path=str(document), dataset=name)


def _place(path: str, name: str) -> TransformerPlace | None:
    """Place of an array of 2022; None if there is no hierarchy of 2022."""
    if is_bucket_url(path):
        around = resolve_place(path, name or None, is_read=True)
        return around if isinstance(around, TransformerPlace) else None
    if os.path.isfile(path) and zipfile.is_zipfile(path):
        store = ZippedStore(path)
        return TransformerPlace.of(store, name) if hierarchy_of(store) else None
    around = in_hierarchy(Directory(Path(path, name).absolute()))
    return around if isinstance(around, TransformerPlace) else None


def open_in_hierarchy(path: str, name: str) -> TransformerSource | None:
    """Open an array of 2022; only metadata are read.

    - `name`: name of the array; empty for the only one, and if the path has its name.
    - Returns: None if there is no hierarchy of 2022.
    """
    place = _place(path, name)
    if place is None:
        return None
    if not place.has(DOCUMENT):
        asked = place.base.name or None
        array_name = choose_dataset(list(place.base.arrays()), asked, path)
        place = TransformerPlace(place.base.node(array_name))
    array = stored_at(place).array
    document, root = array.metadata.document, place.base.hierarchy_root
    names, grid = document.get("dimension_names"), array.metadata.grid
    if array.metadata.is_sharded:
        chunks = tuple(max(1, min(s, n)) for s, n in zip(grid.shards, grid.shape, strict=True))
    else:
        itemsize = array.metadata.itemsize
        chunks = merge_chunks(grid.chunks, grid.shape, itemsize, target=MERGED_NBYTES)
    is_in_directory = root is not None and not is_bucket_url(path)
    own = str(root) if is_in_directory else path
    return TransformerSource(
        path=own,
        shape=tuple(array.shape),
        dtype=array.dtype,
        chunks=chunks,
        identity=_identity(place, own),
        dataset=place.base.name,
        by_shards=True,
        metadata=SourceMetadata(
            fill_value=array.metadata.fill_value,
            dimension_names=None if names is None else tuple(names),
            attributes=document.get("attributes", {}),
        ),
    )
