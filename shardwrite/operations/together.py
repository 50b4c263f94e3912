"""Arrays whose shards are cut into parts together: those of one call, or of a hierarchy.

Each part writes its share of all arrays, and the end publishes all or none of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

from shardwrite._dataclass import dataclass
from shardwrite.engines.local import Engine
from shardwrite.errors import IncompleteError, RunEndedError
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.receipt import Receipt, read_receipt
from shardwrite.journal.rundir import RunDirectory
from shardwrite.operations.steps import counted_at
from shardwrite.place.target import Target
from shardwrite.plan.plan import Part, Stretch
from shardwrite.runs.execute import OnReport, Run
from shardwrite.runs.in_parts import (
    refuse_missing,
    refuse_unwritten,
    remedy_of_parts,
    runs_on,
)
from shardwrite.runs.job import Job
from shardwrite.runs.kept import check_kept
from shardwrite.runs.result import WriteResult, result_from_receipt

_MAX_NAMED, _MAX_MISSING = 8, 1000


@dataclass(frozen=True, slots=True)
class ArrayInParts:
    """One of several arrays."""

    name: str  # names it to people, among the others
    target: Target
    raw_nbytes: int  # its decoded size
    # What is to be done of a run that was begun; it refuses a run of something else
    job_of: Callable[[RunDirectory], Job]
    # Whether a receipt is that of a run on this array
    is_ours: Callable[[Receipt], bool] = lambda _: True


def stretches_of(sizes: Sequence[int]) -> Iterator[Stretch]:
    """The place of each array among all, by their decoded sizes."""
    before, total = 0, sum(sizes)
    for nbytes in sizes:
        yield Stretch(before, total, nbytes)
        before += nbytes


@dataclass(slots=True)
class ArraysInParts:
    """Arrays that are cut into parts together."""

    label: str  # names all of them to people
    arrays: Sequence[ArrayInParts]
    engine: Engine
    how_to_begin: str  # remedy if nothing was begun
    _failed: dict[int, IncompleteError] = field(default_factory=dict)  # by the number of the array

    @classmethod
    def of_run(
        cls, run: RunDirectory, engine: Engine, job_of: Callable[[RunDirectory], Job]
    ) -> ArraysInParts:
        """All arrays of a run, in the order in which it was begun with them."""
        jobs = [job_of(one) for one in sorted(run.outputs(), key=lambda one: one.number)]
        arrays = [
            ArrayInParts(
                job.target.name or job.target.label, job.target, job.plan.raw_nbytes, job_of
            )
            for job in jobs
        ]
        top = run.target.top
        return cls(run.target.label if top is None else top.label, arrays, engine, "")

    def write(
        self, index: int, count: int, progress: bool | OnReport
    ) -> dict[int, tuple[WriteResult, Part | None]]:
        """Write what a part has of each array. Arrays of which it has nothing are not looked at.

        - Returns: results by the numbers of the arrays, without those of which it has nothing. Of
          an array that was published before, there is the result of the whole, and no part.
        """
        done: dict[int, tuple[WriteResult, Part | None]] = {}
        begun: dict[int, Job] = {}
        stretches = dict(enumerate(among for _, among in self._stretches()))
        chosen = [n for n, among in stretches.items() if among.may_have(index, count)]
        try:
            with runs_on([self.arrays[number].target for number in chosen], None) as runs:
                for position, number in enumerate(chosen):
                    if position not in runs:
                        done[number] = self._left(number), None
                        continue
                    job = self.arrays[number].job_of(runs[position])
                    part = job.plan.part(index, count, stretches[number])
                    if part.groups:
                        begun[number] = replace(job, part=part)
                jobs = list(begun.values())
                with Run.open(jobs, self.engine, progress, "part") as joined:
                    results = joined.execute()
        except RunEndedError as error:
            done |= {number: (self._left(number, ended=error), None) for number in begun}
        else:
            for (number, job), result in zip(begun.items(), results, strict=True):
                done[number] = result, job.part
        return dict(sorted(done.items()))

    def finish(self, n_parts: int | None, *, trusts_journals: bool) -> list[WriteResult]:
        """Check all arrays, and publish them; `trusts_journals` is as in `Run.open`.

        - Raises IncompleteError if shards are missing in one of them. Then none is published.
        """
        results: dict[int, WriteResult] = {}
        targets = [one.target for one in self.arrays]
        stretches = [among for _, among in self._stretches()]
        try:
            with runs_on(targets, partial(self.refuse_unwritten, n_parts)) as runs:
                jobs = [self.arrays[number].job_of(run) for number, run in runs.items()]
                trusts = trusts_journals
                with Run.open(jobs, self.engine, mode="end", trusts_journals=trusts) as joined:
                    for number, session in zip(runs, joined.sessions, strict=True):
                        session.refuse_unread()
                        with self._collecting(number):
                            among = stretches[number]
                            refuse_missing(session.job, session.ledger, n_parts, among)
                    for number in (n for n in range(len(targets)) if n not in runs):
                        with self._collecting(number):
                            results[number] = self._left(number, looks=True)
                    self._refuse(n_parts)
                    results |= dict(zip(runs, joined.finish(), strict=True))
        except RunEndedError as error:
            results = {n: self._left(n, looks=True, ended=error) for n in range(len(targets))}
        return [result for _, result in sorted(results.items())]

    def refuse_unwritten(
        self,
        n_parts: int | None,
        runs: Mapping[int, RunDirectory],
        ledgers: Mapping[int, Ledger] | None = None,
    ) -> None:
        """Refuse to publish if shards are missing, as journals tell.

        - `ledgers`: what is known better of some of the arrays.
        - Raises IncompleteError if shards are missing in one of them.
        """
        stretches = [among for _, among in self._stretches()]
        for number, run in runs.items():
            with self._collecting(number):
                job, ledger = self.arrays[number].job_of(run), (ledgers or {}).get(number)
                if ledger is None:
                    refuse_unwritten(job, run, n_parts, stretches[number])
                else:
                    refuse_missing(job, ledger, n_parts, stretches[number])
        self._refuse(n_parts)

    def _stretches(self) -> Iterator[tuple[ArrayInParts, Stretch]]:
        sizes = [one.raw_nbytes for one in self.arrays]
        return zip(self.arrays, stretches_of(sizes), strict=True)

    def _left(
        self, number: int, *, looks: bool = False, ended: RunEndedError | None = None
    ) -> WriteResult:
        """The result of an array that is published."""
        one = self.arrays[number]
        look = partial(check_kept, one.target, self.engine) if looks else lambda: None
        return result_left(
            one.target, one.is_ours, look, how_to_begin=self.how_to_begin, ended=ended
        )

    @contextlib.contextmanager
    def _collecting(self, number: int) -> Iterator[None]:
        try:
            yield
        except IncompleteError as error:
            self._failed[number] = error

    def _refuse(self, n_parts: int | None) -> None:
        """Raise the error that names the missing shards of all arrays, if there are any."""
        failed = [(self.arrays[number], error) for number, error in sorted(self._failed.items())]
        if len(failed) <= 1:
            for _, error in failed:
                raise error
            return
        numbers = sorted({part for _, error in failed for part in error.fields["parts"]})
        names = ", ".join(one.name for one, _ in failed[:_MAX_NAMED])
        more = ", ..." if len(failed) > _MAX_NAMED else ""
        missing = [f"{one.name}/{key}" for one, error in failed for key in error.fields["missing"]]
        found = IncompleteError(
            f"{self.label} is not whole: shards of {len(failed):,} of {len(self.arrays):,} arrays "
            f"are not committed ({names}{more}); {remedy_of_parts(numbers, n_parts)}",
            missing=missing[:_MAX_MISSING],
            parts=numbers,
        )
        for _, error in failed[:_MAX_NAMED]:
            found.add_note(error.message)
        raise found


def result_left(
    target: Target,
    is_ours: Callable[[Receipt], bool],
    look: Callable[[], None] = lambda: None,
    *,
    how_to_begin: str,
    ended: RunEndedError | None = None,
) -> WriteResult:
    """The result of an array on which no run goes on, from its receipt.

    - `is_ours`: whether a receipt counts.
    - `look`: called before the result of a run that had ended before is returned.
    - `how_to_begin`: the remedy if nothing was begun.
    - `ended`: the error that a run has ended during the work, if one has.
    - Raises IncompleteError if there is no receipt that counts.
    """
    receipt = read_receipt(target) if target.place.kind() == "array" else None
    result = (
        counted_at(target, result_from_receipt(receipt.result, target.label))
        if receipt is not None and is_ours(receipt)
        else None
    )
    if result is not None:
        if ended is None:
            look()
        return result
    if ended is not None:
        raise ended
    raise IncompleteError(
        f"nothing was begun for {target.label}; {how_to_begin}", missing=[str(target.run_path)]
    )
