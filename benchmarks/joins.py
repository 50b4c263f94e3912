"""How much a process of a job array does before its first commit: `python -m benchmarks.joins`.

A run is begun, and processes write one part each, at most `--at-once` of them alive at a time. Each counts its calls of the system
that name something in the directory of the run's state: before its first commit, and until it has ended. So the table tells whether a
process takes longer to begin because there are others. `finalize` is counted in this process.

Each process is forked from one that has imported what a part imports, and has done nothing yet. The exit code is 1 if the processes of
some row take a share of `LIMIT` more operations to join, or less, than those of the first row.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da

import shardwrite

__all__ = ["main"]

CALLS = (
    "access",
    "chmod",
    "getxattr",
    "link",
    "listdir",
    "listxattr",
    "lstat",
    "mkdir",
    "open",
    "readlink",
    "rename",
    "rmdir",
    "scandir",
    "stat",
    "unlink",
    "utime",
)
LIMIT = 0.15
"""Share by which the number of operations of a process that joins may depend on the number of others."""

_PRELOADED = [
    "dask.array",
    "shardwrite.operations.parts",
    "shardwrite.runs.in_parts",
    "shardwrite.write.tasks",
]
_SHARD = (1, 64)
_IDENTITY = "benchmarks.joins"


def source(n_parts: int) -> da.Array:
    """An array with a shard for each part."""
    x: da.Array = da.ones((n_parts, _SHARD[1]), chunks=_SHARD, dtype="u1")
    return x


def begin(path: str, n_parts: int) -> None:
    """Begin the run, with a group of its own for each shard, as large shards have it."""
    from shardwrite.plan.partition import make_partition

    x = source(n_parts)
    plan = shardwrite.plan(x, shards=_SHARD, chunks=_SHARD, source_id=_IDENTITY)
    cut = make_partition(
        plan.metadata.grid, plan.source.edges, 1, task_nbytes=1, fused=True, most_source_chunks=1
    )
    shardwrite.prepare(x, path, replace(plan, partition=cut))


def counting(found: list[str]) -> None:
    """Have this process note, from now on, what it names in directories of run state."""

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **more: Any) -> Any:
            if isinstance(path, str | os.PathLike) and ".shardwrite" in os.fspath(path):
                found.append(os.fspath(path))
            return real(path, *rest, **more)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def write(path: str, index: int, n_parts: int) -> tuple[int, int]:
    """Write a part: the number of operations before the first commit, and of all."""
    found: list[str] = []
    counting(found)
    shardwrite.write_part(source(n_parts), path, index, n_parts, source_id=_IDENTITY)
    looks = [k for k, name in enumerate(found) if "/token-" in name]
    return looks[1], len(found)  # the token is left first, and looked at right before a commit


def measure(n_parts: int, at_once: int) -> dict[str, Any]:
    """Start a process for each part, and then count what `finalize` does."""
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "x.zarr")
        begin(path, n_parts)

        began = time.perf_counter()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        with context.Pool(min(n_parts, at_once), maxtasksperchild=1) as pool:
            parts = [(path, index, n_parts) for index in range(n_parts)]
            counts = pool.starmap(write, parts, chunksize=1)
        seconds = time.perf_counter() - began
        found: list[str] = []
        before_end = {name: getattr(os, name) for name in CALLS}
        counting(found)
        try:
            shardwrite.finalize(path, n_parts=n_parts)
        finally:
            for name, real in before_end.items():
                setattr(os, name, real)
    joins = [before for before, _ in counts]
    return {
        "n_processes": n_parts,
        "least_to_join": min(joins),
        "most_to_join": max(joins),
        "to_join": statistics.mean(joins),
        "in_all": statistics.mean(in_all for _, in_all in counts),
        "finalize_per_process": len(found) / n_parts,
        "seconds": seconds,
    }


def main(arguments: list[str] | None = None) -> int:
    """Print a row for each number of processes, as JSON, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--processes", default="10,100,1000", help="numbers of processes, with commas"
    )
    parser.add_argument(
        "--at-once", type=int, default=100, help="most processes that are alive at a time"
    )
    given = parser.parse_args(arguments)
    means: list[float] = []
    for n in map(int, given.processes.split(",")):
        row = measure(n, min(given.at_once, 100))
        print(json.dumps(row), flush=True)
        means.append(row["to_join"])
    spread = max(abs(mean / means[0] - 1) for mean in means)
    print(json.dumps({"spread": spread, "is_constant": spread <= LIMIT}))
    return int(spread > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
