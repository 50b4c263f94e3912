"""Datasets of several HDF5 files as one array of Zarr, which is only read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, NoReturn

from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.node import DOCUMENT
from shardwrite.grid import Shape, ravel, unravel
from shardwrite.sources.hdf5_store import Hdf5Store
from shardwrite.stores import Capability, ObjectReader, Store
from shardwrite.stores.whole import SnapshotReader

_MAX_OPEN = 64
Version = tuple[int, int, int]


class JoinedStore(Store):
    """The chunks of datasets that lie side by side.

    - `files`: the files in row-major order of their grid, each with its version; see `file_of`.
    """

    capabilities = frozenset({Capability.SHARED})

    def __init__(
        self,
        files: Sequence[tuple[str, Version]],
        dataset: str,
        counts: Shape,
        n_chunks: Shape,
        document: str,
    ) -> None:
        self._files = tuple(files)
        self._dataset, self._counts, self._n_chunks = dataset, counts, n_chunks
        self._document = document

    @staticmethod
    def file_of(path: str) -> tuple[str, Version]:
        """A file, and the version that it has now."""
        store = Hdf5Store(path)
        return str(store.path), store.file_version

    def __reduce__(self) -> tuple[Any, ...]:
        fields = self._files, self._dataset, self._counts, self._n_chunks, self._document
        return type(self), fields

    def __repr__(self) -> str:
        return f"{len(self._files):,} files from {self._files[0][0]} on"

    @property
    def token(self) -> str:
        """See :attr:`Store.token`."""
        names = [path for path, _ in self._files]
        axes = [axis for axis, count in enumerate(self._counts) if count > 1]
        where = self._counts if len(axes) > 1 else sum(axes)
        return f"{names[0]}:{_digest(names, self._dataset, where)}"

    @cached_property
    def _metadata(self) -> ArrayMetadata:
        return parse_metadata(self._document)

    def _find(self, key: str) -> tuple[Store, str] | None:
        """Store of a file, and the key of a chunk in it."""
        index = self._metadata.shard_index(key)
        if index is None:
            return None
        pairs = list(map(divmod, index, self._n_chunks))
        path, version = self._files[ravel([file for file, _ in pairs], self._counts)]
        inside = tuple(place for _, place in pairs)
        return _opened(path, version, self._dataset), self._metadata.shard_key(inside)

    def open(self, key: str) -> ObjectReader | None:
        """See :meth:`Readable.open`."""
        if key == DOCUMENT:
            return SnapshotReader(key, self._document.encode(), self.version(key))
        found = self._find(key)
        return None if found is None else found[0].open(found[1])

    def open_again(self, key: str) -> ObjectReader | None:
        """See :meth:`Readable.open_again`."""
        found = self._find(key)
        return self.open(key) if found is None else found[0].open_again(found[1])

    def version(self, key: str) -> Any:
        """See :meth:`Readable.version`; that of the document is one of all files."""
        if key == DOCUMENT:
            return _digest([version for _, version in self._files])
        found = self._find(key)
        return None if found is None else found[0].version(found[1])

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """See :meth:`Readable.list_keys`."""
        if DOCUMENT.startswith(prefix):
            yield DOCUMENT
        for number, (path, version) in enumerate(self._files):
            file = unravel(number, self._counts)
            for key in _opened(path, version, self._dataset).list_keys():
                index = self._metadata.shard_index(key)
                if index is None:
                    continue
                places = zip(file, self._n_chunks, index, strict=True)
                name = self._metadata.shard_key(tuple(f * n + i for f, n, i in places))
                if name.startswith(prefix):
                    yield name

    def at(self, path: str) -> NoReturn:
        """Raise SpecError, because there is nothing below the array."""
        raise _refused(path)

    def transaction(self, *arguments: Any, **keywords: Any) -> NoReturn:  # noqa: ARG002 (refused)
        """Raise SpecError, because nothing is written into the files."""
        raise _refused(repr(self))


@lru_cache(maxsize=_MAX_OPEN)
def _opened(path: str, version: Version, dataset: str) -> Store:
    return Hdf5Store(path, version, part=dataset)


def _digest(*facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _refused(value: str) -> SpecError:
    return SpecError(
        "files that are only read, as one array",
        field="store",
        value=value,
        remedy="write to a directory, or to a store of zarr-python",
    )
