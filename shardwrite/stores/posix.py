"""Objects as files of one directory tree, each committed atomically.

A commit takes six steps. The text in italics says what a crash after each step leaves behind:

1. Make missing directories, and open a temporary file in the directory of the object
   (``O_CREAT|O_EXCL|O_NOFOLLOW|O_CLOEXEC``). Its name is unique to the run and the attempt.
   If the object exists already, only this user may access the temporary until it is complete;
   it then takes the mode, group and owner of that object (see `directories`).
   *An empty temporary.*
2. Write in a loop, because writes may be short. If step 3 follows, the system is asked every few
   MiB to begin to write the data out, which then overlaps with the encoding of later data.
   *An incomplete temporary; the object is the old one, or is missing.*
3. Sync the file with fsync (levels full and batch). *A complete temporary.*
4. Close the file, and check the error of this call: NFS and quotas report errors there.
5. Rename the temporary over the object. *The new object is visible, but a power cut may still
   bring the old one back.*
6. Sync the directory and its ancestors up to the root of the store (levels full and batch).
   *The new object, permanently.*

Small objects take some of these steps together. With level batch, all steps after the second one
wait until there are 64 complete temporaries. With the other levels, and after
`Transaction.overlap`, steps 5 and 6 wait for a few. The guard, which refuses to publish for a run
that was taken over, is then called once for all of them. That is as safe as a call for each: who
takes a run over first makes the guard refuse, and then removes the temporaries. So if the guard
passes, each temporary that exists by then is either renamed in time, or is gone when it is renamed.

An error at any step removes the temporary and is raised. An fsync is never repeated, because a
second call does not report the data that the first one lost.

A modification of an object in place is not atomic. The caller keeps a record from which the object
can be repaired after a crash.

Blocks of a file are reserved before it is written, so that no space can be missing then. The record
of a run or a conversion keeps some room in this way. Whoever gives that up takes this room first.
So the few small files that giving up needs find room on a full disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError, StoreError
from shardwrite.stores.base import (
    Capability,
    ObjectEditor,
    ObjectWriter,
    Store,
    Transaction,
    changed_meanwhile,
    check_key,
    check_prefix,
    copy_bytes,
    open_there,
)
from shardwrite.stores.directories import (
    NARROW,
    Rights,
    fsync_directory,
    keep_rights,
    rights_of,
    was_taken_over,
)
from shardwrite.stores.looking import (
    PosixReader,
    Version,
    as_store_error,
    c_function,
    copy_range,
    listed,
    mode_of,
    no_file,
    open_plain,
    opened,
    pwrite_all,
    read_plain,
    version_in,
    version_of,
    writev_all,
)
from shardwrite.stores.removal import (
    TEMPORARY_SUFFIX,
    Proof,
    abort_temporary,
    begin_temporary,
    forget_temporary,
    link_new,
    remove_data,
    temporary_path,
)

# ---- Listing of objects


def keys_below(root: Path, prefix: str) -> Iterator[str]:
    """Keys of all regular files below a prefix, in the order of their names in each directory.

    Links are neither listed nor followed. Temporaries are not listed. What is removed meanwhile may
    be missing.

    - `prefix`: checked prefix; empty, or a relative path that ends in a slash.
    """
    for path in listed(os.path.join(root, prefix)):
        mode = mode_of(path, follow=False)
        if stat.S_ISDIR(mode):
            yield from keys_below(root, f"{prefix}{path.name}/")
        elif stat.S_ISREG(mode) and not path.name.endswith(TEMPORARY_SUFFIX):
            yield prefix + path.name


# ---- Early write-out of growing files, so that their final sync has less to wait for


_SYNC_FILE_RANGE_WRITE = 2  # start without waiting; see sync_file_range(2)


_sync_file_range = c_function(
    ("sync_file_range",), ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
)


def begin_writeback(fd: int, start: int, stop: int) -> None:
    """Ask the system to start writing a range of a file to the disk.

    This makes nothing durable and reports no errors; only fsync does both.
    """
    if _sync_file_range is not None:
        _sync_file_range(fd, start, stop - start, _SYNC_FILE_RANGE_WRITE)


# ---- The store


_BATCH_FILES = 64

_MAX_SCOPES = 16

_WRITEBACK_NBYTES = 4 * 2**20  # measured: 2 to 8 MiB are equally fast


@dataclass(slots=True)
class _Directories:
    """Directories that this process has checked within one scope.

    The results stay valid because no directory is removed and made again during a run.
    """

    plain: set[str] = field(default_factory=set)
    """Directories that are no links; none of their ancestors below the root is one either."""
    made: set[str] = field(default_factory=set)
    """Those of them that this process has made."""
    synced: set[str] = field(default_factory=set)
    """Directories whose entry in their parent is synced."""


_directories: dict[str, _Directories] = {}


def note_synced(scope: str, directories: Iterable[Path]) -> None:
    """Have this process not sync again, within one scope, what names directories that are there."""
    _known(scope).synced.update(map(str, directories))


def _known(scope: str) -> _Directories:
    if scope not in _directories:
        while len(_directories) >= _MAX_SCOPES:
            # not next(iter(...)): another thread may change the dict while an iterator is open
            _directories.pop(list(_directories)[0], None)  # noqa: RUF015
        _directories[scope] = _Directories()
    return _directories[scope]


class PosixStore(Store):
    """A directory of objects, each of them a file.

    - `root`: the directory; it need not exist yet.
    """

    capabilities = frozenset(Capability) - {Capability.CONDITIONAL}
    has_mtime = True

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._root = str(self.root)
        self._above = os.path.join(self._root, "")  # of all its paths

    def __reduce__(self) -> tuple[Any, ...]:
        return PosixStore, (str(self.root),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PosixStore) and self.root == other.root

    def __hash__(self) -> int:
        return hash(self.root)

    @property
    def local_root(self) -> Path:
        """See :attr:`Store.local_root`."""
        return self.root

    @property
    def token(self) -> str:
        """See :attr:`Store.token`."""
        return self._root

    def at(self, path: str) -> PosixStore:
        """See :meth:`Store.at`; to write there, the directory above it must exist."""
        return PosixStore(self.root / check_key(path)) if path else self

    def path_of(self, key: str) -> str:
        """Path of the file of an object, which need not exist."""
        return self._above + check_key(key)

    def transaction(
        self,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None = None,
        *,
        proof: Proof | None = None,
        is_fresh: bool = False,
    ) -> PosixTransaction:
        """See :meth:`Store.transaction`."""
        return PosixTransaction(self, durability, attempt, guard, proof=proof, is_fresh=is_fresh)

    def discard_scope(self, key: str, scope: str) -> None:
        """See :meth:`Store.discard_scope`."""
        directory, name = os.path.split(self.path_of(key))
        with as_store_error(key, "cannot remove what is left of"):
            of_scope = f"{scope}." if scope else ""
            for path in listed(directory, f".{name}.{of_scope}", TEMPORARY_SUFFIX):
                path.unlink(missing_ok=True)

    def discard_temporary(self, key: str, attempt: str) -> bool:
        """See :meth:`Store.discard_temporary`."""
        path = temporary_path(*os.path.split(self.path_of(key)), attempt)
        with as_store_error(path, "cannot remove a temporary file"):
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return True

    def open(self, key: str) -> PosixReader | None:
        """See :meth:`Store.open`; links and anything else that is no regular file are refused."""
        path = self.path_of(key)
        with as_store_error(key, "cannot open"):
            try:
                return PosixReader(key, path)
            except FileNotFoundError:
                return None

    def open_again(self, key: str) -> PosixReader | None:
        """See :meth:`Store.open_again`."""
        reader = self.open(key)
        if reader is not None:
            reader.drop_cached()
        return reader

    def read_whole(self, key: str, most_nbytes: int) -> bytes | None:
        """See :meth:`Store.read_whole`; links are refused, as by :meth:`open`."""
        with as_store_error(key, "cannot read"):
            try:
                return read_plain(self.path_of(key), most_nbytes)
            except FileNotFoundError:
                return None

    def edit(self, key: str) -> PosixEditor:
        """See :meth:`Store.edit`; links are refused."""
        return PosixEditor(key, self.root / check_key(key))

    def version(self, key: str) -> Version | None:
        """See :meth:`Store.version`."""
        with as_store_error(key, "cannot look at"):
            return version_of(self.root / check_key(key))

    def sync(self, key: str) -> None:
        """See :meth:`Store.sync`; its name is durable, too."""
        with as_store_error(key, "cannot sync"):
            fd = open_plain(self.path_of(key), os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            self.sync_parents([Path(self.path_of(key))], set())

    def change_time(self, key: str) -> int:
        """See :meth:`Store.change_time`."""
        with as_store_error(key, "cannot look at"):
            try:
                return os.lstat(self.path_of(key)).st_ctime_ns
            except (FileNotFoundError, NotADirectoryError):
                return 0

    def size(self, key: str) -> int | None:
        """See :meth:`Store.size`; what is no plain file has a size, too."""
        version = self.version(key)
        return None if version is None else version[1]

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """See :meth:`Store.list_keys`; links and temporaries are left out."""
        return keys_below(self.root, check_prefix(prefix))

    def check_no_links(self, keys: Iterable[str], *, are_whole: bool) -> None:
        """See :meth:`Store.check_no_links`."""
        found = {self._root: True}
        for key in keys:
            path = self.path_of(key)
            with as_store_error(key, "cannot update"):
                above = self._root
                for name in key.split("/")[:-1]:
                    directory = f"{above}/{name}"
                    if directory not in found:
                        found[directory] = found[above] and self._is_directory(directory)
                    above = directory
                if found[above] and not are_whole and stat.S_ISLNK(mode_of(path, follow=False)):
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def _is_directory(self, directory: str) -> bool:
        """Whether there is a directory that is no link, which is an error."""
        try:
            self._check_directory(directory)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def create_new(self, key: str, data: bytes) -> bool:
        """See :meth:`Store.create_new`; the object is durable."""
        path = self.path_of(key)
        with as_store_error(key, "cannot create"):
            self.make_parents(path, _Directories())
            is_new = link_new(Path(path), data)
            self.sync_parents([Path(path)], set())
            return is_new

    def make_parents(self, path: str, known: _Directories) -> None:
        """Make the missing parent directories of `path`, and add them all to those that are known.

        Those that are known are not looked at, nor are those above them.
        """
        missing, new = [], []
        directory = os.path.dirname(path)  # of texts, as `pathlib` is slow for many small shards
        while directory not in known.plain:
            new.append(directory)
            above = os.path.dirname(directory)
            if above in known.made:  # most likely, nobody has made this one
                missing.append(directory)
                break
            try:
                self._check_directory(directory)
            except FileNotFoundError:
                if was_taken_over(Path(directory)):
                    raise
                missing.append(directory)
            if directory == self._root:
                break
            directory = above
        for directory in reversed(missing):
            try:
                os.mkdir(directory)
            except FileExistsError:  # another worker was faster
                with contextlib.suppress(FileNotFoundError):  # removed again, while it was empty
                    self._check_directory(directory)
            except FileNotFoundError:
                if not known.plain:
                    raise
                # another process has removed one that was known, because it was empty
                self.make_parents(path, _Directories())
                return
            else:
                known.made.add(directory)
        known.plain.update(new)

    def _check_directory(self, directory: str) -> None:
        """Refuse a link in the place of a directory of the store."""
        if stat.S_ISLNK(os.lstat(directory).st_mode) and directory != self._root:
            message = f"{directory} is a symbolic link inside the store; replace it by a directory"
            raise StoreError(message, key=directory, errno=errno.ELOOP)

    def sync_parents(self, paths: Iterable[Path], synced: set[str]) -> None:
        """Sync the directories of `paths`, and the entries of their ancestors not in `synced`.

        Each directory is synced once. The entry of the root in its parent is the highest one. The
        ancestors are then added to `synced`.
        """
        directories = dict.fromkeys(path.parent for path in paths)
        new: dict[str, None] = {}
        for directory in list(directories):
            while str(directory) not in synced and str(directory) not in new:
                directories[directory.parent] = new[str(directory)] = None
                if directory == self.root:
                    break
                directory = directory.parent
        for directory in directories:
            fsync_directory(directory)
        # Only now: another thread must not regard a directory as durable before its ancestors are.
        synced.update(new)


class PosixTransaction(Transaction):
    """Files that one task writes."""

    def __init__(
        self,
        store: PosixStore,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None,
        *,
        proof: Proof | None,
        is_fresh: bool,
    ) -> None:
        self.store = store
        self._proof = proof
        self.durability = durability
        self.attempt = attempt
        self.committed: set[str] = set()
        self._guard = guard
        self._is_fresh = is_fresh
        self._known = _known(attempt.partition(".")[0])
        self._open: dict[str, PosixWriter] = {}
        self._waiting: list[PosixWriter] = []
        self._n_together = _BATCH_FILES if durability == "batch" else 1

    def __exit__(self, *exc_info: object) -> None:
        try:
            if exc_info[0] is None:
                self.flush()
        finally:
            for writer in (*self._waiting, *self._open.values()):
                writer.abort()

    def create(self, key: str, *, like: Path | None = None) -> PosixWriter:
        """Start to write an object (step 1).

        An object that replaces another takes the mode, group and owner of that one, and a new
        object takes those of the file `like`, if that exists. In a transaction with `is_fresh`,
        an object takes the defaults of the system.
        """
        path = self.store.path_of(key)  # str, not Path, which is slow for many small shards
        directory, _, name = path.rpartition("/")
        temporary = temporary_path(directory, name, self.attempt)
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY
        with as_store_error(key, "cannot create"):
            # The root may be a link, and is made below if it is missing.
            if directory not in self._known.plain and directory != self.store.token:
                self.store.make_parents(path, self._known)
            replaced = (
                None
                if self._is_fresh
                else rights_of(path) or (None if like is None else rights_of(like))
            )
            mode = 0o666 if replaced is None else NARROW
            begin_temporary(temporary)
            try:
                try:
                    fd = opened(temporary, flags, mode)
                except FileNotFoundError:  # another process has removed an empty directory
                    self.store.make_parents(path, _Directories())
                    fd = opened(temporary, flags, mode)
                writer = self._open[key] = PosixWriter(self, key, path, temporary, fd, replaced)
            except FileExistsError:
                forget_temporary(temporary)
                raise
            except BaseException:  # an interrupt, too
                abort_temporary(temporary)
                raise
        return writer

    def remove(self, key: str, guard: Callable[[], None] | None = None) -> None:
        """See :meth:`Transaction.remove`; a link is removed itself, not its target."""
        path = self.store.path_of(key)
        with as_store_error(key, "cannot remove"):
            if mode := mode_of(path, follow=False):
                if stat.S_ISDIR(mode):  # whose files nobody wrote here
                    raise no_file(path)
                # The parents exist; this refuses links among them.
                self.store.make_parents(path, self._known)
                self._check(guard)
                if self._proof is None:
                    raise StoreError("no run to remove it for", key=key, errno=errno.EPERM)
                remove_data(self.store.root, key, self._proof)
                if self.durability != "none":
                    fsync_directory(Path(path).parent)

    def overlap(self, n_at_once: int) -> None:
        """See :meth:`Transaction.overlap`; with ``"batch"``, more objects wait than this."""
        self._n_together = max(self._n_together, n_at_once)

    def _finished(self, writer: PosixWriter) -> None:
        if self.durability != "batch":
            with as_store_error(writer.key, "cannot commit"):
                if self.durability == "full":
                    writer.sync()
                writer.close()
        self._waiting.append(writer)
        del self._open[writer.key]
        is_alone = writer.guard is not None and self.durability != "batch"
        if is_alone or len(self._waiting) >= self._n_together:
            self.flush()

    def _check(self, guard: Callable[[], None] | None = None) -> None:
        for check in (self._guard, guard):
            if check is not None:
                check()

    def flush(self) -> None:
        """See :meth:`Transaction.flush`.

        First all data become durable, then all objects visible, then all names durable. An old
        object is therefore never replaced by an incomplete new one.
        """
        batch = self._waiting
        published: list[PosixWriter] = []
        for step in ("sync", "close") if self.durability == "batch" else ():
            for writer in batch:
                with as_store_error(writer.key, "cannot commit"):
                    getattr(writer, step)()
        try:
            for writer in batch:
                with as_store_error(writer.key, "cannot commit"):
                    if not published:
                        self._check()
                    if writer.guard is not None:
                        writer.guard()
                    writer.publish()
                published.append(writer)
        finally:
            self._waiting = batch[len(published) :]
            if published:
                self._settle(published)

    def _settle(self, published: Sequence[PosixWriter]) -> None:
        """Make the names of objects durable, and count the objects as committed."""
        if self.durability != "none":
            with as_store_error(published[0].key, "cannot commit"):
                paths = [Path(writer.path) for writer in published]
                self.store.sync_parents(paths, self._known.synced)
        self.committed.update(writer.key for writer in published)


class PosixWriter(ObjectWriter):
    """A file that is being written."""

    has_permissions = True

    def __init__(
        self,
        transaction: PosixTransaction,
        key: str,
        path: str,
        temporary: str,
        fd: int,
        replaced: Rights | None,
    ) -> None:
        self.key = key
        self.path = path
        self.guard: Callable[[], None] | None = None
        self._transaction = transaction
        self._temporary = temporary
        self._fd = fd
        self._replaced = replaced
        self._identity: tuple[int, int, int] | None = None
        self._is_published = False
        self._is_protected: bool | None = None
        self._is_synced = transaction.durability != "none"
        self._end = self._begun = 0

    def write(self, buffers: Sequence[Any]) -> int:
        """Append buffers (step 2)."""
        with as_store_error(self.key, "cannot write"):
            n = writev_all(self._fd, buffers)
            self._end += n
            if self._is_synced and self._end - self._begun >= _WRITEBACK_NBYTES:
                begin_writeback(self._fd, self._begun, self._end)
                self._begun = self._end
            return n

    def write_at(self, offset: int, data: bytes) -> None:
        """See :meth:`ObjectWriter.write_at`."""
        with as_store_error(self.key, "cannot write"):
            pwrite_all(self._fd, data, offset)

    def copy(self, reader: PosixReader, offset: int, nbytes: int) -> None:
        """See :meth:`ObjectWriter.copy`."""
        with as_store_error(self.key, "cannot copy into"):
            copy_range(reader.fd, offset, self._fd, nbytes)
            self._end += nbytes

    def skip(self, nbytes: int) -> None:
        """See :meth:`ObjectWriter.skip`."""
        with as_store_error(self.key, "cannot write"):
            self._end = os.lseek(self._fd, nbytes, os.SEEK_CUR)
            os.ftruncate(self._fd, self._end)

    def protect(self, is_protected: bool | None) -> None:
        """See :meth:`ObjectWriter.protect`."""
        self._is_protected = is_protected

    def finish(self, guard: Callable[[], None] | None = None) -> None:
        """Complete the object (steps 3 to 6); with ``"batch"``, the transaction does so later."""
        self.guard = guard
        if self._replaced is not None:
            with as_store_error(self.key, "cannot keep the mode and group of"):
                keep_rights(self._fd, rights_of(self.path) or self._replaced)
        if self._is_protected is not None:
            with as_store_error(self.key, "cannot protect"):
                facts = os.fstat(self._fd)
                self._identity = _identity(facts)
                mode = stat.S_IMODE(facts.st_mode)
                os.fchmod(self._fd, mode & ~0o222 if self._is_protected else mode | stat.S_IWUSR)
        # Writer and transaction are two halves of one class.
        self._transaction._finished(self)  # noqa: SLF001

    def sync(self) -> None:
        """Sync the file (step 3)."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file, and remember which file it was (step 4)."""
        fd, self._fd = self._fd, -1
        try:
            self._identity = self._identity or _identity(os.fstat(fd))
        finally:
            os.close(fd)

    def publish(self) -> None:
        """Rename the temporary over the object (step 5).

        If the reply to a rename is lost, NFS repeats the rename, which then finds no temporary.
        This is no error if the object is the file that this writer has closed.
        """
        try:
            os.rename(self._temporary, self.path)
        except IsADirectoryError as error:
            raise no_file(self.path) from error
        except PermissionError as error:
            if error.errno != errno.EPERM or not mode_of(self.path, follow=False):
                raise
            hint = "let it be replaced (chattr -a, if the system lets only append to it)"
            raise PermissionError(error.errno, f"{error.strerror}; {hint}", self.path) from error
        except FileNotFoundError:
            if (
                not mode_of(self.path, follow=False)
                or _identity(os.lstat(self.path)) != self._identity
            ):
                raise
        self._is_published = True
        forget_temporary(self._temporary)

    def abort(self) -> None:
        """Close and remove the temporary.

        Errors are ignored, because they must not hide the error that led here. The next run
        removes what is left.
        """
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # the file is removed anyway
                self.close()
        if not self._is_published:
            abort_temporary(self._temporary)


