"""Repair writes exactly what is bad, and nobody reads a fill value meanwhile; salvage finds what an
append left."""

from __future__ import annotations

import importlib
import json
import os
import subprocess

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from click.testing import CliRunner
from forks import python
from helpers import Stop, contents, stop
from tiers import some

import shardwrite
from shardwrite import JournalError
from shardwrite.cli import main

salvage_module = importlib.import_module("shardwrite.operations.salvage")
repair_module = importlib.import_module("shardwrite.operations.repair")
LAYOUT = {"shards": 16, "chunks": 4}


def damage(path):
    """A shard that is torn, one that is lost, one whose data is bad; a stale temporary."""
    torn, lost, rotten = path / "c/1/1", path / "c/2/2", path / "c/3/0"
    torn.write_bytes(torn.read_bytes()[:100])
    lost.unlink()
    data = bytearray(rotten.read_bytes())
    data[5] ^= 1
    rotten.write_bytes(data)
    (path / "c/0/.1.someone.else.swtmp").write_bytes(b"half")
    return {"c/1/1", "c/2/2", "c/3/0"}


def states(path):
    return {
        p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (path / "c").rglob("*") if p.is_file()
    }


def test_a_shard_that_another_has_written_until_the_repair_begins_is_left_alone(
    path, a, monkeypatch
):
    bad = damage(path)

    def write_others(*_):
        da.from_array(a[16:48, 16:48] + 10, chunks=16).to_sharded_zarr(
            path, region=(slice(16, 48), slice(16, 48)), restart=True
        )
        shardwrite.erase(path, (slice(48, 64), slice(0, 16)))

    seams.before(monkeypatch, "begin runs", write_others, once=True)
    lost = path / "c/2/2"
    (path / "c/1/1").unlink()  # what is torn cannot be updated in part
    assert not lost.exists()
    done = shardwrite.repair(path, da.from_array(a, chunks=(10, 64)))
    assert done.is_done
    assert {task.key for task in done.tasks} < bad
    wanted = a.copy()
    wanted[16:48, 16:48] += 10
    wanted[48:64, 0:16] = 0
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], wanted)
    assert shardwrite.verify(path, deep=True).is_good


def test_a_shard_that_is_being_erased_is_not_taken_for_lost(path, a, monkeypatch):
    """An erasure removes the object first, and the receipt says so at the end."""
    shard, real = path / "c/1/2", repair_module.verify

    def verify_amid(*arguments, **keywords):
        data = shard.read_bytes()
        shard.unlink()
        report = real(*arguments, **keywords)
        shard.write_bytes(data)
        shardwrite.erase(path, (slice(16, 32), slice(32, 48)))
        return report

    monkeypatch.setattr(repair_module, "verify", verify_amid)
    done = shardwrite.repair(path, da.from_array(a, chunks=(10, 64)))
    assert done.tasks == ()
    a[16:32, 32:48] = 0
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], a)
    assert not shard.exists()
    assert shardwrite.verify(path, deep=True).is_good


def test_only_what_is_bad_is_written_again(path, a):
    bad = damage(path)
    before = states(path)
    told = shardwrite.repair(path)
    assert {task.key for task in told.tasks} == bad
    assert not told.is_done
    assert told.n_temporaries == 1
    task = next(task for task in told.tasks if task.key == "c/2/2")
    assert task.region == ((32, 48), (32, 48))
    assert "no object" in task.reason
    with pytest.raises(shardwrite.CorruptShardError):
        shardwrite.open_sharded(path)[
            16:32, 16:32
        ]  # an error until it is mended, never the fill value
    done = shardwrite.repair(path, da.from_array(a, chunks=(10, 64)))
    assert done.is_done
    assert done.result.n_resumed_shards == 13
    assert shardwrite.verify(path, deep=True, against=da.from_array(a, chunks=20)).is_good
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], a)
    changed = {
        str(p.relative_to(path)) for p, facts in states(path).items() if before.get(p) != facts
    }
    assert changed == bad
    assert len(done.quarantined) == 2
    assert not seams.state_beside(path).exists()
    again = shardwrite.repair(path, da.from_array(a, chunks=(10, 64)))
    assert (again.tasks, again.result) == ((), None)
    # the receipt still belongs to the run that made the array
    assert da.from_array(a, chunks=(10, 64)).to_sharded_zarr(path, **LAYOUT).n_resumed_shards == 16


