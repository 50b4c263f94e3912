"""The ``zarr.json`` of an array whose shards are files, each with a dataset of the same kind."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError
from shardwrite.format.converted import ConvertedLayout, converted
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.grid import Shape, ceil_div

__all__ = ["Joined", "join"]

_OF_VALUES = (
    *("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"),
    *("units", "calendar"),
)
"""Attributes by which programs compute what a stored value means."""

_SAME = {
    "data_type": "another data type",
    "fill_value": "another fill value",
    "codecs": "other filters",
    "chunk_grid": "other chunks",
    "dimension_names": "other names of dimensions",
}


@dataclass(frozen=True, slots=True)
class Joined:
    """Arrays that follow one another along an axis, as one array.

    Attributes
    ----------
    whole : ArrayMetadata
        Metadata of the array without shards that has the chunks of all of them.
    shards : tuple of int
        Shape of a shard in elements, of which each array fills one.
    left_out : tuple of str
        Names of attributes that are left out, because the arrays have different values of them.
    """

    whole: ArrayMetadata
    shards: Shape
    left_out: tuple[str, ...]

    def sharded(self, index_location: str) -> ArrayMetadata:
        """Metadata of the array with shards, whose indexes lie at a place."""
        grid = self.whole.grid
        layout = ConvertedLayout(
            shards=self.shards, chunks=grid.chunks, index_location=index_location
        )
        return converted(self.whole, layout)


def join(parts: Iterable[tuple[str, ArrayMetadata]], axis: int) -> Joined:
    """Join arrays without shards along an axis.

    Parameters
    ----------
    parts : iterable of (str, ArrayMetadata)
        Name and metadata of each array, at least of one. The arrays are looked at one by one.
    axis : int
        The axis. Along it all arrays but the last have the same length, a multiple of the length of
        a chunk, and the last is not longer.

    Raises
    ------
    SpecError
        If the arrays do not fit each other. The error names the first that does not.
    """
    first: ArrayMetadata | None = None
    attributes: Document = {}
    differing: set[str] = set()
    lengths: list[int] = []
    name = ""
    for name, part in parts:
        own = part.document.get("attributes", {})
        if first is None:
            first, attributes = part, own
            _check_axis(first, axis)
        else:
            _check_length(name, first, lengths, axis)
            _check_same(name, first, part, axis)
            differing |= _differing(name, attributes, own)
        lengths.append(part.grid.shape[axis])
    if first is None:
        raise SpecError(
            "no file is given", field="files", value=[], remedy="give the files in their order"
        )
    if lengths[-1] > lengths[0] or not all(first.grid.shape) or not lengths[-1]:
        why = "longer than the others" if lengths[-1] > lengths[0] else "without elements"
        raise _misfit(name, f"{why} along axis {axis}" if lengths[-1] else why)
    shape = list(first.grid.shape)
    shape[axis] = sum(lengths)
    document = {
        **first.document,
        "shape": shape,
        "attributes": {name: attributes[name] for name in attributes if name not in differing},
    }
    shards = tuple(
        ceil_div(n, c) * c for n, c in zip(first.grid.shape, first.grid.chunks, strict=True)
    )
    whole = parse_metadata(json.dumps(document, indent=2), writing=True)
    return Joined(whole, shards, tuple(sorted(differing)))


def _check_axis(first: ArrayMetadata, axis: int) -> None:
    ndim = len(first.grid.shape)
    if isinstance(axis, bool) or not isinstance(axis, int) or not 0 <= axis < ndim:
        raise SpecError(
            "no axis of the dataset",
            field="axis",
            value=axis,
            remedy=f"give a number from 0 to {ndim - 1}",
        )


def _check_length(name: str, first: ArrayMetadata, lengths: Sequence[int], axis: int) -> None:
    """Refuse a file before another one whose end is no end of a shard."""
    chunk = first.grid.chunks[axis]
    if lengths[-1] != lengths[0] or lengths[0] % chunk:
        why = (
            f"the file before it is {lengths[-1]:,} long along axis {axis}, and the first is "
            f"{lengths[0]:,} long; only the last file may be shorter"
            if lengths[-1] != lengths[0]
            else f"the files are {lengths[0]:,} long along axis {axis}, which is no multiple of "
            f"the length of a chunk, {chunk}"
        )
        raise _misfit(name, why)


def _check_same(name: str, first: ArrayMetadata, part: ArrayMetadata, axis: int) -> None:
    """Refuse a file whose dataset is of another kind than that of the first."""
    shapes = [list(one.grid.shape) for one in (first, part)]
    if len(shapes[0]) != len(shapes[1]):
        raise _misfit(
            name, f"it has {len(shapes[1])} axes, and the first file has {len(shapes[0])}"
        )
    for shape in shapes:
        shape[axis] = 0
    if shapes[0] != shapes[1]:
        raise _misfit(
            name, f"its shape is {part.grid.shape}, and that of the first file {first.grid.shape}"
        )
    for field, why in _SAME.items():
        if _text(first.document.get(field)) != _text(part.document.get(field)):
            raise _misfit(name, f"it has {why} than the first file")


def _differing(name: str, kept: Document, own: Document) -> set[str]:
    """Attributes that differ from those of the first file, if they tell nothing of the values."""
    found = {key for key in {*kept, *own} if _text(kept.get(key, ...)) != _text(own.get(key, ...))}
    for key in _OF_VALUES:
        if key in found:
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
