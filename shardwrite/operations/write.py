"""Functions that write whole arrays on the active engine.

The keywords that describe the array have the same meaning as in `zarr.create_array`.

A call for an array that exists may repeat what describes that array. It is refused where it says
something else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Sized as HasLength
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from dask.delayed import Delayed

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.checks import choice, flag, is_whole, one_value
from shardwrite.codecs.documents import Document
from shardwrite.engines import active_engine
from shardwrite.entry.public import taking
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.node import LIST, has_manifest
from shardwrite.format.strategies import FixedOrder
from shardwrite.grid import Shape, Sized, as_sizes
from shardwrite.journal.begin import tidied_run
from shardwrite.journal.rundir import holding
from shardwrite.operations.keywords import (
    RegionArguments,
    StoreArguments,
    WriteArguments,
    committing,
)
from shardwrite.options import (
    ArrayKeywords,
    BeginKeywords,
    ExistingArguments,
    ModeKeywords,
    NameKeywords,
    StateKeywords,
    argument,
    arguments,
    options_from,
    same_as,
)
from shardwrite.place.base import at_url, named, opened_once
from shardwrite.place.seen import Seen
from shardwrite.place.target import (
    Target,
    has_state_directory,
    is_array,
    resolve_new,
    resolve_target,
    target_via,
)
from shardwrite.plan.options import PlanOptions, resolve_shapes
from shardwrite.runs.array_plan import ArrayChunks, advised, plan_array, plan_without_data
from shardwrite.runs.execute import Run, execute
from shardwrite.runs.job import Job, NoChunks, RunOptions, for_new_array
from shardwrite.runs.result import WriteResult, has_ended
from shardwrite.runs.source_array import as_source_array

if TYPE_CHECKING:
    from shardwrite.operations.keywords import Later, Now, Stored


# ---- Keywords of dask and zarr, turned into those of this package


_INSTEAD = {
    "chunk_key_separator": "give chunk_key_encoding",
    "compressor": "give compressors",
    "config": "give write_empty_chunks to to_sharded_zarr",
    "data": "give the array itself",
    "dimension_separator": 'give chunk_key_encoding={"name": "default", "separator": "/"}',
    "mode": "give mode to to_sharded_zarr",
    "path": "give name",
    "read_only": "leave it out: the array is written",
    "storage_options": "give storage_options to to_sharded_zarr",
    "store": "give it as the store of to_sharded_zarr",
    "write_data": "give compute=False, or call shardwrite.create",
    "write_empty_chunks": "give write_empty_chunks to to_sharded_zarr",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZarrWords:
    """Keywords of `zarr.create_array` that were given in one mapping, `zarr_array_kwargs`."""

    # Those that are fields of `ArrayOptions`
    array: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    name: str | None = None  # path of the array in its store
    overwrite: bool | None = None  # whether an array may be replaced
    # ``shape`` and ``dtype``, which must be those of the source
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, words: Mapping[str, Any] | None) -> ZarrWords:
        """Sort the keywords in a mapping."""
        if words is None:
            return cls()
        if not isinstance(words, Mapping):
            raise _refused("not a mapping", type(words).__name__, "give keywords and their values")
        rest = dict(words)
        array = {f.name: rest.pop(f.name) for f in fields(ArrayOptions) if f.name in rest}
        facts = {key: rest.pop(key) for key in ("shape", "dtype") if rest.get(key) is not None}
        name, overwrite = rest.pop("name", None), rest.pop("overwrite", None)
        one_value("name", name)
        one_value("overwrite", overwrite)
        for key in rest:
            if rest[key] is not None or key not in (*_INSTEAD, "shape", "dtype"):
                keywords = [f.name for f in fields(ArrayOptions)]
                remedy = _INSTEAD.get(key, f"these are known: {keywords}")
                raise _refused("no keyword here", key, remedy)
        return cls(array=array, name=name, overwrite=overwrite, facts=facts)

    def named(self, name: str | None) -> str | None:
        """Path of the array, which may be given here and as a keyword, too."""
        return named(name, self.name)

    def overwriting(self, overwrite: bool | None) -> bool | None:
        """Whether to overwrite, which a keyword says, or else these words."""
        return self.overwrite if overwrite is None else overwrite

    def over(self, options: ArrayOptions) -> ArrayOptions:
        """The options with these keywords."""
        words = ArrayOptions(**self.array)
        for key in self.array:
            usual = next(f.default for f in fields(options) if f.name == key)
            option, value = getattr(options, key), getattr(words, key)
            if option is not usual and option != usual and option != value:
                raise _refused(f"says something else than {key}={option!r}", key, "give it once")
        return replace(options, **self.array)

    def check(self, x: dask.array.Array) -> None:
        """Refuse a shape or a dtype that is not the source's."""
        if as_sizes(self.facts.get("shape", x.shape)) not in (x.shape, list(x.shape)):
            raise _refused("is not the source's", "shape", f"leave it out: it is {x.shape}")
        try:
            is_other = np.dtype(self.facts.get("dtype", x.dtype)) != x.dtype
        except TypeError:
            is_other = True
        if is_other:
            remedy = "leave it out, and convert the source with astype"
            raise _refused("is not the source's", "dtype", remedy)


