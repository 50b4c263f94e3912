"""What to write and how to run it, whether that was done already, and what stays of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import shardwrite._dask as dask
from shardwrite._version import __version__
from shardwrite.errors import IncompleteError, SpecError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import unravel
from shardwrite.journal import (
    Ledger,
    Receipt,
    RunDirectory,
    as_runs,
    differences,
    empty_after,
    interrupted_end,
    read_receipt,
    tidied_run,
    tidy,
)
from shardwrite.plan import Plan
from shardwrite.runs.result import WriteResult, result_from_receipt
from shardwrite.stores import DURABILITIES, read_json
from shardwrite.target import Target, check_beside, kind_of, shape_at

_MAX_UPDATES = 100

__all__ = [
    "Job",
    "Options",
    "finished",
    "has_ended",
    "incomplete",
    "make_receipt",
    "options_for_new",
    "refuse_another",
    "run_plan",
    "updated_receipt",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run, as against what to write.

    Attributes
    ----------
    mode : {"w-", "w", "r+"}
        Whether an array in the place may be replaced, or is written into; looked at only where a run begins.
    publish : {"last", "first"}
        When ``zarr.json`` appears.
    durability : {"full", "batch", "none"}
        When a shard counts as committed.
    restart : bool
        Take away what was begun and not ended.
    recheck : bool
        Decode what the journal says is committed before going on from there.
    """

    mode: str = "w-"
    publish: str = "last"
    durability: str = "full"
    restart: bool = False
    recheck: bool = False

    def __post_init__(self) -> None:
        choices = (
            ("mode", ("w-", "w", "r+")),
            ("publish", ("last", "first")),
            ("durability", DURABILITIES),
        )
        for field, allowed in (*choices, ("restart", (False, True)), ("recheck", (False, True))):
            value = getattr(self, field)
            if value not in allowed:
                shown = [choice for choice in allowed if choice != "r+"]  # which is for our own use
                raise SpecError(
                    "no such choice", field=field, value=value, remedy=f"use one of {shown}"
                )


def options_for_new(**given: Any) -> Options:
    """Options of a run that makes an array.

    Raises
    ------
    SpecError
        If it is to write into one that exists: that has checks of its own.
    """
    options = Options(**given)
    if options.mode == "r+":
        raise SpecError(
            "no such choice", field="mode", value="r+", remedy=f"use one of {['w-', 'w']}"
        )
    return options


@dataclass(frozen=True, slots=True)
class Job:
    """One array to write; without a source where it is only to be finished."""

    source: dask.array.Array | None
    plan: Plan
    target: Target
    options: Options

    @property
    def is_update(self) -> bool:
        """Whether it goes into a region of an array that exists."""
        return self.plan.region is not None

    @property
    def makes_array(self) -> bool:
        """Whether it makes the array, instead of updating or repairing one that exists."""
        return self.options.mode != "r+"


def incomplete(
    metadata: ArrayMetadata, target: Target, missing: Any, remedy: str
) -> IncompleteError:
    """The error that says which shards are missing."""
    grid = metadata.grid
    names = [metadata.shard_key(unravel(int(rank), grid.counts)) for rank in missing[:1000]]
    listed = ", ".join(names[:8]) + (", ..." if len(missing) > 8 else "")
    return IncompleteError(
        f"{target.path} is not whole: {len(missing):,} of {grid.n_shards:,} shards are not committed ({listed}); {remedy}",
        missing=names,
    )


def finished(job: Job, joined: str = "") -> WriteResult | None:
    """The result of a run of the same plan that has ended, if the array is still as that run left it.

    Parameters
    ----------
    job : Job
        What to write.
    joined : str
        Name of a run that this process had joined.
    """
    check_beside(job.target)
    ending = interrupted_end(job.target) or joined
    tidy(job.target)
    if job.options.restart and job.options.mode != "w-":
        return None  # an array that exists is to be replaced, or an update to be made once more
    if tidied_run(job.target) is not None or kind_of(job.target.path) != "array":
        return None
    receipt = read_receipt(job.target)
    if receipt is not None and job.is_update:
        return _finished_update(job, receipt, ending)
    if receipt is None or receipt.digest != job.plan.digest:
        return None
    if job.options.mode == "w" and receipt.updates:
        return None  # it is not what this plan would write any more
    if job.options.mode == "w" and not job.plan.source.is_stable and receipt.run != ending:
        return None  # the same name may stand for other data by now, and the user said to replace
    found = read_json(
        job.target.path / "zarr.json"
    )  # not parsed: what is wrong in it makes it another array
    shape = (
        job.plan.metadata.document["shape"] if receipt.updates else found.get("shape")
    )  # an update may have let it grow
    if {**found, "shape": shape} != job.plan.metadata.document:
        return None
    return result_from_receipt(receipt.result, str(job.target.path))


