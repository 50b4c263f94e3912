"""The lines of a journal, each JSON after its crc32c, and the files that they are written to.

A journal file holds five kinds of lines:

- The first line, a `Head`, names the process that writes the file.
- Before a task commits anything, a `Beginning` gives the name that its temporary files will have.
  They can then be removed by name, without listing the array.
- After a task has committed shards, an `Entry` lists them. Its fields are columns with one value
  for each shard, because a line for each small shard would cost more than the shard's own bytes.
  A task that commits many bytes, or runs for long, writes several entries. All but the last say
  that more follow; the last one ends the task and may list no shards.
- A `Checked` line says that shards were found as journals tell of them. A process that ends a run
  leaves such lines, so that the next one need not look at the same shards again if it is killed.
- A line with the field ``failed`` gives the error that ended a process's work early. It is only
  shown to users; nothing else depends on it.

Every line but the first has the field ``at``: seconds since the first line, by a clock that is
never set back. Only reports depend on it. Lines of older versions do not have it.

Two hosts never append to the same file, because network file systems lose such lines. Journals are
not synced. A shard is always durable before its line is written, so lines that are lost in a power
cut only mean that some shards are written again.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

from crc32c import crc32c

from shardwrite._dataclass import dataclass
from shardwrite.checks import is_number
from shardwrite.codecs.documents import JSON
from shardwrite.errors import RunEndedError, StoreError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Shape
from shardwrite.journal.lease import Lease, this_process
from shardwrite.journal.process import Process, deadline_text, is_past
from shardwrite.records import Check, Record, always, lenient
from shardwrite.seams import resolve
from shardwrite.stores.looking import as_store_error, opened, parse_json, read_limit, write_all

_NAME = Check(lambda name: not {"/", "\0"} & {*name}, "a name")
# Those that a journal can plausibly give, in seconds since 1970, or since a task began
_TIME = Check(lambda seconds: 0 <= seconds < 2**40, "a time")


@dataclass(frozen=True, slots=True)
class Head(Record):
    """First line of a journal file."""

    _lenient = True

    writer: Process = always(Process())  # the process that writes the file
    driver: str = always("")  # name of the driver on whose behalf it writes
    durability: str = always("")  # durability level of the commits
    # Time of the first line by the clock of the process's host, in seconds since 1970. None if the
    # file does not tell a plausible one.
    begun: Annotated[float, _TIME] | None = always(None)


@dataclass(frozen=True, slots=True)
class Entry(Record):
    """Shards that a task has committed: all of them, or those since its previous entry."""

    _grows = True

    attempt: str  # name of the attempt, which is part of the names of its temporary files
    shards: tuple[int, ...]  # row-major ranks of the shards in the shard grid
    # Size of each shard's object in bytes; 0 if the shard is empty by design and has no object
    nbytes: tuple[int, ...]
    # crc32c of each shard's index table, as little-endian pairs of uint64; 0 if the shard has no
    # index
    index_crcs: tuple[Annotated[int, range(2**32)], ...]
    n_chunks: tuple[int, ...]  # number of inner chunks that hold data, for each shard
    seconds: float  # time since the start of the task, in seconds
    # Peak of the memory that the run has taken in the process so far, in bytes above what the
    # process had when the run began; see `host.resources`
    peak_nbytes: int
    # Whether the task goes on, so that its temporary files may exist. A line without this field
    # ends its task.
    more: bool = False
    # Time for which the task's thread was computing since the start of the task, in seconds. None
    # if an older version has written the line.
    cpu_seconds: Annotated[float, _TIME] | None = lenient()
    output: int = 0  # number of the array among those of the run

    @classmethod
    def parsed(cls, line: JSON) -> Entry:
        """Parse and check a journal line."""
        entry = cls.from_dict(line)
        columns = (entry.shards, entry.nbytes, entry.index_crcs, entry.n_chunks)
        if len({len(column) for column in columns}) != 1:
            raise ValueError("columns are not of one length")
        return entry

    def fits(self, n_shards: int) -> bool:
        """Whether an array of so many shards has all of these."""
        return max(self.shards, default=-1) < n_shards


@dataclass(frozen=True, slots=True)
class Beginning(Record):
    """Note that a task is about to commit shards."""

    _grows = True

    # Name of the attempt, which becomes part of a path
    attempt: Annotated[str, _NAME]
    # Half-open box of the task's shards: its two corners, as positions in the shard grid
    begins: tuple[Shape, Shape]
    output: int = 0  # number of the array among those of the run


@dataclass(frozen=True, slots=True)
class Checked(Record):
    """Note that objects of shards were looked at, and are what the ledger says."""

    _grows = True

    # Row-major ranks of the shards, as pairs of a first one and a number of consecutive ones
    checked: tuple[tuple[int, int], ...]
    # crc32c of what the ledger has of these shards; see `Ledger.checksum`
    facts_crc32c: Annotated[int, range(2**32)]
    # When the look began, by the clock of the file system of the run, in seconds since 1970
    since: Annotated[float, _TIME]
    deep: bool = False  # whether all of their inner chunks were decoded, and not only indexes read
    output: int = 0  # number of the array among those of the run


def shards_of(beginning: Beginning, metadata: ArrayMetadata) -> Iterable[tuple[int, ...]]:
    """Positions of a task's shards in the shard grid, without those outside of it."""
    counts = metadata.grid.counts
    start, stop = beginning.begins
    if not len(start) == len(stop) == len(counts):
        return []
    return itertools.product(*map(range, start, map(min, stop, counts)))


