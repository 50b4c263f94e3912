"""The receipt of a finished run: a small file in the array's own directory.

The file lies inside the array so that it is moved and removed together with the array.
"""

from __future__ import annotations

import base64
import contextlib
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.checks import is_whole
from shardwrite.codecs.documents import JSON, Document
from shardwrite.errors import JournalError, SpecError
from shardwrite.format.node import DOCUMENT
from shardwrite.grid import Shape, ShardGrid
from shardwrite.journal.ledger import as_runs, from_runs
from shardwrite.journal.plan_record import SealError, check_seal, fields_in_lines, sealed
from shardwrite.place.base import RECEIPT_NAME, Place
from shardwrite.place.target import Target
from shardwrite.plan.identity import Bounds, Identity
from shardwrite.plan.partition import MAX_SHARDS
from shardwrite.records import (
    LaterFormatError,
    Record,
    RecordError,
    always,
    check_format,
    rest,
)
from shardwrite.stores.looking import parse_json, read_limit

# ---- Sizes of objects as a short text


MAX_SIZES = 2**20
"""Number of objects up to which sizes are kept; an update writes all of them anew."""


def pack_sizes(sizes: npt.NDArray[np.int64]) -> str:
    """Sizes as a text.

    The first bytes of all numbers come first, then the second bytes, and so on. Most of the last
    ones are zero, so a size of some megabytes takes about four characters.

    - `sizes`: the sizes in bytes; -1 stands for one that is not known.
    """
    planes = np.ascontiguousarray(sizes, dtype="<i8").view(np.uint8).reshape(-1, 8).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 1)).decode()


def unpack_sizes(text: str, n: int) -> npt.NDArray[np.int64]:
    """Sizes from the text that `pack_sizes` has made."""
    if n > MAX_SIZES:
        raise ValueError("more sizes than a receipt holds")
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(base64.b64decode(text, validate=True), 8 * n + 1)
    except zlib.error as error:
        raise ValueError(f"sizes that are none ({error})") from error
    if len(data) != 8 * n or not unpacker.eof:
        raise ValueError(f"not {n} sizes")
    planes = np.frombuffer(data, dtype=np.uint8).reshape(8, n)
    sizes = np.ascontiguousarray(planes.T).view("<i8").reshape(n).astype(np.int64)
    if (sizes < -1).any():
        raise ValueError("sizes that are none")
    return sizes


# ---- The receipt


_MAX_UPDATES = 100

_MAX_APPENDS = 10_000

_NBYTES_PER_RUN = 96  # of the limit of a file, of which half remains for all else

Empty = tuple[tuple[int, int], ...]
"""First rank and count of each sequence of empty shards."""

_DERIVED = ("dask:", "chunks:")  # identities of sources to which no user has given an identifier


