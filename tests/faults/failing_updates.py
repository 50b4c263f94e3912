"""The k-th system call fails under an update of an array, or under a stream of slices: the same call again makes it whole.

Started as `failing_calls.py` is, with `shim.c` preloaded and its path in ``SHIM``, or through `test_system_calls.py`.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import dask
import dask.array as da
import numpy as np

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardwriteError, ShardWriter, commit
from shardwrite.journal import lease

sys.path.insert(0, str(Path(__file__).parent))
import failing_calls
import oracle

ERRORS = ("EIO", "EACCES", "ESTALE")
OLD, NEW = oracle.values((32, 32), 1), oracle.values((32, 32), 2)
REGION = (slice(3, 29), slice(5, 30))
UPDATED = OLD.copy()
UPDATED[REGION] = NEW[REGION]
UPDATES = {
    "replace": FixedOrder(),
    "in place": FixedOrder(in_place=True, max_unused=1.0),
    "append in place": AppendOnly(in_place=True),
}
STREAMS = {"stream": "auto", "stream, shards replaced": FixedOrder()}
OPERATIONS = (*UPDATES, *STREAMS)


@dataclass
class Case:
    """One fault, and what came of it; the fields are those of `failing_calls.Case`."""

    operation: str
    call: str
    error: str
    k: int
    persistent: bool
    n_fired: int = 0
    raised: str = ""
    trouble: str = ""


def make(path: Path, operation: str) -> None:
    """The array as it is before; inner chunks of one size are what can be put in place."""
    compressors = "auto" if operation == "append in place" else []
    da.from_array(OLD, chunks=16).to_sharded_zarr(path, shards=16, chunks=4, compressors=compressors)


def operate(path: Path, operation: str) -> None:
    """Write the region, or append six slices."""
    if operation in UPDATES:
        x = da.from_array(NEW[REGION], chunks=13)
        shardwrite.write_region(x, path, REGION, strategy=UPDATES[operation], source_id="new", memory_limit="200kB")
        return
    first = shardwrite.open_sharded(path).shape[0]
    with ShardWriter(path, strategy=STREAMS[operation], n_threads=1) as writer:
        for t in range(first, first + 6):
            writer.append(NEW[t - len(OLD)])
            if t % 3 == 0:
                writer.flush()


def check(path: Path, operation: str) -> None:
    """All that an operation which succeeded has promised."""
    found = shardwrite.open_sharded(path)[:, :]
    wanted = UPDATED if operation in UPDATES else np.concatenate([OLD, NEW[: len(found) - len(OLD)]])
    np.testing.assert_array_equal(found, wanted)
    assert operation in UPDATES or len(found) >= len(OLD) + 6


def run_case(library, case: Case, path: Path) -> Case:
    make(path, case.operation)
    number, error = getattr(errno, case.error), None
    library.shim_arm(str(path).encode(), case.call.encode(), case.k, number, case.persistent)
    try:
        operate(path, case.operation)
    except BaseException as raised:
        error = raised
    finally:
        library.shim_disarm()
    case.n_fired = library.shim_fired()
    try:
        if error is None:
            check(path, case.operation)
        else:
            case.raised = f"{type(error).__name__}: {error}"[:200]
            assert isinstance(error, ShardwriteError), f"raised {error!r}"
            numbers = [getattr(e, "errno", None) for e in failing_calls.chain_of(error)]
            assert number in numbers, f"the error does not tell {case.error}: {error!r}"
        operate(path, case.operation)
        check(path, case.operation)
        if case.call != "rmdir":  # an empty directory may stay
            oracle.check_tidy(path)
    except Exception as trouble:
        case.trouble = f"{type(trouble).__name__}: {trouble}"
    return case


def kinds(operations, calls, errors) -> Iterator[Case]:
    """Kinds of faults; each is then tried for k = 1, 2, ... until it does not fire."""
    for operation, call, error, persistent in itertools.product(operations, calls, errors, (False, True)):
        yield Case(operation, call, error, 0, persistent)


def run_all(operations, calls, errors, *, share: float, seed: int) -> list[Case]:
    """Every k of every kind, or of a share of the kinds, sampled."""
    library, chosen = failing_calls.shim(), random.Random(seed)
    commit.RETRY_SECONDS = (0.0, 0.0, 0.0)
    lease.TTL_SECONDS = -1.0  # what a failed beginning could not remove is stale at once
    done = []
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with dask.config.set(scheduler="sync"):
        for kind in kinds(operations, calls, errors):
            if chosen.random() >= share:
                continue
            for k in itertools.count(1):
                directory = Path(tempfile.mkdtemp(prefix="updates-", dir=place))
                case = run_case(library, Case(**{**asdict(kind), "k": k}), directory / "x.zarr")
                shutil.rmtree(directory, ignore_errors=True)
                done.append(case)
                if not case.n_fired:
                    break
    return done


def summary(done) -> dict:
    """Sums over many cases."""
    return {
        "cases": len(done),
        "fired": sum(case.n_fired > 0 for case in done),
        "raised": sum(bool(case.raised) for case in done),
        "survived": sum(case.n_fired > 0 and not case.raised for case in done),
        "troubles": Counter(
            f"{c.operation}: {c.call} {c.error} k={c.k} persistent={c.persistent}: {c.trouble}" for c in done if c.trouble
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    parser.add_argument("--calls", nargs="+", choices=failing_calls.CALLS, default=failing_calls.CALLS)
    parser.add_argument("--errors", nargs="+", choices=ERRORS, default=ERRORS)
    parser.add_argument("--share", type=float, default=1.0, help="of the kinds of faults, sampled")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="write every case to this file")
    given = parser.parse_args()
    done = run_all(given.operations, given.calls, given.errors, share=given.share, seed=given.seed)
    if given.json:
        Path(given.json).write_text(json.dumps({"summary": summary(done), "cases": [asdict(case) for case in done]}))
    print(json.dumps(summary(done), indent=1))


if __name__ == "__main__":
    main()
