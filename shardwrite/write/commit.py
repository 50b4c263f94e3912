"""Commit of shards by a task, and its entries in the journal.

A commit task takes these steps. The text in italics says what a crash after the step leaves:

1. Write into the journal the name of the attempt and the shards that it is about to write.
   *Nothing, or temporaries that can be found by that name.*
2. Commit the shards (see `stores`). *Whole shards that the journal does not know. They are written
   again.*
3. Enter the shards into the journal. *They are done.*

A task that commits many bytes, or for more than a second, enters what it has committed so far, and
goes on. In the first second of a process, entries are more frequent, so that a process that is
always killed early makes progress, too.

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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from shardwrite.config.table import RETRY_PAUSES, value_of
from shardwrite.errors import CorruptShardError, ShardwriteError, StoreError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Box, Shape, ceil_div, ravel
from shardwrite.host.resources import peak_memory_nbytes
from shardwrite.host.stopping import SHARDS, SMALL_NBYTES, Turn, is_draining, is_told, tell
from shardwrite.journal.lease import this_process
from shardwrite.journal.lines import Beginning, Entry, shards_of
from shardwrite.plan.estimate import n_at_once
from shardwrite.stores.base import Transaction, take_n_reread
from shardwrite.stores.removal import Proof
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
        self._cpu = time.thread_time()
        self._waiting: dict[Shape, Written] = {}
        self._n_at_most = max(1, _ENTRY_NBYTES // _shard_nbytes(spec.metadata))

    @property
    def seconds(self) -> float:
        """Seconds since the task began."""
        return time.perf_counter() - self._begun

    @property
    def cpu_seconds(self) -> float:
        """Seconds for which the task's thread was computing since the task began."""
        return time.thread_time() - self._cpu

    def begin(self, group: Box, attempt: str) -> None:
        """Write into the journal what an attempt is about to write (step 1)."""
        beginning = _beginning(self._spec, group, attempt)
        self._journal.append(beginning.to_dict())
        keys = cache(partial(_keys, self._spec.metadata, beginning))
        self.proof = Proof(Path(self._spec.run_path), beginning.to_dict(), keys)

    def is_due(self, n_written: int) -> bool:
        """Whether another entry is due, if `n_written` shards were written since the last one."""
        return n_written >= self._n_at_most or time.perf_counter() - self._entered >= self._pause

    @property
    def _pause(self) -> float:
        """Seconds from the last entry to the next one.

        This is the age of the journal at the last entry, within `_FIRST_SECONDS` and
        `_ENTRY_SECONDS`.
        """
        return min(_ENTRY_SECONDS, max(_FIRST_SECONDS, self._entered - self._journal.begun))

    def enter(self, committed: Mapping[Shape, Written], attempt: str, *, more: bool) -> None:
        """Enter shards into the journal (step 3).

        If that fails, the next entry has these shards, too.

        - Raises RunEndedError if the run has ended.
        """
        self.done.update(committed)
        self._waiting.update(committed)
        self._entered = time.perf_counter()
        if self._waiting or not more:
            entry = _entry(self._spec, self._waiting, attempt, self, more=more)
            fields = entry.to_dict()
            retried(lambda: self._journal.append(fields), self._spec.run_path)
            self._waiting = {}


