"""Stores whose objects lie in one file, which they only read, and files in buckets.

The file lies on this machine or in a bucket. It is looked through once in each process. Then
objects are read by their place in the file, without the library of its format. A file that has
changed since the store was made is an error.

A file in a bucket is known by its URL and its version. Each range is asked for of that version, so
a file that is replaced meanwhile is an error, and never a mix of two. Threads read ranges at the
same time. The libraries of formats read through a file object, which keeps a few blocks: 2 MiB at
most.
"""

from __future__ import annotations

import copy
import errno
import functools
import io
import os
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Ranges
from shardwrite.errors import SpecError, StoreError
from shardwrite.stores.base import (
    Capability,
    CopyLimits,
    ObjectReader,
    Store,
    check_key,
    check_prefix,
)
from shardwrite.stores.bucket_url import open_bucket, parent_of
from shardwrite.stores.looking import PosixReader, as_store_error, identity_in, version_in
from shardwrite.stores.whole import SnapshotReader

if TYPE_CHECKING:
    from shardwrite.stores.bucket import Version


# ---- Files in buckets


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
            return (_readers.get(self) or _open(self)).read(offset, nbytes)

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
    store = open_bucket(above, is_read=True)
    reader = store.open(name)
    if reader is None or not reader.nbytes:
        return None
    token = store.at(name).token.rstrip("/")
    file = FileInBucket(url.rstrip("/"), token, reader.version)
    _readers.put(file, reader)  # and none with older keys
    return file


class FileStream(io.RawIOBase):
    """A file in a bucket, or another object, as a file object that is only read.

    Small reads are answered from blocks of 64 KiB. If they go from front to back, one request reads
    up to 16 blocks. Large reads are requests of their own.
    """

    def __init__(self, file: Ranges) -> None:
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
        return bytes(data)

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


def _open(file: FileInBucket, *, again: bool = False) -> ObjectReader:
    """Open a file, of which nothing is known yet, or no longer.

    - Raises StoreError if it is not the version that was looked at (ESTALE), or the service
      refuses.
    """
    above, name = parent_of(file.url)
    store = open_bucket(above, is_read=True)
    reader = store.open_again(name) if again else store.open(name)
    if reader is None or reader.version != file.version:
        raise StoreError("another version", key=file.url, errno=errno.ESTALE)
    _readers.put(file, reader)
    return reader


# ---- Stores inside of a file


_MOST_FILES = 16


@dataclass(frozen=True, slots=True)
class Member:
    """An object in a file."""

    offset: int  # its bytes in the file. With `ranges`, only the size of the object counts.
    nbytes: int
    # Function of the bytes in the file that gives those of the object. By default they are the
    # same.
    load: Callable[[Callable[[], bytes]], bytes] | None = None
    loaded_nbytes: int | None = None  # number of bytes that `load` gives, if it is known
    # Function that opens the object, of a function that reads a range of the file. It is for
    # objects that are neither read as they are nor loaded whole.
    ranges: Callable[[Callable[[int, int], bytes]], Ranges] | None = None


class Contents(Protocol):
    """Objects of one file, as they were found. Threads may share it."""

    left_out: tuple[tuple[str, str], ...]
    """Name of each thing in the file that is no object here, and why."""

    def find(self, name: str) -> Member | bytes | None:
        """An object, or its bytes if these do not lie in the file; None if it is missing."""

    def names(self, prefix: str) -> Iterator[str]:
        """Names of all objects that begin with a prefix."""

    def nodes(self) -> Iterator[tuple[str, str]]:
        """Names of all nodes, each with ``"group"`` or ``"array"``; the root's name is empty."""

    def copy_limits(self, name: str) -> CopyLimits:
        """Facts about an array."""

    def check_sizes(
        self,
        prefix: str,  # noqa: ARG002 (they claim nothing)
        most_of: Callable[[str], int | None],  # noqa: ARG002
    ) -> None:
        """Compare what objects claim of their sizes with the metadata of their array.

        - `most_of`: function of the key of an object that returns its largest possible size in
          bytes; None if it holds no chunks.
        - Raises CorruptShardError if an object claims more.
        """
        return


