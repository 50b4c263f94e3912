"""Census of an array: how many of its shards hold data, in which state they are, and where."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.errors import printable
from shardwrite.grid import Shape
from shardwrite.results import Facts, Result, human
from shardwrite.seams import resolve

Array = npt.NDArray[Any]


class ShardState(IntEnum):
    """State of a shard."""

    PENDING = 0
    """A run that has not ended still has to write the shard."""
    WRITTEN = 1
    """The shard has an object, in which no fault was found."""
    EMPTY = 2
    """The shard has no object and reads as the fill value; nothing says that it should have one."""
    MISSING = 3
    """The shard has no object, but should have one."""
    BAD = 4
    """A fault was found in the shard."""


STATES = tuple(state.name.lower() for state in ShardState)
LEGEND_ORDER = (
    ShardState.WRITTEN,
    ShardState.EMPTY,
    ShardState.PENDING,
    ShardState.MISSING,
    ShardState.BAD,
)


@dataclass(frozen=True, slots=True, eq=False)
class Census(Result):
    """Count of the shards and inner chunks of an array that hold data, and their places.

    Attributes
    ----------
    path : str
        Path of the array.
    n_inner_chunks, n_stored_chunks : int
        Number of inner chunks that overlap the array, and how many of them hold data.
    chunks_per_shard : tuple of int
        Inner chunks along each axis of a shard.
    states : ndarray of uint8
        A :class:`ShardState` for each shard of the grid.
    stored_nbytes : ndarray of int64
        Size of each shard's object in bytes; 0 if the shard has no object.
    warnings : tuple of str
        Warnings about what lies beside the array (see :func:`shardwrite.verify`), and about shards
        that the storage refused to read, which count as bad.

    Raises
    ------
    ValueError
        If `states` and `stored_nbytes` differ in shape.
    """

    path: str
    n_inner_chunks: int
    n_stored_chunks: int
    chunks_per_shard: Shape
    states: Array
    stored_nbytes: Array
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.states.shape != self.stored_nbytes.shape:
            raise ValueError(
                f"grids differ: states {self.states.shape}, stored bytes {self.stored_nbytes.shape}"
            )

    @property
    def counts(self) -> dict[str, int]:
        """Number of shards in each state, by the name of the state."""
        counts = np.bincount(self.states.ravel(), minlength=len(STATES))
        return dict(zip(STATES, counts.tolist(), strict=True))

    @property
    def stored_fraction(self) -> float:
        """Fraction of the inner chunks that hold data; 0 if there are no inner chunks."""
        return self.n_stored_chunks / self.n_inner_chunks if self.n_inner_chunks else 0.0

    @property
    def total_nbytes(self) -> int:
        """Size of all written shards together, in bytes."""
        return int(self._sizes.sum())

    @property
    def mean_nbytes(self) -> float:
        """Mean size of the written shards in bytes; 0 if there are none."""
        return float(self._sizes.mean()) if self._sizes.size else 0.0

    @property
    def min_nbytes(self) -> int:
        """Size of the smallest written shard in bytes; 0 if there is none."""
        return int(self._sizes.min(initial=self.max_nbytes))

    @property
    def max_nbytes(self) -> int:
        """Size of the largest written shard in bytes; 0 if there is none."""
        return int(self._sizes.max(initial=0))

    @property
    def _sizes(self) -> Array:
        sizes: Array = self.stored_nbytes[self.states == ShardState.WRITTEN]
        return sizes

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as values that JSON can hold.

        The grids are left out, except for their shape.
        """
        return {
            "path": self.path,
            "grid_shape": list(self.states.shape),
            "chunks_per_shard": list(self.chunks_per_shard),
            "n_shards": self.states.size,
            "counts": self.counts,
            "n_inner_chunks": self.n_inner_chunks,
            "n_stored_chunks": self.n_stored_chunks,
            "stored_fraction": self.stored_fraction,
            "total_nbytes": self.total_nbytes,
            "mean_nbytes": self.mean_nbytes,
            "min_nbytes": self.min_nbytes,
            "max_nbytes": self.max_nbytes,
            "warnings": list(self.warnings),
        }

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Rows of the census as a table: pairs of a name and a cell."""
        grid, shard = times(self.states.shape), times(self.chunks_per_shard)
        stored = f"{self.n_stored_chunks:,} of {self.n_inner_chunks:,} hold data"
        rows = [
            ("array", self.path),
            ("grid", f"{grid} shards, each of {shard} inner chunks"),
            ("shards", self._told_counts or "none"),
            ("inner chunks", f"{stored} ({self.stored_fraction:.1%})"),
        ]
        if self.counts["written"]:
            low, mean, high = map(human, (self.min_nbytes, self.mean_nbytes, self.max_nbytes))
            total = human(self.total_nbytes)
            rows.append(("stored", f"{total}; {mean} per shard on average, from {low} to {high}"))
        return rows + [("warning", text) for text in self.warnings]

    @property
    def _told_counts(self) -> str:
        """Number of shards in each state that occurs, such as ``4 written, 1 missing``."""
        names = [STATES[state] for state in LEGEND_ORDER]
        return ", ".join(f"{self.counts[name]:,} {name}" for name in names if self.counts[name])

    def __repr__(self) -> str:
        return f"<Census of {printable(self.path)}: {self._told_counts or 'no shards'}>"

    def facts(self) -> Facts:
        """Return what is shown of the census, as text and in notebooks."""
        return Facts(title="census", subject=self.path, rows=self.rows)

    def _repr_html_(self) -> str:
        html: str = resolve("view", "census")(self)
        return html


def times(shape: Shape) -> str:
    """Format a shape, such as ``4 x 3``."""
    return " x ".join(f"{n:,}" for n in shape) or "1"
