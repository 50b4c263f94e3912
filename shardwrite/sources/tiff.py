"""Single TIFF files with one or more pages.

Directories and patterns are in :mod:`shardwrite.sources.tiff_stack`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Box
from shardwrite.sources.axes import tell_left_out
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.common import identify, place_of, place_text, require
from shardwrite.sources.handles import FILES
from shardwrite.sources.raw import check_length, in_one_piece
from shardwrite.sources.tiff_metadata import describe_series
from shardwrite.sources.tiff_series import choose_series, page_rank, read_series
from shardwrite.sources.tiff_stack import open_stack
from shardwrite.stores.bucket_files import FileInBucket


@dataclass(frozen=True, slots=True)
class TiffSource(RegionSource):
    """A series of pages of one file."""

    series: int  # number of the series in the file
    leading: int  # number of leading axes that count pages; the other axes are within a page
    # The file, if it lies in a bucket
    file: FileInBucket | None = field(kw_only=True, default=None)

    def _read(self, box: Box) -> npt.NDArray[Any]:
        file, check = FILES.get(self.identity, self._open)
        out = np.empty(box.shape, self.dtype)
        read_series(file, self.series, self.leading, box, out)
        check()
        return out

    def _open(self) -> tuple[Any, Callable[[], None]]:
        file, check = _open_tiff(self.file or self.path)
        file.filehandle.lock = True  # all threads share its file position
        return file, check


def _open_tiff(place: str | FileInBucket) -> tuple[Any, Callable[[], None]]:
    """Open a TIFF file; and a function that raises errors of reads which tifffile has swallowed."""
    tifffile = require("tifffile", "tiff", place_text(place))
    if isinstance(place, str):
        return tifffile.TiffFile(place), lambda: None
    stream = place.stream()
    try:
        return tifffile.TiffFile(stream, name=place.url.rpartition("/")[2]), stream.check
    except Exception:
        stream.check()
        raise


def open_(request: Request) -> Source:
    """Open a TIFF file, or a directory or pattern of TIFF files.

    Warns
    -----
    UserWarning
        If something that the file says of the series is broken, and so left out.
    """
    if request.file is None and not os.path.isfile(request.path):
        return open_stack(request)
    place, path = place_of(request), place_text(place_of(request))
    opened, check = _open_tiff(place)
    with opened as file:
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
        check()
    tell_left_out(path, left_out)
    identity = identify("tiff", place, series=number)
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
            file=request.file,
        )
    check_length(place, shape, dtype, start)
    if leading is None:  # ImageJ may describe only the first page of a contiguous series
        chunks = tuple(1 if axis < len(shape) - 2 else max(1, n) for axis, n in enumerate(shape))
    return in_one_piece(
        place,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        identity=identity,
        stored=stored,
        offset=start,
        order="C",
        metadata=metadata,
    )
