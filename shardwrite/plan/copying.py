"""Memory of tasks that copy encoded inner chunks, which a plan for decoded ones does not tell."""

from __future__ import annotations

import math

from shardwrite.errors import PlanError
from shardwrite.plan.estimate import BATCH_NBYTES, entries_nbytes
from shardwrite.plan.model import PlanFacts


def copying_nbytes(plan: PlanFacts, each_nbytes: int) -> int:
    """Memory of a worker process that copies encoded inner chunks, in bytes, at most."""
    grid = plan.metadata.grid
    batch_nbytes = min(BATCH_NBYTES, math.prod(grid.shards) * plan.metadata.itemsize)
    n_tasks = min(plan.resources.n_threads, max(1, plan.partition.n_groups))
    per_task = 2 * batch_nbytes + entries_nbytes(grid.n_chunks_per_shard) + each_nbytes
    return n_tasks * per_task + plan.memory.held_nbytes


def check_copying(plan: PlanFacts, needed_nbytes: int, action: str, remedy: str) -> None:
    """Refuse to copy encoded inner chunks if this takes more memory than a process may use."""
    allowed, waits_nbytes = plan.resources.memory_limit_nbytes, plan.memory.held_nbytes
    if needed_nbytes <= allowed:
        return
    waits = f", {waits_nbytes:,} of them for shards that wait until they are put"
    raise PlanError(
        f"a worker process of {plan.resources.n_threads} threads that {action} needs up to "
        f"{needed_nbytes:,} bytes{waits if waits_nbytes else ''}, and may use {allowed:,}",
        needed_nbytes=needed_nbytes,
        allowed_nbytes=allowed,
        remedy=remedy,
    )


def copied_nbytes(plan: PlanFacts, *, decodes: bool) -> int:
    """Memory of a worker process that copies encoded chunks, if it may use that much, in bytes.

    - `decodes`: whether chunks are also decoded.
    """
    chunk_nbytes = math.prod(plan.metadata.grid.chunks) * plan.metadata.itemsize
    needed = copying_nbytes(plan, (2 if decodes else 1) * chunk_nbytes + plan.held_nbytes)
    remedy = (
        "use fewer threads per process, or smaller shards. If the chunks are well compressed, it "
        "needs less: raise memory_limit"
    )
    check_copying(plan, needed, "copies encoded chunks", remedy)
    return needed
