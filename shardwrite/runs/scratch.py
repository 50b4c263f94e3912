"""Room on the disks of workers, for shards that wait there until they are put into a bucket."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardwrite.errors import PlanError, SpecError, StoreError
from shardwrite.runs.array_plan import waiting
from shardwrite.runs.job import Job

if TYPE_CHECKING:
    from shardwrite.stores.bucket_scratch import Room


@dataclass(frozen=True, slots=True)
class Scratch:
    """What a worker has found where its shards will wait."""

    host: str  # machine of the worker
    room: Room | None = None  # room that it found
    trouble: str = ""  # what went wrong, if nothing can be written there


def scratch_here(directory: str | None) -> Scratch | None:
    """Look at a directory on the machine of this process; None if there is none to look at."""
    if directory is None:
        return None
    from shardwrite.stores.bucket_scratch import room_in  # for buckets only

    host = socket.gethostname()
    try:
        return Scratch(host, room_in(directory))
    except StoreError as error:
        return Scratch(host, trouble=str(error))


def needed_by(job: Job) -> int:
    """Bytes on its disk that each worker process of a job needs, at most.

    How large shards are that are copied as they are is known when they are copied.
    """
    if job.source.is_encoded:
        return 0
    plan = job.plan
    known = waiting(plan.resources, job.target.store, plan.metadata)
    return replace(plan, resources=known).scratch_nbytes


def check_scratch(
    found: Mapping[str, Scratch], directory: str, needed_nbytes: int, n_processes: int
) -> None:
    """Refuse a directory in which the shards of all workers cannot wait, before any task runs.

    - `needed_nbytes`: bytes that each worker process needs, at most.
    - `n_processes`: number of worker processes, if only one of them has looked.
    """
    for worker, one in found.items():
        if one.room is None:
            raise SpecError(
                f"shards cannot wait there on {one.host} ({worker}): {one.trouble}",
                field="via",
                value=directory,
                remedy="give a directory on a disk that each worker has and can write to, or "
                "leave it out",
            )
    n_on = Counter((one.host, one.room.disk) for one in found.values() if one.room is not None)
    for one in found.values():
        if one.room is None:
            continue
        n_here = n_processes if len(found) == 1 else n_on[one.host, one.room.disk]
        if n_here * needed_nbytes > one.room.free_nbytes:
            raise PlanError(
                f"shards that wait until they are put may take {n_here * needed_nbytes:,} bytes in "
                f"{os.path.expandvars(directory)} on {one.host}, and {one.room.free_nbytes:,} are "
                "free",
                needed_nbytes=n_here * needed_nbytes,
                allowed_nbytes=one.room.free_nbytes,
                remedy="make room there, or give another directory as via, fewer threads, smaller "
                "shards, or compression_ratio= if all shards will be so much smaller",
            )
