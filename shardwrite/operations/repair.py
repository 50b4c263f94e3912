"""Repair: find the shards that are torn, missing or changed, and write them again.

A bad shard is linked into ``<array>.quarantine/`` and stays in its place until the new one is
renamed over it. Until then readers get an error, never the fill value.

The order of effects:

1. Remove the temporaries of dead processes, and abort their uploads in parts.
2. Salvage shards, if that was asked for.
3. Keep copies of the bad shards in quarantine.
4. Write the shards again.

After a crash in any of these steps, the same call continues from there: it looks for bad shards
again. If the run that was interrupted had compared values with the source, the call compares them,
too, as the identity of the run's source says. Salvage and repair commit
as runs do: see :mod:`shardwrite.operations.salvage` and :mod:`shardwrite.journal.rundir`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.config.table import STRATEGY, value_of
from shardwrite.engines import active_engine
from shardwrite.entry.public import taking
from shardwrite.errors import JournalError, SpecError, printable
from shardwrite.format.frame import signatures_in
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.sharding import ScatteredChunks
from shardwrite.format.strategies import Strategy, as_strategy
from shardwrite.grid import Shape, ravel
from shardwrite.journal.lease import live_holders
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.neighbours import give_up, give_up_passing
from shardwrite.journal.receipt import read_receipt
from shardwrite.journal.replay import drivers_on, replay
from shardwrite.journal.rundir import RunDirectory, holding
from shardwrite.journal.trust import require_trusted
from shardwrite.operations.keywords import ProgressKeywords
from shardwrite.operations.report import Report
from shardwrite.operations.salvage import find_torn, keep_copy, salvage_shards
from shardwrite.operations.steps import BadShards, RepairOptions, steps_of
from shardwrite.operations.verify import (
    Opened,
    check_lossless,
    open_begun,
    verify,
    verify_opened,
)
from shardwrite.options import (
    STRATEGIES,
    DropKeywords,
    DurabilityKeywords,
    ExclusiveKeywords,
    ProcessKeywords,
    RunArguments,
    StrategyKeywords,
    arguments,
    option,
    options_from,
)
from shardwrite.place.target import Target, refuse_in_place, resolve_target
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.partition import check_whole
from shardwrite.read.array import ShardedArray
from shardwrite.read.census import ShardState
from shardwrite.read.inspection import inspect_shards, of_objects
from shardwrite.results import Facts, Result, counted
from shardwrite.runs.begin import check_unshared, check_updatable
from shardwrite.runs.job import RunOptions
from shardwrite.runs.old_shards import OldShards, keeping, shards_at_ends
from shardwrite.runs.result import WriteResult
from shardwrite.runs.source_array import as_source_array, as_written_array, check_meaning
from shardwrite.stores.base import Store

__all__ = ["Repair", "RepairTask", "repair"]


# ---- Tasks and results


_INTERRUPTED = (
    "an earlier repair has not ended; repair again with the source, or give it up with "
    "shardwrite abandon"
)


@dataclass(frozen=True, slots=True)
class RepairTask:
    """A shard that must be written again."""

    key: str  # storage key of the shard
    index: tuple[int, ...]  # position of the shard in the shard grid
    # Elements of the shard: ``(start, stop)`` along each axis. It is the whole volume if the hash
    # of a volume scatters the chunks of the shard.
    region: tuple[tuple[int, int], ...]
    reason: str  # description of the fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Result):
    """Report of a repair: the work that was done, and the work that is left.

    Attributes
    ----------
    path : str
        Path of the array.
    tasks : tuple of RepairTask
        The shards that must be written again. If `result` is not None, they were written.
    n_temporaries : int
        Number of stale temporary files that were removed; if `is_look`, that were found.
    quarantined : tuple of str
        Paths of the copies of bad shards.
    salvaged : tuple of str
        One text for each shard that was cut back to an earlier state, and how that was found. Or
        for each HDF5 file that got a new index.
    result : WriteResult or None
        Result of writing the shards; None if none was written.
    is_look : bool
        Whether nothing was changed, because the call gave no source and asked for no salvage.
    is_interrupted : bool
        Whether an earlier repair has not ended. Updates are refused until it ends.
    changed : tuple of str
        Keys of good shards that another program has changed since they were written here. With a
        source they are in `tasks`.
    warnings : tuple of str
        If `is_look`, warnings about the files beside the array; see :class:`Report`. Of a salvage,
        one text for each HDF5 file that it could not mend, and why.
    is_compared : bool
        Whether every value was compared with the source.
    """

    _derived = ("is_done",)

    path: str
    tasks: tuple[RepairTask, ...]
    n_temporaries: int
    quarantined: tuple[str, ...]
    salvaged: tuple[str, ...]
    result: WriteResult | None = None
    is_look: bool = False
    is_interrupted: bool = False
    changed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_compared: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return (not self.tasks or self.result is not None) and not self.is_interrupted

    def _rows(self) -> list[tuple[str, str]]:
        """Rows of the table, without the list of shards."""
        done = (
            "written again"
            if self.result is not None
            else "to write again; give the source to do it"
        )
        left = counted(self.n_temporaries, "temporary file")
        rows = [
            ("array", self.path),
            ("shards", f"{len(self.tasks):,} {done}" if self.tasks else "all are good"),
            ("leftovers", left + (" to remove" if self.is_look else " removed")),
        ]
        rows += [("compared", "with the source, every value")] if self.is_compared else []
        rows += [] if self.is_look else [("quarantined", f"{len(self.quarantined):,}")]
        rows += [("interrupted", _INTERRUPTED)] if self.is_interrupted else []
        rows += [("salvaged", text) for text in self.salvaged]
        if self.changed:
            told = "shards, by another program, since they were written here"
            rows.append(("changed", f"{len(self.changed):,} {told}"))
        return rows

    def _faults(self) -> list[tuple[str, str]]:
        """One row for each shard that was bad, or still is."""
        return [
            (task.key, f"[{', '.join(f'{a}:{b}' for a, b in task.region)}] {task.reason}")
            for task in self.tasks[:50]
        ]

    @property
    def _title(self) -> str:
        return "repaired" if self.is_done else "to repair"

    def __repr__(self) -> str:
        told = f"{self._title}: {counted(len(self.tasks), 'shard')}" if self.tasks else "all good"
        return f"<Repair of {printable(self.path)}, {told}>"

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        faults = self._faults()
        headline = [
            (f"{len(self.tasks):,}", f"shards {'written again' if self.is_done else 'to write'}"),
            (f"{len(self.salvaged):,}", "salvaged"),
            (f"{len(self.quarantined):,}", "in quarantine"),
        ]
        return Facts(
            title=self._title,
            subject=self.path,
            headline=headline,
            problems=[] if self.is_done else faults,
            notes=[("warning", text) for text in self.warnings],
            rows=[*self._rows(), *(faults if self.is_done else [])],
        )


# ---- Versions of objects, to tell later which of them were replaced or changed


def _versions(array: ShardedArray, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Digests of the versions of some objects, by :meth:`Store.version`."""
    return of_objects(active_engine(), array, ranks, _version_of)


