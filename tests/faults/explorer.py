"""Two processes on one array of two shards, their effects interleaved: every way to switch between
them up to a depth.

A schedule says after how many effects the first process stands still, after how many the second
does, and so on; with depth d there are d switches. While it stands still a process is slow (its
lease is touched), frozen (its lease runs out) or killed. Only the first process is frozen, or both
are, each until it is its turn again. "Late" means that both are frozen, that the first then runs to
its end, and that the second is killed right after the one effect before which it stood, so that it
mends nothing itself. If that effect has made a temporary file, nobody knows of it, and `repair` has
to remove it. A process that waits for the other gives way without that being counted. When both
have ended the oracle judges, and a third process has to take over whatever is left.

Only effects that the other process can see are places to switch at. Left out are syncs, which
matter to power cuts alone, and writes into files of a name that nobody else looks for: temporaries
and drafts before their rename or link, probes, clocks.

Run as ``python tests/faults/explorer.py --depth 2 --json out.json``, for all scenarios; ``--cases
100`` takes a sample.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
import freeze
import oracle
import preloaded
import two_writers
from helpers import MEMORY
from leftovers import left_over, names_in
from two_writers import OPERATIONS, OWN_OPERATIONS, SHAPE, SHARD, Place, in_child, second_of, start

AT_ONCE = 16
PATIENCE = 60
"""Effects after which a process counts as waiting for the other."""
FEW = 4
"""Effects of the second process that match a pattern, at which it stands."""

WAYS = ("slow", "frozen", "both frozen", "late", "killed")
PAIRS = [
    ("write", "write"),
    ("write", "same"),
    ("replacement", "write"),
    ("replacement", "same"),
    ("parts", "parts"),
    ("erase", "erase"),
    ("erase", "update replace"),
    ("compact", "update replace"),
    ("update in place with room", "part in place"),
    ("takeover in place raw", "update in place"),
    ("conversion", "same"),
    ("conversion", "update, shards untold"),
    *(
        (f"update {strategy} raw", takeover)
        for strategy in two_writers.STRATEGIES
        for takeover in (f"part {strategy}", "same")
    ),
]


@dataclass
class Case:
    """One schedule and what came of it.

    Attributes
    ----------
    operation, takeover, way : str
        What the two processes do, and how one stands still.
    turns : list of int
        Effects after which the first, the second, the first ... stands still; then each in turn
        runs to its end.
    stood : list of str
        The effects before which they stood.
    outcomes : list of str
        What each came to.
    trouble : str
        Why the judgement failed.
    """

    operation: str
    takeover: str
    way: str
    turns: list[int]
    stood: list[str]
    outcomes: list[str]
    trouble: str = ""
    left: list[str] = field(default_factory=list)


def is_visible(effect: str) -> bool:
    """Whether the other process can tell that an effect came."""
    call, _, path = effect.partition(" ")
    name = path.rpartition("/")[2]
    if call == "fsync" or name.startswith(("clock-", "probe-", ".probe-")):
        return False
    return not (
        call in ("write", "copy", "ftruncate")
        and (name.endswith(".swtmp") or name.startswith("draft-"))
    )


class Stepped:
    """A process that asks before each effect."""

    def __init__(self, run, place: Place) -> None:
        self.place, self.asked, self.has_ended, self.is_killed = place, "", False, False
        self._buffer = b""
        self._asks, ask = os.pipe()
        go, self._go = os.pipe()
        self.pid = start(run, place, ask=ask, go=go, closes=(self._asks, self._go))
        os.close(ask)
        os.close(go)
        self._listen()

    def _listen(self) -> None:
        """Wait until it asks, or has ended."""
        while b"\n" not in self._buffer:
            if not select.select([self._asks], [], [], two_writers.TIMEOUT)[0]:
                self.kill()
                raise TimeoutError(f"hang: the {self.place.who} process stands after {self.asked}")
            told = os.read(self._asks, 65536)
            if not told:
                return self._close()
            self._buffer += told
        line, _, self._buffer = self._buffer.partition(b"\n")
        self.asked = line.decode()
        return None

    def _close(self) -> None:
        os.close(self._asks)
        os.close(self._go)
        os.waitpid(self.pid, 0)
        self.has_ended = True

    def advance(self, n: int, before: str = "") -> bool:
        """Let it come to its n-th effect from here that can be seen and matches a pattern; whether
        it is there."""
        while not self.has_ended:
            n -= is_visible(self.asked) and re.search(before, self.asked) is not None
            if n < 0:
                return True
            os.write(self._go, b"g")
            self._listen()
        return False

    def freeze(self) -> None:
        """Stop it, so that its lease is not touched."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it where it stands."""
        os.kill(self.pid, signal.SIGKILL)
        self.is_killed = True
        self._close()


