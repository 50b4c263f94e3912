"""What a write strategy is.

A strategy places encoded inner chunks in a shard. It returns numbers, never bytes: a sequence of
ranks and, from the encoded sizes, offsets. It is chosen for each run and never enters the metadata
(sharding codec specification, "Binary shard format").

Where shards are files of another format, too, the strategy also has a method ``framing``, which
gives a `format.frame.Framing`.

To add one, write a class with the members of `Strategy`. An instance can be given as ``strategy=``.
With `shardwrite.register_strategy`, the class is also known by its name, which a run needs that is
continued by other processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self

from shardwrite.codecs.documents import JSON
from shardwrite.format.placement import Placement, Ranks, Revision, Stored
from shardwrite.grid import Shape


class Strategy(Protocol):
    """Rule for the sequence and the offsets of inner chunks in a shard."""

    name: ClassVar[str]
    """Name under which the class is registered, such as ``append-only``."""

    @property
    def label(self) -> str:
        """Short, readable name of this instance.

        It enters the plan's digest. So instances that write different bytes need different labels.
        """

    @property
    def streaming_order(self) -> str:
        """Order of inner chunks where one task encodes the whole shard."""

    def sequence(self, chunks_per_shard: Shape, units: Sequence[Ranks]) -> Ranks:
        """Ranks of inner chunks in the sequence in which they lie in the shard.

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
        """Place inner chunks in a new shard.

        Parameters
        ----------
        nbytes : numpy.ndarray of int64, shape (n,)
            Encoded size of each inner chunk by rank, in bytes; negative where it is empty.
        sequence : numpy.ndarray of int64
            Result of :meth:`sequence`.
        base : int
            Size of the index in bytes if it comes first, else 0.
        fixed_nbytes : int, optional
            Encoded size of every inner chunk, if it does not depend on values. None also where the
            array itself is new.
        """

    def streams(self, fixed_nbytes: int | None) -> bool:
        """Whether inner chunks can be written while the shard is being encoded.

        They can if `lay_out` places them end to end, in the sequence of `streaming_order`.

        Parameters
        ----------
        fixed_nbytes : int, optional
            The argument that `lay_out` would get.
        """

    def revise(self, old: Stored, nbytes: Ranks, sequence: Ranks, base: int) -> Revision:
        """Decide how to update a shard that exists, and where its inner chunks go.

        Parameters
        ----------
        old : Stored
            Layout of the shard before the update.
        nbytes : numpy.ndarray of int64, shape (n,)
            New encoded size of each inner chunk by rank, in bytes; -1 where the chunk becomes
            empty, `KEEP` where it does not change.
        sequence : numpy.ndarray of int64
            Result of :meth:`sequence`.
        base : int
            Size of the index in bytes if it comes first, else 0.
        """

    @property
    def in_place(self) -> bool:
        """Whether existing shards are changed in place, instead of being replaced."""

    @property
    def replaces(self) -> bool:
        """Whether an update writes every shard anew, without anything of the old object."""

    @property
    def depends_on_cut(self) -> bool:
        """Whether the bytes depend on how tasks are cut; the cut then enters the plan's digest."""

    def to_dict(self) -> Mapping[str, JSON]:
        """All parameters of this instance, as values that JSON can hold."""

    @classmethod
    def from_dict(cls, parameters: Mapping[str, Any]) -> Self:
        """Make an instance from the result of :meth:`to_dict`, which may come from a file.

        Raises
        ------
        SpecError, TypeError, ValueError
            If the parameters are not valid.
        """
