"""Encoded inner chunks of an array that exists as a source of chunks. Nothing is decoded."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task

from shardwrite._dataclass import dataclass
from shardwrite.errors import ChangedError, SpecError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.passage import Passage, passage_between, what_differs
from shardwrite.grid import Box
from shardwrite.journal.receipt import receipt_at
from shardwrite.place.target import resolve_place
from shardwrite.plan.plan import Plan
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import ranks_of_objects
from shardwrite.read.stored_array import StoredArray, check_names_of, stored_at
from shardwrite.runs.job import Key, ReadsPlaces, TaskBox
from shardwrite.runs.kept import HOW_TO_GO_ON
from shardwrite.write.copying import Check, Donor, Listing, copy_group
from shardwrite.write.tasks import rewrite_group

__all__ = ["EncodedChunks", "StoredChunks"]


# ---- Objects that are missing before a copy


_MOST_NAMED, _MOST_TOLD = 1000, 4


def check_nothing_lost(source: StoredArray) -> None:
    """Refuse an array that has lost objects, which a copy would take for empty.

    The array is listed to the end if it lies on this machine, or has a receipt that says which of
    its shards are empty. Otherwise the first chunk ends the listing.

    - `source`: the array. One whose objects are being removed, as they are consumed, is not looked
      at.
    - Raises ChangedError if an object is missing that the receipt names.
    """
    if source.known_identity or source.is_in_file:
        return
    check_names_of(source)
    if not source.is_v3:
        return
    receipt, metadata = receipt_at(source.place), source.array.metadata
    if receipt is None:
        return
    try:
        noted = receipt.nbytes_on(metadata.grid)
    except SpecError:  # it is of another array; `verify` tells
        return
    if noted is None:
        return
    there = ranks_of_objects(source.array, source.label)
    lost = np.setdiff1d(np.flatnonzero(noted), there)
    if not len(lost):
        return
    missing = [metadata.key_of_rank(rank) for rank in lost[:_MOST_NAMED].tolist()]
    told = ", ".join(missing[:_MOST_TOLD]) + (", ..." if len(lost) > _MOST_TOLD else "")
    raise ChangedError(
        f"{source.label} is not what its last run left. {len(lost):,} shards are gone ({told}), "
        f"and a copy would hold the fill value there: {HOW_TO_GO_ON}. The same call goes on then",
        path=source.label,
        changed=[],
        missing=missing,
    )


# ---- The Zarr array behind what a user has given


Behind = StoredArray | str | None
"""A stored array whose chunks may pass, or why they do not; None if there is none."""


def behind(x: Any) -> Behind:
    """The stored array that a user has given, or why its chunks are decoded; None without one."""
    try:
        return _stored(x)
    except SpecError as error:
        return error.message


def _stored(x: Any) -> StoredArray | None:
    if isinstance(x, ReadsPlaces):
        for where, name, kind in x.places_read():
            if kind == "array":
                return stored_at(resolve_place(where, name or None, is_read=True))
        return None
    if any(kind.__module__.partition(".")[0] == "zarr" for kind in type(x).__mro__):
        return stored_at(resolve_place(x, None, is_read=True))
    return None


# ---- Encoded chunks as a source


class EncodedChunks:
    """What all sources of chunks have in common that are encoded already."""

    __slots__ = ()

    @property
    def is_encoded(self) -> bool:
        """See :class:`ChunkSource`."""
        return True

    def shares_nothing(self, plan: Plan) -> bool:  # noqa: ARG002 (the protocol's)
        """See :class:`CanSplit`."""
        return True

    def encode(self, at: TaskBox) -> NoReturn:
        """Raise TypeError, because the chunks are encoded already."""
        raise TypeError(f"{at.key} would encode chunks that are encoded already")

    def graph(self, name: str, tasks: dict[Key, Any]) -> HighLevelGraph:
        """See :class:`ChunkSource`."""
        layers: Any = {name: tasks}
        return HighLevelGraph(layers, {name: set()})

    def box_of(self, key: Any) -> None:
        """Do nothing, because the graph builder knows the boxes of all tasks."""


@dataclass(frozen=True, slots=True)
class StoredChunks(EncodedChunks):
    """Encoded inner chunks of the array itself, or of another array with the same inner chunks."""

    metadata: ArrayMetadata  # metadata in the plan
    region: Box | None = None  # the plan's region, if it has one
    # The other array. Without it, each shard is rewritten from its own inner chunks.
    other: ShardedArray | None = None
    # Decode each inner chunk of the other array before it is copied; see `Donor`
    check: Check = False
    drop_empty: bool = False  # leave out inner chunks that hold only the fill value
    listed: Listing | None = None  # objects that the other array must have

    def __post_init__(self) -> None:
        if self.other is None:
            return
        remedy = "read the array with from_sharded_zarr and write its values"
        if self.region is not None:
            raise SpecError(
                "encoded chunks of another array make a whole array",
                field="region",
                value=self.region.bounds,
                remedy=remedy,
            )
        differing = what_differs(self.other.metadata, self.metadata)
        if differing:
            raise SpecError(
                f"encoded chunks cannot be taken over, since {' and '.join(differing)} differ",
                field="source",
                value=self.other.shape,
                remedy=remedy,
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`ChunkSource`."""
        return self.metadata.dtype

    @property
    def copied(self) -> ShardedArray | None:
        """See :class:`CopiesObjects`; nothing if the array's objects are removed meanwhile."""
        return self.other if self.listed is None else None

    @property
    def read_from(self) -> ShardedArray | None:
        """See :class:`ReadsArray`."""
        return self.other

    @property
    def decodes(self) -> bool:
        """Whether inner chunks of the other array are also decoded, be it those at the edges."""
        if self.other is None:
            return False
        return bool(self.check) or self.drop_empty or self._passage(self.other).n_encoded > 0

    def _passage(self, other: ShardedArray) -> Passage:
        passage = passage_between(other.metadata, self.metadata)
        if passage is None:
            raise TypeError("checked when the source was made")
        return passage

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        if self.other is None:
            return {at.key: Task(at.key, rewrite_group, at.spec, at.box, at.skip)}
        passage = self._passage(self.other)
        into = self.metadata if passage.n_encoded else None
        donor = Donor(self.other, passage, self.check, self.drop_empty, self.listed, into)
        return {at.key: Task(at.key, copy_group, at.spec, donor, at.box, at.skip)}
