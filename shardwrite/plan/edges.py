"""Edges of pieces along an axis, kept as runs of equal steps.

An axis may have ten million shards, and as many chunks of the source. Nearly always they have equal
steps. So what a plan takes depends on the number of runs, and not on the number of pieces.

Two axes that are regular at the same place have a pattern that repeats. `condensed` leaves a few
periods of it, which show all that a longer stretch would show.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.grid import boundaries, ceil_div

Runs = tuple[tuple[int, int], ...]
"""Steps from one edge to the next, as runs of equal steps: ``(step, how many)``."""

_MANY_RUNS = 1000  # an axis with more runs is not searched for a pattern
_N_BESIDE = 3  # periods that stay on each side of what is left out


@dataclass(frozen=True)
class Edges:
    """Ascending edges, the first of which is `start`.

    Neighbouring runs have different steps, so that equal edges are equal objects.
    """

    runs: Runs
    start: int = 0

    @classmethod
    def from_runs(cls, runs: Iterable[tuple[int, int]], start: int = 0) -> Edges:
        """Edges with some steps; neighbouring runs may have equal steps, and runs may be empty."""
        merged: list[tuple[int, int]] = []
        for step, count in runs:
            if merged and merged[-1][0] == step:
                merged[-1] = (step, merged[-1][1] + count)
            elif count:
                merged.append((step, count))
        return cls(tuple(merged), start)

    @classmethod
    def from_sizes(cls, sizes: Sequence[int]) -> Edges:
        """Edges of adjacent pieces with some sizes."""
        n_equal = sizes.count(sizes[0]) if sizes else 0
        if n_equal == len(sizes) or (n_equal == len(sizes) - 1 and sizes[-1] != sizes[0]):
            # So it is with regular chunks. Millions of them are counted quickly.
            first = [(int(size), n_equal) for size in sizes[:1]]
            return cls.from_runs([*first, *((int(size), 1) for size in sizes[n_equal:])])
        same_steps = ((int(step), sum(1 for _ in same)) for step, same in itertools.groupby(sizes))
        return cls.from_runs(same_steps)

    @classmethod
    def from_positions(cls, positions: Sequence[int] | npt.NDArray[np.int64]) -> Edges:
        """Edges at some positions, of which there is at least one."""
        ends: npt.NDArray[np.int64] = np.asarray(positions, dtype=np.int64)
        return cls(_runs(np.diff(ends)), int(ends[0]))

    @classmethod
    def regular(cls, n: int, step: int) -> Edges:
        """Edges from 0 to `n` that are a step apart; the last step may be shorter."""
        return cls.from_runs([(step, n // step), (n % step, int(n % step > 0))])

    @cached_property
    def _firsts(self) -> list[int]:
        """Number of edges before each run, and before the last edge."""
        return boundaries([count for _, count in self.runs])

    @cached_property
    def marks(self) -> list[int]:
        """Where each run starts, and where the last one ends."""
        return [self.start + at for at in boundaries([step * count for step, count in self.runs])]

    @property
    def stop(self) -> int:
        """The last edge."""
        return self.marks[-1]

    @property
    def longest(self) -> int:
        """Length of the longest piece; 0 if there is none."""
        return max((step for step, _ in self.runs), default=0)

    @property
    def n_pieces(self) -> int:
        """Number of pieces between the edges."""
        return self._firsts[-1]

    def __len__(self) -> int:
        return self.n_pieces + 1

    def __getitem__(self, i: int) -> int:
        i += len(self) if i < 0 else 0
        if not 0 <= i < len(self):
            raise IndexError(i)
        run = bisect_right(self._firsts, i) - 1
        step = self.runs[run][0] if run < len(self.runs) else 0
        return self.marks[run] + step * (i - self._firsts[run])

    def __iter__(self) -> Iterator[int]:
        return iter(self.positions.tolist())

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        """All edges. There may be many millions."""
        steps = np.repeat([step for step, _ in self.runs], [count for _, count in self.runs])
        return np.cumsum(np.concatenate([[self.start], steps]), dtype=np.int64)

    def n_before(self, value: int) -> int:
        """Number of edges that are less than a value."""
        run = bisect_left(self.marks, value) - 1
        if run < 0 or run == len(self.runs):
            return 0 if run < 0 else len(self)
        return self._firsts[run] + ceil_div(value - self.marks[run], self.runs[run][0])

    def n_up_to(self, value: int) -> int:
        """Number of edges that are not greater than a value."""
        run = bisect_right(self.marks, value) - 1
        if run < 0 or run == len(self.runs):
            return 0 if run < 0 else len(self)
        return self._firsts[run] + (value - self.marks[run]) // self.runs[run][0] + 1

    def touched(self, start: int, stop: int) -> range:
        """Numbers of the pieces that touch an interval, and of empty pieces inside it."""
        return range(max(0, self.n_up_to(start) - 1), min(self.n_pieces, self.n_before(stop)))

    def between(self, start: int, stop: int) -> list[int]:
        """List the edges from `start` to `stop`, with both of them."""
        return [self[i] for i in range(self.n_before(start), self.n_up_to(stop))]

    def clipped(self, start: int, stop: int) -> Edges:
        """Edges of the pieces as far as they lie in an interval; empty pieces are dropped."""
        runs: list[tuple[int, int]] = []
        for (step, count), mark in zip(self.runs, self.marks, strict=False):
            a, b = max(start, mark), min(stop, mark + step * count)
            if a < b:
                head = min(b, mark + ceil_div(a - mark, step) * step) - a
                n_whole, tail = divmod(b - a - head, step)
                runs += [(head, int(head > 0)), (step, n_whole), (tail, int(tail > 0))]
        return Edges.from_runs(runs, max(start, self.start))

    def with_counts(self, counts: Sequence[int]) -> Edges:
        """The same runs with other numbers of steps."""
        steps = (step for step, _ in self.runs)
        return Edges.from_runs(zip(steps, counts, strict=True), self.start)

    def shifted(self, by: int) -> Edges:
        """The same steps from another start."""
        return Edges(self.runs, self.start + by)

    def include(self, others: Edges) -> bool:
        """Whether all edges of another axis are edges of this one."""
        some, own, _ = condensed(others, self)
        return bool(np.isin(some.positions, own.positions).all())

    def are_multiples_of(self, step: int) -> bool:
        """Whether all edges but the last, of those that start at 0, are multiples of a step."""
        *runs, (last, count) = self.runs or [(step, 1)]
        return all(own % step == 0 for own, _ in runs) and (count == 1 or last % step == 0)


def _runs(steps: npt.NDArray[np.int64]) -> Runs:
    firsts = np.flatnonzero(np.diff(steps, prepend=-1))
    counts = np.diff(firsts, append=len(steps))
    return tuple(zip(steps[firsts].tolist(), counts.tolist(), strict=True))


class Gap(NamedTuple):
    """Periods of a pattern that were left out of two axes."""

    at: int  # where they were, as a position on the axes that are left: an edge of the first one
    period: int  # length of a period
    n_periods: int  # number of periods that were left out


def condensed(first: Edges, second: Edges) -> tuple[Edges, Edges, list[Gap]]:
    """Shorten two axes where both are regular for many periods, and tell what was left out.

    What depends on a piece of one axis and the pieces of the other that overlap it is somewhere in
    what is left, too.
    """
    gaps: list[Gap] = []
    axes = (first, second)
    if len(first.runs) + len(second.runs) > _MANY_RUNS:
        return first, second, gaps
    counts = [[count for _, count in axis.runs] for axis in axes]
    n_left_out = 0
    for start, stop in itertools.pairwise(sorted({*first.marks, *second.marks})):
        if start < max(first.start, second.start) or stop > min(first.stop, second.stop):
            continue
        runs = [bisect_right(axis.marks, start) - 1 for axis in axes]
        steps = [axis.runs[run][0] for axis, run in zip(axes, runs, strict=True)]
        period = math.lcm(*steps)
        n_periods = (stop - start) // period - 2 * _N_BESIDE - 1
        if n_periods > 0:
            at = first[first.n_before(start + _N_BESIDE * period)]
            gaps.append(Gap(at - n_left_out, period, n_periods))
            n_left_out += period * n_periods
            for kept, run, step in zip(counts, runs, steps, strict=True):
                kept[run] -= period * n_periods // step
    return first.with_counts(counts[0]), second.with_counts(counts[1]), gaps


def filled(positions: Sequence[int], gaps: Sequence[Gap]) -> Edges:
    """Edges of which some positions are left, after gaps at these positions are filled again."""
    ends = np.asarray(positions, dtype=np.int64)
    steps = np.diff(ends)
    runs: list[tuple[int, int]] = []
    done = 0
    for gap in gaps:
        here, next_period = np.searchsorted(ends, [gap.at, gap.at + gap.period]).tolist()
        period = _runs(steps[here:next_period])
        runs += _runs(steps[done:here])
        n_left_out = gap.n_periods
        is_regular = len(period) == 1
        runs += (
            [(step, n * n_left_out) for step, n in period] if is_regular else period * n_left_out
        )
        done = here
    return Edges.from_runs([*runs, *_runs(steps[done:])], int(ends[0]))
