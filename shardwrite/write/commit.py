"""One shard, once: how a task commits its shards.

What a commit task does, and what a crash after each step leaves behind:

1. Say in the journal under which name it is about to write. *Nothing, or temporaries that can be found by that name.*
2. Commit its shards (see `stores`). *Some shards that are whole, and that the journal does not know: they are written again.*
3. Enter them into the journal. A task that commits much, or for longer than a second, enters what it has so far, and goes
   on; in the first second of a process sooner, so that one that is always killed soon gets on. *They are done.*

A fault that may pass makes it go through these steps again, a few times and under another name, for what is not committed.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import random
import resource
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shardwrite.errors import ShardwriteError, StoreError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box, Shape, ceil_div, ravel
from shardwrite.host.stopping import is_draining
from shardwrite.host.turns import SMALL_NBYTES, Turn
from shardwrite.journal import Beginning, Entry, ensure_current, journal_for, shards_of
from shardwrite.stores import Proof, Store, Transaction

__all__ = [
    "EMPTY_SHARD",
    "GroupReport",
    "WriteSpec",
    "Written",
    "commit_shards",
    "has_small_shards",
    "in_turns",
    "retried",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSpec:
    """What every task of a run needs to know.

    Attributes
    ----------
    metadata : ArrayMetadata
        The array.
    strategy : Strategy
        Where encoded chunks go.
    store : Store
        Rooted at the array.
    run_path : str
        Directory of the run; where it is gone, nothing may be committed.
    parts : str
        Directory for part files.
    driver : str
        The process on whose behalf tasks run; begins the names of temporaries.
    durability : {"full", "batch", "none"}
        When a shard counts as committed.
    write_empty_chunks : bool
        Store chunks of the fill value only, too.
    batch_nbytes : int
        Decoded bytes that a thread encodes at a time.
    spool_ratio : float
        Encoded over decoded size above which a block goes to a part file.
    source_dtype : numpy.dtype
        What dask declared.
    exists : bool
        Whether the array was there before; then shards may be, too, and one that turns out to be empty is removed.
    region : Box, optional
        What the source covers; all of the grid by default. What else is in its shards stays as it is.
    """

    metadata: ArrayMetadata
    strategy: Strategy
    store: Store
    run_path: str
    parts: str
    driver: str
    durability: str
    write_empty_chunks: bool
    batch_nbytes: int
    spool_ratio: float
    source_dtype: np.dtype[Any]
    exists: bool
    region: Box | None = None

    def touched(self, box: Box) -> Box:
        """A box, less the inner chunks that the source does not touch."""
        if self.region is None:
            return box
        grid, common = self.metadata.grid, box.intersect(self.region)
        start = tuple(a // c * c for a, c in zip(common.start, grid.chunks, strict=True))
        stop = tuple(ceil_div(b, c) * c for b, c in zip(common.stop, grid.chunks, strict=True))
        return Box(start, stop).intersect(grid.whole) if common.size else common

    def covers(self, index: Shape) -> bool:
        """Whether the source gives all of a shard."""
        grid = self.metadata.grid
        return self.region is None or self.region.contains(
            grid.shard_box(index).intersect(grid.whole)
        )

    @property
    def fixed_nbytes(self) -> int | None:
        """What `Strategy.lay_out` is told: the encoded size of an inner chunk, where it is fixed and the array was there before."""
        return self.metadata.pipeline.encoded_nbytes if self.exists else None

    @property
    def streams(self) -> bool:
        """Whether whole shards can be written while they are encoded."""
        return self.strategy.streams(self.fixed_nbytes)

    def check_current(self) -> None:
        """Refuse to go on with a run that has ended or was taken over."""
        ensure_current(self.run_path, self.driver)

    def attempt(self) -> str:
        """A name that no other attempt has."""
        return f"{self.driver}.{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What a commit task did.

    Attributes
    ----------
    entry : Entry
        Shard by shard, as the journal has it.
    raw_nbytes : int
        Decoded bytes of these shards, inside the array.
    process : str
        Host and process.
    n_left : int
        Shards that it did not begin, because its process was asked to stop.
    part_files : tuple of str
        Part files that are no longer needed once this report has arrived.
    """

    entry: Entry
    raw_nbytes: int
    process: str
    n_left: int = 0
    part_files: tuple[str, ...] = ()

    @property
    def shards(self) -> tuple[int, ...]:
        """Row-major ranks of its shards in the shard grid: all of them are committed, or empty by design."""
        return self.entry.shards

    @property
    def stored_nbytes(self) -> int:
        """Bytes of the shards' objects."""
        return sum(self.entry.nbytes)

    @property
    def seconds(self) -> float:
        """From start to end of the task."""
        return self.entry.seconds


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a shard: bytes of its object, checksum of its index, inner chunks that hold data."""

    nbytes: int = 0
    index_crc: int = 0
    n_chunks: int = 0


EMPTY_SHARD = Written()
PASSING = frozenset({errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR})
RETRY_SECONDS = (0.05, 0.2, 0.8)
_ENTRY_NBYTES = (
    4 * 2**20
)  # of decoded shards; lines for 1 MiB each would cost small shards 1 % of their time
_ENTRY_SECONDS = 1.0
_FIRST_SECONDS = 0.01  # until the first entry of a process; those that follow take as long as all before, up to `_ENTRY_SECONDS`
_SHARDS_A_TURN = 32
_SHARD_SECONDS = 4e-4  # for a small shard that is read, encoded and written: twice what it takes on a memory file system

T = TypeVar("T")
WriteShard = Callable[[Transaction, Shape], Written]


def _peak_nbytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class _Progress:
    """What a task has committed, and its way into the journal.

    Parameters
    ----------
    spec : WriteSpec
        The run.
    """

    def __init__(self, spec: WriteSpec) -> None:
        self.done: dict[Shape, Written] = {}
        self.proof: Proof | None = None
        self._spec = spec
        self._journal = journal_for(spec.run_path, spec.driver, spec.durability)
        self._begun = self._entered = time.perf_counter()
        self._waiting: dict[Shape, Written] = {}
        shard_nbytes = math.prod(spec.metadata.grid.shards) * spec.metadata.itemsize
        self._n_at_most = max(1, _ENTRY_NBYTES // max(1, shard_nbytes))

    @property
    def seconds(self) -> float:
        """Since the task began."""
        return time.perf_counter() - self._begun

    def begin(self, group: Box, attempt: str) -> None:
        """Say in the journal what an attempt is about to write."""
        beginning = _beginning(self._spec, group, attempt)
        self._journal.append(beginning.to_dict())
        keys = cache(partial(_keys, self._spec.metadata, beginning))
        self.proof = Proof(Path(self._spec.run_path), beginning.to_dict(), keys)

    def is_due(self, n_written: int) -> bool:
        """Whether so many shards, written since the last entry, are enough for another, or that was long enough ago."""
        return n_written >= self._n_at_most or time.perf_counter() - self._entered >= self._pause

    @property
    def _pause(self) -> float:
        """Seconds from the last entry to the next: as old as the journal was at the last, but no more than a second."""
        return min(_ENTRY_SECONDS, max(_FIRST_SECONDS, self._entered - self._journal.begun))

    def enter(self, committed: Mapping[Shape, Written], attempt: str, *, more: bool) -> None:
        """Enter shards into the journal; where that fails, the next line has them, too.

        Parameters
        ----------
        committed : mapping
            Shards that no line has yet, and what became of them.
        attempt : str
            Whose they are.
        more : bool
            Whether the attempt goes on.
        """
        self.done.update(committed)
        self._waiting.update(committed)
        self._entered = time.perf_counter()
        if self._waiting or not more:
            fields = _entry(self._spec, self._waiting, attempt, self.seconds, more=more).to_dict()
            retried(lambda: self._journal.append(fields))
            self._waiting = {}


def commit_shards(
    spec: WriteSpec, group: Box, shards: Sequence[Shape], write: WriteShard
) -> GroupReport:
    """Write shards by the protocol above.

    Parameters
    ----------
    spec : WriteSpec
        The run.
    group : Box
        Where they lie.
    shards : sequence of tuple of int
        Positions in the shard grid.
    write : callable
        Writes one of them into a transaction; may be called again.
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

    name, done = retried(attempt), progress.done
    return GroupReport(
        entry=_entry(spec, done, name, progress.seconds),
        raw_nbytes=_raw_nbytes(spec, group, done),
        process=f"{socket.gethostname()}:{os.getpid()}",
        n_left=len(shards) - len(done),
    )