def _version_of(store: Store, key: str) -> int:
    """A number for the version of an object, the same one in every process."""
    version = store.version(key)
    if version is None:
        return 0
    digest = hashlib.blake2b(repr(version).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True) or 1


# ---- The repair


_COMPARED = "compared:"


@arguments
class RepairArguments(
    ProgressKeywords,
    ProcessKeywords,
    DropKeywords,
    ExclusiveKeywords,
    DurabilityKeywords,
    StrategyKeywords,
    RunArguments,
):
    """Arguments of `repair`."""

    section: ClassVar[str] = "Options"
    HELP: ClassVar[Mapping[str, str]] = {
        "drop_hdf5": """Allow `strategy` to make plain shards of HDF5 files; see
        :func:`write_region`."""
    }
    x: Any = option(
        None,
        """The source, as in :func:`to_sharded_zarr`, with the array's shape and dtype. Without `x`,
        `salvage` and `scan`, the call changes nothing and only reports the shards that need repair.
        For a scale of a volume, the names of the dimensions of `x` tell its axes. If it has no such
        names, its axes have the order of the array that was written. If a hash scatters the chunks
        of the scale, all of `x` is read, and chunks of the bad shards wait in a spool; see
        :func:`to_precomputed`.""",
        kind="array_like",
        flag="source",
        parser="src",
        command_help="Write the bad and missing shards again from this source.",
    )
    _: KW_ONLY
    deep: bool = option(
        True, "Decode every inner chunk, to find faults that the index does not show.", flag=None
    )
    compare: bool = option(
        False,
        """Also compare every value with `x`, bit by bit, as :func:`verify` does with `against`, and
        write the shards anew that differ. This reads the whole array and all of `x`. The chunks of
        `x` under these shards are then read once more. If such a repair is interrupted while it
        writes, the next one with `x` compares again, even without `compare`.""",
        command_help="With a source: also compare every value with it, and write the shards anew "
        "that differ. This reads all of both.",
    )
    salvage: bool = option(
        False,
        """If the run that makes the array has not ended, cut shards with a torn tail back to the
        size in its journal.""",
        command_help="Without a source: cut a shard with a torn end back to the size in the "
        "journal.",
    )
    scan: bool = option(
        False,
        """If there is no such run, search torn shards backwards for an index with a correct
        checksum, and cut them back to it. The report says that the shard is then in an earlier
        state. A shard that is an HDF5 file is not cut. If HDF5 opens it, it gets a new index; this
        needs a directory.""",
        command_help="Without a source and a journal: restore the last valid index inside such a "
        "shard.",
    )
    strategy: Any = option(
        "auto",
        """How the shards are written. ``"auto"`` writes HDF5 files where the shards were such
        files, by :class:`Hdf5`. Elsewhere it is the default of :func:`to_sharded_zarr`.""",
        kind="FixedOrder, AppendOnly, Hdf5 or str",
        suggested=("auto", *STRATEGIES),
        command_help="How shards are written again: auto, fixed-order, append-only, C, F, morton, "
        "hdf5 or hdf5:NAME. With auto, shards that were HDF5 files become such files.",
    )


