"""Throughput and scaling on a cluster, a local cluster or threads: `python -m benchmarks.throughput --directory DIR`.

Each run writes a synthetic array whose blocks the tasks make themselves, so that no file is read: what is timed is the call of
`to_sharded_zarr`, planning, the making of the blocks and publishing included. What making the blocks alone takes is measured
beside it (`source_seconds`). Before a figure is written the layout, some shard indexes and some of the data are checked, and no
shard may have been opened to be read.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import CODECS, Case
from benchmarks.checks import CheckError, check_data, check_layout
from benchmarks.contestants import zarr_codecs
from benchmarks.crew import Crew, joined, local_processes, local_threads
from benchmarks.data import DTYPE
from benchmarks.measure import machine, tree_size, versions
from benchmarks.probes import start_watching, stop_watching
from benchmarks.synthetic import Dense, Synthetic, synthetic_array
from benchmarks.throughput_page import with_efficiency, write_page
from shardwrite import to_sharded_zarr

__all__ = ["Setting", "main", "measure"]

Shape = tuple[int, ...]
DURABILITIES = ("none", "batch", "full")
_PERCENTILES = (50, 90, 99, 100)


@dataclass(frozen=True)
class Setting:
    """What is varied.

    Parameters
    ----------
    scaling : {"strong", "weak"}
        Whether the array stays the same, or its first axis grows with the number of threads.
    shape, shards, chunks, source_chunks : tuple of int
        Array, shards, inner chunks, and blocks of the source.
    codec : str
        A key of `benchmarks.cases.CODECS`.
    strategy : str
        Write strategy or order of inner chunks.
    durability : {"none", "batch", "full"}
        Of each shard.
    """

    scaling: str
    shape: Shape
    shards: Shape
    chunks: Shape
    source_chunks: Shape
    codec: str
    strategy: str
    durability: str

    def case(self) -> Case:
        """As the checks of the side-by-side comparison take it."""
        shapes: Any = {"default": self.shape}
        return Case("throughput", shapes, self.shards, self.chunks, self.source_chunks, self.codec)

    def on(self, n_threads: int) -> Setting:
        """The same for a number of threads in all."""
        if self.scaling == "strong":
            return self
        return replace(self, shape=(self.shape[0] * n_threads, *self.shape[1:]))


def _touch(block: Any) -> Any:
    return np.full((1,) * block.ndim, block[(0,) * block.ndim])


def _write(setting: Setting, path: Path, reports: list[Any]) -> Any:
    return to_sharded_zarr(
        synthetic_array(setting.shape, setting.source_chunks),
        str(path),
        shards=setting.shards,
        chunks=setting.chunks,
        compressors=zarr_codecs(setting.case()),
        fill_value=0,
        strategy=setting.strategy,
        durability=setting.durability,
        progress=reports.append,
    )


def measure(setting: Setting, crew: Crew, directory: Path) -> dict[str, Any]:
    """One run, checked.

    Parameters
    ----------
    setting : Setting
        What to write.
    crew : Crew
        Who writes it.
    directory : Path
        Where to, on the file system that is measured; what is written there is removed.

    Returns
    -------
    dict
        The figures.

    Raises
    ------
    CheckError
        If what was written is not what was asked for, or a shard was opened to be read.
    """
    path = directory / "array.zarr"
    reports: list[Any] = []
    source: Any = synthetic_array(setting.shape, setting.source_chunks)
    begun = time.perf_counter()
    source.map_blocks(_touch, chunks=(1,) * source.ndim, dtype=source.dtype).compute()
    source_seconds = time.perf_counter() - begun
    crew.everywhere(start_watching, str(path))
    begun = time.perf_counter()
    result = _write(setting, path, reports)
    seconds = time.perf_counter() - begun
    seen = crew.everywhere(stop_watching)
    case, encoded = setting.case(), tree_size(path / "c")
    layout: Any = check_layout
    data: Any = check_data
    facts = layout(Dense(setting.shape), case, path)
    facts["elements_compared"] = data(Synthetic(setting.shape), case, path, everything=False)
    facts["shard_reads"] = sum(process["shard_reads"] for process in seen)
    if facts["shard_reads"]:
        raise CheckError(f"{facts['shard_reads']} shards were opened to be read")
    decoded, written = (
        math.prod(setting.shape) * DTYPE.itemsize,
        sum(process["written_bytes"] for process in seen),
    )
    shutil.rmtree(path)
    return {
        "seconds": seconds,
        "source_seconds": source_seconds,
        "decoded_bytes": decoded,
        "encoded_bytes": encoded,
        "decoded_bytes_per_s": decoded / seconds,
        "encoded_bytes_per_s": encoded / seconds,
        **facts,
        "part_reads": sum(process["part_reads"] for process in seen),
        "written_bytes": written,
        "write_amplification": written / encoded,
        "seconds_per_shard": _percentiles(reports),
        "peak_anonymous_bytes": max(
            process["peak_anonymous_bytes"] for process in _workers(crew, seen)
        ),
        "above_idle_bytes": max(process["above_idle_bytes"] for process in _workers(crew, seen)),
        "n_hosts": len({process["host"] for process in seen}),
        "n_tasks": result.n_tasks,
        "layout": result.layout,
    }


def _workers(crew: Crew, seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that run tasks."""
    return seen if crew.client is None else seen[1:]