def _identity(facts: os.stat_result) -> tuple[int, int, int]:
    """What tells a file from others, whatever its name is: its device, inode and size."""
    return facts.st_dev, facts.st_ino, facts.st_size


# ---- Files beside shards and arrays, written by the same protocol as shards


def write_file(
    path: Path,
    data: bytes,
    *,
    durability: str,
    attempt: str,
    guard: Callable[[], None] | None = None,
    like: Path | None = None,
) -> None:
    """Write a small file by the same protocol as a shard."""
    with PosixStore(path.parent).transaction(durability, attempt, guard) as transaction:
        writer = transaction.create(path.name, like=like)
        writer.write([data])
        writer.finish()


def write_files(
    files: Iterable[tuple[Path, bytes]],
    *,
    durability: str,
    attempt: str,
    guard: Callable[[], None],
    is_fresh: bool,
) -> None:
    """Write small files by the same protocol, with one call of the guard for all of them.

    It is called once their temporaries are there, and before the first becomes visible. Those in
    one directory become visible in the sequence in which they are given.

    - `is_fresh`: whether nothing stands there whose mode and group a file would take.
    """
    transactions: dict[Path, PosixTransaction] = {}
    with contextlib.ExitStack() as stack:
        for path, data in files:
            if path.parent not in transactions:
                store = PosixStore(path.parent)
                made = store.transaction(durability, attempt, is_fresh=is_fresh)
                made.overlap(_BATCH_FILES)
                transactions[path.parent] = stack.enter_context(made)
            writer = transactions[path.parent].create(path.name)
            writer.write([data])
            writer.finish()
        guard()
        for made in transactions.values():
            made.flush()