class InsideStore(Store):
    """A store whose objects lie in one file.

    - `version`: version of the file that the store has. By default it is the one that is there. A
      file in a bucket has one of its own.
    - `part`: the only thing of the file that is looked at, by whatever name the format knows it,
      and that the store then is; empty for the whole file.
    """

    capabilities = frozenset({Capability.SHARED})

    def __init__(
        self,
        path: str | os.PathLike[str] | FileInBucket,
        version: Any = None,
        prefix: str = "",
        part: str = "",
    ) -> None:
        self.prefix, self.part = prefix, part
        if isinstance(path, FileInBucket):
            self.file: Path | FileInBucket = path
            self.file_version: Any = path.version
            return
        self.file = Path(os.path.realpath(path))
        with as_store_error(str(self.file), "cannot read"):
            self.file_version = version or version_in(os.stat(self.file))

    @property
    def is_in_file(self) -> bool:
        """See :attr:`Store.is_in_file`."""
        return True

    @property
    def local_path(self) -> Path | None:
        """See :attr:`Store.local_path`."""
        return self.file if isinstance(self.file, Path) else None

    @abstractmethod
    def look_through(self) -> Contents:
        """Find all objects of the file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.file_version, self.prefix, self.part)

    def __repr__(self) -> str:
        return self.file.url if isinstance(self.file, FileInBucket) else str(self.file)

    @property
    def token(self) -> str:
        """See :attr:`Store.token`."""
        place = self.file.token if isinstance(self.file, FileInBucket) else str(self.file)
        return f"{place}/{self.prefix}" if self.prefix else place

    @functools.cached_property
    def _found(self) -> _Found:
        with _lock:
            return _looked_through(type(self), self.file, self.file_version, self.part)

    @property
    def contents(self) -> Contents:
        """All objects of the file.

        - Raises StoreError if the file cannot be read, or has changed (ESTALE).
        """
        return self._found.contents

    def copy_limits(self) -> CopyLimits:
        """See :meth:`Store.copy_limits`."""
        limits = self.contents.copy_limits(self.prefix.rstrip("/"))
        if limits.values is None:
            return limits
        return replace(limits, values=_Values(self, limits.values))

    def check_sizes(self, most_of: Callable[[str], int | None]) -> None:
        """See :meth:`Store.check_sizes`."""
        self.contents.check_sizes(self.prefix, most_of)

    def check(self) -> None:
        """Raise StoreError (ESTALE) if the file has changed since the store was made."""
        self._found.check()

    def open(self, key: str) -> ObjectReader | None:
        """See :meth:`Store.open`."""
        return self._open(key, self._found)

    def open_again(self, key: str) -> ObjectReader | None:
        """See :meth:`Store.open_again`; the file is opened anew."""
        return self._open(key, self._found.again())

    def _open(self, key: str, found: _Found) -> ObjectReader | None:
        member = found.contents.find(self.prefix + check_key(key))
        if member is None:
            return None
        if isinstance(member, bytes):
            return SnapshotReader(key, member, self.file_version)
        if member.load is not None and member.loaded_nbytes is None:
            return SnapshotReader(key, found.load(member), self.file_version)
        return _MemberReader(key, found, member)

    def version(self, key: str) -> Any:
        """See :meth:`Store.version`; it is that of the file."""
        name = self.prefix + check_key(key)
        return None if self.contents.find(name) is None else self.file_version

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """See :meth:`Store.list_keys`."""
        for name in self.contents.names(self.prefix + check_prefix(prefix)):
            yield name.removeprefix(self.prefix)

    def nodes(self) -> list[tuple[str, str]]:
        """See :meth:`Store.nodes`."""
        nodes = [
            (f"{name}/".removeprefix(self.prefix).rstrip("/"), kind)
            for name, kind in self.contents.nodes()
            if not self.prefix or f"{name}/".startswith(self.prefix)
        ]
        return sorted(nodes, key=lambda node: node[0].split("/") if node[0] else [])

    def left_out(self) -> list[tuple[str, str]]:
        """See :meth:`Store.left_out`."""
        return [
            (name.removeprefix(self.prefix), why)
            for name, why in self.contents.left_out
            if name.startswith(self.prefix)
        ]

    def at(self, path: str) -> Self:
        """See :meth:`Store.at`."""
        below = object.__new__(type(self))
        vars(below).update(vars(self))
        below.prefix = f"{self.prefix}{check_key(path)}/" if path else self.prefix
        return below

    def transaction(self, *arguments: Any, **keywords: Any) -> NoReturn:  # noqa: ARG002 (refused)
        """Raise SpecError, because nothing is written into the file."""
        raise SpecError(
            "a file that is only read",
            field="store",
            value=repr(self),
            remedy="write to a directory, or to a store of zarr-python",
        )


@dataclass(frozen=True, slots=True)
class _Values:
    """Values of an array in a file that must not change."""

    store: InsideStore
    values: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "values"), name)

    def __getitem__(self, key: Any) -> Any:
        values = self.values[key]
        self.store.check()
        return values


class _OnThisMachine:
    """A file of this machine, which stays open. It must stay the version that it is."""

    def __init__(self, path: str, version: Any) -> None:
        self._path, self._version = path, version
        with as_store_error(path, "cannot read"):
            self._reader = PosixReader(path, path)
        self.check()

    def __del__(self) -> None:
        if hasattr(self, "_reader"):
            self._reader.__exit__()

    def check(self) -> tuple[int, ...] | None:
        """Identity of the file; see `ObjectReader.identity`.

        - Raises StoreError (ESTALE) if it is not that version any more.
        """
        with as_store_error(self._path, "cannot look at"):
            there, opened = os.stat(self._path), os.fstat(self._reader.fd)
        if not self._version == version_in(there) == version_in(opened):
            raise StoreError(
                f"{self._path!r} was changed meanwhile", key=self._path, errno=errno.ESTALE
            )
        return identity_in(opened)

    def again(self) -> _OnThisMachine:
        """The same file, opened anew, without the pages that the system has in its cache."""
        anew = _OnThisMachine(self._path, self._version)
        anew._reader.drop_cached()
        return anew

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read exactly so many bytes, without a look whether the file has changed."""
        return self._reader.read(offset, nbytes)


