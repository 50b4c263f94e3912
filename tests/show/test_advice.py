"""Each piece of advice: numbers for which it is given, and numbers for which it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwrite.show.html import scale_of
from shardwrite.show.report import Pause, PlanFigures, RunReport, WorkerReport

GB = 10**9
PLAN = PlanFigures(
    layout="fused",
    n_tasks=100,
    n_waves=1,
    threads_per_process=4,
    memory_nbytes=2 * GB,
    memory_limit_nbytes=4 * GB,
    source_reruns=1.0,
)


def worker(name="a:1", **fields):
    usual = {
        "job": "",
        "is_alive": False,
        "start": 0.0,
        "stop": 100.0,
        "n_shards": 100,
        "raw_nbytes": 10 * GB,
        "busy_seconds": 390.0,
        "cpu_seconds": 380.0,
        "peak_nbytes": 2 * GB,
    }
    return WorkerReport(name=name, **{**usual, **fields})


GOOD = RunReport(
    path="x",
    run="r",
    state="finished",
    told_by="report",
    begun=1e9,
    seconds=100.0,
    n_shards=300,
    n_done=300,
    n_empty=0,
    raw_nbytes=30 * GB,
    done_nbytes=30 * GB,
    stored_nbytes=15 * GB,
    durability="full",
    plan=PLAN,
    workers=(worker("a:1"), worker("b:1"), worker("c:1")),
    n_workers=3,
    failures={},
)


def workers(**fields):
    return {"workers": tuple(worker(name, **fields) for name in ("a:1", "b:1", "c:1"))}


def test_a_good_run_gets_none():
    assert GOOD.advice == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"n_shards": 10**6, "n_done": 10**6, "stored_nbytes": 10**11},
            (
                "1,000,000 shards are small: 100 kB each on average. Larger shards make fewer files. "
                "With 128 times the elements, a shard would have about 12.8 MB"
            ),
        ),
        (
            {"n_shards": 6, "n_done": 6},
            "6 shards for 12 threads leave threads without work at the end.",
        ),
        (
            {
                **workers(peak_nbytes=GB // 10),
                "plan": replace(PLAN, memory_nbytes=GB // 10),
            },
            "A process took 100 MB of the 4 GB that it may use. There is room for more threads",
        ),
        (workers(peak_nbytes=3 * GB), "A process took 3 GB, but the plan estimates 2 GB."),
        (
            workers(busy_seconds=100.0, cpu_seconds=90.0),
            "Threads wrote shards for 25% of the time.",
        ),
        (
            workers(cpu_seconds=39.0),
            (
                "Commits are slow: tasks waited for 90% of their time. They waited for the storage, or "
                'for a core that others used. With durability="batch"'
            ),
        ),
        (
            {**workers(cpu_seconds=39.0), "durability": "none"},
            "Fewer threads may do as well",
        ),
        (
            {"workers": (*GOOD.workers[:2], worker("c:1", raw_nbytes=GB))},
            "c:1 is slow: 10 MB/s, and others 100 MB/s.",
        ),
        (
            {"plan": replace(PLAN, source_reruns=2.5)},
            "Each task of the source runs 2.5 times on average.",
        ),
        ({"pauses": (Pause(1.0, 7200.0),)}, "No process worked on the run for 2 h 0 min."),
        ({"failures": {"OSError ENOSPC": 2}}, "ended the work of 2 processes. Make room"),
        (
            {"n_again": 3, "n_redone": 1},
            (
                "3 tasks began more than once. Storage trouble that passes, or a process that died, "
                "makes a task begin again. 1 shard had been committed before."
            ),
        ),
        (
            {"state": "interrupted", "n_done": 299, "n_interrupted": 1},
            "The run was interrupted, and 1 shard are left.".replace("are", "is"),
        ),
    ],
)
def test_advice(changes, words):
    told = " ".join(" ".join(pair) for pair in replace(GOOD, **changes).advice)
    assert words in told


def test_short_runs_and_unknown_numbers_give_no_advice_on_speed():
    slow = replace(GOOD, **workers(busy_seconds=1.0, cpu_seconds=0.0))
    assert len(slow.advice) == 2
    assert replace(slow, seconds=1.0).advice == []
    unknown = replace(GOOD, **workers(cpu_seconds=-1.0), plan=PlanFigures())
    assert unknown.advice == []


@pytest.mark.parametrize(
    ("largest", "ticks"),
    [
        (0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.03, ["0.00", "0.01", "0.02", "0.03"]),
        (7, ["0", "2", "4", "6"]),
        (1e6, ["0", "200,000", "400,000", "600,000", "800,000", "1,000,000"]),
        (float("inf"), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    ],
)
def test_ticks_are_plain(largest, ticks):
    scale = scale_of(largest, 0, 100)
    assert [tick.text for tick in scale.ticks()] == ticks
    assert scale.at(1e300) == 100
