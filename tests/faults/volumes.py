"""Kills, failing calls and power cuts while a scale is added to a volume of Neuroglancer.

Before some effect on the file system the process is killed, or the power is cut, or that effect
fails. What is there is judged, the same call is made again, and that is judged, too. Bytes of
shards are a function of values and plan, so each is compared with that of a run that nothing
disturbed.

Run as ``python tests/faults/volumes.py --fault kill --every 1``, with ``--fault fail``, or as root
with ``--fault cut --cases 100``, or through `test_volumes.py`. With
``--hash murmurhash3_x86_128``, chunks wait in a spool until their shards are gathered. With
``--repair``, bad shards of a scale are written again, which spools their chunks if the hash
scatters them.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import dask
import dask.array as da
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import power_cut
from ends import before_effect, count_effects, in_child

import shardwrite
from shardwrite.format.precomputed.hashing import HASHES
from shardwrite.format.precomputed.morton import MortonCode
from shardwrite.format.precomputed.parameters import ShardingParameters
from shardwrite.format.precomputed.scattered import scattered_ids
from shardwrite.journal import lease

FAULTS = ("kill", "fail", "cut")
STATES = ["nothing", "a scale"]
BAD_SHARDS = "bad shards"
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
VALUES = np.arange(1, 1 + 6 * 10 * 12, dtype="u2").reshape(6, 10, 12)
KEY, OTHER = "4_4_40", "8_8_40"
NEW = {
    "axes": "zyx",
    "resolution": (4, 4, 40),
    "chunks": 4,
    "shard_nbytes": 260,
    "memory_limit": "8kB",
    "source_id": "values",
}
N_SHARDS = 9
SCATTERED = ShardingParameters(
    hash="murmurhash3_x86_128", preshift_bits=0, minishard_bits=1, shard_bits=4
)
Tree = dict[str, bytes]


@dataclass(kw_only=True)
class Case:
    """A fault, and what came of it.

    Attributes
    ----------
    fault : {"kill", "fail", "cut"}
        What strikes.
    before : {"nothing", "a scale", "bad shards"}
        What stands there before; of bad shards, some are torn and some are missing.
    at : int
        Number of the effect before which it strikes.
    acked : int
        Shards that were acknowledged before.
    vacuous : bool
        Whether nothing was there yet, or all was done.
    lost, torn, left : int
        Shards that were acknowledged and are gone; files that are neither old nor new; and files
        that are left over in the end.
    trouble : str
        What else went wrong.
    """

    fault: str
    before: str
    at: int
    acked: int = 0
    vacuous: bool = False
    lost: int = 0
    torn: int = 0
    left: int = 0
    trouble: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.lost or self.torn or self.left or self.trouble)


def write(root: Path, told: Callable[[Any], object] = lambda report: None) -> None:
    """The call that is struck."""
    x = da.from_array(VALUES, chunks=(6, 10, 6))
    with dask.config.set({"scheduler": "sync", "shardwrite.retry-pauses": [0, 0, 0]}):
        if BAD_SHARDS in STATES:
            shardwrite.repair(root / KEY, x, progress=told)
        else:
            shardwrite.to_precomputed(x, root, progress=told, **NEW)


def make_before(root: Path, before: str) -> None:
    """What stands there before: a volume with a scale, and a field that is not ours."""
    if before == "nothing":
        return
    if before == BAD_SHARDS:
        with dask.config.set(scheduler="sync"):
            shardwrite.to_precomputed(da.from_array(VALUES, chunks=(6, 10, 6)), root, **NEW)
        shards = sorted((root / KEY).glob("*.shard"))
        for torn in shards[1::4]:
            os.truncate(torn, 20)
        for missing in shards[2::4]:
            missing.unlink()
        return
    x = da.from_array(VALUES[:, ::2, ::2], chunks=-1)
    with dask.config.set(scheduler="sync"):
        shardwrite.to_precomputed(x, root, **{**NEW, "resolution": (8, 8, 40), "source_id": "old"})
    info = json.loads((root / "info").read_text())
    (root / "info").write_text(json.dumps({"mesh": "mesh", **info}))


def tree(root: Path) -> Tree:
    """All files of a volume; receipts tell times, and copies of bad shards have names of their own."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
        and path.name != "shardwrite-receipt.json"
        and f"{KEY}.quarantine" not in path.parts
    }


