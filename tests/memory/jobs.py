"""Random jobs, each in processes of its own: the memory that the plan names, and what it took.

``python tests/memory/jobs.py --jobs 40 --seed 1`` prints a line for each job: what the plan names
for a process, what the process that works took at most (of several workers, the one that took
most), the ratio of both, what the result tells, and the peak of all workers together. What is
measured is what a user can measure: anonymous memory at its peak, above what the process had after
a first small write.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MIB = 2**20
SLACK_NBYTES = 16 * MIB  # a plan may be too large by so much, where 1.5 times is less
MOST = 1.5


@dataclass(frozen=True)
class Work:
    """What one job writes, and who does the work."""

    kind: str  # how chunks of the source lie to shards
    codec: str
    shape: tuple[int, ...]
    source: tuple[int, ...] | None  # chunks of the source; None for an array in memory
    shards: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    threads: int
    workers: int = 0  # worker processes; 0 if the threads of this process do the work


@dataclass(frozen=True)
class Measured:
    """Memory of a job, in bytes."""

    plan: int  # what the plan names for a process that works
    process: int  # peak of the process that took most
    group: int  # peak of all processes that work, together
    told: int  # peak of a process in the result
    layout: str
    parts: list[tuple[int, str]]

    @property
    def ratio(self) -> float:
        """What the plan names over what was measured."""
        return self.plan / max(1, self.process)

    @property
    def is_within(self) -> bool:
        """Whether the plan was not exceeded, and does not name far too much."""
        return self.process <= self.plan <= max(MOST * self.process, self.process + SLACK_NBYTES)


CODECS = ("zstd", "lz4", "gzip", "none")
KINDS = ("aligned", "small blocks", "slabs", "unaligned", "numpy")


def drawn(seed: int, number: int) -> Work:
    """Draw a job of 256 MB or more; `number` chooses its kind and its codec in turn."""
    draw = random.Random(f"{seed}.{number}")
    kind, codec = KINDS[number % len(KINDS)], CODECS[number // len(KINDS) % len(CODECS)]
    dtype = draw.choice(("u1", "u2", "f4"))
    itemsize = int(dtype[1])
    chunk = draw.choice((16, 32, 64))
    sides = {1: (128, 256, 384, 512), 2: (128, 192, 256, 384), 4: (128, 192, 256)}
    side = draw.choice(sides[itemsize])  # the largest are too large to be encoded by one task
    shards = (side,) * 3
    if kind == "aligned":
        source = draw.choice((shards, (side, 2 * side, side), (side // 2, side, side)))
    elif kind == "small blocks":
        source = (draw.choice((32, 64)),) * 3
    elif kind == "slabs":
        source = (draw.choice((1, 4, 16)), -1, -1)
    elif kind == "unaligned":
        source = (draw.choice((60, 90, 100, 140)),) * 3
    else:
        source = None
    n = math.ceil(256 * 10**6 / itemsize / side**3)
    counts = [1, 1, 1]
    while math.prod(counts) < n:
        counts[counts.index(min(counts))] += 1
    shape = tuple(side * k - draw.choice((0, 0, 7)) for k in counts)
    while math.prod(shape) * itemsize < 256 * 10**6:
        shape = (shape[0] + side, *shape[1:])
    if source is not None:
        source = tuple(
            n if size < 0 else min(n, size) for n, size in zip(shape, source, strict=True)
        )
    workers = 2 if draw.random() < 0.3 else 0
    threads = draw.choice((1, 2) if workers else (1, 2, 3, 4))
    return Work(kind, codec, shape, source, shards, (chunk,) * 3, dtype, threads, workers)


# ---- In the process of the job


def noise(dtype: str, block_info: Any = None) -> Any:
    """Values that no codec makes much smaller, in no more memory than they take."""
    import numpy as np

    shape = block_info[None]["chunk-shape"]
    rng = np.random.default_rng(block_info[None]["chunk-location"])
    if dtype == "f4":
        return rng.random(shape, np.float32)
    return rng.integers(0, 2 ** (8 * int(dtype[1])), shape, dtype)


def anonymous_nbytes(pid: int | str) -> int:
    """Anonymous memory of a process in bytes; 0 if it has ended."""
    try:
        _, resident, mapped, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except OSError:
        return 0
    return (resident - mapped) * os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Peaks of anonymous memory above what the processes have now."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self.idle = {pid: anonymous_nbytes(pid) for pid in self.pids}
        self.peaks = dict.fromkeys(self.pids, 0)
        self.group = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(0.001):
            above = {pid: anonymous_nbytes(pid) - self.idle[pid] for pid in self.pids}
            self.group = max(self.group, sum(above.values()))
            for pid, nbytes in above.items():
                self.peaks[pid] = max(self.peaks[pid], nbytes)

    def end(self) -> None:
        self._done.set()
        self._thread.join()


def run(work: Work, target: str) -> Measured:
    """Do a job in this process, and in workers that it starts."""
    import contextlib

    import dask
    import dask.array as da
    import numpy as np
    import zarr.codecs as codecs

    import shardwrite

    compressors = {
        "zstd": (codecs.ZstdCodec(level=1),),
        "lz4": (codecs.BloscCodec(cname="lz4", clevel=1, shuffle="noshuffle"),),
        "gzip": (codecs.GzipCodec(level=1),),
        "none": None,
    }[work.codec]
    keywords = {"compressors": compressors, "durability": "none"}
    with contextlib.ExitStack() as stack:
        if work.workers:
            from distributed import Client, LocalCluster

            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=work.workers,
                    threads_per_worker=work.threads,
                    memory_limit="2GiB",
                    dashboard_address=None,
                )
            )
            client = stack.enter_context(Client(cluster))
        else:
            stack.enter_context(dask.config.set(scheduler="threads", num_workers=work.threads))
        if work.source is None:
            x = np.random.default_rng(0).integers(
                0, 256, math.prod(work.shape) * int(work.dtype[1]), "u1"
            )
            x = x.view(work.dtype).reshape(work.shape)
        else:
            chunks = da.core.normalize_chunks(work.source, work.shape)
            x = da.map_blocks(noise, work.dtype, chunks=chunks, dtype=work.dtype)
        small = da.map_blocks(noise, work.dtype, chunks=((32, 32),) * 3, dtype=work.dtype)
        pids = [os.getpid()]
        if work.workers:
            pids = list(client.run(os.getpid).values())
        for n in range(2):
            shardwrite.to_sharded_zarr(
                small, f"{target}/small{n}", shards=32, chunks=16, **keywords
            )
        plan = shardwrite.plan(x, shards=work.shards, chunks=work.chunks, compressors=compressors)
        time.sleep(0.5)
        watch = Watch(pids)
        try:
            result = shardwrite.to_sharded_zarr(
                x, f"{target}/x", shards=work.shards, chunks=work.chunks, **keywords
            )
        finally:
            watch.end()
    return Measured(
        plan=plan.memory.total_nbytes,
        process=max(watch.peaks.values()),
        group=watch.group,
        told=max(result.peak_nbytes_by_process.values()),
        layout=plan.layout,
        parts=plan.memory.parts,
    )


# ---- Outside of it


def measured(work: Work) -> Measured:
    """Do a job in a process of its own."""
    with tempfile.TemporaryDirectory() as target:
        command = [sys.executable, __file__, "--one", json.dumps(asdict(work)), target]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if ended.returncode:
            raise RuntimeError(ended.stderr[-3000:])
    return Measured(**json.loads(ended.stdout.strip().splitlines()[-1]))


def line(number: int, work: Work, found: Measured) -> str:
    """One line of the table."""
    who = f"{work.workers} x {work.threads}" if work.workers else f"{work.threads}"
    return (
        f"{number:3} {work.kind:12} {work.codec:5} {who:6} {found.layout:7}"
        f"{found.plan / MIB:7.0f}{found.process / MIB:7.0f}{found.ratio:6.2f}"
        f"{found.told / MIB:7.0f}{found.group / MIB:7.0f}  {'' if found.is_within else 'OUT'}"
        f"  {work.dtype} {work.source} {work.shards} {[round(n / MIB) for n, _ in found.parts]}"
    )


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=str, default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--one", nargs=2)
    given = parser.parse_args()
    if given.one:
        work, target = given.one
        facts = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(work).items()}
        print(json.dumps(asdict(run(Work(**facts), target))))
        return
    n_out = 0
    numbers = (
        [int(n) for n in given.only.split(",")]
        if given.only
        else range(given.first, given.first + given.jobs)
    )
    for number in numbers:
        work = drawn(given.seed, number)
        found = measured(work)
        n_out += not found.is_within
        print(line(number, work, found), flush=True)
    print(
        f"{len(numbers) - n_out} of {len(numbers)} within 1.0 to {MOST}, or {SLACK_NBYTES // MIB} MiB"
    )


if __name__ == "__main__":
    main()