def time_in(line: Mapping[str, JSON]) -> float | None:
    """Seconds from the first line of a journal to another line; None if the line does not tell."""
    at = line.get("at")
    return float(at) if is_number(at) and _TIME.passes(at) else None


def cause_of(error: BaseException) -> str:
    """Short text for an error: its class, and the symbolic name of its error number if it has one.

    Examples
    --------
    >>> cause_of(OSError(28, "No space left on device")), cause_of(ValueError("x"))
    ('OSError ENOSPC', 'ValueError')
    """
    number = getattr(error, "errno", None)
    return (
        f"{type(error).__name__} "
        f"{errno.errorcode.get(number, '') if isinstance(number, int) else ''}"
    ).strip()


def encode_line(fields: Mapping[str, JSON]) -> bytes:
    """Bytes of a journal line: checksum in hexadecimal, space, JSON text and newline."""
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def parse_lines(blocks: Iterable[bytes]) -> Iterator[dict[str, JSON] | None]:
    """Parse the lines of a journal file.

    A lost line only means that some shards are written again; no shard is lost.

    - Yields: fields of the line. None if the line is torn, its checksum differs, or it is not a
      JSON object.
    """
    for line in _lines(blocks):
        try:
            fields = (
                parse_json(line[9:])
                if line[8:9] == b" " and int(line[:8], 16) == crc32c(line[9:])
                else None
            )
        except ValueError:
            fields = None
        yield fields if isinstance(fields, dict) else None


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines that are not empty, without their newlines.

    Of a line that exceeds the read limit, only the beginning is kept, so its checksum differs.
    """
    limit = read_limit()
    held: list[bytes] = []
    for block in blocks:
        first, *others = block.split(b"\n")
        if sum(map(len, held)) <= limit:
            held.append(first)
        for line in others:
            yield from filter(None, [b"".join(held)])
            held = [line]
    yield from filter(None, [b"".join(held)])


# ---- Writers: each process has files of its own


CLAIM = "claim-"  # begin of the names of directories of shards that are changed in place
TOKEN = "token-"  # noqa: S105 (the prefix of a file name)

_MAX_OPEN = 64

_writers: dict[tuple[str, str, Process | None], JournalWriter] = {}

_lock = threading.Lock()


def admit(run_path: Path, driver: str) -> None:
    """Write the token that allows a driver, and the processes that work for it, to commit.

    The token is a file in the run's directory, and is removed when the run ends.
    """
    path = run_path / f"{TOKEN}{driver}"
    with as_store_error(str(path), "cannot take part in the run"):
        fd = opened(path, os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY, 0o666)
        try:
            write_all(fd, deadline_text(path))
        finally:
            os.close(fd)


def ensure_current(run_path: str, driver: str) -> None:
    """Check that a run has neither ended nor been taken over: its token still exists.

    The token is opened, because opening a file asks the server of a network file system, while
    `stat` may be answered from a cache. No ages or clocks are compared, unless the token holds a
    deadline; see :mod:`shardwrite.journal.process`.

    - Raises RunEndedError if the token is gone.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = opened(f"{run_path}/{TOKEN}{driver}", flags)
        try:
            is_late = is_past(fd)
        finally:
            os.close(fd)
    except FileNotFoundError as error:
        raise _ended(run_path) from error
    except OSError:
        with as_store_error(run_path, "cannot look at the run in"):
            raise
    if is_late:
        raise StoreError(
            "the lease of this run could not be renewed in time, so another process may have taken "
            "it over; make the same call again",
            key=run_path,
            errno=errno.ETIMEDOUT,
        )


def _ended(run_path: str) -> RunEndedError:
    return RunEndedError("this run has ended, or another has taken its place", path=run_path)


def own_journals(driver: str) -> str:
    """Prefix of the names of the journals that this process writes for a driver."""
    me = this_process()
    return f"journal-{driver}-{me.host}-{me.pid}-"


