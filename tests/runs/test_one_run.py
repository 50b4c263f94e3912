"""One run writes all new arrays of a hierarchy: one directory, one lease, one log."""

from __future__ import annotations

import json
import os
import shutil

import calls
import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from zarr.storage import MemoryStore

import shardwrite

VALUES = np.arange(32 * 32, dtype="i4").reshape(32, 32)
SIZES = {"shards": 16, "chunks": 4, "source_id": "it"}
NAMES = ["a", "g/b", "g/h/c"]


def write(root, function=lambda block: block, names=NAMES, **more):
    x = da.from_array(VALUES, chunks=(16, 32))
    arrays = [x + n for n in range(len(names))]
    arrays[-1] = arrays[-1].map_blocks(function, dtype="i4")
    with dask.config.set(scheduler="sync"):
        return shardwrite.store(arrays, [root] * len(names), names=names, **{**SIZES, **more})


def stop(*_):
    raise KeyboardInterrupt


def begin(root, **more):
    """A run that has written all shards, and published nothing."""
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(KeyboardInterrupt):
            write(root, **more)


def check(root, names=NAMES):
    for n, name in enumerate(names):
        np.testing.assert_array_equal(zarr.open_array(root, path=name, mode="r")[:], VALUES + n)


def all_below(path):
    return sorted(found.relative_to(path).as_posix() for found in path.rglob("*"))


@pytest.fixture
def root(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path / "in" / "tree.zarr"


def test_there_is_one_directory_one_lease_and_one_log(root):
    seen = []

    def look(block):
        seen[:] = all_below(root.parent)
        return block

    write(root, look)
    runs = [path for path in seen if path.count("run-") == 1 and path.count("/") == 2]
    assert len(runs) == 1, "of all three arrays"
    assert runs[0].startswith("tree.zarr.shardwrite/together/")
    (run,) = runs
    inside = [path.removeprefix(f"{run}/") for path in seen if path.startswith(f"{run}/")]
    assert sum(name.startswith("lease-") for name in inside) == 1
    assert [name for name in inside if name.isdecimal()] == ["0", "1", "2"]
    assert all_below(root.parent) == ["tree.zarr", *(f"tree.zarr/{p}" for p in all_below(root))]
    assert not [path for path in all_below(root) if ".shardwrite" in path]
    check(root)


@pytest.mark.long
def test_whoever_begins_it_is_asked_for_as_often_for_many_arrays_as_for_two(tmp_path):
    counts = []
    for n in (2, 12):
        with pytest.MonkeyPatch.context() as patch:
            asked = seams.asking_who_this_is(patch)
            write(tmp_path / f"{n}", names=[f"a{k}" for k in range(n)])
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0


def test_nothing_of_it_is_visible_before_all_is_there(root):
    begin(root)
    assert len(list(root.parent.rglob("journal-*"))) == 1
    assert not list(root.rglob("zarr.json"))
    results = write(root)
    assert [result.n_resumed_shards for result in results] == [4, 4, 4]
    check(root)


def test_children_are_published_before_their_groups(root, monkeypatch):
    order = []
    publish = os.rename

    def note(source, target, *rest, **more):
        if str(target).startswith(f"{root}/") and str(target).endswith("zarr.json"):
            order.append(os.path.relpath(str(target), root))
        return publish(source, target, *rest, **more)

    monkeypatch.setattr(os, "rename", note)
    write(root, names=["g/h/c", "a", "g/b"])
    arrays = ["g/h/c/zarr.json", "a/zarr.json", "g/b/zarr.json"]
    assert order == [*arrays, "g/h/zarr.json", "g/zarr.json", "zarr.json"]


@pytest.mark.long
def test_the_same_call_for_some_of_the_arrays_does_its_own(root):
    begin(root)
    result = (da.from_array(VALUES, chunks=(16, 32))).to_sharded_zarr(root, name="a", **SIZES)
    assert result.n_resumed_shards == 4
    assert (root / "a" / "zarr.json").exists()
    assert not (root / "g" / "b" / "zarr.json").exists()
    write(root)
    check(root)
    assert sorted(path.name for path in root.parent.iterdir()) == ["tree.zarr"]


def test_a_run_of_one_of_the_arrays_is_joined(root):
    x = da.from_array(VALUES, chunks=(16, 32)) + 1
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(KeyboardInterrupt):
            x.to_sharded_zarr(root, name="g/b", **SIZES)
    write(root)
    check(root)
    assert sorted(path.name for path in root.parent.iterdir()) == ["tree.zarr"]


def test_another_plan_for_one_of_them_is_refused(root):
    begin(root)
    x = da.from_array(VALUES, chunks=(16, 32))
    with pytest.raises(shardwrite.JournalError, match="another plan was begun"):
        x.to_sharded_zarr(root, name="a", **{**SIZES, "source_id": "another"})
    with pytest.raises(shardwrite.JournalError, match="writes 2 other arrays, too, such as 'g/b'"):
        x.to_sharded_zarr(root, name="a", restart=True, **{**SIZES, "source_id": "another"})
    write(root)
    check(root)


def test_all_of_it_starts_over(root):
    begin(root)
    results = write(root, restart=True)
    assert [result.n_resumed_shards for result in results] == [0, 0, 0]
    check(root)


@pytest.mark.parametrize("n_claimed", [1, 2])
def test_a_begin_that_was_interrupted_is_finished(root, monkeypatch, n_claimed):
    with monkeypatch.context() as patch:
        link, done = os.link, []

        def claim(source, target, *rest, **more):
            if str(target).startswith(f"{root}/") and len(done) == n_claimed:
                os._exit(1)
            link(source, target, *rest, **more)
            done.append(target)

        patch.setattr(os, "link", claim)
        pid = os.fork()
        if not pid:
            write(root)
            os._exit(0)
        os.waitpid(pid, 0)
    assert len(list((root).rglob("plan.json"))) == n_claimed
    write(root)
    check(root)
    assert sorted(path.name for path in root.parent.iterdir()) == ["tree.zarr"]


def test_replaced_arrays_come_back_together(root):
    write(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    begin(root, mode="w", source_id="new")
    shardwrite.abandon(root, name="g/b")
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert after == before
    assert sorted(path.name for path in root.parent.iterdir()) == ["tree.zarr"]


def test_what_is_left_of_a_run_is_removed_where_its_directory_was_removed(root):
    begin(root)
    shutil.rmtree(root.with_name("tree.zarr.shardwrite"))
    shutil.rmtree(root / "a" / "c")
    shutil.rmtree(root / "g" / "b" / "c")
    shutil.rmtree(root / "g" / "h" / "c")
    write(root)
    check(root)


def test_it_works_in_a_store_with_a_directory_for_run_state(tmp_path):
    store, runs = MemoryStore(), tmp_path / "runs"
    begin(store, run_dir=runs)
    assert len(list(runs.glob("*/together/run-*"))) == 1
    write(store, run_dir=runs)
    check(store)
    assert list(runs.iterdir()) == []


def test_a_plan_says_which_arrays_are_written_together(root):
    begin(root)
    (run,) = root.parent.glob("tree.zarr.shardwrite/together/run-*")
    told = json.loads((run / "1" / "plan.json").read_text())["together"]
    assert (told["number"], told["n_arrays"], told["n_shards"]) == (1, 3, 12)
    assert told["name"] == NAMES[1]


def test_updates_go_on_beside_it(root):
    x = da.from_array(VALUES, chunks=(16, 32))
    x.to_sharded_zarr(root, name="other", **SIZES)
    begin(root)
    shardwrite.write_region(x[:16] + 9, root, slice(0, 16), name="other")
    np.testing.assert_array_equal(shardwrite.open_sharded(root, "other")[:16], VALUES[:16] + 9)
    write(root)
    check(root)


def test_it_is_known_how_far_all_of_it_is(root):
    from shardwrite.slurm.status import status

    begin(root)
    found = status(seams.target_of(root))
    assert (found.n_shards, found.n_done_shards) == (12, 12)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here")
@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "durability", "most"),
    [
        ("new", "full", 49),
        ("new", "none", 33),
        ("in a group", "full", 51),
        ("in a group", "none", 38),
        ("again", "full", 39),
        ("append", "full", 336),
        ("append", "none", 308),
    ],
)
def test_what_lies_above_several_arrays_is_looked_at_once(case, durability, most):
    try:
        counted = calls.per_array(durability, case)
    except RuntimeError as error:
        pytest.skip(f"strace may not trace here: {error}")
    assert sum(counted.values()) <= most, counted
    n_syncs = {"new": 8, "in a group": 7, "again": 0, "append": 12}[case]
    assert counted.get("fsync", 0) == (n_syncs if durability == "full" else 0), counted


