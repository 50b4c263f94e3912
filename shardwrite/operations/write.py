"""Functions that write whole arrays on the active engine.

The keywords that describe the array have the same meaning as in `zarr.create_array`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Sized as HasLength
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from dask.delayed import Delayed

import shardwrite._dask as dask
from shardwrite.engines import active_engine
from shardwrite.entry.public import taking
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions
from shardwrite.operations.committing import committing
from shardwrite.operations.keywords import RegionArguments, StoreArguments, WriteArguments
from shardwrite.operations.modes import (
    chosen_mode,
    fills_existing,
    mode_of,
    refuse_for_region,
)
from shardwrite.operations.words import ZarrWords
from shardwrite.options import taken_from
from shardwrite.place.scratch import target_via
from shardwrite.place.target import is_array, resolve_new, resolve_target
from shardwrite.place.url import at_url, named
from shardwrite.plan import PlanOptions
from shardwrite.runs.array_chunks import ArrayChunks
from shardwrite.runs.array_plan import plan_array
from shardwrite.runs.execute import execute
from shardwrite.runs.given import take
from shardwrite.runs.job import Job
from shardwrite.runs.options import RunOptions, for_new_array
from shardwrite.runs.progress import reporting
from shardwrite.runs.result import WriteResult

if TYPE_CHECKING:
    from shardwrite.operations.keywords import Later, Now, Stored


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
    def to_sharded_zarr(given: _WriteNow) -> WriteResult: ...

    @overload
    @taking(_WriteLater)
    def to_sharded_zarr(given: _WriteLater) -> Delayed: ...

    @overload
    @taking(_WriteStored)
    def to_sharded_zarr(given: _WriteStored) -> dask.array.Array: ...

    @overload
    @taking(WriteArguments)
    def to_sharded_zarr(given: WriteArguments) -> WriteResult | Delayed | dask.array.Array: ...


@taking(WriteArguments)
@committing
def to_sharded_zarr(given: WriteArguments) -> WriteResult | Delayed | dask.array.Array:
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
    words = ZarrWords.of(given.zarr_array_kwargs)
    array = words.over(taken_from(given, ArrayOptions))
    store = at_url(given.store, given.storage_options)
    name = words.named(named(given.name, given.component))
    overwrite = words.overwriting(given.overwrite)
    mode = chosen_mode(given.mode, overwrite, is_given=is_array(store) and not name)
    region = given.region
    if region is not None:
        refuse_for_region(array, mode, given.publish)
    elif mode in ("a", "r+"):
        target = resolve_target(store, name, given.run_dir)
        region = ... if fills_existing(given.x, target, mode, array) else None
    if region is not None:
        from shardwrite.operations.region import write_into  # updates only

        return write_into(taken_from(given, RegionArguments, store=store, name=name, region=region))
    run = taken_from(given, RunOptions, mode="w-" if mode == "a" else mode)
    options, engine, source = taken_from(given, PlanOptions), active_engine(), take(given.x)
    into = target_via(resolve_new(store, name, given.run_dir, array.format), given.via)
    words.check(source.array)
    made = plan_array(source.array, engine, source.described(array), options, into.store)
    job = Job(ArrayChunks(source.array), made, into, for_new_array(run))
    if not given.compute:
        from shardwrite.runs.delayed import as_delayed  # compute=False

        rest = as_delayed([job], engine)
        return next(_stored([job], [source.array], rest)) if given.return_stored else rest
    with reporting(given.progress, made.raw_nbytes) as on_report:
        (result,) = execute([job], engine, on_report)
    return next(_stored([job], [source.array], None)) if given.return_stored else result


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
    def store(given: _StoreNow) -> list[WriteResult]: ...

    @overload
    @taking(_StoreLater)
    def store(given: _StoreLater) -> Delayed: ...

    @overload
    @taking(_StoreStored)
    def store(given: _StoreStored) -> list[dask.array.Array]: ...

    @overload
    @taking(StoreArguments)
    def store(given: StoreArguments) -> list[WriteResult] | Delayed | list[dask.array.Array]: ...


@taking(StoreArguments)
@committing
def store(given: StoreArguments) -> list[WriteResult] | Delayed | list[dask.array.Array]:
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
    arrays, stores = given.arrays, given.stores
    if isinstance(arrays, dask.array.Array):
        arrays, stores = [arrays], [stores]
    engine, many = active_engine(), _Many.of(arrays, stores, given.names, given.regions)
    words = ZarrWords.of(given.zarr_array_kwargs)
    mode = mode_of(given.mode, words.overwriting(given.overwrite))
    run = for_new_array(taken_from(given, RunOptions, mode=mode))
    array, options = words.over(taken_from(given, ArrayOptions)), taken_from(given, PlanOptions)
    jobs, sources = [], []
    for x, store_, name, region in many.each():
        where_to = (at_url(store_, given.storage_options), words.named(name), given.run_dir)
        if region is None:
            target, taken = target_via(resolve_new(*where_to, array.format), given.via), take(x)
            words.check(taken.array)
            described = taken.described(array)
            made = plan_array(taken.array, engine, described, options, target.store)
            source, job = taken.array, Job(ArrayChunks(taken.array), made, target, run)
        else:
            from shardwrite.operations.region import region_job  # updates only
            from shardwrite.runs.region_plan import Where  # updates only

            refuse_for_region(array, run.mode, run.publish)
            target = target_via(resolve_target(*where_to), given.via)
            target = target.exclusively(when=given.exclusive)
            where = Where(region, given.axis, given.casting)
            source, job = region_job(x, target, where, engine, options, run)
        jobs.append(job)
        sources.append(source)
    if not given.compute:
        from shardwrite.runs.delayed import as_delayed  # compute=False

        rest = as_delayed(jobs, engine)
        return list(_stored(jobs, sources, rest)) if given.return_stored else rest
    with reporting(given.progress, sum(job.plan.raw_nbytes for job in jobs)) as on_report:
        results = execute(jobs, engine, on_report)
    return list(_stored(jobs, sources, None)) if given.return_stored else results


def _stored(
    jobs: Sequence[Job], sources: Sequence[dask.array.Array], rest: Any
) -> Iterator[dask.array.Array]:
    from shardwrite.runs.stored_array import stored_array  # return_stored

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
