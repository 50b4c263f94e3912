"""Operations on an array that keeps a manifest, in a group with consolidated metadata.

Whenever they are interrupted, both documents list all chunks that hold data. The group has the
document of the array, maybe with fewer rows, or none. The same call again, or `abandon`, makes both
lists exact.
"""

from __future__ import annotations

import json
import sys
import warnings
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import zarr

import shardwrite
from shardwrite import AppendOnly, CorruptShardError, FixedOrder, ShardWriter
from shardwrite.format.manifest import keys_of
from shardwrite.read.stored_shard import open_shard

sys.path.insert(0, str(Path(__file__).parent))
from driver import Operation, Step
from effects import in_child

CHUNK, N = 5, 20
LAYOUT = {"shards": 10, "chunks": CHUNK, "manifest": "nonempty_chunks"}


def values(n: int, empty: list[tuple[int, int]]) -> np.ndarray:
    """Values that are not zero, except in some inner chunks."""
    found = (np.arange(N * N, dtype="u4") + n).reshape(N, N)
    for i, j in empty:
        found[i * CHUNK : (i + 1) * CHUNK, j * CHUNK : (j + 1) * CHUNK] = 0
    return found


OLD = values(1, [(0, 0), (1, 2), (2, 0), (2, 1), (3, 0), (3, 1)])
NEW = values(1001, [(0, 1), (1, 1), (3, 3), (2, 2)])
REGION = (slice(3, 17), slice(2, 12))


def updated(region: tuple[slice, ...], new: np.ndarray) -> np.ndarray:
    after = OLD.copy()
    after[region] = new[region]
    return after


def source(given: np.ndarray) -> da.Array:
    return da.from_array(given, chunks=7)


def group(path: Path) -> None:
    zarr.create_group(path.parent)


