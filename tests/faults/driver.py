"""One driver for all faults: prepare, act, fault, recover, judge.

What is struck is an `Operation` (see `all_operations.py`). What strikes is a fault (see
`all_faults.py`), a function that runs around the recovery:

1. Prepare: what stands there before, made once, is copied to the place of the fault.
2. Act, and fault: the function has the operation done in a process of its own, and strikes.
3. Recover: what is there is looked at, and the same call is made again, or the operation is given
   up.
4. Judge: the function comes to its end, and values, documents, and all that is left are checked.

A process that never starts a thread imports everything and forks a child for each step.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import effects
from leftovers import is_aside, left_over, names_in

Step = Callable[[Path], object]
"""Given the path of an array, or of what else is changed."""
Tree = dict[str, bytes]
GOLDEN = 0.618  # multiples of it, without what is before the point, are spread evenly


_acks: list[
    Path
] = []  # of the bench: a file in which names of files that were acknowledged are noted


def nothing(path: Path) -> None:
    """An empty place, or no check."""


def acknowledging(path: Path, key_of: Callable[[int], str]) -> Callable[[Any], None]:
    """A `progress` that notes files of shards which were acknowledged, for the judge.

    `key_of` gives the name of a shard by its rank; it is empty for one that is not to stay. What is
    written here is no effect that is counted.
    """

    def told(report: Any) -> None:
        note(*(f"{path / key}" for key in map(key_of, report.shards) if key))

    return told


def note(*lines: str) -> None:
    """Note what was acknowledged."""
    for acks in _acks[-1:]:
        with acks.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)


def noted() -> list[str]:
    """What was noted before the fault."""
    return [line for acks in _acks[-1:] if acks.exists() for line in acks.read_text().splitlines()]


def is_hidden(data: bytes) -> bool:
    """Whether this stands in the place of a document of an array in a bucket that is replaced."""
    return b"no group: an array is being replaced here" in data


@dataclass(frozen=True)
class Operation:
    """What is interrupted."""

    prepare: Step  # makes what is there before
    perform: Step  # the call that is interrupted, and made again
    wanted: np.ndarray | None = None  # values of the array afterwards; None if it is no array
    at: str = "x"  # where the array lies
    recover: Step | None = None  # what comes after a fault, in place of the same call
    check: Step = nothing  # what else must hold when a call has ended
    look: Callable[[Path, bool], object] = lambda path, is_done: None
    """What must hold at any time, and when the call has ended."""
    abandoned: Step | None = None  # what must hold when it was given up; None if it is not
    may_be_torn: bool = False  # whether shards may be unreadable until the recovery
    own: tuple[str, ...] = ()  # patterns of names that it makes, and that are no part of an array
    is_exact: bool = False
    """Whether each run leaves the same names and, but for receipts, the same bytes. So each file is
    the old or the new one at any time, and what is acknowledged (see `acknowledging`) is new."""
    published: str = ""
    """The document after which all other files of such an operation must be new, but documents of
    arrays and groups, which may follow."""

    def again(self, path: Path) -> object:
        """What comes after a fault."""
        return (self.recover or self.perform)(path)

    def check_done(self, path: Path) -> None:
        """What must hold after the call has returned."""
        if self.wanted is not None:
            check_array(path, self.wanted)
        self.check(path)
        self.look(path, True)

    def judge(self, path: Path) -> None:
        """The same, and that the array is whole and can be updated."""
        self.check_done(path)
        if self.wanted is not None:
            assert shardwrite.verify(path, deep=True).is_good
            shardwrite.erase(path, (slice(0, 1), slice(0, 1)))
            is_erased = np.arange(self.wanted.size).reshape(self.wanted.shape) == 0
            check_array(path, np.where(is_erased, 0, self.wanted))


def check_array(path: Path, wanted: np.ndarray) -> None:
    """The values are there, and nothing is left beside the array."""
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], wanted)
    beside = [
        p
        for p in path.parent.iterdir()
        if p.name.startswith("x.") and not p.name.endswith(".quarantine")
    ]
    # State of arrays in a group lies beside it.
    beside += path.parent.parent.glob(f"{path.parent.name}.shardwrite")
    left = [*beside, *(q for p in beside for q in p.rglob("*")), *path.rglob("*.swtmp")]
    left += path.glob("shardwrite-run")
    left += path.parent.glob(".*.swtmp")
    assert not left, f"left over: {sorted(str(p.relative_to(path.parents[1])) for p in left)}"


@dataclass(kw_only=True)
class Case:
    """A fault under an operation, and what came of it."""

    fault: str
    operation: str
    at: int  # before which effect, or at which call it strikes
    again_at: int = 0  # before which effect of the recovery a kill strikes once more; 0 for none
    then: str = "again"  # what is done afterwards: "again", "abandon" or "nothing"
    effect: str = ""  # what was struck; nothing if the operation had ended before
    error: str = ""  # what the operation raised
    trouble: str = ""  # why the judgement failed
    left: list[str] = field(default_factory=list)  # names that are left over in the end
    kills: int = 0  # how often it was killed, where that is not once
    acked: int = 0  # files that were acknowledged before the fault
    lost: int = 0  # those of them that are not as they were acknowledged
    torn: int = 0  # files that are neither old nor new
    is_vacuous: bool | None = None  # whether nothing was changed yet, or all was done


@dataclass(frozen=True)
class Fault:
    """What strikes, and the file system on which it can."""

    strike: Callable[[Bench, Case, Path], contextlib.AbstractContextManager[None]]
    disk: Callable[[Path], contextlib.AbstractContextManager[Any]] | None = None
    missing: Callable[[], str] = lambda: ""  # why it cannot be had here, or an empty string
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Operations that it does not strike, and why."""


