"""What a run needs of the store that it writes to."""

from __future__ import annotations

from dataclasses import replace

from shardwrite.engines.local import Engine
from shardwrite.errors import SpecError
from shardwrite.format.frame import framing_of
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import Strategy
from shardwrite.place.target import Target
from shardwrite.runs.array_plan import waiting
from shardwrite.runs.job import Job
from shardwrite.stores.base import Capability, Store, require


def check_needs(job: Job, engine: Engine) -> None:
    """Refuse a job whose store cannot do what the job needs, before anything is written."""
    store, label = job.target.store, job.target.label
    store.prepare()
    _check_size(job)
    grid = job.plan.metadata.grid
    if grid.n_shards:
        store.check_new_key(job.plan.metadata.shard_key((0,) * grid.ndim))
    if not engine.shares_memory:
        require(store, Capability.SHARED, field="store", value=label)
    if not job.makes_array:
        check_updatable(store, job.plan.strategy)
        check_unshared(job.target)
        if not (job.options.drop_hdf5 and job.plan.strategy.replaces):
            check_kind(job.plan.metadata, job.plan.strategy, store)
    _check_library(job.plan.strategy)
    _ = job.durability  # which refuses a level that the store cannot promise


def _check_size(job: Job) -> None:
    """Refuse shards that are larger than the store can take, or memory can hold until then.

    How large encoded chunks are that another array gives is known when they are copied.
    """
    if job.source.is_encoded:
        return
    plan, store = job.plan, job.target.store
    nbytes = int(plan.metadata.plain_nbytes / (plan.compression_ratio or 1))
    store.check_nbytes(nbytes, exists=not job.makes_array)
    held = waiting(plan.resources, store, plan.metadata)
    if held != plan.resources:
        replace(plan, resources=held).check_fits()


def check_updatable(store: Store, strategy: Strategy) -> None:
    """Refuse to change the shards of an array whose store cannot replace or edit objects."""
    _check_library(strategy)
    if strategy.in_place:
        require(store, Capability.EDIT, field="strategy", value=strategy.label)
    remedy = "write the array again, or to a store that can"
    require(store, Capability.ATOMIC, field="store", value=type(store).__name__, remedy=remedy)


def check_unshared(target: Target) -> None:
    """Refuse to update an array where a change by another program meanwhile would be lost.

    A bucket of a service without conditions is such a place, unless the user says that nobody else
    writes there. What the service can do is found out here.
    """
    store = target.store
    store.prepare()
    if store.loses_changes:
        raise SpecError(
            f"{target.label} is in a bucket that cannot refuse a request if an object has changed "
            "meanwhile (CONDITIONAL), so an update could replace what another program has written, "
            "without an error",
            field="exclusive",
            value=False,
            remedy="give exclusive=True if nobody else writes to this array meanwhile",
        )


def check_kind(metadata: ArrayMetadata, strategy: Strategy, store: Store) -> None:
    """Refuse to change files of another format, as far as the first and the last shard tell.

    Tasks look at every shard before they change it. This tells earlier, so that nothing is begun.
    """
    grid = metadata.grid
    if grid.n_shards:
        ends = {(0,) * grid.ndim, tuple(n - 1 for n in grid.counts)}
        from shardwrite.read.signatures import refuse_change_among  # for updates

        refuse_change_among(metadata, strategy, store, sorted(ends))


def _check_library(strategy: Strategy) -> None:
    """Refuse a strategy whose library is not installed."""
    framing = framing_of(strategy)
    if framing is not None:
        framing.check_library()
