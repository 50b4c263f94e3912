"""A conversion that consumes its source: what was copied is compared, recorded, and then removed.

:mod:`shardwrite.journal.consuming` lists the steps, and what a crash leaves after each.
"""

from __future__ import annotations

import errno
import itertools
import json
import uuid
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from shardwrite.engines import Engine
from shardwrite.errors import CorruptShardError, StoreError
from shardwrite.format.passage import Passage
from shardwrite.grid import ShardGrid, ravel, unravel
from shardwrite.journal import Ledger, RunDirectory, confirm
from shardwrite.journal.consuming import Checked, Consumption
from shardwrite.journal.wing_states import CONSUMES
from shardwrite.read.array import ShardedArray
from shardwrite.read.foreign_keys import check_names
from shardwrite.read.inspection import inspect_shards
from shardwrite.runs.job import Job
from shardwrite.runs.progress import OnReport
from shardwrite.runs.result import WriteResult
from shardwrite.runs.session import Session
from shardwrite.runs.stepwise import execute_watched
from shardwrite.stores import Proof, write_file
from shardwrite.write.comparing import differing
from shardwrite.write.context import GroupReport
from shardwrite.write.donor import Donor
from shardwrite.write.whole_objects import differing_objects

Ranks = npt.NDArray[np.int64]
_MOST_AT_ONCE = 4096  # shards in a line, when many are found done


class Consumer:
    """Removes the objects of an array as they become superfluous.

    - `passage`: how encoded chunks pass from one to the other. None if whole objects are the same.
    """

    def __init__(
        self,
        state: Consumption,
        source: ShardedArray,
        target: ShardedArray,
        passage: Passage | None,
        engine: Engine,
    ) -> None:
        self.n_removed = 0
        self._state, self._engine = state, engine
        self._source, self._target = source, target
        self._donor = None if passage is None else Donor(source, passage, listed=state.listed)
        self._is_checked = np.zeros(target.metadata.grid.n_shards, dtype=bool)
        self._is_there = np.zeros(source.metadata.grid.n_shards, dtype=bool)
        self._ledger = Ledger(target.metadata.grid)
        self._line: Proof | None = None
        self._run: RunDirectory | None = None

    def begin(self, ledger: Ledger, run: RunDirectory | None, *, deep: bool = False) -> None:
        """Go on where the consumption was interrupted, or begin it.

        - `ledger`: shards of the new array that are done. Those that were compared before are
          added.
        - `run`: the run that writes them, unless that has ended.
        - `deep`: decode the shards that were compared before.
        - Raises CorruptShardError if a shard is damaged whose source is removed already.
        """
        self._ledger = ledger
        for checked in self._state.checked():
            ranks = list(checked.shards)
            self._is_checked[ranks] = True
            self._take_facts(ledger, checked)
        self._check_shards(ledger, deep=deep)
        self._look_at_source()
        self._run = run
        self._state.hide()
        done = np.flatnonzero(ledger.is_done & ~self._is_checked)
        for first in range(0, len(done), _MOST_AT_ONCE):
            self._consume(done[first : first + _MOST_AT_ONCE])
        self._remove(np.flatnonzero(self._is_there))

    @staticmethod
    def _take_facts(ledger: Ledger, checked: Checked) -> None:
        ranks = list(checked.shards)
        ledger.is_done[ranks] = True
        ledger.nbytes[ranks] = checked.nbytes
        ledger.index_crcs[ranks] = checked.index_crcs
        ledger.n_chunks[ranks] = checked.n_chunks

    def _check_shards(self, ledger: Ledger, *, deep: bool) -> None:
        """Check that the shards that were compared are still what they were."""
        ranks = np.flatnonzero(self._is_checked)
        if not len(ranks):
            return
        table = inspect_shards(self._engine, self._target, ranks, deep=deep)
        table.refuse_unread(repr(self._target))
        is_other = (table.stored_nbytes != ledger.nbytes[ranks]) | (
            table.index_crcs != ledger.index_crcs[ranks]
        )
        bad = [*ranks[is_other].tolist(), *(rank for rank, _ in table.problems)]
        if bad:
            raise CorruptShardError(
                "it is not what it was when it was compared with the source, whose objects are "
                "removed. Nothing more is removed. If it was moved or replaced, put it back, and "
                "make the same call again",
                key=self._target.metadata.shard_key(
                    unravel(bad[0], self._target.metadata.grid.counts)
                ),
            )

    def _look_at_source(self) -> None:
        """Compare the objects that are there with those that were listed."""
        self._is_there, was_there = ranks_there(self._source), self._state.was_there
        for ranks, why in (
            (np.flatnonzero(self._is_there & ~was_there), "was written after the conversion began"),
            (
                self._not_free(np.flatnonzero(was_there & ~self._is_there)),
                "is missing, and is not in the new array",
            ),
        ):
            if len(ranks):
                grid = self._source.metadata.grid
                key = self._source.metadata.shard_key(unravel(int(ranks[0]), grid.counts))
                raise StoreError(
                    f"{key!r} of the array that is consumed {why}, and so are {len(ranks) - 1:,} "
                    "others. Nothing more is removed. Put back what is missing, or move away what "
                    "was written, and make the same call again",
                    key=key,
                    errno=errno.ENOENT,
                )

    def took(self, report: GroupReport) -> None:
        """Compare and record the shards of a task, and remove what is superfluous now."""
        ranks = np.array([r for r in report.shards if not self._is_checked[r]], np.int64)
        self._consume(ranks)

    def _consume(self, ranks: Ranks) -> None:
        if not len(ranks):
            return
        for rank, message in self._differing(ranks).items():
            grid = self._target.metadata.grid
            raise CorruptShardError(
                f"{message}; nothing of what it was made of is removed",
                key=self._target.metadata.shard_key(unravel(rank, grid.counts)),
            )
        if self._run is not None:
            # From now on, the shards of the run are not taken away.
            data, path = json.dumps({"source": str(self._state.path)}).encode(), self._run.path
            write_file(path / CONSUMES, data, durability="full", attempt=uuid.uuid4().hex)
            confirm(self._run.target)
            self._run = None
        ledger = self._ledger
        columns = (ledger.nbytes, ledger.index_crcs, ledger.n_chunks)
        facts = [tuple(int(n) for n in column[ranks]) for column in columns]
        self._line = self._state.enter(Checked(tuple(ranks.tolist()), *facts))
        self._is_checked[ranks] = True
        grids = self._target.metadata.grid, self._source.metadata.grid
        touched = np.unique(np.concatenate(list(_meeting(ranks, *grids))))
        self._remove(touched[self._is_there[touched]])

    def _differing(self, ranks: Ranks) -> dict[int, str]:
        """A message for each shard that is not what it should be."""
        if self._donor is None:
            return differing_objects(self._target, self._source, ranks)
        return differing(self._target, self._donor, ranks)

    def _remove(self, numbers: Ranks) -> None:
        """Remove those of some objects of which all shards were compared."""
        numbers = np.setdiff1d(numbers, self._not_free(numbers))
        if not len(numbers):
            return
        if self._line is None:
            self._line = self._state.again()
        metadata = self._source.metadata
        keys = [metadata.shard_key(unravel(n, metadata.grid.counts)) for n in numbers.tolist()]
        self._state.remove(self._line, keys)
        self._is_there[numbers] = False
        self.n_removed += len(keys)

    def _not_free(self, numbers: Ranks) -> Ranks:
        """Those of some objects of which a shard was not compared yet."""
        if not len(numbers):
            return numbers
        is_free = np.ones(len(numbers), dtype=bool)
        for ranks in _meeting(numbers, self._source.metadata.grid, self._target.metadata.grid):
            is_free &= self._is_checked[ranks]
        return numbers[~is_free]

    def finish(self) -> bool:
        """Remove what is left of the array; return whether nothing is."""
        if self._is_there.any():
            raise StoreError(
                f"objects of {self._state.path} are left, although all shards are written",
                key=str(self._state.path),
                errno=errno.ENOTEMPTY,
            )
        if not self._is_checked.size:  # of an array without elements
            self._line = self._state.enter(Checked((), (), (), ()))
        return self._state.remove_rest(self._line or self._state.again())


