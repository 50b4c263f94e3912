"""Commit of shards by a task, and its entries in the journal.

A commit task takes these steps. The text in italics says what a crash after the step leaves:

1. Write into the journal the name of the attempt and the shards that it is about to write.
   *Nothing, or temporaries that can be found by that name.*
2. Commit the shards (see `stores`). *Whole shards that the journal does not know. They are written
   again.*
3. Enter the shards into the journal. *They are done.*

A task that commits many bytes, or for more than a second, enters what it has committed so far, and
goes on. While it is busy with one shard, a thread does so for it. So a kill costs the commits of
one second, and what was in flight. In the first second of a process, entries are more frequent, so
that a process that is always killed early makes progress, too. A process that is told to end
(`on_leaving`) enters what it has committed, into a journal of its own for that.

After a fault that may pass, the task makes a few more attempts. Each one takes these steps under a
new name, for the shards that are not committed yet.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from shardwrite.codecs.documents import JSON
from shardwrite.config.table import RETRY_PAUSES, value_of
from shardwrite.errors import CorruptShardError, IncompleteError, ShardwriteError, StoreError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Box, Shape, ceil_div, ravel
from shardwrite.host.resources import peak_memory_nbytes
from shardwrite.host.stopping import (
    SHARDS,
    SMALL_NBYTES,
    Turn,
    has_ended,
    is_draining,
    is_told,
    on_leaving,
    tell,
)
from shardwrite.journal.lease import this_process
from shardwrite.journal.lines import Beginning, Entry, JournalWriter, shards_of
from shardwrite.plan.estimate import n_at_once
from shardwrite.stores.base import Transaction, take_n_reread
from shardwrite.stores.removal import Proof, leaves_temporary
from shardwrite.write.context import GroupReport, WriteSpec, Written

# error numbers of storage faults that may pass
PASSING = frozenset({errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR})
# decoded bytes of the shards in an entry; with 1 MiB, entries would take 1 % of the time of small
# shards
_ENTRY_NBYTES = 4 * 2**20
_ENTRY_SECONDS = 1.0
# pause before the first entry of a process; each further pause is as long as all before together,
# up to `_ENTRY_SECONDS`
_FIRST_SECONDS = 0.01
_LOOK_SECONDS = 0.25  # between looks at what tasks have not entered
_LEAVING_SECONDS = (
    0.5  # for which a process waits, before it exits, for a thread that enters shards
)
_SHARDS_A_TURN = 32
# seconds to read, encode and write a small shard: twice as long as on a memory file system
_SHARD_SECONDS = 4e-4

T = TypeVar("T")
WriteShard = Callable[[Transaction, Shape], Written]
"""Writes the shard at a position of the shard grid into a transaction."""


class _Progress:
    """Shards that a task has committed, and their entry into the journal."""

    def __init__(self, spec: WriteSpec) -> None:
        self.done: dict[Shape, Written] = {}
        self.proof: Proof | None = None
        self.changes: list[Any] = []
        self.bad: dict[Shape, CorruptShardError] = {}
        self._spec = spec
        self._journal = spec.journal()
        self._begun = self._entered = time.perf_counter()
        self._due = self._begun + self._pause  # when the next entry is late
        self._cpu, self._cpu_seconds = time.thread_time(), 0.0
        self._attempt = ""
        self._committed: set[str] = set()  # keys that the transaction of the attempt has committed
        self._written: dict[Shape, Written] = {}  # by the attempt, and not entered
        self._n_written = 0  # since the last entry
        self._waiting: dict[Shape, Written] = {}  # committed, while an entry of them has failed
        self._n_at_most = max(1, _ENTRY_NBYTES // _shard_nbytes(spec.metadata))
        self._lock = threading.Lock()  # held by whoever enters shards

    def begin(self, group: Box, attempt: str) -> None:
        """Write into the journal what an attempt is about to write (step 1)."""
        beginning = _beginning(self._spec, group, attempt)
        self._journal.append(beginning.to_dict())
        keys = cache(partial(_keys, self._spec.metadata, beginning))
        self.proof = Proof(Path(self._spec.run_path), beginning.to_dict(), keys)
        self._attempt = attempt

    def transact(self, transaction: Transaction) -> None:
        """Expect shards that the attempt writes in a transaction."""
        with self._lock:
            self._written, self._committed = {}, transaction.committed

    def note(self, index: Shape, written: Written) -> None:
        """Note a shard that was written, and is committed by now or will be."""
        self.bad.pop(index, None)
        self._written[index] = written
        self._n_written += 1

    @property
    def has_many(self) -> bool:
        """Whether another entry is due, because many bytes were written since the last one."""
        return self._n_written >= self._n_at_most

    @property
    def is_late(self) -> bool:
        """Whether another entry is due, because the last one was long ago."""
        return time.perf_counter() >= self._due

    @property
    def _pause(self) -> float:
        """Seconds from the last entry to the next one.

        This is the age of the journal at the last entry, within `_FIRST_SECONDS` and
        `_ENTRY_SECONDS`.
        """
        return min(_ENTRY_SECONDS, max(_FIRST_SECONDS, self._entered - self._journal.begun))

    def enter(self, *, more: bool, is_whole: bool = False) -> None:
        """Enter shards into the journal (step 3).

        If that fails, the next entry has these shards, too.

        - `is_whole`: whether all shards are committed, because the transaction has ended well. Else
          those are entered that have the requested durability by now.
        - Raises RunEndedError if the run has ended.
        """
        with self._lock:
            self._cpu_seconds = time.thread_time() - self._cpu
            self._enter(self._journal.append, more=more, is_whole=is_whole, is_retried=True)
            self._entered, self._n_written = time.perf_counter(), 0
            self._due = self._entered + self._pause

    def enter_for_task(self) -> None:
        """Enter shards while the task is busy with another one; called by another thread.

        Storage that fails now is left to the task, whose next entry has these shards, too.
        """
        is_old = time.perf_counter() - self._entered >= _ENTRY_SECONDS - _LOOK_SECONDS
        if is_old and self._written and self._lock.acquire(blocking=False):
            try:
                with contextlib.suppress(ShardwriteError):
                    self._enter(self._journal.append, more=True)
            finally:
                self._lock.release()

    def leave(self) -> None:
        """Enter shards before the process exits at once; called by a handler of a signal.

        This thread may be the one that is about to enter them. So it does not wait for the lock for
        long, and writes a journal of its own.
        """
        has_lock = self._lock.acquire(timeout=_LEAVING_SECONDS)
        try:
            spec = self._spec
            journal = JournalWriter(spec.run_path, spec.driver, spec.durability)
            self._enter(journal.append, more=True)
        finally:
            if has_lock:
                self._lock.release()

    def _enter(
        self,
        append: Callable[[Mapping[str, JSON]], None],
        *,
        more: bool,
        is_whole: bool = False,
        is_retried: bool = False,
    ) -> None:
        key = self._spec.metadata.shard_key
        # A copy in one step, as the task may note a shard meanwhile
        for index, written in self._written.copy().items():
            if is_whole or not written.nbytes or key(index) in self._committed:
                self.done[index] = self._waiting[index] = written
                del self._written[index]
        if self._waiting or not more:
            fields = self.entry(self._waiting, more=more).to_dict()
            if is_retried:
                retried(lambda: append(fields), self._spec.run_path)
            else:
                append(fields)
            self._waiting = {}

    def entry(self, written: Mapping[Shape, Written], *, more: bool = False) -> Entry:
        """Journal line for shards that the attempt has committed."""
        counts = self._spec.metadata.grid.counts
        return Entry(
            attempt=self._attempt,
            shards=tuple(ravel(index, counts) for index in written),
            nbytes=tuple(facts.nbytes for facts in written.values()),
            index_crcs=tuple(facts.index_crc for facts in written.values()),
            n_chunks=tuple(facts.n_chunks for facts in written.values()),
            seconds=round(time.perf_counter() - self._begun, 6),
            peak_nbytes=peak_memory_nbytes(self._spec.run_path),
            more=more,
            cpu_seconds=round(self._cpu_seconds, 6),
            output=self._spec.output,
        )


@contextlib.contextmanager
def _entered_in_time(progress: _Progress) -> Iterator[None]:
    """Have the shards of a task entered while it is busy with the next ones."""
    ended = threading.Event()

    def enter_late() -> None:
        while not ended.wait(_LOOK_SECONDS):
            progress.enter_for_task()

    thread = threading.Thread(target=enter_late, name="shardwrite-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        has_ended(thread)


def commit_shards(
    spec: WriteSpec, group: Box, shards: Sequence[Shape], write: WriteShard
) -> GroupReport:
    """Write shards, by the protocol at the head of this module.

    - `write`: function that writes one shard into a transaction. It may be called again for the
      same shard.
    """
    progress = _Progress(spec)

    def attempt() -> None:
        name = spec.attempt()
        progress.begin(group, name)
        left = [index for index in shards if index not in progress.done]
        error = _try_shards(spec, left, write, name, progress)
        # What another process is about to hand over was renamed, with the temporaries in it.
        is_moved = isinstance(error, StoreError) and error.errno == errno.ENOENT
        progress.enter(more=is_moved or leaves_temporary(name), is_whole=error is None)
        if error is not None:
            raise error

    with contextlib.ExitStack() as stack:
        if not spec.is_far:
            stack.enter_context(on_leaving(progress.leave))
        if len(shards) > 1 and not spec.is_far:
            stack.enter_context(_entered_in_time(progress))
        retried(attempt, spec.run_path)
    done = progress.done
    if is_told(SHARDS, logging.DEBUG):
        for index, facts in done.items():
            message = f"committed, {facts.nbytes:,} bytes, {facts.n_chunks:,} inner chunks"
            key = spec.metadata.shard_key(index)
            tell(SHARDS, logging.DEBUG, message, run=spec.run_path, shard=key)
    return GroupReport(
        entry=progress.entry(done),
        raw_nbytes=_raw_nbytes(spec, group, done),
        process=f"{socket.gethostname()}:{os.getpid()}",
        n_stopped=len(shards) - len(done.keys() | progress.bad),
        author=this_process() if spec.is_far else None,
        changes=tuple(progress.changes),
        n_reread=take_n_reread(spec.read_from) + take_n_reread(spec.store.token),
        bad={ravel(index, spec.metadata.grid.counts): e for index, e in progress.bad.items()},
    )


def commit_shard(spec: WriteSpec, index: Shape, write: WriteShard) -> Entry:
    """Write one shard as `commit_shards` does, and return its entry in the journal.

    - Raises IncompleteError if this process was asked to stop.
    """
    report = commit_shards(spec, spec.metadata.grid.shard_box(index), [index], write)
    if not report.shards:
        key = spec.metadata.shard_key(index)
        raise IncompleteError(
            f"{key} was not committed: this process was asked to stop", missing=[key]
        )
    return report.entry


def has_small_shards(metadata: ArrayMetadata) -> bool:
    """Whether an array's shards are so small that threads take turns; see `host.stopping`."""
    return _shard_nbytes(metadata) <= SMALL_NBYTES


