"""Objects as files of one directory tree, each committed atomically.

A commit, and what a crash after each step leaves behind:

1. Open a temporary file in the object's own directory (``O_CREAT|O_EXCL|O_NOFOLLOW|O_CLOEXEC``), its name unique to
   run and attempt. Directories that are missing are made. *A crash leaves an empty temporary.*
2. Write, in a loop, since writes may be short. *A torn temporary; the object is the old one, or not there.*
3. fsync the file (levels full and batch). *A whole temporary.*
4. Close, and look at its error, which NFS and quotas report there.
5. Rename over the object. *The new object is visible; a power cut may still bring the old one back.*
6. fsync the directory and its ancestors up to the store's root (levels full and batch). *The new object, for good.*

An error at any step removes the temporary and is raised; an fsync is never tried twice, because the second call
does not report what the first one lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from shardwrite.errors import StoreError

__all__ = ["TEMPORARY_SUFFIX", "PosixStore", "check_key", "write_file"]

TEMPORARY_SUFFIX = ".swtmp"
_IOV_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
_BATCH_FILES = 64
_plain: set[str] = set()
"""Directories that this process has seen to be no links, nor any below their store's root."""
_synced: set[tuple[str, int]] = set()
"""Directories whose entry in their parent this process has synced, by path and inode."""


def check_key(key: str) -> str:
    """`key`, if it stays inside the store.

    Raises
    ------
    StoreError
        Absolute, empty, with empty parts, ``.``, ``..`` or NUL.
    """
    if not key or "\0" in key or any(part in ("", ".", "..") for part in key.split("/")):
        raise StoreError(f"key {key!r} is not a relative path of plain names", key=key, errno=errno.EINVAL)
    return key


@contextlib.contextmanager
def _as_store_error(key: str, doing: str) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{doing} {key!r}: {error.strerror or error}", key=key, errno=error.errno) from error


