"""Whether a job was finished before, and what is said if it is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shardwrite.errors import CorruptShardError, IncompleteError, SpecError
from shardwrite.format.manifest import without_keys
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import unravel
from shardwrite.journal.begin import differences, interrupted_end, same_source_remedy, tidied_run
from shardwrite.journal.documents import enter_above
from shardwrite.journal.neighbours import tidy
from shardwrite.journal.receipt import Receipt, read_receipt
from shardwrite.place.checks import check_beside
from shardwrite.place.target import Target
from shardwrite.results import counted
from shardwrite.runs.job import Job, intent_of
from shardwrite.runs.result import WriteResult, result_from_receipt

if TYPE_CHECKING:
    from shardwrite.read.array import ShardedArray

_N_NAMED = 20  # bad chunks in the message of an error
_MOST_LOOKS = 1000  # of more shards than that, the array is listed


def incomplete(
    metadata: ArrayMetadata, target: Target, missing: Any, remedy: str
) -> IncompleteError:
    """The error that names missing shards.

    - `missing`: ranks of the missing shards. The error has the keys of the first 1000.
    """
    grid = metadata.grid
    names = [metadata.shard_key(unravel(int(rank), grid.counts)) for rank in missing[:1000]]
    listed = ", ".join(names[:8]) + (", ..." if len(missing) > 8 else "")
    return IncompleteError(
        f"{target.label} is not whole: {len(missing):,} of {grid.n_shards:,} shards are not "
        f"committed ({listed}); {remedy}",
        missing=names,
    )


def unreadable(
    errors: Sequence[CorruptShardError], array: ShardedArray | None
) -> CorruptShardError:
    """The error that names what could not be read, of an array or of the one that is changed.

    - `errors`: why each shard is not written that is missing now.
    """
    store = None if array is None else array.store
    where = "" if store is None else f", from {store.local_root or store.url or store}"
    texts = list(dict.fromkeys(map(str, errors)))
    listed = "; ".join(texts[1:_N_NAMED]) + ("; ..." if len(texts) > _N_NAMED else "")
    message = (
        f"{errors[0].message}. It was read twice{where}. {counted(len(errors), 'shard')} cannot be "
        f"written{f', also because of: {listed}' if listed else ''}. All others are written. Mend "
        "what is read, and make the same call again"
    )
    return CorruptShardError(message, **errors[0].fields)


def finished(job: Job, joined: str = "") -> WriteResult | None:
    """The result of an ended run of the same plan; None if the job must be run.

    An interrupted end of a run is completed first. Groups above with consolidated metadata list the
    array then. The array must still be as the run left it. In
    mode ``"w"`` and for an update, the result counts only if the source has a `source_id`, or the
    run is the one that was just completed or joined. Shards that somebody has removed since then
    are noticed: the array is then replaced in mode ``"w"``, and else an error names them.
    """
    result = _finished(job, joined)
    if result is not None:
        target = job.target
        # Another program, or an older version of this one, may have left it out.
        enter_above(
            target.place, lambda: {"": target.document}, job.durability, target.beside.parent
        )
    return result


def _finished(job: Job, joined: str) -> WriteResult | None:
    check_beside(job.target)
    ending = interrupted_end(job.target) or joined
    tidy(job.target)
    if job.options.restart and job.options.mode != "w-":
        return None  # an existing array is to be replaced, or an update is to be made again
    receipt = read_receipt(job.target) if job.target.place.kind() == "array" else None
    digest = intent_of(job.plan, job.options.mode).digest
    is_done = receipt is not None and receipt.is_of(digest, joined)
    # If the run that was joined is done, a run that stands there now is none of this process's.
    # Somebody may have begun it before the other ended, and takes it back.
    if not is_done and _has_begun_another(job):
        return None
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
    document = job.target.document_if_there
    if document is None:
        return None
    found = without_keys(document)
    planned = job.plan.metadata.document
    wanted = receipt.accepted or planned
    # An update may have made the array grow.
    shape = receipt.shape if receipt.updates and receipt.shape else wanted["shape"]
    if found != without_keys({**wanted, "shape": shape}):
        return None
    return result_from_receipt(receipt.result, job.target.label)


def _has_begun_another(job: Job) -> bool:
    """Whether there is a run that has not ended, other than one that writes lost shards again."""
    run = tidied_run(job.target)
    if run is None or job.is_update:
        return run is not None
    return run.makes_array or run.digest != intent_of(job.plan, "r+").digest


def has_ended(job: Job) -> bool:
    """Complete the interrupted end of a run, and return whether it was a run of this plan."""
    ending = interrupted_end(job.target)
    tidy(job.target)
    receipt = read_receipt(job.target) if ending and job.target.place.kind() == "array" else None
    return receipt is not None and receipt.is_of(job.plan.digest, ending)


def _finished_update(job: Job, receipt: Receipt, ending: str) -> WriteResult | None:
    """The result of an ended update of the same plan; None if the update must be made.

    An update without a `source_id` is made again, because the same dask name may stand for other
    data by now. The exception is a run whose end was interrupted. It is also made again if a later
    run has changed elements of its region, or another program has cut off a part of it.
    """
    intent = intent_of(job.plan, job.options.mode)
    update = receipt.update(intent.digest, intent.identity)
    if update is None or not (job.plan.source.is_stable or update.run == ending):
        return None
    shape = job.target.shape_if_there
    if shape is None or update.replaced or update.is_cut_off(shape):
        return None
    return result_from_receipt(update.result, job.target.label)


def refuse_another(job: Job) -> None:
    """Refuse to overwrite an existing array in mode ``"w-"``."""
    if job.options.mode != "w-" or job.target.place.kind() != "array":
        return
    document = job.target.document_if_there
    if document is None:
        return
    changed = differences(without_keys(document), job.plan.metadata.document)
    what = (
        f"an array exists there; it differs in {'; '.join(changed)}"
        if changed
        else "an array exists there, of another run"
    )
    receipt, remedy = read_receipt(job.target), job.options.remedy_if_there
    # The name of a dask array says what is computed, so another name stands for other data.
    if receipt is not None and not changed and not job.plan.source.identity.startswith("dask:"):
        now = intent_of(job.plan, job.options.mode).identity.to_dict()
        what += same_source_remedy(differences(receipt.identity.to_dict(), now))
    if receipt is not None and receipt.digest == job.plan.digest:
        what += ". This call has made it, and another program has changed it since"
        remedy += ", or keep it with verify and accept=True (shardwrite verify --accept)"
    raise SpecError(what, field="store", value=job.target.label, remedy=remedy)
