"""Encoded inner chunks that wait in the shards of an unfinished run, as a source of chunks.

The hash of a volume may scatter the chunks of each shard over the volume. They are then written
twice. A first run encodes them into shards that are boxes of the volume, the *spool*, and is never
finished. A second run gathers them into their own shards. Both are runs as all others are, so each
goes on where it stopped. In the end, the first run is given up, and takes the spool away.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.task_spec import Task

from shardwrite.engines import Engine
from shardwrite.errors import StoreError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.passage import Passage
from shardwrite.journal import holding, live_holders, take_away, tidied_run
from shardwrite.place.target import Target
from shardwrite.plan import Plan, PlanOptions, SourceLayout, make_plan
from shardwrite.read.array import ShardedArray
from shardwrite.runs.array_plan import by_groups, resources_of
from shardwrite.runs.begin import begin
from shardwrite.runs.compute import compute_waves
from shardwrite.runs.execute import explaining
from shardwrite.runs.finished import incomplete
from shardwrite.runs.job import Job
from shardwrite.runs.progress import OnReport, tell_found
from shardwrite.runs.source import Key, TaskBox
from shardwrite.runs.stored_chunks import EncodedChunks
from shardwrite.write.copying import copy_group
from shardwrite.write.donor import Donor

__all__ = ["GatheredChunks", "plan_gathering", "remove_spool", "spooled"]


@dataclass(frozen=True, slots=True)
class _Committed:
    """Shards that a run has committed.

    Attributes
    ----------
    bits : bytes
        A bit for each shard by its row-major rank: whether it has an object.
    """

    bits: bytes

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
    """Encoded inner chunks in the spool.

    Attributes
    ----------
    spool : ShardedArray
        The spool.
    listed : _Committed
        The shards that it has.
    """

    spool: ShardedArray
    listed: _Committed

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


def plan_gathering(metadata: ArrayMetadata, spooling: Plan, engine: Engine) -> Plan:
    """Plan of the run that gathers chunks out of the spool.

    Parameters
    ----------
    metadata : ArrayMetadata
        Metadata of the array that has the chunks one after the other.
    spooling : Plan
        Plan of the run that writes the spool.
    engine : Engine
        The engine that will run the tasks.
    """
    source = spooling.source
    made = make_plan(
        metadata,
        SourceLayout(metadata.grid.sizes, 0, source.identity, source.is_stable),
        resources_of(engine, spooling.resources.memory_limit_nbytes),
        PlanOptions(write_empty_chunks=spooling.write_empty_chunks),
    )
    return by_groups(made)


@contextlib.contextmanager
def spooled(job: Job, engine: Engine, on_report: OnReport) -> Iterator[GatheredChunks]:
    """Write the spool, and hold its run while the block gathers chunks out of it.

    Parameters
    ----------
    job : Job
        The spool.
    engine : Engine
        The engine that runs the graphs.
    on_report : callable
        Called with the report of each group.

    Yields
    ------
    GatheredChunks
        The chunks.

    Raises
    ------
    IncompleteError
        If shards of the spool are missing at the end.
    ShardwriteError
        For the same reasons as in `execute`.
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
        listed = _Committed(np.packbits(ledger.nbytes > 0).tobytes())
        yield GatheredChunks(ShardedArray(job.plan.metadata, job.target.store), listed)


def remove_spool(target: Target) -> bool:
    """Give up the run that writes a spool, which takes the spool away.

    If another process works on the run, that process does so in the end.

    Parameters
    ----------
    target : Target
        Place of the spool.

    Returns
    -------
    bool
        Whether there was a run.

    Raises
    ------
    StoreError
        If something cannot be removed.
    """
    with holding(target):
        run = tidied_run(target)
        if run is not None and not live_holders(run.path):
            take_away(run)
    return run is not None
