"""Claims: the exclusive right of one process to change one thing, for a moment.

A claim is a directory. A process takes it by renaming a directory of its own to the claim's name,
which fails where a directory stands that is not empty. Like leases, claims use no file locks,
because some cluster file systems grant them to everybody. A holder reads and writes files in its
claim through a descriptor of that directory. So a process that was frozen and thaws cannot
touch the claim of a successor.

A claim holds these files:

``owner-<n>``
    The identity of the holder. A successor links ``owner-<n+1>`` beside it, which only one process
    can do, and then removes ``owner-<n>``. The file with the greatest number names the holder.
``left-<n>``
    The identity of a holder that failed. The next process takes over at once.
``undo-<token>``
    The record that undoes a change in progress (see :mod:`shardwrite.journal.undo`). The holder
    confirms its change by removing this file. A successor takes the change back by renaming the
    file to ``fenced-<token>``. Only one of the two succeeds.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from shardwrite.codecs.stages import Buffer
from shardwrite.config.table import CLAIM_WAIT, value_of
from shardwrite.errors import JournalError, StoreError
from shardwrite.host.stopping import TAKEOVERS, tell
from shardwrite.journal.lease import (
    CLOCK,
    is_alive,
    is_left_behind,
    is_this_process,
    note_failed,
    signature,
    this_process,
)
from shardwrite.journal.process import Process, process_in
from shardwrite.stores.directories import copy_rights, fsync_directory, make_directories
from shardwrite.stores.looking import (
    as_store_error,
    is_there,
    listed,
    opened,
    pread_all,
    read_file,
    write_all,
    write_new,
)
from shardwrite.stores.removal import link_from, remove_state

UNDO, FENCED = "undo-", "fenced-"
VOID = b"-" * 8
"""Bytes in place of a record's checksum that make the record void: there is nothing to undo."""
_OWNER, _LEFT, _DRAFT = "owner-", "left-", "draft-"
_FLAGS = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY
_MAX_TRIES = 8
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY}
_tokens: set[str] = set()
_lock = threading.Lock()