def _refused(why: str, value: str, remedy: str) -> SpecError:
    return SpecError(why, field="zarr_array_kwargs", value=value, remedy=remedy)


# ---- Modes: which calls make an array, and which write into one that exists


_MODES = ("w-", "w", "a", "r+")

_OF_CODECS = ("compressors", "filters", "serializer")

_OF_SHARDING = ("index_location", "index_codecs", "shard_format")

_OF_DOCUMENT = ("fill_value", "chunk_key_encoding", "dimension_names", "attributes")


def mode_of(mode: str | None, overwrite: Any) -> str:
    """Mode of a run that makes an array: ``overwrite=True`` is ``"w"``, and False is ``"w-"``."""
    if overwrite is None:
        return "w-" if mode is None else mode
    flag("overwrite", overwrite)
    # "a" means that an array may exist or not, so it goes with both.
    agreeing = (None, "a", "w") if overwrite else (None, "a", "w-", "r+")
    if mode not in agreeing:
        raise SpecError(
            f"says something else than mode={mode!r}",
            field="overwrite",
            value=overwrite,
            remedy='give one of the two: overwrite=True is mode="w", and False is mode="w-"',
        )
    if overwrite:
        return "w"
    return "w-" if mode is None else mode


def chosen_mode(mode: str | None, overwrite: Any, *, is_given: bool) -> str:
    """Mode of a call that makes an array, or fills one.

    - `is_given`: whether the user has given the array itself, and no store. Without a mode, it is
      filled.
    """
    if mode is None and not overwrite and is_given:
        return "r+"
    chosen = mode_of(mode, overwrite)
    _check_mode(chosen)
    return chosen


def _check_mode(mode: Any) -> None:
    """Refuse what is no mode of writing."""
    if mode == "r":
        raise SpecError(
            "only reads", field="mode", value=mode, remedy='give "r+" to write into an array'
        )
    choice("mode", mode, _MODES)


def fills_existing(x: Any, target: Target, mode: str, array: ArrayOptions) -> bool:
    """Whether a call without a region writes into an array that exists, rather than makes one.

    - `mode`: ``"r+"`` fills an array, which must exist. ``"a"`` fills an array that exists, and
      makes one if there is none, or if a run that makes it has not ended.
    """
    from shardwrite.read.array import open_at  # of an array that exists

    if mode == "a":
        has_state_directory(target)  # refuses a link or a file in its place
        with holding(target):
            run = tidied_run(target)
            if (run is not None and run.makes_array) or target.place.kind() != "array":
                return False
    _check_agrees(x, open_at(target.place).metadata, array)
    return True


def refuse_for_region(array: ArrayOptions, mode: str, publish: str) -> None:
    """Refuse keywords of new arrays in a call that writes into a region."""
    of_array = [
        (f.name, getattr(array, f.name), f.default)
        for f in dataclasses.fields(array)
        if f.name not in ("order", "zarr_format")  # they say nothing that could differ
    ]
    usual_mode = mode if mode in ("a", "r+") else "w-"
    of_run = [("mode", mode, usual_mode), ("publish", publish, "last")]
    for keyword, value, usual in (*of_array[:2], *of_run, *of_array[2:]):
        if value is not usual and value != usual:
            remedy = "leave it out: the array that exists decides"
            raise SpecError(
                "is for new arrays, and region= is given", field=keyword, value=value, remedy=remedy
            )


