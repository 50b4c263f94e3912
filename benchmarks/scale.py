"""What 10^4 to 10^7 shards cost those who only organise: `python -m benchmarks.scale plan`, `... run` and `... local`.

`plan` makes the plan in a fresh process for each number of shards. `run` sends the tasks of a whole run through a `distributed`
scheduler, in a process of its own, to worker processes that encode and write nothing: each shard is said to be committed, and the
journal and the reports are as they always are. So what client and scheduler take for a shard is measured, and no array comes of it.

`local` writes all shards with the threads of one process, and stops at half. It measures what a user waits for: the first commit, the
status of the unfinished run, the first commit after it goes on, the end of the run, the command `info`, and the end of a run in parts.
Each is measured in a fresh process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da

import shardwrite
from benchmarks.measure import anonymous_memory, machine, versions
from shardwrite.grid import ceil_div
from shardwrite.host.environment import LOOPBACK, MESSAGES_KEPT

__all__ = ["main", "measure_plan", "measure_run"]

SHARDS = (64, 128)
CHUNKS = (32, 64)
SOURCES: dict[str, tuple[int, int]] = {"blocks": (50, 50), "shards": (1, 1), "line": (0, 0)}
"""Shards in a source chunk along each axis; of `line` the shards are too large to share a task and lie in one row."""

STEPS = ("first", "status", "resume", "info", "part", "finalize")
"""Of a local array: half of it, what one asks then, the rest, what one asks then; and another array in parts."""

_LINE_SHARD = 32 * 2**20
_SAMPLE_SECONDS = 0.1
_MESSAGES = "DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH"


def source(kind: str, n_shards: int, make: Any = da.zeros) -> tuple[da.Array, dict[str, Any]]:
    """An array of one value that takes no memory, and the layout of about `n_shards` shards.

    Parameters
    ----------
    kind : str
        A key of `SOURCES`.
    n_shards : int
        How many, to the next square.
    make : callable
        Of dask, with a value that is the fill value (so that nothing is stored) or another one.
    """
    if kind == "line":
        return make(n_shards * _LINE_SHARD, chunks=_LINE_SHARD, dtype="u2"), {
            "shards": (_LINE_SHARD,),
            "chunks": (2**20,),
        }
    side = math.isqrt(n_shards)
    shape = tuple(side * n for n in SHARDS)
    chunks = tuple(n * k for n, k in zip(SHARDS, SOURCES[kind], strict=True))
    return make(shape, chunks=chunks, dtype="u2"), {"shards": SHARDS, "chunks": CHUNKS}


def _peak_rss() -> int:
    """Most memory this process has had resident, in bytes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def measure_plan(kind: str, n_shards: int) -> dict[str, Any]:
    """Plan in this process, with what a run keeps of the plan.

    Parameters
    ----------
    kind : str
        Of the source.
    n_shards : int
        How many shards.
    """
    from shardwrite.runs.job import intent_of

    x, layout = source(kind, n_shards)
    make_plan = shardwrite.plan  # It is imported before the clock starts.
    before = _peak_rss()
    begun = time.perf_counter()
    plan = make_plan(x, **layout)
    n_waves = len(plan.waves)
    seconds = time.perf_counter() - begun
    kept = len(json.dumps(intent_of(plan, "w-").to_dict(), indent=2))
    return {
        "seconds": seconds,
        "kept_seconds": time.perf_counter() - begun - seconds,
        "peak_rss_bytes": _peak_rss(),
        "added_rss_bytes": _peak_rss() - before,
        "n_shards": plan.n_shards,
        "n_groups": plan.partition.n_groups,
        "n_source_chunks": plan.source.n_chunks,
        "n_tasks": plan.n_tasks,
        "n_waves": n_waves,
        "plan_json_bytes": kept,
    }


def _commit_nothing() -> None:
    """Have this worker say of every shard that it is committed, and write none."""
    import importlib

    from shardwrite.write.commit import commit_shards
    from shardwrite.write.context import Written

    tasks: Any = importlib.import_module("shardwrite.write.tasks")

    def stream_nothing(spec: Any, *_: Any) -> Written:
        return Written(1000, 1, spec.metadata.grid.n_chunks_per_shard)

    def write_nothing(spec: Any, source: Any, _: Any) -> Any:
        shards = [
            index for index in spec.metadata.grid.shards_in(source.box) if index not in source.skip
        ]
        return commit_shards(spec, source.box, shards, lambda *_: stream_nothing(spec))

    tasks._stream_shard, tasks._write_small_shards = stream_nothing, write_nothing


def _look_for_nothing() -> None:
    """Keep this process from looking for shards at the end of a run. There are none."""
    from shardwrite.runs.session import Session

    ours: Any = Session
    ours._check_some_there = lambda _: None


