"""Single TIFF files with one or more pages.

Directories and patterns are in :mod:`shardwrite.sources.tiff_stack`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Box
from shardwrite.sources.axes import tell_left_out
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.common import identify, require
from shardwrite.sources.handles import FILES
from shardwrite.sources.raw import MappedSource, check_length
from shardwrite.sources.tiff_metadata import describe_series
from shardwrite.sources.tiff_series import choose_series, page_rank, read_series
from shardwrite.sources.tiff_stack import open_stack

__all__ = ["TiffSource", "open_"]


@dataclass(frozen=True, slots=True)
class TiffSource(RegionSource):
    """A series of pages of one file.

    Parameters
    ----------
    series : int
        Number of the series in the file.
    leading : int
        Number of leading axes that count pages; the other axes are within a page.
    """

    series: int
    leading: int

    def _read(self, box: Box) -> npt.NDArray[Any]:
        file = FILES.get(self.identity, self._open)
        out = np.empty(box.shape, self.dtype)
        read_series(file, self.series, self.leading, box, out)
        return out

    def _open(self) -> Any:
        file = require("tifffile", "tiff", self.path).TiffFile(self.path)
        file.filehandle.lock = True  # all threads share its file position
        return file


def open_(request: Request) -> Source:
    """Open a TIFF file, or a directory or pattern of TIFF files.

    Parameters
    ----------
    request : Request
        Request with `path`, and optionally with `dataset`, the number or name of the series; the
        default is the first series.

    Raises
    ------
    SpecError
        If tifffile is not installed, there is no such series, or it cannot be read.
    StoreError
        If no file matches a directory or pattern.
    OSError
        If a file cannot be read.

    Warns
    -----
    UserWarning
        If something that the file says of the series is broken, and so left out.
    """
    tifffile = require("tifffile", "tiff", request.path)
    if not os.path.isfile(request.path):
        return open_stack(request)
    path = os.path.abspath(request.path)
    with tifffile.TiffFile(path) as file:
        number = choose_series(file, request.dataset, path)
        series = file.series[number]
        shape, dtype, leading, start = (
            tuple(series.shape),
            np.dtype(series.dtype),
            page_rank(series),
            series.dataoffset,
        )
        stored = dtype.newbyteorder(file.byteorder)
        metadata, left_out = describe_series(file, number)
    tell_left_out(path, left_out)
    identity = identify("tiff", path, series=number)
    chunks = tuple(1 if axis < (leading or 0) else max(1, n) for axis, n in enumerate(shape))
    if start is None:
        assert leading is not None
        return TiffSource(
            path,
            shape,
            dtype,
            chunks,
            identity,
            series=number,
            leading=leading,
            metadata=metadata,
        )
    check_length(path, shape, dtype, start)
    if leading is None:  # ImageJ may describe only the first page of a contiguous series
        chunks = tuple(1 if axis < len(shape) - 2 else max(1, n) for axis, n in enumerate(shape))
    return MappedSource(
        path,
        shape,
        dtype,
        chunks,
        identity,
        stored=stored,
        offset=start,
        order="C",
        metadata=metadata,
    )
