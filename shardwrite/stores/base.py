"""Protocols that a store implements for the writer and the readers, independently of Zarr.

Every store holds whole objects by key, of which ranges can be read. What only some stores can do is
a `Capability`. The methods of a capability have a default here, which refuses, and all others that
some stores need have one that does nothing. So a store that derives from these protocols implements
only what it has. An operation asks by :func:`require` before it begins.

To add a store, derive from `WholeStore` (in `whole`) if it puts each object in one call, else from
`Store`. Then run `check_store` (in `contract`) on it.
"""

from __future__ import annotations

import enum
import errno
import os
import threading
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError, StoreError
from shardwrite.stores.removal import Proof

# ---- Capabilities


class Capability(enum.Enum):
    """Something that a store may promise.

    The text of each member completes the sentence "this store cannot ...". The remedy says what a
    user can do instead.
    """

    ATOMIC = (
        "replace an object in one step, so that no reader ever sees a part of it",
        "write to a directory or to a bucket",
    )
    DURABLE = (
        "promise that an object survives a power cut",
        'give durability="none"',
    )
    SHARED = (
        "be used by several processes",
        "use dask's threads, or write to a directory or a bucket",
    )
    SNAPSHOT = (
        "keep an open object readable when it is replaced",
        "write while nobody reads, or to a directory",
    )
    PATCH = (
        "overwrite bytes of an object that is being written",
        'give index_location="end"',
    )
    SKIP = (
        "leave gaps in an object",
        "choose a strategy without gaps",
    )
    COPY = (
        "copy a range of one object into another",
        "choose a strategy that replaces whole shards",
    )
    EDIT = (
        "modify an object in place",
        "leave out in_place=True, so that whole shards are replaced",
    )
    EXCLUSIVE = (
        "create an object only if it is missing",
        "keep what must be created once in a directory",
    )
    CONDITIONAL = (
        "replace an object only if it is the version that was read",
        "see to it that no other program changes the array meanwhile",
    )

    def __init__(self, cannot: str, remedy: str) -> None:
        self.cannot = cannot
        self.remedy = remedy


def require(
    store: Store,
    capability: Capability,
    *,
    field: str,
    value: object,
    remedy: str | None = None,
) -> None:
    """Verify that a store has a capability.

    Parameters
    ----------
    store : Store
        The store.
    capability : Capability
        What the operation needs.
    field, value : str, object
        Argument of the operation that needs it, for instance ``"strategy"`` and
        ``AppendOnly(in_place=True)``.
    remedy : str, optional
        What the user can do instead. By default it is that of the capability.

    Raises
    ------
    SpecError
        If the store lacks the capability. The message names both the capability and the remedy.
    """
    if capability not in store.capabilities:
        raise SpecError(
            f"{type(store).__name__} cannot {capability.cannot} ({capability.name})",
            field=field,
            value=value,
            remedy=remedy or capability.remedy,
        )


# ---- Tokens that tell the stores of one process apart


_lock = threading.RLock()

_tokens: dict[tuple[int, int], str] = {}


def token_of(owner: object) -> str:
    """Text that no other object has, in any process, as long as `owner` lives and after it.

    The identity of an object will not do, because it is used again when the object is gone.
    """
    key = os.getpid(), id(owner)  # a forked process has another copy of the object
    with _lock:
        if key not in _tokens:
            _tokens[key] = uuid.uuid4().hex
            weakref.finalize(owner, _tokens.pop, key, None)
        return _tokens[key]


# ---- Keys of objects


_NOT_PLAIN = frozenset(("", ".", ".."))


def is_plain_key(key: str) -> bool:
    """Whether a key stays inside the store: it is a relative path of plain names."""
    return bool(key) and "\0" not in key and _NOT_PLAIN.isdisjoint(key.split("/"))


def check_key(key: str) -> str:
    """Verify that a key stays inside the store, and return it."""
    if not is_plain_key(key):
        raise StoreError(
            f"key {key!r} is not a relative path of plain names", key=key, errno=errno.EINVAL
        )
    return key


def check_prefix(prefix: str) -> str:
    """Verify that a prefix is empty, or is a key that is followed by a slash, and return it."""
    if prefix:
        if not prefix.endswith("/"):
            raise StoreError(
                f"prefix {prefix!r} does not end in a slash", key=prefix, errno=errno.EINVAL
            )
        check_key(prefix[:-1])
    return prefix


def _refusal(thing: object, capability: Capability, key: str = "") -> StoreError:
    message = f"{type(thing).__name__} cannot {capability.cannot}; {capability.remedy}"
    return StoreError(message, key=key, errno=errno.EOPNOTSUPP)


