"""Whether threads stand in each other's way at many small shards: `python -m benchmarks.threads --dir /dev/shm`.

Each measurement is a process of its own; numbers of threads take turns, and so do trees of the package, where several are given.
What matters is the ratio to one thread of the same tree in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["main", "measure"]

_ROOT = Path(__file__).resolve().parent.parent
_SHARDS_A_CHUNK = 10  # along each axis


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Decoded megabytes a second, and seconds of the processor, of one operation in this process.

    Parameters
    ----------
    options : argparse.Namespace
        The command line.
    """
    import dask
    import dask.array as da
    import numpy as np

    import shardwrite

    n = round(options.shards**0.5) * options.side
    from_array: Any = da.from_array
    x = from_array(
        np.random.default_rng(0).integers(0, 2**16, (n, n), dtype="u2"),
        chunks=options.side * _SHARDS_A_CHUNK,
        name=False,
    )
    layout: dict[str, Any] = {"shards": options.side, "chunks": options.side // 2}
    if options.codec == "none":
        layout["compressors"] = None
    path, inside = str(options.dir / "x"), (slice(1, n), slice(1, n))
    with dask.config.set(scheduler="threads", num_workers=options.threads):
        shardwrite.to_sharded_zarr(
            x[: options.side, : options.side],
            str(options.dir / "warm"),
            durability="none",
            **layout,
        )
        if options.operation == "update":
            shardwrite.to_sharded_zarr(x, path, durability="none", **layout)
        begun, cpu = time.perf_counter(), time.process_time()
        if options.operation == "update":
            shardwrite.to_sharded_zarr(
                x[inside], path, region=inside, durability=options.durability
            )
        else:
            shardwrite.to_sharded_zarr(x, path, durability=options.durability, **layout)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    return {"mb_per_s": x.nbytes / seconds / 1e6, "cpu_seconds": cpu}


def _fresh(options: argparse.Namespace, tree: Path, threads: int) -> dict[str, float]:
    """One measurement in a process of its own."""
    directory = tempfile.mkdtemp(prefix="threads-", dir=options.dir)
    command = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--here",
        "--dir",
        directory,
        "--threads",
        str(threads),
    ]
    for name in ("shards", "side", "codec", "durability", "operation"):
        command += [f"--{name}", str(getattr(options, name))]
    try:
        ended = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.threads", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(tempfile.gettempdir()), help="where to write"
    )
    parser.add_argument("--shards", type=int, default=20_000)
    parser.add_argument(
        "--side", type=int, default=64, help="of a shard, of two bytes an element: 64 makes 8 KiB"
    )
    parser.add_argument("--codec", choices=("none", "default"), default="none")
    parser.add_argument("--durability", choices=("full", "batch", "none"), default="full")
    parser.add_argument("--operation", choices=("write", "update"), default="write")
    parser.add_argument(
        "--threads",
        default="1,2",
        help="numbers of threads, comma-separated; the first is compared with",
    )
    parser.add_argument(
        "--trees", default=str(_ROOT), help="checkouts of the package, comma-separated"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        options.threads = int(options.threads)
        print(json.dumps(measure(options)))
        return
    numbers, trees = [int(part) for part in options.threads.split(",")], options.trees.split(",")
    found: dict[tuple[str, int], list[dict[str, float]]] = {
        (tree, n): [] for tree in trees for n in numbers
    }
    for repeat in range(options.repeats):
        turns = list(found)[repeat % len(found) :] + list(found)[: repeat % len(found)]
        for tree, n in turns:
            found[tree, n].append(_fresh(options, Path(tree), n))
    what = f"{options.operation}, {options.shards:,} shards of {2 * options.side**2:,} bytes, {options.codec}, {options.durability}"
    print(f"{what}, medians of {options.repeats}")
    for (tree, n), runs in found.items():
        rates = [run["mb_per_s"] for run in runs]
        ratio = statistics.median(
            a / b["mb_per_s"] for a, b in zip(rates, found[tree, numbers[0]], strict=True)
        )
        cpu = statistics.median(run["cpu_seconds"] for run in runs)
        told = f"{statistics.median(rates):.1f} MB/s ({min(rates):.0f} to {max(rates):.0f})"
        print(
            f"{tree}: {n} threads: {told}, {ratio:.2f} times one, {cpu:.2f} s of the processor",
            flush=True,
        )


if __name__ == "__main__":
    main()
