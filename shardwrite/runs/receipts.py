"""The receipt that a run leaves in the array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from shardwrite._version import __version__
from shardwrite.codecs.documents import JSON
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.receipt import Contents, Receipt, UpdateEntry, changed_region, read_receipt
from shardwrite.journal.replay import replay
from shardwrite.journal.rundir import RunDirectory
from shardwrite.plan.identity import Identity
from shardwrite.runs.job import Job
from shardwrite.runs.result import WriteResult


def make_receipt(directory: RunDirectory, job: Job, ledger: Ledger, result: WriteResult) -> Receipt:
    """Make the receipt that a run leaves in the array.

    An update adds itself to the receipt of the array. Another run in mode ``"r+"``, such as a
    repair, keeps the digest, identity and updates of the existing receipt, if there is one.
    """
    if job.is_update:
        return updated_receipt(
            directory, job.plan.metadata, ledger, result.to_dict(), job.durability
        )
    before = read_receipt(directory.target) if job.options.mode == "r+" else None
    made = Receipt(
        digest=directory.digest,
        run=directory.run,
        identity=directory.record.identity,
        durability=job.durability,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        result=result.to_dict(),
        contents=Contents.of(ledger.nbytes),
    )
    if before is None:
        return made if job.options.mode != "r+" else replace(made, shape=directory.target.shape)
    rest = before
    if directory.digest != f"{before.digest}+":
        rest = before.all_replaced()
        for entry in _rewritten(directory, job.plan.metadata):
            rest = rest.with_update(entry, changes=None)
    return replace(
        made,
        digest=before.digest,
        identity=before.identity,
        updates=rest.updates,
        shape=directory.target.shape,
        accepted=before.accepted,
    )


def _rewritten(directory: RunDirectory, metadata: ArrayMetadata) -> list[UpdateEntry]:
    """Entry for the shards that a repair has written: its source may lack an earlier update."""
    grid, done = metadata.grid, replay(directory, metadata).ledger.is_done
    identity = replace(directory.record.identity, metadata=None, region=None)
    bounds = changed_region(identity, grid, (0,) * grid.ndim, done)
    if bounds is None:
        return []
    region = tuple((a, min(b, n)) for (a, b), n in zip(bounds, grid.shape, strict=True))
    identity = replace(identity, region=region)
    return [UpdateEntry(f"{directory.digest}{directory.run}", identity, directory.run)]


def updated_receipt(
    directory: RunDirectory,
    part: ArrayMetadata,
    ledger: Ledger,
    result: Mapping[str, JSON],
    durability: str,
) -> Receipt:
    """The receipt of an array after an update of some of its shards.

    - `ledger`: the shards of that window. Shards that are not done are as they were before.
    - `durability`: durability level of the commits. It is used only if the array has no receipt
      yet.
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
        "", "", Identity(), durability, finished, __version__, {}, Contents()
    )
    counts, (first, _) = part.grid.counts, part.window or ((0,) * part.grid.ndim, ())
    changes = (
        None
        if directory.keeps_values
        else changed_region(directory.record.identity, part.grid, first, ledger.is_done)
    )
    grid = replace(part.grid, shape=tuple(directory.target.shape))
    nbytes, is_known = ledger.nbytes.reshape(counts), ledger.is_done.reshape(counts)
    return before.updated(grid, first, nbytes, is_known).with_update(update, changes=changes)