@taking(RepairArguments)
def repair(call: RepairArguments) -> Repair:
    """Find the shards that are torn or missing, and write them again from the source, if given.

    Shards that another program has changed since they were written here, by the sizes in the
    receipt, are then written again, too. A shard that decodes to wrong values is only found with
    `compare`. A copy of each shard that is replaced is kept in ``<array>.quarantine/``. Chunks that
    hold only the fill value are stored if the array was written with `write_empty_chunks`. After a
    conversion or a transfer, they are stored if all chunks of the array were.

    Returns
    -------
    Repair
        The report, with keys and regions of the shards.

    Raises
    ------
    SpecError
        If there is no sharded array, or `x` has another shape or dtype. Also if a bad shard was an
        HDF5 file, and `strategy` would make something else of it. With `scan`, also if a bad
        shard's index has no checksum or lies at the start. With `compare`, also if there is no `x`,
        or if the codecs change values, as JPEG does.
    PlanError
        If the plan does not fit into memory.
    JournalError
        If a run works on the array, or if `x` is given and the run that makes the array has not
        ended; finish that run first. With `scan`, also if an update of the same shards has not
        ended.
    IncompleteError
        If the process was asked to stop and shards are missing.
    SourceError, CodecError, StoreError
        If a task fails. Its shard is not replaced.

    Examples
    --------
    >>> import dask.array as da, os, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"; x = da.arange(100, chunks=10) + 1
    >>> _ = x.to_sharded_zarr(path, shards=40, chunks=8)
    >>> os.truncate(path + "/c/1", 20)
    >>> [(task.key, task.region) for task in shardwrite.repair(path).tasks]
    [('c/1', ((40, 80),))]
    >>> shardwrite.repair(path, x).result is not None, shardwrite.verify(path, deep=True).is_good
    (True, True)

    Another program has written a wrong value, which decodes without an error:

    >>> import zarr
    >>> raw = path + ".raw"; _ = x.to_sharded_zarr(raw, shards=40, chunks=8, compressors=None)
    >>> zarr.open_array(raw)[5] = 0
    >>> shardwrite.repair(raw, x).tasks
    ()
    >>> [task.key for task in shardwrite.repair(raw, x, compare=True).tasks]
    ['c/0']
    """
    x, strategy, scan = call.x, call.strategy, call.scan
    is_look = x is None and not call.salvage and not scan
    where = call.store, call.name, call.run_dir
    changed = [] if is_look else [resolve_target(*where, is_read=True)]
    with holding(*changed):
        opened = open_begun(*where)
        target, array, run = opened.target, opened.array, opened.beside.run
        target = target.exclusively(when=call.exclusive)
        check_whole(array.metadata.grid, target.label)
        if x is not None:
            check_meaning(as_source_array(x).known, array.metadata, "x")
            x = as_written_array(x, array.metadata, "x")
        compares = _compares(call.compare, run, array.metadata, has_source=x is not None)
        if not is_look:
            if target.place.local_path is not None:  # before copies are kept in a tree that moves
                refuse_in_place(target.place.local_path)
            is_usual = isinstance(strategy, str) and strategy == "auto"
            usual = as_strategy(value_of(STRATEGY) if is_usual else strategy)
            check_updatable(target.store, usual)
            check_unshared(target)
            require_trusted(target)
            unknown = target.place.unknown_run() if run is None else None
            if unknown is not None:
                raise JournalError(f"{unknown.told}; then call repair again", path=target.label)
        ledger = _ledger_of(run, array, may_write=x is not None, is_look=is_look)
        n_temporaries = _left_over(target, is_look=is_look)
        if not is_look:
            give_up_passing(target)

        def look() -> _Seen:
            if is_look:
                return _Seen(verify_opened(opened, deep=call.deep))
            ranks = np.arange(array.metadata.grid.n_shards)
            versions = _versions(array, ranks) if compares else None
            against = call.x if compares else None
            report = verify(
                call.store, name=call.name, run_dir=call.run_dir, deep=call.deep, against=against
            )
            return _Seen(report, versions)

        seen = look()
        before = seen.report
        salvaged, left = tuple[str, ...](), tuple[str, ...]()
        if x is not None:  # before anything is moved
            asked = None if is_usual else usual
            bad = [problem.index for problem in (*before.problems, *before.changed)]
            usual = _keeping_kinds(target, array, asked, bad, drops=call.drop_hdf5) or usual
        if call.salvage or scan:
            torn = find_torn(
                array, target, [problem.index for problem in before.problems], ledger, scan=scan
            )
            if x is None:
                left = torn.left
            if torn.shards:
                making = run if ledger is not None else None
                salvaged = salvage_shards(target, array.metadata, torn.shards, making, ledger)
                seen = look()
        report = seen.report
        tasks = _tasks(array, report, with_changed=x is not None)
        if not is_look:  # before anything is moved
            target.store.check_no_links((task.key for task in tasks), are_whole=True)
        done = Repair(
            path=target.label,
            tasks=tasks,
            n_temporaries=n_temporaries,
            quarantined=() if is_look else _quarantined(target, tasks, call.durability),
            salvaged=salvaged,
            is_look=is_look,
            changed=tuple(problem.key for problem in report.changed),
            warnings=report.warnings if is_look else left,
            is_compared=compares,
        )
        is_open = run is not None and not run.makes_array
        if x is None:
            return replace(done, is_interrupted=is_open)
        if not tasks:
            if run is not None and is_open:
                give_up(run)  # all of its shards are good by now
            steps_of(array.metadata).end_repair(target, array.metadata, call.run_dir)
            return done
        receipt = read_receipt(target)
        stores_empty = receipt is not None and receipt.stores_empty_chunks
        how = RepairOptions(
            options_from(call, PlanOptions, strategy=usual, write_empty_chunks=stores_empty),
            options_from(call, RunOptions, mode="r+"),
            call.run_dir,
            call.progress,
        )
        written, result = _write_again(x, replace(opened, target=target), seen, tasks, how)
        return replace(done, tasks=written, result=result)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the look for bad shards has found."""

    report: Report
    # Versions that the objects of all shards had before the values were compared; None if they were
    # not
    versions: npt.NDArray[np.int64] | None = None


def _keeping_kinds(
    target: Target,
    array: ShardedArray,
    asked: Strategy | None,
    bad: Sequence[Shape],
    *,
    drops: bool,
) -> Strategy | None:
    """The strategy by which bad shards are written again, so that each stays the kind it is.

    - `asked`: the strategy that the user has given. By default, the shards tell.
    - `drops`: whether files of another format may be dropped.
    - Returns: None if the user has given none, and all shards are plain ones.
    """
    metadata = array.metadata
    if not bad or not signatures_in(metadata):
        return asked
    old_shards = OldShards.of(target, metadata)
    looked_at = [*bad, *shards_at_ends(metadata.grid)]
    if asked is None:
        kinds = () if drops else filter(None, map(old_shards.kind_of, looked_at))
        kind = next(iter(kinds), None)
        if kind is None:
            return None
        asked = as_strategy(kind.strategy)
        check_updatable(target.store, asked)
    return keeping(old_shards, asked, looked_at, drops=drops)


def _write_again(
    x: dask.array.Array,
    opened: Opened,
    seen: _Seen,
    tasks: tuple[RepairTask, ...],
    how: RepairOptions,
) -> tuple[tuple[RepairTask, ...], WriteResult]:
    """Write shards again from their source."""
    target, array, engine = opened.target, opened.array, active_engine()
    grid, replaced = array.metadata.grid, set[int]()
    ranks = [ravel(task.index, grid.counts) for task in tasks]
    good = np.setdiff1d(np.arange(grid.n_shards), ranks)

    def look() -> Ledger:
        replaced.update(_replaced_since(target, array, seen))
        there = np.union1d(good, sorted(replaced)).astype(np.int64)
        return Ledger.of(grid, inspect_shards(engine, array, there, deep=False))

    metadata = parse_metadata(array.metadata.text, writing=True)
    bad = BadShards(target, metadata, frozenset(ranks), _prefix(seen), look)
    result = steps_of(metadata).write_again(x, bad, how)
    pairs = zip(tasks, ranks, strict=True)
    return tuple(task for task, rank in pairs if rank not in replaced), result


def _left_over(target: Target, *, is_look: bool) -> int:
    """Remove temporaries of dead processes, or with `is_look`, count them. How many there are."""
    drivers_alive = partial(drivers_on, target, looking=is_look)
    if is_look:
        return len(target.place.stale_temporaries(drivers_alive))
    return target.place.sweep(drivers_alive)


def _compares(
    asked: bool, run: RunDirectory | None, metadata: ArrayMetadata, *, has_source: bool
) -> bool:
    """Whether values are compared: because that is asked for, or the open repair has done so."""
    if asked and not has_source:
        raise SpecError(
            "there is no source to compare with",
            field="compare",
            value=True,
            remedy="give the source x (--source), or leave it out",
        )
    identity = "" if run is None or run.makes_array else str(run.record.identity.source)
    compares = has_source and (asked or identity.startswith(_COMPARED))
    if compares:
        check_lossless(metadata, "compare", value=True)
    return compares


def _prefix(seen: _Seen) -> str:
    """Beginning of the identity of a repair's source: whether values were compared with it.

    A repair that was interrupted goes on with the shards that the same look finds.
    """
    return "" if seen.versions is None else _COMPARED


def _replaced_since(target: Target, array: ShardedArray, seen: _Seen) -> set[int]:
    """Ranks of shards that were bad or missing, and that another process wrote or emptied since.

    An update removes the objects of shards that it empties before its receipt says so. A shard with
    wrong values decodes as well as a new one, so that only the version of its object tells.
    """
    states = seen.report.states.ravel()
    ranks = np.flatnonzero(np.isin(states, (ShardState.BAD, ShardState.MISSING)))
    table = inspect_shards(active_engine(), array, ranks, deep=True)
    is_other = table.is_present | (states[ranks] == ShardState.BAD)
    if seen.versions is not None:
        now = _versions(array, ranks)
        is_other &= now != seen.versions[ranks]
    receipt = read_receipt(target)
    if receipt is not None:
        with contextlib.suppress(SpecError):  # it is of another array; `verify` tells
            noted = receipt.nbytes_on(array.metadata.grid)
            if noted is not None:
                is_missing = states[ranks] == ShardState.MISSING
                is_other |= is_missing & (noted.ravel()[ranks] == 0)
    return set(ranks[is_other].tolist()).difference(table.bad)


def _ledger_of(
    run: RunDirectory | None, array: ShardedArray, *, may_write: bool, is_look: bool
) -> Ledger | None:
    """Ledger from the journal of an unfinished run that makes the array; None without such a run.

    - Raises JournalError if a process works on the run, or the caller may write: the run must be
      finished first.
    """
    if run is None or not run.makes_array:
        return None
    holders = live_holders(run.shared, looking=is_look)
    if holders:
        raise JournalError(
            f"{run.target.label} is being written by {holders[0].process.name}",
            path=str(run.target.run_path),
            holder=holders[0].to_dict(),
        )
    if may_write:
        raise JournalError(
            f"the run that writes {run.target.label} has not ended; run its command again with "
            "recheck=True (--recheck)",
            path=str(run.target.run_path),
        )
    return replay(run, array.metadata, looking=is_look).ledger


def _tasks(array: ShardedArray, report: Report, *, with_changed: bool) -> tuple[RepairTask, ...]:
    grid, placed = array.metadata.grid, array.metadata.placed
    # The values of a shard whose chunks are scattered lie everywhere in the array.
    shape = placed.origin_shape if isinstance(placed, ScatteredChunks) else None
    everywhere = None if shape is None else tuple((0, n) for n in shape)
    # A shard may be another one than the receipt says, and have wrong values, too.
    wrong = {problem.index for problem in report.problems}
    changed = (
        [found for found in report.changed if found.index not in wrong] if with_changed else []
    )
    return tuple(
        RepairTask(
            problem.key,
            problem.index,
            everywhere or grid.shard_box(problem.index).intersect(grid.whole).bounds,
            problem.message,
        )
        for problem in sorted((*report.problems, *changed), key=lambda found: found.index)
    )


def _quarantined(
    target: Target, tasks: Sequence[RepairTask], durability: str | None
) -> tuple[str, ...]:
    """Keep a copy of each bad shard that has a file; paths of the copies."""
    return tuple(
        keep_copy(target, task.key, target.durability(durability))
        for task in tasks
        if target.place.has_something(task.key)
    )
