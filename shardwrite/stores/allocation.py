"""Reservation of blocks in a file, so that no space can be missing once it is being written.

The record of a run or a conversion keeps some room in this way. Whoever gives that up takes this
room first. So the few small files that giving up needs find room on a full disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardwrite.errors import StoreError
from shardwrite.stores.reading import as_store_error, open_plain

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers that mean that a file cannot grow."""
_KEPT_NBYTES = 5 * 2**16  # xfs makes no file or directory where fewer than some 60 blocks are free

_KEEP_SIZE = 1  # see fallocate(2)
_CANNOT = {errno.ENOSYS, errno.EOPNOTSUPP}


def _find() -> Any:
    """``fallocate`` of the C library; None if it has no such function (not on Linux).

    ``posix_fallocate`` is none: where the file system cannot reserve, it writes and so grows files.
    """
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


_fallocate = _find()


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
