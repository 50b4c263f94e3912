"""Operations as somebody else would add them: an update, and a new array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da

import shardwrite
from shardwrite.engines import active_engine
from shardwrite.place.target import resolve_target
from shardwrite.runs.array_plan import ArrayChunks
from shardwrite.runs.execute import execute
from shardwrite.runs.job import Job, RunOptions, target_of_update
from shardwrite.runs.result import WriteResult
from shardwrite.runs.stored_chunks import StoredChunks
from shardwrite.write.context import GroupReport

OnReport = Callable[[GroupReport], None]


def fill(
    store: Any, region: Any, value: Any, on_report: OnReport = lambda _: None, **planned: Any
) -> WriteResult:
    """Set all elements of a region to one value."""
    array = shardwrite.open_sharded(store)
    whole = da.full(array.shape, value, dtype=array.dtype, chunks=array.metadata.grid.shards)
    x = whole[region]
    plan = shardwrite.plan_region(x, store, region, **planned)
    target = target_of_update(resolve_target(store, None), plan)
    job = Job(ArrayChunks(x, plan.region), plan, target, RunOptions(mode="r+"))
    return execute([job], active_engine(), on_report)[0]


def reshard(
    store: Any, new: Any, shards: Any, on_report: OnReport = lambda _: None, **planned: Any
) -> WriteResult:
    """Copy an array into other shards. Its inner chunks stay as they are stored."""
    old = shardwrite.open_sharded(store)
    x = shardwrite.from_sharded_zarr(store)
    plan = shardwrite.plan(x, shards=shards, chunks=old.metadata.grid.chunks, **planned)
    source = StoredChunks(plan.metadata, other=old)
    job = Job(source, plan, resolve_target(new, None), RunOptions())
    return execute([job], active_engine(), on_report)[0]