def play(case: Case, home: Path, then: str) -> Iterator[None]:
    """Go through a schedule; waits where a lease has to run out. The second process first stands
    before an effect that matches a pattern."""
    runs = (OPERATIONS[case.operation].run, second_of(case.operation, case.takeover).run)
    both: list[Stepped] = []
    frozen: list[Stepped] = []
    for number, n in enumerate([*case.turns, 2 * PATIENCE, 2 * PATIENCE]):
        if number < 2:
            both.append(Stepped(runs[number], Place(home, ("first", "second")[number])))
        current = both[number % 2]
        if current in frozen:
            current.thaw()
            frozen.remove(current)
        is_late = case.way == "late" and number > len(case.turns) and number % 2
        if not current.advance(1 if is_late else n, then if number == 1 else ""):
            continue
        if is_late:
            current.kill()
        if number >= len(case.turns):
            continue
        case.stood.append(current.asked.replace(str(home), ""))
        if case.way == "killed":
            current.kill()
        elif case.way in ("both frozen", "late") or (case.way == "frozen" and number == 0):
            current.freeze()
            frozen.append(current)
            yield
    for _ in range(20):
        for process in both:
            process.advance(PATIENCE)
    for process in both:
        if not process.has_ended:
            process.kill()
            case.trouble = (
                f"hang: the {process.place.who} process goes on and on, at {process.asked}"
            )
    if case.way == "killed":
        yield  # so that what was only just begun counts as left behind


def judge(case: Case, home: Path) -> None:
    """What must hold when both have ended, and after a third."""
    first, second = Place(home, "first"), Place(home, "second")
    outcomes = [place.notes().get("outcome", "killed") for place in (first, second)]
    for outcome in outcomes:
        assert "Traceback" not in outcome, f"bare: {outcome[-600:]}"
    if case.operation not in OWN_OPERATIONS:
        judge_of_table(case.operation, first, is_done="done" in outcomes)
        return
    is_new = case.operation.startswith(("write", "replacement", "parts"))
    is_done = [outcome == "done" for outcome in outcomes]
    path = home / "x.zarr"
    if "killed" not in outcomes and any(
        is_done
    ):  # of two that are in each other's way, both may give up
        oracle.check_tidy(path)
    is_replaced = (
        is_new and outcomes[1] == "killed"
    )  # it may have taken away what the first has done
    if (any(is_done) or not is_new) and not is_replaced:
        compare(case, path, outcomes, [first.acks.ranks(), second.acks.ranks()])
    if case.operation == "conversion":
        shardwrite.abandon(path)  # it keeps out all others until it has ended
    third = Place(home, "third")
    by_update = two_writers.update(3, two_writers.MOST, "replace", restart=True)
    closing = two_writers.write(3, mode="w", restart=True) if is_new else by_update
    closing.run(third)
    wanted = closing.after(two_writers.OLD)
    found = shardwrite.open_sharded(path)[:, :]
    where = (slice(None), slice(None)) if is_new else two_writers.MOST
    assert (found[where] == wanted[where]).all(), "lost: the third process's values are not there"
    assert shardwrite.verify(path, deep=True).is_good, "unreadable after the third process"
    if case.way == "late":
        shardwrite.repair(path, scan=True)
    oracle.check_tidy(path)


