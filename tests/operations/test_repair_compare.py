"""Repair with a comparison: shards that decode to wrong values are written anew."""

from __future__ import annotations

import importlib
import os
import subprocess
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from click.testing import CliRunner
from forks import python
from tiers import some

import shardwrite
from shardwrite.cli import main
from shardwrite.errors import SpecError

repair_module = importlib.import_module("shardwrite.operations.repair")
LAYOUT = {"shards": 16, "chunks": 4, "compressors": None}
SCALE = {"resolution": (1, 1, 1), "chunks": 4}
LINEAR = {"preshift_bits": 0, "minishard_bits": 2, "shard_bits": 1}
SCATTERED = {**LINEAR, "hash": "murmurhash3_x86_128"}


def spoil(path):
    """A wrong value, a shard that was removed after its erasure was noted, and one that should be
    empty."""
    opened = zarr.open_array(path)
    opened[20, 20] += 100
    shardwrite.erase(path, (slice(32, 48), slice(0, 16)))
    opened[3, 3] = 7
    return ["c/0/0", "c/1/1", "c/2/0"]


def files(path):
    return {
        str(p.relative_to(path)): (p.stat().st_ino, p.stat().st_mtime_ns)
        for p in (path / "c").rglob("*")
        if p.is_file()
    }


def keys(report):
    return [problem.key for problem in report.problems]


@pytest.mark.parametrize("scheduler", some(["threads", "processes"], "threads"))
def test_exactly_the_shards_that_differ_are_written_anew(path, a, scheduler):
    x, bad = da.from_array(a, chunks=(10, 64)), spoil(path)
    before, spoilt = files(path), (path / "c/1/1").read_bytes()
    assert keys(shardwrite.verify(path, deep=True, against=x)) == bad
    with dask.config.set(scheduler=scheduler):
        done = shardwrite.repair(path, x, compare=True)
    assert [task.key for task in done.tasks] == bad
    assert done.is_done
    assert done.is_compared
    assert "with the source, every value" in str(done)
    assert shardwrite.verify(path, deep=True, against=x).is_good
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], a)
    after = files(path)
    assert not (path / "c/0/0").exists()
    assert {k for k in before if before[k] == after.get(k)} == set(before) - set(bad)
    kept = [Path(copy).read_bytes() for copy in done.quarantined]
    assert len(kept) == 2, "one of the three had no file"
    assert spoilt in kept
    assert not seams.state_beside(path).exists()
    assert shardwrite.repair(path, x, compare=True).tasks == ()


def test_without_the_comparison_nothing_is_found(path, a):
    zarr.open_array(path)[20, 20] += 100
    done = shardwrite.repair(path, a)
    assert (done.tasks, done.is_compared) == ((), False)
    assert not shardwrite.verify(path, against=a).is_good


def test_torn_and_lost_shards_are_mended_by_the_same_call(path, a):
    zarr.open_array(path)[20, 20] += 100
    os.truncate(path / "c/2/2", 30)
    (path / "c/3/3").unlink()
    done = shardwrite.repair(path, a, compare=True, deep=False)
    assert [task.key for task in done.tasks] == ["c/1/1", "c/2/2", "c/3/3"]
    assert shardwrite.verify(path, deep=True, against=a).is_good


@pytest.mark.parametrize("sharding", [LINEAR, SCATTERED], ids=["boxes", "scattered"])
@pytest.mark.parametrize("axes", ["zyx", "xyz"])
def test_scales_of_volumes_have_the_axes_that_were_written(tmp_path, sharding, axes):
    """A minishard that is lost leaves a whole shard, which decodes."""
    x = np.arange(1, 8 * 9 * 10 + 1, dtype="u4").reshape(8, 9, 10)
    shardwrite.to_precomputed(x, tmp_path / "v", axes=axes, sharding=sharding, **SCALE)
    scale = tmp_path / "v" / "1_1_1"
    shard = sorted(scale.glob("*.shard"))[0]
    good = shard.read_bytes()
    for minishard in range(4):
        lost = bytearray(good)
        lost[16 * minishard : 16 * minishard + 16] = bytes(16)
        if lost != good:
            break
    shard.write_bytes(lost)
    assert keys(shardwrite.verify(scale, against=x)) == [shard.name]
    done = shardwrite.repair(scale, x, compare=True)
    assert [task.key for task in done.tasks] == [shard.name]
    assert shard.read_bytes() == good
    assert shardwrite.verify(scale, deep=True, against=x).is_good
    assert not list(tmp_path.rglob("*shardwrite-spool*"))


def killed_after_one_shard(path, source):
    """A repair that compares, and dies when it has committed one shard."""
    code = (
        "import os, dask, numpy as np, shardwrite, shardwrite.write.tasks as t\n"
        "dask.config.set(scheduler='sync')\n"
        "real, done = t.commit_shards, []\n"
        "def commit(*arguments, **keywords):\n"
        "    if done: os._exit(9)\n"
        "    found = real(*arguments, **keywords)\n"
        "    done.append(1)\n"
        "    return found\n"
        "t.commit_shards = commit\n"
        "import dask.array as da\n"
        f"x = da.from_array(np.load({str(source)!r}), chunks=16, name='named')\n"
        f"shardwrite.repair({str(path)!r}, x, compare=True, memory_limit='60kB')\n"
    )
    return subprocess.run([*python(), "-c", code], check=False).returncode


