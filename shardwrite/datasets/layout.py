"""Shards and inner chunks of a variable, from sizes that are given by the names of dimensions."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.checks import is_whole
from shardwrite.datasets.keywords import Sizes
from shardwrite.errors import SpecError
from shardwrite.grid import Shape, as_sizes
from shardwrite.plan.options import (
    WHOLE,
    check_size,
    in_elements,
    n_chunks_in,
    parse_nbytes,
    resolve_shapes,
    shard_side,
    units_of,
)

ONE_PIECE_NBYTES = 2**20
"""Decoded size up to which a variable is one chunk without shards."""


@dataclass(frozen=True, slots=True)
class SizesByName:
    """Sizes of shards and inner chunks of all variables, checked."""

    shards: Sizes
    chunks: Sizes
    # Dimension along which arrays will grow; one of length 0 does in any case. Sizes that are named
    # along it may be longer than what there is at first.
    grows: Hashable = None

    def __post_init__(self) -> None:
        for field, value in (("shards", self.shards), ("chunks", self.chunks)):
            _check(field, value)

    def check_names(self, dims: Iterable[Hashable]) -> None:
        """Refuse a dimension that no variable has."""
        known = sorted({str(dim) for dim in dims})
        for field, value in (("shards", self.shards), ("chunks", self.chunks)):
            _check_names(field, value, known)
        if self.grows is not None and self.grows not in known:
            raise SpecError(
                "no variable has this dimension",
                field="append_dim",
                value=self.grows,
                remedy=f"the dimensions are {', '.join(known)}",
            )

    def of(
        self, dims: Sequence[Hashable], shape: Shape, itemsize: int, encoding: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """Shards and chunks of a variable, as keywords of a new array.

        - `encoding`: what a user asks for this variable alone.
        """
        for field in ("shards", "chunks"):
            if isinstance(encoding.get(field), Mapping):
                _check(field, encoding[field])
                _check_names(field, encoding[field], dims)
        nbytes, none = itemsize * math.prod(shape), [None] * len(shape)
        has_own = encoding.get("chunks") is not None or "shards" in encoding
        grows = {dim for dim, n in zip(dims, shape, strict=True) if dim == self.grows or not n}
        has_own = has_own or any(map(self._has_size_along, grows))
        if not shape or (nbytes <= ONE_PIECE_NBYTES and not has_own):
            return None, tuple(max(1, n) for n in shape)
        chunks = as_sizes(encoding.get("chunks")) or self.chunks
        if isinstance(chunks, Mapping):
            of_axes = _by_axis(chunks, dims, shape)
            named = [size for _, _, size in of_axes]
            sizes = in_elements("chunks", named, _most(grows, dims, shape), itemsize, none)
            chunks = tuple(
                max(1, n if size == WHOLE else int(size) if dim in grows else min(n, int(size)))
                for (dim, n, _), size in zip(of_axes, sizes, strict=True)
            )
        if is_whole(self.shards, 1) and "shards" not in encoding:
            chunks = resolve_shapes(shape, itemsize, None, chunks, ())[1]
            count = f"{int(self.shards)} chunks"
            return tuple(
                shard_side(count, *each) for each in zip(shape, chunks, strict=True)
            ), chunks
        shards = encoding.get("shards", self.shards)
        if isinstance(shards, Mapping):
            if any(isinstance(size, str) for size in shards.values()):
                chunks = resolve_shapes(shape, itemsize, None, chunks, ())[1]
            units = units_of(chunks, shape)
            sizes = [
                size if isinstance(size, str) or size < n or dim in grows else WHOLE
                for dim, n, size in _by_axis(shards, dims, shape)
            ]
            sizes = in_elements("shards", sizes, _most(grows, dims, shape), itemsize, none, units)
            shards = tuple(map(shard_side, sizes, shape, units))
        return shards, chunks

    def _has_size_along(self, dim: Hashable) -> bool:
        """Whether a size other than the whole is given along a dimension."""
        named = (sizes for sizes in (self.shards, self.chunks) if isinstance(sizes, Mapping))
        return any(sizes.get(dim, sizes.get(..., WHOLE)) != WHOLE for sizes in named)


def _most(grows: Collection[Hashable], dims: Sequence[Hashable], shape: Shape) -> Shape:
    """Shape that a box of a number of bytes may have at most: what grows has no end."""
    return tuple(2**62 if dim in grows else n for dim, n in zip(dims, shape, strict=True))


def _by_axis(
    sizes: Mapping[Any, int | str], dims: Sequence[Hashable], shape: Shape
) -> Iterable[tuple[Hashable, int, Any]]:
    """Name and length of each axis of a variable, and the size that is given for it."""
    rest = sizes.get(..., WHOLE)
    return [(dim, n, sizes.get(dim, rest)) for dim, n in zip(dims, shape, strict=True)]


def _check_names(field: str, value: Any, dims: Sequence[Hashable]) -> None:
    """Refuse sizes for a dimension that is none of these."""
    for name in value if isinstance(value, Mapping) else ():
        if name is not ... and name not in dims:
            raise SpecError(
                f"no variable has a dimension {name!r}",
                field=field,
                value=value,
                remedy=f"the dimensions are {', '.join(map(str, dims))}; `...` stands for the rest",
            )


def _check(field: str, value: Any) -> None:
    """Refuse what is no size of many variables."""
    is_counted = field == "shards" and n_chunks_in(value) is not None
    if isinstance(value, str) and value != "auto" and not is_counted:
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
        check_size(field, value, size)
