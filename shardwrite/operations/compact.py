"""Compaction: rewrite shards in which updates in place and appends have left much unused space."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.checks import share
from shardwrite.engines import active_engine
from shardwrite.entry.public import taking
from shardwrite.errors import CorruptShardError, RunEndedError, SpecError, printable
from shardwrite.format.metadata import parse_metadata
from shardwrite.format.strategies import FixedOrder
from shardwrite.grid import unravel
from shardwrite.journal.begin import tidied_run
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.neighbours import look_beside, refuse_overlapping_runs
from shardwrite.journal.rundir import holding
from shardwrite.operations.keywords import ProgressKeywords, UpdateKeywords
from shardwrite.operations.verify import how_to_mend, refuse_waiting
from shardwrite.options import (
    BeginKeywords,
    ExclusiveKeywords,
    RunArguments,
    arguments,
    option,
    options_from,
)
from shardwrite.place.target import COMPACTION, Target, resolve_target
from shardwrite.plan.model import SourceLayout
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.partition import check_whole
from shardwrite.plan.plan import Update
from shardwrite.read.array import ShardedArray, open_at
from shardwrite.read.inspection import ShardTable, inspect_shards
from shardwrite.read.signatures import signature_at
from shardwrite.results import Facts, Result, counted, duration, human
from shardwrite.runs.array_plan import plan_into
from shardwrite.runs.execute import Run, reporting
from shardwrite.runs.job import Job, RunOptions, intent_of
from shardwrite.runs.old_shards import shards_at_ends
from shardwrite.runs.stored_chunks import StoredChunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction(Result):
    """Result of a compaction.

    Attributes
    ----------
    path : str
        Path of the array.
    n_shards, n_rewritten : int
        Number of shards with a file, and of shards that were rewritten.
    stored_nbytes_before, stored_nbytes : int
        Size of all shards before and after, in bytes.
    unused_nbytes_before, unused_nbytes : int
        Bytes of all shards that belong to no inner chunk and no index, before and after.
    seconds : float
        Duration in seconds.
    """

    path: str
    n_shards: int
    n_rewritten: int
    stored_nbytes_before: int
    stored_nbytes: int
    unused_nbytes_before: int
    unused_nbytes: int
    seconds: float

    @property
    def _time(self) -> str:
        return duration(self.seconds) if self.n_rewritten else "nothing was left to do"

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("array", self.path),
            ("shards", f"{self.n_rewritten:,} of {self.n_shards:,} were rewritten"),
            ("bytes", f"{human(self.stored_nbytes)} (was {human(self.stored_nbytes_before)})"),
            ("unused", f"{human(self.unused_nbytes)} (was {human(self.unused_nbytes_before)})"),
            ("time", self._time),
        ]

    def __repr__(self) -> str:
        return (
            f"<Compaction of {printable(self.path)}: "
            f"{counted(self.n_rewritten, 'shard')} rewritten, "
            f"{human(self.stored_nbytes)} (was {human(self.stored_nbytes_before)})>"
        )

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [
            (f"{self.n_rewritten:,}", f"of {self.n_shards:,} shards were rewritten"),
            (human(self.stored_nbytes), f"stored, {human(self.stored_nbytes_before)} before"),
            (human(self.unused_nbytes), f"unused, {human(self.unused_nbytes_before)} before"),
            *([(self._time, "time")] if self.n_rewritten else []),
        ]
        return Facts(title="compacted", subject=self.path, headline=headline, rows=self._rows())


@arguments
class CompactArguments(ProgressKeywords, BeginKeywords, ExclusiveKeywords, RunArguments):
    """Arguments of `compact`."""

    section: ClassVar[str] = "Options"
    HELP: ClassVar[Mapping[str, str]] = {"restart": UpdateKeywords.HELP["restart"]}
    COMMAND_HELP: ClassVar[Mapping[str, str]] = {"restart": UpdateKeywords.COMMAND_HELP["restart"]}

    _: KW_ONLY
    above: float = option(
        0.3,
        "A shard is rewritten if more than this share of its bytes is unused; from 0 to 1.",
        least=0,
        most=1,
        command_help="Rewrite a shard if more than this share of it is unused.",
    )
    order: str = option(
        "C",
        "Order of the inner chunks in the new shards.",
        kind='{"C", "F", "morton"}',
        suggested=("C", "F", "morton"),
        command_help="Order of the inner chunks in the new shards: C, F or morton.",
    )


@taking(CompactArguments)
def compact(call: CompactArguments) -> Compaction:
    """Rewrite, in parallel, every shard of which more than a given share is unused.

    Inner chunks are copied as they are, without decoding them.

    Returns
    -------
    Compaction
        Number of rewritten shards, and sizes before and after.

    Raises
    ------
    SpecError
        If there is no sharded array, or an argument does not fit.
    CorruptShardError
        If a shard is bad, before any shard is rewritten. Also if a new shard does not pass the
        check at the end.
    JournalError
        If another run on the array has not ended.
    IncompleteError
        If the process was asked to stop and shards are missing.
    StoreError
        If a task fails. Its shard is not replaced.

    Notes
    -----
    At the end the indexes of the new shards are read. Each must list as many inner chunks as the
    old one, with the same total size.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"; x = da.arange(100, chunks=10)
    >>> _ = x.to_sharded_zarr(path, shards=100, chunks=10)
    >>> for _ in range(3):
    ...     _ = (-x[:50]).to_sharded_zarr(
    ...         path, region=slice(0, 50), strategy=shardwrite.AppendOnly()
    ...     )
    >>> done = shardwrite.compact(path)
    >>> done.n_rewritten, done.unused_nbytes_before > 0, done.unused_nbytes
    (1, True, 0)
    """
    restart = call.restart
    above = share("above", call.above)
    target = resolve_target(call.store, call.name, call.run_dir).exclusively(when=call.exclusive)
    refuse_waiting(target, call.run_dir)
    array = open_at(target.place)
    check_whole(array.metadata.grid, target.label)
    metadata = parse_metadata(array.metadata.text, writing=True)
    engine = active_engine()
    part, whole = metadata.window_of(metadata.grid.whole)
    layout = SourceLayout(metadata.grid.sizes, 0, "the array itself")
    options = PlanOptions(strategy=FixedOrder(call.order))
    plan = plan_into(part, layout, engine, options, update=Update(whole), by_groups=True)
    job = Job(
        StoredChunks(part, whole),
        plan,
        replace(target, update=COMPACTION),
        options_from(call, RunOptions, mode="r+"),
    )
    with holding(target):
        # This also restores shards that a crash has left in the middle of a change.
        refuse_overlapping_runs(job.target, intent_of(plan, "r+"), restart=restart)
        before, wasteful = looked_at(target, array, above)

        after, seconds = ShardTable.empty(before.ranks[wasteful]), 0.0
        # An interrupted compaction must be ended, even if no shard is left to rewrite.
        if wasteful.any() or tidied_run(job.target) is not None:
            nbytes = int(wasteful.sum()) * metadata.shard_nbytes
            with (
                reporting(call.progress, nbytes) as on_report,
                Run.open([job], engine, on_report, "again") as run,
            ):
                before, wasteful = looked_at(target, array, above)
                good = Ledger.of(metadata.grid, before)
                good.forget(np.flatnonzero(wasteful).tolist())
                run.session.resume_from(good)
                run.execute(publish=False)
                directory = run.session.directory
                try:
                    after = _compacted(target, array, before, wasteful)
                except CorruptShardError as error:
                    if directory.has_ended:
                        raise RunEndedError(
                            "another run has taken this one's place", path=str(directory.path)
                        ) from error
                    raise
                seconds = run.finish()[0].seconds
    stay = ~wasteful
    return Compaction(
        path=target.label,
        n_shards=int(before.is_present.sum()),
        n_rewritten=int(wasteful.sum()),
        stored_nbytes_before=int(before.stored_nbytes.sum()),
        stored_nbytes=int(before.stored_nbytes[stay].sum() + after.stored_nbytes.sum()),
        unused_nbytes_before=int(unused(before).sum()),
        unused_nbytes=int(unused(before)[stay].sum() + unused(after).sum()),
        seconds=seconds,
    )


def looked_at(
    target: Target, array: ShardedArray, above: float
) -> tuple[ShardTable, npt.NDArray[np.bool_]]:
    """Facts about all shards, and a mask of those with too many unused bytes.

    - Raises CorruptShardError if a shard is bad.
    """
    metadata = array.metadata
    table = _inspected(target, array, np.arange(metadata.grid.n_shards))
    wasteful = unused(table) > above * table.stored_nbytes
    ranks = map(int, np.flatnonzero(wasteful))
    among = (unravel(rank, metadata.grid.counts) for rank in ranks)
    for index in itertools.chain(shards_at_ends(metadata.grid), among):
        signature = signature_at(metadata, target.store, index)
        if signature is not None:
            raise SpecError(
                f"the shard {metadata.shard_key(index)!r} is also a {signature.title}. Bytes that "
                "are not chunks are the rest of that file, and no waste",
                field="store",
                value=target.label,
                remedy="leave the array as it is: each update writes such a file anew. For an "
                "array of plain shards, call shardwrite.reshard (shardwrite reshard)",
            )
    return table, wasteful


def _compacted(
    target: Target, array: ShardedArray, before: ShardTable, wasteful: npt.NDArray[np.bool_]
) -> ShardTable:
    """Facts about the shards that were rewritten, after a check that they hold what they held."""
    after = _inspected(target, array, before.ranks[wasteful])
    for facts in ("used_nbytes", "n_chunks"):
        if (getattr(after, facts) != getattr(before, facts)[wasteful]).any():
            raise CorruptShardError(
                f"{target.label} is not what it was: {facts} differ; write it again from its "
                'source with mode="w" and restart=True'
            )
    return after


def _inspected(target: Target, array: ShardedArray, ranks: Any) -> ShardTable:
    table = inspect_shards(active_engine(), array, ranks, deep=False)
    table.refuse_unread(target.label)
    if table.problems:
        rank, message = table.problems[0]
        remedy = how_to_mend(look_beside(target))
        raise CorruptShardError(
            f"{len(table.problems)} shards are bad, first that of rank {rank}: {message}; {remedy}"
        )
    return table


def unused(table: ShardTable) -> Any:
    """Bytes of each shard that belong to no inner chunk and not to the index."""
    return table.stored_nbytes - table.used_nbytes - table.index_nbytes
