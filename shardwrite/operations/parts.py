"""Functions that write an array in parts, for job arrays and `srun`; no dask scheduler is needed.

`prepare` begins the run, `write_part` writes one part, and `finalize` checks all shards and
publishes the array. The plan is made once and stored beside the array. The parts depend only on
this plan and on the number of parts, not on the machines that write them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, TypeVar

from shardwrite.checks import whole
from shardwrite.engines.local import LocalEngine
from shardwrite.entry.public import taking
from shardwrite.errors import IncompleteError, RunEndedError, SpecError
from shardwrite.format.document import other_format
from shardwrite.journal.receipt import Receipt, read_receipt
from shardwrite.journal.rundir import RunDirectory
from shardwrite.operations.keywords import FinalizeKeywords, ProgressKeywords
from shardwrite.operations.steps import (
    PartSource,
    Share,
    check_fits,
    counted_at,
    enter_at,
    run_in_parts,
    steps_of,
)
from shardwrite.options import (
    BeginKeywords,
    ExistingArguments,
    ModeKeywords,
    NameKeywords,
    ReportKeywords,
    RunArguments,
    SourceKeywords,
    StateKeywords,
    StripeKeywords,
    argument,
    arguments,
    options_from,
    same_as,
)
from shardwrite.place.target import Target, resolve_new, resolve_target
from shardwrite.plan.options import memory_limit_of
from shardwrite.plan.plan import Plan, check_n_parts, check_part
from shardwrite.runs.array_plan import resources_of
from shardwrite.runs.begun import plan_begun
from shardwrite.runs.execute import Run
from shardwrite.runs.in_parts import refuse_missing, refuse_unwritten, run_on
from shardwrite.runs.job import Job, NoChunks, RunOptions, for_new_array
from shardwrite.runs.kept import check_kept
from shardwrite.runs.result import WriteResult, result_from_receipt

__all__ = ["finalize", "prepare", "working_on", "write_part"]

_Done = TypeVar("_Done")


@arguments
class PrepareArguments(StripeKeywords, ModeKeywords, BeginKeywords, StateKeywords, NameKeywords):
    """Arguments of `prepare`."""

    x: Any = argument(
        """The source, as in :func:`to_sharded_zarr`. If the plan copies encoded chunks of a
        `zarr.Array`, it is that array.""",
        kind="array_like",
    )
    store: Any = same_as(ExistingArguments, "store")
    plan: Plan = argument("The plan that :func:`plan` or :func:`plan_precomputed` made for `x`.")
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
    n_targets, plan = call.stripe_count, call.plan
    if n_targets is not None:
        whole("stripe_count", n_targets, "a number of targets")
    _check_plan(plan)
    target = resolve_new(call.store, call.name, call.run_dir, call.format)
    main = plan if plan.gathering is None else plan.gathering
    steps = steps_of(main.metadata)
    steps.check_new(target, main.metadata, call.run_dir)
    if call.format is not None:
        _check_format(main, call.format)
    engine = LocalEngine("threads")
    options = for_new_array(options_from(call, RunOptions))
    job = Job(PartSource.of(call.x).chunks_for(plan), plan, target, options)
    steps.prepare(job, target, engine, call.run_dir, n_targets)


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
            remedy="plan each scale by a call of its own, and prepare them one by one",
        )
    if plan.region is not None:
        raise SpecError(
            "it plans an update, which is not written in parts",
            field="plan",
            value=repr(plan),
            remedy="write it with write_region",
        )


@arguments
class PartArguments(ProgressKeywords, SourceKeywords, StateKeywords, NameKeywords):
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
        names, which it does if that is a file or a Zarr array, and nothing is computed of it.""",
        kind="array_like or None",
    )
    store: Any = same_as(ExistingArguments, "store")
    index: int = argument(
        """Number of this part, counted from 0. The parts have about the same decoded size."""
    )
    count: int = argument("Number of all parts.")


