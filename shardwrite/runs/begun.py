"""The plan of a run as it stands beside the array: what makes processes of different machines write parts of one plan.

How tasks are cut depends on the threads and the memory of the machine that planned. Whoever writes a part therefore takes the cut
from the disk, and from its own machine only what decides how much it may hold at a time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import shardwrite._dask as dask
from shardwrite.errors import JournalError
from shardwrite.format.metadata import parse_metadata
from shardwrite.format.strategies import labelled
from shardwrite.grid import ShardGrid
from shardwrite.journal import RunDirectory
from shardwrite.plan import Partition, Plan, Resources, SourceLayout
from shardwrite.runs.array_plan import n_tasks_of

__all__ = ["plan_begun"]


def plan_begun(
    run: RunDirectory,
    resources: Resources,
    x: dask.array.Array | None = None,
    identity: str | None = None,
) -> Plan:
    """The plan of a run that makes an array.

    Parameters
    ----------
    run : RunDirectory
        The run.
    resources : Resources
        Of a process on this machine.
    x : dask.array.Array, optional
        The source, where something is to be written.
    identity : str, optional
        What names it; as in the run by default.

    Returns
    -------
    Plan
        Its digest differs from the run's where `identity` does.

    Raises
    ------
    JournalError
        If what stands there is no such plan.
    """
    try:
        facts, own = run.facts["identity"], run.facts["partition"]
        metadata = parse_metadata(json.dumps(run.document))
        chunks = tuple((n,) for n in metadata.grid.shape) if x is None else x.chunks
        return Plan(
            metadata=metadata,
            strategy=labelled(facts["strategy"]),
            source=SourceLayout(
                chunks,
                0 if x is None else n_tasks_of(x),
                facts["source"] if identity is None else identity,
            ),
            partition=_partition(own, metadata.grid),
            resources=resources,
            is_staged=run.facts["layout"] == "staged",
            write_empty_chunks=bool(facts["write_empty_chunks"]),
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise JournalError(
            f"{run.target.run_path} does not hold a plan that can be written in parts ({error}); call prepare again with "
            "restart=True (shardwrite init --restart), which takes the shards away that are there",
            path=str(run.target.run_path),
        ) from error


def _partition(own: Mapping[str, Any], grid: ShardGrid) -> Partition:
    """Groups and blocks; what is no cut of the grid is refused."""
    partition = Partition.from_dict(own, grid.shape)
    cuts = zip(partition.group_edges, partition.block_edges, grid.shards, grid.chunks, strict=True)
    for groups, blocks, shard, chunk in cuts:
        if (
            any(a % shard for a in groups[:-1])
            or any(a % chunk for a in blocks[:-1])
            or not set(groups) <= set(blocks)
        ):
            raise ValueError("its tasks do not fit the array")
    return partition
