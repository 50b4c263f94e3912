"""Writing whole arrays with whatever engine is active.

The keywords that describe the array mean what they mean in `zarr.create_array`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import shardwrite._dask as dask
from shardwrite.engines import active_engine
from shardwrite.errors import SpecError
from shardwrite.format.document import Layout
from shardwrite.operations.region import write_region
from shardwrite.plan import MAX_GRAPH_TASKS, MAX_SOURCE_RERUNS, Sized
from shardwrite.runs.array_plan import LAYOUT_KEYWORDS, PLAN_DEFAULTS, layout_from, plan_with
from shardwrite.runs.execute import as_delayed, execute
from shardwrite.runs.job import Job, Options, options_for_new
from shardwrite.runs.progress import reporting
from shardwrite.target import resolve_target
from shardwrite.write.commit import GroupReport

__all__ = ["store", "to_sharded_zarr"]

OPTION_KEYWORDS = tuple(field.name for field in dataclasses.fields(Options))


def to_sharded_zarr(
    x: dask.array.Array,
    store: Any,
    *,
    shards: Sized = "auto",
    chunks: Sized = "auto",
    name: str | None = None,
    region: Any = None,
    axis: int = 0,
    casting: str = "safe",
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
    restart: bool = False,
    recheck: bool = False,
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
    region, axis, casting
        Write into an array that exists: see :func:`write_region`. Keywords that describe an array are then not taken.
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
        ``"w-"`` refuses to overwrite; ``"w"`` replaces an array, and only it. Looked at only where a run begins: the same call
        again goes on with a run that did not end, and where it did end, gives its result and writes nothing (with ``"w"``
        only if `source_id` says that the data are the same).
    publish : {"last", "first"}
        Whether ``zarr.json`` appears when the array is whole, or at once.
    durability : {"full", "batch", "none"}
        Whether each shard is synced to disk before it counts, many at a time, or not at all.
    restart : bool
        Take away the shards of a run that did not end, and start over.
    recheck : bool
        Before going on with such a run, decode the shards that it has committed, and write the bad ones again.
    memory_limit : int or str, optional
        Bytes that a worker process may use; the active engine's limit by default.
    source_id : str, optional
        Names the source for other runs: the same text stands for the same data.
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
    SpecError, PlanError, StoreError, JournalError
        Before any byte is written; JournalError where another plan was begun there, with what differs or who is at it.
    IncompleteError
        The process was asked to stop, and shards are missing.
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
    knobs: dict[str, Any] = {
        "strategy": strategy,
        "write_empty_chunks": write_empty_chunks,
        "memory_limit": memory_limit,
        "source_id": source_id,
        "max_graph_tasks": max_graph_tasks,
    }
    how: dict[str, Any] = {"durability": durability, "restart": restart, "recheck": recheck}
    sizes: dict[str, Any] = {"shards": shards, "chunks": chunks}
    if region is not None:
        refuse_for_region(layout, {**sizes, "mode": mode, "publish": publish})
        where: dict[str, Any] = {"name": name, "axis": axis, "casting": casting}
        return write_region(
            x, store, region, **where, **knobs, **how, progress=progress, compute=compute
        )
    options = options_for_new(mode=mode, publish=publish, **how)
    limits = {"compression_ratio": compression_ratio, "max_source_reruns": max_source_reruns}
    made = plan_with(x, engine, layout=layout, **sizes, **limits, **knobs)
    job = Job(x, made, resolve_target(store, name), options)
    if not compute:
        return as_delayed([job], engine)
    with reporting(progress, made.raw_nbytes) as on_report:
        return execute([job], engine, on_report)[0]


def refuse_for_region(layout: Layout, others: dict[str, Any]) -> None:
    """Refuse keywords that say how an array is made, where it exists.

    Raises
    ------
    SpecError
        Naming the first of them.
    """
    usual: dict[str, Any] = {"shards": "auto", "chunks": "auto", "mode": "w-", "publish": "last"}
    for field in dataclasses.fields(Layout):
        usual[field.name], others = (
            field.default,
            {**others, field.name: getattr(layout, field.name)},
        )
    for keyword, value in others.items():
        if value is not usual[keyword] and value != usual[keyword]:
            remedy = "leave it out: the array that exists decides"
            raise SpecError(
                "is for new arrays, and region= is given", field=keyword, value=value, remedy=remedy
            )


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
            "as many stores as arrays are needed",
            field="stores",
            value=list(map(str, stores)),
            remedy=f"give {len(arrays)}",
        )
    engine = active_engine()
    options = options_for_new(**{k: keywords.pop(k) for k in OPTION_KEYWORDS if k in keywords})
    layout = layout_from({k: keywords.pop(k) for k in LAYOUT_KEYWORDS if k in keywords})
    unknown = set(keywords) - set(PLAN_DEFAULTS)
    if unknown:
        raise TypeError(f"unexpected keywords {sorted(unknown)}")
    jobs = [
        Job(
            x,
            plan_with(x, engine, layout=layout, **{**PLAN_DEFAULTS, **keywords}),
            resolve_target(where, name),
            options,
        )
        for x, where, name in zip(arrays, stores, names, strict=True)
    ]
    if not compute:
        return as_delayed(jobs, engine)
    with reporting(progress, sum(job.plan.raw_nbytes for job in jobs)) as on_report:
        return execute(jobs, engine, on_report)
