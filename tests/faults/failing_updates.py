"""The k-th system call fails under an update of an array, under a stream of slices, or under a
conversion: the same call again makes it whole.

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
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import dask.array as da
import h5py
import numpy as np

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter

sys.path.insert(0, str(Path(__file__).parent))
import ends
import failing_calls
import oracle
from leftovers import names_in

ERRORS = ("EIO", "EACCES", "ESTALE")
NO_SPACE = "ENOSPC"
OLD, NEW = oracle.values((32, 32), 1), oracle.values((32, 32), 2)
REGION = (slice(3, 29), slice(5, 30))
UPDATED = OLD.copy()
UPDATED[REGION] = NEW[REGION]
UPDATES = {
    "replace": FixedOrder(),
    "in place": FixedOrder(in_place=True, max_unused=1.0),
    "append in place": AppendOnly(in_place=True),
    "update without shards": FixedOrder(),
}
STREAMS = {
    "stream": "auto",
    "stream, shards replaced": FixedOrder(),
    "stream without shards": FixedOrder(),
}
WITHOUT_SHARDS = ("update without shards", "stream without shards")
CONVERSIONS = {"shard": 4, "unshard": None, "shard-in-place": 4, "unshard-in-place": None}
"""Shards of the new array, in inner chunks."""
CONSUMING = {"shard-and-consume": 4, "reshard-and-consume": (3, 1)}
"""The same for conversions that remove their source."""
OTHERS = {
    name: ends.OPERATIONS[name]
    for name in (
        "replacement",
        "restart",
        "parts",
        "finalize",
        "creation",
        "erase",
        "compaction",
        "repair",
        "salvage",
        "update by restart",
        "give up, and update",
        "conversion that encodes",
        "shard a store",
        "append in a group",
        "replacement in a group",
    )
}
"""Operations that `ends.py` kills."""


def adopt(path: Path) -> None:
    shardwrite.adopt([path.with_name("old.h5")], path, dataset="x")


def make_hdf5(path: Path) -> None:
    with h5py.File(path.with_name("old.h5"), "w") as file:
        file.create_dataset("x", data=ends.NEW, chunks=(5, 5), compression="gzip")


def convert_in_parts(path: Path) -> None:
    given = path.with_name("source"), path
    shardwrite.prepare_conversion(*given, shards=2)
    for part in range(2):
        shardwrite.convert_part(*given, part, 2, shards=2)
    shardwrite.finalize_conversion(*given, shards=2)


OTHERS |= {
    # which `ends.py` follows by a look at the document of its own
    "shard a store": replace(
        OTHERS["shard a store"], perform=lambda path: shardwrite.shard_store(path, 2)
    ),
    "adoption": ends.Operation(make_hdf5, adopt, ends.NEW),
    "download": ends.Operation(
        lambda path: ends.make_source(path, 10),
        lambda path: shardwrite.download(path.with_name("source"), path),
        ends.NEW,
    ),
    "conversion in parts": ends.Operation(ends.make_source, convert_in_parts, ends.NEW),
}
OPERATIONS = (*UPDATES, *STREAMS, *CONVERSIONS, *CONSUMING, *OTHERS)


@dataclass(kw_only=True)
class Case(failing_calls.Fault):
    """A fault under one of `OPERATIONS`."""

    operation: str


def make(path: Path, operation: str) -> None:
    """The array as it is before; inner chunks of one size are what can be put in place."""
    if operation in OTHERS:
        path.parent.joinpath(OTHERS[operation].at).parent.mkdir(exist_ok=True)
        OTHERS[operation].prepare(path.parent / OTHERS[operation].at)
        return
    compressors = "auto" if operation == "append in place" else []
    if operation in (*CONVERSIONS, *CONSUMING):
        is_flat = CONVERSIONS.get(operation) or operation == "shard-and-consume"
        shards = None if is_flat else 32
        da.from_array(OLD, chunks=16).to_sharded_zarr(path, shards=shards, chunks=4)
        return
    sizes = (
        {"shards": None, "chunks": 16}
        if operation in WITHOUT_SHARDS
        else {"shards": 16, "chunks": 4}
    )
    da.from_array(OLD, chunks=16).to_sharded_zarr(path, compressors=compressors, **sizes)


def operate(path: Path, operation: str) -> None:
    """Write the region, append six slices, or convert the array."""
    if operation in CONVERSIONS:
        is_in_place = operation.endswith("in-place")
        src, dst = (path, None) if is_in_place else (path.with_name("source"), path)
        shardwrite.reshard(src, dst, CONVERSIONS[operation])
        return
    if operation in CONSUMING:
        source, shards = path.with_name("source"), CONSUMING[operation]
        shardwrite.reshard(source, path, shards, consume=True, memory_limit="10kB")
        return
    if operation in UPDATES:
        x = da.from_array(NEW[REGION], chunks=13)
        shardwrite.write_region(
            x, path, REGION, strategy=UPDATES[operation], source_id="new", memory_limit="200kB"
        )
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
    if operation in (*CONVERSIONS, *CONSUMING):
        np.testing.assert_array_equal(found, OLD)
        return
    wanted = (
        UPDATED if operation in UPDATES else np.concatenate([OLD, NEW[: len(found) - len(OLD)]])
    )
    np.testing.assert_array_equal(found, wanted)
    assert operation in UPDATES or len(found) >= len(OLD) + 6


@cache
def template(operation: str) -> Path:
    """The array as it is before, made once."""
    path = Path(tempfile.mkdtemp(prefix="before-")) / "x.zarr"
    atexit.register(shutil.rmtree, path.parent)
    make(path, operation)
    return path


def run_other(library, case: Case, directory: Path) -> Case:
    """The same for one of `OTHERS`: a call fails, and the same call is made again."""
    operation = OTHERS[case.operation]
    shutil.copytree(template(case.operation).parent, directory, dirs_exist_ok=True)
    before, path = names_in(directory), directory / operation.at
    error = case.strike(library, directory, lambda: operation.perform(path))
    try:
        if error is None:
            np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], operation.wanted)
        else:
            case.check_told(error)
        operation.perform(path)
        np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], operation.wanted)
    except Exception as trouble:
        case.trouble = f"{type(trouble).__name__}: {trouble}"
    case.look_for_left(directory, before)
    return case


def run_case(library, case: Case, directory: Path) -> Case:
    if case.operation in OTHERS:
        return run_other(library, case, directory)
    path = directory / "x.zarr"
    is_elsewhere = case.operation in ("shard", "unshard", *CONSUMING)
    made = directory / "source" if is_elsewhere else path
    shutil.copytree(template(case.operation), made)
    before = names_in(directory)
    struck = directory if case.operation in CONSUMING else path  # with the source and its records
    error = case.strike(library, struck, lambda: operate(path, case.operation))
    try:
        if error is None:
            check(path, case.operation)
        else:
            case.check_told(error)
        if case.operation in CONVERSIONS and not is_elsewhere:
            check(path, case.operation)  # the old array or the new one
        operate(path, case.operation)
        check(path, case.operation)
        if case.call != "rmdir":  # empty directories may stay
            oracle.check_tidy(path)
            left = sorted(directory.glob("source*")) if case.operation in CONSUMING else []
            assert not left, left
    except Exception as trouble:
        case.trouble = f"{type(trouble).__name__}: {trouble}"
    case.look_for_left(directory, before)
    return case


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
    arguments.add_argument("--others", action="store_true", help="operations that have no rows")
    arguments.set_defaults(errors=ERRORS)
    given = arguments.parse_args()
    kinds = kinds_of(OTHERS if given.others else given.operations, given.calls, given.errors)
    done = failing_calls.run_all(
        kinds, run_case, share=given.share, seed=given.seed, every=given.every
    )
    failing_calls.tell(done, failing_calls.summary(done), given.json)


if __name__ == "__main__":
    main()
