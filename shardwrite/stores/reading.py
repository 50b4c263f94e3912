"""Reading and copying of objects that are files."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from contextlib import AbstractContextManager

from shardwrite.errors import StoreError
from shardwrite.stores.descriptors import opened, pread_all, write_all

_COPY_NBYTES = 2**30
_BLOCK_NBYTES = 2**16  # no smaller than the blocks of any file system that can share them
_CANNOT_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF}
Version = tuple[int, int, int]


class _Translation:
    """Context manager that turns an `OSError` into a `StoreError`.

    It is a class because a generator would take longer than the write of a small shard.
    """

    __slots__ = ("_doing", "_key")

    def __init__(self, key: str, doing: str) -> None:
        self._key, self._doing = key, doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, StoreError):
            why = error.strerror or str(error)
            if error.errno == errno.ELOOP:  # also for one link, since files are opened without them
                why = "it is a symbolic link, which is not followed; put the file itself there"
            if error.errno == errno.ENOTDIR and (found := _no_directory(error.filename)):
                why = f"{found} is no directory; move it away, or give another path"
            message = f"{self._doing} {self._key!r}: {why}"
            raise StoreError(message, key=self._key, errno=error.errno) from error


def _no_directory(path: object) -> str:
    """The part of a path that stands where a directory should be; empty if none is found."""
    if not isinstance(path, str | bytes):
        return ""
    part, below = os.fsdecode(path), ""
    while part != below:
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.stat(part).st_mode):
                return part
        part, below = os.path.dirname(part), part
    return ""


def as_store_error(key: str, doing: str) -> AbstractContextManager[None]:
    """Turn an `OSError` into a `StoreError` that names the failed operation and its object."""
    return _Translation(key, doing)


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_plain(path: str | os.PathLike[str], access: int = os.O_RDONLY) -> int:
    """Open a regular file; links, pipes and devices are refused without waiting for them.

    - Raises OSError if the file is missing, is a link (ELOOP), or cannot be opened.
    """
    return _opened(path, access)[0]


def _opened(path: str | os.PathLike[str], access: int) -> tuple[int, os.stat_result]:
    """The descriptor of `open_plain`, and what the file is."""
    fd = opened(path, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        _check_plain(os.fspath(path), found.st_mode)
        # On a descriptor that does not block, some file systems give up early.
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd, found


def _check_plain(name: str, mode: int) -> None:
    if stat.S_IFMT(mode) != stat.S_IFREG:
        raise no_file(name, mode)


def no_file(name: str, mode: int = stat.S_IFDIR, remedy: str | None = None) -> StoreError:
    """The error that something else stands where a regular file should.

    - `mode`: its mode. By default, it is a directory.
    - `remedy`: what the user can do. By default, remove it.
    """
    found = _KINDS.get(stat.S_IFMT(mode), "something else")
    message = f"{name!r} is {found} and not a file; remove it after a look"
    if remedy is not None:
        message = f"{name!r} is {found} and not a file; {remedy}"
    return StoreError(message, key=name, errno=errno.EINVAL)


def read_plain(path: str, most_nbytes: int) -> bytes:
    """Read a regular file, or one byte more than `most_nbytes` if it is larger."""
    fd, found = _opened(path, os.O_RDONLY)
    try:
        return pread_all(fd, 0, min(found.st_size, most_nbytes + 1))
    finally:
        os.close(fd)


class PosixReader:
    """A file that is open for reading; see :class:`~shardwrite.stores.base.ObjectReader`."""

    def __init__(self, key: str, path: str) -> None:
        self._key = key
        self.fd, found = _opened(path, os.O_RDONLY)
        self.nbytes = found.st_size
        self.version = version_in(found)

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`."""
        with as_store_error(self._key, "cannot read"):
            return pread_all(self.fd, offset, nbytes)

    def drop_cached(self) -> None:
        """Have the system forget the pages of the file that it has in its cache."""
        with as_store_error(self._key, "cannot read"):
            # The pages of changes that are not on the disk yet stay, so nothing is lost.
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def has_other_names(self) -> bool:
        """See :meth:`Linkable.has_other_names`."""
        with as_store_error(self._key, "cannot look at"):
            return os.fstat(self.fd).st_nlink > 1

    def __enter__(self) -> PosixReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with as_store_error(self._key, "cannot close"):
            os.close(self.fd)


def version_in(found: os.stat_result) -> Version:
    """Version of a file (inode, size and modification time) from the result of a stat call."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def version_of(path: str | os.PathLike[str]) -> Version | None:
    """Version of a file, which changes when it is replaced or modified; None if it is missing."""
    try:
        return version_in(os.lstat(path))
    except FileNotFoundError:
        return None


def copy_range(source: int, offset: int, target: int, nbytes: int) -> None:
    """Copy a range of one file to the current position of another.

    The file system shares blocks where it can. Otherwise the kernel copies the bytes, and where it
    cannot, this process does.
    """
    # The tail is copied apart: with a partial block at its end, no block would be shared.
    whole_blocks = nbytes // _BLOCK_NBYTES * _BLOCK_NBYTES
    for part in (whole_blocks, nbytes - whole_blocks):
        end = offset + part
        while offset < end:
            try:
                copied = os.copy_file_range(source, target, min(_COPY_NBYTES, end - offset), offset)
            except (AttributeError, OSError) as error:
                # The call is missing on some systems, and refused between some file systems.
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
