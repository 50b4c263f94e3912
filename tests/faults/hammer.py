"""Readers that never rest while an array is updated: how often they read, how often that fails, and
whether a value is ever wrong.

Every element says which version it belongs to and where; an inner chunk of mixed versions, or at
the wrong place, is a wrong value. None is ever empty: one that reads as the fill value is counted
apart. For zarr-python 3.1 looks at the index, then at the chunk, and takes what lies beyond the end
of a shard that a compaction has made shorter meanwhile for an empty one. Run as ``python
tests/faults/hammer.py --seconds 30``; prints a table of errors per thousand reads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import tensorstore as ts
import zarr

import shardwrite
from shardwrite import AppendOnly, FixedOrder

sys.path.insert(0, str(Path(__file__).parent.parent / "forks"))
from forks import python

SIDE, SHARD, CHUNK = 64, 32, 8
PAUSE = 0.3
"""Seconds before and after a compaction."""
READERS = ("zarr-python", "tensorstore")
STRATEGIES = {
    "FixedOrder()": FixedOrder(),
    "AppendOnly()": AppendOnly(),
    "FixedOrder(in_place=True)": FixedOrder(in_place=True, max_unused=0.9),
    "AppendOnly(in_place=True)": AppendOnly(in_place=True),
}


def values(version: int) -> np.ndarray:
    """The version in the upper half of each element, its place in the lower."""
    return (np.uint32(version) << np.uint32(16)) | np.arange(SIDE * SIDE, dtype=np.uint32).reshape(
        SIDE, SIDE
    )


def is_wrong(found: np.ndarray, row: int, column: int) -> bool:
    """Whether an inner chunk is not of one version, or of another place."""
    place = values(0)[row : row + CHUNK, column : column + CHUNK]
    return bool(((found & 0xFFFF) != place).any() or (found >> 16 != found.flat[0] >> 16).any())


def read(path: str, reader: str, stop: Path) -> dict:
    """Read inner chunks at random until a file appears."""
    rng, n, n_errors, n_wrong, n_filled, seen = np.random.default_rng(), 0, 0, 0, 0, set()
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}
    array = zarr.open_array(path, mode="r") if reader == "zarr-python" else ts.open(spec).result()
    print("ready", flush=True)
    while not stop.exists():
        row, column = (int(i) * CHUNK for i in rng.integers(0, SIDE // CHUNK, 2))
        where = (slice(row, row + CHUNK), slice(column, column + CHUNK))
        n += 1
        try:
            found = array[where] if reader == "zarr-python" else array[where].read().result()
        except Exception:  # of whatever type a reader has for a checksum that is wrong
            n_errors += 1
            continue
        if not found.any():
            n_filled += 1
            continue
        n_wrong += is_wrong(found, row, column)
        seen.add(int(found.flat[0]) >> 16)
    return {
        "reads": n,
        "errors": n_errors,
        "wrong": n_wrong,
        "filled": n_filled,
        "versions": len(seen),
    }


def hammer(directory: Path, strategy: str, seconds: float) -> dict[str, dict]:
    """Update an array for some time under readers of both kinds; what each of them met."""
    path, stop = directory / "x", directory / "stop"
    da.from_array(values(0), chunks=SHARD).to_sharded_zarr(
        path, shards=SHARD, chunks=CHUNK, durability="none"
    )
    command = [*python(), __file__, "--read", str(path), "--stop", str(stop)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, "--reader", reader], **pipes) for reader in READERS]
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
    end, version, rng = time.monotonic() + seconds, 0, np.random.default_rng(0)
    with dask.config.set(scheduler="sync"):
        while time.monotonic() < end or version < 20:
            version = version % 60000 + 1
            row, column = (int(i) * CHUNK for i in rng.integers(0, SIDE // CHUNK - 1, 2))
            region = (slice(row, row + 2 * CHUNK), slice(column, column + 2 * CHUNK))
            new = da.from_array(values(version)[region], chunks=2 * CHUNK)
            new.to_sharded_zarr(
                path, region=region, strategy=STRATEGIES[strategy], durability="none"
            )
            if (
                version % 20 == 0
                # far from updates, for a reader that sleeps through two replacements is promised
                # nothing
            ):
                time.sleep(PAUSE)
                shardwrite.compact(path, above=0.1, durability="none")
                time.sleep(PAUSE)
    stop.touch()
    found = {}
    for reader, process in zip(READERS, processes, strict=True):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        found[reader] = {**json.loads(out), "updates": version}
    assert shardwrite.verify(path, deep=True).is_good
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    parser.add_argument("--stop", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.read:
        print(json.dumps(read(given.read, given.reader, given.stop)))
        return
    columns = (
        "strategy",
        "reader",
        "updates",
        "reads",
        "errors per 1,000 reads",
        "fill values per 1,000 reads",
        "wrong values",
    )
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for strategy in STRATEGIES:
        with tempfile.TemporaryDirectory() as directory:
            for reader, met in hammer(Path(directory), strategy, given.seconds).items():
                rate = " | ".join(
                    f"{1000 * met[what] / met['reads']:.2f}" for what in ("errors", "filled")
                )
                print(
                    f"| `{strategy}` | {reader} | {met['updates']:,} | {met['reads']:,} | {rate} | {met['wrong']} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
