"""Slices as an instrument gives them: ``python -m benchmarks.stream``.

Each contestant takes the same slices one by one, as fast as it lets them be given; each measurement is a fresh process, contestants
in turn. ``bare`` writes the same bytes from one buffer with nothing around it: what the file system takes. tensorstore is given a
transaction for each shard, so that it, too, writes a shard once. What was written is read back by zarr-python.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SLICE = (2048, 2048)
DEPTH = 64
CHUNKS = (1, 512, 512)
LIMIT = "512MB"
CONTESTANTS = ("bare", "shardwrite raw", "tensorstore raw", "shardwrite zstd", "tensorstore zstd")


def slices() -> list[np.ndarray[Any, Any]]:
    """A few that are given again and again, like a camera's: noise on a background."""
    rng = np.random.default_rng(0)
    return [rng.poisson(120, SLICE).astype("uint16") for _ in range(8)]


def made(path: Path, codec: str, n: int) -> None:
    """The array, without data."""
    import shardwrite
    import shardwrite.stream  # The writer is imported before the clock starts.

    compressors = (
        None
        if codec == "raw"
        else [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
    )
    shards = (DEPTH, *SLICE)
    shardwrite.create(
        path,
        (n, *SLICE),
        "uint16",
        shards=shards,
        chunks=CHUNKS,
        compressors=compressors,
        durability="none",
    )


def bare(path: Path, n: int, given: list[np.ndarray[Any, Any]]) -> Iterator[Callable[[], None]]:
    """Write slices to a file each shard."""
    path.mkdir()
    fd = -1
    for t in range(n):
        if t % DEPTH == 0:
            fd = os.open(path / str(t), os.O_CREAT | os.O_WRONLY)

        def write(t: int = t, fd: int = fd) -> None:
            os.pwrite(fd, given[t % 8].data, (t % DEPTH) * given[0].nbytes)

        yield write
        if t % DEPTH == DEPTH - 1 or t == n - 1:
            os.close(fd)


def shardwrite_stream(
    path: Path, n: int, given: list[np.ndarray[Any, Any]]
) -> Iterator[Callable[[], None]]:
    """By a ShardWriter."""
    import shardwrite

    with shardwrite.ShardWriter(path, durability="none", memory_limit=LIMIT) as writer:
        for t in range(n):

            def take(t: int = t) -> None:
                writer[t] = given[t % 8]

            yield take


def tensorstore_stream(
    path: Path, n: int, given: list[np.ndarray[Any, Any]]
) -> Iterator[Callable[[], None]]:
    """By transactions."""
    import tensorstore as ts

    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path), "file_io_sync": False},
    }
    array = ts.open(spec).result()
    transaction = ts.Transaction()
    for t in range(n):

        def write(t: int = t, transaction: Any = transaction) -> None:
            array.with_transaction(transaction)[t].write(given[t % 8]).result()
            if t % DEPTH == DEPTH - 1 or t == n - 1:
                transaction.commit_sync()

        yield write
        if t % DEPTH == DEPTH - 1:
            transaction = ts.Transaction()


def measure(contestant: str, directory: Path, n: int) -> dict[str, float]:
    """Seconds in all, the longest that one slice had to wait, and memory."""
    given = slices()
    name, _, codec = contestant.partition(" ")
    path = directory / "x"
    if name != "bare":
        made(path, codec, n)
    before, waits = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    start = time.perf_counter()
    for take in {"bare": bare, "shardwrite": shardwrite_stream, "tensorstore": tensorstore_stream}[
        name
    ](path, n, given):
        began = time.perf_counter()
        take()
        waits.append(time.perf_counter() - began)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if name != "bare":
        import zarr

        array = zarr.open_array(path, mode="r")
        assert array.shape == (n, *SLICE)
        assert array.shards == (DEPTH, *SLICE)
        assert array.chunks == CHUNKS
        for t in (0, n // 2, n - 1):
            np.testing.assert_array_equal(array[t], given[t % 8])
    return {"seconds": seconds, "longest": max(waits), "peak_mb": (peak - before) / 1024}


def main() -> None:
    """Arguments in, a table out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slices", type=int, default=192, help="of 8.4 MB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where to write; a temporary directory by default")
    parser.add_argument("--measure", choices=CONTESTANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.dir, given.slices)))
        return
    found: dict[str, list[dict[str, float]]] = {contestant: [] for contestant in CONTESTANTS}
    for _ in range(given.repeats):
        for contestant in CONTESTANTS:
            directory = tempfile.mkdtemp(dir=given.dir)
            command = [
                sys.executable,
                "-m",
                "benchmarks.stream",
                "--measure",
                contestant,
                "--dir",
                directory,
            ]
            try:
                done = subprocess.run(
                    [*command, "--slices", str(given.slices)],
                    check=True,
                    capture_output=True,
                    text=True,
                )
            finally:
                shutil.rmtree(directory)
            found[contestant].append(json.loads(done.stdout))
    nbytes = given.slices * SLICE[0] * SLICE[1] * 2
    print(
        "| taken by | MB/s | of bare | longest wait of a slice, s | memory above the start, MB |\n|---|---|---|---|---|"
    )
    medians = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for name, runs in found.items()
    }
    for name, run in medians.items():
        ratio = medians["bare"]["seconds"] / run["seconds"]
        print(
            f"| {name} | {nbytes / run['seconds'] / 1e6:.0f} | {ratio:.2f} | {run['longest']:.2f} | {run['peak_mb']:.0f} |"
        )


if __name__ == "__main__":
    main()
