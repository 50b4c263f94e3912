"""Census of an array: how many of its shards hold data, and where."""

from __future__ import annotations

from dataclasses import dataclass

from shardwrite.errors import printable
from shardwrite.picture.look import rows_of, told_counts
from shardwrite.picture.page import NOTEBOOK_CELLS, fragment
from shardwrite.picture.tally import Tally
from shardwrite.results import table_text


@dataclass(frozen=True, slots=True, eq=False)
class Census(Tally):
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
        Warnings about what lies beside the array; see :func:`shardwrite.verify`.

    Raises
    ------
    ValueError
        If `states` and `stored_nbytes` differ in shape.
    """

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Rows of the census as a table: pairs of a name and a cell."""
        return rows_of(self)

    def __repr__(self) -> str:
        return f"<Census of {printable(self.path)}: {told_counts(self) or 'no shards'}>"

    def __str__(self) -> str:
        return table_text("census", self.rows)

    def _repr_html_(self) -> str:
        return fragment(self, NOTEBOOK_CELLS)
