"""A process is frozen before each of its effects, another takes over, the first thaws: nothing that
was acknowledged is lost.

For every operation of `two_writers.py`, or any other of the table by its name, every way to take over from it, and every k: SIGSTOP right before the k-th
effect on the array or beside it. The lease runs out, since its life is made short by the setting. A
second process takes over and ends. The first goes on (SIGCONT) and runs to its end. Then the oracle
judges.

Run as ``python tests/faults/freeze.py --freezes 500 --json out.json``; without ``--freezes`` every
one is tried. It builds the shim and starts itself anew with it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
import preloaded
import two_writers
from helpers import MEMORY
from leftovers import left_over, names_in
from two_writers import OPERATIONS, OWN_OPERATIONS, Place, own_of, second_of

AT_ONCE = 24
N_NEXT = 6
RANDOM = re.compile(r"[0-9a-f]{8,}|(?<=[,-])\d+(?![0-9a-z])")
"""Parts of names that differ from run to run: tokens, processes and when they started."""


@dataclass
class Freeze:
    """One freeze and what came of it.

    Attributes
    ----------
    operation, takeover : str
        What the frozen process did, and how another took over.
    k : int
        Before which of its effects it was frozen.
    before : str
        That effect.
    first : str
        What the frozen process came to at last.
    trouble : str
        Why the judgement failed; begins with what kind it is of.
    """

    operation: str
    takeover: str
    k: int
    before: str = ""
    first: str = ""
    trouble: str = ""
    left: list[str] = field(default_factory=list)


class Bench:
    """A directory in memory with what stands there before each operation."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self._effects: dict[str, list[str]] = {}

    def before(self, operation: str) -> Path:
        """What stands there before an operation, made once."""
        home = self.top / "before" / operation
        if not home.exists():
            home.mkdir(parents=True)
            trouble = two_writers.in_child(OPERATIONS[operation].prepare, Place(home, "before"))
            assert not trouble, trouble
        return home

    def fresh(self, operation: str) -> Path:
        """A copy of that."""
        home = Path(tempfile.mkdtemp(prefix="case-", dir=self.top))
        shutil.copytree(self.before(operation), home, dirs_exist_ok=True, symlinks=True)
        return home

    def nth(self, operation: str, k: int) -> tuple[str, int]:
        """A pattern of the k-th effect, and how many effects up to it fit that pattern.

        A process that is slow has more effects than the one that told them, since it keeps its
        lease alive; so effects are found by what they are.
        """
        patterns = [pattern(effect) for effect in self.effects(operation)[:k]]
        return patterns[-1], patterns.count(patterns[-1])

    def effects(self, operation: str) -> list[str]:
        """Effects of an operation that nobody disturbs."""
        if operation not in self._effects:
            home = self.fresh(operation)
            place = Place(home, "first")
            two_writers.wait(two_writers.start(OPERATIONS[operation].run, place), operation)
            assert place.notes()["outcome"] == "done", place.notes()["outcome"]
            self._effects[operation] = place.effects()
            shutil.rmtree(home)
        return self._effects[operation]


def freeze_all(bench: Bench, freezes: list[Freeze], *, readers: float) -> None:
    """Freeze some processes, wait until their leases have run out, then end case after case."""
    frozen = []
    for case in freezes:
        home = bench.fresh(case.operation)
        of, at = bench.nth(case.operation, case.k)
        first = Place(home, "first")
        pid = two_writers.start(
            OPERATIONS[case.operation].run, first, of=of, at=at, strike=signal.SIGSTOP
        )
        _, status = os.waitpid(pid, os.WUNTRACED)
        is_frozen = os.WIFSTOPPED(status)
        case.before = first.effects()[0] if is_frozen else "nothing"
        frozen.append((case, home, pid if is_frozen else 0))
    time.sleep(two_writers.TTL + 0.1)
    for case, home, pid in frozen:
        before = names_in(bench.before(case.operation))
        end(case, home, pid, before, with_readers=random.random() < readers)
        shutil.rmtree(home)


def end(case: Freeze, home: Path, pid: int, before: set[str], *, with_readers: bool) -> None:
    """Take over, thaw, judge."""
    first, second = Place(home, "first"), Place(home, "second")
    try:
        two_writers.wait(
            two_writers.start(second_of(case.operation, case.takeover).run, second),
            "the second process",
        )
    except TimeoutError as error:
        case.trouble = f"hang: {error}"
    if pid:
        os.kill(pid, signal.SIGCONT)
        try:
            two_writers.wait(pid, "the first process")
        except TimeoutError as error:
            case.trouble = case.trouble or f"hang: {error}"
    case.first = two_writers.shortened(first.notes().get("outcome", "no word"))
    if not case.trouble:
        found = two_writers.in_child(
            lambda: two_writers.judge(home, case.operation, case.takeover, readers=with_readers)
        )
        case.trouble = found.removeprefix("AssertionError: ")[:600].replace(str(home), "")
    case.left = left_over(home, before, own=own_of(case.operation))


