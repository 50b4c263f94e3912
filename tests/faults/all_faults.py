"""Faults that strike every operation of `all_operations.py`: a new one is a function here.

Each goes around the recovery of a case: see `driver.py`. Run as ``python tests/faults/all_faults.py
--faults kill --every 3 --json out.json``, or with ``--cases 100 --seed 1`` for some at random;
``--table listed`` takes only arrays that keep a manifest, and ``--table ids`` chunks by id.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import dask
import numpy as np

import shardwrite

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import all_operations
import driver
import effects
import failing_calls
import in_buckets
import lossy_device
import oracle
import power_cut
import preloaded
import seams
import small_disk
from all_operations import OPERATIONS, TABLES
from driver import Bench, Case, Fault
from helpers import MEMORY
from users import User, missing_root

FAULTS: dict[str, Fault] = {}
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
CALLS = ("write", "rename", "open", "fsync", "unlink", "mkdir", "link", "close", "stat")
TTL = 1.0
AGAIN = 0.75
"""How often a call that goes on is killed, too."""
SHORT_LEASES = {"shardwrite.lease.heartbeat": 0.2, "shardwrite.lease.ttl": TTL}
OF_CHUNKS, OF_DOCUMENTS = b"\x28\xb5\x2f\xfd", b'": '
"""What encoded chunks begin with, which is zstd's, and how JSON is spaced."""
LAB = 61000
ALICE, BOB = User(61001, 61001, (LAB,), 0o002), User(61002, 61002, (LAB,), 0o002)


def fault(
    name: str,
    missing: Callable[..., str] = str,
    disk: Any = None,
    filesystem: str = "",
    excluded: Mapping[str, str] | None = None,
) -> Callable[..., Any]:
    """Enter a function into the table. It is given a bench, a case and a path, and yields once.

    With a disk, both this and what is missing for it depend on the file system.
    """

    def enter(strike: Callable[[Bench, Case, Path], Iterator[None]]) -> Any:
        entry = Fault(contextlib.contextmanager(strike), disk, missing, excluded or {})
        FAULTS[name] = on(entry, filesystem)
        return strike

    return enter


def on(fault: Fault, filesystem: str) -> Fault:
    """A fault on a file system, if it needs a disk of its own and one is named."""
    if fault.disk is None or fault.excluded or not filesystem:
        return fault
    disk, missing = (partial(f, filesystem=filesystem) for f in (fault.disk, fault.missing))
    return replace(fault, disk=disk, missing=missing)


@fault("kill")
def kill(bench: Bench, case: Case, path: Path) -> Iterator[None]:
    """SIGKILL before an effect, and maybe one before an effect of the recovery."""
    bench.act(case, path, effects.kill)
    if case.again_at and case.effect:
        given_up = partial(shardwrite.abandon, path)
        again = partial(bench.operations[case.operation].again, path)
        again = given_up if case.then == "abandon" else again
        ended = effects.in_child(again, case.again_at, bench.notes / "trouble")
        case.trouble = "" if ended in ("killed", "done") else f"the second call: {ended}"
    yield


@fault("kill at any moment")
def kill_at_any_moment(bench: Bench, case: Case, path: Path) -> Iterator[None]:
    """SIGKILL at a moment of a call with threads, and of the calls that go on, until one has ended."""
    bench.enter = lambda: dask.config.set(scheduler="threads", num_workers=2)
    kill_at_moments(bench, case, path, bench.seconds(case.operation), lambda: bench.look(case))
    yield


def kill_at_moments(
    bench: Bench, case: Case, path: Path, seconds: float, look: Callable[[], object]
) -> None:
    """Kill a call once or more, and look at what is there after each kill."""
    rng = bench.rng(case)
    case.at = 0
    while not case.kills or rng.random() < AGAIN:
        pid = bench.start(case, path, lambda _: None)
        share = rng.uniform(0.05, 1.1 if case.kills else 0.9) * rng.choice([0.3, 1.0])
        if rng.random() < 0.5:  # amid its shards, which few random moments are
            until(lambda pid: bench.acks.exists() or is_over(pid), pid, seconds / 2)
            share *= 0.3
        until(is_over, pid, share * seconds)
        os.kill(pid, signal.SIGKILL)
        if bench.wait(case, pid) != "killed":
            break
        case.kills += 1
        case.effect = "a moment"
        look()
        if case.trouble:
            break
    case.effect = "a moment" if case.kills else ""


