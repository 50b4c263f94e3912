"""Readers of a group see no name of a run and no warning, while arrays in it are written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr

import shardwrite
from shardwrite.errors import JournalError, StoreError
from shardwrite.place import directory as places

VALUES = np.arange(16 * 16, dtype="i4").reshape(16, 16)
SIZES = {"shards": 8, "chunks": 4, "dimension_names": ["y", "x"]}


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "in" / "root.zarr"
    zarr.create_group(path, attributes={"mine": 1})
    zarr.create_group(path / "g")
    return path


def names_in(path):
    """What readers list, who take a warning for an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = {name for name, _ in zarr.open_group(path, mode="r").members(max_depth=None)}
        try:
            import xarray
        except ImportError:
            return found
        xarray.open_datatree(path, engine="zarr", consolidated=False).close()
        for group in ("", "g"):
            xarray.open_zarr(path, group=group, consolidated=False).close()
    return found


def source(look, values=VALUES):
    def seen(block):
        look()
        return block

    x = da.from_array(values, chunks=8)
    return x.map_blocks(seen, dtype=values.dtype, meta=values[:0], name=f"{id(look)}")


def write(x, root, name="g/a", **more):
    with dask.config.set(scheduler="sync"):
        return x.to_sharded_zarr(root, name=name, **{**SIZES, "source_id": "it", **more})


def region(x, root):
    with dask.config.set(scheduler="sync"):
        shardwrite.write_region(x[:8], root, slice(0, 8), name="g/a", source_id="region")


def append(x, root):
    with dask.config.set(scheduler="sync"):
        shardwrite.write_region(x, root, "append", name="g/a", source_id="append")


def stream(x, root):
    with shardwrite.ShardWriter(root, name="g/a") as writer, dask.config.set(scheduler="sync"):
        for block in x.blocks:
            writer.append(block.compute())


def repair(x, root):
    (root / "g" / "a" / "c" / "0" / "0").unlink()
    with dask.config.set(scheduler="sync"):
        shardwrite.repair(root, x, name="g/a")


def several(x, root):
    with dask.config.set(scheduler="sync"):
        names = ["g/b", "new/c", "d"]
        shardwrite.store([x + n for n in range(3)], [root] * 3, names=names, **SIZES)