def discard_file(path: Path, attempt: str) -> None:
    """Remove the temporary that an attempt of `write_file` has left behind, if there is one."""
    PosixStore(path.parent).discard_temporary(path.name, attempt)


def sync_entry(path: Path) -> None:
    """Make the name of a file durable, and that of its directory."""
    PosixStore(path.parent).sync_parents([path], set())


def copy_file(source: Path, to: Path, durability: str) -> None:
    """Copy a file through this process's memory; the copy has the same mode, group and owner."""
    with (
        open_there(PosixStore(source.parent), source.name) as reader,
        PosixStore(to.parent).transaction(durability, uuid.uuid4().hex) as transaction,
    ):
        writer = transaction.create(to.name, like=source)
        copy_bytes(reader.read, writer, reader.nbytes)
        writer.finish()


def can_copy_between(source: Store, target: Store) -> bool:
    """Whether `ObjectWriter.copy` of one store takes objects of another: both hold files."""
    return isinstance(source, PosixStore) and isinstance(target, PosixStore)


def check_movable(path: Path, occupied: Path) -> None:
    """Refuse a directory that the system cannot rename. Nothing is renamed.

    In a container, overlayfs does not rename directories that come from the image. It says so
    before it looks at the new name, which is that of a directory that holds something. So every
    other system refuses, too.

    - `occupied`: another directory, which is not empty.
    """
    try:
        os.rename(path, occupied)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise SpecError(
                "the file system cannot rename this directory (in a container, overlayfs does not "
                "rename directories of the image), so it cannot be set aside; nothing was changed",
                field="store",
                value=str(path),
                remedy="give another path, or copy the directory, remove it, and give the copy its "
                "name",
            ) from error
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
    else:  # a file system that does not look at the new name
        os.rename(occupied, path)
        raise OSError(
            errno.EOPNOTSUPP,
            "the file system renames directories over others that hold something",
            str(path),
        )


