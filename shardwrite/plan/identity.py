"""What a run writes, as the fields that its digest covers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON, Document
from shardwrite.grid import Shape
from shardwrite.records import Check, Record, always, rest

Bounds = tuple[tuple[int, int], ...]
"""Start and stop along each axis, in elements."""

WHOLE = ":whole"
"""End of the identity of a source whose objects are copied as they are."""

_STORED = "stored:"  # with which the identity of an array begins that is converted or transferred
_ORDERED = Check(
    lambda region: all(start <= stop for start, stop in region),
    "a region that ends after it begins",
)
_OF_STREAMS = ("mode", "stream", "salvage", "region", "strategy")


class ShardWindow(NamedTuple):
    """Box of shards that a run writes."""

    first: Shape
    counts: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity(Record):
    """What a run writes. A field is None where a run has no such field.

    A stream and a salvage have no source that could be read again, so they name neither metadata
    nor source.
    """

    # Metadata document of the array. For an update it is without the shape, because the array may
    # grow elsewhere in the meantime.
    metadata: Document | None = None
    # Position of the first shard and shape in elements of the part that an update writes; it lies
    # in the metadata
    window: tuple[Shape, Shape] | None = None
    strategy: str | None = None  # label of the write strategy
    # Edges of the units along each axis, where the bytes of a shard depend on them
    units: tuple[Shape, ...] | None = always(None)
    # Whether inner chunks that hold only the fill value are stored
    write_empty_chunks: bool | None = None
    source: str | None = None  # identity of the source
    # Start and stop along each axis of the region that an update writes, in elements
    region: Annotated[Bounds, _ORDERED] | None = None
    append_axis: int | None = None  # axis along which the array grows by the region
    # Name of the regions whose values are all computed before a shard changes; see `runs.staged`
    staged: str | None = None
    mode: str | None = None  # ``"r+"`` if the run changes an array that exists
    stream: bool = False  # whether the run is a stream or a salvage, which cannot be resumed
    salvage: bool = False
    # Fields that this version does not know
    others: Mapping[str, JSON] = rest()

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
        made = Record.to_dict(self)
        window = made.pop("window", None)
        if self.metadata is not None and window is not None:
            made["metadata"] = {**self.metadata, "window": window}
        if self.write_empty_chunks is None and self.units is None:  # a plan without units says so
            del made["units"]
        if self.stream or self.salvage:
            names = (*_OF_STREAMS, *self.others)
            return {name: made[name] for name in names if name in made}
        return made

    @classmethod
    def from_dict(cls, found: JSON) -> Identity:
        """Parse and check the value that `to_dict` returns."""
        metadata = found.get("metadata") if isinstance(found, Mapping) else None
        if isinstance(found, Mapping) and isinstance(metadata, Mapping) and "region" in found:
            document = {name: value for name, value in metadata.items() if name != "window"}
            found = {**found, "metadata": document, "window": metadata.get("window")}
        return super(Identity, cls).from_dict(found)  # noqa: UP008 (it has slots)
