"""HDF5 and NetCDF-4, read with h5py; values as stored, without scale, offset or fill value."""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Box
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.chunking import merge_chunks, slabs
from shardwrite.sources.common import choose_dataset, identify, require
from shardwrite.sources.handles import FILES

__all__ = ["Hdf5Source", "open_"]


@dataclass(frozen=True, slots=True)
class Hdf5Source(RegionSource):
    """One dataset of an HDF5 file.

    Parameters
    ----------
    dataset : str
        Its name from the root of the file.
    """

    dataset: str

    def _read(self, box: Box) -> npt.NDArray[Any]:
        # h5py has a lock of its own around each call into the library
        dataset = FILES.get(self.identity, lambda: _file(self.path)[self.dataset])
        return np.asarray(dataset[box.slices])


def _file(path: str) -> Any:
    h5py = require("h5py", "hdf5", path)
    if importlib.util.find_spec("hdf5plugin") is not None:
        importlib.import_module("hdf5plugin")  # registers further filters
    # Some parallel file systems know no locks, and a reader can do without; who set the variable decides.
    return h5py.File(
        path, "r", locking=None if "HDF5_USE_FILE_LOCKING" in os.environ else "best-effort"
    )


def _datasets(file: Any) -> list[str]:
    names: list[str] = []
    # a group has "keys", a dataset has a shape; visititems goes through all below the root
    file.visititems(
        lambda name, item: (
            names.append(name) if hasattr(item, "shape") and item.shape is not None else None
        )
    )
    return names


def open_(request: Request) -> Source:
    """Open one dataset of an HDF5 or NetCDF-4 file.

    Parameters
    ----------
    request : Request
        With `path`, and with `dataset` where the file holds several.
    """
    path = os.path.abspath(request.path)
    with _file(path) as file:
        name = (request.dataset or "").strip("/")
        # a name may be a link, which the listing does not follow
        if not (name and name in file and getattr(file[name], "shape", None) is not None):
            name = choose_dataset(_datasets(file), request.dataset, path)
        dataset = file[name]
        shape, dtype, unit = tuple(dataset.shape), np.dtype(dataset.dtype), dataset.chunks
    size = dtype.itemsize
    return Hdf5Source(
        path=path,
        shape=shape,
        dtype=dtype,
        chunks=slabs(shape, size) if unit is None else merge_chunks(unit, shape, size),
        identity=identify("hdf5", path, dataset=name),
        dataset=name,
    )