def judge_of_table(operation: str, place: Place, *, is_done: bool) -> None:
    """What must hold for an operation of the table of all faults, before and after a third call."""
    entry = two_writers.TABLE[operation]
    path = place.at(entry.at)
    entry.look(path, False)
    if is_done and entry.wanted is not None:
        found = shardwrite.open_sharded(path)[:, :]
        assert (found == entry.wanted).all(), "lost: what one of them has returned from"
    entry.again(path)
    entry.judge(path)


def compare(case: Case, path: Path, outcomes: list[str], acked: list[set[int]]) -> None:
    """Whether each shard is of a version that may be there."""
    is_done = [outcome == "done" for outcome in outcomes]
    if not any(is_done) or outcomes[1] == "killed":  # it may have been amid a change in place
        shardwrite.abandon(path)
    report = shardwrite.verify(path, deep=True)
    assert report.is_good, f"unreadable: {[problem.message for problem in report.problems]}"
    found = shardwrite.open_sharded(path)[:, :]
    assert found.shape == SHAPE
    operations = [OPERATIONS[case.operation], second_of(case.operation, case.takeover)]
    for rank in range(2):
        box = (slice(0, SHARD), slice(SHARD * rank, SHARD * (rank + 1)))
        musts = [done or rank in acks for done, acks in zip(is_done, acked, strict=True)]
        assert any(
            (found[box] == version[box]).all() for version in versions(operations, musts, outcomes)
        ), f"lost: shard {rank} is of no version that may be there, {is_done=}, {acked=}"


def versions(operations, musts: list[bool], outcomes: list[str]) -> Iterator[np.ndarray]:
    """What may be there after some of the operations, each of those that must have been among them.

    What was given up has not written over what is done. What was killed may have: it may have come
    later.
    """
    for n in range(3):
        for order in itertools.permutations(range(2), n):
            if any(must and i not in order for i, must in enumerate(musts)):
                continue
            if (
                n == 2
                and outcomes[order[0]] == "done"
                and outcomes[order[1]] not in ("done", "killed")
                and not musts[order[1]]
            ):
                continue
            for found in operations[0].before:
                for i in order:
                    found = operations[i].after(found)
                yield found


def effects(bench: freeze.Bench, operation: str, takeover: str) -> tuple[list[str], list[str]]:
    """Visible effects of the two, one after the other."""
    home = bench.fresh(operation)
    found: tuple[list[str], list[str]] = ([], [])
    runs = (OPERATIONS[operation].run, second_of(operation, takeover).run)
    for who, run, asked in zip(("first", "second"), runs, found, strict=True):
        process = Stepped(run, Place(home, who))
        n = 0
        while process.advance(n):
            asked.append(process.asked.replace(str(home), ""))
            n = 1
    shutil.rmtree(home)
    return found


def schedules(
    bench: freeze.Bench, pairs, ways, depth: int, before: str, then: str
) -> Iterator[Case]:
    """Every schedule with a number of switches."""
    possible = [
        way for way in ways if depth > 2 or way not in ("both frozen", "late")
    ]  # before, the second never stands still
    for operation, takeover in pairs:
        of_first, of_second = effects(bench, operation, takeover)
        begins = [k for k, effect in enumerate(of_first) if re.search(before, effect)]
        spans = [
            begins,
            range(FEW if then else len(of_second) + PATIENCE // 2),
            *itertools.repeat(range(len(of_first)), depth),
        ][: depth - 1]
        for way, turns in itertools.product(possible, itertools.product(*spans)):
            yield Case(operation, takeover, way, list(turns), [], [])


def explore(bench: freeze.Bench, cases: list[Case], then: str) -> None:
    """Go through some schedules at once, as far as they wait for leases to run out, and judge them."""
    under_way = [
        (case, home, play(case, home, then), names_in(home))
        for case in cases
        for home in [bench.fresh(case.operation)]
    ]
    waiting = [entry for entry in under_way if goes_on(*entry)]
    while waiting:
        time.sleep(two_writers.TTL + 0.1)
        waiting = [entry for entry in waiting if goes_on(*entry)]


def goes_on(case: Case, home: Path, played: Iterator[None], before: set[str]) -> bool:
    """Whether a schedule waits; one that is over is judged."""
    try:
        for _ in played:
            return True
    except TimeoutError as error:
        case.trouble = str(error)
    notes = [Place(home, who).notes() for who in ("first", "second")]
    case.outcomes = [two_writers.shortened(note.get("outcome", "killed")) for note in notes]
    if not case.trouble:
        case.trouble = (
            in_child(judge, case, home)
            .removeprefix("AssertionError: ")[:600]
            .replace(str(home), "")
        )
    case.left = left_over(home, before, own=two_writers.own_of(case.operation))
    shutil.rmtree(home)
    return False


def sampled(cases: list[Case], n: int, seed: int) -> list[Case]:
    """Some schedules, of each way in turn, whatever number of effects the processes have today."""
    drawn = random.Random(seed)
    of_ways: dict[str, list[Case]] = {}
    for case in cases:
        of_ways.setdefault(case.way, []).append(case)
    for found in of_ways.values():
        drawn.shuffle(found)
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*of_ways.values()))
    return [case for case in in_turn if case is not None][:n]


