"""Two processes on one small array: what the first does, how the second takes over, and what must
hold at the end.

`freeze.py` and `explorer.py` interleave their effects. A process that never starts a thread imports
everything and forks a child for each step, so that a case costs milliseconds. It runs with `shim.c`
preloaded and the path of the shim in ``SHIM``.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import dask
import dask.array as da
import numpy as np
import zarr.core.sync

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import all_operations
import oracle
import seams

for _name in shardwrite.__all__:  # Everything is imported before processes are forked.
    getattr(shardwrite, _name)

SHAPE, SHARD, CHUNK = (8, 16), 8, 4
N_STREAMED = 6
HEARTBEAT, TTL = 0.2, 1.0
TIMEOUT = 60.0
PR_SET_PDEATHSIG = 1
GAP = (slice(0, 4), slice(8, 12))
VALUES = [oracle.values(SHAPE, version, GAP if version == 0 else None) for version in range(4)]
OLD = VALUES[0]
REGION = (slice(1, 4), slice(2, 13))
WIDE = (slice(0, 4), slice(1, 16))
PART = (slice(0, 2), slice(5, 11))
MOST = (slice(0, 8), slice(1, 16))
BAD_SHARD = (slice(0, 8), slice(8, 16))
STRATEGIES = {
    "replace": FixedOrder(),
    "clone": AppendOnly(),
    "in place": FixedOrder(in_place=True, max_unused=1.0),
    "append in place": AppendOnly(in_place=True),
}
LAYOUT = {"shards": SHARD, "chunks": CHUNK}
RAW = {"compressors": None}
Run = Callable[["Place"], None]
After = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Place:
    """Where a case happens, as one of the two processes sees it.

    Attributes
    ----------
    home : Path
        Directory of the case.
    who : str
        ``first`` or ``second``.
    """

    home: Path
    who: str

    @property
    def path(self) -> Path:
        """The array."""
        return self.home / "x.zarr"

    def at(self, name: str) -> Path:
        """Where an operation of the table is done."""
        return self.home / "x" / name

    @property
    def source(self) -> Path:
        """The array of which a conversion makes the array."""
        return self.home / "x-source"

    @property
    def made(self) -> Path:
        """The array in a group that a conversion of a hierarchy makes."""
        return self.home / "x-made" / "a"

    @property
    def acks(self) -> oracle.Acks:
        """Shards that were acknowledged to this process."""
        return oracle.Acks(self.home / f"acks-{self.who}")

    def note(self, **facts) -> None:
        """Tell the judge something, at once."""
        with (self.home / f"notes-{self.who}").open("a") as file:
            file.write(json.dumps(facts) + "\n")

    def effects(self) -> list[str]:
        """Effects that this process told of."""
        return (self.home / f"ask-{self.who}").read_text().replace(str(self.home), "").splitlines()

    def notes(self) -> dict:
        """What was told; the last word counts."""
        file = self.home / f"notes-{self.who}"
        told: dict = {}
        for line in file.read_text().splitlines() if file.exists() else []:
            told |= json.loads(line)
        return told


@dataclass(frozen=True)
class Operation:
    """What one of the two processes does.

    Attributes
    ----------
    run : callable
        Does it.
    after : callable
        The values of the array afterwards, from those before.
    prepare : callable
        Makes what stands there before.
    before : tuple of arrays
        Versions that each shard may be of before.
    """

    run: Run
    after: After
    prepare: Run = lambda place: None
    before: tuple[np.ndarray, ...] = (OLD,)


def make(place: Place, **layout) -> None:
    """The array as it is before."""
    da.from_array(OLD, chunks=SHARD).to_sharded_zarr(
        place.path, durability="none", **LAYOUT | layout
    )


def make_with_room(place: Place) -> None:
    """The same, and the inner chunk that is empty has left room where it stood."""
    full = put(VALUES[3], GAP, OLD)
    da.from_array(full, chunks=SHARD).to_sharded_zarr(
        place.path, durability="none", **LAYOUT, **RAW
    )
    shardwrite.erase(place.path, GAP, strategy=STRATEGIES["in place"], durability="none")


def put(values, region, before):
    after = before.copy()
    after[region] = values[region]
    return after


def update(
    version,
    region,
    strategy,
    *,
    durability="full",
    restart=False,
    abandons=False,
    is_told=True,
    prepare=make,
) -> Operation:
    """Write a version into a region."""

    def run(place):
        if abandons:
            shardwrite.abandon(place.path)
        shardwrite.write_region(
            da.from_array(VALUES[version][region], chunks=SHARD),
            place.path,
            region,
            strategy=STRATEGIES[strategy],
            source_id=f"version {version}",
            durability=durability,
            restart=restart,
            progress=place.acks if is_told else False,
        )

    return Operation(run, partial(put, VALUES[version], region), prepare)


def write(version, *, prepare=lambda place: None, **keywords) -> Operation:
    """Write a version as a new array."""

    def run(place):
        x = da.from_array(VALUES[version], chunks=SHARD)
        x.to_sharded_zarr(
            place.path, source_id=f"version {version}", progress=place.acks, **LAYOUT, **keywords
        )

    return Operation(run, lambda before: VALUES[version], prepare)


def parts(version, **keywords) -> Operation:
    """Write a version as a new array in two parts."""

    def run(place):
        x = da.from_array(VALUES[version], chunks=SHARD)
        source_id = f"version {version}"
        plan = shardwrite.plan(x, source_id=source_id, memory_limit="50MB", **LAYOUT)
        shardwrite.prepare(x, place.path, plan, **keywords)
        for index in range(2):
            shardwrite.write_part(
                x,
                place.path,
                index,
                2,
                source_id=source_id,
                memory_limit="50MB",
                progress=place.acks,
            )
        shardwrite.finalize(place.path)

    return Operation(run, lambda before: VALUES[version])


def erase(region, **keywords) -> Operation:
    """Make a region empty."""
    return Operation(
        lambda place: shardwrite.erase(place.path, region, progress=place.acks, **keywords),
        partial(put, np.zeros(SHAPE, np.uint32), region),
        make,
    )


def make_wasteful(place: Place) -> None:
    """Shards that hold much that nobody refers to."""
    make(place)
    for _ in range(2):
        x = da.from_array(OLD[REGION], chunks=SHARD)
        shardwrite.write_region(x, place.path, REGION, strategy=AppendOnly(), durability="none")


def compact(**keywords) -> Operation:
    """Write shards anew without what is unused."""
    return Operation(
        lambda place: shardwrite.compact(place.path, above=0.0, **keywords),
        lambda before: before,
        make_wasteful,
    )


def in_place() -> Operation:
    """Put the chunks of an array without shards into shards, in its place."""
    return Operation(
        lambda place: shardwrite.shard(place.path, shards=2),
        lambda before: before,
        lambda place: make(place, shards=None),
    )


def convert(version, **keywords) -> Operation:
    """Make the array of the encoded chunks of another."""

    def prepare(place):
        x = da.from_array(VALUES[version], chunks=SHARD)
        sizes = {**LAYOUT, "shards": None}
        x.to_sharded_zarr(place.source, durability="none", **sizes)

    def run(place):
        shardwrite.shard(
            place.source,
            place.path,
            shards=SHARD // CHUNK,
            progress=place.acks,
            **keywords,
        )

    return Operation(run, lambda before: VALUES[version], prepare)


def consume_tree() -> Operation:
    """Make a hierarchy of the encoded chunks of another, which is consumed."""

    def prepare(place):
        group = zarr.create_group(place.source)
        x = da.from_array(VALUES[1], chunks=SHARD)
        sizes = {**LAYOUT, "shards": None}
        x.to_sharded_zarr(group, name=place.made.name, durability="none", **sizes)

    def run(place):
        shardwrite.shard(
            place.source,
            place.made.parent,
            shards=SHARD // CHUNK,
            progress=place.acks,
            consume=True,
        )

    return Operation(run, lambda before: VALUES[1], prepare)


def make_bad(place: Place) -> None:
    """One of the two shards is torn."""
    make(place)
    os.truncate(place.path / "c" / "0" / "1", 50)


def repair() -> Operation:
    """Write the bad shard again."""
    return Operation(
        lambda place: shardwrite.repair(place.path, da.from_array(OLD, chunks=SHARD)),
        lambda before: before,
        make_bad,
    )


def make_torn(place: Place) -> None:
    """One of the two shards is as an append leaves it that was killed before the new index stood."""
    make(place)
    with (place.path / "c" / "0" / "1").open("ab") as shard:
        shard.write(bytes(range(1, 200)))


def salvage() -> Operation:
    """Cut the torn shard back to its last whole state."""
    return Operation(
        lambda place: shardwrite.repair(place.path, scan=True), lambda before: before, make_torn
    )


def after_salvage(operation: Operation) -> Operation:
    """An operation that can only begin when the torn shard is whole."""

    def run(place):
        shardwrite.repair(place.path, scan=True)
        operation.run(place)

    return replace(operation, run=run)


def abandon() -> Operation:
    """Give up what was interrupted."""
    return Operation(lambda place: shardwrite.abandon(place.path), lambda before: before)


def kill_amid_change(place: Place, strategy: str, **layout) -> None:
    """An update that was killed when the record of a change in place was durable, and the change
    was not made."""
    make(place, **layout)
    operation = update(1, REGION, strategy)
    whole = attempt_at(place, 0)
    wait(start(operation.run, whole), "an update")
    of_shards = [at for at, effect in enumerate(whole.effects(), 1) if "/x.zarr/c/" in effect]
    for at in of_shards:
        attempt = attempt_at(place, at)
        pid = start(operation.run, attempt, at=at, strike=signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status)
        (effect,) = attempt.effects()
        assert "/x.zarr/c/" in effect
        beside = seams.state_beside(attempt.path)
        if any(beside.rglob("undo-*")):
            shutil.rmtree(place.path)
            shutil.move(attempt.path, place.path)
            shutil.move(beside, seams.state_beside(place.path))
            break
    else:
        raise AssertionError("no kill came after a record")
    for left in place.home.glob("attempt-*"):
        shutil.rmtree(left)


def attempt_at(place: Place, at: int) -> Place:
    """A copy of what stands at a place, for a kill before an effect."""
    attempt = Place(place.home / f"attempt-{at}", "killed")
    attempt.home.mkdir()
    shutil.copytree(place.path, attempt.path)
    return attempt


def on_killed(operation: Operation, strategy: str, **layout) -> Operation:
    """An operation that begins where an update was killed amid a change in place."""
    prepare = partial(kill_amid_change, strategy=strategy, **layout)
    return replace(operation, prepare=prepare, before=(OLD, put(VALUES[1], REGION, OLD)))


def stream(version, strategy="auto", **layout) -> Operation:
    """Append slices, and flush after every second."""

    def run(place):
        with ShardWriter(place.path, strategy=strategy, n_threads=1) as writer:
            first = writer.shape[0]
            place.note(first=first)
            for number in range(N_STREAMED):
                writer.append(streamed(version)[number])
                if number % 2:
                    writer.flush()
                    place.note(flushed=first + number + 1)
        place.note(flushed=first + N_STREAMED)

    return Operation(
        run,
        lambda before: np.concatenate([before, streamed(version)]),
        lambda place: make(place, **layout),
    )


def streamed(version):
    """Slices of a version."""
    return oracle.values((N_STREAMED, SHAPE[1]), 100 + version)


def _operations() -> dict[str, Operation]:
    """What the first process does."""
    found = {
        "write": write(1),
        "write, batch": write(1, durability="batch"),
        "write, published first": write(1, publish="first"),
        "replacement": write(1, mode="w", prepare=make),
        "parts": parts(1),
        "update replace, batch": update(1, REGION, "replace", durability="batch"),
        "erase": erase(MOST),
        "compact": compact(),
        "repair": repair(),
        "salvage": salvage(),
        "conversion": in_place(),
        "shard": convert(1),
        "consume": convert(1, consume=True),
        "consume tree": consume_tree(),
        "stream": stream(1),
        "stream raw": stream(1, **RAW),
        "stream replace": stream(1, FixedOrder()),
    }
    found["update in place with room"] = update(1, REGION, "in place", prepare=make_with_room)
    for strategy in STRATEGIES:
        for name, layout in (("", {}), (" raw", RAW)):
            found[f"update {strategy}{name}"] = update(
                1, REGION, strategy, prepare=partial(make, **layout)
            )
            if strategy == "append in place" or (
                strategy == "in place" and layout
            ):  # what is compressed has no fixed size
                found[f"abandon {strategy}{name}"] = on_killed(abandon(), strategy, **layout)
                found[f"takeover {strategy}{name}"] = on_killed(
                    update(3, REGION, strategy, restart=True), strategy, **layout
                )
    return found


def of_table(name: str, *, is_second: bool = False) -> Operation:
    """An operation of the table of all faults. Its second process makes the same call."""
    operation = TABLE[name]

    def prepare(place: Place) -> None:
        path = place.at(operation.at)
        path.parent.mkdir(parents=True)
        operation.prepare(path)

    act = operation.again if is_second else operation.perform
    return Operation(lambda place: act(place.at(operation.at)), lambda before: before, prepare)


OWN_OPERATIONS = _operations()
TABLE = {
    f"{name} of the table" if name in OWN_OPERATIONS else name: operation
    for name, operation in all_operations.OPERATIONS.items()
}
"""What all faults strike; some have the name of a smaller one here."""
OPERATIONS = {**OWN_OPERATIONS, **{name: of_table(name) for name in TABLE}}
TAKEOVERS = {
    "write": write(2, mode="w", restart=True),
    "parts": parts(2, mode="w", restart=True),
    **{f"update {strategy}": update(2, WIDE, strategy, restart=True) for strategy in STRATEGIES},
    **{f"part {strategy}": update(2, PART, strategy, restart=True) for strategy in STRATEGIES},
    "abandon, part": update(2, PART, "replace", abandons=True),
    "update bad shard": update(2, BAD_SHARD, "replace", restart=True),
    "salvage, part": after_salvage(update(2, PART, "replace")),
    "erase": erase(MOST, restart=True),
    "compact": compact(restart=True),
    "conversion": in_place(),
    "consume": convert(1, consume=True),
    "consume tree": consume_tree(),
    # Its shards are numbered in one way before a conversion in place, and in another after it.
    "update, shards untold": update(2, WIDE, "replace", restart=True, is_told=False),
    "stream": stream(2),
}


def takeovers_of(operation: str) -> list[str]:
    """Ways in which another process takes over from one of `OPERATIONS`."""
    if operation not in OWN_OPERATIONS:
        return ["same"]
    kind, _, rest = operation.partition(" ")
    strategy = rest.removesuffix(" raw").removesuffix(" with room").removesuffix(", batch")
    if kind in ("write", "write,", "replacement", "shard"):
        return ["write"]
    if kind == "parts":
        return ["parts"]
    if kind == "stream":
        return ["stream", "abandon, part"]
    if kind == "conversion":
        return ["conversion", "abandon, part"]
    if kind == "consume":
        return [operation]
    if kind == "repair":
        return ["update bad shard"]
    if kind == "salvage":
        return ["update bad shard", "salvage, part"]
    if kind == "update":
        return [f"update {strategy}", f"part {strategy}", "abandon, part", "erase", "compact"]
    if kind in ("abandon", "takeover"):
        return [f"update {strategy}", "abandon, part", "compact"]
    return ["update replace", "part append in place", "abandon, part"]


def second_of(operation: str, takeover: str) -> Operation:
    """What the second process does; ``same`` is the same call."""
    if operation not in OWN_OPERATIONS:
        return of_table(operation, is_second=True)
    return OPERATIONS[operation] if takeover == "same" else TAKEOVERS[takeover]


def own_of(operation: str) -> tuple[str, ...]:
    """Patterns of names that harness and operation make."""
    of = () if operation in OWN_OPERATIONS else TABLE[operation].own
    return ("acks-*", "notes-*", "ask-*", "attempt-*", *(f"x/{pattern}" for pattern in of))


def library():
    """The shim in this process."""
    loaded = ctypes.CDLL(os.environ["SHIM"])
    loaded.shim_watch.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
    ]
    return loaded


def start(run, place: Place, *, of="*", at=0, strike=0, ask=-1, go=-1, closes=()) -> int:
    """Run something in a process of its own; its pid.

    Before effect number `at` of those that fit the pattern `of` it gets the signal `strike`, and
    with 0 none; or, where `ask` and `go` are descriptors, it asks before each. The effects are told
    in the file ``ask-<who>``, or to `ask`. `closes` are descriptors that it does not need. What it
    came to is in its notes. It dies with this process.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for fd in closes:
            os.close(fd)
        shim = library()
        if ask < 0:
            ask = os.open(place.home / f"ask-{place.who}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        shim.shim_watch(str(place.home / "x").encode(), of.encode(), at, strike, ask, go)
        try:
            run(place)
            outcome = "done"
        except shardwrite.ShardwriteError as error:
            outcome = f"{type(error).__name__}: {error}"
        finally:
            shim.shim_unwatch()
        place.note(outcome=outcome)
        os._exit(0)
    except BaseException:
        place.note(outcome=traceback.format_exc())
        os._exit(1)


def wait(pid: int, what: str) -> None:
    """Wait for a child to end; one that does not is killed, which is an error."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        ended, _ = os.waitpid(pid, os.WNOHANG)
        if ended:
            return
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise TimeoutError(f"{what} did not end in {TIMEOUT:.0f} s")


def in_child(function, *arguments) -> str:
    """Run something in a process of its own; what it raised."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        trouble = ""
        try:
            function(*arguments)
        except BaseException as error:
            trouble = f"{type(error).__name__}: {error}"
        os.write(writer, trouble[:3000].encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        trouble = told.read()
    os.waitpid(pid, 0)
    return trouble


def shortened(outcome: str) -> str:
    """What a process came to, for a table."""
    return outcome[-300:] if "Traceback" in outcome else outcome[:200]


def judge(home: Path, operation: str, takeover: str, *, readers: bool) -> None:
    """What must hold when both processes have ended; raises what does not.

    All that the second was acknowledged is there, and what the first was acknowledged and the
    second has not written over. Each shard is of one version, no chunk is unreadable, nothing is
    left beside the array.
    """
    first, second = Place(home, "first"), Place(home, "second")
    one, two = first.notes()["outcome"], second.notes()["outcome"]
    assert two == "done", f"stuck: the second process could not take over: {two[-600:]}"
    assert "Traceback" not in one, f"bare: the first process raised {one[-600:]}"
    if operation not in OWN_OPERATIONS:
        TABLE[operation].judge(first.at(TABLE[operation].at))
        return
    path = first.made if operation == "consume tree" else first.path
    report = shardwrite.verify(path, deep=True)
    assert report.is_good, f"unreadable: {[problem.message for problem in report.problems]}"
    found = shardwrite.open_sharded(path)[:, :]
    is_streamed = operation.startswith("stream")
    if is_streamed:
        judge_stream(found, first, second, takeover)
    else:
        candidates = candidates_for(
            operation, takeover, is_done=one == "done", acked=first.acks.ranks()
        )
        judge_shards(found, candidates)
    if readers:
        for reader, seen in oracle.read_everywhere(path, oracle.metadata_of(path)).items():
            np.testing.assert_array_equal(seen, found, err_msg=reader)
    oracle.check_tidy(path)
    if operation in ("consume", "consume tree"):
        oracle.check_tidy(first.source)
        assert not first.source.exists(), "left: what was consumed is still there"


def candidates_for(
    operation: str, takeover: str, *, is_done: bool, acked: set[int]
) -> list[list[np.ndarray]]:
    """Whole arrays that may be the end, each as the versions that its shards may be of."""
    first, second = OPERATIONS[operation].after, TAKEOVERS[takeover].after
    bases = OPERATIONS[operation].before
    new = [second(first(base)) for base in bases]
    either = [new if rank in acked else [*map(second, bases), *new] for rank in range(2)]
    return [either, [[first(second(base)) for base in bases]] * 2] if is_done else [either]


def judge_shards(found: np.ndarray, candidates: list[list[list[np.ndarray]]]) -> None:
    boxes = [(slice(0, SHARD), slice(SHARD * rank, SHARD * (rank + 1))) for rank in range(2)]
    assert found.shape == SHAPE, f"lost: the shape is {found.shape}"
    for versions in candidates:
        if all(
            any((found[box] == v[box]).all() for v in of)
            for box, of in zip(boxes, versions, strict=True)
        ):
            return
    at = [
        tuple(map(int, at))
        for at in np.argwhere(~np.any([found == v for of in candidates[0] for v in of], axis=0))
    ]
    raise AssertionError(
        f"lost: values are those of no version that may be there, first at {at[:3]} ({len(at)} of {found.size})"
    )


def judge_stream(found: np.ndarray, first: Place, second: Place, takeover: str) -> None:
    flushed = first.notes().get("flushed", SHAPE[0])
    wanted = np.concatenate([OLD, streamed(1)])
    if takeover == "stream":
        began = second.notes()["first"]
        assert began >= flushed, (
            f"lost: slices up to {flushed} were flushed, and the second stream began at {began}"
        )
        wanted = np.concatenate([wanted[:began], streamed(2)])
    else:
        assert len(found) >= flushed, (
            f"lost: slices up to {flushed} were flushed, and {len(found)} are there"
        )
        wanted = wanted[: len(found)].copy()
        wanted[: SHAPE[0]] = TAKEOVERS[takeover].after(OLD)
    assert found.shape == wanted.shape, f"lost: the shape is {found.shape}, not {wanted.shape}"
    at = [tuple(map(int, at)) for at in np.argwhere(found != wanted)]
    assert not at, f"lost: values differ, first at {at[:3]} ({len(at)} of {found.size})"


def warm_up() -> None:
    """Do everything once, so that what is imported or compiled at first use is there before a child
    is forked."""
    with tempfile.TemporaryDirectory() as directory:
        for number, name in enumerate(("stream", "compact", "erase", "write")):
            home = Path(directory) / str(number)
            home.mkdir()
            OPERATIONS[name].prepare(Place(home, "first"))
            OPERATIONS[name].run(Place(home, "first"))
            shardwrite.verify(home / "x.zarr", deep=True)
            shardwrite.open_sharded(home / "x.zarr")[:, :]
    zarr.core.sync.cleanup_resources()  # its thread would not be there in a child
    assert threading.active_count() == 1, threading.enumerate()
    gc.freeze()  # Forked processes need not go through, and so copy, what is there already.


def configured():
    """Short lives for leases, and no threads."""
    return dask.config.set(
        {"shardwrite.lease.heartbeat": HEARTBEAT, "shardwrite.lease.ttl": TTL, "scheduler": "sync"}
    )
