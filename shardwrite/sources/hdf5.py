"""HDF5 and NetCDF-4 files, read with h5py.

Values are read as stored; scale, offset and fill value are not applied.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import JSON
from shardwrite.errors import ShardwriteError, SpecError
from shardwrite.grid import Box
from shardwrite.read.source import as_attributes, typed_attributes
from shardwrite.sources.base import RegionSource, Request, SourceMetadata
from shardwrite.sources.common import (
    FILES,
    choose_dataset,
    identify,
    merge_chunks,
    place_of,
    place_text,
    require,
    slabs,
)
from shardwrite.sources.inside import FileInBucket
from shardwrite.stores.looking import check_regular

_NUMBER = re.compile(r"\berrno = (\d+)")  # in what HDF5 says of a call that failed
_MOST_LINKS = 64  # in a row; the HDF5 library follows 16
# Attributes by which the libraries of HDF5 and NetCDF-4 keep dimensions, and their own version.
_OF_LIBRARIES = {
    "CLASS",
    "DIMENSION_LABELS",
    "DIMENSION_LIST",
    "NAME",
    "REFERENCE_LIST",
    "_NCProperties",
    "_Netcdf4Coordinates",
    "_Netcdf4Dimid",
    "_nc3_strict",
}


@dataclass(frozen=True, slots=True)
class Hdf5Source(RegionSource):
    """One dataset of an HDF5 file."""

    dataset: str  # full name of the dataset in the file
    # The file, if it lies in a bucket
    file: FileInBucket | None = field(kw_only=True, default=None)

    def _read(self, box: Box) -> npt.NDArray[Any]:
        # Threads need no lock: h5py holds its own lock during each call into the library.
        if self.file is not None:  # all datasets share its blocks
            file = FILES.get(f"hdf5:{self.file}", lambda: open_file(self.file or self.path))
            dataset = file[self.dataset]
        else:
            dataset = FILES.get(self.identity, lambda: open_file(self.path)[self.dataset])
        if self.dtype.kind != "T":
            return np.asarray(dataset[box.slices])
        # Many programs write UTF-8 where the file says ASCII, which is a part of it.
        return np.asarray(dataset.asstr("utf-8")[box.slices], self.dtype)


def open_file(path: str | FileInBucket) -> Any:
    """Open an HDF5 file for reading.

    - Raises OSError if the file cannot be read, or is no HDF5 file (`errno` is then None).
    """
    h5py = require("h5py", "hdf5", place_text(path))
    if importlib.util.find_spec("hdf5plugin") is not None:
        importlib.import_module("hdf5plugin")  # registers further filters
    if isinstance(path, FileInBucket):
        _close_at_exit(h5py)
        return h5py.File(path.stream(), "r")
    check_regular(path)
    # Some parallel file systems support no locks, and a reader needs none. If the user has set the
    # variable, it decides.
    return h5py.File(
        path, "r", locking=None if "HDF5_USE_FILE_LOCKING" in os.environ else "best-effort"
    )


@functools.cache
def _close_at_exit(h5py: Any) -> None:
    """Have files be closed in time that are read through objects of Python.

    The HDF5 library closes files when the process ends. Then their objects are gone, and it fails.
    """

    def close() -> None:
        for found in h5py.h5f.get_obj_ids(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE):
            if found.get_access_plist().get_driver() == h5py.h5fd.fileobj_driver:
                h5py.File(found).close()

    atexit.register(close)


@contextlib.contextmanager
def reading(path: str | FileInBucket) -> Iterator[Any]:
    """Open an HDF5 file for reading, and close it.

    h5py raises errors of many types where a file is damaged, or holds what h5py does not know. Here
    all of them become an OSError without a number, like that about a file which is no HDF5 file.

    - Raises OSError if the file cannot be read, or does not hold what HDF5 says (`errno` is then
      None).
    """
    try:
        with open_file(path) as file:
            yield file
    except (ShardwriteError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        number = _NUMBER.search(str(error))
        if number is not None:  # the system refuses, and the file may be good
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise OSError(str(error)) from error


def _datasets(file: Any) -> list[str]:
    names: list[str] = []
    # Of the items below the root, datasets have a shape, and groups do not.
    file.visititems(
        lambda name, item: (
            names.append(name) if hasattr(item, "shape") and item.shape is not None else None
        )
    )
    return names


def attributes_of(node: Any, path: str) -> dict[str, JSON]:
    """Attributes of a dataset or group as values that JSON can hold.

    Warns
    -----
    UserWarning
        If JSON cannot hold a value, which is then left out.
    """
    attributes = {name: value for name, value in node.attrs.items() if name not in _OF_LIBRARIES}
    # NetCDF-4 keeps text and single numbers as arrays of one element.
    single = {
        name: value[0] if getattr(value, "shape", None) == (1,) else value
        for name, value in attributes.items()
    }
    return as_attributes(single, path, getattr(node, "dtype", None))


def metadata_of(dataset: Any, path: str) -> SourceMetadata:
    """Fill value, dimension names and attributes of a dataset; see `attributes_of`."""
    names = [_dimension(dimension) for dimension in dataset.dims]
    if dataset.is_scale and len(names) == 1 and names[0] is None:
        names = [dataset.name.rpartition("/")[2]]
    return SourceMetadata(
        fill_value=dataset.fillvalue,
        dimension_names=tuple(names) if any(names) else None,
        attributes=attributes_of(dataset, path),
        typed=typed_attributes(dataset.attrs),
    )


def _dimension(dimension: Any) -> str | None:
    """Name of an axis: its label, or the name of its first scale; None if it has neither."""
    scale = dimension[0].name.rpartition("/")[2] if len(dimension) else None
    return dimension.label or scale


def open_(request: Request) -> Hdf5Source:
    """Open one dataset of an HDF5 or NetCDF-4 file.

    - Raises OSError if the file cannot be read, is no HDF5 file, or is damaged (`errno` is then
      None).
    """
    return open_dataset(place_of(request), request.dataset)


def open_dataset(place: str | FileInBucket, wanted: str | None) -> Hdf5Source:
    """Open one dataset of a file; see `open_`."""
    path = place_text(place)
    with reading(place) as file:
        parts = (wanted or "").split("/")
        name = "/".join(part for part in parts if part not in ("", "."))
        if isinstance(place, FileInBucket):
            _check_links(file, name, path)
        # The name may be a link, which the listing does not follow.
        if not (name and name in file and getattr(file[name], "shape", None) is not None):
            name = choose_dataset(_datasets(file), wanted, path)
        dataset = file[name]
        if isinstance(place, FileInBucket):
            _check_inside(dataset, name, path)
        shape, dtype, unit = tuple(dataset.shape), np.dtype(dataset.dtype), dataset.chunks
        metadata = metadata_of(dataset, path)
        text = require("h5py", "hdf5", path).check_string_dtype(dtype)
        if text is not None and text.length is None:
            dtype = np.dtypes.StringDType()
            fill = (metadata.fill_value or b"").decode("utf-8")
            metadata = replace(metadata, fill_value=fill)
    size = dtype.itemsize
    return Hdf5Source(
        path=path,
        shape=shape,
        dtype=dtype,
        chunks=slabs(shape, size) if unit is None else merge_chunks(unit, shape, size),
        identity=identify("hdf5", place, dataset=name),
        dataset=name,
        metadata=metadata,
        file=place if isinstance(place, FileInBucket) else None,
    )


def _check_links(file: Any, name: str, path: str) -> None:
    """Refuse a name that leads into another file, for which the HDF5 library takes this one."""
    h5py = require("h5py", "hdf5", path)
    node, parts, n_links = file, [*filter(None, name.split("/"))], 0
    while parts and isinstance(node, h5py.Group) and n_links < _MOST_LINKS:
        part = parts.pop(0)
        try:
            kind = node.id.links.get_info(part.encode()).type
        except KeyError:
            return
        if kind == h5py.h5l.TYPE_EXTERNAL:
            raise _elsewhere(name, path)
        if kind == h5py.h5l.TYPE_SOFT:
            target = node.id.links.get_val(part.encode()).decode()
            node, n_links = file if target.startswith("/") else node, n_links + 1
            parts = [*filter(None, target.split("/")), *parts]
        else:
            node = node[part]


def _check_inside(dataset: Any, name: str, path: str) -> None:
    """Refuse a dataset whose values lie in other files, which the HDF5 library takes for empty."""
    if dataset.is_virtual or dataset.id.get_create_plist().get_external_count():
        raise _elsewhere(name, path)


def _elsewhere(name: str, path: str) -> SpecError:
    return SpecError(
        f"its dataset {name!r} has values in other files, which are not looked for in a bucket",
        field="source",
        value=path,
        remedy="copy all of these files to this machine, and give the copy",
    )