def changed_meanwhile(key: str) -> StoreError:
    """The error that an object is not the version any more that was read."""
    message = f"{key!r} was changed by another writer meanwhile"
    return StoreError(message, key=key, errno=errno.ESTALE)


# ---- Protocols of objects and stores


class ObjectReader(Protocol):
    """An object that is open for reading.

    With `Capability.SNAPSHOT`, it stays what it was when it was opened, even if it is replaced.
    Otherwise a caller that reads several ranges compares versions afterwards.
    """

    nbytes: int
    version: Any
    """Equals :meth:`Store.version` of the key until the object is replaced or modified."""
    identity: Any = None
    """Value that the object has in no other state, so that what was read of it can be kept.

    None if changes could leave all that the storage tells of it the same.
    """
    is_distant: bool = False
    """Whether each read is a request over a network, so that few large ones are quicker."""
    is_shared: bool = False
    """Whether several threads may read it at the same time, although it is not distant."""
    held: tuple[int, int] = (0, 0)
    """First byte that is in memory since a request before, and the byte after the last."""

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read exactly `nbytes` bytes from byte `offset` on.

        Raises
        ------
        StoreError
            If the object ends too early or cannot be read.
        """

    def release(self) -> None:
        """Forget the bytes that are `held`, which nobody needs any more."""
        return

    def check_same(self) -> None:
        """Verify that all bytes that were read are of one version, where requests name none.

        Raises
        ------
        StoreError
            With `errno` ESTALE, if they may be of several.
        """
        return

    def has_other_names(self) -> bool:
        """Whether it is a file with hard links, so that a change would show at all its names."""
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return


class ObjectWriter(Protocol):
    """An object that is being written; it is invisible until :meth:`finish` publishes it."""

    def write(self, buffers: Sequence[Any]) -> int:
        """Append buffers of bytes, and return the number of bytes written.

        The caller may reuse the buffers afterwards.
        """

    def finish(self, guard: Callable[[], None] | None = None) -> None:
        """Publish the complete object with the durability of the transaction.

        With ``"batch"``, and after :meth:`Transaction.overlap`, the object may become visible only
        when the transaction ends.

        Parameters
        ----------
        guard : callable, optional
            Called right before the object becomes visible; an exception from it prevents that.
        """

    def abort(self) -> None:
        """Discard the object, and remove everything written for it."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Overwrite bytes that were appended before, from byte `offset` on (`PATCH`)."""
        raise _refusal(self, Capability.PATCH)

    def expect(self, version: Any) -> None:
        """Publish the object only if it replaces this version, in one step (`CONDITIONAL`).

        Otherwise :meth:`finish` raises a StoreError with `errno` ESTALE. With None, there must be
        no object.
        """
        raise _refusal(self, Capability.CONDITIONAL)

    def skip(self, nbytes: int) -> None:
        """Append a gap of `nbytes` bytes that read as zeros (`SKIP`), as a hole where it can."""
        raise _refusal(self, Capability.SKIP)

    def copy(self, reader: Any, offset: int, nbytes: int) -> None:
        """Append bytes of an object of the same store, not through this process (`COPY`)."""
        raise _refusal(self, Capability.COPY)

    has_permissions: bool = False
    """Whether programs can be kept from writing to the object, by `protect`."""

    def protect(self, is_protected: bool | None) -> None:
        """Say who may write to the object, where objects have permissions.

        Parameters
        ----------
        is_protected : bool or None
            True publishes the object without permission to write, and False with that of its owner.
            None leaves that to the object that it replaces.
        """
        return

    def describe(self, name: str, value: str) -> None:
        """Give the object an entry of metadata, where objects of the store have such.

        Metadata are hints for people: nothing relies on them.
        """
        return


