"""Functions that convert an array or a hierarchy in parts, for job arrays and `srun`.

`prepare_conversion` begins the run on all arrays, `convert_part` converts one part, and
`finalize_conversion` checks all shards and publishes the arrays together. The arrays are cut into
parts together: the parts depend only on the sizes of the arrays, on the plans that lie beside them,
and on the number of parts. So ranks agree whatever machines they run on.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from shardwrite.codecs.documents import Document
from shardwrite.convert.arrays import (
    ConversionCall,
    NamedConversion,
    call_of,
    consolidate,
    make_groups,
    new_groups,
    plan_all,
)
from shardwrite.convert.keywords import (
    ConvertPartArguments,
    FinalizeConversionArguments,
    PrepareConversionArguments,
    ReshardArguments,
)
from shardwrite.convert.plan import Conversion, ConvertedArray
from shardwrite.engines.local import Engine, LocalEngine
from shardwrite.entry.public import taking
from shardwrite.errors import IncompleteError, JournalError, RunEndedError, SpecError
from shardwrite.grid import Box, ceil_div
from shardwrite.journal.begin import differences, same_source_remedy
from shardwrite.journal.receipt import Receipt
from shardwrite.journal.rundir import RunDirectory, in_one_state
from shardwrite.operations.parts import result_left
from shardwrite.operations.region import refuse_runs
from shardwrite.options import options_from
from shardwrite.place.base import Place, opened_once
from shardwrite.place.target import Target, resolve_place, resolve_target
from shardwrite.plan.plan import Part, Plan, Stretch, check_n_parts, check_part
from shardwrite.read.hierarchy import Group, Hierarchy
from shardwrite.read.stored_array import check_apart
from shardwrite.results import rounded
from shardwrite.runs.array_plan import resources_of
from shardwrite.runs.begun import plan_begun
from shardwrite.runs.execute import OnReport, Run, reporting
from shardwrite.runs.in_parts import (
    prepare_jobs,
    refuse_missing,
    refuse_unwritten,
    remedy_of_parts,
    run_on,
    runs_on,
)
from shardwrite.runs.job import Job, NoChunks
from shardwrite.runs.kept import accepts_source, as_begun, check_kept
from shardwrite.runs.result import WriteResult
from shardwrite.volumes.source import open_tree

_MAX_NAMED, _MAX_MISSING = 8, 1000
_PUBLISHED = "it is published already"
_HOW_TO_BEGIN = "call prepare_conversion first (--init)"


@dataclass(frozen=True)
class PlannedParts:
    """A conversion that is cut into parts, planned."""

    tree: Hierarchy  # the source
    made: tuple[NamedConversion, ...]  # the planned conversions of its arrays
    call: ConversionCall

    @property
    def raw_nbytes(self) -> int:
        """Decoded bytes of all arrays."""
        return sum(one.planned.plan.raw_nbytes for one in self.made)

    @property
    def n_groups(self) -> int:
        """Number of groups of shards of all arrays; no two parts share a group."""
        return sum(one.planned.plan.partition.n_groups for one in self.made)

    @property
    def n_shards(self) -> int:
        """Number of shards of all arrays."""
        return sum(one.planned.plan.n_shards for one in self.made)

    @property
    def label(self) -> str:
        """Text that names the new array or group."""
        return resolve_place(self.call.dst, None).label

    def is_wanted(self, group: Group) -> bool:
        """Whether a group of the source is made anew."""
        return self.call.wanted.patterns.want_group(group.name, [one.name for one in self.made])

    @cached_property
    def targets(self) -> Mapping[str, Target]:
        """Target of the conversion of each array, by the name of the array."""
        dst, run_dir = opened_once(self.call.dst), self.call.run_dir
        found = [resolve_target(dst, one.name or None, run_dir) for one in self.made]
        names = [one.name for one in self.made]
        return dict(zip(names, in_one_state(found), strict=True))

    def target_of(self, one: NamedConversion) -> Target:
        """Target of the conversion of one array."""
        return self.targets[one.name]

    def stretches(self) -> Iterator[tuple[NamedConversion, Stretch]]:
        """Each array, and its place among all of them."""
        before, total = 0, self.raw_nbytes
        for one in self.made:
            yield one, Stretch(before, total, one.planned.plan.raw_nbytes)
            before += one.planned.plan.raw_nbytes

    def begin(self, engine: Engine) -> None:
        """Begin the run of all arrays."""
        run = self.call.run
        self.groups()  # refuses what stands in the way
        jobs = [
            Job(one.planned.chunks, one.planned.plan, self.target_of(one), run) for one in self.made
        ]
        prepare_jobs(jobs, engine)

    def groups(self) -> list[tuple[Group, Place]]:
        """The new groups, which are made once all arrays are whole."""
        return new_groups(self.tree, self.is_wanted, self.call.dst, self.call.run.mode)


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
    tree = open_tree(src, call.wanted.patterns.want)
    check_apart(tree.place, resolve_place(call.dst, None))
    refuse_runs(tree, is_kept=True)
    return PlannedParts(tree, tuple(plan_all(tree, call, engine)), call)


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
    call = call_of(options_from(given, ReshardArguments))
    engine = LocalEngine("threads")
    plan_parts(given.src, call, engine).begin(engine)


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
    engine = LocalEngine("threads")
    parts = plan_parts(given.src, call_of(options_from(given, ReshardArguments)), engine)
    with reporting(parts.call.progress, parts.raw_nbytes // count) as on_report:
        arrays = _convert(parts, (index, count), engine, on_report)
    return _result(parts, arrays, start)


@taking(FinalizeConversionArguments)
def finalize_conversion(given: FinalizeConversionArguments) -> Conversion:
    """Check the index of every shard, and publish all arrays if no shard is missing.

    Arrays are published together, and groups after them. Consolidated metadata come last, where the
    source has such metadata. Files that dead processes have left are removed. A shard that was
    checked within a day is not checked again, as with :func:`finalize`.

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
    engine = LocalEngine("threads")
    parts = plan_parts(given.src, call_of(options_from(given, ReshardArguments)), engine)
    groups = parts.groups()
    documents = {place.name: group.document for group, place in groups}
    made = list(parts.stretches())
    targets = [parts.target_of(one) for one, _ in made]
    ending = _Ending(parts, made, targets, n_parts, engine, documents)
    results = ending.finish(trusts_journals=given.trust_journals)
    arrays = [
        _converted(one, target, result, one.n_odd)
        for (one, _), target, result in zip(made, targets, results, strict=True)
    ]
    make_groups(groups, parts.call.run.durability)
    done = [(one.name, one.planned) for one in parts.made]
    consolidate(parts.tree, parts.is_wanted, done, parts.call.dst, parts.call.run.durability)
    return _result(parts, arrays, start)


