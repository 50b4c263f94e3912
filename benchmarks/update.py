"""Updating one inner chunk of a large shard: ``python -m benchmarks.update``.

Bytes are those of the process's system calls (``rchar`` and ``wchar`` of ``/proc/self/io``; copies inside the kernel count,
too); each measurement is a fresh process on a fresh copy of one array, contestants in turn. What was written is read back, and so
is its neighbour.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = (16, 16, 32)
WHERE = tuple(slice(2 * c, 3 * c) for c in CHUNK)
CONTESTANTS = (
    "shardwrite FixedOrder()",
    "shardwrite AppendOnly()",
    "shardwrite FixedOrder(in_place=True)",
    "shardwrite AppendOnly(in_place=True)",
    "zarr-python",
    "tensorstore",
)


def block(version: int) -> np.ndarray[Any, Any]:
    """What is written into one inner chunk."""
    found: np.ndarray[Any, Any] = (
        np.random.default_rng(version).integers(0, 4096, CHUNK).astype("float32")
    )
    return found


def make(path: Path, shape: tuple[int, int, int]) -> None:
    """An array of one shard."""
    import dask.array as da

    import shardwrite

    x = (
        da.random.default_rng(0)
        .integers(0, 4096, shape, chunks=(64, 64, shape[2]))
        .astype("float32")
    )
    shardwrite.to_sharded_zarr(x, path, shards=shape, chunks=CHUNK, durability="none")


def io() -> tuple[int, int]:
    """Bytes that this process has read and written so far."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"]), int(lines["wchar"])


def update(contestant: str, path: Path) -> None:
    """Write one inner chunk."""
    new = block(1)
    if contestant == "zarr-python":
        import zarr

        zarr.open_array(path, mode="r+")[WHERE] = new
    elif contestant == "tensorstore":
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
        tensorstore.open(spec).result()[WHERE].write(new).result()
    else:
        import dask.array as da

        import shardwrite

        name, _, arguments = contestant.removeprefix("shardwrite ").partition("(")
        strategy = getattr(shardwrite, name)(in_place="in_place=True" in arguments)
        shardwrite.write_region(
            da.from_array(new, chunks=-1), path, WHERE, strategy=strategy, durability="none"
        )


def warm_up(contestant: str) -> None:
    """Import and do everything once, on an array of a few bytes."""
    with tempfile.TemporaryDirectory() as directory:
        small = (CHUNK[0] * 4, CHUNK[1] * 4, CHUNK[2] * 4)
        make(Path(directory) / "x", small)
        update(contestant, Path(directory) / "x")


def measure(contestant: str, path: Path) -> dict[str, float]:
    """One update, in this process."""
    warm_up(contestant)
    read, written = io()
    start = time.perf_counter()
    update(contestant, path)
    seconds = time.perf_counter() - start
    now_read, now_written = io()
    check(path)
    return {"seconds": seconds, "read": now_read - read, "written": now_written - written}


def check(path: Path) -> None:
    """The chunk is new, its neighbour is not."""
    import zarr

    array = zarr.open_array(path, mode="r")
    np.testing.assert_array_equal(array[WHERE], block(1))
    neighbour = (slice(WHERE[0].stop, WHERE[0].stop + CHUNK[0]), *WHERE[1:])
    assert (np.asarray(array[neighbour]) != 0).any()


def run(directory: Path, side: int, repeats: int) -> list[dict[str, Any]]:
    """All contestants in turn."""
    made = directory / "made"
    make(made, (side, side, 2 * side))
    found: dict[str, list[dict[str, float]]] = {contestant: [] for contestant in CONTESTANTS}
    for number in range(repeats):
        for contestant in CONTESTANTS if number % 2 == 0 else CONTESTANTS[::-1]:
            path = directory / "x"
            shutil.copytree(made, path)
            command = [
                sys.executable,
                "-m",
                "benchmarks.update",
                "--measure",
                contestant,
                "--path",
                str(path),
            ]
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            found[contestant].append(json.loads(ended.stdout))
            shutil.rmtree(path)
    return [
        {
            "contestant": name,
            **{
                key: statistics.median(one[key] for one in many)
                for key in ("seconds", "read", "written")
            },
        }
        for name, many in found.items()
    ]


def main() -> None:
    """Arguments in, a table out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--side",
        type=int,
        default=512,
        help="side x side x 2 side float32 in one shard (512: 1 GiB, 32,768 inner chunks)",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        print(json.dumps(measure(given.measure, given.path)))
        return
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        rows = run(Path(directory), given.side, given.repeats)
    print(
        "| one inner chunk updated by | seconds | bytes read | bytes written |\n|---|---:|---:|---:|"
    )
    for row in rows:
        print(
            f"| {row['contestant']} | {row['seconds']:.3f} | {row['read']:,.0f} | {row['written']:,.0f} |"
        )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
