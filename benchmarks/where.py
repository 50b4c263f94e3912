"""Where a run's time goes: `python -m benchmarks.where`, a case of the side-by-side comparison in one thread under cProfile.

The profiler's own cost falls on Python code, not on what libraries and the system do, so shares of Python are upper bounds. What is
written in C and cannot be seen (blosc, copies of tiles) counts with the function that calls it.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import dask

from benchmarks.cases import SCALES, Case, select
from benchmarks.contestants import CONTESTANTS
from benchmarks.data import Source, ensure_source
from benchmarks.one import Rehearsal

__all__ = ["main", "profile"]

# what the name of a function, or else its file, has in it; the first that fits counts
_FUNCTIONS = (
    ("codec", ("compress", "ZstdCompressor", "isal_zlib")),
    ("tiles", ("copyto",)),
    ("checksums", ("crc32c",)),
    ("source", ("numpy.array",)),
    ("system calls", ("posix.", "getrusage", "io.open", "_io.")),
)
_FILES = (
    ("source", ("benchmarks/data.py",)),
    ("journal", ("shardwrite/journal/", "json/")),
    (
        "commit and store",
        ("shardwrite/write/commit.py", "shardwrite/stores/", "pathlib.py", "posixpath.py"),
    ),
    ("tiles", ("shardwrite/encode/unit.py", "shardwrite/format/order.py")),
    ("codec", ("shardwrite/codecs/",)),
    (
        "plan and grid, Python",
        (
            "shardwrite/plan",
            "shardwrite/grid.py",
            "shardwrite/runs/job.py",
            "shardwrite/runs/session.py",
        ),
    ),
    ("shardwrite, the rest", ("shardwrite/",)),
    ("dask", ("/dask/", "/tlz/", "/toolz/")),
    ("zarr-python", ("/zarr/",)),
    ("numpy", ("/numpy/",)),
)


def profile(case: Case, source: Source, directory: Path) -> dict[str, float]:
    """Seconds by what they were spent on, in order.

    Parameters
    ----------
    case : Case
        What to write.
    source : Source
        The data.
    directory : Path
        Where to.
    """
    write = CONTESTANTS["shardwrite"].write
    with dask.config.set(scheduler="sync"):
        write(Rehearsal(case), case, directory / "rehearsal.zarr", 1)
        source.warm_up()
        gc.collect()  # else a full collection of what was imported falls on whatever runs then
        profiler = cProfile.Profile()
        profiler.runcall(write, source, case, directory / "array.zarr", 1)
    stats: Any = pstats.Stats(profiler)
    spent: Counter[str] = Counter()
    for (file, _, name), (_, _, own, _, _) in stats.stats.items():
        spent[_kind(file, name)] += own
    return dict(spent.most_common())


def _kind(file: str, name: str) -> str:
    for table, text in ((_FUNCTIONS, name), (_FILES, file)):
        for kind, parts in table:
            if any(part in text for part in parts):
                return kind
    return "other"


def main() -> None:
    """A line of Markdown for each case."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.where", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "--cases",
        default="zstd-64,zstd-16,lz4-32,none-32,many-shards",
        help="comma-separated names",
    )
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    options = parser.parse_args()
    print("| case | seconds | where they go |\n|---|---:|---|")
    for case in select(options.cases.split(",")):
        with tempfile.TemporaryDirectory(dir=options.dir) as directory:
            source = ensure_source(case, options.scale, Path(directory) / "sources")
            spent = profile(case, source, Path(directory))
        total = sum(spent.values())
        shares = [
            f"{kind} {seconds / total:.0%}"
            for kind, seconds in spent.items()
            if seconds > total / 100
        ]
        print(f"| {case.name} | {total:.2f} | {', '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
