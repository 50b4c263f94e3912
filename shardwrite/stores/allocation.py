"""Reservation of blocks in a file, so that no space can be missing once it is being written."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

__all__ = ["reserve_blocks"]

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

    Parameters
    ----------
    fd : int
        Descriptor of a file that is open for writing.
    start, stop : int
        The range, in bytes.

    Raises
    ------
    OSError
        If there is no room (ENOSPC, EDQUOT), or a file may not be so large (EFBIG).
    """
    if _fallocate is None or start >= stop:
        return
    while _fallocate(fd, _KEEP_SIZE, start, stop - start):
        number = ctypes.get_errno()
        if number in _CANNOT:
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
