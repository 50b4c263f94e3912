"""Verification of arrays, and a census of their shards.

The journal or the receipt of an array and the indexes of its shards tell whether it is whole. On
request, every inner chunk is decoded, and values are compared with the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

import shardwrite._dask as dask
from shardwrite.engines import Engine, active_engine
from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.grid import ravel, unravel
from shardwrite.journal import Beside, Ledger, RunDirectory, look_beside, read_receipt, replay
from shardwrite.picture import Census, ShardState
from shardwrite.place.target import Target, resolve_target
from shardwrite.plan.limits import check_whole
from shardwrite.plan.render import human, table_html, table_text
from shardwrite.read.array import ShardedArray, open_at
from shardwrite.read.compare import check_source_of, compare
from shardwrite.read.inspection import ORDERS, ShardTable, inspect_shards
from shardwrite.stores import is_there

__all__ = [
    "Opened",
    "Problem",
    "Report",
    "ShardState",
    "census",
    "how_to_mend",
    "open_begun",
    "verify",
    "verify_opened",
]

_RECOVER = (
    "an update of the array was interrupted: run it again, or shardwrite abandon; if it is bad "
    "then, write it again"
)
_REWRITE = "write it again: shardwrite repair, with the source"


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of a shard.

    Attributes
    ----------
    key : str
        Storage key of the shard.
    index : tuple of int
        Position of the shard in the shard grid.
    message : str
        Description of the fault, with the inner chunk and the bytes where they are known.
    remedy : str
        Advice on how to repair it.
    """

    key: str
    index: tuple[int, ...]
    message: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of a verification.

    Attributes
    ----------
    path : str
        Path of the array.
    expected_by : str
        The record that tells lost shards from empty ones: ``receipt`` or ``journal``, or an empty
        text if there is none.
    n_shards : int
        Number of shards in the shard grid.
    n_present, n_absent : int
        Number of shards with and without a file. Shards without a file read as the fill value.
    n_missing, n_pending : int
        Number of shards without a file that should have one, and of shards without a file that a
        run has still to write.
    n_inner_chunks : int
        Number of inner chunks that overlap the array.
    n_stored_chunks : int
        Number of inner chunks that hold data.
    raw_nbytes, stored_nbytes, used_nbytes, unused_nbytes : int
        Sizes in bytes: of the decoded array, of the readable shard files, of the inner chunks in
        them, and of the space in them that belongs to no inner chunk and no index.
    orders : dict of str to int
        Number of shards for each order of inner chunks: ``C``, ``F``, ``morton`` or ``other``;
        ``any`` counts shards with fewer than two inner chunks that hold data.
    deep : bool
        Whether every inner chunk was decoded.
    against : bool
        Whether values were compared with a source.
    problems : tuple of Problem
        The faults, in order of the shards; empty if none was found.
    warnings : tuple of str
        Warnings about interrupted removals of runs beside the array, and about files there that
        are not trusted. With files that are not trusted, it is unknown whether a run has still to
        write shards. Also a warning if the receipt does not fit the array.
    states : numpy.ndarray of uint8
        `ShardState` of each shard, in the shape of the shard grid.
    stored : numpy.ndarray of int64
        Size of each shard's file in bytes, in the shape of the shard grid; 0 if there is no file or
        its index cannot be read.
    """

    path: str
    expected_by: str
    n_shards: int
    n_present: int
    n_absent: int
    n_missing: int
    n_pending: int
    n_inner_chunks: int
    n_stored_chunks: int
    raw_nbytes: int
    stored_nbytes: int
    used_nbytes: int
    unused_nbytes: int
    orders: dict[str, int]
    deep: bool
    against: bool
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...] = ()
    states: npt.NDArray[np.uint8] = field(repr=False, compare=False)
    stored: npt.NDArray[np.int64] = field(repr=False, compare=False)

    @property
    def is_good(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    @property
    def is_complete(self) -> bool:
        """Whether no shard is left for a run to write."""
        return not self.n_pending

    def to_dict(self) -> dict[str, Any]:
        """All fields except `states` and `stored`, as a dictionary that JSON can hold."""
        plain = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("states", "stored", "problems")
        }
        problems = [
            {f.name: getattr(problem, f.name) for f in fields(problem)} for problem in self.problems
        ]
        return {
            **plain,
            "problems": problems,
            "is_good": self.is_good,
            "is_complete": self.is_complete,
        }

    def _rows(self) -> list[tuple[str, str]]:
        ratio = self.raw_nbytes / self.stored_nbytes if self.stored_nbytes else 0.0
        absent = {
            "receipt": f"{self.n_missing:,} missing, the others are empty by design",
            "journal": f"{self.n_missing:,} missing, {self.n_pending:,} still to be written",
        }
        checked = ["indexes"]
        checked += ["every inner chunk decoded"] if self.deep else []
        checked += ["values against the source"] if self.against else []
        rows = [
            ("array", self.path),
            (
                "shards",
                (
                    f"{self.n_present:,} of {self.n_shards:,} present; "
                    "absent ones read as the fill value"
                ),
            ),
            (
                "absent",
                absent.get(self.expected_by, "nothing tells whether they are empty or lost"),
            ),
            ("inner chunks", f"{self.n_stored_chunks:,} of {self.n_inner_chunks:,} hold data"),
            (
                "bytes",
                (
                    f"{human(self.raw_nbytes)} decoded, "
                    f"{human(self.stored_nbytes)} stored ({ratio:.2f}x)"
                ),
            ),
            ("unused", human(self.unused_nbytes)),
            (
                "order",
                ", ".join(f"{name}: {count:,}" for name, count in sorted(self.orders.items()))
                or "none",
            ),
            ("checked", ", ".join(checked)),
            ("problems", "none" if self.is_good else str(len(self.problems))),
        ]
        rows += [("warning", text) for text in self.warnings]
        return rows + [
            (problem.key, f"{problem.message}\n{problem.remedy}") for problem in self.problems[:50]
        ]

    def __str__(self) -> str:
        return table_text("verified", self._rows())

    def _repr_html_(self) -> str:
        return table_html("verified", self._rows())


@dataclass(frozen=True, slots=True)
class Opened:
    """An open array, published or only begun, with its place and the runs beside it."""

    target: Target
    array: ShardedArray
    beside: Beside


def open_begun(store: Any, name: str | None, run_dir: Any = None) -> Opened:
    """Open an array for reading, whether it is published or only begun.

    The run directory beside the array is looked at once, and nothing is changed.

    Raises
    ------
    SpecError
        If there is neither a sharded array nor a run that makes one.
    JournalError
        If the array is not published and the run beside it is not trusted, or if the run's files
        are damaged.
    """
    target = resolve_target(store, name, run_dir, is_read=True)
    beside = look_beside(target)
    run = beside.run
    if target.is_published and (
        run is None or not run.record.replaces or is_there(run.path / "replaced")
    ):
        return Opened(target, open_at(target.place), beside)
    if beside.untrusted is not None:
        raise beside.untrusted
    if run is None:
        return Opened(target, open_at(target.place), beside)  # raises, and gives the reason
    return Opened(
        target,
        ShardedArray(parse_metadata(json.dumps(run.document)), target.store),
        beside,
    )


def _expected(
    target: Target, run: RunDirectory | None, metadata: ArrayMetadata
) -> tuple[str, Ledger | None, tuple[str, ...]]:
    """Name and contents of the record that tells which shards should exist, and warnings.

    A ledger made from a receipt only tells which shards are empty by design: `nbytes` is 0 for
    these and -1 for all others.
    """
    if run is not None and run.makes_array:  # a repair's array was whole before
        return "journal", replay(run, metadata, looking=True).ledger, ()
    receipt = read_receipt(target)
    if receipt is None or receipt.empty is None:
        return "", None, ()
    try:
        is_empty = receipt.is_empty(metadata.grid).ravel()
    except SpecError as error:
        return "", None, (f"the receipt is not used: {error}",)
    ledger = Ledger(metadata.grid)
    ledger.is_done[:] = True
    ledger.nbytes[:] = -1
    ledger.nbytes[is_empty] = 0
    return "receipt", ledger, ()


def _states(
    table: ShardTable, expected: Ledger | None, by: str
) -> tuple[npt.NDArray[np.uint8], dict[int, str]]:
    """State of every shard, and a message for each shard with a fault, by rank."""
    states = np.where(table.is_present, ShardState.WRITTEN, ShardState.EMPTY).astype(np.uint8)
    wrong = dict(table.problems)
    if expected is not None:
        states[~expected.is_done & ~table.is_present] = ShardState.PENDING
        missing = expected.is_done & (expected.nbytes != 0) & ~table.is_present
        states[missing] = ShardState.MISSING
        wrong |= dict.fromkeys(
            np.flatnonzero(missing).tolist(),
            f"the {by} says that it was written, and there is no object",
        )
        known = table.is_present & (expected.nbytes > 0)
        other = known & (
            (table.stored_nbytes != expected.nbytes) | (table.index_crcs != expected.index_crcs)
        )
        for rank in np.flatnonzero(other).tolist():
            found, noted = int(table.stored_nbytes[rank]), int(expected.nbytes[rank])
            wrong.setdefault(
                rank, f"is not what the {by} says: {found} bytes, not {noted}, or another index"
            )
    bad = [rank for rank in wrong if states[rank] != ShardState.MISSING]
    states[bad] = ShardState.BAD
    return states, wrong


def verify(
    store: Any,
    *,
    name: str | None = None,
    run_dir: Any = None,
    deep: bool = False,
    against: dask.array.Array | None = None,
    on_shards: Callable[[int], None] | None = None,
) -> Report:
    """Check every shard of an array, in parallel on the active engine.

    The array may be unfinished.

    Parameters
    ----------
    store : str, path, or store or node of zarr-python
        A directory or ``file://`` URL; or a store of zarr-python, or a group or array in one.
    name : str, optional
        Path of the array in the store.
    run_dir : str or path, optional
        See :func:`to_sharded_zarr`.
    deep : bool
        Decode every inner chunk as well, to find faults that only a codec or the checksum of an
        inner chunk can show.
    against : dask.array.Array, optional
        A source with the array's shape and dtype. Every value is compared with it, bit by bit.
    on_shards : callable, optional
        Function that is called with the number of shards that were checked since its last call.

    Returns
    -------
    Report
        The report; `is_good`, `is_complete` and `problems` sum it up.

    Raises
    ------
    SpecError
        If there is no sharded array, it has too many shards to check, or `against` has another
        shape or dtype.
    JournalError
        If the files beside the array that describe a run are damaged. Also if they are not
        trusted and the array is not published.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"; x = da.arange(100, chunks=10)
    >>> _ = x.to_sharded_zarr(path, shards=40, chunks=8)
    >>> shardwrite.verify(path, deep=True, against=x).is_good
    True
    """
    return verify_opened(
        open_begun(store, name, run_dir), deep=deep, against=against, on_shards=on_shards
    )


def verify_opened(
    opened: Opened,
    *,
    deep: bool = False,
    against: dask.array.Array | None = None,
    on_shards: Callable[[int], None] | None = None,
) -> Report:
    """Verify an open array; see :func:`verify`."""
    target, array, beside = opened.target, opened.array, opened.beside
    check_whole(array.metadata.grid, target.label)
    if against is not None:
        check_source_of(against, array.metadata, "against")
    grid = array.metadata.grid
    engine = active_engine()
    by, expected, warnings = _expected(target, beside.run, array.metadata)
    table = inspect_shards(engine, array, np.arange(grid.n_shards), deep=deep, on_shards=on_shards)
    states, wrong = _states(table, expected, by)
    remedies = dict.fromkeys(wrong, how_to_mend(beside))
    if against is not None:
        _compare(engine, array, against, states, wrong, remedies)
    problems = tuple(
        Problem(array.metadata.shard_key(index), index, wrong[rank], remedies[rank])
        for rank, index in ((rank, unravel(rank, grid.counts)) for rank in sorted(wrong))
    )
    report = _report(
        target.label,
        by,
        array.metadata,
        table,
        states,
        problems,
        deep=deep,
        against=against is not None,
    )
    return replace(report, warnings=(*beside.warnings, *warnings))


def how_to_mend(beside: Beside) -> str:
    """Advice on a bad shard; it depends on whether an update of the array was interrupted."""
    return _RECOVER if beside.updates else _REWRITE


def _compare(
    engine: Engine,
    array: ShardedArray,
    source: dask.array.Array,
    states: npt.NDArray[np.uint8],
    wrong: dict[int, str],
    remedies: dict[int, str],
) -> None:
    """Enter shards whose values differ from the source into `states`, `wrong` and `remedies`.

    Shards that are known to be bad or are not written yet are not compared.
    """
    skip = {
        int(rank) for rank in np.flatnonzero(np.isin(states, (ShardState.BAD, ShardState.PENDING)))
    }
    for rank, message in compare(engine, array, source, skip).items():
        wrong.setdefault(rank, message)
        remedies[rank] = f"if the source is right, {_REWRITE}"
        if states[rank] != ShardState.MISSING:
            states[rank] = ShardState.BAD


def _report(
    path: str,
    by: str,
    metadata: ArrayMetadata,
    table: ShardTable,
    states: npt.NDArray[np.uint8],
    problems: Sequence[Problem],
    *,
    deep: bool,
    against: bool,
) -> Report:
    grid = metadata.grid
    unreadable = [ravel(problem.index, grid.counts) for problem in problems]
    seen = table.is_present.copy()
    seen[unreadable] &= table.stored_nbytes[unreadable] > 0
    counts = np.bincount(table.orders[seen], minlength=len(ORDERS))
    stored, used = int(table.stored_nbytes.sum()), int(table.used_nbytes.sum())
    n_present = int(table.is_present.sum())
    return Report(
        path=path,
        expected_by=by,
        n_shards=grid.n_shards,
        n_present=n_present,
        n_absent=grid.n_shards - n_present,
        n_missing=int((states == ShardState.MISSING).sum()),
        n_pending=int((states == ShardState.PENDING).sum()),
        n_inner_chunks=grid.n_inner_chunks,
        n_stored_chunks=int(table.n_chunks.sum()),
        raw_nbytes=metadata.raw_nbytes,
        stored_nbytes=stored,
        used_nbytes=used,
        unused_nbytes=stored - used - int(table.index_nbytes.sum()),
        orders={name: int(n) for name, n in zip(ORDERS, counts, strict=True) if n},
        deep=deep,
        against=against,
        problems=tuple(problems),
        states=states.reshape(grid.counts),
        stored=table.stored_nbytes.reshape(grid.counts),
    )


def census(
    store: Any, *, name: str | None = None, on_shards: Callable[[int], None] | None = None
) -> Census:
    """Count the inner chunks that hold data, from the indexes of the shards alone.

    Parameters
    ----------
    store, name, on_shards
        See :func:`verify`.

    Returns
    -------
    Census
        The counts, and a picture of the shard grid.

    Raises
    ------
    SpecError
        If there is no sharded array, or it has too many shards to check.
    JournalError
        See :func:`verify`.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"; x = da.arange(100, chunks=10) // 40
    >>> _ = x.to_sharded_zarr(path, shards=40, chunks=8)
    >>> found = shardwrite.census(path)
    >>> found.n_stored_chunks, found.counts["written"], found.counts["empty"]
    (8, 2, 1)
    """
    opened = open_begun(store, name)
    report = verify_opened(opened, on_shards=on_shards)
    return Census(
        path=report.path,
        n_inner_chunks=report.n_inner_chunks,
        n_stored_chunks=report.n_stored_chunks,
        chunks_per_shard=opened.array.metadata.grid.chunks_per_shard,
        states=report.states,
        stored_nbytes=report.stored,
        warnings=report.warnings,
    )
