"""Recovery: go on with an array of which only shards are left, since the state of its run is lost.

That happens if scratch is purged: the directory beside the array is gone, or the one that `run_dir`
names. In a store, the mark of the run stays. The call says again what the array was to be, and the
shards tell what is done. These are the steps, and what a crash leaves after each:

1. Look at all that lies there. Anything that can be no part of this array is refused, and so is a
   run that has a state. Decode all shards. If nothing fits the plan, or shards cannot be had, the
   call ends. *Nothing has changed.*
2. Begin a run of the plan over what is there. It replaces nothing, and takes over the mark of the
   lost run. *A run without shards in its journal; the same call, or the one that writes the array,
   goes on with it.*
3. Look at the indexes again, since nobody else writes the array now. Sync the shards, and enter
   them into the journal. *A run like any other.*
4. Write bad and missing shards from the source, publish the array, leave a receipt, end the run;
   see :mod:`shardwrite.journal.rundir`.

No shard is removed: a bad one is replaced when its successor is whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from functools import partial
from itertools import islice
from operator import lt
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite._lazy import if_loaded
from shardwrite.checks import flag
from shardwrite.engines import active_engine
from shardwrite.engines.local import Engine
from shardwrite.entry.public import taking
from shardwrite.errors import JournalError, SpecError, printable
from shardwrite.format.document import ArrayOptions
from shardwrite.format.node import DOCUMENT, without_keys
from shardwrite.journal.begin import differences, find_run
from shardwrite.journal.lease import live_holders
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.receipt import read_receipt
from shardwrite.journal.replay import drivers_on
from shardwrite.journal.rundir import held, holding, refuse_unfinished
from shardwrite.operations.keywords import ProgressKeywords
from shardwrite.operations.write import dtype_of, shape_of
from shardwrite.options import (
    ArrayKeywords,
    DurabilityKeywords,
    ExistingArguments,
    NameKeywords,
    PlanKeywords,
    ReportKeywords,
    StateKeywords,
    arguments,
    option,
    options_from,
    same_as,
)
from shardwrite.place.base import RECEIPT_NAME, REPORT_NAME
from shardwrite.place.target import Target, check_surroundings, check_target, resolve_new
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.partition import check_whole
from shardwrite.plan.plan import Plan
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import ShardTable, inspect_shards, of_objects, ranks_of_objects
from shardwrite.results import Facts, Result, counted
from shardwrite.runs.array_plan import ArrayChunks, plan_array, plan_without_data
from shardwrite.runs.execute import Run
from shardwrite.runs.job import ChunkSource, Job, NoChunks, RunOptions
from shardwrite.runs.result import WriteResult, finished, incomplete
from shardwrite.runs.source_array import as_source_array
from shardwrite.stores.base import Store, changed_meanwhile
from shardwrite.stores.looking import is_there

__all__ = ["Recovery", "recover"]

_N_NAMED = 50  # most shards that are named to people


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery(Result):
    """Report of a recovery: what was there, and what was made of it.

    Attributes
    ----------
    path : str
        Path of the array.
    n_shards : int
        Number of shards in the shard grid.
    n_good : int
        Number of shards that are there and whole: every inner chunk was decoded.
    bad : tuple of str
        Keys of the shards that are there and cannot be read, each with the reason.
    n_missing : int
        Number of shards without an object. They hold only the fill value, or were not written.
    n_temporaries : int
        Number of temporary files of dead processes, which are removed.
    result : WriteResult or None
        Result of the run that has published the array; None with `dry_run`.
    """

    path: str
    n_shards: int
    n_good: int
    bad: tuple[str, ...] = ()
    n_missing: int = 0
    n_temporaries: int = 0
    result: WriteResult | None = None

    @property
    def _title(self) -> str:
        return "recovered" if self.result is not None else "to recover"

    def __repr__(self) -> str:
        told = f"{self.n_good:,} of {counted(self.n_shards, 'shard')} are there"
        return f"<Recovery of {printable(self.path)}, {self._title}: {told}>"

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        rows = [
            ("array", self.path),
            ("good", f"{self.n_good:,} of {counted(self.n_shards, 'shard')}, every chunk decoded"),
            ("bad", f"{len(self.bad):,}"),
            ("missing", f"{self.n_missing:,} have no object"),
            ("leftovers", counted(self.n_temporaries, "temporary file")),
        ]
        if self.result is not None:
            rows += [row for row in self.result.facts().rows if row[0] != "array"]
        headline = [(f"{self.n_good:,}", "good"), (f"{len(self.bad) + self.n_missing:,}", "others")]
        faults = [("bad", text) for text in self.bad[:_N_NAMED]]
        return Facts(
            title=self._title,
            subject=self.path,
            headline=headline,
            problems=[] if self.result is not None else faults,
            rows=rows,
        )


@arguments
class RecoverArguments(
    ProgressKeywords,
    ReportKeywords,
    DurabilityKeywords,
    StateKeywords,
    PlanKeywords,
    ArrayKeywords,
    NameKeywords,
):
    """Arguments of `recover`."""

    section: ClassVar[str] = "Options"
    HELP: ClassVar[Mapping[str, str]] = {
        "name": "Path of the array in the store.",
        "source_id": "The same as when the array was written.",
    }

    store: Any = same_as(ExistingArguments, "store")
    x: Any = option(
        None,
        """The source, as in :func:`to_sharded_zarr`. Bad and missing shards are written from it.
        Without a source, give `shape` and `dtype`.""",
        kind="array_like",
        flag="source",
        parser="src",
        command_help="Write bad and missing shards from this source.",
    )
    _: KW_ONLY
    shape: tuple[int, ...] | None = option(
        None, "Shape of the array, if there is no source.", kind="tuple of int", flag=None
    )
    dtype: Any = option(
        None, "Data type of the array, if there is no source.", kind="dtype_like", flag=None
    )
    empty: bool = option(
        False,
        """Take all shards that are missing for empty ones. A shard that holds only the fill value
        has no object, so that nothing tells it from one that was not written.""",
        command_help="Take missing shards for empty ones, which hold only the fill value.",
    )
    dry_run: bool = option(
        False, "Only look, and change nothing. All shards are decoded.", flag=None
    )


@taking(RecoverArguments)
def recover(call: RecoverArguments) -> Recovery:
    """Publish an array whose run has lost its state, from the shards that are there.

    The state of a run lies beside the array, or in `run_dir`. If it was removed before the array
    was published, give the keywords with which the array was written. Each shard is decoded. Good
    ones count as done. The others are written from the source, and the array is published as by
    any run. If this is interrupted, the same call goes on, and so does the call that writes the
    array.

    Nothing tells from which data the shards were written. :func:`verify` compares the array with a
    source.

    Returns
    -------
    Recovery
        What was there, and the result of the run.

    Raises
    ------
    SpecError
        If an argument does not fit. Also if a finished array or a group stands there, or files that
        are no shards of this array, or if none of the shards fits the keywords.
    JournalError
        If a run on the array has a state: that of another plan, or of a process that lives.
    IncompleteError
        If there is no source, and shards are bad or missing.
    SourceError, CodecError, StoreError
        If a task fails, or the storage refuses.

    Examples
    --------
    >>> import dask.array as da, os, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"; x = da.arange(100, chunks=10) + 1
    >>> _ = x.to_sharded_zarr(path, shards=40, chunks=8)
    >>> for leaf in ("zarr.json", "shardwrite-receipt.json", "c/1"):
    ...     os.unlink(f"{path}/{leaf}")  # as if the run had not ended, and its state were gone
    >>> shardwrite.recover(path, x, shards=40, chunks=8, dry_run=True).n_missing
    1
    >>> shardwrite.recover(path, x, shards=40, chunks=8).n_good
    2
    >>> shardwrite.verify(path, deep=True, against=x).is_good
    True
    """
    flag("empty", call.empty)
    flag("dry_run", call.dry_run)
    engine = active_engine()
    target = resolve_new(call.store, call.name, call.run_dir, call.format)
    source, plan = _planned(call, target, engine)
    check_whole(plan.metadata.grid, target.label)
    with holding(*([] if call.dry_run else [target])):
        into = _recovering(target)
        is_marked = into.place != target.place  # as long as the run has not ended
        job = Job(source, plan, into, options_from(call, RunOptions, mode="w-"))
        if not call.dry_run and not is_marked:
            result = finished([job])[0]
            if result is not None:
                n = result.n_shards + result.n_empty_shards
                return Recovery(path=target.label, n_shards=n, n_good=n, result=result)
        _check(job, looking=call.dry_run, is_marked=is_marked)
        there = _Shards.of(job, engine)
        if call.dry_run:
            return there.report()
        there.refuse_lost(has_source=call.x is not None, are_empty=call.empty)
        with Run.open([job], engine, call.progress, "again") as run:
            run.session.resume_from(there.settled(are_empty=call.empty))
            run.session.enter_ledger()  # so that any call of the plan can go on
            (result,) = run.execute()
    return replace(there.report(), result=result)


def _planned(call: RecoverArguments, target: Target, engine: Engine) -> tuple[ChunkSource, Plan]:
    """What the run writes, and the plan of the run whose state is lost."""
    array, options = options_from(call, ArrayOptions), options_from(call, PlanOptions)
    if call.x is None:
        for name in ("shape", "dtype"):
            if getattr(call, name) is None:
                raise SpecError(
                    "there is no source that tells it",
                    field=name,
                    value=None,
                    remedy="give it as the array was to have it, or give the source x (--source)",
                )
        shape, dtype = shape_of(call.shape), dtype_of(call.dtype)
        return NoChunks(), plan_without_data(shape, dtype, array, options.strategy, engine)
    given = as_source_array(call.x)
    x = given.array
    for name, told in (("shape", shape_of), ("dtype", dtype_of)):
        asked = getattr(call, name)
        if asked is not None and told(asked) != getattr(x, name):
            raise SpecError(
                f"the source has {getattr(x, name)}",
                field=name,
                value=asked,
                remedy="leave it out, or give the source that the array was written from",
            )
    return ArrayChunks(x), plan_array(x, engine, given.described(array), options, target.store)


# ---- What stands there: whether it can be this array


def _recovering(target: Target) -> Target:
    """The target of a run that takes what stands there for its own.

    - Raises JournalError if a run has left its mark there whose state is on this machine, or lies
      in the bucket inside another array.
    """
    place = target.place
    if isinstance(place, if_loaded("shardwrite.place.objects", "InStore")):
        mark, known = place.mark, find_run(target)
        if mark.run and (known is None or known.run != mark.run):
            unknown = place.unknown_run()
            if unknown is not None and not unknown.makes_array:
                raise JournalError(f"{unknown.told}; {unknown.remedy}", path=target.label)
            _refuse_known(target, mark.run, Path(mark.state))
            if mark.keeper:
                keeper = place.sibling(mark.array, mark.keeper)
                refuse_unfinished(keeper, "Make the call that writes all arrays of that run again")
            place = replace(place, lost_run=mark.run)
    return replace(target, place=place, recovers=True)


def _refuse_known(target: Target, run: str, state: Path) -> None:
    """Refuse to go on if the state of a run is where its mark says.

    The directories of processes whose state lies in a bucket are no such places.
    """
    name = f"run-{run}"
    if state.is_absolute() and is_there(state if state.name == name else state / name):
        from shardwrite.journal.state_work import is_private  # where a run has left its mark

        if not is_private(state.parent):
            raise JournalError(
                f"the state of run {run}, which writes {target.label}, is not lost: it is in "
                f"{state}. Make the call that writes the array again, with the run_dir that it was "
                "begun with",
                path=str(state),
            )


def _check(job: Job, *, looking: bool, is_marked: bool) -> None:
    """Refuse what cannot be this array, or needs no recovery."""
    target, metadata, names = job.target, job.plan.metadata, set[str]()
    check_surroundings(target)
    if _has_state(job, looking=looking):
        return  # an earlier recovery, or a write of this plan, has not ended
    kind = target.place.kind()
    if kind == "nothing":
        raise _refused(target, "nothing stands there", "check the path, or write the array")
    if kind == "array":
        changed = differences(without_keys(target.document), metadata.document)
        if changed:
            told = f"an array exists there; it differs in {'; '.join(changed)}"
            raise _refused(target, told, "give the keywords with which it was written")
        if read_receipt(target) is not None and not is_marked:
            raise _refused(
                target,
                "a finished array exists there",
                "look at it with verify, and mend it with repair (shardwrite repair --source)",
            )
        names = {DOCUMENT, RECEIPT_NAME, REPORT_NAME}
    check_target(target, job.options.mode)

    def is_own(key: str) -> bool:
        index = metadata.shard_index(key)
        is_shard = index is not None and all(map(lt, index, metadata.grid.counts))
        return is_shard or key in names

    foreign = [repr(key) for key in islice(target.place.foreign(is_own), 4)]
    if foreign:
        raise _refused(
            target,
            f"it holds {', '.join(foreign[:3])}{', ...' * (len(foreign) > 3)}, which is no shard "
            "of this array",
            "give the path and the keywords of the array that was written there, or move away "
            "what is no part of it",
        )


def _has_state(job: Job, *, looking: bool) -> bool:
    """Whether a run of this plan has not ended, and nobody works on it.

    - Raises JournalError if a process works on it, or it is a run of another plan.
    """
    target = job.target
    if target.in_store:
        from shardwrite.journal.state_work import fetched  # for states in buckets

        target = fetched(target)
    run = find_run(target)
    if run is None:
        return False
    holders = live_holders(run.shared, looking=looking)
    if holders:
        raise held(run, holders[0])
    if run.digest != job.plan.digest:
        raise JournalError(
            f"the state of the run that writes {target.label} is not lost, and it has another "
            "plan. Make the call that writes the array again, or start over with restart=True "
            "(--restart)",
            path=str(target.run_path),
        )
    return True


def _refused(target: Target, why: str, remedy: str) -> SpecError:
    return SpecError(why, field="store", value=target.label, remedy=remedy)


# ---- The shards


@dataclass(slots=True)
class _Shards:
    """The shards that are there, all of whose chunks were decoded."""

    job: Job
    engine: Engine
    array: ShardedArray
    table: ShardTable
    n_temporaries: int  # number of temporary files of dead processes

    @classmethod
    def of(cls, job: Job, engine: Engine) -> _Shards:
        """Decode all shards, and refuse them if none of them is whole."""
        target, array = job.target, ShardedArray(job.plan.metadata, job.target.store)
        stale = target.place.stale_temporaries(partial(drivers_on, target, looking=True))
        ranks = ranks_of_objects(array, target.label)
        table = inspect_shards(engine, array, ranks, deep=True)
        table.refuse_unread(target.label)
        if table.problems and len(table.problems) == len(ranks):
            raise _refused(
                target,
                f"none of the shards there is one of this array: {table.problems[0][1]}",
                "give the keywords with which the array was written",
            )
        return cls(job, engine, array, table, len(stale))

    @property
    def good(self) -> npt.NDArray[np.int64]:
        """Ranks of the shards that are whole."""
        return np.setdiff1d(self.table.ranks, self.table.bad)

    @property
    def missing(self) -> npt.NDArray[np.int64]:
        """Ranks of the shards that have no object."""
        return np.setdiff1d(np.arange(self.array.metadata.grid.n_shards), self.table.ranks)

    def report(self) -> Recovery:
        """What was there."""
        key_of = self.array.metadata.key_of_rank
        return Recovery(
            path=self.job.target.label,
            n_shards=self.array.metadata.grid.n_shards,
            n_good=len(self.good),
            bad=tuple(f"{key_of(rank)}: {message}" for rank, message in self.table.problems),
            n_missing=len(self.missing),
            n_temporaries=self.n_temporaries,
        )

    def refuse_lost(self, *, has_source: bool, are_empty: bool) -> None:
        """Refuse to go on if shards are bad or missing that cannot be written."""
        is_known = are_empty and len(self.good) > 0
        lost = np.union1d(self.table.bad, [] if is_known else self.missing).astype(np.int64)
        if len(lost) and not has_source:
            remedy = (
                "give the source (--source), from which they are written. A shard that holds only "
                "the fill value has no object: if all that are missing are such shards, give "
                "empty=True (--empty)"
            )
            raise incomplete(self.array.metadata, self.job.target, lost, remedy)

    def settled(self, *, are_empty: bool) -> Ledger:
        """Ledger of the shards that are there for good, now that nobody else writes the array.

        - Raises StoreError if a shard has changed since it was decoded.
        """
        job, engine, array, good = self.job, self.engine, self.array, self.good
        job.target.place.sweep(partial(drivers_on, job.target))
        ledger = Ledger.of(array.metadata.grid, self.table)
        now = inspect_shards(engine, array, good, deep=False)
        now.refuse_unread(job.target.label)
        differing = now.against(ledger.nbytes, ledger.index_crcs).all
        if len(differing):
            raise changed_meanwhile(array.metadata.key_of_rank(differing[0]))
        if job.durability != "none":
            of_objects(engine, array, good, _sync)
        ledger.forget(self.table.bad)
        ledger.is_done[self.missing] = are_empty
        return ledger


def _sync(store: Store, key: str) -> int:
    store.sync(key)
    return 1
