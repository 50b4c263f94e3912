"""The function that plans an array, without writing it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite._lazy import if_loaded
from shardwrite.engines import active_engine
from shardwrite.entry.public import taking
from shardwrite.format.document import ArrayOptions
from shardwrite.grid import ceil_div
from shardwrite.journal.begin import find_run
from shardwrite.journal.lease import lease_times
from shardwrite.journal.replay import replay
from shardwrite.journal.rundir import RunDirectory
from shardwrite.operations.keywords import PlanArguments
from shardwrite.options import options_from
from shardwrite.place.target import Target, resolve_new, target_via
from shardwrite.plan.estimate import Requests, Traffic
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.plan import Plan
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import ranks_of_objects
from shardwrite.runs.array_plan import advised, plan_array
from shardwrite.runs.source_array import as_source_array
from shardwrite.stores.whole import COPIED_AT_ONCE_NBYTES

if TYPE_CHECKING:
    from shardwrite.stores.bucket import BucketStore

# ---- Requests and bytes that a run would ask of a bucket


# Requests that do not depend on the number of shards, at most: to find out what a service can do;
# for the lease and the journal of a run; for a new array, one that is resumed, and an update; and
# for each group above. `tests/buckets/test_traffic.py` compares them with what a server counts.
TRIED = Requests(n_put=4, n_get=2, n_list=1)

_STATE = Requests(n_put=16, n_get=16, n_list=3)

_NEW = Requests(n_put=4, n_get=30, n_list=12)

_RESUMED = Requests(n_get=10, n_list=10)

_UPDATE = Requests(n_put=3, n_get=36, n_list=4)

_GROUP = Requests(n_put=1, n_get=26)

_MOST_LISTS = 4  # of all objects, when a run is resumed

LISTED_AT_ONCE = 1000

TAIL_NBYTES = 2**16  # that are read first; see `stores.bucket`


def with_traffic(plan: Plan, target: Target) -> Plan:
    """The plan with what its run would ask of the bucket; without it, if the array lies in none.

    - `target`: where it goes. A run of the same plan that has not ended there counts.
    """
    store = target.store
    if not isinstance(store, if_loaded("shardwrite.stores.bucket", "BucketStore")):
        return plan
    if not store.is_remote:
        return plan
    from shardwrite.journal.state_work import fetched

    run = find_run(fetched(target))
    run = run if run is not None and run.digest == plan.digest else None
    requests = _fixed(target, plan, run) + _for_shards(store, plan, run)
    ratio = plan.compression_ratio or 1.0
    per_index = plan.metadata.index_codec.encoded_nbytes
    read = 0 if plan.region is None else len(plan.shared_shards) * plan.metadata.plain_nbytes
    put = int(plan.metadata.raw_nbytes / ratio) + plan.n_shards * per_index
    if plan.staged_with is not None and target.in_store:
        of_values = _of_values(store, plan)
        requests, put, read = requests + of_values[0], put + of_values[1], read + of_values[2]
    traffic = Traffic(
        requests=requests,
        hourly=_hourly() if target.in_store else Requests(),
        put_nbytes=put,
        get_nbytes=read,
        is_expected=plan.compression_ratio is not None,
    )
    return replace(plan, traffic=traffic)


def _fixed(target: Target, plan: Plan, run: RunDirectory | None) -> Requests:
    """Requests that do not depend on the number of shards."""
    requests = TRIED + (_NEW if plan.region is None else _UPDATE)
    requests += _GROUP.times(len(target.place.groups))
    if target.in_store:
        requests += _STATE
    return requests if run is None else requests + _RESUMED


def _hourly() -> Requests:
    """Requests that renew the lease and put the journal for an hour."""
    from shardwrite.journal.state_work import PUT_SECONDS

    heartbeat, _ = lease_times()
    n_beats = ceil_div(3600, max(1, int(heartbeat)))
    n_puts = ceil_div(3600, max(1, int(min(PUT_SECONDS, heartbeat))))
    return Requests(n_put=n_beats + n_puts, n_get=n_beats)


def _for_shards(store: BucketStore, plan: Plan, run: RunDirectory | None) -> Requests:
    """Requests for the shards that are left."""
    n_left, n_opens = plan.n_shards, 2 if store.url.startswith("az:") else 1
    is_done = None if run is None else replay(run, plan.metadata).ledger.is_done
    if is_done is not None:
        n_left -= int(is_done.sum())
    requests = Requests(n_put=n_left)
    if plan.region is not None:
        return requests + _for_shared(plan, n_opens)
    if is_done is not None and plan.metadata.is_sharded:  # shards that no journal names are read
        there = ranks_of_objects(ShardedArray(plan.metadata, store), store.url)
        n_lists = _MOST_LISTS * (len(there) // LISTED_AT_ONCE)
        requests += Requests(n_get=int((~is_done[there]).sum()) * n_opens, n_list=n_lists)
    return requests


def _for_shared(plan: Plan, n_opens: int) -> Requests:
    """Requests that look at shards of an update, and read what it keeps of them."""
    grid, n_get = plan.metadata.grid, 0
    sequence = plan.strategy.sequence(grid.chunks_per_shard, [])
    has_small = plan.metadata.plain_nbytes <= TAIL_NBYTES
    for spans, n_shards in _spans(plan):
        if all(span.is_whole for span in spans):
            n_get += n_shards  # what stands there is looked at right before the put
            continue
        per_shard = n_opens + 1  # and it is compared right before the put
        if not has_small:
            is_kept = np.ones(grid.chunks_per_shard, dtype=bool)
            is_kept[tuple(slice(span.start, span.stop) for span in spans)] = False
            is_copied = is_kept.ravel()[sequence]
            n_stretches = int(is_copied[0]) + int((is_copied[1:] & ~is_copied[:-1]).sum())
            n_touched = math.prod(span.stop - span.start for span in spans)
            n_cut = n_touched - math.prod(span.n_covered for span in spans)
            has_large_index = plan.metadata.index_codec.encoded_nbytes > TAIL_NBYTES
            per_shard += n_stretches + n_cut + has_large_index
            # Long stretches are copied piece by piece.
            per_shard += plan.metadata.plain_nbytes // COPIED_AT_ONCE_NBYTES
        n_get += n_shards * per_shard
    if not plan.partition.is_fused:  # each block looks at what it keeps of a chunk
        n_get += plan.partition.n_blocks * n_opens
    return Requests(n_get=n_get)


def _of_values(store: BucketStore, plan: Plan) -> tuple[Requests, int, int]:
    """Requests and bytes, put and read, of values that are kept until all shards are written."""
    grid, region = plan.metadata.grid, plan.region
    if region is None:
        raise TypeError("a plan of an update has a region")
    n_opens = 2 if store.url.startswith("az:") else 1
    n_shards, n_touched, n_chunks = 1, 1, 1
    for sizes, start, stop, shard, chunk in zip(
        plan.source.chunks, region.start, region.stop, grid.shards, grid.chunks, strict=True
    ):
        edges = np.clip(np.cumsum([0, *sizes]), start, stop) - start  # without the margins
        first, last = edges[:-1][np.diff(edges) > 0], edges[1:][np.diff(edges) > 0]
        n_shards *= ceil_div(stop - start, shard)
        n_touched *= int((-(-last // shard) - first // shard).sum())
        n_chunks *= int((-(-last // chunk) - first // chunk).sum())
    per_index = plan.metadata.index_codec.encoded_nbytes
    requests = TRIED + _NEW + _STATE + Requests(n_list=2 + n_shards // LISTED_AT_ONCE)
    requests += Requests(n_put=n_shards, n_get=n_shards + n_touched * n_opens + n_chunks)
    tails = n_touched * TAIL_NBYTES  # which are read with the index
    return (
        requests,
        2 * plan.kept_nbytes + n_shards * per_index,
        n_chunks * math.prod(grid.chunks) * plan.metadata.itemsize + tails,
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """What a region covers of a shard along one axis."""

    start: int  # inner chunks of the shard that it touches
    stop: int
    n_covered: int  # how many of them it covers from end to end
    is_whole: bool  # whether it covers all that the shard has of the array


def _spans(plan: Plan) -> Iterator[tuple[tuple[_Span, ...], int]]:
    """How the region covers shards, along each axis, and how many shards it covers so."""
    grid, region = plan.metadata.grid, plan.region
    if region is None:
        raise TypeError("a plan of an update has a region")
    axes = []
    for n, shard, chunk, count, a, b in zip(
        grid.shape, grid.shards, grid.chunks, grid.counts, region.start, region.stop, strict=True
    ):
        spans: Counter[_Span] = Counter()
        for i in range(count):
            first, last = i * shard, min((i + 1) * shard, n)
            start, stop = max(a, first), min(b, last)
            n_covered = sum(
                start <= k and min(k + chunk, last) <= stop for k in range(first, last, chunk)
            )
            spans[
                _Span(
                    (start - first) // chunk,
                    ceil_div(stop - first, chunk),
                    n_covered,
                    (start, stop) == (first, last),
                )
            ] += 1
        axes.append(spans.items())
    for each in itertools.product(*axes):
        yield tuple(span for span, _ in each), math.prod(n for _, n in each)


# ---- The function


@taking(PlanArguments)
def plan(call: PlanArguments) -> Plan:
    """Plan how an array would be written.

    Nothing is computed or written, and nothing is read but what stands in `store`, if that is in a
    bucket.

    Returns
    -------
    Plan
        The plan. It can be printed, and has `shards_for`, `part`, `to_json` and `digest`.

    Raises
    ------
    SpecError
        If an argument is not valid. The error has the field, its value and a remedy.
    PlanError
        If the plan exceeds the memory, the number of tasks, or `max_source_reruns`. The error
        says what to change.
    StoreError
        If a bucket cannot be reached.
    TypeError
        If a keyword is unknown.

    Examples
    --------
    >>> import dask.array as da, shardwrite
    >>> x = da.zeros((100, 100), chunks=(10, 100), dtype="uint8")
    >>> p = shardwrite.plan(x, shards=(50, 50), chunks=(10, 10))
    >>> p.n_shards, [ref.key for ref in p.shards_for((slice(0, 10), slice(40, 60)))]
    (4, ['c/0/0', 'c/0/1'])
    """
    options, source = options_from(call, PlanOptions), as_source_array(call.x)
    array, engine = source.described(options_from(call, ArrayOptions)), active_engine()
    if call.store is None:
        return advised(plan_array(source.array, engine, array, options), array)
    into = target_via(resolve_new(call.store, call.name, call.run_dir, array.format), call.via)
    made = plan_array(source.array, engine, array, options, into.store)
    return with_traffic(advised(made, array), into)
