"""HDF5 and NetCDF-4 files, read with h5py.

Values are read as stored; scale, offset and fill value are not applied.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import JSON
from shardwrite.errors import ShardwriteError
from shardwrite.grid import Box
from shardwrite.sources.base import RegionSource, Request, SourceMetadata
from shardwrite.sources.chunking import merge_chunks, slabs
from shardwrite.sources.common import as_attributes, choose_dataset, identify, require
from shardwrite.sources.handles import FILES

__all__ = ["Hdf5Source", "attributes_of", "metadata_of", "open_", "open_file", "reading"]

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
    """One dataset of an HDF5 file.

    Parameters
    ----------
    dataset : str
        Full name of the dataset in the file.
    """

    dataset: str

    def _read(self, box: Box) -> npt.NDArray[Any]:
        # Threads need no lock: h5py holds its own lock during each call into the library.
        dataset = FILES.get(self.identity, lambda: open_file(self.path)[self.dataset])
        return np.asarray(dataset[box.slices])


def open_file(path: str) -> Any:
    """Open an HDF5 file for reading.

    Raises
    ------
    SpecError
        If h5py is not installed.
    OSError
        If the file cannot be read, or is no HDF5 file (`errno` is then None).
    """
    h5py = require("h5py", "hdf5", path)
    if importlib.util.find_spec("hdf5plugin") is not None:
        importlib.import_module("hdf5plugin")  # registers further filters
    # Some parallel file systems support no locks, and a reader needs none. If the user has set the
    # variable, it decides.
    return h5py.File(
        path, "r", locking=None if "HDF5_USE_FILE_LOCKING" in os.environ else "best-effort"
    )


@contextlib.contextmanager
def reading(path: str) -> Iterator[Any]:
    """Open an HDF5 file for reading, and close it.

    h5py raises errors of many types where a file is damaged, or holds what h5py does not know. Here
    all of them become an OSError without a number, like that about a file which is no HDF5 file.

    Raises
    ------
    SpecError
        If h5py is not installed.
    OSError
        If the file cannot be read, or does not hold what HDF5 says (`errno` is then None).
    """
    with open_file(path) as file:
        try:
            yield file
        except (ShardwriteError, OSError, MemoryError):
            raise
        except Exception as error:
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
    return as_attributes(single, path)


def metadata_of(dataset: Any, path: str) -> SourceMetadata:
    """Fill value, dimension names and attributes of a dataset; see `attributes_of`."""
    names = [_dimension(dimension) for dimension in dataset.dims]
    if dataset.is_scale and len(names) == 1 and names[0] is None:
        names = [dataset.name.rpartition("/")[2]]
    return SourceMetadata(
        fill_value=dataset.fillvalue,
        dimension_names=tuple(names) if any(names) else None,
        attributes=attributes_of(dataset, path),
    )


def _dimension(dimension: Any) -> str | None:
    """Name of an axis: its label, or the name of its first scale; None if it has neither."""
    scale = dimension[0].name.rpartition("/")[2] if len(dimension) else None
    return dimension.label or scale


def open_(request: Request) -> Hdf5Source:
    """Open one dataset of an HDF5 or NetCDF-4 file.

    Parameters
    ----------
    request : Request
        Request with `path`, and with `dataset` if the file holds several datasets.

    Raises
    ------
    SpecError
        If h5py is not installed, or `dataset` does not name a dataset.
    OSError
        If the file cannot be read, is no HDF5 file, or is damaged (`errno` is then None).
    """
    path = os.path.abspath(request.path)
    with reading(path) as file:
        parts = (request.dataset or "").split("/")
        name = "/".join(part for part in parts if part not in ("", "."))
        # The name may be a link, which the listing does not follow.
        if not (name and name in file and getattr(file[name], "shape", None) is not None):
            name = choose_dataset(_datasets(file), request.dataset, path)
        dataset = file[name]
        shape, dtype, unit = tuple(dataset.shape), np.dtype(dataset.dtype), dataset.chunks
        metadata = metadata_of(dataset, path)
    size = dtype.itemsize
    return Hdf5Source(
        path=path,
        shape=shape,
        dtype=dtype,
        chunks=slabs(shape, size) if unit is None else merge_chunks(unit, shape, size),
        identity=identify("hdf5", path, dataset=name),
        dataset=name,
        metadata=metadata,
    )
