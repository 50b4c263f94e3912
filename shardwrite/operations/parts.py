"""Functions that write an array in parts, for job arrays and `srun`; no dask scheduler is needed.

`prepare` begins the run, `write_part` writes one part, and `finalize` checks all shards and
publishes the array. The plan is made once and stored beside the array. The parts depend only on
this plan and on the number of parts, not on the machines that write them. Several arrays are begun,
cut into parts and published together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from shardwrite._dataclass import dataclass
from shardwrite.checks import whole
from shardwrite.engines.local import LocalEngine
from shardwrite.entry.public import taking
from shardwrite.errors import IncompleteError, RunEndedError, SpecError
from shardwrite.format.document import other_format
from shardwrite.format.metadata import ArrayMetadata, metadata_of_document
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.receipt import Receipt
from shardwrite.journal.rundir import RunDirectory, in_one_state, located
from shardwrite.operations.keywords import FinalizeKeywords, ProgressKeywords
from shardwrite.operations.steps import (
    PartSource,
    Share,
    check_fits,
    counted_at,
    enter_above,
    run_in_parts,
    steps_of,
)
from shardwrite.operations.together import ArrayInParts, ArraysInParts, result_left
from shardwrite.options import (
    BeginKeywords,
    ExistingArguments,
    ModeKeywords,
    NameKeywords,
    NamesKeywords,
    ReportKeywords,
    SourceKeywords,
    StateKeywords,
    StripeKeywords,
    argument,
    arguments,
    keywords,
    options_from,
    same_as,
)
from shardwrite.place.base import opened_once
from shardwrite.place.seen import Seen
from shardwrite.place.target import Target, resolve_new, resolve_target
from shardwrite.plan.options import memory_limit_of
from shardwrite.plan.plan import Plan, check_n_parts, check_part
from shardwrite.read.array import open_at
from shardwrite.runs.array_plan import resources_of
from shardwrite.runs.begun import plan_begun
from shardwrite.runs.execute import Run
from shardwrite.runs.in_parts import (
    prepare_jobs,
    refuse_missing,
    refuse_unwritten,
    remedy_of_parts,
    runs_on,
)
from shardwrite.runs.job import Job, NoChunks, RunOptions, for_new_array
from shardwrite.runs.kept import check_kept
from shardwrite.runs.result import WriteResult

__all__ = ["finalize", "prepare", "working_on", "write_part"]

_Done = TypeVar("_Done")

_HOW_TO_BEGIN = "call prepare first (shardwrite init)"


@keywords
class PartsKeywords(StateKeywords, NamesKeywords, NameKeywords):
    """Which arrays are written in parts."""

    HELP: ClassVar[Mapping[str, str]] = {
        "names": """Paths of several arrays in `store`, which are cut into parts together. Then
        there is a source for each of them, and where it is asked for, a plan and an identifier.
        The cuts depend on the order, so give all calls the same names in the same order. None
        stands for an array that is the store itself; `store` may then be a list, too.""",
    }


if TYPE_CHECKING:
    # What overloads are told apart by.

    @keywords
    class _One(NamesKeywords):
        """Of a call for one array."""

        names: None = None

    @keywords
    class _Several(NamesKeywords):
        """Of a call for several arrays."""

        names: Sequence[str | None]


@arguments
class PrepareArguments(StripeKeywords, ModeKeywords, BeginKeywords, PartsKeywords):
    """Arguments of `prepare`."""

    x: Any = argument(
        """The source, as in :func:`to_sharded_zarr`. If the plan copies encoded chunks of a
        `zarr.Array`, it is that array. With `names`, a list of sources.""",
        kind="array_like",
    )
    store: Any = same_as(ExistingArguments, "store")
    plan: Plan | Sequence[Plan] = argument(
        """The plan that :func:`plan` or :func:`plan_precomputed` made for `x`. With `names`, a list
        of plans, or the plan of all scales of a volume. The names are then those of its scales.""",
        kind="Plan, or sequence of Plan",
    )
    format: str | None = argument(
        "The format, if the plan was made with one.",
        choices=("transformer-2022",),
        flag=None,
        default=None,
        kw_only=True,
    )


@taking(PrepareArguments)
def prepare(call: PrepareArguments) -> None:
    """Begin a run that is written in parts. Call this once, before any part is written.

    Raises
    ------
    SpecError
        If an argument does not fit, or something that may not be replaced exists there.
    JournalError
        If another run on the array has not ended.
    StoreError
        If the storage refuses, or Lustre's ``lfs`` command is missing or fails.
    """
    n_targets, engine = call.stripe_count, LocalEngine("threads")
    if n_targets is not None:
        whole("stripe_count", n_targets, "a number of targets")
    options = for_new_array(options_from(call, RunOptions))
    places, jobs, seen = _places_of(call), [], Seen()
    sources = [call.x] if call.names is None else _each("x", call.x, len(places))
    for x, plan, place in zip(sources, _plans_of(call), places, strict=True):
        target = resolve_new(*place, call.run_dir, call.format, seen=seen)
        main = plan if plan.gathering is None else plan.gathering
        steps = steps_of(main.metadata)
        steps.check_new(target, main.metadata, call.run_dir)
        if call.format is not None:
            _check_format(main, call.format)
        if call.names is not None:
            target = steps.among_others(target, call.run_dir)
        jobs.append(Job(PartSource.of(x).chunks_for(plan), plan, target, options))
        if call.names is None:
            steps.prepare(jobs[0], target, engine, call.run_dir, n_targets)
    if call.names is not None:
        prepare_jobs(jobs, engine, n_targets)


def _places_of(call: PrepareArguments | PartArguments | FinalizeArguments) -> list[tuple[Any, Any]]:
    """Store and name of each array."""
    if call.names is None:
        return [(call.store, call.name)]
    names = _each("names", call.names)
    refuse_both(call.name, names)
    if isinstance(call.store, list | tuple):
        return list(zip(_each("store", call.store, len(names)), names, strict=True))
    store = opened_once(call.store)
    return [(store, name) for name in names]


def refuse_both(name: str | None, names: Sequence[Any] | None) -> None:
    """Refuse the name of one array beside names of several."""
    if names is not None and name is not None:
        remedy = "give names only"
        raise SpecError("names are given, too", field="name", value=name, remedy=remedy)


def _each(field: str, given: Any, n: int | None = None) -> Sequence[Any]:
    """What is given for each of several arrays."""
    if not isinstance(given, list | tuple) or not given or (n is not None and len(given) != n):
        raise SpecError(
            "not one for each array",
            field=field,
            value=type(given).__name__ if not isinstance(given, list | tuple) else len(given),
            remedy="give a list of them" if n is None else f"give a list of {n}, one for each name",
        )
    return given


def _plans_of(call: PrepareArguments) -> Sequence[Plan]:
    """The plan of each array."""
    plan = call.plan
    if call.names is None:
        _check_plan(plan)
        return [plan]  # type: ignore[list-item] # it was checked
    given = [plan, *plan.scales] if isinstance(plan, Plan) else plan
    plans: Sequence[Plan] = [
        replace(each, scales=()) if isinstance(each, Plan) else each
        for each in _each("plan", given, len(call.names))
    ]
    for each in plans:
        _check_plan(each)
        if each.gathering is not None:
            raise SpecError(
                "it spools the chunks of a scale, which is written in two rounds",
                field="plan",
                value=repr(each),
                remedy="prepare this scale by a call of its own",
            )
    return plans


def _check_format(plan: Plan, format: str) -> None:  # noqa: A002 (the word that users know)
    """Refuse a plan that was made without the format."""
    try:
        other_format(format).document(plan.metadata.document)
    except SpecError as error:
        raise SpecError(
            f"the plan was made for another one, as its {error.fields['field']} shows",
            field="format",
            value=format,
            remedy="give it to shardwrite.plan, too",
        ) from None


def _check_plan(plan: object) -> None:
    if not isinstance(plan, Plan):
        remedy = "give what shardwrite.plan(x, ...) returns"
        raise SpecError("not a plan", field="plan", value=type(plan).__name__, remedy=remedy)
    if plan.scales:
        raise SpecError(
            "it plans several scales",
            field="plan",
            value=repr(plan),
            remedy="plan each scale by a call of its own and prepare it, or give names of all "
            "scales, with a list of their sources",
        )
    if plan.region is not None:
        raise SpecError(
            "it plans an update, which is not written in parts",
            field="plan",
            value=repr(plan),
            remedy="write it with write_region",
        )


@arguments
class PartArguments(ProgressKeywords, SourceKeywords, PartsKeywords):
    """Arguments of `write_part`."""

    HELP: ClassVar[Mapping[str, str]] = {
        "source_id": "The identifier that was given to :func:`plan`.",
        "memory_limit": """Bytes that this process may use, as a number or a text such as ``"4GB"``.
        By default the limit of the job, the control group or the machine.""",
    }

    COMMAND_HELP: ClassVar[Mapping[str, str]] = {
        "memory_limit": "Memory of this process, such as 4GB. Default: what its job may use here.",
    }

    x: Any = argument(
        """The source, as in :func:`to_sharded_zarr`. None stands for the source that the plan
        names, which it does if that is a file or a Zarr array, and nothing is computed of it. With
        `names`, a list of sources, or None.""",
        kind="array_like or None",
    )
    store: Any = same_as(ExistingArguments, "store")
    index: int = argument(
        """Number of this part, counted from 0. The parts have about the same decoded size."""
    )
    count: int = argument("Number of all parts.")


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _PartOfOne(_One, PartArguments): ...

    @dataclass(frozen=True)
    class _PartOfSeveral(_Several, PartArguments): ...


if TYPE_CHECKING:

    @overload
    @taking(_PartOfOne)
    def write_part(call: _PartOfOne) -> WriteResult: ...

    @overload
    @taking(_PartOfSeveral)
    def write_part(call: _PartOfSeveral) -> list[WriteResult]: ...

    @overload
    @taking(PartArguments)
    def write_part(call: PartArguments) -> WriteResult | list[WriteResult]: ...


@taking(PartArguments)
def write_part(call: PartArguments) -> WriteResult | list[WriteResult]:
    """Write one part of an array, with the threads of this process.

    If the plan copies encoded chunks, as :func:`plan_precomputed` says, each part copies its own.
    It must then be given the `zarr.Array` that has them.

    If the array is a scale of a volume whose hash scatters the chunks, each part is written twice.
    A first call spools its chunks. When all parts have done so, a second call gathers its shards.
    Leave the second round out, and :func:`finalize` gathers all of them.

    Returns
    -------
    WriteResult, or list of WriteResult
        Result of this part, or of the whole array if that is already published. With `names`, a
        list of them. Arrays of which the part has nothing are left out.

    Raises
    ------
    SpecError
        If an argument does not fit, for instance unless ``0 <= index < count``.
    IncompleteError
        If no run was begun there, or the process was asked to stop and shards are missing.
    PlanError
        If the plan does not fit into the memory of this process.
    JournalError
        If the run was begun for another source.
    ChangedError
        If encoded chunks are copied, and their array has lost objects.
    RunEndedError
        If the run has ended meanwhile and did not write this source.
    SourceError, CodecError, StoreError
        If a task fails. Its shard is not committed.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> x = da.arange(1000, chunks=300); path = tempfile.mkdtemp() + "/x.zarr"
    >>> shardwrite.prepare(x, path, shardwrite.plan(x, shards=100, chunks=50))
    >>> parts = [shardwrite.write_part(x, path, i, 3) for i in range(3)]
    >>> shardwrite.finalize(path).n_shards
    10
    """
    index, count = check_part(call.index, call.count)
    if call.names is not None:
        return _write_part_of_several(call)
    own = None if call.x is None else PartSource.of(call.x, call.source_id)
    target = _target_of(call)
    engine = LocalEngine("threads")
    limit = memory_limit_of(call.memory_limit)

    def write(run: RunDirectory) -> WriteResult:
        source = PartSource.of_run(run) if own is None else own
        in_own_way = run_in_parts(run, engine, call.run_dir, limit)
        if in_own_way is not None:
            return in_own_way.write(Share(source, index, count), call.progress)
        chunks, plan = source.planned(run, resources_of(engine, limit))
        job = Job.of_run(run, chunks, plan, plan.part(index, count))
        check_fits(job)
        with Run.open([job], engine, call.progress, "part") as joined:
            return joined.execute()[0]

    return working_on(
        target, write, lambda receipt: own is None or own.is_named(receipt.identity.source)
    )


def _write_part_of_several(call: PartArguments) -> list[WriteResult]:
    """Write what a part has of each of several arrays."""
    engine, limit = LocalEngine("threads"), memory_limit_of(call.memory_limit)
    places = _places_of(call)
    sources: Sequence[PartSource | None] = [None] * len(places)
    if call.x is not None:
        given = _each("x", call.x, len(places))
        ids = [None] * len(places) if call.source_id is None else call.source_id
        named = zip(given, _each("source_id", ids, len(places)), strict=True)
        sources = [PartSource.of(x, source_id) for x, source_id in named]

    def job_of(own: PartSource | None, run: RunDirectory) -> Job:
        source = PartSource.of_run(run) if own is None else own
        _refuse_own_way(run, engine, call.run_dir)
        chunks, plan = source.planned(run, resources_of(engine, limit))
        job = Job.of_run(run, chunks, plan)
        check_fits(job)
        return job

    def is_ours(own: PartSource | None, receipt: Receipt) -> bool:
        return own is None or own.is_named(receipt.identity.source)

    arrays = [
        ArrayInParts(
            target.name or target.label,
            target,
            _metadata_at(target).raw_nbytes if own is None else int(own.array.nbytes),
            partial(job_of, own),
            partial(is_ours, own),
        )
        for own, target in zip(sources, _targets_of(call), strict=True)
    ]
    all_of_them = ArraysInParts(str(call.store), arrays, engine, _HOW_TO_BEGIN)
    done = all_of_them.write(call.index, call.count, call.progress)
    return [result for result, _ in done.values()]


def _refuse_own_way(run: RunDirectory, engine: LocalEngine, run_dir: Any) -> None:
    """Refuse an array of several that is written in parts in a way of its own."""
    if run_in_parts(run, engine, run_dir) is not None:
        raise SpecError(
            f"{run.target.label} is written in two rounds",
            field="names",
            value=run.target.name,
            remedy="write it by calls of its own",
        )


def _metadata_at(target: Target) -> ArrayMetadata:
    """Metadata of an array that was begun, or is published."""
    with runs_on([target], None) as runs:
        for run in runs.values():
            return metadata_of_document(run.document)
    result_left(target, lambda _: True, how_to_begin=_HOW_TO_BEGIN)
    return open_at(target.place).metadata


@arguments
class FinalizeArguments(FinalizeKeywords, ReportKeywords, ProgressKeywords, PartsKeywords):
    """Arguments of `finalize`."""

    store: Any = same_as(ExistingArguments, "store")

    HELP: ClassVar[Mapping[str, str]] = {
        "keep_report": "Keep a report of all parts in the array, as :func:`to_sharded_zarr` does.",
        "progress": """As in :func:`to_sharded_zarr`. Only shards that are gathered are
        reported.""",
    }


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class _EndOfOne(_One, FinalizeArguments): ...

    @dataclass(frozen=True)
    class _EndOfSeveral(_Several, FinalizeArguments): ...


if TYPE_CHECKING:

    @overload
    @taking(_EndOfOne)
    def finalize(call: _EndOfOne) -> WriteResult: ...

    @overload
    @taking(_EndOfSeveral)
    def finalize(call: _EndOfSeveral) -> list[WriteResult]: ...

    @overload
    @taking(FinalizeArguments)
    def finalize(call: FinalizeArguments) -> WriteResult | list[WriteResult]: ...


@taking(FinalizeArguments)
def finalize(call: FinalizeArguments) -> WriteResult | list[WriteResult]:
    """Check the index of every shard, and publish the array if it is whole.

    The call may be interrupted, and made again: a shard that was checked within a day is not
    read again unless it has changed since. That includes shards that :func:`write_part` has
    checked, which it does where it finds them written.

    A scale of a volume of Neuroglancer then enters the ``info`` of its volume. If its hash scatters
    the chunks, shards that no part has gathered are gathered first. Files that dead processes have
    left are removed.

    Returns
    -------
    WriteResult, or list of WriteResult
        Result of the whole array. With `names`, a list with one for each array. None of them is
        published before all are whole.

    Raises
    ------
    SpecError
        If `n_parts` is no whole number of 1 or more.
    PlanError
        If gathering takes more memory than this process may use.
    ChangedError
        If the array was finished before, and is not what its last run left.
    IncompleteError
        If no run was begun there, or shards are missing or damaged. The error has the keys of
        these shards and, if `n_parts` is given, the `parts` that they belong to. Also if the
        process was asked to stop while it gathered shards.
    StoreError
        If the storage refuses to read a shard, which may be whole. The same call goes on.
    JournalError
        If the files beside the array hold no plan that can be written in parts.
    """
    n_parts = check_n_parts(call.n_parts)
    engine = LocalEngine("threads")

    def job_of(run: RunDirectory) -> Job:
        plan = plan_begun(run, resources_of(engine))
        return Job.of_run(run, NoChunks(), plan, keep_report=call.keep_report)

    if call.names is not None:
        return _finalize_several(call, job_of, engine, n_parts)
    target = _target_of(call)

    def finish(run: RunDirectory) -> WriteResult:
        own = run_in_parts(run, engine, call.run_dir)
        if own is None:
            trusts = call.trust_journals
            with Run.open([job_of(run)], engine, mode="end", trusts_journals=trusts) as joined:
                ledger = joined.session.ledger
                with _telling_of_all(run, engine, job_of, n_parts, ledger):
                    joined.session.refuse_unread()
                    refuse_missing(joined.session.job, ledger, n_parts)
                return joined.finish()[0]
        result = own.finish(n_parts, call.progress, keep_report=call.keep_report)
        return counted_at(target, result)

    def check(run: RunDirectory) -> None:
        own = run_in_parts(run, engine, call.run_dir)
        if own is None:
            with _telling_of_all(run, engine, job_of, n_parts):
                refuse_unwritten(job_of(run), run, n_parts)
        else:
            own.check(n_parts)

    look = partial(check_kept, target, engine)
    result = working_on(target, finish, look=look, check=check)
    enter_above(target, call.run_dir)
    return result


@contextlib.contextmanager
def _telling_of_all(
    run: RunDirectory,
    engine: LocalEngine,
    job_of: Callable[[RunDirectory], Job],
    n_parts: int | None,
    ledger: Ledger | None = None,
) -> Iterator[None]:
    """Have the error that shards of an array are missing tell of all arrays of its run.

    - `ledger`: the shards of the array, if indexes were looked at.
    """
    try:
        yield
    except IncompleteError as alone:
        if run.record.together is None:
            raise
        every = ArraysInParts.of_run(run, engine, job_of)
        runs = {one.number: one for one in run.outputs()}
        try:
            every.refuse_unwritten(n_parts, runs, {} if ledger is None else {run.number: ledger})
        except IncompleteError as error:
            if n_parts is not None:
                of_one = remedy_of_parts(alone.fields["parts"], n_parts)
                error.add_note(
                    f"The parts are those of all {len(runs):,} arrays of the run, which names= "
                    "(--names) cuts together. If each was cut alone, by name= (--name), then of "
                    f"{run.target.name} {of_one}"
                )
            raise error from None
        raise


def _finalize_several(
    call: FinalizeArguments,
    job_of: Callable[[RunDirectory], Job],
    engine: LocalEngine,
    n_parts: int | None,
) -> list[WriteResult]:
    """Publish several arrays."""

    def checked(run: RunDirectory) -> Job:
        _refuse_own_way(run, engine, call.run_dir)
        return job_of(run)

    targets = _targets_of(call)
    each = [_metadata_at(target) for target in targets]
    among = [
        steps_of(metadata).among_others(target, call.run_dir)
        for target, metadata in zip(targets, each, strict=True)
    ]
    arrays = [
        ArrayInParts(target.name or target.label, target, metadata.raw_nbytes, checked)
        for target, metadata in zip(in_one_state(among), each, strict=True)
    ]
    all_of_them = ArraysInParts(str(call.store), arrays, engine, _HOW_TO_BEGIN)
    results = all_of_them.finish(n_parts, trusts_journals=call.trust_journals)
    for one in arrays:
        enter_above(one.target, call.run_dir)
    return results


def _targets_of(call: PartArguments | FinalizeArguments) -> list[Target]:
    seen = Seen()
    found = [resolve_target(*place, call.run_dir, seen=seen) for place in _places_of(call)]
    # In a bucket, other arrays of the same run may come first, which this call does not name.
    first = min(range(len(found)), key=lambda number: found[number].name)
    found[first] = located(found[first])
    return in_one_state(found)


def _target_of(call: PartArguments | FinalizeArguments) -> Target:
    return _targets_of(call)[0]


def working_on(
    target: Target,
    work: Callable[[RunDirectory], _Done],
    is_ours: Callable[[Receipt], bool] = lambda _: True,
    look: Callable[[], None] = lambda: None,
    how_to_begin: str = _HOW_TO_BEGIN,
    check: Callable[[RunDirectory], None] | None = None,
) -> _Done | WriteResult:
    """Call `work` on the unfinished run of an array, or take the result from its receipt.

    The receipt counts only if `is_ours` says so. `look` is called before the result of a run that
    had ended before is returned. `how_to_begin` is the remedy if nothing was begun. `check` is
    given by a process that ends the run. If the state lies in the bucket, that process stops all
    others, so `check` is called before, and may raise.

    - Raises RunEndedError if the run ends during the work, and no receipt counts.
    - Raises IncompleteError if there is neither a run that makes the array nor a receipt that
      counts.
    """
    ended: RunEndedError | None = None

    def check_all(runs: Mapping[int, RunDirectory]) -> None:
        for run in runs.values():
            if check is not None:
                check(run)

    try:
        with runs_on([target], None if check is None else check_all) as runs:
            for run in runs.values():
                return work(run)
    except RunEndedError as error:
        ended = error
    return result_left(target, is_ours, look, how_to_begin=how_to_begin, ended=ended)
