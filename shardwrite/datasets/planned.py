"""Plans of all arrays of a dataset, and what is shown of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeVar

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document
from shardwrite.datasets.encode import EncodedVariable, Node, encoded, is_tree, nodes_of
from shardwrite.datasets.existing import (
    Values,
    ValuesOfNode,
    call_of_node,
    is_in,
    refuse_left_out,
    refuse_tree,
    values_into,
)
from shardwrite.datasets.keywords import Call
from shardwrite.datasets.layout import SizesByName
from shardwrite.datasets.steps import Overlap
from shardwrite.engines.local import Engine
from shardwrite.errors import JournalError, PlanError, SpecError, printable
from shardwrite.format.strategies import FixedOrder
from shardwrite.journal.begin import is_complete
from shardwrite.journal.neighbours import unfinished, unfinished_updates
from shardwrite.journal.receipt import read_receipt
from shardwrite.options import options_from
from shardwrite.place.base import Place, at_url, opened_once
from shardwrite.place.seen import Seen
from shardwrite.place.target import (
    Target,
    resolve_new,
    resolve_place,
    resolve_target,
    target_via,
)
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.plan import Plan
from shardwrite.read.hierarchy import documents_below
from shardwrite.results import Facts, Result, counted, human
from shardwrite.runs.array_plan import BY_CHUNKS, ArrayChunks, plan_array
from shardwrite.runs.begin import was_left
from shardwrite.runs.job import Job, RunOptions, digest_of, target_of_update
from shardwrite.runs.region_plan import APPEND, Where, region_plan
from shardwrite.runs.source_array import as_source_array
from shardwrite.stores.looking import is_icechunk, is_session
from shardwrite.stores.opening import open_store

# ---- Plans of single variables


@dataclass(frozen=True, slots=True)
class PlannedVariable:
    """A variable that becomes an array."""

    path: str  # in the object that a user has given
    source: ArrayChunks
    plan: Plan
    target: Target | None  # None if no place was given

    @property
    def was_left(self) -> bool:
        """Whether the array has this update already."""
        return self.target is not None and was_left(self.target, self.plan)

    @property
    def was_made(self) -> bool:
        """Whether a run of this plan has made the array."""
        receipt = None if self.target is None else read_receipt(self.target)
        return receipt is not None and receipt.digest == digest_of(self.plan, "w-")

    @property
    def is_told_apart(self) -> bool:
        """Whether more than the dtype and the chunks of the source tells it from others."""
        return not str(self.plan.identity.source).startswith(BY_CHUNKS)

    def job(self, options: RunOptions) -> Job:
        """The job that writes the variable; there is a place for it."""
        if self.target is None:
            raise ValueError("no place was given")
        return Job(self.source, self.plan, self.target, options)


@dataclass(frozen=True, slots=True)
class Planned:
    """An object of xarray that becomes groups and arrays."""

    variables: Sequence[PlannedVariable]
    groups: Mapping[str, Document]  # by their paths in the object; its own is empty
    is_new: bool  # whether arrays are made; else, those of the store are changed


@dataclass(frozen=True, slots=True)
class Destination:
    """Where the groups and arrays of an object go, by their paths in it."""

    call: Call
    store: Any  # opened once for all arrays
    seen: Seen = field(default_factory=Seen)

    @classmethod
    def of(cls, call: Call) -> Destination | None:
        """That of a call; None if no store is given, as for a plan."""
        store = store_of(call.store, call.storage_options)
        return None if store is None else cls(call, store)

    def place(self, path: str) -> Place:
        """Place of a group."""
        return resolve_place(self.store, in_group(self.call, path) or None, seen=self.seen)

    def target(self, path: str) -> Target:
        """An array that exists."""
        path, run_dir = in_group(self.call, path), self.call.run_dir
        return resolve_target(self.store, path, run_dir, seen=self.seen)

    def new_target(self, path: str) -> Target:
        """An array that is made."""
        path, run_dir = in_group(self.call, path), self.call.run_dir
        target = resolve_new(self.store, path, run_dir, seen=self.seen)
        return target_via(target, self.call.via)


def store_of(store: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """The store of a call, opened once for all arrays; None if none was given."""
    if is_icechunk(store) and not is_session(store):
        raise SpecError(
            "is of Icechunk, and no session that can be committed",
            field="store",
            value=type(store).__name__,
            remedy='give to_zarr a session, such as repository.writable_session("main"), and plan '
            "no store",
        )
    if is_session(store):  # for a plan; calls that commit one have its store
        return open_store(store, is_read=True).store
    if isinstance(store, dict):  # which zarr-python and xarray take for a store, too
        from zarr.storage import MemoryStore

        return MemoryStore(store)
    opens = opened_once if isinstance(store, str) else at_url
    return opens(store, storage_options)


def in_group(call: Call, path: str) -> str:
    """Path in the store of a node or an array of the object."""
    group: Any = "" if call.group is None else call.group
    if not isinstance(group, str):
        remedy = 'give for instance "model/run1"'
        raise SpecError("not a path", field="group", value=group, remedy=remedy)
    # zarr takes a backslash for a slash, and several slashes for one.
    return "/".join(part for part in re.split(r"[/\\]", f"{group}/{path}") if part)


def planned(call: Call, into: Destination | None, engine: Engine) -> Planned:
    """Plan all variables of an object, before any task runs.

    - Raises SpecError or PlanError, with the name of the variable, if one of them does not fit.
    """
    sizes = SizesByName(call.shards, call.chunks, call.append_dim)
    given = nodes_of(call.ds, call.encoding, call.keep_bits, own_sizes=call.own_sizes)
    nodes = [(node, encoded(node)) for node in given]
    each = [(node.label(v.name), v) for node, made in nodes for v in made.variables]
    sizes.check_names(dim for _, variable in each for dim in variable.dims)
    if not each:
        raise SpecError(
            "no variables, so that there is nothing to write",
            field="ds",
            value=type(call.ds).__name__,
            remedy="write it with to_zarr of xarray",
        )
    options, variables = options_from(call, PlanOptions), []
    for path, variable in each:
        with _naming(path, variable.dims):
            target = None if into is None else into.new_target(path)
            source, plan = _planned(variable, sizes, options, engine, target)
        variables.append(PlannedVariable(path, source, plan, target))
    return Planned(variables, {node.path: made.document for node, made in nodes}, is_new=True)


def _planned(
    variable: EncodedVariable,
    sizes: SizesByName,
    options: PlanOptions,
    engine: Engine,
    target: Target | None,
) -> tuple[ArrayChunks, Plan]:
    x = as_source_array(variable.values, "ds").array
    shards, chunks = sizes.of(variable.dims, x.shape, x.dtype.itemsize or 1, variable.encoding)
    array = replace(variable.options, shards=shards, chunks=chunks)
    if shards is None and sizes.shards is not None and "shards" not in variable.encoding:
        options = replace(options, strategy=FixedOrder())  # it is too small for shards
    writes_empty = variable.encoding.get("write_empty_chunks")
    if writes_empty is not None:
        options = replace(options, write_empty_chunks=writes_empty)
    plan = plan_array(x, engine, array, options, None if target is None else target.store)
    return ArrayChunks(x), plan


# ---- Variables that go into arrays that exist


def planned_into(
    call: Call,
    nodes: Sequence[Node],
    targets: Mapping[str, Target],
    into: Destination,
    engine: Engine,
) -> Planned:
    """Plan updates of the arrays in groups, before any task runs; it raises what `planned` does.

    - `nodes`: what goes into the groups.
    - `targets`: the arrays, by their paths in the object.
    """
    SizesByName(call.shards, call.chunks)
    place = into.place("")
    documents = documents_below(place)
    if is_tree(call.ds):
        refuse_tree(nodes, documents, call)
    if call.append_dim is not None:
        refuse_left_out(nodes, place, documents, call.append_dim)
    made = list[ValuesOfNode]()
    for node in nodes:
        own: Call | None = call
        if is_tree(call.ds):
            found = [values.region for values in made if is_in(node.path, values.path)]
            above = {dim: where for region in found for dim, where in region.items()}
            own = call_of_node(call, node, above)
        if own is not None:
            made.append(values_into(node, into.place(node.path), documents, own))
    if call.region is not None and not any(values.variables for values in made):
        raise SpecError(
            "has no variables that would be written",
            field="ds",
            value=type(call.ds).__name__,
            remedy="give variables that have a dimension of the region and are no index",
        )
    updates = _Updates(call, targets, engine)
    plans = [updates.of_group(values) for values in made]
    wrong = next((found for _, found in plans if found is not None), None)
    if wrong is not None and wrong.is_whole:
        first = planned(call, into, engine)
        if all(each.was_made and each.is_told_apart for each in first.variables):
            return first
    variables = list[PlannedVariable]()
    for values, (each, _) in zip(made, plans, strict=True):
        own_wrong = None if wrong is None else values.repeated(wrong)
        variables += each if own_wrong is None else updates.appended_before(values, own_wrong, each)
    # The coordinates that name the steps come last.
    variables.sort(key=lambda each: each.path.rpartition("/")[2] == call.append_dim)
    return Planned(variables, {values.path: values.document for values in made}, is_new=False)


@dataclass(frozen=True, slots=True)
class _Updates:
    """Plans of updates of arrays that exist."""

    call: Call
    targets: Mapping[str, Target]  # the arrays, by their paths in the object
    engine: Engine

    def of_group(self, made: ValuesOfNode) -> tuple[list[PlannedVariable], Overlap | None]:
        """Plans for the arrays in a group, and what is wrong if steps are there already.

        An append begins where all arrays end. If it was interrupted, it is the same one.
        """
        variables = [self._of(values) for values in made.written]
        starts = {
            v.path: v.plan.array_region.start[v.plan.append_axis]
            for v in variables
            if v.plan.append_axis is not None and v.plan.array_region is not None
        }
        first = min(starts.values(), default=0)
        for n, (variable, values) in enumerate(zip(variables, made.written, strict=True)):
            if starts.get(variable.path, first) != first:
                again = self._of(values, first)
                if not again.was_left:
                    raise self._unless_unfinished(starts, _of_other_lengths(starts, self.call))
                variables[n] = again
        is_repeated = made.overlap is not None and first >= made.overlap.length
        return variables, made.overlap if is_repeated else None

    def appended_before(
        self, made: ValuesOfNode, wrong: Overlap, variables: Sequence[PlannedVariable]
    ) -> list[PlannedVariable]:
        """Plans of an append whose steps are there, if the same call has appended them before.

        Sources that only their dtype and chunks tell apart may have other values.
        """
        again, start = list(variables), wrong.length - wrong.n_steps
        for n, values in enumerate(made.written if wrong.are_last else ()):
            if values.axis is not None:
                again[n] = self._of(values, start)
        appends = [each for each in again if each.plan.append_axis is not None]
        if not wrong.are_last or not all(each.was_left and each.is_told_apart for each in appends):
            raise self._unless_unfinished([each.path for each in appends], wrong.error)
        return again

    def _unless_unfinished(
        self, names: Iterable[str], error: SpecError
    ) -> SpecError | JournalError:
        """The error of an update of some arrays that has not ended; without one, another one."""
        runs = (run for name in names for run in unfinished_updates(self.targets[name]))
        return next((unfinished(run) for run in runs if not is_complete(run, looking=True)), error)

    def _of(self, values: Values, start: int | None = None) -> PlannedVariable:
        """Plan of one array."""
        options = options_from(self.call, PlanOptions)
        # The next call reads a coordinate before it goes on, so no shard of it may be half changed.
        is_coordinate = values.dims == (values.path.rpartition("/")[2],)
        if not values.is_sharded or (is_coordinate and options.strategy.in_place):
            options = replace(options, strategy=FixedOrder())
        region = values.region if values.axis is None else APPEND
        where = Where(region, values.axis or 0, casting="same_kind", start=start)
        with _naming(values.path, values.dims):
            target = target_via(self.targets[values.path], self.call.via)
            source, plan = region_plan(values.values, target, where, self.engine, options)
            source_of = ArrayChunks(source, plan.region)
            return PlannedVariable(values.path, source_of, plan, target_of_update(target, plan))


def _of_other_lengths(starts: Mapping[str, int], call: Call) -> SpecError:
    """Error of a store that another program has left amid an append."""
    shortest, longest = min(starts, key=starts.__getitem__), max(starts, key=starts.__getitem__)
    return SpecError(
        f"the arrays of the store have different lengths: {shortest!r} has {starts[shortest]}, and "
        f"{longest!r} has {starts[longest]}. An append of another program was interrupted",
        field="append_dim",
        value=call.append_dim,
        remedy="make them equal first, for instance with resize of zarr-python",
    )


@contextlib.contextmanager
def _naming(path: str, dims: tuple[str, ...]) -> Iterator[None]:
    """Have the errors of the block name the variable that they are about."""
    try:
        yield
    except (SpecError, PlanError) as error:
        told = f"variable {path!r} with dimensions ({', '.join(dims)}): {error.message}"
        raise type(error)(told, **error.fields) from None


# ---- What is shown


_MAX_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPlan(Result):
    """Plan of a dataset. Make one with :func:`shardwrite.plan_dataset`.

    Attributes
    ----------
    variables : dict of str to Plan
        The plan of each variable.
    """

    _derived = ("n_shards", "n_inner_chunks", "raw_nbytes", "memory_nbytes")

    variables: dict[str, Plan]

    @property
    def n_shards(self) -> int:
        """Number of shards of all variables, which is the number of files at most."""
        return sum(plan.n_shards for plan in self.variables.values())

    @property
    def n_inner_chunks(self) -> int:
        """Number of inner chunks of all variables."""
        return sum(plan.n_inner_chunks for plan in self.variables.values())

    @property
    def raw_nbytes(self) -> int:
        """Decoded size of all variables, in bytes."""
        return sum(plan.raw_nbytes for plan in self.variables.values())

    @property
    def memory_nbytes(self) -> int:
        """Estimate of the memory of one worker process, in bytes: that of the largest plan."""
        return max((plan.memory.total_nbytes for plan in self.variables.values()), default=0)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of all plans, and their totals, as values that JSON can hold."""
        plans = {name: plan.to_dict() for name, plan in self.variables.items()}
        return {"variables": plans, **{name: getattr(self, name) for name in self._derived}}

    def facts(self) -> Facts:
        """Return what is shown of the plan, as text and in notebooks."""
        headline = [
            (f"{len(self.variables):,}", "variables"),
            (f"{self.n_shards:,}", "files at most"),
            (human(self.raw_nbytes), "decoded"),
            (human(self.memory_nbytes), "memory per process at most"),
        ]
        rows = [
            ("variables", f"{len(self.variables):,}"),
            ("decoded", human(self.raw_nbytes)),
            ("files", f"{self.n_shards:,} at most, {self.n_inner_chunks:,} inner chunks"),
            ("memory", f"{human(self.memory_nbytes)} per process at most"),
            *shown(self.variables, _told),
        ]
        return Facts(title="dataset", headline=headline, rows=rows)

    def __repr__(self) -> str:
        return (
            f"<DatasetPlan: {counted(len(self.variables), 'variable')}, "
            f"{counted(self.n_shards, 'file')} at most, {human(self.raw_nbytes)}>"
        )


