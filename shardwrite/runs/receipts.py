"""The receipt that a run leaves in the array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from shardwrite._version import __version__
from shardwrite.codecs.documents import JSON
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.journal import (
    Ledger,
    Receipt,
    RunDirectory,
    UpdateEntry,
    as_runs,
    empty_after,
    read_receipt,
)
from shardwrite.plan import Identity
from shardwrite.runs.job import Job
from shardwrite.runs.result import WriteResult

__all__ = ["make_receipt", "updated_receipt"]

# updates that a receipt keeps
_MAX_UPDATES = 100


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
            directory, job.plan.metadata, ledger, result.to_dict(), job.durability
        )
    before = read_receipt(directory.target) if job.options.mode == "r+" else None
    return Receipt(
        digest=directory.digest if before is None else before.digest,
        run=directory.run,
        identity=directory.record.identity if before is None else before.identity,
        durability=job.durability,
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
    shape = directory.target.shape
    counts, (first, _) = part.grid.counts, part.window or ((0,) * part.grid.ndim, ())
    is_empty, is_known = (ledger.nbytes == 0).reshape(counts), ledger.is_done.reshape(counts)
    empty = empty_after(before, replace(part.grid, shape=tuple(shape)), first, is_empty, is_known)
    return replace(before, updates=updates, empty=empty, shape=shape)
