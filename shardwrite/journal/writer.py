"""Writing of journals: each process has its own files, which no other process opens for writing.

Two hosts never append to the same file, because network file systems lose such lines. Journals are
not synced. A shard is always durable before its line is written, so lines that are lost in a power
cut only mean that some shards are written again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path

from shardwrite.codecs.documents import JSON
from shardwrite.errors import RunEndedError, StoreError
from shardwrite.journal.deadline import deadline_text, is_past
from shardwrite.journal.lease import this_process
from shardwrite.journal.process import Process
from shardwrite.journal.records import Head, encode_line
from shardwrite.stores import as_store_error, write_all
from shardwrite.stores.descriptors import opened

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
    deadline; see :mod:`shardwrite.journal.deadline`.

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
    except OSError as error:
        raise StoreError(
            f"cannot look at the run: {error.strerror}", key=run_path, errno=error.errno
        ) from error
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
            except OSError as error:
                self._abandon()  # the line may be torn, so no other may follow it in this file
                raise StoreError(
                    f"cannot write the journal: {error.strerror}",
                    key=self._run_path,
                    errno=error.errno,
                ) from error

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
