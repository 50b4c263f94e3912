"""A full disk under every operation: readers are right while it is full, nothing that was
acknowledged is lost, giving up needs no room, and once there is room the same call finishes.

Each case makes an array on a small file system of its own. Before some effect of an operation, a
file beside it takes the last free byte, and the disk stays full. When the operation has failed,
three readers judge what is there; then comes a user's next step, and they judge again, all of this
without a free byte. Then the file is removed, and the same call must finish.

With ``--then kill``, the process is killed some effects after the disk became full. Shards that are
changed in place may then be torn until they are recovered, and a recovery may say that it needs
room.

Run as ``python tests/faults/full_disk.py --cases 150 --filesystem tmpfs ext4 xfs --json out.json``,
as root.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import judging
import loop_devices
import power_cut
from ends import before_effect
from scenarios import Scenario

FILESYSTEMS = ("tmpfs", "ext4", "xfs")
SAYS_WHAT = re.compile(r"anew takes [\d,]+ bytes: free as many")
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
KINDS = [*judging.KINDS, ("consume", "replace")]
FOLLOW_UPS = ("abandon", "same", "writer", "nothing")
_NBYTES = {"tmpfs": 16 * 2**20, "ext4": 24 * 2**20, "xfs": 304 * 2**20}
_N_EFFECTS = 200
"""Of an operation of which no more is known."""


@dataclass(kw_only=True)
class Case(judging.Case):
    """An operation under which the disk becomes full.

    Attributes
    ----------
    filesystem : str
        That becomes full.
    at : float
        Where, as a share of the effects that such an operation has.
    effect : str
        Before which effect the disk became full; nothing if the operation had ended before.
    """

    filesystem: str
    at: float
    effect: str = ""


def draw(
    filesystem: str, seed: int, number: int, kinds: Sequence[tuple[str, str]] = KINDS,
    follow_ups: Sequence[str] = FOLLOW_UPS,
) -> Case:
    """A case."""
    rng = np.random.default_rng([seed, number])
    drawn = judging.draw(number, rng, kinds)
    drawn["follow_up"] = follow_ups[number // len(kinds) % len(follow_ups)]
    return Case(**drawn, filesystem=filesystem, at=float(rng.random()))


class Disk:
    """A small file system, and a file in it that takes all room.

    Parameters
    ----------
    directory : path
        An empty directory for the image and the mount point.
    filesystem : {"tmpfs", "ext4", "xfs"}
        Which.

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
            extra = ["-m", "0"] if self._filesystem == "ext4" else []
            subprocess.run(
                [*power_cut.MKFS[self._filesystem], *extra, self._image],
                check=True,
                capture_output=True,
            )
            self._device = loop_devices.attach(self._image)
            mount = [self._device]
        subprocess.run(["mount", *mount, self.root], check=True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        subprocess.run(["umount", "--lazy", self.root], check=True)
        if self._device:
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
    """Where cases run, on one disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._n_effects: dict[tuple[str, str], int] = {}

    def run_case(self, case: Case, seed: int) -> Case:
        """One operation, a disk that becomes full under it, and the judgements."""
        home = self._disk.root / f"case-{seed}-{case.number}"
        with judging.set_up(case, home, seed) as scenario:
            scenario.make()
            try:
                self._fill_under(case, scenario)
                judging.judge(case, scenario)
                if case.effect and not case.is_bad:
                    self._disk.fill()  # what the process has given back when it failed
                    self._follow(case, scenario)
                    judging.judge(case, scenario)
            finally:
                self._disk.free()
            if not case.is_bad:
                judging.judge_all(case, scenario)
        return case

    def _fill_under(self, case: Case, scenario: Scenario) -> None:
        kind = case.operation, case.strategy
        at = 1 + int(case.at * self._n_effects.get(kind, _N_EFFECTS))

        def strike(effect: str) -> None:
            case.effect = effect
            self._disk.fill()

        with before_effect(at, strike) as n_effects:
            try:
                scenario.run()
            except Exception as error:
                enter_error(case, error)
        if not case.effect:
            self._n_effects[kind] = n_effects()
        scenario.enter_journalled()

    def _follow(self, case: Case, scenario: Scenario) -> None:
        """The next step of a user who has freed nothing yet."""
        if case.follow_up == "nothing" or not case.error:
            return
        try:
            judging.follow(scenario, case.follow_up)
        except Exception as error:
            enter_error(case, error)
            if case.follow_up == "abandon" and not SAYS_WHAT.search(str(error)):
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
    with Disk(Path(directory), filesystem) as disk:
        bench = Bench(disk)
        return [bench.run_case(case, seed) for case in cases]


def summary(cases: list[Case]) -> dict:
    """Totals."""
    struck = [case for case in cases if case.effect]
    return {
        **judging.totals(cases, struck),
        "effects": dict(Counter(case.effect for case in struck)),
        "operations": dict(Counter(f"{case.operation}, {case.strategy}" for case in struck)),
        "raised": sum(bool(case.error) for case in struck),
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
    judging.tell({"filesystem": given.filesystem, "seed": given.seed, **summary(cases)}, cases, given.json)


if __name__ == "__main__":
    main()
