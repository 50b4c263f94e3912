"""Functions that change existing arrays: write a region, append, erase."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from dask.delayed import Delayed

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.engines import active_engine
from shardwrite.engines.local import Engine
from shardwrite.entry.public import taking
from shardwrite.errors import SpecError
from shardwrite.journal.begin import tidied_run
from shardwrite.journal.documents import discard_claims
from shardwrite.journal.neighbours import give_up, tidied_neighbours, unfinished
from shardwrite.journal.rundir import RunDirectory, holding, located
from shardwrite.journal.takeover import tidy_home
from shardwrite.operations.keywords import (
    EraseArguments,
    PlanRegionArguments,
    RegionArguments,
    committing,
)
from shardwrite.operations.plan import with_traffic
from shardwrite.options import RunArguments, names, options_from
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.target import (
    Target,
    abandon_in_place,
    resolve_place,
    resolve_target,
    target_at,
    target_via,
)
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.partition import check_region
from shardwrite.plan.plan import Plan
from shardwrite.plan.regions import as_region
from shardwrite.read.array import is_being_made, open_at, open_sharded
from shardwrite.read.hierarchy import arrays_below
from shardwrite.runs.array_plan import ArrayChunks
from shardwrite.runs.delayed import as_delayed
from shardwrite.runs.job import Job, RunOptions, target_of_update
from shardwrite.runs.region_plan import Where, region_plan
from shardwrite.runs.result import WriteResult
from shardwrite.runs.staged import execute_staged, staged_where_read
from shardwrite.runs.stored_array import stored_array
from shardwrite.seams import all_of
from shardwrite.stores.directories import RUN_SUFFIX
from shardwrite.stores.looking import as_store_error, is_there, listed

if TYPE_CHECKING:
    from shardwrite.operations.keywords import Later, Now, Stored
    from shardwrite.place.objects import InStore


@taking(PlanRegionArguments)
def plan_region(call: PlanRegionArguments) -> Plan:
    """Plan to write an array into a region of an existing array, without writing anything.

    Returns
    -------
    Plan
        The plan. Its `shared_shards` lists the shards that the region covers only in part. Another
        update of one of these shards must wait for this one.

    Raises
    ------
    SpecError
        If there is no sharded array, or an argument does not fit. Also if a shard is an HDF5 file,
        and would not stay one.
    PlanError
        If the plan does not fit into memory.
    JournalError
        If the files beside the array that describe unfinished appends cannot be used.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> shardwrite.create(path, (8, 8), "int32", shards=4, chunks=2)
    >>> plan = shardwrite.plan_region(da.ones((3, 8), dtype="int32"), path, slice(2, 5))
    >>> [ref.key for ref in plan.shared_shards]
    ['c/0/0', 'c/0/1', 'c/1/0', 'c/1/1']
    """
    where = Where(call.region, call.axis, call.casting)
    target = target_via(resolve_target(call.store, call.name, call.run_dir), call.via)
    options, drops = options_from(call, PlanOptions), call.drop_hdf5
    run, engine = RunOptions(mode="r+", drop_hdf5=drops), active_engine()
    _, job = region_job(call.x, target, where, engine, options, run)
    (job,) = staged_where_read([job], engine, is_asked=call.staged)
    return with_traffic(job.plan, job.target)


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _RegionNow(Now, RegionArguments): ...

    @dataclass(frozen=True)
    class _RegionLater(Later, RegionArguments): ...

    @dataclass(frozen=True)
    class _RegionStored(Stored, RegionArguments): ...


if TYPE_CHECKING:

    @overload
    @taking(_RegionNow)
    def write_region(call: _RegionNow) -> WriteResult: ...

    @overload
    @taking(_RegionLater)
    def write_region(call: _RegionLater) -> Delayed: ...

    @overload
    @taking(_RegionStored)
    def write_region(call: _RegionStored) -> dask.array.Array: ...

    @overload
    @taking(RegionArguments)
    def write_region(call: RegionArguments) -> WriteResult | Delayed | dask.array.Array: ...


@taking(RegionArguments)
@committing
def write_region(call: RegionArguments) -> WriteResult | Delayed | dask.array.Array:
    """Write an array or a scalar into a region of an existing array, or append to it.

    The array may have been written by another program.

    Returns
    -------
    WriteResult, dask.delayed.Delayed or dask.array.Array
        Result for the shards that the region touches.

    Raises
    ------
    SpecError, PlanError
        Before any shard is changed, if there is no sharded array or an argument does not fit.
    JournalError
        If another run writes some of the same shards, or has begun to and has not ended.
    IncompleteError
        If the process was asked to stop and shards are missing.
    SourceError, CodecError, CorruptShardError, StoreError
        If a task fails. Its shard is not committed.

    Notes
    -----
    Only the shards that the region touches are opened. In a shard that the region covers in part,
    only the inner chunks that it covers in part are decoded. All others are copied as they are.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> _ = da.zeros((8, 8), chunks=4, dtype="int32").to_sharded_zarr(path, shards=4, chunks=2)
    >>> _ = da.ones((3, 3), chunks=3, dtype="int32").to_sharded_zarr(
    ...     path, region=(slice(1, 4), slice(5, 8))
    ... )
    >>> _ = da.ones((2, 8), chunks=4, dtype="int32").to_sharded_zarr(path, region="append", axis=0)
    >>> y = shardwrite.from_sharded_zarr(path)
    >>> y.shape, int(y.sum().compute())
    ((10, 8), 25)
    >>> _ = shardwrite.write_region(7, path, (-1, slice(2)))  # two elements of the last row
    >>> y[-1].compute().tolist()
    [7, 7, 1, 1, 1, 1, 1, 1]
    """
    return write_into(call)


def write_into(call: RegionArguments) -> WriteResult | Delayed | dask.array.Array:
    """Write an array into a region; see :func:`write_region`. Sessions are not committed."""
    target = target_via(resolve_target(call.store, call.name, call.run_dir), call.via)
    target, engine = target.exclusively(when=call.exclusive), active_engine()
    options, run = options_from(call, PlanOptions), options_from(call, RunOptions, mode="r+")
    where = Where(call.region, call.axis, call.casting)
    with holding(target):  # as the plan depends on what earlier runs have left
        source, job = region_job(call.x, target, where, engine, options, run)
        (job,) = staged_where_read([job], engine, is_asked=call.staged)
        rest = None if call.compute else as_delayed([job], engine)
        done = execute_staged([job], engine, call.progress)[0] if rest is None else rest
    return stored_array(job, source, rest) if call.return_stored else done


def region_job(
    x: Any, target: Target, where: Where, engine: Engine, options: PlanOptions, run: RunOptions
) -> tuple[dask.array.Array, Job]:
    """The job that writes an array into a region, and the array in the dtype that is stored.

    - `run`: how the run goes. Its mode is ``"r+"`` whatever it says.
    """
    source, planned = region_plan(x, target, where, engine, options, drop_hdf5=run.drop_hdf5)
    into = replace(run, mode="r+", publish="last")
    chunks = ArrayChunks(source, planned.region)
    return source, Job(chunks, planned, target_of_update(target, planned), into)


@taking(RunArguments)
def abandon(call: RunArguments) -> list[tuple[tuple[int, int], ...]]:
    """Give up the interrupted updates and repairs of an array, its replacement or conversion.

    Of a group, this gives up the updates and replacements of all arrays in it.

    - Each shard of an update or a repair stays as it is, old or new.
    - Updates of several arrays by one call of :func:`write_dataset` are given up together. If it
      was an append, all arrays get the length back that they had before.
    - If a call with ``mode="w"`` is given up, the old array is put back, as it was. If it replaces
      several arrays, and one of them is new already, the others become new, too.
    - A run that makes any other array is not given up, and an error says so: repeat its call to
      finish it.
    - If a conversion in place of an array or a group is given up, the old data stay. If they were
      already replaced, the conversion is finished.
    - To give up a conversion or an upload with ``consume=True``, name its source. This is possible
      only as long as nothing was removed.
    - A scale of a volume that is not finished is given up as a whole. Nothing of it stays.
    - What is left of a run whose arrays you have removed is removed, too.

    Returns
    -------
    list of tuple of (int, int)
        Region of each run that was given up: ``(start, stop)`` in elements along each axis. For a
        repair or a replacement it is the whole array.

    Raises
    ------
    SpecError
        If there is no sharded array.
    JournalError
        If a process works on one of these runs, a run that makes the array has not ended, or
        objects of the array were removed.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> _ = da.zeros((8, 8), chunks=4).to_sharded_zarr(path, shards=4, chunks=2)
    >>> shardwrite.abandon(path)  # nothing was interrupted
    []
    """
    target = resolve_target(call.store, call.name, call.run_dir)
    is_given_up = abandon_in_place(target) or abandon_of_wings(target, call.run_dir)
    kind = target.place.kind()
    if kind != "array":
        with as_store_error(str(target.beside), "cannot remove what is left in"):
            tidy_home(target, is_group=True)
    if not is_given_up and holds_arrays(target.place):
        return _abandon_in(resolve_place(call.store, call.name), call.run_dir)
    regions = []
    if kind == "array" or not is_given_up:  # something else may be left beside the array
        regions = _abandon_at(located(target))
    discard_claims([target.place])
    return regions


def _abandon_at(target: Target) -> list[tuple[tuple[int, int], ...]]:
    """Give up the updates of an array, and its replacement."""
    with holding(target):
        whole = tidied_run(target)
        if whole is None or not whole.replaces_array:
            open_at(target.place)
        if whole is not None and whole.makes_array and not whole.can_put_back:
            raise unfinished(whole)
        runs = [*tidied_neighbours(target), *([] if whole is None else [whole])]
        regions = [region_of(run) for run in runs]
        for run in runs:
            give_up(run)
    return regions


def _abandon_in(group: Directory | InStore, run_dir: Any) -> list[tuple[tuple[int, int], ...]]:
    """Give up the updates of all arrays in a group, and their replacements.

    - Raises JournalError in the end if a run makes an array there, which is not given up.
    """
    regions, stays, targets = [], [], targets_in(group, run_dir)
    for target in targets:
        with holding(target):
            whole = tidied_run(target)
            for run in [*tidied_neighbours(target), *([] if whole is None else [whole])]:
                if run.makes_array and not run.can_put_back:
                    stays.append(unfinished(run))
                else:
                    regions += [region_of(each) for each in run.outputs()]
                    give_up(run)
    discard_claims([group, *(target.place for target in targets)])
    if stays:
        raise stays[0]
    return regions


def holds_arrays(place: Place) -> bool:
    """Whether a place is a group, or will be one as soon as a run that makes an array ends."""
    kind = place.kind()
    if kind in ("array", "group") or is_being_made(place):
        return kind == "group"
    if not isinstance(place, Directory):
        return kind == "other" and bool(arrays_below(place))
    states = (path for path in listed(place.path) if path.name.endswith(RUN_SUFFIX))
    is_begun = is_there(place.beside) or any(states) or any(place.begun_below())
    return is_begun and bool(arrays_below(place))


def targets_in(group: Directory | InStore, run_dir: Any) -> list[Target]:
    """The arrays that lie in a group, and those that a run makes there."""
    return [located(target_at(group.member(name), run_dir)) for name in arrays_below(group)]


def abandon_of_wings(target: Target, run_dir: Any) -> bool:
    """Give up unfinished work at a place that a wing knows, and tell whether there was any."""
    return any(give_up_all(target, run_dir) for give_up_all in all_of("give up"))


def region_of(run: RunDirectory) -> tuple[tuple[int, int], ...]:
    """Region that a run writes: ``(start, stop)`` along each axis, for a repair the whole array."""
    return run.record.identity.region or tuple((0, n) for n in run.document["shape"])


@taking(EraseArguments)
def erase(call: EraseArguments) -> WriteResult:
    """Set all elements of a region to the fill value, and remove shards that become empty.

    Returns
    -------
    WriteResult
        Result for the shards that the region touches.

    Raises
    ------
    SpecError
        If there is no sharded array, or the region is not a box inside it.
    TypeError
        If a keyword is unknown.

    Notes
    -----
    Other errors are those of :func:`write_region`.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> _ = (da.arange(100, chunks=10) + 1).to_sharded_zarr(path, shards=40, chunks=8)
    >>> shardwrite.erase(path, slice(30, 90)).n_empty_shards
    1
    >>> y = shardwrite.from_sharded_zarr(path).compute()
    >>> int(y[29]), int(y[30:90].sum()), int(y[90])
    (30, 0, 91)
    """
    nothing, region = nothing_in(call.store, call.region, call.name)
    of_erase = [name for name in names(EraseArguments) if name not in ("store", "region")]
    keywords = {name: getattr(call, name) for name in of_erase}
    result: WriteResult = write_region(nothing, call.store, region, casting="no", **keywords)
    return result


def nothing_in(store: Any, region: Any, name: str | None) -> tuple[dask.array.Array, Any]:
    """Fill values for a region that is to be erased, and the region for :func:`write_region`."""
    metadata = open_sharded(store, name).metadata
    if isinstance(region, str):
        raise SpecError("no region", field="region", value=region, remedy="give slices")
    box = as_region(region, metadata.grid.shape).box
    check_region(box, metadata.grid.shards)
    fill = np.empty((), dtype=metadata.dtype)
    fill[...] = metadata.fill_value
    # Its chunks belong to the identity of the run, by which the same call finds it again.
    sizes = tuple(max(1, min(s, n)) for s, n in zip(metadata.grid.shards, box.shape, strict=True))
    nothing = dask.array.broadcast_to(dask.array.from_array(fill), box.shape, chunks=sizes)
    return nothing, box.slices[:-1]