_T = TypeVar("_T")


def shown(variables: Mapping[str, _T], told: Any) -> list[tuple[str, str]]:
    """Rows about single variables, of which there may be many."""
    rows = [(printable(name), told(each)) for name, each in [*variables.items()][:_MAX_SHOWN]]
    left = len(variables) - len(rows)
    return [*rows, *([("...", f"{left:,} more")] if left else [])]


def _told(plan: Plan) -> str:
    grid, metadata = plan.metadata.grid, plan.metadata
    if plan.array_region is not None:
        region = ", ".join(f"{a:,}:{b:,}" for a, b in plan.array_region.bounds)
        files = f"in {counted(plan.n_shards, 'file')}"
        return f"[{region}] {metadata.dtype}, {human(plan.raw_nbytes)}; {files}"
    names = metadata.document.get("dimension_names") or ()
    sizes = ", ".join(f"{name} {n:,}" for name, n in zip(names, grid.shape, strict=False))
    what = f"{metadata.dtype}, {human(plan.raw_nbytes)}"
    if not metadata.is_sharded:
        return f"({sizes}) {what}; chunks {grid.chunks}, {counted(plan.n_shards, 'file')}"
    files = counted(plan.n_shards, "file")
    return f"({sizes}) {what}; shards {grid.shards}, chunks {grid.chunks}, {files}"