def _shard_nbytes(metadata: ArrayMetadata) -> int:
    """Decoded size of a shard, in bytes, at least 1."""
    return max(1, metadata.shard_nbytes)


@contextlib.contextmanager
def in_turns(spec: WriteSpec, n_shards: int, write: WriteShard) -> Iterator[WriteShard]:
    """Make a function take turns if it writes small shards; see `host.stopping`.

    The thread gives its last turn back at the end of the block.
    """
    if not has_small_shards(spec.metadata):
        yield write
        return
    with Turn() as turn:
        numbers = itertools.count()
        n_together = min(n_shards, _SHARDS_A_TURN)

        def write_in_turn(transaction: Transaction, index: Shape) -> Written:
            if next(numbers) % n_together == 0:
                turn.take(n_together * _SHARD_SECONDS)
            return write(transaction, index)

        yield write_in_turn


def retried(attempt: Callable[[], T], run_path: str) -> T:
    """Call a function, and call it again after storage faults that may pass.

    The pauses are those of ``shardwrite.retry-pauses``. Nothing is retried inside a call, because
    an fsync that failed has lost the data that it should have made durable.
    """
    for wait in value_of(RETRY_PAUSES):
        try:
            return attempt()
        except StoreError as error:
            if error.fields["errno"] not in PASSING:
                raise
            message = f"tried again after {wait:g} s: {error}"
            tell(SHARDS, logging.WARNING, message, run=run_path, shard=error.fields["key"])
        # The pause is random, so that many workers do not come back at once.
        time.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311
    return attempt()


