"""What a run needs of the store that it writes to."""

from __future__ import annotations

from shardwrite.engines import Engine
from shardwrite.format.strategy import Strategy
from shardwrite.runs.job import Job
from shardwrite.stores import Capability, Store, require

__all__ = ["check_needs", "check_updatable"]


def check_needs(job: Job, engine: Engine) -> None:
    """Refuse a job whose store cannot do what the job needs, before anything is written.

    Raises
    ------
    SpecError
        If it cannot. The message names the capability and the remedy.
    StoreError
        If the store cannot be written. The message says what to set.
    """
    store, label = job.target.store, job.target.label
    store.prepare()
    if not engine.shares_memory:
        require(store, Capability.SHARED, field="store", value=label)
    if not job.makes_array:
        check_updatable(store, job.plan.strategy)
    _ = job.durability  # which refuses a level that the store cannot promise


def check_updatable(store: Store, strategy: Strategy) -> None:
    """Refuse to change the shards of an array whose store cannot replace or edit objects.

    Raises
    ------
    SpecError
        If it cannot. The message names the capability and the remedy.
    """
    if strategy.in_place:
        require(store, Capability.EDIT, field="strategy", value=strategy.label)
    remedy = "write the array again, or to a store that can"
    require(store, Capability.ATOMIC, field="store", value=type(store).__name__, remedy=remedy)
