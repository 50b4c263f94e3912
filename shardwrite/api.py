"""What `import shardwrite` gives: functions that check what they are given, plan, and run.

The keywords that describe the array mean what they mean in `zarr.create_array`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dask.array
from dask.base import tokenize

from shardwrite.commit import GroupReport
from shardwrite.engines import Engine, active_engine, local_threads
from shardwrite.errors import PlanError, SpecError
from shardwrite.graph import waves_reruns
from shardwrite.journal import resolve_target
from shardwrite.metadata import Layout, make_metadata
from shardwrite.plan import (
    MAX_GRAPH_TASKS,
    MAX_SOURCE_RERUNS,
    Part,
    Plan,
    Resources,
    Sized,
    SourceLayout,
    make_plan,
    parse_nbytes,
    resolve_shapes,
)
from shardwrite.result import WriteResult
from shardwrite.run import Job, Options, as_delayed, begin, execute, execute_part, finish_parts
from shardwrite.strategies import as_strategy

__all__ = ["finalize", "plan", "prepare", "store", "to_sharded_zarr", "write_part"]

_LAYOUT_KEYWORDS = tuple(field.name for field in dataclasses.fields(Layout))
_OPTION_KEYWORDS = tuple(field.name for field in dataclasses.fields(Options))
_PLAN_DEFAULTS: dict[str, Any] = {
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
    """How an array would be written: nothing is read, nothing is written.

    Parameters
    ----------
    x : dask.array.Array
        The source, of known chunk sizes.
    shards, chunks : tuple of int, int, str
        Shard and inner chunk shape in elements: a shape, one size for all axes, a decoded byte size such as
        ``"256MB"``, or ``"auto"``.
    strategy : FixedOrder, AppendOnly or str
        The write strategy, or its name, or an order.
    write_empty_chunks : bool
        Store inner chunks and shards of the fill value only, too.
    memory_limit : int or str, optional
        Bytes that a worker process may use; the active engine's limit by default.
    source_id : str, optional
        Names the source for other runs; dask's token of `x` by default.
    compression_ratio : float, optional
        Decoded over encoded size that is expected; without it the plan reckons with the worst.
    max_graph_tasks : int
        Tasks that the scheduler may hold at a time; larger work goes in waves.
    max_source_reruns : float
        How often, on average, waves may run a source task.
    **layout
        `compressors`, `filters`, `serializer`, `fill_value`, `index_location`, `index_codecs`, `chunk_key_encoding`,
        `dimension_names` and `attributes`, as in `zarr.create_array`.

    Returns
    -------
    Plan
        Printable, with `shards_for`, `part`, `to_json` and `digest`.

    Raises
    ------
    SpecError
        If an argument does not fit; it names field, value and remedy.
    PlanError
        If the plan does not fit the memory; it names the knob to turn.

    Examples
    --------
    >>> import dask.array as da, shardwrite
    >>> x = da.zeros((100, 100), chunks=(10, 100), dtype="uint8")
    >>> p = shardwrite.plan(x, shards=(50, 50), chunks=(10, 10))
    >>> p.n_shards, [ref.key for ref in p.shards_for((slice(0, 10), slice(40, 60)))]
    (4, ['c/0/0', 'c/0/1'])
    """
    return _make_plan(
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
        layout=_layout(layout),
    )


def _layout(keywords: dict[str, Any]) -> Layout:
    unknown = set(keywords) - set(_LAYOUT_KEYWORDS)
    if unknown:
        raise TypeError(f"unexpected keywords {sorted(unknown)}; the array's are {list(_LAYOUT_KEYWORDS)}")
    return Layout(**keywords)


def _make_plan(x: Any, engine: Engine, *, layout: Layout, **given: Any) -> Plan:
    source = check_source(x)
    itemsize = source.dtype.itemsize or 1
    shards, chunks, notes = resolve_shapes(source.shape, itemsize, given["shards"], given["chunks"], source.chunks)
    metadata = make_metadata(source.shape, source.dtype, shards, chunks, layout)
    limit = given["memory_limit"]
    if isinstance(limit, str):
        limit = parse_nbytes(limit, "memory_limit")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise SpecError("not a positive number of bytes", field="memory_limit", value=limit, remedy='give for instance "4GB"')
    made = make_plan(
        metadata,
        as_strategy(given["strategy"]),
        SourceLayout(source.chunks, _n_tasks(source), given["source_id"] or _identity(source)),
        Resources(engine.n_threads, limit or engine.memory_limit_nbytes),
        write_empty_chunks=given["write_empty_chunks"],
        stage_units=engine.kind == "processes",
        max_graph_tasks=given["max_graph_tasks"],
        compression_ratio=given["compression_ratio"],
        notes=notes,
    )
    made = waves_reruns(made, source)
    made.check_fits()
    if made.source_reruns > given["max_source_reruns"]:
        raise PlanError(
            f"{len(made.waves)} waves would run each source task {made.source_reruns:.2f} times on average",
            needed_nbytes=0,
            allowed_nbytes=0,
            knob="persist or store what the waves share, raise max_graph_tasks, or allow it with max_source_reruns",
        )
    return made


def check_source(x: Any) -> dask.array.Array:
    """`x`, if it can be written.

    Raises
    ------
    SpecError
        No dask array, chunks of unknown size, or a dtype without a stored form.
    """
    if not isinstance(x, dask.array.Array):
        raise SpecError("not a dask array", field="x", value=type(x).__name__, remedy="wrap it with dask.array.from_array")
    if any(math.isnan(size) for sizes in x.chunks for size in sizes):
        raise SpecError("chunk sizes are unknown", field="x.chunks", value=x.chunks, remedy="call x.compute_chunk_sizes() first")
    return x


def _n_tasks(x: dask.array.Array) -> int:
    """Tasks of the source's graph, without making them: layers that are not yet materialised count their outputs."""
    return sum(len(layer) if layer.is_materialized() else math.prod(x.numblocks) for layer in x.dask.layers.values())


