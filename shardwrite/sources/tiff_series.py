"""Series of pages in a TIFF file: which there are, how they are laid out, and reading them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy.typing as npt

from shardwrite.errors import SpecError
from shardwrite.grid import Box, ravel
from shardwrite.sources.common import require


def read_series(file: Any, number: int, leading: int, box: Box, out: npt.NDArray[Any]) -> None:
    """Read `box` of a series into `out`, page by page."""
    with file.filehandle.lock:
        series = file.series[number]
    outer, inner = series.shape[:leading], series.shape[leading:]
    first = box.start[:leading]
    for index in itertools.product(*(range(a, b) for a, b in box.bounds[:leading])):
        with file.filehandle.lock:  # the lookup of a page may read its tags
            page = series[ravel(index, outer)]
        at = tuple(i - o for i, o in zip(index, first, strict=True))
        # Pages may be missing in OME-TIFF; like tifffile, this gives zeros for them. One worker is
        # enough, because dask calls this from several threads.
        out[at] = (
            0 if page is None else page.asarray(maxworkers=1).reshape(inner)[box.slices[leading:]]
        )


def page_rank(series: Any) -> int | None:
    """Number of leading axes of a series that count pages; None if the pages do not fit it."""
    shape, pages, size = series.shape, len(series.pages), series.keyframe.size
    fitting = (
        k
        for k in range(len(shape), -1, -1)
        if math.prod(shape[k:]) == size and math.prod(shape[:k]) == pages
    )
    return next(fitting, None)


def choose_series(file: Any, dataset: str | None, path: str) -> int:
    """Number of the series `dataset`, which is a number or name, or None for the first series."""
    count = len(file.series)
    names = [series.name for series in file.series]
    number = (
        0
        if dataset is None
        else int(dataset)
        if dataset.isdecimal()
        else names.index(dataset)
        if dataset in names
        else -1
    )
    if not count:
        raise SpecError(
            "there is no image in it",
            field="source",
            value=path,
            remedy="check the file: it may be cut off",
        )
    if not 0 <= number < count:
        listed = ", ".join(
            f"{i} ({s.name}, shape {s.shape})" for i, s in enumerate(file.series[:20])
        )
        raise SpecError(
            f"there is no such series in {path}",
            field="dataset",
            value=dataset,
            remedy=f"choose one of: {listed}",
        )
    _check_series(file.series[number], number, count, path)
    return number


def _check_series(series: Any, number: int, count: int, path: str) -> None:
    others = f" or choose another series: dataset='0' to '{count - 1}'" if count > 1 else ""
    tiff = require("tifffile", "tiff", path).TIFF
    try:
        tiff.DECOMPRESSORS[series.keyframe.compression]
    except KeyError:
        kind = getattr(series.keyframe.compression, "name", series.keyframe.compression)
        remedy = f"pip install imagecodecs{others}"
        raise SpecError(
            f"compression {kind} needs a further library", field="source", value=path, remedy=remedy
        ) from None
    unplaced = page_rank(series) is None and series.dataoffset is None
    if series.dtype is None or series.is_multifile or series.transform is not None or unplaced:
        raise SpecError(
            f"series {number} is not laid out as equal pages of this file",
            field="source",
            value=path,
            remedy=f"give a directory or pattern of plain pages{others}",
        )
