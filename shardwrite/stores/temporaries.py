"""Temporaries of this process: what they are called, and their removal when it is told to end at once."""

from __future__ import annotations

import contextlib
import os
import time

__all__ = [
    "TEMPORARY_SUFFIX",
    "begin_temporary",
    "discard_open_temporaries",
    "forget_temporary",
    "temporary_path",
]

TEMPORARY_SUFFIX = ".swtmp"
_ENDING_SECONDS = 0.02
_open: set[str] = set()
_is_ending = False


def temporary_path(directory: str, name: str, attempt: str) -> str:
    """Where an attempt at an object is written, in the object's own directory."""
    return f"{directory}/.{name}.{attempt}{TEMPORARY_SUFFIX}"


def begin_temporary(path: str) -> None:
    """Count a temporary that is about to be opened; waits for the end of a process that ends."""
    _open.add(path)
    while _is_ending:
        time.sleep(1)


def forget_temporary(path: str) -> None:
    """It is published, or removed."""
    _open.discard(path)


def discard_open_temporaries() -> None:
    """Remove what this process has not published; for a process about to end, other threads of which begin no more."""
    global _is_ending
    _is_ending = True
    for _ in range(2):  # again, for those that were about to be opened
        for path in list(_open):
            with contextlib.suppress(
                OSError
            ):  # published meanwhile, or the disk is gone; the next run sweeps
                os.unlink(path)
        time.sleep(_ENDING_SECONDS)