class Transaction(Protocol):
    """Objects that one task writes together.

    The end of the ``with`` block aborts objects that are not finished. If an exception ends it, so
    are objects that are finished but not visible yet.
    """

    committed: set[str]
    """Keys of the objects that are visible with the requested durability."""

    def create(self, key: str) -> ObjectWriter:
        """Start to write an object."""

    def remove(self, key: str, guard: Callable[[], None] | None = None) -> None:
        """Remove an object immediately, with the durability of the transaction.

        A missing object is not an error. `guard` works as in :meth:`ObjectWriter.finish`.

        Raises
        ------
        StoreError
            If the transaction has no proof that the object belongs to the run (`Proof.names`).
            A store of files also refuses if the directory of the run is gone.
        """

    def overlap(self, n_at_once: int) -> None:
        """Let `finish` return before an object is visible, for so many objects at a time.

        An object that cannot be finished is then an error of a later `finish`, or of the end of the
        ``with`` block. Stores that answer late, because a network lies between, do so. A directory
        makes a few objects visible together, and calls the guard of the transaction once for them.
        """
        return

    def flush(self) -> None:
        """Make finished objects visible that only wait for more of them."""
        return

    def expect_nbytes(self, most_nbytes: int) -> None:
        """Say how large the largest object may become, in bytes."""
        return

    def changes(self) -> Any:
        """What was changed in another process, for :meth:`Store.take`; None if nothing waits."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None: ...


class ObjectEditor(Protocol):
    """An existing object that is modified in place; readers see every step."""

    def write_at(self, offset: int, data: Any) -> None:
        """Write bytes from byte `offset` on; the range may extend beyond the end of the object."""

    def check_version(self, version: Any) -> None:
        """Verify that the object still has the version that a reader saw.

        Raises
        ------
        StoreError
            With `errno` ESTALE, if the object was replaced or modified.
        """

    def reserve(self, spans: Iterable[tuple[int, int]]) -> None:
        """Reserve room for byte ranges, where the storage can; readers see no difference.

        Raises
        ------
        StoreError
            With `errno` ENOSPC, EDQUOT or EFBIG, if there is no room.
        """

    def cut(self, nbytes: int) -> None:
        """Remove all bytes from byte `nbytes` on, and what is reserved there."""

    def sync(self) -> None:
        """Make all changes durable."""

    def __enter__(self) -> ObjectEditor: ...

    def __exit__(self, *exc_info: object) -> None: ...


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Facts about an array in a file that its Zarr document does not tell."""

    notes: tuple[str, ...] = ()  # what a user should know of it
    why_decoded: str = ""  # why no chunk can be copied; empty if chunks can
    # Number of chunks that are decoded and re-encoded, although others are copied
    n_decoded: int = 0
    why_some: str = ""  # why they are
    # Array of its values, with `shape`, `dtype`, `chunks` and `identity`, that can be indexed. They
    # are read in another way than chunks are, so that the two can be compared.
    values: Any = None