def judge(case: Case, root: Path, old: Tree, new: Tree, acked: set[str]) -> None:
    """What must hold right after the fault."""
    there = tree(root)
    found = {name: data for name, data in there.items() if name in new}
    case.acked = len(acked)
    case.lost = len(acked - set(found))
    case.torn = sum(data not in (new[name], old.get(name)) for name, data in found.items())
    case.torn += sum(name not in found for name in old)
    shards = [name for name in there if there[name] != old.get(name) and name.endswith(".shard")]
    case.vacuous = not shards or found == new
    if case.before != BAD_SHARDS and found.get("info") == new["info"] and found != new:
        case.trouble = "the info has a scale that is not whole"


def judge_done(case: Case, root: Path, new: Tree) -> None:
    """What must hold when the same call has returned."""
    found = tree(root)
    case.torn += sum(found.get(name) != data for name, data in new.items())
    beside = [path for path in root.parent.iterdir() if path.name.startswith("v.")]
    case.left = len(set(found) - set(new)) + len(beside)
    case.left += sum(path.name.endswith((".shardwrite", ".spool")) for path in root.rglob("*"))
    with dask.config.set(scheduler="sync"):
        there = shardwrite.from_precomputed(root, scale=KEY, axes="zyx").compute()
    np.testing.assert_array_equal(there, VALUES)
    assert shardwrite.verify(root / KEY, deep=True).is_good


class Reference:
    """What an undisturbed run makes of each state before it."""

    def __init__(self, top: Path) -> None:
        self.places, self.olds, self.news, self.n_effects = {}, {}, {}, {}
        for before in STATES:
            place = top / before.replace(" ", "-")
            place.mkdir(parents=True)
            # A process that writes has threads, after which it should not fork.
            in_child(lambda p=place, b=before: make_before(p / "v", b))
            self.places[before], self.olds[before] = place, tree(place / "v")
            done = top / "done" / before.replace(" ", "-")
            shutil.copytree(place, done)
            in_child(lambda d=done: count_effects(lambda: write(d / "v"), top / "count"))
            self.n_effects[before] = int((top / "count").read_text())
            self.news[before] = tree(done / "v")
            assert sum(name.endswith(".shard") for name in self.news[before]) > N_SHARDS

    def begin(self, home: Path, before: str) -> Path:
        """Directory of a volume that is in the state before."""
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(self.places[before], home)
        return home / "v"


def acknowledging(root: Path, acks: Path) -> Callable[[Any], None]:
    """Callback that notes which shards of the new scale were acknowledged."""
    metadata_of = shardwrite.plan_precomputed(
        da.from_array(VALUES, chunks=(6, 10, 6)), **NEW
    ).metadata
    counts = metadata_of.grid.counts
    is_scattered = NEW.get("sharding") is SCATTERED
    numbers = scattered_ids(SCATTERED, MortonCode((3, 3, 2))).numbers.tolist()

    def key_of(rank: int) -> str:
        if is_scattered:
            return SCATTERED.key_of(numbers[rank])
        return metadata_of.shard_key(tuple(int(i) for i in np.unravel_index(rank, counts)))

    def told(report: Any) -> None:
        if BAD_SHARDS in STATES or (is_scattered and not (root / KEY).exists()):
            return  # these are shards of the spool, or may be
        with acks.open("a") as file:
            for rank in report.shards:
                file.write(f"{KEY}/{key_of(rank)}\n")

    return told


def run_in_child(case: Case, reference: Reference, home: Path, notes: Path) -> Case:
    """A kill or an effect that fails, in a process of its own."""
    acks, stage = notes / "acks", notes / "trouble"
    for note in (acks, stage):
        note.unlink(missing_ok=True)
    acks.touch()
    root = reference.begin(home, case.before)

    def fail(name: str) -> NoReturn:
        number = ERRORS[case.at % len(ERRORS)]
        raise OSError(number, os.strerror(number), name)

    def failing() -> None:
        """Whatever the call raises is an error of this package."""
        with before_effect(case.at, fail), contextlib.suppress(shardwrite.ShardwriteError):
            write(root, acknowledging(root, acks))

    def killed() -> None:
        write(root, acknowledging(root, acks))

    if case.fault == "kill":
        # The file of acknowledgements is written through io, which is no effect that is counted.
        ended = in_child(killed, case.at, stage)
        case.trouble = "" if ended in ("killed", "done") else ended
    else:
        ended = in_child(failing, 0, stage)
        case.trouble = "" if ended == "done" else ended
    acked = set(acks.read_text().split())
    old, new = reference.olds[case.before], reference.news[case.before]
    if not case.trouble:
        judge(case, root, old, new, acked)

    def finish() -> None:
        write(root)
        judge_done(case, root, new)
        stage.write_text(json.dumps([case.torn, case.left]))

    if not case.is_bad:
        ended = in_child(finish, 0, stage)
        if ended == "done":
            case.torn, case.left = json.loads(stage.read_text())
        else:
            case.trouble = ended
    return case


