"""How fast an array is verified: ``python -m benchmarks.verify``.

From indexes alone, with every inner chunk decoded (``--deep``), and against the source. Beside it what readers take that decode
everything and are told nothing of indexes: zarr-python and tensorstore. Each measurement is a fresh process, contestants in turn,
everything in the page cache; MB/s are decoded bytes of the array, whether they were decoded or not.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask

import shardwrite
from benchmarks.cases import CASES, Case
from benchmarks.contestants import dask_array, regions, zarr_codecs
from benchmarks.data import Source, ensure_source
from benchmarks.measure import PeakMemory, machine, versions

__all__ = ["CONTESTANTS", "main"]

Check = Callable[[Path, Source, Case, int], None]


def _verified(path: Path, **options: Any) -> None:
    report = shardwrite.verify(str(path), **options)
    if not report.is_good:
        raise SystemExit(f"what was written is said to be bad: {report}")


def _zarr_python(path: Path, source: Source, case: Case, threads: int) -> None:
    import zarr

    array: Any = zarr.open_array(str(path), mode="r")
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(array.__getitem__, regions(source.shape, case.shards)):
            pass


def _tensorstore(path: Path, source: Source, case: Case, threads: int) -> None:
    import tensorstore

    context = {
        "data_copy_concurrency": {"limit": threads},
        "file_io_concurrency": {"limit": threads},
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}, "context": context}
    array = tensorstore.open(spec).result()
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(
            lambda where: array[where].read().result(), regions(source.shape, case.shards)
        ):
            pass


CONTESTANTS: dict[str, Check] = {
    "shardwrite verify": lambda path, *_: _verified(path),
    "shardwrite verify --deep": lambda path, *_: _verified(path, deep=True),
    "shardwrite verify --against": lambda path, source, case, _: _verified(
        path, against=dask_array(source, case)
    ),
    "zarr-python reads all": _zarr_python,
    "tensorstore reads all": _tensorstore,
}


def measure(
    name: str, case: Case, scale: Any, sources: Path, path: Path, threads: int
) -> dict[str, float]:
    """One measurement in this process."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    source = ensure_source(case, scale, sources)
    with dask.config.set(scheduler="threads", num_workers=threads):
        CONTESTANTS[name](
            path, source, case, threads
        )  # everything is loaded, and in the page cache
        with PeakMemory() as memory:
            begun = time.perf_counter()
            CONTESTANTS[name](path, source, case, threads)
            seconds = time.perf_counter() - begun
    return {
        "seconds": seconds,
        "mb_per_s": source.nbytes / seconds / 1e6,
        "memory_mib": memory.above_idle / 2**20,
    }


def run(options: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    """All contestants, in turn."""
    rows = []
    for name in options.cases.split(","):
        case, path = CASES[name], directory / f"{name}.zarr"
        source = ensure_source(case, options.scale, directory)
        layout: Any = {
            "shards": case.shards,
            "chunks": case.chunks,
            "compressors": zarr_codecs(case),
        }
        shardwrite.to_sharded_zarr(
            dask_array(source, case), str(path), **layout, fill_value=0, durability="none"
        )
        found: dict[str, list[dict[str, float]]] = {contestant: [] for contestant in CONTESTANTS}
        for repeat in range(options.repeats):
            for contestant in list(CONTESTANTS)[:: 1 if repeat % 2 == 0 else -1]:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.verify",
                    "--measure",
                    contestant,
                    "--cases",
                    name,
                ]
                command += [
                    "--scale",
                    options.scale,
                    "--threads",
                    str(options.threads),
                    "--path",
                    str(path),
                ]
                ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[contestant].append(json.loads(ended.stdout.splitlines()[-1]))
        for contestant, many in found.items():
            rows.append(
                {
                    "case": name,
                    "by": contestant,
                    **{k: statistics.median(one[k] for one in many) for k in many[0]},
                }
            )
    return rows


def main() -> None:
    """Arguments in, a table out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cases",
        default="zstd-32,lz4-32,many-shards",
        help=f"comma-separated, of {', '.join(CASES)}",
    )
    parser.add_argument("--scale", default="small")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        case = CASES[given.cases]
        print(
            json.dumps(
                measure(
                    given.measure, case, given.scale, given.path.parent, given.path, given.threads
                )
            )
        )
        return
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        rows = run(given, Path(directory))
        facts = {"machine": machine(Path(directory)), "versions": versions()}
    print("| case | by | seconds | MB/s, decoded | MiB above idle |\n|---|---|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row['case']} | {row['by']} | {row['seconds']:.3f} | {row['mb_per_s']:,.0f} | {row['memory_mib']:.0f} |"
        )
    if given.json:
        given.json.write_text(json.dumps({**facts, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
