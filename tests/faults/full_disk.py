"""A full disk under the operations of `scenarios.py`: readers are right while it is full, nothing
that was acknowledged is lost, giving up needs no room, and once there is room the same call finishes.
``all_faults.py --faults "full disk"`` fills it under all others.

Each case makes an array on a small file system of its own. Before some effect of an operation, a
file beside it takes the last free byte, and the disk stays full. When the operation has failed,
three readers judge what is there; then comes a user's next step, and they judge again, all of this
without a free byte. Then the file is removed, and the same call must finish.

In a third of the cases, the process is killed some effects after the disk became full. Shards that
are changed in place may then be torn, and the next step is always to give up. Where a shard must be
written anew for that, it says how many bytes it needs, and readers are right all the same.

Readers start threads, and what is forked beside threads may wait for ever. So each case runs in a
process of its own, which forks before it reads.

Run as ``python tests/faults/full_disk.py --cases 150 --filesystem ext4 --json out.json``, as root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import judging
from effects import before_effect, count_effects, in_child
from scenarios import Scenario
from small_disk import FILESYSTEMS, FULL, SAYS_WHAT, Disk

FOLLOW_UPS = ("abandon", "same", "writer", "nothing")
KINDS = [*judging.KINDS, ("consume", "replace")]


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
    if rng.random() > 1 / 3:
        kill_after = 0
    else:
        drawn["follow_up"] = "abandon"
    return Case(**drawn, filesystem=filesystem, at=at, kill_after=kill_after)


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
        """A case in a process of its own."""
        outcome = self._notes / "outcome"
        outcome.unlink(missing_ok=True)
        where = 1 + int(case.at * self._n_effects_of(case, seed))
        ended = self._in_child(
            lambda: outcome.write_text(json.dumps(asdict(self._judged(case, seed, where))))
        )
        if ended == "done":
            return Case(**json.loads(outcome.read_text()))
        self._disk.free()
        case.trouble = ended[-600:]
        return case

    def _in_child(self, action: Callable[[], object]) -> str:
        stage = self._notes / "stage"
        stage.unlink(missing_ok=True)
        return in_child(action, stage=stage)

    def _n_effects_of(self, case: Case, seed: int) -> int:
        """How many effects such an operation has that is not struck."""
        kind, count = (case.operation, case.strategy), self._notes / "count"

        def act() -> None:
            counted = replace(case)
            with judging.set_up(counted, self._disk.root / "count", seed) as scenario:
                scenario.make()
                count_effects(scenario.run, count)
            assert not counted.trouble, counted.trouble

        if kind not in self._n_effects:
            ended = self._in_child(act)
            assert ended == "done", ended
            self._n_effects[kind] = int(count.read_text())
        return self._n_effects[kind]

    def _judged(self, case: Case, seed: int, where: int) -> Case:
        """One operation, a disk that becomes full under it, and the judgements."""
        home = self._disk.root / f"case-{seed}-{case.number}"
        with judging.set_up(case, home, seed) as scenario:
            scenario.make()
            try:
                if case.kill_after:
                    self._kill_under(case, scenario, where)
                else:
                    self._fill_under(case, scenario.run, where)
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

    def _fill_under(self, case: Case, act: Callable[[], object], where: int) -> None:
        def strike(effect: str) -> None:
            case.effect = effect
            self._disk.fill()

        with before_effect(where, strike):
            try:
                act()
            except Exception as error:
                enter_error(case, error)

    def _kill_under(self, case: Case, scenario: Scenario, where: int) -> None:
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
                before_effect(where, strike),
                contextlib.suppress(shardwrite.ShardwriteError),
            ):
                scenario.run()

        ended = in_child(act, where + case.kill_after, self._notes / "trouble")
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
    numbers = range(seed * n_cases, (seed + 1) * n_cases)  # so that batches are of other kinds
    cases = [draw(filesystem, seed, number, kinds, follow_ups) for number in numbers]
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
        "bad": sum(case.is_bad for case in cases),
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
    parser.add_argument("--every", type=int, default=1, help="only every so many operations")
    parser.add_argument("--first", type=int, default=0, help="number of the first of them")
    given = parser.parse_args()
    kinds = [kind for kind in KINDS if kind[0] in given.operations][given.first :: given.every]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing stays mounted
    with tempfile.TemporaryDirectory() as directory:
        how = {"seed": given.seed, "kinds": kinds, "follow_ups": given.follow_ups}
        cases = run(Path(directory), given.filesystem, given.cases, **how)
    judging.tell(
        {"filesystem": given.filesystem, "seed": given.seed, **summary(cases)}, cases, given.json
    )


if __name__ == "__main__":
    main()