@taking(PartArguments)
def write_part(call: PartArguments) -> WriteResult:
    """Write one part of an array, with the threads of this process.

    If the plan copies encoded chunks, as :func:`plan_precomputed` says, each part copies its own.
    It must then be given the `zarr.Array` that has them.

    If the array is a scale of a volume whose hash scatters the chunks, each part is written twice.
    A first call spools its chunks. When all parts have done so, a second call gathers its shards.
    Leave the second round out, and :func:`finalize` gathers all of them.

    Returns
    -------
    WriteResult
        Result of this part, or of the whole array if that is already published.

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


@arguments
class FinalizeArguments(FinalizeKeywords, ReportKeywords, ProgressKeywords, RunArguments):
    """Arguments of `finalize`."""

    HELP: ClassVar[Mapping[str, str]] = {
        "keep_report": "Keep a report of all parts in the array, as :func:`to_sharded_zarr` does.",
        "progress": """As in :func:`to_sharded_zarr`. Only shards that are gathered are
        reported.""",
    }


@taking(FinalizeArguments)
def finalize(call: FinalizeArguments) -> WriteResult:
    """Check the index of every shard, and publish the array if it is whole.

    The call may be interrupted, and made again: a shard that was checked within a day is not
    checked again. That includes shards that :func:`write_part` has checked, which it does where it
    finds them written.

    A scale of a volume of Neuroglancer then enters the ``info`` of its volume. If its hash scatters
    the chunks, shards that no part has gathered are gathered first. Files that dead processes have
    left are removed.

    Returns
    -------
    WriteResult
        Result of the whole array.

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
    JournalError
        If the files beside the array hold no plan that can be written in parts.
    """
    target = _target_of(call)
    n_parts = check_n_parts(call.n_parts)
    engine = LocalEngine("threads")

    def job_of(run: RunDirectory) -> Job:
        plan = plan_begun(run, resources_of(engine))
        return Job.of_run(run, NoChunks(), plan, keep_report=call.keep_report)

    def finish(run: RunDirectory) -> WriteResult:
        own = run_in_parts(run, engine, call.run_dir)
        if own is None:
            trusts = call.trust_journals
            with Run.open([job_of(run)], engine, mode="end", trusts_journals=trusts) as joined:
                refuse_missing(joined.session.job, joined.session.ledger, n_parts)
                return joined.finish()[0]
        result = own.finish(n_parts, call.progress, keep_report=call.keep_report)
        return counted_at(target, result)

    def check(run: RunDirectory) -> None:
        own = run_in_parts(run, engine, call.run_dir)
        if own is None:
            refuse_unwritten(job_of(run), run, n_parts)
        else:
            own.check(n_parts)

    look = partial(check_kept, target, engine)
    result = working_on(target, finish, look=look, check=check)
    enter_at(target, call.run_dir)
    return result


def _target_of(call: PartArguments | FinalizeArguments) -> Target:
    return resolve_target(call.store, call.name, call.run_dir)


def working_on(
    target: Target,
    work: Callable[[RunDirectory], _Done],
    is_ours: Callable[[Receipt], bool] = lambda _: True,
    look: Callable[[], None] = lambda: None,
    how_to_begin: str = "call prepare first (shardwrite init)",
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
    try:
        with run_on(target, check) as run:
            if run is not None and run.makes_array:
                return work(run)
    except RunEndedError as error:
        ended = error
    return result_left(target, is_ours, look, how_to_begin=how_to_begin, ended=ended)


def result_left(
    target: Target,
    is_ours: Callable[[Receipt], bool],
    look: Callable[[], None] = lambda: None,
    *,
    how_to_begin: str,
    ended: RunEndedError | None = None,
) -> WriteResult:
    """The result of an array on which no run goes on, from its receipt; see `working_on`.

    - `ended`: the error that a run has ended during the work, if one has.
    """
    receipt = read_receipt(target) if target.place.kind() == "array" else None
    result = (
        counted_at(target, result_from_receipt(receipt.result, target.label))
        if receipt is not None and is_ours(receipt)
        else None
    )
    if result is not None:
        if ended is None:
            look()
        return result
    if ended is not None:
        raise ended
    raise IncompleteError(
        f"nothing was begun for {target.label}; {how_to_begin}", missing=[str(target.run_path)]
    )
