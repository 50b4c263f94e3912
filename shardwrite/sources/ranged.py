"""Arrays that are stored uncompressed in one piece of a file in a bucket."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Box
from shardwrite.sources.base import RegionSource
from shardwrite.stores.bucket_files import FileInBucket

_MOST_NBYTES = 4 * 2**20  # of one request, which a thread holds beside the block
_LITTLE_NBYTES = 2**20  # which take no longer to read than several requests
_MOST_WASTE = 4


@dataclass(frozen=True, slots=True)
class RangedSource(RegionSource):
    """An array that is stored in one piece, of which ranges are read.

    Several threads read at the same time. One request reads up to 4 MiB.
    """

    file: FileInBucket
    stored: np.dtype[Any]  # data type in the file; `dtype` may differ from it in byte order
    offset: int  # position of the first element in the file, in bytes
    order: str  # whether the last or the first axis is the fastest

    def _read(self, box: Box) -> npt.NDArray[Any]:
        order: Any = self.order
        itemsize = self.stored.itemsize
        axes = range(len(self.shape))
        steps = tuple(
            itemsize * math.prod(self.shape[axis + 1 :] if order == "C" else self.shape[:axis])
            for axis in axes
        )
        start = self.offset + sum(map(mul, box.start, steps))
        block = np.empty(box.shape, self.dtype, order)
        self._fill(block, start, steps)
        return block

    def _fill(self, block: npt.NDArray[Any], start: int, steps: tuple[int, ...]) -> None:
        """Read elements into a block.

        What lies between them is read, too, where that takes no longer. Otherwise the block is
        halved, along the axis on which its elements lie farthest apart.

        - `block`: receives the elements. It is not empty.
        """
        lengths = [(n - 1) * step for n, step in zip(block.shape, steps, strict=True)]
        span = sum(lengths) + self.stored.itemsize
        most = min(_MOST_NBYTES, max(_LITTLE_NBYTES, _MOST_WASTE * block.nbytes))
        if span <= most or block.size == 1:
            data = self.file.read(start, span)
            block[...] = np.ndarray(block.shape, self.stored, data, 0, steps)
            return
        axis = max(range(block.ndim), key=lengths.__getitem__)
        middle = block.shape[axis] // 2
        for part in (slice(middle), slice(middle, None)):
            index = (*[slice(None)] * axis, part)
            self._fill(block[index], start + (part.start or 0) * steps[axis], steps)
