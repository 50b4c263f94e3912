"""What older versions left where they were interrupted, or had finished, is recognised, finished,
given up or refused. Runs of the first version, whose records have no checksum, are left to it.

`make_states.py` made the states with the versions of commits f91bbb9 and 3e6cb07. Their leases name
another host and a time long ago, so that they have run out. A call either does what it is to do, or
is refused with a remedy; that is carried out here, and loses nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from crc32c import crc32c
from tiers import some

import shardwrite
from shardwrite import AppendOnly, FixedOrder, JournalError, ShardwriteError, ShardWriter
from shardwrite.cli import main

sys.path.insert(0, str(Path(__file__).parent.parent / "faults"))
sys.path.insert(0, str(Path(__file__).parent))
import operations
import oracle
from helpers import scratch
from operations import NAME, NEW, OLD, OPERATIONS, REGION

OLDEST, BEFORE_THE_REBUILD = "f91bbb9", "3e6cb07"
ARCHIVES = {
    OLDEST: Path(__file__).with_name("states.tar.xz"),
    BEFORE_THE_REBUILD: Path(__file__).with_name("states-3e6cb07.tar.xz"),
}
LONG_AGO = 978_307_200
AGAIN = r"[Mm]ake the same call again|Run that again|run its command again|give the path of a sharded Zarr v3 array"
ABANDON = r"give it up with abandon"


@dataclass(frozen=True)
class State:
    """What lay on disk.

    Attributes
    ----------
    commit : str
        Whose version left it.
    name : str
        In the archive.
    operation : str
        Name of the operation.
    kill_at : int
        Number of the effect before which it was killed; 0 where it was not.
    acknowledged : list of [int, int]
        Shards that had been told to be written.
    given_up : list of [int, int]
        The same, of a run that the operation itself takes away.
    """

    commit: str
    name: str
    operation: str
    kill_at: int
    acknowledged: list[list[int]]
    given_up: list[list[int]]

    @property
    def does(self) -> operations.Operation:
        return OPERATIONS[self.operation]

    def unpack(self, home: Path) -> Path:
        """Lay it out in a directory; gives back where the array is."""
        if home.exists():
            shutil.rmtree(home)
        home.mkdir()
        lies = contents(self.commit).get(self.name, [])
        for name, data in lies:
            (home / name).mkdir() if data is None else (home / name).write_bytes(data)
        for name, _ in reversed(lies):
            os.utime(home / name, (LONG_AGO, LONG_AGO))
        return home / NAME


@functools.cache
def states(commit: str) -> list[State]:
    with tarfile.open(ARCHIVES[commit]) as archive:
        told = json.load(archive.extractfile(archive.next()))
    return [State(commit, f"{number:04d}", **one) for number, one in enumerate(told)]


@functools.cache
def contents(commit: str) -> dict[str, list[tuple[str, bytes | None]]]:
    """What lies in each state, by name; None for directories."""
    found: dict[str, list[tuple[str, bytes | None]]] = {}
    with tarfile.open(ARCHIVES[commit]) as archive:
        for entry in archive:
            state, _, name = entry.name.partition("/")
            found.setdefault(state, []).append(
                (name, archive.extractfile(entry).read() if entry.isfile() else None)
            )
    return found


def killed(operation: str, commit: str = OLDEST) -> list[State]:
    """States that kills of an operation left."""
    return [state for state in states(commit) if state.operation == operation and state.kill_at]


def finished(operation: str, commit: str = OLDEST) -> State:
    """What the operation left that was not killed."""
    (found,) = [
        state for state in states(commit) if state.operation == operation and not state.kill_at
    ]
    return found


@pytest.fixture
def home():
    top = scratch("upgrade-")
    with dask.config.set(scheduler="sync"):
        yield top / "home"
    shutil.rmtree(top)


@dataclass(frozen=True)
class Shard:
    """What a reader finds in a shard; no values where it cannot be read."""

    box: tuple[slice, slice]
    values: np.ndarray | None

    def holds(self, wanted: np.ndarray, but: int | None = None) -> bool:
        """Whether it holds these values, and the fill value beyond them; `but` may stand
        everywhere."""
        if self.values is None:
            return False
        whole = np.zeros(
            [max(side.stop, n) for side, n in zip(self.box, wanted.shape, strict=True)], "u4"
        )
        whole[tuple(map(slice, wanted.shape))] = wanted
        return bool(
            ((self.values == whole[self.box]) | (self.values == (-1 if but is None else but))).all()
        )


def shards_of(path: Path) -> dict[tuple[str, int, int], Shard]:
    """Every shard by two readers, as far as there is an array or a run that makes one."""
    pending = sorted(path.with_name(f"{NAME}.shardwrite").glob("run-*/zarr.json"))
    documents = [document for document in (path / "zarr.json", *pending) if document.exists()]
    if not documents:
        return {}
    found = {}
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as scratch:
        view = Path(scratch) / NAME
        view.mkdir()
        shutil.copy(documents[0], view)
        if (path / "c").exists():
            (view / "c").symlink_to(path / "c")
        array = zarr.open_array(view, mode="r")
        (rows, columns), (height, width) = array.shape, array.shards
        for i, j in np.ndindex(-(-rows // height), -(-columns // width)):
            box = (
                slice(i * height, min(rows, (i + 1) * height)),
                slice(j * width, min(columns, (j + 1) * width)),
            )
            for reader in ("zarr-python", "shardwrite"):
                try:
                    values = np.asarray(oracle.READERS[reader](view, box))
                except Exception:  # readers differ in what they raise
                    values = None
                found[reader, i, j] = Shard(box, values)
    return found


class Judge:
    """Knows what was whole before anybody touched a state, and what was acknowledged.

    Parameters
    ----------
    state : State
        The state.
    path : path
        The array, as the state has it.
    """

    def __init__(self, state: State, path: Path) -> None:
        self._state = state
        self._torn = {
            key for key, shard in shards_of(path).items() if not self._is_whole(shard, None)
        }
        is_stream = state.does.kind == "stream"
        self._flushed = json.loads((path / "zarr.json").read_text())["shape"][0] if is_stream else 0

    def check(self, path: Path, *, mended: bool = False, but: int | None = None) -> None:
        """What was whole is whole, and what was acknowledged is there.

        Parameters
        ----------
        path : path
            The array.
        mended : bool
            Whether nothing may be torn any more.
        but : int, optional
            What another call has written since.
        """
        state, found = self._state, shards_of(path)
        for (reader, i, j), shard in found.items():
            whole = self._is_whole(shard, but)
            assert whole or ((reader, i, j) in self._torn and not mended), (
                f"{state}: {reader} finds shard {i}, {j} torn"
            )
            if [i, j] in state.acknowledged and state.does.kind != "stream":
                assert shard.holds(state.does.wanted, but), (
                    f"{state}: {reader} does not find shard {i}, {j}"
                )
            if shard.values is not None and state.does.kind == "stream":
                rows = shard.values[: max(0, self._flushed - shard.box[0].start)]
                there = Shard(
                    (slice(shard.box[0].start, shard.box[0].start + len(rows)), shard.box[1]), rows
                )
                assert there.holds(NEW, but), (
                    f"{state}: {reader} does not find rows of shard {i}, {j}"
                )
            if [i, j] in state.given_up:
                assert shard.holds(OLD, but), f"{state}: {reader} does not find shard {i}, {j}"
        if found:
            known = {(i, j) for i, j in state.acknowledged + state.given_up}
            assert (
                {(i, j) for _, i, j in found} >= known
                or state.operation == "append"
                or state.does.kind == "stream"
            )
        elif state.does.kind != "stream" and (
            state.acknowledged or state.given_up or state.does.before is not None
        ):
            (replaced,) = path.parent.glob(f"{NAME}.shardwrite/*/replaced")
            np.testing.assert_array_equal(zarr.open_array(replaced, mode="r")[:, :], OLD)

    def _is_whole(self, shard: Shard, but: int | None) -> bool:
        """Whether a shard is one version's; of a stream, whose rows come one by one, whether it can
        be read."""
        does = self._state.does
        if does.kind == "stream":
            return shard.values is not None
        candidates = [does.wanted, *([] if does.before is None else [does.before])]
        candidates += [OLD, np.zeros_like(OLD)] if does.kind != "update" else []
        return any(shard.holds(candidate, but) for candidate in candidates)


def check_good(path: Path) -> None:
    """Nothing is left beside the array, and all of it can be decoded."""
    oracle.check_tidy(path)
    assert shardwrite.verify(path, deep=True).is_good


def again(state: State, path: Path) -> None:
    """The same call does all that it was to do."""
    state.does.perform(path)
    oracle.check_whole(path, state.does.wanted)
    check_good(path)


@pytest.mark.parametrize("commit", ARCHIVES)
def test_the_archive_tells_nothing_of_where_it_was_made(commit):
    assert {state.operation for state in states(commit)} == set(OPERATIONS)
    assert ARCHIVES[commit].stat().st_size < 400_000
    hosts = set()
    for lies in contents(commit).values():
        for name, data in lies:
            hosts |= set(re.findall(rb'"host": ?"(.*?)"', data or b""))
            assert not re.search(rb"/(tmp|home|dev|root|work|Users)/", data or b""), name
    assert hosts == {b"node17"}


LEFT = {
    "a lease": r"/run-\w+/lease-",
    "a journal": r"/run-\w+/journal-",
    "part files": r"/run-\w+/parts-\w+/.",
    "a redo record": r"/run-\w+/redo-c\.",
    "the lock of a shard": r"/run-\w+/lock-c\.",
    "the lock of an end": r"shardwrite/lock-end\.json",
    "an array that is replaced": r"/run-\w+/replaced/zarr.json",
    "a run that has ended": r"/ended-\w+/",
    "a run that was taken away": r"/taken-\w+/",
    "an array that was taken away": r"/taken-\w+/array-",
    "a temporary": r"\.swtmp$",
}
CLAIMS = {
    "a claim of a shard": r"/run-\w+/claim-c\.[^/]+/owner-",
    "a record of a change in place": r"/run-\w+/claim-c\.[^/]+/undo-",
    "the claim of an end": r"shardwrite/claim-end/owner-",
    "a draft": r"/draft-",
}
"""What the version of 3e6cb07 left in place of redo records and locks."""


def n_with(pattern: str, commit: str) -> int:
    """Number of states in which something of such a name lies."""
    return sum(
        any(re.search(pattern, name) for name, _ in lies) for lies in contents(commit).values()
    )


@pytest.mark.parametrize("what", LEFT)
def test_the_archive_has(what):
    assert n_with(LEFT[what], OLDEST) >= 4


def test_the_archive_of_the_tree_before_the_rebuild_has():
    """Fewer of each, as it is smaller."""
    patterns = {what: found for what, found in LEFT.items() if not re.search("redo|lock", what)}
    missing = [
        what
        for what, pattern in {**patterns, **CLAIMS}.items()
        if not n_with(pattern, BEFORE_THE_REBUILD)
    ]
    assert not missing
    assert n_with(CLAIMS["a record of a change in place"], BEFORE_THE_REBUILD) >= 4
    assert not n_with(LEFT["a redo record"], BEFORE_THE_REBUILD)


def check_again(chosen: list[State], home: Path) -> None:
    for state in chosen:
        path = state.unpack(home)
        again(state, path)
        if state.kill_at % 10 == 1:
            shardwrite.erase(path, (slice(0, 1), slice(0, 1)))
            check_good(path)


LOOKS = (["info"], ["verify"], ["verify", "--deep"], ["census"], ["slurm", "status"])


def tree(home: Path) -> dict[str, tuple]:
    """All that lies there, with times."""
    return {
        str(path.relative_to(home)): (
            path.stat().st_mtime_ns,
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else None,
        )
        for path in home.rglob("*")
    }


def check_looks(chosen: list[State], home: Path) -> None:
    for state in chosen:
        path = state.unpack(home)
        Judge(state, path).check(path)
        before = tree(home)
        for look in LOOKS:
            said = CliRunner().invoke(main, [*look, str(path)])
            assert said.exception is None or isinstance(said.exception, SystemExit), (
                f"{look}: {said.exception!r}"
            )
            assert "Traceback" not in said.output
        for look in (
            shardwrite.verify,
            shardwrite.census,
            shardwrite.open_sharded,
            shardwrite.from_sharded_zarr,
        ):
            with contextlib.suppress(ShardwriteError):
                look(path)
        assert tree(home) == before, f"a look at {state} changed something"


def check_giving_up(chosen: list[State], home: Path) -> None:
    for state in chosen:
        path = state.unpack(home)
        judge = Judge(state, path)
        said = refusal(shardwrite.abandon, path)
        if said:
            assert state.does.kind in ("write", "repair")
            assert re.search(AGAIN, said), said
        else:
            oracle.check_tidy(path)
        if not said and state.operation == "replacement":
            is_ended = len(state.acknowledged) == 4 and shardwrite.open_sharded(path)[0, 0] > 1000
            # otherwise the old array is back
            oracle.check_whole(path, state.does.wanted if is_ended else state.does.before)
        else:
            judge.check(path, mended=not said and state.does.kind != "repair")
        if state.operation == "append" and shardwrite.open_sharded(path).shape != OLD.shape:
            oracle.check_whole(
                path, state.does.wanted
            )  # it had grown, and the same call would append once more
        else:
            again(state, path)


def refusal(call: Callable[[Path], object], path: Path) -> str:
    """What a call says that is refused; nothing where it does what it is to do."""
    try:
        call(path)
    except ShardwriteError as error:
        return str(error)
    return ""


SEVEN = np.full((1, 20), 7, "u4")


def write_others(path: Path) -> None:
    """Another update, of the first row."""
    row = da.from_array(SEVEN, chunks=7)
    row.to_sharded_zarr(
        path, region=(slice(0, 1), slice(0, 20)), source_id="seven", memory_limit="100MB"
    )


def append_row(path: Path) -> None:
    with ShardWriter(path, n_threads=1, memory_limit="100MB") as writer:
        writer.append(SEVEN[0])


def compact(path: Path) -> None:
    shardwrite.compact(path, above=0.05)


OTHERS = {"update": write_others, "stream": append_row, "compaction": compact}


def check_others(chosen: list[State], home: Path) -> None:
    for number, state in enumerate(chosen):
        name = list(OTHERS)[(number + state.kill_at // 2) % len(OTHERS)]
        if state.does.kind in (
            "stream",
            "repair",
        ):  # an empty array has no row to update, and a torn shard none that can be kept
            name = "stream" if state.does.kind == "stream" else "compaction"
        call, is_repair = OTHERS[name], state.does.kind == "repair"
        path = state.unpack(home)
        judge = Judge(state, path)
        said = refusal(call, path)
        if not said:
            judge.check(path, mended=not is_repair, but=None if name == "compaction" else 7)
            continue
        judge.check(path)
        assert re.search(
            f"{AGAIN}|{ABANDON}" + ("|shardwrite repair" if is_repair else ""), said
        ), said
        if re.search(ABANDON, said):
            shardwrite.abandon(path)
            judge.check(path, mended=not is_repair)
            if not is_repair:  # else what was bad is bad again
                call(path)
                check_good(path)
            path = state.unpack(home)
        again(state, path)
        call(path)
        check_good(path)


def has_run(path: Path) -> bool:
    """Whether the record of a run that has begun lies beside an array."""
    beside = path.with_name(f"{NAME}.shardwrite")
    return any([*beside.glob("plan.json"), *beside.glob("updates/*/plan.json")])


def check_left_to_it(chosen: list[State], home: Path) -> None:
    """A run of the first version is refused by all calls that would change anything of it."""
    for state in chosen:
        path = state.unpack(home)
        if not has_run(path):
            again(state, path)
            continue
        judge, before = Judge(state, path), tree(path)
        for call in (state.does.perform, shardwrite.abandon):
            said = refusal(call, path)
            assert "an earlier version of shardwrite" in said, said
        for call in OTHERS.values():
            assert refusal(call, path)
        assert {name: data for name, (_, _, data) in tree(path).items()} == {
            name: data for name, (_, _, data) in before.items()
        }
        judge.check(path)


CHECKS = {
    "again": check_again,
    "looks": check_looks,
    "giving up": check_giving_up,
    "others": check_others,
}


@pytest.mark.parametrize("operation", [*OPERATIONS][::4])
def test_a_sample_of_the_tree_before_the_rebuild(home, operation):
    """One state, and one check of it."""
    number = list(OPERATIONS).index(operation)
    found = killed(operation, BEFORE_THE_REBUILD)
    list(CHECKS.values())[number % 4]([found[-1 - number % 3]], home)


@pytest.mark.parametrize("operation", [*OPERATIONS][1::4])
def test_a_sample_of_the_first_version(home, operation):
    """Two states of each operation."""
    found = killed(operation)
    check_left_to_it([found[len(found) // 3], found[len(found) * 2 // 3]], home)
    check_looks(found[len(found) // 2 :][:1], home)


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS)
def test_states_of_the_first_version_are_left_to_it(home, operation):
    """Every third one; others are looked at."""
    assert len(killed(operation)) > 10
    check_left_to_it(killed(operation)[::3], home)
    check_looks(killed(operation)[1::9], home)


@pytest.mark.long
@pytest.mark.parametrize("operation", OPERATIONS)
def test_states_of_the_tree_before_the_rebuild(home, operation):
    """Each is looked at, given up or in the way, and every second one finished by the same call."""
    found = killed(operation, BEFORE_THE_REBUILD)
    assert len(found) >= 3
    check_again(found[::2], home)
    first = list(OPERATIONS).index(operation)
    for which, check in enumerate((check_looks, check_giving_up, check_others), first):
        check(found[which % 3 :: 3], home)


@pytest.mark.parametrize(
    ("operation", "commit"),
    [
        pytest.param(
            name,
            commit,
            marks=[]
            if (name, commit)
            in (
                ("write", OLDEST),
                ("update in place", OLDEST),
                ("stream", OLDEST),
                ("append in place", BEFORE_THE_REBUILD),
            )
            else pytest.mark.long,
        )
        for commit in ARCHIVES
        for name in OPERATIONS
        if commit == OLDEST or list(OPERATIONS).index(name) % 4 == 3
    ],
)
def test_a_finished_array_is_verified_and_changed_in_every_way(home, operation, commit):
    state = finished(operation, commit)
    path = state.unpack(home)
    oracle.check_whole(path, state.does.wanted)
    check_good(path)
    said = json.loads(CliRunner().invoke(main, ["info", "--json", str(path)]).output)
    assert said["by"].startswith("shardwrite 0.1.0")
    assert not said["unfinished"]
    wanted = state.does.wanted.copy()
    n_columns = wanted.shape[1]
    strategies = (
        FixedOrder(),
        AppendOnly(),
        FixedOrder(in_place=True, max_unused=1.0),
        AppendOnly(in_place=True),
    )
    for number, strategy in enumerate(strategies, 5000):
        wanted[number % 7 : 13, 2:12] = number
        x = da.full((13 - number % 7, 10), number, dtype="u4", chunks=7)
        x.to_sharded_zarr(path, region=(slice(number % 7, 13), slice(2, 12)), strategy=strategy)
    da.full((3, n_columns), 9, dtype="u4").to_sharded_zarr(path, region="append", axis=0)
    with ShardWriter(path, n_threads=1) as writer:
        writer.append(np.full(n_columns, 8, "u4"))
    wanted = np.concatenate(
        [wanted, np.full((3, n_columns), 9, "u4"), np.full((1, n_columns), 8, "u4")]
    )
    shardwrite.erase(path, (slice(1, 3), slice(0, 4)))
    wanted[1:3, 0:4] = 0
    oracle.check_whole(path, wanted)
    assert shardwrite.compact(path, above=0.0).n_rewritten
    oracle.check_whole(path, wanted)
    check_good(path)
    (path / "c/1/0").unlink()
    assert not shardwrite.verify(path).is_good, "the receipt tells which shards there are"
    shardwrite.repair(path, da.from_array(wanted, chunks=7))
    oracle.check_whole(path, wanted)


@pytest.mark.parametrize("commit", ARCHIVES)
@pytest.mark.parametrize("operation", some(OPERATIONS, *[*OPERATIONS][::2]))
def test_a_finished_script_that_runs_again_writes_nothing(home, operation, commit):
    """With `mode="w"`, too; each names its source. An erase has none to name, and is done anew."""
    state = finished(operation, commit)
    path = state.unpack(home)
    before = tree(path)
    state.does.perform(path)
    assert operation == "erase" or tree(path) == before
    oracle.check_whole(path, state.does.wanted)
    check_good(path)


def of_format(number: int, record: bytes) -> bytes:
    """A record of a change in place that says it has another format."""
    head, _, rest = record.partition(b"\n")
    head = json.dumps({**json.loads(head[9:]), "format": number}).encode()
    return b"%08x %s\n" % (crc32c(head), head) + rest


@pytest.mark.parametrize("call", ["the same", "abandon", "update", "compaction", "replacement"])
def test_a_change_in_place_of_a_later_version_is_left_to_it(home, call):
    """The record that undoes it stays, and so does the shard; then that version goes on."""
    is_record = re.compile(CLAIMS["a record of a change in place"])
    state = next(
        state
        for state in killed("append in place", BEFORE_THE_REBUILD)
        if any(is_record.search(name) and data for name, data in contents(state.commit)[state.name])
    )
    path = state.unpack(home)
    (record,) = (each for each in home.rglob("*") if is_record.search(str(each)))
    first = record.read_bytes()
    later = of_format(2, first)
    record.write_bytes(later)
    shards = {each: each.read_bytes() for each in path.glob("c/*/*")}
    calls = {
        "the same": state.does.perform,
        "abandon": shardwrite.abandon,
        "update": write_others,
        "compaction": compact,
        "replacement": lambda path: operations.write(path, mode="w", restart=True),
    }
    said = ABANDON if call in ("update", "compaction") else "Use the version that wrote it"
    with pytest.raises(JournalError, match=said):
        calls[call](path)
    (kept,) = (each for each in home.rglob("*") if each.is_file() and each.read_bytes() == later)
    assert {each: each.read_bytes() for each in path.glob("c/*/*")} == shards
    kept.write_bytes(first)
    again(state, path)


def test_a_lease_that_has_not_run_out_is_respected(home):
    """As where a process of the older version still works, on another host."""
    found = killed("update in place", BEFORE_THE_REBUILD)
    state = next(state for state in found if state.acknowledged)
    path = state.unpack(home)
    judge = Judge(state, path)
    (lease,) = home.glob(f"{NAME}.shardwrite/updates/*/run-*/lease-*.json")
    os.utime(lease)
    lies = {name: data for name, (_, _, data) in tree(home).items()}
    for call in (
        shardwrite.abandon,
        write_others,
        lambda path: shardwrite.erase(path, REGION, restart=True),
    ):
        with pytest.raises(JournalError, match="node17"):
            call(path)
        assert {name: data for name, (_, _, data) in tree(home).items()} == lies
    os.utime(lease, (LONG_AGO, LONG_AGO))
    shardwrite.abandon(path)
    judge.check(path, mended=True)
