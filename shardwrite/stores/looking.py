"""Files and paths of this machine: looked at, read, copied, and named by users.

A missing file is a normal answer; storage that cannot tell is an error. The methods of `pathlib`
ignore some or all errors, depending on the version of Python. With them, a run whose directory
cannot be listed for a moment would seem to have no journals and no active process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import pwd
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from shardwrite.config.table import READ_LIMIT, value_of
from shardwrite.errors import SpecError, StoreError

# ---- URLs of buckets, which are told from paths


BUCKET_KINDS = {
    "s3": "S3Store",
    "s3a": "S3Store",
    "gs": "GCSStore",
    "gcs": "GCSStore",
    "az": "AzureStore",
    "azure": "AzureStore",
    "abfs": "AzureStore",
    "abfss": "AzureStore",
    "http": "HTTPStore",
    "https": "HTTPStore",
}
"""Classes of obstore by the schemes of URLs of buckets, and of web servers, which are only read."""

BUCKET_URL = re.compile(
    rf"({'|'.join(BUCKET_KINDS)}):(/+)(?!/)([^/]*)/?(.*)", re.IGNORECASE | re.DOTALL
)


def is_bucket_url(text: str) -> bool:
    """Whether a text is the URL of a bucket, or of a web server.

    Examples
    --------
    >>> is_bucket_url("s3://bucket/x.zarr"), is_bucket_url("/data/x.zarr")
    (True, False)
    """
    return BUCKET_URL.match(text) is not None


MEMORY_URL = "memory://"
"""How URLs begin of objects in the memory of this process."""


def is_icechunk(given: object) -> bool:
    """Whether a value is a session or a store of Icechunk."""
    return type(given).__module__.partition(".")[0] == "icechunk"


def is_session(given: object) -> bool:
    """Whether a value is a session of Icechunk, or a fork of one."""
    return is_icechunk(given) and hasattr(given, "has_uncommitted_changes")


def is_store_url(text: str) -> bool:
    """Whether a text is a URL of what is no directory: a bucket, or objects in memory.

    Examples
    --------
    >>> is_store_url("memory://x.zarr"), is_store_url("file:///x.zarr")
    (True, False)
    """
    return text.startswith(MEMORY_URL) or is_bucket_url(text)


# ---- Reads and writes of file descriptors


def c_function(names: Sequence[str], *argument_types: Any) -> Any:
    """The first of some functions that the C library has; None if it has none (not on Linux)."""
    library = ctypes.CDLL(None, use_errno=True)
    function = next(filter(None, (getattr(library, name, None) for name in names)), None)
    if function is not None:
        function.argtypes = argument_types
    return function


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


# ---- Objects that are files: reading and copying


_COPY_NBYTES = 2**30

_EFFECTIVE = os.access in os.supports_effective_ids

_FILE_BLOCK_NBYTES = 2**16  # no smaller than the blocks of any file system that can share them

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
            reason = error.strerror or str(error)
            if error.errno == errno.ELOOP:  # also for one link, since files are opened without them
                reason = "it is a symbolic link, which is not followed; put the file itself there"
            if error.errno == errno.ENOTDIR and (obstacle := _no_directory(error.filename)):
                reason = f"{obstacle} is no directory; move it away, or give another path"
            if error.errno == errno.EACCES and (closed := _closed(error)):
                reason = f"{reason}; ask {owner_of(closed)} for the right to use {closed}"
            message = f"{self._doing} {self._key!r}: {reason}"
            raise StoreError(message, key=self._key, errno=error.errno) from error


def _closed(error: OSError) -> str:
    """The first part of a path that refuses this user what was to be done; empty if none does."""
    for name in (error.filename, error.filename2):
        if not isinstance(name, str | bytes) or not os.path.isabs(name):
            continue  # it may be relative to another directory than that of the process
        path = Path(os.fsdecode(name))
        needed = [(part, os.X_OK) for part in reversed(path.parents)]
        for part, right in (*needed, (path, os.R_OK), (path.parent, os.W_OK)):
            if may(part, os.F_OK) and not may(part, right):
                return str(part)
    return ""


def may(path: AnyPath, rights: int) -> bool:
    """Whether this user has rights to a path, as far as the system tells; see :func:`os.access`."""
    return os.access(path, rights, effective_ids=_EFFECTIVE)


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


as_store_error: Callable[[str, str], AbstractContextManager[None]] = _Translation
"""Turns an `OSError` into a `StoreError` that names the failed operation and its object."""


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
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise no_file(os.fspath(path), facts.st_mode)  # noqa: TRY301
        # On a descriptor that does not block, some file systems give up early.
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd, facts


def no_file(name: str, mode: int = stat.S_IFDIR, remedy: str | None = None) -> StoreError:
    """The error that something else stands where a regular file should.

    - `mode`: its mode. By default, it is a directory.
    - `remedy`: what the user can do. By default, remove it.
    """
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    message = f"{name!r} is {kind} and not a file; remove it after a look"
    if remedy is not None:
        message = f"{name!r} is {kind} and not a file; {remedy}"
    return StoreError(message, key=name, errno=errno.EINVAL)


def read_plain(path: str, most_nbytes: int) -> bytes:
    """Read a regular file, or one byte more than `most_nbytes` if it is larger."""
    fd, facts = _opened(path, os.O_RDONLY)
    try:
        return pread_all(fd, 0, min(facts.st_size, most_nbytes + 1))
    finally:
        os.close(fd)


class PosixReader:
    """A file that is open for reading; see :class:`~shardwrite.stores.base.ObjectReader`."""

    is_distant, is_shared, held = False, True, (0, 0)

    def __init__(self, key: str, path: str) -> None:
        self._key = key
        self.fd, facts = _opened(path, os.O_RDONLY)
        self.nbytes = facts.st_size
        self.version = version_in(facts)
        self.identity = identity_in(facts)

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`."""
        with as_store_error(self._key, "cannot read"):
            return pread_all(self.fd, offset, nbytes)

    def release(self) -> None:
        """See :meth:`ObjectReader.release`; nothing is held."""

    def drop_cached(self) -> None:
        """Have the system forget the pages of the file that it has in its cache."""
        with as_store_error(self._key, "cannot read"):
            # The pages of changes that are not on the disk yet stay, so nothing is lost.
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def check_same(self) -> None:
        """See :meth:`ObjectReader.check_same`; an open file is the same."""

    def has_other_names(self) -> bool:
        """See :meth:`ObjectReader.has_other_names`."""
        with as_store_error(self._key, "cannot look at"):
            return os.fstat(self.fd).st_nlink > 1

    def __enter__(self) -> PosixReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with as_store_error(self._key, "cannot close"):
            os.close(self.fd)


