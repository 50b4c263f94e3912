"""Facts about the shards of an array, without any presentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwrite.grid import Shape
from shardwrite.picture.fold import STATES, Array, ShardState


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """Number and places of the shards and inner chunks that hold data.

    The fields are described in :class:`~shardwrite.picture.census.Census`.

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
        return dict(
            zip(
                STATES,
                np.bincount(self.states.ravel(), minlength=len(STATES)).tolist(),
                strict=True,
            )
        )

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