class JournalWriter:
    """Journal of one process for one run. Its file is made when the first line is written.

    - `begun`: time at which this process began to work on the run, in seconds of
      `time.perf_counter`.
    """

    def __init__(
        self, run_path: str, driver: str, durability: str, author: Process | None = None
    ) -> None:
        self._run_path, self._driver, self._durability = run_path, driver, durability
        self._author = author
        self.begun = time.perf_counter()
        self._lock = threading.Lock()
        self._fd = -1
        self._opened = self.begun

    def append(self, fields: Mapping[str, JSON]) -> None:
        """Write a line, with the time since the first line of the file in seconds as ``at``.

        - Raises RunEndedError if the run's directory is gone.
        """
        with self._lock:
            try:
                if self._fd < 0:
                    self._open()
                at = round(time.perf_counter() - self._opened, 3)
                self._write(encode_line({**fields, "at": at}))
            except FileNotFoundError as error:
                raise _ended(self._run_path) from error
            except OSError:
                self._abandon()  # the line may be torn, so no other may follow it in this file
                with as_store_error(self._run_path, "cannot write the journal in"):
                    raise

    def _open(self) -> None:
        name = f"{own_journals(self._driver)}{uuid.uuid4().hex[:8]}.jsonl"
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY | os.O_APPEND
        self._fd = opened(Path(self._run_path) / name, flags, 0o666)
        author = this_process() if self._author is None else self._author
        head = Head(author, self._driver, self._durability, round(time.time(), 3))
        self._opened = time.perf_counter()
        self._write(encode_line(head.to_dict()))

    def _write(self, line: bytes) -> None:
        write_all(self._fd, line)

    def _abandon(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # If this loses a line, some shards are written again, and no more than that.
            with contextlib.suppress(OSError):
                os.close(fd)

    def close(self) -> None:
        """Close the file. A later line opens a new one."""
        with self._lock:
            self._abandon()

    def __del__(self) -> None:
        # A task may hold it, and write a line, after all journals of its driver were closed.
        self._abandon()


class FarJournal:
    """Journal of a process that does not see the run's directory: it writes nothing.

    The reports of its tasks say what they committed, and the driver writes that into a journal.

    - `begun`: time at which the task began, in seconds of `time.perf_counter`.
    """

    def __init__(self) -> None:
        self.begun = time.perf_counter()

    def append(self, fields: Mapping[str, JSON]) -> None:
        """Leave a line to the driver."""


def journal_for(
    run_path: str, driver: str, durability: str, author: Process | None = None
) -> JournalWriter:
    """Get the journal of this process for a run and a driver; make it if there is none.

    At most `_MAX_OPEN` journals are kept open; the oldest is closed to make room for a new one.

    - `durability`: durability level of the commits; used only if the journal is new.
    """
    key = (run_path, driver, author)
    with _lock:
        if key not in _writers:
            while len(_writers) >= _MAX_OPEN:
                _writers.pop(next(iter(_writers))).close()
            _writers[key] = JournalWriter(run_path, driver, durability, author)
        return _writers[key]


def close_journals(but_of: Collection[str]) -> None:
    """Close all journals that this process has open, but those of some drivers.

    Tasks of a run that was interrupted may have opened theirs when their driver had gone already.
    """
    with _lock:
        for key in [key for key in _writers if key[1] not in but_of]:
            _writers.pop(key).close()


def close_journals_in(run_path: Path) -> None:
    """Close all journals that this process has open in the directory of a run, or of its parts."""
    with _lock:
        for key in [key for key in _writers if run_path in (Path(key[0]), *Path(key[0]).parents)]:
            _writers.pop(key).close()


# ---- Participation of a process in a run, from its lease to its last journal line


_drivers: set[str] = set()  # of this process, that take part in a run now


@contextlib.contextmanager
def taking_part(
    run_path: str | os.PathLike[str], driver: str, part: Path | None = None
) -> Iterator[None]:
    """Hold a lease on a run, and leave the token that allows its tasks to commit.

    Both lie in the directory of the run, or in that of a part of it.

    In a batch job, the number of the job is noted, too. At the end of the block, open journals of
    this driver and of drivers that have gone before are closed. Then the lease is removed. The
    token stays.

    - Raises RunEndedError if the run's directory is gone.
    """
    path = Path(run_path)
    with Lease(part or path, driver):
        _drivers.add(driver)
        try:
            admit(part or path, driver)
            if os.environ.get("ENVIRONMENT") == "BATCH":  # SLURM sets this in jobs of sbatch
                with contextlib.suppress(LookupError):  # then nothing looks for notes, either
                    resolve("job", "slurm")(path)
            yield
        finally:
            _drivers.discard(driver)
            close_journals(but_of=_drivers)


def begun_at(run_path: str | os.PathLike[str]) -> int:
    """Time in nanoseconds at which a run began, by the clock of the file system with its state.

    - Raises RunEndedError if another process has ended the run.
    """
    path = Path(run_path) / "plan.json"
    with as_store_error(str(path), "cannot look at"):
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError as error:
            raise RunEndedError("another process has ended this run", path=str(run_path)) from error
