"""What a run publishes, replaces and leaves alone; what is refused is in `test_bad_input.py`."""

from __future__ import annotations

import itertools
import subprocess
import sys

import dask.array as da
import numpy as np
import pytest
import seams
import zarr

import shardwrite
from shardwrite import SpecError, StoreError

GOOD = {"shards": 8, "chunks": 4, "durability": "none"}


@pytest.fixture
def x():
    return da.from_array(np.arange(256, dtype="f4").reshape(16, 16), chunks=5)


def listing(path):
    return sorted(str(p) for p in path.rglob("*"))


def test_replacing_touches_only_the_array(tmp_path, x):
    root = zarr.create_group(tmp_path / "g", attributes={"a": 1})
    root.create_array("other", data=np.arange(3))
    x.to_sharded_zarr(tmp_path / "g", name="deep/x", **GOOD)
    assert zarr.open_group(tmp_path / "g")["deep"].attrs.asdict() == {}
    before = {p: p.read_bytes() for p in (tmp_path / "g" / "other").rglob("*") if p.is_file()}
    with pytest.raises(SpecError):
        (x + 1).to_sharded_zarr(tmp_path / "g", name="deep/x", mode="w", shards=7, chunks=4)
    np.testing.assert_array_equal(
        zarr.open_group(tmp_path / "g")["deep/x"][...],
        x.compute(),
        err_msg="nothing goes before the plan is good",
    )
    (x + 1).to_sharded_zarr(tmp_path / "g", name="deep/x", mode="w", **GOOD)
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "g")["deep/x"][...], x.compute() + 1)
    assert before == {
        p: p.read_bytes() for p in (tmp_path / "g" / "other").rglob("*") if p.is_file()
    }
    assert zarr.open_group(tmp_path / "g").attrs["a"] == 1


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_consolidated_metadata_is_brought_up_to_date(tmp_path, x):
    root = zarr.create_group(tmp_path / "g")
    root.create_array("other", data=np.arange(3))
    zarr.consolidate_metadata(tmp_path / "g")
    x.to_sharded_zarr(tmp_path / "g", name="deep/x", **GOOD)
    group = zarr.open_consolidated(tmp_path / "g")
    np.testing.assert_array_equal(group["deep/x"][...], x.compute())
    np.testing.assert_array_equal(group["other"][...], np.arange(3))


@pytest.mark.parametrize("publish", ["last", "first"])
def test_publish(tmp_path, x, publish):
    def look(block):
        assert (tmp_path / "x" / "zarr.json").exists() == (publish == "first")
        return block

    y = x.map_blocks(look, dtype="f4", meta=np.empty((0, 0), "f4"))
    y.to_sharded_zarr(tmp_path / "x", publish=publish, **GOOD)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], x.compute())


def test_the_strategy_never_enters_the_metadata(tmp_path, x):
    documents = set()
    for number, strategy in enumerate(["C", "F", "morton", "append-only"]):
        x.to_sharded_zarr(tmp_path / str(number), strategy=strategy, **GOOD)
        documents.add((tmp_path / str(number) / "zarr.json").read_text())
    assert len(documents) == 1


def test_an_array_is_not_deleted_before_the_workers_can_write(tmp_path, x, monkeypatch):
    x.to_sharded_zarr(tmp_path / "x", **GOOD)
    monkeypatch.setattr(*seams.step("probe a worker"), lambda path, token: ("the disk is full", 28))
    before = listing(tmp_path)
    with pytest.raises(StoreError, match="the disk is full"):
        (x + 1).to_sharded_zarr(tmp_path / "x", mode="w", **GOOD)
    assert listing(tmp_path) == before
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], x.compute())


def test_an_unfinished_array_is_marked(tmp_path, x):
    from click.testing import CliRunner

    from shardwrite.cli import main

    y = x.map_blocks(lambda b: 1 // 0, dtype="f4", meta=np.empty((0, 0), "f4"))
    with pytest.raises(ZeroDivisionError):
        y.to_sharded_zarr(tmp_path / "x", publish="first", **GOOD)
    done = CliRunner().invoke(main, ["info", str(tmp_path / "x")])
    assert "unfinished" in done.output
    assert "True" in done.output


def unfinished(tmp_path, x, name):
    y = x.map_blocks(lambda b: 1 // 0, dtype="f4", meta=np.empty((0, 0), "f4"))
    with pytest.raises(ZeroDivisionError):
        y.to_sharded_zarr(tmp_path / "g", name=name, **GOOD)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("img/0", "img/1"),
        ("img/0", "lab/0"),
        ("a/b/c/0", "a/1"),
        ("a/1", "a/b/c/0"),
        ("0", "img/0"),
        ("img/0", "1"),
    ],
)
def test_arrays_of_one_group_are_begun_before_the_first_is_published(tmp_path, x, first, second):
    unfinished(tmp_path, x, first)
    (x + 1).to_sharded_zarr(tmp_path / "g", name=second, **GOOD)
    with pytest.raises(SpecError, match="has not ended"):
        shardwrite.open_sharded(tmp_path / "g", first)
    x.to_sharded_zarr(tmp_path / "g", name=first, restart=True, **GOOD)
    group = zarr.open_group(tmp_path / "g", mode="r")
    np.testing.assert_array_equal(group[first][...], x.compute())
    np.testing.assert_array_equal(group[second][...], x.compute() + 1)
    assert not list(tmp_path.rglob("*.shardwrite"))


