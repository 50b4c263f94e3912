"""The plan of a run, read back from its run directory.

The cut into tasks depends on the threads and the memory of the machine that made the plan. So a
process that writes a part reads the cut from disk. Its own machine determines only how much it may
hold in memory at a time. In this way, processes on different machines write parts of one plan.
"""

from __future__ import annotations

from typing import Any

import shardwrite._dask as dask
from shardwrite.errors import JournalError, SpecError
from shardwrite.format.metadata import metadata_of_document
from shardwrite.format.strategies import strategy_from_label
from shardwrite.grid import ShardGrid
from shardwrite.journal.rundir import RunDirectory
from shardwrite.plan.estimate import Resources
from shardwrite.plan.model import SourceLayout
from shardwrite.plan.partition import Cuts, Partition
from shardwrite.plan.plan import Plan
from shardwrite.runs.array_plan import n_tasks_of
from shardwrite.seams import Ref, open_ref


def plan_begun(
    run: RunDirectory,
    resources: Resources,
    x: dask.array.Array | None = None,
    identity: str | None = None,
) -> Plan:
    """Read back the plan of a run that makes an array.

    - `x`: the source. It is needed only to write shards.
    - `identity`: identity of the source. The identity in the run's plan by default.
    """
    try:
        what, layout = run.record.identity, run.record.layout
        if None in (what.strategy, what.source, what.write_empty_chunks, layout):
            raise ValueError("it is not the plan of a whole array")  # noqa: TRY301 (told below)
        strategy, format_ = _opened(run, "strategy"), _opened(run, "shard_format")
        if strategy is None:  # an older version began the run
            strategy = strategy_from_label(str(what.strategy))
        metadata = metadata_of_document(run.document)
        own = metadata.shard_format
        is_other = format_ is not None and (own is None or own.to_dict() != format_.to_dict())
        if strategy.label != what.strategy or is_other:
            raise ValueError("it says in two ways how shards are written")  # noqa: TRY301
        chunks = tuple((n,) for n in metadata.grid.shape) if x is None else x.chunks
        return Plan(
            metadata=metadata,
            strategy=strategy,
            source=SourceLayout(
                chunks,
                0 if x is None else n_tasks_of(x),
                str(what.source) if identity is None else identity,
            ),
            partition=_partition(run.record.partition, metadata.grid),
            resources=resources,
            is_staged=layout == "staged",
            write_empty_chunks=bool(what.write_empty_chunks),
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise JournalError(
            f"{run.target.run_path} does not hold a plan that can be written in parts ({error}); "
            "call prepare again with restart=True (shardwrite init --restart), which takes the "
            "shards away that are there",
            path=str(run.target.run_path),
        ) from error


def source_begun(run: RunDirectory) -> Any:
    """The source of a run, opened again.

    - Raises SpecError if only the process that began the run could open it, or if it has changed.
    """
    if run.record.source is None:
        raise SpecError(
            f"the plan of {run.target.label} does not tell where its source can be opened",
            field="x",
            value=None,
            remedy="give the source; a plan tells it of a file or a Zarr array that is not changed "
            "by dask before",
        )
    return _opened(run, "source")


def _opened(run: RunDirectory, name: str) -> Any:
    """What a field of a plan on disk names; None if it names nothing."""
    ref: Ref | None = getattr(run.record, name)
    if ref is None:
        return None
    try:
        return open_ref(ref)
    except LookupError as error:
        raise JournalError(
            f"the plan of {run.target.label} has the {ref.kind} {ref.name!r}, which "
            f"{error.args[0]}",
            path=str(run.target.run_path),
        ) from error


def _partition(cuts: Cuts | None, grid: ShardGrid) -> Partition:
    """Groups and blocks of a plan on disk."""
    if cuts is None:
        raise ValueError("it does not say how its tasks are cut")
    partition = Partition.from_cuts(cuts, grid.shape)
    edges = zip(partition.group_edges, partition.block_edges, grid.shards, grid.chunks, strict=True)
    for groups, blocks, shard, chunk in edges:
        if (
            not groups.are_multiples_of(shard)
            or not blocks.are_multiples_of(chunk)
            or not blocks.include(groups)
        ):
            raise ValueError("its tasks do not fit the array")
    return partition
