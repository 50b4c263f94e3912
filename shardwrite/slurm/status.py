"""Progress of a run, from the disk, and from SLURM as long as it knows the run's jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from statistics import median
from typing import Any

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.errors import IncompleteError, SubmitError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.journal.lease import live_holders, slurm_job
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.neighbours import Beside, look_beside
from shardwrite.journal.process import Holder
from shardwrite.journal.receipt import read_receipt
from shardwrite.journal.replay import journals, replay
from shardwrite.journal.rundir import RunDirectory
from shardwrite.place.target import Target
from shardwrite.plan.estimate import Resources
from shardwrite.plan.plan import Plan
from shardwrite.results import Facts, Result, human
from shardwrite.runs.begun import plan_begun
from shardwrite.slurm.client import as_array_indices, endings, looking, queue
from shardwrite.slurm.jobs import targets_at
from shardwrite.slurm.notes import Submitted, submitted
from shardwrite.stores.looking import is_there

_SLOW = 0.5  # share of the median speed below which a process is a straggler
_CUT_SHORT = (
    "ended in the middle of a task, without a word: killed, cancelled, out of memory, "
    "or its node was lost"
)
_PUT_BACK = "ended in the middle of a task, and SLURM has put its job back into the queue"
_ENDINGS = {
    "OUT_OF_MEMORY": "OUT_OF_MEMORY: a job used more memory than it had asked for",
    "CANCELLED": "CANCELLED: somebody has ended a job with scancel",
    "TIMEOUT": "TIMEOUT: a job was at its limit of time",
    "DEADLINE": "DEADLINE: a job was at its deadline",
    "NODE_FAIL": "NODE_FAIL: a node of a job was lost",
    "BOOT_FAIL": "BOOT_FAIL: a node of a job did not start",
    "PREEMPTED": "PREEMPTED: another job has taken the nodes of one",
}
_Told = tuple[list[dict[str, str]], dict[str, tuple[str, str]], str]
_AT_WORK = ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED", "COMPLETING", "CONFIGURING")


@dataclass(frozen=True, slots=True)
class Status(Result):
    """Progress of a run."""

    _derived = ("seconds_left",)

    path: str  # path of the array
    is_whole: bool  # whether the array is published and its run has ended
    # Number of all shards, and of those that are committed or empty by design. Those of a spool
    # count, too.
    n_shards: int
    n_done_shards: int
    raw_nbytes: int  # decoded bytes of all shards, and of those that are done
    done_nbytes: int
    # Joint speed, in decoded bytes, of the processes that work now; 0 if none of them has committed
    # a shard yet
    nbytes_per_second: float = 0.0
    # Number of processes that hold a lease, without those of which it is known that they are gone
    n_writers: int = 0
    # Seconds since the last sign of life of one of these processes; None if there is none
    last_sign_seconds: float | None = None
    # Writers slower than half the median speed, with host, pid, job and speed
    stragglers: list[str] = field(default_factory=list)
    # Causes that ended processes and jobs too early, and how often each of them did
    failures: dict[str, int] = field(default_factory=dict)
    # Number of parts of the job array that was submitted last; 0 if there was none
    n_parts: int = 0
    # Parts of that job array that are not done, counted from 0. If chunks are spooled, parts that
    # are not spooled; when there are none left, parts that are not gathered.
    parts_left: list[int] = field(default_factory=list)
    # Tasks in the queue, of jobs that were submitted for the run or work on it; see
    # :func:`shardwrite.slurm.client.queue` for the keys
    jobs: list[dict[str, str]] = field(default_factory=list)
    note: str = ""  # why nothing is known of jobs; empty if SLURM answered
    is_published: bool = False  # whether readers see the array although its run has not ended
    # Warnings about what lies beside the array; see :func:`shardwrite.verify`
    warnings: list[str] = field(default_factory=list)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the run is done at the present speed; None if that is not known."""
        if self.is_whole:
            return 0.0
        return (
            (self.raw_nbytes - self.done_nbytes) / self.nbytes_per_second
            if self.nbytes_per_second
            else None
        )

    @property
    def _writers(self) -> str:
        if not self.n_writers:
            return "none"
        age = self.last_sign_seconds
        sign = "" if age is None else f"; last sign of life {age:.0f} s ago"
        return f"{self.n_writers}, {human(self.nbytes_per_second)}/s{sign}"

    @property
    def _remark(self) -> str:
        if self.is_whole:
            return ""
        if not self.is_published:
            return ", not published yet"
        is_left = self.n_done_shards == self.n_shards and not self.n_writers
        return ", published; its run has not ended" + (
            ": call shardwrite finalize again" if is_left else ""
        )

    def facts(self) -> Facts:
        """Return what is shown of the progress."""
        left = self.seconds_left
        share = self.n_done_shards / max(1, self.n_shards)
        rows = [
            ("array", f"{self.path}{self._remark}"),
            ("shards", f"{self.n_done_shards:,} of {self.n_shards:,} done ({share:.0%})"),
            ("bytes", f"{human(self.done_nbytes)} of {human(self.raw_nbytes)}, decoded"),
            ("writers", self._writers),
        ]
        if left:
            rows.append(
                (
                    "time left",
                    f"{left / 60:,.0f} min at this speed"
                    if left > 90
                    else f"{left:.0f} s at this speed",
                )
            )
        if self.stragglers:
            rows.append(("slow", "\n".join(self.stragglers)))
        if self.failures:
            rows.append(
                ("failures", "\n".join(f"{n} of {cause}" for cause, n in self.failures.items()))
            )
        if self.n_parts:
            which = f": {as_array_indices(self.parts_left)}" if self.parts_left else ""
            rows.append(("parts", f"{len(self.parts_left)} of {self.n_parts} left{which}"))
        states = Counter((job["state"], job["reason"]) for job in self.jobs)
        jobs = [
            f"{n} {state}{'' if reason == 'None' else f' ({reason})'}"
            for (state, reason), n in sorted(states.items())
        ]
        rows.append(("jobs", self.note or "\n".join(jobs) or "none in the queue"))
        notes = [("warning", text) for text in self.warnings]
        return Facts(title="status", subject=self.path, notes=notes, rows=rows)


