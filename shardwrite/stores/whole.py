"""Base of stores that put each object whole, in one call."""

from __future__ import annotations

import errno
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from shardwrite.errors import StoreError
from shardwrite.stores.base import ObjectReader, ObjectWriter, Store, Transaction
from shardwrite.stores.capabilities import Capability, require
from shardwrite.stores.in_flight import InFlight
from shardwrite.stores.keys import check_key, check_prefix
from shardwrite.stores.removal import Proof
from shardwrite.stores.tokens import token_of

__all__ = ["SnapshotReader", "WholeStore", "WholeTransaction", "WholeWriter"]


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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prefix})"

    @property
    def token(self) -> str:
        """See :attr:`Store.token`."""
        return f"{token_of(self.owner)}/{self.prefix}"

    def open(self, key: str) -> ObjectReader | None:
        """See :meth:`Readable.open`."""
        return self.open_object(self.prefix + check_key(key))

    def version(self, key: str) -> Any:
        """See :meth:`Readable.version`."""
        return self.version_of_object(self.prefix + check_key(key))

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """See :meth:`Readable.list_keys`."""
        for name in self.list_names(self.prefix + check_prefix(prefix)):
            yield name.removeprefix(self.prefix)

    def at(self, path: str) -> Self:
        """See :meth:`Store.at`."""
        below = object.__new__(type(self))
        vars(below).update(vars(self))
        below.prefix = f"{self.prefix}{check_key(path)}/" if path else self.prefix
        return below

    def transaction(
        self,
        durability: str,
        attempt: str,  # noqa: ARG002 (there are no temporaries)
        guard: Callable[[], None] | None = None,
        *,
        proof: Proof | None = None,
        is_fresh: bool = False,
    ) -> WholeTransaction:
        """See :meth:`Writable.transaction`."""
        if durability != "none":
            require(self, Capability.DURABLE, field="durability", value=durability)
        return WholeTransaction(self, guard, proof, is_fresh=is_fresh)


class WholeTransaction(Transaction):
    """Objects that are put as they are finished, one by one or a few at a time."""

    def __init__(
        self,
        store: WholeStore,
        guard: Callable[[], None] | None,
        proof: Proof | None,
        *,
        is_fresh: bool,
    ) -> None:
        self.store = store
        self.is_fresh = is_fresh
        self.committed: set[str] = set()
        self._guard = guard
        self._proof = proof
        self._writers: list[WholeWriter] = []
        self._in_flight: InFlight | None = None

    def overlap(self, n_at_once: int) -> None:
        """See :class:`Overlapping`; of no effect if the store is not remote."""
        if self.store.is_remote:
            self._in_flight = InFlight(n_at_once)

    def create(self, key: str) -> WholeWriter:
        """See :meth:`Transaction.create`."""
        self._writers.append(WholeWriter(self, check_key(key)))
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

    def __enter__(self) -> Self:
        return self

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


class WholeWriter(ObjectWriter):
    """An object that grows in memory."""

    def __init__(self, transaction: WholeTransaction, key: str) -> None:
        self._transaction = transaction
        self._key = key
        self._data: bytearray | None = bytearray()
        self._expected: tuple[Any] | None = None

    def write(self, buffers: Sequence[Any]) -> int:
        """See :meth:`ObjectWriter.write`."""
        data = self._open_data()
        start = len(data)
        for buffer in buffers:
            data += memoryview(buffer)  # not the buffer itself, which may be a numpy array
        return len(data) - start

    def write_at(self, offset: int, data: bytes) -> None:
        """See :meth:`ObjectWriter.write_at`."""
        memoryview(self._open_data())[offset : offset + len(data)] = data

    def skip(self, nbytes: int) -> None:
        """See :meth:`ObjectWriter.skip`."""
        self._open_data().extend(bytes(nbytes))

    def copy(self, reader: ObjectReader, offset: int, nbytes: int) -> None:
        """See :meth:`ObjectWriter.copy`."""
        self.write([reader.read(offset, nbytes)])

    def expect(self, version: Any) -> None:
        """See :meth:`ObjectWriter.expect`."""
        if Capability.CONDITIONAL not in self._transaction.store.capabilities:
            super().expect(version)
        self._expected = (version,)

    def finish(self, guard: Callable[[], None] | None = None) -> None:
        """See :meth:`ObjectWriter.finish`."""
        data = self._open_data()
        self._transaction.check(guard)
        self._data = None
        self._transaction.put(lambda: self._put(data, guard))

    def _put(self, data: bytearray, guard: Callable[[], None] | None) -> None:
        store = self._transaction.store
        name = store.prefix + self._key
        if self._expected is not None:
            store.replace_object(name, data, *self._expected)
        elif self._transaction.is_fresh and Capability.CONDITIONAL in store.capabilities:
            self._put_first(name, data, guard)
        else:
            store.put_object(name, data)
        self._transaction.committed.add(self._key)

    def _put_first(self, name: str, data: bytearray, guard: Callable[[], None] | None) -> None:
        """Put an object where there should be none.

        If there is one, an interrupted attempt has left it, or another process has taken over. The
        guard tells which. A process that is frozen before its request replaces nothing of others.
        """
        store = self._transaction.store
        try:
            store.replace_object(name, data, None)
        except StoreError as error:
            if error.errno != errno.ESTALE:
                raise
            version = store.version_of_object(name)
            self._transaction.check(guard)
            store.replace_object(name, data, version)

    def abort(self) -> None:
        """See :meth:`ObjectWriter.abort`."""
        self._data = None

    def _open_data(self) -> bytearray:
        if self._data is None:
            raise StoreError(f"{self._key!r} is not being written", key=self._key)
        return self._data


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None: ...
