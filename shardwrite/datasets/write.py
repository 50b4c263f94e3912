"""Functions that write objects of xarray, in one run over all of their arrays.

1. xarray says what it would store, and all variables are planned. Nothing is computed or written.
2. The group is looked at, and refused if it may not be written.
3. The run writes all shards. Then it publishes the arrays. After these come the groups that are
   missing; the document of a new root lists all arrays.
4. Groups of a tree that no array lies in are made. The root lists them already, if it is new.
5. With ``mode="w"``, attributes of groups that were there are replaced.

A kill before the end of step 3 leaves a run that the same call continues. A kill in step 4 or 5
leaves groups that are missing, or old attributes. The same call makes or replaces them, also if
nothing else is left to write. Other groups of this call are made when their arrays are there; so
where one stands without one of its arrays, it is not the group of an interrupted call.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, overload

from dask.delayed import Delayed, delayed

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.datasets.keywords import PlanDatasetArguments, WriteDatasetArguments
from shardwrite.datasets.modes import plans_of, with_mode
from shardwrite.datasets.planned import (
    DatasetPlan,
    Destination,
    Planned,
    PlannedVariable,
    shown,
    store_of,
)
from shardwrite.datasets.rounding import N_BITS, other_rounding
from shardwrite.engines import active_engine
from shardwrite.engines.local import Engine
from shardwrite.entry.public import taking
from shardwrite.errors import SpecError, printable
from shardwrite.format.node import (
    DOCUMENT,
    consolidated,
    group_document,
    sorted_as_zarr,
    with_attributes,
)
from shardwrite.journal.documents import (
    change_group,
    dump,
    enter_above,
    has_consolidated,
    replace_document,
)
from shardwrite.journal.receipt import receipt_at
from shardwrite.operations.keywords import committing
from shardwrite.operations.plan import with_traffic
from shardwrite.options import options_from
from shardwrite.place.base import Place, names_above
from shardwrite.place.target import document_if_there, durability_in
from shardwrite.read.hierarchy import documents_below
from shardwrite.results import Facts, Result, counted, duration, human, rounded
from shardwrite.runs.job import Job, RunOptions, digest_of, for_new_array
from shardwrite.runs.reads import readers
from shardwrite.runs.result import WriteResult
from shardwrite.runs.staged import execute_staged, staged_where_read
from shardwrite.stores.looking import check_readable, is_session

if TYPE_CHECKING:
    from shardwrite.datasets.keywords import Later, Now

_SCOPE = "dataset"


# ---- What is shown of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetResult(Result):
    """Result of a run that wrote a dataset.

    Attributes
    ----------
    path : str
        Path of the group.
    variables : dict of str to WriteResult
        Result of each variable.
    seconds : float
        Duration in seconds. With ``compute=False``, the longest of the variables.
    snapshot : str or None
        Id of the snapshot of an Icechunk repository that the call has committed; else None.
    """

    _derived = ("n_shards", "n_resumed_shards", "raw_nbytes", "stored_nbytes")

    path: str
    variables: dict[str, WriteResult]
    seconds: float
    snapshot: str | None = None

    @property
    def n_shards(self) -> int:
        """Number of shards of all variables that have a file."""
        return sum(result.n_shards for result in self.variables.values())

    @property
    def n_resumed_shards(self) -> int:
        """Number of shards that an earlier call had committed."""
        return sum(result.n_resumed_shards for result in self.variables.values())

    @property
    def raw_nbytes(self) -> int:
        """Decoded size of all variables, in bytes."""
        return sum(result.raw_nbytes for result in self.variables.values())

    @property
    def stored_nbytes(self) -> int:
        """Size of all files of all variables, in bytes."""
        return sum(result.stored_nbytes for result in self.variables.values())

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        stored = f"{human(self.raw_nbytes)} in, {human(self.stored_nbytes)} out"
        rows = [
            ("group", self.path),
            ("variables", f"{len(self.variables):,}"),
            ("files", f"{self.n_shards:,}"),
            ("bytes", stored),
        ]
        if self.snapshot is not None:
            rows.append(("snapshot", self.snapshot))
        if self.n_resumed_shards:
            rows.append(("resumed", f"{self.n_resumed_shards:,} shards were committed before"))
        rows += [("time", duration(self.seconds)), *shown(self.variables, _told)]
        headline = [
            (f"{len(self.variables):,}", "variables"),
            (f"{self.n_shards:,}", "files"),
            (human(self.stored_nbytes), "stored"),
            (duration(self.seconds), "time"),
        ]
        return Facts(title="written", subject=self.path, headline=headline, rows=rows)

    def __repr__(self) -> str:
        return (
            f"<DatasetResult of {printable(self.path)}: "
            f"{counted(len(self.variables), 'variable')}, {counted(self.n_shards, 'file')}>"
        )


def _told(result: WriteResult) -> str:
    files, raw = counted(result.n_shards, "file"), human(result.raw_nbytes)
    return f"{files}, {raw} in, {human(result.stored_nbytes)} out"


# ---- Groups: what may stand there, and what they become


@dataclass(frozen=True, slots=True)
class _Groups:
    """The groups of a call."""

    place: Place  # of the group that a user has named
    by_path: Mapping[str, tuple[Place, Document]]  # place and document, by path in the object
    arrays: Sequence[str]  # paths of all arrays in the object

    @classmethod
    def of(cls, into: Destination, made: Planned) -> _Groups:
        """The groups that are planned."""
        own = {path: (into.place(path), document) for path, document in made.groups.items()}
        return cls(into.place(""), own, [each.path for each in made.variables])

    @property
    def root(self) -> Place:
        """The group at the root of the store."""
        return next(iter(self.place.groups), self.place)

    @property
    def empty(self) -> list[tuple[Place, Document]]:
        """Those that no array lies in, which a run does not make, innermost first."""
        above = {group for path in self.arrays for group in names_above(path)}
        paths = sorted(self.by_path.keys() - above, key=len, reverse=True)
        return [self.by_path[path] for path in paths]


_OR_REMOVE = "give another path or group, or remove it yourself"
_OR_REPLACE = 'give another path or group, or mode="w" to replace its arrays and attributes'


def _check_there(groups: _Groups, jobs: Sequence[Job], mode: str) -> None:
    """Refuse a group that exists and may not be written."""
    if groups.place.kind_for_group() != "group":
        return  # where something else stands, the run refuses it
    for place, _ in groups.empty:
        if place.kind_for_group() not in ("nothing", "group"):
            raise _refused("something stands where the tree has a group", place, _OR_REMOVE)
    if mode == "w":
        ours = {"", *(groups.by_path), *(job.target.place.name_in(groups.place) for job in jobs)}
        others = sorted(set(documents_below(groups.place)) - ours)
        if others:
            why = f"a group stands there, and {others[0]!r} in it is nothing of this dataset"
            raise _refused(why, groups.place, _OR_REMOVE)
        return
    there = [job for job in jobs if job.target.place.kind() == "array"]
    for job in there:
        _refuse_other_rounding(job, job.target.place.name_in(groups.place))
    if len(there) < len(jobs):
        raise _refused("a group exists there", groups.place, _OR_REPLACE)
    for place, document in groups.by_path.values():
        there = document_if_there(place)
        if there is not None and attributes_of(there) != attributes_of(document):
            why = "a group with other attributes exists there"
            raise _refused(why, place, _OR_REPLACE)


def _refuse_other_rounding(job: Job, name: str) -> None:
    """Refuse an array that exists and differs in the bits that are kept."""
    documents = (job.target.document_if_there, job.plan.metadata.document)
    there, own = (attributes_of(document or {}).get(N_BITS) for document in documents)
    if there != own:
        # With mode="w", what describes the rounding would be left there.
        otherwise = "another path or group" if own is None else 'mode="w" to replace all arrays'
        raise other_rounding(name, there, own, f"; or give {otherwise}")


def _refused(why: str, place: Place, remedy: str) -> SpecError:
    return SpecError(why, field="store", value=place.label, remedy=remedy)


def _check_listed(root: Place, asked: bool | None) -> None:
    """Refuse a store that exists, and whose root does not list arrays as it is asked to."""
    if asked and root.store.commits_later:
        why = "does not go with a session, since Icechunk lists arrays itself"
        raise SpecError(why, field="consolidated", value=asked, remedy="leave it out")
    there = document_if_there(root) if asked else None
    if there is not None and not has_consolidated(there, root):
        raise SpecError(
            "the root of the store exists, and lists no arrays",
            field="consolidated",
            value=asked,
            remedy="leave it out, and call zarr.consolidate_metadata at the end if you want it",
        )


def _new_groups(groups: _Groups, jobs: Sequence[Job], asked: bool | None) -> Mapping[str, Document]:
    """Documents, by paths in the store, of the groups that the run makes if they are missing.

    - `asked`: the keyword `consolidated`.
    """
    wanted = {place.name: document for place, document in groups.by_path.values()}
    root = groups.root
    is_session, there = root.store.commits_later, document_if_there(root)
    if asked is False or is_session or there is not None:
        return wanted
    arrays = {job.target.place.name: job.plan.metadata.document for job in jobs}
    above = {group for name in (*arrays, *wanted) for group in names_above(name)} | {*wanted}
    members = {name: wanted.get(name) or group_document() for name in above if name} | arrays
    top = wanted.get("") or group_document()
    listed = consolidated(top, sorted_as_zarr(members))
    _check_readable(
        listed, root, "make the attributes of its variables shorter, or consolidated=False"
    )
    return {**wanted, "": listed}


def _check_readable(document: Document, place: Place, remedy: str) -> None:
    """Refuse the document of a group that would be too large to be read again, before the run."""
    what = "the document of the group would have"
    check_readable(dump(document), what, field="store", value=place.label, remedy=remedy)


def _make_empty_groups(groups: _Groups, durability: str | None) -> None:
    """Make the groups that no array lies in, and have the groups above list them."""
    for place, document in groups.empty:
        if not place.has(DOCUMENT):
            level = durability_in(place.store, durability)
            place.store.discard_scope(DOCUMENT, _SCOPE)  # of a call that was killed
            replace_document(place, None, document, level, f"{_SCOPE}.{uuid.uuid4().hex}")
            enter_above(place, {"": document}.copy)


def _replace_attributes(groups: _Groups, durability: str | None) -> None:
    """Give groups the attributes of the dataset; what consolidated metadata list stays."""
    for place, document in groups.by_path.values():
        change = partial(_with, attributes_of(document))
        change_group(place, change, durability_in(place.store, durability))


def _with(attributes: Document, document: Document) -> Document:
    is_same = attributes_of(document) == attributes
    return document if is_same else with_attributes(document, attributes)


# ---- The functions


@taking(PlanDatasetArguments)
def plan_dataset(call: PlanDatasetArguments) -> DatasetPlan:
    """Plan how a dataset of xarray would be written.

    Nothing is computed or written. Variables that lie in memory are encoded.

    Returns
    -------
    DatasetPlan
        The plan of each variable, and totals. It can be printed.

    Raises
    ------
    SpecError, PlanError
        As :func:`write_dataset`.
    StoreError
        If a bucket cannot be reached.
    TypeError
        If a keyword is unknown.

    Examples
    --------
    >>> import dask.array as da, shardwrite, xarray
    >>> ds = xarray.Dataset({"t2m": (("time", "x"), da.zeros((4000, 1000), chunks=500))})
    >>> p = shardwrite.plan_dataset(ds, shards={"time": 1000}, chunks={"time": 100, "x": 100})
    >>> p.variables["t2m"].metadata.grid.shards, p.n_shards
    ((1000, 1000), 4)
    """
    call = with_mode(call)
    with plans_of(call, Destination.of(call), active_engine()) as made:
        return DatasetPlan(
            variables={
                each.path: each.plan
                if each.target is None
                else with_traffic(each.plan, each.target)
                for each in made.variables
            }
        )


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _WriteNow(Now, WriteDatasetArguments): ...

    @dataclass(frozen=True)
    class _WriteLater(Later, WriteDatasetArguments): ...


if TYPE_CHECKING:

    @overload
    @taking(_WriteNow)
    def write_dataset(call: _WriteNow) -> DatasetResult: ...

    @overload
    @taking(_WriteLater)
    def write_dataset(call: _WriteLater) -> Delayed: ...

    @overload
    @taking(WriteDatasetArguments)
    def write_dataset(call: WriteDatasetArguments) -> DatasetResult | Delayed: ...


@taking(WriteDatasetArguments)
def write_dataset(call: WriteDatasetArguments) -> DatasetResult | Delayed:
    """Write a Dataset, DataArray or DataTree of xarray, in one run over all of its variables.

    xarray says what is stored: packed values, fill values, times, texts, attributes and names of
    dimensions are those of `xarray.Dataset.to_zarr`. Chunks of dask arrays need not fit the shards.
    Nothing is visible before all variables are whole.

    Returns
    -------
    DatasetResult or dask.delayed.Delayed
        What was written; with ``compute=False``, a `Delayed` of that.

    Raises
    ------
    SpecError
        Before any task runs, if an argument does not fit, xarray cannot encode a variable, or the
        group may not be written. The error names the variable and its dimensions.
    PlanError
        Before any task runs, if a variable needs more memory than a process may use.
    TypeError
        If a keyword is unknown.

    Notes
    -----
    Other errors are those of :func:`to_sharded_zarr`. The same is the method
    ``ds.shardwrite.to_zarr(store, ...)``.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile, xarray
    >>> t2m = da.random.random((4000, 100), chunks=(300, 100))
    >>> ds = xarray.Dataset({"t2m": (("time", "x"), t2m)}, coords={"x": range(100)})
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> result = shardwrite.write_dataset(ds, path, shards={"time": 1000}, chunks={"time": 100})
    >>> result.variables["t2m"].n_shards, xarray.open_zarr(path).sizes["time"]
    (4, 4000)
    """
    return written(call)


def written(call: WriteDatasetArguments) -> DatasetResult | Delayed:
    """Do what `write_dataset` does; a session of Icechunk is committed once for all variables."""
    made = list[DatasetResult | Delayed]()

    def results_of(inside: WriteDatasetArguments) -> list[WriteResult]:
        result = _written(inside)
        made.append(result)
        return list(result.variables.values()) if isinstance(result, DatasetResult) else []

    results = committing(results_of)(call)
    (result,) = made
    if not isinstance(result, DatasetResult):
        return result
    variables = dict(zip(result.variables, results, strict=True))
    # A session only reads after its commit. There may be one of attributes alone.
    is_committed = is_session(call.store) and call.store.read_only
    snapshot = str(call.store.snapshot_id) if is_committed else None
    return replace(result, variables=variables, snapshot=snapshot)


def _written(call: WriteDatasetArguments) -> DatasetResult | Delayed:
    start, engine = time.perf_counter(), active_engine()
    call = with_mode(call)
    into = Destination(call, store_of(call.store, call.storage_options))
    with plans_of(call, into, engine, settles=True) as made:
        groups = _Groups.of(into, made)
        for place, document in groups.by_path.values():
            _check_readable(document, place, "store such attributes as an array")
        jobs: Sequence[Job] = (
            _new_arrays(call, groups, made.variables)
            if made.is_new
            else _updates(call, made.variables, engine)
        )
        _check_listed(groups.root, call.consolidated)
        attributes = call.mode == "w" or (call.mode != "r+" and not made.is_new)
        finish = partial(_finished, groups, attributes, call.durability)
        if not call.compute:
            from shardwrite.runs.delayed import as_delayed  # compute=False

            runs = [(job.target.place, digest_of(job.plan, job.options.mode)) for job in jobs]
            finish = partial(finish, runs=runs)
            later: Delayed = delayed(finish)(as_delayed(jobs, engine) if jobs else [])
            return later
        results = execute_staged(jobs, engine, call.progress) if jobs else []
        return finish(results, time.perf_counter() - start)


def _new_arrays(
    call: WriteDatasetArguments, groups: _Groups, variables: Sequence[PlannedVariable]
) -> list[Job]:
    """Jobs that make arrays, after a look at what stands there."""
    mode = "w" if call.mode == "w" else "w-"
    options = for_new_array(options_from(call, RunOptions, mode=mode))
    jobs = [each.job(options) for each in variables]
    _check_there(groups, jobs, mode)
    documents = _new_groups(groups, jobs, call.consolidated)
    return [replace(job, groups=documents) for job in jobs]


def _updates(
    call: WriteDatasetArguments, variables: Sequence[PlannedVariable], engine: Engine
) -> Sequence[Job]:
    """Jobs that change arrays, as one run."""
    options = options_from(call, RunOptions, mode="r+", together=True)
    jobs = [each.job(options) for each in variables]
    if call.append_dim is None:
        return staged_where_read(jobs, engine)
    reading = readers(jobs, jobs)
    for each, job in zip(variables, jobs, strict=True):
        if any(job is one for one in reading):
            raise SpecError(
                f"the variable {each.path!r} is read from the store that it is appended to, while "
                "that is changed",
                field="ds",
                value=each.path,
                remedy="load it first with ds.load(); or write the dataset to another store, and "
                "append what you open there",
            )
    return jobs


def _is_older(place: Place, digest: str) -> bool:
    """Whether another run has changed an array since the one of a digest."""
    receipt = receipt_at(place)
    return receipt is not None and not receipt.ends_with(digest)


def _finished(
    groups: _Groups,
    attributes: bool,
    durability: str | None,
    results: WriteResult | Sequence[WriteResult],
    seconds: float | None = None,
    *,
    runs: Sequence[tuple[Place, str]] = (),
) -> DatasetResult:
    """What a call returns after its run; groups get the attributes that are given for them.

    - `runs`: places of arrays and digests of the runs on them, of a `Delayed`. If a newer run has
      ended there since, nothing is changed any more.
    """
    each = [results] if isinstance(results, WriteResult) else list(results)
    _make_empty_groups(groups, durability)
    if attributes and not any(_is_older(*run) for run in runs):
        _replace_attributes(groups, durability)
    took = max((result.seconds for result in each), default=0.0) if seconds is None else seconds
    return DatasetResult(
        path=groups.place.label,
        variables=dict(zip(groups.arrays, each, strict=True)),
        seconds=rounded(took),
    )