@dataclass(frozen=True, slots=True)
class Contents:
    """What the objects of an array should be."""

    # Shards that are empty by design and have no object, as the first rank and the count of each
    # sequence of consecutive ranks. None if they are not known, because another program wrote the
    # array, or because the array has more than `MAX_SHARDS` shards.
    empty: Empty | None = None
    # Sizes of the objects of all shards, as `pack_sizes` gives them: 0 for a shard that is empty by
    # design, and -1 where it is not known. None if no size is known, because an earlier version
    # wrote the receipt or the array has more than `MAX_SIZES` shards.
    sizes: str | None = None

    @classmethod
    def of(cls, nbytes: npt.NDArray[np.int64]) -> Contents:
        """Contents of an array.

        - `nbytes`: size of each shard's object, by row-major rank: 0 where there is none by design,
          and -1 where it is not known.
        """
        if len(nbytes) > MAX_SHARDS:
            return cls()
        sizes = pack_sizes(nbytes) if len(nbytes) <= MAX_SIZES else None
        return cls(as_runs(np.flatnonzero(nbytes == 0)), sizes)

    def nbytes(self, n_shards: int) -> npt.NDArray[np.int64]:
        """Size of each shard's object, as `of` takes them."""
        if n_shards > MAX_SHARDS:
            raise ValueError("more shards than one can look at")
        found = np.full(n_shards, -1, dtype=np.int64)
        if self.sizes is not None:
            found = unpack_sizes(self.sizes, n_shards)
            found[found == 0] = -1  # only the other field tells which are empty
        if self.empty is not None:
            found[from_runs(self.empty, n_shards)] = 0
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateEntry(Record):
    """Record of an update in the receipt of its array."""

    digest: str  # digest of the update's plan
    run: str | None = None  # name of the run, and the time at which it finished
    identity: Identity  # what the digest covers, without the metadata
    finished: str | None = None
    result: Mapping[str, JSON] | None = None  # fields of the run's result
    # Whether a later run has changed elements of the update's region. Then the array may no longer
    # hold what the update wrote.
    replaced: bool = False
    # Whether the update was given up. It may have written some of its shards.
    given_up: bool = False
    # Fields that this version does not know
    others: Mapping[str, JSON] = rest()

    @property
    def is_named_append(self) -> bool:
        """Whether it is an append whose source has an identifier that its user has given."""
        source = self.identity.source or "dask:"
        return self.identity.append_axis is not None and not source.startswith(_DERIVED)

    def overlaps(self, region: Bounds) -> bool:
        """Whether it has elements in common with a region; true where the axes do not fit."""
        own = self.identity.region or ()
        return len(own) != len(region) or all(
            max(a, c) < min(b, d) for (a, b), (c, d) in zip(own, region, strict=True)
        )

    def is_cut_off(self, shape: Sequence[int]) -> bool:
        """Whether the region of the update reaches beyond an array of a shape."""
        region = self.identity.region or ()
        return any(stop > n for (_, stop), n in zip(region, shape, strict=False))

    @classmethod
    def from_dict(cls, found: JSON) -> UpdateEntry:
        """Parse and check the value that `to_dict` returns."""
        entry = super(UpdateEntry, cls).from_dict(found)  # noqa: UP008 (it has slots)
        if entry.identity.region is None:
            raise RecordError("there", "identity.region", cls.__name__)
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Record):
    """Record that an array was written completely."""

    _format = 1
    _grows = True

    digest: str  # digest of the plan
    run: str  # name of the run
    identity: Identity  # what the digest covers: metadata, strategy and source
    durability: str  # durability level at which every shard was committed
    finished: str  # time at which the run finished, in UTC and ISO 8601 format
    version: str  # version of shardwrite that wrote the array
    result: Mapping[str, JSON]  # fields of the run's result
    empty: Empty | None  # which shards are empty; see `Contents`
    # The updates of the array since then, in the order in which they ended; of many, the most
    # recent ones, and all appends whose source has an identifier
    updates: tuple[UpdateEntry, ...] = always(())
    shape: Shape | None = always(None)  # shape of the array after the last update
    sizes: str | None = None  # sizes of the objects; see `Contents`
    # Metadata document of the array when the user last accepted it as it was
    accepted: Document | None = None

    @property
    def contents(self) -> Contents:
        """What the objects of the array should be."""
        return Contents(self.empty, self.sizes)

    def encode(self) -> bytes:
        """Content of the receipt file.

        Sequences of empty shards are left out if there are so many that nobody would read the file.
        """
        most_runs = read_limit() // _NBYTES_PER_RUN
        is_short = len(self.empty or ()) <= most_runs
        facts = (self if is_short else replace(self, empty=None)).to_dict()
        return fields_in_lines(sealed(facts))

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """Parse the content of a receipt file. One of an earlier version has no checksum.

        - Raises LaterFormatError if only a later version of this package can read the content.
        - Raises SealError if the content has changed since it was written.
        """
        found = parse_json(data)
        if isinstance(found, dict):
            check_format(found.get("format"), cls._format, cls.__name__)
            check_seal(found)
        return cls.from_dict(found)

    def update(self, digest: str, identity: Identity) -> UpdateEntry | None:
        """The last finished update that wrote the same, or None.

        - `identity`: what the digest covers. It may differ from that of a finished update in the
          part of the array that was planned, because the array may have grown since.
        """
        what = _written_by(identity)
        return next(
            (
                entry
                for entry in reversed(self.updates)
                if not entry.given_up
                and (entry.digest == digest or _written_by(entry.identity) == what)
            ),
            None,
        )

    def with_update(self, entry: UpdateEntry, *, changes: Bounds | None) -> Receipt:
        """The receipt after another update.

        - `changes`: region whose values the update may have changed: start and stop along each
          axis, in elements. None if it has changed no values.
        """
        before = [kept for kept in self.updates if kept.digest != entry.digest]
        if changes is not None:
            before = [
                replace(kept, replaced=True) if kept.overlaps(changes) else kept for kept in before
            ]
        return replace(self, updates=(*_kept(before), entry))

    def all_replaced(self) -> Receipt:
        """The receipt after a run that may have changed any element."""
        return replace(self, updates=tuple(replace(e, replaced=True) for e in self.updates))

    @property
    def stores_empty_chunks(self) -> bool:
        """Whether the array was written with inner chunks that hold only the fill value.

        A conversion or a transfer takes over what its source stores. So it has such chunks if it
        has all chunks.
        """
        has_all = self.count("n_chunks") > 0 and not self.count("n_empty_chunks")
        takes_over = self.identity.is_of_stored_chunks
        return bool(self.identity.write_empty_chunks) or (takes_over and has_all)

    @property
    def has_all_updates(self) -> bool:
        """Whether no update since the first write was dropped from the list."""
        return len(self.updates) < _MAX_UPDATES

    def count(self, name: str) -> int:
        """Number in the result, such as ``n_shards``; 0 if the result does not have it."""
        found = self.result.get(name)
        return found if is_whole(found, 0) else 0

    def is_of(self, digest: str, run: str | None = None) -> bool:
        """Whether the receipt covers a plan, as its first write or as an update.

        - `run`: name of a run of that plan. By default, any run of it counts.
        """
        runs = [self.run] if self.digest == digest else []
        runs += [str(e.run) for e in self.updates if e.digest == digest and not e.given_up]
        return bool(runs) if run is None else run in runs

    def ends_with(self, digest: str) -> bool:
        """Whether the last run that it tells of was one of a plan."""
        return digest == (self.updates[-1].digest if self.updates else self.digest)

    def names(self, run: str) -> bool:
        """Whether the receipt says that a run is complete: a write, a repair or an update."""
        return run == self.run or any(e.run == run and not e.given_up for e in self.updates)

    def nbytes_on(self, grid: ShardGrid) -> npt.NDArray[np.int64] | None:
        """Size that the object of each shard should have.

        Another program may have changed the shape since then. Shards by which the array has grown
        count as empty.

        - Returns: 0 for a shard that is empty by design, and -1 for one that has an object of
          unknown size. None if the receipt does not tell which shards are empty, or if the array
          has now more shards than can be looked at.
        """
        if self.contents.empty is None or math.prod(grid.counts) > MAX_SHARDS:
            return None
        try:
            shape = tuple(self.shape or (self.identity.metadata or {})["shape"])
            if len(shape) != grid.ndim:
                # Whatever is wrong is reported by the one `except` below.
                raise ValueError(f"it is of an array of shape {shape}")  # noqa: TRY301
            counts = replace(grid, shape=shape).counts
            before = self.contents.nbytes(math.prod(counts))
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            message, remedy = f"does not fit the array ({error})", "remove it, and verify deep"
            raise SpecError(message, field="receipt", value=RECEIPT_NAME, remedy=remedy) from None
        now = np.zeros(grid.counts, dtype=np.int64)
        common = tuple(slice(min(m, n)) for m, n in zip(counts, grid.counts, strict=True))
        now[common] = before.reshape(counts)[common]
        return now

    def updated(
        self,
        grid: ShardGrid,
        first: Shape,
        nbytes: npt.NDArray[np.int64],
        is_known: npt.NDArray[np.bool_],
    ) -> Receipt:
        """The receipt after an update of some shards.

        Shards that the update has not written stay as they are here. Those by which the array has
        grown were never written, so they count as empty. If it is not known which shards are
        empty, or the receipt does not fit the array, that stays so.

        - `nbytes`: size of the object of each of the update's shards, one axis for each axis of the
          array: 0 where it is empty by design. Shards that lie beyond the array are ignored.
        """
        contents = Contents()
        # A receipt that does not fit is replaced by one that does.
        with contextlib.suppress(SpecError):
            now = self.nbytes_on(grid)
            if now is not None:
                inside = tuple(
                    slice(a, min(a + k, n))
                    for a, k, n in zip(first, nbytes.shape, grid.counts, strict=True)
                )
                there = tuple(slice(max(0, s.stop - s.start)) for s in inside)
                now[inside] = np.where(is_known[there], nbytes[there], now[inside])
                contents = Contents.of(now.ravel())
        return replace(self, empty=contents.empty, sizes=contents.sizes, shape=grid.shape)


