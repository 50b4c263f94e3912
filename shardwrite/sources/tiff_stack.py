"""Stacks of TIFF files: a directory, or a pattern such as ``scan_*.tif``."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError, StoreError
from shardwrite.grid import Box
from shardwrite.sources.axes import tell_left_out
from shardwrite.sources.base import RegionSource, Request, Source, SourceMetadata
from shardwrite.sources.common import check_names, digest, identity_text, require
from shardwrite.sources.handles import FILES
from shardwrite.sources.tiff_metadata import common_metadata, describe_series, stacked
from shardwrite.sources.tiff_series import choose_series, page_rank, read_series
from shardwrite.stores import check_regular


@dataclass(frozen=True, slots=True)
class TiffStackSource(RegionSource):
    """Images of equal shape and dtype in many files, stacked along the first axis."""

    # Digest of the file names. Each process lists the names again, because a source with thousands
    # of names would make every task large.
    names: str
    series: int  # number of the series in each file
    leading: int  # number of leading axes of a file that count its pages

    def _read(self, box: Box) -> npt.NDArray[Any]:
        files = FILES.get(self.identity, self._list)
        tifffile = require("tifffile", "tiff", self.path)
        out = np.empty(box.shape, self.dtype)
        within = Box(box.start[1:], box.stop[1:])
        for at, number in enumerate(range(box.start[0], box.stop[0])):
            with tifffile.TiffFile(files[number]) as file:
                _check_equal(
                    file.series[self.series], self.shape[1:], self.dtype, files[number], files[0]
                )
                read_series(file, self.series, self.leading, within, out[at])
        return out

    def _list(self) -> list[str]:
        return check_names(page_files(self.path), self.names, self.path)


def page_files(path: str) -> list[str]:
    """Files of a directory or pattern in natural order, so that file 10 follows file 9."""
    if os.path.isdir(path):
        found = [
            entry.path
            for entry in os.scandir(path)
            if entry.name.lower().endswith((".tif", ".tiff")) and not entry.is_dir()
        ]
    else:
        found = [name for name in glob.glob(path, recursive=True) if not os.path.isdir(name)]
    if not found:
        raise StoreError(f"no TIFF file found at {path}", key=path)
    for name in found:
        check_regular(name)
    # Names that differ only in leading zeros count as equal, so the order of the names decides.
    ordered: list[str] = require("tifffile", "tiff", path).natural_sorted(sorted(found))
    return ordered


def _check_equal(
    series: Any, shape: tuple[int, ...], dtype: np.dtype[Any], path: str, first: str
) -> None:
    if (tuple(series.shape), series.dtype) != (shape, dtype):
        raise SpecError(
            f"this page has shape {tuple(series.shape)} and dtype {series.dtype}, "
            f"but {first} has {shape} and {dtype}",
            field="source",
            value=path,
            remedy="give pages of one shape and dtype",
        )


def open_stack(request: Request) -> Source:
    """Open a directory or pattern of TIFF files; the tags of all files are read and compared.

    Warns
    -----
    UserWarning
        If something that the files say of their images is broken, or differs between them, and is
        left out.
    """
    tifffile = require("tifffile", "tiff", request.path)
    path = os.path.abspath(request.path)
    files = page_files(path)
    stats: list[object] = []
    shape: tuple[int, ...] = ()
    dtype, number, leading = np.dtype("u1"), 0, 0
    metadata, differ = SourceMetadata(), False
    for rank, name in enumerate(files):
        with tifffile.TiffFile(name) as file:
            here = choose_series(file, request.dataset, name)
            series = file.series[here]
            if rank == 0:
                shape, dtype, number = tuple(series.shape), np.dtype(series.dtype), here
                leading = _rank(series, name)
            _check_equal(
                file.series[number] if number < len(file.series) else series,
                shape,
                dtype,
                name,
                files[0],
            )
            said, left_out = describe_series(file, number)
        if rank == 0:
            metadata = said
            tell_left_out(name, left_out)
        elif said != metadata:
            metadata, differ = common_metadata(metadata, said), True
        stat = os.stat(name)
        stats += [name, stat.st_size, stat.st_mtime_ns]
    if differ:
        tell_left_out(path, ["what the files do not all say of axes and channels is left out"])
    return TiffStackSource(
        path=path,
        shape=(len(files), *shape),
        dtype=dtype,
        chunks=(1, *(1 if axis < leading else max(1, n) for axis, n in enumerate(shape))),
        identity=identity_text(
            "tiff", os.path.realpath(path), files=len(files), sha256=digest(stats), series=number
        ),
        names=digest(files),
        series=number,
        leading=leading,
        metadata=stacked(metadata),
    )


def _rank(series: Any, path: str) -> int:
    leading = page_rank(series)
    if leading is None:
        remedy = "write one page for each image, or give the files one by one"
        raise SpecError(
            "its pages are not described one by one", field="source", value=path, remedy=remedy
        )
    return leading
