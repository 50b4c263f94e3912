"""Functions that write whole arrays on the active engine.

The keywords that describe the array have the same meaning as in `zarr.create_array`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import shardwrite._dask as dask
from shardwrite.engines import active_engine
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions
from shardwrite.operations.region import write_region
from shardwrite.place.target import resolve_target
from shardwrite.plan import MAX_GRAPH_TASKS, MAX_SOURCE_RERUNS, PlanOptions, Sized
from shardwrite.runs.array_chunks import ArrayChunks
from shardwrite.runs.array_plan import plan_array
from shardwrite.runs.delayed import as_delayed
from shardwrite.runs.execute import execute
from shardwrite.runs.job import Job
from shardwrite.runs.options import RunOptions, for_new_array
from shardwrite.runs.progress import reporting
from shardwrite.write.context import GroupReport

__all__ = ["store", "to_sharded_zarr"]

_Options = TypeVar("_Options", RunOptions, ArrayOptions, PlanOptions)


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
    shard_format: Any = None,
    chunk_key_encoding: Any = None,
    dimension_names: Sequence[str | None] | None = None,
    attributes: Any = None,
    strategy: Any = "fixed-order",
    write_empty_chunks: bool = False,
    mode: str = "w-",
    publish: str = "last",
    durability: str | None = None,
    run_dir: Any = None,
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

    `x` may have any chunks. Each shard is committed by exactly one task, without reading it first,
    and becomes visible only when it is whole. With `region`, see :func:`write_region` instead.

    Parameters
    ----------
    x : dask.array.Array
        The source. All of its chunk sizes must be known.
    store : str, path, or store or node of zarr-python
        A directory or ``file://`` URL; or a store of zarr-python, or a group or array in one.
    shards, chunks : tuple of int, int, str or None
        Shape of a shard and of an inner chunk, in elements: a shape, one size for all axes,
        a decoded size in bytes such as ``"256MB"``, or ``"auto"``. ``shards=None`` writes an array
        without shards, in which each chunk is an object of its own.
    name : str, optional
        Path of the array in the store. Missing groups above it are created. Without a name,
        the array is the store itself.
    region, axis, casting
        Write into an existing array; see :func:`write_region`. `mode`, `publish` and the keywords
        that describe an array are refused then, and `compression_ratio` and `max_source_reruns`
        have no effect.
    compressors, filters, serializer, fill_value, chunk_key_encoding, dimension_names, attributes
        As in `zarr.create_array`. ``compressors="auto"`` stands for zstd followed by crc32c.
    index_location : {"end", "start"}
        Position of the index in each shard.
    index_codecs : sequence of codec, optional
        Codecs of the index; the encoded size must be fixed. Little-endian bytes and crc32c by
        default.
    shard_format : ShardFormat, optional
        Format of the shards, in place of the one of the sharding specification; see
        :func:`register_shard_format`.
    strategy : FixedOrder, AppendOnly or str
        The write strategy, its name, or an order of inner chunks: ``"C"``, ``"F"`` or
        ``"morton"``. It is not stored in the metadata.
    write_empty_chunks : bool
        Store also inner chunks and shards that hold only the fill value.
    mode : {"w-", "w"}
        ``"w-"`` refuses to overwrite anything. ``"w"`` replaces an array, and refuses to
        overwrite anything else. The mode matters only when a run begins: if the run is
        interrupted, the same call continues it. If the run has ended, the same call returns its
        result and writes nothing; with ``"w"``, it does so only if `source_id` says that the data
        are the same.
    publish : {"last", "first"}
        Whether ``zarr.json`` appears when the array is whole, or at the start of the run.
    durability : {"full", "batch", "none"}, optional
        Whether shards are synced to disk one by one before they count as committed, many at a
        time, or not at all. By default the strongest that the store can promise: ``"full"`` in a
        directory, ``"none"`` in memory.
    run_dir : str or path, optional
        Directory for the state of the run, if the array lies in no directory. All processes of the
        run must see it. By default it is ``shardwrite.run-dir`` in the configuration of dask. For
        a store of one process, it is a temporary directory.
    restart : bool
        Remove the shards of an unfinished run and start over.
    recheck : bool
        Before an unfinished run is continued, decode the shards that it has committed and write
        the bad ones again.
    memory_limit : int or str, optional
        Bytes that a worker process may use, as a number or a text such as ``"4GB"``. The limit of
        the active engine by default.
    source_id : str, optional
        Identifier of the source. Runs with the same identifier have the same data.
    compression_ratio : float, optional
        Expected ratio of decoded to encoded size. Only the memory estimate uses it.
    max_graph_tasks, max_source_reruns
        See :func:`plan`.
    progress : bool or callable
        True shows a progress bar. A callable is called with the report of each group of shards.
    compute : bool
        With False, begin the run and return a `dask.delayed.Delayed` of the result.

    Returns
    -------
    WriteResult or dask.delayed.Delayed

    Raises
    ------
    SpecError, PlanError, StoreError, JournalError
        Before any shard is written, if an argument or the target does not fit. A JournalError
        says that another plan was begun for the array, and what differs or who works on it.
    IncompleteError
        If the process was asked to stop and shards are missing.
    SourceError, CodecError, StoreError
        If a task fails. Its shard is not committed, and the run does not complete the array.
    RunEndedError
        If another process took over the run, or ended it.
    WorkersLostError
        If a cluster has lost its workers.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> x = da.arange(1000, chunks=300, dtype="int32")
    >>> result = x.to_sharded_zarr(tempfile.mkdtemp() + "/x.zarr", shards=500, chunks=100)
    >>> result.n_shards, result.n_chunks
    (2, 10)
    """
    engine = active_engine()
    array = ArrayOptions(
        shards=shards,
        chunks=chunks,
        compressors=compressors,
        filters=filters,
        serializer=serializer,
        fill_value=fill_value,
        index_location=index_location,
        index_codecs=index_codecs,
        shard_format=shard_format,
        chunk_key_encoding=chunk_key_encoding,
        dimension_names=dimension_names,
        attributes=attributes,
    )
    if region is not None:
        _refuse_for_region(array, mode, publish)
        return write_region(
            x,
            store,
            region,
            name=name,
            axis=axis,
            casting=casting,
            strategy=strategy,
            write_empty_chunks=write_empty_chunks,
            memory_limit=memory_limit,
            source_id=source_id,
            max_graph_tasks=max_graph_tasks,
            durability=durability,
            run_dir=run_dir,
            restart=restart,
            recheck=recheck,
            progress=progress,
            compute=compute,
        )
    run = for_new_array(
        RunOptions(
            mode=mode, publish=publish, durability=durability, restart=restart, recheck=recheck
        )
    )
    options = PlanOptions(
        strategy=strategy,
        write_empty_chunks=write_empty_chunks,
        memory_limit=memory_limit,
        source_id=source_id,
        compression_ratio=compression_ratio,
        max_graph_tasks=max_graph_tasks,
        max_source_reruns=max_source_reruns,
    )
    made = plan_array(x, engine, array, options)
    job = Job(ArrayChunks(x), made, resolve_target(store, name, run_dir), run)
    if not compute:
        return as_delayed([job], engine)
    with reporting(progress, made.raw_nbytes) as on_report:
        return execute([job], engine, on_report)[0]


