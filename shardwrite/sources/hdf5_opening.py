"""HDF5 and NetCDF-4 files, on this machine or in a bucket.

h5py reads files of this machine. In a bucket, chunks that Zarr can decode are read as ranges of the
file. So are datasets that lie in one piece. Threads then do not wait for the lock of the HDF5
library, or for each other's requests. All other values are read with h5py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Box
from shardwrite.hdf5.reading import Hdf5Store
from shardwrite.place.objects import InStore
from shardwrite.read.array import open_at
from shardwrite.sources import hdf5
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.common import FILES, RangedSource, require

_Read = Callable[[tuple[slice, ...]], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Hdf5InBucket(RegionSource):
    """One dataset of an HDF5 file in a bucket."""

    values: hdf5.Hdf5Source  # the dataset as h5py reads it

    def _read(self, box: Box) -> npt.NDArray[Any]:
        read: _Read = FILES.get(f"{self.identity}:ranges", self._reader)
        return np.asarray(read(box.slices))

    def _reader(self) -> _Read:
        """The function by which this process reads values."""
        if self.dtype.kind == "T":  # texts lie apart from the dataset
            return self.values.__getitem__
        found = self._in_one_piece() or self._by_chunks()
        return self.values.__getitem__ if found is None else found

    def _in_one_piece(self) -> _Read | None:
        """How values are read that lie in one piece, as they are."""
        file = self.values.file
        assert file is not None
        h5py = require("h5py", "hdf5", self.path)
        with hdf5.reading(file) as opened:
            dataset = opened[self.values.dataset]
            start = dataset.id.get_offset()
            is_plain = h5py.h5t.py_create(dataset.dtype, logical=True) == dataset.id.get_type()
        if start is None or not is_plain:
            return None
        return RangedSource(
            path=self.path,
            shape=self.shape,
            dtype=self.dtype,
            chunks=self.chunks,
            identity=self.identity,
            file=file,
            stored=self.dtype,
            offset=int(start),
            order="C",
        ).__getitem__

    def _by_chunks(self) -> _Read | None:
        """How chunks are read that Zarr can decode."""
        file = self.values.file
        assert file is not None
        if self.dtype.kind not in "biufcmM":
            return None
        store = Hdf5Store(file, part=self.values.dataset)
        if store.copy_limits().why_decoded:
            return None
        view = open_at(InStore(store))
        return lambda key: np.asarray(view[key]).astype(self.dtype, copy=False)


def open_(request: Request) -> Source:
    """Open one dataset of an HDF5 or NetCDF-4 file.

    - Raises OSError if the file cannot be read, is no HDF5 file, or is damaged (`errno` is then
      None).
    """
    values = hdf5.open_(request)
    if values.file is None:
        return values
    return Hdf5InBucket(
        path=values.path,
        shape=values.shape,
        dtype=values.dtype,
        chunks=values.chunks,
        identity=values.identity,
        metadata=values.metadata,
        values=values,
    )