@pytest.mark.parametrize("is_consumed", [False, True])
def test_a_repair_that_is_refused_leaves_nothing_in_a_tree_under_conversion(tmp_path, is_consumed):
    tree, new = tmp_path / "t", tmp_path / "n" if is_consumed else None
    zarr.create_group(tree)
    for name in "ab":
        da.from_array(np.ones((8, 8)), chunks=8).to_sharded_zarr(tree / name, shards=4, chunks=2)
    with dask.config.set(scheduler="sync"), pytest.raises(Stop):
        shardwrite.unshard(tree, new, consume=is_consumed, progress=stop)
    shard = tree / "b/c/1/1"
    good = shard.read_bytes()
    shard.write_bytes(good[:-1])
    before = contents(tmp_path)
    for more in ({}, {"salvage": True}):
        with pytest.raises(JournalError, match="is being converted in its place"):
            shardwrite.repair(tree / "b", np.ones((8, 8)), **more)
    assert contents(tmp_path) == before
    shard.write_bytes(good)
    shardwrite.unshard(tree, new, consume=is_consumed)
    assert (zarr.open_group(new or tree, mode="r")["b"][...] == 1).all()


def test_a_repair_that_is_made_again_keeps_no_second_copy(path, a):
    damage(path)
    failing = da.from_array(a, chunks=(10, 64)).map_blocks(fail_always, dtype=a.dtype)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            shardwrite.repair(path, failing)
    assert len(os.listdir(path.with_name(f"{path.name}.quarantine"))) == 2


def fail_always(block):
    if block.size > 1:  # else dask only asks for the dtype
        raise ZeroDivisionError
    return block


@pytest.mark.long
def test_an_interrupted_repair_goes_on(path, a):
    bad = damage(path)
    flag = path.with_name("fail")
    flag.touch()

    def fail(block, block_info=None):
        if flag.exists() and block_info[0]["chunk-location"] == (3, 0):
            raise InterruptedError("told to")
        return block

    x = da.from_array(a, chunks=16).map_blocks(
        fail, dtype="i4", meta=np.empty((0, 0), "i4"), name="a-source"
    )
    with pytest.raises(InterruptedError):
        shardwrite.repair(path, x)
    assert seams.state_beside(path).exists()
    with pytest.raises(shardwrite.JournalError, match="mode"):
        (da.from_array(a, chunks=16) + 1).to_sharded_zarr(path, mode="w", **LAYOUT)
    assert "c/3/0" in {task.key for task in shardwrite.repair(path).tasks} <= bad
    flag.unlink()
    assert shardwrite.repair(path, x).is_done
    assert shardwrite.verify(path, deep=True, against=x).is_good
    assert not seams.state_beside(path).exists()


def test_an_array_that_another_program_made(tmp_path, a):
    made = zarr.create_array(
        tmp_path / "z", shape=a.shape, dtype=a.dtype, shards=(16, 16), chunks=(4, 4)
    )
    made[...] = a  # with data=, zarr-python 3.1.0 may tear shards
    (tmp_path / "z/c/1/1").write_bytes(b"torn")
    (tmp_path / "z/c/2/2").unlink()
    found = shardwrite.repair(tmp_path / "z", da.from_array(a, chunks=20))
    assert [task.key for task in found.tasks] == ["c/1/1"], "nothing tells that a shard is lost"
    assert not shardwrite.verify(tmp_path / "z", against=da.from_array(a, chunks=20)).is_good
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "z", mode="r")[:32], a[:32])


def appended(path, key):
    """A shard as a writer leaves it that appends new chunks and dies before the new index stands."""
    shard = path / key
    good = shard.read_bytes()
    shard.write_bytes(good + np.random.default_rng(1).bytes(333))
    return good


def test_a_torn_append_is_cut_back_by_a_scan_only_on_request(path, a):
    good = appended(path, "c/1/2")
    assert [p.key for p in shardwrite.verify(path).problems] == ["c/1/2"]
    assert shardwrite.repair(path).salvaged == ()
    done = shardwrite.repair(path, scan=True)
    assert "backward scan" in done.salvaged[0]
    assert (path / "c/1/2").read_bytes() == good
    assert done.tasks == ()
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], a)


