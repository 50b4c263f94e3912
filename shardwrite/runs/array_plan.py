"""Plans for new arrays, made from a dask array and checked keywords.

Nothing is read or written here.
"""

from __future__ import annotations

import dataclasses
import math
import re
from numbers import Integral, Real
from typing import Any

from dask.base import tokenize

import shardwrite._dask as dask
from shardwrite.engines import Engine, active_engine
from shardwrite.errors import PlanError, SpecError, redacted
from shardwrite.format.document import Layout, make_metadata
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import as_strategy
from shardwrite.plan import (
    MAX_GRAPH_TASKS,
    MAX_SOURCE_RERUNS,
    Plan,
    Resources,
    Sized,
    SourceLayout,
    make_plan,
    parse_nbytes,
    resolve_shapes,
)
from shardwrite.plan.limits import check_new
from shardwrite.read.compare import check_source, check_source_of
from shardwrite.runs.array_chunks import waves_reruns

__all__ = [
    "LAYOUT_KEYWORDS",
    "PLAN_DEFAULTS",
    "identity_of",
    "layout_from",
    "memory_limit_of",
    "n_tasks_of",
    "plan",
    "plan_into",
    "plan_with",
    "resources_of",
]

LAYOUT_KEYWORDS = tuple(field.name for field in dataclasses.fields(Layout))
_RANDOM_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
PLAN_DEFAULTS: dict[str, Any] = {
    "shards": "auto",
    "chunks": "auto",
    "strategy": "fixed-order",
    "write_empty_chunks": False,
    "memory_limit": None,
    "source_id": None,
    "compression_ratio": None,
    "max_graph_tasks": MAX_GRAPH_TASKS,
    "max_source_reruns": MAX_SOURCE_RERUNS,
}


