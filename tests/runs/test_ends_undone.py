"""Calls that have returned, and whose run a power cut brings back.

Removing the directory of a run need not be durable for a call to return. So after a power cut, it
may stand there as it was before its end. The run is complete all the same.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import seams
from click.testing import CliRunner

import shardwrite
from shardwrite import StoreError
from shardwrite.cli import main

OLD = np.arange(64, dtype="i4").reshape(8, 8)
NEW = OLD + 1000
LAYOUT = {"shards": 4, "chunks": 2}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def brought_back(tmp_path, monkeypatch):
    """Put back what lay beside an array right before its run was ended."""
    end, kept = seams.real("end a run"), []

    def end_run(run, *arguments):
        copy = tmp_path / f"before-the-end-{len(kept)}"
        shutil.copytree(run.target.beside, copy, symlinks=True)
        kept.append((copy, run.target.beside))
        end(run, *arguments)

    def bring_back():
        monkeypatch.setattr(*seams.step("end a run"), end)
        copy, beside = kept[-1]
        shutil.copytree(copy, beside, dirs_exist_ok=True)
        for lease in seams.leases_in(beside):
            lease.unlink()  # nobody works on it

    monkeypatch.setattr(*seams.step("end a run"), end_run)
    return bring_back


def values(path):
    return shardwrite.open_sharded(path)[:]


def test_abandon_puts_no_old_array_over_one_that_is_complete(tmp_path, brought_back):
    path = tmp_path / "a.zarr"
    da.from_array(OLD, chunks=4).to_sharded_zarr(path, **LAYOUT)
    da.from_array(NEW, chunks=4).to_sharded_zarr(path, mode="w", **LAYOUT)
    brought_back()
    assert list(tmp_path.glob("a.zarr.shardwrite/run-*/array-*/zarr.json"))
    shown = CliRunner().invoke(main, ["abandon", str(path), "--dry-run"])
    assert shown.output.strip() == "nothing was interrupted"
    assert shardwrite.abandon(path) == []
    assert np.array_equal(values(path), NEW)
    assert not list(tmp_path.glob("a.zarr.*"))


def test_the_same_call_returns_its_result(tmp_path, brought_back):
    path = tmp_path / "a.zarr"
    da.from_array(OLD, chunks=4).to_sharded_zarr(path, **LAYOUT)
    x = da.from_array(NEW, chunks=4)
    x.to_sharded_zarr(path, mode="w", **LAYOUT)
    brought_back()
    before = {p: p.stat().st_ino for p in path.rglob("*")}
    assert x.to_sharded_zarr(path, mode="w", **LAYOUT).n_shards == 4
    assert {p: p.stat().st_ino for p in path.rglob("*")} == before
    assert not list(tmp_path.glob("a.zarr.*"))


@pytest.mark.parametrize("durability", ["full", "batch"])
def test_others_may_change_the_array(tmp_path, brought_back, durability):
    path = tmp_path / "a.zarr"
    da.from_array(OLD, chunks=4).to_sharded_zarr(path, **LAYOUT)
    part = da.from_array(NEW, chunks=4)[:4]
    part.to_sharded_zarr(path, region=np.s_[:4], durability=durability)
    brought_back()
    da.from_array(-NEW, chunks=4)[2:6].to_sharded_zarr(path, region=np.s_[2:6])
    assert np.array_equal(values(path), np.concatenate([NEW[:2], -NEW[2:6], OLD[6:]]))
    assert not list(tmp_path.glob("a.zarr.*"))
    assert shardwrite.verify(path, deep=True).is_good


def test_a_repair_is_not_in_the_way(tmp_path, brought_back):
    path = tmp_path / "a.zarr"
    x = da.from_array(OLD, chunks=4)
    x.to_sharded_zarr(path, source_id="x", **LAYOUT)
    (path / "c/0/0").unlink()
    shardwrite.repair(path, x)
    brought_back()
    da.from_array(NEW, chunks=4)[:4].to_sharded_zarr(path, region=np.s_[:4])
    assert np.array_equal(values(path), np.concatenate([NEW[:4], OLD[4:]]))
    assert not list(tmp_path.glob("a.zarr.*"))


def leave_claim(path):
    """A claim on the end of a run, of a process that is gone."""
    claim = seams.state_beside(path) / "claim-end"
    claim.mkdir(parents=True)
    (claim / "owner-0").write_bytes(b"torn")
    long_ago = time.time() - 1e6
    for place in (claim / "owner-0", claim):
        os.utime(place, (long_ago, long_ago))


@pytest.mark.parametrize("is_pending", [False, True], ids=["nothing", "an update"])
def test_a_full_disk_and_a_claim_that_comes_back(tmp_path, monkeypatch, is_pending):
    """An update that has not ended is given up by means of the room that it keeps."""
    path, is_full = tmp_path / "a.zarr", True
    x = da.from_array(OLD, chunks=4)
    x.to_sharded_zarr(path, **LAYOUT)

    def stop(report):
        raise KeyboardInterrupt

    if is_pending:
        with pytest.raises(KeyboardInterrupt):
            x[:4].to_sharded_zarr(path, region=(slice(4), slice(8)), progress=stop)
    leave_claim(path)
    take, give = seams.real("take over a claim"), seams.real("give the kept room")

    def succeed(*arguments):
        if is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return take(*arguments)

    def give_room(kept):
        nonlocal is_full
        is_full = False
        give(kept)

    monkeypatch.setattr(*seams.step("take over a claim"), succeed)
    monkeypatch.setattr(*seams.step("give the kept room"), give_room)
    assert len(shardwrite.abandon(path)) == is_pending
    assert is_full is not is_pending
    assert np.array_equal(values(path), OLD)
    is_full = False
    shardwrite.abandon(path)
    assert not list(tmp_path.glob("a.zarr.*"))


def test_a_claim_that_comes_back_is_removed(tmp_path):
    path = tmp_path / "a.zarr"
    da.from_array(OLD, chunks=4).to_sharded_zarr(path, **LAYOUT)
    leave_claim(path)
    x = da.from_array(NEW[:4], chunks=4)
    x.to_sharded_zarr(path, region=(slice(4), slice(8)))
    assert np.array_equal(values(path), np.concatenate([NEW[:4], OLD[4:]]))
    assert not list(tmp_path.glob("a.zarr.*"))


def test_abandon_tidies_after_an_update_that_a_conversion_in_place_follows(tmp_path, monkeypatch):
    path = tmp_path / "a.zarr"
    x = da.from_array(OLD, chunks=4)
    x.to_sharded_zarr(path, **LAYOUT)

    with monkeypatch.context() as patched:
        seams.kill_before(patched, "remove the state of a run", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            x[:4].to_sharded_zarr(path, region=(slice(4), slice(8)))
    with monkeypatch.context() as patched:
        seams.kill_before(patched, "exchange the trees", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            shardwrite.reshard(path, shards=8, chunks=2)
    assert list(tmp_path.glob("a.zarr.shardwrite/updates/*/ended-*"))
    shardwrite.abandon(path)
    assert np.array_equal(values(path), OLD)
    assert not list(tmp_path.glob("a.zarr.*"))


def test_abandon_removes_what_a_killed_call_has_left_of_a_note(tmp_path, monkeypatch):
    """The document of an array gets the note outside of a run, and without a claim."""
    path, kept, rename = tmp_path / "x", {}, os.rename
    da.from_array(OLD, chunks=4).to_sharded_zarr(path, shards=None, chunks=2)

    def keep(old, new, **where):
        if Path(new) == path / "zarr.json":
            kept[Path(old)] = Path(old).read_bytes()
        rename(old, new, **where)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", keep)
        shardwrite.shard_store(path, 2)
    ((temporary, document),) = kept.items()
    temporary.write_bytes(document)
    shardwrite.abandon(path)
    assert not list(path.glob(".*"))


CALLS = {
    "write": lambda path: write(path / "x"),
    "replacement": lambda path: write(path / "x", OLD + 5, mode="w"),
    "update": lambda path: write(path / "x", OLD[:4], region=(slice(4), slice(8))),
    "several": lambda path: shardwrite.store(
        [source(OLD), source(NEW)], [path / "g"] * 2, names=["a", "b"], source_id="x", **LAYOUT
    ),
}


def source(values):
    return da.from_array(values, chunks=4)


def write(path, values=OLD, **keywords):
    how = {} if "region" in keywords else LAYOUT
    source(values).to_sharded_zarr(path, **how, source_id=str(values[0, 0]), **keywords)


@pytest.mark.parametrize("n_times", [1, 9])
@pytest.mark.parametrize("name", CALLS)
def test_what_the_end_cannot_remove_is_told(tmp_path, monkeypatch, name, n_times):
    """It is looked at once more, and then it is an error. The same call removes the rest."""
    if name in ("replacement", "update"):
        write(tmp_path / "x", NEW)
    remove, refused = seams.real("remove the state of a run"), []

    def refuse(path):
        if len(refused) == n_times:
            return remove(path)
        refused.append(path)
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patched:
        seams.replace_step(patched, "remove the state of a run", refuse)
        if n_times > 1:
            with pytest.raises(StoreError, match=r"cannot remove .*/ended-") as caught:
                CALLS[name](tmp_path)
            assert caught.value.errno == errno.EIO
            assert list(tmp_path.rglob("ended-*"))
        else:
            CALLS[name](tmp_path)
            assert not list(tmp_path.rglob("*.shardwrite"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("c/*/*")}
    CALLS[name](tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("c/*/*")} == before
    assert len(before) == (8 if name == "several" else 4)
    assert not list(tmp_path.rglob("*.shardwrite"))


def finalize(path):
    x = source(OLD)
    shardwrite.prepare(x, path, shardwrite.plan(x, source_id="x", **LAYOUT))
    shardwrite.write_part(x, path, 0, 1, source_id="x")
    return partial(shardwrite.finalize, path)


def salvage(path):
    write(path)
    with (path / "c/0/1").open("ab") as shard:
        shard.write(bytes(range(1, 200)))
    return partial(shardwrite.repair, path, salvage=True, scan=True)


@pytest.mark.parametrize("prepare", [finalize, salvage])
def test_an_error_of_this_process_is_not_told_as_that_of_another(tmp_path, prepare):
    """It has ended the run itself, and could not remove what is left."""
    path = tmp_path / "x"
    call = prepare(path)
    with pytest.MonkeyPatch.context() as patch:
        seams.kill_before(patch, "remove the state of a run", OSError(errno.EIO, "no answer"))
        with pytest.raises(StoreError, match=r"what is left in .*/ended-.*: no answer"):
            call()
    assert list(tmp_path.rglob("ended-*"))
    call()
    assert np.array_equal(values(path), OLD)
    assert not list(tmp_path.glob("x.shardwrite"))
