"""What the writer and the readers need of a store. Nothing here knows of Zarr."""

from __future__ import annotations

from collections.abc import Sequence
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

    def create(self, key: str) -> ObjectWriter:
        """Begin an object."""

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

    def transaction(self, durability: str, attempt: str) -> Transaction:
        """Begin to write; `attempt` makes temporary names unique."""

    def open(self, key: str) -> ObjectReader | None:
        """An object for reading, or None where there is none."""
