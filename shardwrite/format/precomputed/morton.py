"""Compressed Morton codes, which number the chunks of a volume.

The code takes the lowest bit of x, then of y, then of z, then the next bit of each, and so on. An
axis has as many bits as its largest position needs, and is left out once they are used up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError
from shardwrite.grid import Shape

_MOST_BITS = 64


@dataclass(frozen=True)
class MortonCode:
    """The code of a grid of chunks.

    Examples
    --------
    >>> MortonCode((8, 8, 2)).encode(np.array([[5, 5, 0]]))
    array([99], dtype=uint64)
    """

    grid: Shape  # number of chunks along x, y and z. Other numbers of axes work alike.

    def __post_init__(self) -> None:
        if any(n < 1 for n in self.grid):
            remedy = "give an axis at least one chunk"
            raise SpecError("an axis without chunks", field="grid", value=self.grid, remedy=remedy)
        if self.n_bits > _MOST_BITS:
            raise SpecError(
                f"the chunk ids of this grid need {self.n_bits} bits, and they have 64",
                field="grid",
                value=self.grid,
                remedy="choose larger chunks",
            )

    @cached_property
    def axis_of_bit(self) -> tuple[int, ...]:
        """Axis from which each bit of the code comes, lowest bit first."""
        bits = [(n - 1).bit_length() for n in self.grid]
        return tuple(
            axis
            for level in range(max(bits, default=0))
            for axis in range(len(bits))
            if level < bits[axis]
        )

    @property
    def n_bits(self) -> int:
        """Number of bits of the code."""
        return len(self.axis_of_bit)

    def encode(self, positions: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        """Codes of grid positions."""
        given = np.asarray(positions).reshape(-1, len(self.grid))
        outside = ((given < 0) | (given >= np.array(self.grid))).any(axis=1)
        if outside.any():
            raise SpecError(
                f"not a position in a grid of {self.grid}",
                field="positions",
                value=tuple(given[outside][0].tolist()),
                remedy="count chunks from 0",
            )
        cells = given.astype(np.uint64)
        codes = np.zeros(len(cells), np.uint64)
        taken = [0] * len(self.grid)
        for bit, axis in enumerate(self.axis_of_bit):
            codes |= (cells[:, axis] >> np.uint64(taken[axis]) & np.uint64(1)) << np.uint64(bit)
            taken[axis] += 1
        return codes

    def decode(self, codes: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        """Positions of codes; the inverse of :meth:`encode`."""
        given = np.asarray(codes, np.uint64).reshape(-1)
        cells = np.zeros((len(given), len(self.grid)), np.uint64)
        taken = [0] * len(self.grid)
        for bit, axis in enumerate(self.axis_of_bit):
            cells[:, axis] |= (given >> np.uint64(bit) & np.uint64(1)) << np.uint64(taken[axis])
            taken[axis] += 1
        outside = (cells >= np.array(self.grid, np.uint64)).any(axis=1)
        if self.n_bits < _MOST_BITS:
            outside |= given >> np.uint64(self.n_bits) != 0
        if outside.any():
            raise SpecError(
                f"not the code of a chunk in a grid of {self.grid}",
                field="codes",
                value=int(given[outside][0]),
                remedy="give the ids of chunks of this grid",
            )
        return cells

    def low_codes(self, n_bits: int) -> npt.NDArray[np.uint64]:
        """Lowest `n_bits` bits of the codes in a box of `low_box`, an array of the box's shape."""
        box = self.low_box(n_bits)
        codes = np.zeros(box, np.uint64)
        taken = [0] * len(box)
        for bit, axis in enumerate(self.axis_of_bit[:n_bits]):
            cells = np.arange(box[axis], dtype=np.uint64) >> np.uint64(taken[axis])
            shape = [-1 if other == axis else 1 for other in range(len(box))]
            codes |= ((cells & np.uint64(1)) << np.uint64(bit)).reshape(shape)
            taken[axis] += 1
        return codes

    def low_box(self, n_bits: int) -> Shape:
        """Shape of the box of chunks whose codes differ only in the lowest `n_bits` bits."""
        low = self.axis_of_bit[:n_bits]
        return tuple(2 ** low.count(axis) for axis in range(len(self.grid)))
