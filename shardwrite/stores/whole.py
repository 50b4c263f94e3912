"""Base of stores that put each object whole, in one call."""

from __future__ import annotations

import errno
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardwrite.errors import StoreError
from shardwrite.stores.base import (
    Capability,
    ObjectReader,
    ObjectWriter,
    Store,
    Transaction,
    check_key,
    check_prefix,
    copy_bytes,
    require,
    token_of,
)
from shardwrite.stores.removal import Proof

__all__ = ["SnapshotReader", "WholeStore"]


# ---- Requests that go on while their task does


class InFlight:
    """A few requests at a time, each in a thread of its own.

    The answer of a service takes long compared with the work for a small shard. So a task does not
    wait for it, but goes on with the next shards.

    One thread uses it. An error of a request is raised by the next call of `begin` or `join`; only
    the first one is, and no request is begun after it.
    """

    def __init__(self, n_at_once: int) -> None:
        self._n_at_once = n_at_once
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: set[Future[None]] = set()
        self._error: BaseException | None = None

    def begin(self, request: Callable[[], None]) -> None:
        """Begin a request, as soon as there are fewer than `n_at_once` on their way."""
        while len(self._waiting) >= self._n_at_once:
            self._take(wait(self._waiting, return_when=FIRST_COMPLETED).done)
        self._take({request for request in self._waiting if request.done()})
        self._raise()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._n_at_once, thread_name_prefix="shardwrite-put")
        self._waiting.add(self._pool.submit(request))

    def join(self, *, quiet: bool = False) -> None:
        """Wait for all requests."""
        self._take(wait(self._waiting).done)
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        if not quiet:
            self._raise()

    def _take(self, done: set[Future[None]]) -> None:
        self._waiting -= done
        for request in done:
            self._error = self._error or request.exception()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


# ---- Transactions


COPIED_AT_ONCE_NBYTES = 16 * 2**20
"""Bytes of an old object that are in memory at a time while they are copied."""


# numpy asks for large pages from this size on
_LEAST_ROOM_NBYTES = 4 * 2**20


class WholeTransaction(Transaction):
    """Objects that are put as they are finished, one by one or a few at a time."""

    def __init__(
        self,
        store: WholeStore,
        guard: Callable[[], None] | None,
        proof: Proof | None,
        *,
        is_fresh: bool = False,
    ) -> None:
        self.store = store
        self.is_fresh = is_fresh
        self.committed: set[str] = set()
        self.most_nbytes = 0
        self._guard = guard
        self._proof = proof
        self._writers: list[WholeWriter] = []
        self._in_flight: InFlight | None = None

    def overlap(self, n_at_once: int) -> None:
        """See :meth:`Transaction.overlap`; of no effect if the store is not remote."""
        if self.store.is_remote:
            self._in_flight = InFlight(n_at_once)

    def expect_nbytes(self, most_nbytes: int) -> None:
        """See :meth:`Transaction.expect_nbytes`."""
        self.most_nbytes = most_nbytes

    def create(self, key: str) -> WholeWriter:
        """See :meth:`Transaction.create`."""
        self._writers.append(self.store.writer(self, check_key(key)))
        return self._writers[-1]

    def remove(self, key: str, guard: Callable[[], None] | None = None) -> None:
        """See :meth:`Transaction.remove`."""
        if self._proof is None or not self._proof.names(check_key(key)):
            raise StoreError(
                f"{key!r} is not removed: nothing says that it is the run's own",
                key=key,
                errno=errno.EPERM,
            )
        self.check(guard)
        self.store.remove_object(self.store.prefix + key)

    def check(self, guard: Callable[[], None] | None) -> None:
        """Call the guards of the transaction and of an object."""
        for check in (self._guard, guard):
            if check is not None:
                check()

    def __exit__(self, *exc_info: object) -> None:
        for writer in self._writers:
            writer.abort()
        if self._in_flight is not None:
            self._in_flight.join(quiet=exc_info[0] is not None)

    def put(self, put: Callable[[], None]) -> None:
        """Put an object by calling a function, at once or while the task goes on."""
        if self._in_flight is None:
            put()
        else:
            self._in_flight.begin(put)