@runtime_checkable
class Store(Protocol):
    """Objects by key, with the methods of all capabilities; with `SHARED`, it can be pickled.

    Keys are relative paths of plain names (`check_key`).
    """

    capabilities: frozenset[Capability]

    has_mtime: bool = False
    """Whether objects are files, whose file system notes when each of them was changed."""

    lists: bool = True
    """Whether the keys of its objects can be listed, which a web server cannot do."""

    is_distant: bool = False
    """Whether a network lies between, so that many reads at a time are quicker."""

    keeps_state: bool = False
    """Whether the state of runs lies in the store, if a user names no directory for it.

    Such a store has `EXCLUSIVE` and `CONDITIONAL`, and all processes see the same objects.
    """

    commits_later: bool = False
    """Whether nobody sees the objects before a commit, which is made after the runs.

    The document of an array is put before its shards, and other processes hand their changes over.
    """

    def open(self, key: str) -> ObjectReader | None:
        """Open an object for reading; None if it is missing."""

    def open_again(self, key: str) -> ObjectReader | None:
        """Open an object whose bytes were wrong, and read them from the storage again.

        What this machine has kept of the object is dropped first: pages of a file in the cache of
        the system, or the answer to an earlier request.
        """
        return self.open(key)

    def open_for(
        self, key: str, first: int, identity: Any = None, *, whole_nbytes: int = 0
    ) -> ObjectReader | None:
        """Open an object as `open` does, with what saves requests where they go over a network.

        Parameters
        ----------
        first : int
            Number of bytes that will be read first: at the start of the object, or at its end if
            the number is negative. 0 if that is not known.
        identity : object, optional
            Identity of the object as it was seen before. If it has changed, reading raises a
            StoreError with `errno` ESTALE, or the reader has another one. With an identity,
            nothing need be read first.
        whole_nbytes : int
            Most bytes that the object can have, if all of it is wanted; otherwise 0. A store may
            read it whole then, by the first request, if that is no larger than the setting
            ``shardwrite.read.request-size``.
        """
        return self.open(key)

    def version(self, key: str) -> Any:
        """Value that changes whenever an object is replaced or modified; None if it is missing."""

    def size(self, key: str) -> int | None:
        """Size of an object in bytes; None if it is missing."""
        reader = self.open(key)
        if reader is None:
            return None
        with reader:
            return reader.nbytes

    def has(self, key: str) -> bool:
        """Whether an object is there."""
        return self.size(key) is not None

    def read_whole(self, key: str, most_nbytes: int) -> bytes | None:
        """Bytes of an object; None if it is missing.

        Of an object of more than `most_nbytes` bytes, one byte more than that is read, so that the
        caller can tell.
        """
        reader = self.open(key)
        if reader is None:
            return None
        with reader:
            return reader.read(0, min(reader.nbytes, most_nbytes + 1))

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """Keys of all visible objects below `prefix`, which is empty or ends in a slash."""

    def sync(self, key: str) -> None:
        """Make an object durable that is there; where objects are durable at once, do nothing."""
        return

    def change_time(self, key: str) -> int:
        """Time at which a file was changed, replaced or renamed, in nanoseconds; 0 if it is gone.

        Programs cannot set it, as those do that copy files with their times.
        """
        raise TypeError(f"{self!r} has no files, of which {key!r} would be one")

    def transaction(
        self,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None = None,
        *,
        proof: Proof | None = None,
        is_fresh: bool = False,
    ) -> Transaction:
        """Start a transaction, which writes and removes objects.

        Parameters
        ----------
        durability : str
            One of `DURABILITIES`; a level that the store cannot promise is refused by `require`.
        attempt : str
            Text ``<scope>.<name>`` that makes the names of temporaries unique. No directory of
            the store may be removed while a scope is in use.
        guard : callable, optional
            Called right before objects become visible; an exception from it prevents that.
        proof : Proof, optional
            Proof that the objects belong to the run. It is required to remove objects.
        is_fresh : bool
            Promise that none of the objects exists yet, so the store need not check. Otherwise
            an object that replaces another takes its mode and group. A store that can
            (`CONDITIONAL`) replaces an object that is there after all only if the guards still
            hold then.
        """

    @property
    def loses_changes(self) -> bool:
        """Whether an update may replace, without an error, what others have just written.

        It may in buckets without conditions (`CONDITIONAL`), unless `exclusively` was called.
        """
        return False

    def exclusively(self) -> Store:
        """The store as one that nobody else writes to meanwhile, as the user has promised."""
        return self

    def check_writable(self) -> None:
        """Verify that the store can be written at all.

        Raises
        ------
        SpecError
            If it is only read, such as a web server.
        """
        return

    def check_new_key(self, key: str) -> None:
        """Verify before a run that a shard can have such a key.

        Raises
        ------
        SpecError
            If it cannot.
        """
        return

    def check_no_links(self, keys: Iterable[str], *, are_whole: bool) -> None:
        """Verify before an update that no links stand where objects are to be changed.

        Parameters
        ----------
        keys : iterable of str
            Keys of the objects, of which some may be missing.
        are_whole : bool
            Whether the objects are replaced as a whole. A link in the place of one is then
            replaced, too, and only those among the directories above it are refused.

        Raises
        ------
        StoreError
            With `errno` ELOOP, if there is one.
        """
        return

    def take(self, changes: Any) -> None:
        """Take over what a task in another process has changed; see :meth:`Transaction.changes`."""
        raise TypeError(f"{self!r} takes no changes: {changes!r}")

    @property
    def is_in_memory(self) -> bool:
        """Whether the objects are gone when the process ends."""
        return False

    @property
    def local_root(self) -> Path | None:
        """Directory of this machine that holds the objects, if it is known."""
        return None

    @property
    def owner(self) -> object:
        """Object that lives as long as the objects of the store, if they lie in memory."""
        return self

    @property
    def token(self) -> str:
        """Text that two stores share only if they hold the same objects, in any process.

        A store whose objects outlive a process overrides it, so that runs can be resumed.
        """
        return token_of(self.owner)

    @property
    def url(self) -> str | None:
        """URL of the objects, without credentials, if they have one."""
        return None

    def url_of(self, key: str) -> str | None:
        """URL of an object, without credentials; None if others cannot find it by one."""
        if self.is_in_memory:
            return None
        if self.url is not None:
            return f"{self.url.rstrip('/')}/{key}"
        root = None if self.is_in_file else self.local_root
        prefix = getattr(self, "prefix", "")
        return None if root is None else Path(os.path.abspath(root / f"{prefix}{key}")).as_uri()

    @property
    def put_limit(self) -> int | None:
        """Size in bytes of the largest object that can be put; None if there is no limit."""
        return None

    @property
    def scratch(self) -> str | None:
        """Directory on this machine's own disk in which shards wait until they are put.

        None if they wait in memory, or nowhere.
        """
        return None

    def held_nbytes(self, most_nbytes: int) -> int:
        """Memory that an object takes, beside its pieces, until the store has it, in bytes.

        Parameters
        ----------
        most_nbytes : int
            See :meth:`Transaction.expect_nbytes`.
        """
        return 0

    def prepare(self) -> None:
        """Find out before a run whether the store can be written, and what it can do.

        A store whose `capabilities` depend on a service tries them here.

        Raises
        ------
        StoreError
            If nothing can be written or removed. The message says what to set.
        """
        return

    def check_nbytes(self, most_nbytes: int, *, exists: bool = False) -> None:
        """Verify before a run that objects of this size can be put.

        Parameters
        ----------
        most_nbytes : int
            See :meth:`Transaction.expect_nbytes`.
        exists : bool
            Whether they are shards of an array that exists, so that their shape is given.

        Raises
        ------
        SpecError
            If they cannot. The message says what to do.
        """
        return

    def via(self, directory: str) -> Store:
        """The store as one whose shards wait in a directory until they are put, if they wait."""
        return self

    @property
    def is_in_file(self) -> bool:
        """Whether all objects are parts of one file, which is only read."""
        return False

    @property
    def local_path(self) -> Path | None:
        """Directory or file of this machine that holds the objects, if it is known."""
        return self.local_root

    def copy_limits(self) -> CopyLimits:
        """Facts about the array that the store has, if its document does not tell all."""
        return CopyLimits()

    def nodes(self) -> Sequence[tuple[str, str]] | None:
        """Paths and kinds (``"group"`` or ``"array"``) of all nodes, each after the one above it.

        None if the documents of the nodes are to be looked for.
        """
        return None

    def left_out(self) -> Sequence[tuple[str, str]]:
        """Paths of what the store knows and gives no objects for, and why."""
        return ()

    def check_sizes(self, most_of: Callable[[str], int | None]) -> None:
        """Compare what objects claim of their sizes with the metadata of their array.

        Parameters
        ----------
        most_of : callable
            Function of the key of an object that returns its largest possible size in bytes; None
            if it holds no chunks.

        Raises
        ------
        CorruptShardError
            If an object claims more.
        """
        return

    def at(self, path: str) -> Store:
        """Store of the objects below a path; their keys are relative to it."""

    def whole(self) -> tuple[Store, str]:
        """The storage from its top, as far as it can be reached, and the path of this store in it.

        It makes no request. Groups above what a user has opened are found there.
        """
        return self, ""

    def create_new(self, key: str, data: bytes) -> bool:
        """Put an object unless there is one, and return whether it was put (`EXCLUSIVE`).

        Of several processes that try at once, one succeeds. Each must give other `data`.
        """
        raise _refusal(self, Capability.EXCLUSIVE, key)

    def edit(self, key: str) -> ObjectEditor:
        """Open an existing object to modify it in place (`EDIT`)."""
        raise _refusal(self, Capability.EDIT, key)

    def discard_scope(self, key: str, scope: str) -> None:
        """Remove the temporaries of an object that all attempts of a scope have left behind.

        An empty scope stands for all of them.
        """
        return

    def discard_temporary(self, key: str, attempt: str) -> bool:
        """Remove the temporary of one attempt at an object, and return whether there was one."""
        return False


