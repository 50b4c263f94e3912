"""Adoption of files as the shards of a new array, which are changed where they lie.

The state lies in the directory of a conversion in place (see :mod:`shardwrite.journal.in_place`),
beside the new array. So one process at a time works on it, and all other writers are refused.

``adopts.json``
    The files, their keys in the array, and the documents of the array.
``change-<number>``
    For each file that is changed, the old and the new bytes of the places that change.
``adopted/``
    The new array. It gets its name when it is whole.
``given-up``
    Says that the files are being given back.

The steps in order, and in italics what a crash after each leaves:

1. List the files, durably. *The files, unchanged.*
2. For each file: move it into the new array, or link it there, and sync that. If it then has more
   names than that, another adoption has it, or takes it at this moment. Record what changes,
   durably. Write the index of the shard, and sync it. Write the end-of-file address of HDF5, if it
   changes, and sync it. Take away the permission to write. *Each file is at its old name or in the
   new array, and programs of HDF5 can read it. The next call goes on.*
3. Write the documents of the new array, note its inode number, and give it its name. *All files in
   the new array.*
4. Remove the record. *The new array.*

If two adoptions link the same file, each of them makes its own link first, and then looks for
others. So at most one of them finds none. A file that one of them moves is gone for the other.

Giving up restores the old bytes, sizes, permissions and times of files, and moves them back. The
same call after that begins again. After step 3, the adoption is finished instead.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from crc32c import crc32c

from shardwrite.codecs.documents import JSON
from shardwrite.errors import JournalError, RunEndedError, StoreError
from shardwrite.journal.composed import encode_record, parse_record, ranges_of
from shardwrite.stores import (
    TEMPORARY_SUFFIX,
    as_store_error,
    fsync_directory,
    is_there,
    listed,
    make_directories,
    open_plain,
    parse_json,
    pread_all,
    pwrite_all,
    read_file,
    walk,
    write_file,
)

ADOPTS = "adopts"
"""Key in the layout of an adoption, which names how the files enter the array."""

_LISTING, _NODE, _GIVEN_UP = "adopts.json", "node.json", "given-up"
_CHANGE, _TREE = "change-", "adopted"
_MAX_NBYTES = 2**40
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a file that change."""

    offset: int  # offset of the first byte
    old: bytes  # the bytes before and after. At the end of the file, `old` is shorter than `new`.
    new: bytes


@dataclass(frozen=True, slots=True)
class AdoptedFile:
    """A file that becomes a shard."""

    path: str  # its absolute path
    key: str  # key of the shard
    inode: int  # its inode number, size, times and permissions when it was looked at
    nbytes: int
    mtime_ns: int
    atime_ns: int
    mode: int

    @classmethod
    def of(cls, path: str, key: str) -> AdoptedFile:
        """Look at a file."""
        with as_store_error(path, "cannot look at"):
            found = os.lstat(path)
        return cls(
            path,
            key,
            found.st_ino,
            found.st_size,
            found.st_mtime_ns,
            found.st_atime_ns,
            stat.S_IMODE(found.st_mode),
        )

    def check_unchanged(self, place: str) -> None:
        """Refuse to go on if the file is another one, or was changed."""
        now = self.of(place, self.key)
        if (now.inode, now.nbytes, now.mtime_ns) != (self.inode, self.nbytes, self.mtime_ns):
            raise StoreError(
                f"another program has changed {self.path} meanwhile. Give the adoption up with "
                "abandon (shardwrite abandon), and begin again",
                key=self.path,
                errno=errno.ESTALE,
            )


