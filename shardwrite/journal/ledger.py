"""Ledger of the committed shards, filled from journal lines and reports of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from shardwrite.grid import Box, ShardGrid
from shardwrite.journal.lines import Entry
from shardwrite.plan.edges import Edges

if TYPE_CHECKING:
    from shardwrite.read.inspection import ShardTable


class Ledger:
    """Facts about every shard of a grid, in arrays that are indexed by row-major rank.

    - `is_done`: bool, shape (n_shards,). Whether a shard is done: committed, or empty by design.
    - `nbytes`, `n_chunks`: int64, shape (n_shards,). Bytes of a shard's object, and number of its
      inner chunks that hold data; 0 where there is no object.
    - `index_crcs`: uint32, shape (n_shards,). crc32c of a shard's index table.
    """

    def __init__(self, grid: ShardGrid) -> None:
        self.grid = grid
        n = grid.n_shards
        self.is_done = np.zeros(n, dtype=bool)
        self.nbytes = np.zeros(n, dtype=np.int64)
        self.n_chunks = np.zeros(n, dtype=np.int64)
        self.index_crcs = np.zeros(n, dtype=np.uint32)
        self.peaks: dict[str, int] = {}

    @classmethod
    def of(cls, grid: ShardGrid, table: ShardTable) -> Ledger:
        """Ledger in which the shards of a table are done."""
        ledger, ranks = cls(grid), table.ranks
        ledger.is_done[ranks] = True
        ledger.nbytes[ranks], ledger.n_chunks[ranks] = table.stored_nbytes, table.n_chunks
        ledger.index_crcs[ranks] = table.index_crcs
        return ledger

    def enter(self, entry: Entry, process: str = "") -> None:
        """Enter the shards that a task committed; a later entry replaces an earlier one.

        - `process`: name of the process that ran the task. If it is given, its peak memory is kept,
          too.
        """
        ranks = list(entry.shards)
        self.is_done[ranks] = True
        self.nbytes[ranks] = entry.nbytes
        self.n_chunks[ranks] = entry.n_chunks
        self.index_crcs[ranks] = entry.index_crcs
        if process:
            self.peaks[process] = max(self.peaks.get(process, 0), entry.peak_nbytes)

    def take(self, other: Ledger, ranks: Sequence[int]) -> None:
        """Copy the facts about some shards, and all peaks, from another ledger of the same grid."""
        for name in ("is_done", "nbytes", "n_chunks", "index_crcs"):
            getattr(self, name)[list(ranks)] = getattr(other, name)[list(ranks)]
        self.peaks = dict(other.peaks)

    def checksum(self, ranks: npt.NDArray[np.int64]) -> int:
        """crc32c of the sizes and indexes of some shards."""
        sizes = np.ascontiguousarray(self.nbytes[ranks], dtype="<i8")
        return crc32c(
            np.ascontiguousarray(self.index_crcs[ranks], dtype="<u4").data, crc32c(sizes.data)
        )

    def forget(self, ranks: Sequence[int]) -> None:
        """Mark shards as not committed, and clear the facts about them."""
        for column in (self.is_done, self.nbytes, self.n_chunks, self.index_crcs):
            column[list(ranks)] = 0

    def become(self, other: Ledger) -> None:
        """Take the facts about all shards that are done in another ledger, and forget all others.

        A shard that a run has committed may have become bad since then.
        """
        self.forget(np.flatnonzero(~other.is_done).tolist())
        self.take(other, np.flatnonzero(other.is_done).tolist())

    @property
    def n_done(self) -> int:
        """Number of shards that are committed or empty by design."""
        return int(self.is_done.sum())

    @property
    def n_written(self) -> int:
        """Number of shards that have an object."""
        return int((self.nbytes > 0).sum())

    @property
    def empty(self) -> npt.NDArray[np.int64]:
        """Ranks of the shards that are empty by design."""
        return np.flatnonzero(self.is_done & (self.nbytes == 0))

    @property
    def missing(self) -> npt.NDArray[np.int64]:
        """Ranks of the shards that are not done."""
        return np.flatnonzero(~self.is_done)

    def left_in_groups(self, group_edges: Sequence[Edges]) -> npt.NDArray[np.int64]:
        """Number of shards in each group that are not done yet.

        - `group_edges`: edges of the groups along each axis, in elements. They never cut a shard.
        - Returns: the groups are in row-major order.
        """
        left = (~self.is_done).astype(np.int64).reshape(self.grid.counts)
        for axis, (edges, shard) in enumerate(zip(group_edges, self.grid.shards, strict=True)):
            starts = edges.positions[:-1] // shard
            if not len(starts):
                return np.zeros(0, dtype=np.int64)
            left = np.add.reduceat(left, starts, axis=axis)
        return left.ravel()

    def gone(self, there: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Ranks of the shards that have an object, and are not among those that are there."""
        return np.setdiff1d(np.flatnonzero(self.nbytes > 0), there)

    def done_within(self, box: Box) -> frozenset[tuple[int, ...]]:
        """Positions in the shard grid of the shards that overlap a box and are done."""
        shards = self.grid.shard_range(box)
        inside = self.is_done.reshape(self.grid.counts)[shards.slices]
        if not inside.any():
            return frozenset()
        return frozenset(map(tuple, (np.argwhere(inside) + shards.start).tolist()))

    def totals(self, itemsize: int) -> dict[str, int]:
        """Sums over the shards that are done, named like the fields of a result."""
        n_stored = int(self.n_chunks.sum())
        n_all = int(chunks_in_shards(self.grid)[self.is_done].sum())
        return {
            "n_shards": self.n_written,
            "n_empty_shards": self.n_done - self.n_written,
            "n_chunks": n_all,
            "n_empty_chunks": n_all - n_stored,
            "raw_nbytes": int(elements_in_shards(self.grid)[self.is_done].sum()) * itemsize,
            "stored_nbytes": int(self.nbytes.sum()),
        }


