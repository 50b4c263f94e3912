"""Cases of interrupted operations: how they are drawn, what users may do next, the judgement of
what is there, and totals.

`lossy_disk.py` and `interruptions.py` interrupt the operations of `scenarios.py`, and judge by
this.

Acknowledged is what a flush that returned has taken, a shard that was reported or entered into a
journal, and all of a call that returned.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dask
import numpy as np

import shardwrite
from shardwrite import ShardWriter

sys.path.insert(0, str(Path(__file__).parent))
import oracle
import power_cut
import seams
import update_cuts
from leftovers import left_over
from scenarios import SCENARIOS, STRATEGIES, UNSHARDED, Scenario

OPERATIONS = {
    "stream": tuple(STRATEGIES),
    "update": tuple(STRATEGIES),
    "erase": tuple(update_cuts.STRATEGIES),
    "fresh": ("replace", UNSHARDED),
    **dict.fromkeys(("replacement", "compact", "repair", "parts"), ("replace",)),
    **dict.fromkeys(("conversion", "in-place"), ("replace", UNSHARDED)),
}
KINDS = [
    (operation, strategy) for operation, strategies in OPERATIONS.items() for strategy in strategies
]
FOLLOW_UPS = ("same", "abandon", "other", "writer", "nothing")


@dataclass(kw_only=True)
class Case:
    """An operation that is interrupted, and what came of it.

    Attributes
    ----------
    number : int
        Its seed, with the campaign's.
    operation, strategy : str
        What is interrupted; the strategy is ``"unsharded"`` for arrays without shards.
    compressed : bool
        Whether the array has the default codecs, or none.
    location : str
        Of the index.
    durability : str
        Of the operation.
    follow_up : str
        What is done afterwards.
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
    seconds : float
        For all of it.
    """

    number: int
    operation: str
    strategy: str
    compressed: bool
    location: str
    durability: str
    follow_up: str
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

    def enter_error(self, error: Exception) -> None:
        """What the operation raised when it was interrupted; anything but an error of this package
        is a trouble."""
        self.error = f"{type(error).__name__}: {error}"[:300]
        if not isinstance(error, shardwrite.ShardwriteError):
            self.trouble = f"an error that is not ours: {self.error}"


def draw(
    number: int, rng: np.random.Generator, kinds: Sequence[tuple[str, str]] = KINDS
) -> dict[str, Any]:
    """What every case has, as keywords: operations, strategies and follow-ups take turns, and all
    else is drawn."""
    operation, strategy = kinds[number % len(kinds)]
    return {
        "number": number,
        "operation": operation,
        "strategy": strategy,
        "compressed": bool(rng.integers(2)),
        "location": str(rng.choice(["start", "end"])),
        "durability": "batch" if rng.random() < 0.2 else "full",
        "follow_up": FOLLOW_UPS[number // len(kinds) % len(FOLLOW_UPS)],
    }


@contextlib.contextmanager
def set_up(case: Case, home: Path, seed: int) -> Iterator[Scenario]:
    """The scenario of a case, in a directory that is made for it; what goes wrong in the block is
    entered as a trouble."""
    start = time.perf_counter()
    home.mkdir()
    scenario = SCENARIOS[case.operation](
        case, home / "x.zarr", np.random.default_rng([seed, case.number, 1])
    )
    with power_cut.scheduler("sync"), dask.config.set({"shardwrite.retry-pauses": [0, 0, 0]}):
        try:
            yield scenario
        except Exception as error:
            case.trouble = case.trouble or f"{type(error).__name__}: {error}"[:600]
    shutil.rmtree(home, ignore_errors=True)
    case.seconds = time.perf_counter() - start


def follow(scenario: Scenario, what: str) -> None:
    """What a user may do after the operation has failed, or has not."""
    if what == "same":
        scenario.run()
        return
    with refusals_of(scenario):
        if what == "abandon":
            shardwrite.abandon(scenario.path)
            if scenario.case.operation == "replacement":
                scenario.acked = set()  # the old array stays
        elif what == "other":
            scenario.other()
        elif what == "writer":
            ShardWriter(scenario.path).close()


@contextlib.contextmanager
def refusals_of(scenario: Scenario) -> Iterator[None]:
    """Pass over the refusal of what must wait for the end of the run that makes or repairs an
    array.

    A refusal that names a live process is none of these: nobody is at work.
    """
    try:
        yield
    except (shardwrite.SpecError, shardwrite.JournalError) as error:
        if not scenario.comes_first or error.fields.get("holder"):
            raise


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
    case.left = left_over(scenario.path.parent)


def judge(case: Case, scenario: Scenario) -> None:
    """Every unit by every reader; one version each."""
    try:
        metadata = oracle.metadata_of(scenario.path)
    except IndexError:
        if scenario.acked and case.operation != "repair":
            case.lost = [f"all {len(scenario.acked)}: no metadata"]
        return
    lost, torn = set(case.lost), set(case.torn)
    built = seams.built_at(scenario.path)
    if built != scenario.path:
        torn |= torn_old(scenario, metadata)
    for unit, at in scenario.boxes().items():
        if at[0].start >= metadata.grid.shape[0] and unit in scenario.acked:
            lost.add(f"{unit} is beyond the end")
    for reader, area, found in readings(built, metadata):
        for unit, at in scenario.boxes().items():
            if any(
                a.start is not None and not b.start <= a.start < b.stop
                for a, b in zip(at, area, strict=True)
            ):
                continue
            what = what_is_wrong(
                case, scenario, unit, at, None if found is None else found[relative(at, area)]
            )
            if what:
                (lost if unit in scenario.acked else torn).add(f"{unit} by {reader}: {what}")
    case.lost, case.torn = sorted(lost), sorted(torn)


def torn_old(scenario: Scenario, metadata) -> set[str]:
    """Readers that do not find the old array whole, while another is built aside."""
    return {
        f"the old array, by {reader}"
        for reader, area, found in readings(scenario.path, metadata)
        if found is None or not (found == scenario.candidates[-1][area]).all()
    }


def relative(at, area) -> tuple[slice, ...]:
    """A unit's box in the coordinates of an area."""
    return tuple(
        a if a.start is None else slice(a.start - b.start, a.stop - b.start)
        for a, b in zip(at, area, strict=True)
    )


