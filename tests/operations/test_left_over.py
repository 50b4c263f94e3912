"""What is left of a run does not block an array that was made after its own array was removed."""

from __future__ import annotations

import errno
import os
import shutil

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import AppendOnly, JournalError, RunEndedError, ShardWriter, StoreError
from shardwrite.cli import main
from shardwrite.journal.begin import has_lost_array
from shardwrite.journal.neighbours import neighbours

pytestmark = pytest.mark.usefixtures("one_thread")


def source(shape, value, n_good=None):
    """An array of one value; chunks after the first `n_good` cannot be computed."""
    n_done = 0

    def one(block, block_info=None):
        nonlocal n_done
        n_done += bool(block_info)
        if block_info and n_good is not None and n_done > n_good:
            raise ValueError("no source")
        return block

    return da.full(shape, value, chunks=4, dtype="i4").map_blocks(one, dtype="i4")


def write(path, ndim, n_good=None):
    more = {"shards": 4, "chunks": 2, "source_id": "ones"}
    return source((12,) * ndim, 1, n_good).to_sharded_zarr(path, **more)


def stop(*_):
    raise ValueError("no source")


def stream(path, ndim):
    """A stream whose end fails, after it has grown the array."""
    writer = ShardWriter(path)
    writer.append(np.full((5, *(12,) * (ndim - 1)), 3, "i4"))
    writer.flush()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("shardwrite.stream.stretch.Stretch.end", stop)
        writer.close()


def compact(path, ndim):
    inside = (slice(2, 10),) * ndim
    shardwrite.write_region(source((8,) * ndim, 2), path, inside, strategy=AppendOnly())
    shardwrite.compact(path, above=0, progress=stop)


def leave(path, kind, ndim):
    """Leave a run of some kind behind, which has written a part of its shards."""
    whole = (12,) * ndim
    if kind != "make":
        write(path, ndim)
    if kind == "repair":
        for key in ("0", "1", "2"):
            (path / "c" / "/".join([key] * ndim)).unlink()
    region = "append" if kind == "append" else (slice(0, 12),) * ndim
    more = {"strategy": AppendOnly(in_place=True)} if kind == "in place" else {}
    work = {
        "make": lambda: write(path, ndim, 2),
        "repair": lambda: shardwrite.repair(path, source(whole, 1, 1)),
        "stream": lambda: stream(path, ndim),
        "compaction": lambda: compact(path, ndim),
    }.get(kind, lambda: shardwrite.write_region(source(whole, 2, 2), path, region, **more))
    with pytest.raises(ValueError, match="no source"):
        work()


def check(path, wanted):
    for found in (zarr.open_array(path, mode="r")[...], shardwrite.open_sharded(path)[...]):
        np.testing.assert_array_equal(found, wanted)
    report = shardwrite.verify(path, deep=True)
    assert report.is_good, report
    assert report.warnings == ()
    assert not seams.state_beside(path).exists()


@pytest.mark.parametrize("program", ["ours", "zarr"])
@pytest.mark.parametrize(
    ("before", "ndim"),
    [(2, 1), *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, 2), (2, 2)))],
)
@pytest.mark.parametrize(
    "kind", ["make", "region", "append", "in place", "repair", "stream", "compaction"]
)
def test_an_array_that_was_removed(tmp_path, kind, before, ndim, program):
    path = tmp_path / "x"
    leave(path, kind, before)
    assert seams.state_beside(path).exists()
    shutil.rmtree(path)
    shape, wanted = (10,) * ndim, np.full((10,) * ndim, 5, "i4")
    if program == "zarr":
        made = zarr.create_array(
            path, shape=shape, shards=(4,) * ndim, chunks=(2,) * ndim, dtype="i4"
        )
        made[...] = 5
        report = shardwrite.verify(path, deep=True)
        assert report.is_good
        assert "was for an array that is gone; the next write removes" in report.warnings[0]
        assert CliRunner().invoke(main, ["info", str(path)]).exit_code == 0
        assert shardwrite.census(path).counts["bad"] == 0
        assert shardwrite.repair(path).is_done
    else:
        source(shape, 5).to_sharded_zarr(path, shards=4, chunks=2)
        check(path, wanted)
    first = (slice(0, 3),) * ndim
    shardwrite.write_region(source((3,) * ndim, 7), path, first)
    wanted[first] = 7
    check(path, wanted)
    shardwrite.write_region(source((2, *shape[1:]), 8), path, "append")
    with ShardWriter(path) as writer:
        writer.append(np.full(shape[1:], 9, "i4"))
    more = [np.full((2, *shape[1:]), 8), np.full((1, *shape[1:]), 9)]
    check(path, np.concatenate([wanted, *more]))


def test_the_same_call_starts_over(tmp_path):
    """Its journal lists shards that were removed with the array."""
    path = tmp_path / "x"
    leave(path, "make", 2)
    shutil.rmtree(path)
    assert write(path, 2).n_resumed_shards == 0
    check(path, np.ones((12, 12)))


def test_an_append_is_not_taken_for_that_of_the_array_before(tmp_path):
    path = tmp_path / "x"
    more = {"source_id": "slices"}
    write(path, 1)
    with pytest.raises(ValueError, match="no source"):
        shardwrite.write_region(source((12,), 2, 2), path, "append", **more)
    shutil.rmtree(path)
    source((6,), 5).to_sharded_zarr(path, shards=4, chunks=2)
    shardwrite.write_region(source((12,), 2), path, "append", **more)
    check(path, [5] * 6 + [2] * 12)


