"""What the tasks of a run know, and what they report."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.config.table import Decided, decided_settings
from shardwrite.encode.unit import EncodeOptions
from shardwrite.errors import CorruptShardError, StoreError
from shardwrite.format.frame import framing_of
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.order import Placement, Ranks
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box, Shape
from shardwrite.host.resources import watch_memory
from shardwrite.host.stopping import busy
from shardwrite.journal.lines import Entry, FarJournal, JournalWriter, ensure_current, journal_for
from shardwrite.journal.process import Process
from shardwrite.plan.estimate import BATCH_NBYTES
from shardwrite.stores.base import Capability, Store
from shardwrite.stores.looking import is_there, opened
from shardwrite.stores.removal import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from shardwrite.journal.rundir import RunDirectory
    from shardwrite.journal.state_work import Fence
    from shardwrite.stores.bucket import Room

__all__ = ["EMPTY_SHARD", "GroupReport", "WriteSpec", "Written"]


# ---- Facts for tasks, and their reports


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSpec:
    """Facts that every task of a run needs."""

    metadata: ArrayMetadata  # the array, or the window of shards that an update touches
    strategy: Strategy  # the write strategy, which decides where encoded inner chunks go
    store: Store  # the store, rooted at the array
    run_path: str  # directory of the run. If it is gone, nothing may be committed.
    claims: str  # directory for claims on shards that are changed in place
    parts: str  # directory for part files
    driver: str  # name of the driver for which tasks run. The names of temporaries begin with it.
    output: int = 0  # number of the array among those of the run
    durability: str  # durability level at which shards are committed
    write_empty_chunks: bool  # store also inner chunks that hold only the fill value
    batch_nbytes: int  # decoded bytes that a thread encodes at a time
    spool_ratio: float  # ratio of encoded to decoded size above which a block goes to a part file
    source_dtype: np.dtype[Any]  # the dtype that dask declares for the source
    # Whether the array existed before the run. If so, shards may exist, and a shard that becomes
    # empty is removed.
    exists: bool
    # Region that the source covers, in coordinates of the grid of `metadata`. All of the grid by
    # default. Elements of a shard outside of the region are kept.
    region: Box | None = None
    # Makes `is_kept` of `EncodeOptions`, for one task
    kept: Callable[[], Callable[[Box], bool]] | None = None
    drops_hdf5: bool = False  # whether files of another format may become plain shards
    # Settings of the process that makes the tasks, which hold on workers, too
    decided: Decided = field(default_factory=decided_settings)
    # The way to the lease of the run, if the state of the run lies in the bucket
    fence: Fence | None = None
    digest: str = ""  # digest of the plan, for the metadata of objects
    # Token of the store of the array that exists and that the source comes from; else empty
    read_from: str = ""
    # Whether a task writes its other shards if what one is made of cannot be read, and reports
    # that. Otherwise the task fails at once.
    goes_on: bool = False

    @classmethod
    def of_passing(
        cls,
        run: RunDirectory,
        store: Store,
        part: ArrayMetadata,
        strategy: Strategy,
        *,
        write_empty_chunks: bool = False,
    ) -> WriteSpec:
        """Facts for a run on a part of an array that no other process works on."""
        return cls(
            metadata=part,
            strategy=strategy,
            store=store,
            run_path=str(run.shared),
            claims=str(run.path),
            parts=str(run.parts(run.driver)),
            driver=run.driver,
            durability=run.level,
            write_empty_chunks=write_empty_chunks,
            batch_nbytes=BATCH_NBYTES,
            spool_ratio=1.0,
            source_dtype=part.dtype,
            exists=True,
        )

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Count this thread as busy, and use the settings of the run, until the block ends."""
        with busy(), self.decided.holds():
            yield

    def touched(self, box: Box) -> Box:
        """Reduce a box to the inner chunks that the source touches."""
        if self.region is None:
            return box
        common = box.intersect(self.region)
        return self.metadata.grid.rounded_out(common) if common.size else common

    def covers(self, index: Shape) -> bool:
        """Whether the source covers all of a shard's elements."""
        grid = self.metadata.grid
        return self.region is None or self.region.contains(
            grid.shard_box(index).intersect(grid.whole)
        )

    def covers_all(self, box: Box) -> bool:
        """Whether the source covers all elements of the shards that a box touches."""
        grid = self.metadata.grid
        return self.region is None or self.region.contains(
            grid.rounded_to_shards(box).intersect(grid.whole)
        )

    @property
    def fixed_nbytes(self) -> int | None:
        """Fixed encoded size of an inner chunk in bytes, for `Strategy.lay_out`.

        None if the size depends on the values, or if the array is new.
        """
        return self.metadata.pipeline.encoded_nbytes if self.exists else None

    def lay_out(self, nbytes: Ranks, units: Sequence[Ranks]) -> Placement:
        """Place the inner chunks of a new shard as the strategy says.

        - `nbytes`: int64, shape (n,). Encoded size of each inner chunk by rank, in bytes; negative
          where it is empty.
        - `units`: for each unit, in the plan's order, the row-major ranks of its inner chunks.
        """
        sequence = self.strategy.sequence(self.metadata.grid.chunks_per_shard, units)
        base = self.metadata.index_codec.base_nbytes
        return self.strategy.lay_out(nbytes, sequence, base, self.fixed_nbytes)

    @property
    def streams(self) -> bool:
        """Whether whole shards can be written while they are encoded.

        Those with a frame can be if bytes that were written before can be filled in.
        """
        has_frame = framing_of(self.strategy) is not None
        if has_frame and Capability.PATCH not in self.store.capabilities:
            return False
        return self.strategy.streams(self.fixed_nbytes)

    def encoding(self, order: str) -> EncodeOptions:
        """How inner chunks are encoded in a given order."""
        is_kept = None if self.kept is None else self.kept()
        return EncodeOptions(order, self.batch_nbytes, self.write_empty_chunks, is_kept)

    def check_current(self) -> None:
        """Refuse to go on with a run that has ended or was taken over.

        - Raises RunEndedError if it has.
        """
        if self.fence is None:
            ensure_current(self.run_path, self.driver)
        else:
            self.fence.check(self.run_path, self.driver)

    @property
    def is_far(self) -> bool:
        """Whether the directory of the run lies on another host."""
        return self.fence is not None and not self.fence.is_near

    def journal(self) -> JournalWriter | FarJournal:
        """Journal of this process."""
        if self.is_far:
            return FarJournal()
        return journal_for(self.run_path, self.driver, self.durability)

    def part_file(self) -> Path:
        """Path of a new part file, which only tasks in this process need if it `is_far`."""
        from shardwrite.place.run_state import private_directory  # for tasks on other hosts

        above = Path(private_directory(os.getpid()) if self.is_far else self.parts)
        return above / f"{self.attempt()}{TEMPORARY_SUFFIX}"

    def attempt(self) -> str:
        """Make a unique name for an attempt."""
        return f"{self.driver}.{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Report of a commit task."""

    entry: Entry  # facts about each shard, as in the journal
    raw_nbytes: int  # decoded bytes of these shards, inside the array and the region
    process: str  # host and number of the process, as ``host:pid``
    # Number of shards that the task did not begin, because its process was asked to stop
    n_stopped: int = 0
    # Paths of part files that are no longer needed once this report has arrived
    part_files: tuple[str, ...] = ()
    # Process that ran the task, if it could not enter the shards into the journal. The driver does
    # so in its place.
    author: Process | None = None
    # What the task has changed in forks of a store that `commits_later`, which the driver merges
    changes: tuple[Any, ...] = ()
    # Number of reads of stored chunks that this process has made again since its last report
    n_reread: int = 0
    # Why shards are not written, by their ranks: what they are made of cannot be read. The task has
    # gone on with its other shards.
    bad: Mapping[int, CorruptShardError] = field(default_factory=dict)

    @property
    def shards(self) -> tuple[int, ...]:
        """Row-major ranks of the task's shards, all of which are committed, or empty by design."""
        return self.entry.shards

    @property
    def stored_nbytes(self) -> int:
        """Bytes of the shards' objects."""
        return sum(self.entry.nbytes)

    @property
    def seconds(self) -> float:
        """Seconds from the start to the end of the task."""
        return self.entry.seconds