class Claim:
    """A claim that this process holds.

    - `fd`: descriptor of that directory. The claim closes it.
    """

    def __init__(self, path: Path, fd: int, generation: int, token: str) -> None:
        self.path = path
        self._fd, self._generation, self._token = fd, generation, token
        self._record_fd, self._is_durable = -1, False

    @property
    def is_taken_over(self) -> bool:
        """Whether a process held the claim before that did not give it back."""
        return self._generation > 0

    def check(self) -> None:
        """Refuse to go on if another process has taken the claim over.

        - Raises StoreError with the number ``ESTALE`` if it has. The caller can try again from the
          present state. With another number if the claim cannot be looked at.
        """
        with self._telling("cannot look at a claim"):
            os.close(
                opened(f"{_OWNER}{self._generation}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._fd)
            )

    def record(self, pieces: Iterable[Buffer], *, is_durable: bool) -> None:
        """Write the record that undoes the change that is about to begin.

        - Raises StoreError if the record cannot be written. The caller must not change anything
          then. The number is ``ESTALE`` if another process has taken the claim over.
        """
        with self._telling("cannot record a change"):
            self._record_fd = opened(f"{UNDO}{self._token}", _FLAGS, 0o666, dir_fd=self._fd)
            try:
                for piece in pieces:
                    write_all(self._record_fd, piece)
            except BaseException:  # on a full disk, nobody could take over a claim with a record
                self._close_record()
                os.unlink(f"{UNDO}{self._token}", dir_fd=self._fd)
                raise
            self._is_durable = is_durable
            if is_durable:
                os.fsync(self._record_fd)
                os.fsync(self._fd)
                fsync_directory(self.path.parent)

    def recorded(self) -> bytes:
        """Read the record of the change in progress.

        - Raises StoreError with the number ``ESTALE`` if another process has taken the change back.
          With another number if the record cannot be read.
        """
        with self._telling("cannot read the record of a change"):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = opened(f"{UNDO}{self._token}", flags, dir_fd=self._fd)
            try:
                return pread_all(fd, 0, os.fstat(fd).st_size)
            finally:
                os.close(fd)

    def settle(self) -> None:
        """Remove the record of a change that is complete, or that was never begun.

        The record is made void before it is removed, because a power cut can bring a removed file
        back.

        - Raises StoreError with the number ``ESTALE`` if another process has taken the change back.
          With another number if the record cannot be removed.
        """
        with self._telling("cannot end a change"):
            make_void(self._record_fd, is_durable=self._is_durable)
            self._close_record()
            os.unlink(f"{UNDO}{self._token}", dir_fd=self._fd)

    def _close_record(self) -> None:
        fd, self._record_fd = self._record_fd, -1
        if fd >= 0:
            os.close(fd)

    @contextlib.contextmanager
    def _telling(self, doing: str) -> Iterator[None]:
        """Turn errors of the system into a `StoreError`; a missing file means a lost claim."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._lost() from error
        except OSError:
            with as_store_error(str(self.path), f"{doing} in"):
                raise

    def _lost(self) -> StoreError:
        return StoreError(
            "another process has taken this change over, because this one showed no sign of life",
            key=str(self.path),
            errno=errno.ESTALE,
        )

    def release(self) -> None:
        """Give the claim back.

        If a change is left to undo, the claim stays, and the next process takes it over at once.
        """
        try:
            names = os.listdir(self._fd)
            if any(name.startswith((UNDO, FENCED)) for name in names):
                os.rename(
                    f"{_OWNER}{self._generation}",
                    f"{_LEFT}{self._generation}",
                    src_dir_fd=self._fd,
                    dst_dir_fd=self._fd,
                )
                return
            for name in names:
                number = _generation(name)
                is_over = number is not None and number <= self._generation
                # A process has left it that was killed while it asked for the time, or was about to
                # take over.
                if is_over or name.startswith((CLOCK, _DRAFT)):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=self._fd)
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(self.path)
        except OSError as error:
            # The errors below mean that a successor holds the claim. After any other error, the
            # owner file may stay. This process then recognises it as its own, and no longer valid.
            if error.errno not in _TAKEN | {errno.ENOENT}:
                with as_store_error(str(self.path), "cannot give back"):
                    raise
        finally:
            self.forget()

    def forget(self) -> None:
        """Close the descriptors; this process no longer holds the claim."""
        with _lock:
            _tokens.discard(self._token)
        with contextlib.suppress(OSError):  # nothing was written since the last sync
            self._close_record()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


@contextlib.contextmanager
def exclusive(path: Path, run_path: Path) -> Iterator[Claim]:
    """Hold a claim while the block runs, after waiting until no other process holds it.

    - `path`: directory of the claim. Its parent must exist.
    - `run_path`: directory of the run. Drafts that a killed process leaves lie there, and are
      removed with the run.
    """
    claim = _wait(path, run_path)
    try:
        yield claim
    except BaseException:
        with contextlib.suppress(StoreError):  # the first error is the one to report
            claim.release()
        raise
    claim.release()


def drop_claim(path: Path) -> None:
    """Remove a claim that a dead process holds, unless a change is left to undo.

    A power cut can bring back a claim that was given back.
    """
    if not is_there(path):
        return
    claim = _taken_within(0, path, path.parent)
    if claim is not None:
        claim.release()
        discard_claims(path.parent)


@contextlib.contextmanager
def alone_beside(beside: Path, durability: str = "none") -> Iterator[Claim]:
    """Hold the claim on a document, in a directory that is made for it and removed again.

    What a process has left there that was killed is removed.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, beside)
        for attempt in itertools.count(1):
            try:
                with as_store_error(str(beside), "cannot make"):
                    make_directories(beside, durability, like=beside.parent)
                claim = stack.enter_context(exclusive(beside / "claim", beside))
                if not claim.is_taken_over:  # other users may have to take it over
                    with as_store_error(str(claim.path), "cannot share"):
                        copy_rights(beside, claim.path)
                break
            except StoreError as error:
                # Another process that is done has just removed the directory.
                if error.fields["errno"] != errno.ENOENT or attempt == _MAX_TRIES:
                    raise
        with as_store_error(str(beside), "cannot remove what is left in"):
            discard_claims(beside)
        yield claim


def _remove_empty(beside: Path) -> None:
    with contextlib.suppress(OSError):  # another process uses it
        beside.rmdir()


def _wait(path: Path, run_path: Path) -> Claim:
    """Take a claim, or raise once `CLAIM_WAIT` has passed."""
    seconds = value_of(CLAIM_WAIT)
    claim = _taken_within(seconds, path, run_path)
    if claim is None:
        raise JournalError(
            f"{path} was not given back in {seconds:.0f} s. End the process that "
            f"holds it ({_holder_names(path)}), and run the same command again",
            path=str(path),
        )
    return claim


def _taken_within(seconds: float, path: Path, run_path: Path) -> Claim | None:
    """Take a claim; None once so many seconds have passed."""
    token = uuid.uuid4().hex
    with _lock:
        _tokens.add(token)
    claim = None
    try:
        claim = _poll(seconds, path, run_path, token)
    finally:
        if claim is None:
            with _lock:
                _tokens.discard(token)
    return claim


def _poll(seconds: float, path: Path, run_path: Path, token: str) -> Claim | None:
    """Try to take a claim until it succeeds; None once so many seconds have passed."""
    deadline = time.monotonic() + seconds
    pause = 0.002
    while True:
        with as_store_error(str(path), "cannot take a claim"):
            claim = _take(path, run_path, token)
        if claim is not None or time.monotonic() >= deadline:
            return claim
        # The pause is random so that many processes do not try again at once.
        time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311
        pause = min(2 * pause, 0.5)