def _convert(
    parts: PlannedParts, which: tuple[int, int], engine: Engine, on_report: OnReport
) -> list[ConvertedArray]:
    """Convert what a part has of each array. Arrays of which it has nothing are not looked at."""
    arrays = [(one, among) for one, among in parts.stretches() if among.may_have(*which)]
    done: dict[str, ConvertedArray] = {}
    begun: list[tuple[NamedConversion, Job]] = []
    ended: RunEndedError | None = None

    def skip(one: NamedConversion) -> None:
        target, is_ours = parts.target_of(one), partial(_is_of, one)
        result_left(target, is_ours, how_to_begin=_HOW_TO_BEGIN, ended=ended)
        done[one.name] = ConvertedArray(
            name=one.name, path=target.label, how="skipped", why=(_PUBLISHED,)
        )

    try:
        with contextlib.ExitStack() as stack:
            for one, among in arrays:
                run = stack.enter_context(run_on(parts.target_of(one), None))
                if run is None or not run.makes_array:
                    skip(one)
                    continue
                plan = _plan_of(one, run, engine, parts.call)
                part = plan.part(*which, among)
                if part.groups:
                    if one.planned.passage is None:
                        plan.check_fits()
                    begun.append((one, Job.of_run(run, one.planned.chunks, plan, part)))
            jobs = [job for _, job in begun]
            with Run.open(jobs, engine, on_report, "part") as own:
                results = own.execute()
    except RunEndedError as error:
        ended = error
        for one, _ in begun:
            skip(one)
    else:
        for (one, job), result in zip(begun, results, strict=True):
            n_odd = 0 if job.part is None else _n_encoded_at_edges(one, job.part)
            done[one.name] = _converted(one, job.target, result, n_odd)
    return [done[one.name] for one, _ in arrays if one.name in done]


