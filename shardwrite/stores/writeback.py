"""Early write-out of growing files, so that their final sync has less to wait for."""

from __future__ import annotations

import ctypes
from typing import Any

_SYNC_FILE_RANGE_WRITE = 2  # start without waiting; see sync_file_range(2)


def _find() -> Any:
    """``sync_file_range`` of the C library; None if it has no such function (not on Linux)."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range = _find()


def begin_writeback(fd: int, start: int, stop: int) -> None:
    """Ask the system to start writing a range of a file to the disk.

    This makes nothing durable and reports no errors; only fsync does both.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, start, stop - start, _SYNC_FILE_RANGE_WRITE)