def test_nobody_updates_a_shard_during_its_salvage(path, a, monkeypatch):
    """It went on without a run, and renamed the old state over whatever an update had written since
    its last look."""
    good = appended(path, "c/1/2")
    new = da.from_array(a[16:32, 32:48] + 1, chunks=16)
    real, told = salvage_module.keep_copy, []

    def keep_copy(*arguments):
        with pytest.raises(
            shardwrite.JournalError, match="is being written by another plan"
        ) as error:
            new.to_sharded_zarr(path, region=(slice(16, 32), slice(32, 48)))
        told.append(error)
        new.to_sharded_zarr(
            path, region=(slice(48, 64), slice(0, 16))
        )  # which the salvage does not touch
        return real(*arguments)

    monkeypatch.setattr(salvage_module, "keep_copy", keep_copy)
    assert len(shardwrite.repair(path, scan=True).salvaged) == len(told) == 1
    assert (path / "c/1/2").read_bytes() == good
    assert not seams.state_beside(path).exists()
    new.to_sharded_zarr(path, region=(slice(16, 32), slice(32, 48)))
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_shard_that_another_program_writes_during_a_salvage_is_left_alone(
    path, monkeypatch, is_whole
):
    good = appended(path, "c/1/2")
    other = (path / "c/3/3").read_bytes() if is_whole else b"neither old nor new"
    real = salvage_module.keep_copy

    def keep_copy(*arguments):
        copy = real(*arguments)
        (path / "c/1/2").unlink()  # the copy is a link
        (path / "c/1/2").write_bytes(other)
        return copy

    monkeypatch.setattr(salvage_module, "keep_copy", keep_copy)
    if is_whole:
        assert shardwrite.repair(path, scan=True).salvaged == ()
    else:
        with pytest.raises(shardwrite.CorruptShardError):
            shardwrite.repair(path, scan=True)
    assert (path / "c/1/2").read_bytes() == other != good
    assert not list(path.rglob("*.swtmp"))
    assert not seams.state_beside(path).exists()


@pytest.mark.long
def test_an_update_beside_a_salvage_that_died(path, a):
    """Nobody can go on with the salvage, so nothing has to be given up by hand."""
    appended(path, "c/1/2")
    code = (
        "import os, shardwrite, shardwrite.operations.salvage as s; s.keep_copy = lambda *_: os._exit(9); "
        f"shardwrite.repair({str(path)!r}, scan=True)"
    )
    assert subprocess.run([*python(), "-c", code], check=False).returncode == 9
    assert list(seams.state_beside(path).glob("updates/salvage-*"))
    da.from_array(a[16:32, 32:48] + 1, chunks=16).to_sharded_zarr(
        path, region=(slice(16, 32), slice(32, 48))
    )
    assert not seams.state_beside(path).exists()
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.long
def test_a_salvage_leaves_an_update_alone_that_has_not_ended(path, a):
    appended(path, "c/1/2")
    region = (slice(16, 32), slice(0, 64))
    code = (
        "import os, dask.array as da, numpy as np, shardwrite.write.tasks as t; t.commit_shards = lambda *_: os._exit(9); "
        f"da.ones((16, 64), chunks=16, dtype='i4').to_sharded_zarr({str(path)!r}, region=(slice(16, 32), slice(0, 64)))"
    )
    assert subprocess.run([*python(), "-c", code], check=False).returncode == 9
    torn = (path / "c/1/2").read_bytes()
    with pytest.raises(shardwrite.JournalError, match="has not ended"):
        shardwrite.repair(path, scan=True)
    assert (path / "c/1/2").read_bytes() == torn
    assert shardwrite.abandon(path) == [((16, 32), (0, 64))]
    assert shardwrite.repair(path, scan=True).salvaged
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[region], a[region])