class Room:
    """Memory for an object whose largest size is known.

    The system gives large pages for it, if it can. With small ones, it takes longer to give them
    than to write to them. What is not written to takes no memory.
    """

    def __init__(self, most_nbytes: int) -> None:
        self._memory: npt.NDArray[np.uint8] = np.empty(most_nbytes, np.uint8)
        self._nbytes = 0

    def __len__(self) -> int:
        return self._nbytes

    def __iadd__(self, data: memoryview) -> Room | bytearray:
        """Append bytes; if there is no room for them, all bytes move to memory that grows."""
        end = self._nbytes + data.nbytes
        if end > self._memory.nbytes:
            return bytearray(self.view) + data
        if data.nbytes:  # numpy takes no empty buffer
            self._memory[self._nbytes : end] = np.frombuffer(data, np.uint8)
        self._nbytes = end
        return self

    @property
    def view(self) -> memoryview:
        """What was written."""
        return self._memory[: self._nbytes].data


class WholeWriter(ObjectWriter):
    """An object that grows in memory."""

    def __init__(self, transaction: WholeTransaction, key: str) -> None:
        self._transaction = transaction
        self._key = key
        self._data: bytearray | Room | None = bytearray()
        self._expected: tuple[Any] | None = None
        self._metadata: dict[str, str] = {}

    def write(self, buffers: Sequence[Any]) -> int:
        """See :meth:`ObjectWriter.write`."""
        data: Any = self._open_data()
        start = len(data)
        for buffer in buffers:
            data += memoryview(buffer)  # not the buffer itself, which may be a numpy array
        self._data = data
        return len(data) - start

    def reserve(self, nbytes: int) -> None:
        """Say how large the object may be, in bytes, before anything is written."""
        if nbytes >= _LEAST_ROOM_NBYTES:
            self._data = Room(nbytes)

    def write_at(self, offset: int, data: bytes) -> None:
        """See :meth:`ObjectWriter.write_at`."""
        written = self._open_data()
        view = written.view if isinstance(written, Room) else memoryview(written)
        view[offset : offset + len(data)] = data

    def skip(self, nbytes: int) -> None:
        """See :meth:`ObjectWriter.skip`."""
        zeros = memoryview(bytes(min(nbytes, COPIED_AT_ONCE_NBYTES)))
        for start in range(0, nbytes, COPIED_AT_ONCE_NBYTES):
            self.write([zeros[: nbytes - start]])

    def copy(self, reader: ObjectReader, offset: int, nbytes: int) -> None:
        """See :meth:`ObjectWriter.copy`; a piece is in memory twice at a time."""
        copy_bytes(reader.read, self, nbytes, offset, piece_nbytes=COPIED_AT_ONCE_NBYTES)

    def expect(self, version: Any) -> None:
        """See :meth:`ObjectWriter.expect`."""
        if Capability.CONDITIONAL not in self._transaction.store.capabilities:
            super().expect(version)
        self._expected = (version,)

    def describe(self, name: str, value: str) -> None:
        """See :meth:`ObjectWriter.describe`."""
        self._metadata[name] = value

    def finish(self, guard: Callable[[], None] | None = None) -> None:
        """See :meth:`ObjectWriter.finish`."""
        data = self._open_data()
        self._transaction.check(guard)
        self._data = None
        whole = data.view if isinstance(data, Room) else data
        self._transaction.put(lambda: self._put(whole, guard))

    def _put(self, data: Any, guard: Callable[[], None] | None) -> None:
        """Put bytes, which may be those of a memory map."""
        store = self._transaction.store.described(self._metadata)
        name = store.prefix + self._key
        if self._expected is not None:
            store.replace_object(name, data, *self._expected)
        elif Capability.CONDITIONAL not in store.capabilities:
            store.put_object(name, data)
        elif self._transaction.is_fresh:
            # If one is there, an interrupted attempt has left it, or another process has taken
            # over, which the guard tells. A process that is frozen before its request replaces
            # nothing of others.
            try:
                store.replace_object(name, data, None)
            except StoreError as error:
                if error.errno != errno.ESTALE:
                    raise
                self._put_over(store, name, data, guard)
        else:
            self._put_over(store, name, data, guard)
        self._transaction.committed.add(self._key)

    def _put_over(
        self, store: WholeStore, name: str, data: Any, guard: Callable[[], None] | None
    ) -> None:
        """Put an object whatever stands there, which is looked at first.

        The guard is called after that. So a process that is frozen before it finds out that its run
        has ended, and one that is frozen later replaces nothing that was put meanwhile.
        """
        version = store.version_of_object(name)
        self._transaction.check(guard)
        store.replace_object(name, data, version)

    def abort(self) -> None:
        """See :meth:`ObjectWriter.abort`."""
        self._data = None

    def _open_data(self) -> Any:
        if self._data is None:
            raise StoreError(f"{self._key!r} is not being written", key=self._key)
        return self._data