def ranks_there(array: ShardedArray) -> npt.NDArray[np.bool_]:
    """For each shard of an array, whether it has an object. The array is listed once."""
    grid, keys = array.metadata.grid, list(array.store.list_keys())
    there = np.zeros(grid.n_shards, dtype=bool)
    label = str(array.store.local_root or array.store)
    check_names(lambda: keys, array.metadata, label, to_the_end=True, is_removed=True)
    found = (array.metadata.shard_index(key) for key in keys)
    there[[ravel(index, grid.counts) for index in found if index is not None]] = True
    return there


def _meeting(ranks: Ranks, grid: ShardGrid, other: ShardGrid) -> Iterator[Ranks]:
    """Ranks of the shards of another grid of the same shape that meet some shards of a grid.

    Each array that is yielded has one rank for each shard; a rank may come more than once.
    """
    if not grid.ndim:
        yield np.zeros(len(ranks), dtype=np.int64)
        return
    firsts, lasts = [], []
    index = np.unravel_index(ranks, grid.counts)
    for at, s, t, n in zip(index, grid.shards, other.shards, grid.shape, strict=True):
        firsts.append(at * s // t)
        lasts.append((np.minimum((at + 1) * s, n) - 1) // t)
    spans = [
        range(int((last - first).max()) + 1) for first, last in zip(firsts, lasts, strict=True)
    ]
    for steps in itertools.product(*spans):
        place = [np.minimum(a + k, b) for a, k, b in zip(firsts, steps, lasts, strict=True)]
        yield np.asarray(np.ravel_multi_index(place, other.counts), dtype=np.int64)


def execute_consuming(
    job: Job, engine: Engine, on_report: OnReport, consumer: Consumer
) -> WriteResult:
    """Write an array, and consume what it is made of."""

    def begun(session: Session) -> None:
        n_before = session.ledger.n_done
        consumer.begin(session.ledger, session.directory, deep=job.options.recheck)
        if session.ledger.n_done != n_before:
            session.note_resumed()

    result, is_new = execute_watched(job, engine, on_report, begun, consumer.took)
    if not is_new:
        array = ShardedArray(job.plan.metadata, job.target.store)
        ledger = Ledger(job.plan.metadata.grid)
        ranks = np.arange(job.plan.metadata.grid.n_shards, dtype=np.int64)
        table = inspect_shards(engine, array, ranks, deep=False)
        table.refuse_unread(job.target.label)
        if table.problems:
            raise CorruptShardError(f"of {job.target.label}: {table.problems[0][1]}")
        ledger.is_done[:] = True
        ledger.nbytes[:], ledger.n_chunks[:] = table.stored_nbytes, table.n_chunks
        ledger.index_crcs[:] = table.index_crcs
        consumer.begin(ledger, None)
    return result
