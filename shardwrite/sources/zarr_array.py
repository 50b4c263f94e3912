"""Zarr arrays of formats 2 and 3, sharded or not, and those of 2022 that a wing opens."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.node import (
    ATTRIBUTES_OF_V2,
    CONSOLIDATED_OF_V2,
    DOCUMENT,
    DOCUMENTS_OF_V2,
    kind_of_document,
)
from shardwrite.format.sharding import why_kept
from shardwrite.grid import Box
from shardwrite.read.array import ShardedArray, open_sharded
from shardwrite.read.source import metadata_of, natural_chunks
from shardwrite.read.stored_array import check_names_in
from shardwrite.seams import all_of
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.common import FILES, choose_dataset, identify, identity_text
from shardwrite.stores.bucket_url import open_bucket
from shardwrite.stores.directories import walk
from shardwrite.stores.looking import (
    check_regular,
    is_bucket_url,
    parse_json,
    read_file,
    read_limit,
)
from shardwrite.stores.opening import open_store


@dataclass(frozen=True, slots=True)
class ZarrSource(RegionSource):
    """A Zarr array in a directory, a zip file or a bucket."""

    dataset: str  # path of the array in the hierarchy; empty if `path` is the array
    by_shards: bool  # whether this package reads it, and opens each shard once; else zarr-python

    def places_read(self) -> Iterator[tuple[Any, str, str]]:
        """See :class:`~shardwrite.sources.protocol.ReadsPlaces`; an array in a ZIP file is none."""
        is_file = not is_bucket_url(self.path) and os.path.isfile(self.path)
        yield self.path, self.dataset, "file" if is_file else "array"

    def _read(self, box: Box) -> npt.NDArray[Any]:
        if self.by_shards:
            view: ShardedArray = FILES.get(f"{self.identity}:shards", self._view)
            return view.read_box(box)
        array = FILES.get(self.identity, lambda: _node(self.path, self.dataset))
        if os.path.isdir(self.path):
            self._check_chunks(array, box)
        return np.asarray(array[box.slices])

    def _check_chunks(self, array: Any, box: Box) -> None:
        """Refuse chunks that are no regular files, for which zarr-python would wait."""
        sizes = array.shards or array.chunks
        ranges = [
            range(a // n, -(-b // n)) for a, b, n in zip(box.start, box.stop, sizes, strict=True)
        ]
        for at in itertools.product(*ranges):
            key = array.metadata.encode_chunk_key(at)
            check_regular(os.path.join(self.path, self.dataset, key))

    def _view(self) -> ShardedArray:
        """The array, open for reading by this package."""
        return open_sharded(self.path, self.dataset or None)


def _node(path: str, dataset: str) -> Any:
    store: Any = path
    if is_bucket_url(path):
        store = open_bucket(path, is_read=True).as_zarr()
    elif os.path.isfile(path):
        store = zarr.storage.ZipStore(path, mode="r")
    else:
        _check_documents(os.path.join(path, dataset))
    return zarr.open(store, mode="r", path=dataset or None)


def _check_documents(directory: str) -> None:
    """Refuse documents that are no regular files, for which zarr-python would wait."""
    for leaf in (DOCUMENT, *DOCUMENTS_OF_V2, ATTRIBUTES_OF_V2, CONSOLIDATED_OF_V2):
        check_regular(os.path.join(directory, leaf), read_limit())


def _refuse_scale(path: str, dataset: str) -> None:
    """Refuse the directory of a scale of a volume, which no reader of Zarr reads."""
    try:
        opened = open_store(path, is_read=True)
        store = opened.store.at("/".join(filter(None, (opened.path, dataset))))
        data = store.read_whole(DOCUMENT, read_limit())
    except StoreError:  # why the source was not opened is told
        return
    try:
        document = None if data is None else parse_json(data)
    except ValueError:
        return
    if isinstance(document, dict) and why_kept(document):
        volume, _, key = "/".join(filter(None, (path.rstrip("/"), dataset))).rpartition("/")
        raise SpecError(
            "it is a scale of a volume of Neuroglancer",
            field="source",
            value=path,
            remedy=f"give the volume and its scale: {volume}::{key}",
        )


def _find(path: str, dataset: str) -> tuple[Any, str]:
    try:
        node = _node(path, dataset)
    except FileNotFoundError:
        node = None
    if isinstance(node, zarr.Array):
        return node, dataset
    group = node if node is not None or not dataset else _node(path, "")
    if group is None:
        raise SpecError(
            "there is no Zarr array or group",
            field="source",
            value=path,
            remedy="give the directory with zarr.json, or its URL",
        )
    if isinstance(group, zarr.Array):
        raise SpecError(
            "it is a Zarr array, and holds no others",
            field="dataset",
            value=dataset,
            remedy="leave it out",
        )
    above = "" if node is None else dataset
    if os.path.isdir(path):
        for directory, names, leaves in walk(Path(path, above)):
            _check_documents(directory)
            data = read_file(os.path.join(directory, DOCUMENT)) if DOCUMENT in leaves else None
            is_array = DOCUMENTS_OF_V2[0] in leaves
            with contextlib.suppress(ValueError):  # zarr-python says what is wrong
                is_array |= data is not None and kind_of_document(parse_json(data)) == "array"
            if is_array:
                names.clear()
    arrays = [
        f"{above}/{name}".lstrip("/")
        for name, item in group.members(max_depth=None)
        if isinstance(item, zarr.Array)
    ]
    name = choose_dataset(arrays, None if node is not None else dataset, path)
    return _node(path, name), name


def _identity(path: str, dataset: str) -> str:
    documents = [os.path.join(path, dataset, name) for name in (DOCUMENT, DOCUMENTS_OF_V2[0])]
    stat_path = next(filter(os.path.isfile, documents), None)
    return identify("zarr", path, stat_path=stat_path, dataset=dataset or None)


def _identity_in_bucket(url: str, dataset: str) -> str:
    """Identity of an array in a bucket, which changes when its document is replaced."""
    store = open_bucket(url, is_read=True).at(dataset)
    versions = (store.version(name) for name in (DOCUMENT, DOCUMENTS_OF_V2[0]))
    version = next((version for version in versions if version is not None), None)
    return identity_text("zarr", store.url, version=version)


def open_(request: Request) -> Source:
    """Open a Zarr array; only metadata are read.

    For a directory, the identity is based on the metadata document of the array. It does not change
    when chunks are overwritten.
    """
    is_url = is_bucket_url(request.path)
    path = request.path if is_url else os.path.abspath(request.path)
    wanted = (request.dataset or "").strip("/")
    try:
        array, dataset = _find(path, wanted)
    except Exception:  # zarr-python has many for a hierarchy that it does not know
        for open_other in all_of("source in hierarchy"):
            source: Source | None = open_other(path, wanted)
            if source is not None:
                return source
        _refuse_scale(path, wanted)
        raise
    is_file = not is_url and not os.path.isdir(path)
    if not is_file:
        check_names_in(path, dataset or None)
    return ZarrSource(
        path=path,
        shape=tuple(array.shape),
        dtype=np.dtype(array.dtype),
        chunks=natural_chunks(array),
        identity=(_identity_in_bucket if is_url else _identity)(path, dataset),
        dataset=dataset,
        by_shards=array.shards is not None and not is_file,
        metadata=metadata_of(array),
    )
