"""Encoded inner chunks that wait in the shards of an unfinished run, as a source of chunks.

The hash of a volume may scatter the chunks of each shard over the volume. They are then written
twice. A first run encodes them into shards that are boxes of the volume, the *spool*, and is never
finished. A second run gathers them into their own shards. Both are runs as all others are, so each
goes on where it stopped, and can be written in parts. In the end, the first run is given up, and
takes the spool away.
"""

from __future__ import annotations

import contextlib
import errno
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.task_spec import Task

from shardwrite.engines import Engine, Stopped
from shardwrite.errors import StoreError
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.passage import Passage
from shardwrite.format.precomputed.stored import has_scattered_chunks, is_scale
from shardwrite.journal import RunDirectory, holding, live_holders, take_away, tidied_run
from shardwrite.place.target import Target
from shardwrite.plan import Plan, PlanOptions, Resources, SourceLayout, make_plan
from shardwrite.plan.copying import check_copying, copying_nbytes
from shardwrite.read.array import ShardedArray
from shardwrite.runs.array_plan import by_groups, resources_of, waiting
from shardwrite.runs.begin import begin, join
from shardwrite.runs.begun import plan_begun
from shardwrite.runs.compute import compute_waves
from shardwrite.runs.execute import explaining
from shardwrite.runs.finished import incomplete
from shardwrite.runs.in_parts import refuse_missing
from shardwrite.runs.job import Job
from shardwrite.runs.progress import OnReport, tell_found
from shardwrite.runs.result import WriteResult
from shardwrite.runs.session import Session
from shardwrite.runs.source import Key, TaskBox
from shardwrite.runs.stored_chunks import EncodedChunks
from shardwrite.stores import Store
from shardwrite.write.copying import copy_group, gathered_nbytes
from shardwrite.write.donor import Donor

_ID_NBYTES = 40  # of each chunk of the volume, while a process finds out which shard has it


