"""Compare writers and readers of Neuroglancer precomputed: `python -m benchmarks.precomputed`.

Volumes are written in shards by shardwrite, tensorstore and cloud-volume, and then read: chunks one
by one at random, by one thread, and all shards one by one. Contestants take turns, and each
measurement is a fresh process, in which something small was written or read before. What was
written is read back by tensorstore and compared, except for that of a bare loop, which only encodes
chunks and writes them without an index.

gzip is what each contestant does by itself: level 6 in shardwrite, and level 9 in the other two. For
images with noise, shardwrite takes ISA-L instead, which has no such level.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import PeakMemory, machine, processor_seconds, tree_size, versions
from benchmarks.volumes import CASES, CHUNK, KEY, READERS, WRITERS, Work, check, crew, make_source

__all__ = ["main", "measure"]

_ROOT = Path(__file__).resolve().parent.parent
_TASKS = ("write", "chunks", "shards")
Figures = dict[str, float]


def _work(options: argparse.Namespace, case: str) -> Work:
    chosen, top = CASES[case], options.dir
    side = chosen.side(options.mib * 2**20)
    sharding = chosen.sharding(side, options.shard_mib * 2**20)
    return Work(chosen, top / f"{case}.npy", top / f"{case}-volume", sharding, options.threads)


def _write(work: Work, name: str, small: Work, target: Path) -> Figures:
    """Write a volume, and compare it."""
    work = replace(work, volume=target)
    with crew(name, work.threads) as pool:
        children = [child.pid for child in multiprocessing.active_children()]
        WRITERS[name](replace(small, volume=target.with_name("rehearsal")), pool)
        gc.collect()
        pids: list[int | str] = ["self", *filter(None, children)]
        with PeakMemory(filter(None, children)) as memory:
            begun, worked = time.perf_counter(), processor_seconds(pids)
            WRITERS[name](work, pool)
            seconds = time.perf_counter() - begun
            worked = processor_seconds(pids) - worked
    n_shards = len(work.shards()) if name == "bare loop" else check(work)
    return {
        "seconds": seconds,
        "worked": worked,
        "peak": memory.above_idle,
        "nbytes": tree_size(work.volume / KEY),
        "shards": n_shards,
    }


def _read(work: Work, name: str, task: str, n_reads: int) -> Figures:
    """Read a volume, and compare what was read."""
    boxes = work.boxes((CHUNK,) * 3) if task == "chunks" else work.shards()
    rng = random.Random(0)
    chosen = rng.choices(boxes, k=n_reads) if task == "chunks" else boxes
    read, values = READERS[name](work), work.values
    first = read(chosen[0])
    is_lossy = work.case.encoding == "jpeg"
    if first.shape != values[chosen[0]].shape or (
        not is_lossy and (first != values[chosen[0]]).any()
    ):
        raise SystemExit(f"{name} has read other values")
    gc.collect()
    with PeakMemory() as memory:
        begun, worked = time.perf_counter(), processor_seconds(["self"])
        for box in chosen:
            read(box)
        seconds = time.perf_counter() - begun
        worked = processor_seconds(["self"]) - worked
    return {"seconds": seconds, "worked": worked, "peak": memory.above_idle, "reads": len(chosen)}


def measure(options: argparse.Namespace) -> Figures:
    """Measure once, in this process.

    Parameters
    ----------
    options : argparse.Namespace
        The command line, with `here` as contestant, and one case and task.
    """
    work = _work(options, options.cases)
    if options.tasks != "write":
        return _read(work, options.here, options.tasks, options.reads)
    small = replace(work, source=work.source.with_suffix(".small.npy"))
    return _write(work, options.here, small, options.target)


def _fresh(options: argparse.Namespace, case: str, task: str, name: str) -> Figures:
    """One measurement in a process of its own."""
    with tempfile.TemporaryDirectory(dir=options.dir) as scratch:
        words = [sys.executable, "-m", "benchmarks.precomputed", "--here", name]
        words += ["--cases", case, "--tasks", task, "--target", f"{scratch}/volume"]
        for given in ("dir", "mib", "shard_mib", "threads", "reads"):
            words += [f"--{given.replace('_', '-')}", str(getattr(options, given))]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        ended = subprocess.run(
            words, env=environment, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
    found: Figures = json.loads(ended.stdout.splitlines()[-1])
    return found


def _prepare(options: argparse.Namespace, case: str) -> Work:
    """Make the voxels of a case, and the volume that is read."""
    work = _work(options, case)
    make_source(work.source, work.case, work.case.side(options.mib * 2**20))
    small = replace(work, source=work.source.with_suffix(".small.npy"))
    make_source(small.source, work.case, 2 * CHUNK)
    WRITERS["shardwrite"](work, None)
    return work


def _compare(options: argparse.Namespace, case: str, task: str, raw_nbytes: int) -> None:
    """Measure and print one case of one task."""
    names = [
        name
        for name in (WRITERS if task == "write" else READERS)
        if name in options.contestants.split(",") or name == "shardwrite"
    ]
    if case == "png" and "cloud-volume" in names and importlib.util.find_spec("pyspng") is None:
        names.remove("cloud-volume")
        print(f"| {task} | {case} | cloud-volume | needs pyspng-seunglab | | | | | | |")
    found: dict[str, list[Figures]] = {name: [] for name in names}
    for repeat in range(options.repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            found[name].append(_fresh(options, case, task, name))
    seconds = {
        name: statistics.median(run["seconds"] for run in runs) for name, runs in found.items()
    }
    for name, runs in found.items():
        worked = statistics.median(run["worked"] for run in runs)
        spread = " to ".join(f"{end(run['seconds'] for run in runs):.2f}" for end in (min, max))
        peak = max(run["peak"] for run in runs) / 2**20
        rate = (
            f"{1e6 * seconds[name] / runs[0]['reads']:,.0f} µs a chunk"
            if task == "chunks"
            else f"{raw_nbytes / seconds[name] / 1e6:,.0f} MB/s"
        )
        size = f"{runs[0]['nbytes'] / 2**20:.1f}" if task == "write" else ""
        ratio = seconds[name] / seconds["shardwrite"]
        print(
            f"| {task} | {case} | {name} | {seconds[name]:.2f} | {spread} | {worked:.2f} | {rate} | {peak:.0f} "
            f"| {size} | {ratio:.2f} |",
            flush=True,
        )


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.precomputed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated")
    parser.add_argument("--tasks", default=",".join(_TASKS), help="comma-separated")
    everybody = ",".join(dict.fromkeys([*WRITERS, *READERS]))
    parser.add_argument("--contestants", default=everybody, help=argparse.SUPPRESS)
    parser.add_argument("--mib", type=int, default=128, help="size of a volume, decoded")
    parser.add_argument("--shard-mib", type=int, default=16, help="size of a shard, decoded")
    parser.add_argument("--reads", type=int, default=1000, help="number of chunks that are read")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--target", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure(options)))
        return
    facts = {}
    with tempfile.TemporaryDirectory(dir=options.dir) as top:
        options.dir = Path(top)
        facts = {**machine(options.dir), **versions()}
        print(
            "| task | case | contestant | seconds | range | CPU seconds | speed | peak memory, MiB "
            "| MiB written | shardwrite is faster by |"
        )
        print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|")
        for case in options.cases.split(","):
            work = _prepare(options, case)
            for task in options.tasks.split(","):
                _compare(options, case, task, work.values.nbytes)
            for path in (work.source, work.source.with_suffix(".small.npy")):
                path.unlink()
            shutil.rmtree(work.volume)
    print("\n" + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items()))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    main()