@pytest.mark.long
def test_a_salvage_and_a_repair_at_once(path, a):
    good, bad = appended(path, "c/1/2"), damage(path)
    done = shardwrite.repair(path, da.from_array(a, chunks=20), scan=True)
    assert [text.partition(":")[0] for text in done.salvaged] == ["c/1/2"]
    assert {task.key for task in done.tasks} == bad
    assert (path / "c/1/2").read_bytes() == good
    assert shardwrite.verify(path, deep=True, against=da.from_array(a, chunks=20)).is_good


@pytest.mark.parametrize("place", ["c", "c/1"])
def test_a_file_in_place_of_a_directory_of_shards(path, a, place):
    """A program that copies files may leave one there. The error says what is to be done."""
    x = da.from_array(a, chunks=20)
    (path / place).rename(path.parent / "old")
    (path / place).write_bytes(b"something")
    for call in (lambda: shardwrite.open_sharded(path)[:], lambda: shardwrite.repair(path, x)):
        with pytest.raises(shardwrite.StoreError, match=f"{path / place} is no directory; move it"):
            call()
    assert f"{path / place} is no directory" in str(shardwrite.verify(path))
    (path / place).rename(path.parent / "moved away")
    assert shardwrite.repair(path, x).is_done
    assert shardwrite.verify(path, deep=True, against=x).is_good


def test_a_scan_leaves_shards_that_are_not_torn(tmp_path, a):
    """Another codec in the metadata makes every inner chunk bad, and the index of an inner shard
    fits, too."""
    codecs = [zarr.codecs.BytesCodec(), zarr.codecs.GzipCodec(level=1)]
    inner = zarr.codecs.ShardingCodec(chunk_shape=(2, 2), codecs=codecs)
    sharding = zarr.codecs.ShardingCodec(chunk_shape=(4, 4), codecs=[inner])
    zarr.create_array(
        tmp_path / "z", data=a[:8, :8] + 1, chunks=(8, 8), serializer=sharding, compressors=None
    )
    document, shard = tmp_path / "z" / "zarr.json", tmp_path / "z" / "c/0/0"
    good, text = shard.read_bytes(), document.read_text()
    wrong = json.loads(text)
    wrong["codecs"][0]["configuration"]["codecs"][0]["configuration"]["codecs"].pop()
    document.write_text(json.dumps(wrong))
    told = shardwrite.repair(tmp_path / "z", scan=True)
    assert ([task.key for task in told.tasks], told.salvaged) == (["c/0/0"], ())
    assert shard.read_bytes() == good
    document.write_text(text)
    shard.write_bytes(good[:-10])  # now it is torn, and what fits are the indexes of inner shards
    assert shardwrite.repair(tmp_path / "z", scan=True).salvaged == ()
    assert shard.read_bytes() == good[:-10]


def test_a_torn_append_is_cut_back_to_the_size_in_the_journal(tmp_path, a):
    calls = []

    def fail(block):
        calls.append(1)
        if len(calls) > 40:
            raise InterruptedError("told to")
        return block

    x = da.from_array(a, chunks=8).map_blocks(fail, dtype="i4", meta=np.empty((0, 0), "i4"))
    keywords = {**LAYOUT, "memory_limit": "60kB", "source_id": "one", "max_source_reruns": 100}
    import dask

    with dask.config.set(scheduler="sync"), pytest.raises(InterruptedError):
        x.to_sharded_zarr(tmp_path / "x", **keywords)
    (key, *_) = sorted(
        str(p.relative_to(tmp_path / "x")) for p in (tmp_path / "x" / "c").rglob("*") if p.is_file()
    )
    good = appended(tmp_path / "x", key)
    with pytest.raises(shardwrite.JournalError, match="recheck"):
        shardwrite.repair(tmp_path / "x", x)
    done = shardwrite.repair(tmp_path / "x", salvage=True)
    assert "the size in the journal" in done.salvaged[0]
    assert (tmp_path / "x" / key).read_bytes() == good
    appended(tmp_path / "x", key)
    da.from_array(a, chunks=8).to_sharded_zarr(tmp_path / "x", recheck=True, **keywords)
    assert shardwrite.verify(tmp_path / "x", deep=True, against=da.from_array(a, chunks=8)).is_good


