"""What is done with file descriptors in many places."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["write_all", "write_new"]


def write_all(fd: int, data: Any) -> None:
    """Write bytes where a descriptor stands; a write may be short, and the next goes on from there."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_new(
    path: str | os.PathLike[str], data: Any, *, dir_fd: int | None = None, is_durable: bool = False
) -> None:
    """Write a small file that is not there yet; what stays of a write that fails is the caller's.

    Parameters
    ----------
    path : path
        The file.
    data : bytes
        All of it.
    dir_fd : int, optional
        A descriptor of the directory that `path` is relative to.
    is_durable : bool
        Sync the file; its entry in the directory is not.

    Raises
    ------
    OSError
        What the system says; FileExistsError where something stands there.
    """
    fd = os.open(
        path,
        os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY,
        0o666,
        dir_fd=dir_fd,
    )
    try:
        write_all(fd, data)
        if is_durable:
            os.fsync(fd)
    finally:
        os.close(fd)