def _check_agrees(x: Any, existing: ArrayMetadata, array: ArrayOptions) -> None:
    """Refuse a source or keywords that describe another array than the one that exists."""
    source, shape = as_source_array(x).array, existing.grid.shape
    if source.shape != shape:
        remedy = f"give an array of shape {shape}, or the region= that it goes to"
        raise SpecError(
            "is not that of the array that exists",
            field="x.shape",
            value=source.shape,
            remedy=remedy,
        )
    asked = {
        field.name: getattr(array, field.name)
        for field in dataclasses.fields(array)
        if getattr(array, field.name) is not field.default
        and getattr(array, field.name) != field.default
    }
    shards, chunks, _ = resolve_shapes(
        shape,
        existing.itemsize or 1,
        array.shards,
        array.chunks,
        source.chunks,
        existing.document.get("dimension_names"),
    )
    is_sharded = array.shards is not None if "shards" in asked else existing.is_sharded
    wanted = make_metadata(shape, existing.dtype, shards if is_sharded else None, chunks, array)
    pairs: dict[str, tuple[Any, Any]] = {
        "shards": (
            existing.grid.shards if existing.is_sharded else None,
            shards if is_sharded else None,
        ),
        "chunks": (existing.grid.chunks, chunks),
        "manifest": (LIST if has_manifest(existing.document) else None, array.manifest),
        **dict.fromkeys(_OF_CODECS, (existing.inner_codecs, wanted.inner_codecs)),
        **{name: (_around(existing), _around(wanted)) for name in _OF_SHARDING},
        **{name: (existing.document.get(name), wanted.document.get(name)) for name in _OF_DOCUMENT},
    }
    for name, (there, now) in pairs.items():
        if name in asked and there != now:
            raise SpecError(
                f"is not that of the array that exists, which has {there}",
                field=name,
                value=asked[name],
                remedy='leave it out, or give mode="w" to replace the array',
            )


def _around(metadata: ArrayMetadata) -> Document | None:
    """What describes the index of the shards; None for an array without shards."""
    if not metadata.is_sharded:
        return None
    own = {k: v for k, v in metadata.sharding.items() if k not in ("chunk_shape", "codecs")}
    return {"index_location": "end", **own}


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _WriteNow(Now, WriteArguments): ...

    @dataclass(frozen=True)
    class _WriteLater(Later, WriteArguments): ...

    @dataclass(frozen=True)
    class _WriteStored(Stored, WriteArguments): ...


if TYPE_CHECKING:

    @overload
    @taking(_WriteNow)
    def to_sharded_zarr(call: _WriteNow) -> WriteResult: ...

    @overload
    @taking(_WriteLater)
    def to_sharded_zarr(call: _WriteLater) -> Delayed: ...

    @overload
    @taking(_WriteStored)
    def to_sharded_zarr(call: _WriteStored) -> dask.array.Array: ...

    @overload
    @taking(WriteArguments)
    def to_sharded_zarr(call: WriteArguments) -> WriteResult | Delayed | dask.array.Array: ...


# ---- Functions