def plan(
    x: dask.array.Array,
    *,
    shards: Sized = "auto",
    chunks: Sized = "auto",
    strategy: Any = "fixed-order",
    write_empty_chunks: bool = False,
    memory_limit: int | str | None = None,
    source_id: str | None = None,
    compression_ratio: float | None = None,
    max_graph_tasks: int = MAX_GRAPH_TASKS,
    max_source_reruns: float = MAX_SOURCE_RERUNS,
    **layout: Any,
) -> Plan:
    """Plan how an array would be written.

    Nothing is computed, read or written.

    Parameters
    ----------
    x : dask.array.Array
        The source. All of its chunk sizes must be known.
    shards, chunks : tuple of int, int, str or None
        Shape of a shard and of an inner chunk, in elements: a shape, one size for all axes,
        a decoded size in bytes such as ``"256MB"``, or ``"auto"``. ``shards=None`` plans an array
        without shards, in which each chunk is an object of its own.
    strategy : FixedOrder, AppendOnly or str
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
        Expected ratio of decoded to encoded size. Only the plan's `expected_memory` uses it; the
        limit is checked for data that do not compress.
    max_graph_tasks : int
        Number of tasks that the scheduler may hold at a time. A larger graph is cut into waves.
    max_source_reruns : float
        How often a source task may run on average, if several waves need it.
    **layout
        `compressors`, `filters`, `serializer`, `fill_value`, `index_location`, `index_codecs`,
        `chunk_key_encoding`, `dimension_names` and `attributes`, as in :func:`to_sharded_zarr`.

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
    return plan_with(
        x,
        active_engine(),
        shards=shards,
        chunks=chunks,
        strategy=strategy,
        write_empty_chunks=write_empty_chunks,
        memory_limit=memory_limit,
        source_id=source_id,
        compression_ratio=compression_ratio,
        max_graph_tasks=max_graph_tasks,
        max_source_reruns=max_source_reruns,
        layout=layout_from(layout),
    )


def layout_from(keywords: dict[str, Any]) -> Layout:
    """The layout that keywords describe.

    Raises
    ------
    TypeError
        If a keyword is unknown.
    """
    unknown = set(keywords) - set(LAYOUT_KEYWORDS)
    if unknown:
        raise TypeError(
            f"unexpected keywords {sorted(unknown)}; the array's are {list(LAYOUT_KEYWORDS)}"
        )
    return Layout(**keywords)


def plan_with(x: Any, engine: Engine, *, layout: Layout, **given: Any) -> Plan:
    """Make the plan of an array for an engine, and check that it fits.

    Parameters
    ----------
    x : dask.array.Array
        The source.
    engine : Engine
        The engine that will run the tasks.
    layout : Layout
        Keywords that describe the array.
    **given
        All keywords in `PLAN_DEFAULTS`, as :func:`plan` takes them.

    Raises
    ------
    SpecError
        If an argument is not valid.
    PlanError
        If the plan exceeds the memory, the number of tasks, or `max_source_reruns`.
    """
    source = check_source(x)
    check_knobs(given)
    itemsize = source.dtype.itemsize or 1
    shards, chunks, notes = resolve_shapes(
        source.shape, itemsize, given["shards"], given["chunks"], source.chunks
    )
    check_new(source.shape, itemsize, shards, chunks)
    sharded = None if given["shards"] is None else shards
    metadata = make_metadata(source.shape, source.dtype, sharded, chunks, layout)
    made = make_plan(
        metadata,
        as_strategy(given["strategy"]),
        SourceLayout(
            source.chunks,
            n_tasks_of(source),
            identity_of(source, given["source_id"]),
            is_stable=given["source_id"] is not None,
        ),
        resources_of(engine, given["memory_limit"]),
        write_empty_chunks=given["write_empty_chunks"],
        stage_units=engine.returns_through_parent,
        max_graph_tasks=given["max_graph_tasks"],
        compression_ratio=given["compression_ratio"],
        notes=notes,
    )
    made = waves_reruns(made, source)
    made.check_fits()
    if made.source_reruns > given["max_source_reruns"]:
        raise PlanError(
            f"{len(made.waves)} waves would run each source task {made.source_reruns:.2f} times "
            f"on average, and max_source_reruns allows {given['max_source_reruns']}",
            needed_nbytes=0,
            allowed_nbytes=0,
            knob="persist or store what the waves share, raise max_graph_tasks or memory_limit, "
            "or allow it with max_source_reruns",
        )
    return made


def check_knobs(given: dict[str, Any]) -> None:
    """Check the values of the keywords that control a plan but do not describe the array.

    Parameters
    ----------
    given : dict
        All keywords in `PLAN_DEFAULTS`. `shards`, `chunks`, `strategy` and `memory_limit` are
        checked elsewhere.

    Raises
    ------
    SpecError
        If a value is not valid. The error names the keyword.
    """

    def is_positive(value: Any, kind: Any) -> bool:
        return isinstance(value, kind) and not isinstance(value, bool) and bool(value > 0)

    ratio, reruns, identity = (
        given["compression_ratio"],
        given["max_source_reruns"],
        given["source_id"],
    )
    for field, is_good, remedy in (
        ("write_empty_chunks", isinstance(given["write_empty_chunks"], bool), "give True or False"),
        (
            "compression_ratio",
            ratio is None or is_positive(ratio, Real),
            "give for instance 2.5, or None",
        ),
        (
            "max_graph_tasks",
            is_positive(given["max_graph_tasks"], Integral),
            f"give for instance {MAX_GRAPH_TASKS}",
        ),
        ("max_source_reruns", is_positive(reruns, Real), f"give for instance {MAX_SOURCE_RERUNS}"),
        (
            "source_id",
            identity is None or (isinstance(identity, str) and bool(identity)),
            "give a text, or None",
        ),
    ):
        if not is_good:
            raise SpecError(
                "not what this keyword takes", field=field, value=given[field], remedy=remedy
            )


def memory_limit_of(limit: Any) -> int | None:
    """The keyword `memory_limit` in bytes; None if it is not given.

    Raises
    ------
    SpecError
        If it is not a positive number of bytes.
    """
    if isinstance(limit, str):
        limit = parse_nbytes(limit, "memory_limit")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise SpecError(
            "not a positive number of bytes",
            field="memory_limit",
            value=limit,
            remedy='give for instance "4GB"',
        )
    return limit


def resources_of(engine: Engine, memory_limit: Any = None) -> Resources:
    """Threads and memory of an engine's workers.

    Parameters
    ----------
    engine : Engine
        The engine.
    memory_limit : int or str, optional
        Bytes that a worker process may use. The engine's limit by default.

    Raises
    ------
    SpecError
        If `memory_limit` is not a positive number of bytes.
    """
    allowed = memory_limit_of(memory_limit) or engine.memory_limit_nbytes
    return Resources(engine.n_threads, allowed, engine.n_processes)


def plan_into(
    x: Any,
    metadata: ArrayMetadata,
    engine: Engine,
    *,
    strategy: Any,
    memory_limit: int | str | None,
) -> Plan:
    """Plan how `x` would be written into an existing array of the same shape.

    Raises
    ------
    SpecError
        If the shape or dtype of `x` differs from the array's.
    PlanError
        If the plan does not fit the memory.
    """
    source = check_source_of(x, metadata, "x")
    made = make_plan(
        metadata,
        as_strategy(strategy),
        SourceLayout(source.chunks, n_tasks_of(source), identity_of(source)),
        resources_of(engine, memory_limit),
        stage_units=engine.returns_through_parent,
    )
    made.check_fits()
    return made


def n_tasks_of(x: dask.array.Array) -> int:
    """Number of tasks of the source's graph.

    The tasks are not made for this. A layer that is not materialised yet counts as the number of
    blocks of `x`.
    """
    return sum(
        len(layer) if layer.is_materialized() else math.prod(x.numblocks)
        for layer in x.dask.layers.values()
    )


def identity_of(x: dask.array.Array, source_id: str | None = None) -> str:
    """Identity of a source: plans with different identities belong to different runs.

    It is the user's `source_id` without the credentials in it, because the identity is stored on
    disk. Without a `source_id`, it is derived from dask's name of `x`, or from the dtype and the
    chunks if a name in the graph of `x` is random.
    """
    if source_id:
        return redacted(source_id)
    if any(_RANDOM_NAME.search(layer) for layer in x.dask.layers):
        return f"chunks:{tokenize(x.dtype, x.chunks)}"
    return f"dask:{tokenize(x.name)}"