def _refuse_for_region(array: ArrayOptions, mode: str, publish: str) -> None:
    """Refuse keywords of new arrays in a call that writes into a region.

    Raises
    ------
    SpecError
        If one of them differs from its default; the error names the first one.
    """
    of_array = [(f.name, getattr(array, f.name), f.default) for f in dataclasses.fields(array)]
    of_run = [("mode", mode, "w-"), ("publish", publish, "last")]
    for keyword, value, usual in (*of_array[:2], *of_run, *of_array[2:]):
        if value is not usual and value != usual:
            remedy = "leave it out: the array that exists decides"
            raise SpecError(
                "is for new arrays, and region= is given", field=keyword, value=value, remedy=remedy
            )


def store(
    arrays: Sequence[dask.array.Array],
    stores: Sequence[Any],
    *,
    names: Sequence[str | None] | None = None,
    run_dir: Any = None,
    progress: bool | Callable[[GroupReport], None] = False,
    compute: bool = True,
    **keywords: Any,
) -> Any:
    """Write several arrays together, so that work on a common source is done once.

    No array is published before all of them are whole. With ``compute=True``, arrays whose plan is
    staged or has several waves are written one after the other, and share no work.

    Parameters
    ----------
    arrays : sequence of dask.array.Array
        The sources.
    stores : sequence of str, path, or store or node of zarr-python
        A store for each array, as in :func:`to_sharded_zarr`.
    names : sequence of str or None, optional
        Path of each array in its store.
    run_dir, progress, compute
        See :func:`to_sharded_zarr`.
    **keywords
        Other keywords of :func:`to_sharded_zarr`, which hold for all arrays. `region`, `axis` and
        `casting` are not accepted.

    Returns
    -------
    list of WriteResult, or dask.delayed.Delayed
        One result for each array. With ``compute=False``, a `Delayed` of that list, or of a single
        `WriteResult` if there is only one array.

    Raises
    ------
    SpecError
        If there are not as many stores or names as arrays, or two arrays have the same place.
    TypeError
        If a keyword is unknown.

    Notes
    -----
    Other errors are those of :func:`to_sharded_zarr`.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> x = da.ones((64, 64), chunks=16); root = tempfile.mkdtemp()
    >>> results = shardwrite.store(
    ...     [x, 2 * x], [root, root], names=["one", "two"], shards=32, chunks=16
    ... )
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
    kinds = (RunOptions, ArrayOptions, PlanOptions)
    names_of = {kind: {field.name for field in dataclasses.fields(kind)} for kind in kinds}
    unknown = set(keywords) - set().union(*names_of.values())
    if unknown:
        raise TypeError(f"unexpected keywords {sorted(unknown)}")

    def given(kind: type[_Options]) -> _Options:
        return kind(**{name: keywords[name] for name in names_of[kind] & set(keywords)})

    run, array, options = for_new_array(given(RunOptions)), given(ArrayOptions), given(PlanOptions)
    jobs = [
        Job(
            ArrayChunks(x),
            plan_array(x, engine, array, options),
            resolve_target(where, name, run_dir),
            run,
        )
        for x, where, name in zip(arrays, stores, names, strict=True)
    ]
    if not compute:
        return as_delayed(jobs, engine)
    with reporting(progress, sum(job.plan.raw_nbytes for job in jobs)) as on_report:
        return execute(jobs, engine, on_report)
