"""What 10^4 to 10^6 shards cost those who only organise: `python -m benchmarks.scale plan` and `... run`.

`plan` makes the plan in a fresh process for each number of shards. `run` sends the tasks of a whole run through a `distributed`
scheduler, in a process of its own, to worker processes that encode and write nothing: each shard is said to be committed, and the
journal and the reports are as they always are. So what client and scheduler take for a shard is measured, and no array comes of it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da

import shardwrite
from benchmarks.measure import anonymous_memory, machine, versions
from shardwrite.host.environment import LOOPBACK, MESSAGES_KEPT

__all__ = ["main", "measure_plan", "measure_run"]

SHARDS = (64, 128)
CHUNKS = (32, 64)
SOURCES: dict[str, tuple[int, int]] = {"blocks": (50, 50), "shards": (1, 1), "line": (0, 0)}
"""Shards in a source chunk along each axis; of `line` the shards are too large to share a task and lie in one row."""

_LINE_SHARD = 32 * 2**20
_SAMPLE_SECONDS = 0.1
_MESSAGES = "DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH"


def source(kind: str, n_shards: int) -> tuple[da.Array, dict[str, Any]]:
    """An array of zeros that takes no memory, and the layout of about `n_shards` shards.

    Parameters
    ----------
    kind : str
        A key of `SOURCES`.
    n_shards : int
        How many, to the next square.
    """
    zeros: Any = da.zeros
    if kind == "line":
        return zeros(n_shards * _LINE_SHARD, chunks=_LINE_SHARD, dtype="u2"), {
            "shards": (_LINE_SHARD,),
            "chunks": (2**20,),
        }
    side = math.isqrt(n_shards)
    shape = tuple(side * n for n in SHARDS)
    chunks = tuple(n * k for n, k in zip(SHARDS, SOURCES[kind], strict=True))
    return zeros(shape, chunks=chunks, dtype="u2"), {"shards": SHARDS, "chunks": CHUNKS}


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


def _fresh(options: argparse.Namespace, kind: str, n_shards: int) -> dict[str, Any]:
    """One measurement in a process of its own."""
    directory = Path(tempfile.mkdtemp(prefix="scale-", dir=options.directory))
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
    try:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, timeout=options.timeout
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    measured: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return measured


def _text(line: dict[str, Any]) -> str:
    head = f"{line['what']} {line['source']}: {line['n_shards']:,} shards, {line['n_tasks']:,} tasks: {line['seconds']:.2f} s"
    if line["what"] == "plan":
        return f"{head}, peak {line['peak_rss_bytes'] / 2**20:.0f} MiB, plan.json {line['plan_json_bytes']:,} bytes"
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
    parser.add_argument("what", choices=("plan", "run"))
    parser.add_argument(
        "--sources", default="blocks,shards", help=f"comma-separated, of {', '.join(SOURCES)}"
    )
    parser.add_argument(
        "--shards", default="10000,1000000", help="numbers of shards, comma-separated"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--directory", type=Path, help="where journals go (default: a temporary directory)"
    )
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one measurement")
    parser.add_argument("--output", type=Path, help="JSON lines; a run appends to it")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    kinds, numbers = options.sources.split(","), [int(part) for part in options.shards.split(",")]
    if unknown := [kind for kind in kinds if kind not in SOURCES]:
        parser.error(f"no source is called {', '.join(unknown)}; there are {', '.join(SOURCES)}")
    if options.here:
        kind, n_shards = kinds[0], numbers[0]
        found = (
            measure_plan(kind, n_shards)
            if options.what == "plan"
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
            line = {"what": options.what, "source": kind, **_fresh(options, kind, n_shards)}
            print(_text(line), flush=True)
            if options.output:
                with options.output.open("a") as output:
                    output.write(json.dumps({**line, **circumstances}) + "\n")


if __name__ == "__main__":
    main()
