"""Numbers of parts, and where a sequence of groups is cut into parts."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError

_MAX_PARTS = 2**53  # whole numbers up to there are exact in a float


def _as_whole(value: object) -> int | None:
    """A whole number as an int, whatever its type; None if it is none."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    return int(value) if is_whole else None  # type: ignore[call-overload]


def check_part(index: object, count: object) -> tuple[int, int]:
    """The number of a part and the number of all parts, if they can be that.

    - `index`, `count`: number of the part, from 0, and number of all parts, as a user has given
      them.
    - Raises SpecError unless they are whole numbers with ``0 <= index < count``.
    """
    i, n = _as_whole(index), _as_whole(count)
    if i is None or n is None or not 0 <= i < n <= _MAX_PARTS:
        raise SpecError(
            "no such part",
            field="part",
            value=(index, count),
            remedy="give index i of count n with 0 <= i < n, as whole numbers up to 2**53",
        )
    return i, n


def check_n_parts(n_parts: object) -> int | None:
    """The number of all parts, if it can be that; None stays None.

    - Raises SpecError unless it is a whole number of 1 or more.
    """
    if n_parts is None:
        return None
    n = _as_whole(n_parts)
    if n is None or not 1 <= n <= _MAX_PARTS:
        raise SpecError(
            "there is at least one part" if n is not None and n < 1 else "not a number of parts",
            field="n_parts",
            value=n_parts,
            remedy="give a whole number from 1 to 2**53, or None",
        )
    return n


@dataclass(frozen=True, slots=True)
class PartCuts:
    """Where groups are cut into parts. A group belongs to the part that contains its middle.

    Nothing here takes memory for each part, because there may be far more parts than groups.
    """

    middles: npt.NDArray[np.float64]  # elements before the middle of each group, in ascending order
    total: float  # all elements

    def groups(self, index: int, count: int) -> range:
        """Ranks of the groups of part `index` of `count`."""
        edges = self._start(np.array([index, index + 1], dtype=np.float64), count)
        first, last = np.searchsorted(self.middles, edges).tolist()
        return range(first, last if index + 1 < count else len(self.middles))

    def parts(self, count: int) -> npt.NDArray[np.int64]:
        """For each group, its part of `count`."""
        last = np.float64(count - 1)
        if not self.total:
            return np.full(len(self.middles), count - 1, dtype=np.int64)
        # Rounding may lead to a part beside the right one.
        found = np.clip(np.floor(self.middles * count / self.total), 0, last)
        while (is_late := (found > 0) & (self._start(found, count) > self.middles)).any():
            found[is_late] -= 1
        while (is_early := (found < last) & (self._start(found + 1, count) <= self.middles)).any():
            found[is_early] += 1
        made: npt.NDArray[np.int64] = found.astype(np.int64)
        return made

    def _start(self, parts: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
        """Elements before some parts."""
        return self.total * parts / count