class _Memory:
    """Anonymous memory of client and scheduler over time.

    Parameters
    ----------
    scheduler : int
        Its process id.
    """

    def __init__(self, scheduler: int) -> None:
        self.samples: list[tuple[float, int, int]] = []
        self._scheduler, self._stop = scheduler, threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def _poll(self) -> None:
        begun = time.perf_counter()
        while not self._stop.wait(_SAMPLE_SECONDS):
            now = time.perf_counter() - begun
            self.samples.append(
                (round(now, 2), anonymous_memory(), anonymous_memory(self._scheduler))
            )

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def over_time(self, n: int = 50) -> list[tuple[float, int, int]]:
        """Seconds, bytes of the client and of the scheduler, `n` times at most."""
        return self.samples[:: max(1, math.ceil(len(self.samples) / n))]


def measure_run(kind: str, n_shards: int, directory: Path, n_workers: int) -> dict[str, Any]:
    """Run in this process as the client; scheduler and workers are processes of their own.

    The scheduler keeps as few messages as those do that shardwrite starts.

    Parameters
    ----------
    kind : str
        Of the source.
    n_shards : int
        How many shards.
    directory : Path
        For the journal.
    n_workers : int
        Worker processes, of one thread each.
    """
    import distributed

    subprocesses: Any = distributed.SubprocessCluster
    x, layout = source(kind, n_shards)
    first: list[float] = []
    options = {"dashboard": False, "dashboard_address": LOOPBACK}
    os.environ[_MESSAGES] = str(MESSAGES_KEPT)
    with (
        subprocesses(
            n_workers=n_workers,
            threads_per_worker=1,
            scheduler_kwargs=options,
            worker_kwargs={"nthreads": 1},
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        kept = client.run_on_scheduler(dask.config.get, "distributed.admin.low-level-log-length")
        if kept != MESSAGES_KEPT:
            raise RuntimeError(f"the scheduler keeps {kept} messages, not {MESSAGES_KEPT}")
        client.wait_for_workers(n_workers)
        client.run(_commit_nothing)
        _look_for_nothing()
        warm, warm_layout = source(kind, 4)
        shardwrite.to_sharded_zarr(
            warm, str(directory / "warm.zarr"), **warm_layout, durability="none"
        )
        scheduler = int(client.run_on_scheduler(os.getpid))
        cpu = client.run_on_scheduler(time.process_time), time.process_time()
        with _Memory(scheduler) as memory:
            begun = time.perf_counter()

            def note(_: Any) -> None:
                if not first:
                    first.extend((time.perf_counter() - begun, time.process_time() - cpu[1]))

            result = shardwrite.to_sharded_zarr(
                x, str(directory / "x.zarr"), **layout, durability="none", progress=note
            )
            seconds = time.perf_counter() - begun
        client_cpu = time.process_time() - cpu[1]
        scheduler_cpu = client.run_on_scheduler(time.process_time) - cpu[0]
    n = result.n_shards
    return {
        "seconds": seconds,
        "first_commit_seconds": first[0],
        "first_commit_client_cpu_seconds": first[1],
        "client_cpu_seconds": client_cpu,
        "scheduler_cpu_seconds": scheduler_cpu,
        "cpu_seconds_per_shard": (client_cpu + scheduler_cpu) / n,
        "cpu_seconds_per_task": (client_cpu + scheduler_cpu) / result.n_tasks,
        "n_shards": n,
        "n_tasks": result.n_tasks,
        "client_peak_bytes": max((client for _, client, _ in memory.samples), default=0),
        "scheduler_peak_bytes": max((own for _, _, own in memory.samples), default=0),
        "memory_over_time": memory.over_time(),
    }


class _HalfDoneError(Exception):
    """Enough of the array is written."""


class _Clock:
    """Receiver of reports that notes when the first and the last one came.

    Parameters
    ----------
    stop_at : float
        Number of shards after which the run is stopped.
    """

    def __init__(self, stop_at: float = math.inf) -> None:
        self.begun = self.last = time.perf_counter()
        self.first_seconds = math.nan
        self._n_left = stop_at

    def __call__(self, report: Any) -> None:
        """Take a report."""
        self.last = time.perf_counter()
        if math.isnan(self.first_seconds):
            self.first_seconds = self.last - self.begun
        self._n_left -= len(report.shards)
        if self._n_left <= 0:
            raise _HalfDoneError


def measure_step(step: str, kind: str, n_shards: int, directory: Path) -> dict[str, Any]:
    """Take one step of the life of a local array in this process, and measure what one waits for.

    Parameters
    ----------
    step : str
        One of `STEPS`, which are taken in their order.
    kind : str
        Of the source.
    n_shards : int
        How many shards.
    directory : Path
        For the arrays.
    """
    from shardwrite.operations.verify import open_begun, verify_opened
    from shardwrite.place.target import resolve_target
    from shardwrite.slurm.status import status

    x, layout = source(kind, n_shards, da.ones)
    path, parts = directory / "x.zarr", directory / "parts.zarr"
    shardwrite.to_sharded_zarr(da.ones(4), directory / f"warm-{step}.zarr", shards=4, chunks=4)
    n_made = math.prod(ceil_div(n, k) for n, k in zip(x.shape, layout["shards"], strict=True))
    clock = _Clock(n_made / 2 if step == "first" else math.inf)
    more: dict[str, Any] = {}
    if step in ("first", "resume"):
        with contextlib.suppress(_HalfDoneError):
            shardwrite.to_sharded_zarr(x, path, **layout, durability="none", progress=clock)
        seconds = clock.first_seconds
        more = {"end_seconds": time.perf_counter() - clock.last}
    elif step == "status":
        status(resolve_target(str(path), None, is_read=True))
        seconds = time.perf_counter() - clock.begun
    elif step == "info":
        verify_opened(open_begun(str(path), None))
        seconds = time.perf_counter() - clock.begun
    elif step == "part":
        shutil.rmtree(path, ignore_errors=True)  # missing, if only the steps in parts are taken
        shardwrite.prepare(x, parts, plan=shardwrite.plan(x, **layout), durability="none")
        clock = _Clock()
        shardwrite.write_part(x, parts, index=0, count=1, progress=clock)
        seconds = clock.first_seconds
    else:
        shardwrite.finalize(parts, n_parts=1)
        seconds = time.perf_counter() - clock.begun
    return {
        "step": step,
        "seconds": seconds,
        "peak_rss_bytes": _peak_rss(),
        "n_shards": n_made,
        **more,
    }


def _fresh(options: argparse.Namespace, kind: str, n_shards: int) -> Iterator[dict[str, Any]]:
    """One measurement, or one for each step, in a process of its own."""
    directory = Path(tempfile.mkdtemp(prefix="scale-", dir=options.directory))
    try:
        for step in options.steps.split(",") if options.what == "local" else ("",):
            yield _measured(options, kind, n_shards, directory, step)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measured(
    options: argparse.Namespace, kind: str, n_shards: int, directory: Path, step: str
) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.scale",
        options.what,
        "--sources",
        kind,
        "--shards",
        str(n_shards),
    ]
    command += ["--workers", str(options.workers), "--directory", str(directory), "--here"]
    command += ["--step", step]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=options.timeout
    )
    measured: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return measured