def _percentiles(reports: list[Any]) -> dict[str, float]:
    """Seconds of the tasks that committed shards, over the shards of each."""
    each = np.repeat([r.seconds / len(r.shards) for r in reports], [len(r.shards) for r in reports])
    return {
        f"p{percent}" if percent < 100 else "max": float(np.percentile(each, percent))
        for percent in _PERCENTILES
    }


def _crews(options: argparse.Namespace) -> Iterator[Any]:
    """Context managers, one for each number of workers and threads."""
    if options.scheduler:
        yield joined(options.scheduler, options.workers[0], options.timeout, options.tls)
        return
    for n_workers, n_threads in itertools.product(options.workers, options.threads):
        yield local_processes(n_workers, n_threads) if n_workers else local_threads(n_threads)


def _settings(options: argparse.Namespace) -> Iterator[Setting]:
    axes = (
        options.scaling,
        options.shards,
        options.chunks,
        options.codecs,
        options.strategies,
        options.durabilities,
    )
    for scaling, shards, chunks, codec, strategy, durability in itertools.product(*axes):
        yield Setting(
            scaling,
            options.shape,
            shards,
            chunks,
            options.source_chunks or shards,
            codec,
            strategy,
            durability,
        )


@contextmanager
def _workplace(directory: Path) -> Iterator[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="throughput-", dir=directory))
    try:
        yield place
    finally:
        shutil.rmtree(place)


def run(options: argparse.Namespace) -> None:
    """All runs that the options ask for; each is a line of the output as soon as it is there."""
    circumstances = {"machine": machine(options.directory), "versions": versions()}
    with _workplace(options.directory.resolve()) as place, options.output.open("a") as output:
        for opened in _crews(options):
            with opened as crew:
                rehearsed: set[Shape] = set()
                for setting in _settings(options):
                    if (
                        setting.shards not in rehearsed
                    ):  # so that everything is loaded before the clock starts
                        small = replace(
                            setting,
                            shape=tuple(
                                min(n, s)
                                for n, s in zip(setting.shape, setting.shards, strict=True)
                            ),
                        )
                        measure(small, crew, place)
                        rehearsed.add(setting.shards)
                    for repeat in range(options.repeats):
                        at = setting.on(crew.n_threads)
                        os.sync()
                        figures = measure(at, crew, place)
                        who = {
                            "kind": crew.kind,
                            "n_workers": crew.n_workers,
                            "threads_per_worker": crew.threads_per_worker,
                        }
                        line = {
                            **who,
                            **asdict(at),
                            "n_threads": crew.n_threads,
                            "repeat": repeat,
                            **figures,
                            **circumstances,
                        }
                        output.write(json.dumps(line) + "\n")
                        output.flush()
                        print(_text(line), flush=True)


