"""Arrays that exist and are to be converted: opened, and named.

An array whose chunks have other names than its metadata say reads as the fill value everywhere. So
a copy of it would be wrong, without an error.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.node import ATTRIBUTES_OF_V2, DOCUMENT, DOCUMENTS_OF_V2
from shardwrite.place.base import Place
from shardwrite.place.target import resolve_place
from shardwrite.read.array import ShardedArray, described_by
from shardwrite.read.inspection import Survey
from shardwrite.seams import needed
from shardwrite.stores.base import CopyLimits
from shardwrite.stores.looking import parse_document

# ---- Objects that are named like chunks of another metadata


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


# ---- Stored arrays


_ARRAY_OF_V2 = DOCUMENTS_OF_V2[0]


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array that exists."""

    place: Place  # where it lies
    # The array. The metadata of one of another format are those of the Zarr v3 array that has the
    # same chunks.
    array: ShardedArray
    document: str = DOCUMENT  # key of the document that describes it
    notes: tuple[str, ...] = ()  # what a user should know of its translation
    has_fill: bool = True  # whether it has a fill value of its own
    copy_limits: CopyLimits = field(
        default_factory=CopyLimits
    )  # which of its chunks cannot be copied, and why
    # Its identity, if it is known from before its document was moved; else empty
    known_identity: str = ""
    # Function that returns a `Survey` of its files, if these are no objects of a Zarr array
    survey: Callable[[], Survey] | None = None

    @property
    def label(self) -> str:
        """Text that names the array in messages and results."""
        return self.place.label

    @property
    def is_v3(self) -> bool:
        """Whether it is a Zarr v3 array."""
        return self.document == DOCUMENT

    @property
    def is_foreign(self) -> bool:
        """Whether it is a scale of a volume that another program wrote, which only has values."""
        return self.survey is not None

    @property
    def is_in_file(self) -> bool:
        """Whether it is a part of one file."""
        return self.array.store.is_in_file

    @property
    def names(self) -> Sequence[str | None] | None:
        """Names of its dimensions."""
        names: Sequence[str | None] | None = self.array.metadata.document.get("dimension_names")
        return names

    @property
    def identity(self) -> str:
        """Text that stays the same as long as nobody writes the array's document again."""
        if self.known_identity:
            return self.known_identity
        digest = hashlib.sha256(self.array.metadata.text.encode()).hexdigest()
        version = self.array.store.version(self.document)
        return f"stored:{self.array.store.token}:{digest}:{version}"


def open_stored(source: Any) -> StoredArray:
    """Open an array that exists.

    - `source`: A directory; a URL such as ``s3://bucket/x.zarr``; a store of zarr-python or
      obstore; or a group or array of zarr-python.
    """
    return stored_at(resolve_place(source, None, is_read=True))


def stored_at(place: Place) -> StoredArray:
    """Open the array at a place; see `open_stored`."""
    limits = place.store.copy_limits()
    data = place.read_if_there(DOCUMENT)
    if data is not None or not place.has(_ARRAY_OF_V2):
        array = described_by(data, place)
        stored = StoredArray(place, array, notes=limits.notes, copy_limits=limits)
    else:
        translated = needed(
            "document", "v2", "an array of Zarr v2", field="store", value=place.label
        )
        from shardwrite.read.source import plain_attributes  # for arrays of Zarr v2

        attributes = parsed_at(place, ATTRIBUTES_OF_V2)
        if isinstance(attributes, dict):
            attributes = plain_attributes(attributes, place.label)
        v2 = translated(parsed_at(place, _ARRAY_OF_V2), attributes)
        metadata = parse_metadata(json.dumps(v2.document, indent=2))
        array = ShardedArray(metadata, place.store, document=_ARRAY_OF_V2)
        notes = (*v2.notes, *limits.notes)
        stored = StoredArray(place, array, _ARRAY_OF_V2, notes, v2.has_fill, limits)
    place.store.check_sizes(_sizes_of(stored.array.metadata))
    return stored


def check_names_in(source: Any, name: str | None = None) -> None:
    """Refuse an array whose chunks have other names than its metadata says; see `check_names`.

    - `source`: see `open_stored`. Arrays that only other readers know are not looked at.
    """
    try:
        stored = stored_at(resolve_place(source, name, is_read=True))
    except SpecError:
        return
    check_names_of(stored)


def check_names_of(stored: StoredArray) -> None:
    """The same for an array that is open.

    It is listed to the end if it lies on this machine. Otherwise the first chunk ends the listing.
    """
    store = stored.array.store
    if store.lists and not stored.is_in_file and not stored.is_foreign:
        to_the_end = store.local_root is not None or store.is_in_memory
        check_names(store.list_keys, stored.array.metadata, stored.label, to_the_end=to_the_end)


def _sizes_of(metadata: ArrayMetadata) -> Callable[[str], int | None]:
    """Function of a key that returns how large the object of a chunk or shard can be.

    A shard may have twice the size of all its inner chunks, because of what updates have replaced.
    """

    @functools.cache
    def most() -> int:
        nbytes = metadata.pipeline.most_encoded_nbytes
        if not metadata.is_sharded:
            return nbytes
        n_chunks = metadata.grid.n_chunks_per_shard
        return 2 * (n_chunks * nbytes + metadata.index_codec.encoded_nbytes)

    return lambda key: None if metadata.shard_index(key) is None else most()


def parsed_at(place: Place, leaf: str) -> Any:
    """A document at a place, parsed; None if it is missing."""
    data = place.read(leaf)
    return None if data is None else parse_document(data, f"{place.label}/{leaf}")
