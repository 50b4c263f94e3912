"""Datasets of the same kind in several HDF5 files as one array of Zarr, which is only read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NoReturn

from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.convert.plan import ConvertedLayout, converted
from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.node import DOCUMENT, changed_meaning
from shardwrite.grid import Shape, ceil_div, ravel, unravel
from shardwrite.hdf5.reading import Hdf5Store
from shardwrite.stores.base import Capability, ObjectReader, Store
from shardwrite.stores.whole import SnapshotReader

_SAME = {
    "data_type": "another data type",
    "fill_value": "another fill value",
    "codecs": "other filters",
    "chunk_grid": "other chunks",
    "dimension_names": "other names of dimensions",
}


# ---- The ``zarr.json`` of the array


@dataclass(frozen=True, slots=True)
class Joined:
    """Arrays that lie side by side in a grid, as one array."""

    whole: ArrayMetadata  # metadata of the array without shards that has the chunks of all of them
    shards: Shape  # shape of a shard in elements, of which each array fills one
    # Names of attributes that are left out, because the arrays have different values of them
    left_out: tuple[str, ...]

    @property
    def counts(self) -> Shape:
        """Number of arrays along each axis."""
        return tuple(
            ceil_div(n, s) for n, s in zip(self.whole.grid.shape, self.shards, strict=True)
        )

    @property
    def chunks_per_part(self) -> Shape:
        """Number of chunks along each axis in all arrays but the last."""
        return tuple(s // c for s, c in zip(self.shards, self.whole.grid.chunks, strict=True))

    def sharded(self, index_location: str) -> ArrayMetadata:
        """Metadata of the array with shards, whose indexes lie at a place."""
        grid = self.whole.grid
        layout = ConvertedLayout(
            shards=self.shards, chunks=grid.chunks, index_location=index_location
        )
        return converted(self.whole, layout)


def join(
    parts: Iterable[tuple[str, ArrayMetadata]], n_parts: int, arrangement: int | Shape
) -> Joined:
    """Join arrays without shards that lie side by side.

    - `parts`: name and metadata of each array, in row-major order of the grid that they form. The
      arrays are looked at one by one.
    - `arrangement`: the axis along which the arrays follow one another, counted from the end if it
      is negative. Or the number of arrays along each axis. Along an axis with several arrays, all
      but the last have the same length, a multiple of the length of a chunk, and the last is not
      longer.
    """
    first: ArrayMetadata | None = None
    attributes: Document = {}
    differing: set[str] = set()
    fit: _Fit | None = None
    for number, (name, part) in enumerate(parts):
        own = attributes_of(part.document)
        if first is None or fit is None:
            first, attributes = part, own
            fit = _Fit(name, first, _counts_of(arrangement, n_parts, len(first.grid.shape)))
        _check_same(name, first, part)
        fit.check(name, part.grid.shape, number)
        differing |= _differing(name, attributes, own)
    if first is None or fit is None:
        raise SpecError(
            "no file is given", field="files", value=[], remedy="give the files in their order"
        )
    document = {
        **first.document,
        "shape": list(fit.shape),
        "attributes": {name: attributes[name] for name in attributes if name not in differing},
    }
    shards = tuple(
        ceil_div(n, c) * c for n, c in zip(first.grid.shape, first.grid.chunks, strict=True)
    )
    whole = parse_metadata(json.dumps(document, indent=2), writing=True)
    return Joined(whole, shards, tuple(sorted(differing)))


def _counts_of(arrangement: int | Shape, n_parts: int, ndim: int) -> Shape:
    """Number of arrays along each axis."""
    if isinstance(arrangement, tuple):
        if len(arrangement) != ndim:
            raise SpecError(
                f"the dataset has {ndim} axes, and this is a grid of {len(arrangement)}",
                field="grid",
                value=arrangement,
                remedy=f"give {ndim} numbers: how many files lie along each axis",
            )
        return arrangement
    if isinstance(arrangement, bool) or not -ndim <= arrangement < ndim:
        raise SpecError(
            "no axis of the dataset",
            field="axis",
            value=arrangement,
            remedy=f"give a number from {-ndim} to {ndim - 1}",
        )
    return tuple(n_parts if axis == arrangement % ndim else 1 for axis in range(ndim))


class _Fit:
    """Shapes of arrays that lie side by side, looked at one by one."""

    def __init__(self, name: str, first: ArrayMetadata, counts: Shape) -> None:
        self._counts, self._first = counts, first.grid.shape
        # For each axis, the last array along it that was seen first, and its length.
        self._last: list[tuple[str, int] | None] = [None] * len(counts)
        several = zip(self._first, first.grid.chunks, counts, strict=True)
        for axis, (n, chunk, count) in enumerate(several):
            if count > 1 and n % chunk:
                raise _misfit(
                    name,
                    f"it is {n:,} long along axis {axis}, which is no multiple of the length of a "
                    f"chunk, {chunk}, and other files follow it",
                )

    @property
    def shape(self) -> Shape:
        """Shape of all arrays together."""
        return tuple(
            (count - 1) * n + (n if last is None else last[1])
            for n, count, last in zip(self._first, self._counts, self._last, strict=True)
        )

    def check(self, name: str, shape: Shape, number: int) -> None:
        """Refuse an array whose shape does not fit its place."""
        if not all(shape):
            raise _misfit(name, "it has no elements")
        place = unravel(number, self._counts)
        for axis, (n, first, at) in enumerate(zip(shape, self._first, place, strict=True)):
            if self._counts[axis] == 1:
                if n != first:
                    raise _misfit(
                        name, f"its shape is {shape}, and that of the first file {self._first}"
                    )
            elif at + 1 < self._counts[axis]:
                if n != first:
                    raise _misfit(
                        name,
                        f"it is {n:,} long along axis {axis}, and the first file is {first:,} "
                        "long; only the last file along an axis may be shorter",
                    )
            else:
                self._check_last(name, axis, n)

    def _check_last(self, name: str, axis: int, n: int) -> None:
        """Refuse an array at the end of an axis that is longer than others, or none of one row."""
        first, last = self._first[axis], self._last[axis]
        if n > first:
            raise _misfit(
                name,
                f"it is {n:,} long along axis {axis}, longer than the others, which are {first:,} "
                "long",
            )
        if last is None:
            self._last[axis] = name, n
        elif n != last[1]:
            raise _misfit(
                name,
                f"it is {n:,} long along axis {axis}, and {last[0]} is {last[1]:,} long; both lie "
                "at the end of this axis",
            )


def _check_same(name: str, first: ArrayMetadata, part: ArrayMetadata) -> None:
    """Refuse a file whose dataset is of another kind than that of the first."""
    n_axes = [len(one.grid.shape) for one in (first, part)]
    if n_axes[0] != n_axes[1]:
        raise _misfit(name, f"it has {n_axes[1]} axes, and the first file has {n_axes[0]}")
    for field, why in _SAME.items():
        if _text(first.document.get(field)) == _text(part.document.get(field)):
            continue
        if field == "codecs" and first.document[field][0] != part.document[field][0]:
            why = "another order of bytes"
        raise _misfit(name, f"it has {why} than the first file")


def _differing(name: str, kept: Document, own: Document) -> set[str]:
    """Attributes that differ from those of the first file, if they tell nothing of the values."""
    found = {key for key in {*kept, *own} if _text(kept.get(key, ...)) != _text(own.get(key, ...))}
    key = changed_meaning(kept, own)
    if key is not None:
        raise _misfit(
            name,
            f"its attribute {key!r} is another than that of the first file, so equal values "
            "mean different things",
        )
    return found


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _misfit(name: str, why: str) -> SpecError:
    return SpecError(
        f"does not fit the others: {why}",
        field="files",
        value=name,
        remedy="give files that have the same kind of dataset, in their order, or write their "
        "values with shardwrite write",
    )


# ---- The store


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
        """See :meth:`Store.open`."""
        if key == DOCUMENT:
            return SnapshotReader(key, self._document.encode(), self.version(key))
        found = self._find(key)
        return None if found is None else found[0].open(found[1])

    def open_again(self, key: str) -> ObjectReader | None:
        """See :meth:`Store.open_again`."""
        found = self._find(key)
        return self.open(key) if found is None else found[0].open_again(found[1])

    def version(self, key: str) -> Any:
        """See :meth:`Store.version`; that of the document is one of all files."""
        if key == DOCUMENT:
            return _digest([version for _, version in self._files])
        found = self._find(key)
        return None if found is None else found[0].version(found[1])

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """See :meth:`Store.list_keys`."""
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
