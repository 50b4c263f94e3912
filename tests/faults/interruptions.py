"""Power cuts and kills under every operation: what was acknowledged is there, whatever is done
next.

Each case makes an array, and strikes right before some effect of an operation on the file system:
the power is cut (on the machine of `power_cut.py`, whose head says what that simulates), or the
process is killed. What is there is judged, then a user's next step is taken, and it is judged
again.

Run as ``python tests/faults/interruptions.py --fault cut --filesystem ext4 --cases 500``, as root,
or with ``--fault kill``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import judging
import power_cut
import seams
from effects import before_effect
from helpers import scratch
from scenarios import STRATEGIES, UNSHARDED, Scenario

FAULTS = ("cut", "kill")
KINDS = [
    *judging.KINDS,
    ("consume", "replace"),
    ("several", "replace"),
    *(("self-reading", strategy) for strategy in STRATEGIES if strategy != UNSHARDED),
]
_N_EFFECTS = 200
"""Of an operation of which no more is known."""


@dataclass(kw_only=True)
class Case(judging.Case):
    """An operation that is struck.

    Attributes
    ----------
    fault : {"cut", "kill"}
        What strikes.
    at : float
        Where, as a share of the effects that such an operation has.
    effect : str
        Before which effect it struck; nothing if the operation had ended before.
    """

    fault: str
    at: float
    effect: str = ""


def draw(fault: str, seed: int, number: int, kinds: Sequence[tuple[str, str]] = KINDS) -> Case:
    """A case."""
    rng = np.random.default_rng([seed, number])
    return Case(**judging.draw(number, rng, kinds), fault=fault, at=float(rng.random()))


class Place:
    """Where cases of one fault run.

    Parameters
    ----------
    directory : pathlib.Path
        For arrays, on the machine whose power is cut if there is one.
    notes : pathlib.Path
        A directory that no fault strikes.
    machine : power_cut.Machine, optional
        Whose power is cut.
    """

    def __init__(
        self, directory: Path, notes: Path, machine: power_cut.Machine | None = None
    ) -> None:
        self.directory, self.notes, self._machine = directory, notes, machine
        self._n_effects: dict[tuple[str, str], int] = {}

    def run_case(self, case: Case, seed: int) -> Case:
        """One array, one strike, one step of the user, and the judgements."""
        home = self.directory / f"case-{seed}-{case.number}"
        with judging.set_up(case, home, seed) as scenario:
            scenario.make()
            subprocess.run(["sync", "--file-system", home], check=True)
            if self._machine is None:
                self.kill(case, scenario)
                self.follow_and_judge(case, scenario)
            else:
                self.cut(case, scenario, self._machine)
                with seams.after_restart(f"{seed} {case.number}"):
                    self.follow_and_judge(case, scenario)
        return case

    def where(self, case: Case) -> int:
        """Number of the effect before which a case strikes."""
        return 1 + int(case.at * self._n_effects.get((case.operation, case.strategy), _N_EFFECTS))

    def ended(self, case: Case, n_effects: int) -> None:
        """Remember how many effects an operation had that was not struck."""
        self._n_effects[case.operation, case.strategy] = n_effects

    def cut(self, case: Case, scenario: Scenario, machine: power_cut.Machine) -> None:
        """Cut the power under an operation, and have the machine start again."""
        rng = np.random.default_rng([case.number, 2])
        acked: set[int] = set(scenario.acked)

        def strike(effect: str) -> None:
            case.effect = effect
            acked.update(scenario.acked)  # before the cut: after it, no one could have been told
            machine.cut(rng)

        with before_effect(self.where(case), strike) as n_effects:
            try:
                scenario.run()
            except Exception as error:
                case.enter_error(error)
        if case.effect:
            scenario.acked, scenario.allowed = acked, []
        else:
            self.ended(case, n_effects())
        machine.restart()

    def kill(self, case: Case, scenario: Scenario) -> None:
        """Kill the process of an operation."""
        acks, effect, outcome = (self.notes / name for name in ("acks", "effect", "outcome"))
        for note in (acks, effect, outcome):
            note.unlink(missing_ok=True)

        def strike(name: str) -> None:
            effect.write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

        def tell(acked: set[int]) -> None:
            acks.with_suffix(".new").write_text(json.dumps(sorted(acked)))
            acks.with_suffix(".new").replace(acks)

        pid = os.fork()
        if not pid:
            try:
                scenario.told = tell
                with before_effect(self.where(case), strike) as n_effects:
                    scenario.run()
                outcome.write_text(json.dumps([n_effects(), ""]))
            except BaseException as error:
                outcome.write_text(json.dumps([0, f"{type(error).__name__}: {error}"]))
            os._exit(0)
        os.waitpid(pid, 0)
        scenario.acknowledge(json.loads(acks.read_text()) if acks.exists() else [])
        case.effect = effect.read_text() if effect.exists() else ""
        if not case.effect:
            n, error = json.loads(outcome.read_text())
            assert not error, error
            self.ended(case, n)
            scenario.allowed = [scenario.wanted]

    @staticmethod
    def follow_and_judge(case: Case, scenario: Scenario) -> None:
        """Judge what is there, take the next step, and judge again."""
        scenario.enter_journalled()
        if not case.in_place:
            judging.judge(case, scenario)
        judging.follow(scenario, case.follow_up)
        judging.judge_all(case, scenario)


def run(
    directory,
    fault: str,
    filesystem: str,
    n_cases: int,
    *,
    seed: int = 0,
    kinds: Sequence[tuple[str, str]] = KINDS,
    is_last: Callable[[Case], object] | None = None,
) -> list[Case]:
    """Cases of one fault, one after the other, up to the first that is the last one."""
    top = Path(directory)
    cases = [draw(fault, seed, number, kinds) for number in range(n_cases)]
    notes = top / "notes"
    notes.mkdir()
    if fault == "cut":
        with power_cut.Machine(top, filesystem) as machine:
            place = Place(machine.root, notes, machine)
            return power_cut.up_to((place.run_case(case, seed) for case in cases), is_last)
    home = scratch("kills-")
    try:
        place = Place(home, notes)
        return power_cut.up_to((place.run_case(case, seed) for case in cases), is_last)
    finally:
        shutil.rmtree(home)


def summary(cases: list[Case]) -> dict:
    """Totals."""
    struck = [case for case in cases if case.effect]
    return {
        **judging.totals(cases, struck),
        "effects": dict(Counter(case.effect for case in struck)),
        "operations": dict(Counter(f"{case.operation}, {case.strategy}" for case in struck)),
        "errors": dict(Counter(case.error.split(":")[0] for case in cases if case.error)),
    }


def main() -> None:
    parser = power_cut.parser(
        "Cut the power or kill the process under every operation, many times.", "cases", 500
    )
    parser.add_argument("--fault", choices=FAULTS, default="cut")
    operations = sorted({operation for operation, _ in KINDS})
    parser.add_argument("--operations", nargs="+", choices=operations, default=operations)
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if kind[0] in given.operations]
    if given.fault == "cut" and (why := power_cut.missing(given.filesystem)):
        sys.exit(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing stays mounted
    with tempfile.TemporaryDirectory() as directory:
        how = {"seed": given.seed, "kinds": kinds}
        cases = run(directory, given.fault, given.filesystem, given.cases, **how)
    document = {
        "fault": given.fault,
        "filesystem": given.filesystem,
        "seed": given.seed,
        **summary(cases),
    }
    judging.tell(document, cases, given.json)


if __name__ == "__main__":
    main()
