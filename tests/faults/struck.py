"""Kills, failing calls and power cuts under one call of this package, and the same call again.

Before some effect on the file system the process is killed, or the power is cut, or that effect
fails. What is there is judged, the same call is made again, and that is judged, too. Bytes of
shards are a function of values and plan, so each is compared with that of a run that nothing
disturbed. `volumes.py` and `formats.py` say which call it is.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import json
import os
import random
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import dask
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import power_cut
import seams
from effects import before_effect, count_effects, in_child
from helpers import MEMORY

import shardwrite

FAULTS = ("kill", "fail", "cut")
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
Tree = dict[str, bytes]


@dataclass(kw_only=True)
class Case:
    """A fault, and what came of it.

    Attributes
    ----------
    fault : {"kill", "fail", "cut"}
        What strikes.
    before : str
        What stands there before; see `Call.states`.
    at : int
        Number of the effect before which it strikes.
    acked : int
        Shards that were acknowledged before.
    vacuous : bool
        Whether nothing was there yet, or all was done.
    lost, torn, left : int
        Shards that were acknowledged and are gone; files that are neither old nor new; and files
        that are left over in the end.
    trouble : str
        What else went wrong.
    """

    fault: str
    before: str
    at: int
    acked: int = 0
    vacuous: bool = False
    lost: int = 0
    torn: int = 0
    left: int = 0
    trouble: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.lost or self.torn or self.left or self.trouble)


class Call(ABC):
    """The call that is struck.

    Attributes
    ----------
    states : list of str
        What may stand there before.
    """

    states: list[str]

    @abstractmethod
    def make_before(self, root: Path, before: str) -> None:
        """Make what stands there before."""

    @abstractmethod
    def make(self, root: Path, before: str, told: Callable[[Any], object]) -> None:
        """Call it. `told` is its `progress`."""

    @abstractmethod
    def key_of(self, root: Path, rank: int) -> str:
        """Name of a shard in the tree of files; empty for one that is not to stay."""

    @abstractmethod
    def is_shard(self, name: str) -> bool:
        """Whether a file is a shard."""

    @abstractmethod
    def check(self, root: Path, before: str) -> None:
        """What must hold of the values when the call has returned."""

    def trouble_in(self, before: str, found: Tree, new: Tree) -> str:
        """What else is wrong right after the fault."""
        return ""

    def is_counted(self, path: Path) -> bool:
        """Whether a file belongs to the tree. Receipts tell times."""
        return not path.name.endswith("shardwrite-receipt.json")

    def tree(self, root: Path) -> Tree:
        """All files below a directory that are the same after each undisturbed run."""
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in sorted(root.rglob("*"))
            if path.is_file() and self.is_counted(path)
        }

    def __call__(
        self, root: Path, before: str, told: Callable[[Any], object] = lambda report: None
    ) -> None:
        with dask.config.set({"scheduler": "sync", "shardwrite.retry-pauses": [0, 0, 0]}):
            self.make(root, before, told)

    def acknowledging(self, root: Path, acks: Path) -> Callable[[Any], None]:
        """Callback that notes which shards were acknowledged."""

        def told(report: Any) -> None:
            names = [self.key_of(root, rank) for rank in report.shards]
            with acks.open("a") as file:
                file.writelines(f"{name}\n" for name in names if name)

        return told

    def judge(self, case: Case, root: Path, old: Tree, new: Tree, acked: set[str]) -> None:
        """What must hold right after the fault."""
        there = self.tree(root)
        found = {name: data for name, data in there.items() if name in new}
        case.acked = len(acked)
        case.lost = sum(there.get(name) != new[name] for name in acked)
        case.torn = sum(data not in (new[name], old.get(name)) for name, data in found.items())
        case.torn += sum(name not in found for name in old)
        changed = [name for name in there if there[name] != old.get(name) and self.is_shard(name)]
        case.vacuous = not changed or found == new
        case.trouble = self.trouble_in(case.before, found, new)

    def judge_done(self, case: Case, root: Path, new: Tree) -> None:
        """What must hold when the same call has returned."""
        found = self.tree(root)
        case.torn += sum(found.get(name) != data for name, data in new.items())
        beside = [path for path in root.parent.iterdir() if path.name.startswith("v.")]
        case.left = len(set(found) - set(new)) + len(beside)
        case.left += sum(path.name.endswith((".shardwrite", ".spool")) for path in root.rglob("*"))
        with dask.config.set(scheduler="sync"):
            self.check(root, case.before)


def _must(action: Callable[[], object], stage: Path) -> None:
    ended = in_child(action, 0, stage)
    assert ended == "done", ended


class Reference:
    """What an undisturbed run makes of each state before it."""

    def __init__(self, call: Call, top: Path) -> None:
        self.places, self.olds, self.news, self.n_effects = {}, {}, {}, {}
        for before in call.states:
            place = top / before.replace(" ", "-")
            place.mkdir(parents=True)
            # A process that writes has threads, after which it should not fork.
            _must(lambda p=place, b=before: call.make_before(p / "v", b), top / "error")
            self.places[before], self.olds[before] = place, call.tree(place / "v")
            done = top / "done" / before.replace(" ", "-")
            shutil.copytree(place, done)
            _must(
                lambda d=done, b=before: count_effects(lambda: call(d / "v", b), top / "count"),
                top / "error",
            )
            self.n_effects[before] = int((top / "count").read_text())
            self.news[before] = call.tree(done / "v")
            assert sum(call.is_shard(name) for name in self.news[before]) > 8

    def begin(self, home: Path, before: str) -> Path:
        """A place that is in the state before."""
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(self.places[before], home)
        return home / "v"


def run_in_child(call: Call, case: Case, reference: Reference, home: Path, notes: Path) -> Case:
    """A kill or an effect that fails, in a process of its own."""
    acks, stage = notes / "acks", notes / "trouble"
    for note in (acks, stage):
        note.unlink(missing_ok=True)
    acks.touch()
    root = reference.begin(home, case.before)

    def fail(name: str) -> NoReturn:
        number = ERRORS[case.at % len(ERRORS)]
        raise OSError(number, os.strerror(number), name)

    def failing() -> None:
        """Whatever the call raises is an error of this package."""
        with before_effect(case.at, fail), contextlib.suppress(shardwrite.ShardwriteError):
            call(root, case.before, call.acknowledging(root, acks))

    def killed() -> None:
        call(root, case.before, call.acknowledging(root, acks))

    if case.fault == "kill":
        # The file of acknowledgements is written through io, which is no effect that is counted.
        ended = in_child(killed, case.at, stage)
        case.trouble = "" if ended in ("killed", "done") else ended
    else:
        ended = in_child(failing, 0, stage)
        case.trouble = "" if ended == "done" else ended
    acked = set(acks.read_text().splitlines())
    old, new = reference.olds[case.before], reference.news[case.before]
    if not case.trouble:
        call.judge(case, root, old, new, acked)

    def finish() -> None:
        call(root, case.before)
        call.judge_done(case, root, new)
        stage.write_text(json.dumps([case.torn, case.left]))

    if not case.is_bad:
        ended = in_child(finish, 0, stage)
        if ended == "done":
            case.torn, case.left = json.loads(stage.read_text())
        else:
            case.trouble = ended
    return case


def run_cut(
    call: Call, case: Case, reference: Reference, machine: power_cut.Machine, notes: Path, seed: int
) -> Case:
    """A power cut under the call, on a machine that starts again."""
    rng = np.random.default_rng([seed, case.at])
    acks, home = notes / "acks", machine.root / f"case-{seed}-{case.at}-{len(case.before)}"
    acks.write_text("")
    root = reference.begin(home, case.before)
    os.sync()
    acked: set[str] = set()

    def strike(_: str) -> None:
        acked.update(acks.read_text().splitlines())  # after it, no one could have been told
        machine.cut(rng)

    with before_effect(case.at, strike):
        try:
            call(root, case.before, call.acknowledging(root, acks))
        except shardwrite.ShardwriteError:
            pass
        except Exception as error:
            case.trouble = f"{type(error).__name__}: {error}"
    machine.restart()
    with seams.after_restart(f"{seed} {case.at} {case.before}"):
        try:
            if not case.trouble:
                old, new = reference.olds[case.before], reference.news[case.before]
                call.judge(case, root, old, new, acked)
            call(root, case.before)
            call.judge_done(case, root, reference.news[case.before])
        except Exception as error:
            case.trouble = case.trouble or f"{type(error).__name__}: {error}"[:600]
    shutil.rmtree(home, ignore_errors=True)
    return case


def run(call: Call, fault: str, *, every: int = 1, n_cases: int = 0, seed: int = 0) -> list[Case]:
    """Cases of one fault: before every so many effects, or a number of them at random."""
    memory = MEMORY
    top = Path(tempfile.mkdtemp(prefix="struck-", dir=memory))
    try:
        reference, notes = Reference(call, top / "made"), top / "notes"
        notes.mkdir()
        chosen = random.Random(seed)
        cases = [
            Case(fault=fault, before=before, at=at)
            for before in call.states
            for at in range(1 + seed % every, reference.n_effects[before] + 1, every)
        ]
        cases = chosen.sample(cases, min(n_cases, len(cases))) if n_cases else cases
        if fault != "cut":
            return [run_in_child(call, case, reference, top / "home", notes) for case in cases]
        with tempfile.TemporaryDirectory() as disk, power_cut.Machine(disk, "ext4") as machine:
            return [run_cut(call, case, reference, machine, notes, seed) for case in cases]
    finally:
        shutil.rmtree(top)


def summary(cases: list[Case]) -> dict[str, Any]:
    """Totals."""
    names = ("acked", "vacuous", "lost", "torn", "left")
    return {
        "cases": len(cases),
        **{name: sum(getattr(case, name) for case in cases) for name in names},
        "troubles": [str(case) for case in cases if case.is_bad],
    }


def parser(description: str) -> argparse.ArgumentParser:
    """The options that all calls have."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--fault", choices=FAULTS, default="kill")
    made.add_argument("--every", type=int, default=1, help="only every so many effects")
    made.add_argument("--cases", type=int, default=0, help="so many of them at random")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--json", help="write every case to this file")
    return made


def main(call: Call, given: argparse.Namespace) -> NoReturn:
    """Strike a call as the command line says."""
    if given.fault == "cut" and (why := power_cut.missing("ext4")):
        sys.exit(why)
    gc.freeze()
    cases = run(call, given.fault, every=given.every, n_cases=given.cases, seed=given.seed)
    found = summary(cases)
    if given.json:
        document = {"summary": found, "cases": [asdict(case) for case in cases]}
        Path(given.json).write_text(json.dumps(document))
    print(json.dumps(found, indent=1))
    sys.exit(1 if found["troubles"] else 0)
