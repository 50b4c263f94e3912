"""Having the system write a file out while it still grows, so that the sync at its end waits for less."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["begin_writeback"]

_SYNC_FILE_RANGE_WRITE = 2  # begin, and wait for nothing (sync_file_range(2))


def _find() -> Any:
    """The C library's function, where it has one (Linux)."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


_sync_file_range = _find()


def begin_writeback(fd: int, start: int, stop: int) -> None:
    """Have the system begin to write out a range.

    It makes nothing durable, and says nothing of what fails: that is what fsync is for.

    Parameters
    ----------
    fd : int
        Open for writing.
    start, stop : int
        In bytes.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, start, stop - start, _SYNC_FILE_RANGE_WRITE)