@dataclass(frozen=True, slots=True)
class _Committed:
    """Shards that a run has committed."""

    bits: bytes  # A bit for each shard by its row-major rank: whether it has an object

    def has(self, rank: int) -> bool:
        """Whether the shard of a row-major rank has an object."""
        return bool(self.bits[rank // 8] >> (7 - rank % 8) & 1)

    def missing(self, key: str) -> StoreError:
        """The error that one of these objects is missing."""
        return StoreError(
            f"{key!r} is missing, in which encoded chunks wait. It is not taken for empty. Make "
            "the same call again with restart=True",
            key=key,
            errno=errno.ENOENT,
        )


@dataclass(frozen=True, slots=True)
class GatheredChunks(EncodedChunks):
    """Encoded inner chunks in the spool."""

    spool: ShardedArray
    listed: _Committed  # the shards that it has

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`ChunkSource`."""
        return self.spool.dtype

    @property
    def region(self) -> None:
        """See :class:`ChunkSource`."""
        return

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        donor = Donor(self.spool, Passage(), listed=self.listed)
        return {at.key: Task(at.key, copy_group, at.spec, donor, at.box, at.skip)}


def is_gathering(run: RunDirectory) -> bool:
    """Whether a run makes a scale of a volume whose hash scatters the chunks."""
    return run.makes_array and has_scattered_chunks(parse_metadata(json.dumps(run.document)))


def makes_scale(run: RunDirectory) -> bool:
    """Whether a run makes a scale of a volume. It raises what `is_gathering` does."""
    return run.makes_array and is_scale(parse_metadata(json.dumps(run.document)))


def plan_gathering(
    metadata: ArrayMetadata, spooling: Plan, engine: Engine, store: Store | None = None
) -> Plan:
    """Plan of the run that gathers chunks out of the spool.

    - `metadata`: metadata of the array that has the chunks one after the other.
    - `store`: where the volume will lie. If it is not known, nothing waits for it in memory.
    """
    source = spooling.source
    resources = resources_of(engine, spooling.resources.memory_limit_nbytes)
    made = make_plan(
        metadata,
        SourceLayout(metadata.grid.sizes, 0, source.identity, source.is_stable),
        waiting(resources, store, metadata),
        PlanOptions(write_empty_chunks=spooling.write_empty_chunks),
    )
    made = by_groups(made)
    _check_fits(made, spooling.n_shards)
    return made


def gathering_begun(
    run: RunDirectory, resources: Resources, n_shards: int, identity: str | None = None
) -> Plan:
    """Read back the plan of a run that gathers chunks out of a spool."""
    made = plan_begun(run, resources, identity=identity)
    made = replace(made, source=replace(made.source, chunks=made.metadata.grid.sizes))
    _check_fits(made, n_shards)
    return made


def gathering_nbytes(plan: Plan, n_shards: int) -> int:
    """Memory of a process that gathers chunks out of a spool, in bytes, at most."""
    needed = copying_nbytes(plan, gathered_nbytes(plan.metadata, n_shards) + plan.held_nbytes)
    return needed + _ID_NBYTES * plan.n_inner_chunks


def _check_fits(plan: Plan, n_shards: int) -> None:
    remedy = "use fewer threads per process, or give more shard_bits, or raise memory_limit"
    needed = gathering_nbytes(plan, n_shards)
    check_copying(plan, needed, "gathers chunks out of the spool", remedy)


@contextlib.contextmanager
def spooled(job: Job, engine: Engine, on_report: OnReport) -> Iterator[GatheredChunks]:
    """Write the spool, and hold its run while the block gathers chunks out of it.

    - Raises IncompleteError if shards of the spool are missing at the end.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(holding(job.target))
        with explaining([job]) as begun:
            (session,) = begin([job], engine, stack)
            begun.append(session)
            tell_found(on_report, session.resumed_nbytes)
            compute_waves(session, engine, on_report)
        ledger = session.ledger
        if len(ledger.missing):
            remedy = "run the same command again to go on"
            raise incomplete(job.plan.metadata, job.target, ledger.missing, remedy)
        yield _chunks_in(session)


@contextlib.contextmanager
def whole_spool(
    job: Job, run: RunDirectory, engine: Engine, n_parts: int | None, *, may_list: bool
) -> Iterator[GatheredChunks]:
    """Take part in the run of a spool that is whole, while the block gathers chunks out of it.

    The index of every shard of the spool is looked at first.

    - `job`: the spool. Its source is not asked for chunks.
    - Raises IncompleteError if shards of the spool are missing or damaged.
    - Raises RunEndedError if the run has ended in the meantime.
    """
    with join(job, engine, run, only=range(job.plan.n_shards), may_list=may_list) as session:
        refuse_missing(job, session.ledger, n_parts)
        yield _chunks_in(session)


def _chunks_in(session: Session) -> GatheredChunks:
    """The chunks in a spool all of whose shards are done."""
    job, is_there = session.job, session.ledger.nbytes > 0
    array = ShardedArray(job.plan.metadata, job.target.store)
    return GatheredChunks(array, _Committed(np.packbits(is_there).tobytes()))


def finish_gathering(
    job: Job, run: RunDirectory, engine: Engine, on_report: OnReport
) -> WriteResult:
    """Gather the shards that are missing, and publish the scale.

    - Raises IncompleteError if the process was asked to stop and shards are missing.
    - Raises RunEndedError if the run has ended in the meantime.
    """
    start = time.perf_counter()
    with join(job, engine, run, only=range(job.plan.n_shards), may_list=True) as session:
        tell_found(on_report, session.resumed_nbytes)
        try:
            compute_waves(session, engine, on_report)
        except Stopped:
            session.learn()  # the tasks in flight may have finished it
        return session.finish(time.perf_counter() - start)


def remove_spool(target: Target) -> bool:
    """Give up the run that writes a spool, which takes the spool away.

    If another process works on the run, that process does so in the end.
    """
    with holding(target):
        run = tidied_run(target)
        if run is not None and not live_holders(run.path):
            take_away(run)
    return run is not None
