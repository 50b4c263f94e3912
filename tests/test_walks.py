"""'A line's walk' in ARCHITECTURE.md: what is followed there passes those files, in that order."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import seams

import shardwrite
from shardwrite import AppendOnly, FixedOrder

ROOT = Path(__file__).parent.parent
PACKAGE = f"{ROOT / 'shardwrite'}/"
X = da.from_array(np.arange(64, dtype="u4").reshape(8, 8) + 1, chunks=8)
LAYOUT = {"shards": 8, "chunks": 8}
TOP = (slice(0, 4), slice(0, 8))


def write(path: Path, **keywords: object) -> Callable[[], object]:
    """A write of one block: of a shard with one inner chunk."""
    return lambda: X.to_sharded_zarr(path, **LAYOUT, **keywords)


def update(path: Path, **keywords: object) -> Callable[[], object]:
    X.to_sharded_zarr(path, compressors=None, **LAYOUT)
    return lambda: X[TOP].to_sharded_zarr(path, region=TOP, **keywords)


def update_in_place(path: Path) -> Callable[[], object]:
    return update(path, strategy=AppendOnly(in_place=True))


def resume(path: Path) -> Callable[[], object]:
    """A run that another process has begun."""
    shardwrite.prepare(X, path, shardwrite.plan(X, source_id="x", **LAYOUT))
    return write(path, source_id="x")


def into_other_shards(path: Path) -> Callable[[], object]:
    X.to_sharded_zarr(path, **LAYOUT)
    return lambda: shardwrite.reshard(path, path.with_name("y"), shards=16)


def into_other_shards_in_place(path: Path) -> Callable[[], object]:
    X.to_sharded_zarr(path, shards=8, chunks=4)
    return lambda: shardwrite.reshard(path, shards=1)


def task_on_a_worker(path: Path) -> Callable[[], object]:
    """The only task of a run, as an engine hands it to a worker."""
    (task,) = seams.begin_run(X, path, **LAYOUT)
    return task


def as_hdf5(path: Path) -> Callable[[], object]:
    pytest.importorskip("h5py")
    return write(path, strategy="hdf5")


OF_UPDATES = [
    ("operations/region.py", "write_into"),
    ("runs/region_plan.py", "region_plan"),
    ("runs/execute.py", "execute"),
    ("runs/begin.py", "begin"),
    ("journal/neighbours.py", "begin_beside"),
    ("runs/session.py", "Session.catch_up"),
    ("write/tasks.py", "write_group"),
    ("read/stored_shard.py", "open_shard"),
]
"""What all updates pass first."""

WALKS = {
    "a block of pixels from `x.to_sharded_zarr()` to bytes on disk": (
        write,
        [
            ("operations/write.py", "to_sharded_zarr"),
            ("runs/array_plan.py", "plan_array"),
            ("plan/plan.py", "make_plan"),
            ("runs/execute.py", "execute"),
            ("runs/begin.py", "begin"),
            ("runs/job.py", "GroupGraph.fused"),
            ("runs/array_plan.py", "ArrayChunks.write"),
            ("engines/local.py", "LocalEngine.run"),
            ("write/tasks.py", "write_group"),
            ("encode/unit.py", "tiles_of"),
            ("codecs/pipeline.py", "NativePipeline.encode"),
            ("write/emitter.py", "Emitter.put"),
            ("stores/posix.py", "PosixWriter.write"),
        ],
    ),
    "`shards=`": (
        write,
        [
            ("operations/write.py", "to_sharded_zarr"),
            ("format/document.py", "ArrayOptions.__post_init__"),
            ("runs/array_plan.py", "plan_array"),
            ("plan/options.py", "resolve_shapes"),
            ("grid.py", "ShardGrid.__post_init__"),
        ],
    ),
    "`strategy=`": (
        lambda path: write(path, strategy=FixedOrder("F")),
        [
            ("operations/write.py", "to_sharded_zarr"),
            ("plan/options.py", "PlanOptions.__post_init__"),
            ("format/strategies.py", "as_strategy"),
            ("format/strategies.py", "check_strategy"),
            ("write/context.py", "WriteSpec.streams"),
            ("write/emitter.py", "Emitter.put"),
        ],
    ),
    '`strategy="hdf5"`': (
        as_hdf5,
        [
            ("hdf5/strategy.py", "Hdf5.__post_init__"),
            ("hdf5/format.py", "filters_of"),
            ("hdf5/layout.py", "lay_out_file"),
        ],
    ),
    "`durability=`": (
        lambda path: write(path, durability="full"),
        [
            ("operations/write.py", "to_sharded_zarr"),
            ("runs/job.py", "RunOptions.__post_init__"),
            ("runs/job.py", "Job.durability"),
            ("place/target.py", "Target.durability"),
            ("runs/session.py", "Session.spec"),
            ("write/commit.py", "commit_shards"),
            ("stores/posix.py", "PosixWriter.sync"),
        ],
    ),
    "an update, into a new file": (
        update,
        [
            *OF_UPDATES,
            ("write/assemble.py", "revise"),
            ("write/emitter.py", "Emitter.place"),
        ],
    ),
    "an update in place": (
        update_in_place,
        [
            *OF_UPDATES,
            ("write/assemble.py", "revise"),
            ("journal/undo.py", "change_in_place"),
        ],
    ),
    "an encoded chunk into another shard": (
        into_other_shards,
        [
            ("convert/convert.py", "reshard"),
            ("read/stored_array.py", "stored_at"),
            ("convert/run.py", "convert_array"),
            ("convert/plan.py", "converted"),
            ("format/passage.py", "passage_between"),
            ("runs/stored_chunks.py", "StoredChunks.write"),
            ("write/copying.py", "copy_group"),
            ("write/copying.py", "Donor.copies_ranges"),
            ("write/emitter.py", "Emitter.place"),
        ],
    ),
    "a conversion in place": (
        into_other_shards_in_place,
        [
            ("convert/convert.py", "reshard"),
            ("convert/trees.py", "convert_tree"),
            ("convert/in_place.py", "convert_in_place"),
            ("convert/swap.py", "InPlace.begun"),
            ("convert/arrays.py", "TreeConversion.execute"),
            ("runs/execute.py", "execute"),
            ("runs/stored_chunks.py", "StoredChunks.write"),
            ("write/copying.py", "copy_group"),
            ("convert/in_place.py", "_require_equal"),
            ("convert/swap.py", "InPlace.hand_over"),
            ("convert/swap.py", "InPlace.finish"),
        ],
    ),
    "a task on a worker": (
        task_on_a_worker,
        [
            ("write/tasks.py", "write_group"),
            ("write/context.py", "WriteSpec.at_work"),
            ("write/commit.py", "commit_shards"),
            ("journal/lines.py", "JournalWriter.append"),
            ("encode/unit.py", "tiles_of"),
            ("codecs/pipeline.py", "NativePipeline.encode"),
            ("write/emitter.py", "Emitter.put"),
            ("stores/posix.py", "PosixWriter.write"),
        ],
    ),
    "a resume": (
        resume,
        [
            ("operations/write.py", "to_sharded_zarr"),
            ("runs/result.py", "finished"),
            ("runs/begin.py", "begin"),
            ("journal/begin.py", "begin_runs"),
            ("runs/session.py", "Session.catch_up"),
            ("journal/replay.py", "replay"),
            ("journal/ledger.py", "Ledger.left_in_groups"),
            ("runs/job.py", "GroupGraph.fused"),
        ],
    ),
}
"""What is followed: how to have it done, and the functions in which it is handled, each with its
file."""


def files_of(walk: list[tuple[str, str]]) -> list[str]:
    """Files that a walk passes. Functions of one file that follow one another count once."""
    return [file for file, _ in groupby(file for file, _ in walk)]


def told() -> dict[str, list[str]]:
    """Files of each row of the table. What a semicolon parts from them lies beside the walk."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.partition("## A line's walk")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (.+?) \| (`.+) \|$", table, re.MULTILINE))
    assert all(
        (ROOT / "shardwrite" / name).is_file()
        for files in rows.values()
        for name in re.findall(r"`([\w/]+\.py)`", files)
    )
    return {
        what: re.findall(r"`([\w/]+\.py)`", files.partition(";")[0]) for what, files in rows.items()
    }


