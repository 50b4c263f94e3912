"""An array in a store that is no directory, such as memory or a store of zarr-python.

Such a store cannot rename. So the old array is removed before the first new shard is written, its
document first, and an array that is taken back is removed object by object. One process does so at
a time, and before each object it looks whether the run still goes on.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwrite.errors import StoreError
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2, kind_of_document
from shardwrite.place.base import RECEIPT_NAME, Owner, Place
from shardwrite.stores import (
    Store,
    as_store_error,
    is_there,
    make_directories,
    parse_json,
    read_limit,
    write_file,
)

__all__ = ["InStore"]


@dataclass(frozen=True, slots=True)
class InStore(Place):
    """An array in a store.

    Attributes
    ----------
    base : Store
        The store as a whole.
    name : str
        Path of the array inside the store; empty if the store itself is the array.
    """

    base: Store
    name: str = ""

    @property
    def label(self) -> str:
        """See :class:`Place`."""
        return f"{self.name or '/'} in {self.base!r}"

    @property
    def array_name(self) -> str:
        """See :class:`Place`."""
        return f"/{self.name}"

    @property
    def rights_like(self) -> None:
        """See :class:`Place`."""
        return

    @property
    def store(self) -> Store:
        """See :attr:`Place.store`."""
        return self.base.at(self.name) if self.name else self.base

    @property
    def groups(self) -> Sequence[InStore]:
        """See :attr:`Place.groups`."""
        parts = self.name.split("/")[:-1] if self.name else []
        names = ["/".join(parts[:n]) for n in range(len(parts) + 1)] if self.name else []
        return [InStore(self.base, name) for name in names]

    def groups_above(self) -> Iterator[InStore]:
        """See :meth:`Place.groups_above`."""
        for group in reversed(self.groups):
            if not group.has(DOCUMENT):
                return
            yield group

    def name_in(self, group: Place) -> str:
        """See :meth:`Place.name_in`."""
        return self.array_name.removeprefix(group.array_name).lstrip("/")

    def member(self, name: str) -> InStore:
        """See :meth:`Place.member`."""
        return InStore(self.base, f"{self.name}/{name}" if self.name else name)

    def kind(self) -> str:
        """See :meth:`Place.kind`."""
        if any(self.has(leaf) for leaf in DOCUMENTS_OF_V2):
            return "v2"
        data = self.read(DOCUMENT)
        if data is None:
            return "other" if self.is_occupied() else "nothing"
        try:
            return kind_of_document(parse_json(data))
        except ValueError:
            return "torn"

    def is_link(self) -> bool:
        """See :meth:`Place.is_link`."""
        return False

    def is_occupied(self) -> bool:
        """See :meth:`Place.is_occupied`."""
        return any(True for _ in self.store.list_keys())

    def may_be_group(self) -> bool:
        """See :meth:`Place.may_be_group`: other objects do not stand in the way of a document."""
        return True

    def array_around(self) -> str | None:
        """See :meth:`Place.array_around`."""
        return next(
            (
                group.label
                for group in self.groups
                if group.kind() == "array" or group.has(DOCUMENTS_OF_V2[0])
            ),
            None,
        )

    def node_inside(self) -> str | None:
        """See :meth:`Place.node_inside`."""
        for key in self.store.list_keys():
            name, _, leaf = key.rpartition("/")
            if name and leaf in (DOCUMENT, *DOCUMENTS_OF_V2):
                return self.member(name).label
        return None

    def has_object(self, key: str) -> bool:
        """See :meth:`Place.has_object`."""
        return self.store.version(key) is not None

    def has(self, leaf: str) -> bool:
        """See :meth:`Place.has`."""
        return self.store.version(leaf) is not None

    def has_something(self, key: str) -> bool:
        """See :meth:`Place.has_something`."""
        return self.has_object(key)

    def read(self, leaf: str) -> bytes | None:
        """See :meth:`Place.read`."""
        reader = self.store.open(leaf)
        if reader is None:
            return None
        with reader:
            if reader.nbytes > read_limit():
                raise StoreError(
                    f"{leaf!r} has {reader.nbytes:,} bytes, and at most {read_limit():,} are read",
                    key=leaf,
                    errno=errno.EFBIG,
                )
            return bytes(reader.read(0, reader.nbytes))

    def write(
        self,
        leaf: str,
        data: bytes,
        *,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None = None,
    ) -> None:
        """See :meth:`Place.write`."""
        with self.store.transaction(durability, attempt, guard) as transaction:
            writer = transaction.create(leaf)
            writer.write([data])
            writer.finish()

    def discard(self, leaf: str, attempt: str) -> None:
        """See :meth:`Place.discard`."""
        self.store.discard_temporary(leaf, attempt)

    def make_room(self, run: Owner, durability: str, *, replaces: bool) -> None:  # noqa: ARG002
        """See :meth:`Place.make_room`.

        The directory ``replaced`` in the run's directory says that the removal has begun, and
        ``replaced/all`` that it is complete. New shards are written only after that.
        """
        begun = run.path / "replaced"
        if not replaces or is_there(begun / "all"):
            return
        with run.alone() as check:
            if not is_there(begun / "all"):
                begun.mkdir(exist_ok=True)
                self._remove_all(run, check)
                (begun / "all").mkdir()

    def take_away(self, run: Owner) -> None:
        """See :meth:`Place.take_away`."""
        with run.alone() as check:
            self._remove_all(run, check)

    def _remove_all(self, run: Owner, check: Callable[[], None]) -> None:
        """Remove all objects, while `check` does not raise."""
        keys = frozenset(self.store.list_keys())
        proof = run.proof(lambda: keys)
        attempt = f"{uuid.uuid4().hex}.0"
        with self.store.transaction("none", attempt, check, proof=proof) as transaction:
            for key in sorted(keys, key=lambda key: (key != DOCUMENT, key != RECEIPT_NAME, key)):
                transaction.remove(key)

    def stale_temporaries(self, drivers_alive: Callable[[], set[str]]) -> Sequence[str]:  # noqa: ARG002
        """See :meth:`Place.stale_temporaries`; such a store has none."""
        return ()

    def sweep(self, drivers_alive: Callable[[], set[str]]) -> int:  # noqa: ARG002
        """See :meth:`Place.sweep`."""
        return 0

    def make_directories(self, keys: Iterable[str], durability: str) -> None:
        """See :meth:`Place.make_directories`; such a store has none."""

    def keep_copy(self, key: str, copy: Path, durability: str) -> None:
        """See :meth:`Place.keep_copy`."""
        reader = self.store.open(key)
        if reader is None:
            raise StoreError(f"{key!r} is gone", key=key, errno=errno.ENOENT)
        with reader, as_store_error(str(copy), "cannot keep a copy as"):
            make_directories(copy.parent, durability)
            data = reader.read(0, reader.nbytes)
            write_file(copy, data, durability=durability, attempt=f"{uuid.uuid4().hex}.0")