@dataclass(frozen=True, slots=True)
class Listing:
    """What an adoption will do."""

    how: str  # whether files are moved into the array, or linked there
    files: Sequence[AdoptedFile]
    # Documents of the array, by their keys, in the order in which they are written
    documents: Mapping[str, str]

    def to_json(self) -> bytes:
        """The listing as JSON text."""
        files: list[JSON] = [asdict(file) for file in self.files]
        facts: dict[str, JSON] = {
            "version": 1,
            "how": self.how,
            "documents": dict(self.documents),
            "files": files,
        }
        return json.dumps(facts).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Listing:
        """Parse a listing."""
        found = json.loads(data)
        if found["version"] != 1 or found["how"] not in ("move", "link"):
            raise ValueError("no listing of a version that is known here")
        files = [AdoptedFile(**file) for file in found["files"]]
        return cls(found["how"], files, dict(found["documents"]))


class Adoption:
    """State of an adoption, in the directory of the work of this process."""

    def __init__(self, path: Path, work: Path) -> None:
        self.path, self.work = path, work
        self._known: Listing | None = None

    @property
    def tree(self) -> Path:
        """Path of the new array before it has its name."""
        return self.work / _TREE

    @property
    def is_listed(self) -> bool:
        """Whether the files were listed."""
        return is_there(self.work / _LISTING)

    @property
    def is_given_up(self) -> bool:
        """Whether files are being given back."""
        return is_there(self.work / _GIVEN_UP)

    @property
    def is_untouched(self) -> bool:
        """Whether no file was changed yet. One may be in the new array."""
        return not listed(self.work, _CHANGE)

    @property
    def is_published(self) -> bool:
        """Whether the new array has its name."""
        data = read_file(self.work / _NODE)
        return data is not None and parse_json(data) == _inode(self.path) != 0

    @property
    def listing(self) -> Listing:
        """What the adoption does."""
        if self._known is None:
            path = self.work / _LISTING
            try:
                self._known = Listing.from_json(read_file(path, _MAX_NBYTES) or b"")
            except (ValueError, TypeError, LookupError) as error:
                raise self._damaged(path, error) from error
        return self._known

    def list_files(self, listing: Listing) -> None:
        """List the files, durably (step 1)."""
        self._write(_LISTING, listing.to_json())

    def take(self, number: int, change: Callable[[AdoptedFile, str], Sequence[Range]]) -> None:
        """Move a file into the array or link it there, and change it (step 2).

        - `change`: returns what of a file changes, in the order in which it is to be written, given
          the path at which it is now. It is called if that was not recorded yet.
        - Raises StoreError if the storage refuses, or another program has changed the file. If
          another adoption has it, the error number is EBUSY.
        - Raises RunEndedError if another process has taken over.
        """
        file, there = self.listing.files[number], self._place(number)
        with as_store_error(file.path, "cannot adopt"):
            ranges = self._recorded(number)
            if not is_there(there) or (ranges is None and self._is_half_back(file, there)):
                self._enter(file, there, is_changed=ranges is not None)
            fsync_directory(there.parent)
            source = Path(file.path).parent
            # Once it is empty, somebody may remove it.
            if self.listing.how == "move" and is_there(source):
                fsync_directory(source)
            if ranges is None:
                self._check_alone(file, there)
                file.check_unchanged(str(there))
                ranges = self._record(number, change(file, str(there)))
            self._change(str(there), file, ranges)

    def _enter(self, file: AdoptedFile, there: Path, *, is_changed: bool) -> None:
        """Move a file into the array, or link it there, if no other adoption has it."""
        is_link = self.listing.how == "link"
        make_directories(there.parent, "full")
        try:
            if is_there(there):
                self._check_ours()
                os.unlink(there)  # the rest of its way back
            if os.lstat(file.path).st_nlink > 1:
                raise _shared(file)
            if not is_changed:
                file.check_unchanged(file.path)
            self._check_ours()
            if is_link:
                os.link(file.path, there, follow_symlinks=False)
            else:
                os.rename(file.path, there)
        except FileNotFoundError as error:
            if is_there(file.path) or not is_there(there.parent):
                raise
            raise _shared(file) from error
        self._check_alone(file, there)

    def _is_half_back(self, file: AdoptedFile, there: Path) -> bool:
        """Whether a crash has left both names of a file that was being moved back."""
        if self.listing.how != "move" or not is_there(file.path):
            return False
        return os.path.samefile(file.path, there)

    def _check_alone(self, file: AdoptedFile, there: Path) -> None:
        """Refuse a file that another adoption has, too."""
        fd = open_plain(there)  # a file system of several machines then asks for the facts again
        try:
            n_names = os.fstat(fd).st_nlink
        finally:
            os.close(fd)
        if n_names > (2 if self.listing.how == "link" else 1):
            raise _shared(file)

    def publish(self) -> None:
        """Give the new array its name, once all files are in it (step 3).

        - Raises RunEndedError if another process has taken over.
        """
        with as_store_error(str(self.path), "cannot publish"):
            if not self.is_published:
                self._sweep()
                for leaf, text in self.listing.documents.items():
                    write_file(self.tree / leaf, text.encode(), durability="full", attempt=_new())
                self._write(_NODE, json.dumps(_inode(self.tree)).encode())
                self._check_ours()
                os.rename(self.tree, self.path)
            fsync_directory(self.path.parent)
            fsync_directory(self.work)

    def give_back(self) -> None:
        """Restore all files, and put them back where they were."""
        if not self.is_listed:
            return
        numbers = range(len(self.listing.files))
        for number in numbers:
            self._check_way_back(number)
        if not self.is_untouched:
            self._write(_GIVEN_UP, b"{}")
        for number in reversed(numbers):
            with as_store_error(self.listing.files[number].path, "cannot give back"):
                self._give_back(number)
        with as_store_error(str(self.tree), "cannot remove"):
            self._sweep()
            for directory, _, _ in walk(self.tree, upwards=True):
                os.rmdir(directory)

    def _check_way_back(self, number: int) -> None:
        source, there = Path(self.listing.files[number].path), self._place(number)
        if is_there(there) and is_there(source) and not os.path.samefile(there, source):
            raise JournalError(
                f"{source} is another file than the one that was adopted from there. Move it away, "
                "and call abandon again",
                path=str(self.work),
            )

    def _give_back(self, number: int) -> None:
        """Restore a file, and put it back; the record of its change goes last."""
        file, there = self.listing.files[number], self._place(number)
        source, ranges = Path(file.path), self._recorded(number)
        is_inside = is_there(there)
        if ranges is not None:
            self._restore(there if is_inside else source, file, ranges)
        if is_inside:
            if not is_there(source):
                os.link(there, source)
            fsync_directory(source.parent)
            os.unlink(there)
            fsync_directory(there.parent)
        if ranges is not None:
            os.unlink(self.work / f"{_CHANGE}{number}")
            fsync_directory(self.work)

    def _change(self, path: str, file: AdoptedFile, ranges: Sequence[Range]) -> None:
        """Write the new bytes, and take away the permission to write."""
        with self._opened(path, file, ranges) as fd:
            for one in ranges:
                self._check_ours()
                pwrite_all(fd, one.new, one.offset)
                os.fsync(fd)
            os.fchmod(fd, file.mode & ~_WRITE)
            os.fsync(fd)

    def _restore(self, path: Path, file: AdoptedFile, ranges: Sequence[Range]) -> None:
        """Write the old bytes, in the reverse order, and cut off what was appended."""
        with self._opened(str(path), file, ranges) as fd:
            for one in reversed(ranges):
                self._check_ours()
                pwrite_all(fd, one.old, one.offset)
                os.fsync(fd)
            os.ftruncate(fd, file.nbytes)
            os.fchmod(fd, file.mode)
            os.utime(fd, ns=(file.atime_ns, file.mtime_ns))
            os.fsync(fd)

    @contextlib.contextmanager
    def _opened(self, path: str, file: AdoptedFile, ranges: Sequence[Range]) -> Iterator[int]:
        """Open a file for writing, if it holds what this adoption knows of."""
        if not file.mode & stat.S_IWUSR or not os.lstat(path).st_mode & stat.S_IWUSR:
            os.chmod(path, file.mode | stat.S_IWUSR)
        fd = open_plain(path, os.O_RDWR)
        try:
            found = os.fstat(fd)
            end = max([file.nbytes, *(one.offset + len(one.new) for one in ranges)])
            is_known = found.st_ino == file.inode and file.nbytes <= found.st_size <= end
            if not is_known or not all(_is_known(fd, one) for one in ranges):
                raise StoreError(
                    f"another program has changed {path} meanwhile. It stays as it is. What was to "
                    f"be written there is recorded in {self.work}: move that directory away, which "
                    "deletes nothing",
                    key=path,
                    errno=errno.ESTALE,
                )
            yield fd
        finally:
            os.close(fd)

    def _record(self, number: int, ranges: Sequence[Range]) -> Sequence[Range]:
        """Record what of a file changes, durably."""
        pairs: list[JSON] = []
        data = bytearray()
        for one in ranges:
            for part in (one.old, one.new):
                pairs.append([one.offset, len(part)])
                data += part
        self._write(f"{_CHANGE}{number}", encode_record({"ranges": pairs}, bytes(data)))
        return ranges

    def _recorded(self, number: int) -> Sequence[Range] | None:
        """What of a file changes, if that was recorded."""
        path = self.work / f"{_CHANGE}{number}"
        data = read_file(path, _MAX_NBYTES)
        if data is None:
            return None
        try:
            parsed = parse_record(data)
            if parsed is None or parsed[0]["crc32c"] != crc32c(parsed[1]):
                raise ValueError("its checksum is wrong")  # noqa: TRY301 (told as damage, too)
            parts = ranges_of(parsed[0]["ranges"], parsed[1])
            olds, news = parts[::2], parts[1::2]
            return [Range(at, old, new) for (at, old), (_, new) in zip(olds, news, strict=True)]
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise self._damaged(path, error) from error

    def _damaged(self, path: Path, error: Exception) -> JournalError:
        return JournalError(
            f"{path} is damaged ({error}). Look at {self.work}, and move it away, which deletes "
            "nothing",
            path=str(self.work),
        )

    def _write(self, leaf: str, data: bytes) -> None:
        self._check_ours()
        write_file(self.work / leaf, data, durability="full", attempt=_new())

    def _check_ours(self) -> None:
        """Refuse to go on if another process has renamed the directory of this work."""
        if not is_there(self.work):
            raise RunEndedError(
                f"another process has taken over the adoption of {self.path}", path=str(self.work)
            )

    def _sweep(self) -> None:
        """Remove documents, and what was left of them, from the array before it has its name."""
        for path in listed(self.tree):
            if path.name in self.listing.documents or path.name.endswith(TEMPORARY_SUFFIX):
                os.unlink(path)

    def _place(self, number: int) -> Path:
        return self.tree / self.listing.files[number].key


def _shared(file: AdoptedFile) -> StoreError:
    """The error about a file that another adoption has, or is about to have."""
    return StoreError(
        "another adoption, or another program, has moved it or given it one more name meanwhile",
        key=file.path,
        errno=errno.EBUSY,
    )


def _is_known(fd: int, one: Range) -> bool:
    """Whether each byte of a range that was there before is the old one or the new one."""
    found = pread_all(fd, one.offset, len(one.old))
    new = one.new[: len(one.old)]
    return all(byte in pair for byte, *pair in zip(found, one.old, new, strict=True))


def _inode(path: Path) -> int:
    """Inode number of what stands at a path; 0 if nothing does."""
    with as_store_error(str(path), "cannot look at"):
        try:
            return os.lstat(path).st_ino
        except FileNotFoundError:
            return 0


def _new() -> str:
    return uuid.uuid4().hex
