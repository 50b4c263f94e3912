"""Power cuts under operations on an array that keeps a manifest, and on the group that lists it.

The operations, and what must hold of the lists, are those of `manifests.py`. The machine is that of
`power_cut.py`, whose head says what a cut simulates. The process is killed with its machine, and
what goes on has another boot id.

Run as ``python tests/faults/manifest_cuts.py --cases 100 --seed 0 --json out.json``, as root, or
through `test_manifests.py`.
"""

from __future__ import annotations

import gc
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import dask
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import power_cut
import seams
from ends import in_child
from helpers import scratch
from leftovers import left_over, names_in
from manifests import OPERATIONS, Case, go_on, n_effects


class Place:
    """Where cases run.

    Parameters
    ----------
    machine : power_cut.Machine
        Whose power is cut.
    notes : pathlib.Path
        A directory that no cut strikes, for what operations begin with.
    """

    def __init__(self, machine: power_cut.Machine, notes: Path) -> None:
        self._machine, self._notes = machine, notes
        self._made: dict[str, tuple[Path, int]] = {}

    def made(self, name: str) -> tuple[Path, int]:
        """What an operation begins with, and how many effects it has."""
        if name not in self._made:
            made = self._notes / f"made-{len(self._made)}"
            (made / "g").mkdir(parents=True)
            OPERATIONS[name].prepare(made / "g/x")
            self._made[name] = made, n_effects(name, made, self._notes / "counted")
        return self._made[name]

    def run_case(self, name: str, number: int, seed: int, then: str) -> Case | None:
        """Cut the power under an operation, and go on; None if it had ended before."""
        rng = np.random.default_rng([seed, number])
        made, n = self.made(name)
        cut_at = 1 + int(rng.integers(n))
        home, stage = self._machine.root / f"case-{seed}-{number}", self._notes / "trouble"
        path = home / "g/x"
        stage.unlink(missing_ok=True)
        shutil.copytree(made, home)
        subprocess.run(["sync", "--file-system", home], check=True)
        ended = in_child(
            lambda: OPERATIONS[name].perform(path),
            cut_at,
            stage,
            before_death=lambda: self._machine.cut(rng),
        )
        if ended == "killed":
            self._machine.restart()
            with seams.after_restart(f"{seed} {number}"):
                ended = in_child(lambda: go_on(name, path, then), stage=stage)
        elif ended == "done":
            return None
        left = left_over(home, names_in(made), own=("trouble",))
        shutil.rmtree(home)
        return Case(name, cut_at, then, "" if ended == "done" else ended, left)


def run(directory, names: Sequence[str], n_cases: int, *, seed: int = 0) -> list[Case]:
    """Cases, whose operations take turns; with each next turn, what is done afterwards changes."""
    top, done = Path(directory), []
    notes = scratch("cuts-")
    try:
        with power_cut.Machine(top, "ext4") as machine:
            place = Place(machine, notes)
            for number in range(n_cases):
                name = names[number % len(names)]
                is_given_up = OPERATIONS[name].is_given_up and number // len(names) % 2
                then = "abandon" if is_given_up else "again"
                done.append(place.run_case(name, number, seed, then))
    finally:
        shutil.rmtree(notes)
    return [case for case in done if case is not None]


def main() -> None:
    arguments = power_cut.parser("Cut the power under arrays that keep a manifest.", "cases", 100)
    arguments.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    given = arguments.parse_args()
    if why := power_cut.missing("ext4"):
        sys.exit(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing stays mounted
    gc.freeze()
    with tempfile.TemporaryDirectory() as directory, dask.config.set(scheduler="sync"):
        done = run(directory, given.operations, given.cases, seed=given.seed)
    troubles = [case for case in done if case.trouble]
    if given.json:
        given.json.write_text(json.dumps([asdict(case) for case in done]))
    for case in troubles[:50]:
        told = case.trouble.strip().splitlines()[-1]
        print(f"{case.operation}, cut at {case.kill_at}, then {case.then}: {told}")
    print(json.dumps({"cuts": len(done), "troubles": len(troubles)}))
    sys.exit(1 if troubles else 0)


if __name__ == "__main__":
    main()