def test_a_run_of_an_array_that_is_there_stays(tmp_path):
    """Another program has only changed the attributes and the shape."""
    path = tmp_path / "x"
    leave(path, "region", 1)
    array = zarr.open_array(path, mode="r+")
    array.attrs["by"] = "zarr"
    array.resize((14,))
    with pytest.raises(JournalError, match="an update of the region"):
        shardwrite.write_region(source((1,), 3), path, slice(0, 1))
    shardwrite.abandon(path)
    shardwrite.write_region(source((1,), 3), path, slice(0, 1))
    assert shardwrite.open_sharded(path)[0] == 3


def test_parts_that_have_only_written_empty_shards_are_kept(tmp_path):
    """Their directory is there, although nothing is in it."""
    path, x = tmp_path / "x", da.zeros((12, 12), chunks=4, dtype="i4")
    more = {"source_id": "zeros"}
    shardwrite.prepare(x, path, shardwrite.plan(x, shards=4, chunks=2, **more))
    for directory in (path / "c").rglob("*"):
        directory.rmdir()
    (path / "c").rmdir()
    for part in range(3):
        shardwrite.write_part(x, path, part, 3, **more)
    assert shardwrite.finalize(path).n_empty_shards == 9
    check(path, np.zeros((12, 12)))


def test_a_run_that_ends_between_two_looks_is_not_lost(tmp_path):
    leave(tmp_path / "x", "repair", 1)
    run = seams.run_of(tmp_path / "x")
    shutil.rmtree(run.path)
    assert not has_lost_array(run)


def test_an_array_that_is_removed_between_two_looks_is_lost(tmp_path, monkeypatch):
    leave(tmp_path / "x", "region", 1)
    run = next(neighbours(seams.target_of(tmp_path / "x")))
    assert not has_lost_array(run)
    (tmp_path / "x/zarr.json").unlink()
    monkeypatch.setattr(type(run.target.place), "kind", lambda _: "array")
    assert has_lost_array(run)


def test_an_array_that_is_replaced_by_the_process_that_has_ended_the_run(tmp_path):
    path = tmp_path / "x"
    leave(path, "region", 1)
    run = next(neighbours(seams.target_of(path)))
    (path / "zarr.json").unlink()
    with pytest.raises(StoreError, match=r"zarr\.json is missing"):
        run.written_by("", "none").change(dict)
    run.path.rename(run.path.with_name(f"taken-{run.run}"))
    with pytest.raises(RunEndedError):
        run.written_by("", "none").change(dict)


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_a_directory_that_disappears_amid_a_write(tmp_path, how):
    """The run does not report success over shards that are gone, and `recheck` writes them."""
    path, values = tmp_path / "gone.zarr", np.arange(1, 401, dtype="i4").reshape(20, 20)
    blocks = iter(range(25))

    def block(part):
        if next(blocks) == 12:
            shutil.rmtree(path) if how == "removed" else path.rename(tmp_path / "elsewhere")
        return part

    x = da.from_array(values, chunks=4).map_blocks(block, dtype="i4", meta=np.empty((0, 0), "i4"))
    options = {"shards": 4, "chunks": 2, "source_id": "it", "memory_limit": "2kB"}
    with pytest.raises(StoreError, match=r"is gone.*recheck=True"):
        x.to_sharded_zarr(path, **options)
    assert not (path / "zarr.json").exists()
    blocks = iter(range(100, 200))
    assert x.to_sharded_zarr(path, recheck=True, **options).n_shards == 25
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], values)
    assert shardwrite.verify(path, deep=True).is_good


def test_a_temporary_that_could_not_be_removed_is_removed_by_the_next_call(tmp_path, monkeypatch):
    """The log does not say that the attempt is over which it belongs to."""

    def refuse(path, *_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    unlink = os.unlink
    with monkeypatch.context() as patched, dask.config.set({"shardwrite.retry-pauses": []}):
        seams.replace_step(patched, "sync a file", refuse)
        patched.setattr(
            os, "unlink", lambda p, **k: (refuse if ".swtmp" in str(p) else unlink)(p, **k)
        )
        with pytest.raises(StoreError):
            write(tmp_path / "x", 2)
    assert list(tmp_path.rglob("*.swtmp"))
    write(tmp_path / "x", 2)
    assert not list(tmp_path.rglob("*.swtmp"))
    assert not list(tmp_path.rglob("*.shardwrite"))


@pytest.mark.parametrize("name", ["x", "b/y"])
def test_abandon_of_one_array_removes_drafts_of_runs_on_several(tmp_path, name):
    """Also where it is given the path of the array, which names no hierarchy."""
    arrays, layout = [source((8, 8), 1)] * 2, {"shards": 4, "chunks": 2, "source_id": "x"}
    shardwrite.store(arrays, [tmp_path / "r"] * 2, names=["x", "b/y"], **layout)
    maker, _, machine = seams.signature().rsplit(",", 2)
    draft = tmp_path / f"r.shardwrite/together/draft-0123456789ab,{maker},1,{machine}"
    (draft / "0").mkdir(parents=True)
    (draft / "0/plan.json").write_text("{}")
    assert shardwrite.abandon(tmp_path / "r" / name) == []
    assert not list(tmp_path.glob("r.*"))
