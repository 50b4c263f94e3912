"""Modification of an object in place, and room that is kept for it.

A modification is not atomic. The caller keeps a record from which the object can be repaired after
a crash.

Blocks of a file are reserved before it is written, so that no space can be missing then. The record
of a run or a conversion keeps some room in this way. Whoever gives that up takes this room first.
So the few small files that giving up needs find room on a full disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from shardwrite.errors import StoreError
from shardwrite.stores.base import ObjectEditor, changed_meanwhile
from shardwrite.stores.looking import as_store_error, c_function, open_plain, pwrite_all, version_in

# ---- Reservation of blocks


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers that mean that a file cannot grow."""

_KEPT_NBYTES = 5 * 2**16  # xfs makes no file or directory where fewer than some 60 blocks are free

_KEEP_SIZE = 1  # see fallocate(2)

_CANNOT = {errno.ENOSYS, errno.EOPNOTSUPP}


# Not ``posix_fallocate``: where the file system cannot reserve, it writes and so grows files.
_fallocate = c_function(
    ("fallocate64", "fallocate"), ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64
)


def reserve_blocks(fd: int, start: int, stop: int) -> None:
    """Reserve blocks for a range of a file; its size and content stay the same.

    Where the file system cannot do that, nothing happens.

    - Raises OSError if there is no room (ENOSPC, EDQUOT), or a file may not be so large (EFBIG).
    """
    if _fallocate is None or start >= stop:
        return
    while _fallocate(fd, _KEEP_SIZE, start, stop - start):
        number = ctypes.get_errno()
        if number in _CANNOT:
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def needing(nbytes: int, key: str) -> Iterator[None]:
    """Say how much room it takes to write an object anew, where a full disk has none."""
    try:
        yield
    except StoreError as error:
        if error.errno not in NO_ROOM:
            raise
        message = (
            f"{error.message}. To write {key!r} anew takes {nbytes:,} bytes: free as many, and "
            "make the same call again"
        )
        raise StoreError(message, key=key, errno=error.errno) from error


def keep_room(path: Path) -> None:
    """Keep room in a file for whoever gives up what it is the record of."""
    with as_store_error(str(path), "cannot keep room for giving up in"):
        fd = open_plain(path, os.O_WRONLY)
        try:
            end = os.fstat(fd).st_size
            try:
                reserve_blocks(fd, end, end + _KEPT_NBYTES)
            except OSError as error:
                if error.errno != errno.EFBIG:  # where no file may be so large, none is kept
                    raise
        finally:
            os.close(fd)


def give_room(path: Path) -> None:
    """Give back the room that a file keeps; the file may be missing."""
    with as_store_error(str(path), "cannot take the room that is kept in"):
        try:
            fd = open_plain(path, os.O_WRONLY)
        except FileNotFoundError:
            return
        try:
            os.ftruncate(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)


# ---- The editor


class PosixEditor(ObjectEditor):
    """A file that is modified in place."""

    def __init__(self, key: str, path: str | os.PathLike[str]) -> None:
        self._key = key
        self._only_appends = False
        with as_store_error(key, "cannot open"):
            try:
                self._fd = open_plain(path, os.O_RDWR)
            except PermissionError as error:
                if error.errno != errno.EPERM:
                    raise
                self._fd = open_plain(path, os.O_WRONLY | os.O_APPEND)  # see `chattr +a`
                self._only_appends = True

    def write_at(self, offset: int, data: Any) -> None:
        """See :meth:`ObjectEditor.write_at`; where the system only appends, it must be the end."""
        with as_store_error(self._key, "cannot write"):
            if self._only_appends and offset != os.fstat(self._fd).st_size:
                raise self._no_append()
            pwrite_all(self._fd, data, offset)

    def check_version(self, version: Any) -> None:
        """See :meth:`ObjectEditor.check_version`."""
        with as_store_error(self._key, "cannot look at"):
            facts = os.fstat(self._fd)
        if version_in(facts) != version:
            raise changed_meanwhile(self._key)

    def reserve(self, spans: Iterable[tuple[int, int]]) -> None:
        """See :meth:`ObjectEditor.reserve`."""
        with as_store_error(self._key, "cannot reserve room in"):
            nbytes = os.fstat(self._fd).st_size
            sequence = sorted(spans)
            if self._only_appends and sequence and sequence[0][0] < nbytes:
                raise self._no_append()
            begun = end = 0
            try:
                for start, stop in sequence:
                    if start > end:
                        reserve_blocks(self._fd, begun, end)
                        begun = start
                    end = max(end, stop)
                reserve_blocks(self._fd, begun, end)
            except BaseException:
                self.cut(nbytes)  # gives back what was reserved
                raise

    def cut(self, nbytes: int) -> None:
        """See :meth:`ObjectEditor.cut`."""
        with as_store_error(self._key, "cannot cut back"):
            if self._only_appends and os.fstat(self._fd).st_size <= nbytes:
                return
            os.ftruncate(self._fd, nbytes)

    def _no_append(self) -> StoreError:
        return StoreError(
            f"the system lets only append to {self._key!r}, and this would write into it. Give "
            "strategy=AppendOnly(in_place=True) if the index lies at the end, or let the file be "
            "written to (chattr -a)",
            key=self._key,
            errno=errno.EPERM,
        )

    def sync(self) -> None:
        """See :meth:`ObjectEditor.sync`."""
        with as_store_error(self._key, "cannot sync"):
            os.fsync(self._fd)

    def __enter__(self) -> PosixEditor:
        return self

    def __exit__(self, *exc_info: object) -> None:
        fd, self._fd = self._fd, -1
        if exc_info[0] is None:
            with as_store_error(self._key, "cannot close"):
                os.close(fd)
        else:
            os.close(fd)
