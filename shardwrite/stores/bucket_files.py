"""Files in buckets, of which ranges are read as if they lay on this machine.

A file is known by its URL and its version. Each range is asked for of that version, so a file that
is replaced meanwhile is an error, and never a mix of two. Threads read ranges at the same time. The
libraries of formats read through a file object, which keeps a few blocks: 2 MiB at most.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwrite.config.table import STORAGE
from shardwrite.config.values import value_of
from shardwrite.errors import StoreError
from shardwrite.stores.base import ObjectReader
from shardwrite.stores.bucket_url import open_bucket, parent_of

if TYPE_CHECKING:
    from shardwrite.stores.bucket_reading import Version

_BLOCK_NBYTES = 2**16
_MOST_BLOCKS = 32
_MOST_AHEAD = 16  # blocks that one request reads of a file that is read from front to back
_MOST_OPEN = 64


@dataclass(frozen=True, slots=True)
class FileInBucket:
    """One version of a file in a bucket. It can be pickled, and shared between threads.

    Each process opens it when it first reads, with the options and the environment that it has.
    """

    url: str  # URL of the file, without credentials
    token: str  # text that tells its place from all others; see :attr:`Store.token`
    version: Version  # size in bytes, ETag, and the version or generation that the service names

    @property
    def nbytes(self) -> int:
        """Size of the file, in bytes."""
        return self.version[0]

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read exactly `nbytes` bytes from byte `offset` on, in one request.

        - Raises StoreError if the file ends too early, the service refuses, or the file was
          replaced or removed since it was looked at (ESTALE).
        """
        with self._named():
            return _opened(self).read(offset, nbytes)

    def read_anew(self) -> None:
        """Forget what was kept of the file, so that the service is asked again."""
        with self._named():
            _open(self, again=True)

    def stream(self) -> FileStream:
        """A file object, which one thread at a time may use."""
        return FileStream(self)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Have errors say that the file as a whole has changed."""
        try:
            yield
        except StoreError as error:
            if error.fields["errno"] != errno.ESTALE:
                raise
            raise StoreError(
                f"{self.url} was replaced or removed while it was read",
                key=self.url,
                errno=errno.ESTALE,
            ) from error


def file_in_bucket(url: str) -> FileInBucket | None:
    """Look at a file in a bucket; None if there is no such object, or it is empty.

    Empty objects stand for folders in some buckets.

    - `url`: URL such as ``s3://bucket/scan.h5``.
    """
    above, name = parent_of(url)
    if not name:
        return None
    store = open_bucket(above, value_of(STORAGE), is_read=True)
    reader = store.open(name)
    if reader is None or not reader.nbytes:
        return None
    token = store.at(name).token.rstrip("/")
    found = FileInBucket(url.rstrip("/"), token, reader.version)
    _readers.put(found, reader)  # and none with older keys
    return found


class FileStream(io.RawIOBase):
    """A file in a bucket as a file object that is only read.

    Small reads are answered from blocks of 64 KiB. If they go from front to back, one request reads
    up to 16 blocks. Large reads are requests of their own.
    """

    def __init__(self, file: FileInBucket) -> None:
        super().__init__()
        self._file = file
        self._at = 0
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._next, self._ahead = -1, 1
        self._error: StoreError | None = None

    def check(self) -> None:
        """Raise the error of a read that has failed, which a library may have swallowed."""
        if self._error is not None:
            raise self._error

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def seekable(self) -> bool:
        """Whether it has a position."""
        return True

    def tell(self) -> int:
        """Position, in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position, and return it."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.nbytes}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, "a position before the beginning of the file")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        """Read as many bytes as the buffer has, or as are left, and return how many."""
        into = memoryview(buffer).cast("B")
        data = self.read(len(into))
        into[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """Read `size` bytes, or as many as are left."""
        left = max(0, self._file.nbytes - self._at)
        nbytes = left if size is None or size < 0 else min(size, left)
        if not nbytes:
            return b""
        is_small = nbytes < _BLOCK_NBYTES
        try:
            data = self._from_blocks(nbytes) if is_small else self._file.read(self._at, nbytes)
        except StoreError as error:
            self._error = error
            raise
        self._at += nbytes
        return data

    def readall(self) -> bytes:
        """Read all bytes that are left."""
        return self.read()

    def _from_blocks(self, nbytes: int) -> bytes:
        first, last = self._at // _BLOCK_NBYTES, (self._at + nbytes - 1) // _BLOCK_NBYTES
        data = b"".join(self._block(number) for number in range(first, last + 1))
        start = self._at - first * _BLOCK_NBYTES
        return data[start : start + nbytes]

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            self._ahead = min(2 * self._ahead, _MOST_AHEAD) if number == self._next else 1
            start = number * _BLOCK_NBYTES
            end = min(start + self._ahead * _BLOCK_NBYTES, self._file.nbytes)
            data = self._file.read(start, end - start)
            self._next = number + self._ahead
            for at in range(0, len(data), _BLOCK_NBYTES):
                self._blocks[number + at // _BLOCK_NBYTES] = data[at : at + _BLOCK_NBYTES]
            while len(self._blocks) > _MOST_BLOCKS:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return self._blocks[number]


class _Readers:
    """Objects that this process has open, the last ones; all copies of a file share one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[FileInBucket, ObjectReader] = OrderedDict()

    def get(self, file: FileInBucket) -> ObjectReader | None:
        # Without the lock: whoever asks may hold the one of the HDF5 library, and whoever has this
        # one may have to wait for that if Python collects garbage.
        return self._kept.get(file)

    def put(self, file: FileInBucket, reader: ObjectReader) -> None:
        with self._lock:
            self._kept[file] = reader
            self._kept.move_to_end(file)
            while len(self._kept) > _MOST_OPEN:
                self._kept.popitem(last=False)


_readers = _Readers()


def _opened(file: FileInBucket) -> ObjectReader:
    """A file, open for reading.

    - Raises StoreError if it is not the version that was looked at (ESTALE), or the service
      refuses.
    """
    return _readers.get(file) or _open(file)


def _open(file: FileInBucket, *, again: bool = False) -> ObjectReader:
    """Open a file, of which nothing is known yet, or no longer; see `_opened`."""
    above, name = parent_of(file.url)
    store = open_bucket(above, value_of(STORAGE), is_read=True)
    reader = store.open_again(name) if again else store.open(name)
    if reader is None or reader.version != file.version:
        raise StoreError("another version", key=file.url, errno=errno.ESTALE)
    _readers.put(file, reader)
    return reader
