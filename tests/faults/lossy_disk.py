"""Failed write-back under every operation: what was acknowledged outlives an unmount.

Each case makes an array on the disk of `lossy_device.py` and has one, two or all writes fail
while an operation runs. Then it heals the disk, lets the kernel forget some of the pages, does
what a user may do next, unmounts, mounts, and judges what the disk has.

The disk knows data by the mark that every inner chunk begins with (see `scenarios.py`),
and documents (plans, records, journals, receipts, ``zarr.json``) by the way that JSON is spaced.
What the file system writes for itself never fails.

Run as ``python tests/faults/lossy_disk.py --cases 500 --seed 0 --filesystem ext4 --json
out.json``, as root.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import judging
import lossy_device
import power_cut
from judging import KINDS, OPERATIONS, follow, judge_all
from scenarios import MARK, STRATEGIES, Scenario

WHERE = {"data": [MARK], "documents": [b'": '], "both": [MARK, b'": ']}
TIMES = (1, 2, -1)
CONSUMED = [("consume", "replace")]
"""What else can be asked for by name."""


@dataclass(kw_only=True)
class Case(judging.Case):
    """An operation under which writes fail.

    Attributes
    ----------
    where : str
        What the writes that fail carry: see `WHERE`.
    skip, times : int
        Such writes that pass before, and that fail then; -1 for all.
    keep : float
        Share of the files whose pages stay in memory.
    again : bool
        Whether one more write fails under the follow-up, which is then done again.
    matched, failed : int
        Writes that carried the pattern, and that failed.
    """

    where: str
    skip: int
    times: int
    keep: float
    again: bool
    matched: int = 0
    failed: int = 0


def draw(seed: int, number: int, kinds=KINDS) -> Case:
    """A case."""
    rng = np.random.default_rng([seed, number])
    return Case(
        **judging.draw(number, rng, kinds),
        where=str(rng.choice(list(WHERE), p=[0.7, 0.15, 0.15])),
        skip=int(rng.integers(4) if rng.random() < 0.5 else rng.integers(20)),
        times=TIMES[int(rng.integers(3))],
        keep=float(rng.choice([0.0, 0.5, 1.0])),
        again=bool(rng.random() < 0.25),
    )


def run_case(disk: lossy_device.Disk, case: Case, seed: int) -> Case:
    """One array, one fault, one follow-up, one judgement."""
    with judging.set_up(case, disk.root / f"case-{case.number}", seed) as scenario:
        try:
            scenario.make()
            disk.sync()
            fail_under(disk, case, scenario)
            follow_up(disk, case, scenario)
            disk.remount()
            judge_all(case, scenario)
        finally:
            disk.heal()
    return case


def fail_under(disk: lossy_device.Disk, case: Case, scenario: Scenario) -> None:
    """Run the operation while writes fail."""
    disk.arm(WHERE[case.where], skip=case.skip, times=case.times)
    try:
        scenario.run()
    except Exception as error:
        case.enter_error(error)
    finally:
        case.matched, case.failed = disk.heal()
    scenario.enter_journalled()


def follow_up(disk: lossy_device.Disk, case: Case, scenario: Scenario) -> None:
    """What comes after it, while nothing fails, or one more write does."""
    lossy_device.evict(scenario.path.parent, case.keep, scenario.rng)
    if case.again:
        disk.arm(WHERE[case.where], skip=int(scenario.rng.integers(3)), times=1)
        with contextlib.suppress(shardwrite.ShardwriteError):
            follow(scenario, case.follow_up)
        case.failed += disk.heal()[1]
        if case.follow_up == "same":
            scenario.enter_journalled()
    follow(scenario, case.follow_up)


def run(directory, filesystem: str, cases: list[Case], seed: int) -> list[Case]:
    """Cases, one after the other, on one disk."""
    with lossy_device.Disk(directory, filesystem) as disk:
        return [run_case(disk, case, seed) for case in cases]


def summary(cases: list[Case]) -> dict:
    """Totals."""
    evidence = [case for case in cases if case.failed]
    return {
        **judging.totals(cases, evidence),
        "failed": sum(case.failed for case in cases),
        "raised": sum(bool(case.error) for case in evidence),
        "cases with a loss": dict(
            Counter(
                f"{case.operation}, {case.strategy}" for case in cases if case.lost or case.torn
            )
        ),
    }


def main() -> None:
    parser = power_cut.parser(
        "Have write-back fail under every operation, many times.", "cases", 500
    )
    parser.add_argument(
        "--operations",
        nargs="+",
        choices=sorted([*OPERATIONS, *(operation for operation, _ in CONSUMED)]),
        default=sorted(OPERATIONS),
    )
    parser.add_argument(
        "--strategies", nargs="+", choices=sorted(STRATEGIES), default=sorted(STRATEGIES)
    )
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of some of these cases")
    given = parser.parse_args()
    if why := lossy_device.missing(given.filesystem):
        sys.exit(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing stays mounted
    kinds = [
        (operation, strategy)
        for operation, strategy in (*KINDS, *CONSUMED)
        if operation in given.operations and strategy in given.strategies
    ]
    cases = [draw(given.seed, number, kinds) for number in given.only or range(given.cases)]
    with tempfile.TemporaryDirectory() as directory:
        cases = run(directory, given.filesystem, cases, given.seed)
    document = {"filesystem": given.filesystem, "seed": given.seed, **summary(cases)}
    judging.tell(document, cases, given.json)


if __name__ == "__main__":
    main()
