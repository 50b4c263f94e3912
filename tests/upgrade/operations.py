"""Operations that the version of commit f91bbb9 and the present one have in common, on an array of
20 x 20 numbers.

`make_states.py` interrupts them with the old version, `test_states.py` goes on with the present
one. So only what both versions know is used here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import dask
import dask.array as da
import numpy as np

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter

OLD = (np.arange(400, dtype="u4") + 1).reshape(20, 20)
NEW = OLD + 1000
LAYOUT = {"shards": 10, "chunks": 5, "memory_limit": "100MB"}
REGION = (slice(3, 17), slice(2, 12))
TOP, BOTTOM = (slice(0, 10), slice(2, 12)), (slice(10, 20), slice(2, 12))
NAME = "x"


def changed(*regions: tuple[slice, ...], to: np.ndarray = NEW) -> np.ndarray:
    """The old values, with others in some regions."""
    found = OLD.copy()
    for region in regions:
        found[region] = to[region]
    return found


def source(values: np.ndarray) -> da.Array:
    return da.from_array(values, chunks=7)


@dataclass(frozen=True)
class Operation:
    """What is interrupted.

    Attributes
    ----------
    prepare : callable
        Makes what is there before.
    perform : callable
        The call that is interrupted, and made again.
    before : numpy.ndarray, optional
        The array's values before it; None where there is no array, or none that is whole.
    wanted : numpy.ndarray
        The array's values after it.
    kind : {"write", "update", "repair", "stream"}
        Whether it makes an array, changes one, mends one, or lets one grow slice by slice.
    """

    prepare: Callable[[Path], object]
    perform: Callable[[Path], object]
    before: np.ndarray | None
    wanted: np.ndarray
    kind: str = "update"


def nothing(path: Path) -> None:
    """An empty place."""


def make(path: Path, **more: object) -> None:
    source(OLD).to_sharded_zarr(path, source_id="old", **LAYOUT, **more)


def write(path: Path, **more: object) -> object:
    return source(NEW).to_sharded_zarr(path, source_id="new", **LAYOUT, **more)


def die(_: object) -> None:
    """Given as `progress`: a kill after the first task."""
    signal.raise_signal(signal.SIGKILL)


def killed(action: Callable[[], object]) -> None:
    """Do something in a process that is killed meanwhile."""
    pid = os.fork()
    if not pid:
        try:
            with dask.config.set(scheduler="sync"):
                action()
        finally:
            os._exit(1)
    _, ended = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(ended), "it was not killed"


def interrupt_write(path: Path) -> None:
    """A run whose first task is done."""
    killed(
        lambda: source(OLD).to_sharded_zarr(
            path, source_id="old", progress=die, max_source_reruns=100, **LAYOUT
        )
    )


def interrupt_update(path: Path) -> None:
    """An update in place whose first task is done."""
    make(path)
    killed(lambda: update(path, strategy=FixedOrder(in_place=True), progress=die))


def staged(path: Path) -> object:
    """The same by way of part files: rows of the source lie across many shards, and what counts as
    small is smaller."""
    x = da.from_array(NEW, chunks=(10, 20))
    with mock.patch.multiple("shardwrite.plan.plan", _TASK_NBYTES=(128, 128), _FUSE_NBYTES=0):
        return x.to_sharded_zarr(
            path,
            shards=(20, 5),
            chunks=5,
            memory_limit="100MB",
            source_id="new",
            max_source_reruns=100,
        )


def prepare_parts(path: Path) -> None:
    x = source(NEW)
    shardwrite.prepare(x, path, shardwrite.plan(x, source_id="new", **LAYOUT))


def in_parts(path: Path) -> object:
    for index in range(2):
        shardwrite.write_part(source(NEW), path, index, 2, source_id="new", memory_limit="100MB")
    return shardwrite.finalize(path, n_parts=2)


def write_parts(path: Path) -> None:
    prepare_parts(path)
    for index in range(2):
        shardwrite.write_part(source(NEW), path, index, 2, source_id="new", memory_limit="100MB")


def update(path: Path, region: tuple[slice, ...] = REGION, **more: object) -> object:
    return source(NEW[region]).to_sharded_zarr(
        path, region=region, source_id="new", memory_limit="100MB", **more
    )


def update_twice(path: Path) -> object:
    """Two updates that share no shard, in one computation."""
    return dask.compute(update(path, TOP, compute=False), update(path, BOTTOM, compute=False))


def append(path: Path) -> object:
    x = source(NEW[:7])
    return x.to_sharded_zarr(path, region="append", axis=0, source_id="more", memory_limit="100MB")


def make_wasteful(path: Path) -> None:
    make(path)
    for version in range(3):
        x = source(NEW[REGION])
        x.to_sharded_zarr(
            path,
            region=REGION,
            strategy=AppendOnly(),
            source_id=f"new {version}",
            memory_limit="100MB",
        )


def damage(path: Path) -> None:
    make(path)
    (path / "c/0/1").write_bytes(b"torn")
    (path / "c/1/1").unlink()


def begin_stream(path: Path, **more: object) -> None:
    shardwrite.create(path, (0, 20), "u4", shards=10, chunks=5, **more)


def stream(path: Path) -> None:
    """Go on with a stream, from where the array ends."""
    first = shardwrite.open_sharded(path).shape[0]
    with ShardWriter(path, n_threads=1, memory_limit="100MB") as writer:
        for t in range(first, len(NEW)):
            writer.append(NEW[t])
            if t % 7 == 0:
                writer.flush()


def create(path: Path) -> None:
    """Make an array without data; where it was made, that is told."""
    try:
        shardwrite.create(path, (20, 20), "u4", shards=10, chunks=5)
    except shardwrite.SpecError as error:
        if "an array exists there" not in str(error):
            raise


def give_up(path: Path) -> object:
    shardwrite.abandon(path)
    return update(path)


def in_place(strategy: object, **more: object) -> Operation:
    """An update that writes into shards where they stand."""
    return Operation(
        lambda path: make(path, **more),
        lambda path: update(path, strategy=strategy),
        OLD,
        changed(REGION),
    )


ERASED = changed(REGION, to=np.zeros_like(OLD))
GROWN = np.concatenate([OLD, NEW[:7]])
FIXED, APPENDING = FixedOrder(in_place=True, max_unused=1.0), AppendOnly(in_place=True)
OPERATIONS = {
    "write": Operation(nothing, write, None, NEW, "write"),
    "write, published first": Operation(
        nothing, lambda path: write(path, publish="first"), None, NEW, "write"
    ),
    "write, append-only": Operation(
        nothing, lambda path: write(path, strategy=AppendOnly()), None, NEW, "write"
    ),
    "write by part files": Operation(nothing, staged, None, NEW, "write"),
    "replacement": Operation(make, lambda path: write(path, mode="w"), OLD, NEW, "write"),
    "start over": Operation(
        interrupt_write, lambda path: write(path, restart=True), None, NEW, "write"
    ),
    "parts": Operation(prepare_parts, in_parts, None, NEW, "write"),
    "finalize": Operation(
        write_parts, lambda path: shardwrite.finalize(path, n_parts=2), None, NEW, "write"
    ),
    "creation": Operation(nothing, create, None, np.zeros_like(OLD), "write"),
    "write into a group": Operation(
        nothing, lambda path: write(path.parent, name=NAME), None, NEW, "write"
    ),
    "update": Operation(make, update, OLD, changed(REGION)),
    "update by clone": in_place(AppendOnly()),
    "update in place": in_place(FIXED),
    "update in place, index first": in_place(FIXED, index_location="start"),
    "update in place, uncompressed": in_place(FIXED, compressors=None),
    "append in place": in_place(APPENDING),
    "append in place, uncompressed": in_place(APPENDING, compressors=None),
    "two updates at once": Operation(make, update_twice, OLD, changed(TOP, BOTTOM)),
    "append": Operation(make, append, OLD, GROWN),
    "erase": Operation(make, lambda path: shardwrite.erase(path, REGION), OLD, ERASED),
    "compaction": Operation(
        make_wasteful,
        lambda path: shardwrite.compact(path, above=0.1),
        changed(REGION),
        changed(REGION),
    ),
    "give up, and update": Operation(interrupt_update, give_up, OLD, changed(REGION)),
    "repair": Operation(
        damage, lambda path: shardwrite.repair(path, source(OLD)), None, OLD, "repair"
    ),
    "stream": Operation(begin_stream, stream, None, NEW, "stream"),
    "stream, uncompressed": Operation(
        lambda path: begin_stream(path, compressors=None), stream, None, NEW, "stream"
    ),
}
