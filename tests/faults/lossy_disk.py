"""Failed write-back under every operation: what was acknowledged outlives an unmount.

Each case makes an array on the disk of `lossy_device.py` and has one, two or all writes fail
while an operation runs. Then it heals the disk, lets the kernel forget some of the pages, does
what a user may do next, unmounts, mounts, and judges what the disk has.

The disk knows data by the mark that every inner chunk begins with (see `lossy_operations.py`),
and documents (plans, records, journals, receipts, ``zarr.json``) by the way that JSON is spaced.
What the file system writes for itself never fails.

Acknowledged is what a flush that returned has taken, a shard that was reported or entered into a
journal, and all of a call that returned.

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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

import shardwrite
from shardwrite import ShardWriter, commit

sys.path.insert(0, str(Path(__file__).parent))
import lossy_device
import oracle
import power_cut
from lossy_operations import MARK, SCENARIOS, STRATEGIES, Scenario

WHERE = {"data": [MARK], "documents": [b'": '], "both": [MARK, b'": ']}
OPERATIONS = {
    "stream": tuple(STRATEGIES),
    "update": tuple(STRATEGIES),
    "erase": tuple(STRATEGIES),
    **dict.fromkeys(("fresh", "replacement", "compact", "repair", "parts"), ("replace",)),
}
KINDS = [(operation, strategy) for operation, strategies in OPERATIONS.items() for strategy in strategies]
FOLLOW_UPS = ("same", "abandon", "other", "writer", "nothing")
TIMES = (1, 2, -1)


@dataclass
class Case:
    """A fault, and what came of it.

    Attributes
    ----------
    number : int
        Its seed, with the campaign's.
    operation, strategy : str
        What runs while writes fail.
    compressed : bool
        Whether the array has the default codecs, or none.
    location : str
        Of the index.
    durability : str
        Of the operation.
    where : str
        What the writes that fail carry: see `WHERE`.
    skip, times : int
        Such writes that pass before, and that fail then; -1 for all.
    keep : float
        Share of the files whose pages stay in memory.
    follow_up : str
        What is done once the disk is well again.
    again : bool
        Whether one more write fails under the follow-up, which is then done again.
    matched, failed : int
        Writes that carried the pattern, and that failed.
    error : str
        What the operation raised.
    acked : int
        Shards or frames that were acknowledged.
    lost, torn : list of str
        Units that were acknowledged and that some reader does not find so, and units in a state
        that they never had.
    is_good : bool
        Whether ``verify --deep`` found nothing.
    false : str
        Where ``verify --deep`` said other than the readers.
    trouble : str
        What went wrong otherwise.
    left : list of str
        What was left over in the end.
    """

    number: int
    operation: str
    strategy: str
    compressed: bool
    location: str
    durability: str
    where: str
    skip: int
    times: int
    keep: float
    follow_up: str
    again: bool
    matched: int = 0
    failed: int = 0
    error: str = ""
    acked: int = 0
    lost: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    is_good: bool = True
    false: str = ""
    trouble: str = ""
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def in_place(self) -> bool:
        """Whether shards may be torn until they are recovered."""
        return self.strategy.endswith("in place")

    @property
    def is_bad(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.lost or self.torn or self.false or self.trouble or self.left)


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


def follow(scenario: Scenario, what: str) -> None:
    """What a user may do after the operation has failed, or has not."""
    if what == "same":
        scenario.run()
        return
    with refusals_of(scenario):
        if what == "abandon":
            shardwrite.abandon(scenario.path)
        elif what == "other":
            scenario.other()
        elif what == "writer":
            ShardWriter(scenario.path).close()


@contextlib.contextmanager
def refusals_of(scenario: Scenario) -> Iterator[None]:
    """Pass over the refusal of what must wait for the end of the run that makes or repairs an array.

    A refusal that names a live process is none of these: nobody is at work.
    """
    try:
        yield
    except (shardwrite.SpecError, shardwrite.JournalError) as error:
        if not scenario.comes_first or error.fields.get("holder"):
            raise


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


def judge_all(case: Case, scenario: Scenario) -> None:
    """Judge what the disk has as it is, recovered, and finished by the same call.

    Before the recovery, shards that are changed in place may be torn.
    """
    case.acked = len(scenario.acked)
    if not case.in_place:
        judge(case, scenario)
    with refusals_of(scenario):
        shardwrite.abandon(scenario.path)
    if not scenario.comes_first:
        judge(case, scenario)
        check_verify(case, scenario)
    if case.lost or case.torn:
        return
    scenario.run()
    judge(case, scenario)
    check_verify(case, scenario)
    left = [p for p in scenario.path.rglob("*") if p.name.endswith(".swtmp")]
    beside = scenario.path.with_name(scenario.path.name + ".shardwrite")
    case.left = [
        str(p.relative_to(scenario.path.parent)) for p in (*left, *([beside] if beside.exists() else []), *beside.rglob("*"))
    ]


def judge(case: Case, scenario: Scenario) -> None:
    """Every unit by every reader; one version each."""
    try:
        metadata = oracle.metadata_of(scenario.path)
    except IndexError:
        if scenario.acked and case.operation != "repair":
            case.lost = [f"all {len(scenario.acked)}: no metadata"]
        return
    lost, torn = set(case.lost), set(case.torn)
    for unit, at in scenario.boxes().items():
        if at[0].start >= metadata.grid.shape[0] and unit in scenario.acked:
            lost.add(f"{unit} is beyond the end")
    for reader, area, found in readings(scenario.path, metadata):
        for unit, at in scenario.boxes().items():
            if any(a.start is not None and not b.start <= a.start < b.stop for a, b in zip(at, area, strict=True)):
                continue
            what = what_is_wrong(case, scenario, unit, at, None if found is None else found[relative(at, area)])
            if what:
                (lost if unit in scenario.acked else torn).add(f"{unit} by {reader}: {what}")
    case.lost, case.torn = sorted(lost), sorted(torn)


def relative(at, area) -> tuple[slice, ...]:
    """A unit's box in the coordinates of an area."""
    return tuple(a if a.start is None else slice(a.start - b.start, a.stop - b.start) for a, b in zip(at, area, strict=True))