def test_what_lost_and_empty_are_told_by(path, a):
    report = shardwrite.verify(path)
    assert (report.expected_by, report.n_missing, report.n_absent, report.is_good) == (
        "receipt",
        0,
        1,
        True,
    )
    (path / "c/0/1").unlink()
    report = shardwrite.verify(path)
    assert (report.n_missing, [p.key for p in report.problems]) == (1, ["c/0/1"])
    seams.receipt_of(path).unlink()
    report = shardwrite.verify(path)
    assert (report.expected_by, report.n_missing, report.is_good) == ("", 0, True)
    report = shardwrite.verify(path, against=da.from_array(a, chunks=(7, 64)))
    assert [p.key for p in report.problems] == ["c/0/1"]
    assert "256 elements differ" in report.problems[0].message
    assert "first at (0, 16), in inner chunk (0, 0)" in report.problems[0].message


def test_against_compares_bits(tmp_path):
    a = np.array([0.0, -0.0, np.nan, 1.0])
    da.from_array(a, chunks=2).to_sharded_zarr(tmp_path / "x", shards=2, chunks=1)
    assert shardwrite.verify(tmp_path / "x", against=da.from_array(a, chunks=3)).is_good
    assert shardwrite.verify(
        tmp_path / "x", against=da.from_array(a.astype(">f8"), chunks=3)
    ).is_good
    report = shardwrite.verify(tmp_path / "x", against=da.from_array(np.abs(a), chunks=3))
    assert [p.key for p in report.problems] == ["c/0"]
    with pytest.raises(shardwrite.SpecError, match=r"against\.shape"):
        shardwrite.verify(tmp_path / "x", against=da.zeros(3, chunks=3))


@pytest.mark.parametrize(
    "scheduler", some(["threads", "processes", "distributed"], "threads", "processes")
)
def test_every_engine_verifies(path, a, scheduler):
    import contextlib

    import dask

    damage(path)
    with contextlib.ExitStack() as stack:
        if scheduler == "distributed":
            from distributed import Client

            stack.enter_context(Client(n_workers=2, threads_per_worker=1, dashboard_address=None))
        else:
            stack.enter_context(dask.config.set(scheduler=scheduler))
        report = shardwrite.verify(path, deep=True, against=da.from_array(a, chunks=20))
    assert [p.key for p in report.problems] == ["c/1/1", "c/2/2", "c/3/0"]


@pytest.mark.compat
def test_the_commands(path, a, tmp_path):
    np.save(tmp_path / "a.npy", a)

    def run(*arguments):
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    assert run("verify", path, "--deep", "--against", tmp_path / "a.npy").exit_code == 0
    damage(path)
    assert run("verify", path, "--deep").exit_code == 1
    told = run("repair", path)
    assert told.exit_code == 85
    assert "c/2/2" in told.output
    assert "32:48, 32:48" in told.output
    seen = run("census", path, "--html", tmp_path / "c.html", "--png", tmp_path / "c.png")
    assert seen.exit_code == 0, seen.output
    assert "bad" in seen.output
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (tmp_path / "c.html").read_text()
    alone = run("census", path, "--dark")
    assert (alone.exit_code, "--dark goes with --png" in alone.output) == (2, True)
    light = (tmp_path / "c.png").read_bytes()
    assert run("census", path, "--dark", "--png", tmp_path / "c.png").exit_code == 0
    assert (tmp_path / "c.png").read_bytes() != light
    assert run("repair", path, "--source", tmp_path / "a.npy").exit_code == 0
    assert run("verify", path, "--deep", "--against", tmp_path / "a.npy").exit_code == 0
    told = run("info", path)
    assert "finished" in told.output


def test_copies_of_shards_lie_beside_an_array_in_a_group(tmp_path):
    """Run state lies beside the root of the hierarchy, and nothing of it stays."""
    root = tmp_path / "root.zarr"
    zarr.create_group(root)
    x = da.ones((8, 8), chunks=4)
    x.to_sharded_zarr(root, name="a", shards=4, chunks=2)
    (root / "a" / "c" / "0" / "1").write_bytes(b"torn")
    done = shardwrite.repair(root / "a", x)
    assert [path.rpartition("/")[0] for path in done.quarantined] == [str(root / "a.quarantine")]
    assert [path.name for path in tmp_path.iterdir()] == ["root.zarr"]
    assert shardwrite.verify(root / "a", deep=True).is_good
