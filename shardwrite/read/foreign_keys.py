"""Objects in an array that are named like chunks, but not like those of its metadata.

An array whose chunks have other names than its metadata says reads as the fill value everywhere. So
a copy of it would be wrong, without an error.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata

_CHUNK = re.compile(r"(?:c[./])?\d+(?:[./]\d+)*|c")
REMEDY = (
    "if these are its chunks, correct chunk_key_encoding in zarr.json (dimension_separator in "
    ".zarray); if not, move them away"
)


@dataclass(frozen=True, slots=True)
class OtherNames:
    """Objects of an array that are named like chunks of another one."""

    # Number of objects that are chunks or shards of the array; not all are counted if a listing
    # ended at the first
    n_own: int
    n_others: int  # number of the other ones
    first: str  # key of one of them, and key that the metadata has for a chunk
    expected: str

    @property
    def message(self) -> str:
        """What is wrong."""
        return (
            f"{self.n_others:,} files are named like chunks, the first {self.first!r}, but the "
            f"metadata names chunks like {self.expected!r}, and "
            + ("only others are read" if self.n_own else "none of these is there")
            + ", so the values in these files would become the fill value"
        )


def other_names(
    keys: Iterable[str], metadata: ArrayMetadata, *, to_the_end: bool
) -> OtherNames | None:
    """Find objects that are named like chunks of another array; None if there are none.

    - `to_the_end`: whether to look at all keys. If not, the first chunk of the array ends the
      search.
    """
    if metadata.placed is not None or not metadata.grid.n_shards:
        return None
    n_own, n_others, first = 0, 0, ""
    for key in keys:
        if _CHUNK.fullmatch(key) is None:
            continue
        if metadata.shard_index(key) is not None:
            n_own += 1
            if not to_the_end:
                return None
        elif not _is_outside(key, metadata):  # which may be left of an array that was larger
            n_others, first = n_others + 1, first or key
    expected = metadata.shard_key((0,) * metadata.grid.ndim)
    return OtherNames(n_own, n_others, first, expected) if n_others else None


def _is_outside(key: str, metadata: ArrayMetadata) -> bool:
    """Whether a key has the form of the array's own, and names a chunk beyond its shape."""
    pattern = "".join(
        r"\d+" if part.isdigit() else re.escape(part)
        for part in re.split(r"(\d+)", metadata.shard_key((0,) * metadata.grid.ndim))
    )
    return bool(metadata.grid.ndim) and re.fullmatch(pattern, key) is not None


def check_names(
    keys: Callable[[], Iterable[str]],
    metadata: ArrayMetadata,
    label: str,
    *,
    to_the_end: bool = False,
    is_removed: bool = False,
) -> None:
    """Refuse an array whose chunks have other names than its metadata says.

    - `is_removed`: whether its objects are removed afterwards. Then a single one with another name
      is refused, and otherwise a warning tells of such if chunks of the array are there, too.
    """
    others = other_names(keys(), metadata, to_the_end=to_the_end)
    if others is None:
        return
    if others.n_own and not is_removed:
        warnings.warn(f"{label}: {others.message}; {REMEDY}", UserWarning, stacklevel=2)
        return
    raise SpecError(others.message, field="source", value=label, remedy=REMEDY)