def test_directories_that_a_killed_run_has_made_are_no_obstacle(tmp_path, x):
    (tmp_path / "g" / "img").mkdir(parents=True)
    x.to_sharded_zarr(tmp_path / "g", name="img/0", **GOOD)
    np.testing.assert_array_equal(
        zarr.open_group(tmp_path / "g", mode="r")["img/0"][...], x.compute()
    )


@pytest.mark.parametrize("stranger", ["g/notes.txt", "g/other/notes.txt", "g/img/notes.txt"])
def test_directories_that_hold_something_else_are_no_groups(tmp_path, x, stranger):
    (tmp_path / stranger).parent.mkdir(parents=True)
    (tmp_path / stranger).write_text("mine")
    before = listing(tmp_path)
    with pytest.raises(
        SpecError, match="something that is no Zarr array stands where its group should be"
    ):
        x.to_sharded_zarr(tmp_path / "g", name="img/0", **GOOD)
    assert listing(tmp_path) == before


def test_a_path_with_dots_concerns_only_the_groups_above_it(tmp_path, x):
    inner = zarr.create_group(tmp_path / "g").create_group("h")
    zarr.consolidate_metadata(inner.store, path="h")
    before = (tmp_path / "g/h/zarr.json").read_bytes()
    x.to_sharded_zarr(tmp_path / "g" / "h" / ".." / "y", **GOOD)
    assert (tmp_path / "g/h/zarr.json").read_bytes() == before
    x.to_sharded_zarr(tmp_path / "g" / "y" / ".." / "z", **GOOD)  # which does not lie in y
    assert sorted(zarr.open_group(tmp_path / "g").array_keys()) == ["y", "z"]


@pytest.mark.parametrize("is_new", [True, False], ids=["group is made", "group is there"])
def test_another_program_that_changes_the_group_at_once(tmp_path, x, monkeypatch, is_new):
    path = tmp_path / "g"
    if not is_new:
        zarr.create_group(path)
        zarr.consolidate_metadata(path)
    is_first = [True]

    def other(place, *_, **__):
        """Another program adds an array between the look at the group and the write."""
        if place.path == path and is_first:
            is_first.clear()
            zarr.open_group(path).create_array("other", data=np.arange(3))
            zarr.open_group(path).attrs["who"] = "somebody"
            zarr.consolidate_metadata(path)

    seams.before(monkeypatch, "write a document", other)
    x.to_sharded_zarr(path, name="one", **GOOD)
    found = zarr.open_consolidated(path)
    assert sorted(found.array_keys()) == ["one", "other"]
    assert dict(found.attrs) == {"who": "somebody"}


def test_a_group_that_others_write_all_the_time(tmp_path, x, monkeypatch):
    path = tmp_path / "g"
    zarr.create_group(path)
    zarr.consolidate_metadata(path)
    n = itertools.count()

    def other(place, *_, **__):
        if place.path == path:
            zarr.open_group(path).attrs["n"] = next(n)

    seams.before(monkeypatch, "write a document", other)
    monkeypatch.setattr("shardwrite.journal.documents._MAX_TRIES", 2)
    with pytest.raises(StoreError, match="make the same call again"):
        x.to_sharded_zarr(path, name="one", **GOOD)
    monkeypatch.undo()
    x.to_sharded_zarr(path, name="one", **GOOD)  # as the message says
    assert zarr.open_group(path).attrs["n"] == 1
    assert sorted(zarr.open_consolidated(path).array_keys()) == ["one"]


REPLACE_PROTECTED = """
import os, shutil, sys, tempfile
import dask.array as da
import shardwrite

x = da.ones((8,), dtype="i4", chunks=4)
directory = tempfile.mkdtemp()

def write(name, n):
    path = os.path.join(directory, name)
    (x + n).to_sharded_zarr(path, shards=4, chunks=2, mode="w")
    return path

try:
    if os.geteuid() == 0:  # who may write everywhere
        for n in (0, 1):
            write("imports what is needed", n)
        shutil.rmtree(os.path.join(directory, "imports what is needed"))
        os.chmod(directory, 0o777)
        os.setgroups([])
        os.setresgid(65534, 65534, 0)
        os.setresuid(65534, 65534, 0)
    path = write("x.zarr", 0)
    os.chmod(os.path.join(path, "c"), 0o555)
    write("x.zarr", 1)
    write("x.zarr", 2)
    print(os.listdir(directory), shardwrite.open_sharded(path)[...].tolist())
finally:
    os.setresuid(-1, os.getresuid()[2], -1)
    shutil.rmtree(directory)
"""


@pytest.mark.long
def test_an_array_with_write_protected_directories_is_replaced():
    done = subprocess.run(
        [sys.executable, "-c", REPLACE_PROTECTED],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['x.zarr'] [3, 3, 3, 3, 3, 3, 3, 3]\n"
