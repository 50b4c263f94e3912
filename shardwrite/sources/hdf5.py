"""HDF5 and NetCDF-4 files, on this machine or in a bucket.

Values are read as stored; scale, offset and fill value are not applied.

h5py reads files of this machine. In a bucket, chunks that Zarr can decode are read as ranges of the
file. So are datasets that lie in one piece. Threads then do not wait for the lock of the HDF5
library, or for each other's requests. All other values are read with h5py.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON, without_surrogates
from shardwrite.errors import ShardwriteError, SpecError
from shardwrite.grid import Box
from shardwrite.place.objects import InStore
from shardwrite.read.array import merge_chunks, open_at, slabs
from shardwrite.read.source import as_attributes
from shardwrite.seams import needed
from shardwrite.sources.base import RegionSource, Request, SourceMetadata
from shardwrite.sources.common import (
    FILES,
    choose_dataset,
    digest,
    identify,
    place_of,
    place_text,
    require,
    tell_left_out,
    typed_attributes,
)
from shardwrite.sources.inside import FileInBucket
from shardwrite.sources.raw import in_one_piece
from shardwrite.stores.looking import check_regular

_ReadBox = Callable[[Box], npt.NDArray[Any]]

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
    """One dataset of an HDF5 file, read with h5py."""

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


@dataclass(frozen=True, slots=True)
class Hdf5InBucket(Hdf5Source):
    """One dataset of an HDF5 file in a bucket."""

    def _read(self, box: Box) -> npt.NDArray[Any]:
        read: _ReadBox = FILES.get(f"{self.identity}:ranges", self._reader)
        return np.asarray(read(box))

    def _reader(self) -> _ReadBox:
        """The function by which this process reads values."""
        assert self.file is not None
        if self.dtype.kind == "T":  # texts lie apart from the dataset
            return self._read_by_h5py
        h5py = require("h5py", "hdf5", self.path)
        with reading(self.file) as opened:
            dataset = opened[self.dataset]
            start = dataset.id.get_offset()
            is_plain = h5py.h5t.py_create(dataset.dtype, logical=True) == dataset.id.get_type()
        if start is not None and is_plain:
            piece = in_one_piece(
                self.file, self.shape, self.dtype, int(start), identity=self.identity
            )
            return lambda box: piece[box.slices]
        if self.dtype.kind not in "biufcmM":
            return self._read_by_h5py
        what = "a file of HDF5 in a bucket"
        as_store = needed("file as a store", "hdf5", what, field="source", value=self.path)
        store = as_store(self.file, part=self.dataset)
        if store.copy_limits().why_decoded:
            return self._read_by_h5py
        view = open_at(InStore(store))
        return lambda box: np.asarray(view[box.slices]).astype(self.dtype, copy=False)

    def _read_by_h5py(self, box: Box) -> npt.NDArray[Any]:
        return super(Hdf5InBucket, self)._read(box)  # noqa: UP008 (it has slots)


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
        for file in h5py.h5f.get_obj_ids(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE):
            if file.get_access_plist().get_driver() == h5py.h5fd.fileobj_driver:
                h5py.File(file).close()

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


def _is_dataset(node: Any) -> bool:
    """Whether a node is a dataset that has a shape, which groups do not have."""
    return getattr(node, "shape", None) is not None


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
    names = [
        axis.label or (axis[0].name.rpartition("/")[2] if len(axis) else None)  # its first scale
        for axis in dataset.dims
    ]
    if dataset.is_scale and len(names) == 1 and names[0] is None:
        names = [dataset.name.rpartition("/")[2]]
    return SourceMetadata(
        fill_value=dataset.fillvalue,
        dimension_names=tuple(map(_plain_name, names)) if any(names) else None,
        attributes=attributes_of(dataset, path),
        typed=typed_attributes(dataset.attrs),
    )


def _plain_name(name: str | None) -> str | None:
    return None if name is None else without_surrogates(name)


def open_(request: Request) -> Hdf5Source:
    """Open one dataset of an HDF5 or NetCDF-4 file; see `open_dataset`."""
    place = place_of(request)
    is_in_bucket = isinstance(place, FileInBucket)
    return open_dataset(place, request.dataset, Hdf5InBucket if is_in_bucket else Hdf5Source)


def open_dataset(
    place: str | FileInBucket, wanted: str | None, kind: type[Hdf5Source] = Hdf5Source
) -> Hdf5Source:
    """Open one dataset of a file.

    - `kind`: class of the source.
    - Raises OSError if the file cannot be read, is no HDF5 file, or is damaged (`errno` is then
      None).
    """
    path = place_text(place)
    with reading(place) as file:
        parts = (wanted or "").split("/")
        name = "/".join(part for part in parts if part not in ("", "."))
        if isinstance(place, FileInBucket):
            _check_links(file, name, path)
        # The name may be a link, which the listing does not follow.
        if not (name and name in file and _is_dataset(file[name])):
            names: list[str] = []
            file.visititems(lambda name, node: names.append(name) if _is_dataset(node) else None)
            name = choose_dataset(names, wanted, path)
        dataset = file[name]
        apart = _files_apart(dataset)
        if apart and isinstance(place, FileInBucket):  # the HDF5 library takes it for empty
            raise _elsewhere(name, path)
        shape, dtype, unit = tuple(dataset.shape), np.dtype(dataset.dtype), dataset.chunks
        metadata = metadata_of(dataset, path)
        text = require("h5py", "hdf5", path).check_string_dtype(dtype)
        if text is not None and text.length is None:
            dtype = np.dtypes.StringDType()
            fill = (metadata.fill_value or b"").decode("utf-8")
            metadata = replace(metadata, fill_value=fill)
        is_virtual = dataset.is_virtual
    others = None if isinstance(place, FileInBucket) else _state_of(apart, path, is_virtual)
    size = dtype.itemsize
    return kind(
        path=path,
        shape=shape,
        dtype=dtype,
        chunks=slabs(shape, size) if unit is None else merge_chunks(unit, shape, size),
        identity=identify("hdf5", place, dataset=name, others=others),
        dataset=name,
        metadata=metadata,
        file=place if isinstance(place, FileInBucket) else None,
    )


def _files_apart(dataset: Any) -> list[str]:
    """Names of the files in which values of a dataset lie apart from it, as the dataset has them.

    The dot is a virtual dataset's own file. A name may have a place for a number (``%b``).
    """
    if dataset.is_virtual:
        return sorted({source.file_name for source in dataset.virtual_sources()} | {"."})
    return [name for name, *_ in dataset.external or ()]


def _state_of(names: list[str], path: str, is_virtual: bool) -> str | None:
    """Digest of the states of other files in which values lie; None if there are none.

    Warns
    -----
    UserWarning
        If files of a virtual dataset are missing. The HDF5 library reads the fill value for them.
    """
    others = [name for name in names if name != "."]
    above = (os.path.dirname(path), os.path.dirname(os.path.realpath(path)))
    prefixes = (*above, os.environ.get("HDF5_VDS_PREFIX", ""), "")
    facts: list[object] = []
    missing: list[str] = []
    for name in others:
        found = next(filter(os.path.exists, (os.path.join(p, name) for p in prefixes)), None)
        if found is None and "%" not in name:
            missing.append(name)
        stat = None if found is None else os.stat(found)
        facts += [name, None if stat is None else (stat.st_size, stat.st_mtime_ns)]
    if missing and is_virtual:
        what = f"of {len(others)} files with its values, {len(missing)} are missing"
        what += f", such as {missing[0]!r}"
        tell_left_out(path, [f"{what}; the fill value is read for all that lies in them"])
    return digest(facts) if others else None


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


def _elsewhere(name: str, path: str) -> SpecError:
    return SpecError(
        f"its dataset {name!r} has values in other files, which are not looked for in a bucket",
        field="source",
        value=path,
        remedy="copy all of these files to this machine, and give the copy",
    )