def what_is_wrong(case: Case, scenario: Scenario, unit: int, at, seen: np.ndarray | None) -> str:
    """Why a unit is not as it may be, or an empty string."""
    if seen is None:
        return "" if unit in scenario.bad_before() - scenario.acked else "unreadable"
    allowed = scenario.allowed or [scenario.wanted]
    versions = allowed if unit in scenario.acked else [*allowed, *scenario.candidates]
    is_split = case.operation == "stream" and unit not in scenario.acked
    return "" if is_one_of(seen, [version[at] for version in versions], is_split) else kind_of_loss(seen, scenario, at)


def is_one_of(seen: np.ndarray, versions: list[np.ndarray], is_split: bool) -> bool:
    """Whether a unit, or where it is split each inner chunk of a frame, is of one version."""
    if not is_split:
        return any((seen == version).all() for version in versions)
    same = [(seen == version).reshape(-1, 2, 32, 2, 32).all(axis=(2, 4)) for version in versions]
    return bool(np.logical_or.reduce(same).all())


def kind_of_loss(seen: np.ndarray, scenario: Scenario, at) -> str:
    """What is there in its stead."""
    if not seen.any():
        return "the fill value"
    if any((seen == version[at]).all() for version in scenario.candidates):
        return "an old version"
    wrong = seen != scenario.wanted[at]
    return f"{int(wrong.sum())} of {wrong.size} values, {int((seen[wrong] == 0).sum())} of them zero"


def readings(path: Path, metadata) -> Iterator[tuple[str, tuple[slice, ...], np.ndarray | None]]:
    """The array as each reader sees it, shard by shard where the whole cannot be read."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "x.zarr"
        if path.exists():
            shutil.copytree(path, copy)
        copy.mkdir(exist_ok=True)
        (copy / "zarr.json").write_text(metadata.text)
        whole = tuple(slice(0, n) for n in metadata.grid.shape)
        for name, read in oracle.READERS.items():
            try:
                yield name, whole, read(copy, whole)
            except Exception:
                for box in oracle.shard_boxes(metadata).values():
                    area = box.slices[:-1]  # but for the ellipsis
                    try:
                        yield name, area, read(copy, area)
                    except Exception:
                        yield name, area, None


def check_verify(case: Case, scenario: Scenario) -> None:
    """What ``verify --deep`` says is what the readers have found."""
    report = shardwrite.verify(scenario.path, deep=True)
    case.is_good = report.is_good
    is_right = not (case.lost or case.torn)
    if report.is_good != is_right:
        case.false = f"verify says {'good' if report.is_good else [p.message for p in report.problems][:2]}"


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
