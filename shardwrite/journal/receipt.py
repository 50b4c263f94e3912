"""The receipt of a finished run: a small file in the array's own directory.

The file lies inside the array so that it is moved and removed together with the array.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import JSON
from shardwrite.errors import JournalError, SpecError
from shardwrite.grid import Shape, ShardGrid
from shardwrite.journal.ledger import as_runs, from_runs
from shardwrite.place.base import RECEIPT_NAME
from shardwrite.place.target import Target
from shardwrite.plan import Identity
from shardwrite.plan.limits import MAX_SHARDS
from shardwrite.stores import parse_json

__all__ = ["Receipt", "UpdateEntry", "empty_after", "read_receipt"]


@dataclass(frozen=True, slots=True)
class UpdateEntry:
    """Record of an update in the receipt of its array.

    Attributes
    ----------
    digest : str
        Digest of the update's plan.
    identity : Identity
        What the digest covers, without the metadata.
    run, finished : str, optional
        Name of the run, and the time at which it finished.
    result : mapping, optional
        Fields of the run's result.
    others : mapping
        Fields that this version does not know.
    """

    digest: str
    identity: Identity
    run: str | None = None
    finished: str | None = None
    result: Mapping[str, JSON] | None = None
    others: Mapping[str, JSON] = field(default_factory=dict)

    def to_dict(self) -> dict[str, JSON]:
        """Return the fields as values that JSON can hold."""
        found: dict[str, JSON] = {
            "digest": self.digest,
            "run": self.run,
            "identity": self.identity.to_dict(),
            "finished": self.finished,
            "result": self.result,
            **self.others,
        }
        return {name: value for name, value in found.items() if value is not None}

    def is_cut_off(self, shape: Sequence[int]) -> bool:
        """Whether the region of the update reaches beyond an array of a shape."""
        region = self.identity.region or ()
        return any(stop > n for (_, stop), n in zip(region, shape, strict=False))

    @classmethod
    def from_json(cls, found: JSON) -> UpdateEntry:
        """Parse and check the value that `to_dict` returns.

        Raises
        ------
        ValueError
            If a field is missing or has a wrong type.
        """
        update = found if isinstance(found, Mapping) else {}
        digest, identity = update.get("digest"), update.get("identity")
        run, finished, result = (update.get(name) for name in ("run", "finished", "result"))
        if not isinstance(digest, str) or not isinstance(identity, Mapping):
            raise ValueError("updates that are none")  # noqa: TRY004 (of the file)
        if (
            not isinstance(run, str | None)
            or not isinstance(finished, str | None)
            or not isinstance(result, Mapping | None)
        ):
            raise ValueError("updates that are none")  # noqa: TRY004 (of the file)
        what = Identity.from_dict(identity)
        if what.region is None:
            raise ValueError("it does not say which region it writes")
        known = ("digest", "identity", "run", "finished", "result")
        others = {name: value for name, value in update.items() if name not in known}
        return cls(digest, what, run, finished, result, others)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Record that an array was written completely.

    Attributes
    ----------
    digest : str
        Digest of the plan.
    run : str
        Name of the run.
    identity : Identity
        What the digest covers: metadata, strategy and source.
    durability : str
        Durability level at which every shard was committed.
    finished : str
        Time at which the run finished, in UTC and ISO 8601 format.
    version : str
        Version of shardwrite that wrote the array.
    result : mapping
        Fields of the run's result.
    empty : list of [int, int], optional
        Shards that are empty by design and have no object, as the first rank and the count of
        each sequence of consecutive ranks. None if they are not known, because another program
        wrote the array, or because the array has more than `MAX_SHARDS` shards.
    updates : tuple of UpdateEntry
        The most recent updates of the array since then.
    shape : list of int, optional
        Shape of the array after the last update.
    """

    digest: str
    run: str
    identity: Identity
    durability: str
    finished: str
    version: str
    result: Mapping[str, JSON]
    empty: list[list[int]] | None
    updates: tuple[UpdateEntry, ...] = ()
    shape: list[int] | None = None

    def encode(self) -> bytes:
        """Content of the receipt file."""
        found = {
            "format": 1,
            "digest": self.digest,
            "run": self.run,
            "identity": self.identity.to_dict(),
            "durability": self.durability,
            "finished": self.finished,
            "version": self.version,
            "result": self.result,
            "empty": self.empty,
            "updates": [update.to_dict() for update in self.updates],
            "shape": self.shape,
        }
        # A field for each line, and not indent=, for which Python has no encoder in C.
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
        return ("{\n" + ",\n".join(lines) + "\n}\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """Parse the content of a receipt file.

        Raises
        ------
        ValueError
            If the content is not a receipt, or a field has a wrong type.
        KeyError
            If a field is missing.
        """
        found = parse_json(data)
        if not isinstance(found, Mapping) or found.get("format") != 1:
            raise ValueError("not a receipt of format 1")
        texts = {
            name: found[name] for name in ("digest", "run", "durability", "finished", "version")
        }
        if not all(isinstance(text, str) for text in texts.values()):
            raise ValueError("fields that are no text")
        if not isinstance(found["identity"], dict) or not isinstance(found["result"], dict):
            # The content of the file is wrong, not the type of an argument.
            raise ValueError("fields that are no objects")  # noqa: TRY004
        updates = found.get("updates", [])
        if not isinstance(updates, list):
            raise ValueError("no list of updates")  # noqa: TRY004 (as above)
        shape = found.get("shape")
        if shape is not None and not (
            isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
        ):
            raise ValueError("a shape that is none")
        _check_runs(found["empty"])
        return cls(
            **texts,
            identity=Identity.from_dict(found["identity"]),
            result=found["result"],
            empty=found["empty"],
            updates=tuple(UpdateEntry.from_json(update) for update in updates),
            shape=shape,
        )

    def update(self, digest: str) -> UpdateEntry | None:
        """The last update with the given digest, or None."""
        return next((entry for entry in reversed(self.updates) if entry.digest == digest), None)

    def count(self, name: str) -> int:
        """Number in the result, such as ``n_shards``; 0 if the result does not have it."""
        found = self.result.get(name)
        return int(found) if isinstance(found, int | float) else 0

    def is_of(self, digest: str, run: str | None = None) -> bool:
        """Whether the receipt covers a plan, as its first write or as an update.

        Parameters
        ----------
        digest : str
            Digest of the plan.
        run : str, optional
            Name of a run of that plan. By default, any run of it counts.
        """
        runs = [self.run] if self.digest == digest else []
        runs += [str(entry.run) for entry in self.updates if entry.digest == digest]
        return bool(runs) if run is None else run in runs

    def is_empty(self, grid: ShardGrid) -> npt.NDArray[np.bool_]:
        """Mask of the shards that are empty by design.

        Another program may have changed the shape since then. Shards by which the array has grown
        count as empty. If it is not known which shards are empty, no shard counts as empty.

        Parameters
        ----------
        grid : ShardGrid
            Grid of the array as it is now.

        Returns
        -------
        numpy.ndarray of bool, of the shard grid's shape
            True for each shard that is empty by design.

        Raises
        ------
        SpecError
            If the receipt does not fit the array.
        """
        if self.empty is None:
            return np.zeros(grid.counts, dtype=bool)
        try:
            shape = tuple(self.shape or (self.identity.metadata or {})["shape"])
            if len(shape) != grid.ndim:
                # Whatever is wrong is reported by the one `except` below.
                raise ValueError(f"it is of an array of shape {shape}")  # noqa: TRY301
            counts = replace(grid, shape=shape).counts
            if math.prod(counts) > MAX_SHARDS:
                raise ValueError("more shards than one can look at")  # noqa: TRY301 (as above)
            before = np.zeros(math.prod(counts), dtype=bool)
            before[from_runs(self.empty, len(before))] = True
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            message, remedy = f"does not fit the array ({error})", "remove it, and verify deep"
            raise SpecError(message, field="receipt", value=RECEIPT_NAME, remedy=remedy) from error
        now = np.ones(grid.counts, dtype=bool)
        common = tuple(slice(min(m, n)) for m, n in zip(counts, grid.counts, strict=True))
        now[common] = before.reshape(counts)[common]
        return now


def _check_runs(runs: JSON) -> None:
    """Check a value for `Receipt.empty`; raise ValueError if it is not valid."""
    if runs is None:
        return
    if not isinstance(runs, list) or not all(
        isinstance(run, list) and [*map(type, run)] == [int, int] for run in runs
    ):
        raise ValueError("empty shards that are no ranks")


def read_receipt(target: Target) -> Receipt | None:
    """The receipt of an array, or None if the array has none.

    Raises
    ------
    JournalError
        If the receipt file is not valid.
    StoreError
        If the file cannot be read.
    """
    data = target.place.read(RECEIPT_NAME)
    try:
        return None if data is None else _decoded(data)
    except (ValueError, KeyError) as error:
        path = f"{target.label}/{RECEIPT_NAME}"
        message = f"{path} is no receipt ({error}); remove it, and verify --deep instead"
        raise JournalError(message, path=path) from error


@lru_cache(maxsize=2)
def _decoded(data: bytes) -> Receipt:
    """Receipt in a file. An update looks at its array's receipt several times, mostly unchanged."""
    return Receipt.decode(data)


def empty_after(
    before: Receipt,
    grid: ShardGrid,
    first: Shape,
    is_empty: npt.NDArray[np.bool_],
    is_known: npt.NDArray[np.bool_] | None = None,
) -> list[list[int]] | None:
    """Shards that are empty by design after an update of some shards.

    The update's shards are as `is_empty` says. The other shards are as the receipt says; those
    by which the array has grown were never written, so they count as empty.

    Parameters
    ----------
    before : Receipt
        Receipt before the update.
    grid : ShardGrid
        Grid of the array as it is now.
    first : tuple of int
        Position of the update's first shard in the shard grid.
    is_empty : numpy.ndarray of bool
        Mask of the update's shards that are empty, one axis for each axis of the array. Shards
        that lie beyond the array are ignored.
    is_known : numpy.ndarray of bool, optional
        Mask of the update's shards for which `is_empty` is valid. The update has not written the
        others. All shards, by default.

    Returns
    -------
    list of [int, int] or None
        Value for `Receipt.empty`. None if the receipt does not know the empty shards or does not
        fit the array, or if the array has more than `MAX_SHARDS` shards.
    """
    if before.empty is None or grid.n_shards > MAX_SHARDS:
        return None
    try:
        now = before.is_empty(grid)
    except SpecError:  # the update makes a receipt that fits
        return None
    inside = tuple(
        slice(a, min(a + k, n)) for a, k, n in zip(first, is_empty.shape, grid.counts, strict=True)
    )
    there = tuple(slice(max(0, s.stop - s.start)) for s in inside)
    known = np.ones_like(is_empty) if is_known is None else is_known
    now[inside] = np.where(known[there], is_empty[there], now[inside])
    return as_runs(np.flatnonzero(now.ravel()))
