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

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

import numpy as np

import shardwrite
from shardwrite.write import commit

sys.path.insert(0, str(Path(__file__).parent))
import judging
import lossy_device
import power_cut
from judging import FOLLOW_UPS, KINDS, OPERATIONS, follow, judge_all
from scenarios import MARK, SCENARIOS, STRATEGIES, Scenario

WHERE = {"data": [MARK], "documents": [b'": '], "both": [MARK, b'": ']}
TIMES = (1, 2, -1)


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


def draw(seed: int, number: int, kinds=tuple(KINDS)) -> Case:
    """A case. Operations, strategies and follow-ups take turns, and all else is drawn."""
    rng = np.random.default_rng([seed, number])
    operation, strategy = kinds[number % len(kinds)]
    return Case(
        number=number,
        operation=operation,
        strategy=strategy,
        compressed=bool(rng.integers(2)),
        location=str(rng.choice(["start", "end"])),
        durability="batch" if rng.random() < 0.2 else "full",
        where=str(rng.choice(list(WHERE), p=[0.7, 0.15, 0.15])),
        skip=int(rng.integers(4) if rng.random() < 0.5 else rng.integers(20)),
        times=TIMES[int(rng.integers(3))],
        keep=float(rng.choice([0.0, 0.5, 1.0])),
        follow_up=FOLLOW_UPS[number // len(kinds) % len(FOLLOW_UPS)],
        again=bool(rng.random() < 0.25),
    )


def run_case(disk: lossy_device.Disk, case: Case, seed: int) -> Case:
    """One array, one fault, one follow-up, one judgement."""
    start = time.perf_counter()
    rng = np.random.default_rng([seed, case.number, 1])
    home = disk.root / f"case-{case.number}"
    home.mkdir()
    scenario = SCENARIOS[case.operation](case, home / "x.zarr", rng)
    with power_cut.scheduler("sync"), mock.patch.object(commit, "RETRY_SECONDS", (0.0, 0.0, 0.0)):
        try:
            scenario.make()
            disk.sync()
            fail_under(disk, case, scenario)
            follow_up(disk, case, scenario, rng)
            disk.remount()
            judge_all(case, scenario)
        except Exception as error:
            case.trouble = case.trouble or f"{type(error).__name__}: {error}"
    disk.heal()
    shutil.rmtree(home, ignore_errors=True)
    case.seconds = time.perf_counter() - start
    return case


def fail_under(disk: lossy_device.Disk, case: Case, scenario: Scenario) -> None:
    """Run the operation while writes fail."""
    disk.arm(WHERE[case.where], skip=case.skip, times=case.times)
    try:
        scenario.run()
    except Exception as error:
        case.error = f"{type(error).__name__}: {error}"[:300]
        if not isinstance(error, shardwrite.ShardwriteError):
            case.trouble = f"an error that is not ours: {case.error}"
    finally:
        case.matched, case.failed = disk.heal()
    scenario.enter_journalled()


def follow_up(disk: lossy_device.Disk, case: Case, scenario: Scenario, rng: np.random.Generator) -> None:
    """What comes after it, while nothing fails, or one more write does."""
    lossy_device.evict(scenario.path.parent, case.keep, rng)
    if case.again:
        disk.arm(WHERE[case.where], skip=int(rng.integers(3)), times=1)
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
        "cases": len(cases),
        "vacuous": len(cases) - len(evidence),
        "failed": sum(case.failed for case in cases),
        "raised": sum(bool(case.error) for case in evidence),
        "acked": sum(case.acked for case in evidence),
        "lost": sum(len(case.lost) for case in cases),
        "torn": sum(len(case.torn) for case in cases),
        "cases with a loss": dict(Counter(f"{case.operation}, {case.strategy}" for case in cases if case.lost or case.torn)),
        "false": sum(bool(case.false) for case in cases),
        "left": sum(bool(case.left) for case in cases),
        "troubles": dict(Counter(f"{case.operation}, {case.follow_up}: {case.trouble}"[:200] for case in cases if case.trouble)),
        "seconds": round(sum(case.seconds for case in cases), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Have write-back fail under every operation, many times.")
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--filesystem", choices=lossy_device.FILESYSTEMS, default="ext4")
    parser.add_argument("--operations", nargs="+", choices=sorted(OPERATIONS), default=sorted(OPERATIONS))
    parser.add_argument("--strategies", nargs="+", choices=sorted(STRATEGIES), default=sorted(STRATEGIES))
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of some of these cases")
    parser.add_argument("--json", type=Path, help="write the cases there, too")
    given = parser.parse_args()
    if why := lossy_device.missing(given.filesystem):
        sys.exit(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing stays mounted
    kinds = [
        (operation, strategy) for operation, strategy in KINDS if operation in given.operations and strategy in given.strategies
    ]
    cases = [draw(given.seed, number, kinds) for number in given.only or range(given.cases)]
    with tempfile.TemporaryDirectory() as directory:
        cases = run(directory, given.filesystem, cases, given.seed)
    document = {"filesystem": given.filesystem, "seed": given.seed, **summary(cases)}
    print(json.dumps(document, indent=2))
    for case in cases:
        if case.is_bad:
            print(json.dumps({**asdict(case), "lost": case.lost[:3], "torn": case.torn[:3], "left": case.left[:3]}))
    if given.json:
        given.json.write_text(json.dumps({**document, "of": [asdict(case) for case in cases]}, indent=2))


if __name__ == "__main__":
    main()