def pattern(effect: str) -> str:
    """What an effect looks like in any run, as a pattern of file names."""
    call, _, path = RANDOM.sub("*", effect).partition(" ")
    return f"{call} *{path.replace(' -> ', ' -> *')}"


def weight(effect: str) -> float:
    """How late an effect is drawn: first those on shards, then those on the array, then those
    beside it."""
    call, _, path = effect.partition(" ")
    if "/x.zarr/c/" in path and call in ("rename", "unlink", "pwrite", "ftruncate"):
        return 0.001
    return 0.3 if "/x.zarr/" in path else 1.0


def chosen(bench: Bench, operations, n: int, seed: int) -> list[Freeze]:
    """Every freeze of some operations, or a sample that takes each operation and takeover in turn."""
    drawn = random.Random(seed)
    if 0 < n < len(operations):
        operations = drawn.sample(list(operations), n)
    of_kinds = []
    for operation in operations:
        effects = bench.effects(operation)
        ks = list(range(1, len(effects) + 1))
        if n:
            ks.sort(key=lambda k: drawn.random() * weight(effects[k - 1]))
        for i, takeover in enumerate(
            two_writers.takeovers_of(operation)
        ):  # each begins with another effect
            of_kinds.append([Freeze(operation, takeover, k) for k in ks[i:] + ks[:i]])
    if not n:
        return [case for cases in of_kinds for case in cases]
    drawn.shuffle(of_kinds)
    met: Counter[str] = Counter()
    turns = {}  # each operation comes once before any comes twice
    for i, cases in enumerate(of_kinds):
        turns[i] = met[cases[0].operation]
        met[cases[0].operation] += 1
    of_kinds = [of_kinds[i] for i in sorted(turns, key=turns.__getitem__)]
    return of_many_calls(bench, of_kinds, n)


def of_many_calls(bench: Bench, of_kinds: list[list[Freeze]], n: int) -> list[Freeze]:
    """A sample that takes a case of each kind in turn.

    Of the next few cases of a kind, it takes the one whose call was taken least often so far, so
    that also a small sample has calls of all sorts.
    """
    taken: Counter[str] = Counter()
    sample: list[Freeze] = []
    while len(sample) < n and any(of_kinds):
        for cases in filter(None, of_kinds):
            if len(sample) == n:
                break
            calls = [bench.effects(c.operation)[c.k - 1].partition(" ")[0] for c in cases[:N_NEXT]]
            at = min(range(len(calls)), key=lambda i: taken[calls[i]])
            taken[calls[at]] += 1
            sample.append(cases.pop(at))
    return sample


def run(
    operations, n: int, *, seed: int = 0, readers: float = 0.1, out: Path | None = None
) -> list[Freeze]:
    """Freezes, judged; what is known so far is in the file `out`."""
    place = MEMORY
    top = Path(tempfile.mkdtemp(prefix="freezes-", dir=place))
    random.seed(seed)
    try:
        with two_writers.configured():
            two_writers.warm_up()
            bench = Bench(top)
            freezes = chosen(bench, operations, n, seed)
            for begin in range(0, len(freezes), AT_ONCE):
                freeze_all(bench, freezes[begin : begin + AT_ONCE], readers=readers)
                if out:
                    store(out, freezes[: begin + AT_ONCE])
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return freezes


def summary(freezes: list[Freeze]) -> dict:
    """Totals."""
    return {
        "freezes": sum(case.before != "nothing" for case in freezes),
        "vacuous": sum(case.before == "nothing" for case in freezes),
        "operations": len({case.operation for case in freezes}),
        "outcomes": dict(Counter(case.first.partition(":")[0] for case in freezes)),
        **{
            kind: sum(case.trouble.startswith(kind) for case in freezes)
            for kind in ("lost", "unreadable")
        },
        "left": sum(len(case.left) for case in freezes),
        "troubles": [asdict(case) for case in freezes if case.trouble],
    }


def store(out: Path, freezes: list[Freeze]) -> None:
    """Write every freeze to a file."""
    out.write_text(
        json.dumps({"summary": summary(freezes), "freezes": [asdict(case) for case in freezes]})
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--operations",
        nargs="+",
        choices=OPERATIONS,
        default=list(OWN_OPERATIONS),
        help="also those of the table of all faults, whose second process makes the same call",
    )
    parser.add_argument("--freezes", type=int, default=0, help="how many, sampled; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--readers", type=float, default=0.1, help="share of the freezes that three readers look at"
    )
    parser.add_argument("--json", type=Path, help="write every freeze to this file")
    given = parser.parse_args()
    if "SHIM" not in os.environ:
        sys.exit(preloaded.restarted(__file__, sys.argv[1:]))
    freezes = run(
        given.operations, given.freezes, seed=given.seed, readers=given.readers, out=given.json
    )
    print(json.dumps(summary(freezes), indent=1))


if __name__ == "__main__":
    main()