@taking(WriteArguments)
@committing
def to_sharded_zarr(call: WriteArguments) -> WriteResult | Delayed | dask.array.Array:
    """Write an array as one sharded Zarr v3 array.

    `x` may have any chunks. Each shard is committed by exactly one task, without reading it first,
    and becomes visible only when it is whole. With `region`, see :func:`write_region` instead.

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
    words = ZarrWords.of(call.zarr_array_kwargs)
    array = words.over(options_from(call, ArrayOptions))
    store = at_url(call.store, call.storage_options)
    name = words.named(named(call.name, call.component))
    overwrite = words.overwriting(call.overwrite)
    mode = chosen_mode(call.mode, overwrite, is_given=is_array(store) and not name)
    region = call.region
    if region is not None:
        refuse_for_region(array, mode, call.publish)
    elif mode in ("a", "r+"):
        target = resolve_target(store, name, call.run_dir)
        region = ... if fills_existing(call.x, target, mode, array) else None
    if region is not None:
        from shardwrite.operations.region import write_into  # updates only

        return write_into(
            options_from(call, RegionArguments, store=store, name=name, region=region)
        )
    if call.staged:
        raise SpecError(
            "is for updates, and this call makes a new array",
            field="staged",
            value=True,
            remedy="give a region, or leave it out",
        )
    run = options_from(call, RunOptions, mode="w-" if mode == "a" else mode)
    options, engine = options_from(call, PlanOptions), active_engine()
    source = as_source_array(call.x)
    into = target_via(resolve_new(store, name, call.run_dir, array.format), call.via)
    words.check(source.array)
    described = source.described(array)
    plan = plan_array(source.array, engine, described, options, into.store)
    plan = advised(plan, described)
    job = Job(ArrayChunks(source.array), plan, into, for_new_array(run))
    if not call.compute:
        from shardwrite.runs.delayed import as_delayed  # compute=False

        rest = as_delayed([job], engine)
        return next(_stored_arrays([job], [source.array], rest)) if call.return_stored else rest
    (result,) = execute([job], engine, call.progress)
    return next(_stored_arrays([job], [source.array], None)) if call.return_stored else result


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _StoreNow(Now, StoreArguments): ...

    @dataclass(frozen=True)
    class _StoreLater(Later, StoreArguments): ...

    @dataclass(frozen=True)
    class _StoreStored(Stored, StoreArguments): ...


if TYPE_CHECKING:

    @overload
    @taking(_StoreNow)
    def store(call: _StoreNow) -> list[WriteResult]: ...

    @overload
    @taking(_StoreLater)
    def store(call: _StoreLater) -> Delayed: ...

    @overload
    @taking(_StoreStored)
    def store(call: _StoreStored) -> list[dask.array.Array]: ...

    @overload
    @taking(StoreArguments)
    def store(call: StoreArguments) -> list[WriteResult] | Delayed | list[dask.array.Array]: ...


@taking(StoreArguments)
@committing
def store(call: StoreArguments) -> list[WriteResult] | Delayed | list[dask.array.Array]:
    """Write several arrays together, so that work on a common source is done once.

    No array is published before all of them are whole. With ``compute=True``, arrays whose plan is
    staged or has several waves are written one after the other, and share no work.

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
    arrays, stores = call.arrays, call.stores
    if isinstance(arrays, dask.array.Array):
        arrays, stores = [arrays], [stores]
    engine = active_engine()
    each = list(_per_array(arrays, stores, call.names, call.regions))
    makes_some = any(region is None for *_, region in each)
    words = ZarrWords.of(call.zarr_array_kwargs)
    mode = mode_of(call.mode, words.overwriting(call.overwrite))
    run = for_new_array(options_from(call, RunOptions, mode=mode))
    array, options = words.over(options_from(call, ArrayOptions)), options_from(call, PlanOptions)
    jobs, sources, seen = [], [], Seen()
    opened = cache(partial(opened_once, storage_options=call.storage_options))
    for x, store_, name, region in each:
        at = opened(store_) if isinstance(store_, str) else at_url(store_, call.storage_options)
        where_to = (at, words.named(name), call.run_dir)
        if region is None:
            target = target_via(resolve_new(*where_to, array.format, seen=seen), call.via)
            given_source = as_source_array(x)
            source, described = given_source.array, given_source.described(array)
            words.check(source)
            plan = plan_array(source, engine, described, options, target.store)
            plan = advised(plan, described)
            job = Job(ArrayChunks(source), plan, target, run)
        else:
            from shardwrite.operations.region import region_job  # updates only
            from shardwrite.runs.region_plan import Where  # updates only

            # Sizes are for the new arrays of the call.
            refuse_for_region(ArrayOptions() if makes_some else array, run.mode, run.publish)
            target = target_via(resolve_target(*where_to, seen=seen), call.via)
            target = target.exclusively(when=call.exclusive)
            where = Where(region, call.axis, call.casting)
            source, job = region_job(x, target, where, engine, options, run)
        jobs.append(job)
        sources.append(source)
    if call.staged or any(job.is_update for job in jobs):
        from shardwrite.runs.staged import execute_staged as write  # updates only
        from shardwrite.runs.staged import staged_where_read  # updates only

        jobs = list(staged_where_read(jobs, engine, is_asked=call.staged))
    else:
        write = execute
    if not call.compute:
        from shardwrite.runs.delayed import as_delayed  # compute=False

        rest = as_delayed(jobs, engine)
        return list(_stored_arrays(jobs, sources, rest)) if call.return_stored else rest
    results = write(jobs, engine, call.progress)
    return list(_stored_arrays(jobs, sources, None)) if call.return_stored else results


