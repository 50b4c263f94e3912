"""Shapes of shards in inner chunks, from the argument `shards=` of a conversion."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from shardwrite.errors import SpecError
from shardwrite.grid import Shape, Sized, ceil_div
from shardwrite.plan.limits import check_extents
from shardwrite.plan.sizes import explicit_sizes, parse_nbytes, resolve_shapes

_AUTO_NBYTES = "64MiB"
# times as many entries as inner chunks from which a note says so
_MUCH = 8


def shards_of_chunks(
    shards: Sized,
    shape: Shape,
    chunks: Shape,
    itemsize: int,
    names: Sequence[str | None] | None,
) -> tuple[Shape | None, str]:
    """Resolve an argument `shards` that counts inner chunks.

    - `shards`: inner chunks along all axes, or along each axis of a shard. Or a decoded size such
      as ``"256MB"``, or ``"auto"``. Or dimensions that a shard spans whole, as letters (``"XYZ"``)
      or as names with commas between them (``"lat,lon"``). None stands for no shards.
    """
    if shards is None:
        return None, "no shards: each chunk is a file"
    counts = explicit_sizes(shards, len(shape), "shards")
    if counts is not None:
        found = tuple(k * c for k, c in zip(counts, chunks, strict=True))
        check_extents("shards", shards, found)
    elif _is_size(str(shards)):
        text = _AUTO_NBYTES if shards == "auto" else str(shards)
        parse_nbytes(text, "shards")
        found = resolve_shapes(shape, itemsize, text, chunks, ())[0] or chunks
    else:
        whole = _axes(str(shards), names or ())
        found = tuple(
            ceil_div(max(1, n), c) * c if axis in whole else c
            for axis, (n, c) in enumerate(zip(shape, chunks, strict=True))
        )
    counted = tuple(s // c for s, c in zip(found, chunks, strict=True))
    note = f"shards {found}: {counted} inner chunks, {math.prod(counted):,} in each"
    there = math.prod(ceil_div(max(1, n), c) for n, c in zip(shape, chunks, strict=True))
    held = math.prod(
        ceil_div(max(1, n), s) * k for n, s, k in zip(shape, found, counted, strict=True)
    )
    if held > _MUCH * there:
        note += (
            f"; {1 - there / held:.0%} of all entries of the indexes are for inner chunks outside "
            "of the array, so smaller shards save room"
        )
    return found, note


def _is_size(text: str) -> bool:
    return text == "auto" or re.match(r"\s*[\d.+-]", text) is not None


def _axes(text: str, names: Sequence[str | None]) -> set[int]:
    """Axes whose dimensions a text names."""
    known = [None if name is None else name.lower() for name in names]
    words = [part.strip() for part in text.split(",")] if "," in text else [text.strip()]
    if len(words) == 1 and words[0].lower() not in known:
        words = list(words[0]) or [""]
    found = []
    for word in words:
        axes = [axis for axis, name in enumerate(known) if name == word.lower() and word]
        if len(axes) != 1:
            there = ", ".join(repr(name) for name in names if name is not None) or "no name"
            raise SpecError(
                f"{word!r} names {'no' if not axes else 'more than one'} dimension; the array has "
                f"{there}",
                field="shards",
                value=text,
                remedy='give names of dimensions such as "XYZ" or "lat,lon", or dimension_names=, '
                'or a size such as 8 (inner chunks) or "256MB"',
            )
        found += axes
    if len(set(found)) < len(found):
        raise SpecError(
            "names a dimension twice", field="shards", value=text, remedy="name each once"
        )
    return set(found)