def _take(path: Path, run_path: Path, token: str) -> Claim | None:
    """Make a claim, or take over that of a dead holder; None where another process holds it."""
    try:
        fd = opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return _make(path, run_path, token)
    is_mine = False
    try:
        names = os.listdir(fd)
        numbers = [number for number in map(_generation, names) if number is not None]
        if not numbers and not names:
            return _make(path, run_path, token)  # replaces the empty directory
        last = max(numbers, default=-1)
        if f"{_OWNER}{last}" in names and _is_held(path / f"{_OWNER}{last}", fd):
            return None
        is_mine = _succeed(run_path, token, fd, last)
        if is_mine:
            told = f"took over the claim {path.name} of a process that has died"
            tell(TAKEOVERS, logging.INFO, told, run=run_path)
        return Claim(path, fd, last + 1, token) if is_mine else None
    finally:
        if not is_mine:
            os.close(fd)


def _draft(run_path: Path, token: str) -> Path:
    """Name of a draft, which tells the process that makes it."""
    return run_path / f"{_DRAFT}{token},{signature()}"


def discard_claims(run_path: Path) -> None:
    """Remove the drafts of claims that dead processes have left in a directory."""
    for draft in listed(run_path, _DRAFT):
        if is_left_behind(draft):
            remove_state(draft)


def _make(path: Path, run_path: Path, token: str) -> Claim | None:
    """Make a claim; None where another process was first."""
    draft = _draft(run_path, token)
    os.mkdir(draft)
    fd = -1
    try:
        fd = opened(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        write_new(f"{_OWNER}0", _me(token), dir_fd=fd)
        os.rename(draft, path)
    except BaseException as error:
        note_failed(draft)
        with contextlib.suppress(OSError):  # a draft that stays is removed with the run
            if fd >= 0:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f"{_OWNER}0", dir_fd=fd)
            os.rmdir(draft)
        if fd >= 0:
            os.close(fd)
        if isinstance(error, OSError) and error.errno in _TAKEN:
            return None
        raise
    return Claim(path, fd, 0, token)


def _succeed(run_path: Path, token: str, fd: int, last: int) -> bool:
    """Become the owner after a dead one; False if another process was first."""
    draft, owner = _draft(run_path, token), f"{_OWNER}{last + 1}"
    try:
        write_new(draft, _me(token))
        try:
            link_from(draft, Path(owner), lambda: draft.name, dir_fd=fd)
        except FileNotFoundError:
            return False  # the claim was given back
        except FileExistsError:
            # NFS repeats a link whose reply was lost, and then finds its own file.
            if not _is_same_file(draft, owner, fd):
                return False  # another process was first
    finally:
        note_failed(draft)  # if it stays
        with contextlib.suppress(FileNotFoundError):  # the draft could not be made
            os.unlink(draft)
    with contextlib.suppress(FileNotFoundError):  # there is none if the owner had failed
        os.unlink(f"{_OWNER}{last}", dir_fd=fd)
    return True


def _is_same_file(path: Path, name: str, fd: int) -> bool:
    """Whether a file has this name in an open directory, too."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.stat(name, dir_fd=fd))
    return False


def _is_held(path: Path, fd: int) -> bool:
    """Whether the owner that a file names is alive, or may be, and still holds the claim."""
    try:
        owner = opened(
            path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd
        )
    except FileNotFoundError:
        return False
    try:
        data = os.read(owner, 4096)
    finally:
        os.close(owner)
    holder = process_in(data)
    if holder is not None and is_this_process(holder):
        with _lock:
            return holder.token in _tokens
    return is_alive(path, data)


def _holder_names(path: Path) -> str:
    """Names of the processes that hold a claim, as one text."""
    holders = [process_in(read_file(owner) or b"") for owner in listed(path, _OWNER)]
    return ", ".join((holder or Process()).name for holder in holders) or "unknown"


def _generation(name: str) -> int | None:
    """Number in the name of an ``owner-<n>`` or ``left-<n>`` file; None for other names."""
    number = name.removeprefix(_OWNER) if name.startswith(_OWNER) else name.removeprefix(_LEFT)
    return (
        int(number)
        if name.startswith((_OWNER, _LEFT)) and number.isascii() and number.isdigit()
        else None
    )


def _me(token: str) -> bytes:
    """Content of an owner file of this process."""
    return json.dumps(replace(this_process(), token=token).to_dict()).encode()


def make_void(fd: int, *, is_durable: bool) -> None:
    """Overwrite the checksum at the beginning of a record, so that there is nothing to undo."""
    os.pwrite(fd, VOID, 0)
    if is_durable:
        os.fdatasync(fd)
