"""What the writer and the readers need of a store. Nothing here knows of Zarr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from shardwrite.stores.removal import Proof

__all__ = ["DURABILITIES", "ObjectEditor", "ObjectReader", "ObjectWriter", "Store", "Transaction"]

DURABILITIES = ("full", "batch", "none")


class ObjectWriter(Protocol):
    """One object on its way: nobody sees it before `finish`."""

    def write(self, buffers: Sequence[Any]) -> int:
        """Append buffers; returns their bytes."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Write bytes into what was appended before."""

    def copy(self, reader: Any, offset: int, nbytes: int) -> None:
        """Append a range of an object that is open in the same store, without passing it through this process if possible."""

    def skip(self, nbytes: int) -> None:
        """Leave bytes free, which read as zeros and, where the storage can, take no room."""

    def finish(self, guard: Callable[[], None] | None = None) -> None:
        """Make the object visible, whole, as durably as the transaction says (with ``"batch"``, at its end).

        Parameters
        ----------
        guard : callable, optional
            Called right before that; what it raises stops it.
        """

    def abort(self) -> None:
        """Remove every trace of it."""


class Transaction(Protocol):
    """Some objects written by one task; left on an error, those not finished are aborted."""

    committed: set[str]
    """Keys of the objects that are visible, as durably as the transaction says."""

    def create(self, key: str) -> ObjectWriter:
        """Begin an object."""

    def remove(self, key: str, guard: Callable[[], None] | None = None) -> None:
        """Take an object away, at once and as durably as the transaction says; none may be there.

        It is moved into the run's directory first. Where a successor has taken that away, nothing
        happens to the object, which may be the successor's. `guard` is that of
        :meth:`ObjectWriter.finish`.

        Raises
        ------
        StoreError
            If the transaction was given no proof that the object is its own, or the directory is gone.
        """

    def __enter__(self) -> Transaction: ...

    def __exit__(self, *exc_info: object) -> None: ...


class ObjectReader(Protocol):
    """An open object."""

    nbytes: int
    version: Any
    """Equal to the store's `version` of its key until the object is replaced or written to."""

    def read(self, offset: int, nbytes: int) -> bytes:
        """Exactly `nbytes` bytes.

        Raises
        ------
        StoreError
            If the object ends before.
        """

    def __enter__(self) -> ObjectReader: ...

    def __exit__(self, *exc_info: object) -> None: ...


class ObjectEditor(Protocol):
    """An object that is changed where it stands; readers see every step."""

    def write_at(self, offset: int, data: Any) -> None:
        """Write bytes at an offset, also beyond the end."""

    def check_version(self, version: Any) -> None:
        """Refuse to change another object than a reader saw: its `version` must be this one.

        Raises
        ------
        StoreError
            ESTALE.
        """

    def sync(self) -> None:
        """Make all of that durable."""

    def __enter__(self) -> ObjectEditor: ...

    def __exit__(self, *exc_info: object) -> None: ...


class Store(Protocol):
    """Objects by key. Picklable."""

    def transaction(
        self,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None = None,
        *,
        proof: Proof | None = None,
        is_fresh: bool = False,
    ) -> Transaction:
        """Begin to write.

        Parameters
        ----------
        durability : str
            One of `DURABILITIES`.
        attempt : str
            ``<scope>.<name>``: makes temporary names unique; directories are not removed while a scope lasts.
        guard : callable, optional
            Called right before objects become visible; what it raises stops that.
        proof : Proof, optional
            What says that objects are the run's own; needed to remove some.
        is_fresh : bool
            Nothing stands where objects will be, so that none is looked at first. Else an object keeps the mode and group of the
            one whose place it takes.
        """

    def discard_scope(self, key: str, scope: str) -> None:
        """Remove what attempts at an object have left behind whose names begin with a scope."""

    def discard_temporary(self, key: str, attempt: str) -> bool:
        """Remove what an attempt at an object has left behind; whether there was something."""

    def edit(self, key: str) -> ObjectEditor:
        """An object that is there, to be changed where it stands."""

    def version(self, key: str) -> Any:
        """What changes whenever an object is replaced or written to; None where there is none."""

    def open(self, key: str) -> ObjectReader | None:
        """An object for reading, or None where there is none."""
