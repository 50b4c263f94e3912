"""Reading objects that are files, and the names and errors of such objects."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import AbstractContextManager

from shardwrite.errors import StoreError
from shardwrite.stores.descriptors import write_all

__all__ = [
    "PosixReader",
    "as_store_error",
    "check_key",
    "copy_range",
    "open_plain",
    "version_in",
    "version_of",
]

_COPY_NBYTES = 2**30
_BLOCK_NBYTES = 2**16  # no file system that shares blocks between files has larger ones
_CANNOT_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF}
_NOT_PLAIN = frozenset(("", ".", ".."))
Version = tuple[int, int, int]


def check_key(key: str) -> str:
    """`key`, if it stays inside the store.

    Raises
    ------
    StoreError
        Absolute, empty, with empty parts, ``.``, ``..`` or NUL.
    """
    if not key or "\0" in key or not _NOT_PLAIN.isdisjoint(key.split("/")):
        raise StoreError(
            f"key {key!r} is not a relative path of plain names", key=key, errno=errno.EINVAL
        )
    return key


class _Translation:
    """Of errors; a class, since a generator would cost a small shard more than its write."""

    __slots__ = ("_doing", "_key")

    def __init__(self, key: str, doing: str) -> None:
        self._key, self._doing = key, doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            message = f"{self._doing} {self._key!r}: {error.strerror or error}"
            raise StoreError(message, key=self._key, errno=error.errno) from error


def as_store_error(key: str, doing: str) -> AbstractContextManager[None]:
    """Turn an error of the system into a `StoreError` that says what was being done, to what."""
    return _Translation(key, doing)


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_plain(path: str | os.PathLike[str], access: int = os.O_RDONLY) -> int:
    """Open a plain file; a link is not followed, and a pipe or a device is neither waited for nor read.

    Parameters
    ----------
    path : path
        The file.
    access : int
        ``os.O_RDONLY``, ``os.O_WRONLY`` or ``os.O_RDWR``.

    Returns
    -------
    int
        A file descriptor.

    Raises
    ------
    StoreError
        If something else than a file stands there.
    OSError
        What the system says.
    """
    fd = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_plain(fd, os.fspath(path))
        os.set_blocking(
            fd, True
        )  # some file systems give up early on a descriptor that must not wait
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_plain(fd: int, name: str) -> None:
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG:
        found = _KINDS.get(kind, "something else")
        raise StoreError(
            f"{name!r} is {found} and not a file; remove it after a look",
            key=name,
            errno=errno.EINVAL,
        )


class PosixReader:
    """See :class:`~shardwrite.stores.base.ObjectReader`."""

    def __init__(self, key: str, fd: int) -> None:
        self._key = key
        self.fd = fd
        found = os.fstat(fd)
        self.nbytes = found.st_size
        self.version = version_in(found)

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`."""
        parts = []
        with as_store_error(self._key, "cannot read"):
            while nbytes > 0:
                part = os.pread(self.fd, min(nbytes, 1 << 30), offset)
                if not part:
                    raise StoreError(
                        f"{self._key!r} ends at byte {offset}", key=self._key, errno=errno.EIO
                    )
                parts.append(part)
                offset, nbytes = offset + len(part), nbytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> PosixReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with as_store_error(self._key, "cannot close"):
            os.close(self.fd)


def version_in(found: os.stat_result) -> Version:
    """What changes whenever a file is replaced or written to, from what the system says of it."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def version_of(path: str | os.PathLike[str]) -> Version | None:
    """What changes whenever a file is replaced or written to; None where there is none."""
    try:
        return version_in(os.lstat(path))
    except FileNotFoundError:
        return None


def copy_range(source: int, offset: int, target: int, nbytes: int) -> None:
    """Copy a range of one file behind the position in another: by sharing blocks where the file system can, else inside the kernel.

    Parameters
    ----------
    source, target : int
        File descriptors.
    offset, nbytes : int
        The range in `source`.
    """
    whole_blocks = (
        nbytes // _BLOCK_NBYTES * _BLOCK_NBYTES
    )  # a tail that fills no block would keep the rest from being shared
    for part in (whole_blocks, nbytes - whole_blocks):
        end = offset + part
        while offset < end:
            try:
                copied = os.copy_file_range(source, target, min(_COPY_NBYTES, end - offset), offset)
            except (
                AttributeError,
                OSError,
            ) as error:  # not on every system, nor between every two file systems
                if isinstance(error, OSError) and error.errno not in _CANNOT_COPY:
                    raise
                copied = _copy_through(source, offset, target, end - offset)
            if not copied:
                raise OSError(errno.EIO, f"the file ends at byte {offset}")
            offset += copied


def _copy_through(source: int, offset: int, target: int, nbytes: int) -> int:
    data = os.pread(source, min(2**22, nbytes), offset)
    write_all(target, data)
    return len(data)
