"""What a run writes, as the fields that its digest covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from shardwrite.codecs.documents import JSON, Document
from shardwrite.grid import Shape

Bounds = tuple[tuple[int, int], ...]
"""Start and stop along each axis, in elements."""

WHOLE = ":whole"
"""End of the identity of a source whose objects are copied as they are."""

_STORED = "stored:"  # with which the identity of an array begins that is converted or transferred
_LARGEST = 2**63
_PLANNED = (
    "metadata",
    "strategy",
    "units",
    "write_empty_chunks",
    "source",
    "region",
    "append_axis",
    "mode",
)
_PASSING = ("mode", "stream", "salvage", "region", "strategy")
_T = TypeVar("_T", bool, int, str)


class ShardWindow(NamedTuple):
    """Box of shards that a run writes."""

    first: Shape
    counts: Shape

    @classmethod
    def from_json(cls, found: JSON) -> ShardWindow:
        """Parse a window from a plan on disk.

        - Raises ValueError if it is not a position and a number of shards per axis.
        """
        if not isinstance(found, list) or len(found) != 2:
            raise ValueError("it does not say which shards it writes")
        first, counts = _sizes_in(found[0]), _sizes_in(found[1])
        if first is None or counts is None:
            raise ValueError("it does not say which shards it writes")
        if len(first) != len(counts):
            raise ValueError("its shards have no place")
        return cls(first, counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a run writes. A field is None where a run has no such field.

    A stream and a salvage have no source that could be read again, so they name neither metadata
    nor source.
    """

    # Metadata document of the array. For an update it is without the shape, because the array may
    # grow elsewhere in the meantime.
    metadata: Document | None = None
    # Position of the first shard and shape in elements of the part that an update writes
    window: tuple[Shape, Shape] | None = None
    strategy: str | None = None  # label of the write strategy
    # Edges of the units along each axis, where the bytes of a shard depend on them
    units: tuple[Shape, ...] | None = None
    # Whether inner chunks that hold only the fill value are stored
    write_empty_chunks: bool | None = None
    source: str | None = None  # identity of the source
    # Start and stop along each axis of the region that an update writes, in elements
    region: Bounds | None = None
    append_axis: int | None = None  # axis along which the array grows by the region
    mode: str | None = None  # ``"r+"`` if the run changes an array that exists
    stream: bool = False  # whether the run is a stream or a salvage, which cannot be resumed
    salvage: bool = False
    # Fields that this version does not know
    others: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def tells_strategy(self) -> bool:
        """Whether the strategy is that of the shards, and not that of a copy or of nothing."""
        return self.source != "nothing" and not (self.source or "").endswith(WHOLE)

    @property
    def is_of_stored_chunks(self) -> bool:
        """Whether the source is an array whose chunks are taken over, and those alone."""
        return (self.source or "").startswith(_STORED)

    def to_dict(self) -> dict[str, JSON]:
        """Return the fields as values that JSON can hold; a run's digest covers these values."""
        values: dict[str, JSON] = {
            "metadata": self._document(),
            "strategy": self.strategy,
            "units": None if self.units is None else [list(edges) for edges in self.units],
            "write_empty_chunks": self.write_empty_chunks,
            "source": self.source,
            "region": None if self.region is None else [list(pair) for pair in self.region],
            "append_axis": self.append_axis,
            "mode": self.mode,
            "stream": self.stream or None,
            "salvage": self.salvage or None,
        }
        names = _PASSING if self.stream or self.salvage else _PLANNED
        # A plan without units says so.
        always = set() if self.write_empty_chunks is None else {"units"}
        known = {name: values[name] for name in names if values[name] is not None or name in always}
        return {**known, **self.others}

    def _document(self) -> Document | None:
        if self.metadata is None or self.window is None:
            return self.metadata
        return {**self.metadata, "window": [list(part) for part in self.window]}

    @classmethod
    def from_dict(cls, found: Mapping[str, JSON]) -> Identity:
        """Parse and check the value that `to_dict` returns."""
        metadata, window = _document_in(found, "metadata"), None
        region = bounds_in(found["region"]) if "region" in found else None
        if metadata is not None and region is not None:
            window = _window_in(metadata.get("window"))
            metadata = {name: value for name, value in metadata.items() if name != "window"}
        return cls(
            metadata=metadata,
            window=window,
            strategy=_of_type(found, "strategy", str),
            units=_units_in(found.get("units")),
            write_empty_chunks=_of_type(found, "write_empty_chunks", bool),
            source=_of_type(found, "source", str),
            region=region,
            append_axis=_of_type(found, "append_axis", int),
            mode=_of_type(found, "mode", str),
            stream=bool(_of_type(found, "stream", bool)),
            salvage=bool(_of_type(found, "salvage", bool)),
            others={
                name: value
                for name, value in found.items()
                if name not in _PLANNED and name not in _PASSING
            },
        )


def bounds_in(region: JSON) -> Bounds:
    """Parse a region: a list of ``[start, stop]``, one for each axis, in elements."""
    pairs = [_sizes_in(pair) for pair in region] if isinstance(region, list) else [None]
    bounds = [
        (pair[0], pair[1])
        for pair in pairs
        if pair is not None and len(pair) == 2 and pair[0] <= pair[1]
    ]
    if len(bounds) != len(pairs):
        raise ValueError("it does not say which region it writes")
    return tuple(bounds)


def _window_in(found: JSON) -> tuple[Shape, Shape] | None:
    """Window in the metadata of an update; None where there is none."""
    if found is None:
        return None
    parts = [_sizes_in(part) for part in found] if isinstance(found, list) else []
    sizes = [part for part in parts if part is not None]
    if len(sizes) != 2 or len(parts) != 2:
        raise ValueError("it does not say which part of the array it writes")
    return sizes[0], sizes[1]


def _units_in(found: JSON) -> tuple[Shape, ...] | None:
    if found is None:
        return None
    units = [_sizes_in(edges) for edges in found] if isinstance(found, list) else [None]
    known = tuple(edges for edges in units if edges is not None)
    if len(known) != len(units):
        raise ValueError("its units have no edges")
    return known


def _of_type(found: Mapping[str, JSON], name: str, kind: type[_T]) -> _T | None:
    """Value of a field, which is of a plain type; None where the field is missing."""
    value = found.get(name)
    if value is None or type(value) is kind:
        return value
    raise ValueError(f"its field {name!r} is not of the type {kind.__name__}")


def _document_in(found: Mapping[str, JSON], name: str) -> Document | None:
    value = found.get(name)
    if value is None or isinstance(value, dict):
        return value
    raise ValueError(f"its field {name!r} is no object")


def _sizes_in(found: JSON) -> Shape | None:
    """A list of integers from 0 to 2**63 - 1 as a tuple; None for any other value."""
    if not isinstance(found, list):
        return None
    sizes = tuple(n for n in found if type(n) is int and 0 <= n < _LARGEST)
    return sizes if len(sizes) == len(found) else None
