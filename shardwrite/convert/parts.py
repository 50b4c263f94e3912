"""Functions that convert an array or a hierarchy in parts, for job arrays and `srun`.

`prepare_conversion` begins the run on all arrays, `convert_part` converts one part, and
`finalize_conversion` checks all shards and publishes the arrays together. The arrays are cut into
parts together: the parts depend only on the sizes of the arrays, on the plans that lie beside them,
and on the number of parts. So ranks agree whatever machines they run on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from shardwrite.convert.arrays import (
    ConversionCall,
    NamedConversion,
    TreeConversion,
    call_of,
    check_apart,
    make_groups,
    open_whole,
    refuse_runs,
)
from shardwrite.convert.keywords import (
    ConvertPartArguments,
    FinalizeConversionArguments,
    PrepareConversionArguments,
    PreparedArguments,
    ReshardArguments,
)
from shardwrite.convert.plan import Conversion, ConvertedArray
from shardwrite.engines.local import Engine, LocalEngine
from shardwrite.entry.public import taking
from shardwrite.errors import JournalError, SpecError
from shardwrite.grid import Box, ceil_div
from shardwrite.journal.begin import differences, same_source_remedy
from shardwrite.journal.receipt import Receipt
from shardwrite.journal.rundir import RunDirectory, in_one_state
from shardwrite.operations.together import ArrayInParts, ArraysInParts, stretches_of
from shardwrite.options import options_from
from shardwrite.place.target import Target, resolve_place
from shardwrite.plan.plan import Part, Plan, Stretch, check_n_parts, check_part
from shardwrite.results import rounded
from shardwrite.runs.array_plan import resources_of
from shardwrite.runs.begun import plan_begun
from shardwrite.runs.in_parts import prepare_jobs
from shardwrite.runs.job import Job, NoChunks
from shardwrite.runs.kept import accepts_source, as_begun

_PUBLISHED = "it is published already"
_HOW_TO_BEGIN = "call prepare_conversion first (--init)"


class PlannedParts(TreeConversion):
    """A conversion that is cut into parts, planned."""

    @property
    def n_groups(self) -> int:
        """Number of groups of shards of all arrays; no two parts share a group."""
        return sum(one.planned.plan.partition.n_groups for one in self.made)

    @property
    def n_shards(self) -> int:
        """Number of shards of all arrays."""
        return sum(one.planned.plan.n_shards for one in self.made)

    @cached_property
    def targets(self) -> Mapping[str, Target]:
        """See :attr:`TreeConversion.targets`; the state of the run lies in one place."""
        found = super().targets
        return dict(zip(found, in_one_state(list(found.values())), strict=True))

    def stretches(self) -> Iterator[tuple[NamedConversion, Stretch]]:
        """Each array, and its place among all of them."""
        sizes = [one.planned.plan.raw_nbytes for one in self.made]
        return zip(self.made, stretches_of(sizes), strict=True)

    def begin(self, engine: Engine) -> None:
        """Begin the run of all arrays."""
        self.groups()  # refuses what stands in the way
        prepare_jobs(self.jobs(), engine)

    def arrays(
        self, engine: Engine, job_of: Callable[[NamedConversion, RunDirectory], Job]
    ) -> ArraysInParts:
        """All arrays, and what is done of their runs."""
        arrays = [
            ArrayInParts(
                one.name,
                self.targets[one.name],
                one.planned.plan.raw_nbytes,
                partial(job_of, one),
                partial(_is_receipt_of, one),
            )
            for one in self.made
        ]
        return ArraysInParts(self.label, arrays, engine, _HOW_TO_BEGIN)


def _planned(given: PreparedArguments | PrepareConversionArguments) -> tuple[PlannedParts, Engine]:
    """The plan that all parts make of the same arguments, and the engine of this process."""
    engine = LocalEngine("threads")
    return plan_parts(given.src, call_of(options_from(given, ReshardArguments)), engine), engine


def plan_parts(src: Any, call: ConversionCall, engine: Engine) -> PlannedParts:
    """Plan a conversion that is cut into parts. Nothing is written."""
    if call.dst is None:
        raise SpecError(
            "parts need another place",
            field="dst",
            value=None,
            remedy="give a place for what is made; workers that are jobs convert in place "
            "(--cluster slurm)",
        )
    tree = open_whole(src, call.patterns.want)
    check_apart(tree.place, resolve_place(call.dst, None))
    refuse_runs(tree, is_kept=True)
    return PlannedParts.of(tree, call, engine)


@taking(PrepareConversionArguments)
def prepare_conversion(given: PrepareConversionArguments) -> None:
    """Begin a conversion that is made in parts. Call this once, before any part is converted.

    Raises
    ------
    TypeError
        If a keyword is unknown.
    SpecError, PlanError
        If an argument does not fit, or something that may not be replaced exists there.
    JournalError
        If another run on one of the arrays has not ended.
    StoreError
        If the storage refuses.

    Examples
    --------
    See :func:`convert_part`.

    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp()
    >>> _ = da.arange(1000, chunks=100).to_sharded_zarr(path + "/a", shards=None, chunks=10)
    >>> shardwrite.prepare_conversion(path + "/a", path + "/b", 10)
    """
    parts, engine = _planned(given)
    parts.begin(engine)


@taking(ConvertPartArguments)
def convert_part(given: ConvertPartArguments) -> Conversion:
    """Convert one part of an array or a hierarchy, with the threads of this process.

    The shards of all arrays are cut into parts together. After an interruption, the same call goes
    on where it was, on this machine or another one.

    Returns
    -------
    Conversion
        Result of this part. Arrays of which it has no shard are left out. A chunk of HDF5 that is
        re-encoded although all others are copied counts as copied.

    Raises
    ------
    TypeError
        If a keyword is unknown.
    SpecError
        If an argument does not fit, for instance unless ``0 <= index < count``.
    IncompleteError
        If nothing was begun there, or the process was asked to stop and shards are missing.
    JournalError
        If something else was begun there, for instance because the source has changed.
    PlanError
        If the plan does not fit into the memory of this process.
    RunEndedError
        If a run has ended meanwhile and did not make what is asked for.
    CorruptShardError, CodecError, StoreError
        If a task fails. Its shard is not committed.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp()
    >>> _ = da.arange(1000, chunks=100).to_sharded_zarr(path + "/a", shards=None, chunks=10)
    >>> shardwrite.prepare_conversion(path + "/a", path + "/b", 10)
    >>> done = [shardwrite.convert_part(path + "/a", path + "/b", k, 3, 10) for k in range(3)]
    >>> sum(part.n_shards for part in done)
    10
    >>> shardwrite.finalize_conversion(path + "/a", path + "/b", 10).n_chunks_copied
    100
    """
    index, count = check_part(given.index, given.count)
    start = time.perf_counter()
    parts, engine = _planned(given)
    return _result(parts, _convert(parts, index, count, engine), start)


@taking(FinalizeConversionArguments)
def finalize_conversion(given: FinalizeConversionArguments) -> Conversion:
    """Check the index of every shard, and publish all arrays if no shard is missing.

    Arrays are published together, and groups after them. Consolidated metadata come last, where the
    source has such metadata. Files that dead processes have left are removed. A shard that was
    checked within a day is not read again unless it has changed, as with :func:`finalize`.

    Returns
    -------
    Conversion
        Result of the whole conversion.

    Raises
    ------
    TypeError
        If a keyword is unknown.
    SpecError
        If an argument does not fit, for instance unless `n_parts` is a whole number of 1 or more.
    ChangedError
        If an array was finished before, and is not what its last run left.
    IncompleteError
        If nothing was begun there, or shards are missing or damaged. The error has the keys of
        these shards and, if `n_parts` is given, the `parts` that they belong to.
    JournalError
        If something else was begun there, for instance because the source has changed.

    Examples
    --------
    See :func:`convert_part`.

    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp()
    >>> _ = da.arange(1000, chunks=100).to_sharded_zarr(path + "/a", shards=None, chunks=10)
    >>> shardwrite.prepare_conversion(path + "/a", path + "/b", 10)
    >>> _ = shardwrite.convert_part(path + "/a", path + "/b", 0, 1, 10)
    >>> shardwrite.finalize_conversion(path + "/a", path + "/b", 10, n_parts=1).n_shards
    10
    """
    n_parts = check_n_parts(given.n_parts)
    start = time.perf_counter()
    parts, engine = _planned(given)
    groups = parts.groups()
    documents = {place.name: group.document for group, place in groups}

    def job_of(one: NamedConversion, run: RunDirectory) -> Job:
        plan = _plan_of(one, run, engine, parts.call)
        return Job.of_run(run, NoChunks(), plan, groups=documents)

    results = parts.arrays(engine, job_of).finish(n_parts, trusts_journals=given.trust_journals)
    arrays = [
        one.done(parts.targets[one.name].label, result, one.n_odd)
        for one, result in zip(parts.made, results, strict=True)
    ]
    make_groups(groups, parts.call.run.durability)
    parts.consolidate(parts.call.run.durability)
    return _result(parts, arrays, start)


def _convert(parts: PlannedParts, index: int, count: int, engine: Engine) -> list[ConvertedArray]:
    """Convert what a part has of each array."""

    def job_of(one: NamedConversion, run: RunDirectory) -> Job:
        plan = _plan_of(one, run, engine, parts.call)
        if one.planned.passage is None:
            plan.check_fits()
        return Job.of_run(run, one.planned.chunks, plan)

    done, arrays = [], parts.arrays(engine, job_of)
    for number, (result, part) in arrays.write(index, count, parts.call.progress).items():
        one = parts.made[number]
        path = parts.targets[one.name].label
        if part is None:
            done.append(ConvertedArray(name=one.name, path=path, how="skipped", why=(_PUBLISHED,)))
        else:
            done.append(one.done(path, result, _n_encoded_at_edges(one, part)))
    return done


def _is_receipt_of(one: NamedConversion, receipt: Receipt) -> bool:
    """Whether a receipt was left by this conversion."""
    return receipt.digest == one.planned.plan.digest


def _plan_of(one: NamedConversion, run: RunDirectory, engine: Engine, call: ConversionCall) -> Plan:
    """The plan of a run that was begun, with the source of this process."""
    planned = one.planned.plan
    if accepts_source():
        what = run.record.identity.source
        planned = as_begun(planned, run.record.mode, what, run.digest) or planned
    if run.digest != planned.digest:
        changed = differences(run.record.identity.to_dict(), planned.identity.to_dict())
        raise JournalError(
            f"another conversion was begun for {run.target.label}; it differs in "
            f"{'; '.join(changed)}. Give all parts the source and the options with which it was "
            f"begun{same_source_remedy(changed)}",
            path=str(run.target.run_path),
            differences=changed,
        )
    begun = plan_begun(run, resources_of(engine, call.options.memory_limit_nbytes))
    return replace(begun, source=planned.source, source_reruns=planned.source_reruns)


def _n_encoded_at_edges(one: NamedConversion, part: Part) -> int:
    """Most inner chunks of a part that are re-encoded because they reach beyond the array."""
    passage, grid, n = one.planned.passage, part.plan.metadata.grid, 0
    if passage is None or not passage.n_encoded:
        return 0
    ends = tuple(n // c * c for n, c in zip(grid.shape, grid.chunks, strict=True))
    for box in part.boxes():
        whole = box.intersect(Box((0,) * len(ends), ends)).shape
        n += math.prod(ceil_div(k, c) for k, c in zip(box.shape, grid.chunks, strict=True))
        n -= math.prod(k // c for k, c in zip(whole, grid.chunks, strict=True))
    return n


def _result(parts: PlannedParts, arrays: Sequence[ConvertedArray], start: float) -> Conversion:
    return Conversion(
        source=parts.tree.place.label,
        path=parts.label,
        arrays=tuple(arrays),
        seconds=rounded(time.perf_counter() - start),
        left_out=parts.tree.left_out,
    )
