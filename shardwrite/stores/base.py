"""Protocols that a store implements for the writer and the readers, independently of Zarr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shardwrite.stores.removal import Proof

__all__ = ["DURABILITIES", "ObjectEditor", "ObjectReader", "ObjectWriter", "Store", "Transaction"]

DURABILITIES = ("full", "batch", "none")


class ObjectWriter(Protocol):
    """An object that is being written; it is invisible until :meth:`finish` publishes it."""

    def write(self, buffers: Sequence[Any]) -> int:
        """Append buffers of bytes, and return the number of bytes written."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Overwrite bytes that were appended before, starting at byte `offset`."""

    def copy(self, reader: Any, offset: int, nbytes: int) -> None:
        """Append `nbytes` bytes of another object of the same store, from byte `offset` on.

        Where the storage allows it, the bytes do not pass through this process.
        """

    def skip(self, nbytes: int) -> None:
        """Append a gap of `nbytes` bytes that read as zeros.

        Where the storage supports holes, the gap takes no space.
        """

    def finish(self, guard: Callable[[], None] | None = None) -> None:
        """Publish the complete object with the durability of the transaction.

        With ``"batch"``, the object may become visible only when the transaction ends.

        Parameters
        ----------
        guard : callable, optional
            Called right before the object becomes visible; an exception from it prevents that.
        """

    def abort(self) -> None:
        """Discard the object, and remove everything written for it."""


class Transaction(Protocol):
    """Objects that one task writes together.

    If the ``with`` block is left by an exception, objects that are not published are aborted.
    """

    committed: set[str]
    """Keys of the objects that are visible with the requested durability."""

    def create(self, key: str) -> ObjectWriter:
        """Start to write an object."""

    def remove(self, key: str, guard: Callable[[], None] | None = None) -> None:
        """Remove an object immediately, with the durability of the transaction.

        A missing object is not an error. The object is moved into the directory of the run
        first. If another process has taken the run over, that directory is gone, and the
        object is left alone because it may belong to the other process. `guard` works as in
        :meth:`ObjectWriter.finish`.

        Raises
        ------
        StoreError
            If the transaction has no proof that the object belongs to the run, or if the
            directory of the run is gone.
        """

    def __enter__(self) -> Transaction: ...

    def __exit__(self, *exc_info: object) -> None: ...


class ObjectReader(Protocol):
    """An object that is open for reading."""

    nbytes: int
    version: Any
    """Equals :meth:`Store.version` of the key until the object is replaced or modified."""

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read exactly `nbytes` bytes from byte `offset` on.

        Raises
        ------
        StoreError
            If the object ends too early or cannot be read.
        """

    def __enter__(self) -> ObjectReader: ...

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

    def sync(self) -> None:
        """Make all changes durable."""

    def __enter__(self) -> ObjectEditor: ...

    def __exit__(self, *exc_info: object) -> None: ...


class Store(Protocol):
    """Objects by key; a store can be pickled."""

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
            One of `DURABILITIES`.
        attempt : str
            Text ``<scope>.<name>`` that makes the names of temporaries unique. No directory of
            the store may be removed while a scope is in use.
        guard : callable, optional
            Called right before objects become visible; an exception from it prevents that.
        proof : Proof, optional
            Proof that the objects belong to the run. It is required to remove objects.
        is_fresh : bool
            Promise that none of the objects exists yet, so the store need not check. Otherwise
            an object that replaces another takes its mode and group.
        """

    def discard_scope(self, key: str, scope: str) -> None:
        """Remove the temporaries of an object that all attempts of a scope have left behind."""

    def discard_temporary(self, key: str, attempt: str) -> bool:
        """Remove the temporary of one attempt at an object, and return whether there was one."""

    def edit(self, key: str) -> ObjectEditor:
        """Open an existing object to modify it in place."""

    def version(self, key: str) -> Any:
        """Value that changes whenever an object is replaced or modified; None if it is missing."""

    def open(self, key: str) -> ObjectReader | None:
        """Open an object for reading; None if it is missing."""