def _text(line: dict[str, Any]) -> str:
    rate, shards = line["decoded_bytes_per_s"] / 1e6, "x".join(map(str, line["shards"]))
    who = f"{line['kind']} {line['n_workers']}x{line['threads_per_worker']}"
    what = (
        f"{line['scaling']} {line['codec']} {line['strategy']} {line['durability']} shards {shards}"
    )
    return f"{who}, {what}: {rate:.0f} MB/s, {line['files']} files, {line['write_amplification']:.3f} bytes written a byte stored"


def _shape(text: str) -> Shape:
    return tuple(int(part) for part in text.replace("x", ",").split(","))


def _shapes(text: str) -> list[Shape]:
    return [_shape(part) for part in text.split("/")]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _chosen(allowed: Any) -> Any:
    def parse(text: str) -> list[str]:
        parts = text.split(",")
        if unknown := [part for part in parts if part not in allowed]:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)} is not among {', '.join(allowed)}"
            )
        return parts

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput",
        description=(__doc__ or "").split("\n", maxsplit=1)[0],
    )
    parser.add_argument(
        "--directory", type=Path, help="where arrays are written: the file system that is measured"
    )
    parser.add_argument(
        "--scheduler",
        help="address or scheduler file of a cluster that runs; its workers can import benchmarks",
    )
    parser.add_argument(
        "--tls", nargs=3, metavar=("CA", "CERT", "KEY"), help="certificates for that scheduler"
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds to wait for its workers"
    )
    parser.add_argument(
        "--workers",
        type=_numbers,
        default=[0],
        help="numbers of processes; 0 for threads alone; with --scheduler, how many to wait for",
    )
    parser.add_argument(
        "--threads", type=_numbers, default=[1, 2], help="numbers of threads in each"
    )
    parser.add_argument("--scaling", type=_chosen(("strong", "weak")), default=["strong"])
    parser.add_argument(
        "--shape",
        type=_shape,
        default=(512, 512, 512),
        help="of the array; of a thread's share if scaling is weak",
    )
    parser.add_argument(
        "--shards",
        type=_shapes,
        default=[(256, 256, 256)],
        help="shapes, one after another behind /",
    )
    parser.add_argument(
        "--chunks",
        type=_shapes,
        default=[(64, 64, 64)],
        help="shapes of inner chunks, one after another behind /",
    )
    parser.add_argument(
        "--source-chunks", type=_shape, help="blocks of the source (default: those of the shards)"
    )
    parser.add_argument("--codecs", type=_chosen(tuple(CODECS)), default=["zstd"])
    parser.add_argument(
        "--strategies", type=_chosen(("C", "F", "morton", "append-only")), default=["C"]
    )
    parser.add_argument("--durabilities", type=_chosen(DURABILITIES), default=["none"])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("throughput.jsonl"),
        help="JSON lines; a run appends to it",
    )
    parser.add_argument(
        "--page", type=Path, help="HTML page for all lines of the output; its plots go beside it"
    )
    return parser


def main() -> int:
    """Measure as the command line says.

    Returns
    -------
    int
        1 where what was written is not what was asked for.
    """
    parser = _parser()
    options = parser.parse_args()
    if options.directory is None and options.page is None:
        parser.error("give --directory to measure, or --page for a page of what was measured")
    if options.scheduler and len(options.workers) > 1:
        parser.error("with --scheduler, --workers is one number")
    if options.directory is not None:
        try:
            run(options)
        except CheckError as error:
            print(f"FAIL: {error}", file=sys.stderr)
            return 1
    lines = [json.loads(text) for text in options.output.read_text().splitlines()]
    for line in with_efficiency(lines):
        print(
            f"{line['scaling']}, {line['label']}, {line['n_threads']} threads: efficiency {line['efficiency']:.2f}"
        )
    if options.page is not None:
        write_page(options.page, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
