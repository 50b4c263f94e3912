"""What the writer and the readers need of a store. Nothing here knows of Zarr."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["DURABILITIES", "ObjectReader", "ObjectWriter", "Store", "Transaction"]

DURABILITIES = ("full", "batch", "none")


class ObjectWriter(Protocol):
    """One object on its way: nobody sees it before `finish`."""

    def write(self, buffers: Sequence[Any]) -> int:
        """Append buffers; returns their bytes."""

    def write_at(self, offset: int, data: bytes) -> None:
        """Write bytes into what was appended before."""

    def finish(self) -> None:
        """Make the object visible, whole, as durably as the transaction says (with ``"batch"``, at its end)."""

    def abort(self) -> None:
        """Remove every trace of it."""


class Transaction(Protocol):
    """Some objects written by one task; left on an error, those not finished are aborted."""

    committed: set[str]
    """Keys of the objects that are visible, as durably as the transaction says."""

    def create(self, key: str) -> ObjectWriter:
        """Begin an object."""

    def remove(self, key: str) -> None:
        """Take an object away, at once and as durably as the transaction says; none may be there."""

    def __enter__(self) -> Transaction: ...

    def __exit__(self, *exc_info: object) -> None: ...


class ObjectReader(Protocol):
    """An open object."""

    nbytes: int

    def read(self, offset: int, nbytes: int) -> bytes:
        """Exactly `nbytes` bytes.

        Raises
        ------
        StoreError
            If the object ends before.
        """

    def __enter__(self) -> ObjectReader: ...

    def __exit__(self, *exc_info: object) -> None: ...


class Store(Protocol):
    """Objects by key. Picklable."""

    def transaction(self, durability: str, attempt: str, guard: Callable[[], None] | None = None) -> Transaction:
        """Begin to write.

        Parameters
        ----------
        durability : str
            One of `DURABILITIES`.
        attempt : str
            ``<scope>.<name>``: makes temporary names unique; directories are not removed while a scope lasts.
        guard : callable, optional
            Called right before objects become visible; what it raises stops that.
        """

    def discard_temporary(self, key: str, attempt: str) -> bool:
        """Remove what an attempt at an object has left behind; whether there was something."""

    def open(self, key: str) -> ObjectReader | None:
        """An object for reading, or None where there is none."""
