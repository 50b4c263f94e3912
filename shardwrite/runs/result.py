"""Results of runs, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from shardwrite._dataclass import dataclass
from shardwrite._version import __version__
from shardwrite.codecs.documents import JSON, Document
from shardwrite.errors import CorruptShardError, IncompleteError, JournalError, SpecError, printable
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.node import without_keys
from shardwrite.journal.begin import differences, interrupted_end, same_source_remedy, tidied_run
from shardwrite.journal.documents import list_finished
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.neighbours import tidy
from shardwrite.journal.receipt import Contents, Receipt, UpdateEntry, changed_region, read_receipt
from shardwrite.journal.replay import replay
from shardwrite.journal.rundir import RunDirectory, remove_around
from shardwrite.place.target import Target, array_at, firsts_of, has_state_directory
from shardwrite.plan.identity import Identity
from shardwrite.records import RecordError, read
from shardwrite.results import ABOVE, Facts, Result, counted, duration, human
from shardwrite.runs.job import Job, digest_of, update_in

if TYPE_CHECKING:
    from shardwrite.read.array import ShardedArray


__all__ = ["VolumeResult", "WriteResult"]


def told_of_rereads(n_reread: int) -> str:
    """Text of a result that says how many reads of stored chunks were made again."""
    times = "once" if n_reread == 1 else f"{n_reread:,} times"
    return f"{times}, since the bytes were wrong at first: look at the storage of the source"


@dataclass(frozen=True, slots=True)
class WriteResult(Result):
    """Result of a run.

    The counts cover what the run writes: the array, the shards that an update touches, or one
    part.

    Attributes
    ----------
    path : str
        Path of the array.
    n_shards, n_empty_shards : int
        Number of shards with a file, and of shards without one, which hold only the fill value.
    n_chunks, n_empty_chunks : int
        Number of inner chunks that overlap the array, and of those that are empty among them.
    raw_nbytes, stored_nbytes : int
        Decoded bytes that were written, and bytes of the shards' files.
    seconds : float
        Seconds from the start of the call until the last shard was committed. With
        ``compute=False``, the sum over all tasks that commit. It is 0 if the run had ended before
        the call.
    n_tasks : int
        Number of tasks in all graphs, including the source's tasks. For one part, the number of
        its groups.
    peak_nbytes_by_process : dict of str to int
        Peak of the memory of each process that has committed shards, in bytes above what the
        process had when the run began. Of this, the plan says how much it is at most. On Linux,
        only anonymous memory counts: no mapped files, and not the interpreter. Other systems tell
        only by how much the run raised the peak of the resident memory. It is empty if the run had
        ended before the call.
    layout : str
        ``fused``, ``direct`` or ``staged``.
    n_resumed_shards : int
        Number of shards that an earlier call had committed.
    resumed_nbytes : int
        Decoded bytes of these shards, which are part of `raw_nbytes`.
    n_retried_tasks : int
        Number of times that a task was given up because its workers had died, and then run again.
    n_reread_chunks : int
        Number of reads of stored chunks, or of the indexes of shards, that were made again in this
        call, since their bytes were wrong the first time. The storage of the source needs a look.
    snapshot, message : str or None
        Id of the snapshot of an Icechunk repository that holds the array, and the message of its
        commit. None for all other targets.
    """

    _derived = ("throughput", "compression_ratio")

    path: str
    n_shards: int
    n_empty_shards: int
    n_chunks: int
    n_empty_chunks: int
    raw_nbytes: int
    stored_nbytes: int
    seconds: float
    n_tasks: int
    layout: str
    n_resumed_shards: int = 0
    resumed_nbytes: int = 0
    n_retried_tasks: int = 0
    n_reread_chunks: int = 0
    peak_nbytes_by_process: dict[str, int] = field(default_factory=dict)
    snapshot: str | None = None
    message: str | None = None

    @property
    def throughput(self) -> float:
        """Decoded bytes that this call has written per second; 0 if it has written none."""
        written = self.raw_nbytes - self.resumed_nbytes
        return written / self.seconds if self.seconds else 0.0

    @property
    def compression_ratio(self) -> float:
        """Ratio of decoded to stored bytes; 0 if nothing is stored."""
        return self.raw_nbytes / self.stored_nbytes if self.stored_nbytes else 0.0

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("array", self.path),
            (
                "shards",
                counted(self.n_shards, "file")
                + (
                    f"; {self.n_empty_shards:,} more are empty and have no file"
                    if self.n_empty_shards
                    else ""
                ),
            ),
            (
                "inner chunks",
                f"{self.n_chunks:,}"
                + (f", of which {self.n_empty_chunks:,} are empty" if self.n_empty_chunks else ""),
            ),
            (
                "bytes",
                (
                    f"{human(self.raw_nbytes)} in, {human(self.stored_nbytes)} out"
                    + (f" ({self.compression_ratio:.2f}x)" if self.stored_nbytes else "")
                ),
            ),
            (
                "time",
                f"{duration(self.seconds)}, {human(self.throughput)}/s"
                if self.throughput
                else "nothing was left to do",
            ),
            ("tasks", f"{self.n_tasks:,} ({self.layout})"),
        ]
        if self.snapshot is not None:
            rows.append(("snapshot", f"{self.snapshot} ({self.message})"))
        if self.n_resumed_shards:
            rows.append(
                ("resumed", f"{counted(self.n_resumed_shards, 'shard')} from an earlier call")
            )
        if self.n_retried_tasks:
            rows.append(("retried", f"{counted(self.n_retried_tasks, 'task')} whose worker died"))
        if self.n_reread_chunks:
            rows.append(("second reads", told_of_rereads(self.n_reread_chunks)))
        if self.peak_nbytes_by_process:
            peak = max(self.peak_nbytes_by_process.values())
            rows.append(
                (
                    "peak memory",
                    human(peak)
                    + (
                        f" in the largest of {len(self.peak_nbytes_by_process)} processes"
                        if len(self.peak_nbytes_by_process) > 1
                        else " in one process"
                    )
                    + f", {ABOVE}",
                )
            )
        return rows

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {printable(self.path)}: {counted(self.n_shards, 'file')}, "
            f"{human(self.raw_nbytes)} in, {human(self.stored_nbytes)} out>"
        )

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        peaks = self.peak_nbytes_by_process.values()
        headline = [
            (f"{self.n_shards:,}", "files"),
            *([(human(max(peaks)), "peak memory per process")] if peaks else []),
            (human(self.raw_nbytes), "written"),
            (human(self.stored_nbytes), "stored"),
            *([(duration(self.seconds), "time")] if self.throughput else []),
        ]
        return Facts(title="written", subject=self.path, headline=headline, rows=self._rows())


@dataclass(frozen=True, slots=True, repr=False)
class VolumeResult(WriteResult):
    """Result of a call that writes scales of a Neuroglancer volume.

    Attributes
    ----------
    path, layout : str
        Those of the first scale; see :class:`WriteResult`.
    n_shards, n_empty_shards, n_chunks, n_empty_chunks, n_tasks, n_resumed_shards : int
        Those of the first scale.
    raw_nbytes, stored_nbytes, resumed_nbytes, n_retried_tasks, n_reread_chunks : int
        Those of the first scale.
    seconds, peak_nbytes_by_process : float, dict of str to int
        Those of the first scale.
    snapshot, message : None
        No volume is in an Icechunk repository.
    scales : tuple of WriteResult
        One for each further scale, in the order in which they were given.
    """

    scales: tuple[WriteResult, ...] = ()

    def _rows(self) -> list[tuple[str, str]]:
        rows = super(VolumeResult, self)._rows()  # noqa: UP008 (it has slots)
        for each in self.scales:
            key, files = each.path.rpartition("/")[2], counted(each.n_shards, "file")
            nbytes = f"{human(each.raw_nbytes)} in, {human(each.stored_nbytes)} out"
            rows.append(("scale", f"{key}: {files}, {nbytes}"))
        return rows


def volume_result(results: Sequence[WriteResult]) -> VolumeResult:
    """Put the results of all scales of a call together.

    - `results`: one for each scale. The first is that of the array itself.
    """
    first = {field.name: getattr(results[0], field.name) for field in fields(WriteResult)}
    return VolumeResult(**first, scales=tuple(results[1:]))


def stored_result(kept: Mapping[str, JSON] | None, path: str) -> WriteResult:
    """Read the result that a receipt holds."""
    names = {field.name for field in fields(WriteResult)}
    try:
        return read(WriteResult, {n: v for n, v in (kept or {}).items() if n in names})
    except RecordError as error:
        raise JournalError(
            f"the receipt of {path} does not hold a result ({error}); remove the receipt", path=path
        ) from error


def result_from_receipt(kept: Mapping[str, JSON] | None, path: str) -> WriteResult:
    """Result of a call that finds an array as it should be, from the receipt.

    All of its shards count as resumed, its duration is 0, and it has taken no memory.
    """
    result = stored_result(kept, path)
    return replace(
        result,
        n_reread_chunks=0,
        n_resumed_shards=result.n_shards + result.n_empty_shards,
        resumed_nbytes=result.raw_nbytes,
        seconds=0.0,
        peak_nbytes_by_process={},
    )


# ---- The receipt that a run leaves in the array


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
    contents = Contents.of(ledger.nbytes)
    made = Receipt(
        digest=directory.digest,
        run=directory.run,
        identity=directory.record.identity,
        durability=job.durability,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        result=result.to_dict(),
        empty=contents.empty,
        sizes=contents.sizes,
    )
    if job.options.mode != "r+":
        return made
    made = replace(made, shape=tuple(directory.target.shape))
    if before is None:
        return made
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
    digest = f"{directory.digest}{directory.run}"
    return [UpdateEntry(digest=digest, identity=identity, run=directory.run)]


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
        digest=directory.digest,
        identity=replace(directory.record.identity, metadata=None, window=None),
        run=directory.run,
        finished=finished,
        result=result,
    )
    before = read_receipt(directory.target) or Receipt(
        digest="",
        run="",
        identity=Identity(),
        durability=durability,
        finished=finished,
        version=__version__,
        result={},
        empty=None,
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


# ---- Whether a job was finished before, and what is said if it is not


_N_NAMED = 20  # bad chunks in the message of an error


def filled_in(
    before: Sequence[WriteResult | None], new: Iterable[WriteResult]
) -> list[WriteResult]:
    """Results of jobs: those that were known before, and the new ones in the places of None."""
    left = iter(new)
    return [next(left) if result is None else result for result in before]


def incomplete(
    metadata: ArrayMetadata,
    target: Target,
    missing: Any,
    remedy: str,
    *,
    parts: Sequence[int] = (),
    n_written: int = 0,
) -> IncompleteError:
    """The error that names missing shards.

    - `missing`: ranks of the missing shards. The error has the keys of the first 1000.
    """
    n = metadata.grid.n_shards
    names = [metadata.key_of_rank(rank) for rank in missing[:1000]]
    listed = ", ".join(names[:8]) + (", ..." if len(missing) > 8 else "")
    what = (
        f"is not whole: {len(missing):,} of {n:,} shards are not committed ({listed})"
        if names
        else "is not finished, although all of its shards are committed"
    )
    return IncompleteError(
        f"{target.label} {what}; {remedy}",
        missing=names,
        parts=parts,
        n_written=n_written,
    )


def unreadable(
    errors: Sequence[CorruptShardError], array: ShardedArray | None, *, is_update: bool
) -> CorruptShardError:
    """The error that names what could not be read, of an array or of the one that is changed.

    - `errors`: why each shard is not written that is missing now.
    - `is_update`: whether an array is changed. Without an `array`, its own shards are bad.
    """
    store = None if array is None else array.store
    where = "" if store is None else f", from {store.local_root or store.url or store}"
    texts = list(dict.fromkeys(map(str, errors)))
    listed = "; ".join(texts[1:_N_NAMED]) + ("; ..." if len(texts) > _N_NAMED else "")
    remedy = "Mend what is read"
    if is_update and array is None:
        remedy = "Give the update up with abandon (shardwrite abandon), repair these shards"
    message = (
        f"{errors[0].message}. It was read twice{where}. {counted(len(errors), 'shard')} cannot be "
        f"written{f', also because of: {listed}' if listed else ''}. All others are written. "
        f"{remedy}, and make the same call again"
    )
    return CorruptShardError(message, **errors[0].fields)


def finished(jobs: Sequence[Job], joined: str = "") -> list[WriteResult | None]:
    """For each job, the result of an ended run of the same plan; None if the job must be run.

    Groups above with consolidated metadata list the arrays of these runs then.
    """
    for target in firsts_of(job.target for job in jobs):
        remove_around(target)  # where a process died before it did so
    results = [_finished(job, joined) for job in jobs]
    ended = [job for job, result in zip(jobs, results, strict=True) if result is not None]
    if ended:
        targets = [job.target for job in ended]
        list_finished(targets, ended[0].durability, targets[0].beside.parent)
    return results


def _finished(job: Job, joined: str) -> WriteResult | None:
    """The result of an ended run of the same plan; None if the job must be run.

    An interrupted end of a run is completed first. The array must still be as the run left it. In
    mode ``"w"`` and for an update, the result counts only if the source has a `source_id`, or the
    run is the one that was just completed or joined. Shards that somebody has removed since then
    are noticed: the array is then replaced in mode ``"w"``, and else an error names them.
    """
    ending = joined
    if has_state_directory(job.target):  # else no run has left anything
        ending = interrupted_end(job.target) or joined
        tidy(job.target)
    if job.options.restart and job.options.mode != "w-":
        return None  # an existing array is to be replaced, or an update is to be made again
    document = array_at(job.target.place)
    receipt = None if document is None else read_receipt(job.target)
    digest = digest_of(job.plan, job.options.mode)
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
    if not _is_as_left(document, receipt, job):
        return None
    return result_from_receipt(receipt.result, job.target.label)


def _is_as_left(document: Document, receipt: Receipt, job: Job) -> bool:
    """Whether the document of an array is as the run of a job, and later updates, have left it."""
    wanted = receipt.accepted or job.plan.metadata.document
    # An update may have made the array grow.
    shape = list(receipt.shape) if receipt.updates and receipt.shape else wanted["shape"]
    return without_keys(document) == without_keys({**wanted, "shape": shape})


def _has_begun_another(job: Job) -> bool:
    """Whether there is a run that has not ended, other than one that writes lost shards again."""
    run = tidied_run(job.target)
    if run is None or job.is_update:
        return run is not None
    return run.makes_array or run.digest != digest_of(job.plan, "r+")


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
    update = update_in(receipt, job.plan)
    if update is None or not (job.plan.source.is_stable or update.run == ending):
        return None
    shape = job.target.shape_if_there
    if shape is None or update.replaced or update.is_cut_off(shape):
        return None
    return result_from_receipt(update.result, job.target.label)


def with_others_staged(
    jobs: Sequence[Job], results: Sequence[WriteResult | None]
) -> Sequence[WriteResult | None]:
    """Results of jobs, of which updates that keep their values together are finished together.

    Their runs end one after the other, when the shards of all are written. So if one is finished,
    another one of which no run is left has ended before it.

    - `results`: for each job, what `finished` returns.
    - Raises JournalError if another run has changed since then what one of them wrote.
    """
    together = [n for n, job in enumerate(jobs) if job.plan.staged_with is not None]
    left = [n for n in together if results[n] is None]
    if not left or len(left) == len(together):
        return results
    found = list(results)
    for n in left:
        target = jobs[n].target
        if tidied_run(target) is not None:
            continue
        update = update_in(read_receipt(target), jobs[n].plan)
        if update is None or update.replaced:
            raise JournalError(
                f"the updates of this call read what they change. Some are done, but what one of "
                f"them wrote to {target.label} has changed since. Make another call for that "
                "region alone",
                path=target.label,
            )
        found[n] = result_from_receipt(update.result, target.label)
    return found


def refuse_another(job: Job) -> None:
    """Refuse to overwrite an existing array in mode ``"w-"``."""
    is_new = job.options.mode == "w-" and not job.target.recovers
    if not is_new or job.target.place.kind() != "array":
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
        told = differences(receipt.identity.to_dict(), job.plan.identity.to_dict())
        what += same_source_remedy(told)
    if receipt is not None and receipt.digest == job.plan.digest:
        if _is_as_left(document, receipt, job):  # as `create` finds it
            since = ", and updates have changed it since" if receipt.updates else ""
            what = f"an array exists there, which this call has made{since}"
            remedy += ", or go on with it as it is"
            raise SpecError(what, field="store", value=job.target.label, remedy=remedy)
        what += ". This call has made it, and another program has changed it since"
        remedy += ", or keep it with verify and accept=True (shardwrite verify --accept)"
    raise SpecError(what, field="store", value=job.target.label, remedy=remedy)