def test_the_table_names_what_is_followed_here():
    assert told() == {what: files_of(walk) for what, (_, walk) in WALKS.items()}


@contextmanager
def watched(
    files: Collection[str],
) -> Iterator[tuple[list[tuple[str, str]], list[tuple[str, ...]]]]:
    """Note which functions of these files are called, and where one file calls another, which calls
    the first, which calls the other again."""
    calls, circles, stack = [], [], []

    def note(frame, event, _):
        name = frame.f_code.co_filename.removeprefix(PACKAGE)
        if name not in files or event not in ("call", "return"):
            return
        if event == "return":
            stack.pop()
            return
        stack.append(name)
        calls.append((name, frame.f_code.co_qualname))
        turns = [file for file, _ in groupby(stack)]
        if len(turns) > 3 and turns[-4:-2] == turns[-2:]:
            circles.append(tuple(turns[-4:]))

    with dask.config.set(scheduler="sync"):
        sys.setprofile(note)
        try:
            yield calls, circles
        finally:
            sys.setprofile(None)


@pytest.mark.parametrize("what", WALKS)
def test_it_passes_these_files_in_this_order(tmp_path, what):
    prepare, walk = WALKS[what]
    call = prepare(tmp_path / "x")
    with watched(files_of(walk)) as (calls, circles):
        call()
    called = iter(calls)
    for step in walk:
        assert step in called, f"{step} is not called after the steps before it"
    assert not circles, "one goes back and forth between two files"