def commit_shards(
    spec: WriteSpec, group: Box, shards: Sequence[Shape], write: WriteShard
) -> GroupReport:
    """Write shards, by the protocol at the head of this module.

    - `write`: function that writes one shard into a transaction. It may be called again for the
      same shard.
    """
    progress = _Progress(spec)

    def attempt() -> str:
        name = spec.attempt()
        progress.begin(group, name)
        written, error = _try_shards(
            spec, [index for index in shards if index not in progress.done], write, name, progress
        )
        progress.enter(written, name, more=False)
        if error is not None:
            raise error
        return name

    name, done = retried(attempt, spec.run_path), progress.done
    if is_told(SHARDS, logging.DEBUG):
        for index, facts in done.items():
            message = f"committed, {facts.nbytes:,} bytes, {facts.n_chunks:,} inner chunks"
            key = spec.metadata.shard_key(index)
            tell(SHARDS, logging.DEBUG, message, run=spec.run_path, shard=key)
    return GroupReport(
        entry=_entry(spec, done, name, progress),
        raw_nbytes=_raw_nbytes(spec, group, done),
        process=f"{socket.gethostname()}:{os.getpid()}",
        n_left=len(shards) - len(done.keys() | progress.bad),
        author=this_process() if spec.is_far else None,
        changes=tuple(progress.changes),
        n_reread=take_n_reread(spec.read_from) + take_n_reread(spec.store.token),
        bad={ravel(index, spec.metadata.grid.counts): e for index, e in progress.bad.items()},
    )


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
) -> tuple[dict[Shape, Written], ShardwriteError | None]:
    """Make one attempt to write shards."""
    written: dict[Shape, Written] = {}
    transaction = spec.store.transaction(
        spec.durability, attempt, spec.check_current, proof=progress.proof, is_fresh=not spec.exists
    )
    n_before = 0
    n_together = n_at_once(_shard_nbytes(spec.metadata) + spec.metadata.sealing_nbytes)
    if n_together > 1:
        transaction.overlap(n_together)
    transaction.expect_nbytes(spec.metadata.most_nbytes)
    try:
        with transaction:
            for number, index in enumerate(shards):
                if is_draining():
                    break
                if progress.is_due(number - n_before):
                    committed = _committed(spec, written, transaction)
                    progress.enter(committed, attempt, more=True)
                    written = {
                        index: facts for index, facts in written.items() if index not in committed
                    }
                    n_before = number
                try:
                    written[index] = write(transaction, index)
                except CorruptShardError as error:
                    if not spec.goes_on:
                        raise
                    progress.bad[index] = error
                else:
                    progress.bad.pop(index, None)
    except ShardwriteError as error:
        return _committed(spec, written, transaction), error
    finally:
        if (changes := transaction.changes()) is not None:
            progress.changes.append(changes)
    return written, None


def _committed(
    spec: WriteSpec, written: Mapping[Shape, Written], transaction: Transaction
) -> dict[Shape, Written]:
    """Shards that have the requested durability; the others wait for the end of the transaction."""
    key, committed = spec.metadata.shard_key, transaction.committed
    return {
        index: facts
        for index, facts in written.items()
        if not facts.nbytes or key(index) in committed
    }


def _beginning(spec: WriteSpec, group: Box, attempt: str) -> Beginning:
    """Journal line for the beginning of an attempt at the shards of a group."""
    shards = spec.metadata.grid.shard_range(group)
    return Beginning(attempt, (shards.start, shards.stop), spec.output)


def _keys(metadata: ArrayMetadata, beginning: Beginning) -> frozenset[str]:
    """Keys of the shards that an attempt has announced."""
    return frozenset(metadata.shard_key(index) for index in shards_of(beginning, metadata))


def _entry(
    spec: WriteSpec,
    written: Mapping[Shape, Written],
    attempt: str,
    progress: _Progress,
    *,
    more: bool = False,
) -> Entry:
    """Journal line for shards that an attempt has committed."""
    counts = spec.metadata.grid.counts
    return Entry(
        attempt=attempt,
        shards=tuple(ravel(index, counts) for index in written),
        nbytes=tuple(facts.nbytes for facts in written.values()),
        index_crcs=tuple(facts.index_crc for facts in written.values()),
        n_chunks=tuple(facts.n_chunks for facts in written.values()),
        seconds=round(progress.seconds, 6),
        peak_nbytes=peak_memory_nbytes(spec.run_path),
        more=more,
        cpu_seconds=round(progress.cpu_seconds, 6),
        output=spec.output,
    )


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