COPIED_NBYTES = 4 * 2**20
"""Bytes that `copy_bytes` has in memory at a time."""


def open_there(store: Store, key: str) -> ObjectReader:
    """Open an object that must be there."""
    reader = store.open(key)
    if reader is None:
        raise StoreError(f"{key!r} is gone", key=key, errno=errno.ENOENT)
    return reader


def copy_bytes(
    read: Callable[[int, int], Any],
    writer: ObjectWriter,
    nbytes: int,
    offset: int = 0,
    *,
    piece_nbytes: int = COPIED_NBYTES,
) -> None:
    """Append `nbytes` bytes of what `read` reads, from `offset` on, to an object.

    The objects may lie in different stores.
    """
    end = offset + nbytes
    for start in range(offset, end, piece_nbytes):
        writer.write([read(start, min(piece_nbytes, end - start))])


# ---- Reads that were made again, because the bytes of the first cannot have been right


_rereads_lock = threading.Lock()
_rereads: Counter[str] = Counter()  # by the token of the store


def take_n_reread(token: str) -> int:
    """Number of reads of a store that this process has made again since the last call."""
    with _rereads_lock:
        return _rereads.pop(token, 0)


def count_reread(token: str) -> None:
    """Count a read of a store that is made again."""
    with _rereads_lock:
        _rereads[token] += 1
