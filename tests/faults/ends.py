"""A kill before every effect of an operation, then the same call again: it succeeds and leaves
nothing beside the array.

Each case runs in a process forked for it, which kills itself. So nothing is cleaned up, and the
real lifetimes of leases and locks hold. Run as ``python tests/faults/ends.py --operations write
repair --every 1 --json out.json``, or through `test_ends.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import dask.array as da
import numpy as np
import zarr

import shardwrite
from shardwrite import AppendOnly, FixedOrder, JournalError, ShardWriter, SpecError
from shardwrite.convert.trees import with_note

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import seams
from helpers import contents, scratch
from leftovers import left_over, names_in

for _name in shardwrite.__all__:  # Everything is imported before processes are forked.
    getattr(shardwrite, _name)

EFFECTS = (
    "write",
    "writev",
    "pwrite",
    "fsync",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "ftruncate",
    "copy_file_range",
)
GOLDEN = 0.618  # multiples of it, without what is before the point, are spread evenly
OLD = (np.arange(400, dtype="u4") + 1).reshape(20, 20)
NEW = OLD + 1000
REGION = (slice(3, 17), slice(2, 12))
UPDATED = OLD.copy()
UPDATED[REGION] = NEW[REGION]
LAYOUT = {"shards": 10, "chunks": 5}


@dataclass(frozen=True)
class Operation:
    """What is interrupted.

    Attributes
    ----------
    prepare : callable
        Makes what is there before.
    perform : callable
        The call that is interrupted, and made again.
    wanted : numpy.ndarray
        The array's values after it.
    at : str
        Where the array lies.
    """

    prepare: Callable[[Path], object]
    perform: Callable[[Path], object]
    wanted: np.ndarray
    at: str = "x"


def source(values: np.ndarray) -> da.Array:
    return da.from_array(values, chunks=7)


def make(path: Path) -> None:
    source(OLD).to_sharded_zarr(path, **LAYOUT)


def nothing(path: Path) -> None:
    """An empty place."""


def write(path: Path, **keywords) -> object:
    return source(NEW).to_sharded_zarr(path, **LAYOUT, **keywords)


def prepare_parts(path: Path) -> None:
    shardwrite.prepare(source(NEW), path, shardwrite.plan(source(NEW), **LAYOUT))


def in_parts(path: Path) -> object:
    for index in range(2):
        shardwrite.write_part(source(NEW), path, index, 2)
    return shardwrite.finalize(path, n_parts=2)


def write_parts(path: Path) -> None:
    prepare_parts(path)
    for index in range(2):
        shardwrite.write_part(source(NEW), path, index, 2)


def update(path: Path, **keywords) -> object:
    return source(NEW[REGION]).to_sharded_zarr(path, region=REGION, **keywords)


def make_wasteful(path: Path) -> None:
    make(path)
    for _ in range(3):
        update(path, strategy=AppendOnly())


def damage(path: Path) -> None:
    make(path)
    (path / "c/0/1").write_bytes(b"torn")
    (path / "c/1/1").unlink()


def tear(path: Path) -> None:
    """A shard as an append leaves it that was killed before the new index stood."""
    make(path)
    with (path / "c/0/1").open("ab") as shard:
        shard.write(bytes(range(1, 200)))


def stream(path: Path) -> None:
    first = shardwrite.open_sharded(path).shape[0]
    with ShardWriter(path, n_threads=1) as writer:
        for t in range(first, len(NEW)):
            writer.append(NEW[t])
            if t % 7 == 0:
                writer.flush()


def begin_stream(path: Path) -> None:
    shardwrite.create(path, (0, 20), "u4", **LAYOUT)


def kill_amid_shards(action: Callable[[], object]) -> None:
    """Do something in a process that is killed when two of its four shards are in their places."""

    def kill_before_the_third(writer: Any, *_: object) -> None:
        if writer.key == "c/1/0":
            os.kill(os.getpid(), signal.SIGKILL)

    def act() -> None:
        seams.before(None, "rename a file", kill_before_the_third)
        action()

    ended = in_child(act)
    assert ended == "killed", ended


def interrupt_update(path: Path) -> None:
    """An update that a kill has ended amid its shards."""
    make(path)
    kill_amid_shards(lambda: update(path, strategy=FixedOrder(in_place=True)))


def interrupt_write(path: Path) -> None:
    """A run that a kill has ended amid its shards."""
    kill_amid_shards(lambda: source(OLD).to_sharded_zarr(path, **LAYOUT))


def lose_state(path: Path) -> None:
    """Most shards of a run that a kill has ended, and whose state is purged."""
    in_child(lambda: write(path, progress=lambda _: os.kill(os.getpid(), signal.SIGKILL)))
    shutil.rmtree(path.with_name(f"{path.name}.shardwrite"))
    shards = sorted(file for file in path.rglob("*") if file.is_file())
    assert len(shards) > 1, "it was killed before it had written anything"
    shards[0].unlink()


def recover(path: Path, **keywords) -> object:
    return shardwrite.recover(path, source(NEW), **LAYOUT, **keywords)


def recover_or_write(path: Path) -> object:
    """The call that writes the array, where a recovery has begun; else a recovery."""
    try:
        return write(path)
    except SpecError:
        return recover(path)


def give_up_and_update(path: Path) -> object:
    shardwrite.abandon(path)
    return update(path)


def before(path: Path) -> Path:
    """Place of a copy of the old array."""
    return (path.parent if path.parent.name == "g" else path).with_name("before")


def interrupt_replacement(path: Path) -> None:
    """A call with ``mode="w"`` that a kill has ended amid its shards."""
    if not path.exists():
        make(path)
    shutil.copytree(path, before(path))
    kill_amid_shards(lambda: write(path, mode="w"))


def interrupt_in_group(path: Path) -> None:
    """The same in a group with consolidated metadata."""
    consolidated(make)(path)
    interrupt_replacement(path)


def put_back(path: Path) -> None:
    shardwrite.abandon(path)
    assert contents(path) == contents(before(path))


def replace_or_put_back(path: Path) -> None:
    """Where a call with ``mode="w"`` was interrupted, give it up first: what is there is whole."""
    if not before(path).exists():
        shutil.copytree(path, before(path))
    elif seams.state_beside(path).exists():
        shardwrite.abandon(path)
        is_new = (shardwrite.open_sharded(path)[:, :] == NEW).all()
        assert is_new or contents(path) == contents(before(path))
        look_through_group(path, exactly=True)
    write(path, mode="w")


SEVERAL = ("x", "a", "b/z")


def make_several(path: Path) -> None:
    """Arrays of one group."""
    replace_several(path, OLD, mode="w-")


def replace_several(path: Path, values: np.ndarray = NEW, **keywords) -> None:
    """Arrays of one call, each with other values."""
    arrays = [source(values + n) for n in range(len(SEVERAL))]
    how = {"source_id": str(values[0, 0]), "mode": "w", **LAYOUT, **keywords}
    shardwrite.store(arrays, [path.parent] * len(SEVERAL), names=list(SEVERAL), **how)
    check_several(path, values)
    assert not list(path.parent.parent.rglob("*.shardwrite"))


def check_several(path: Path, *values: np.ndarray) -> None:
    """The arrays of the call have these values, or all of them have the next ones."""
    found = [zarr.open_array(path.parent / name, mode="r")[...] for name in SEVERAL]
    assert any(all((one == each + n).all() for n, one in enumerate(found)) for each in values), (
        "some are new and others are old"
    )


def is_begun(path: Path) -> bool:
    return seams.state_beside(path.parent).exists()


def replace_several_or_give_up(path: Path) -> None:
    """Where the call was interrupted, give it up first: all arrays are old, or all are new."""
    if is_begun(path):
        for name in SEVERAL:
            shardwrite.abandon(path.parent, name=name)
        check_several(path, OLD, NEW)
        assert not list(path.parent.parent.rglob("*.shardwrite"))
    replace_several(path)


def replace_several_by_another(path: Path) -> None:
    """Where the call was interrupted, make another one first."""
    if is_begun(path):
        try:
            replace_several(path, OLD + 5, shards=5)
        except JournalError:
            check_several(path, OLD)
            replace_several(path, OLD + 5, shards=5, restart=True)
    replace_several(path)


def of_source(path: Path) -> Path:
    """Place of the array that is converted."""
    return path.with_name("source")


def make_source(path: Path, shards: int | None = None) -> None:
    source(NEW).to_sharded_zarr(of_source(path), shards=shards, chunks=5)


def convert(path: Path, **keywords) -> object:
    return shardwrite.reshard(of_source(path), path, **keywords)


def consume(path: Path, **keywords) -> object:
    """A conversion that removes the source; when it has ended, nothing is left of that."""
    done = convert(path, consume=True, memory_limit="10kB", **keywords)
    left = [p.name for p in path.parent.iterdir() if p.name.startswith("source")]
    assert not left, left
    return done


def make_tree(path: Path) -> None:
    """A group with a flat array, a sharded one in a group below, and one without elements."""
    group = zarr.create_group(path.parent.with_name("source"), attributes={"of": "tests"})
    source(NEW).to_sharded_zarr(group, name="x", shards=None, chunks=5)
    source(OLD).to_sharded_zarr(group, name="b/y", shards=10, chunks=5)
    source(OLD[:0]).to_sharded_zarr(group, name="b/zero", shards=None, chunks=5)
    with warnings.catch_warnings():  # that consolidated metadata are no part of Zarr v3
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(group.store)


def consume_tree(path: Path) -> None:
    old = path.parent.with_name("source")
    shardwrite.shard(old, path.parent, shards=2, consume=True, memory_limit="10kB")


def consume_tree_wholly(path: Path) -> None:
    """Consume a hierarchy; then nothing is left of it, and everything is in the new one."""
    consume_tree(path)
    old = path.parent.with_name("source")
    assert not list(old.parent.glob("source*")), list(old.parent.glob("source*"))
    new = zarr.open_consolidated(path.parent, mode="r")
    assert dict(new.attrs) == {"of": "tests"}
    assert new["b/zero"].shape == (0, 20)
    np.testing.assert_array_equal(new["b/y"][...], OLD)
    left = [
        p.name for p in (path.parent / "b").iterdir() if p.name not in ("y", "zero", "zarr.json")
    ]
    assert not left, left


def make_flat(path: Path) -> None:
    source(NEW).to_sharded_zarr(path, shards=None, chunks=5)


def shard_in_place(path: Path) -> object:
    return shardwrite.shard(path, shards=2)


def shard_by_two_renames(path: Path) -> object:
    """Where the system cannot exchange names."""
    with mock.patch.object(*seams.step("exchange two names"), return_value=False):
        return shard_in_place(path)


def or_give_up(perform: Callable[[Path], object]) -> Callable[[Path], object]:
    """Where a conversion in place was interrupted, give it up first. Until the old array has lost
    its name, that keeps it; later, the new one stays."""

    def give_up_and_perform(path: Path) -> object:
        if seams.conversion_beside(path).exists():
            is_old = path.exists() and zarr.open_array(path, mode="r").shards is None
            shardwrite.abandon(path)
            assert (zarr.open_array(path, mode="r").shards is None) == is_old
            check(path, NEW)
        return perform(path)

    return give_up_and_perform


def consolidated(prepare: Callable[[Path], object]) -> Callable[[Path], None]:
    """The same in a group with consolidated metadata, and another array beside it."""

    def prepared(path: Path) -> None:
        zarr.create_group(path.parent)
        prepare(path)
        source(OLD).to_sharded_zarr(path.with_name("a"), **LAYOUT)
        source(OLD).to_sharded_zarr(path.with_name("z"), **LAYOUT)
        with warnings.catch_warnings():  # that consolidated metadata are no part of Zarr v3
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(path.parent)

    return prepared


def begin_short(path: Path) -> None:
    source(OLD[:7]).to_sharded_zarr(path, **LAYOUT)


def append(path: Path) -> object:
    return source(NEW[7:]).to_sharded_zarr(path, region="append", source_id="new")


def look_through_group(path: Path, *, exactly: bool = False) -> None:
    """What readers of the group above see of an array: it as it is, or with fewer rows, or nothing.

    With `exactly`, they see it as it is.
    """
    if path.parent.name != "g":  # no operation in a group that `consolidated` has made
        return
    listed = document_at(path.parent)["consolidated_metadata"]["metadata"]
    assert [name for name in listed if name != path.name] == ["a", "z"], list(listed)
    seen = listed.get(path.name)
    if not exactly and seen is None:
        return
    assert seen is not None, "the group does not list the array"
    assert (path / "zarr.json").exists(), "the group lists an array that is not there"
    own = document_at(path)
    if exactly:
        assert seen == own
        assert list(listed) == sorted(listed)
    assert seen["shape"] <= own["shape"]
    assert {**seen, "shape": []} == {**own, "shape": []}, "the group has another document"


def shard_store(path: Path) -> object:
    """The array tells of its shards once the call has returned."""
    done = shardwrite.shard_store(path, 2)
    assert with_note(document_at(path)["attributes"]) == document_at(path)["attributes"]
    return done


def document_at(path: Path) -> dict:
    return json.loads((path / "zarr.json").read_text())


def create(path: Path) -> None:
    """Make an array without data; where it has just been made, that is told."""
    try:
        shardwrite.create(path, (20, 20), "u4", **LAYOUT)
    except SpecError as error:
        if "an array exists there" not in str(error):
            raise


ERASED = OLD.copy()
ERASED[REGION] = 0
OPERATIONS = {
    "write": Operation(nothing, write, NEW),
    "write, published first": Operation(nothing, lambda path: write(path, publish="first"), NEW),
    "write, level none": Operation(nothing, lambda path: write(path, durability="none"), NEW),
    "replacement": Operation(make, lambda path: write(path, mode="w"), NEW),
    "restart": Operation(interrupt_write, lambda path: write(path, restart=True), NEW),
    "parts": Operation(prepare_parts, in_parts, NEW),
    "finalize": Operation(write_parts, lambda path: shardwrite.finalize(path), NEW),
    "update": Operation(make, update, UPDATED),
    "update, named source": Operation(make, lambda path: update(path, source_id="new"), UPDATED),
    "update in place": Operation(
        make, lambda path: update(path, strategy=FixedOrder(in_place=True, max_unused=1.0)), UPDATED
    ),
    "append in place": Operation(
        make, lambda path: update(path, strategy=AppendOnly(in_place=True)), UPDATED
    ),
    "erase": Operation(make, lambda path: shardwrite.erase(path, REGION), ERASED),
    "update by restart": Operation(
        interrupt_update, lambda path: update(path, restart=True), UPDATED
    ),
    "compaction": Operation(
        make_wasteful, lambda path: shardwrite.compact(path, above=0.1), UPDATED
    ),
    "repair": Operation(damage, lambda path: shardwrite.repair(path, source(OLD)), OLD),
    "salvage": Operation(tear, lambda path: shardwrite.repair(path, scan=True), OLD),
    "recovery": Operation(lose_state, recover, NEW),
    "recovery, or write": Operation(lose_state, recover_or_write, NEW),
    "stream": Operation(begin_stream, stream, NEW),
    "creation": Operation(nothing, create, np.zeros_like(OLD)),
    "write into a group": Operation(nothing, lambda path: write(path.parent, name="x"), NEW),
    "write into a group that is there": Operation(consolidated(nothing), write, NEW, at="g/x"),
    "update in a group": Operation(consolidated(make), update, UPDATED, at="g/x"),
    "compaction in a group": Operation(
        consolidated(make_wasteful),
        lambda path: shardwrite.compact(path, above=0.1),
        UPDATED,
        at="g/x",
    ),
    "shard": Operation(make_source, lambda path: convert(path, shards=2), NEW),
    "unshard": Operation(
        lambda path: make_source(path, 10), lambda path: convert(path, shards=None), NEW
    ),
    "conversion that encodes": Operation(
        lambda path: make_source(path, 10), lambda path: convert(path, shards=2, chunks=4), NEW
    ),
    "shard and consume": Operation(make_source, lambda path: consume(path, shards=2), NEW),
    "reshard and consume": Operation(
        lambda path: make_source(path, 10), lambda path: consume(path, shards=(3, 1)), NEW
    ),
    "consume a hierarchy": Operation(
        lambda path: in_child(lambda: make_tree(path)), consume_tree_wholly, NEW, at="made/x"
    ),
    "shard in place": Operation(make_flat, shard_in_place, NEW),
    "shard by two renames": Operation(make_flat, shard_by_two_renames, NEW),
    "shard in place, or give up": Operation(make_flat, or_give_up(shard_in_place), NEW),
    "shard by two renames, or give up": Operation(make_flat, or_give_up(shard_by_two_renames), NEW),
    "shard a store": Operation(make_flat, shard_store, NEW),
    "unshard in place": Operation(
        lambda path: source(NEW).to_sharded_zarr(path, **LAYOUT),
        lambda path: shardwrite.unshard(path),
        NEW,
    ),
    "shard in place in a group": Operation(consolidated(make_flat), shard_in_place, NEW, at="g/x"),
    "replacement in a group": Operation(
        consolidated(make_flat),
        lambda path: write(path, mode="w"),
        NEW,
        at="g/x",
    ),
    "append in a group": Operation(
        consolidated(begin_short), append, np.concatenate([OLD[:7], NEW[7:]]), at="g/x"
    ),
    "stream in a group": Operation(consolidated(begin_stream), stream, NEW, at="g/x"),
    "give up a replacement": Operation(interrupt_replacement, put_back, OLD),
    "give up a replacement in a group": Operation(interrupt_in_group, put_back, OLD, at="g/x"),
    "replacement, or give up": Operation(make, replace_or_put_back, NEW),
    "replacement of several": Operation(make_several, replace_several, NEW, at="r/x"),
    "replacement of several, or give up": Operation(
        make_several, replace_several_or_give_up, NEW, at="r/x"
    ),
    "replacement of several, or others": Operation(
        make_several, replace_several_by_another, NEW, at="r/x"
    ),
    "replacement, or give up, in a group": Operation(
        consolidated(make), replace_or_put_back, NEW, at="g/x"
    ),
    "replacement by restart": Operation(
        interrupt_replacement, lambda path: write(path, mode="w", restart=True), NEW
    ),
    "give up, and update": Operation(interrupt_update, give_up_and_update, UPDATED),
}


def in_child(
    action: Callable[[], object],
    kill_at: int = 0,
    stage: Path | None = None,
    before_death: Callable[[], object] = lambda: None,
) -> str:
    """Do something in a process of its own.

    Parameters
    ----------
    action : callable
        What to do.
    kill_at : int
        Number of the effect before which the process is killed; 0 for none.
    stage : path, optional
        A file for what goes wrong.
    before_death : callable, optional
        What is done right before the process is killed.

    Returns
    -------
    str
        ``"killed"``, ``"done"``, or what went wrong.
    """

    def die(_: str) -> None:
        before_death()
        os.kill(os.getpid(), signal.SIGKILL)

    pid = os.fork()
    if not pid:
        status = 1
        try:
            with (
                before_effect(kill_at, die),
                dask.config.set(scheduler="sync"),
            ):
                action()
            status = 0
        except BaseException:
            if stage is not None:
                stage.write_text(traceback.format_exc())
        finally:
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    if os.WIFSIGNALED(ended):
        return "killed" if os.WTERMSIG(ended) == signal.SIGKILL else f"signal {os.WTERMSIG(ended)}"
    if not os.WEXITSTATUS(ended):
        return "done"
    return stage.read_text() if stage is not None and stage.exists() else "failed"


@contextlib.contextmanager
def before_effect(k: int, strike: Callable[[str], object]) -> Iterator[Callable[[], int]]:
    """Call `strike` right before the `k`-th effect of this process on the file system; gives a
    function that counts the effects.

    No effect is the zeroth.
    """
    n, lock = 0, threading.Lock()

    def counted(name, real, is_effect=lambda arguments: True):
        def call(*arguments, **keywords):
            nonlocal n
            if is_effect(arguments):
                with lock:
                    n += 1
                    if n == k:
                        strike(name)
            return real(*arguments, **keywords)

        return call

    with contextlib.ExitStack() as stack:
        for name in EFFECTS:
            stack.enter_context(mock.patch.object(os, name, counted(name, getattr(os, name))))
        creates = counted("open", os.open, lambda arguments: arguments[1] & os.O_CREAT)
        stack.enter_context(mock.patch.object(os, "open", creates))
        exchange = counted("exchange", seams.real("exchange two names"))
        stack.enter_context(mock.patch.object(*seams.step("exchange two names"), exchange))
        named = counted("rename", seams.real("give a new array its name"))
        stack.enter_context(mock.patch.object(*seams.step("give a new array its name"), named))
        yield lambda: n


def check(path: Path, wanted: np.ndarray) -> None:
    """What must hold after the call has returned."""
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], wanted)
    beside = [
        p
        for p in path.parent.iterdir()
        if p.name.startswith("x.") and not p.name.endswith(".quarantine")
    ]
    left = [*beside, *(q for p in beside for q in p.rglob("*")), *path.rglob("*.swtmp")]
    left += path.parent.glob(".*.swtmp")
    assert not left, f"left over: {sorted(str(p.relative_to(path.parent)) for p in left)}"


def check_usable(path: Path, wanted: np.ndarray) -> None:
    """The array is whole and can be updated."""
    assert shardwrite.verify(path, deep=True).is_good
    shardwrite.erase(path, (slice(0, 1), slice(0, 1)))
    check(path, np.where(np.arange(wanted.size).reshape(wanted.shape) == 0, 0, wanted))


@dataclass(frozen=True)
class Case:
    """A kill, and what came of it."""

    operation: str
    kill_at: int
    again_at: int = 0
    trouble: str = ""
    left: list[str] = field(default_factory=list)


def run_case(name: str, made: Path, home: Path, kill_at: int, again_at: int = 0) -> Case | None:
    """Kill an operation, and call it again; None where it had ended before."""
    operation, stage = OPERATIONS[name], home / "trouble"
    path = home / operation.at
    shutil.copytree(made, home)
    before = names_in(home)
    try:
        ended = in_child(lambda: operation.perform(path), kill_at, stage)
        if ended == "done":
            return None
        if ended == "killed" and again_at:
            ended = in_child(lambda: operation.perform(path), again_at, stage)
        if ended not in ("killed", "done"):
            return Case(name, kill_at, again_at, f"before the kill: {ended}")

        def again() -> None:
            look_through_group(path)
            operation.perform(path)
            check(path, operation.wanted)
            look_through_group(path, exactly=True)
            check_usable(path, operation.wanted)

        ended = in_child(again, stage=stage)
        left = left_over(home, before, own=("trouble",))
        return Case(name, kill_at, again_at, "" if ended == "done" else ended, left)
    finally:
        shutil.rmtree(home)


def n_effects(name: str, made: Path, home: Path) -> int:
    """How many effects an operation has that is not killed."""
    shutil.copytree(made, home)
    try:
        count = home / "count"
        in_child(
            lambda: count_effects(
                lambda: OPERATIONS[name].perform(home / OPERATIONS[name].at), count
            ),
            stage=home / "trouble",
        )
        return int(count.read_text())
    finally:
        shutil.rmtree(home)


def count_effects(action: Callable[[], object], into: Path) -> None:
    with before_effect(0, lambda _: None) as n_effects:
        try:
            action()
        finally:
            into.write_text(str(n_effects()))


def run(
    names: list[str], every: int = 1, last: int = 0, twice: int = 0, *, amid: bool = False
) -> list[Case]:
    """Kill some operations before every effect, or every so many and each of the last; `twice`
    kills the second call, too. Where a kill is only to come `amid` each, it comes where it came in
    none of the others."""
    done: list[Case] = []
    top = scratch("ends-")
    try:
        for name in names:
            made = top / "made"
            made.mkdir()
            OPERATIONS[name].prepare(made / OPERATIONS[name].at)
            n = n_effects(name, made, top / "home")
            first = {1 + round((n - 1) * (len(done) * GOLDEN % 1))}
            regular = first if amid else {*range(1, n + 1, every)}
            for kill_at in sorted({*regular, *range(max(1, n + 1 - last), n + 1)}):
                done += filter(None, [run_case(name, made, top / "home", kill_at)])
                done += filter(
                    None, [run_case(name, made, top / "home", kill_at, twice)] if twice else []
                )
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
    parser.add_argument("--amid", action="store_true", help="only one effect amid each operation")
    parser.add_argument("--last", type=int, default=0, help="and each of the last so many")
    parser.add_argument(
        "--twice", type=int, default=0, help="kill the second call before this effect, too"
    )
    parser.add_argument("--json", help="write every case to this file")
    given = parser.parse_args()
    gc.freeze()  # Forked processes need not go through, and so copy, what is there already.
    with dask.config.set(scheduler="sync"):
        done = run(given.operations, given.every, given.last, given.twice, amid=given.amid)
    troubles = [case for case in done if case.trouble]
    if given.json:
        Path(given.json).write_text(json.dumps([asdict(case) for case in done]))
    for case in troubles[:50]:
        print(
            f"{case.operation}, killed at {case.kill_at}: {case.trouble.strip().splitlines()[-1]}"
        )
    print(json.dumps({"kills": len(done), "troubles": len(troubles)}))
    sys.exit(1 if troubles else 0)


if __name__ == "__main__":
    main()
