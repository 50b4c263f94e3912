"""Base of stores that put each object whole, in one call."""

from __future__ import annotations

import errno
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from shardwrite.errors import StoreError
from shardwrite.stores.base import ObjectReader, Store
from shardwrite.stores.capabilities import Capability, require
from shardwrite.stores.keys import check_key, check_prefix
from shardwrite.stores.removal import Proof
from shardwrite.stores.tokens import token_of
from shardwrite.stores.whole_transaction import WholeTransaction, WholeWriter

__all__ = ["SnapshotReader", "WholeStore"]


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

    def whole(self) -> tuple[WholeStore, str]:
        """See :meth:`Store.whole`."""
        top = self.at("")
        top.prefix = ""
        return top, self.prefix.removesuffix("/")

    @property
    def loses_changes(self) -> bool:
        """See :class:`Unguarded`."""
        return False

    def exclusively(self) -> Self:
        """See :class:`Unguarded`."""
        made = self.at("")
        made.is_exclusive = True
        return made

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
