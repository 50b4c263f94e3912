"""The ``zarr.json`` of an array whose shards are files, each with a dataset of the same kind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.errors import SpecError
from shardwrite.format.attributes import changed_meaning
from shardwrite.format.converted import ConvertedLayout, converted
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.grid import Shape, ceil_div, unravel

_SAME = {
    "data_type": "another data type",
    "fill_value": "another fill value",
    "codecs": "other filters",
    "chunk_grid": "other chunks",
    "dimension_names": "other names of dimensions",
}


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
