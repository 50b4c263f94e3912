"""Shards and inner chunks of a variable, from sizes that are given by the names of dimensions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.checks import is_whole
from shardwrite.datasets.keywords import Sizes
from shardwrite.errors import SpecError
from shardwrite.grid import Shape, ceil_div
from shardwrite.plan.options import parse_nbytes, resolve_shapes

ONE_PIECE_NBYTES = 2**20
"""Decoded size up to which a variable is one chunk without shards."""

_WHOLE = -1


@dataclass(frozen=True, slots=True)
class SizesByName:
    """Sizes of shards and inner chunks of all variables, checked."""

    shards: Sizes
    chunks: Sizes
    # Dimension along which arrays will grow. Sizes that are named along it may be longer than what
    # there is at first.
    grows: Hashable = None

    def __post_init__(self) -> None:
        for field, value in (("shards", self.shards), ("chunks", self.chunks)):
            _check(field, value)

    def check_names(self, dims: Iterable[Hashable]) -> None:
        """Refuse sizes for a dimension that no variable has."""
        known = {*dims, ...}
        for field, value in (("shards", self.shards), ("chunks", self.chunks)):
            for name in value if isinstance(value, Mapping) else ():
                if name not in known:
                    names = sorted(str(dim) for dim in known if dim is not ...)
                    raise SpecError(
                        f"no variable has a dimension {name!r}",
                        field=field,
                        value=value,
                        remedy=f"the dimensions are {', '.join(names)}; `...` stands for the rest",
                    )

    def of(
        self, dims: Sequence[Hashable], shape: Shape, itemsize: int, encoding: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """Shards and chunks of a variable, as keywords of a new array.

        - `encoding`: what a user asks for this variable alone.
        """
        nbytes = itemsize * math.prod(shape)
        has_own = encoding.get("chunks") is not None or "shards" in encoding
        has_own = has_own or (self._names_growing and self.grows in dims)
        if not shape or (nbytes <= ONE_PIECE_NBYTES and not has_own):
            return None, tuple(max(1, n) for n in shape)
        chunks = encoding.get("chunks") or self.chunks
        if isinstance(chunks, Mapping):
            chunks = tuple(
                max(1, n if size == _WHOLE else size if dim == self.grows else min(n, size))
                for dim, n, size in _by_axis(chunks, dims, shape)
            )
        if is_whole(self.shards, 1) and "shards" not in encoding:
            chunks = resolve_shapes(shape, itemsize, None, chunks, ())[1]
            return _shards_of(self.shards, chunks, shape), chunks
        shards = encoding.get("shards", self.shards)
        if isinstance(shards, Mapping):
            units = _units(chunks, shape)
            shards = tuple(
                size
                if size != _WHOLE and (size < n or dim == self.grows)
                else ceil_div(max(1, n), unit) * unit
                for (dim, n, size), unit in zip(_by_axis(shards, dims, shape), units, strict=True)
            )
        return shards, chunks

    @property
    def _names_growing(self) -> bool:
        """Whether sizes along the growing dimension are given."""
        named = (sizes for sizes in (self.shards, self.chunks) if isinstance(sizes, Mapping))
        return self.grows is not None and any(
            sizes.get(self.grows, sizes.get(..., _WHOLE)) != _WHOLE for sizes in named
        )


def _shards_of(n_chunks: Any, chunks: Shape, shape: Shape) -> Shape:
    """Shards of so many inner chunks along each axis, or of all that the axis has."""
    return tuple(
        unit * min(int(n_chunks), ceil_div(max(1, n), unit))
        for unit, n in zip(chunks, shape, strict=True)
    )


def _by_axis(
    sizes: Mapping[Any, int], dims: Sequence[Hashable], shape: Shape
) -> Iterable[tuple[Hashable, int, int]]:
    """Name and length of each axis of a variable, and the size that is given for it."""
    rest = sizes.get(..., _WHOLE)
    return [(dim, n, int(sizes.get(dim, rest))) for dim, n in zip(dims, shape, strict=True)]


def _units(chunks: Any, shape: Shape) -> Shape:
    """What the shards of whole dimensions are multiples of.

    If inner chunks are left to the planner, it takes powers of two that divide a shard. A shard of
    an odd length would have inner chunks of one element, so it is made up to an eighth longer.
    """
    if isinstance(chunks, tuple) and len(chunks) == len(shape):
        return tuple(chunks)
    if is_whole(chunks, 1):
        return (int(chunks),) * len(shape)
    return tuple(2 ** max(0, (n // 8).bit_length() - 1) for n in shape)


def _check(field: str, value: Any) -> None:
    """Refuse what is no size of many variables."""
    if isinstance(value, str) and value != "auto":
        parse_nbytes(value, field)
    if value is None or isinstance(value, str) or (field == "shards" and is_whole(value, 1)):
        return
    if not isinstance(value, Mapping):
        raise SpecError(
            "no sizes by the names of dimensions",
            field=field,
            value=value,
            remedy='give a mapping such as {"time": 720, ...: -1}, a text such as "256MB", or '
            "sizes of single variables in encoding; shards may be a number of chunks, too",
        )
    for size in value.values():
        if size != _WHOLE and not is_whole(size, 1):
            raise SpecError(
                f"{size!r} is no size",
                field=field,
                value=value,
                remedy="give positive whole numbers of elements, or -1 for a whole dimension",
            )