def of_bucket(server: str) -> dict[str, Any]:
    """Where a fault strikes."""
    of = {
        "disk": partial(in_buckets.Bucket.of, server),
        "missing": partial(in_buckets.missing, server),
    }
    return {**of, "excluded": all_operations.NOT_IN_BUCKETS}


@fault("kill in a bucket", **of_bucket("moto"))
@fault("kill in a bucket of SeaweedFS", **of_bucket("seaweed"))
def kill_in_a_bucket(bench: Bench, case: Case, path: Path) -> Iterator[None]:
    """The same in a bucket. A copy of it is judged, and the same call is made again there."""
    operation, url = bench.operations[case.operation], bench.disk.url(path)

    def look() -> None:
        if bench.acks.exists():
            text = bench.acks.read_text().replace(str(bench.disk.url(bench.home)), str(bench.home))
            bench.acks.write_text(text)
        case.trouble = case.trouble or bench.trouble_of(lambda: bench.disk.fetch(bench.home))
        bench.look(case)
        if not bench.hides:
            looked = partial(read_old_or_new, path, operation)
            case.trouble = case.trouble or bench.trouble_of(looked)

    seconds = bench.disk.seconds(bench, case.operation)
    case.trouble = bench.trouble_of(lambda: bench.disk.put(bench.home))
    kill_at_moments(bench, case, url, seconds, look)
    again = bench.trouble_of(partial(operation.again, url))
    bench.acks.unlink(missing_ok=True)
    fetched = bench.trouble_of(lambda: bench.disk.fetch(bench.home))
    case.trouble, case.then = case.trouble or again or fetched, "nothing"
    yield


def until(happened: Callable[[int], bool], pid: int, seconds: float) -> None:
    """Wait until something has happened to a process, or so many seconds are over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not happened(pid):
        time.sleep(0.0005)


def is_over(pid: int) -> bool:
    """Whether a process has ended, for which nobody has waited yet."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


@fault("failing effect")
def fail(bench: Bench, case: Case, path: Path) -> Iterator[None]:
    """One effect fails."""

    def strike(name: str) -> NoReturn:
        number = ERRORS[case.at % len(ERRORS)]
        raise OSError(number, os.strerror(number), name)

    bench.act(case, path, strike)
    yield


@fault("failing call", preloaded.missing)
def fail_call(bench: Bench, case: Case, path: Path) -> Iterator[None]:
    """A system call fails, once or from then on, also one that is not Python's."""
    rng = bench.rng(case)
    failing = failing_calls.Fault(
        call=str(rng.choice(CALLS)),
        error=str(rng.choice(["EIO", "EACCES"])),
        k=1 + int(rng.integers(12)),
        persistent=bool(rng.random() < 0.3),
    )
    fired = bench.notes / "fired"
    fired.unlink(missing_ok=True)

    def act() -> None:
        with seams.stale_at_once():  # also what a failed beginning could not remove
            perform = partial(bench.operations[case.operation].perform, path)
            error = failing.strike(failing_calls.shim(), bench.home, perform)
            if failing.n_fired:
                fired.write_text(f"{failing.call}, {failing.error}")
            if error is not None:
                failing.check_told(error)

    case.trouble = bench.trouble_of(act)
    case.effect = fired.read_text() if fired.exists() else ""
    with seams.stale_at_once():
        yield


@fault("power cut", power_cut.missing, power_cut.Machine, "ext4")
def cut(bench: Bench, case: Case, path: Path) -> Iterator[None]:
    """The machine loses its power; what goes on has another boot id.

    In half of the cases, the process meets a disk that is gone, and must say so by an error.
    """
    rng = bench.rng(case)
    subprocess.run(["sync", "--file-system", bench.root], check=True)

    def strike(_: str) -> None:
        bench.disk.cut(rng)
        if case.at % 2:
            effects.kill()

    bench.act(case, path, strike)
    bench.disk.restart()
    with seams.after_restart(bench.home.name):
        yield
    bench.disk.restart()