@dataclass(frozen=True, slots=True)
class Written:
    """Facts about a shard that was written."""

    nbytes: int = 0  # size of its object in bytes; 0 if it has none
    index_crc: int = 0  # crc32c of its index table
    n_chunks: int = 0  # number of inner chunks that are not empty


EMPTY_SHARD = Written()


# ---- What each worker is asked before a run goes on


@dataclass(frozen=True, slots=True)
class Scratch:
    """What a worker has found where its shards will wait."""

    host: str  # machine of the worker
    room: Room | None = None  # room that it found
    trouble: str = ""  # what went wrong, if nothing can be written there


def scratch_here(directory: str | None) -> Scratch | None:
    """Look at a directory on the machine of this process; None if there is none to look at."""
    if directory is None:
        return None
    from shardwrite.stores.bucket import room_in  # for buckets only

    host = socket.gethostname()
    try:
        return Scratch(host, room_in(directory))
    except StoreError as error:
        return Scratch(host, trouble=str(error))


def probe(path: str, token: str) -> tuple[str, int | None] | None:
    """Check that this process can write into the directory of a run.

    Every worker does so before the run goes on. The file that is written is removed again.

    - `token`: name of a file that the client has left there. A worker that does not see it has
      another directory at that path.
    - Returns: message and error number of what went wrong, or None.
    """
    leaf = Path(path) / f"probe-{uuid.uuid4().hex}"
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY
    try:
        # No directory is made: the directory of a run that has ended must not come back.
        fd = opened(leaf, flags, 0o666)
        try:
            os.write(fd, b"probe")
        finally:
            os.close(fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(leaf)
        if is_there(path) and not is_there(Path(path) / token):
            return f"{path} is another directory here than for the client", None
    except OSError as error:
        return f"{path} is missing here" if error.errno == errno.ENOENT else str(error), error.errno
    return None


@dataclass(frozen=True, slots=True)
class Probed:
    """What a worker has found out: what went wrong, if anything, and whether it is on another host.

    The latter is only told if the state of the run lies in the bucket. `scratch` tells of the room
    for shards that wait.
    """

    trouble: tuple[str, int | None] | None
    is_far: bool
    scratch: Scratch | None


def probe_here(path: str, document: str, fence: Fence | None, scratch: str | None) -> Probed:
    """Check that this process can take part in a run, and note the memory that it has."""
    is_far = fence is not None and not fence.is_near
    found = fence.probe() if fence is not None and is_far else probe(path, document)
    watch_memory(path)
    return Probed(found, is_far, scratch_here(scratch))