@pytest.mark.parametrize("again", [True, False])
def test_a_repair_that_was_killed_looks_anew(path, a, tmp_path, again):
    """A shard that was written before the kill, and spoilt since, is written once more. The call
    after it compares, whether it says so or not."""
    x, bad = da.from_array(a, chunks=16, name="named"), ["c/1/1", "c/2/2", "c/3/0"]
    np.save(tmp_path / "a.npy", a)
    opened = zarr.open_array(path)
    for at in ((20, 20), (40, 40), (60, 0)):
        opened[at] += 100
    assert killed_after_one_shard(path, tmp_path / "a.npy") == 9
    left = keys(shardwrite.verify(path, against=x))
    assert len(left) == 2
    assert set(left) < set(bad)
    assert shardwrite.repair(path).is_interrupted
    (written,) = set(bad) - set(left)
    i, j = (16 * int(n) for n in written.split("/")[1:])
    zarr.open_array(path)[i + 1, j + 1] = 55
    done = shardwrite.repair(path, x, compare=again, memory_limit="60kB")
    assert done.is_compared
    assert [task.key for task in done.tasks] == bad
    assert shardwrite.verify(path, deep=True, against=x).is_good
    assert not seams.state_beside(path).exists()


@pytest.mark.long
def test_a_torn_shard_that_the_killed_repair_had_written(path, a, tmp_path):
    """The journal says that it was written, and it is bad again."""
    x = da.from_array(a, chunks=16, name="named")
    np.save(tmp_path / "a.npy", a)
    opened = zarr.open_array(path)
    opened[20, 20] += 100
    opened[40, 40] += 100
    assert killed_after_one_shard(path, tmp_path / "a.npy") == 9
    (left,) = keys(shardwrite.verify(path, against=x))
    (written,) = {"c/1/1", "c/2/2"} - {left}
    os.truncate(path / written, 20)
    assert shardwrite.repair(path, x, memory_limit="60kB").is_done
    assert shardwrite.verify(path, deep=True, against=x).is_good


def test_a_shard_that_an_update_writes_meanwhile_is_left_alone(path, a, monkeypatch):
    opened = zarr.open_array(path)
    opened[20, 20] += 100
    opened[40, 40] += 100
    update, where = da.from_array(a[16:32, 16:32] + 10, chunks=16), (slice(16, 32), slice(16, 32))
    seams.before(
        monkeypatch,
        "begin runs",
        lambda *_: update.to_sharded_zarr(path, region=where),
        once=True,
    )
    done = shardwrite.repair(path, a, compare=True)
    assert [task.key for task in done.tasks] == ["c/2/2"]
    wanted = a.copy()
    wanted[16:32, 16:32] += 10
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], wanted)


@pytest.mark.long
def test_a_store_of_zarr_that_is_no_directory(a):
    store = zarr.storage.MemoryStore()
    da.from_array(a, chunks=16).to_sharded_zarr(store, **LAYOUT)
    zarr.open_array(store)[20, 20] += 100
    done = shardwrite.repair(store, a, compare=True)
    assert [task.key for task in done.tasks] == ["c/1/1"]
    np.testing.assert_array_equal(zarr.open_array(store)[...], a)


@pytest.mark.long
def test_shards_that_are_files_of_hdf5_stay_such_files(tmp_path, a):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x"
    layout = {"shards": 16, "chunks": 8, "compressors": None, "strategy": "hdf5"}
    da.from_array(a + 1, chunks=16).to_sharded_zarr(path, **layout)
    shard = path / "c/1/1"
    data = bytearray(shard.read_bytes())
    at = data.index((a + 1)[16, 16:24].tobytes())
    data[at] ^= 1
    os.chmod(shard, 0o644)
    shard.write_bytes(data)
    assert shardwrite.repair(path, a + 1).tasks == ()
    done = shardwrite.repair(path, a + 1, compare=True)
    assert [task.key for task in done.tasks] == ["c/1/1"]
    assert h5py.is_hdf5(shard)
    assert shardwrite.verify(path, deep=True, against=a + 1).is_good


def test_values_that_jpeg_has_changed_are_not_compared(tmp_path):
    x = np.arange(8 * 8 * 8, dtype="u1").reshape(8, 8, 8)
    shardwrite.to_precomputed(x, tmp_path / "v", axes="zyx", type="image", encoding="jpeg", **SCALE)
    before = files(tmp_path)
    with pytest.raises(SpecError, match=r"^compare=True: .*leave it out; chunks that"):
        shardwrite.repair(tmp_path / "v/1_1_1", x, compare=True)
    assert files(tmp_path) == before
    assert shardwrite.repair(tmp_path / "v/1_1_1", x).is_done


def test_there_must_be_a_source(path, a):
    remedy = r"give the source x \(--source\), or leave it out"
    for keywords in ({}, {"scan": True}):
        with pytest.raises(SpecError, match=remedy):
            shardwrite.repair(path, compare=True, **keywords)
        assert shardwrite.repair(path, **keywords).is_done
    assert shardwrite.repair(path, a, compare=True).is_done


@pytest.mark.long
def test_the_command(path, a, tmp_path):
    np.save(tmp_path / "a.npy", a)
    zarr.open_array(path)[20, 20] += 100

    def run(*arguments):
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    source = ("--source", tmp_path / "a.npy")
    told = run("verify", path, "--against", tmp_path / "a.npy")
    assert "shardwrite repair --compare, with the source" in told.output
    assert run("repair", path, *source).exit_code == 0
    assert not shardwrite.verify(path, against=a).is_good
    alone = run("repair", path, "--compare")
    assert alone.exit_code == 2
    assert "--compare needs a source to compare with; give --source SRC" in alone.output
    looked = run("repair", path, *source, "--compare", "--dry-run")
    assert (looked.exit_code, "verify ARRAY --against SRC" in looked.output) == (2, True)
    assert run("repair", path, *source, "--compare").exit_code == 0
    assert shardwrite.verify(path, against=a).is_good