def _written_by(identity: Identity) -> Identity:
    """An update's identity without what depends on the size of the array, or on the machine."""
    return replace(identity, metadata=None, window=None, units=None, others={})


def _kept(updates: list[UpdateEntry]) -> list[UpdateEntry]:
    """Updates that a receipt keeps beside a new one.

    An append that is forgotten would be made a second time if its call is repeated. So these are
    kept longer than the others.
    """
    old, recent = updates[: 1 - _MAX_UPDATES], updates[1 - _MAX_UPDATES :]
    appends = [e for e in old if e.is_named_append and not e.given_up]
    return [*map(_slimmed, appends[-_MAX_APPENDS:]), *recent]


def _slimmed(entry: UpdateEntry) -> UpdateEntry:
    """The update without what grows with the number of processes that made it."""
    if entry.result is None or not entry.result.get("peak_nbytes_by_process"):
        return entry
    return replace(entry, result={**entry.result, "peak_nbytes_by_process": {}})


def read_receipt(target: Target) -> Receipt | None:
    """The receipt of an array, or None if the array has none."""
    return receipt_at(target.place)


def receipt_at(place: Place) -> Receipt | None:
    """The receipt of the array at a place; see :func:`read_receipt`."""
    data = place.read(RECEIPT_NAME)
    path = f"{place.label}/{RECEIPT_NAME}"
    try:
        return None if data is None else _decoded(data)
    except LaterFormatError as error:
        message = (
            f"{path} was written by a later version of shardwrite ({error}). Nothing was changed. "
            "Install that version to check or change this array"
        )
        raise JournalError(message, path=path) from error
    except SealError as error:
        message = (
            f"{path} is damaged: {error}. Put a copy back, or remove it and verify --deep. After "
            "that nobody knows which appends are done: look at the array before you make one again"
        )
        raise JournalError(message, path=path) from error
    except ValueError as error:
        message = f"{path} is no receipt ({error}); remove it, and verify --deep instead"
        raise JournalError(message, path=path) from error


