"""A call with ``mode="w"`` that fails: the old array can be put back, and the call finished."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import obstore.store
import pytest
import seams
import zarr
from click.testing import CliRunner
from forks import python
from helpers import Stop, contents

import shardwrite
from shardwrite import JournalError, SpecError, StoreError
from shardwrite.cli import main

OLD = (np.arange(400, dtype="u4") + 1).reshape(20, 20)
LAYOUT = {"shards": 10, "chunks": 5}
SMALL = {"memory_limit": "2kB"}  # so that each shard is a task of its own
FAULTS = Path(__file__).parents[1] / "faults/all_faults.py"


pytestmark = pytest.mark.usefixtures("one_thread")


def make(path):
    da.from_array(OLD, chunks=5).to_sharded_zarr(path, **LAYOUT)
    return contents(path)


def beside(path):
    return [p.name for p in path.parent.iterdir() if p.name.startswith(f"{path.name}.")]


def broken(values, n_good=2):
    """An array of which all but the first chunks cannot be computed."""
    n_computed = 0

    def block(values, block_info=None):
        nonlocal n_computed
        n_computed += bool(block_info)
        if n_computed > n_good:
            raise ValueError("no source")
        return values

    x = da.from_array(values, chunks=10)
    return x.map_blocks(block, dtype=x.dtype)


def write(path, n_good=2, **keywords):
    x = broken(OLD + 7, n_good)
    return x.to_sharded_zarr(path, source_id="new", **{**LAYOUT, **SMALL, "mode": "w", **keywords})


def fail(path, **keywords):
    """Fail when some shards of the new array are there; all of the old one is, too."""
    before = contents(path)
    with pytest.raises(ValueError, match="no source"):
        write(path, **keywords)
    assert (contents(path) == before) == (keywords.get("publish") != "first")


@pytest.mark.parametrize("publish", ["last", "first"])
@pytest.mark.parametrize("n_good", [0, 3])
def test_abandon_keeps_the_old_array(tmp_path, n_good, publish):
    old = make(tmp_path / "x")
    fail(tmp_path / "x", n_good=n_good, publish=publish)
    assert shardwrite.abandon(tmp_path / "x") == [((0, 20), (0, 20))]
    assert contents(tmp_path / "x") == old
    assert beside(tmp_path / "x") == []
    assert shardwrite.abandon(tmp_path / "x") == []


def pair(root, scale=1):
    group = zarr.create_group(root)
    for name in "ab":
        array = group.create_array(name, shape=(16, 16), chunks=(2, 2), dtype="u2")
        array[...] = scale * np.arange(1, 257).reshape(16, 16)
    return root


def stopped(src, dst, **how):
    """A conversion of a tree that stops after the first task."""

    def stop(report):
        raise Stop

    with dask.config.set(scheduler="sync"), pytest.raises(Stop):
        shardwrite.shard(src, dst, 2, progress=stop, **how)


def test_replacements_in_a_group_are_given_up_by_its_path(tmp_path):
    src, dst = pair(tmp_path / "s"), pair(tmp_path / "d", 2)
    old = contents(dst)
    stopped(src, dst, mode="w")
    shown = CliRunner().invoke(main, ["abandon", str(dst), "--dry-run"])
    assert (shown.exit_code, shown.output) == (0, "0:16,0:16\n0:16,0:16\n")
    done = CliRunner().invoke(main, ["abandon", str(dst)])
    assert (done.exit_code, done.output) == (0, shown.output)
    assert contents(dst) == old
    assert sorted(os.listdir(tmp_path)) == ["d", "s"]
    assert shardwrite.abandon(dst) == []


@pytest.mark.parametrize("where", ["new", "in a group", "in a bucket"])
def test_runs_in_a_group_that_cannot_be_given_up_are_told(tmp_path, where):
    src, dst = pair(tmp_path / "s"), tmp_path / "d"
    if where == "in a group":
        zarr.create_group(dst)
    if where == "in a bucket":
        dst = obstore.store.MemoryStore()
    stopped(src, dst)
    with pytest.raises(JournalError, match=r"the run that makes .*a has not ended. Make the same"):
        shardwrite.abandon(dst)
    if where != "in a bucket":
        shown = CliRunner().invoke(main, ["abandon", str(dst), "--dry-run"])
        assert (shown.exit_code, "/d/a has not ended. run the same" in shown.output) == (1, True)
    assert shardwrite.shard(src, dst, 2).n_shards == 32
    assert shardwrite.abandon(dst) == []


def test_what_cannot_be_removed_is_told_and_removed_by_the_next_call(tmp_path, monkeypatch):
    """The old array is back by then, and the directory of the run has its last name."""
    old = make(tmp_path / "x")
    fail(tmp_path / "x")

    def refuse(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patch:
        seams.replace_step(patch, "remove the state of a run", refuse)
        with pytest.raises(StoreError, match="cannot remove what is left in") as caught:
            shardwrite.abandon(tmp_path / "x")
    assert caught.value.errno == errno.EIO
    assert contents(tmp_path / "x") == old
    assert beside(tmp_path / "x")
    assert shardwrite.abandon(tmp_path / "x") == []
    assert contents(tmp_path / "x") == old
    assert beside(tmp_path / "x") == []


def test_the_command_keeps_it(tmp_path):
    old = make(tmp_path / "x")
    fail(tmp_path / "x")
    shown = CliRunner().invoke(main, ["abandon", str(tmp_path / "x"), "--dry-run"])
    assert shown.output == "0:20,0:20\n"
    assert contents(tmp_path / "x") == old
    done = CliRunner().invoke(main, ["abandon", str(tmp_path / "x")])
    assert (done.exit_code, done.output) == (0, shown.output)
    assert contents(tmp_path / "x") == old


@pytest.mark.parametrize("publish", ["last", "first"])
def test_the_same_call_finishes_it(tmp_path, publish):
    make(tmp_path / "x")
    fail(tmp_path / "x", publish=publish)
    assert write(tmp_path / "x", n_good=99, publish=publish).n_resumed_shards == 1
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "x")[:, :], OLD + 7)
    assert beside(tmp_path / "x") == []


@pytest.mark.parametrize("mode", ["w-", "a"])
def test_restart_alone_keeps_the_old_array(tmp_path, mode):
    old = make(tmp_path / "x")
    fail(tmp_path / "x")
    with pytest.raises(JournalError, match=r"(?s)abandon.*mode=\"w\" and restart=True"):
        write(tmp_path / "x", mode=mode, restart=True)
    shardwrite.abandon(tmp_path / "x")
    assert contents(tmp_path / "x") == old


def test_restart_that_replaces_sets_it_aside_again(tmp_path):
    old = make(tmp_path / "x")
    fail(tmp_path / "x")
    fail(tmp_path / "x", restart=True, shards=20)  # and fails, too
    shardwrite.abandon(tmp_path / "x")
    assert contents(tmp_path / "x") == old
    fail(tmp_path / "x")
    write(tmp_path / "x", n_good=99, restart=True)
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "x")[:, :], OLD + 7)


@pytest.mark.parametrize(
    "call",
    [
        lambda path: write(path, mode="w-", shards=20),
        lambda path: write(path, shards=20),
        lambda path: shardwrite.write_region(da.zeros((5, 5), dtype="u4"), path, np.s_[:5, :5]),
    ],
)
def test_messages_name_both_ways(tmp_path, call):
    make(tmp_path / "x")
    fail(tmp_path / "x")
    with pytest.raises(
        (JournalError, SpecError), match=r"(?s)again.*abandon.* keeps? the\s*old array"
    ):
        call(tmp_path / "x")


@pytest.mark.long
def test_an_array_that_is_being_replaced_is_not_converted(tmp_path):
    make(tmp_path / "x")
    fail(tmp_path / "x")
    with pytest.raises(JournalError, match="Make the same call again to finish it"):
        shardwrite.reshard(tmp_path / "x", tmp_path / "y", shards=20)
    write(tmp_path / "x", n_good=99)
    shardwrite.reshard(tmp_path / "x", tmp_path / "y", shards=20)
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "y")[:, :], OLD + 7)


def test_what_was_written_meanwhile_is_not_lost(tmp_path):
    old = make(tmp_path / "x")
    fail(tmp_path / "x")
    shardwrite.abandon(tmp_path / "x")
    with pytest.raises(SpecError, match="an array exists there"):
        write(tmp_path / "x", mode="w-")
    assert contents(tmp_path / "x") == old


def test_what_stands_in_the_way_is_named(tmp_path, monkeypatch):
    """Another program makes something there just when the old array goes back."""
    old = make(tmp_path / "x")
    fail(tmp_path / "x", publish="first")
    mkdir = os.mkdir

    def make_and_disturb(path, *arguments, **keywords):
        mkdir(path, *arguments, **keywords)
        if Path(path).name == "was-there":
            (tmp_path / "x/c").mkdir(parents=True)

    with monkeypatch.context() as patched:
        patched.setattr(os, "mkdir", make_and_disturb)
        with pytest.raises(StoreError, match=r"Move that away, and make the same call again"):
            shardwrite.abandon(tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / "away")
    shardwrite.abandon(tmp_path / "x")
    assert contents(tmp_path / "x") == old


def test_an_empty_directory_is_no_array(tmp_path):
    """A first write that fails is started over by ``restart=True`` alone."""
    (tmp_path / "x").mkdir()
    with pytest.raises(ValueError, match="no source"):
        write(tmp_path / "x", mode="w-")
    with pytest.raises(SpecError, match="the same call again to finish it"):
        shardwrite.abandon(tmp_path / "x")
    write(tmp_path / "x", n_good=99, mode="w-", restart=True)
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "x")[:, :], OLD + 7)


def broken_source(path, **options):
    """An array of zarr-python of which one chunk cannot be read."""
    group = zarr.open_group(path, mode="a")
    y = group.create_array("y", shape=OLD.shape, dtype="u4", chunks=(5, 5), **options)
    y[...] = OLD + 7
    (path / "y/c/3/3").write_bytes(b"torn")
    return path


@pytest.mark.parametrize("is_tree", [False, True])
def test_conversions(tmp_path, is_tree):
    src = broken_source(tmp_path / "src")
    target = tmp_path / "dst" / "y"
    if is_tree:
        zarr.create_group(tmp_path / "dst")
    old = make(target)
    ends = (src, tmp_path / "dst") if is_tree else (src / "y", target)
    with pytest.raises(shardwrite.ShardwriteError, match="3"):
        shardwrite.reshard(*ends, shards=2, chunks=10, mode="w")
    marks = [path for path in contents(target) if path.startswith("shardwrite-run/")]
    assert len(marks) == is_tree
    assert {path: data for path, data in contents(target).items() if path not in marks} == old
    shardwrite.abandon(target)
    assert contents(target) == old
    assert beside(target) == []


def test_store_of_several_arrays(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    old = [make(path) for path in paths]
    with pytest.raises(ValueError, match="no source"):
        shardwrite.store([broken(OLD), broken(OLD + 7)], paths, **LAYOUT, mode="w")
    for path in paths:
        shardwrite.abandon(path)
    assert [contents(path) for path in paths] == old


def test_parts(tmp_path):
    old = make(tmp_path / "x")
    x = da.from_array(OLD + 7, chunks=10)
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, **LAYOUT), mode="w")
    shardwrite.write_part(x, tmp_path / "x", 0, 2)
    shardwrite.abandon(tmp_path / "x")
    assert contents(tmp_path / "x") == old


def kills(tmp_path, *arguments):
    out = tmp_path / "out.json"
    subprocess.run(
        [*python(), FAULTS, *arguments, "--json", out],
        capture_output=True,
        timeout=600,
        check=False,
    )
    cases = [case for case in json.loads(out.read_text())["cases"] if case["effect"]]
    troubles = [case for case in cases if case["trouble"]]
    assert not troubles, troubles[:3]
    return cases


@pytest.mark.long
def test_kills(tmp_path):
    """A kill before some effects of the replacement, and before some of giving it up."""
    names = ("give up a replacement in a group", "replacement, or give up")
    assert len(kills(tmp_path, "--operations", *names, "--every", "31")) > 4


@pytest.mark.long
def test_all_kills(tmp_path):
    names = ("give up a replacement", "replacement, or give up, in a group")
    names += ("replacement by restart",)
    cases = kills(tmp_path, "--operations", *names, "--every", "47", "--twice", "7")
    assert len(cases) > 8


def test_a_file_system_that_renames_over_what_is_there(tmp_path, monkeypatch):
    """The old array stays where it is."""
    values, rename = np.arange(64).reshape(8, 8), os.rename
    shardwrite.to_sharded_zarr(values, tmp_path / "x", shards=8, chunks=4)

    def careless(source, to, **keywords):
        if source == tmp_path / "x" and os.path.isdir(to):
            shutil.rmtree(to)
        rename(source, to, **keywords)

    monkeypatch.setattr(os, "rename", careless)
    with pytest.raises(StoreError, match="over others that hold something"):
        shardwrite.to_sharded_zarr(-values, tmp_path / "x", shards=8, chunks=4, mode="w")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (shardwrite.open_sharded(tmp_path / "x")[...] == values).all()
