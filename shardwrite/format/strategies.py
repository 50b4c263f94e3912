"""Write strategies: where each encoded inner chunk goes in its shard.

A strategy returns numbers, never bytes: a sequence of ranks and, from the encoded sizes, offsets. It is
a choice of the run and never enters the metadata (sharding codec specification, "Binary shard format").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shardwrite.errors import SpecError
from shardwrite.format.order import ORDER_ALIASES, canonical_order, permutation
from shardwrite.format.placement import KEEP, Placement, Ranks, Revision, Stored, place
from shardwrite.grid import Shape

__all__ = ["AppendOnly", "FixedOrder", "Strategy", "as_strategy", "labelled"]


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

    def lay_out(
        self, nbytes: Ranks, sequence: Ranks, base: int, fixed_nbytes: int | None
    ) -> Placement:
        """Where inner chunks go in a new shard of an array that is updated.

        Parameters
        ----------
        nbytes : numpy.ndarray of int64, shape (n,)
            Encoded size by rank; negative where empty.
        sequence : numpy.ndarray of int64
            What :meth:`sequence` gave.
        base : int
            Size of the index where that comes first, else 0.
        fixed_nbytes : int, optional
            Encoded size of any inner chunk, where that does not depend on its values.
        """

    def streams(self, fixed_nbytes: int | None) -> bool:
        """Whether `lay_out` lays inner chunks end to end in `streaming_order`, so that they can be written as they are encoded.

        Parameters
        ----------
        fixed_nbytes : int, optional
            What `lay_out` will be given.
        """

    def revise(self, old: Stored, nbytes: Ranks, sequence: Ranks, base: int) -> Revision:
        """What becomes of a shard that exists.

        Parameters
        ----------
        old : Stored
            The shard as it is.
        nbytes : numpy.ndarray of int64, shape (n,)
            New encoded size by rank; -1 where empty, `KEEP` where nothing changes.
        sequence : numpy.ndarray of int64
            What :meth:`sequence` gave.
        base : int
            Size of the index where that comes first, else 0.
        """

    @property
    def in_place(self) -> bool:
        """Whether shards that exist are changed where they stand."""

    @property
    def replaces(self) -> bool:
        """Whether an update writes every shard anew, without anything of the old object."""


@dataclass(frozen=True, slots=True)
class FixedOrder:
    """Inner chunks in a fixed order, whatever order they arrive in.

    Parameters
    ----------
    order : {"C", "F", "morton"}
        Row-major, column-major or Morton; ``"lexicographic"``, ``"colexicographic"`` and ``"unordered"``
        (no preference, here row-major) are taken as zarr-python's names.
    in_place : bool
        Into shards that exist, write a new inner chunk where the old one stands if it is not larger, else after the end; not
        atomic for readers. Where all are of one size, each has its place in the order from the beginning, also while it is empty.
    max_unused : float
        Share of unused bytes above which a shard is written anew instead.

    Examples
    --------
    >>> FixedOrder("lexicographic")
    FixedOrder(order='C', in_place=False, max_unused=0.25)
    """

    order: str = "C"
    in_place: bool = False
    max_unused: float = 0.25

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", canonical_order(self.order))
        if isinstance(self.max_unused, bool) or not 0 <= self.max_unused <= 1:
            raise SpecError(
                "not a share",
                field="max_unused",
                value=self.max_unused,
                remedy="give a number from 0 to 1",
            )

    @property
    def label(self) -> str:
        """``fixed-order (C)`` and so on."""
        return f"fixed-order ({self.order}{', in place' if self.in_place else ''})"

    @property
    def streaming_order(self) -> str:
        """The order itself."""
        return self.order

    @property
    def replaces(self) -> bool:
        """See :meth:`Strategy.replaces`; unless it writes in place."""
        return not self.in_place

    def sequence(self, chunks_per_shard: Shape, units: Sequence[Ranks]) -> Ranks:  # noqa: ARG002 (others need them)
        """See :meth:`Strategy.sequence`; depends on the grid only."""
        return permutation(chunks_per_shard, self.order)

    def lay_out(
        self, nbytes: Ranks, sequence: Ranks, base: int, fixed_nbytes: int | None
    ) -> Placement:
        """See :meth:`Strategy.lay_out`."""
        return self._laid_out(nbytes, sequence, base, fixed_nbytes, None)

    def streams(self, fixed_nbytes: int | None) -> bool:
        """See :meth:`Strategy.streams`; not where each inner chunk may have a place of its own."""
        return not self.in_place or fixed_nbytes is None

    def _laid_out(
        self,
        nbytes: Ranks,
        sequence: Ranks,
        base: int,
        fixed_nbytes: int | None,
        old: Stored | None,
    ) -> Placement:
        if self.in_place and fixed_nbytes is not None and (nbytes < 0).mean() <= self.max_unused:
            homes = _homes(sequence, base, fixed_nbytes)
            return Placement(homes, sequence[nbytes[sequence] >= 0], fixed_nbytes * len(nbytes))
        return place(nbytes, sequence, base, old)

    def revise(self, old: Stored, nbytes: Ranks, sequence: Ranks, base: int) -> Revision:
        """See :meth:`Strategy.revise`."""
        merged = np.where(nbytes == KEEP, old.nbytes, nbytes)
        if self.in_place:
            spots = np.where(nbytes <= old.nbytes, old.offsets, _free_homes(old, sequence, base))
            changed = _in_place(
                old, nbytes, merged, sequence, spots, old.index_span[0] or old.total_nbytes
            )
            n_unused = changed.end - base - int(merged[merged > 0].sum())
            if (
                n_unused <= self.max_unused * changed.end
                and int(nbytes[nbytes > 0].sum()) <= old.total_nbytes // 2
            ):
                return changed  # where most is new, a new shard costs no more
        placement = self._laid_out(merged, sequence, base, old.fixed_nbytes, old)
        return Revision(
            "rewrite",
            placement.offsets,
            merged,
            placement.sequence,
            0,
            base + placement.data_nbytes,
        )


def _homes(sequence: Ranks, base: int, fixed_nbytes: int) -> Ranks:
    """Where each inner chunk of a fixed size stands in a shard in which there is room for all."""
    homes = np.empty(len(sequence), dtype=np.int64)
    homes[sequence] = base + fixed_nbytes * np.arange(len(sequence))
    return homes


def _free_homes(old: Stored, sequence: Ranks, base: int) -> Ranks:
    """The same where nothing stands there yet, and -1 elsewhere."""
    if old.fixed_nbytes is None:
        return np.full(len(old.nbytes), -1, dtype=np.int64)
    homes, size = _homes(sequence, base, old.fixed_nbytes), old.fixed_nbytes
    taken = np.sort(old.offsets[old.nbytes >= 0])
    at = np.searchsorted(taken, homes)
    edge = np.iinfo(np.int64).max // 2
    after, before = np.append(taken, edge)[at], np.append(-edge, taken)[at]
    end = old.index_span[0] or old.total_nbytes
    is_free = (after >= homes + size) & (before + size <= homes) & (homes + size <= end)
    return np.where(is_free, homes, -1)


def _in_place(
    old: Stored, nbytes: Ranks, merged: Ranks, sequence: Ranks, spots: Ranks, end_of_old: int
) -> Revision:
    """New inner chunks where there is a spot for them, the others after the end of the object."""
    new = sequence[nbytes[sequence] >= 0]
    behind = new[spots[new] < 0]
    ends = old.total_nbytes + np.cumsum(nbytes[behind])
    offsets = np.where(nbytes >= 0, spots, old.offsets)
    offsets[behind] = ends - nbytes[behind]
    end = int(ends[-1]) if len(behind) else end_of_old
    return Revision("in place", offsets, merged, new, old.total_nbytes, end)


@dataclass(frozen=True, slots=True)
class AppendOnly:
    """Units appended in the plan's order, row-major inside each, and the index after them.

    Into shards that exist, new inner chunks go after the end, of a clone that then takes the shard's place.

    Parameters
    ----------
    in_place : bool
        Append to the shard itself; while that lasts, readers may find no index that is whole.

    Examples
    --------
    >>> AppendOnly().label
    'append-only'
    """

    in_place: bool = False

    @property
    def label(self) -> str:
        """``append-only``."""
        return f"append-only{' (in place)' if self.in_place else ''}"

    @property
    def streaming_order(self) -> str:
        """Row-major: one task with the whole shard is one unit."""
        return "C"

    @property
    def replaces(self) -> bool:
        """See :meth:`Strategy.replaces`; never."""
        return False

    def sequence(self, chunks_per_shard: Shape, units: Sequence[Ranks]) -> Ranks:  # noqa: ARG002 (others need it)
        """See :meth:`Strategy.sequence`; depends on the units."""
        return np.concatenate([np.empty(0, np.int64), *units])

    def lay_out(
        self, nbytes: Ranks, sequence: Ranks, base: int, fixed_nbytes: int | None
    ) -> Placement:  # noqa: ARG002
        """See :meth:`Strategy.lay_out`; end to end."""
        return place(nbytes, sequence, base)

    def streams(self, fixed_nbytes: int | None) -> bool:  # noqa: ARG002 (others need it)
        """See :meth:`Strategy.streams`; always."""
        return True

    def revise(self, old: Stored, nbytes: Ranks, sequence: Ranks, base: int) -> Revision:
        """See :meth:`Strategy.revise`."""
        merged = np.where(nbytes == KEEP, old.nbytes, nbytes)
        if self.in_place:
            return _in_place(
                old,
                nbytes,
                merged,
                sequence,
                np.full(len(nbytes), -1, dtype=np.int64),
                old.total_nbytes,
            )
        new = sequence[nbytes[sequence] >= 0]
        kept = old.total_nbytes if base else old.index_span[0]  # nobody needs the clone's old index
        ends = kept + np.cumsum(nbytes[new])
        offsets = old.offsets.copy()
        offsets[new] = ends - nbytes[new]
        return Revision("append", offsets, merged, new, kept, int(ends[-1]) if len(new) else kept)


_BY_NAME: dict[str, Any] = {"fixed-order": FixedOrder, "append-only": AppendOnly}


def labelled(label: str) -> Strategy:
    """The strategy that has a label.

    Raises
    ------
    ValueError
        If none has.

    Examples
    --------
    >>> labelled("fixed-order (F)")
    FixedOrder(order='F', in_place=False, max_unused=0.25)
    """
    orders = sorted(set(ORDER_ALIASES.values()))
    for in_place in (False, True):
        known: list[Strategy] = [
            AppendOnly(in_place=in_place),
            *(FixedOrder(order, in_place=in_place) for order in orders),
        ]
        for strategy in known:
            if strategy.label == label:
                return strategy
    raise ValueError(f"no strategy has the label {label!r}")


def as_strategy(value: object) -> Strategy:
    """A strategy from what a user gives: an instance, a name, or the name of an order.

    Raises
    ------
    SpecError
        If it is none of these.

    Examples
    --------
    >>> as_strategy("morton")
    FixedOrder(order='morton', in_place=False, max_unused=0.25)
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
