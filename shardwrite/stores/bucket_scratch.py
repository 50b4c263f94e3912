"""Objects of a bucket that wait on this machine's own disk, and not in memory, until they are put.

Each object lies in a file without a name, which is gone when the process ends, however it ends. It
is put from a memory map of the file. The system can drop the pages of a map at any time, so they
take no memory of the process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from shardwrite.errors import StoreError
from shardwrite.stores.descriptors import pwrite_all, writev_all
from shardwrite.stores.reading import as_store_error
from shardwrite.stores.whole_transaction import WholeTransaction, WholeWriter


@dataclass(frozen=True, slots=True)
class Room:
    """Room in a directory for objects that wait."""

    disk: int  # number of the file system, which two directories may share
    free_nbytes: int  # bytes that are free there


def room_in(directory: str) -> Room:
    """Look whether files can be made in a directory, and how much room there is."""
    with as_store_error(directory, "cannot write to"), _file_in(directory) as file:
        found = os.fstatvfs(file.fileno())
        return Room(os.fstat(file.fileno()).st_dev, found.f_bavail * found.f_frsize)


class ScratchWriter(WholeWriter):
    """An object that grows in a file without a name.

    - `directory`: directory of the file. It may name variables of the environment.
    """

    def __init__(self, transaction: WholeTransaction, key: str, directory: str) -> None:
        super().__init__(transaction, key)
        self._where = _expanded(directory)
        with self._storing():
            self._file: Any = _file_in(directory)
        self._nbytes = 0

    def _storing(self) -> Any:
        return as_store_error(self._key, f"cannot keep a shard in {self._where} until it is put:")

    def _fd(self) -> int:
        if self._file is None:
            raise StoreError(f"{self._key!r} is not being written", key=self._key)
        return int(self._file.fileno())

    def write(self, buffers: Sequence[Any]) -> int:
        """See :meth:`ObjectWriter.write`."""
        fd = self._fd()
        given = [memoryview(buffer) for buffer in buffers]
        views = [view.cast("B") for view in given if view.nbytes]
        with self._storing():
            n_written = writev_all(fd, views)
        self._nbytes += n_written
        return n_written

    def write_at(self, offset: int, data: bytes) -> None:
        """See :meth:`ObjectWriter.write_at`."""
        fd = self._fd()
        with self._storing():
            pwrite_all(fd, data, offset)

    def skip(self, nbytes: int) -> None:
        """See :meth:`ObjectWriter.skip`."""
        fd = self._fd()
        with self._storing():
            self._nbytes = os.lseek(fd, nbytes, os.SEEK_CUR)
            if nbytes:  # the file must be as long, and what is left out reads as zeros
                pwrite_all(fd, b"\0", self._nbytes - 1)

    def finish(self, guard: Callable[[], None] | None = None) -> None:
        """See :meth:`ObjectWriter.finish`."""
        fd = self._fd()
        self._transaction.check(guard)
        with self._storing():
            # The map keeps the file until nobody needs it any more.
            data = memoryview(mmap.mmap(fd, 0, access=mmap.ACCESS_READ) if self._nbytes else b"")
        self._close()
        self._transaction.put(lambda: self._put(data, guard))

    def abort(self) -> None:
        """See :meth:`ObjectWriter.abort`."""
        self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _file_in(directory: str) -> Any:
    """A new file that has no name, or loses it at once where the file system wants one."""
    where = _expanded(directory)
    return cast("Any", tempfile.TemporaryFile(dir=where, prefix="shardwrite-", buffering=0))


def _expanded(directory: str) -> str:
    """Path of this machine; the configuration may name variables of it, or the home directory."""
    return os.path.expanduser(os.path.expandvars(directory))
