"""What is committed, shard by shard: arrays that journal lines and reports are entered into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Box, ShardGrid
from shardwrite.journal.records import Entry

__all__ = ["Ledger", "as_runs", "from_runs"]


class Ledger:
    """Facts about every shard of a grid, by row-major rank.

    Parameters
    ----------
    grid : ShardGrid
        The array's grid.

    Attributes
    ----------
    is_done : numpy.ndarray of bool, shape (n_shards,)
        Committed, or empty by design.
    nbytes, n_chunks : numpy.ndarray of int64, shape (n_shards,)
        Bytes of the object, and inner chunks that hold data; 0 where there is no object.
    index_crcs : numpy.ndarray of uint32, shape (n_shards,)
        crc32c of the index table.
    peaks : dict of str to int
        Most memory resident, in bytes, by process.
    """

    def __init__(self, grid: ShardGrid) -> None:
        self.grid = grid
        n = grid.n_shards
        self.is_done = np.zeros(n, dtype=bool)
        self.nbytes = np.zeros(n, dtype=np.int64)
        self.n_chunks = np.zeros(n, dtype=np.int64)
        self.index_crcs = np.zeros(n, dtype=np.uint32)
        self.peaks: dict[str, int] = {}

    def enter(self, entry: Entry, process: str = "") -> None:
        """Enter what a task committed; a later entry replaces an earlier one."""
        ranks = list(entry.shards)
        self.is_done[ranks] = True
        self.nbytes[ranks] = entry.nbytes
        self.n_chunks[ranks] = entry.n_chunks
        self.index_crcs[ranks] = entry.index_crcs
        if process:
            self.peaks[process] = max(self.peaks.get(process, 0), entry.peak_nbytes)

    def take(self, other: Ledger, ranks: Sequence[int]) -> None:
        """Take over what another ledger says of some shards."""
        for name in ("is_done", "nbytes", "n_chunks", "index_crcs"):
            getattr(self, name)[list(ranks)] = getattr(other, name)[list(ranks)]
        self.peaks = dict(other.peaks)

    def forget(self, ranks: Sequence[int]) -> None:
        """Take shards for not committed."""
        for column in (self.is_done, self.nbytes, self.n_chunks, self.index_crcs):
            column[list(ranks)] = 0

    @property
    def n_done(self) -> int:
        """Shards that are committed or empty by design."""
        return int(self.is_done.sum())

    @property
    def n_written(self) -> int:
        """Shards with an object."""
        return int((self.nbytes > 0).sum())

    @property
    def empty(self) -> npt.NDArray[np.int64]:
        """Ranks of the shards that are empty by design."""
        return np.flatnonzero(self.is_done & (self.nbytes == 0))

    @property
    def missing(self) -> npt.NDArray[np.int64]:
        """Ranks of the shards that are not done."""
        return np.flatnonzero(~self.is_done)

    def left_in_groups(self, group_edges: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
        """How many shards of each group are not done yet.

        Parameters
        ----------
        group_edges : sequence of sequence of int
            Edges of the groups along each axis, in elements; shards are never cut.

        Returns
        -------
        numpy.ndarray of int64, shape (n_groups,)
            Row-major.
        """
        left = (~self.is_done).astype(np.int64).reshape(self.grid.counts)
        for axis, (edges, shard) in enumerate(zip(group_edges, self.grid.shards, strict=True)):
            starts = [edge // shard for edge in edges[:-1]]
            if not starts:
                return np.zeros(0, dtype=np.int64)
            left = np.add.reduceat(left, starts, axis=axis)
        return left.ravel()

    def done_within(self, box: Box) -> frozenset[tuple[int, ...]]:
        """Positions of the shards inside a box, in elements, that are done."""
        start = [a // s for a, s in zip(box.start, self.grid.shards, strict=True)]
        stop = [-(-b // s) for b, s in zip(box.stop, self.grid.shards, strict=True)]
        inside = self.is_done.reshape(self.grid.counts)[
            tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
        ]
        if not inside.any():
            return frozenset()
        return frozenset(
            tuple(int(a + i) for a, i in zip(start, at, strict=True)) for at in np.argwhere(inside)
        )

    def totals(self, itemsize: int) -> dict[str, int]:
        """Sums over what is done, as a result names them."""
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


def elements_in_shards(grid: ShardGrid) -> npt.NDArray[np.int64]:
    """In-bounds elements of each shard, by row-major rank."""
    return _per_shard([_in_bounds(n, s) for n, s in zip(grid.shape, grid.shards, strict=True)])


def chunks_in_shards(grid: ShardGrid) -> npt.NDArray[np.int64]:
    """Inner chunks of each shard that overlap the array, by row-major rank."""
    axes = [
        -(-_in_bounds(n, s) // c)
        for n, s, c in zip(grid.shape, grid.shards, grid.chunks, strict=True)
    ]
    return _per_shard(axes)


def _in_bounds(n: int, shard: int) -> npt.NDArray[np.int64]:
    starts = np.arange(0, n, shard, dtype=np.int64)
    return np.minimum(n - starts, shard)


def _per_shard(axes: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    product = np.ones((), dtype=np.int64)
    for sizes in axes:
        product = np.multiply.outer(product, sizes)
    return product.ravel()


def as_runs(ranks: npt.NDArray[np.int64]) -> list[list[int]]:
    """Sorted ranks as ``[first, count]`` of each run of neighbours."""
    if not len(ranks):
        return []
    breaks = np.flatnonzero(np.diff(ranks) != 1) + 1
    firsts = np.concatenate([[0], breaks])
    counts = np.diff(np.concatenate([firsts, [len(ranks)]]))
    return [[int(ranks[a]), int(n)] for a, n in zip(firsts, counts, strict=True)]


def from_runs(runs: Any, n_shards: int) -> npt.NDArray[np.int64]:
    """The way back.

    Raises
    ------
    ValueError
        If they are no runs of ranks below `n_shards`.
    """
    table = [[int(first), int(count)] for first, count in runs]
    if (
        any(first < 0 or count < 1 or first + count > n_shards for first, count in table)
        or sum(n for _, n in table) > n_shards
    ):
        raise ValueError("no runs of shards")
    return np.concatenate(
        [np.arange(a, a + n, dtype=np.int64) for a, n in table] or [np.empty(0, np.int64)]
    )