@dataclass(slots=True)
class _Ending:
    """The end of a conversion in parts. All arrays are checked before any is published."""

    parts: PlannedParts
    arrays: Sequence[tuple[NamedConversion, Stretch]]
    targets: Sequence[Target]
    n_parts: int | None
    engine: Engine
    groups: Mapping[str, Document]  # documents of new groups, by their paths
    failed: dict[int, IncompleteError] = field(default_factory=dict)  # by the number of the array

    def finish(self, *, trusts_journals: bool) -> list[WriteResult]:
        """Publish all arrays; `trusts_journals` is as in `finish_all`.

        - Raises IncompleteError if shards are missing in one of them. Then none is published.
        """
        results: dict[int, WriteResult] = {}
        try:
            with runs_on(self.targets, self._check_written) as runs:
                ended = [n for n in range(len(self.targets)) if n not in runs]

                jobs = [self._job(number, run) for number, run in runs.items()]
                how = {"mode": "end", "trusts_journals": trusts_journals}
                with Run.open(jobs, self.engine, **how) as joined:
                    for number, session in zip(runs, joined.sessions, strict=True):
                        with self._collecting(number):
                            among = self.arrays[number][1]
                            refuse_missing(session.job, session.ledger, self.n_parts, among)
                    for number in ended:
                        with self._collecting(number):
                            results[number] = self._left(number)
                    self._refuse()
                    results |= dict(zip(runs, joined.finish(), strict=True))
        except RunEndedError as error:
            results = {n: self._left(n, error) for n in range(len(self.targets))}
        return [result for _, result in sorted(results.items())]

    def _job(self, number: int, run: RunDirectory) -> Job:
        plan = _plan_of(self.arrays[number][0], run, self.engine, self.parts.call)
        return Job.of_run(run, NoChunks(), plan, groups=self.groups)

    def _check_written(self, runs: Mapping[int, RunDirectory]) -> None:
        for number, run in runs.items():
            with self._collecting(number):
                among = self.arrays[number][1]
                refuse_unwritten(self._job(number, run), run, self.n_parts, among)
        self._refuse()

    def _left(self, number: int, ended: RunEndedError | None = None) -> WriteResult:
        """The result of an array that is published."""
        target, is_ours = self.targets[number], partial(_is_of, self.arrays[number][0])
        look = partial(check_kept, target, self.engine)
        return result_left(target, is_ours, look, how_to_begin=_HOW_TO_BEGIN, ended=ended)

    @contextlib.contextmanager
    def _collecting(self, number: int) -> Iterator[None]:
        try:
            yield
        except IncompleteError as error:
            self.failed[number] = error

    def _refuse(self) -> None:
        failed = [(self.arrays[number][0], error) for number, error in sorted(self.failed.items())]
        if failed:
            raise _incomplete(self.parts, failed, self.n_parts)


def _is_of(one: NamedConversion, receipt: Receipt) -> bool:
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


def _converted(
    one: NamedConversion, target: Target, result: WriteResult, n_odd: int
) -> ConvertedArray:
    return ConvertedArray(
        name=one.name,
        path=target.label,
        how=one.how,
        why=one.why,
        result=result,
        n_odd=min(n_odd, result.n_chunks - result.n_empty_chunks),
    )


def _incomplete(
    parts: PlannedParts,
    failed: Sequence[tuple[NamedConversion, IncompleteError]],
    n_parts: int | None,
) -> IncompleteError:
    """The error that names the missing shards of all arrays."""
    if len(failed) == 1:
        return failed[0][1]
    numbers = sorted({part for _, error in failed for part in error.fields["parts"]})
    names = ", ".join(one.name for one, _ in failed[:_MAX_NAMED])
    more = ", ..." if len(failed) > _MAX_NAMED else ""
    missing = [f"{one.name}/{key}" for one, error in failed for key in error.fields["missing"]]
    found = IncompleteError(
        f"{parts.label} is not whole: shards of {len(failed):,} of {len(parts.made):,} arrays are "
        f"not committed ({names}{more}); {remedy_of_parts(numbers, n_parts)}",
        missing=missing[:_MAX_MISSING],
        parts=numbers,
    )
    for _, error in failed[:_MAX_NAMED]:
        found.add_note(error.message)
    return found


def _result(parts: PlannedParts, arrays: Sequence[ConvertedArray], start: float) -> Conversion:
    return Conversion(
        source=parts.tree.place.label,
        path=parts.label,
        arrays=tuple(arrays),
        seconds=rounded(time.perf_counter() - start),
        left_out=parts.tree.left_out,
    )
