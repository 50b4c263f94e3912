"""NetCDF-3 files (classic and 64-bit offset), read with scipy; values are read as stored."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError
from shardwrite.grid import Box
from shardwrite.read.array import slabs
from shardwrite.read.source import as_attributes
from shardwrite.sources.base import RegionSource, Request, Source, SourceMetadata
from shardwrite.sources.common import FILES, choose_dataset, identify, require, typed_attributes


@dataclass(frozen=True, slots=True)
class Netcdf3Source(RegionSource):
    """One variable of a NetCDF-3 file."""

    dataset: str  # name of the variable

    def _read(self, box: Box) -> npt.NDArray[Any]:
        file = FILES.get(self.identity, lambda: _file(self.path))
        # A copy: scipy cannot close a file while a view of its memory map exists.
        return np.array(file.variables[self.dataset].data[box.slices])


def _file(path: str) -> Any:
    require("scipy", "netcdf3", path)
    scipy_io = require("scipy.io", "netcdf3", path)
    # Without mmap, scipy reads every variable completely when it opens the file.
    return scipy_io.netcdf_file(path, "r", mmap=True)


_CDF5 = b"CDF\5"  # first bytes of a file; scipy knows the formats 1 and 2


def _metadata(variable: Any, path: str) -> SourceMetadata:
    attributes = vars(variable)["_attributes"]  # scipy has no public name for all of them
    fill = attributes.get("_FillValue")
    return SourceMetadata(
        fill_value=None if fill is None else np.asarray(fill).reshape(-1)[0],
        dimension_names=tuple(variable.dimensions),
        attributes=as_attributes(attributes, path, variable.data.dtype),
        typed=typed_attributes(attributes),
    )


def open_(request: Request) -> Source:
    """Open one variable of a NetCDF-3 file."""
    path = os.path.abspath(request.path)
    with open(path, "rb") as raw:
        is_cdf5 = raw.read(len(_CDF5)) == _CDF5
    if is_cdf5:
        raise SpecError(
            "its format is CDF-5 (64BIT_DATA), which is not read here",
            field="source",
            value=request.path,
            remedy="open it with xarray and give that to shardwrite.write_dataset, or make "
            "it NetCDF-4 with nccopy -k nc4",
        )
    with _file(path) as file:
        name = choose_dataset(list(file.variables), request.dataset, path)
        # The shape of the variable has None for the record axis; that of its data has the extent.
        shape = tuple(file.variables[name].data.shape)
        dtype = np.dtype(file.variables[name].data.dtype)
        metadata = _metadata(file.variables[name], path)
    return Netcdf3Source(
        path=path,
        shape=shape,
        dtype=dtype,
        chunks=slabs(shape, dtype.itemsize),
        identity=identify("netcdf3", path, dataset=name),
        dataset=name,
        metadata=metadata,
    )