def is_written(place: Place, run: str) -> bool:
    """Whether a run has left its receipt in the array at a place, and the document is there, too.

    Where both were written together, a power cut may have taken the document alone.
    """
    receipt = receipt_at(place)
    return receipt is not None and receipt.names(run) and place.has(DOCUMENT)


@lru_cache(maxsize=2)
def _decoded(data: bytes) -> Receipt:
    """Decode a receipt, once for all the times that an update looks at it."""
    return Receipt.decode(data)


def changed_region(
    identity: Identity,
    grid: ShardGrid,
    first: Shape,
    is_touched: npt.NDArray[np.bool_],
) -> Bounds | None:
    """Region whose values an update may have changed.

    - `is_touched`: bool, shape (n_shards,). Mask of the shards of the part that were written.
    - Returns: start and stop along each axis, in elements of the array: the smallest box that holds
      the shards, and no more than the region of the update. None if there are no such shards.
    """
    at = np.argwhere(is_touched.reshape(grid.counts))
    if not len(at):
        return None
    bounds = tuple(
        (int(a + f) * s, int(b + f + 1) * s)
        for a, b, f, s in zip(at.min(axis=0), at.max(axis=0), first, grid.shards, strict=True)
    )
    region = identity.region
    if region is None or len(region) != len(bounds):
        return bounds
    return tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(bounds, region, strict=True))