def _identity(x: dask.array.Array) -> str:
    return f"dask:{tokenize(x.name)}"


def to_sharded_zarr(
    x: dask.array.Array,
    store: Any,
    *,
    shards: Sized = "auto",
    chunks: Sized = "auto",
    name: str | None = None,
    compressors: Any = "auto",
    filters: Any = "auto",
    serializer: Any = "auto",
    fill_value: Any = None,
    index_location: str = "end",
    index_codecs: Any = None,
    chunk_key_encoding: Any = None,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Any = None,
    strategy: Any = "fixed-order",
    write_empty_chunks: bool = False,
    mode: str = "w-",
    publish: str = "last",
    durability: str = "full",
    memory_limit: int | str | None = None,
    source_id: str | None = None,
    compression_ratio: float | None = None,
    max_graph_tasks: int = MAX_GRAPH_TASKS,
    max_source_reruns: float = MAX_SOURCE_RERUNS,
    progress: bool | Callable[[GroupReport], None] = False,
    compute: bool = True,
) -> Any:
    """Write a dask array as one sharded Zarr v3 array.

    Any chunking of `x` is written correctly; no shard is ever touched by two tasks, read before it is written, or
    visible before it is whole.

    Parameters
    ----------
    x : dask.array.Array
        The source, of known chunk sizes.
    store : str or path
        A directory or ``file://`` URL.
    shards, chunks : tuple of int, int, str
        Shard and inner chunk shape in elements: a shape, one size for all axes, a decoded byte size such as
        ``"256MB"``, or ``"auto"``.
    name : str, optional
        Path of the array in the store; groups above it are created. Without it the store is the array.
    compressors, filters, serializer, fill_value, chunk_key_encoding, dimension_names, attributes
        As in `zarr.create_array`. ``compressors="auto"`` is zstd, and a crc32c after it.
    index_location : {"end", "start"}
        Where the index lies in each shard.
    index_codecs : sequence of codec, optional
        Of fixed size; little-endian bytes and crc32c by default.
    strategy : FixedOrder, AppendOnly or str
        The write strategy, or its name, or an order: ``"C"``, ``"F"``, ``"morton"``. Never stored.
    write_empty_chunks : bool
        Store inner chunks and shards of the fill value only, too.
    mode : {"w-", "w"}
        ``"w-"`` refuses to overwrite; ``"w"`` replaces an array, and only it.
    publish : {"last", "first"}
        Whether ``zarr.json`` appears when the array is whole, or at once.
    durability : {"full", "batch", "none"}
        Whether each shard is synced to disk before it counts, many at a time, or not at all.
    memory_limit : int or str, optional
        Bytes that a worker process may use; the active engine's limit by default.
    source_id : str, optional
        Names the source for other runs.
    compression_ratio : float, optional
        Decoded over encoded size that is expected; only the estimate uses it.
    max_graph_tasks, max_source_reruns
        See :func:`plan`.
    progress : bool or callable
        Show a bar, or call a function with the report of each group of shards.
    compute : bool
        False gives a `dask.delayed.Delayed` of the result; targets are prepared at once.

    Returns
    -------
    WriteResult or dask.delayed.Delayed

    Raises
    ------
    SpecError, PlanError, StoreError
        Before any byte is written.
    SourceError, CodecError, StoreError
        In a task; its shard is not committed and the array is not published.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> x = da.arange(1000, chunks=300, dtype="int32")
    >>> result = x.to_sharded_zarr(tempfile.mkdtemp() + "/x.zarr", shards=500, chunks=100)
    >>> result.n_shards, result.n_chunks
    (2, 10)
    """
    engine = active_engine()
    layout = Layout(
        compressors=compressors,
        filters=filters,
        serializer=serializer,
        fill_value=fill_value,
        index_location=index_location,
        index_codecs=index_codecs,
        chunk_key_encoding=chunk_key_encoding,
        dimension_names=dimension_names,
        attributes=attributes,
    )
    options = Options(mode=mode, publish=publish, durability=durability)
    made = _make_plan(
        x,
        engine,
        layout=layout,
        shards=shards,
        chunks=chunks,
        strategy=strategy,
        write_empty_chunks=write_empty_chunks,
        memory_limit=memory_limit,
        source_id=source_id,
        compression_ratio=compression_ratio,
        max_graph_tasks=max_graph_tasks,
        max_source_reruns=max_source_reruns,
    )
    job = Job(x, made, resolve_target(store, name), options)
    if not compute:
        return as_delayed([job], engine)
    with _reporting(progress, [job]) as on_report:
        return execute([job], engine, on_report)[0]