# ---- Reservation of blocks, and room that is kept for whoever gives something up


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers that mean that a file cannot grow."""

_KEPT_NBYTES = 5 * 2**16  # xfs makes no file or directory where fewer than some 60 blocks are free

_KEEP_SIZE = 1  # see fallocate(2)

_CANNOT = {errno.ENOSYS, errno.EOPNOTSUPP}


# Not ``posix_fallocate``: where the file system cannot reserve, it writes and so grows files.
_fallocate = c_function(
    ("fallocate64", "fallocate"), ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64
)


def reserve_blocks(fd: int, start: int, stop: int) -> None:
    """Reserve blocks for a range of a file; its size and content stay the same.

    Where the file system cannot do that, nothing happens.

    - Raises OSError if there is no room (ENOSPC, EDQUOT), or a file may not be so large (EFBIG).
    """
    if _fallocate is None or start >= stop:
        return
    while _fallocate(fd, _KEEP_SIZE, start, stop - start):
        number = ctypes.get_errno()
        if number in _CANNOT:
            return
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def telling_room_for(nbytes: int, key: str) -> Iterator[None]:
    """Say how much room it takes to write an object anew, where a full disk has none."""
    try:
        yield
    except StoreError as error:
        if error.errno not in NO_ROOM:
            raise
        message = (
            f"{error.message}. To write {key!r} anew takes {nbytes:,} bytes: free as many, and "
            "make the same call again"
        )
        raise StoreError(message, key=key, errno=error.errno) from error


def keep_room(path: Path) -> None:
    """Keep room in a file for whoever gives up what it is the record of."""
    with as_store_error(str(path), "cannot keep room for giving up in"):
        fd = open_plain(path, os.O_WRONLY)
        try:
            end = os.fstat(fd).st_size
            try:
                reserve_blocks(fd, end, end + _KEPT_NBYTES)
            except OSError as error:
                if error.errno != errno.EFBIG:  # where no file may be so large, none is kept
                    raise
        finally:
            os.close(fd)


def give_room(path: Path) -> None:
    """Give back the room that a file keeps; the file may be missing."""
    with as_store_error(str(path), "cannot take the room that is kept in"):
        try:
            fd = open_plain(path, os.O_WRONLY)
        except FileNotFoundError:
            return
        try:
            os.ftruncate(fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)


# ---- Modification of an object in place


class PosixEditor(ObjectEditor):
    """A file that is modified in place."""

    def __init__(self, key: str, path: str | os.PathLike[str]) -> None:
        self._key = key
        self._only_appends = False
        with as_store_error(key, "cannot open"):
            try:
                self._fd = open_plain(path, os.O_RDWR)
            except PermissionError as error:
                if error.errno != errno.EPERM:
                    raise
                self._fd = open_plain(path, os.O_WRONLY | os.O_APPEND)  # see `chattr +a`
                self._only_appends = True

    def write_at(self, offset: int, data: Any) -> None:
        """See :meth:`ObjectEditor.write_at`; where the system only appends, it must be the end."""
        with as_store_error(self._key, "cannot write"):
            if self._only_appends and offset != os.fstat(self._fd).st_size:
                raise self._no_append()
            pwrite_all(self._fd, data, offset)

    def check_version(self, version: Any) -> None:
        """See :meth:`ObjectEditor.check_version`."""
        with as_store_error(self._key, "cannot look at"):
            facts = os.fstat(self._fd)
        if version_in(facts) != version:
            raise changed_meanwhile(self._key)

    def reserve(self, spans: Iterable[tuple[int, int]]) -> None:
        """See :meth:`ObjectEditor.reserve`."""
        with as_store_error(self._key, "cannot reserve room in"):
            nbytes = os.fstat(self._fd).st_size
            sequence = sorted(spans)
            if self._only_appends and sequence and sequence[0][0] < nbytes:
                raise self._no_append()
            begun = end = 0
            try:
                for start, stop in sequence:
                    if start > end:
                        reserve_blocks(self._fd, begun, end)
                        begun = start
                    end = max(end, stop)
                reserve_blocks(self._fd, begun, end)
            except BaseException:
                self.cut(nbytes)  # gives back what was reserved
                raise

    def cut(self, nbytes: int) -> None:
        """See :meth:`ObjectEditor.cut`."""
        with as_store_error(self._key, "cannot cut back"):
            if self._only_appends and os.fstat(self._fd).st_size <= nbytes:
                return
            os.ftruncate(self._fd, nbytes)

    def _no_append(self) -> StoreError:
        return StoreError(
            f"the system lets only append to {self._key!r}, and this would write into it. Give "
            "strategy=AppendOnly(in_place=True) if the index lies at the end, or let the file be "
            "written to (chattr -a)",
            key=self._key,
            errno=errno.EPERM,
        )

    def sync(self) -> None:
        """See :meth:`ObjectEditor.sync`."""
        with as_store_error(self._key, "cannot sync"):
            os.fsync(self._fd)

    def __enter__(self) -> PosixEditor:
        return self

    def __exit__(self, *exc_info: object) -> None:
        fd, self._fd = self._fd, -1
        if exc_info[0] is None:
            with as_store_error(self._key, "cannot close"):
                os.close(fd)
        else:
            os.close(fd)
