"""A kill before every effect of an operation on an array that keeps a manifest.

The array lies in a group with consolidated metadata. Whenever the process is killed, both documents
list all chunks that hold data. The group has the document of the array, maybe with fewer rows, or
none. The same call again, or `abandon`, makes both lists exact.

Each case runs in a process forked for it. Run as ``python tests/faults/manifests.py --every 1 --json
out.json``, or through `test_manifests.py`.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import zarr

import shardwrite
from shardwrite import AppendOnly, CorruptShardError, FixedOrder, ShardWriter
from shardwrite.format.manifest import keys_of
from shardwrite.read.stored_shard import open_shard

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from ends import count_effects, in_child
from helpers import scratch
from leftovers import left_over, names_in

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


def interrupt_update(path: Path) -> None:
    make(path)
    in_child(lambda: update(path, strategy=FixedOrder(in_place=True)), 60)


@dataclass(frozen=True)
class Operation:
    """What is interrupted.

    Attributes
    ----------
    prepare, perform : callable
        Makes what is there before; the call that is interrupted, and made again.
    wanted : numpy.ndarray
        Values of the array after it.
    is_given_up : bool
        Whether it is also given up.
    """

    prepare: Callable[[Path], object]
    perform: Callable[[Path], object]
    wanted: np.ndarray
    is_given_up: bool = True


UPDATED = updated(REGION, NEW)
APPENDED = np.concatenate([OLD[:8], NEW[8:]])
OPERATIONS = {
    "write": Operation(nothing, write, NEW, is_given_up=False),
    "write, published first": Operation(
        nothing, lambda path: write(path, publish="first"), NEW, is_given_up=False
    ),
    "shard": Operation(
        make_source,
        lambda path: shardwrite.shard(
            path.with_name("source"), path, 2, manifest="nonempty_chunks"
        ),
        NEW,
        is_given_up=False,
    ),
    "replacement": Operation(make, replace, NEW, is_given_up=False),
    "reshard in place": Operation(make, lambda path: shardwrite.reshard(path, 3, chunks=4), OLD),
    "update": Operation(make, update, UPDATED),
    "update in place": Operation(
        make, lambda path: update(path, strategy=FixedOrder(in_place=True, max_unused=1.0)), UPDATED
    ),
    "append in place": Operation(
        make, lambda path: update(path, strategy=AppendOnly(in_place=True)), UPDATED
    ),
    "erase": Operation(
        make,
        lambda path: shardwrite.erase(path, REGION),
        updated(REGION, np.zeros_like(OLD)),
    ),
    "append": Operation(make_short, append, APPENDED),
    "stream": Operation(make_short, stream, APPENDED),
    "compaction": Operation(
        make_wasteful, lambda path: shardwrite.compact(path, above=0.1), UPDATED
    ),
    "repair": Operation(damage, lambda path: shardwrite.repair(path, source(OLD)), OLD),
    "salvage": Operation(tear, lambda path: shardwrite.repair(path, scan=True), OLD),
    "update by restart": Operation(
        interrupt_update, lambda path: update(path, restart=True), UPDATED
    ),
}


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


def check_listed(path: Path, *, exactly: bool) -> int:
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


@dataclass(frozen=True)
class Case:
    """A kill, and what came of it."""

    operation: str
    kill_at: int
    then: str = ""
    trouble: str = ""
    left: list[str] = field(default_factory=list)


def go_on(name: str, path: Path, then: str) -> None:
    """Look at the lists of an array whose operation was interrupted, go on, and look again."""
    operation = OPERATIONS[name]
    check_listed(path, exactly=False)
    if then == "abandon":
        shardwrite.abandon(path)
        check_listed(path, exactly=name not in ("salvage", "repair"))
        return
    operation.perform(path)
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], operation.wanted)
    check_listed(path, exactly=True)
    found = documents(path)
    assert found["group"] == found["array"]
    with zarr.config.set({"async.concurrency": 1}):
        opened = zarr.open_array(path, mode="r")
    assert set(opened.attrs["nonempty_chunks"]) == set(shardwrite.present(path).keys)


def run_case(name: str, made: Path, home: Path, kill_at: int, then: str) -> Case | None:
    """Kill an operation, look at the lists, and go on; None if it had ended before."""
    path, stage = home / "g/x", home / "trouble"
    shutil.copytree(made, home)
    before = names_in(home)
    try:
        ended = in_child(lambda: OPERATIONS[name].perform(path), kill_at, stage)
        if ended == "done":
            return None
        if ended == "killed":
            ended = in_child(lambda: go_on(name, path, then), stage=stage)
        left = left_over(home, before, own=("trouble",))
        return Case(name, kill_at, then, "" if ended == "done" else ended, left)
    finally:
        shutil.rmtree(home)


def n_effects(name: str, made: Path, home: Path) -> int:
    """How many effects an operation has that is not killed."""
    shutil.copytree(made, home)
    try:
        count = home / "count"
        in_child(lambda: count_effects(lambda: OPERATIONS[name].perform(home / "g/x"), count))
        return int(count.read_text())
    finally:
        shutil.rmtree(home)


def run(names: list[str], every: int = 1, last: int = 0) -> list[Case]:
    """Kill operations before every effect, or every so many and each of the last."""
    done: list[Case] = []
    top = scratch("manifests-")
    try:
        for name in names:
            made = top / "made"
            (made / "g").mkdir(parents=True)
            OPERATIONS[name].prepare(made / "g/x")
            n = n_effects(name, made, top / "home")
            for kill_at in sorted({*range(1, n + 1, every), *range(max(1, n + 1 - last), n + 1)}):
                for then in ("again", "abandon")[: 1 + OPERATIONS[name].is_given_up]:
                    done += filter(None, [run_case(name, made, top / "home", kill_at, then)])
            shutil.rmtree(made)
    finally:
        shutil.rmtree(top)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    parser.add_argument("--every", type=int, default=1, help="only every so many effects")
    parser.add_argument("--last", type=int, default=0, help="and each of the last so many")
    parser.add_argument("--json", help="write all cases to this file")
    given = parser.parse_args()
    gc.freeze()
    with dask.config.set(scheduler="sync"):
        done = run(given.operations, given.every, given.last)
    troubles = [case for case in done if case.trouble]
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(case) for case in done]))
    for case in troubles[:50]:
        told = case.trouble.strip().splitlines()[-1]
        print(f"{case.operation}, killed at {case.kill_at}, then {case.then}: {told}")
    print(json.dumps({"kills": len(done), "troubles": len(troubles)}))
    sys.exit(1 if troubles else 0)


if __name__ == "__main__":
    main()
