"""Locks for moments: files made with ``O_EXCL``, taken over where their holder is dead.

Like leases they are files and not the system's locks, which some cluster file systems grant to everybody. They are held for the
time of a few writes, by a process that also holds a lease.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from shardwrite.errors import JournalError, StoreError
from shardwrite.journal.lease import identity, is_alive
from shardwrite.stores import read_file

__all__ = ["exclusive"]

WAIT_SECONDS = 300.0
_FLAGS = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY


@contextlib.contextmanager
def exclusive(path: Path, run_path: Path) -> Iterator[None]:
    """Hold a lock, after waiting for whoever holds it.

    Parameters
    ----------
    path : path
        The lock's file, in a directory that is there.
    run_path : path
        Directory of the run; what a kill leaves of an attempt lies there, and goes with it.

    Raises
    ------
    JournalError
        If it was not given back in `WAIT_SECONDS`, naming who holds it.
    StoreError
        If no lock can be made there.
    """
    me = json.dumps({**identity(), "token": uuid.uuid4().hex}).encode()
    deadline = time.monotonic() + WAIT_SECONDS
    pause = 0.002
    while not _taken(path, me, run_path):
        _break_stale(path, run_path)
        if time.monotonic() > deadline:
            raise JournalError(
                f"{path} was not given back in {WAIT_SECONDS:.0f} s; remove it if its holder is gone", path=str(path)
            )
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 (many should not come back at once)
        pause = min(2 * pause, 0.5)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # somebody took this process for dead
            if read_file(path) == me:
                os.unlink(path)


def _taken(path: Path, me: bytes, run_path: Path) -> bool:
    """Make the lock, whole from the beginning; whether that went well."""
    draft = run_path / f"draft-{uuid.uuid4().hex}"
    try:
        fd = os.open(draft, _FLAGS, 0o666)
        try:
            os.write(fd, me)
        finally:
            os.close(fd)
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(draft)
    except OSError as error:
        raise StoreError(f"cannot take a lock: {error.strerror}", key=str(path), errno=error.errno) from error
    return True


def _break_stale(path: Path, run_path: Path) -> None:
    """Remove the lock of a dead holder: moved away first, so that of many who try, one does; a living one is put back."""
    found = read_file(path)
    if found is None or is_alive(path, found):
        return
    aside = run_path / f"stale-{uuid.uuid4().hex}"
    with contextlib.suppress(FileNotFoundError):  # another was first
        os.rename(path, aside)
        if read_file(aside) != found:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        os.unlink(aside)
