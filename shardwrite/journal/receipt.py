"""What stays of a run that succeeded: a small file among the array's own, so that it goes where the array goes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import JournalError, SpecError
from shardwrite.grid import Shape, ShardGrid
from shardwrite.journal.facts import check_region
from shardwrite.journal.ledger import as_runs, from_runs
from shardwrite.plan.limits import MAX_SHARDS
from shardwrite.stores import parse_json, read_file
from shardwrite.target import RECEIPT_NAME, Target

__all__ = ["Receipt", "empty_after", "read_receipt"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """That an array was written whole.

    Attributes
    ----------
    digest : str
        Of the plan.
    run : str
        Name of the run.
    identity : dict
        What the digest names: metadata, strategy, source.
    durability : str
        Level at which every shard was committed.
    finished : str
        When, in UTC, ISO 8601.
    version : str
        Of shardwrite.
    result : dict
        The result's fields.
    empty : list of [int, int], optional
        Shards that are empty by design and have no object: first rank and count of each run of neighbours. None where nobody
        knows, because the array was written by another program, or has more shards than one can look at.
    updates : list of dict
        What was written into the array since, the last of it: ``digest``, ``run``, ``identity``, ``finished`` and ``result``.
    shape : list of int, optional
        Of the array after the last of them.
    """

    digest: str
    run: str
    identity: dict[str, Any]
    durability: str
    finished: str
    version: str
    result: dict[str, Any]
    empty: list[list[int]] | None
    updates: list[dict[str, Any]] = field(default_factory=list)
    shape: list[int] | None = None

    def encode(self) -> bytes:
        """As a file."""
        return json.dumps({"format": 1, **asdict(self)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Receipt:
        """From a file.

        Raises
        ------
        ValueError
            If it is none.
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
            raise ValueError("fields that are no objects")  # noqa: TRY004 (the file is wrong, not its type)
        updates = found.get("updates", [])
        if not isinstance(updates, list):
            raise ValueError("no list of updates")  # noqa: TRY004 (as above)
        for update in updates:
            _check_update(update)
        shape = found.get("shape")
        if shape is not None and not (
            isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
        ):
            raise ValueError("a shape that is none")
        _check_runs(found["empty"])
        return cls(
            **texts,
            identity=found["identity"],
            result=found["result"],
            empty=found["empty"],
            updates=updates,
            shape=shape,
        )

    def update(self, digest: str) -> dict[str, Any] | None:
        """The last update of a digest."""
        return next(
            (update for update in reversed(self.updates) if update.get("digest") == digest), None
        )

    def is_of(self, digest: str, run: str | None = None) -> bool:
        """Whether it tells of a plan, or of one run of it."""
        runs = [self.run] if self.digest == digest else []
        runs += [
            str(update.get("run")) for update in self.updates if update.get("digest") == digest
        ]
        return bool(runs) if run is None else run in runs

    def is_empty(self, grid: ShardGrid) -> npt.NDArray[np.bool_]:
        """Which shards are empty by design, those that the array has grown by since among them; none where nobody knows.

        Parameters
        ----------
        grid : ShardGrid
            Of the array as it is now.

        Returns
        -------
        numpy.ndarray of bool, of the shard grid's shape

        Raises
        ------
        SpecError
            If the receipt does not fit the array.
        """
        if self.empty is None:
            return np.zeros(grid.counts, dtype=bool)
        try:
            shape = tuple(self.shape or self.identity["metadata"]["shape"])
            if len(shape) != grid.ndim or any(
                m > n for m, n in zip(shape, grid.shape, strict=True)
            ):
                raise ValueError(f"it is of an array of shape {shape}")  # noqa: TRY301 (one refusal for all that is wrong)
            counts = replace(grid, shape=shape).counts
            if math.prod(counts) > MAX_SHARDS:
                raise ValueError("more shards than one can look at")  # noqa: TRY301 (as above)
            before = np.zeros(math.prod(counts), dtype=bool)
            before[from_runs(self.empty, len(before))] = True
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            message, remedy = f"does not fit the array ({error})", "remove it, and verify deep"
            raise SpecError(message, field="receipt", value=RECEIPT_NAME, remedy=remedy) from error
        now = np.ones(grid.counts, dtype=bool)
        now[tuple(slice(n) for n in counts)] = before.reshape(counts)
        return now


def _check_update(update: Any) -> None:
    """Refuse what is not an update as a receipt keeps it."""
    if (
        not isinstance(update, dict)
        or not isinstance(update.get("digest"), str)
        or not isinstance(update.get("identity"), dict)
    ):
        raise ValueError("updates that are none")  # noqa: TRY004 (the file is wrong, not its type)
    check_region(update["identity"].get("region"))


def _check_runs(runs: Any) -> None:
    """Refuse what is not a list of first ranks and counts."""
    if runs is None:
        return
    if not isinstance(runs, list) or not all(
        isinstance(run, list) and [*map(type, run)] == [int, int] for run in runs
    ):
        raise ValueError("empty shards that are no ranks")


def read_receipt(target: Target) -> Receipt | None:
    """The receipt of an array, or None.

    Raises
    ------
    JournalError
        If what stands there is no receipt.
    StoreError
        If it cannot be read.
    """
    path = target.path / RECEIPT_NAME
    data = read_file(path)
    try:
        return None if data is None else Receipt.decode(data)
    except (ValueError, KeyError) as error:
        message = f"{path} is no receipt ({error}); remove it, and verify --deep instead"
        raise JournalError(message, path=str(path)) from error


def empty_after(
    before: Receipt,
    grid: ShardGrid,
    first: Shape,
    is_empty: npt.NDArray[np.bool_],
    is_known: npt.NDArray[np.bool_] | None = None,
) -> list[list[int]] | None:
    """Shards that are empty by design after an update of some; what an array has grown by besides them was never written.

    Parameters
    ----------
    before : Receipt
        What is known of the others.
    grid : ShardGrid
        Of the array as it is now.
    first : tuple of int
        Position of the first shard of the update.
    is_empty : numpy.ndarray of bool
        Which of its shards are empty; some may lie beyond the array.
    is_known : numpy.ndarray of bool, optional
        Of which of them that is known; the update has not come to the others. All, by default.
    """
    if before.empty is None or grid.n_shards > MAX_SHARDS:
        return None
    now = before.is_empty(grid)
    inside = tuple(
        slice(a, min(a + k, n)) for a, k, n in zip(first, is_empty.shape, grid.counts, strict=True)
    )
    there = tuple(slice(max(0, s.stop - s.start)) for s in inside)
    known = np.ones_like(is_empty) if is_known is None else is_known
    now[inside] = np.where(known[there], is_empty[there], now[inside])
    return as_runs(np.flatnonzero(now.ravel()))