def _stored_arrays(
    jobs: Sequence[Job], sources: Sequence[dask.array.Array], rest: Any
) -> Iterator[dask.array.Array]:
    """Arrays that read what jobs have stored from their sources, after the rest of the run."""
    from shardwrite.runs.stored_array import stored_array  # return_stored

    for job, source in zip(jobs, sources, strict=True):
        yield stored_array(job, source, rest)


def _per_array(
    arrays: Any, stores: Any, names: Any, regions: Any
) -> Iterator[tuple[Any, Any, str | None, Any]]:
    """Array, store, name and region of each, after a check that there are as many of each."""
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
    for field, items in (("stores", stores), ("names", names), ("regions", regions)):
        if isinstance(items, str | Path) or not isinstance(items, HasLength) or len(items) != n:
            raise SpecError(
                f"as many {field} as arrays are needed",
                field=field,
                value=list(map(str, items)) if isinstance(items, list | tuple) else str(items),
                remedy=f"give {n}",
            )
    return zip(arrays, stores, names, regions, strict=True)


# ---- Creation of arrays without data, which regions or a stream fill later


@arguments
class CreateArguments(ModeKeywords, BeginKeywords, StateKeywords, NameKeywords, ArrayKeywords):
    """Arguments of `create`."""

    store: Any = same_as(ExistingArguments, "store")
    shape: tuple[int, ...] = argument(
        "Shape of the array. Give 0 for an axis along which a stream will make it grow.",
        kind="tuple of int",
    )
    dtype: Any = argument("Data type of the array.", kind="dtype_like")
    shards: Sized | Mapping[str, Any] = same_as(ArrayKeywords, "shards", kw_only=True)
    chunks: Sized = same_as(ArrayKeywords, "chunks", kw_only=True)


@taking(CreateArguments)
def create(call: CreateArguments) -> None:
    """Create a sharded array that holds no data yet. Every element reads as the fill value.

    Raises
    ------
    SpecError
        If an argument does not fit, or something that may not be replaced exists there.
    TypeError
        If a keyword is unknown.
    JournalError
        If another run on the array has not ended.
    StoreError
        If the storage refuses.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> shardwrite.create(path, (1000, 1000), "float32", shards=500, chunks=100, fill_value=-1)
    >>> _ = da.ones((10, 10), dtype="float32").to_sharded_zarr(
    ...     path, region=(slice(0, 10), slice(0, 10))
    ... )
    >>> shardwrite.from_sharded_zarr(path)[8:12, 0].compute().tolist()
    [1.0, 1.0, -1.0, -1.0]
    """
    array, engine = options_from(call, ArrayOptions), active_engine()
    shape, dtype = shape_of(call.shape), dtype_of(call.dtype)
    plan = plan_without_data(shape, dtype, array, FixedOrder(), engine)
    options = for_new_array(options_from(call, RunOptions))
    target = resolve_new(call.store, call.name, call.run_dir, array.format)
    job = Job(NoChunks(), plan, target, options)
    with holding(target):
        if not has_ended(job):
            with Run.open([job], engine, mode="again") as run:
                run.session.ledger.is_done[:] = True
                run.session.note_resumed()
                run.finish()


def dtype_of(dtype: Any) -> np.dtype[Any]:
    """The argument `dtype` as a numpy dtype."""
    try:
        numpy_dtype: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"no data type ({error})",
            field="dtype",
            value=str(dtype),
            remedy='give for instance "float32"',
        ) from None
    return numpy_dtype


def shape_of(shape: Any) -> Shape:
    """The argument `shape` as a tuple of Python integers."""
    if isinstance(shape, np.ndarray) and shape.ndim:
        shape = list(shape)
    is_sequence = isinstance(shape, Sequence) and not isinstance(shape, str | bytes | bytearray)
    sizes = tuple(shape) if is_sequence else None
    if sizes is None or not all(is_whole(n, 0) for n in sizes):
        raise SpecError(
            "not a shape",
            field="shape",
            value=shape,
            remedy="give an integer, 0 or more, for each axis",
        )
    return tuple(int(n) for n in sizes)
