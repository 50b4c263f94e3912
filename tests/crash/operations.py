"""What clients of the crash test do: how operations are drawn, performed and noted.

An operation is a JSON object, so that a history can be kept, shortened and replayed. What it will
change is noted before it begins and when it has returned, in a file outside the tree that is synced.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import checker
import dask
import dask.array as da
import numpy as np
import zarr
from checker import Change

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter
from shardwrite.stores.directories import CONVERSION_SUFFIX

STRATEGIES = {
    "replace": FixedOrder(),
    "C": FixedOrder("C"),
    "append": AppendOnly(),
    "in place": FixedOrder(in_place=True, max_unused=1.0),
    "append in place": AppendOnly(in_place=True),
    "auto": "auto",
}
SHAPES = {1: [(64,)], 2: [(16, 24), (20, 30), (24, 16)], 3: [(4, 8, 8)]}
LAYOUTS = {
    1: [(None, 8)],
    2: [(8, 4), (8, 8), ((8, 12), (4, 6)), (None, 8)],
    3: [((4, 8, 8), (2, 4, 4)), ((6, 4, 4), (1, 4, 4))],
}
ROWS = 3  # of a stream, for each flush
PLAIN, STREAMED, COPIES, PAIR = ("a", "b"), ("s",), ("c", "d"), ("p", "q")
IDS = "ids"  # no array, but chunks by id
ARRAYS = {IDS: 1, **dict.fromkeys((*PLAIN, *COPIES, *PAIR), 2), **dict.fromkeys(STREAMED, 3)}
Operation = dict[str, Any]


class Log:
    """Notes of a client, each of which is on the disk before the client goes on."""

    def __init__(self, path: Path, client: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._client, self._n = f"{client}-{time.monotonic_ns()}", 0
        self.directory = path.parent
        self.on_change: Callable[[], None] = lambda: None

    def note(self, **entry: Any) -> None:
        line = json.dumps({**entry, "time": time.monotonic_ns()}) + "\n"
        os.write(self._fd, line.encode())
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    @contextlib.contextmanager
    def changing(
        self, *changes: Change, is_ours: bool = True, is_certain: bool = True
    ) -> Iterator[None]:
        """What is changed in the block, which acknowledges it by its end, if it is certain.

        What is not ours is done by the user, and no fault is meant for it.
        """
        self._n += 1
        name = f"{self._client}-{self._n}"
        plain = [asdict(c) for c in changes]
        for change in plain:
            del change["begin"], change["end"], change["acked"]
        self.note(event="begin", id=name, changes=plain)
        if is_ours:
            self.on_change()
        try:
            yield
        except BaseException:
            self.note(event="failed", id=name)
            raise
        self.note(event="done" if is_certain else "failed", id=name)


def draw(rng: random.Random, kind: str, name: str, version: int, world: Any) -> Operation:
    """An operation of a kind on an array, with options of its own."""
    ndim = ARRAYS[name]
    layout, durabilities = rng.choice(LAYOUTS[ndim]), world.durabilities
    if kind in ("in place", "consume"):  # these refuse to remove what is not durable elsewhere
        durabilities = [d for d in durabilities if d != "none"]
    return {
        "kind": kind,
        "array": name,
        "version": version,
        "by": rng.choice(["path", "store", "group"]),
        "strategy": rng.choice([s for s in world.strategies if s != "auto" or kind == "stream"]),
        "durability": rng.choice(durabilities),
        "scheduler": rng.choices(["sync", "threads", "workers"], [70, 27, 3])[0],
        "memory": rng.choice([None, None, "200kB"]),
        "shape": rng.choice(SHAPES[ndim]),
        "shards": layout[0],
        "chunks": layout[1],
        "compressors": rng.choice(["auto", None]),
        "location": rng.choice(["start", "end"]),
        "pieces": rng.choice([5, 8, 16]),
        "box": [sorted(rng.sample(range(9), 2)) for _ in range(ndim)],  # in eighths of the shape
        "restart": rng.random() < 0.3,
        "flushes": rng.randint(1, 4),
    }


KINDS = {
    **{
        name: {"write": 2, "update": 9, "erase": 2, "compact": 1, "in place": 2, "repair": 1}
        for name in PLAIN
    },
    **{
        name: {"stream": 6, "append": 3, "update": 3, "compact": 1, "write": 1} for name in STREAMED
    },
    **{name: {"copy": 3, "consume": 1} for name in COPIES},
    "p": {"pair": 2, "update": 1},
    "q": {"update": 1},
    IDS: {"ids": 3, "remove ids": 1},
}


class Client:
    """A process that performs operations on a tree."""

    def __init__(self, world: Any, log: Log) -> None:
        self.world, self.root, self.log = world, world.root, log

    def at(self, operation: Operation, name: str = "") -> tuple[Any, dict[str, Any]]:
        """An array as the operation names it: positional argument and keyword."""
        name = name or operation["array"]
        if operation["by"] == "path":
            return self.world.place(name), {}
        store = self.world.store(directly=False)
        if operation["by"] == "store":
            return store, {"name": name}
        try:
            return zarr.open_group(store), {"name": name}
        except Exception as error:  # before any call of ours
            raise SkippedError("zarr-python cannot open the group") from error

    def document(self, name: str) -> dict[str, Any]:
        try:
            document = self.world.document(name)
        except OSError as error:  # the power was cut
            raise SkippedError(f"{name} cannot be read") from error
        if document is None:
            raise SkippedError(f"there is no {name}")
        return document

    def is_converting(self, name: str) -> bool:
        """Whether a conversion in place, or one that consumes the array, has not ended."""
        return (self.root / f"{name}{CONVERSION_SUFFIX}").exists()

    def shape(self, name: str) -> list[int]:
        return self.document(name)["shape"]

    def unit(self, name: str) -> list[int]:
        """The sizes of shards, or of chunks where there are none."""
        return self.document(name)["chunk_grid"]["configuration"]["chunk_shape"]

    def fix(self, operation: Operation, name: str, value: Any) -> Any:
        """What stays as it is when the same call is made again."""
        if name not in operation:
            operation[name] = value
            self.log.note(event="start", operation=operation)
        return operation[name]

    def perform(self, operation: Operation) -> None:
        config = {"scheduler": operation["scheduler"], "num_workers": 2}
        with contextlib.ExitStack() as stack:
            if operation["scheduler"] == "workers":
                from distributed import Client as Cluster

                del config["scheduler"]
                keywords = {"n_workers": 2, "threads_per_worker": 1, "processes": False}
                stack.enter_context(Cluster(**keywords, dashboard_address=None))
            stack.enter_context(dask.config.set(config))
            PERFORMED[operation["kind"]](self, operation)


def changed_by(operation: Operation) -> set[str]:
    """The arrays that an operation may change."""
    return set({"pair": PAIR, "consume": COPIES}.get(operation["kind"], [operation["array"]]))


class SkippedError(Exception):
    """An operation has nothing to work on."""


def _source(operation: Operation, box) -> da.Array:
    x = checker.values(operation["array"], box, operation["version"])
    pieces = da.from_array(x, chunks=operation["pieces"])
    if "slow" in operation:
        return pieces.map_blocks(_slowly, operation["slow"], dtype=x.dtype, meta=x[:0])
    return pieces


def _slowly(block: np.ndarray, seconds: float) -> np.ndarray:
    time.sleep(seconds)
    return block


def _options(operation: Operation) -> dict[str, Any]:
    return {
        "strategy": STRATEGIES[operation["strategy"]],
        "durability": operation["durability"],
        "memory_limit": operation["memory"],
        "source_id": f"version {operation['version']}",
        "restart": operation["restart"],
    }


def _layout(operation: Operation) -> dict[str, Any]:
    sharded = {"index_location": operation["location"]} if operation["shards"] else {}
    return {
        "shards": operation["shards"],
        "chunks": operation["chunks"],
        "compressors": operation["compressors"],
        **sharded,
    }


def _is_in_place(operation: Operation) -> bool:
    return operation["strategy"] in ("in place", "append in place", "auto")


def _tears(operation: Operation, unit: list[int]) -> list[int]:
    return unit if _is_in_place(operation) else []


def _whole(operation: Operation) -> list[list[int]]:
    return [[0, n] for n in operation["shape"]]


def _write(client: Client, operation: Operation) -> None:
    box = _whole(operation)
    if operation["array"] in STREAMED:  # what is streamed grows by frames
        box[0] = [0, operation["pieces"] % 7]
    change = Change(operation["array"], "new", box, operation["version"])
    store, name = client.at(operation)
    options = _options(operation)
    if _is_in_place(operation):
        del options["strategy"]
    with client.log.changing(change):
        shardwrite.to_sharded_zarr(
            _source(operation, box), store, **name, mode="w", **_layout(operation), **options
        )


def _region(client: Client, operation: Operation) -> tuple[list[list[int]], tuple[slice, ...]]:
    shape = client.shape(operation["array"])
    box = [
        [a * n // 8, max(b * n // 8, a * n // 8 + 1)]
        for (a, b), n in zip(operation["box"], shape, strict=True)
    ]
    if any(b > n for (_, b), n in zip(box, shape, strict=True)):
        raise SkippedError("there are no rows")
    box = client.fix(operation, "at", box)
    return box, tuple(slice(a, b) for a, b in box)


def _update(client: Client, operation: Operation) -> None:
    box, region = _region(client, operation)
    unit = client.unit(operation["array"])
    change = Change(
        operation["array"], "put", box, operation["version"], unit, tears=_tears(operation, unit)
    )
    store, name = client.at(operation)
    with client.log.changing(change):
        shardwrite.write_region(
            _source(operation, box), store, region, **name, **_options(operation)
        )


def _erase(client: Client, operation: Operation) -> None:
    box, region = _region(client, operation)
    unit = client.unit(operation["array"])
    change = Change(operation["array"], "put", box, 0, unit, tears=_tears(operation, unit))
    store, name = client.at(operation)
    options = _options(operation)
    del options["source_id"]
    with client.log.changing(change):
        shardwrite.erase(store, region, **name, **options)


def _compact(client: Client, operation: Operation) -> None:
    client.shape(operation["array"])
    store, name = client.at(operation)
    with client.log.changing(Change(operation["array"], "same")):
        shardwrite.compact(
            store,
            **name,
            above=0.0,
            durability=operation["durability"],
            restart=operation["restart"],
        )


def _append(client: Client, operation: Operation) -> None:
    shape = client.shape(operation["array"])
    box = [[shape[0], shape[0] + ROWS], *([0, n] for n in shape[1:])]
    is_certain = shape[0] in operation.get("at", box)[0]
    if not is_certain:  # others have appended, or it is another array by now
        del operation["at"]
    box = client.fix(operation, "at", box)
    tears = _tears(operation, client.unit(operation["array"]))
    change = Change(operation["array"], "grow", box, operation["version"], tears=tears)
    store, name = client.at(operation)
    with client.log.changing(change, is_certain=is_certain):
        shardwrite.write_region(
            _source(operation, box), store, "append", **name, **_options(operation)
        )


def _stream(client: Client, operation: Operation) -> None:
    client.shape(operation["array"])
    store, name = client.at(operation)
    writer = ShardWriter(
        store,
        **name,
        strategy=STRATEGIES[operation["strategy"]],
        durability=operation["durability"],
        n_threads=1 if operation["scheduler"] == "sync" else 2,
    )
    tears = _tears(operation, client.unit(operation["array"]))
    with writer:
        for _ in range(operation["flushes"]):
            start, *shape = writer.shape
            box = [[start, start + ROWS], *([0, n] for n in shape)]
            change = Change(operation["array"], "grow", box, operation["version"], tears=tears)
            frames = checker.values(operation["array"], box, operation["version"])
            with client.log.changing(change):
                for frame in frames:
                    writer.append(frame)
                writer.flush()


def _in_place(client: Client, operation: Operation) -> None:
    """An array becomes one of other shards under its name, or of none."""
    document = client.document(operation["array"])
    path = client.root / operation["array"]
    is_sharded = document["codecs"][0]["name"] == "sharding_indexed"
    with client.log.changing(Change(operation["array"], "same")):
        if not is_sharded:
            shardwrite.shard(path, shards=2, durability=operation["durability"])
        elif operation["shards"] is None:
            shardwrite.unshard(path, durability=operation["durability"])
        else:
            shardwrite.reshard(path, shards=3, durability=operation["durability"])


def _copied(client: Client, source: str, to: str) -> Change:
    """The change that makes an array a copy of another as it is now."""
    seen, _, trouble = checker.look(client.world.store(), source)
    if seen is None or trouble:
        raise SkippedError(f"{source} is not whole")
    names = [n for n in ARRAYS if (checker.versions_of(seen, n) >= 0).all()]
    if not names:
        raise SkippedError(f"{source} is not whole")
    path = client.log.directory / f"copied-{time.monotonic_ns()}.npy"
    np.save(path, checker.versions_of(seen, names[0]))
    return Change(to, "new", [[0, n] for n in seen.shape], like=names[0], copied=str(path))


def _copy(client: Client, operation: Operation) -> None:
    source = PLAIN[operation["version"] % 2]
    client.shape(source)
    if any(client.is_converting(name) for name in COPIES):
        raise SkippedError("it may hold what was removed elsewhere")
    with client.log.changing(_copied(client, source, operation["array"])):
        shardwrite.reshard(
            client.world.place(source),
            client.world.place(operation["array"]),
            shards=operation["shards"] and 2,
            mode="w",
            durability=operation["durability"],
            restart=operation["restart"],
            check=operation["pieces"] == 5,
        )


def _consume(client: Client, operation: Operation) -> None:
    source = COPIES[operation["array"] == COPIES[0]]
    if "copied" not in operation:  # the same call again knows what it was
        client.shape(source)
        if "consolidated_metadata" in json.loads((client.root / "zarr.json").read_text()):
            raise SkippedError("it would still be listed, so it is refused")
        if any(p for name in COPIES for p in client.root.glob(f"{name}.*")):
            raise SkippedError("a user would finish first what was interrupted")
        copied = _copied(client, source, operation["array"])
        with client.log.changing(Change(operation["array"], "gone"), is_ours=False):
            shutil.rmtree(client.root / operation["array"], ignore_errors=True)
        operation["copied"] = asdict(copied)
        client.log.note(event="start", operation=operation)
    with client.log.changing(Change(**operation["copied"]), Change(source, "gone")):
        shardwrite.reshard(
            client.root / source,
            client.root / operation["array"],
            shards=operation["shards"] and 2,
            consume=True,
            durability=operation["durability"],
        )


def _repair(client: Client, operation: Operation) -> None:
    """A shard is torn, and written again from a source."""
    name = operation["array"]
    shape, unit = client.shape(name), client.unit(name)
    if "source" not in operation:  # the same call again knows what it was
        shards = sorted(p for p in (client.root / name / "c").rglob("*") if p.is_file())
        if not shards:
            raise SkippedError("there are no shards")
        if client.is_converting(name):
            raise SkippedError("it is being converted, and a conversion reads all shards")
        torn = shards[operation["version"] % len(shards)]
        index = [int(i) for i in torn.relative_to(client.root / name / "c").parts]
        operation["torn"] = [
            [i * u, min((i + 1) * u, n)] for i, u, n in zip(index, unit, shape, strict=True)
        ]
        operation["source"] = _copied(client, name, name).copied
        client.log.note(event="start", operation=operation)
        with client.log.changing(Change(name, "same", operation["torn"], tears=unit)):
            os.truncate(torn, torn.stat().st_size // 2)
            _write_again(client, operation)
    else:
        with client.log.changing(Change(name, "same", operation["torn"], tears=unit)):
            _write_again(client, operation)


def _write_again(client: Client, operation: Operation) -> None:
    store, name = client.at(operation)
    x = checker.values_of_versions(np.load(operation["source"]), operation["array"])
    pieces = da.from_array(x, chunks=operation["pieces"])
    shardwrite.repair(store, pieces, **name, durability=operation["durability"])


def _pair(client: Client, operation: Operation) -> None:
    box = _whole(operation)
    changes = [Change(name, "new", box, operation["version"]) for name in PAIR]
    arrays = [
        da.from_array(checker.values(name, box, operation["version"]), chunks=operation["pieces"])
        for name in PAIR
    ]
    options = _options(operation)
    if _is_in_place(operation):
        del options["strategy"]
    with client.log.changing(*changes):
        shardwrite.store(
            arrays,
            [client.world.place(name) for name in PAIR],
            mode="w",
            **_layout(operation),
            **options,
        )


def _ids(client: Client, operation: Operation) -> None:
    """Chunks by id are put or removed."""
    ((start, stop),) = [[8 * a, 8 * b] for a, b in operation["box"]]
    version = 0 if operation["kind"] == "remove ids" else operation["version"]
    shards = shardwrite.UInt64Shards(client.world.place(IDS), checker.IDS)
    with client.log.changing(Change(IDS, "put", [[start, stop]], version, [16])):
        if version == 0:
            shards.remove(range(start, stop), durability=operation["durability"])
            return
        elements = checker.values(IDS, [[start, stop]], version)
        chunks = {i: checker.chunk_of(e) for i, e in enumerate(elements, start)}
        threads = 1 if operation["scheduler"] == "sync" else 2
        shards.write(chunks, existing="update", durability=operation["durability"], threads=threads)


PERFORMED = {
    "ids": _ids,
    "remove ids": _ids,
    "write": _write,
    "update": _update,
    "erase": _erase,
    "compact": _compact,
    "append": _append,
    "stream": _stream,
    "in place": _in_place,
    "copy": _copy,
    "consume": _consume,
    "repair": _repair,
    "pair": _pair,
}
