"""Sessions: the work of one process on a run.

A session reads the journals of a run, makes the graphs of its tasks, and finally publishes the
array and ends the run. :mod:`shardwrite.runs.begin` makes it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document
from shardwrite.engines.local import Engine
from shardwrite.errors import CorruptShardError, RunEndedError, StoreError
from shardwrite.format.node import has_manifest
from shardwrite.grid import Box
from shardwrite.host.stopping import RUNS, note_committed, tell
from shardwrite.journal.begin import others_are_complete
from shardwrite.journal.documents import DocumentChange, all_listed, enlarged, present_listed
from shardwrite.journal.lease import file_system_time
from shardwrite.journal.ledger import Ledger, as_runs, elements_in_shards
from shardwrite.journal.lines import Checked, Entry, cause_of, journal_for, own_journals
from shardwrite.journal.receipt import read_receipt
from shardwrite.journal.replay import JournalFile, checked_before, replay, sweep
from shardwrite.journal.rundir import (
    Documents,
    RunDirectory,
    begin_group,
    fence_of,
    is_resumed,
    remove_empty,
    shared_fence_of,
)
from shardwrite.journal.takeover import end_run, is_amid_end, recover_changes
from shardwrite.place.base import REPORT_NAME
from shardwrite.place.directory import Directory
from shardwrite.place.target import remembering
from shardwrite.plan.estimate import BATCH_NBYTES
from shardwrite.results import rounded
from shardwrite.runs.job import GroupGraph, Job
from shardwrite.runs.result import (
    WriteResult,
    incomplete,
    make_receipt,
    unreadable,
)
from shardwrite.seams import resolve
from shardwrite.stores.base import take_n_reread
from shardwrite.stores.directories import fsync_directory
from shardwrite.stores.looking import as_store_error, listed
from shardwrite.write.context import GroupReport, WriteSpec

if TYPE_CHECKING:
    from shardwrite.journal.lines import JournalWriter
    from shardwrite.journal.parts import PartDirectory
    from shardwrite.journal.process import Process
    from shardwrite.place.base import Place
    from shardwrite.read.array import ShardedArray


_N_LOOKED_AT = 16
"""About so many shards of a new array are looked at when its run ends."""

_N_IN_LINE = 1000
"""Most shards in a line of a journal that tells what was there."""

_N_CHECKED = 2**13
"""Shards that are checked before the journal tells so, in a second or a few."""


@dataclass(slots=True, eq=False)
class Session:
    """A job that was begun, and its progress."""

    job: Job
    directory: RunDirectory  # the run
    driver: str  # name of this driver in the run, unique to the session
    ledger: Ledger  # the shards that are done
    n_resumed: int = 0  # number of shards that were done before this session
    resumed_nbytes: int = 0  # decoded bytes of these shards, inside the array and the region
    n_retried: int = 0  # number of times that a task was run again because workers had died
    # Number of shards that tasks did not begin, because their processes were asked to stop
    n_stopped: int = 0
    # Number of reads of stored chunks that were made again, since their bytes were wrong
    n_reread: int = 0
    # Why shards are not written, by their ranks: what they are made of cannot be read
    bad: dict[int, CorruptShardError] = field(default_factory=dict)
    # Why shards do not count as done, by their ranks: the storage has refused to read them
    unread: dict[int, StoreError] = field(default_factory=dict)
    has_helpers: bool = False  # whether other processes ran tasks
    is_later: bool = False  # whether the tasks run when nobody works on the run any more
    part: PartDirectory | None = None  # where this process works, if it only writes a part
    # Whether each shard is written by this process, bool, shape (n_shards,); None if all are
    only: npt.NDArray[np.bool_] | None = None
    _writes_in: Place | None = None

    def __post_init__(self) -> None:
        self.directory = self.directory.written_by(self.driver, self.job.options.durability)

    @property
    def writes_in(self) -> Place:
        """Where tasks write. It stays the same, so that none writes to an array that is whole."""
        if self._writes_in is None:
            self._writes_in = self.directory.writes_in
        return self._writes_in

    def spec(self) -> WriteSpec:
        """Facts that every task of the session needs."""
        plan, source = self.job.plan, self.job.source
        return WriteSpec(
            metadata=plan.metadata,
            strategy=plan.strategy,
            store=self.writes_in.store,
            run_path=str(self.work_path),
            claims=str(self.directory.path),
            parts=str(self._parts),
            driver=self.driver,
            output=self.directory.number,
            durability=self.job.durability,
            write_empty_chunks=plan.write_empty_chunks,
            batch_nbytes=BATCH_NBYTES,
            spool_ratio=plan.bound.spool_ratio,
            source_dtype=source.dtype,
            exists=self.job.options.mode == "r+",
            region=source.region,
            fence=(shared_fence_of if self.is_later else fence_of)(self.job.target),
            drops_hdf5=self.job.options.drop_hdf5,
            digest=plan.digest,
            read_from=self._token_read,
            goes_on=True,
        )

    @property
    def work_path(self) -> Path:
        """Directory of the run, or of the part, with the lease and the journals of this process."""
        return self.directory.shared if self.part is None else self.part.path

    def _journal(self, author: Process | None = None) -> JournalWriter:
        """Journal of this process, or of one that could not write its own."""
        return journal_for(str(self.work_path), self.driver, self.job.durability, author)

    @property
    def journal_directories(self) -> Sequence[Path] | None:
        """Directories with the journals that this process reads; None for all."""
        return None if self.part is None else self.part.journal_directories

    @property
    def _parts(self) -> Path:
        """Directory for part files."""
        return self.work_path / self.directory.parts(self.driver).name

    @property
    def _may_spool(self) -> bool:
        """Whether tasks may need part files; a part of a new array often needs none."""
        job = self.job
        if self.part is None or job.source.is_encoded or not job.plan.partition.is_fused:
            return True
        return not self.spec().streams

    @property
    def _read_from(self) -> ShardedArray | None:
        """The array that exists from which the source comes."""
        found: ShardedArray | None = getattr(self.job.source, "read_from", None)
        return found

    @property
    def _token_read(self) -> str:
        array = self._read_from
        return "" if array is None else array.store.token

    @property
    def name(self) -> str:
        """Name that the keys of this session's tasks have in them, and no other keys."""
        return f"-{self.driver}.{self.directory.number}-"

    def unfinished_groups(self, groups: Iterable[int]) -> list[int]:
        """Those of some groups that still have unwritten shards."""
        n_missing = self.ledger.left_in_groups(self.job.plan.partition.group_edges)
        return [rank for rank in groups if n_missing[rank]]

    def graph(self, name: str, engine: Engine) -> GroupGraph:
        """Builder of a graph of the session's tasks."""
        self.has_helpers |= not engine.shares_memory
        return GroupGraph(
            self.job.plan,
            self.spec(),
            self.job.source,
            self.ledger,
            f"{self.driver}.{self.directory.number}-{name}",
            shares_memory=engine.shares_memory,
        )

    def region_of(self, key: Any) -> str:
        """Text that names the region of a task, or an empty text if its key does not tell."""
        plan = self.job.plan
        if not (
            isinstance(key, tuple)
            and len(key) > 1
            and isinstance(key[0], str)
            and all(isinstance(i, int) for i in key[1:])
        ):
            return ""
        if key[0].startswith("shardwrite-"):
            if self.name not in key[0]:
                return ""
            group = plan.partition.group_box(key[1])
            box: Box | None = group if plan.region is None else group.intersect(plan.region)
        else:
            box = self.job.source.box_of(key)
        if box is None:
            return ""
        bounds = box.shift(tuple(-o for o in plan.origin)).bounds
        array = f" of {self.job.target.name}" if self.directory.record.together else ""
        return f"region [{', '.join(f'{a}:{b}' for a, b in bounds)}]{array}"

    def enter(self, report: GroupReport) -> None:
        """Enter the report of a task, and remove the part files that it does not need any more."""
        for changes in report.changes:
            self.job.target.store.take(changes)
        for path in report.part_files:
            with as_store_error(path, "cannot remove"):
                Path(path).unlink(missing_ok=True)
        if report.author is not None:
            self._journal(report.author).append(report.entry.to_dict())
        self.ledger.enter(report.entry, report.process)
        self.n_stopped += report.n_stopped
        self.n_reread += report.n_reread
        self.bad.update(report.bad)
        note_committed(len(report.shards))

    def enter_ledger(self) -> None:
        """Enter all shards of the ledger that are done into the journal of this process."""
        ledger, journal = self.ledger, self._journal()
        done = np.flatnonzero(ledger.is_done)
        for ranks in np.split(done, range(_N_IN_LINE, len(done), _N_IN_LINE)):
            entry = Entry(
                attempt=f"{self.driver}.found",
                shards=tuple(ranks.tolist()),
                nbytes=tuple(ledger.nbytes[ranks].tolist()),
                index_crcs=tuple(ledger.index_crcs[ranks].tolist()),
                n_chunks=tuple(ledger.n_chunks[ranks].tolist()),
                seconds=0.0,
                peak_nbytes=0,
                cpu_seconds=0.0,
                output=self.directory.number,
            )
            journal.append(entry.to_dict())

    @property
    def missing(self) -> npt.NDArray[np.int64]:
        """Ranks of the shards that this process is to write and that are not done."""
        is_missing = ~self.ledger.is_done
        return np.flatnonzero(is_missing if self.only is None else is_missing & self.only)

    @property
    def n_selected(self) -> int:
        """Number of shards that this process is to write."""
        return self.job.plan.n_shards if self.only is None else int(self.only.sum())

    @contextlib.contextmanager
    def skipping_others(self) -> Iterator[None]:
        """Have graphs leave out the shards that this process is not to write."""
        if self.only is None:
            yield
            return
        is_done = self.ledger.is_done
        others = ~self.only & ~is_done
        is_done |= others
        try:
            yield
        finally:
            is_done &= ~others

    def resume_from(self, ledger: Ledger) -> None:
        """Take the shards that are done in another ledger for done, and no others."""
        self.ledger.become(ledger)
        self.note_resumed()

    def note_resumed(self) -> None:
        """Count the shards in the ledger as done before this session."""
        is_done = self.ledger.is_done if self.only is None else self.ledger.is_done & self.only
        plan = self.job.plan
        self.n_resumed, self.resumed_nbytes = int(is_done.sum()), 0
        if self.n_resumed:
            told = f"resumed: {self.n_resumed:,} of {is_done.size:,} shards are done"
            tell(RUNS, logging.INFO, told, run=self.directory.path)
            elements = elements_in_shards(plan.metadata.grid, plan.region)
            self.resumed_nbytes = int(elements[is_done].sum()) * plan.metadata.itemsize

    def enter_unreported(self) -> None:
        """Enter shards from this driver's journals whose reports have not arrived.

        A store that `commits_later` lacks such shards if other processes have written them.
        """
        if self.has_helpers and self.job.target.store.commits_later:
            return
        own = None if self.part is None else [self.part.path]
        found = replay(self.directory, self.job.plan.metadata, self.driver, among=own).ledger
        new = np.flatnonzero(found.is_done & ~self.ledger.is_done).tolist()
        self.ledger.take(found, new)
        note_committed(len(new))

    def result(self, seconds: float) -> WriteResult:
        """Result of the session. That of a part tells of its own shards and groups only.

        The decoded bytes of an update are those of its region, and otherwise those of the shards
        that are done.
        """
        plan, part, ledger = self.job.plan, self.job.part, self.ledger
        if part is not None and self.only is not None:
            ledger = Ledger(plan.metadata.grid)
            ledger.take(self.ledger, np.flatnonzero(self.only).tolist())
        totals = ledger.totals(plan.metadata.itemsize)
        if plan.region is not None:
            totals["raw_nbytes"] = plan.raw_nbytes
        return WriteResult(
            path=self.job.target.label,
            **totals,
            seconds=rounded(seconds),
            n_tasks=plan.n_tasks if part is None else len(part.groups),
            layout=plan.layout,
            n_resumed_shards=self.n_resumed,
            resumed_nbytes=self.resumed_nbytes,
            n_retried_tasks=self.n_retried,
            n_reread_chunks=self.n_reread + take_n_reread(self._token_read),
            peak_nbytes_by_process=dict(ledger.peaks),
            snapshot=None,
            message=None,
        )

    def refuse_bad(self) -> None:
        """Raise an error if what some shards are made of cannot be read.

        - Raises CorruptShardError the error of the first of these shards, with a list of the
          others.
        """
        errors = [e for rank, e in sorted(self.bad.items()) if not self.ledger.is_done[rank]]
        if errors:
            raise unreadable(errors, self._read_from, is_update=self.job.is_update)

    def refuse_unread(self) -> None:
        """Raise StoreError if a shard counts as missing only because nothing could read it.

        Whoever writes shards writes such a one again. Whoever only ends a run cannot tell.
        """
        for rank in np.intersect1d(self.missing, [*self.unread]).tolist():
            raise self.unread[rank]

    def check_written(self) -> None:
        """Check that every shard is committed that this process is to write.

        - Raises IncompleteError if one is missing. First comes what `refuse_bad` raises, and then
          what `refuse_unread` does.
        """
        self.refuse_bad()
        self.refuse_unread()
        if len(self.missing):
            remedy = "run the same command again to go on"
            raise incomplete(self.job.plan.metadata, self.job.target, self.missing, remedy)

    def check_whole(self) -> None:
        """Check that every shard is committed, before the run ends."""
        plan, target = self.job.plan, self.job.target
        self.only = None
        self.check_written()
        if not self.job.makes_array:
            with as_store_error(target.label, "cannot finish"):
                # Undo changes in place left unfinished by tasks whose shards others have written.
                recover_changes(self.directory.path, target.store, plan.metadata)
            return
        if target.store.local_root is not None:
            self._check_some_there()
        elif self.has_helpers:
            self._check_there()

    def _check_some_there(self) -> None:
        """Check that some shards are still where tasks have put them, the first among them.

        They are gone if somebody has removed or renamed the directory of the array meanwhile.
        """
        stored = np.flatnonzero(self.ledger.nbytes > 0)
        if not len(stored):
            return
        metadata, store = self.job.plan.metadata, self.directory.store
        some = stored[:: max(1, len(stored) // _N_LOOKED_AT)].tolist()
        keys = {rank: metadata.key_of_rank(rank) for rank in some}
        gone = [rank for rank, key in keys.items() if store.size(key) is None]
        # A network file system may remember that there was no such file. A list is read anew.
        if gone and (gone := np.intersect1d(gone, self._lost()).tolist()):
            raise StoreError(
                f"{keys[gone[0]]} is gone, although this run has written it: the array was removed "
                "or renamed while it was written; make the same call again with recheck=True "
                "(--recheck), which writes again what is gone",
                key=keys[gone[0]],
                errno=errno.ENOENT,
            )

    def _lost(self) -> npt.NDArray[np.int64]:
        """Ranks of the shards that were committed, and that a list of the array does not have."""
        from shardwrite.read.inspection import ranks_of_objects  # of shards that are there

        return self.ledger.gone(ranks_of_objects(self._array(), self.job.target.label))

    def _array(self) -> ShardedArray:
        """The array that is written, with the shards that are there."""
        from shardwrite.read.array import ShardedArray

        return ShardedArray(self.job.plan.metadata, self.directory.store)

    def _check_there(self) -> None:
        """Check that this process finds the shards that other processes have put.

        Their settings may lead them to another service, which has a bucket of the same name.
        """
        metadata, label = self.job.plan.metadata, self.job.target.label
        lost = self._lost()
        if len(lost):
            key = metadata.key_of_rank(lost[0])
            raise StoreError(
                f"{len(lost):,} shards that workers have written are not in {label}, as this "
                f"process sees it; the first is {key!r}. The workers may reach another service: "
                "set the same address and keys for all of them, such as AWS_ENDPOINT_URL, and make "
                "the same call again with recheck=True (--recheck)",
                key=key,
                errno=errno.ENOENT,
            )

    def publish(self, documents: Documents | None = None) -> Document | None:
        """Publish the document of the array, or change it, and return that of a new array.

        - `documents`: takes that of a new array.
        """
        directory, metadata = self.directory, self.job.plan.metadata
        with self.publishing():
            if directory.record.replaces:
                self._clear()
            listed = present_listed(metadata, directory)
            if self.job.makes_array:
                return directory.publish(listed, documents)
            if self.job.is_update or has_manifest(metadata.document):
                self._change_document(listed)
        return None

    def write_receipt(self, result: WriteResult, documents: Documents | None = None) -> None:
        """Write the receipt of the array, and a report if one is wanted.

        - `documents`: takes them.
        """
        with self.publishing():
            receipt = make_receipt(self.directory, self.job, self.ledger, result)
            report = self._report(result.seconds) if self.job.options.keep_report else None
            self.directory.write_receipt(receipt, report, documents)

    @property
    def writes_documents_together(self) -> bool:
        """Whether documents may be written with those of others: nothing stands in their place."""
        job, record = self.job, self.directory.record
        is_new = job.makes_array and isinstance(job.target.place, Directory)
        is_first = job.options.publish != "first" and not job.target.recovers
        return is_new and is_first and (record.aside or not record.replaces)

    @property
    def group_key(self) -> object:
        """What the arrays of one run in the same groups have in common."""
        return self.directory.shared, self.job.target.above or id(self)

    def give_name(self, others: Sequence[Place] | None) -> bool:
        """Let a new array that was built aside have its name, where none stood.

        It takes `others`, and returns, what `RunDirectory.hand_over` does.
        """
        with self.publishing():
            return self.directory.give_name(others)

    def hand_over(self, others: Sequence[Place] | None) -> bool:
        """Let a new array that was built aside take the place of the old one.

        It takes `others`, and returns, what `RunDirectory.hand_over` does.
        """
        with self.publishing():
            took = self.directory.hand_over(others)
        if not self.directory.is_handed_over:
            raise RunEndedError("another process has ended this run", path=str(self.directory.path))
        return took

    def publishing(self) -> contextlib.AbstractContextManager[object]:
        """Report errors of the system as errors of the target."""
        return as_store_error(self.job.target.label, "cannot publish")

    def ending(self) -> contextlib.AbstractContextManager[object]:
        """Claim to hold amid `publish` and `write_receipt`, if others may change the array, too."""
        is_change = self.job.is_update or has_manifest(self.job.plan.metadata.document)
        if self.job.makes_array or not is_change:
            return contextlib.nullcontext()
        return self.directory.ending()

    def _clear(self) -> None:
        """Remove objects of an old array in a bucket that the new one does not have."""
        metadata, stored = self.job.plan.metadata, np.flatnonzero(self.ledger.nbytes > 0).tolist()
        keys = {metadata.key_of_rank(rank) for rank in stored}
        keys |= {REPORT_NAME} if self.job.options.keep_report else set()
        self.directory.clear(keys)

    def _change_document(self, listed: DocumentChange) -> None:
        """Enlarge the array by what an update has appended, and make its manifest exact."""
        directory = self.directory
        shape, label = directory.document["shape"], directory.target.label
        grows = self.job.plan.append_axis is not None  # else the shape may be another program's

        def change(document: Document) -> Document:
            return listed(enlarged(shape, label, document) if grows else document)

        directory.change(change)

    def list_before(self) -> None:
        """List the chunks that the job may write in the array's manifest, if it keeps one.

        A new array gets its manifest when it is published.
        """
        if self.job.makes_array or self.directory.keeps_values:
            return
        plan = self.job.plan
        region = plan.array_region or plan.metadata.grid.whole
        self.directory.list_before(plan.metadata, region)

    def put_document(self) -> None:
        """Put the document before the shards, for a store that `commits_later`.

        It raises what `publish_first` raises.
        """
        if self.job.makes_array:
            self.publish_first()
        elif self.job.is_update:
            with self.directory.ending():
                self._change_document(lambda document: document)

    def publish_first(self) -> None:
        """Publish the document of a new array before anything is written.

        Its manifest, if it keeps one, lists all chunks until the run ends.
        """
        metadata = self.job.plan.metadata
        if self.directory.record.replaces:
            self.ledger = replay(self.directory, metadata).ledger  # of an earlier call
            self._clear()
        listed = partial(all_listed, metadata, metadata.grid.whole)
        document = self.directory.publish(listed)
        with self.publishing():
            self.directory.publish_groups(document, self.job.groups)

    def _report(self, seconds: float) -> bytes:
        """Content of the file with the report of the run; the call has taken some seconds."""
        directory = self.directory
        made: bytes = resolve("report", "run")(
            directory, self.job.plan.metadata, call_seconds=0.0 if self.n_resumed else seconds
        )
        return made

    def catch_up(
        self,
        engine: Engine,
        *,
        may_list: bool,
        files: Sequence[JournalFile],
        trusts_journals: bool = False,
    ) -> None:
        """Read from the journals which shards are done, and remove what dead processes have left.

        Changes in place that were interrupted are undone first. Shards that a power cut may have
        damaged are decoded; with `recheck`, all shards that are done. Bad shards are written again.

        In a run that another process has begun, only the shards of this process are checked. Their
        indexes are checked even if a journal calls them durable, because no other process of the
        run does so. Whoever ends the run leaves out those that were checked within a day and have
        not changed since, so that this may be interrupted.

        - `files`: content of the journals.
        - `trusts_journals`: whether indexes are not checked that a journal calls durable.
        """
        metadata = self.job.plan.metadata
        if self.job.makes_array:
            self.directory.check_mark()
        elif self.part is None:  # nothing of a new array is changed in place
            recover_changes(self.directory.path, self.job.target.store, metadata)
        found = replay(self.directory, metadata, files=files, among=self.journal_directories)
        done = set(np.flatnonzero(found.ledger.is_done).tolist())
        if self.job.options.recheck:
            found.untrusted |= done
        if self.job.plan.append_axis is not None and self.part is None:
            # Another program may have cut off what an earlier attempt had appended.
            self._check(engine, found.ledger, done - found.untrusted, deep=False)
            done = set(np.flatnonzero(found.ledger.is_done).tolist())
        if self.job.begun is not None:
            if self.only is not None:
                done.intersection_update(np.flatnonzero(self.only).tolist())
            found.untrusted &= done
            told = files if self.job.part is None else ()
            if not trusts_journals:
                others = done - found.untrusted
                others -= self._still_good(engine, found.ledger, others, told, deep=False)
                self._check(engine, found.ledger, others, deep=False)
            found.untrusted -= self._still_good(
                engine, found.ledger, found.untrusted, told, deep=True
            )
        self._check(engine, found.ledger, found.untrusted, deep=True)
        sweep(self.directory, metadata, found, may_list=may_list)
        directory = self.directory
        # Where the run replaces an array, some objects may still be those of the old one.
        is_own = self.job.makes_array and not directory.record.replaces
        if is_own and is_resumed(directory.target, directory.run):
            self._enter_unjournaled(engine, found.ledger)
        self.ledger = found.ledger
        self.note_resumed()

    def _enter_unjournaled(self, engine: Engine, ledger: Ledger) -> None:
        """Enter whole shards of a new array that stand in a bucket, and that no journal knows.

        They were put after the journals were put there last. All objects of the array are the
        run's own.
        """
        array = self._array()
        if array.metadata.is_sharded:
            from shardwrite.read.inspection import inspect_shards, ranks_of_objects

            there = ranks_of_objects(array, self.job.target.label)
            table = inspect_shards(engine, array, there[~ledger.is_done[there]], deep=False)
            found = Ledger.of(array.metadata.grid, table)
            found.forget(table.bad)
            found.peaks = ledger.peaks
            ledger.take(found, np.flatnonzero(found.is_done).tolist())

    def _still_good(
        self,
        engine: Engine,
        ledger: Ledger,
        shards: Collection[int],
        files: Sequence[JournalFile],
        *,
        deep: bool,
    ) -> set[int]:
        """Those of some shards that were checked within a day, and have not changed since.

        The file system tells when a file was changed. In another store, a list tells which are
        there.
        """
        since = checked_before(self.directory, ledger, files, deep=deep)
        ranks = np.array(sorted(shards), dtype=np.int64)
        ranks = ranks[since[ranks] > 0]
        if not len(ranks):
            return set()
        from shardwrite.read.inspection import change_times, ranks_of_objects

        array, is_stored = self._array(), ledger.nbytes[ranks] > 0
        if array.store.has_mtime:
            changed = change_times(engine, array, ranks)
            is_good = (changed < since[ranks]) & ((changed > 0) | ~is_stored)
        else:
            is_good = np.isin(ranks, ranks_of_objects(array, self.job.target.label)) | ~is_stored
        return set(ranks[is_good].tolist())

    def _check(
        self, engine: Engine, ledger: Ledger, shards: Collection[int], *, deep: bool
    ) -> None:
        """Check shards, and mark those as missing that are bad or differ from the ledger.

        With `deep`, inner chunks are decoded. Otherwise only the index is read. In a run that
        another process has begun, the journal tells which are good, some thousand at a time.
        """
        if self.directory.is_written_over:  # the old array may have objects where this one is empty
            shards = [rank for rank in shards if ledger.nbytes[rank] > 0]
        if not shards:
            return
        from shardwrite.read.inspection import inspect_shards

        array, every = self._array(), np.array(sorted(shards), dtype=np.int64)
        for ranks in np.split(every, range(_N_CHECKED, len(every), _N_CHECKED)):
            since = 0.0 if self.job.begun is None else file_system_time(self.work_path)
            table = inspect_shards(engine, array, ranks, deep=deep, in_full=False)
            ledger.forget(table.against(ledger.nbytes, ledger.index_crcs).all.tolist())
            self.unread |= table.unread(self.job.target.label)
            good = ranks[ledger.is_done[ranks]]
            if self.job.begun is not None and len(good):
                line = Checked(
                    as_runs(good), ledger.checksum(good), since, deep, self.directory.number
                )
                self._journal().append(line.to_dict())

    def look_again(self, engine: Engine) -> int:
        """Compare each object that was written with the ledger, by its size and its index.

        Shards that are gone, bad or others count as missing then.
        """
        metadata, ledger = self.job.plan.metadata, self.ledger
        written = np.flatnonzero(ledger.is_done & (ledger.nbytes > 0))
        if metadata.is_sharded:
            self._check(engine, ledger, written.tolist(), deep=False)
        else:  # there is no index, and the sizes are known without reading
            from shardwrite.read.inspection import ShardTable, stored_sizes

            table = ShardTable.of_sizes(written, stored_sizes(engine, self._array(), written))
            ledger.forget(table.against(ledger.nbytes).all.tolist())
        return len(written) - int(ledger.is_done[written].sum())

    def make_shard_directories(self) -> None:
        """Make the directories of all shards.

        One process does so once, because many nodes would get in each other's way.
        """
        metadata, target = self.job.plan.metadata, self.job.target
        keys = (metadata.shard_key(index) for index in metadata.grid.shards_in(metadata.grid.whole))
        with as_store_error(target.label, "cannot make directories"):
            self.directory.place.make_directories(keys, self.job.durability)

    def note_failure(self, error: Exception) -> None:
        """Write the cause of a failure into the journal, for the status of the run."""
        with contextlib.suppress(StoreError, RunEndedError):  # the first error is the one to report
            self._journal().append({"failed": cause_of(error)})

    def make_parts(self) -> None:
        """Make the directory for part files, if tasks may need some."""
        if self._may_spool or self.is_later:
            with as_store_error(str(self._parts), "cannot make"):
                self._parts.mkdir(exist_ok=True)

    def discard_parts(self) -> None:
        """Remove the part files of this session's tasks."""
        if not self._may_spool:
            return
        parts = self._parts
        # A straggler may be writing one. The next process to join the run, or its end, removes it.
        with contextlib.suppress(OSError):
            try:
                parts.rmdir()
            except FileNotFoundError:
                return  # it went with the run
            except OSError:  # most likely, some part files are left
                for path in listed(parts):
                    path.unlink(missing_ok=True)
                parts.rmdir()


def finish_together(sessions: Sequence[Session], seconds: Sequence[float]) -> list[WriteResult]:
    """End runs: steps 5 and 6, which `journal.rundir` describes.

    No array is published before all of them are whole, and no new group before its arrays.

    If another process takes these steps at the same time, an error here is ignored if the receipts
    show that the runs have ended.
    """
    for session in sessions:
        session.check_whole()
    results = [session.result(took) for session, took in zip(sessions, seconds, strict=True)]
    try:
        for session in sessions:
            begin_group(session.job.target)
        with remembering([session.job.target for session in sessions]):
            _publish(sessions, results)
        # The first one ends last, since it may keep the values of all; see `runs.staged`.
        for session in {each.directory.shared: each for each in reversed(sessions)}.values():
            directory = session.directory
            own = [s.directory for s in sessions if s.directory.shared == directory.shared]
            with as_store_error(directory.target.label, "cannot end"):
                if others_are_complete(directory, but=[each.number for each in own]):
                    end_run(directory, own_journals(session.driver), own)
                    tell(RUNS, logging.INFO, f"ended: {directory.target.label}", run=directory.path)
    except (StoreError, RunEndedError) as error:
        for session in sessions:
            _check_ended(session.directory, error)
    return results


def _publish(sessions: Sequence[Session], results: Sequence[WriteResult]) -> None:
    """Publish the documents of arrays, then those of new groups, and leave receipts.

    Arrays that are built aside are handed over once all of this is done, since no process can take
    that back.
    """
    new: list[tuple[Session, Document]] = []
    aside: list[tuple[Session, Document]] = []
    together: dict[Path, list[Session]] = {}
    of_session = dict(zip(sessions, results, strict=True))
    documents = Documents()
    for session, result in of_session.items():
        is_aside = session.directory.record.aside
        waiting = documents if session.writes_documents_together else None
        with session.ending():
            document = session.publish(waiting)
            if document is None and session.directory.is_listed_with_others:
                together.setdefault(session.directory.shared, []).append(session)
            elif document is None or is_aside:
                session.write_receipt(result, waiting)
        if document is not None:
            (aside if is_aside else new).append((session, document))
    documents.write()
    for updates in together.values():
        with updates[0].publishing():
            updates[0].directory.list_again([session.job.target for session in updates])
        for session in updates:
            with session.ending():
                session.write_receipt(of_session[session])
    _publish_groups(new)
    for session, _ in new:
        waiting = documents if session.writes_documents_together else None
        session.write_receipt(of_session[session], waiting)
    documents.write()
    # Those that replace none come first, and tasks write to them no more. Groups are there by then,
    # so that no reader lists a directory without a document.
    replaced = [each for each in aside if each[0].directory.record.replaces]
    named = [each for each in aside if not each[0].directory.record.replaces]
    for (session, _), *_ in _by_groups(named):
        with session.publishing():
            session.directory.make_groups(session.job.groups)
    for each in _by_groups(named):
        _give_names(each, Session.give_name)
        job = each[0][0].job
        if job.durability != "none":
            above = job.target.directory.path.parent
            with as_store_error(str(above), "cannot make durable"):
                fsync_directory(above)
    if len(replaced) > 1:
        for session, _ in replaced:
            with session.publishing():
                session.directory.close()  # tasks write to it no more
    for each in _by_groups(replaced):
        _give_names(each, Session.hand_over)
    _publish_groups(aside)


def _give_names(
    arrays: Sequence[tuple[Session, Document]],
    give: Callable[[Session, Sequence[Place] | None], bool],
) -> None:
    """Let arrays that the same groups list have their names.

    The first that takes them out of the groups' metadata does so for all.

    - `give`: `Session.give_name`, or `Session.hand_over` where old arrays stand there.
    """
    places, are_withdrawn = [session.job.target.place for session, _ in arrays], False
    for session, _ in arrays:
        are_withdrawn = give(session, None if are_withdrawn else places) or are_withdrawn


def _by_groups(arrays: Sequence[tuple[Session, Document]]) -> list[list[tuple[Session, Document]]]:
    """Arrays and their documents, by the groups above that list them."""
    by_groups: dict[object, list[tuple[Session, Document]]] = {}
    for session, document in arrays:
        by_groups.setdefault(session.group_key, []).append((session, document))
    return list(by_groups.values())


def _publish_groups(arrays: Sequence[tuple[Session, Document]]) -> None:
    """Publish new groups above some arrays, and have all groups above list these."""
    for (session, document), *others in _by_groups(arrays):
        beside = [(one.job.target.place, made) for one, made in others]
        with session.publishing():
            session.directory.publish_groups(document, session.job.groups, beside)


def _check_ended(directory: RunDirectory, error: StoreError | RunEndedError) -> None:
    """Raise an error, unless another process has ended the run and the array's receipt says so.

    What is missing then was removed by that process. Other errors amid the removal are told.
    """
    ended = read_receipt(directory.target)
    if is_amid_end(directory, error):
        raise error
    if not directory.has_ended or ended is None or not ended.is_of(directory.digest):
        raise error
    if not ended.is_of(directory.digest, directory.run):
        raise RunEndedError(
            "another run has taken this one's place", path=str(directory.path)
        ) from error
    # That process could not remove the directory of a claim that this one held at the time.
    with as_store_error(directory.target.label, "cannot end"):
        remove_empty(directory.target)
