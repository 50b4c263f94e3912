"""The function that plans an array, without writing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from shardwrite.engines import active_engine
from shardwrite.entry.public import public
from shardwrite.entry.words import refuse_unknown
from shardwrite.format.document import ArrayOptions
from shardwrite.operations.traffic import with_traffic
from shardwrite.place.scratch import target_via
from shardwrite.place.target import resolve_new
from shardwrite.plan import MAX_GRAPH_TASKS, MAX_SOURCE_RERUNS, Plan, PlanOptions, Sized
from shardwrite.runs.array_plan import plan_array
from shardwrite.runs.given import take

_OF_PLANS = [field.name for field in fields(PlanOptions)]


@public
def plan(
    x: Any,
    *,
    shards: Sized | Mapping[str, Any] = "auto",
    chunks: Sized = "auto",
    strategy: Any = "fixed-order",
    write_empty_chunks: bool = False,
    memory_limit: int | str | None = None,
    source_id: str | None = None,
    compression_ratio: float | None = None,
    max_graph_tasks: int = MAX_GRAPH_TASKS,
    max_source_reruns: float = MAX_SOURCE_RERUNS,
    store: Any = None,
    name: str | None = None,
    run_dir: Any = None,
    via: Any = None,
    **layout: Any,
) -> Plan:
    """Plan how an array would be written.

    Nothing is computed or written, and nothing is read but what stands in `store`, if that is in a
    bucket.

    Parameters
    ----------
    x : array_like
        The source, as in :func:`to_sharded_zarr`.
    shards, chunks : tuple of int, int, str or None
        Shape of a shard and of an inner chunk, in elements: a shape, one size for all axes,
        a decoded size in bytes such as ``"256MB"``, or ``"auto"``. ``shards=None`` plans an array
        without shards, in which each chunk is an object of its own. `shards` may also be a mapping
        as zarr-python takes it: ``{"shape": ..., "index_location": ...}``.
    strategy : FixedOrder, AppendOnly, Hdf5 or str
        The write strategy, its name, or an order of inner chunks: ``"C"``, ``"F"`` or
        ``"morton"``.
    write_empty_chunks : bool
        Store also inner chunks and shards that hold only the fill value.
    memory_limit : int or str, optional
        Bytes that a worker process may use, as a number or a text such as ``"4GB"``. The limit of
        the active engine by default.
    source_id : str, optional
        Identifier of the source. Runs with the same identifier have the same data. By default, it
        is derived from dask's name of `x`.
    compression_ratio : float, optional
        Expected ratio of decoded to encoded size. Only the plan's `expected_memory` uses it, and
        the check whether a bucket takes such large shards. The memory limit is checked for data
        that do not compress.
    max_graph_tasks : int
        Number of tasks that the scheduler may hold at a time. A larger graph is cut into waves.
    max_source_reruns : float
        How often a source task may run on average, if several waves need it.
    store, name, run_dir, via : optional
        Place of the array, as in :func:`to_sharded_zarr`. If it is in a bucket, the plan counts
        the shards that wait in memory until they are put, and has `traffic`: requests, bytes and
        cost. A run of the same plan that has not ended there counts.
    **layout
        `compressors`, `filters`, `serializer`, `fill_value`, `index_location`, `index_codecs`,
        `shard_format`, `chunk_key_encoding`, `dimension_names`, `attributes`, `format`, `order` and
        `zarr_format`, as in :func:`to_sharded_zarr`.

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
        If a keyword in `layout` is unknown.

    Examples
    --------
    >>> import dask.array as da, shardwrite
    >>> x = da.zeros((100, 100), chunks=(10, 100), dtype="uint8")
    >>> p = shardwrite.plan(x, shards=(50, 50), chunks=(10, 10))
    >>> p.n_shards, [ref.key for ref in p.shards_for((slice(0, 10), slice(40, 60)))]
    (4, ['c/0/0', 'c/0/1'])
    """
    refuse_unknown("plan", layout, [*ArrayOptions.names(), *_OF_PLANS])
    options = PlanOptions(
        strategy=strategy,
        write_empty_chunks=write_empty_chunks,
        memory_limit=memory_limit,
        source_id=source_id,
        compression_ratio=compression_ratio,
        max_graph_tasks=max_graph_tasks,
        max_source_reruns=max_source_reruns,
    )
    given = take(x)
    array = given.described(ArrayOptions.of(shards, chunks, layout))
    engine = active_engine()
    if store is None:
        return plan_array(given.array, engine, array, options)
    into = target_via(resolve_new(store, name, run_dir, array.format), via)
    return with_traffic(plan_array(given.array, engine, array, options, into.store), into)
