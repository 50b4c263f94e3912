"""Exchanges of two names in one step."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Any

_AT_FDCWD = -100  # paths are absolute; see renameat2(2)
_EXCHANGE = 2
_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


def _find() -> Any:
    """``renameat2`` of the C library; None if it has no such function (not on Linux)."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is not None:
        function.argtypes = (
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_uint,
        )
    return function


_renameat2 = _find()


def exchange(one: Path, other: Path) -> bool:
    """Let two paths exchange what they name, in one step.

    - `one`, `other`: absolute paths on one file system. Something stands at both.
    - Returns: False if the system or the file system cannot do it. Nothing has changed then.
    """
    if _renameat2 is None:
        return False
    if _renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))
