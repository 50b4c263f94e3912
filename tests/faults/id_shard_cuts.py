"""Kills, power cuts and calls that fail while chunks by id are changed: each shard holds what it
held before or what it was to hold, and the same call again does the rest.

Before some effect of a change, the process is killed, the power of the machine of `power_cut.py` is
cut, or the call fails. Every chunk is then read, and the change is made again. Its result is read
after the file system was mounted once more.

Run as ``python tests/faults/id_shard_cuts.py --fault cut --cases 100 --json out.json``, with
``--fault kill``, or with ``--fault fail``, as root where something is mounted, or through
`test_id_shards.py`.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import power_cut
from ends import before_effect, count_effects, in_child
from leftovers import left_over

FAULTS = ("cut", "kill", "fail")
OLD = {int(one): bytes([one % 251]) * (1 + one % 90) for one in [*range(300), 2**63, 2**64 - 1]}
# Some chunks are replaced, and some are new.
CHANGED = {one: bytes([one % 241]) * (2 + one % 70) for one in range(100, 500, 3)}
NEW = {**OLD, **CHANGED}
HASHES = ("identity", "murmurhash3_x86_128")


@dataclass(kw_only=True)
class Case:
    """A change that is struck.

    Attributes
    ----------
    number : int
        Number of the case, by which it is drawn.
    hash : str
        Which shard has which chunk.
    is_first : bool
        Whether nothing was there before.
    effect : str
        The effect before which the fault came; nothing if the change had ended before.
    lost : int
        Chunks that are there no more right after the fault, or have another value.
    trouble : str
        What else went wrong.
    """

    number: int
    hash: str
    is_first: bool
    effect: str = ""
    lost: int = 0
    trouble: str = ""
    left: list[str] = field(default_factory=list)


def draw(seed: int, number: int) -> tuple[Case, np.random.Generator]:
    """A case, and the source of what else is random in it."""
    rng = np.random.default_rng([seed, number])
    return Case(number=number, hash=HASHES[rng.integers(2)], is_first=rng.random() < 0.25), rng


def shards_in(home: Path, hash_name: str) -> shardwrite.UInt64Shards:
    encoding = "gzip" if hash_name == "identity" else "raw"
    sharding = {
        "@type": "neuroglancer_uint64_sharded_v1",
        "hash": hash_name,
        "preshift_bits": 1,
        "minishard_bits": 2,
        "shard_bits": 3,
        "minishard_index_encoding": encoding,
        "data_encoding": encoding,
    }
    return shardwrite.UInt64Shards(home / "x", sharding)


def fragments_of(chunk_id: int) -> bytes:
    """What lies before a chunk, as before the manifest of a mesh."""
    return bytes([chunk_id % 239]) * (chunk_id % 60)


def with_fragments(chunks: dict[int, bytes]) -> dict:
    """Arguments that write chunks, and what lies before them."""
    return {
        "values": {one: fragments_of(one) + chunk for one, chunk in chunks.items()},
        "data_offset": {one: len(chunk) for one, chunk in chunks.items()},
    }


def make(home: Path, case: Case) -> None:
    home.mkdir()
    if not case.is_first:
        shards_in(home, case.hash).write(**with_fragments(OLD), durability="full")


def change(home: Path, case: Case) -> None:
    threads = 1 + case.number % 2
    shards_in(home, case.hash).write(
        **with_fragments(CHANGED), existing="update", threads=threads, durability="full"
    )


def wanted(case: Case) -> dict[int, bytes]:
    """All chunks after the change."""
    return CHANGED if case.is_first else NEW


def check_between(home: Path, case: Case) -> int:
    """The number of chunks that are lost. Each shard must be the old or the new one."""
    shards, old = shards_in(home, case.hash), {} if case.is_first else OLD
    found = dict(shards)
    assert shards.verify(deep=True).is_good
    assert shards.read_fragments(found) == {one: fragments_of(one) for one in found}
    for ids in shards.shards_of(NEW).values():
        held = {one: found[one] for one in ids if one in found}
        states = [{one: of[one] for one in ids if one in of} for of in (old, wanted(case))]
        assert held in states, "a shard between both"
    return sum(found.get(one) not in (value, wanted(case)[one]) for one, value in old.items())


def check_changed(home: Path, case: Case) -> None:
    shards = shards_in(home, case.hash)
    assert dict(shards) == wanted(case)
    assert shards.read_fragments(wanted(case)) == {one: fragments_of(one) for one in wanted(case)}
    assert shards.verify(deep=True).is_good


class Bench:
    """Where cases run.

    Parameters
    ----------
    fault : {"cut", "kill", "fail"}
        What strikes.
    machine : power_cut.Machine, optional
        The machine whose power is cut.
    root : pathlib.Path
        Directory of the cases.
    notes : pathlib.Path
        A directory that no fault strikes.
    """

    def __init__(
        self, fault: str, machine: power_cut.Machine | None, root: Path, notes: Path
    ) -> None:
        self._fault, self._machine, self._root, self._notes = fault, machine, root, notes

    def run_case(self, seed: int, number: int) -> Case:
        """One change, one strike, the change again, and the judgements."""
        case, rng = draw(seed, number)
        home = self._root / f"case-{number}"
        make(home, case)
        subprocess.run(["sync", "--file-system", home], check=True)
        self._strike(case, home, rng)
        lost = self._notes / "lost"
        case.trouble = self._in_child(lambda: lost.write_text(str(check_between(home, case))))
        case.lost = 0 if case.trouble else int(lost.read_text())
        case.trouble = case.trouble or self._in_child(lambda: change(home, case))
        self._remount()
        case.trouble = case.trouble or self._in_child(lambda: check_changed(home, case))
        case.left = left_over(home, before=("x",), own=("x/*.shard",))
        shutil.rmtree(home)
        return case

    def _in_child(self, action: Callable[[], object]) -> str:
        """Do something in a process of its own; nothing, or what went wrong."""
        stage = self._notes / "trouble"
        stage.unlink(missing_ok=True)
        ended = in_child(action, stage=stage)
        return "" if ended == "done" else ended

    def _where(self, case: Case, rng: np.random.Generator) -> int:
        """Number of the effect before which a case strikes."""
        home, count = Path(tempfile.mkdtemp(dir=self._notes)) / "home", self._notes / "count"
        make(home, case)
        trouble = self._in_child(lambda: count_effects(lambda: change(home, case), count))
        assert not trouble, trouble
        return int(rng.integers(1, 1 + int(count.read_text())))

    def _strike(self, case: Case, home: Path, rng: np.random.Generator) -> None:
        k, effect = self._where(case, rng), self._notes / "effect"
        effect.unlink(missing_ok=True)

        def strike(name: str) -> None:
            effect.write_text(name)
            if self._machine is not None:
                self._machine.cut(rng)
            elif self._fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        def action() -> None:
            with before_effect(k, strike), contextlib.suppress(shardwrite.ShardwriteError):
                change(home, case)

        ended = self._in_child(action)
        assert self._fault != "fail" or not ended, ended
        case.effect = effect.read_text() if effect.exists() else ""
        self._remount()

    def _remount(self) -> None:
        if self._machine is not None:
            self._machine.restart()


def run(directory: Path, fault: str, filesystem: str, n_cases: int, *, seed: int = 0) -> list[Case]:
    """Cases of one fault, one after the other.

    Parameters
    ----------
    directory : pathlib.Path
        Empty; what is mounted in it is unmounted at the end.
    fault, filesystem, n_cases, seed
        See the head of this file.
    """
    with tempfile.TemporaryDirectory() as notes, contextlib.ExitStack() as stack:
        machine = None
        if fault == "cut":
            machine = stack.enter_context(power_cut.Machine(directory, filesystem))
        root = directory if machine is None else machine.root
        bench = Bench(fault, machine, root, Path(notes))
        return [bench.run_case(seed, number) for number in range(n_cases)]


def summary(cases: list[Case]) -> dict:
    """Totals; acknowledged are the chunks that are there before each fault."""
    struck = [case for case in cases if case.effect]
    return {
        "cases": len(cases),
        "vacuous": len(cases) - len(struck),
        "acked": sum(len(OLD) for case in struck if not case.is_first),
        "lost": sum(case.lost for case in cases),
        "left": sum(len(case.left) for case in cases),
        "effects": dict(Counter(case.effect for case in struck)),
        "troubles": [
            f"case {case.number}, {case.hash}, first {case.is_first}, {case.effect}: "
            f"{case.trouble[-600:]}"
            for case in cases
            if case.trouble
        ],
    }


def main() -> None:
    parser = power_cut.parser("Strike changes of chunks by id, many times.", "cases", 100)
    parser.add_argument("--fault", choices=FAULTS, default="cut")
    given = parser.parse_args()
    if given.fault == "cut" and (why := power_cut.missing(given.filesystem)):
        sys.exit(why)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that nothing stays mounted
    gc.freeze()
    with tempfile.TemporaryDirectory() as directory:
        cases = run(Path(directory), given.fault, given.filesystem, given.cases, seed=given.seed)
    found = summary(cases)
    if given.json:
        document = {"summary": found, "cases": [asdict(case) for case in cases]}
        given.json.write_text(json.dumps(document))
    print(json.dumps({"fault": given.fault, "seed": given.seed, **found}, indent=1))
    sys.exit(1 if found["troubles"] or found["lost"] else 0)


if __name__ == "__main__":
    main()