@dataclass(frozen=True)
class Undisturbed:
    """What an operation comes to that is not struck."""

    n_effects: int
    names: set[str]
    files: Tree


def files_in(home: Path) -> Tree:
    """Files below a directory that each undisturbed run leaves the same: no receipts, which tell
    times, and no copies of what was bad."""
    return {
        path.relative_to(home).as_posix(): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and "receipt" not in path.name and not is_aside(path)
    }


def without_state(files: Tree) -> Tree:
    """Files that are not of a run's state."""
    return {name: data for name, data in files.items() if ".shardwrite/" not in name}


class Bench:
    """Where cases of one fault run.

    - `root`: directory for arrays, on the disk if there is one.
    - `notes`: a directory that no fault strikes.
    - `seed`: of what is random in a fault.
    """

    def __init__(
        self,
        operations: Mapping[str, Operation],
        fault: Fault,
        root: Path,
        notes: Path,
        *,
        disk: Any = None,
        seed: int = 0,
    ) -> None:
        self.operations, self.fault, self.root, self.notes = operations, fault, root, notes
        self.disk, self.seed = disk, seed
        self.enter: Callable[[], object] = lambda: None
        """What each process does first."""
        self.home = root
        """Directory of the case."""
        self.known: dict[str, Undisturbed] = {}
        """What operations come to that are not struck."""
        self._seconds: dict[str, float] = {}
        self._number, self._is_published = 0, False
        self.acks = notes / "acks"
        """Where files are noted that were acknowledged."""
        _acks.append(self.acks)

    def before(self, name: str) -> Path:
        """What stands there before an operation, made once."""
        home = self.notes / "before" / name.replace("/", " ")
        if not home.exists():
            operation = self.operations[name]
            (home / operation.at).parent.mkdir(parents=True)
            trouble = self.trouble_of(lambda: operation.prepare(home / operation.at))
            assert not trouble, trouble
        return home

    def fresh(self, name: str) -> Path:
        """A copy of that."""
        self.acks.unlink(missing_ok=True)
        self._number += 1
        home = self.root / f"case-{self.seed}-{self._number}"
        shutil.copytree(self.before(name), home, symlinks=True)
        return home

    def undisturbed(self, name: str) -> Undisturbed:
        """What comes of an operation that is not struck, made once."""
        if name not in self.known:
            operation, count = self.operations[name], self.notes / "count"
            home = Path(tempfile.mkdtemp(dir=self.notes)) / "home"
            shutil.copytree(self.before(name), home, symlinks=True)
            act = lambda: operation.perform(home / operation.at)  # noqa: E731
            trouble = self.trouble_of(lambda: effects.count_effects(act, count))
            assert not trouble, trouble
            self.acks.unlink(missing_ok=True)
            files = files_in(home) if operation.is_exact else {}
            self.known[name] = Undisturbed(int(count.read_text()), names_in(home), files)
            shutil.rmtree(home.parent)
        return self.known[name]

    def seconds(self, name: str) -> float:
        """How long such an operation takes, which is measured once."""
        if name not in self._seconds:
            home = self.fresh(name)
            begun = time.monotonic()
            trouble = self.trouble_of(
                lambda: self.operations[name].perform(home / self.operations[name].at)
            )
            self._seconds[name] = time.monotonic() - begun
            self.acks.unlink(missing_ok=True)
            assert not trouble, trouble
            shutil.rmtree(home)
        return self._seconds[name]

    def n_effects(self, name: str) -> int:
        """How many effects such an operation has."""
        return self.undisturbed(name).n_effects

    def trouble_of(self, action: Callable[[], object], *, is_refused: bool = False) -> str:
        """Do something in a process of its own; what went wrong, or an empty string.

        With `is_refused`, it may also raise an error of this package.
        """
        stage = self.notes / "trouble"
        stage.unlink(missing_ok=True)
        refusals = contextlib.suppress(*[shardwrite.ShardwriteError] * is_refused)

        def act() -> None:
            self.enter()
            with refusals:
                action()

        ended = effects.in_child(act, stage=stage)
        return "" if ended == "done" else ended

    def start(self, case: Case, path: Path, strike: Callable[[str], object]) -> int:
        """Begin the operation in a process that is struck before its effect; its pid."""
        for note in ("effect", "error", "trouble"):
            (self.notes / note).unlink(missing_ok=True)

        def noted(name: str) -> None:
            (self.notes / "effect").write_text(name)
            strike(name)

        def act() -> None:
            self.enter()
            try:
                self.operations[case.operation].perform(path)
            except shardwrite.ShardwriteError as error:
                told = f"{type(error).__name__}, {getattr(error, 'errno', None)}: {error}"
                (self.notes / "error").write_text(told[:300])

        return effects.start(act, case.at, noted, self.notes / "trouble")

    def wait(self, case: Case, pid: int) -> str:
        """Wait for the end of that process, and note what came of it: as `effects.wait`."""
        ended = effects.wait(pid, self.notes / "trouble")
        if ended not in ("done", "killed"):
            case.trouble = case.trouble or f"the operation: {ended}"
        notes = (self.notes / name for name in ("effect", "error"))
        case.effect, case.error = (note.read_text() if note.exists() else "" for note in notes)
        return ended

    def act(self, case: Case, path: Path, strike: Callable[[str], object]) -> None:
        """Do the operation in a process that is struck before its effect."""
        self.wait(case, self.start(case, path, strike))

    def rng(self, case: Case) -> np.random.Generator:
        """What else is random in a case."""
        return np.random.default_rng([self.seed, self._number, case.at])

    def run(self, case: Case) -> Case:
        """One case, from its preparation to the judgement."""
        operation = self.operations[case.operation]
        self.home = home = self.fresh(case.operation)
        path, before = home / operation.at, names_in(home)
        try:
            with self.fault.strike(self, case, path):
                self.look(case)
                if case.effect and not case.trouble:
                    case.trouble = self.trouble_of(lambda: go_on(operation, path, case.then))
            if case.effect and not case.trouble and operation.is_exact:
                if case.then == "abandon":
                    self.compare_given_up(case)
                    case.trouble = case.trouble or self.trouble_of(lambda: operation.perform(path))
                self.compare_at_end(case)
            if case.effect:
                case.left = self.left_over(case, before)
            if case.effect and not case.trouble and (case.then != "abandon" or operation.is_exact):
                case.trouble = self.trouble_of(lambda: operation.judge(path))
        except Exception as error:
            case.trouble = case.trouble or f"{type(error).__name__}: {error}"[:600]
        shutil.rmtree(home, ignore_errors=True)
        return case

    @property
    def hides(self) -> bool:
        """Whether no reader finds an array in a bucket, since it is being replaced."""
        return any(is_hidden(path.read_bytes()) for path in self.home.rglob("zarr.json"))

    def look(self, case: Case) -> None:
        """What must hold right after a fault."""
        operation = self.operations[case.operation]
        if case.effect and not case.trouble and operation.is_exact:
            self.compare(case)
        if case.effect and not case.trouble and not self.hides:
            path = self.home / operation.at
            case.trouble = self.trouble_of(lambda: operation.look(path, False))

    def compare(self, case: Case) -> None:
        """Right after a fault, each file is old or new, and what was acknowledged is new."""
        old, new = files_in(self.before(case.operation)), self.undisturbed(case.operation).files
        there = files_in(self.home)
        acked = {Path(name).relative_to(self.home).as_posix() for name in noted()}
        case.acked = max(case.acked, len(acked))
        lost = [name for name in acked if there.get(name) != new.get(name)]
        torn = [
            name
            for name in new
            if name in there
            and there[name] not in (new[name], old.get(name))
            and not is_hidden(there[name])
        ]
        torn += [name for name in old if name in new and name not in there]
        changed = [name for name in new if there.get(name) != new[name]]
        seen = without_state(there) | {name: data for name, data in there.items() if "/c/" in name}
        is_vacuous = seen == old or not changed
        case.is_vacuous = is_vacuous and case.is_vacuous is not False
        self._enter(case, lost, torn)
        document = self.operations[case.operation].published
        self._is_published = there.get(document) == new.get(document) != old.get(document)
        missing = [name for name in changed if not name.endswith("zarr.json")]
        if self._is_published and missing and not case.trouble:
            case.trouble = f"published, and not there: {missing[:3]}"

    def compare_given_up(self, case: Case) -> None:
        """What was given up is all old or, once it had been published, all new."""
        old, new = files_in(self.before(case.operation)), self.undisturbed(case.operation).files
        # What a process had begun to draft is removed by the next call, or when it is old.
        there = without_state(files_in(self.home))
        allowed = [old, new] if self._is_published else [old]
        if there not in allowed:
            differing = sorted(n for n in {*old, *there} if there.get(n) != old.get(n))
            case.trouble = f"given up, and neither old nor new: {differing[:3]}"

    def compare_at_end(self, case: Case) -> None:
        """In the end all is new."""
        if case.trouble:
            return
        new, there = self.undisturbed(case.operation).files, files_in(self.home)
        self._enter(case, [], [name for name in {*new, *there} if there.get(name) != new.get(name)])

    @staticmethod
    def _enter(case: Case, lost: Sequence[str], torn: Sequence[str]) -> None:
        case.lost, case.torn = len(lost), len(torn)
        for what, names in {"lost": lost, "torn": torn}.items():
            if names and not case.trouble:
                case.trouble = f"{what}: {len(names)} files, {sorted(names)[:3]}"

    def left_over(self, case: Case, before: set[str]) -> list[str]:
        """Names that an undisturbed run would not have left."""
        operation = self.operations[case.operation]
        if not operation.is_exact:
            return left_over(self.home, before, operation.own)
        left = names_in(self.home) - before - self.undisturbed(case.operation).names
        return sorted(name for name in left if not is_aside(Path(name)))