def _text(line: dict[str, Any]) -> str:
    if line["what"] == "local":
        ended = f", end {line['end_seconds']:.2f} s" if line["step"] == "resume" else ""
        return (
            f"local {line['source']}: {line['n_shards']:,} shards, {line['step']}: {line['seconds']:.2f} s{ended}, "
            f"peak {line['peak_rss_bytes'] / 2**20:.0f} MiB"
        )
    head = f"{line['what']} {line['source']}: {line['n_shards']:,} shards, {line['n_tasks']:,} tasks: {line['seconds']:.2f} s"
    if line["what"] == "plan":
        return f"{head}, peak {line['peak_rss_bytes'] / 2**20:.0f} MiB ({line['added_rss_bytes'] / 2**20:.0f} by the plan), plan.json {line['plan_json_bytes']:,} bytes"
    peaks = f"client {line['client_peak_bytes'] / 2**20:.0f} MiB, scheduler {line['scheduler_peak_bytes'] / 2**20:.0f} MiB"
    return (
        f"{head}, first commit after {line['first_commit_seconds']:.2f} s "
        f"({line['first_commit_client_cpu_seconds']:.2f} s CPU); CPU {line['client_cpu_seconds']:.2f} s client, "
        f"{line['scheduler_cpu_seconds']:.2f} s scheduler, {line['cpu_seconds_per_shard'] * 1e6:.0f} us a shard, "
        f"{line['cpu_seconds_per_task'] * 1e6:.0f} us a task; {peaks}"
    )


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("what", choices=("plan", "run", "local"))
    parser.add_argument(
        "--sources", default="blocks,shards", help=f"comma-separated, of {', '.join(SOURCES)}"
    )
    parser.add_argument(
        "--shards", default="10000,1000000", help="numbers of shards, comma-separated"
    )
    parser.add_argument(
        "--steps", default=",".join(STEPS), help="of local: the first ones, or those from part on"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--directory", type=Path, help="where journals go (default: a temporary directory)"
    )
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one measurement")
    parser.add_argument("--output", type=Path, help="JSON lines; a run appends to it")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--step", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    kinds, numbers = options.sources.split(","), [int(part) for part in options.shards.split(",")]
    if unknown := [kind for kind in kinds if kind not in SOURCES]:
        parser.error(f"no source is called {', '.join(unknown)}; there are {', '.join(SOURCES)}")
    if unknown := [step for step in options.steps.split(",") if step not in STEPS]:
        parser.error(f"no step is called {', '.join(unknown)}; there are {', '.join(STEPS)}")
    if options.here:
        kind, n_shards = kinds[0], numbers[0]
        found = (
            measure_plan(kind, n_shards)
            if options.what == "plan"
            else measure_step(options.step, kind, n_shards, options.directory)
            if options.what == "local"
            else measure_run(kind, n_shards, options.directory, options.workers)
        )
        print(json.dumps(found))
        return
    circumstances = {
        "machine": machine(options.directory or Path(tempfile.gettempdir())),
        "versions": versions(),
    }
    for kind in kinds:
        for n_shards in numbers:
            for measured in _fresh(options, kind, n_shards):
                line = {"what": options.what, "source": kind, **measured}
                print(_text(line), flush=True)
                if options.output:
                    with options.output.open("a") as output:
                        output.write(json.dumps({**line, **circumstances}) + "\n")


if __name__ == "__main__":
    main()