@fault("failing write-back", lossy_device.missing, lossy_device.Disk, "ext4")
def fail_write_back(bench: Bench, case: Case, path: Path) -> Iterator[None]:
    """The disk refuses some of what it is to take; in the end, it shows what it has."""
    rng = bench.rng(case)
    bench.disk.sync()
    patterns = [OF_CHUNKS, OF_DOCUMENTS] if rng.random() < 0.7 else [OF_DOCUMENTS]
    bench.disk.arm(patterns, skip=int(rng.integers(4)), times=int(rng.choice([1, 2, -1])))
    try:
        bench.act(case, path, lambda _: None)
    finally:
        _, n_failed = bench.disk.heal()
    case.effect = "write-back" if n_failed else ""
    lossy_device.evict(path.parent, 0.5, rng)
    yield
    bench.disk.remount()


def stand_still(bench: Bench, case: Case, path: Path, seconds: float, *, is_refused: bool) -> None:
    """Stop a process before an effect, have another recover after a while, and let it go on."""
    pid = bench.start(case, path, lambda _: os.kill(os.getpid(), signal.SIGSTOP))
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
    if ended.si_code == os.CLD_STOPPED:
        time.sleep(seconds)
        again = partial(bench.operations[case.operation].again, path)
        trouble = bench.trouble_of(again, is_refused=is_refused)
        case.trouble = f"the second process: {trouble}" if trouble else ""
        os.kill(pid, signal.SIGCONT)
    bench.wait(case, pid)


@fault("freeze")
def freeze(bench: Bench, case: Case, path: Path) -> Iterator[None]:
    """The process is frozen until its lease has run out, another takes over, and it thaws."""
    with dask.config.set(SHORT_LEASES):
        stand_still(bench, case, path, TTL + 0.1, is_refused=False)
        yield


@fault("interleaved")
def interleave(bench: Bench, case: Case, path: Path) -> Iterator[None]:
    """The process is slow, and another one makes the same call meanwhile, or is refused."""
    stand_still(bench, case, path, 0, is_refused=True)
    yield


def read_old_or_new(path: Path, operation: driver.Operation) -> None:
    """Every reader finds old elements or new ones."""
    operation.look(path, False)
    if operation.wanted is None or operation.may_be_torn or not (path / "zarr.json").exists():
        return
    for reader, read in oracle.READERS.items():
        there = read(path, (slice(None), slice(None)))
        old = all_operations.OLD
        wanted = [array[: len(there)] for array in (old, operation.wanted)]
        is_right = np.logical_or.reduce([there == array for array in (*wanted, 0)])
        assert is_right.all(), f"{reader}: {(~is_right).sum()} wrong elements"


@fault("full disk", small_disk.missing, small_disk.Disk, "tmpfs")
def fill(bench: Bench, case: Case, path: Path) -> Iterator[None]:
    """Every byte is taken. Giving up needs no room, and the same call finishes once there is some."""
    operation = bench.operations[case.operation]
    look = partial(read_old_or_new, path, operation)
    given_up = partial(give_up, path)
    step = (given_up, partial(operation.again, path), None)[case.at % 3]
    try:
        bench.act(case, path, lambda _: bench.disk.fill())
        if case.effect and not case.trouble:
            if case.error and not any(f", {number}:" in case.error for number in small_disk.FULL):
                case.trouble = f"an error that does not say so: {case.error}"
            case.trouble = case.trouble or bench.trouble_of(look)
            bench.disk.fill()  # what the process has given back when it failed
            if case.error and step is not None:
                trouble = bench.trouble_of(step, is_refused=step is not given_up)
                may_need_room = bench.disk.filesystem == "ext2" or small_disk.SAYS_WHAT.search(
                    trouble
                )
                case.trouble = case.trouble or (
                    "" if may_need_room or not trouble else f"giving up needs room: {trouble}"
                )
            case.trouble = case.trouble or bench.trouble_of(look)
    finally:
        bench.disk.free()
    # An append of which only the receipt was missing would append again.
    if (
        case.error
        and step is given_up
        and not bench.trouble_of(partial(operation.check_done, path))
    ):
        case.then = "nothing"
    yield


def give_up(path: Path) -> None:
    """Give up what was begun at a path, if anything can be given up."""
    with contextlib.suppress(shardwrite.SpecError, shardwrite.JournalError):
        shardwrite.abandon(path)