def _try_shards(
    spec: WriteSpec, shards: Sequence[Shape], write: WriteShard, attempt: str, progress: _Progress
) -> ShardwriteError | None:
    """Make one attempt to write shards, and return the error that ends it."""
    transaction = spec.store.transaction(
        spec.durability, attempt, spec.check_current, proof=progress.proof, is_fresh=not spec.exists
    )
    progress.transact(transaction)
    n_together = n_at_once(_shard_nbytes(spec.metadata) + spec.metadata.sealing_nbytes)
    if n_together > 1:
        transaction.overlap(n_together)
    transaction.expect_nbytes(spec.metadata.most_nbytes)
    try:
        with transaction:
            for index in shards:
                is_late = progress.is_late
                if is_late:
                    transaction.flush()
                if is_late or progress.has_many:
                    progress.enter(more=True)
                if is_draining():
                    break
                try:
                    written = write(transaction, index)
                except CorruptShardError as error:
                    if not spec.goes_on:
                        raise
                    progress.bad[index] = error
                else:
                    progress.note(index, written)
    except ShardwriteError as error:
        return error
    finally:
        if (changes := transaction.changes()) is not None:
            progress.changes.append(changes)
    return None


def _beginning(spec: WriteSpec, group: Box, attempt: str) -> Beginning:
    """Journal line for the beginning of an attempt at the shards of a group."""
    shards = spec.metadata.grid.shard_range(group)
    return Beginning(attempt, (shards.start, shards.stop), spec.output)


def _keys(metadata: ArrayMetadata, beginning: Beginning) -> frozenset[str]:
    """Keys of the shards that an attempt has announced."""
    return frozenset(metadata.shard_key(index) for index in shards_of(beginning, metadata))


def _raw_nbytes(spec: WriteSpec, group: Box, done: dict[Shape, Written]) -> int:
    """Decoded bytes of some shards of a group, inside the array and the region."""
    grid, itemsize = spec.metadata.grid, spec.metadata.itemsize
    if spec.region is not None:
        group = group.intersect(spec.region)
        return sum(grid.shard_box(index).intersect(group).size for index in done) * itemsize
    if len(done) == math.prod(
        ceil_div(n, s) for n, s in zip(group.shape, grid.shards, strict=True)
    ):
        return group.size * itemsize
    return sum(grid.shard_box(index).intersect(grid.whole).size for index in done) * itemsize
