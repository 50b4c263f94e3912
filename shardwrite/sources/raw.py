"""Arrays that are stored uncompressed in one piece of a file.

These are raw binary files, and contiguous arrays of other formats. Files of this machine are mapped
into memory, and ranges of files in buckets are read.
"""

from __future__ import annotations

import math
import os
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError
from shardwrite.grid import Box
from shardwrite.read.array import slabs
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.common import FILES, identify, place_of, place_text
from shardwrite.sources.inside import FileInBucket

_MOST_NBYTES = 4 * 2**20  # of one request, which a thread holds beside the block

_LITTLE_NBYTES = 2**20  # which take no longer to read than several requests

_MOST_WASTE = 4


@dataclass(frozen=True, slots=True)
class OnePieceSource(RegionSource):
    """An array that is stored in one piece of a file."""

    stored: np.dtype[Any]  # data type in the file; `dtype` may differ from it in byte order
    offset: int  # position of the first element in the file, in bytes
    order: str  # whether the last or the first axis is the fastest


@dataclass(frozen=True, slots=True)
class MappedSource(OnePieceSource):
    """Such an array in a file of this machine, read through a memory map."""

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


@dataclass(frozen=True, slots=True)
class RangedSource(OnePieceSource):
    """Such an array in a file in a bucket, of which ranges are read.

    Several threads read at the same time. One request reads up to 4 MiB.
    """

    file: FileInBucket

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours in the file along each axis."""
        return tuple(
            self.stored.itemsize
            * math.prod(self.shape[axis + 1 :] if self.order == "C" else self.shape[:axis])
            for axis in range(len(self.shape))
        )

    def _read(self, box: Box) -> npt.NDArray[Any]:
        order: Any = self.order
        block = np.empty(box.shape, self.dtype, order)
        self._fill(block, self.offset + sum(map(mul, box.start, self.strides)))
        return block

    def _fill(self, block: npt.NDArray[Any], start: int) -> None:
        """Read elements into a block.

        What lies between them is read, too, where that takes no longer. Otherwise the block is
        halved, along the axis on which its elements lie farthest apart.

        - `block`: receives the elements. It is not empty.
        - `start`: position of its first element in the file, in bytes.
        """
        strides = self.strides
        lengths = [(n - 1) * stride for n, stride in zip(block.shape, strides, strict=True)]
        span = sum(lengths) + self.stored.itemsize
        most = min(_MOST_NBYTES, max(_LITTLE_NBYTES, _MOST_WASTE * block.nbytes))
        if span <= most or block.size == 1:
            data = self.file.read(start, span)
            block[...] = np.ndarray(block.shape, self.stored, data, 0, strides)
            return
        axis = max(range(block.ndim), key=lengths.__getitem__)
        middle = block.shape[axis] // 2
        for part in (slice(middle), slice(middle, None)):
            index = (*[slice(None)] * axis, part)
            self._fill(block[index], start + (part.start or 0) * strides[axis])


def in_one_piece(
    place: str | FileInBucket,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    offset: int,
    order: str = "C",
    *,
    remedy: str = "give the file whole",
    **others: Any,
) -> RegionSource:
    """Source of an array that is stored in one piece of a file, after a check of its length.

    - `others`: further fields of the source: its identity, and what is not as usual.
    """
    needed = offset + math.prod(shape) * dtype.itemsize
    size = place.nbytes if isinstance(place, FileInBucket) else os.path.getsize(place)
    if size < needed:
        raise SpecError(
            f"the file is too short: {size} bytes, where shape {shape} of {dtype} "
            f"from byte {offset} needs {needed}",
            field="source",
            value=place_text(place),
            remedy=remedy,
        )
    fields = {
        "path": place_text(place),
        "shape": shape,
        "dtype": dtype,
        "chunks": slabs(shape, dtype.itemsize, order),
        "stored": dtype,
        "offset": offset,
        "order": order,
        **others,
    }
    if isinstance(place, FileInBucket):
        return RangedSource(file=place, **fields)
    return MappedSource(**fields)


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
    for is_good, why, field, remedy in (
        (min(shape, default=0) >= 0, "negative extent", "shape", "give extents of 0 or more"),
        (request.offset >= 0, "negative offset", "offset", "give an offset of 0 or more"),
        (request.order in ("C", "F"), "no such memory order", "order", 'give "C" or "F"'),
    ):
        if not is_good:
            raise SpecError(why, field=field, value=getattr(request, field), remedy=remedy)
    place = place_of(request)
    identity = identify(
        "raw",
        place,
        shape=shape,
        dtype=dtype.descr if dtype.names else dtype.str,
        offset=request.offset,
        order=request.order,
    )
    remedy = "give the file whole, or correct shape, dtype and offset"
    return in_one_piece(
        place, shape, dtype, request.offset, request.order, remedy=remedy, identity=identity
    )


def _dtype(value: npt.DTypeLike) -> np.dtype[Any]:
    try:
        dtype = np.dtype(value)
    except TypeError:
        why = "numpy knows no such type"
    else:
        if dtype.itemsize and not dtype.hasobject:
            return dtype
        why = "the type has no fixed size"
    raise SpecError(why, field="dtype", value=value, remedy="give one like 'uint16' or '>f4'")
