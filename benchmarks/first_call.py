"""What the first call of a process costs: ``python -m benchmarks.first_call``.

Each measurement is a fresh process, contestants in turn, everything in the page cache. The ratio is to what a program with dask
arrays pays in any case: importing `dask.array`. With ``--old DIRECTORY``, a checkout of another version does the same, in turn with
this one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["PROGRAMS", "main"]

_ROOT = Path(__file__).resolve().parent.parent
_DASK = "import dask.array"
_COMMAND = "from shardwrite.cli import main\nmain()"
_WRITE = """
import sys, dask.array, shardwrite
x = dask.array.ones((64, 64), chunks=32)
shardwrite.to_sharded_zarr(x, sys.argv[1], shards=32, chunks=16, mode="w", durability="none")
"""
PROGRAMS: dict[str, tuple[str, ...]] = {
    "import dask.array": (_DASK,),
    "import shardwrite": ("import shardwrite",),
    "shardwrite --help": (_COMMAND, "--help"),
    "shardwrite info": (_COMMAND, "info", "ARRAY"),
    "first write of a dask array": (_WRITE, "ARRAY"),
}
"""Python programs with their arguments; ``ARRAY`` stands for a path."""


def seconds_of(program: tuple[str, ...], root: Path, array: Path) -> float:
    """Run a program with the package of a checkout, from start to end of its process.

    Parameters
    ----------
    program : tuple of str
        A value of `PROGRAMS`.
    root : Path
        The checkout.
    array : Path
        Stands for ``ARRAY``.
    """
    command = [sys.executable, "-c", *(str(array) if word == "ARRAY" else word for word in program)]
    begun = time.perf_counter()
    subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(root)},
        cwd=array.parent,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - begun


def run(roots: dict[str, Path], repeats: int, directory: Path) -> list[dict[str, Any]]:
    """All programs of all versions, in turn.

    Parameters
    ----------
    roots : dict of str to Path
        Checkouts by the names of their versions.
    repeats : int
        Measurements of each, of which the median is taken; one more comes first and does not count.
    directory : Path
        Where to write.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(repeats + 1):
        for version, root in roots.items():
            seconds_of((_WRITE, "ARRAY"), root, directory / "x")  # There is an array for `info`.
            for name, program in PROGRAMS.items():
                found.setdefault((version, name), []).append(
                    seconds_of(program, root, directory / "x")
                )
    medians = {key: statistics.median(many[1:]) for key, many in found.items()}
    return [
        {
            "program": name,
            "version": version,
            "seconds": seconds,
            "of_dask": seconds / medians[version, "import dask.array"],
        }
        for (version, name), seconds in medians.items()
    ]


def main() -> None:
    """Arguments in, a table out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--old", type=Path, help="a checkout of another version")
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    roots = {"this": _ROOT, **({"old": given.old.resolve()} if given.old else {})}
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        rows = run(roots, given.repeats, Path(directory))
    print("| a fresh process | version | seconds | of import dask.array |\n|---|---|---:|---:|")
    for row in rows:
        print(
            f"| {row['program']} | {row['version']} | {row['seconds']:.3f} | {row['of_dask']:.2f} |"
        )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
