"""Compare writers of datasets: `python -m benchmarks.datasets --dir /scratch/x`.

Each measurement is a fresh process that writes two variables of a source into shards. Contestants
take turns. `xarray` is ``ds.chunk(shards).to_zarr(...)``, and `xarray-zarrs` the same with the codecs
of zarrs. Inner chunks have a checksum for all of them. With ``--cold``, the system forgets the
source before each run, if it lies on a disk. What was written is compared with the source.
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
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.measure import PeakMemory, tree_size
from benchmarks.results import MEMORY, RATE

__all__ = ["CASES", "CONTESTANTS", "Case", "main"]

_ROOT = Path(__file__).resolve().parent.parent
_LATITUDES, _LONGITUDES = 256, 512
_STEP_NBYTES = 4 * _LATITUDES * _LONGITUDES
_SHARD_STEPS, _CHUNK_STEPS = 48, 8
_SHARDS = {"time": _SHARD_STEPS, "lat": _LATITUDES, "lon": _LONGITUDES}
_CHUNKS = {"time": _CHUNK_STEPS, "lat": 128, "lon": 128}


@dataclass(frozen=True)
class Case:
    """What is written.

    Attributes
    ----------
    source_steps : int
        Steps in a chunk of the source.
    codec : dict or None
        Codec of the inner chunks, before the checksum.
    """

    source_steps: int
    codec: Mapping[str, Any] | None


_ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
_LZ4 = {
    "name": "blosc",
    "configuration": {
        "cname": "lz4",
        "clevel": 5,
        "shuffle": "shuffle",
        "typesize": 4,
        "blocksize": 0,
    },
}
CASES = {
    "aligned-zstd": Case(_SHARD_STEPS, _ZSTD),
    "one-step-zstd": Case(1, _ZSTD),
    "aligned-lz4": Case(_SHARD_STEPS, _LZ4),
    "aligned-raw": Case(_SHARD_STEPS, None),
}


def _encoding(ds: Any, case: Case) -> dict[str, dict[str, Any]]:
    codecs = [*([] if case.codec is None else [case.codec]), {"name": "crc32c"}]
    shards, chunks = (tuple(sizes.values()) for sizes in (_SHARDS, _CHUNKS))
    return {
        name: {"shards": shards, "chunks": chunks, "compressors": codecs} for name in ds.data_vars
    }


def _by_shardwrite(durability: str) -> Callable[[Any, Path, Case], None]:
    def write(ds: Any, path: Path, case: Case) -> None:
        import shardwrite

        shardwrite.write_dataset(ds, path, encoding=_encoding(ds, case), durability=durability)

    return write


def _by_xarray(ds: Any, path: Path, case: Case) -> None:
    ds.chunk(_SHARDS).to_zarr(path, encoding=_encoding(ds, case), zarr_format=3)


def _by_zarrs(ds: Any, path: Path, case: Case) -> None:
    import zarr
    import zarrs  # noqa: F401 (it makes the pipeline known)

    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        _by_xarray(ds, path, case)


CONTESTANTS: dict[str, Callable[[Any, Path, Case], None]] = {
    "shardwrite": _by_shardwrite("none"),
    "shardwrite-full": _by_shardwrite("full"),
    "xarray": _by_xarray,
    "xarray-zarrs": _by_zarrs,
}
"""Functions that write a dataset. Only `shardwrite-full` syncs what it writes."""


def _make_source(path: Path, case: Case, nbytes: int) -> None:
    """Write fields that compress about as model output does."""
    import dask.array as da
    import numpy as np
    import xarray as xr

    n = max(_SHARD_STEPS, nbytes // 2 // _STEP_NBYTES // _SHARD_STEPS * _SHARD_STEPS)
    shape, chunks = (n, _LATITUDES, _LONGITUDES), (case.source_steps, _LATITUDES, _LONGITUDES)
    waves = np.sin(np.arange(_LONGITUDES) / 40) * 30
    rng = da.random.default_rng(0)
    noise = (rng.integers(0, 256, size=shape, chunks=chunks) / 16).astype("f4")
    fields = {
        name: (tuple(_SHARDS), noise + (waves * k).astype("f4"))
        for k, name in ((1, "t2m"), (2, "rain"))
    }
    xr.Dataset(fields).to_zarr(
        path, zarr_format=3, encoding={name: {"compressors": None} for name in fields}
    )


def _touch(source: Path, *, forgets: bool) -> None:
    """Have the system hold all files of a source in memory, or forget them."""
    for path in source.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                if forgets:
                    os.fsync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while os.read(fd, 2**22):
                        pass
            finally:
                os.close(fd)


def _measure_here(name: str, case: Case, options: argparse.Namespace) -> dict[str, float]:
    """Seconds, decoded bytes, bytes of memory and bytes written of one contestant, in this process."""
    import dask
    import xarray as xr

    import shardwrite  # noqa: F401 (imports are not measured)

    warnings.simplefilter("ignore")
    write, made = CONTESTANTS[name], options.into / "x.zarr"
    with dask.config.set(scheduler="threads", num_workers=options.threads):
        source = xr.open_zarr(options.source, chunks={"time": case.source_steps})
        write(source.isel(time=slice(_SHARD_STEPS)), options.into / "first.zarr", case)
        _touch(options.source, forgets=options.cold)
        start = time.perf_counter()
        with PeakMemory() as memory:
            write(source, made, case)
        seconds = time.perf_counter() - start
        for at in (0, source.sizes["time"] - 1):
            found = xr.open_zarr(made).isel(time=at).load()
            xr.testing.assert_equal(found, source.isel(time=at).load())
        nbytes = source.nbytes
    return {
        "seconds": seconds,
        "decoded": nbytes,
        "memory": memory.above_idle,
        "stored": tree_size(made),
    }


def _measure(name: str, case: str, source: Path, options: argparse.Namespace) -> dict[str, float]:
    """The same in a fresh process."""
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        command = [sys.executable, "-m", "benchmarks.datasets", "--one", name, case]
        command += ["--source", str(source), "--into", directory]
        command += ["--threads", str(options.threads), *(["--cold"] if options.cold else [])]
        ended = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{case} by {name}: {ended.stderr[-2000:]}")
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def _table(found: Mapping[str, Mapping[str, list[dict[str, float]]]]) -> Table:
    """Medians of all contestants, and how they compare with the best one of xarray."""
    table = Table(box=box.MARKDOWN)
    for heading in ("case", "contestant", RATE, "seconds", "times xarray's best", MEMORY, "MB"):
        table.add_column(heading, justify="left" if heading in ("case", "contestant") else "right")
    for case, runs in found.items():
        medians = {
            name: {key: statistics.median(run[key] for run in each) for key in each[0]}
            for name, each in runs.items()
        }
        others = [each["seconds"] for name, each in medians.items() if name.startswith("xarray")]
        for name, each in medians.items():
            speed = f"{min(others) / each['seconds']:.2f}" if others else ""
            rate = f"{each['decoded'] / each['seconds'] / 1e6:.1f}"
            sizes = f"{each['memory'] / 2**20:.0f}", f"{each['stored'] / 1e6:.0f}"
            table.add_row(case, name, rate, f"{each['seconds']:.3f}", speed, *sizes)
    return table


def main() -> int:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.datasets", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated names")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help="likewise")
    parser.add_argument("--nbytes", type=int, default=2 * 10**9, help="decoded size of the source")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="the source is not in memory")
    parser.add_argument("--dir", type=Path, help="where to write, and where sources are made")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    for path in ("--source", "--into"):
        parser.add_argument(path, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, case = options.one
        print(json.dumps(_measure_here(name, CASES[case], options)))
        return 0
    names, found = options.contestants.split(","), dict[str, dict[str, list[dict[str, float]]]]()
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        options.dir = Path(directory)
        for case in options.cases.split(","):
            source = options.dir / f"source-{CASES[case].source_steps}.zarr"
            if not source.exists():
                _make_source(source, CASES[case], options.nbytes)
            told = f"{case}, cold" if options.cold else case
            runs = found[told] = {name: list[dict[str, float]]() for name in names}
            for repeat in range(options.repeats):
                turn = repeat % len(names)
                for name in names[turn:] + names[:turn]:
                    runs[name].append(_measure(name, case, source, options))
    print(f"Medians of {options.repeats}, with {options.threads} threads.")
    Console(width=None if sys.stdout.isatty() else 120).print(_table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
