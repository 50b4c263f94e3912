"""Steps of calls that make or repair an array, where its shard format asks for more than others.

`ArraySteps` does what holds for all arrays. A wing derives a class of its own, and brings it under
the kind ``steps`` and the name of its shard format.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import shardwrite._dask as dask
from shardwrite.engines import Engine, active_engine
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.journal import Ledger, RunDirectory
from shardwrite.operations.part_sources import PartSource
from shardwrite.place.target import Target
from shardwrite.plan import Part, PlanOptions
from shardwrite.read.array import open_at
from shardwrite.runs.array_chunks import ArrayChunks
from shardwrite.runs.array_plan import plan_into
from shardwrite.runs.execute import execute_missing
from shardwrite.runs.in_parts import prepare_jobs
from shardwrite.runs.job import Job
from shardwrite.runs.options import RunOptions
from shardwrite.runs.progress import reporting
from shardwrite.runs.result import WriteResult
from shardwrite.seams import find
from shardwrite.write.context import GroupReport

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
    """How shards are written again: keywords of :func:`repair`, and what the receipt says."""

    strategy: Any
    durability: str | None
    run_dir: Any
    memory_limit: int | str | None
    progress: Progress
    drop_hdf5: bool
    stores_empty: bool  # whether inner chunks that have only the fill value are stored

    @property
    def run(self) -> RunOptions:
        """How the run goes that writes them."""
        return RunOptions(mode="r+", durability=self.durability, drop_hdf5=self.drop_hdf5)


class ArraySteps:
    """Steps of most arrays."""

    def check_new(self, target: Target, metadata: ArrayMetadata, run_dir: Any) -> None:
        """Refuse to begin an array that something around its place cannot take."""

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
        """Enter an array that was written in parts and published where else it is listed."""

    def counted(self, target: Target, metadata: ArrayMetadata, result: WriteResult) -> WriteResult:
        """The result of a whole array, with numbers as users know them."""
        del target, metadata
        return result

    def write_again(
        self, x: dask.array.Array, bad: BadShards, options: RepairOptions
    ) -> WriteResult:
        """Write bad shards again from the source."""
        engine = active_engine()
        planned = PlanOptions(
            strategy=options.strategy,
            write_empty_chunks=options.stores_empty,
            memory_limit=options.memory_limit,
        )
        plan = plan_into(x, bad.metadata, engine, planned)
        identity = bad.identity_prefix + plan.source.identity
        plan = replace(plan, source=replace(plan.source, identity=identity))
        job = Job(ArrayChunks(x), plan, bad.target, options.run)
        with reporting(options.progress, plan.raw_nbytes) as on_report:
            return execute_missing(job, engine, on_report, bad.look)

    def end_repair(self, target: Target, metadata: ArrayMetadata, run_dir: Any) -> None:
        """Remove what a repair has left all of whose shards are good."""


def steps_of(metadata: ArrayMetadata) -> ArraySteps:
    """Steps of an array by the format of its shards."""
    found = find("steps", metadata.format_name)
    made: ArraySteps = ArraySteps() if found is None else found()
    return made


def counted_at(target: Target, result: WriteResult) -> WriteResult:
    """The result of the whole array at a place, with numbers as users know them."""
    metadata = open_at(target.place).metadata
    return steps_of(metadata).counted(target, metadata, result)


def enter_at(target: Target, run_dir: Any) -> None:
    """Enter the array at a place where else it is listed."""
    metadata = open_at(target.place).metadata
    steps_of(metadata).enter(target, metadata, run_dir)


def run_in_parts(
    run: RunDirectory, engine: Engine, run_dir: Any, limit: int | None = None
) -> RunInParts | None:
    """A run that is written in parts in a way of its own; None for all others."""
    if not run.makes_array:
        return None
    metadata = parse_metadata(json.dumps(run.document))
    return steps_of(metadata).in_parts(run, metadata, engine, run_dir, limit)