def consolidate(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(path.parent)


def nothing(path: Path) -> None:
    group(path)
    consolidate(path)


def make(path: Path, given: np.ndarray = OLD) -> None:
    group(path)
    source(given).to_sharded_zarr(path, **LAYOUT)
    consolidate(path)


def make_short(path: Path) -> None:
    make(path, OLD[:8])


def make_wasteful(path: Path) -> None:
    make(path)
    for _ in range(3):
        update(path, strategy=AppendOnly())


def write(path: Path, **keywords) -> None:
    source(NEW).to_sharded_zarr(path, **LAYOUT, **keywords)


def replace(path: Path) -> None:
    """Write an array with other chunks in the place of another one."""
    keywords = {**LAYOUT, "shards": 12, "chunks": 4, "mode": "w"}
    source(NEW).to_sharded_zarr(path, **keywords)


def update(path: Path, **keywords) -> None:
    source(NEW[REGION]).to_sharded_zarr(path, region=REGION, **keywords)


def append(path: Path) -> None:
    source(NEW[8:]).to_sharded_zarr(path, region="append", source_id="new")


def stream(path: Path) -> None:
    first = shardwrite.open_sharded(path).shape[0]
    with ShardWriter(path, n_threads=1) as writer:
        for t in range(first, N):
            writer.append(NEW[t])
            if t % 7 == 0:
                writer.flush()


def tear(path: Path) -> None:
    make(path)
    with (path / "c/0/1").open("ab") as shard:
        shard.write(bytes(range(1, 200)))


def damage(path: Path) -> None:
    make(path)
    (path / "c/0/1").write_bytes(b"torn")
    (path / "c/0/0").unlink()


def make_source(path: Path) -> None:
    nothing(path)
    source(NEW).to_sharded_zarr(path.with_name("source"), shards=None, chunks=CHUNK)


def shard(path: Path) -> None:
    shardwrite.shard(path.with_name("source"), path, 2, manifest="nonempty_chunks")


def interrupt_update(path: Path) -> None:
    make(path)
    in_child(lambda: update(path, strategy=FixedOrder(in_place=True)), 60)


UPDATED = updated(REGION, NEW)
APPENDED = np.concatenate([OLD[:8], NEW[8:]])


def stored(path: Path) -> tuple[np.ndarray, int]:
    """Positions of the chunks in all shards that can be read, and the number of the others."""
    metadata = shardwrite.open_sharded(path).metadata
    store, grid = shardwrite.open_sharded(path).store, metadata.grid
    found, n_bad = [np.empty((0, grid.ndim), dtype=np.int64)], 0
    for index in grid.shards_in(grid.whole):
        try:
            shard = open_shard(metadata, store, index)
        except CorruptShardError:
            n_bad += 1
            continue
        if shard is not None:
            with shard:
                present = ~shard.index.is_empty.reshape(grid.chunks_per_shard)
                found.append(np.argwhere(present) + np.multiply(index, grid.chunks_per_shard))
    return np.concatenate(found), n_bad


def documents(path: Path) -> dict[str, dict]:
    """Document of the array, and that in the group above, as far as they are there."""
    found = {}
    if (path / "zarr.json").exists():
        found["array"] = json.loads((path / "zarr.json").read_text())
    above = json.loads((path.parent / "zarr.json").read_text())
    listed = above["consolidated_metadata"]["metadata"].get(path.name)
    return found | ({} if listed is None else {"group": listed})


def check_listed(path: Path, exactly: bool) -> int:
    """Both documents list all chunks that hold data, or exactly these; number of bad shards."""
    found = documents(path)
    if "array" not in found:
        assert not exactly
        assert "group" not in found, "the group lists an array that is not there"
        return 0
    if "group" in found:
        own, seen = ({**document, "attributes": {}} for document in found.values())
        assert seen["shape"] <= own["shape"]
        assert {**seen, "shape": []} == {**own, "shape": []}, "the group has another document"
    coords, n_bad = stored(path)
    assert not (exactly and n_bad)
    for where, document in found.items():
        inner = document["codecs"][0]["configuration"]["chunk_shape"]
        counts = [-(-n // c) for n, c in zip(document["shape"], inner, strict=True)]
        inside = coords[(coords < counts).all(axis=1)]
        there = set(keys_of(inside, np.zeros(2, dtype=np.int64)))
        listed = document["attributes"]["nonempty_chunks"]
        assert listed == sorted(set(listed)), where
        assert there <= set(listed), (where, sorted(there - set(listed)))
        assert not exactly or there == set(listed), (where, sorted(set(listed) - there))
    if exactly:
        # A note on sharding follows a conversion that has ended, which cannot be given up any more.
        assert found["group"]["shape"] == found["array"]["shape"]
    return n_bad


def check(path: Path) -> None:
    """Both documents are the same, and what they list is what is there."""
    found = documents(path)
    assert found["group"] == found["array"]
    with zarr.config.set({"async.concurrency": 1}):
        opened = zarr.open_array(path, mode="r")
    assert set(opened.attrs["nonempty_chunks"]) == set(shardwrite.present(path).keys)


def check_exactly(path: Path) -> None:
    check_listed(path, True)


def check_not_less(path: Path) -> None:
    check_listed(path, False)


def listed(
    prepare: Step, perform: Step, wanted: np.ndarray, abandoned: Step | None = check_exactly
) -> Operation:
    """One of them; `abandoned` is what must hold when it was given up."""
    how = {"at": "g/x", "check": check, "look": check_listed, "abandoned": abandoned}
    return Operation(prepare, perform, wanted, may_be_torn=True, **how)


IN_PLACE = FixedOrder(in_place=True, max_unused=1.0)
LISTED = {
    "listed write": listed(nothing, write, NEW, None),
    "listed write, published first": listed(nothing, partial(write, publish="first"), NEW, None),
    "listed shard": listed(make_source, shard, NEW, None),
    "listed replacement": listed(make, replace, NEW, None),
    "listed reshard in place": listed(
        make, lambda path: shardwrite.reshard(path, 3, chunks=4), OLD
    ),
    "listed update": listed(make, update, UPDATED),
    "listed update in place": listed(make, partial(update, strategy=IN_PLACE), UPDATED),
    "listed append in place": listed(
        make, partial(update, strategy=AppendOnly(in_place=True)), UPDATED
    ),
    "listed erase": listed(
        make, lambda path: shardwrite.erase(path, REGION), updated(REGION, np.zeros_like(OLD))
    ),
    "listed append": listed(make_short, append, APPENDED),
    "listed stream": listed(make_short, stream, APPENDED),
    "listed compaction": listed(make_wasteful, partial(shardwrite.compact, above=0.1), UPDATED),
    "listed repair": listed(
        damage, lambda path: shardwrite.repair(path, source(OLD)), OLD, check_not_less
    ),
    "listed salvage": listed(tear, partial(shardwrite.repair, scan=True), OLD, check_not_less),
    "listed update by restart": listed(interrupt_update, partial(update, restart=True), UPDATED),
}