@fault("two users", missing_root)
def go_on_as_colleague(bench: Bench, case: Case, path: Path) -> Iterator[None]:
    """A colleague goes on with what a kill has interrupted, or is refused; then its owner does."""
    for place in (bench.root, bench.notes):
        place.chmod(0o777)
    for found in (bench.home, *bench.home.rglob("*")):
        os.chown(found, ALICE.uid, LAB)
        found.chmod(0o2775 if found.is_dir() else 0o664)
    try:
        bench.enter = partial(take_on, ALICE)
        bench.act(case, path, effects.kill)
        bench.enter = partial(take_on, BOB)
        again = partial(bench.operations[case.operation].again, path)
        trouble = bench.trouble_of(again, is_refused=True)
        case.trouble = case.trouble or (trouble and f"the colleague: {trouble}")
        bench.enter = partial(take_on, ALICE)
        yield
    finally:
        bench.enter = lambda: None


def take_on(user: User) -> None:
    """Be a user from here on."""
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    os.umask(user.umask)


def run(
    asked: Sequence[str],
    faults: Sequence[str] = ("kill",),
    *,
    n_cases: int = 0,
    n_kills: int = 0,
    seed: int = 0,
    filesystem: str = "",
    **how: int,
) -> list[Case]:
    """Cases of each of some faults, one after the other: so many at random, or until there were so
    many kills, or `driver.everywhere`. Operations that a fault does not strike are passed over."""
    done: list[Case] = []
    for name in faults:
        fault = on(FAULTS[name], filesystem)
        names = [operation for operation in asked if operation not in fault.excluded]
        top = Path(tempfile.mkdtemp(prefix="faults-", dir=None if fault.disk else MEMORY))
        top.chmod(0o755)
        try:
            with driver.bench_of(OPERATIONS, fault, top, seed=seed) as bench:
                if n_kills:
                    done += driver.killed(
                        bench, driver.drawn(bench, name, names, 4 * n_kills), n_kills
                    )
                elif n_cases:
                    done += map(bench.run, driver.drawn(bench, name, names, n_cases))
                else:
                    done += map(bench.run, driver.everywhere(bench, name, names, **how))
        finally:
            shutil.rmtree(top)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=["kill"])
    parser.add_argument(
        "--table",
        choices=TABLES,
        default="arrays",
        help="of operations; ids are chunks by id, and listed are arrays that keep a manifest",
    )
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, help="only some")
    parser.add_argument("--every", type=int, default=1, help="only every so many effects")
    parser.add_argument("--amid", action="store_true", help="only one effect amid each operation")
    parser.add_argument("--last", type=int, default=0, help="and each of the last so many")
    parser.add_argument(
        "--twice", type=int, default=0, help="kill the second call before this effect, too"
    )
    parser.add_argument("--cases", type=int, default=0, help="so many of each fault at random")
    parser.add_argument(
        "--kills",
        type=int,
        default=0,
        help="so many kills, of cases that are killed again and again",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--filesystem",
        choices=small_disk.FILESYSTEMS,
        default="",
        help="of faults that need a disk, in place of their own",
    )
    parser.add_argument("--json", type=Path, help="write every case to this file")
    given = parser.parse_args()
    if "failing call" in given.faults and "SHIM" not in os.environ:
        sys.exit(preloaded.restarted(__file__, sys.argv[1:]))
    for name in given.faults:
        if why := {FAULTS[name].excluded.get(asked) for asked in given.operations or ()} - {None}:
            sys.exit(f"{name}: {', '.join(sorted(why))}")
        if why := on(FAULTS[name], given.filesystem).missing():
            sys.exit(f"{name}: {why}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing stays mounted
    gc.freeze()  # Forked processes need not go through, and so copy, what is there already.
    done = run(
        given.operations or list(TABLES[given.table]),
        given.faults,
        n_cases=given.cases,
        n_kills=given.kills,
        seed=given.seed,
        filesystem=given.filesystem,
        every=0 if given.amid else given.every,
        last=given.last,
        twice=given.twice,
    )
    found = driver.summary(done)
    if given.json:
        cases = [asdict(case) for case in done]
        given.json.write_text(json.dumps({"summary": found, "cases": cases}))
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["troubles"] else 0)


if __name__ == "__main__":
    main()
