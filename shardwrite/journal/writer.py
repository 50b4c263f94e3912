"""Who writes a journal: each process its own file, which it alone has ever open.

Two hosts never append to one file, because network file systems lose such lines. A file is not synced: lines that a
power cut takes cost work that is done again, while a shard is always durable before its line is written.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwrite.errors import RunEndedError, StoreError
from shardwrite.journal.lease import identity
from shardwrite.journal.records import encode_line
from shardwrite.stores import as_store_error, write_all

__all__ = [
    "TOKEN",
    "JournalWriter",
    "admit",
    "close_journals",
    "ensure_current",
    "journal_for",
    "own_journals",
]

TOKEN = "token-"  # noqa: S105 (the beginning of a file name)
_MAX_OPEN = 16
_writers: dict[tuple[str, str], JournalWriter] = {}
_lock = threading.Lock()


def admit(run_path: Path, driver: str) -> None:
    """Leave a token that allows a process, and those that work for it, to commit; it goes with the run."""
    path = run_path / f"{TOKEN}{driver}"
    with as_store_error(str(path), "cannot take part in the run"):
        os.close(os.open(path, os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY, 0o666))


def ensure_current(run_path: str, driver: str) -> None:
    """Refuse to go on with a run that has ended or was taken over: the token is gone by then.

    The token is opened, since opening a file asks the server of a network file system, where
    `stat` may answer from a cache. Ages and clocks play no part.

    Raises
    ------
    RunEndedError
        If it is.
    StoreError
        If that cannot be told.
    """
    try:
        os.close(os.open(f"{run_path}/{TOKEN}{driver}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
    except FileNotFoundError as error:
        raise _ended(run_path) from error
    except OSError as error:
        raise StoreError(
            f"cannot look at the run: {error.strerror}", key=run_path, errno=error.errno
        ) from error


def _ended(run_path: str) -> RunEndedError:
    return RunEndedError("this run has ended, or another has taken its place", path=run_path)


def own_journals(driver: str) -> str:
    """What the names of this process's journals begin with."""
    me = identity()
    return f"journal-{driver}-{me['host']}-{me['pid']}-"


class JournalWriter:
    """One process's journal of one run; made on the first line.

    Parameters
    ----------
    run_path : str
        Directory of the run.
    driver : str
        The process on whose behalf lines are written.
    durability : str
        Level of the commits that are recorded.

    Attributes
    ----------
    begun : float
        When this process began to work on the run, by `time.perf_counter`.
    """

    def __init__(self, run_path: str, driver: str, durability: str) -> None:
        self._run_path, self._driver, self._durability = run_path, driver, durability
        self.begun = time.perf_counter()
        self._lock = threading.Lock()
        self._fd = -1

    def append(self, fields: Mapping[str, Any]) -> None:
        """Write a line.

        Raises
        ------
        RunEndedError
            If the run's directory is gone.
        StoreError
            If the line cannot be written; another attempt goes to a new file.
        """
        line = encode_line(fields)
        with self._lock:
            try:
                if self._fd < 0:
                    self._open()
                self._write(line)
            except FileNotFoundError as error:
                raise _ended(self._run_path) from error
            except OSError as error:
                self._abandon()  # what stands there may be torn, and nothing can follow it
                raise StoreError(
                    f"cannot write the journal: {error.strerror}",
                    key=self._run_path,
                    errno=error.errno,
                ) from error

    def _open(self) -> None:
        me = identity()
        name = f"{own_journals(self._driver)}{uuid.uuid4().hex[:8]}.jsonl"
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY | os.O_APPEND
        self._fd = os.open(Path(self._run_path) / name, flags, 0o666)
        head = {
            "writer": me,
            "driver": self._driver,
            "durability": self._durability,
            "begun": round(time.time(), 3),
        }
        self._write(encode_line(head))

    def _write(self, line: bytes) -> None:
        write_all(self._fd, line)

    def _abandon(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(
                OSError
            ):  # a line that this loses costs work that is done again, no more
                os.close(fd)

    def close(self) -> None:
        """Close the file; a line after that opens another."""
        with self._lock:
            self._abandon()


def journal_for(run_path: str, driver: str, durability: str) -> JournalWriter:
    """The journal of a run that belongs to this process."""
    key = (run_path, driver)
    with _lock:
        if key not in _writers:
            while len(_writers) >= _MAX_OPEN:
                _writers.pop(next(iter(_writers))).close()
            _writers[key] = JournalWriter(run_path, driver, durability)
        return _writers[key]


def close_journals(driver: str) -> None:
    """Close what this process has open on behalf of a driver."""
    with _lock:
        for key in [key for key in _writers if key[1] == driver]:
            _writers.pop(key).close()