def fsync_directory(path: Path) -> None:
    """Make a directory's entries durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class PosixStore:
    """A directory of objects.

    Parameters
    ----------
    root : path
        The directory; it need not exist yet.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def __reduce__(self) -> tuple[Any, ...]:
        return PosixStore, (str(self.root),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PosixStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    def transaction(self, durability: str, attempt: str) -> PosixTransaction:
        """See :meth:`Store.transaction`."""
        return PosixTransaction(self, durability, attempt)

    def open(self, key: str) -> PosixReader | None:
        """See :meth:`Store.open`; a link is not followed."""
        path = self.root / check_key(key)
        with _as_store_error(key, "cannot open"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            return PosixReader(key, fd)

    def make_parents(self, path: Path) -> None:
        """Make the directories of `path` that are missing, up to the root; none of them below the root may be a link."""
        missing = []
        directory = path.parent
        while True:
            try:
                if stat.S_ISLNK(os.lstat(directory).st_mode) and directory != self.root:
                    message = f"{directory} is a symbolic link inside the store; replace it by a directory"
                    raise StoreError(message, key=str(directory), errno=errno.ELOOP)
            except FileNotFoundError:
                missing.append(directory)
            if directory == self.root:
                break
            directory = directory.parent
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another worker made it meanwhile
                os.mkdir(directory)
        _plain.add(str(path.parent))

    def sync_parents(self, path: Path) -> None:
        """Sync the directory of `path`, and once for each process the entries of its ancestors down from the root's."""
        fsync_directory(path.parent)
        directory = path.parent
        while True:
            identity = (str(directory), os.stat(directory).st_ino)
            if identity in _synced:
                return
            fsync_directory(directory.parent)
            _synced.add(identity)
            if directory == self.root:
                return
            directory = directory.parent


class PosixTransaction:
    """See :class:`~shardwrite.stores.base.Transaction`."""

    def __init__(self, store: PosixStore, durability: str, attempt: str) -> None:
        self.store = store
        self.durability = durability
        self.attempt = attempt
        self._open: dict[str, PosixWriter] = {}
        self._waiting: list[PosixWriter] = []

    def __enter__(self) -> PosixTransaction:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            if exc_info[0] is None:
                self._flush()
        finally:
            for writer in (*self._waiting, *self._open.values()):
                writer.abort()

    def create(self, key: str) -> PosixWriter:
        """Begin an object (step 1)."""
        path = self.store.root / check_key(key)
        temporary = path.with_name(f".{path.name}.{self.attempt}{TEMPORARY_SUFFIX}")
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY
        with _as_store_error(key, "cannot create"):
            if str(path.parent) not in _plain:
                self.store.make_parents(path)
            try:
                fd = os.open(temporary, flags, 0o666)
            except FileNotFoundError:
                self.store.make_parents(path)
                fd = os.open(temporary, flags, 0o666)
        writer = PosixWriter(self, key, path, temporary, fd)
        self._open[key] = writer
        return writer

    def _finished(self, writer: PosixWriter) -> None:
        if self.durability == "batch":
            del self._open[writer.key]
            self._waiting.append(writer)
            if len(self._waiting) >= _BATCH_FILES:
                self._flush()
            return
        with _as_store_error(writer.key, "cannot commit"):
            if self.durability == "full":
                writer.sync()
            writer.close()
            writer.publish()
            del self._open[writer.key]
            if self.durability == "full":
                self.store.sync_parents(writer.path)

    def _flush(self) -> None:
        """All data durable, then all visible, then all names durable: an old object is never lost for a torn new one."""
        batch = self._waiting
        for step in ("sync", "close", "publish"):
            for writer in batch:
                with _as_store_error(writer.key, "cannot commit"):
                    getattr(writer, step)()
        self._waiting = []
        for writer in {writer.path.parent: writer for writer in batch}.values():
            with _as_store_error(writer.key, "cannot commit"):
                self.store.sync_parents(writer.path)


class PosixWriter:
    """See :class:`~shardwrite.stores.base.ObjectWriter`."""

    def __init__(self, transaction: PosixTransaction, key: str, path: Path, temporary: Path, fd: int) -> None:
        self.key = key
        self.path = path
        self._transaction = transaction
        self._temporary = temporary
        self._fd = fd
        self._is_published = False

    def write(self, buffers: Sequence[Any]) -> int:
        """Append buffers (step 2)."""
        with _as_store_error(self.key, "cannot write"):
            return _writev_all(self._fd, buffers)

    def write_at(self, offset: int, data: bytes) -> None:
        """Write into what was appended before."""
        with _as_store_error(self.key, "cannot write"):
            view = memoryview(data)
            while view:
                n = os.pwrite(self._fd, view, offset)
                view, offset = view[n:], offset + n

    def finish(self) -> None:
        """Steps 3 to 6."""
        self._transaction._finished(self)  # noqa: SLF001 (writer and transaction are one class in two parts)

    def sync(self) -> None:
        """Step 3."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Step 4."""
        fd, self._fd = self._fd, -1
        os.close(fd)

    def publish(self) -> None:
        """Step 5."""
        os.rename(self._temporary, self.path)
        self._is_published = True

    def abort(self) -> None:
        """Close and remove the temporary; an error here would hide the one that led here, so only absence is passed over."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # the file is thrown away
                self.close()
        if not self._is_published:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._temporary)


def _writev_all(fd: int, buffers: Sequence[Any]) -> int:
    """Write all of the buffers, in batches that the system takes at once."""
    total = 0
    for first in range(0, len(buffers), _IOV_MAX):
        batch = [memoryview(b).cast("B") for b in buffers[first : first + _IOV_MAX]]
        wanted = sum(len(b) for b in batch)
        total += wanted
        written = os.writev(fd, batch)
        while written < wanted:  # a short write: go on from where it stopped
            wanted -= written
            while batch and written >= len(batch[0]):
                written -= len(batch.pop(0))
            batch[0] = batch[0][written:]
            written = os.writev(fd, batch)
    return total


class PosixReader:
    """See :class:`~shardwrite.stores.base.ObjectReader`."""

    def __init__(self, key: str, fd: int) -> None:
        self._key = key
        self._fd = fd
        self.nbytes = os.fstat(fd).st_size

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`."""
        parts = []
        with _as_store_error(self._key, "cannot read"):
            while nbytes > 0:
                part = os.pread(self._fd, min(nbytes, 1 << 30), offset)
                if not part:
                    raise StoreError(f"{self._key!r} ends at byte {offset}", key=self._key, errno=errno.EIO)
                parts.append(part)
                offset, nbytes = offset + len(part), nbytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> PosixReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._fd)


def write_file(path: Path, data: bytes, *, durability: str, attempt: str) -> None:
    """Write one small file by the same protocol as a shard."""
    with PosixStore(path.parent).transaction(durability, attempt) as transaction:
        writer = transaction.create(path.name)
        writer.write([data])
        writer.finish()
