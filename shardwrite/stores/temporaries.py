"""Names of the temporaries of this process, and their removal when it must end at once."""

from __future__ import annotations

import contextlib
import os
import time

TEMPORARY_SUFFIX = ".swtmp"
_ENDING_SECONDS = 0.02
_open: set[str] = set()
_is_ending = False


def temporary_path(directory: str, name: str, attempt: str) -> str:
    """Path of the temporary of an attempt at an object, in the directory of the object."""
    return f"{directory}/.{name}.{attempt}{TEMPORARY_SUFFIX}"


def begin_temporary(path: str) -> None:
    """Register a temporary that is about to be opened.

    Once :func:`discard_open_temporaries` was called, this never returns: the thread waits for the
    end of the process.
    """
    _open.add(path)
    while _is_ending:
        time.sleep(1)


def forget_temporary(path: str) -> None:
    """Forget a temporary that is published or removed."""
    _open.discard(path)


def is_open_temporary(path: str) -> bool:
    """Whether this process is still at work on a temporary."""
    return path in _open


def discard_open_temporaries() -> None:
    """Remove all temporaries that are not published, because the process is about to end.

    Other threads can create no further ones. Errors are ignored; the next run removes what is left.
    """
    global _is_ending
    _is_ending = True
    for _ in range(2):  # the second pass finds those that were being opened during the first
        for path in list(_open):
            with contextlib.suppress(OSError):  # published meanwhile, or the disk is gone
                os.unlink(path)
        time.sleep(_ENDING_SECONDS)