def go_on(operation: Operation, path: Path, then: str) -> None:
    """Recover or give up."""
    if then == "abandon":
        shardwrite.abandon(path)
        operation.abandoned(path)
    elif then == "again":
        operation.again(path)


@contextlib.contextmanager
def bench_of(
    operations: Mapping[str, Operation], fault: Fault, top: Path, *, seed: int = 0
) -> Iterator[Bench]:
    """A bench below an empty directory, on the disk of the fault."""
    notes, place = top / "notes", top / "place"
    notes.mkdir()
    place.mkdir()
    with contextlib.ExitStack() as stack:
        disk = None if fault.disk is None else stack.enter_context(fault.disk(place))
        root = place if disk is None else disk.root
        yield Bench(operations, fault, root, notes, disk=disk, seed=seed)


def everywhere(
    bench: Bench, fault: str, names: Iterable[str], *, every: int = 1, last: int = 0, twice: int = 0
) -> Iterator[Case]:
    """Cases before every so many effects of each operation, and before each of its last ones.

    A seed is the number of effects that are passed over at first, so that consecutive seeds reach all.
    With `every` 0, there is only one amid each operation, and none before the same share of another
    one. With `twice`, there is also a case in which a kill strikes the recovery, before that effect.
    Of an operation that can be given up, there is another case of each.
    """
    for number, name in enumerate(names):
        n = bench.n_effects(name)
        amid = {1 + round((n - 1) * (number * GOLDEN % 1))}
        regular = {*range(1 + bench.seed % every, n + 1, every)} if every else amid
        for at in sorted({*regular, *range(max(1, n + 1 - last), n + 1)}):
            case = {"fault": fault, "operation": name, "at": at}
            yield Case(**case)
            if twice:
                yield Case(**case, again_at=twice)
            if bench.operations[name].abandoned is not None:
                yield Case(**case, then="abandon")
                if twice:
                    yield Case(**case, then="abandon", again_at=twice)