OPERATIONS = {
    "new": (None, write, {"g/a"}),
    "new group": (None, lambda x, root: write(x, root, "h/i/a"), {"h", "h/i", "h/i/a"}),
    "several": (None, several, {"g/b", "new", "new/c", "d"}),
    "replace": (1, lambda x, root: write(x, root, mode="w", source_id="new"), {"g/a"}),
    "first": (None, lambda x, root: write(x, root, publish="first"), {"g/a"}),
    "region": (1, region, {"g/a"}),
    "append": (1, append, {"g/a"}),
    "stream": (1, stream, {"g/a"}),
    "repair": (1, repair, {"g/a"}),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_readers_of_a_group_see_no_name_of_a_run(root, operation):
    before, work, made = OPERATIONS[operation]
    if before is not None:
        write(da.from_array(VALUES, chunks=8), root)
    known, seen = names_in(root), []
    work(source(lambda: seen.append(names_in(root))), root)
    assert seen
    early = made if operation == "first" else set()
    assert all(found == known | early for found in seen)
    assert names_in(root) == known | made
    assert [path.name for path in root.parent.iterdir()] == ["root.zarr"]
    assert not list(root.rglob("*shardwrite-run*"))


DYING = """
import os, signal, sys
sys.path[:0] = sys.argv[4:]
import dask, dask.array as da, numpy as np
import shardwrite
root, mode, number = sys.argv[1:4]
left = [int(number)]
def block(block):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return block
values = np.arange(16 * 16, dtype="i4").reshape(16, 16) + 1
x = da.from_array(values, chunks=8).map_blocks(block, dtype="i4", meta=values[:0], name="x")
how = dict(shards=8, chunks=4, dimension_names=["y", "x"])
with dask.config.set(scheduler="sync"):
    if mode == "r+":
        shardwrite.write_region(x, root, (slice(0, 16),), name="g/a", source_id="it")
    else:
        x.to_sharded_zarr(root, name="g/a", mode=mode, source_id="new", **how)
"""


def run(root, mode, number=99):
    words = [sys.executable, "-c", DYING, str(root), mode, str(number)]
    package = Path(shardwrite.__file__).parents[1]
    return subprocess.run([*words, str(package)], capture_output=True, text=True)


@pytest.mark.parametrize("mode", ["w-", "w", "r+"])
def test_after_a_kill_the_same_call_goes_on(root, mode):
    if mode != "w-":
        write(da.from_array(VALUES, chunks=8), root)
    known = names_in(root)
    assert run(root, mode, 3).returncode == -9
    assert names_in(root) == known
    assert seams.run_directory(root, "g/a").is_relative_to(root.with_name("root.zarr.shardwrite"))
    ended = run(root, mode)
    assert ended.returncode == 0, ended.stderr
    assert names_in(root) == {"g", "g/a"}
    np.testing.assert_array_equal(zarr.open_array(root, path="g/a", mode="r")[:], VALUES + 1)
    assert [path.name for path in root.parent.iterdir()] == ["root.zarr"]


@pytest.fixture
def unfinished(root):
    """A root with an update that was killed."""
    write(da.from_array(VALUES, chunks=8), root)
    assert run(root, "r+", 3).returncode == -9
    return root


def update(root, where=None):
    x = da.zeros((8, 16), dtype="i4", chunks=8)
    shardwrite.write_region(x, root, slice(8, 16), name=where or "g/a", source_id="other")


def replace(root):
    write(da.zeros((16, 16), dtype="i4", chunks=8), root, mode="w", source_id="other")


@pytest.mark.parametrize("operation", [update, replace])
def test_who_sees_another_part_of_the_hierarchy_is_refused(unfinished, operation, monkeypatch):
    """As a container does that sees the group without the root above."""
    real = places.Seen.has_document

    def has_document(self, path):
        return path != unfinished and real(self, path)

    monkeypatch.setattr(places.Seen, "has_document", has_document)
    assert seams.state_beside(unfinished / "g" / "a").parent.parent == unfinished
    before = {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()}
    with pytest.raises(JournalError, match="its state is not where this call looks"):
        operation(unfinished)
    after = {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()}
    assert before == after


def test_two_views_that_make_one_array_do_not_mix(root, monkeypatch):
    """The one that ends first has it, and the other one replaces nothing."""
    real = places.Seen.has_document

    def other():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(places.Seen, "has_document", lambda s, p: p != root and real(s, p))
            if not (root / "g" / "a").exists():
                write(da.from_array(VALUES + 7, chunks=8), root)

    with pytest.raises(shardwrite.errors.SpecError, match="an array exists there"):
        write(source(other), root)
    np.testing.assert_array_equal(zarr.open_array(root, path="g/a", mode="r")[:], VALUES + 7)


def test_a_root_that_was_moved_is_refused_until_its_state_has_followed(unfinished):
    moved = unfinished.with_name("moved.zarr")
    unfinished.rename(moved)
    with pytest.raises(JournalError, match="array was copied or moved"):
        update(moved)
    np.testing.assert_array_equal(zarr.open_array(moved, path="g/a", mode="r")[8:], VALUES[8:])
    unfinished.with_name("root.zarr.shardwrite").rename(moved.with_name("moved.zarr.shardwrite"))
    assert run(moved, "r+").returncode == 0
    np.testing.assert_array_equal(zarr.open_array(moved, path="g/a", mode="r")[:], VALUES + 1)
    assert [path.name for path in moved.parent.iterdir()] == ["moved.zarr"]


def test_lost_state_is_told_with_its_remedy(unfinished):
    shutil.rmtree(unfinished.with_name("root.zarr.shardwrite"))
    with pytest.raises(JournalError, match=r"remove .*, and look at it with verify") as refused:
        update(unfinished)
    (mark,) = (unfinished / "g" / "a" / "shardwrite-run").iterdir()
    assert str(mark) in str(refused.value)
    mark.unlink()
    update(unfinished)
    assert not mark.parent.exists()


def test_a_run_is_found_again_after_a_group_was_made_above(unfinished):
    zarr.create_group(unfinished.parent)
    assert run(unfinished, "r+").returncode == 0
    np.testing.assert_array_equal(zarr.open_array(unfinished, path="g/a", mode="r")[:], VALUES + 1)
    assert [path.name for path in unfinished.parent.iterdir()] != []
    assert not list(unfinished.parent.parent.glob("*.shardwrite"))
    assert not list(unfinished.parent.glob("*.shardwrite"))


@pytest.mark.parametrize("why", ["not writable", "another file system"])
def test_where_nothing_can_lie_beside_the_root_it_lies_beside_the_array(root, monkeypatch, why):
    if why == "not writable":
        real = os.access
        denied = root.parent
        monkeypatch.setattr(os, "access", lambda p, *a, **k: Path(p) != denied and real(p, *a, **k))
    else:
        monkeypatch.setattr(places, "_mount_points", lambda: {os.path.realpath(root)})
    seen = []
    write(source(lambda: seen.append(sorted(os.listdir(root / "g")))), root)
    assert all(found == ["a.shardwrite", "zarr.json"] for found in seen)
    np.testing.assert_array_equal(zarr.open_array(root, path="g/a", mode="r")[:], VALUES)
    assert sorted(os.listdir(root / "g")) == ["a", "zarr.json"]


def test_a_run_that_lies_beside_its_array_is_found(root):
    """As an older version has left it, or one that could not write beside the root."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "_can_hold", lambda _: False)

        def stop():
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write(source(stop), root)
    assert (root / "g" / "a.shardwrite" / "plan.json").exists()
    with pytest.raises(JournalError, match="another plan was begun"):
        write(da.zeros((16, 16), dtype="u1", chunks=8), root, source_id="that")
    write(source(lambda: None), root)
    assert sorted(os.listdir(root / "g")) == ["a", "zarr.json"]


def test_an_array_that_was_put_there_is_not_replaced(root):
    def put():
        zarr.create_array(root / "g" / "a", shape=(1,), dtype="u1", overwrite=True)

    with pytest.raises((shardwrite.errors.SpecError, StoreError)):
        write(source(put), root)
    assert zarr.open_array(root, path="g/a", mode="r").shape == (1,)


def test_what_is_unfinished_is_told(root):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(source(stop), root)
    from shardwrite.slurm.jobs import targets_at
    from shardwrite.slurm.status import status

    assert [target.label for target in targets_at(seams.target_of(root))] == [str(root / "g" / "a")]
    assert status(seams.target_of(root / "g" / "a")).n_shards == 4
    assert "0 of 4 shards are present" in repr(shardwrite.verify(root / "g" / "a"))
    with pytest.raises(shardwrite.errors.ShardwriteError, match="has not ended"):
        shardwrite.reshard(root, root.with_name("copy.zarr"), shards=16)
    with pytest.raises(shardwrite.errors.SpecError, match="inside"):
        write(da.zeros(4, chunks=4), root, "g/a/b", shards=4, chunks=4, dimension_names=None)
    write(source(lambda: None), root)


def test_updates_beside_each_other_leave_a_mark_each(root):
    write(da.from_array(VALUES, chunks=8), root)
    seen = []

    def other():
        if not seen:
            seen.append(None)
            update(root)
        marks = [json.loads(p.read_bytes()) for p in (root / "g/a/shardwrite-run").iterdir()]
        seen.append([mark["mode"] for mark in marks])

    region(source(other), root)
    assert seen[1] == ["r+"], "that of the other one is gone"
    np.testing.assert_array_equal(
        zarr.open_array(root, path="g/a", mode="r")[:], np.where(np.arange(16) < 8, VALUES.T, 0).T
    )


def test_two_views_that_begin_at_once(root):
    """The state of one lies beside the array, and was not there when the other one looked."""
    write(da.from_array(VALUES, chunks=8), root)
    state = root / "g" / "a.shardwrite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places.Directory, "unknown_run", lambda *_: state.mkdir())
        with pytest.raises(JournalError, match=r"has just begun.*Make this call again"):
            update(root)
    np.testing.assert_array_equal(zarr.open_array(root, path="g/a", mode="r")[:], VALUES)
    state.rmdir()
    update(root)
    assert not zarr.open_array(root, path="g/a", mode="r")[8:].any()
    assert [path.name for path in root.parent.iterdir()] == ["root.zarr"]
