"""What the parts of a run are written from: values, or encoded chunks of a stored array."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import shardwrite._dask as dask
from shardwrite.errors import SpecError, redacted
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.passage import what_differs
from shardwrite.journal import RunDirectory
from shardwrite.plan import Plan, Resources
from shardwrite.plan.copying import copied_nbytes
from shardwrite.read.stored_array import StoredArray
from shardwrite.runs.accepted import accepts_source
from shardwrite.runs.array_chunks import ArrayChunks
from shardwrite.runs.array_plan import identity_of, waiting
from shardwrite.runs.begun import plan_begun
from shardwrite.runs.given import take, take_for
from shardwrite.runs.job import Job
from shardwrite.runs.lost import check_nothing_lost
from shardwrite.runs.source import ChunkSource
from shardwrite.runs.stored_behind import behind
from shardwrite.runs.stored_chunks import StoredChunks


@dataclass(frozen=True, slots=True)
class PartSource:
    """What a user has given for a run that is written in parts."""

    given: Any  # what the user has given
    array: dask.array.Array  # its values
    source_id: str | None = None  # its identity, if the user has named it

    @classmethod
    def of(cls, x: Any, source_id: str | None = None) -> PartSource:
        """Take what a user has given; see `take`."""
        return cls(x, take(x).array, source_id)

    def chunks_for(self, plan: Plan) -> ChunkSource:
        """The chunks of a run that begins."""
        if not plan.source.is_encoded:
            return ArrayChunks(self.array)
        stored = self._stored()
        chunks = _copies(stored, plan.metadata)
        if not plan.source.is_stable and stored.identity != plan.source.identity:
            raise _not_this("it is another array than that of the plan", stored.label)
        return chunks

    def planned(self, run: RunDirectory, resources: Resources) -> tuple[ChunkSource, Plan]:
        """The chunks of a run that another process has begun, and its plan for this source.

        - Raises ChangedError if the source has lost objects.
        """
        if not run.record.copies:
            own = identity_of(self.array, self.source_id)
            identity = None if accepts_source() else own
            plan = plan_begun(run, resources, self.array, identity)
            take_for(self.array, plan.metadata, "x")
            return ArrayChunks(self.array), plan
        stored = self._stored()
        identity = None if accepts_source() else self._identity_of(stored)
        plan = plan_begun(run, resources, identity=identity)
        take_for(self.array, plan.metadata, "x")
        chunks = _copies(stored, plan.metadata)
        check_nothing_lost(stored)
        sizes = plan.metadata.grid.sizes
        return chunks, replace(plan, source=replace(plan.source, chunks=sizes, is_encoded=True))

    def is_named(self, identity: str | None) -> bool:
        """Whether a run that has ended was one of this source."""
        if accepts_source() or identity == identity_of(self.array, self.source_id):
            return True
        stored = behind(self.given)
        return isinstance(stored, StoredArray) and identity == self._identity_of(stored)

    def _stored(self) -> StoredArray:
        """The stored array that has the encoded chunks."""
        found = behind(self.given)
        if isinstance(found, StoredArray):
            return found
        why = "only its values are known" if found is None else found
        raise _not_this(
            f"the plan copies encoded chunks of a Zarr array, and this one has none to copy: {why}",
            type(self.given).__name__,
        )

    def _identity_of(self, stored: StoredArray) -> str:
        return stored.identity if self.source_id is None else redacted(self.source_id)


def _copies(stored: StoredArray, metadata: ArrayMetadata) -> StoredChunks:
    """Encoded chunks of a stored array for another one."""
    differing = what_differs(stored.array.metadata, metadata)
    if differing:
        why = f"its encoded chunks cannot be copied, since {' and '.join(differing)} differ"
        raise _not_this(why, stored.label)
    return StoredChunks(metadata, None, stored.array)


def _not_this(why: str, value: str) -> SpecError:
    remedy = "give the zarr.Array for which the plan was made"
    return SpecError(why, field="x", value=value, remedy=remedy)


def check_fits(job: Job) -> None:
    """Refuse to write a part if that takes more memory than this process may use."""
    plan = job.plan
    if not isinstance(job.source, StoredChunks):
        plan.check_fits()
        return
    resources = waiting(plan.resources, job.target.store, plan.metadata)
    copied_nbytes(replace(plan, resources=resources), decodes=job.source.decodes)