def what_is_wrong(case: Case, scenario: Scenario, unit: int, at, seen: np.ndarray | None) -> str:
    """Why a unit is not as it may be, or an empty string."""
    if seen is None:
        return "" if unit in scenario.bad_before() - scenario.acked else "unreadable"
    allowed = scenario.allowed or [scenario.wanted]
    versions = allowed if unit in scenario.acked else [*allowed, *scenario.candidates]
    is_split = case.operation == "stream" and unit not in scenario.acked
    return (
        ""
        if is_one_of(seen, [version[at] for version in versions], is_split)
        else kind_of_loss(seen, scenario, at)
    )


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
    return (
        f"{int(wrong.sum())} of {wrong.size} values, {int((seen[wrong] == 0).sum())} of them zero"
    )


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
        case.false = (
            f"verify says {'good' if report.is_good else [p.message for p in report.problems][:2]}"
        )


def totals(cases: Sequence[Case], evidence: Sequence[Case]) -> dict[str, Any]:
    """What both harnesses tell of their cases; `evidence` are those in which something was
    interrupted."""
    return {
        "cases": len(cases),
        "vacuous": len(cases) - len(evidence),
        "acked": sum(case.acked for case in evidence),
        **{
            name: sum(len(getattr(case, name)) for case in cases)
            for name in ("lost", "torn", "left")
        },
        "false": sum(bool(case.false) for case in cases),
        "troubles": dict(
            Counter(
                f"{case.operation}, {case.follow_up}: {case.trouble}"[:300]
                for case in cases
                if case.trouble
            )
        ),
        "seconds": round(sum(case.seconds for case in cases), 1),
    }


def tell(document: dict[str, Any], cases: Sequence[Case], out: Path | None) -> None:
    """Print a summary and the cases that are bad, and write it with all cases to a file if one is
    named."""
    power_cut.tell(document, cases, out)
    for case in cases:
        if case.is_bad:
            print(
                json.dumps(
                    {
                        **asdict(case),
                        "lost": case.lost[:3],
                        "torn": case.torn[:3],
                        "left": case.left[:3],
                    }
                )
            )