def has_small_shards(metadata: ArrayMetadata) -> bool:
    """Whether threads commit shards of an array one after the other; see `turns`."""
    return math.prod(metadata.grid.shards) * metadata.itemsize <= SMALL_NBYTES


@contextlib.contextmanager
def in_turns(spec: WriteSpec, n_shards: int, write: WriteShard) -> Iterator[WriteShard]:
    """What writes so many shards, for use in the block; where they are small, a thread has its turn until the block ends."""
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


def retried(attempt: Callable[[], T]) -> T:
    """What an attempt gives; one that a passing storage fault ends is made again, at most three times, with a pause that grows.

    Nothing is retried inside an attempt: an fsync that failed has lost what it should have made durable.
    """
    for wait in RETRY_SECONDS:
        try:
            return attempt()
        except StoreError as error:
            if error.fields["errno"] not in PASSING:
                raise
        time.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 (many workers should not come back at once)
    return attempt()


def _try_shards(
    spec: WriteSpec, shards: Sequence[Shape], write: WriteShard, attempt: str, progress: _Progress
) -> tuple[dict[Shape, Written], ShardwriteError | None]:
    """One attempt: what is committed and not in the journal yet, and what stopped it."""
    written: dict[Shape, Written] = {}
    transaction = spec.store.transaction(
        spec.durability, attempt, spec.check_current, proof=progress.proof, is_fresh=not spec.exists
    )
    n_before = 0
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
                written[index] = write(transaction, index)
    except ShardwriteError as error:
        return _committed(spec, written, transaction), error
    return written, None