def has_ended(job: Job) -> bool:
    """Finish the last step of a run of this plan, if it was interrupted in that; whether it was."""
    ending = interrupted_end(job.target)
    tidy(job.target)
    receipt = read_receipt(job.target) if ending and kind_of(job.target.path) == "array" else None
    return receipt is not None and receipt.is_of(job.plan.digest, ending)


def _finished_update(job: Job, receipt: Receipt, ending: str) -> WriteResult | None:
    """The same for an update; without a name for its source, it is done again: the same name may stand for other data by now."""
    update = receipt.update(run_plan(job.plan, job.options.mode)["digest"])
    if update is None or not (job.plan.source.is_stable or update.get("run") == ending):
        return None
    return result_from_receipt(update.get("result"), str(job.target.path))


def refuse_another(job: Job) -> None:
    """Refuse an array in the place, naming the fields in which it is another than the one to be written."""
    if job.options.mode == "w-" and kind_of(job.target.path) == "array":
        found = read_json(job.target.path / "zarr.json")
        changed = differences(found, job.plan.metadata.document)
        what = (
            f"an array exists there; it differs in {'; '.join(changed)}"
            if changed
            else "an array exists there, of another run"
        )
        raise SpecError(
            what, field="store", value=str(job.target.path), remedy='give mode="w" to replace it'
        )


def run_plan(plan: Plan, mode: str) -> dict[str, Any]:
    """A plan as a run keeps it; a run that writes into an array is another than the one that made it."""
    facts = plan.to_dict()
    if plan.region is not None:
        facts["shards_from"] = [
            list(corner) for corner in (plan.first_shard, plan.metadata.grid.counts)
        ]
    if mode == "r+":
        facts["identity"] = {**facts["identity"], "mode": "r+"}
    return {
        **facts,
        "partition": plan.partition.to_dict(),
        "digest": plan.digest + ("+" if mode == "r+" else ""),
        "mode": mode,
    }


def make_receipt(directory: RunDirectory, job: Job, ledger: Ledger, result: WriteResult) -> Receipt:
    """What stays of a run; one that writes into an array adds to what is there, or knows no more than that it wrote."""
    if job.is_update:
        return updated_receipt(
            directory, job.plan.metadata, ledger, result.to_dict(), job.options.durability
        )
    before = read_receipt(directory.target) if job.options.mode == "r+" else None
    return Receipt(
        digest=directory.digest if before is None else before.digest,
        run=directory.run,
        identity=directory.facts["identity"] if before is None else before.identity,
        durability=job.options.durability,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        result=result.to_dict(),
        empty=as_runs(ledger.empty),
        updates=[] if before is None else before.updates,
    )


def updated_receipt(
    directory: RunDirectory,
    part: ArrayMetadata,
    ledger: Ledger,
    result: dict[str, Any],
    durability: str,
) -> Receipt:
    """The receipt of an array after an update of some of its shards.

    Parameters
    ----------
    directory : RunDirectory
        Of the update.
    part : ArrayMetadata
        The window of shards.
    ledger : Ledger
        What became of them; those that are not done are as they were.
    result : dict
        To be kept.
    durability : str
        Of the commits, where no receipt is there yet.
    """
    finished = datetime.now(UTC).isoformat(timespec="seconds")
    update = {
        "digest": directory.digest,
        "run": directory.run,
        "identity": {
            name: value for name, value in directory.facts["identity"].items() if name != "metadata"
        },
        "finished": finished,
        "result": result,
    }
    before = read_receipt(directory.target) or Receipt(
        "", "", {}, durability, finished, __version__, {}, None
    )
    updates = [
        *(kept for kept in before.updates if kept.get("digest") != directory.digest),
        update,
    ][-_MAX_UPDATES:]
    shape = shape_at(directory.target.path)
    counts, (first, _) = part.grid.counts, part.window or ((0,) * part.grid.ndim, ())
    is_empty, is_known = (ledger.nbytes == 0).reshape(counts), ledger.is_done.reshape(counts)
    empty = empty_after(before, replace(part.grid, shape=tuple(shape)), first, is_empty, is_known)
    return replace(before, updates=updates, empty=empty, shape=shape)
