"""Functions that write whole arrays on the active engine.

The keywords that describe the array have the same meaning as in `zarr.create_array`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Sized as HasLength
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, overload

from dask.delayed import Delayed

import shardwrite._dask as dask
from shardwrite.engines import active_engine
from shardwrite.entry.public import configured, public, refuse_no_flags
from shardwrite.entry.words import refuse_unknown
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions
from shardwrite.format.manifest import Manifest
from shardwrite.operations.committing import committing
from shardwrite.operations.keywords import StoreKeywords, WriteKeywords
from shardwrite.operations.modes import (
    chosen_mode,
    fills_existing,
    mode_of,
    refuse_for_region,
)
from shardwrite.operations.region import region_job, write_region
from shardwrite.operations.words import ZarrWords
from shardwrite.place.scratch import target_via
from shardwrite.place.target import is_array, resolve_new, resolve_target
from shardwrite.place.url import at_url, named
from shardwrite.plan import MAX_GRAPH_TASKS, MAX_SOURCE_RERUNS, PlanOptions, Sized
from shardwrite.runs.array_chunks import ArrayChunks
from shardwrite.runs.array_plan import plan_array
from shardwrite.runs.delayed import as_delayed
from shardwrite.runs.execute import execute
from shardwrite.runs.given import take
from shardwrite.runs.job import Job
from shardwrite.runs.options import RunOptions, for_new_array
from shardwrite.runs.progress import reporting
from shardwrite.runs.region_plan import Where
from shardwrite.runs.result import WriteResult
from shardwrite.runs.stored_array import stored_array
from shardwrite.write.context import GroupReport

_Options = TypeVar("_Options", RunOptions, ArrayOptions, PlanOptions)


@overload
def to_sharded_zarr(
    x: Any,
    store: Any,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    compute: Literal[True] = True,
    return_stored: Literal[False] = False,
    **keywords: Unpack[WriteKeywords],
) -> WriteResult: ...


@overload
def to_sharded_zarr(
    x: Any,
    store: Any,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    compute: Literal[False],
    return_stored: Literal[False] = False,
    **keywords: Unpack[WriteKeywords],
) -> Delayed: ...


@overload
def to_sharded_zarr(
    x: Any,
    store: Any,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    compute: bool = True,
    return_stored: Literal[True],
    **keywords: Unpack[WriteKeywords],
) -> dask.array.Array: ...


@overload
def to_sharded_zarr(
    x: Any,
    store: Any,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    compute: bool = True,
    return_stored: bool = False,
    **keywords: Unpack[WriteKeywords],
) -> WriteResult | Delayed | dask.array.Array: ...


@public
@committing
def to_sharded_zarr(
    x: Any,
    store: Any,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    shards: Sized | Mapping[str, Any] = "auto",
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
    order: str | None = None,
    zarr_format: int | None = None,
    format: str | None = None,  # noqa: A002 (the word that users know)
    manifest: Manifest = None,
    strategy: Any = "fixed-order",
    write_empty_chunks: bool = False,
    mode: str | None = None,
    overwrite: bool | None = None,
    zarr_array_kwargs: Mapping[str, Any] | None = None,
    publish: str = "last",
    durability: str | None = None,
    run_dir: Any = None,
    via: Any = None,
    exclusive: bool = False,
    restart: bool = False,
    recheck: bool = False,
    memory_limit: int | str | None = None,
    source_id: str | None = None,
    compression_ratio: float | None = None,
    max_graph_tasks: int = MAX_GRAPH_TASKS,
    max_source_reruns: float = MAX_SOURCE_RERUNS,
    keep_report: bool = False,
    message: str | None = None,  # noqa: ARG001 (which `committing` takes)
    progress: bool | Callable[[GroupReport], None] = False,
    compute: bool = True,
    return_stored: bool = False,
) -> WriteResult | Delayed | dask.array.Array:
    """Write an array as one sharded Zarr v3 array.

    `x` may have any chunks. Each shard is committed by exactly one task, without reading it first,
    and becomes visible only when it is whole. With `region`, see :func:`write_region` instead.

    Parameters
    ----------
    x : array_like
        The source: a dask array whose chunk sizes are known, a numpy array, a `zarr.Array`, an
        `xarray.DataArray`, or any object with ``__array__`` and a shape. `dimension_names`,
        `attributes` and `fill_value` that are left out are those of a zarr or xarray array.
    store : str, path, store or node of zarr-python, or icechunk.Session
        A directory; a URL such as ``s3://bucket/x.zarr``; a store of zarr-python or obstore; a
        writable session of Icechunk, which is then committed; or a group or array of zarr-python.
        Such an array is filled, as with ``mode="r+"``, unless
        `mode` is ``"w"``.
    component : str, optional
        Another word for `name`, as in `dask.array.to_zarr`.
    storage_options : mapping, optional
        Options for a URL. For a bucket they are options of obstore, or the usual ones of fsspec,
        such as ``key``. With options, ``{}`` included, `store` may also be any other URL that
        fsspec knows. For a local path they have no effect, as in dask.
    shards, chunks : tuple of int, int, str or None
        Shape of a shard and of an inner chunk, in elements: a shape, one size for all axes,
        a decoded size in bytes such as ``"256MB"``, or ``"auto"``. ``shards=None`` writes an array
        without shards, in which each chunk is an object of its own. `shards` may also be a mapping
        as zarr-python takes it: ``{"shape": ..., "index_location": ...}``.
    name : str, optional
        Path of the array in the store. Missing groups above it are created. Without a name,
        the array is the store itself.
    region, axis, casting, exclusive
        Write into an existing array; see :func:`write_region`. `mode`, `publish` and the keywords
        that describe an array are refused then, and `compression_ratio` and `max_source_reruns`
        have no effect.
    compressors, filters, serializer, fill_value, chunk_key_encoding, dimension_names, attributes
        As in `zarr.create_array`. ``compressors="auto"`` stands for zstd followed by crc32c. The
        name of a compressor alone, such as ``"gzip"``, stands for it followed by crc32c. A list, a
        mapping or a codec of zarr stands for exactly these codecs: ``["gzip"]`` has no checksum.
    order : {"C", "F"}, optional
        As in `zarr.create_array`: the order in memory of what zarr-python reads. Zarr v3 does not
        store it, so it changes nothing of what is written. The filter ``"transpose"`` does.
    zarr_format : {3}, optional
        As in `zarr.create_array`. Zarr v2 has no shards and is refused.
    format : {"transformer-2022"}, optional
        Write the documents and keys of the storage transformer of 2022, with `store` as the
        hierarchy and `name` as the path of the array in it.
    manifest : {"nonempty_chunks"}, optional
        Keep the list of the inner chunks that hold data in an attribute of this name.
    index_location : {"end", "start"}
        Position of the index in each shard.
    index_codecs : sequence of codec, optional
        Codecs of the index; the encoded size must be fixed. Little-endian bytes and crc32c by
        default.
    shard_format : ShardFormat, optional
        Format of the shards, in place of the one of the sharding specification; see
        :func:`register_shard_format`.
    strategy : FixedOrder, AppendOnly, Hdf5 or str
        The write strategy, its name, or an order of inner chunks: ``"C"``, ``"F"`` or
        ``"morton"``. It is not stored in the metadata.
    write_empty_chunks : bool
        Store also inner chunks and shards that hold only the fill value.
    mode : {"w-", "w", "a", "r+"}, optional
        ``"w-"``, the default, refuses to overwrite anything. ``"w"`` replaces an array, and
        refuses to overwrite anything else. ``"r+"`` writes into an array that exists, as
        ``region=...`` does, and ``"a"`` too, or makes the array if there is none. The metadata of
        an array that exists stay; keywords that say otherwise are refused. The mode matters only
        when a run begins: if the run is interrupted, the same call continues it. If the run has
        ended, the same call returns its result and writes nothing. With ``"w"``, and into an array
        that exists, it does so only if `source_id` says that the data are the same.
    overwrite : bool, optional
        True is another word for ``mode="w"``, and False for ``mode="w-"``.
    zarr_array_kwargs : mapping, optional
        Keywords of `zarr.create_array`, in place of the keywords above.
    publish : {"last", "first"}
        Whether ``zarr.json`` appears when the array is whole, or at the start of the run.
    durability : {"full", "batch", "none"}, optional
        Whether shards are synced to disk one by one before they count as committed, many at a
        time, or not at all. By default the strongest that the store can promise: ``"full"`` in a
        directory, ``"none"`` in memory.
    run_dir : str or path, optional
        Directory for the state of the run, if the array lies in no directory. All processes of the
        run must see it. By default it is ``shardwrite.run-dir`` in the configuration of dask. For
        a store of one process, it is a temporary directory. For a bucket no directory is needed:
        the state lies there until the run ends.
    via : str or path, optional
        Directory on each machine's own disk, in which shards wait until they are put into a bucket,
        in place of memory. It may name variables, such as ``$SLURM_TMPDIR``.
    restart : bool
        Remove the shards of an unfinished run and start over. An array that the run was replacing
        is put back before; to replace it, give ``mode="w"``, too.
    recheck : bool
        Before an unfinished run is continued, decode the shards that it has committed and write
        the bad ones again. The same is done if the array was finished before.
    memory_limit : int or str, optional
        Bytes that a worker process may use, as a number or a text such as ``"4GB"``. The limit of
        the active engine by default.
    source_id : str, optional
        Identifier of the source. Runs with the same identifier have the same data.
    compression_ratio : float, optional
        Expected ratio of decoded to encoded size; see :func:`plan`.
    max_graph_tasks, max_source_reruns
        See :func:`plan`.
    keep_report : bool
        Keep a report of the run in the array, as ``shardwrite-report.json`` beside the receipt.
        :func:`report` reads it. Its size does not grow with the number of shards.
    message : str, optional
        Message of the commit, if the store is a session of Icechunk. By default it names the array.
    progress : bool or callable
        True shows a progress bar. A callable is called with the report of each group of shards.
    compute : bool
        With False, begin the run and return a `dask.delayed.Delayed` of the result.
    return_stored : bool
        Return a dask array that reads what was written, with the chunks of `x`. With
        ``compute=False``, it is read after the rest of the run, which is part of its graph.

    Returns
    -------
    WriteResult, dask.delayed.Delayed or dask.array.Array
        What was written. A `Delayed` of that with ``compute=False``, or a dask array with
        ``return_stored=True``.

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
    words = ZarrWords.of(zarr_array_kwargs)
    array = words.over(
        ArrayOptions(
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
            order=order,
            zarr_format=zarr_format,
            format=format,
            manifest=manifest,
        )
    )
    store, name = at_url(store, storage_options), words.named(named(name, component))
    mode = chosen_mode(mode, words.overwriting(overwrite), is_given=is_array(store) and not name)
    if region is not None:
        refuse_for_region(array, mode, publish)
    elif mode in ("a", "r+"):
        target = resolve_target(store, name, run_dir)
        region = ... if fills_existing(x, target, mode, array) else None
    if region is not None:
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
            via=via,
            exclusive=exclusive,
            restart=restart,
            recheck=recheck,
            keep_report=keep_report,
            progress=progress,
            compute=compute,
            return_stored=return_stored,
        )
    run = RunOptions(
        mode="w-" if mode == "a" else mode,
        publish=publish,
        durability=durability,
        restart=restart,
        recheck=recheck,
        keep_report=keep_report,
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
    engine, given = active_engine(), take(x)
    into = target_via(resolve_new(store, name, run_dir, array.format), via)
    words.check(given.array)
    made = plan_array(given.array, engine, given.described(array), options, into.store)
    job = Job(ArrayChunks(given.array), made, into, for_new_array(run))
    if not compute:
        rest = as_delayed([job], engine)
        return stored_array(job, given.array, rest) if return_stored else rest
    with reporting(progress, made.raw_nbytes) as on_report:
        (result,) = execute([job], engine, on_report)
    return stored_array(job, given.array) if return_stored else result


@overload
def store(
    arrays: Any,
    stores: Any,
    *,
    compute: Literal[True] = True,
    return_stored: Literal[False] = False,
    **keywords: Unpack[StoreKeywords],
) -> list[WriteResult]: ...


@overload
def store(
    arrays: Any,
    stores: Any,
    *,
    compute: Literal[False],
    return_stored: Literal[False] = False,
    **keywords: Unpack[StoreKeywords],
) -> Delayed: ...


@overload
def store(
    arrays: Any,
    stores: Any,
    *,
    compute: bool = True,
    return_stored: Literal[True],
    **keywords: Unpack[StoreKeywords],
) -> list[dask.array.Array]: ...


@overload
def store(
    arrays: Any,
    stores: Any,
    *,
    compute: bool = True,
    return_stored: bool = False,
    **keywords: Unpack[StoreKeywords],
) -> list[WriteResult] | Delayed | list[dask.array.Array]: ...


@public
@committing
def store(
    arrays: Any,
    stores: Any,
    *,
    names: Sequence[str | None] | None = None,
    regions: Any = None,
    axis: int = 0,
    casting: str = "safe",
    run_dir: Any = None,
    message: str | None = None,  # noqa: ARG001 (which `committing` takes)
    progress: bool | Callable[[GroupReport], None] = False,
    compute: bool = True,
    return_stored: bool = False,
    **keywords: Any,
) -> list[WriteResult] | Delayed | list[dask.array.Array]:
    """Write several arrays together, so that work on a common source is done once.

    No array is published before all of them are whole. With ``compute=True``, arrays whose plan is
    staged or has several waves are written one after the other, and share no work.

    Parameters
    ----------
    arrays : sequence of array_like
        The sources, each as in :func:`to_sharded_zarr`. A single dask array is taken as a sequence
        of one.
    stores : sequence of str, path, or store or node of zarr-python
        A store for each array, as in :func:`to_sharded_zarr`.
    names : sequence of str or None, optional
        Path of each array in its store.
    regions : tuple of slice, or sequence of them, optional
        Regions of existing arrays to write into, as in :func:`write_region`: one tuple for all, or
        one for each array. None stands for a new array.
    axis, casting
        See :func:`write_region`. They hold for all regions.
    run_dir, message, progress, compute, return_stored
        See :func:`to_sharded_zarr`.
    **keywords
        Other keywords of :func:`to_sharded_zarr`, which hold for all arrays. With a region, those
        that describe an array, `mode` and `publish` are refused.

    Returns
    -------
    list of WriteResult, list of dask.array.Array, or dask.delayed.Delayed
        One result for each array, or with `return_stored` one dask array. With ``compute=False``,
        a `Delayed` of that list, or of a single `WriteResult` if there is only one array.

    Raises
    ------
    SpecError
        If there are not as many stores, names or regions as arrays, two arrays have the same
        place, or two regions share a shard.
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
    kinds = (RunOptions, ArrayOptions, PlanOptions)
    names_of = {kind: {field.name for field in dataclasses.fields(kind)} for kind in kinds}
    others = {"exclusive", "overwrite", "storage_options", "via", "zarr_array_kwargs"}
    refuse_unknown("store", keywords, sorted(set().union(*names_of.values(), others)))
    keywords.update(configured({*names_of[PlanOptions], "exclusive"}, keywords))
    refuse_no_flags({"exclusive": (False, True)}, keywords)
    if isinstance(arrays, dask.array.Array):
        arrays, stores = [arrays], [stores]
    engine, many = active_engine(), _Many.of(arrays, stores, names, regions)

    def given(kind: type[_Options]) -> _Options:
        return kind(**{name: keywords[name] for name in names_of[kind] & set(keywords)})

    words = ZarrWords.of(keywords.pop("zarr_array_kwargs", None))
    overwrite, at = keywords.pop("overwrite", None), keywords.pop("storage_options", None)
    via, exclusive = keywords.pop("via", None), keywords.pop("exclusive")
    keywords["mode"] = mode_of(keywords.get("mode"), words.overwriting(overwrite))
    run, array, options = for_new_array(given(RunOptions)), given(ArrayOptions), given(PlanOptions)
    array = words.over(array)
    jobs, sources = [], []
    for x, store_, name, region in many.each():
        where_to = (at_url(store_, at), words.named(name), run_dir)
        if region is None:
            target, taken = target_via(resolve_new(*where_to, array.format), via), take(x)
            words.check(taken.array)
            described = taken.described(array)
            made = plan_array(taken.array, engine, described, options, target.store)
            source, job = taken.array, Job(ArrayChunks(taken.array), made, target, run)
        else:
            refuse_for_region(array, run.mode, run.publish)
            target = target_via(resolve_target(*where_to), via).exclusively(when=exclusive)
            where = Where(region, axis, casting)
            source, job = region_job(x, target, where, engine, options, run)
        jobs.append(job)
        sources.append(source)
    if not compute:
        rest = as_delayed(jobs, engine)
        return list(_stored(jobs, sources, rest)) if return_stored else rest
    with reporting(progress, sum(job.plan.raw_nbytes for job in jobs)) as on_report:
        results = execute(jobs, engine, on_report)
    return list(_stored(jobs, sources, None)) if return_stored else results


def _stored(
    jobs: Sequence[Job], sources: Sequence[dask.array.Array], rest: Any
) -> Iterator[dask.array.Array]:
    for job, source in zip(jobs, sources, strict=True):
        yield stored_array(job, source, rest)


@dataclass(frozen=True, slots=True)
class _Many:
    """Arrays that are written together, and for each its store, its name and its region."""

    arrays: Sequence[Any]
    stores: Sequence[Any]
    names: Sequence[str | None]
    regions: Sequence[Any]

    @classmethod
    def of(cls, arrays: Any, stores: Any, names: Any, regions: Any) -> _Many:
        """Check that there are as many of each."""
        if not isinstance(arrays, list | tuple):
            raise SpecError(
                "not a sequence of arrays",
                field="arrays",
                value=type(arrays).__name__,
                remedy="give a list of them",
            )
        n = len(arrays)
        names = names or [None] * n
        if regions is None or isinstance(regions, tuple | slice | str | type(...)):
            regions = [regions] * n
        for field, found in (("stores", stores), ("names", names), ("regions", regions)):
            if isinstance(found, str | Path) or not isinstance(found, HasLength) or len(found) != n:
                raise SpecError(
                    f"as many {field} as arrays are needed",
                    field=field,
                    value=list(map(str, found)) if isinstance(found, list | tuple) else str(found),
                    remedy=f"give {n}",
                )
        return cls(arrays, stores, names, regions)

    def each(self) -> Iterator[tuple[Any, Any, str | None, Any]]:
        """Array, store, name and region of each."""
        return zip(self.arrays, self.stores, self.names, self.regions, strict=True)
