"""Steps of calls that make or repair an array, where its shard format asks for more than others.

`ArraySteps` does what holds for all arrays. A wing derives a class of its own, and brings it under
the kind ``steps`` and the name of its shard format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.engines import active_engine
from shardwrite.engines.local import Engine
from shardwrite.errors import SpecError, redacted
from shardwrite.format.metadata import ArrayMetadata, metadata_of_document
from shardwrite.format.passage import what_differs
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.rundir import RunDirectory
from shardwrite.place.target import Target
from shardwrite.plan.estimate import Resources
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.plan import Part, Plan, copied_nbytes
from shardwrite.read.array import open_at
from shardwrite.read.stored_array import StoredArray
from shardwrite.runs.array_plan import ArrayChunks, identity_of, layout_of, plan_into, waiting
from shardwrite.runs.begun import plan_begun, source_begun
from shardwrite.runs.execute import Run
from shardwrite.runs.in_parts import prepare_jobs
from shardwrite.runs.job import ChunkSource, Job, RunOptions
from shardwrite.runs.kept import accepts_source
from shardwrite.runs.result import WriteResult
from shardwrite.runs.source_array import as_source_array, as_source_for
from shardwrite.runs.stored_chunks import StoredChunks, behind, check_nothing_lost
from shardwrite.seams import find
from shardwrite.write.context import GroupReport

# ---- Sources of parts: values, or encoded chunks of a stored array


@dataclass(frozen=True, slots=True)
class PartSource:
    """What a user has given for a run that is written in parts."""

    given: Any  # what the user has given
    array: dask.array.Array  # its values
    source_id: str | None = None  # its identity, if the user has named it

    @classmethod
    def of(cls, x: Any, source_id: str | None = None) -> PartSource:
        """Take what a user has given; see `take`."""
        return cls(x, as_source_array(x).array, source_id)

    @classmethod
    def of_run(cls, run: RunDirectory) -> PartSource:
        """The source that the plan of a run names."""
        what = run.record.identity
        source_id = None if what.is_of_stored_chunks else what.source
        return cls.of(source_begun(run), source_id)

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
            as_source_for(self.array, plan.metadata, "x")
            return ArrayChunks(self.array), plan
        stored = self._stored()
        identity = None if accepts_source() else self._identity_of(stored)
        plan = plan_begun(run, resources, identity=identity)
        as_source_for(self.array, plan.metadata, "x")
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
        stored = behind(self.given)
        if isinstance(stored, StoredArray):
            return stored
        reason = "only its values are known" if stored is None else stored
        raise _not_this(
            "the plan copies encoded chunks of a Zarr array, and this one has none to copy: "
            f"{reason}",
            type(self.given).__name__,
        )

    def _identity_of(self, stored: StoredArray) -> str:
        return stored.identity if self.source_id is None else redacted(self.source_id)


def _copies(stored: StoredArray, metadata: ArrayMetadata) -> StoredChunks:
    """Encoded chunks of a stored array for another one."""
    differing = what_differs(stored.array.metadata, metadata)
    if differing:
        reason = f"its encoded chunks cannot be copied, since {' and '.join(differing)} differ"
        raise _not_this(reason, stored.label)
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


# ---- Steps


Progress = bool | Callable[[GroupReport], None]


@dataclass(frozen=True, slots=True)
class Share:
    """What a process writes of a source."""

    source: PartSource  # the source, with the axes of the array
    index: int  # number of the part, from 0, and number of all parts
    count: int

    @property
    def number(self) -> tuple[int, int]:
        """Number of the part, and number of all parts."""
        return self.index, self.count


class RunInParts(Protocol):
    """A run that is written in parts in a way of its own."""

    def write(self, share: Share, progress: Progress) -> WriteResult:
        """Write a part."""

    def finish(self, n_parts: int | None, progress: Progress, *, keep_report: bool) -> WriteResult:
        """Write what is left, and publish the array."""

    def check(self, n_parts: int | None) -> None:
        """Raise what `finish` raises if something is missing, as journals tell."""

    def part(self, share: Share) -> Part:
        """The part that `write` would write now. Nothing is changed."""


@dataclass(frozen=True, slots=True)
class BadShards:
    """Shards of an array that are to be written again."""

    target: Target  # place of the array
    metadata: ArrayMetadata
    ranks: frozenset[int]  # row-major ranks of the shards
    identity_prefix: str  # of the identity of the source
    look: Callable[[], Ledger]  # finds what is good by now


@dataclass(frozen=True, slots=True)
class RepairOptions:
    """How shards are written again."""

    planned: PlanOptions
    run: RunOptions
    run_dir: Any
    progress: Progress


class ArraySteps:
    """Steps of most arrays."""

    def check_new(self, target: Target, metadata: ArrayMetadata, run_dir: Any) -> None:
        """Refuse to begin an array that something around its place cannot take."""

    def among_others(self, target: Target, run_dir: Any) -> Target:  # noqa: ARG002
        """The place of an array that one run makes with others."""
        return target

    def prepare(
        self, job: Job, target: Target, engine: Engine, run_dir: Any, stripe_count: int | None
    ) -> None:
        """Begin all runs of an array that is written in parts."""
        del target, run_dir
        prepare_jobs([job], engine, stripe_count)

    def in_parts(
        self, run: RunDirectory, metadata: ArrayMetadata, engine: Engine, run_dir: Any, limit: Any
    ) -> RunInParts | None:
        """The run that makes an array in parts, if it goes in a way of its own.

        - `limit`: bytes that this process may use. The engine's limit by default.
        """

    def enter(self, target: Target, metadata: ArrayMetadata, run_dir: Any) -> None:
        """Enter an array that was written in parts into the document above it that lists it.

        Only volumes have one, which lists their scales.
        """

    def counted(self, target: Target, metadata: ArrayMetadata, result: WriteResult) -> WriteResult:
        """The result of a whole array, with numbers as users know them."""
        del target, metadata
        return result

    def write_again(
        self, x: dask.array.Array, bad: BadShards, options: RepairOptions
    ) -> WriteResult:
        """Write bad shards again from the source."""
        engine = active_engine()
        layout = layout_of(x)
        layout = replace(layout, identity=bad.identity_prefix + layout.identity)
        plan = plan_into(bad.metadata, layout, engine, options.planned)
        job = Job(ArrayChunks(x), plan, bad.target, options.run)
        with Run.open([job], engine, options.progress, "again") as run:
            run.session.resume_from(bad.look())
            return run.execute()[0]

    def end_repair(self, target: Target, metadata: ArrayMetadata, run_dir: Any) -> None:
        """Remove what a repair has left all of whose shards are good."""


def steps_of(metadata: ArrayMetadata) -> ArraySteps:
    """Steps of an array by the format of its shards."""
    cls = find("steps", metadata.format_name)
    steps: ArraySteps = ArraySteps() if cls is None else cls()
    return steps


def counted_at(target: Target, result: WriteResult) -> WriteResult:
    """The result of the whole array at a place, with numbers as users know them."""
    metadata = open_at(target.place).metadata
    return steps_of(metadata).counted(target, metadata, result)


def enter_above(target: Target, run_dir: Any) -> None:
    """Enter a published array into the document above it that lists it, if there is any."""
    metadata = open_at(target.place).metadata
    steps_of(metadata).enter(target, metadata, run_dir)


def run_in_parts(
    run: RunDirectory, engine: Engine, run_dir: Any, limit: int | None = None
) -> RunInParts | None:
    """A run that is written in parts in a way of its own; None for all others."""
    if not run.makes_array:
        return None
    metadata = metadata_of_document(run.document)
    return steps_of(metadata).in_parts(run, metadata, engine, run_dir, limit)
