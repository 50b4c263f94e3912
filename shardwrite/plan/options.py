"""Keywords that control a plan, but do not describe the array, and shapes of shards and chunks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.checks import flag, is_number, is_whole
from shardwrite.config.table import as_nbytes
from shardwrite.errors import SpecError
from shardwrite.format.strategies import FixedOrder, Strategy, as_strategy
from shardwrite.grid import Shape, Sized, ceil_div
from shardwrite.options import PlanKeywords
from shardwrite.plan.partition import check_extents
from shardwrite.results import human

__all__ = ["Sized", "explicit_sizes", "parse_nbytes", "resolve_shapes"]


# ---- Shapes, from the arguments `shards=` and `chunks=`


_INNER_NBYTES = 512 * 2**10

_SMALLEST_SHARE = 16
"""Chunks whose sides are powers of two have at least this part of the bytes that are wanted."""

_MOST_TRIED = 10**5  # divisors of a side

_SHARD_NBYTES = 64 * 2**20

_SHARD_RANGE = (10 * 10**6, 100 * 10**6)


def parse_nbytes(text: str, field: str) -> int:
    """Parse a number of bytes, such as ``"256MB"`` or ``"1.5 GiB"``.

    - `text`: number with an optional unit; fractions of a byte are cut off.
    - Raises SpecError if the text is not a number of bytes, or the number is less than 1.
    """
    try:
        return as_nbytes(text)
    except ValueError:
        remedy = 'give for instance "256MB" or "1GiB"'
        extents = re.fullmatch(
            r"[\s(\[]*(\d{1,20}(?:[\s,x\u00d7*;]+\d{1,20})+)[\s,)\]]*", text, re.IGNORECASE
        )
        if extents:
            remedy = (
                f"give a shape as a tuple, {tuple(map(int, re.findall(r'[0-9]+', extents[1])))}"
            )
        raise SpecError(
            "not a positive number of bytes", field=field, value=text, remedy=remedy
        ) from None


def resolve_shapes(
    shape: Shape,
    itemsize: int,
    shards: Sized,
    chunks: Sized,
    source_chunks: Sequence[Sequence[int]],
) -> tuple[Shape, Shape, tuple[str, ...]]:
    """Resolve the arguments `shards` and `chunks` to shapes.

    - `shards`: A shape, one size for all axes, a decoded size in bytes as text, or ``"auto"``. None
      is an array without shards, whose objects are single chunks.
    - `chunks`: the same; here None means ``"auto"``.
    - Raises SpecError if a shape has the wrong number of axes, or a size is not a positive integer
      or is larger than 2**62. Also if a text is not a number of bytes, or `shards` is not a
      multiple of `chunks`.
    """
    notes = []
    check_extents("shape", shape, shape)
    explicit_shards = explicit_sizes(shards, len(shape), "shards")
    explicit_chunks = explicit_sizes(chunks, len(shape), "chunks")
    for name, sizes in (("shards", explicit_shards), ("chunks", explicit_chunks)):
        check_extents(name, sizes, sizes or ())
    if explicit_chunks is None:
        target = _INNER_NBYTES if chunks in (None, "auto") else parse_nbytes(str(chunks), "chunks")
        explicit_chunks = _auto_chunks(shape, itemsize, target, explicit_shards)
        notes.append(
            f"chunks {explicit_chunks}: "
            f"{human(itemsize * math.prod(explicit_chunks))} each, near {human(target)}"
        )
    if shards is None:
        explicit_shards = explicit_chunks
        notes.append("no shards: each chunk is a file")
    elif explicit_shards is None:
        if shards == "auto":
            explicit_shards, why = _auto_shards(shape, itemsize, explicit_chunks, source_chunks)
        else:
            target = parse_nbytes(str(shards), "shards")
            explicit_shards, why = (
                _grow(shape, itemsize, explicit_chunks, target),
                f"at most {human(target)} decoded",
            )
        notes.append(f"shards {explicit_shards}: {why}")
    for axis, (s, c) in enumerate(zip(explicit_shards, explicit_chunks, strict=True)):
        if s % c:
            raise SpecError(
                f"not a multiple of the inner chunk on axis {axis}",
                field="shards",
                value=explicit_shards,
                remedy=(
                    f"with chunks={explicit_chunks} give {ceil_div(s, c) * c} instead of {s} there"
                ),
            )
    return explicit_shards, explicit_chunks, tuple(notes)


def explicit_sizes(value: Sized, ndim: int, field: str) -> Shape | None:
    """Return the shape that `value` gives, or None if it is None or a text."""
    if value is None or isinstance(value, str):
        return None
    sizes: list[Any] = list(value) if isinstance(value, Sequence) else [value] * ndim
    for size in sizes or ([] if isinstance(value, Sequence) else [value]):
        if not is_whole(size, 1):
            raise SpecError(
                "sizes are positive integers",
                field=field,
                value=value,
                remedy=f"{size!r} is not one; give for instance 64",
            )
    if len(sizes) != ndim:
        raise SpecError(
            f"has {len(sizes)} entries for {ndim} axes",
            field=field,
            value=value,
            remedy=f"give {ndim} sizes, or one for all axes",
        )
    return tuple(int(size) for size in sizes)


def _auto_chunks(shape: Shape, itemsize: int, target: int, shards: Shape | None) -> Shape:
    """Choose inner chunks of at most `target` bytes that are close to cubes.

    Their sides are powers of two, which also divide the sides of `shards` if these are given. Where
    chunks would be far too small by that, as in shards of 365 days, they are any divisors.
    """
    if shards is None:
        return _grown(itemsize, target, [_powers(2 * max(1, n) - 1) for n in shape])
    powers = [[side for side in _powers(n) if n % side == 0] for n in shards]
    chunks = _grown(itemsize, target, powers)
    enough = min(target, itemsize * math.prod(shards)) // _SMALLEST_SHARE
    if itemsize * math.prod(chunks) >= enough:
        return chunks
    return _grown(itemsize, target, [_divisors(n) for n in shards])


def _grown(itemsize: int, target: int, sides: Sequence[Sequence[int]]) -> Shape:
    """Chunks of at most `target` bytes, of which the shortest side grows first.

    - `sides`: for each axis, the sides that it may have, beginning with 1.
    """
    at = [0] * len(sides)
    growing = True
    while growing:
        growing = False
        for axis in sorted(range(len(sides)), key=lambda a: (sides[a][at[a]], -a)):
            longer = [n + (a == axis) for a, n in enumerate(at)]
            if longer[axis] == len(sides[axis]):
                continue
            nbytes = itemsize * math.prod(own[n] for own, n in zip(sides, longer, strict=True))
            if nbytes <= target:
                at, growing = longer, True
                break
    return tuple(own[n] for own, n in zip(sides, at, strict=True))


def _powers(most: int) -> list[int]:
    """Powers of two up to a number."""
    return [1 << n for n in range(most.bit_length())]


def _divisors(n: int) -> list[int]:
    """Divisors of a number in ascending order; of more than 10**10, those with a small factor."""
    small = [k for k in range(1, min(math.isqrt(n), _MOST_TRIED) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


def _grow(shape: Shape, itemsize: int, chunks: Shape, target: int) -> Shape:
    """Choose a shard of at most `target` bytes, or of one inner chunk if that is larger.

    The inner chunk is doubled along the shortest side until the limit or the array is reached.
    """
    counts = [1] * len(shape)
    growing = True
    while growing:
        growing = False
        for axis in sorted(range(len(shape)), key=lambda a: (counts[a] * chunks[a], -a)):
            covered = counts[axis] * chunks[axis] >= shape[axis]
            if not covered and itemsize * math.prod(counts) * math.prod(chunks) * 2 <= target:
                counts[axis] *= 2
                growing = True
                break
    needed = [ceil_div(max(1, n), c) for n, c in zip(shape, chunks, strict=True)]
    return tuple(min(k, n) * c for k, n, c in zip(counts, needed, chunks, strict=True))


def _auto_shards(
    shape: Shape, itemsize: int, chunks: Shape, source_chunks: Sequence[Sequence[int]]
) -> tuple[Shape, str]:
    """Choose a shard and explain the choice.

    A shard covers one source chunk, if that makes 10 to 100 MB decoded and source chunks are
    multiples of inner chunks. Otherwise a shard grows to at most 64 MiB.
    """
    by_source = tuple(
        ceil_div(max(sizes, default=1) or 1, c) * c
        for sizes, c in zip(source_chunks, chunks, strict=True)
    )
    nbytes = itemsize * math.prod(by_source)
    low, high = _SHARD_RANGE
    aligned = all(
        max(sizes, default=1) % c == 0 or len(sizes) == 1
        for sizes, c in zip(source_chunks, chunks, strict=True)
    )
    if low <= nbytes <= high and aligned:
        return by_source, f"one for each chunk of the source, {human(nbytes)} decoded"
    grown = _grow(shape, itemsize, chunks, _SHARD_NBYTES)
    return (
        grown,
        (
            f"{human(itemsize * math.prod(grown))} decoded, "
            f"aimed at {human(low)} to {human(high)} a file"
        ),
    )


# ---- Keywords


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PlanKeywords):
    """Keywords that control a plan, checked. The name of a strategy or an order is replaced."""

    strategy: Strategy = field(default_factory=FixedOrder)

    def __post_init__(self) -> None:
        flag("write_empty_chunks", self.write_empty_chunks)
        ratio, source_id = self.compression_ratio, self.source_id
        for keyword, is_good, remedy in (
            (
                "compression_ratio",
                ratio is None or (is_number(ratio) and ratio > 0),
                "give for instance 2.5, or None",
            ),
            (
                "max_graph_tasks",
                is_whole(self.max_graph_tasks, 1),
                f"give for instance {PlanKeywords.max_graph_tasks}",
            ),
            (
                "max_source_reruns",
                is_number(self.max_source_reruns) and self.max_source_reruns > 0,
                f"give for instance {PlanKeywords.max_source_reruns}",
            ),
            (
                "source_id",
                source_id is None or (isinstance(source_id, str) and bool(source_id)),
                "give a text, or None",
            ),
        ):
            if not is_good:
                raise SpecError(
                    "not what this keyword takes",
                    field=keyword,
                    value=getattr(self, keyword),
                    remedy=remedy,
                )
        object.__setattr__(self, "strategy", as_strategy(self.strategy))
        memory_limit_of(self.memory_limit)

    @property
    def memory_limit_nbytes(self) -> int | None:
        """The keyword `memory_limit` in bytes; None if it is not given."""
        return memory_limit_of(self.memory_limit)


def memory_limit_of(limit: Any) -> int | None:
    """The keyword `memory_limit` in bytes; None if it is not given.

    - Raises SpecError if it is not a positive number of bytes.
    """
    if isinstance(limit, str):
        limit = parse_nbytes(limit, "memory_limit")
    if limit is not None and not is_whole(limit, 1):
        raise SpecError(
            "not a positive number of bytes",
            field="memory_limit",
            value=limit,
            remedy='give for instance "4GB"',
        )
    return limit