def store(
    arrays: Sequence[dask.array.Array],
    stores: Sequence[Any],
    *,
    names: Sequence[str | None] | None = None,
    progress: bool | Callable[[GroupReport], None] = False,
    compute: bool = True,
    **keywords: Any,
) -> Any:
    """Write several arrays in one graph, so that what they share is computed once.

    Parameters
    ----------
    arrays : sequence of dask.array.Array
        The sources.
    stores : sequence of str or path
        One for each.
    names : sequence of str or None, optional
        Paths in the stores.
    progress, compute
        See :func:`to_sharded_zarr`.
    **keywords
        Any other keyword of :func:`to_sharded_zarr`, for all of them.

    Returns
    -------
    list of WriteResult, or dask.delayed.Delayed

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> x = da.ones((64, 64), chunks=16); root = tempfile.mkdtemp()
    >>> results = shardwrite.store([x, 2 * x], [root, root], names=["one", "two"], shards=32, chunks=16)
    >>> [r.n_shards for r in results]
    [4, 4]
    """
    names = names or [None] * len(arrays)
    if not len(arrays) == len(stores) == len(names):
        raise SpecError(
            "as many stores as arrays are needed", field="stores", value=list(map(str, stores)), remedy=f"give {len(arrays)}"
        )
    engine = active_engine()
    options = Options(**{k: keywords.pop(k) for k in _OPTION_KEYWORDS if k in keywords})
    layout = _layout({k: keywords.pop(k) for k in _LAYOUT_KEYWORDS if k in keywords})
    unknown = set(keywords) - set(_PLAN_DEFAULTS)
    if unknown:
        raise TypeError(f"unexpected keywords {sorted(unknown)}")
    jobs = [
        Job(x, _make_plan(x, engine, layout=layout, **{**_PLAN_DEFAULTS, **keywords}), resolve_target(where, name), options)
        for x, where, name in zip(arrays, stores, names, strict=True)
    ]
    if not compute:
        return as_delayed(jobs, engine)
    with _reporting(progress, jobs) as on_report:
        return execute(jobs, engine, on_report)


@contextlib.contextmanager
def _reporting(progress: bool | Callable[[GroupReport], None], jobs: Sequence[Job]) -> Iterator[Callable[[GroupReport], None]]:
    """What to call with each report."""
    if callable(progress):
        yield progress
    elif progress:
        from shardwrite.progress import progress_bar

        with progress_bar(sum(job.plan.raw_nbytes for job in jobs)) as on_report:
            yield on_report
    else:
        yield lambda _: None


def prepare(
    x: dask.array.Array, store: Any, plan: Plan, *, name: str | None = None, mode: str = "w-", durability: str = "full"
) -> None:
    """Begin a run whose parts are written apart: once, before any part.

    Parameters
    ----------
    x : dask.array.Array
        The source.
    store, name
        See :func:`to_sharded_zarr`.
    plan : Plan
        From :func:`plan`.
    mode, durability
        See :func:`to_sharded_zarr`.
    """
    with local_threads() as engine:
        begin([Job(x, plan, resolve_target(store, name), Options(mode=mode, durability=durability))], engine)


def write_part(
    x: dask.array.Array,
    store: Any,
    part: Part,
    *,
    name: str | None = None,
    durability: str = "full",
    progress: bool | Callable[[GroupReport], None] = False,
) -> WriteResult:
    """Write part i of n with the threads of this process and no scheduler; for job arrays and `srun`.

    Parameters
    ----------
    x : dask.array.Array
        The source.
    store, name
        See :func:`to_sharded_zarr`.
    part : Part
        From ``plan.part(i, n)``; every rank makes the same plan.
    durability, progress
        See :func:`to_sharded_zarr`.

    Returns
    -------
    WriteResult
        Of this part.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> x = da.arange(1000, chunks=300); path = tempfile.mkdtemp() + "/x.zarr"
    >>> p = shardwrite.plan(x, shards=100, chunks=50)
    >>> shardwrite.prepare(x, path, p)
    >>> parts = [shardwrite.write_part(x, path, p.part(i, 3)) for i in range(3)]
    >>> shardwrite.finalize(path, p).n_shards
    10
    """
    with local_threads() as engine:
        job = Job(x, part.plan, resolve_target(store, name), Options(durability=durability))
        with _reporting(progress, [job]) as on_report:
            return execute_part(job, part, engine, on_report)


def finalize(store: Any, plan: Plan, *, name: str | None = None, durability: str = "full") -> WriteResult:
    """Publish an array whose parts are all written.

    Parameters
    ----------
    store, name, durability
        See :func:`to_sharded_zarr`.
    plan : Plan
        The plan of the parts.

    Raises
    ------
    IncompleteError
        Naming the parts that are missing.
    """
    return finish_parts(plan, resolve_target(store, name), durability)
