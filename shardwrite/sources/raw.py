"""Arrays that are stored uncompressed in one piece of a file.

These are raw binary files, and contiguous arrays of other formats. Files of this machine are mapped
into memory, and ranges of files in buckets are read.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError
from shardwrite.grid import Box
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.common import FILES, RangedSource, identify, place_of, place_text, slabs
from shardwrite.sources.inside import FileInBucket


@dataclass(frozen=True, slots=True)
class MappedSource(RegionSource):
    """An array that is stored in one piece, read through a memory map."""

    stored: np.dtype[Any]  # data type in the file; `dtype` may differ from it in byte order
    offset: int  # position of the first element in the file, in bytes
    order: str  # whether the last or the first axis is the fastest

    def _read(self, box: Box) -> npt.NDArray[Any]:
        mapped = FILES.get(self.identity, self._open)
        # A copy, so that errors of the file system occur here, and the block no longer depends on
        # the file.
        return np.array(mapped[box.slices], dtype=self.dtype, order="K", subok=False)

    def _open(self) -> npt.NDArray[Any]:
        order: Any = self.order
        mapped: npt.NDArray[Any] = np.memmap(
            self.path, self.stored, "r", self.offset, self.shape, order
        )
        return mapped


def in_one_piece(place: str | FileInBucket, **fields: Any) -> RegionSource:
    """Source of an array that is stored in one piece of a file."""
    if isinstance(place, FileInBucket):
        return RangedSource(path=place.url, file=place, **fields)
    return MappedSource(path=place, **fields)


def check_length(
    path: str | FileInBucket,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    offset: int,
    remedy: str = "give the file whole",
) -> None:
    """Verify that a file is long enough for an array that starts at byte `offset`."""
    needed = offset + math.prod(shape) * dtype.itemsize
    size = path.nbytes if isinstance(path, FileInBucket) else os.path.getsize(path)
    if size < needed:
        raise SpecError(
            f"the file is too short: {size} bytes, where shape {shape} of {dtype} "
            f"from byte {offset} needs {needed}",
            field="source",
            value=place_text(path),
            remedy=remedy,
        )


def open_(request: Request) -> Source:
    """Open a raw binary file with a given layout.

    - `request`: request with `path`, `shape` and `dtype`, and with `offset` and `order` unless they
      are 0 and "C".
    """
    if request.shape is None or request.dtype is None:
        field = "shape" if request.shape is None else "dtype"
        raise SpecError(
            f"a raw file does not say its {field}",
            field=field,
            value=None,
            remedy=f"give shape and dtype of {request.path}",
        )
    shape, dtype = tuple(int(n) for n in request.shape), _dtype(request.dtype)
    _check(request, shape)
    remedy = "give the file whole, or correct shape, dtype and offset"
    check_length(place_of(request), shape, dtype, request.offset, remedy)
    identity = identify(
        "raw",
        place_of(request),
        shape=shape,
        dtype=dtype.descr if dtype.names else dtype.str,
        offset=request.offset,
        order=request.order,
    )
    return in_one_piece(
        place_of(request),
        shape=shape,
        dtype=dtype,
        chunks=slabs(shape, dtype.itemsize, request.order),
        identity=identity,
        stored=dtype,
        offset=request.offset,
        order=request.order,
    )


def _check(request: Request, shape: tuple[int, ...]) -> None:
    if any(n < 0 for n in shape):
        raise SpecError(
            "negative extent",
            field="shape",
            value=request.shape,
            remedy="give extents of 0 or more",
        )
    if request.offset < 0:
        raise SpecError(
            "negative offset",
            field="offset",
            value=request.offset,
            remedy="give an offset of 0 or more",
        )
    if request.order not in ("C", "F"):
        raise SpecError(
            "no such memory order", field="order", value=request.order, remedy='give "C" or "F"'
        )


def _dtype(value: npt.DTypeLike) -> np.dtype[Any]:
    try:
        dtype = np.dtype(value)
    except TypeError:
        raise SpecError(
            "numpy knows no such type",
            field="dtype",
            value=value,
            remedy="give one like 'uint16' or '>f4'",
        ) from None
    if dtype.hasobject or dtype.itemsize == 0:
        raise SpecError(
            "the type has no fixed size",
            field="dtype",
            value=value,
            remedy="give one like 'uint16' or '>f4'",
        )
    return dtype