# ---- The base class


class WholeStore(Store):
    """Store that puts each object whole, in one call.

    A subclass implements the five methods whose names end in ``_object`` or ``_names``. A *name* is
    a checked key with the path of the store before it. An object that is being written lies in one
    buffer in memory, which takes its encoded size; so it can be patched, and have gaps.
    """

    capabilities = frozenset({Capability.PATCH, Capability.SKIP, Capability.COPY})
    prefix = ""
    is_remote = False
    """Whether a network lies between, so that an answer takes long."""
    is_exclusive = False
    """Whether nobody else writes to the objects meanwhile."""

    @property
    def is_distant(self) -> bool:  # type: ignore[override]
        """See :attr:`Store.is_distant`."""
        return self.is_remote

    @abstractmethod
    def open_object(self, name: str) -> ObjectReader | None:
        """Open an object; None if it is missing."""

    @abstractmethod
    def version_of_object(self, name: str) -> Any:
        """Version of an object; None if it is missing."""

    @abstractmethod
    def put_object(self, name: str, data: bytearray) -> None:
        """Put an object, or replace it. The buffer belongs to the store from now on."""

    def replace_object(self, name: str, data: bytearray, version: Any) -> None:
        """Put an object if it replaces a version, or if there is none (`CONDITIONAL`).

        Raises
        ------
        StoreError
            With ESTALE, if another version stands there.
        """
        raise NotImplementedError(name, data, version)

    @abstractmethod
    def remove_object(self, name: str) -> None:
        """Remove an object, which may be missing."""

    @abstractmethod
    def list_names(self, prefix: str) -> Iterator[str]:
        """Names of all objects that begin with a prefix."""

    def changed_at(self, key: str) -> float | None:  # noqa: ARG002
        """Time at which an object was put, in seconds by the clock of the storage.

        None if it is missing, or the storage does not tell. It may be rounded to whole seconds.
        """
        return None

    def writer(self, transaction: WholeTransaction, key: str) -> WholeWriter:
        """Start to write an object of a transaction."""
        return WholeWriter(transaction, key)

    def described(self, metadata: Mapping[str, str]) -> WholeStore:  # noqa: ARG002
        """The store as one that puts objects with these metadata, if objects have any."""
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prefix})"

    @property
    def token(self) -> str:
        """See :attr:`Store.token`."""
        return f"{token_of(self.owner)}/{self.prefix}"

    def open(self, key: str) -> ObjectReader | None:
        """See :meth:`Store.open`."""
        return self.open_object(self.prefix + check_key(key))

    def version(self, key: str) -> Any:
        """See :meth:`Store.version`."""
        return self.version_of_object(self.prefix + check_key(key))

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """See :meth:`Store.list_keys`."""
        for name in self.list_names(self.prefix + check_prefix(prefix)):
            yield name.removeprefix(self.prefix)

    def at(self, path: str) -> Self:
        """See :meth:`Store.at`."""
        below = object.__new__(type(self))
        vars(below).update(vars(self))
        below.prefix = f"{self.prefix}{check_key(path)}/" if path else self.prefix
        return below

    def whole(self) -> tuple[WholeStore, str]:
        """See :meth:`Store.whole`."""
        top = self.at("")
        top.prefix = ""
        return top, self.prefix.removesuffix("/")

    def exclusively(self) -> Self:
        """See :meth:`Store.exclusively`."""
        store = self.at("")
        store.is_exclusive = True
        return store

    def transaction(
        self,
        durability: str,
        attempt: str,  # noqa: ARG002 (there are no temporaries)
        guard: Callable[[], None] | None = None,
        *,
        proof: Proof | None = None,
        is_fresh: bool = False,
    ) -> WholeTransaction:
        """See :meth:`Store.transaction`."""
        if durability != "none":
            require(self, Capability.DURABLE, field="durability", value=durability)
        return WholeTransaction(self, guard, proof, is_fresh=is_fresh)


class SnapshotReader(ObjectReader):
    """An object whose bytes are in memory."""

    def __init__(self, key: str, data: bytes | bytearray | memoryview, version: Any) -> None:
        self._key = key
        self._data = memoryview(data)
        self.nbytes = len(data)
        self.version = version

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`."""
        if offset + nbytes > self.nbytes:
            message = f"{self._key!r} ends at byte {self.nbytes}"
            raise StoreError(message, key=self._key, errno=errno.EIO)
        return bytes(self._data[offset : offset + nbytes])
