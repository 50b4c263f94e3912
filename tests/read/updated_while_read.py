"""Updates of all strategies under readers that keep indexes, of which every second one keeps chunks,
too: no reader meets an old or a mixed value.

Each value tells its position and the update that wrote it. A reader must not find a value that is
older than what was acknowledged when it began. ``python tests/read/updated_while_read.py 600`` runs
for ten minutes.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import dask
import numpy as np
import zarr
from obstore.store import MemoryStore

import shardwrite
from shardwrite import AppendOnly, CorruptShardError, FixedOrder
from shardwrite.read import array as reading
from shardwrite.read import cached_store
from shardwrite.stores import looking

SHAPE, SHARD, CHUNK = (64, 64), 32, 8
POSITIONS = np.arange(64 * 64, dtype="u4").reshape(SHAPE)
IN_PLACE = {
    "replaced in place": FixedOrder(in_place=True),
    "appended in place": AppendOnly(in_place=True),
}
STRATEGIES = {"replaced": FixedOrder(), "appended": AppendOnly(), **IN_PLACE}
PLACES = {
    "directory": STRATEGIES,
    "bucket": {k: v for k, v in STRATEGIES.items() if k not in IN_PLACE},
}


def values(version, box=(slice(None), slice(None))):
    return POSITIONS[box] + np.uint32(version * POSITIONS.size)


class Updates:
    """An array that is updated in one thread, and read in others."""

    def __init__(self, store, strategies, run_dir):
        self.store, self.strategies, self.run_dir = store, strategies, run_dir
        self.acknowledged = np.zeros((SHAPE[0] // CHUNK, SHAPE[1] // CHUNK), "i8")
        self.version, self.is_over = 0, threading.Event()
        self.counts, self.wrong = Counter(), []
        shardwrite.to_sharded_zarr(
            values(0), store, shards=SHARD, chunks=CHUNK, durability="none", run_dir=run_dir
        )

    def update(self):
        name = random.choice(list(self.strategies))
        cells = [sorted(random.sample(range(n + 1), 2)) for n in self.acknowledged.shape]
        box = tuple(slice(a * CHUNK, b * CHUNK) for a, b in cells)
        self.version += 1
        shardwrite.write_region(
            values(self.version, box), self.store, box, strategy=self.strategies[name],
            durability="none", run_dir=self.run_dir,
        )  # fmt: skip
        self.acknowledged[tuple(slice(a, b) for a, b in cells)] = self.version
        self.counts[name] += 1

    def read(self, array):
        cells = [sorted(random.sample(range(n + 1), 2)) for n in self.acknowledged.shape]
        if random.random() < 0.7:
            cells = [(a, a + 1) for a, _ in cells]
        box = tuple(slice(a * CHUNK, b * CHUNK) for a, b in cells)
        before = self.acknowledged[tuple(slice(a, b) for a, b in cells)].copy()
        try:
            found = array[box].astype("i8")
        except CorruptShardError:
            if set(self.strategies) & set(IN_PLACE):
                self.counts["told"] += 1
                return
            raise
        self.counts["read"] += 1
        versions, positions = np.divmod(found, POSITIONS.size)
        tiles = versions.reshape(len(before), CHUNK, before.shape[1], CHUNK)
        is_right = (positions == POSITIONS[box]).all() and (versions <= self.version).all()
        is_whole = (tiles.min(axis=(1, 3)) == tiles.max(axis=(1, 3))).all()
        if not (is_right and is_whole and (tiles.min(axis=(1, 3)) >= before).all()):
            self.wrong.append((box, versions.min(), versions.max(), before.min(), self.version))

    def run(self, seconds, n_readers=8, opener=shardwrite.open_sharded):
        """Update for some time, under readers that open the array by a function."""
        hits, finds = Counter(), {"kept": reading.INDEXES, "kept chunks": reading.CHUNKS}
        finds["kept by a store"] = cached_store.INDEXES

        def counted(name, find):
            def call(key):
                kept = find(key)
                hits[name] += kept is not None
                return kept

            return call

        errors, arrays = [], []
        for settings in ({}, {"shardwrite.read.chunk-cache": "1 MiB"}):
            with dask.config.set(settings):
                arrays.append(opener(self.store))

        def reader(array):
            try:
                while not self.is_over.is_set():
                    self.read(array)
                    time.sleep(random.uniform(0, 0.005))
            except BaseException as error:
                errors.append(error)

        for name, cache in finds.items():
            cache.find = counted(name, cache.find)
        threads = [threading.Thread(target=reader, args=(arrays[n % 2],)) for n in range(n_readers)]
        try:
            for thread in threads:
                thread.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end or min(self.counts[name] for name in self.strategies) < 2:
                self.update()
                time.sleep(random.uniform(0, 0.1))
        finally:
            self.is_over.set()
            for thread in threads:
                thread.join()
            for cache in finds.values():
                del cache.find
        if errors:
            raise errors[0]
        self.counts.update(hits)


def by_zarr(store):
    """An array of zarr-python that keeps indexes."""
    return zarr.open_array(shardwrite.CachedStore(store), mode="r")


def updated(
    place,
    directory,
    seconds,
    n_readers,
    opener=shardwrite.open_sharded,
    strategies=tuple(STRATEGIES),
):
    """What readers met while an array in a place of a kind was updated for some time."""
    store = MemoryStore() if place == "bucket" else directory / "x"
    settled, looking.SETTLED_NS = looking.SETTLED_NS, 30_000_000  # more than a tick of the clock
    try:
        used = {name: how for name, how in PLACES[place].items() if name in strategies}
        case = Updates(store, used, str(directory / "run") if place == "bucket" else None)
        case.run(seconds, n_readers, opener)
    finally:
        looking.SETTLED_NS = settled
    return case


if __name__ == "__main__":
    total = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    for kind in PLACES:
        with tempfile.TemporaryDirectory() as made:
            ended = updated(kind, Path(made), total / len(PLACES), 8)
        print(kind, dict(ended.counts), f"wrong: {len(ended.wrong)}", ended.wrong[:3])
        assert not ended.wrong
