"""Write strategies: where each encoded inner chunk goes in its shard.

A strategy returns numbers, never bytes: a sequence of ranks and, from the encoded sizes, offsets. It is
a choice of the run and never enters the metadata (sharding codec specification, "Binary shard format").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError
from shardwrite.grid import Shape
from shardwrite.order import ORDER_ALIASES, canonical_order, permutation

__all__ = ["AppendOnly", "FixedOrder", "Placement", "Strategy", "as_strategy", "place"]

Ranks = npt.NDArray[np.int64]


class Strategy(Protocol):
    """Decides the sequence of inner chunks in a shard."""

    @property
    def label(self) -> str:
        """Short name for people."""

    @property
    def streaming_order(self) -> str:
        """The order of inner chunks where one task has the whole shard at hand."""

    def sequence(self, chunks_per_shard: Shape, units: Sequence[Ranks]) -> Ranks:
        """Ranks of all inner chunks in the sequence in which they lie in the shard.

        Parameters
        ----------
        chunks_per_shard : tuple of int
            Shape of the shard's grid of inner chunks.
        units : sequence of numpy.ndarray of int64
            For each unit, in the plan's order, the row-major ranks of its inner chunks.
        """


@dataclass(frozen=True, slots=True)
class FixedOrder:
    """Inner chunks in a fixed order, whatever order they arrive in.

    Parameters
    ----------
    order : {"C", "F", "morton"}
        Row-major, column-major or Morton; ``"lexicographic"``, ``"colexicographic"`` and ``"unordered"``
        (no preference, here row-major) are taken as zarr-python's names.

    Examples
    --------
    >>> FixedOrder("lexicographic")
    FixedOrder(order='C')
    """

    order: str = "C"

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", canonical_order(self.order))

    @property
    def label(self) -> str:
        """``fixed-order (C)`` and so on."""
        return f"fixed-order ({self.order})"

    @property
    def streaming_order(self) -> str:
        """The order itself."""
        return self.order

    def sequence(self, chunks_per_shard: Shape, units: Sequence[Ranks]) -> Ranks:  # noqa: ARG002 (others need them)
        """See :meth:`Strategy.sequence`; depends on the grid only."""
        return permutation(chunks_per_shard, self.order)


@dataclass(frozen=True, slots=True)
class AppendOnly:
    """Units appended in the plan's order, row-major inside each, and the index after them.

    Examples
    --------
    >>> AppendOnly().label
    'append-only'
    """

    @property
    def label(self) -> str:
        """``append-only``."""
        return "append-only"

    @property
    def streaming_order(self) -> str:
        """Row-major: one task with the whole shard is one unit."""
        return "C"

    def sequence(self, chunks_per_shard: Shape, units: Sequence[Ranks]) -> Ranks:  # noqa: ARG002 (others need it)
        """See :meth:`Strategy.sequence`; depends on the units."""
        return np.concatenate([np.empty(0, np.int64), *units])


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the encoded inner chunks of one shard go.

    Attributes
    ----------
    offsets : numpy.ndarray of int64, shape (n,)
        Byte offset of each inner chunk by rank; meaningless where it is empty.
    sequence : numpy.ndarray of int64
        Ranks of the chunks that hold data, as they lie in the shard.
    data_nbytes : int
        Bytes of all of them together.
    """

    offsets: npt.NDArray[np.int64]
    sequence: Ranks
    data_nbytes: int


def place(nbytes: npt.NDArray[np.int64], sequence: Ranks, base: int) -> Placement:
    """Lay chunks end to end.

    Parameters
    ----------
    nbytes : numpy.ndarray of int64, shape (n,)
        Encoded size by rank; negative where empty.
    sequence : numpy.ndarray of int64
        Ranks in the order to lay them.
    base : int
        Offset of the first byte: the size of the index where that comes first, else 0.
    """
    present = sequence[nbytes[sequence] >= 0]
    sizes = nbytes[present]
    ends = np.cumsum(sizes)
    offsets = np.zeros(len(nbytes), dtype=np.int64)
    offsets[present] = base + ends - sizes
    return Placement(offsets, present, int(ends[-1]) if len(ends) else 0)


_BY_NAME: dict[str, Any] = {"fixed-order": FixedOrder, "append-only": AppendOnly}


def as_strategy(value: object) -> Strategy:
    """A strategy from what a user gives: an instance, a name, or the name of an order.

    Raises
    ------
    SpecError
        If it is none of these.

    Examples
    --------
    >>> as_strategy("morton")
    FixedOrder(order='morton')
    """
    if isinstance(value, FixedOrder | AppendOnly):
        return value
    if isinstance(value, str):
        if value in _BY_NAME:
            strategy: Strategy = _BY_NAME[value]()
            return strategy
        if value in ORDER_ALIASES:
            return FixedOrder(value)
    raise SpecError(
        "no such write strategy",
        field="strategy",
        value=value,
        remedy=f"use {sorted(_BY_NAME)}, FixedOrder(order=...), AppendOnly(), or an order: {sorted(ORDER_ALIASES)}",
    )