def status(target: Target) -> Status:
    """Progress of the run at a target, or of all runs in a group that is converted.

    SLURM is asked for one second at most. This works after its jobs are gone, and where SLURM's
    commands are missing. Nothing is written.

    - Raises IncompleteError if nothing was begun at the target.
    - Raises UntrustedStateError if the state beside the array cannot be trusted, and there is no
      receipt of a finished run.
    """
    return status_of_each([target])[0]


def status_of_each(targets: Iterable[Target]) -> list[Status]:
    """The same for several targets. SLURM is asked for one second for all of them together."""
    with looking():
        return [_status(target, targets_at(target)) for target in targets]


def _status(target: Target, targets: Sequence[Target]) -> Status:
    looks = [_look(each) for each in targets]
    begun = [look for look in looks if isinstance(look, _Look)]
    ids = dict.fromkeys(number for look in begun for number in look.ids)
    told = _told(list(ids), {number for look in begun for number in look.cut_short})
    first = {look.run.shared: look for look in reversed(begun)}
    found = [
        look.status(told, counts=first[look.run.shared] is look)
        if isinstance(look, _Look)
        else look
        for look in looks
    ]
    if targets[:1] != [target]:
        return _together(target.label, found)
    return found[0] if len(found) == 1 else _with_spool(*found)


@dataclass(frozen=True, slots=True)
class _History:
    """Work of one process on a run, as its journal tells it."""

    driver: str  # name of the driver on whose behalf the process works
    process: str  # host and pid of the process, separated by a colon
    job: str  # job of the batch system, as text to display; empty if there is none
    shards: list[int]  # ranks of the shards in the order in which they were committed
    # Time from the first line to the last, in seconds. The first time is taken from the clock of
    # the process's host, the last from that of the file system.
    seconds: float
    failures: list[str]  # errors that ended its work; see `cause_of`
    n_unended: int  # number of tasks that it began to commit and did not end


