"""The manifest: an attribute of an array that lists the inner chunks that hold data.

``"nonempty_chunks"`` is a list of keys such as ``"0.3.12"``, sorted as text, as zarr-vectors writes
it. A run only adds keys before it commits, and removes keys of chunks that are empty when it ends.
So the list names all chunks that hold data at any time, and after an interruption perhaps more.

A long list has a compact form beside it, ``"nonempty_chunks_runs"``: runs of chunks that follow
each other along the last axis. It says of which list it was made, so a reader can tell whether
another program has changed the list since.

Stores of zarr-vectors may say in an attribute which chunk the first cell of the grid is. Their keys
count from there.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON, Document, attributes_of
from shardwrite.errors import SpecError
from shardwrite.format.node import LIST, RUNS, has_manifest, with_attributes
from shardwrite.grid import Box, ceil_div

# ---- Keys of inner chunks: ``"0.3.12"``


_ORIGIN = "chunk_grid_origin"


def origin_in(document: Document, ndim: int) -> npt.NDArray[np.int64]:
    """Coordinates of the first inner chunk in the keys: zeros, if no attribute has others."""
    origin: Any = attributes_of(document).get(_ORIGIN)
    if not origin:
        return np.zeros(ndim, dtype=np.int64)
    is_valid = isinstance(origin, list) and len(origin) == ndim
    if not is_valid or any(type(n) is not int or abs(n) >= 2**53 for n in origin):
        raise SpecError(
            "the attribute holds no integer for each axis",
            field=_ORIGIN,
            value=origin,
            remedy="mend it, or remove it",
        )
    return np.array(origin, dtype=np.int64)


def keys_of(coords: npt.NDArray[np.int64], origin: npt.NDArray[np.int64]) -> list[str]:
    """Keys of inner chunks, sorted as text.

    - `coords`: int64, shape (n, ndim). Positions of the chunks in the grid of inner chunks.
    - `origin`: int64, shape (ndim,). Coordinates of the first chunk of the grid.
    """
    return sorted(".".join(map(str, row)) for row in (coords + origin).tolist())


# ---- The list


Coords = npt.NDArray[np.int64]


COMPACT_FROM = 100_000
"""Number of keys from which on the compact form is written."""


_ENCODING = "int64 little-endian, zlib, base64"


def with_manifest(document: Document) -> Document:
    """Document of an array that keeps a manifest, in which nothing is listed yet."""
    attributes = attributes_of(document)
    if LIST in attributes and not has_manifest(document):
        raise SpecError(
            "the attribute holds no list of texts, so the manifest has no place there",
            field=LIST,
            value=attributes[LIST],
            remedy="rename that attribute, or leave out manifest",
        )
    return with_attributes(document, {**attributes, LIST: []})


def chunks_in(region: Box, shape: Sequence[int], chunks: Sequence[int]) -> Box:
    """Box in the grid of inner chunks that a region touches, inside the array."""
    start = tuple(min(a, n) // c for a, n, c in zip(region.start, shape, chunks, strict=True))
    stop = tuple(ceil_div(min(b, n), c) for b, n, c in zip(region.stop, shape, chunks, strict=True))
    return Box(start, tuple(map(max, start, stop)))


def with_added(document: Document, box: Box) -> Document:
    """Document whose manifest, if it keeps one, also lists all inner chunks of a box."""
    if not has_manifest(document):
        return document
    return _changed(document, box, None)


def with_present(document: Document, box: Box, coords: Coords) -> Document:
    """Document whose manifest, if it keeps one, lists those inner chunks of a box that hold data.

    - `box`: box in the grid of inner chunks. Chunks outside of it stay listed or unlisted.
    - `coords`: int64, shape (n, ndim). Positions of the chunks in the box that hold data.
    """
    return _changed(document, box, coords) if has_manifest(document) else document


def listed_chunks(document: Document) -> Coords:
    """Positions of the inner chunks that a manifest lists, in row-major order.

    Keys that have another form are left out.
    """
    if not has_manifest(document):
        raise SpecError(
            "the array keeps no manifest",
            field=LIST,
            value=attributes_of(document).get(LIST),
            remedy='make it with manifest="nonempty_chunks", or list the chunks by present',
        )
    return _Listed.of(document).coords


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """What a manifest lists."""

    coords: Coords  # positions in the grid of inner chunks, in row-major order, each of them once
    others: tuple[str, ...]  # keys of another form, which stay as they are
    origin: Coords  # coordinates of the first chunk of the grid in the keys
    is_compact: bool  # whether the compact form stands beside the list, and is of this list

    @classmethod
    def of(cls, document: Document) -> _Listed:
        ndim = len(document["shape"])
        origin = origin_in(document, ndim)
        keys: list[str] = attributes_of(document)[LIST]
        runs = _from_runs(attributes_of(document).get(RUNS), keys, ndim)
        if runs is not None:
            return cls(_sorted(runs - origin), (), origin, is_compact=True)
        number = r"-?[0-9]{1,18}"
        is_key = re.compile(r"\.".join([number] * ndim)).fullmatch
        others = tuple(key for key in keys if not is_key(key))
        plain = [key for key in keys if is_key(key)] if others else keys
        text = ".".join(plain)
        numbers = [int(part) for part in text.split(".")] if text else []
        coords = np.array(numbers, dtype=np.int64).reshape(len(plain), ndim)
        return cls(_sorted(coords - origin), others, origin, is_compact=False)

    def with_coords(self, coords: Coords) -> _Listed:
        """The same with other chunks, for the attributes to tell."""
        is_compact = not self.others and len(coords) >= COMPACT_FROM
        return replace(self, coords=coords, is_compact=is_compact)

    def attributes(self, keys: list[str]) -> Document:
        """The attributes that tell this; `keys` are those of the chunks, sorted."""
        if self.is_compact:
            return {LIST: keys, RUNS: _as_runs(self.coords + self.origin, keys)}
        return {LIST: sorted({*keys, *self.others}) if self.others else keys}


def _changed(document: Document, box: Box, coords: Coords | None) -> Document:
    """Document whose manifest lists some chunks of a box and no others; all if none are given."""
    before = _Listed.of(document)
    is_inside = ((before.coords >= box.start) & (before.coords < box.stop)).all(axis=1)
    inside = before.coords[is_inside]
    if coords is None:
        whole = np.indices(box.shape, dtype=np.int64).reshape(len(box.shape), box.size).T
        coords = whole + np.array(box.start, dtype=np.int64)
    new, gone = _missing(coords, inside), _missing(inside, coords)
    attributes = attributes_of(document)
    is_told = before.with_coords(before.coords).is_compact == before.is_compact
    if is_told and before.is_compact == (RUNS in attributes) and not len(new) and not len(gone):
        return document
    outside = before.coords[~is_inside]
    after = before.with_coords(_sorted(np.concatenate([outside, coords])))
    rest = {name: value for name, value in attributes.items() if name not in (LIST, RUNS)}
    if before.is_compact:  # its keys are right, and making all of them anew would take long
        dropped, old = set(keys_of(gone, before.origin)), attributes[LIST]
        keys = [key for key in old if key not in dropped]
        keys = sorted([*keys, *keys_of(new, before.origin)])
    else:
        keys = keys_of(after.coords, after.origin)
    return with_attributes(document, {**rest, **after.attributes(keys)})


def _missing(coords: Coords, others: Coords) -> Coords:
    """Those of some chunks that are not among others."""
    if not len(others) or not len(coords):
        return coords
    if not coords.shape[1]:
        return coords[:0]
    start = np.minimum(coords.min(axis=0), others.min(axis=0))
    stop = np.maximum(coords.max(axis=0), others.max(axis=0)) + 1
    shape = tuple((stop - start).tolist())
    if math.prod(shape) >= 2**63:  # more chunks than ranks can tell
        other_rows = {*map(tuple, others.tolist())}
        return coords[[tuple(row) not in other_rows for row in coords.tolist()]]
    ranks, of_others = (
        np.ravel_multi_index(tuple((some - start).T), shape) for some in (coords, others)
    )
    return coords[~np.isin(ranks, of_others)]


def _sorted(coords: Coords) -> Coords:
    """Rows in row-major order, each of them once."""
    if not len(coords) or not coords.shape[1]:
        return coords[:1]
    steps = np.diff(coords, axis=0)
    is_step = steps != 0
    first = np.take_along_axis(steps, is_step.argmax(axis=1)[:, None], axis=1)[:, 0]
    if (first > 0).all():
        return coords
    ordered = coords[np.lexsort(coords.T[::-1])]
    is_new = (np.diff(ordered, axis=0) != 0).any(axis=1)
    distinct: Coords = ordered[np.concatenate([[True], is_new])]
    return distinct


def _crc_of(keys: Sequence[str]) -> int:
    return zlib.crc32("\n".join(keys).encode())


def _as_runs(coords: Coords, keys: Sequence[str]) -> Document:
    """The compact form of a list.

    - `coords`: int64, shape (n, ndim). Positions as the keys tell them, in row-major order.
    """
    steps = np.diff(coords, axis=0)
    goes_on = (steps[:, :-1] == 0).all(axis=1) & (steps[:, -1] == 1)
    starts = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    lengths = np.diff(np.append(starts, len(coords)))
    columns = np.column_stack([coords[starts], lengths]).T.astype("<i8")
    return {
        "encoding": _ENCODING,
        "n_chunks": len(coords),
        "n_runs": len(starts),
        "crc32_of_keys": _crc_of(keys),
        "data": base64.b64encode(zlib.compress(columns.tobytes(), 6)).decode(),
    }


def _from_runs(compact: JSON, keys: Sequence[str], ndim: int) -> Coords | None:
    """Positions that the compact form tells; None if it is not one of this list."""
    if not isinstance(compact, dict) or compact.get("encoding") != _ENCODING or not ndim:
        return None
    n_runs, data = compact.get("n_runs"), compact.get("data")
    is_of_list = compact.get("n_chunks") == len(keys) and compact.get("crc32_of_keys") == _crc_of(
        keys
    )
    if not is_of_list or type(n_runs) is not int or not isinstance(data, str):
        return None
    nbytes = 8 * n_runs * (ndim + 1)
    try:
        # One byte more than there should be shows that there are too many.
        raw = zlib.decompressobj().decompress(base64.b64decode(data, validate=True), nbytes + 1)
    except (ValueError, binascii.Error, zlib.error):
        return None
    if len(raw) != nbytes or not 0 < n_runs <= len(keys):
        return None
    columns = np.frombuffer(raw, dtype="<i8").reshape(ndim + 1, n_runs).astype(np.int64)
    lengths = columns[-1]
    if (lengths < 1).any() or (lengths > len(keys)).any() or lengths.sum() != len(keys):
        return None
    coords = np.repeat(columns[:-1].T, lengths, axis=0)
    coords[:, -1] += np.arange(len(keys)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return coords


def rendered(document: Document) -> str:
    """Text of a document, in which each long manifest is one line.

    An encoder that indents takes many times as long, and its text would be twice as long.
    """
    lists: list[list[str]] = []
    planned = _with_marks(document, lists)
    text = json.dumps(planned, indent=2)
    for n, keys in enumerate(lists):
        mark = json.dumps(_mark(n))
        if text.count(mark) != 1:
            return json.dumps(document, indent=2)
        text = text.replace(mark, json.dumps(keys))
    return text


_LONG = 1000

_CONSOLIDATED = "consolidated_metadata"


def _mark(n: int) -> str:
    return f"\0{LIST} {n}\0"


def _with_marks(document: Document, lists: list[list[str]]) -> Document:
    """Document with marks in place of long lists, which are added to `lists`."""
    keys: Any = attributes_of(document).get(LIST)
    if isinstance(keys, list) and len(keys) >= _LONG:
        lists.append(keys)
        marked = {**attributes_of(document), LIST: _mark(len(lists) - 1)}
        document = with_attributes(document, marked)
    members = document.get(_CONSOLIDATED)
    if isinstance(members, dict) and isinstance(members.get("metadata"), dict):
        nodes = {
            name: _with_marks(node, lists) if isinstance(node, dict) else node
            for name, node in members["metadata"].items()
        }
        document = {**document, _CONSOLIDATED: {**members, "metadata": nodes}}
    return document