def test_directories_above_the_root_are_looked_at_as_often_for_few_arrays_as_for_many(root):
    def n_looks(n_arrays):
        looks, real = [], os.stat

        def look(path, *arguments, **keywords):
            looks.extend([path] if os.fspath(path) == str(root.parent / "zarr.json") else [])
            return real(path, *arguments, **keywords)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "stat", look)
            write(root.with_name(f"{n_arrays}.zarr"), names=[str(n) for n in range(n_arrays)])
        return len(looks)

    assert 0 < n_looks(2) == n_looks(6)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here")
def test_one_new_array_is_looked_at_before_its_run_begins_and_once_after():
    try:
        counted = calls.counted(calls.MANY, 1, "full", "new")
    except RuntimeError as error:
        pytest.skip(f"strace may not trace here: {error}")
    assert sum(counted.values()) <= 310, counted


def test_an_array_that_was_finished_since_they_were_looked_at_is_not_replaced(root):
    """The first call has listed the directory when another writes one of its arrays."""
    real = seams.real("make the directory of a run")
    x = da.from_array(VALUES, chunks=(16, 32)) + 7

    def make_late(*arguments):
        patch.undo()
        x.to_sharded_zarr(root, name="g/late", **{**SIZES, "source_id": "another"})
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*seams.step("make the directory of a run"), make_late)
        with pytest.raises(shardwrite.SpecError, match="an array exists there"):
            write(root, names=["g/first", "g/late", "g/other"])
    np.testing.assert_array_equal(zarr.open_array(root, path="g/late", mode="r")[:], VALUES + 7)
    assert not list(root.parent.rglob("*.shardwrite"))


def test_a_run_that_was_begun_since_they_were_looked_at_is_joined(root):
    real = seams.real("make the directory of a run")
    x = da.from_array(VALUES, chunks=(16, 32)) + 1

    def make_late(*arguments):
        patch.undo()
        with pytest.MonkeyPatch.context() as other:
            seams.before(other, "look for missing shards", stop)
            with pytest.raises(KeyboardInterrupt):
                x.to_sharded_zarr(root, name="g/b", **SIZES)
        return real(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*seams.step("make the directory of a run"), make_late)
        results = write(root, names=["g/a", "g/b", "g/c"])
    assert [result.n_resumed_shards for result in results] == [0, 4, 0]
    check(root, names=["g/a", "g/b", "g/c"])
    assert not list(root.parent.rglob("*.shardwrite"))
