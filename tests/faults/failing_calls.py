"""The k-th system call fails, for every k until none does: run, judge, run again, judge again.

Started with `shim.c` preloaded and its path in ``SHIM``; each case is a run of a small array in
this process, so that thousands are a matter of minutes. Run as ``python
tests/faults/failing_calls.py --calls rename --json out.json`` after building the shim, or through
`test_system_calls.py`, which does that.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import dask
import numpy as np

import shardwrite
import shardwrite.read.array
from shardwrite import ShardwriteError

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams
from helpers import MEMORY, Stop, chain_of, stop
from leftovers import left_over

LOOKS = ("stat", "opendir", "read")
CALLS = (
    "open",
    "write",
    "fsync",
    "fsync-directory",
    "close",
    "rename",
    "link",
    "mkdir",
    "unlink",
    "rmdir",
    *LOOKS,
)
OF_LOOKS = ("EIO", "EACCES", "ESTALE")
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EACCES", "EROFS", "ESTALE", "EINTR")
RETRIED_BY_PYTHON = "EINTR"  # PEP 475: only close is not called again
SHAPE = (48, 48)
EMPTY = (slice(0, 16), slice(16, 32))
KEYWORDS = {
    "shards": 16,
    "chunks": 8,
    "memory_limit": "60kB",
    "source_id": "one",
    "max_source_reruns": 100,
}
WANTED = oracle.values(SHAPE, 1, EMPTY)
SOURCE = oracle.source(SHAPE, (16, 48), 1, EMPTY)


@dataclass(kw_only=True)
class Fault:
    """A system call that fails, and what came of it.

    Attributes
    ----------
    call, error : str
        What fails, and how; ``short`` for a write that is short.
    k : int
        Which of the calls.
    persistent : bool
        Whether those after it fail, too.
    n_fired : int
        Calls that failed; 0 where there are no k calls, and the case is vacuous.
    raised : str
        What was raised, if anything.
    trouble : str
        Why the judgement failed.
    left : list of str
        Names that are left over in the end.
    """

    call: str
    error: str
    k: int = 0
    persistent: bool
    n_fired: int = 0
    raised: str = ""
    trouble: str = ""
    left: list[str] = field(default_factory=list)

    @property
    def stride(self) -> int:
        """Step from one k to the next, where errors take turns."""
        return 1

    @property
    def number(self) -> int:
        """Of the error."""
        return 0 if self.error == "short" else getattr(errno, self.error)

    def strike(self, library, path: Path, action) -> BaseException | None:
        """Do something while calls below a path fail; what it raised."""
        library.shim_arm(
            str(path).encode(), self.call.encode(), self.k, self.number, self.persistent
        )
        try:
            action()
        except BaseException as raised:
            self.raised = f"{type(raised).__name__}: {raised}"[:200]
            return raised
        finally:
            library.shim_disarm()
            self.n_fired = library.shim_fired()
        return None

    def check_told(self, error: BaseException) -> None:
        """What was raised is shardwrite's, and tells the system's error."""
        assert isinstance(error, ShardwriteError), f"raised {error!r}"
        numbers = [getattr(e, "errno", None) for e in chain_of(error)]
        assert self.number in numbers, f"the error does not tell {self.error}: {error!r}"

    def check_tidy(self, path: Path) -> None:
        """Nothing is left beside the array, but an empty directory that could not be removed."""
        if self.call == "rmdir":
            with contextlib.suppress(FileNotFoundError):
                seams.state_beside(path).rmdir()
        oracle.check_tidy(path)

    def look_for_left(self, directory: Path, before: Collection[str] = ()) -> None:
        """List what is left over; directories that could not be removed may stay, if they are empty."""
        left = left_over(directory, before, own=("acks",))
        if self.call == "rmdir":
            left = [name for name in left if not (directory / name).is_dir()]
        self.left = left


@dataclass(kw_only=True)
class Case(Fault):
    """A fault under a run that makes an array.

    Attributes
    ----------
    durability : str
        Level.
    resumed : bool
        Whether the run that fails goes on with one that was interrupted.
    acked, lost : int
        Shards that were acknowledged, and those of them that were not there.
    """

    durability: str
    resumed: bool
    acked: int = 0
    lost: int = 0

    @property
    def stride(self) -> int:
        return 1 if self.durability == "full" else 3


def shim():
    library = ctypes.CDLL(os.environ["SHIM"])
    library.shim_arm.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_long,
        ctypes.c_int,
        ctypes.c_int,
    ]
    library.shim_fired.restype = ctypes.c_long
    return library


def run_case(library, case: Case, directory: Path) -> Case:
    path, acks = directory / "x.zarr", oracle.Acks(directory / "acks")
    keywords = {
        **KEYWORDS,
        "durability": case.durability,
        "publish": "first" if case.k % 2 else "last",
    }
    if case.resumed:
        with contextlib.suppress(Stop):
            SOURCE.to_sharded_zarr(path, progress=stop, **keywords)
    error = case.strike(
        library, path, lambda: SOURCE.to_sharded_zarr(path, progress=acks, **keywords)
    )
    try:
        if error is not None:
            case.check_told(error)
        if case.error != "EINTR":  # which says that nothing was done yet
            assert not library.shim_synced_again(), "an fsync that failed was called again"
        judge(case, path, acks.ranks(), is_done=error is None)
        SOURCE.to_sharded_zarr(path, **keywords)
        ours = shardwrite.open_sharded(path)[:, :]
        np.testing.assert_array_equal(ours, WANTED, err_msg="after the same call again")
        case.check_tidy(path)
        if random.random() < 0.02:
            oracle.check_whole(path, WANTED)
    except Exception as trouble:
        case.trouble = f"{type(trouble).__name__}: {trouble}"
    case.look_for_left(directory)
    return case


def judge(case: Case, path: Path, acked: set[int], *, is_done: bool) -> None:
    """What must hold of the array right after the fault."""
    case.acked = len(acked)
    if is_done:
        found = shardwrite.open_sharded(path)[:, :]
        np.testing.assert_array_equal(found, WANTED, err_msg="success was told")
    try:
        metadata = oracle.metadata_of(path)
    except IndexError:
        assert not acked
        return
    array = seams.array_at(path, metadata)
    for rank, box in oracle.shard_boxes(metadata).items():
        found, wanted = array.read_box(box), WANTED[box.slices]
        if rank in acked and not (found == wanted).all():
            case.lost += 1
        assert (found == wanted).all() or (found == 0).all(), f"shard {rank} is torn"
    assert not case.lost, "acknowledged shards are lost"
    left = [p.name for p in path.rglob("*.swtmp")]
    assert not left, f"temporaries are left: {left}"


def cases(calls, errors, durabilities):
    """Kinds of faults; each is then tried for k = 1, 2, ... until it does not fire."""
    ways = itertools.product(calls, (False, True), durabilities, (False, True))
    for call, persistent, durability, resumed in ways:
        for error in (*errors, *(["short"] if call == "write" else [])):
            if error == RETRIED_BY_PYTHON and persistent and call != "close":
                continue  # Python would call again for ever
            if call in LOOKS and error not in OF_LOOKS:
                continue
            if resumed and (durability != "full" or error not in OF_LOOKS):
                continue
            if durability == "none" and call.startswith("fsync"):
                continue
            yield Case(
                call=call,
                error=error,
                persistent=persistent,
                durability=durability,
                resumed=resumed,
            )


def in_turn(kinds, turns: int, every: int = 1) -> list[tuple[Fault, int, int]]:
    """Kinds of faults, each with the first k and the step to the next, so that of several errors
    the first is met at every k, and of the others, in turn, one at each k-th that is a multiple of
    `turns`. With `every`, all steps are so many times as large.

    What a run calls depends little on its durability. So only the calls of the level ``"full"``
    are met at every k, and every third of the others.
    """
    alike: dict[str, list[Fault]] = {}
    for kind in kinds:
        alike.setdefault(str(replace(kind, error="")), []).append(kind)
    return [
        (
            kind,
            max(turn * turns, 1),
            (turns * (len(errors) - 1) if turn else 1) * kind.stride * every,
        )
        for errors in alike.values()
        for turn, kind in enumerate(errors)
    ]


def run_all(kinds, run_case, *, share: float, seed: int, every: int = 1, turns: int = 0) -> list:
    """Every k of every kind of fault, or of a share of the kinds, sampled.

    A larger share of the kinds takes no longer if `every` is larger than 1: each kind then begins
    at a random k up to that number, and goes on in steps of it. With `turns`, errors take turns
    (see `in_turn`).
    """
    library, chosen = shim(), random.Random(seed)
    random.seed(seed)
    seams.stale_at_once().start()  # also what a failed beginning could not remove
    done = []
    place = MEMORY
    with dask.config.set({"scheduler": "sync", "shardwrite.retry-pauses": [0, 0, 0]}):
        for kind, first, step in (
            in_turn(kinds, turns, every) if turns else ((kind, 1, every) for kind in kinds)
        ):
            if chosen.random() >= share:
                continue
            if not turns and every > 1:
                first = chosen.randint(1, every)
            for k in itertools.count(first, step):
                directory = Path(tempfile.mkdtemp(prefix="calls-", dir=place))
                case = run_case(library, replace(kind, k=k), directory)
                shutil.rmtree(directory, ignore_errors=True)
                done.append(case)
                if not case.n_fired:
                    break
    return done


def summary(done) -> dict:
    """Sums over many faults."""
    return {
        "cases": len(done),
        "fired": sum(case.n_fired > 0 for case in done),
        "raised": sum(bool(case.raised) for case in done),
        "survived": sum(case.n_fired > 0 and not case.raised for case in done),
        "vacuous": sum(not case.n_fired for case in done),
        "left": sum(len(case.left) for case in done),
        "troubles": Counter(str(case) for case in done if case.trouble),
    }


def parser(description: str, errors) -> argparse.ArgumentParser:
    """The arguments of a harness whose calls fail."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", nargs="+", choices=CALLS, default=CALLS)
    parser.add_argument("--errors", nargs="+", choices=errors, default=errors)
    parser.add_argument("--share", type=float, default=1.0, help="of the kinds of faults, sampled")
    parser.add_argument("--every", type=int, default=1, help="step from one k to the next")
    parser.add_argument(
        "--turns",
        type=int,
        default=0,
        help="the first error at every k, and one of the others at every so many, in turn",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write every case to this file")
    return parser


def tell(done, found: dict, path: str | None) -> None:
    """Print a summary, and write it with every case to a file if one is named."""
    if path:
        Path(path).write_text(
            json.dumps({"summary": found, "cases": [asdict(case) for case in done]})
        )
    print(json.dumps(found, indent=1))


def main() -> None:
    arguments = parser(__doc__, ERRORS)
    arguments.add_argument("--durabilities", nargs="+", default=["full", "batch", "none"])
    given = arguments.parse_args()
    done = run_all(
        cases(given.calls, given.errors, given.durabilities),
        run_case,
        share=given.share,
        seed=given.seed,
        every=given.every,
        turns=given.turns,
    )
    acks = {name: sum(getattr(case, name) for case in done) for name in ("acked", "lost")}
    tell(done, {**summary(done), **acks}, given.json)


if __name__ == "__main__":
    main()