SETTLED_NS = 2_000_000_000
"""Age of a change, in nanoseconds, from which a later change has another time in every file system.

Some note whole seconds or two, and others the tick of a clock.
"""


def identity_in(facts: os.stat_result) -> tuple[int, ...] | None:
    """What no other state of a file has: its device, inode, size and times.

    None if it was changed just now, since another change might have the same times. Programs can
    set the time of a modification back, and not that of a change.
    """
    if time.time_ns() - max(facts.st_mtime_ns, facts.st_ctime_ns) < SETTLED_NS:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def version_in(facts: os.stat_result) -> Version:
    """Version of a file (inode, size and modification time) from the result of a stat call."""
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def size_and_time(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Size and modification time (ns) of a file, which a copy keeps; None if it is missing."""
    found = version_of(path)
    return None if found is None else found[1:]


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
    whole_blocks = nbytes // _FILE_BLOCK_NBYTES * _FILE_BLOCK_NBYTES
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


# ---- Paths as users write them


_FILE = re.compile(r"file:", re.IGNORECASE)

_NO_BYTE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def local_path(text: str, field: str = "store") -> str:
    """Path that a user has written as a ``file:`` URL or with ``~`` for the home directory.

    A shell replaces ``~`` only at the beginning of a word, and Python never does. Taken as it is,
    it would name a directory, ``~``, below the working directory.

    - `text`: what the user has written. All other text is returned as it is.

    Examples
    --------
    >>> local_path("file:///data/a%20b.zarr"), local_path("s3://bucket/x"), local_path("./~x")
    ('/data/a b.zarr', 's3://bucket/x', './~x')
    """
    if _FILE.match(text):
        return _path_of_url(text, field)
    try:
        return os.path.expanduser(text)
    except ValueError:  # no user can have such a name, with a zero byte or half a character
        return text


def _path_of_url(url: str, field: str) -> str:
    """Absolute path in a ``file:`` URL, with percent-encoding decoded."""
    rest = url.partition(":")[2]
    host, slash, path = (
        rest.removeprefix("//").partition("/")
        if rest.startswith("//")
        else ("", rest[:1], rest[1:])
    )
    if host.lower() not in ("", "localhost") or slash != "/" or "?" in path or "#" in path:
        remedy = "give file:///an/absolute/path, where %3F and %23 stand for ? and #, or a path"
        raise SpecError("no URL of a local directory", field=field, value=url, remedy=remedy)
    if _NO_BYTE.search(path):
        raise SpecError(
            "a percent sign without two digits after it",
            field=field,
            value=url,
            remedy="write %25 for %, or give a path",
        )
    return "/" + os.fsdecode(unquote_to_bytes(path))


# ---- Inspection of paths, and small files


PATH_MAX = 4096
"""Bytes of a path that the system takes, with a zero at its end."""


_BLOCK_NBYTES = 2**20
# Bytes of JSON text for each value that is allowed; in memory a value takes 100 to 200 bytes.
_NBYTES_PER_VALUE = 16

AnyPath = str | os.PathLike[str]

A = TypeVar("A")

B = TypeVar("B")


def _ask(doing: str, path: AnyPath, call: Callable[[], A], nothing: B) -> A | B:
    """Result of `call` for a path, or `nothing` if the path is missing."""
    with as_store_error(os.fspath(path), doing):
        try:
            return call()
        except (FileNotFoundError, NotADirectoryError):
            return nothing
        except OSError as error:
            # Nothing has a name that is too long. A path may be too long here, and not for others.
            if error.errno == errno.ENAMETOOLONG and len(os.fsencode(path)) < PATH_MAX:
                return nothing
            raise


def mode_of(path: AnyPath, *, follow: bool = True) -> int:
    """Mode bits (file type and permissions) of a path; 0 if nothing exists there."""
    return _ask("cannot look at", path, lambda: os.stat(path, follow_symlinks=follow).st_mode, 0)


def owner_of(path: AnyPath) -> str:
    """Name of the user who owns a path, or ``uid <number>`` if the user has no name.

    Links are not followed.
    """
    user = _ask("cannot look at", path, lambda: os.lstat(path).st_uid, -1)
    try:
        return pwd.getpwuid(user).pw_name
    except (KeyError, OverflowError):
        return f"uid {user}"


def is_there(path: AnyPath) -> bool:
    """Whether something exists at a path."""
    return mode_of(path) != 0


def is_file(path: AnyPath) -> bool:
    """Whether a path is a regular file or a link to one."""
    return stat.S_ISREG(mode_of(path))


def names_in(directory: AnyPath) -> list[str]:
    """Names of the entries of a directory; empty if the directory is missing."""
    return _ask("cannot list", directory, lambda: os.listdir(directory), [])


def listed(directory: AnyPath, prefix: str = "", suffix: str = "") -> list[Path]:
    """Sorted paths of the entries of a directory; empty if the directory is missing."""
    return [
        Path(directory, name)
        for name in sorted(names_in(directory))
        if name.startswith(prefix) and name.endswith(suffix)
    ]


def read_limit() -> int:
    """Maximum size in bytes of a file of state or metadata that is read.

    It is ``shardwrite.read.limit`` in the configuration of dask.
    """
    return value_of(READ_LIMIT)


def read_blocks(
    path: AnyPath, limit_nbytes: int, check: Callable[[os.stat_result], None] | None = None
) -> Iterator[bytes]:
    """Yield the content of a regular file in blocks of at most 1 MiB.

    - `check`: called with the facts about the file before it is read. It may raise.
    """
    name = os.fspath(path)
    fd, facts = _opened(path, os.O_RDONLY)
    try:
        nbytes = facts.st_size
        if check is not None:
            check(facts)
        while nbytes <= limit_nbytes and (block := os.read(fd, _BLOCK_NBYTES)):
            yield block
            limit_nbytes -= len(block)
            nbytes -= len(block)
            if not nbytes:
                break  # the whole file, as it was when it was opened
        if nbytes > limit_nbytes:
            raise _too_large(name)
    finally:
        os.close(fd)


def _too_large(name: str) -> StoreError:
    remedy = "if that is right, raise shardwrite.read.limit in dask's configuration"
    message = f"{name!r} is larger than what is read of such a file; {remedy}"
    return StoreError(message, key=name, errno=errno.EFBIG)


def check_regular(
    path: AnyPath, limit_nbytes: int | None = None, remedy: str | None = None
) -> None:
    """Refuse what is no regular file, before a library opens it that would wait for a pipe.

    A missing file is no matter of this function. Links count as what they lead to.

    - `remedy`: what the user can do if it is no regular file. By default, remove it.
    """
    name = os.fspath(path)
    facts = _ask("cannot look at", path, lambda: os.stat(path), None)
    if facts is None:
        return
    if not stat.S_ISREG(facts.st_mode):
        raise no_file(name, facts.st_mode, remedy)
    if limit_nbytes is not None and facts.st_size > limit_nbytes:
        raise _too_large(name)


def read_file(
    path: AnyPath,
    limit_nbytes: int | None = None,
    check: Callable[[os.stat_result], None] | None = None,
) -> bytes | None:
    """Content of a small file; None if it is missing. `check` is as in `read_blocks`."""
    limit = read_limit() if limit_nbytes is None else limit_nbytes
    return _ask("cannot read", path, lambda: b"".join(read_blocks(path, limit, check)), None)


def parse_json(data: bytes) -> Any:
    """Parse a JSON document of reasonable size."""
    if _holds_too_many_values(data):
        raise ValueError(
            "it holds too many values; if that is right, raise shardwrite.read.limit in dask's "
            "configuration"
        )
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    except ValueError as error:
        if data.lstrip().startswith(b"<"):
            reason = "it is a web page, as some servers give for what is missing"
            raise ValueError(reason) from error
        raise


def _holds_too_many_values(data: bytes) -> bool:
    """Whether a document holds more values than are parsed; what is short is not counted."""
    marks = (b",", b"[", b"{")
    n_most = read_limit() // _NBYTES_PER_VALUE
    return len(data) > _BLOCK_NBYTES and sum(data.count(mark) for mark in marks) > n_most


def check_readable(data: bytes, what: str, *, field: str, value: str, remedy: str) -> None:
    """Refuse to write a document that would be too large to be read again.

    - `what`: the document, as the begin of a sentence.
    - `remedy`: what helps, if it is not to raise the limit.
    """
    if len(data) > read_limit():
        size = f"{len(data):,} bytes, and {read_limit():,} are read"
    elif _holds_too_many_values(data):
        size = "more values than are read"
    else:
        return
    raise SpecError(
        f"{what} {size}",
        field=field,
        value=value,
        remedy=f"{remedy}, or raise shardwrite.read.limit in dask's configuration, for all who "
        "read it",
    )


def read_json(path: AnyPath) -> Any:
    """Read and parse a JSON file, which must exist."""
    return parse_document(read_there(path), path)


def read_there(path: AnyPath) -> bytes:
    """Content of a small file, which must exist."""
    with as_store_error(os.fspath(path), "cannot read"):
        return b"".join(read_blocks(path, read_limit()))


def parse_document(data: bytes, path: AnyPath) -> Any:
    """Parse the JSON document in `data`, the content of the file `path`."""
    try:
        return parse_json(data)
    except ValueError as error:
        message, remedy = (
            f"is no whole document ({error})",
            "remove it after a look, or write it again",
        )
        raise SpecError(
            message, field=Path(path).name, value=os.fspath(path), remedy=remedy
        ) from None