def run_cut(
    case: Case, reference: Reference, machine: power_cut.Machine, notes: Path, seed: int
) -> Case:
    """A power cut under the call, on a machine that starts again."""
    rng = np.random.default_rng([seed, case.at])
    acks, home = notes / "acks", machine.root / f"case-{seed}-{case.at}-{len(case.before)}"
    acks.write_text("")
    root = reference.begin(home, case.before)
    os.sync()
    acked: set[str] = set()

    def strike(_: str) -> None:
        acked.update(acks.read_text().split())  # after the cut, no one could have been told
        machine.cut(rng)

    with before_effect(case.at, strike):
        try:
            write(root, acknowledging(root, acks))
        except shardwrite.ShardwriteError:
            pass
        except Exception as error:
            case.trouble = f"{type(error).__name__}: {error}"
    machine.restart()
    with mock.patch.object(lease, "boot_id", return_value=f"boot {seed} {case.at} {case.before}"):
        try:
            judge(case, root, reference.olds[case.before], reference.news[case.before], acked)
            write(root)
            judge_done(case, root, reference.news[case.before])
        except Exception as error:
            case.trouble = case.trouble or f"{type(error).__name__}: {error}"[:600]
    shutil.rmtree(home, ignore_errors=True)
    return case


def run(fault: str, *, every: int = 1, n_cases: int = 0, seed: int = 0) -> list[Case]:
    """Cases of one fault: before every so many effects, or a number of them at random."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    top = Path(tempfile.mkdtemp(prefix="volumes-", dir=memory))
    try:
        reference, notes = Reference(top / "made"), top / "notes"
        notes.mkdir()
        chosen = random.Random(seed)
        cases = [
            Case(fault=fault, before=before, at=at)
            for before in STATES
            for at in range(1 + seed % every, reference.n_effects[before] + 1, every)
        ]
        cases = chosen.sample(cases, min(n_cases, len(cases))) if n_cases else cases
        if fault != "cut":
            return [run_in_child(case, reference, top / "home", notes) for case in cases]
        with tempfile.TemporaryDirectory() as disk, power_cut.Machine(disk, "ext4") as machine:
            return [run_cut(case, reference, machine, notes, seed) for case in cases]
    finally:
        shutil.rmtree(top)


def summary(cases: list[Case]) -> dict[str, Any]:
    """Totals."""
    names = ("acked", "vacuous", "lost", "torn", "left")
    return {
        "cases": len(cases),
        **{name: sum(getattr(case, name) for case in cases) for name in names},
        "troubles": [str(case) for case in cases if case.is_bad],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fault", choices=FAULTS, default="kill")
    parser.add_argument("--every", type=int, default=1, help="only every so many effects")
    parser.add_argument("--cases", type=int, default=0, help="so many of them at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hash", choices=HASHES, default=HASHES[0])
    parser.add_argument("--repair", action="store_true", help="repair a scale, and write none")
    parser.add_argument("--json", help="write every case to this file")
    given = parser.parse_args()
    if given.fault == "cut" and (why := power_cut.missing("ext4")):
        sys.exit(why)
    if given.hash != HASHES[0]:
        NEW["sharding"] = SCATTERED
    if given.repair:
        STATES[:] = [BAD_SHARDS]
    gc.freeze()
    cases = run(given.fault, every=given.every, n_cases=given.cases, seed=given.seed)
    found = summary(cases)
    if given.json:
        document = {"summary": found, "cases": [asdict(case) for case in cases]}
        Path(given.json).write_text(json.dumps(document))
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["troubles"] else 0)


if __name__ == "__main__":
    main()
