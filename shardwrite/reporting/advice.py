"""Advice on what to change, drawn from the numbers of a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import median

from shardwrite.reporting.facts import RunFacts, WorkerReport
from shardwrite.results import counted, duration, human

_SMALL_NBYTES = 1_000_000  # a shard below this costs more to open than to read
_MANY_SHARDS = 1_000
_SHORT_SECONDS = 2.0  # runs that are shorter tell nothing of speed
_FAR_BELOW = 0.25  # of the memory limit
_OVER = 1.2  # times the estimate
_SLACK_NBYTES = 32_000_000
_IDLE = 0.5
_WAITING = 0.5
_SLOW = 0.5  # of the median speed
_FEW_PER_THREAD = 2
_RERUNS = 0.1

Advice = Iterator[tuple[str, str]]


def advice_for(report: RunFacts) -> list[tuple[str, str]]:
    """Find out what could be changed: pairs of a finding and what to do about it."""
    rules: tuple[Callable[[RunFacts], Advice], ...] = (
        _state,
        _failures,
        _memory,
        _shards,
        _idle,
        _storage,
        _uneven,
        _source,
    )
    return [found for rule in rules for found in rule(report)]


def _state(report: RunFacts) -> Advice:
    if report.state == "interrupted" and report.n_done < report.n_shards:
        left = report.n_shards - report.n_done
        yield (
            f"The run was interrupted, and {counted(left, 'shard')} {_are(left)} left.",
            "Make the same call again. It continues where the run stopped.",
        )
    elif report.state == "interrupted":
        yield (
            "All shards are written, but the run has not ended.",
            "Make the same call again (shardwrite finalize, if parts were written).",
        )


def _failures(report: RunFacts) -> Advice:
    for cause, n in report.failures.items():
        remedy = "Look into the output of its process."
        if "ENOSPC" in cause or "EDQUOT" in cause:
            remedy = "Make room on the storage, and make the same call again."
        elif "MemoryError" in cause or "WorkersLost" in cause:
            remedy = "Give workers more memory, or use fewer threads or smaller shards."
        yield f"{cause} has ended the work of {counted(n, 'process')}.", remedy
    if report.n_interrupted and report.state != "running":
        yield (
            f"{counted(report.n_interrupted, 'task')} ended in the middle.",
            (
                "Their processes were killed or ran out of memory or time. "
                "Only the shards of these tasks are written again."
            ),
        )
    if report.n_again:
        yield (
            f"{counted(report.n_again, 'task')} began more than once.",
            (
                "Storage trouble that passes, or a process that died, makes a task begin again. "
                f"{counted(report.n_redone, 'shard')} had been committed before."
            ),
        )


def _memory(report: RunFacts) -> Advice:
    peak, plan = report.peak_nbytes, report.plan
    if not peak or not plan.memory_nbytes:
        return
    if peak > _OVER * plan.memory_nbytes + _SLACK_NBYTES:
        yield (
            f"A process took {human(peak)}, but the plan estimates {human(plan.memory_nbytes)}.",
            (
                "The source may keep memory of its own, such as caches and copies. "
                "Give workers more room than the plan asks for, or use smaller source chunks."
            ),
        )
    limit = plan.memory_limit_nbytes
    is_large = report.raw_nbytes > limit > 0 and report.seconds > _SHORT_SECONDS
    if is_large and peak < _FAR_BELOW * limit and plan.memory_nbytes < _FAR_BELOW * limit:
        yield (
            f"A process took {human(peak)} of the {human(limit)} that it may use.",
            "There is room for more threads, for larger shards, or for smaller jobs.",
        )


def _shards(report: RunFacts) -> Advice:
    n_files = report.n_done - report.n_empty
    if n_files >= _MANY_SHARDS and report.stored_nbytes < _SMALL_NBYTES * n_files:
        mean = report.stored_nbytes / n_files
        times = 2 ** max(1, math.ceil(math.log2(10 * _SMALL_NBYTES / max(1.0, mean))))
        yield (
            f"{n_files:,} shards are small: {human(mean)} each on average.",
            (
                f"Larger shards make fewer files. With {times:,} times the elements, a shard would "
                f"have about {human(mean * times)}; see shards=."
            ),
        )
    n_threads = report.plan.threads_per_process * max(1, _n_at_once(report))
    if n_threads > 1 and report.n_shards < _FEW_PER_THREAD * n_threads and _is_long(report):
        yield (
            (
                f"{counted(report.n_shards, 'shard')} for {counted(n_threads, 'thread')} leave "
                "threads without work at the end."
            ),
            "Use smaller shards, or fewer threads.",
        )


def _idle(report: RunFacts) -> Advice:
    if not _is_long(report) or report.plan.layout != "fused":
        return  # encoding of blocks is not in the journal
    n_threads = report.plan.threads_per_process
    there = sum((w.stop - w.start) * max(n_threads, w.n_lanes) for w in report.workers)
    share = _busy(report) / there if there else 1.0
    if share < _IDLE:
        yield (
            f"Threads wrote shards for {share:.0%} of the time.",
            (
                "In the rest they read the source, or waited for tasks. A faster source, larger "
                "source chunks, or fewer workers would help."
            ),
        )


def _storage(report: RunFacts) -> Advice:
    busy = _busy(report)
    cpu = sum(w.cpu_seconds for w in report.workers)
    if not _is_long(report) or busy < 1 or any(w.cpu_seconds < 0 for w in report.workers):
        return
    share = 1 - cpu / busy
    if share > _WAITING:
        remedy = (
            'With durability="batch" (--durability batch), shards are synced many at a time.'
            if report.durability == "full"
            else "Fewer threads may do as well, and larger shards are written with fewer calls."
        )
        yield (
            f"Commits are slow: tasks waited for {share:.0%} of their time.",
            f"They waited for the storage, or for a core that others used. {remedy}",
        )


def _uneven(report: RunFacts) -> Advice:
    speeds = {worker: _speed(worker) for worker in report.workers if _speed(worker) > 0}
    if len(speeds) < 3 or not _is_long(report):
        return
    usual = median(speeds.values())
    slow = [(speed, worker) for worker, speed in speeds.items() if speed < _SLOW * usual]
    for speed, worker in sorted(slow, key=lambda pair: pair[0])[:3]:
        yield (
            f"{worker.name} is slow: {human(speed)}/s, and others {human(usual)}/s.",
            "Look what else runs on that node, and whether its network or disk is slower.",
        )


def _source(report: RunFacts) -> Advice:
    if report.plan.source_reruns > 1 + _RERUNS:
        yield (
            f"Each task of the source runs {report.plan.source_reruns:.2g} times on average.",
            "Larger shards, or more memory for a process, let more source chunks be used once.",
        )
    if report.pauses:
        lost = sum(pause.seconds for pause in report.pauses)
        yield (
            f"No process worked on the run for {duration(lost)}.",
            (
                f"It was interrupted {counted(len(report.pauses), 'time')}. "
                "This time is left out of the pictures."
            ),
        )


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _is_long(report: RunFacts) -> bool:
    return report.seconds > _SHORT_SECONDS


def _busy(report: RunFacts) -> float:
    return sum(worker.busy_seconds for worker in report.workers)


def _speed(worker: WorkerReport) -> float:
    """Decoded bytes per second since the process began."""
    seconds = worker.stop - worker.start
    return worker.raw_nbytes / seconds if seconds > 0 else 0.0


def _n_at_once(report: RunFacts) -> int:
    """Largest number of processes that worked at the same time."""
    changes = sorted(
        change
        for worker in report.workers
        for change in ((worker.start, 1), (max(worker.stop, worker.start), -1))
    )
    n = most = 0
    for _, change in sorted(changes, key=lambda pair: (pair[0], -pair[1])):
        n += change
        most = max(most, n)
    return most
