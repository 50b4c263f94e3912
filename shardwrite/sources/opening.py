"""Files that hold arrays whose chunks can be copied, and which store reads them."""

from __future__ import annotations

import os
import zipfile
from typing import Any

from shardwrite.errors import SpecError
from shardwrite.legacy.place import TransformerPlace, hierarchy_of
from shardwrite.legacy.zip import ZippedStore
from shardwrite.place.base import Place, without_kind
from shardwrite.place.objects import InStore
from shardwrite.place.target import is_zip_store, resolve_place
from shardwrite.seams import resolve
from shardwrite.sources.common import first_names
from shardwrite.sources.inside import InsideStore
from shardwrite.sources.registry import guess, guess_in_bucket, is_named_as_file
from shardwrite.stores.looking import as_store_error, is_bucket_url, local_path, opened

_ZIP = b"PK\x03\x04"


def place_of(source: Any) -> Place:
    """Place of an array or group that exists: in a directory, in a store, or in a file.

    - `source`: as for :func:`shardwrite.shard`; ``file::path`` names a part of an HDF5, NetCDF-4 or
      ZIP file. A `zarr.storage.ZipStore` stands for its file. In a bucket, files of HDF5 and
      NetCDF-4 are read. The address of a volume may begin with ``precomputed://``.
    """
    try:
        return _place_of(source)
    except SpecError as error:
        if error.fields["field"] != "store":
            raise
        value, remedy = error.fields["value"], error.fields["remedy"]
        raise SpecError(error.message, field="src", value=value, remedy=remedy) from None


def _place_of(source: Any) -> Place:
    source = without_kind(source)
    path, name = _split(source)
    if path is None:
        return resolve_place(source, None, is_read=True)
    if not is_bucket_url(path) and os.path.isdir(path):
        return resolve_place(path, name, is_read=True)
    store: InsideStore
    if is_bucket_url(path):
        kind, file = guess_in_bucket(path)
        if file is None:
            return resolve_place(path, name or None, is_read=True)
        if kind != "hdf5":
            raise _refused(path, kind)
        store = resolve("file as a store", "hdf5")(file)
    elif (kind := guess(path)) == "hdf5":
        store = resolve("file as a store", "hdf5")(path)
    elif kind in (None, "zarr") and _begins_as_zip(path):
        store = ZippedStore(path)
        if hierarchy_of(store):
            return TransformerPlace.of(store, name)
    else:
        raise _refused(path, kind)
    if not name:
        _check_root(store)
        return InStore(store)
    return InStore(store, _checked(store, name))


def _split(source: Any) -> tuple[str | None, str]:
    """A file, and the name of a part of it; None if the source is no file."""
    node = getattr(source, "store_path", source)  # of a group or an array of zarr-python
    store = getattr(node, "store", node)
    if is_zip_store(store):
        return os.fspath(store.path), "" if node is store else node.path
    if not isinstance(source, str | os.PathLike) or not isinstance(os.fspath(source), str):
        return None, ""
    path, name = local_path(os.fspath(source), "src"), ""
    if "::" in path and not os.path.exists(path):
        path, _, name = path.rpartition("::")
    if is_bucket_url(path):
        return (path, name.strip("/")) if name or is_named_as_file(path) else (None, "")
    name = name.strip("/")
    return (path, name) if os.path.isfile(path) or (name and os.path.isdir(path)) else (None, "")


def _refused(path: str, kind: str | None) -> SpecError:
    if kind == "zarr" and is_bucket_url(path):
        return SpecError(
            "a ZIP file is not read from a bucket",
            field="src",
            value=path,
            remedy="copy it to this machine, and give the copy",
        )
    return SpecError(
        "a file whose chunks cannot be copied" if kind else "a file of an unknown format",
        field="src",
        value=path,
        remedy="use shardwrite write, which reads values, or give a directory, or a file of "
        "HDF5 or NetCDF-4, or a ZIP file",
    )


def _begins_as_zip(path: str) -> bool:
    """Whether a file is a ZIP file, or the beginning of one; something may stand before it."""
    with as_store_error(path, "cannot read"):
        fd = opened(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, len(_ZIP), 0) == _ZIP or zipfile.is_zipfile(path)
        finally:
            os.close(fd)


def _check_root(store: InsideStore) -> None:
    """Refuse a file whose nodes all lie in a part of it that is no node."""
    nodes = [node for node, _ in store.nodes()]
    if "" not in nodes:
        raise SpecError(
            f"holds no Zarr array or group at its top, but there is {nodes[0]!r}",
            field="src",
            value=repr(store),
            remedy=f"give {store!r}::{nodes[0]}",
        )


def _checked(store: InsideStore, name: str) -> str:
    """Name of a part of a file, which must be there."""
    names = [node for node, _ in store.nodes() if node]
    if name in names:
        return name
    why = dict(store.contents.left_out).get(name)
    raise SpecError(
        f"it is {why}" if why else f"there is no such array or group in {store!r}",
        field="src",
        value=name,
        remedy=f"choose one of: {first_names(names)}" if names else "give a file with an array",
    )