def _committed(
    spec: WriteSpec, written: Mapping[Shape, Written], transaction: Transaction
) -> dict[Shape, Written]:
    """Shards that are as durable as they should be; the others wait for the end of the transaction."""
    key, committed = spec.metadata.shard_key, transaction.committed
    return {
        index: facts
        for index, facts in written.items()
        if not facts.nbytes or key(index) in committed
    }


def _beginning(spec: WriteSpec, group: Box, attempt: str) -> Beginning:
    shards = spec.metadata.grid.shards
    start = tuple(a // s for a, s in zip(group.start, shards, strict=True))
    stop = tuple(ceil_div(b, s) for b, s in zip(group.stop, shards, strict=True))
    return Beginning(attempt, start, stop)


def _keys(metadata: ArrayMetadata, beginning: Beginning) -> frozenset[str]:
    """Keys of the shards that a task has said to write."""
    return frozenset(metadata.shard_key(index) for index in shards_of(beginning, metadata))


def _entry(
    spec: WriteSpec,
    written: Mapping[Shape, Written],
    attempt: str,
    seconds: float,
    *,
    more: bool = False,
) -> Entry:
    counts = spec.metadata.grid.counts
    return Entry(
        attempt=attempt,
        shards=tuple(ravel(index, counts) for index in written),
        nbytes=tuple(facts.nbytes for facts in written.values()),
        index_crcs=tuple(facts.index_crc for facts in written.values()),
        n_chunks=tuple(facts.n_chunks for facts in written.values()),
        seconds=round(seconds, 6),
        peak_nbytes=_peak_nbytes(),
        more=more,
    )


def _raw_nbytes(spec: WriteSpec, group: Box, done: dict[Shape, Written]) -> int:
    grid, itemsize = spec.metadata.grid, spec.metadata.itemsize
    if spec.region is not None:
        group = group.intersect(spec.region)
        return sum(grid.shard_box(index).intersect(group).size for index in done) * itemsize
    if len(done) == math.prod(
        ceil_div(n, s) for n, s in zip(group.shape, grid.shards, strict=True)
    ):
        return group.size * itemsize
    return sum(grid.shard_box(index).intersect(grid.whole).size for index in done) * itemsize