def run(
    pairs,
    ways,
    depth: int,
    n: int,
    *,
    before: str = "",
    then: str = "",
    seed: int = 0,
    out: Path | None = None,
) -> list[Case]:
    """Schedules, judged; what is known so far is in the file `out`."""
    place = MEMORY
    top = Path(tempfile.mkdtemp(prefix="explorer-", dir=place))
    try:
        with two_writers.configured():
            two_writers.warm_up()
            bench = freeze.Bench(top)
            cases = list(schedules(bench, pairs, ways, depth, before, then))
            if n:
                cases = sampled(cases, n, seed)
            for begin in range(0, len(cases), AT_ONCE):
                explore(bench, cases[begin : begin + AT_ONCE], then)
                if out:
                    known = cases[: begin + AT_ONCE]
                    out.write_text(
                        json.dumps(
                            {"summary": summary(known), "cases": [asdict(case) for case in known]}
                        )
                    )
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return cases


def summary(cases: list[Case]) -> dict:
    """Totals."""
    return {
        "cases": len(cases),
        "both done": sum(case.outcomes == ["done", "done"] for case in cases),
        "none done": sum(
            "done" not in case.outcomes and "killed" not in case.outcomes for case in cases
        ),
        "outcomes": dict(
            Counter(
                " | ".join(outcome.partition(":")[0] for outcome in case.outcomes) for case in cases
            )
        ),
        **{
            kind: sum(case.trouble.startswith(kind) for case in cases)
            for kind in ("lost", "unreadable", "hang")
        },
        "left": sum(len(case.left) for case in cases),
        "troubles": [asdict(case) for case in cases if case.trouble],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--depth", type=int, default=2, help="switches from one process to the other"
    )
    parser.add_argument("--cases", type=int, default=0, help="how many, sampled; all by default")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument(
        "--operations",
        nargs="+",
        choices={pair[0] for pair in PAIRS} | set(OPERATIONS),
        help="of the first process; another one of the table is done by both",
    )
    parser.add_argument(
        "--before",
        default="",
        help="the first process stands before effects that match this pattern",
    )
    parser.add_argument(
        "--then",
        default="",
        help="the second process stands before the first few effects that match this pattern",
    )
    parser.add_argument(
        "--takeovers",
        nargs="+",
        choices=sorted({"same", *(pair[1] for pair in PAIRS)}),
        help="of the second process",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write every case to this file")
    given = parser.parse_args()
    if "SHIM" not in os.environ:
        sys.exit(preloaded.restarted(__file__, sys.argv[1:]))
    wanted = (given.operations, given.takeovers)
    known = {pair[0] for pair in PAIRS}
    others = [(name, "same") for name in given.operations or () if name not in known]
    pairs = [
        pair
        for pair in [*PAIRS, *others]
        if all(not names or name in names for name, names in zip(pair, wanted, strict=True))
    ]
    cases = run(
        pairs,
        given.ways,
        given.depth,
        given.cases,
        before=given.before,
        then=given.then,
        seed=given.seed,
        out=given.json,
    )
    print(json.dumps(summary(cases), indent=1))


if __name__ == "__main__":
    main()
