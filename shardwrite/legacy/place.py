"""An array of 2022 in a hierarchy of that time, as the place of a Zarr v3 array.

=============================  ==============================================================
key of today, in the array     key in the store of the hierarchy
=============================  ==============================================================
``zarr.json``                  ``meta/root/NAME.array.json``, in the words of 2022
``c/0/1``                      ``data/root/NAME/c0/1``
``shardwrite-receipt.json``    ``meta/root/NAME.shardwrite-receipt.json``
=============================  ==============================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.node import CORE, DATA, DOCUMENT, DOCUMENTS_OF_V2, FORMAT, META
from shardwrite.legacy.transformer import check_extensions, of_2022, of_today, revised
from shardwrite.place.base import (
    MARK_NAME,
    QUARANTINE_PREFIX,
    RECEIPT_NAME,
    REPORT_NAME,
    STATE_PREFIX,
    Owner,
    Place,
    hierarchy_document,
    names_above,
)
from shardwrite.place.directory import Directory
from shardwrite.place.objects import InStore
from shardwrite.stores.base import (
    ObjectEditor,
    ObjectReader,
    ObjectWriter,
    Store,
    Transaction,
)
from shardwrite.stores.looking import parse_document, read_limit
from shardwrite.stores.removal import Proof
from shardwrite.stores.whole import SnapshotReader

_OWN = re.compile(
    rf"c(?:(?:/\d+)+|(?:\.\d+)+)?\Z|{re.escape(STATE_PREFIX)}|{re.escape(QUARANTINE_PREFIX)}"
)
"""Keys of today of the objects of an array; those of an array inside it have another `c`."""

_SUFFIX = ".json"
_HIERARCHY = json.dumps(
    {
        "zarr_format": CORE,
        "metadata_encoding": CORE,
        "metadata_key_suffix": _SUFFIX,
        "extensions": [],
    },
    indent=4,
).encode()
"""Document of a hierarchy of 2022, at the key ``zarr.json`` of its store."""


def hierarchy_of(store: Store) -> bool:
    """Whether a store holds a hierarchy of 2022 that can be read."""
    document = hierarchy_document(store)
    if document is not None:
        _check_hierarchy(document)
    return document is not None


def _check_hierarchy(document: Document) -> None:
    """Refuse the document of a hierarchy that asks for what is not done here."""
    suffix = document.get("metadata_key_suffix", _SUFFIX)
    if suffix != _SUFFIX:
        raise SpecError(
            "documents of a hierarchy of 2022 with other names are not read",
            field="metadata_key_suffix",
            value=suffix,
            remedy=f"let the names of all documents end in {_SUFFIX}, and say so in zarr.json",
        )
    check_extensions(document.get("extensions"))


def place_in(store: Store, name: str, document: Document | None) -> TransformerPlace:
    """Place of an array in a hierarchy, or in one that is to be made.

    - `document`: document of the hierarchy, if it is there.
    """
    if document is not None:
        _check_hierarchy(document)
    return TransformerPlace.of(store, name)


class TransformerStore(Store):
    """The objects of one array of a hierarchy of 2022, under the keys of today."""

    def __init__(self, inner: Store, name: str) -> None:
        self._inner = inner
        self.name = name  # path of the array in the hierarchy; empty for its root
        self._data = f"{DATA}/{name}".rstrip("/")
        self._meta = f"{META}/{name}".rstrip("/")
        self.capabilities = inner.capabilities

    def __reduce__(self) -> tuple[Any, ...]:
        return TransformerStore, (self._inner, self.name)

    def __repr__(self) -> str:
        root = self._inner.local_root
        return str(root / self._data) if root is not None else f"{self._inner!r}/{self._data}"

    # What the store of the hierarchy says
    is_in_memory = property(lambda self: self._inner.is_in_memory)
    is_distant = property(lambda self: self._inner.is_distant)
    owner = property(lambda self: self._inner.owner)
    put_limit = property(lambda self: self._inner.put_limit)
    scratch = property(lambda self: self._inner.scratch)
    loses_changes = property(lambda self: self._inner.loses_changes)
    held_nbytes = property(lambda self: self._inner.held_nbytes)
    check_nbytes = property(lambda self: self._inner.check_nbytes)

    def version(self, key: str) -> Any:
        """See :meth:`Store.version`."""
        return self._inner.version(self.key_below(key))

    def url_of(self, key: str) -> str | None:
        """See :meth:`Store.url_of`."""
        return self._inner.url_of(self.key_below(key))

    def sync(self, key: str) -> None:
        """See :meth:`Store.sync`."""
        self._inner.sync(self.key_below(key))

    def edit(self, key: str) -> ObjectEditor:
        """See :meth:`Store.edit`."""
        return self._inner.edit(self.key_below(key))

    def check_no_links(self, keys: Iterable[str], *, are_whole: bool) -> None:
        """See :meth:`Store.check_no_links`."""
        self._inner.check_no_links(map(self.key_below, keys), are_whole=are_whole)

    def discard_temporary(self, key: str, attempt: str) -> bool:
        """See :meth:`Store.discard_temporary`."""
        return self._inner.discard_temporary(self.key_below(key), attempt)

    @property
    def hierarchy_root(self) -> Path | None:
        """Directory of the hierarchy, if it is known."""
        root = self._inner.local_root
        return None if root is None else root / getattr(self._inner, "prefix", "")

    @property
    def local_root(self) -> Path | None:
        """See :attr:`Store.local_root`."""
        root = self.hierarchy_root
        return None if root is None else root / self._data

    @property
    def token(self) -> str:
        """See :attr:`Store.token`."""
        return f"{self._inner.token.rstrip('/')}/{self._data}"

    def via(self, directory: str) -> TransformerStore:
        """See :meth:`Store.via`."""
        return TransformerStore(self._inner.via(directory), self.name)

    def exclusively(self) -> TransformerStore:
        """See :meth:`Store.exclusively`."""
        return TransformerStore(self._inner.exclusively(), self.name)

    def at(self, path: str) -> Store:
        """See :meth:`Store.at`."""
        return self._inner.at(f"{self._data}/{path}") if path else self

    def key_below(self, key: str) -> str:
        """Key in the store of the hierarchy."""
        if key == DOCUMENT:
            return f"{self._meta}.array.json"
        if key == "c":
            return f"{self._data}/c0"
        if key.startswith(("c/", "c.")):
            return f"{self._data}/c{key[2:]}"
        return f"{self._data}/{key}" if "/" in key else f"{self._meta}.{key}"

    def _key_above(self, below: str) -> str:
        """Key of today of an object below the data of the array."""
        key = below.removeprefix(f"{self._data}/")
        if key[:1] == "c" and key[1:2].isdigit():
            return f"c.{key[1:]}" if "." in key else f"c/{key[1:]}"
        return key

    def open(self, key: str) -> ObjectReader | None:
        """See :meth:`Store.open`."""
        reader = self._inner.open(self.key_below(key))
        if key != DOCUMENT or reader is None:
            return reader
        with reader:
            if reader.nbytes > read_limit():
                raise StoreError(
                    f"{self.key_below(key)!r} has {reader.nbytes:,} bytes, and at most "
                    f"{read_limit():,} are read",
                    key=key,
                )
            data = reader.read(0, reader.nbytes)
        document = of_today(parse_document(data, self.key_below(key)))
        return SnapshotReader(key, json.dumps(document, indent=2).encode(), reader.version)

    def open_again(self, key: str) -> ObjectReader | None:
        """See :meth:`Store.open_again`."""
        return self.open(key) if key == DOCUMENT else self._inner.open_again(self.key_below(key))

    def open_for(
        self, key: str, first: int, identity: Any = None, *, whole_nbytes: int = 0
    ) -> ObjectReader | None:
        """See :meth:`Store.open_for`."""
        if key == DOCUMENT:
            return self.open(key)
        return self._inner.open_for(self.key_below(key), first, identity, whole_nbytes=whole_nbytes)

    def own_document(self) -> Any:
        """The document of the array in the words of 2022; None if there is none."""
        key = self.key_below(DOCUMENT)
        data = self._inner.read_whole(key, read_limit())
        return None if data is None else parse_document(data, key)

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """See :meth:`Store.list_keys`; objects of arrays inside this one are not its own."""
        if not prefix:
            leaves = (DOCUMENT, RECEIPT_NAME, REPORT_NAME, MARK_NAME)
            yield from (leaf for leaf in leaves if self.version(leaf) is not None)
        for below in self._inner.list_keys(f"{self._data}/"):
            key = self._key_above(below)
            if key.startswith(prefix) and _OWN.match(key):
                yield key

    def has_data(self) -> bool:
        """Whether there is an object below the data of the array, whatever it belongs to."""
        others = tuple(f"{self._data}/{prefix}" for prefix in (STATE_PREFIX, QUARANTINE_PREFIX))
        return any(not key.startswith(others) for key in self._inner.list_keys(f"{self._data}/"))

    def is_own_directory(self, path: str) -> bool:
        """Whether a directory below the data can hold shards of this array."""
        return path == "." or _OWN.match(self._key_above(f"{self._data}/{path}")) is not None

    def node_inside(self) -> str | None:
        """Name of another array, a group, or an array to be, below the name of this one."""
        for key in self._inner.list_keys(f"{self._meta}/"):
            for end in (".array.json", ".group.json", f".{MARK_NAME}"):
                if key.endswith(end):
                    return key.removeprefix(f"{META}/").removesuffix(end)
        return None

    def node(self, name: str) -> TransformerStore:
        """The store of another node of the hierarchy."""
        return TransformerStore(self._inner, name)

    def transaction(
        self,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None = None,
        *,
        proof: Proof | None = None,
        is_fresh: bool = False,
    ) -> Transaction:
        """See :meth:`Store.transaction`."""
        if proof is not None:
            keys = proof.keys
            proof = replace(proof, keys=lambda: [self.key_below(key) for key in keys()])
        inner = self._inner.transaction(durability, attempt, guard, proof=proof, is_fresh=is_fresh)
        return _Transaction(self, inner)

    def create_new(self, key: str, data: bytes) -> bool:
        """See :meth:`Store.create_new`."""
        if key in (DOCUMENT, MARK_NAME) and not self.has_hierarchy():
            self._inner.create_new(DOCUMENT, _HIERARCHY)
        return self._inner.create_new(self.key_below(key), data)

    def check_sizes(self, most_of: Callable[[str], int | None]) -> None:
        """See :meth:`Store.check_sizes`."""
        data = self._inner.at(self._data)
        data.check_sizes(lambda key: most_of(self._key_above(f"{self._data}/{key}")))

    def discard_scope(self, key: str, scope: str) -> None:
        """See :meth:`Store.discard_scope`."""
        self._inner.discard_scope(self.key_below(key), scope)
        if key == MARK_NAME:  # the document of the hierarchy is made with it
            self._inner.discard_scope(DOCUMENT, scope)

    def arrays(self) -> Iterator[str]:
        """Names of the arrays in the hierarchy."""
        for key in self._inner.list_keys(f"{META}/"):
            if key.endswith(".array.json"):
                yield key.removeprefix(f"{META}/").removesuffix(".array.json")

    def has_hierarchy(self) -> bool:
        """Whether the document of the hierarchy is there."""
        if hierarchy_of(self._inner):
            return True
        if any(self._inner.version(leaf) is not None for leaf in (DOCUMENT, *DOCUMENTS_OF_V2)):
            raise SpecError(
                "something else than a hierarchy of 2022 stands there",
                field="store",
                value=str(self.hierarchy_root or self._inner),
                remedy="give another directory or store for the hierarchy",
            )
        return False


class _Transaction(Transaction):
    """A transaction of the store of the hierarchy, under the keys of today."""

    def __init__(self, store: TransformerStore, inner: Transaction) -> None:
        self._store, self._inner = store, inner
        self._keys: dict[str, str] = {}

    @property
    def committed(self) -> set[str]:  # type: ignore[override]
        """See :attr:`Transaction.committed`."""
        return {self._keys[key] for key in self._inner.committed if key in self._keys}

    def create(self, key: str) -> ObjectWriter:
        """See :meth:`Transaction.create`."""
        if key in (DOCUMENT, MARK_NAME) and not self._store.has_hierarchy():
            writer = self._inner.create(DOCUMENT)
            writer.write([_HIERARCHY])
            writer.finish()
        below = self._store.key_below(key)
        self._keys[below] = key
        writer_below = self._inner.create(below)
        return _DocumentWriter(writer_below, self._store) if key == DOCUMENT else writer_below

    def expect_nbytes(self, most_nbytes: int) -> None:
        """See :meth:`Transaction.expect_nbytes`."""
        self._inner.expect_nbytes(most_nbytes)

    def remove(self, key: str, guard: Callable[[], None] | None = None) -> None:
        """See :meth:`Transaction.remove`."""
        self._inner.remove(self._store.key_below(key), guard)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._inner.__exit__(*exc_info)


class _DocumentWriter(ObjectWriter):
    """A document of today, which is written in the words of 2022 when it is complete."""

    def __init__(self, inner: ObjectWriter, store: TransformerStore) -> None:
        self._inner, self._store = inner, store
        self._data = bytearray()

    def write(self, buffers: Sequence[Any]) -> int:
        """See :meth:`ObjectWriter.write`."""
        before = len(self._data)
        for buffer in buffers:
            self._data += memoryview(buffer)
        return len(self._data) - before

    def expect(self, version: Any) -> None:
        """See :meth:`ObjectWriter.expect`."""
        self._inner.expect(version)

    def finish(self, guard: Callable[[], None] | None = None) -> None:
        """See :meth:`ObjectWriter.finish`."""
        now, before = json.loads(self._data), self._store.own_document()
        document = of_2022(now) if before is None else revised(before, now)
        self._inner.write([json.dumps(document, indent=4, sort_keys=True).encode()])
        self._inner.finish(guard)

    def abort(self) -> None:
        """See :meth:`ObjectWriter.abort`."""
        self._inner.abort()


@dataclass(frozen=True, slots=True)
class TransformerPlace(InStore):
    """An array of a hierarchy of 2022; `base` is its `TransformerStore`."""

    base: TransformerStore

    @classmethod
    def of(cls, store: Store, name: str) -> TransformerPlace:
        """Place of an array.

        - `name`: path of the array in it, also as a path of its data or of its document.
        """
        name = f"{name}/"
        for beginning in (f"{DATA}/", f"{META}/"):
            name = name.removeprefix(beginning)
        return cls(TransformerStore(store, name.rstrip("/").removesuffix(".array.json")))

    @property
    def label(self) -> str:
        """See :class:`Place`."""
        return repr(self.base)

    @property
    def tree_path(self) -> Path | None:
        """See :attr:`Place.tree_path`; a hierarchy is one, and none of its arrays is."""
        return None if self.base.name else self.base.hierarchy_root

    @property
    def hierarchy(self) -> str:
        """See :attr:`Place.hierarchy`."""
        return "hierarchy of 2022"

    def arrays_in_hierarchy(self) -> Iterator[str]:
        """See :meth:`Place.arrays_in_hierarchy`."""
        return self.base.arrays()

    def check_new(self, layout: str | None) -> None:
        """See :meth:`Place.check_new`; the store may hold nothing, or a hierarchy of 2022."""
        if layout is None:
            raise SpecError(
                f"{self.label} is in a {self.hierarchy}",
                field="format",
                value=layout,
                remedy=f'give "{FORMAT}", or another place',
            )
        root = self.base.hierarchy_root
        if self.base.has_hierarchy() or root is None:
            return
        around = Directory(root).array_around()
        if around is not None:
            raise SpecError(
                f"the hierarchy would lie inside the array {around}",
                field="store",
                value=str(root),
                remedy="give a path outside of it",
            )

    @property
    def nodes_above(self) -> Sequence[TransformerPlace]:
        """See :attr:`Place.nodes_above`."""
        return [TransformerPlace(self.base.node(name)) for name in names_above(self.base.name)]

    def name_in(self, group: Place) -> str:
        """See :meth:`Place.name_in`."""
        above = group.base.name if isinstance(group, TransformerPlace) else ""
        return self.base.name.removeprefix(above).lstrip("/")

    def kind(self) -> str:
        """See :meth:`Place.kind`; a node that has others inside it is a group."""
        kind = InStore.kind(self)
        if kind not in ("nothing", "other") or self.has(MARK_NAME):
            return kind
        return kind if self.base.node_inside() is None else "group"

    def is_occupied(self) -> bool:
        """See :meth:`Place.is_occupied`; an array inside it may have no data."""
        is_here = InStore.is_occupied(self) or self.base.has_data()
        return is_here or self.base.node_inside() is not None

    def kind_for_group(self) -> str:
        """See :meth:`Place.kind_for_group`; groups have no documents here."""
        return "array" if self.has(DOCUMENT) or self.has(MARK_NAME) else "nothing"

    def _hide(self, run: Owner, leaf: str, durability: str, check: Callable[[], None]) -> None:  # noqa: ARG002
        """Remove a document; in the words of 2022, nothing else could stand in its place."""
        with self._removing(run, [leaf], check) as transaction:
            transaction.remove(leaf)

    def node_inside(self) -> str | None:
        """See :meth:`Place.node_inside`."""
        name = self.base.node_inside()
        return None if name is None else repr(self.base.node(name))

    @property
    def _directory(self) -> Directory | None:
        """Directory of the shards, if they lie in one."""
        root = self.base.local_root
        return None if root is None else Directory(root)

    def stale_temporaries(self, drivers_alive: Callable[[], set[str]]) -> Sequence[str]:
        """See :meth:`Place.stale_temporaries`; those of arrays inside this one are not its own."""
        directory = self._directory
        if directory is None:
            return ()
        return [
            path
            for path in directory.stale_temporaries(drivers_alive)
            if self.base.is_own_directory(Path(path).parent.relative_to(directory.path).as_posix())
        ]

    def make_directories(self, keys: Iterable[str], durability: str) -> None:
        """See :meth:`Place.make_directories`."""
        directory = self._directory
        if directory is not None:
            prefix = self.base.key_below("c/").removesuffix("c")
            below = [self.base.key_below(key).removeprefix(prefix) for key in keys]
            directory.make_directories(below, durability)

    @property
    def default_run_dir(self) -> Path | None:
        """See :attr:`Place.default_run_dir`; it holds the directory of the hierarchy."""
        root = self.base.hierarchy_root
        return None if root is None else root.parent