def drawn(bench: Bench, fault: str, names: Sequence[str], n_cases: int) -> Iterator[Case]:
    """So many cases at random; operations take turns, and so does what is done afterwards."""
    rng = np.random.default_rng(bench.seed)
    for number in range(bench.seed * n_cases, (bench.seed + 1) * n_cases):
        name = names[number % len(names)]
        is_given_up = bench.operations[name].abandoned is not None and number // len(names) % 2
        yield Case(
            fault=fault,
            operation=name,
            at=1 + int(rng.integers(bench.n_effects(name))),
            then="abandon" if is_given_up else "again",
        )


def killed(bench: Bench, cases: Iterable[Case], n_kills: int) -> Iterator[Case]:
    """Cases until so many kills have come; a call that had ended before is none."""
    n = 0
    for case in cases:
        yield bench.run(case)
        n += case.kills
        if n >= n_kills or case.trouble:
            return


def summary(cases: list[Case]) -> dict[str, Any]:
    """Totals."""
    return {
        "cases": len(cases),
        "vacuous": sum(not case.effect or bool(case.is_vacuous) for case in cases),
        **{name: sum(getattr(case, name) for case in cases) for name in ("acked", "lost", "torn")},
        "kills": sum(case.kills for case in cases),
        "operations": dict(Counter(case.operation for case in cases if case.effect)),
        "effects": dict(Counter(case.effect for case in cases)),
        "left": sum(len(case.left) for case in cases),
        "troubles": [
            f"{case.fault}, {case.operation}, {case.at}, {case.again_at}, then {case.then}: "
            f"{case.trouble[-600:]}"
            for case in cases
            if case.trouble
        ],
    }
