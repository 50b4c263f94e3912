"""Convert an array of many files into shards: ``python -m benchmarks.convert --dir DIR``.

Contestants convert the same array in turn, each in a fresh process, and without waiting for the
disk unless its name says so. The result is compared with the source, and its layout is checked.
``--count-calls`` runs each contestant once more under strace and counts its system calls.
``--image`` converts on a file system of its own in a file of DIR, which only root can mount; so
other files and inodes of the machine play no part. It is ext4, or ``--image xfs``, which can have
files share blocks.

zarrista takes part only if it is named, and must be installed (``pip install zarrista``).

There are two cases. ``small`` has many files of 4 KiB, a thousand for each shard. ``large`` has
chunks of some MiB that zstd has compressed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import PeakMemory, machine, tree_size, versions

THREADS = 2
WAITS = ("futex", "sched_yield")  # system calls that wait for other threads


@dataclass(frozen=True)
class Case:
    """An array of many files, and the shards that it gets.

    Attributes
    ----------
    counts : tuple of int
        Number of chunks along each axis.
    chunks : tuple of int
        Shape of a chunk in elements of uint16.
    shards : tuple of int
        Shape of a shard in chunks.
    level : int or None
        Level of zstd; None stores chunks uncompressed.
    """

    counts: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...]
    level: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array in elements."""
        return tuple(n * c for n, c in zip(self.counts, self.chunks, strict=True))

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """Shape of a shard in elements."""
        return tuple(n * c for n, c in zip(self.shards, self.chunks, strict=True))

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return math.prod(self.counts)

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return math.prod(n // s for n, s in zip(self.counts, self.shards, strict=True))


def case_of(name: str, files: int) -> Case:
    """Make a case with about a number of files.

    Parameters
    ----------
    name : {"small", "large"}
        Which case.
    files : int
        Number of files.
    """
    per_shard = (25, 40) if name == "small" else (2, 4)
    n_shards = max(1, files // math.prod(per_shard))
    rows = next(n for n in range(math.isqrt(n_shards), 0, -1) if n_shards % n == 0)
    counts = (rows * per_shard[0], n_shards // rows * per_shard[1])
    if name == "small":
        return Case(counts, (32, 64), per_shard, None)
    return Case(counts, (1024, 2048), per_shard, 3)


def make(path: Path, case: Case) -> None:
    """Write the array that is converted, chunk file by chunk file."""
    import numcodecs
    import zarr
    from zarr.codecs import ZstdCodec

    zarr.create_array(
        str(path),
        shape=case.shape,
        chunks=case.chunks,
        dtype="uint16",
        compressors=None if case.level is None else ZstdCodec(level=case.level),
        fill_value=0,
        zarr_format=3,
    )
    codec = None if case.level is None else numcodecs.Zstd(level=case.level)
    rng = np.random.default_rng(0)
    noise = rng.integers(1, 4096, (64, *case.chunks), dtype="uint16")
    for row in range(case.counts[0]):
        below = path / "c" / str(row)
        below.mkdir(parents=True)
        for column in range(case.counts[1]):
            number = row * case.counts[1] + column
            chunk = noise[number % len(noise)]
            chunk[0, :2] = number % 65521 + 1, number // 65521 + 1
            data = chunk.tobytes() if codec is None else codec.encode(chunk)
            (below / str(column)).write_bytes(data)


def _by_shardwrite(durability: str) -> Callable[[Path, Path, Case], None]:
    def convert(source: Path, target: Path, case: Case) -> None:
        import shardwrite

        done = shardwrite.shard(source, target, case.shards, durability=durability)
        if done.n_chunks_copied != case.n_chunks:
            raise RuntimeError(f"{done.n_chunks_copied} of {case.n_chunks} chunks were copied")

    return convert


def _decoded(source: Path, target: Path, case: Case) -> None:
    """Decode and encode everything, as a write of the values does."""
    import dask.array as da

    import shardwrite

    x = da.from_zarr(str(source), chunks=case.shard_shape)
    codecs = (
        None if case.level is None else [{"name": "zstd", "configuration": {"level": case.level}}]
    )
    shardwrite.to_sharded_zarr(
        x,
        target,
        shards=case.shard_shape,
        chunks=case.chunks,
        compressors=codecs,
        durability="none",
    )


def _by_zarr(source: Path, target: Path, case: Case) -> None:
    import zarr

    zarr.config.set({"threading.max_workers": THREADS})
    zarr.from_array(
        str(target),
        data=zarr.open_array(str(source), mode="r"),
        chunks=case.chunks,
        shards=case.shard_shape,
    )


def _by_zarrs(source: Path, target: Path, case: Case) -> None:
    import zarr

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"})
    _by_zarr(source, target, case)


def _sharded(case: Case, codecs: list[Any]) -> dict[str, Any]:
    """Keyword arguments with which both contestants create the new array."""
    inner = {
        "chunk_shape": list(case.chunks),
        "codecs": codecs,
        "index_codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "crc32c"},
        ],
        "index_location": "end",
    }
    grid = {"chunk_shape": list(case.shard_shape)}
    return {
        "shape": list(case.shape),
        "data_type": "uint16",
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": grid},
        "codecs": [{"name": "sharding_indexed", "configuration": inner}],
    }


def _shard_by_shard(case: Case, copy: Callable[[tuple[slice, ...]], None]) -> None:
    """Copy the region of each shard in threads. So the memory needed does not grow with the array."""
    regions = [
        tuple(slice(i * s, (i + 1) * s) for i, s in zip(at, case.shard_shape, strict=True))
        for at in np.ndindex(*(n // s for n, s in zip(case.counts, case.shards, strict=True)))
    ]
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(copy, regions):
            pass


def _by_zarrista(source: Path, target: Path, case: Case) -> None:
    array, store = (importlib.import_module(f"zarrista{name}") for name in ("", ".store"))
    old = array.Array.open(store.FilesystemStore(str(source)))
    document = json.loads((source / "zarr.json").read_text())
    target.mkdir()
    new = array.Array.from_metadata(
        document | _sharded(case, document["codecs"]), store.FilesystemStore(str(target))
    )
    new.store_metadata()
    _shard_by_shard(
        case,
        lambda region: new.store_array_subset(region, old.retrieve_array_subset(region).to_numpy()),
    )


def _by_tensorstore(source: Path, target: Path, case: Case) -> None:
    import tensorstore as ts

    context = {
        "data_copy_concurrency": {"limit": THREADS},
        "file_io_sync": False,
        "cache_pool": {"total_bytes_limit": 0},
    }
    from_spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(source)}}
    old = ts.open({**from_spec, "context": context}).result()
    codecs = json.loads((source / "zarr.json").read_text())["codecs"]
    new = ts.open(
        {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(target)},
            "create": True,
            "context": context,
            "metadata": _sharded(case, codecs),
        }
    ).result()

    def copy(region: tuple[slice, ...]) -> None:
        transaction = ts.Transaction()
        new.with_transaction(transaction)[region].write(old[region].read().result()).result()
        transaction.commit_async().result()

    _shard_by_shard(case, copy)


def _by_cp(source: Path, target: Path, case: Case) -> None:  # noqa: ARG001
    """Copy the files as they are. This is no conversion; it tells what the machine gives."""
    subprocess.run(["cp", "-r", "--reflink=never", str(source), str(target)], check=True)


CONTESTANTS: dict[str, Callable[[Path, Path, Case], None]] = {
    "shardwrite": _by_shardwrite("none"),
    "shardwrite-full": _by_shardwrite("full"),
    "shardwrite-values": _decoded,
    "tensorstore": _by_tensorstore,
    "zarrista": _by_zarrista,
    "zarr-python": _by_zarr,
    "zarr-python with zarrs": _by_zarrs,
    "cp": _by_cp,
}


def check(source: Path, target: Path, case: Case, contestant: str) -> None:
    """Compare a sample of the values, and all of the layout, by tensorstore."""
    import tensorstore as ts

    def opened(path: Path) -> Any:
        return ts.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
        ).result()

    old, new = opened(source), opened(target)
    rows = max(1, case.shape[0] // 8)
    for start in range(0, case.shape[0], rows * 2):
        part = slice(start, min(start + case.shard_shape[0], case.shape[0]))
        np.testing.assert_array_equal(new[part].read().result(), old[part].read().result())
    if contestant == "cp":
        return
    if new.chunk_layout.write_chunk.shape != case.shard_shape:
        raise RuntimeError(
            f"{contestant} has written shards of {new.chunk_layout.write_chunk.shape}"
        )
    if new.chunk_layout.read_chunk.shape != case.chunks:
        raise RuntimeError(
            f"{contestant} has written chunks of {new.chunk_layout.read_chunk.shape}"
        )
    files = sum(path.is_file() for path in (target / "c").rglob("*"))
    if files != case.n_shards:
        raise RuntimeError(f"{contestant} has written {files} files for {case.n_shards} shards")


def measure(contestant: str, source: Path, target: Path, case: Case) -> dict[str, float]:
    """Convert once, in this process."""
    import dask

    CONTESTANTS[contestant]  # a name that does not exist fails before the clock starts
    with (
        dask.config.set(scheduler="threads", num_workers=THREADS),
        PeakMemory() as memory,
    ):
        begun = time.perf_counter()
        CONTESTANTS[contestant](source, target, case)
        seconds = time.perf_counter() - begun
    return {"seconds": seconds, "peak": memory.above_idle}


def _command(options: argparse.Namespace, contestant: str, source: Path, target: Path) -> list[str]:
    return [
        sys.executable, "-m", "benchmarks.convert", "--case", options.case, "--files",
        str(options.files), "--measure", contestant, "--source", str(source), "--target", str(target),
    ]  # fmt: skip


def calls_of(
    options: argparse.Namespace, contestant: str, source: Path, target: Path
) -> tuple[int, int]:
    """System calls of a contestant by strace, and those of them that wait for other threads.

    The start and the end of the process are included. How often threads wait depends on how busy
    the machine is.
    """
    with tempfile.NamedTemporaryFile("r") as counted:
        command = ["strace", "-f", "-qq", "-c", "-S", "calls", "-o", counted.name]
        command += _command(options, contestant, source, target)
        subprocess.run(command, check=True, capture_output=True)
        rows = [line.split() for line in counted.read().splitlines()]
    calls = {  # the number of errors stands before the name only where there are any
        row[-1]: int(row[-3] if len(row) > 5 else row[-2])
        for row in rows
        if row and row[0][0].isdigit()
    }
    return calls["total"], sum(calls.get(name, 0) for name in WAITS)


def run(options: argparse.Namespace, directory: Path) -> list[dict[str, Any]]:
    """Run all contestants in turn."""
    case = case_of(options.case, options.files)
    source, target = directory / "source", directory / "target"
    make(source, case)
    names = options.contestants.split(",")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    calls: dict[str, tuple[int, int]] = {}
    for number in range(options.repeats + options.count_calls):
        for name in names if number % 2 == 0 else names[::-1]:
            if number == options.repeats:
                calls[name] = calls_of(options, name, source, target)
            else:
                command = _command(options, name, source, target)
                ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[name].append(json.loads(ended.stdout))
                if number == 0:
                    check(source, target, case, name)
            shutil.rmtree(target)
    nbytes = tree_size(source)
    rows = []
    for name in names:
        seconds = statistics.median(one["seconds"] for one in found[name])
        rows.append(
            {
                "contestant": name,
                "seconds": seconds,
                "mb_per_s": nbytes / seconds / 1e6,
                "peak": statistics.median(one["peak"] for one in found[name]),
                "calls_per_chunk": calls[name][0] / case.n_chunks if name in calls else None,
                "waits_per_chunk": calls[name][1] / case.n_chunks if name in calls else None,
            }
        )
    return rows


@contextlib.contextmanager
def place(options: argparse.Namespace) -> Iterator[Path]:
    """Directory for the arrays: a temporary one, or a file system that is mounted from a file."""
    case = case_of(options.case, options.files)
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        top = Path(directory)
        if not options.image:
            yield top
            return
        # Source and target, with a block for each file and half as much for metadata.
        nbytes = 3 * case.n_chunks * max(8192, math.prod(case.chunks) * 2) + 2**28
        image, root = top / "image", top / "root"
        root.mkdir()
        with image.open("wb") as file:
            file.truncate(nbytes)
        inodes = str(2 * case.n_chunks + 50_000)
        make = {"ext4": ["-F", "-m", "0", "-N", inodes], "xfs": ["-f"]}[options.image]
        subprocess.run([f"mkfs.{options.image}", "-q", *make, str(image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(image), str(root)], check=True)
        try:
            yield root
        finally:
            subprocess.run(["umount", "--lazy", str(root)], check=True)


def main() -> None:
    """Arguments in, a table out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=("small", "large"), default="small")
    parser.add_argument("--files", type=int, default=20_000, help="number of chunk files")
    parser.add_argument(
        "--contestants", default=",".join(name for name in CONTESTANTS if name != "zarrista")
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--count-calls", action="store_true", help="count system calls by strace")
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument(
        "--image",
        nargs="?",
        const="ext4",
        choices=("ext4", "xfs"),
        help="on a file system of its own in a file of DIR (as root)",
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--source", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--target", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        case = case_of(given.case, given.files)
        print(json.dumps(measure(given.measure, given.source, given.target, case)))
        return
    case = case_of(given.case, given.files)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing stays mounted
    with place(given) as directory:
        rows = run(given, directory)
        facts = {**machine(directory), **versions()}
    print(
        f"{case.n_chunks:,} chunk files into {case.n_shards:,} shards, medians of {given.repeats}\n"
    )
    print("| contestant | seconds | encoded MB/s | peak memory, MB | system calls per chunk |")
    print("|---|---:|---:|---:|---:|")
    for row in rows:
        calls = "" if row["calls_per_chunk"] is None else f"{row['calls_per_chunk']:.1f}"
        print(
            f"| {row['contestant']} | {row['seconds']:.2f} | {row['mb_per_s']:.0f} "
            f"| {row['peak'] / 1e6:.0f} | {calls} |"
        )
    print("\n" + ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items()))
    if given.json:
        given.json.write_text(json.dumps({"case": given.case, "rows": rows, **facts}, indent=2))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
    main()
