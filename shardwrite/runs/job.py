"""Jobs: what to write and how to run it, whether it was finished before, and its receipt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from shardwrite._version import __version__
from shardwrite.codecs.documents import JSON
from shardwrite.errors import IncompleteError, SpecError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import unravel
from shardwrite.journal import (
    Intent,
    Ledger,
    Receipt,
    RunDirectory,
    StrategyFacts,
    UpdateEntry,
    as_runs,
    differences,
    empty_after,
    interrupted_end,
    read_receipt,
    tidied_run,
    tidy,
)
from shardwrite.place.checks import check_beside
from shardwrite.place.nodes import kind_of, shape_at
from shardwrite.place.target import Target
from shardwrite.plan import Identity, Plan, ShardWindow
from shardwrite.runs.options import RunOptions
from shardwrite.runs.result import WriteResult, result_from_receipt
from shardwrite.runs.source import ChunkSource
from shardwrite.stores import read_json

# updates that a receipt keeps
_MAX_UPDATES = 100

__all__ = [
    "Job",
    "finished",
    "has_ended",
    "incomplete",
    "intent_of",
    "make_receipt",
    "refuse_another",
    "updated_receipt",
]


@dataclass(frozen=True, slots=True)
class Job:
    """One array to write.

    Attributes
    ----------
    source : ChunkSource
        The chunks to write, such as `ArrayChunks` of a dask array; `NoChunks` if a run is only
        finished.
    plan : Plan
        How the array is written.
    target : Target
        Where the array goes.
    options : RunOptions
        How the job is run.

    Raises
    ------
    ValueError
        If the source covers another region than the plan.
    """

    source: ChunkSource
    plan: Plan
    target: Target
    options: RunOptions

    def __post_init__(self) -> None:
        if self.source.region != self.plan.region:
            raise ValueError(
                f"the source covers {self.source.region}, and the plan {self.plan.region}"
            )

    @property
    def is_staged(self) -> bool:
        """Whether all units go to part files before shards are committed."""
        return self.plan.is_staged and not self.source.is_encoded

    @property
    def is_update(self) -> bool:
        """Whether the job writes into a region of an existing array."""
        return self.plan.region is not None

    @property
    def makes_array(self) -> bool:
        """Whether the job makes an array, rather than updates or repairs an existing one."""
        return self.options.mode != "r+"


def incomplete(
    metadata: ArrayMetadata, target: Target, missing: Any, remedy: str
) -> IncompleteError:
    """The error that names missing shards.

    Parameters
    ----------
    metadata : ArrayMetadata
        Metadata of what is written: the array, or the window of an update.
    target : Target
        The array.
    missing : sequence of int
        Ranks of the missing shards. The error has the keys of the first 1000.
    remedy : str
        What to do; the end of the message.
    """
    grid = metadata.grid
    names = [metadata.shard_key(unravel(int(rank), grid.counts)) for rank in missing[:1000]]
    listed = ", ".join(names[:8]) + (", ..." if len(missing) > 8 else "")
    return IncompleteError(
        f"{target.path} is not whole: {len(missing):,} of {grid.n_shards:,} shards are not "
        f"committed ({listed}); {remedy}",
        missing=names,
    )


def finished(job: Job, joined: str = "") -> WriteResult | None:
    """The result of an ended run of the same plan; None if the job must be run.

    An interrupted end of a run is completed first. The array must still be as the run left it. In
    mode ``"w"`` and for an update, the result counts only if the source has a `source_id`, or the
    run is the one that was just completed or joined.

    Parameters
    ----------
    job : Job
        What to write.
    joined : str
        Name of a run that this process had joined.

    Raises
    ------
    SpecError, JournalError, StoreError
        If the files of the array, or beside it, cannot be read or are not valid.
    """
    check_beside(job.target)
    ending = interrupted_end(job.target) or joined
    tidy(job.target)
    if job.options.restart and job.options.mode != "w-":
        return None  # an existing array is to be replaced, or an update is to be made again
    if tidied_run(job.target) is not None or kind_of(job.target.path) != "array":
        return None
    receipt = read_receipt(job.target)
    if receipt is not None and job.is_update:
        return _finished_update(job, receipt, ending)
    if receipt is None or receipt.digest != job.plan.digest:
        return None
    if job.options.mode == "w" and receipt.updates:
        return None  # the array is no longer what this plan writes
    if job.options.mode == "w" and not job.plan.source.is_stable and receipt.run != ending:
        # The same dask name may stand for other data by now, and the user asked to replace.
        return None
    # The document is not parsed: if it is not valid, it differs, and so the array is another one.
    found = read_json(job.target.document_path)
    # An update may have made the array grow, so the shape on disk need not be the plan's.
    shape = job.plan.metadata.document["shape"] if receipt.updates else found.get("shape")
    if {**found, "shape": shape} != job.plan.metadata.document:
        return None
    return result_from_receipt(receipt.result, str(job.target.path))


def has_ended(job: Job) -> bool:
    """Complete the interrupted end of a run, and return whether it was a run of this plan."""
    ending = interrupted_end(job.target)
    tidy(job.target)
    receipt = read_receipt(job.target) if ending and kind_of(job.target.path) == "array" else None
    return receipt is not None and receipt.is_of(job.plan.digest, ending)


def _finished_update(job: Job, receipt: Receipt, ending: str) -> WriteResult | None:
    """The result of an ended update of the same plan; None if the update must be made.

    An update without a `source_id` is made again, because the same dask name may stand for other
    data by now. The exception is a run whose end was interrupted.
    """
    update = receipt.update(intent_of(job.plan, job.options.mode).digest)
    if update is None or not (job.plan.source.is_stable or update.run == ending):
        return None
    return result_from_receipt(update.result, str(job.target.path))


def refuse_another(job: Job) -> None:
    """Refuse to overwrite an existing array in mode ``"w-"``.

    Raises
    ------
    SpecError
        If there is an array. The error names the fields in which it differs from the new array.
    """
    if job.options.mode == "w-" and kind_of(job.target.path) == "array":
        found = read_json(job.target.document_path)
        changed = differences(found, job.plan.metadata.document)
        what = (
            f"an array exists there; it differs in {'; '.join(changed)}"
            if changed
            else "an array exists there, of another run"
        )
        raise SpecError(
            what, field="store", value=str(job.target.path), remedy='give mode="w" to replace it'
        )


def intent_of(plan: Plan, mode: str) -> Intent:
    """What a run of a plan will write.

    With mode ``"r+"``, its digest and identity differ from those of the run that made the array.
    """
    is_change = mode == "r+"
    figures = plan.to_dict()
    return Intent(
        digest=plan.digest + ("+" if is_change else ""),
        mode=mode,
        identity=replace(plan.identity, mode="r+") if is_change else plan.identity,
        shards_from=None
        if plan.region is None
        else ShardWindow(plan.first_shard, plan.metadata.grid.counts),
        strategy=StrategyFacts(plan.strategy.name, dict(plan.strategy.to_dict())),
        partition=plan.partition.cuts,
        figures={name: figures[name] for name in figures if name not in ("format", "identity")},
    )


def make_receipt(directory: RunDirectory, job: Job, ledger: Ledger, result: WriteResult) -> Receipt:
    """Make the receipt that a run leaves in the array.

    An update adds itself to the receipt of the array. Another run in mode ``"r+"``, such as a
    repair, keeps the digest, identity and updates of the existing receipt, if there is one.

    Parameters
    ----------
    directory : RunDirectory
        The run.
    job : Job
        The job that the run does.
    ledger : Ledger
        The shards of the run.
    result : WriteResult
        The result to store.
    """
    if job.is_update:
        return updated_receipt(
            directory, job.plan.metadata, ledger, result.to_dict(), job.options.durability
        )
    before = read_receipt(directory.target) if job.options.mode == "r+" else None
    return Receipt(
        digest=directory.digest if before is None else before.digest,
        run=directory.run,
        identity=directory.record.identity if before is None else before.identity,
        durability=job.options.durability,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        result=result.to_dict(),
        empty=as_runs(ledger.empty),
        updates=() if before is None else before.updates,
    )


def updated_receipt(
    directory: RunDirectory,
    part: ArrayMetadata,
    ledger: Ledger,
    result: Mapping[str, JSON],
    durability: str,
) -> Receipt:
    """The receipt of an array after an update of some of its shards.

    Parameters
    ----------
    directory : RunDirectory
        The run of the update.
    part : ArrayMetadata
        Metadata of the window of shards that the update touches.
    ledger : Ledger
        The shards of that window. Shards that are not done are as they were before.
    result : mapping
        Fields of the result to store.
    durability : str
        Durability level of the commits. It is used only if the array has no receipt yet.
    """
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    update = UpdateEntry(
        directory.digest,
        replace(directory.record.identity, metadata=None, window=None),
        directory.run,
        finished,
        result,
    )
    before = read_receipt(directory.target) or Receipt(
        "", "", Identity(), durability, finished, __version__, {}, None
    )
    updates = (
        *(kept for kept in before.updates if kept.digest != directory.digest),
        update,
    )[-_MAX_UPDATES:]
    shape = shape_at(directory.target.path)
    counts, (first, _) = part.grid.counts, part.window or ((0,) * part.grid.ndim, ())
    is_empty, is_known = (ledger.nbytes == 0).reshape(counts), ledger.is_done.reshape(counts)
    empty = empty_after(before, replace(part.grid, shape=tuple(shape)), first, is_empty, is_known)
    return replace(before, updates=updates, empty=empty, shape=shape)
