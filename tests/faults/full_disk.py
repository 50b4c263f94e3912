"""A full disk under every operation: readers are right while it is full, nothing that was
acknowledged is lost, giving up needs no room, and once there is room the same call finishes.

Each case makes an array on a small file system of its own. Before some effect of an operation, a
file beside it takes the last free byte, and the disk stays full. When the operation has failed,
three readers judge what is there; then comes a user's next step, and they judge again, all of this
without a free byte. Then the file is removed, and the same call must finish.

In a third of the cases of arrays, the process is killed some effects after the disk became full.
Shards that are changed in place may then be torn, and the next step is always to give up. Where a
shard must be written anew for that, it says how many bytes it needs, and readers are right all the
same.

Run as ``python tests/faults/full_disk.py --cases 150 --filesystem ext4 --json out.json``, as root.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import dask
import h5py
import numpy as np
from obstore.store import MemoryStore

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import ends
import id_shard_cuts
import judging
import loop_devices
import oracle
import power_cut
import volumes
from ends import before_effect, in_child
from scenarios import Scenario

FILESYSTEMS = ("tmpfs", "ext4", "xfs", "ext2")
"""The last one cannot reserve blocks, so that giving up may need room there."""
SAYS_WHAT = re.compile(r"anew takes [\d,]+ bytes: free as many")
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
FOLLOW_UPS = ("abandon", "same", "writer", "nothing")
_NBYTES = {name: (304 if name == "xfs" else 24) * 2**20 for name in FILESYSTEMS}
_N_EFFECTS = 200
"""Of an operation of which no more is known."""


@dataclass(frozen=True)
class Other:
    """An operation on something else than one array; each callable takes a directory.

    Attributes
    ----------
    make : callable
        Makes what stands there before.
    act : callable
        The operation; the same call again, too.
    check_between : callable
        What must hold at any time.
    check : callable
        What must hold at the end.
    abandon : callable
        Gives up.
    """

    make: Callable[[Path], object]
    act: Callable[[Path], object]
    check_between: Callable[[Path], object]
    check: Callable[[Path], object]
    abandon: Callable[[Path], object] = lambda home: None


def holds(check: Callable[[Path], object], home: Path) -> bool:
    """Whether a check finds nothing."""
    try:
        check(home)
    except Exception:
        return False
    return True


def give_up(path: Path) -> None:
    """Give up what was begun at a path, if anything can be given up."""
    with contextlib.suppress(shardwrite.SpecError, shardwrite.JournalError):
        shardwrite.abandon(path)


def of_ends(name: str) -> Other:
    """One of the operations of `ends.py`: every reader finds old elements or new ones."""
    operation = ends.OPERATIONS[name]

    def check_between(home: Path) -> None:
        path = home / operation.at
        if not (path / "zarr.json").exists():
            return
        for reader, read in oracle.READERS.items():
            there = read(path, (slice(None), slice(None)))
            wanted = [array[: len(there)] for array in (ends.OLD, operation.wanted)]
            is_right = np.logical_or.reduce([there == array for array in (*wanted, 0)])
            assert is_right.all(), f"{reader}: {(~is_right).sum()} wrong elements"

    return Other(
        make=lambda home: operation.prepare(home / operation.at),
        act=lambda home: operation.perform(home / operation.at),
        check_between=check_between,
        check=lambda home: ends.check(home / operation.at, operation.wanted),
        abandon=lambda home: give_up(home / operation.at),
    )


def of_ids(hash_name: str) -> Other:
    """Chunks by 64-bit id are changed."""
    case = id_shard_cuts.Case(number=1, hash=hash_name, is_first=False)

    def check_between(home: Path) -> None:
        assert not id_shard_cuts.check_between(home / "ids", case), "chunks are lost"

    return Other(
        make=lambda home: id_shard_cuts.make(home / "ids", case),
        act=lambda home: id_shard_cuts.change(home / "ids", case),
        check_between=check_between,
        check=lambda home: id_shard_cuts.check_changed(home / "ids", case),
    )


def of_volume(**how: bool) -> Other:
    """A scale is added to a volume of Neuroglancer."""
    volume = volumes.Volume(is_repair=False, **how)
    coarse = volumes.VALUES[:, ::2, ::2]

    def check_between(home: Path) -> None:
        there = shardwrite.from_precomputed(home / "v", scale="8_8_40", axes="zyx").compute()
        np.testing.assert_array_equal(there, coarse)
        scales = json.loads((home / "v/info").read_text())["scales"]
        if any(scale["key"] == volumes.KEY for scale in scales):
            volume.check(home / "v", "a scale")

    return Other(
        make=lambda home: volume.make_before(home / "v", "a scale"),
        act=lambda home: volume(home / "v", "a scale"),
        check_between=check_between,
        check=lambda home: volume.check(home / "v", "a scale"),
        abandon=lambda home: give_up(home / "v" / volumes.KEY),
    )


def of_adoption() -> Other:
    """An array is made of an HDF5 file, whose chunks are copied."""

    def make(home: Path) -> None:
        home.mkdir(exist_ok=True)
        with h5py.File(home / "old.h5", "w") as file:
            file.create_dataset("x", data=ends.NEW, chunks=(5, 5), compression="gzip")

    def check_between(home: Path) -> None:
        with h5py.File(home / "old.h5") as file:
            np.testing.assert_array_equal(file["x"][...], ends.NEW)

    def check(home: Path) -> None:
        check_between(home)
        np.testing.assert_array_equal(shardwrite.open_sharded(home / "x")[:, :], ends.NEW)

    return Other(
        make=make,
        act=lambda home: shardwrite.adopt([home / "old.h5"], home / "x"),
        check_between=check_between,
        check=check,
        abandon=lambda home: give_up(home / "x"),
    )


def of_transfer(*, up: bool) -> Other:
    """An array is copied to a bucket, with the state of the run here, or to a directory."""
    buckets: dict[Path, MemoryStore] = {}

    def act(home: Path) -> None:
        bucket = buckets.setdefault(home, MemoryStore())
        if up:
            shardwrite.upload(home / "x", bucket, durability="none", run_dir=home / "state")
        else:
            shardwrite.download(home.parent / "source" / home.name, home / "x")

    def make(home: Path) -> None:
        place = home / "x" if up else home.parent / "source" / home.name
        ends.source(ends.NEW).to_sharded_zarr(place, **ends.LAYOUT)

    def check(home: Path) -> None:
        place = buckets[home] if up else home / "x"
        np.testing.assert_array_equal(shardwrite.open_sharded(place)[:, :], ends.NEW)

    def check_between(home: Path) -> None:
        if (home / "x/zarr.json").exists():
            np.testing.assert_array_equal(shardwrite.open_sharded(home / "x")[:, :], ends.NEW)

    return Other(make, act, check_between, check)


OTHERS = {
    "append": of_ends("append in a group"),
    "write into a group": of_ends("write into a group"),
    "shard a store": of_ends("shard a store"),
    "consume a hierarchy": of_ends("consume a hierarchy"),
    "finalize": of_ends("finalize"),
    "restart": of_ends("restart"),
    "chunks by id": of_ids("identity"),
    "chunks by hashed id": of_ids("murmurhash3_x86_128"),
    "volume": of_volume(is_scattered=False),
    "scattered volume": of_volume(is_scattered=True),
    "adoption": of_adoption(),
    "upload": of_transfer(up=True),
    "download": of_transfer(up=False),
}
KINDS = [*judging.KINDS, ("consume", "replace"), *((name, "") for name in OTHERS)]


@dataclass(kw_only=True)
class Case(judging.Case):
    """An operation under which the disk becomes full.

    Attributes
    ----------
    filesystem : str
        That becomes full.
    at : float
        Where, as a share of the effects that such an operation has.
    kill_after : int
        Number of effects after which the process is killed; 0 if it is not.
    effect : str
        Before which effect the disk became full; nothing if the operation had ended before.
    """

    filesystem: str
    at: float
    kill_after: int = 0
    effect: str = ""


def draw(
    filesystem: str,
    seed: int,
    number: int,
    kinds: Sequence[tuple[str, str]] = KINDS,
    follow_ups: Sequence[str] = FOLLOW_UPS,
) -> Case:
    """A case."""
    rng = np.random.default_rng([seed, number])
    drawn = judging.draw(number, rng, kinds)
    drawn["follow_up"] = follow_ups[number // len(kinds) % len(follow_ups)]
    at, kill_after = float(rng.random()), int(rng.integers(1, 40))
    if drawn["operation"] in OTHERS or rng.random() > 1 / 3:
        kill_after = 0
    else:
        drawn["follow_up"] = "abandon"
    return Case(**drawn, filesystem=filesystem, at=at, kill_after=kill_after)


class Disk:
    """A small file system, and a file in it that takes all room.

    Parameters
    ----------
    directory : path
        An empty directory for the image and the mount point.
    filesystem : str
        One of `FILESYSTEMS`.

    Attributes
    ----------
    root : pathlib.Path
        Where it is mounted.
    """

    def __init__(self, directory: Path, filesystem: str) -> None:
        self._filesystem, self._image = filesystem, directory / "image"
        self.root, self._device = directory / "disk", ""

    def __enter__(self) -> Disk:
        self.root.mkdir()
        nbytes = _NBYTES[self._filesystem]
        if self._filesystem == "tmpfs":
            mount = ["-t", "tmpfs", "-o", f"size={nbytes}", "shardwrite-test"]
        else:
            with self._image.open("wb") as file:
                file.truncate(nbytes)
            # No blocks are kept for root, who runs this.
            extra = {"ext4": ["-m", "0"], "ext2": ["-m", "0", "-O", "^extents,^64bit"], "xfs": []}
            kind = self._filesystem.replace("ext2", "ext4")
            make = [*power_cut.MKFS[kind], *extra[self._filesystem], self._image]
            subprocess.run(make, check=True, capture_output=True)
            self._device = loop_devices.attach(self._image)
            mount = [self._device]
        subprocess.run(["mount", *mount, self.root], check=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        power_cut.close_all_in(self.root)  # what the traceback of an error still holds
        if trouble := power_cut.unmount(self.root, 60):
            raise OSError(trouble)
        if self._device:
            # A mount namespace that others have made meanwhile may hold a copy of the mount. The
            # device goes with it.
            with contextlib.suppress(OSError):
                loop_devices.detach(self._device, self._image)

    def fill(self) -> None:
        """Take all free blocks, down to the last one."""
        with open(self.root / "filler", "ab") as file:
            end = os.fstat(file.fileno()).st_size
            for nbytes in (2**22, 2**18, 2**14, 2**12):
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), end, nbytes)
                        end += nbytes
        subprocess.run(["sync", "--file-system", self.root], check=True)

    def free(self) -> None:
        """Give them back."""
        (self.root / "filler").unlink(missing_ok=True)
        subprocess.run(["sync", "--file-system", self.root], check=True)


class Bench:
    """Where cases run, on one disk.

    Parameters
    ----------
    disk : Disk
        The disk.
    notes : pathlib.Path
        A directory on another one.
    """

    def __init__(self, disk: Disk, notes: Path) -> None:
        self._disk, self._notes = disk, notes
        self._n_effects: dict[tuple[str, str], int] = {}

    def run_case(self, case: Case, seed: int) -> Case:
        """One operation, a disk that becomes full under it, and the judgements."""
        home = self._disk.root / f"case-{seed}-{case.number}"
        if case.operation in OTHERS:
            return self._run_other(case, OTHERS[case.operation], home)
        with judging.set_up(case, home, seed) as scenario:
            scenario.make()
            try:
                if case.kill_after:
                    self._kill_under(case, scenario)
                else:
                    self._fill_under(case, scenario.run)
                scenario.enter_journalled()
                if not (case.kill_after and case.in_place):
                    judging.judge(case, scenario)
                if case.effect and not case.is_bad:
                    self._disk.fill()  # what the process has given back when it failed
                    self._follow(case, lambda: judging.follow(scenario, case.follow_up))
                    judging.judge(case, scenario)
            finally:
                self._disk.free()
            if not case.is_bad:
                judging.judge_all(case, scenario)
        return case

    def _run_other(self, case: Case, other: Other, home: Path) -> Case:
        home.mkdir()
        with dask.config.set({"scheduler": "sync", "shardwrite.retry-pauses": [0, 0, 0]}):
            try:
                other.make(home)
                try:
                    self._fill_under(case, lambda: other.act(home))
                    other.check_between(home)
                    if case.effect and not case.is_bad:
                        self._disk.fill()
                        again = {"same": other.act, "abandon": other.abandon}.get(case.follow_up)
                        if again is not None:
                            self._follow(case, lambda: again(home))
                        other.check_between(home)
                finally:
                    self._disk.free()
                if not case.is_bad:
                    # An append of which only the receipt was missing would append again.
                    if case.follow_up != "abandon" or not holds(other.check, home):
                        other.act(home)
                    other.check(home)
            except Exception as error:
                case.trouble = case.trouble or f"{type(error).__name__}: {error}"[:600]
        shutil.rmtree(home, ignore_errors=True)
        return case

    def _where(self, case: Case) -> int:
        """Number of the effect before which the disk becomes full."""
        n_effects = self._n_effects.get((case.operation, case.strategy), _N_EFFECTS)
        return 1 + int(case.at * n_effects)

    def _fill_under(self, case: Case, act: Callable[[], object]) -> None:
        def strike(effect: str) -> None:
            case.effect = effect
            self._disk.fill()

        with before_effect(self._where(case), strike) as n_effects:
            try:
                act()
            except Exception as error:
                enter_error(case, error)
        if not case.effect:
            self._n_effects[case.operation, case.strategy] = n_effects()

    def _kill_under(self, case: Case, scenario: Scenario) -> None:
        acks, effect = self._notes / "acks", self._notes / "effect"
        for note in (acks, effect):
            note.unlink(missing_ok=True)

        def strike(name: str) -> None:
            effect.write_text(name)
            self._disk.fill()

        def tell(acked: set[int]) -> None:
            acks.with_suffix(".new").write_text(json.dumps(sorted(acked)))
            acks.with_suffix(".new").replace(acks)

        def act() -> None:
            scenario.told = tell
            with (
                before_effect(self._where(case), strike),
                contextlib.suppress(shardwrite.ShardwriteError),
            ):
                scenario.run()

        kill_at = self._where(case) + case.kill_after
        ended = in_child(act, kill_at, self._notes / "trouble")
        case.trouble = "" if ended in ("killed", "done") else ended[-600:]
        case.error = "killed" if ended == "killed" else ""
        case.effect = effect.read_text() if effect.exists() else ""
        scenario.acknowledge(json.loads(acks.read_text()) if acks.exists() else [])

    @staticmethod
    def _follow(case: Case, follow: Callable[[], object]) -> None:
        """The next step of a user who has freed nothing yet."""
        if not case.error:
            return
        try:
            follow()
        except Exception as error:
            enter_error(case, error)
            may_need_room = case.filesystem == "ext2" or SAYS_WHAT.search(str(error))
            if case.follow_up == "abandon" and not may_need_room:
                case.trouble = f"giving up needs room: {error}"


def enter_error(case: Case, error: Exception) -> None:
    """What was raised; it must say that there is no room."""
    case.enter_error(error)
    if not case.trouble and getattr(error, "errno", None) not in FULL:
        case.trouble = f"an error that does not say so: {case.error}"


def run(
    directory: Path,
    filesystem: str,
    n_cases: int,
    *,
    seed: int = 0,
    kinds: Sequence[tuple[str, str]] = KINDS,
    follow_ups: Sequence[str] = FOLLOW_UPS,
) -> list[Case]:
    """Cases on one file system, one after the other."""
    cases = [draw(filesystem, seed, number, kinds, follow_ups) for number in range(n_cases)]
    with tempfile.TemporaryDirectory() as notes, Disk(Path(directory), filesystem) as disk:
        bench = Bench(disk, Path(notes))
        return [bench.run_case(case, seed) for case in cases]


def summary(cases: list[Case]) -> dict:
    """Totals."""
    struck = [case for case in cases if case.effect]
    return {
        **judging.totals(cases, struck),
        "effects": dict(Counter(case.effect for case in struck)),
        "operations": dict(Counter(f"{case.operation}, {case.strategy}" for case in struck)),
        "raised": sum(bool(case.error) for case in struck),
        "killed": sum(case.error == "killed" for case in struck),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill the disk under every operation.")
    operations = sorted({operation for operation, _ in KINDS})
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--filesystem", choices=FILESYSTEMS, default="tmpfs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the cases there, too")
    parser.add_argument("--operations", nargs="+", choices=operations, default=operations)
    parser.add_argument("--follow-ups", nargs="+", choices=FOLLOW_UPS, default=FOLLOW_UPS)
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if kind[0] in given.operations]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing stays mounted
    with tempfile.TemporaryDirectory() as directory:
        how = {"seed": given.seed, "kinds": kinds, "follow_ups": given.follow_ups}
        cases = run(Path(directory), given.filesystem, given.cases, **how)
    judging.tell(
        {"filesystem": given.filesystem, "seed": given.seed, **summary(cases)}, cases, given.json
    )


if __name__ == "__main__":
    main()
