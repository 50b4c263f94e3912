"""Compare writers into a bucket: `python -m benchmarks.bucket --url s3://bucket/prefix`.

Keys and address of the service come from the environment. With `--seaweed` instead of `--url`, a
server of SeaweedFS is started on this machine, which then shares the cores with the writers.

Writers take turns, and each measurement is a fresh process. The first write in a process, of one
shard, is not timed. What was written is read back by zarr-python. Nothing is compressed, so that
all writers put the same bytes. The bare loop has its shards ready in memory and only puts them.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

from benchmarks.cases import Case
from benchmarks.contestants import regions
from benchmarks.data import Regions
from benchmarks.measure import PeakMemory

__all__ = ["WRITERS", "main", "measure"]

_ROOT = Path(__file__).resolve().parent.parent
_CASES = {
    "large": Case(
        "large", {"default": (1024, 512, 512)}, (256,) * 3, (64,) * 3, (256,) * 3, "none"
    ),
    "small": Case("small", {"default": (12800, 12800)}, (64, 128), (32, 64), (640, 1280), "none"),
}
Values = npt.NDArray[np.uint16]
Writer = Callable[[Values, Case, str, int], None]


def _values(case: Case, share: float) -> Values:
    shape = case.shapes["default"]
    first = max(
        case.dask_chunks[0], int(shape[0] * share) // case.dask_chunks[0] * case.dask_chunks[0]
    )
    return np.random.default_rng(0).integers(1, 2**16, (first, *shape[1:]), dtype="u2")


def _as_dask(values: Values, case: Case) -> Any:
    from_array: Any = da.from_array
    return from_array(Regions(values), chunks=case.dask_chunks, name=False)


def _shardwrite(values: Values, case: Case, url: str, threads: int) -> None:  # noqa: ARG001
    import shardwrite

    shardwrite.to_sharded_zarr(
        _as_dask(values, case),
        url,
        shards=case.shards,
        chunks=case.chunks,
        compressors=None,
        fill_value=0,
    )


def _shardwrite_run_dir(values: Values, case: Case, url: str, threads: int) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        dask.config.set({"shardwrite.run-dir": directory}),
    ):
        _shardwrite(values, case, url, threads)


def _store(url: str) -> Any:
    import obstore.store

    options: Any = {"allow_http": True}
    return obstore.store.from_url(url, client_options=options)


def _zarr(values: Values, case: Case, url: str, threads: int) -> None:  # noqa: ARG001
    import zarr
    import zarr.storage

    target = zarr.create_array(
        zarr.storage.ObjectStore(_store(url)),
        shape=values.shape,
        dtype=values.dtype,
        shards=case.shards,
        chunks=case.chunks,
        compressors=None,
        fill_value=0,
    )
    store: Any = da.store
    store(_as_dask(values, case), target, lock=False)


def _tensorstore(values: Values, case: Case, url: str, threads: int) -> None:
    import tensorstore as ts

    bucket, _, path = url.removeprefix("s3://").partition("/")
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": list(case.chunks),
        "codecs": [little],
        "index_codecs": [little, {"name": "crc32c"}],
    }
    target = ts.open(
        {
            "driver": "zarr3",
            "kvstore": {
                "driver": "s3",
                "bucket": bucket,
                "path": f"{path}/",
                "endpoint": os.environ["AWS_ENDPOINT_URL"],
                "aws_region": os.environ["AWS_REGION"],
            },
            "create": True,
            "metadata": {
                "shape": list(values.shape),
                "data_type": "uint16",
                "fill_value": 0,
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": list(case.shards)},
                },
                "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
            },
            "context": {
                "data_copy_concurrency": {"limit": threads},
                "s3_request_concurrency": {"limit": 4 * threads},
                "cache_pool": {"total_bytes_limit": 0},
            },
        }
    ).result()

    def put(region: tuple[slice, ...]) -> None:
        transaction = ts.Transaction()
        target.with_transaction(transaction)[region].write(values[region]).result()
        transaction.commit_async().result()

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(put, regions(values.shape, case.dask_chunks)):
            pass


def _bare_loop(values: Values, case: Case, url: str, threads: int) -> None:
    """Put as many objects of the same size, which are ready."""
    import obstore

    store = _store(url)
    n_chunks = int(np.prod([s // c for s, c in zip(case.shards, case.chunks, strict=True)]))
    shard = bytes(int(np.prod(case.shards)) * 2 + 16 * n_chunks + 4)
    n_shards = values.size // int(np.prod(case.shards))

    def put(i: int) -> None:
        obstore.put(store, f"c/{i}", shard, use_multipart=False)

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(put, range(n_shards)):
            pass


WRITERS: dict[str, Writer] = {
    "shardwrite": _shardwrite,
    "shardwrite, run_dir": _shardwrite_run_dir,
    "bare loop": _bare_loop,
    "dask+zarr-python": _zarr,
    "tensorstore": _tensorstore,
}


def measure(case: Case, name: str, url: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds and peak memory of one write in this process; what was written is compared.

    Parameters
    ----------
    case : Case
        What is written.
    name : str
        A key of `WRITERS`.
    url : str
        A new place in the bucket.
    options : argparse.Namespace
        The command line.
    """
    import zarr
    import zarr.storage

    values = _values(case, options.share)
    first = values[tuple(slice(0, s) for s in case.dask_chunks)]
    with dask.config.set(scheduler="threads", num_workers=options.threads):
        WRITERS[name](first, case, f"{url}/warm", options.threads)
        with PeakMemory() as memory:
            begun = time.perf_counter()
            WRITERS[name](values, case, f"{url}/x", options.threads)
            seconds = time.perf_counter() - begun
    if name != "bare loop":
        found: Any = zarr.open_array(zarr.storage.ObjectStore(_store(f"{url}/x")), mode="r")
        last = tuple(slice(n - s, n) for n, s in zip(values.shape, case.shards, strict=True))
        if found.shards != case.shards or found.chunks != case.chunks:
            raise SystemExit(f"{name} has written another layout")
        for region in (tuple(slice(0, s) for s in case.shards), last):
            if not np.array_equal(found[region], values[region]):
                raise SystemExit(f"{name} has written other values")
    return {
        "mb_per_s": values.nbytes / seconds / 1e6,
        "peak_mib": memory.above_idle / 2**20,
        "n_shards": values.size / float(np.prod(case.shards)),
        "seconds": seconds,
    }


