"""The k-th system call fails under any operation of `all_operations.py`: the same call again makes it
whole.

Started as `failing_calls.py` is, with `shim.c` preloaded and its path in ``SHIM``, or through
`test_system_calls.py`.
"""

from __future__ import annotations

import atexit
import itertools
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import failing_calls
from all_operations import OPERATIONS, SMALL
from leftovers import names_in

ERRORS = ("EIO", "EACCES", "ESTALE")
NO_SPACE = "ENOSPC"
UPDATES = ("update", "update in place, raw", "append in place", "update without shards")
STREAMS = ("stream", "stream, shards replaced", "stream without shards")
WITHOUT_SHARDS = ("update without shards", "stream without shards")
CONVERSIONS = ("shard", "unshard", "shard in place", "unshard in place")
CONSUMING = ("shard and consume", "reshard and consume")
OTHERS = tuple(name for name in SMALL if name not in (*UPDATES, *STREAMS, *CONVERSIONS, *CONSUMING))


@dataclass(kw_only=True)
class Case(failing_calls.Fault):
    """A fault under one of the operations."""

    operation: str


@cache
def template(name: str) -> Path:
    """What stands there before, made once."""
    operation, home = OPERATIONS[name], Path(tempfile.mkdtemp(prefix="before-"))
    atexit.register(shutil.rmtree, home)
    (home / operation.at).parent.mkdir(exist_ok=True)
    operation.prepare(home / operation.at)
    return home


def run_case(library, case: Case, directory: Path) -> Case:
    operation = OPERATIONS[case.operation]
    shutil.copytree(template(case.operation), directory, dirs_exist_ok=True)
    before, path = names_in(directory), directory / operation.at
    error = case.strike(library, directory, lambda: operation.perform(path))
    try:
        if error is None:
            check(case, path)
        else:
            case.check_told(error)
            operation.look(path, False)
        operation.again(path)
        check(case, path)
    except Exception as trouble:
        case.trouble = f"{type(trouble).__name__}: {trouble}"
    case.look_for_left(directory, before)
    return case


def check(case: Case, path: Path) -> None:
    """What an operation which succeeded has promised; empty directories may stay."""
    operation = OPERATIONS[case.operation]
    if case.call != "rmdir":
        operation.check_done(path)
    elif operation.wanted is not None:
        np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], operation.wanted)


def kinds_of(operations, calls, errors) -> Iterator[Case]:
    """Kinds of faults; each is then tried for k = 1, 2, ... until it does not fire."""
    for operation, call, error, persistent in itertools.product(
        operations, calls, errors, (False, True)
    ):
        if call in failing_calls.LOOKS and error == NO_SPACE:
            continue
        yield Case(operation=operation, call=call, error=error, persistent=persistent)


def main() -> None:
    arguments = failing_calls.parser(__doc__, (*ERRORS, NO_SPACE))
    arguments.add_argument(
        "--operations", nargs="+", choices=OPERATIONS, default=(*UPDATES, *STREAMS)
    )
    arguments.set_defaults(errors=ERRORS)
    given = arguments.parse_args()
    kinds = kinds_of(given.operations, given.calls, given.errors)
    done = failing_calls.run_all(
        kinds, run_case, share=given.share, seed=given.seed, every=given.every
    )
    failing_calls.tell(done, failing_calls.summary(done), given.json)


if __name__ == "__main__":
    main()
