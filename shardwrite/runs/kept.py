"""Whether an array is still what its last run has left, by the sizes in its receipt."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.config.table import ACCEPT_SOURCE, value_of
from shardwrite.engines.local import Engine
from shardwrite.errors import ChangedError, CorruptShardError, SpecError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import unravel
from shardwrite.host.stopping import RUNS, tell
from shardwrite.journal.begin import find_run, tidied_run
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.neighbours import neighbours
from shardwrite.journal.receipt import Receipt, read_receipt
from shardwrite.journal.rundir import RunDirectory
from shardwrite.place.target import Target
from shardwrite.plan.plan import Plan
from shardwrite.runs.job import Job, digest_of, target_of_update
from shardwrite.runs.result import WriteResult

if TYPE_CHECKING:
    from shardwrite.read.array import ShardedArray


# ---- Sources that a user says to be the same, although names or times have changed


def accepts_source() -> bool:
    """Whether the user says that the data of the source are those of the run that was begun."""
    return value_of(ACCEPT_SOURCE)


def as_begun(plan: Plan, mode: str, identity: str | None, digest: str) -> Plan | None:
    """The plan with the source of a run, if that run differs in nothing else."""
    if identity is None:
        return None
    found = replace(plan, source=replace(plan.source, identity=identity))
    return found if digest_of(found, mode) == digest else None


def accepted(job: Job) -> Job:
    """The job, with the source of the run that it goes on with."""
    for identity, digest in _recorded(job):
        plan = as_begun(job.plan, job.options.mode, identity, digest)
        if plan is not None and plan.source.identity != job.plan.source.identity:
            told = f"goes on with the source {identity!r}, as the user says"
            tell(RUNS, logging.WARNING, told, run=job.target.run_path)
            target = target_of_update(job.target, plan) if job.is_update else job.target
            return replace(job, plan=plan, target=target)
    return job


def _recorded(job: Job) -> Iterator[tuple[str | None, str]]:
    """Identity of the source and digest of each run that the job may go on with, or that ended."""
    runs = neighbours(job.target) if job.is_update else (find_run(job.target),)
    for run in runs:
        if run is not None:
            yield run.record.identity.source, run.digest
    # An update that has ended is none to go on with: what is given now may be the next one.
    if not job.is_update and job.target.place.kind() == "array":
        receipt = read_receipt(job.target)
        if receipt is not None:
            yield receipt.identity.source, receipt.digest


# ---- Comparison with the receipt


HOW_TO_GO_ON = (
    "write them again from their source with repair (shardwrite repair --source), or keep the "
    "array as it is with verify and accept=True (shardwrite verify --accept)"
)

_BAD = "write the bad ones again from their source with repair (shardwrite repair --source)"


@dataclass(frozen=True, slots=True)
class _Differences:
    """Shards whose objects are not what the receipt says."""

    array: ShardedArray
    receipt: Receipt | None
    # Ranks of the shards that have no object any more, and of those with another one. Objects that
    # were decoded and are bad count as lost.
    lost: npt.NDArray[np.int64]
    changed: npt.NDArray[np.int64]
    # For each of `changed`, what is there and what the receipt says. For each bad object, the
    # error.
    notes: dict[int, str]
    # Whether no receipt tells the sizes of the objects, because another program made the array
    knows_no_sizes: bool = False

    @property
    def any(self) -> bool:
        """Whether there is a difference."""
        return bool(len(self.lost) or len(self.changed))

    def error(self, label: str) -> ChangedError:
        """The error that names them."""
        key_of = self.array.metadata.key_of_rank
        changed, missing = self.changed[:1000].tolist(), self.lost[:1000].tolist()
        told = [f"{key_of(rank)}: {self.notes[rank]}" for rank in changed[:4]]
        told += [f"{key_of(rank)}: {self.notes.get(rank, 'gone')}" for rank in missing[:4]]
        n = len(self.lost) + len(self.changed)
        more = ", ..." if n > len(told) else ""
        is_bad = any(rank in self.notes for rank in self.lost.tolist())
        how = _BAD if is_bad else HOW_TO_GO_ON  # nobody accepts what is bad
        return ChangedError(
            f"{label} is not what its last run left. {n:,} shards differ "
            f"({', '.join(told)}{more}): {how}. The same call goes on then",
            path=label,
            changed=[key_of(rank) for rank in changed],
            missing=[key_of(rank) for rank in missing],
        )


def noted_sizes(
    receipt: Receipt | None, metadata: ArrayMetadata, open_runs: list[RunDirectory]
) -> npt.NDArray[np.int64] | None:
    """Size that each shard's object should have by the receipt, or None if it does not tell.

    - `open_runs`: updates that have not ended. What they write is not known.
    """
    noted = None if receipt is None else receipt.nbytes_on(metadata.grid)
    if noted is not None:
        for run in open_runs:
            window = run.record.shards_from
            if window is None or len(window.first) != noted.ndim:
                noted[...] = -2
            else:
                noted[tuple(slice(a, a + k) for a, k in zip(*window, strict=True))] = -2
    return noted


def _compare(target: Target, engine: Engine, part: ArrayMetadata | None = None) -> _Differences:
    """Compare the objects of an array, or of the part that an update writes, with the receipt.

    If an update of another process ends meanwhile, they are compared again.
    """
    while True:
        found = _compared(target, engine, part)
        if not found.any or read_receipt(target) == found.receipt:
            return found


def _compared(target: Target, engine: Engine, part: ArrayMetadata | None) -> _Differences:
    from shardwrite.read.array import open_at  # of an array that is there
    from shardwrite.read.inspection import ShardTable, stored_sizes  # of an array that is there

    array, receipt = open_at(target.place), read_receipt(target)
    nothing = np.empty(0, dtype=np.int64)
    try:
        noted = noted_sizes(receipt, array.metadata, list(neighbours(target)))
    except SpecError:  # it is of another array; `verify` tells
        noted = None
    if noted is None:
        return _Differences(array, receipt, nothing, nothing, {}, knows_no_sizes=True)
    ranks, noted = _ranks_of(array, part), noted.ravel()
    ranks = ranks[noted[ranks] > -2]
    sizes = stored_sizes(engine, array, ranks)
    lost, changed, _ = ShardTable.of_sizes(ranks, sizes).against(noted)
    sizes = sizes[np.searchsorted(ranks, changed)]
    notes = {
        rank: f"{size} bytes, " + (f"not {old}" if old else "where it was empty")
        for rank, size, old in zip(
            *(column.tolist() for column in (changed, sizes, noted[changed])), strict=True
        )
    }
    return _Differences(array, receipt, lost, changed, notes)


def _ranks_of(array: ShardedArray, part: ArrayMetadata | None) -> npt.NDArray[np.int64]:
    """Ranks of the shards of an array, or of those in the part that an update writes."""
    grid = array.metadata.grid
    ranks = np.arange(grid.n_shards).reshape(grid.counts)
    if part is not None and part.window is not None:
        first = part.window[0]
        ranks = ranks[tuple(slice(a, a + k) for a, k in zip(first, part.grid.counts, strict=True))]
    return ranks.ravel()


def check_kept(target: Target, engine: Engine) -> None:
    """Verify that all objects of a finished array are there, with the sizes in its receipt.

    - Raises ChangedError if one is missing, or is another one.
    """
    found = _compare(target, engine)
    if found.any:
        raise found.error(target.label)


@dataclass(frozen=True, slots=True)
class FinishedArray:
    """What is left of a job that was finished before."""

    result: WriteResult | None = None  # its result; None if the job must write all of its shards
    good_shards: Ledger | None = None  # the shards that are there, if others must be written again


def check_finished_array(
    job: Job, result: WriteResult, engine: Engine, jobs: Sequence[Job] = ()
) -> FinishedArray:
    """What a finished job must still write, by comparing its objects with the receipt.

    Objects that are gone are to be written again, if nothing else has changed. Absence does not
    tell what was lost from what another program has emptied.

    - `result`: what `finished` returns.
    - `jobs`: all jobs of the call.
    - Returns: no result to write all; with `good_shards`, all but those; else nothing.
    - Raises ChangedError if the array is not what its last run left, and the job may not replace
      it, or would read what the call has replaced.
    - Raises CorruptShardError if objects are gone, and the index of another one is bad.
    """
    if job.is_update:
        return _check_update(job, result, engine)
    return _check_array(job, result, engine, jobs)


def _check_update(job: Job, result: WriteResult, engine: Engine) -> FinishedArray:
    """See `check_finished_array`.

    If no receipt tells sizes, an update is made again if any of its shards has no object.
    """
    found = _compare(job.target, engine, job.plan.metadata)
    is_repeatable = job.plan.staged_with is None  # else it would read what it has written
    if found.any:
        if len(found.changed) or not (is_repeatable and _covers(job, found)):
            raise found.error(job.target.label)
        return FinishedArray()
    is_lost = is_repeatable and found.knows_no_sizes and _lacks_any(job, found, engine)
    return FinishedArray() if is_lost else FinishedArray(result)


def _check_array(
    job: Job, result: WriteResult, engine: Engine, jobs: Sequence[Job]
) -> FinishedArray:
    """See `check_finished_array`. With `recheck`, objects that cannot be decoded count as gone."""
    found, label = _compare(job.target, engine), job.target.label
    if job.options.recheck:
        found = _with_bad(found, engine)
    if found.any:
        from shardwrite.runs.reads import reads_replaced  # of arrays that have changed

        if reads_replaced(job, jobs):
            raise found.error(label)
    if len(found.changed) or _touches(found):
        if job.options.mode == "w":
            return FinishedArray()
        raise found.error(label)
    # A run that wrote lost shards again may have been interrupted before its end.
    if not len(found.lost) and tidied_run(job.target) is None:
        return FinishedArray(result)
    return FinishedArray(result, _good_ledger(label, engine, found))


def _with_bad(found: _Differences, engine: Engine) -> _Differences:
    """The same differences, and among the shards that are lost those whose objects are bad."""
    from shardwrite.read.inspection import inspect_shards  # of an array that is there

    there = np.setdiff1d(
        np.arange(found.array.metadata.grid.n_shards), [*found.lost, *found.changed]
    )
    table = inspect_shards(engine, found.array, there.astype(np.int64), deep=True)
    lost = np.union1d(found.lost, table.bad).astype(np.int64)
    return replace(found, lost=lost, notes={**found.notes, **dict(table.problems)})


def _lacks_any(job: Job, found: _Differences, engine: Engine) -> bool:
    """Whether a shard that an update writes has no object.

    It may be empty by design, or lost. To make the update again is right in both cases.
    """
    from shardwrite.read.inspection import stored_sizes  # of an array that is there

    ranks = _ranks_of(found.array, job.plan.metadata)
    return bool((stored_sizes(engine, found.array, ranks) < 0).any())


def _covers(job: Job, found: _Differences) -> bool:
    """Whether an update writes all elements of the shards that are gone."""
    region, grid = job.plan.array_region, found.array.metadata.grid
    boxes = (
        grid.shard_box(unravel(rank, grid.counts)).intersect(grid.whole)
        for rank in found.lost.tolist()
    )
    return region is not None and all(box.intersect(region) == box for box in boxes)


def _touches(found: _Differences) -> bool:
    """Whether a later update has written to shards that are gone, or has made the array grow."""
    receipt, grid = found.receipt, found.array.metadata.grid
    if receipt is None or not receipt.updates or not len(found.lost):
        return False
    if receipt.has_all_updates and tuple(receipt.shape or grid.shape) == grid.shape:
        planned = (receipt.identity.metadata or {}).get("shape")
        touched = np.zeros(grid.counts, dtype=bool)
        for update in receipt.updates:
            touched[
                tuple(
                    slice(a // s, -(-b // s))
                    for (a, b), s in zip(update.identity.region or (), grid.shards, strict=False)
                )
            ] = True
        return planned != list(grid.shape) or bool(touched.ravel()[found.lost].any())
    return True


def _good_ledger(label: str, engine: Engine, found: _Differences) -> Ledger:
    """Ledger of the shards that are not gone.

    - Raises CorruptShardError if one of them is bad.
    """
    from shardwrite.read.inspection import inspect_shards  # of an array that is there

    array = found.array
    there = np.setdiff1d(np.arange(array.metadata.grid.n_shards), found.lost)
    table = inspect_shards(engine, array, there, deep=False)
    table.refuse_unread(label)
    if table.problems:
        rank, message = table.problems[0]
        key = array.metadata.key_of_rank(rank)
        raise CorruptShardError(
            f"{label}: {len(found.lost)} shards are gone, and {key} is bad ({message}); "
            f"{HOW_TO_GO_ON}"
        )
    return Ledger.of(array.metadata.grid, table)