class _Found:
    """What was found in a file, and the file, which stays open."""

    def __init__(
        self, kind: type[InsideStore], file: Path | FileInBucket, version: Any, part: str
    ) -> None:
        self.version = version
        # Each request to a bucket names the version of the file, so there is no more to check.
        self._file = file if isinstance(file, FileInBucket) else _OnThisMachine(str(file), version)
        place = file.url if isinstance(file, FileInBucket) else str(file)
        with as_store_error(place, "cannot read"):  # it may vanish at any moment
            self.contents = kind(file, version, part=part).look_through()
        self.check()

    def check(self) -> Any:
        """Identity of the file; see `ObjectReader.identity`.

        - Raises StoreError (ESTALE) if it is not the one that was looked through.
        """
        if isinstance(self._file, _OnThisMachine):
            return self._file.check()
        from shardwrite.stores.bucket import is_strong  # which read the file

        return self.version if is_strong(self.version) else None

    def again(self) -> _Found:
        """The same, with the file opened anew."""
        anew = copy.copy(self)
        if isinstance(self._file, FileInBucket):
            self._file.read_anew()
        else:
            anew._file = self._file.again()  # noqa: SLF001 (of this class)
        return anew

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read bytes of the file, which must not have changed since."""
        data = self._file.read(offset, nbytes)
        self.check()
        return data

    def load(self, member: Member) -> bytes:
        """All bytes of an object."""
        if member.load is None:
            return self.read(member.offset, member.nbytes)
        data = member.load(lambda: self._file.read(member.offset, member.nbytes))
        self.check()
        return data


class _MemberReader(ObjectReader):
    """An object in a file, open for reading."""

    def __init__(self, key: str, found: _Found, member: Member) -> None:
        self._key, self._found, self._member = key, found, member
        self.nbytes = member.nbytes if member.load is None else member.loaded_nbytes or 0
        self.version, self.identity = found.version, found.check()
        self._loaded: bytes | None = None
        self._ranges = None if member.ranges is None else member.ranges(found.read)

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`."""
        if offset + nbytes > self.nbytes:
            message = f"{self._key!r} ends at byte {self.nbytes}"
            raise StoreError(message, key=self._key, errno=errno.EIO)
        if self._ranges is not None:
            return bytes(self._ranges.read(offset, nbytes))
        if self._member.load is None:
            return self._found.read(self._member.offset + offset, nbytes)
        if self._loaded is None:
            self._loaded = self._found.load(self._member)
        return self._loaded[offset : offset + nbytes]


# One thread looks through a file, and the others wait for it.
_lock = threading.Lock()

_looked_through = functools.lru_cache(maxsize=_MOST_FILES)(_Found)
