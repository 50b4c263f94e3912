"""Write one array on a cluster of two workers and print what they held; run in a process of its own
by the tests."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

import shardwrite

CASES = {
    # a shard larger than both workers' memory together, which compresses 8x, or not at all
    "compressible": {
        "shape": (1024, 1024, 1024),
        "source": (256, 256, 256),
        "shards": (1024, 1024, 1024),
        "chunks": 64,
        "levels": 2,
    },
    "incompressible": {
        "shape": (1024, 1024, 1024),
        "source": (256, 256, 256),
        "shards": (1024, 1024, 1024),
        "chunks": 64,
        "levels": 256,
    },
    # slabs of 8 MiB into cubes
    "slabs": {
        "shape": (128, 2048, 4096),
        "source": (1, 2048, 4096),
        "shards": (128, 512, 512),
        "chunks": 32,
        "levels": 2,
    },
}


def block(levels: int, block_info: dict | None = None) -> np.ndarray:
    """Random values of so many levels: two of them compress about 8x, 256 do not."""
    shape = block_info[None]["chunk-shape"]
    rng = np.random.default_rng(block_info[None]["chunk-location"])
    values = rng.integers(0, 256, shape, dtype=np.uint8)
    return values if levels == 256 else (values > 232).astype(np.uint8)


def anonymous_nbytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def main(case: str, target: str, memory_limit: str) -> None:
    settings = CASES[case]
    dask.config.set(
        {"distributed.worker.memory.target": False, "distributed.worker.memory.spill": False}
    )
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit=memory_limit,
            dashboard_address=None,
            processes=True,
        ) as cluster,
        Client(cluster) as client,
    ):
        warm = da.random.random((64, 64), chunks=32).astype("float32")
        warm.to_sharded_zarr(f"{target}/warm", shards=32, chunks=16, durability="none")
        pids = list(client.run(lambda: __import__("os").getpid()).values())
        time.sleep(1)
        baseline = {pid: anonymous_nbytes(pid) for pid in pids}
        x = da.map_blocks(
            block,
            settings["levels"],
            chunks=da.core.normalize_chunks(settings["source"], settings["shape"]),
            dtype=np.uint8,
        )
        keywords = {"shards": settings["shards"], "chunks": settings["chunks"]}
        plan = shardwrite.plan(x, **keywords)
        peaks = dict.fromkeys(pids, 0)
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.02):
                for pid in pids:
                    peaks[pid] = max(peaks[pid], anonymous_nbytes(pid) - baseline[pid])

        watcher = threading.Thread(target=watch)
        watcher.start()
        result = x.to_sharded_zarr(f"{target}/x", durability="none", **keywords)
        done.set()
        watcher.join()
        still = list(client.run(lambda: __import__("os").getpid()).values())
    print(
        json.dumps(
            {
                "peaks": list(peaks.values()),
                "reported": list(result.peak_nbytes_by_process.values()),
                "estimate": plan.memory.total_nbytes,
                "spool_ratio": plan.memory.spool_ratio,
                "layout": plan.layout,
                "limit": plan.resources.memory_limit_nbytes,
                "restarted": sorted(still) != sorted(pids),
                "seconds": result.seconds,
                "stored_nbytes": result.stored_nbytes,
                "raw_nbytes": result.raw_nbytes,
                "n_shards": result.n_shards,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