def elements_in_shards(grid: ShardGrid, region: Box | None = None) -> npt.NDArray[np.int64]:
    """Number of elements of each shard that lie inside the array, by row-major rank.

    With a region, only the elements that lie inside the region are counted.
    """
    bounds = (grid.whole if region is None else region).bounds
    axes = []
    for n, shard, (first, last) in zip(grid.shape, grid.shards, bounds, strict=True):
        starts = np.arange(0, n, shard, dtype=np.int64)
        inside = np.minimum(starts + shard, min(n, last)) - np.maximum(starts, first)
        axes.append(np.maximum(inside, 0))
    return _per_shard(axes)


def chunks_in_shards(grid: ShardGrid) -> npt.NDArray[np.int64]:
    """Number of inner chunks of each shard that overlap the array, by row-major rank."""
    axes = [
        -(-_in_bounds(n, s) // c)
        for n, s, c in zip(grid.shape, grid.shards, grid.chunks, strict=True)
    ]
    return _per_shard(axes)


def _in_bounds(n: int, shard: int) -> npt.NDArray[np.int64]:
    """Extent of each shard inside an array of `n` elements, along one axis."""
    starts = np.arange(0, n, shard, dtype=np.int64)
    return np.minimum(n - starts, shard)


def _per_shard(axes: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Product over all axes for each shard, by row-major rank."""
    product = np.ones((), dtype=np.int64)
    for sizes in axes:
        product = np.multiply.outer(product, sizes)
    return product.ravel()


def as_runs(ranks: npt.NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Ranks as pairs ``(first, count)``, one for each run of consecutive ranks.

    - `ranks`: the ranks, sorted.
    """
    if not len(ranks):
        return ()
    breaks = np.flatnonzero(np.diff(ranks) != 1) + 1
    firsts = np.concatenate([[0], breaks])
    counts = np.diff(np.concatenate([firsts, [len(ranks)]]))
    return tuple(zip(ranks[firsts].tolist(), counts.tolist(), strict=True))


def from_runs(runs: Any, n_shards: int) -> npt.NDArray[np.int64]:
    """Ranks that `as_runs` has turned into runs."""
    table = [[int(first), int(count)] for first, count in runs]
    if (
        any(first < 0 or count < 1 or first + count > n_shards for first, count in table)
        or sum(n for _, n in table) > n_shards
    ):
        raise ValueError("no runs of shards")
    return np.concatenate(
        [np.arange(a, a + n, dtype=np.int64) for a, n in table] or [np.empty(0, np.int64)]
    )
