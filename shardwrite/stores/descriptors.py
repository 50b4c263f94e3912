"""Helpers that read from and write to file descriptors."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

_IOV_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
_READ_NBYTES = 1 << 30  # Linux reads at most 2 GiB at a time


def opened(
    path: str | os.PathLike[str], flags: int, mode: int = 0o777, *, dir_fd: int | None = None
) -> int:
    """Open a file as `os.open` does, and close it again if an interrupt comes at that moment.

    Python raises ``KeyboardInterrupt`` after a system call has returned and before its result has
    a name. The list has the descriptor by then, because one call in C opens the file and appends.
    Between this function's last step and the caller's next call, Python raises nothing.
    """
    held: list[int] = []
    try:
        held.extend(map(partial(os.open, dir_fd=dir_fd), (path,), (flags,), (mode,)))
        return held[0]
    except BaseException:
        for fd in held:
            os.close(fd)
        raise


def write_all(fd: int, data: Any) -> None:
    """Write all bytes at the current position of a descriptor, and continue after short writes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def writev_all(fd: int, buffers: Sequence[Any]) -> int:
    """Write all buffers, in batches of at most `_IOV_MAX`, and return the number of bytes.

    The items of the buffers must be single bytes.
    """
    total = 0
    for first in range(0, len(buffers), _IOV_MAX):
        batch = buffers[first : first + _IOV_MAX]
        wanted = sum(map(len, batch))
        total += wanted
        written = os.writev(fd, batch)
        while written < wanted:  # a short write: continue where it stopped
            wanted -= written
            rest = [memoryview(b) for b in batch]
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            batch = [rest[0][written:], *rest[1:]]
            written = os.writev(fd, batch)
    return total


def pwrite_all(fd: int, data: Any, offset: int) -> None:
    """Write all bytes from byte `offset` on, and continue after short writes."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n


def pread_all(fd: int, offset: int, nbytes: int) -> bytes:
    """Read exactly `nbytes` bytes from byte `offset` on."""
    parts = []
    while nbytes > 0:
        part = os.pread(fd, min(nbytes, _READ_NBYTES), offset)
        if not part:
            raise OSError(errno.EIO, f"it ends at byte {offset}")
        parts.append(part)
        offset, nbytes = offset + len(part), nbytes - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_new(
    path: str | os.PathLike[str], data: Any, *, dir_fd: int | None = None, is_durable: bool = False
) -> None:
    """Create a small file, which must not exist yet.

    If the write fails, the caller must remove the incomplete file.

    - `dir_fd`: descriptor of the directory that `path` is relative to.
    - `is_durable`: sync the file. Its entry in the directory is not synced.
    - Raises FileExistsError if something exists at `path`.
    """
    fd = opened(
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