def _remove(url: str) -> None:
    import obstore

    store = _store(url)
    for some in obstore.list(store):
        obstore.delete(store, [one["path"] for one in some])


def _fresh(case: str, name: str, url: str, options: argparse.Namespace) -> dict[str, float]:
    """One measurement in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.bucket", "--here", name, "--url", url]
    words += ["--cases", case, "--threads", str(options.threads), "--share", str(options.share)]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    try:
        ended = subprocess.run(
            words, env=environment, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True
        )
    finally:
        _remove(url)
    found: dict[str, float] = json.loads(ended.stdout)
    return found


@contextmanager
def _seaweed() -> Iterator[str]:
    """A server of SeaweedFS on this machine, as the tests start it; URL of its bucket."""
    sys.path.insert(0, str(_ROOT / "tests" / "buckets"))
    servers: Any = importlib.import_module("servers")
    with tempfile.TemporaryDirectory() as directory, servers.seaweed(Path(directory)) as server:
        os.environ.update(server.environment)
        yield f"s3://{server.bucket}/benchmark"


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bucket", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="where to write, such as s3://bucket/prefix")
    where.add_argument("--seaweed", action="store_true", help="start a server on this machine")
    parser.add_argument("--cases", default=",".join(_CASES), help="comma-separated")
    parser.add_argument("--writers", default=",".join(_AS_WORDS), help="comma-separated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of each case that is written"
    )
    parser.add_argument("--here", choices=WRITERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = options.cases.split(",")
    if options.here:
        print(json.dumps(measure(_CASES[cases[0]], options.here, options.url, options)))
        return
    names = [_AS_WORDS[word] for word in options.writers.split(",")]
    with _seaweed() if options.seaweed else nullcontext(options.url) as base:
        for case in cases:
            _compare(case, names, base, options)


_AS_WORDS = {name.replace(", ", "-").replace(" ", "-"): name for name in WRITERS}


def _compare(case: str, names: list[str], base: str, options: argparse.Namespace) -> None:
    """Measure and print one case."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for repeat in range(options.repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            url = f"{base}/{uuid.uuid4().hex}"
            found[name].append(_fresh(case, name, url, options))
    n_shards = next(iter(found.values()))[0]["n_shards"]
    print(
        f"{case}: {_CASES[case].describe()}; {n_shards:,.0f} shards, medians of {options.repeats}"
    )
    rates = {
        name: statistics.median(run["mb_per_s"] for run in runs) for name, runs in found.items()
    }
    for name, runs in found.items():
        memory = max(run["peak_mib"] for run in runs)
        ratio = rates["shardwrite"] / rates[name] if "shardwrite" in rates else float("nan")
        told = f"{rates[name]:8.1f} MB/s, +{memory:.0f} MiB"
        print(f"  {name:20} {told}, shardwrite is {ratio:.2f} times as fast", flush=True)


if __name__ == "__main__":
    main()