def _histories(run: RunDirectory, metadata: ArrayMetadata) -> list[_History]:
    """Work of each process that has a journal, alive or not."""
    found = []
    n_shards = metadata.grid.n_shards
    for file in journals(run, n_shards):
        own = [e for e in file.entries if e.output == run.number and e.fits(n_shards)]
        shards = [rank for entry in own for rank in entry.shards]
        seconds = max(0.0, file.changed - file.begun)
        found.append(
            _History(
                file.driver,
                file.process,
                file.job,
                shards,
                seconds,
                file.failures,
                sum(begun.output == run.number for begun in file.unended),
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class _Look:
    """What the disk says of a run that has not ended."""

    target: Target
    beside: Beside
    run: RunDirectory
    plan: Plan
    ledger: Ledger
    past: Sequence[_History]
    holders: Sequence[Holder]
    known: Submitted

    @property
    def ids(self) -> list[str]:
        """Ids of jobs that were submitted for it, or work on it."""
        at_work = {slurm_job(holder.process.job) for holder in self.holders} - {""}
        return [*self.known.ids, *sorted(at_work)]

    @property
    def cut_short(self) -> set[str]:
        """Ids of jobs whose processes have ended in the middle of a task."""
        return {slurm_job(history.job) for history in self.past if history.n_unended} - {""}

    def status(self, told: _Told, *, counts: bool) -> Status:
        """Progress of the run on this array.

        - `counts`: whether writers and failures of the run count here, and not for another array.
        """
        plan, ledger, known, past = self.plan, self.ledger, self.known, self.past
        sizes = _decoded_sizes(plan)
        alive = {holder.driver for holder in self.holders}
        at_work = [history for history in past if history.driver in alive]
        speeds = {
            _who(h): int(sizes[h.shards].sum()) / h.seconds
            for h in at_work
            if h.shards and h.seconds
        }
        least = _SLOW * median(speeds.values()) if speeds else 0.0
        slow = [(who, speed) for who, speed in speeds.items() if speed < least]
        jobs, ends, note = told
        # A driver cancels its workers in the end, which is no failure.
        states = {
            number: state
            for number, (job, state) in ends.items()
            if job not in known.workers or state != "CANCELLED"
        }
        left = ledger.left_in_groups(plan.partition.group_edges)
        return Status(
            path=self.target.label,
            is_whole=False,
            n_shards=plan.n_shards,
            n_done_shards=ledger.n_done,
            raw_nbytes=plan.raw_nbytes,
            done_nbytes=int(sizes[ledger.is_done].sum()),
            nbytes_per_second=sum(speeds.values()),
            n_writers=len(alive) if counts else 0,
            last_sign_seconds=min((holder.age_seconds for holder in self.holders), default=None),
            stragglers=[f"{who}, {human(speed)}/s" for who, speed in slow],
            failures=_failures(past, alive, states, counts=counts),
            n_parts=known.n_parts,
            parts_left=plan.parts_with(left, known.n_parts, known.among) if known.n_parts else [],
            jobs=jobs,
            note=note,
            is_published=self.target.is_published
            and (
                not self.run.record.replaces
                or self.run.is_aside
                or is_there(self.run.path / "replaced")
            ),
            warnings=list(self.beside.warnings),
        )


def _look(target: Target) -> _Look | Status:
    """What the disk says of a run, or its status if it has ended."""
    beside = look_beside(target)
    run = beside.run
    if run is None or not run.makes_array:
        return _ended(target, beside)
    plan = plan_begun(run, Resources(1, 1))
    ledger = replay(run, plan.metadata, looking=True).ledger
    past = _histories(run, plan.metadata)
    # Leases are read after the journals, so every process that has a journal here has a lease too,
    # if it lives.
    holders = live_holders(run.shared, looking=True)
    return _Look(target, beside, run, plan, ledger, past, holders, submitted(run))


def _together(label: str, found: Sequence[Status]) -> Status:
    """Progress of several runs of one group."""
    if not found:
        message = f"nothing was begun for {label}; call shardwrite init first"
        raise IncompleteError(message, missing=[label])
    failures = Counter[str]()
    for each in found:
        for cause, n in each.failures.items():
            # Runs share jobs, whose ends count once.
            is_of_a_job = cause in _ENDINGS.values()
            failures[cause] = max(n, failures[cause]) if is_of_a_job else failures[cause] + n
    n_parts = max(each.n_parts for each in found)
    return Status(
        path=label,
        is_whole=all(each.is_whole for each in found),
        n_shards=sum(each.n_shards for each in found),
        n_done_shards=sum(each.n_done_shards for each in found),
        raw_nbytes=sum(each.raw_nbytes for each in found),
        done_nbytes=sum(each.done_nbytes for each in found),
        nbytes_per_second=sum(each.nbytes_per_second for each in found),
        n_writers=sum(each.n_writers for each in found),
        last_sign_seconds=min(
            (s for each in found if (s := each.last_sign_seconds) is not None), default=None
        ),
        stragglers=[who for each in found for who in each.stragglers],
        failures=dict(failures.most_common()),
        n_parts=n_parts,
        parts_left=sorted({part for each in found for part in each.parts_left}),
        jobs=next((each.jobs for each in found if not each.is_whole), []),
        note=next((each.note for each in found if not each.is_whole), ""),
        warnings=[text for each in found for text in each.warnings],
    )


def _with_spool(scale: Status, spool: Status) -> Status:
    """Progress of a scale whose chunks are spooled first. The shards of the spool count, too."""
    return replace(
        _together(scale.path, [scale, spool]),
        is_published=scale.is_published,
        parts_left=spool.parts_left or scale.parts_left,
    )


def _ended(target: Target, beside: Beside) -> Status:
    receipt = read_receipt(target) if target.place.kind() == "array" else None
    if receipt is None:
        if beside.untrusted is not None:
            raise beside.untrusted
        known = "".join(f"; {text}" for text in beside.warnings)
        message = f"nothing was begun for {target.label}{known}; call shardwrite init first"
        raise IncompleteError(message, missing=[str(target.run_path)])
    n = receipt.count("n_shards") + receipt.count("n_empty_shards")
    nbytes = receipt.count("raw_nbytes")
    return Status(
        target.label,
        is_whole=True,
        n_shards=n,
        n_done_shards=n,
        raw_nbytes=nbytes,
        done_nbytes=nbytes,
        warnings=list(beside.warnings),
    )


def _decoded_sizes(plan: Plan) -> Any:
    """Decoded bytes of each shard, without what is outside the array, by the shard's rank."""
    grid = plan.metadata.grid
    sizes = np.ones((), dtype=np.int64)
    for n, shard in zip(grid.shape, grid.shards, strict=True):
        sizes = np.multiply.outer(
            sizes, np.minimum(n - np.arange(0, n, shard, dtype=np.int64), shard)
        )
    return sizes.ravel() * plan.metadata.itemsize


def _failures(
    past: Sequence[_History], alive: Collection[str], states: Mapping[str, str], *, counts: bool
) -> dict[str, int]:
    """Number of failures by cause, the most frequent first."""
    causes = Counter(cause for history in past for cause in history.failures if counts)
    causes.update(_ENDINGS[state] for state in states.values() if state in _ENDINGS)
    for history in past:
        state = states.get(slurm_job(history.job), "")
        if (
            history.n_unended
            and not history.failures
            and history.driver not in alive
            and state not in _ENDINGS
        ):
            causes[_PUT_BACK if state in _AT_WORK else _CUT_SHORT] += 1
    return dict(causes.most_common())


def _who(history: _History) -> str:
    return f"{history.process} {history.job}".strip()


def _told(ids: list[str], ended: Collection[str]) -> _Told:
    """Tasks in the queue, and states of tasks by the numbers of their jobs, as SLURM tells them.

    The third value says why SLURM did not tell; it is empty otherwise.
    """
    try:
        return queue(ids), endings([*ids, *sorted(set(ended) - set(ids))]), ""
    except SubmitError as error:
        return [], {}, f"unknown: {error.message}"
