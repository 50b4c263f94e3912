"""Changes of arrays of 16 shards or more that tell of each shard, or of each flush.

What was told is there after any fault, and each shard is the old or the new one.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import oracle
from driver import Operation, Step, acknowledging, note, noted, nothing

SIDE, SHARD, CHUNK, COLUMNS = 32, 8, 4, 16
"""Chunks of the source have so many columns."""
LAYOUT = {"shards": SHARD, "chunks": CHUNK}
OLD, NEW = (oracle.values((SIDE, SIDE), version) for version in (1000, 1))
WHERE = np.s_[SIDE // 10 : SIDE - SIDE // 16, SIDE // 16 : SIDE - SIDE // 6]
"""A box that covers some shards, and others in part."""
OTHERS = ("group/second", "a/third")
"""Arrays that several operations write by the same run."""
FLUSH = 3


def told(path: Path, first: int = 0) -> Any:
    """Tells of shards, the first of which is in this row of shards."""
    n = SIDE // SHARD
    return acknowledging(path, lambda rank: f"c/{first + rank // n}/{rank % n}")


def source() -> da.Array:
    return da.from_array(NEW, chunks=(SHARD, COLUMNS))


def make(path: Path) -> None:
    da.from_array(OLD, chunks=SHARD).to_sharded_zarr(path, **LAYOUT)


def write(path: Path, **how: Any) -> None:
    source().to_sharded_zarr(path, source_id="it", progress=told(path), **LAYOUT, **how)


def change(path: Path) -> None:
    source()[WHERE].to_sharded_zarr(path, region=WHERE, source_id="it", progress=told(path))


def append(path: Path) -> None:
    progress = told(path, SIDE // SHARD)
    source().to_sharded_zarr(path, region="append", axis=0, source_id="it", progress=progress)


def erase(path: Path) -> None:
    shardwrite.erase(path, WHERE, progress=told(path))


def store(path: Path, values: np.ndarray = NEW, **how: Any) -> None:
    """Write an array and two others into one hierarchy; shards of the first one are told."""
    x = da.from_array(values, chunks=(SHARD, COLUMNS))
    tell = told(path)
    names = [path.name, *OTHERS]
    shardwrite.store(
        [x + n for n in range(len(names))],
        [path.parent] * len(names),
        names=names,
        progress=lambda report: report.entry.output or tell(report),
        source_id=f"it {values[0, 0]}",
        **LAYOUT,
        **how,
    )


def begin_stream(path: Path) -> None:
    shardwrite.create(path, (0, SIDE), "u4", **LAYOUT)


def stream(path: Path) -> None:
    """Append slices from where the array ends, and flush after every few."""
    with shardwrite.ShardWriter(path, n_threads=2) as writer:
        for t in range(writer.shape[0], SIDE):
            writer.append(NEW[t])
            if t % FLUSH == FLUSH - 1:
                writer.flush()
                note(str(t + 1))


def look_at_stream(path: Path, is_done: bool) -> None:
    """What was flushed is there, and of all else each row of an inner chunk is new or empty."""
    n, metadata = max(map(int, noted()), default=0), oracle.metadata_of(path)
    assert metadata.grid.shape[0] >= n, f"lost: {n} slices were flushed"
    for name, found in oracle.read_everywhere(path, metadata).items():
        wanted = NEW[: len(found)]
        assert (found[:n] == wanted[:n]).all(), f"lost: flushed slices, by {name}"
        pairs = [array.reshape(len(found), SIDE // CHUNK, CHUNK) for array in (found, wanted)]
        rows = (pairs[0] == pairs[1]).all(axis=2) | (pairs[0] == 0).all(axis=2)
        assert rows.all(), f"{name}: inner chunks are torn"


def look(old: np.ndarray, wanted: np.ndarray, path: Path, is_done: bool) -> None:
    """Three readers find each shard old or new."""
    if (path / "zarr.json").exists():
        oracle.check_partial(path, set(), old, wanted)


def check_several(path: Path) -> None:
    """All arrays are there."""
    for n, name in enumerate((path.name, *OTHERS)):
        oracle.check_values(path.parent / name, NEW + np.uint32(n))


def of(prepare: Step, perform: Step, wanted: np.ndarray, **more: Any) -> Operation:
    """One of them, of which three readers find the values in the end."""
    old = np.zeros_like(wanted)
    if prepare is not nothing:
        old[:SIDE] = OLD
    seen = {
        "check": lambda path: oracle.check_values(path, wanted),
        "look": partial(look, old, wanted),
        "is_exact": True,
    }
    return Operation(prepare, perform, **{**seen, **more})


CHANGED, ERASED = OLD.copy(), OLD.copy()
CHANGED[WHERE], ERASED[WHERE] = NEW[WHERE], 0
several = partial(of, wanted=NEW, at="r/x", check=check_several)
TOLD = {
    "write of 16 shards": of(nothing, write, NEW),
    "replacement of 16 shards": of(make, partial(write, mode="w"), NEW),
    "region of 16 shards": of(make, change, CHANGED),
    "append of 16 shards": of(make, append, np.concatenate([OLD, NEW])),
    "erase of 16 shards": of(make, erase, ERASED),
    "stream of 16 shards": of(begin_stream, stream, NEW, look=look_at_stream, is_exact=False),
    "three arrays of 16 shards": several(nothing, store),
    "replacement of three arrays of 16 shards": several(
        partial(store, values=OLD), partial(store, mode="w")
    ),
}
