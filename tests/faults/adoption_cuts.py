"""Power cuts, kills and failed write-back under an adoption: every file can be read, and the same
call finishes it, or giving it up brings back every file to the byte.

Each case makes HDF5 files. Before some effect of the adoption, the process is killed, or the power
of the machine of `power_cut.py` is cut. Or writes of the disk of `lossy_device.py` fail meanwhile.
Every file is then read by h5py. One of two steps comes next, and its result is read after the file
system was mounted once more.

Run as ``python tests/faults/adoption_cuts.py --fault cut --cases 100 --json out.json``, with
``--fault kill``, or with ``--fault lossy``, as root where something is mounted, or through
`test_adoptions.py`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

import dask
import h5py
import numpy as np

import shardwrite
from shardwrite.journal import lease

sys.path.insert(0, str(Path(__file__).parent))
import adoptions
import lossy_device
import power_cut
from ends import before_effect, count_effects, in_child
from leftovers import left_over, names_in

FAULTS = ("cut", "kill", "lossy")
Disk = power_cut.Machine | lossy_device.Disk
# What the writes that fail carry: the superblock, the tree of chunks, or a document. The log of the
# file system has none of them. If that failed, all would be read-only until it is mounted again.
PATTERNS = ([b"\x89HDF\r\n\x1a\n"], [b"TREE\x01"], [b'": '])


@dataclass(kw_only=True)
class Case:
    """An adoption that is struck.

    Attributes
    ----------
    number : int
        Number of the case, by which it is drawn.
    how : {"move", "link"}
        How the files enter the array.
    block : int
        Size of the user block of each file, in bytes.
    then : {"finish", "give up"}
        What comes next.
    effect : str
        The effect before which the fault came; nothing if the adoption had ended before.
    failed : int
        Writes that failed.
    error : str
        What the adoption raised, if it did.
    lost : int
        Files that cannot be read right after the fault.
    trouble : str
        What else went wrong.
    """

    number: int
    how: str
    block: int
    then: str
    effect: str = ""
    failed: int = 0
    error: str = ""
    lost: int = 0
    trouble: str = ""
    left: list[str] = field(default_factory=list)

    @property
    def is_evidence(self) -> bool:
        """Whether something struck."""
        return bool(self.effect or self.failed)


def draw(seed: int, number: int) -> tuple[Case, np.random.Generator]:
    """A case, and the source of what else is random in it."""
    rng = np.random.default_rng([seed, number])
    how, then = ("move", "link")[rng.integers(2)], ("finish", "give up")[rng.integers(2)]
    return Case(number=number, how=how, block=512 * int(rng.integers(2)), then=then), rng


class Bench:
    """Where cases run.

    Parameters
    ----------
    disk : power_cut.Machine or lossy_device.Disk, optional
        The file system that is struck, unless processes are killed.
    root : pathlib.Path
        Directory of the cases.
    notes : pathlib.Path
        A directory that no fault strikes.
    """

    def __init__(self, disk: Disk | None, root: Path, notes: Path) -> None:
        self._disk, self._root, self._notes = disk, root, notes
        self._n_effects: dict[tuple[str, int], int] = {}

    def run_case(self, seed: int, number: int) -> Case:
        """One adoption, one strike, the next step, and the judgements."""
        case, rng = draw(seed, number)
        home = self._root / f"case-{number}"
        adoptions.make(home, case.block)
        subprocess.run(["sync", "--file-system", home], check=True)
        before, names = adoptions.state(home), names_in(home)
        boots = [f"boot {seed} {number} {n if self._disk else 0}" for n in range(2)]
        with mock.patch.object(lease, "boot_id", return_value=boots[0]):
            if isinstance(self._disk, lossy_device.Disk):
                self._fail(self._disk, case, home, rng)
            else:
                self._strike(self._disk, case, home, rng)
        with mock.patch.object(lease, "boot_id", return_value=boots[1]):
            lost = self._notes / "lost"
            case.trouble = self._in_child(lambda: lost.write_text(str(n_lost(home))))
            case.lost = 0 if case.trouble else int(lost.read_text())
            case.trouble = case.trouble or self._in_child(lambda: follow(case, home))
            self._remount()
            case.trouble = case.trouble or self._in_child(lambda: judge(case, home, before))
        case.left = left_over(home, names)
        shutil.rmtree(home)
        return case

    def _in_child(self, action: Callable[[], object]) -> str:
        """Do something in a process of its own; nothing, or what went wrong."""
        stage = self._notes / "trouble"
        stage.unlink(missing_ok=True)
        ended = in_child(action, stage=stage)
        return "" if ended == "done" else ended

    def _where(self, case: Case, rng: np.random.Generator) -> int:
        """Number of the effect before which a case strikes."""
        kind = case.how, case.block
        if kind not in self._n_effects:
            home = Path(tempfile.mkdtemp(dir=self._notes)) / "home"
            adoptions.make(home, case.block)
            count = self._notes / "count"
            trouble = self._in_child(
                lambda: count_effects(lambda: adoptions.adopt(home, case.how), count)
            )
            assert not trouble, trouble
            self._n_effects[kind] = int(count.read_text())
        return int(rng.integers(1, 1 + self._n_effects[kind]))

    def _strike(
        self, machine: power_cut.Machine | None, case: Case, home: Path, rng: np.random.Generator
    ) -> None:
        """Cut the power under an adoption, and have the machine start again; or kill the process
        where there is no machine."""
        k, effect = self._where(case, rng), self._notes / "effect"
        effect.unlink(missing_ok=True)

        def strike(name: str) -> None:
            effect.write_text(name)
            if machine is None:
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                machine.cut(rng)

        def action() -> None:
            with before_effect(k, strike):
                adoptions.adopt(home, case.how)

        case.error = self._in_child(action)
        case.effect = effect.read_text() if effect.exists() else ""
        self._remount()

    def _fail(
        self, disk: lossy_device.Disk, case: Case, home: Path, rng: np.random.Generator
    ) -> None:
        """Have writes fail under an adoption, and in half of the cases show what the disk has."""
        pattern = PATTERNS[rng.integers(len(PATTERNS))]
        disk.arm(pattern, skip=int(rng.integers(4)), times=int(rng.choice([1, 2, -1])))
        case.error = self._in_child(lambda: adoptions.adopt(home, case.how))
        case.failed = disk.heal()[1]
        if rng.random() < 0.5:
            disk.remount()

    def _remount(self) -> None:
        if isinstance(self._disk, power_cut.Machine):
            self._disk.restart()
        elif self._disk is not None:
            self._disk.remount()


def n_lost(home: Path) -> int:
    """Number of files that h5py does not read, at the old name or in the directory of the array.

    A file that has two names must be readable under both.
    """
    found = 0
    for number, name in enumerate(adoptions.NAMES):
        rows = adoptions.X[adoptions.EDGES[number] : adoptions.EDGES[number + 1]]
        inside = f"c/{number}/0"
        places = [home / name, home / "x" / inside]
        places += home.glob(f"x.conversion.shardwrite/*/adopted/{inside}")
        places = [place for place in places if place.exists()]
        found += not places or not all(holds(place, rows) for place in places)
    return found


def holds(path: Path, rows: np.ndarray) -> bool:
    """Whether h5py finds the values in a file."""
    try:
        with h5py.File(path) as file:
            return np.array_equal(file["data"][...], rows)
    except (OSError, KeyError):
        return False


def follow(case: Case, home: Path) -> None:
    """The next step of a user."""
    if case.then == "finish":
        adoptions.adopt(home, case.how)
        return
    try:
        shardwrite.abandon(home / "x")
    except shardwrite.SpecError:
        assert not (home / "x.conversion.shardwrite").exists(), "something was begun"


def judge(case: Case, home: Path, before: dict[str, object]) -> None:
    """What must hold after the next step, and what is then possible."""
    if case.then == "finish":
        adoptions.check_adopted(home, case.how)
    else:
        adoptions.check_given_back(home, before)
    adoptions.adopt(home, case.how)
    adoptions.check_adopted(home, case.how)


def run(directory: Path, fault: str, filesystem: str, n_cases: int, *, seed: int = 0) -> list[Case]:
    """Cases of one fault, one after the other.

    Parameters
    ----------
    directory : pathlib.Path
        Empty; what is mounted in it is unmounted at the end.
    fault, filesystem, n_cases, seed
        See the head of this file.
    """
    with tempfile.TemporaryDirectory() as notes, contextlib.ExitStack() as stack:
        disk: Disk | None = None
        if fault != "kill":
            made = power_cut.Machine if fault == "cut" else lossy_device.Disk
            disk = stack.enter_context(made(directory, filesystem))
        bench = Bench(disk, directory if disk is None else disk.root, Path(notes))
        return [bench.run_case(seed, number) for number in range(n_cases)]


def summary(cases: list[Case]) -> dict:
    """Totals; acknowledged are the files that are there before each fault."""
    struck = [case for case in cases if case.is_evidence]
    return {
        "cases": len(cases),
        "vacuous": len(cases) - len(struck),
        "acked": len(struck) * len(adoptions.NAMES),
        "lost": sum(case.lost for case in cases),
        "left": sum(len(case.left) for case in cases),
        "effects": dict(Counter(case.effect for case in struck if case.effect)),
        "troubles": [
            f"case {case.number}, {case.how}, block {case.block}, {case.effect or case.failed}, "
            f"{case.then}: {case.trouble[-600:]}"
            for case in cases
            if case.trouble
        ],
    }


def main() -> None:
    parser = power_cut.parser("Strike an adoption, many times.", "cases", 100)
    parser.add_argument("--fault", choices=FAULTS, default="cut")
    given = parser.parse_args()
    if given.fault != "kill":
        missing = power_cut.missing if given.fault == "cut" else lossy_device.missing
        if why := missing(given.filesystem):
            sys.exit(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing stays mounted
    gc.freeze()
    with tempfile.TemporaryDirectory() as directory, dask.config.set(scheduler="sync"):
        cases = run(Path(directory), given.fault, given.filesystem, given.cases, seed=given.seed)
    found = summary(cases)
    if given.json:
        document = {"summary": found, "cases": [asdict(case) for case in cases]}
        given.json.write_text(json.dumps(document))
    print(json.dumps({"fault": given.fault, "seed": given.seed, **found}, indent=1))
    sys.exit(1 if found["troubles"] or found["lost"] else 0)


if __name__ == "__main__":
    main()
