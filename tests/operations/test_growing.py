"""Conversions beside a program that still writes: shards into which chunks may come are left alone."""

from __future__ import annotations

import json

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import JournalError, SpecError, open_sharded
from shardwrite.cli import main
from shardwrite.convert.arrays import settled_shards

VALUES = np.arange(1, 1 + 20 * 6, dtype="i4").reshape(20, 6)


def simulation(path, **more):
    """An array of 10 steps of 2, each of 3 chunks, of which nothing is written."""
    return zarr.create_array(
        path, shape=VALUES.shape, chunks=(2, 2), dtype="i4", dimension_names=["t", "x"], **more
    )


def write_steps(array, start, stop):
    array[2 * start : 2 * stop] = VALUES[2 * start : 2 * stop]


def n_files(path):
    return sum(p.is_file() for p in (path / "c").rglob("*"))


@pytest.mark.long
def test_beside_a_simulation(tmp_path):
    src, dst = tmp_path / "a", tmp_path / "b"
    array, expected = simulation(src), {0: 0, 1: 0, 3: 1, 4: 1, 5: 2, 9: 4, 10: 4}
    at = 0
    for step, n_done in expected.items():
        write_steps(array, at, step)
        at = step
        done = shardwrite.shard(src, dst, (2, 3), while_growing="t")
        assert (n_files(dst), done.n_left) == (n_done, 5 - n_done)
        assert not (dst / "zarr.json").exists()
        assert f"{5 - n_done} shard" in str(done)
    done = shardwrite.shard(src, dst, (2, 3))
    assert (done.n_left, done.arrays[0].result.n_resumed_shards) == (0, 4)
    np.testing.assert_array_equal(zarr.open_array(dst, mode="r")[...], VALUES)
    assert shardwrite.verify(dst, deep=True, against=src).is_good
    assert shardwrite.shard(src, dst, (2, 3), while_growing="t").n_left == 0


def test_attributes_that_change_meanwhile(tmp_path):
    """The message and the page say what can be done."""
    src, dst = zarr.create_group(tmp_path / "a"), tmp_path / "b"
    array = simulation(tmp_path / "a/x")
    write_steps(array, 0, 5)
    assert shardwrite.shard(tmp_path / "a", dst, (2, 3), while_growing="t").n_left == 3
    src.attrs["status"] = "running"
    for how in ({"while_growing": "t"}, {}):
        with pytest.raises(SpecError, match=r'another group stands there; .* mode="w" to replace'):
            shardwrite.shard(tmp_path / "a", dst, (2, 3), **how)
    assert shardwrite.shard(tmp_path / "a", dst, (2, 3), while_growing="t", mode="w").n_left == 3
    assert dict(zarr.open_group(dst, mode="r").attrs) == {"status": "running"}
    array.attrs["last"] = 9
    write_steps(array, 5, 10)
    with pytest.raises(JournalError, match="put them back as they were, and make the same call"):
        shardwrite.shard(tmp_path / "a", dst, (2, 3))
    array.attrs.clear()
    with dask.config.set({"shardwrite.source.accept": True}):
        done = shardwrite.shard(tmp_path / "a", dst, (2, 3))
    assert (done.n_left, done.arrays[0].result.n_resumed_shards) == (0, 2)
    np.testing.assert_array_equal(zarr.open_array(dst / "x", mode="r")[...], VALUES)


def test_a_step_that_is_not_whole(tmp_path):
    """A chunk of it may still come; steps before a whole one have no more to come."""
    src, dst = tmp_path / "a", tmp_path / "b"
    array = simulation(src)
    write_steps(array, 0, 6)
    (src / "c/5/1").unlink()  # the sixth step is being written
    assert shardwrite.shard(src, dst, (1, 3), while_growing=0).n_left == 5
    (src / "c/2/1").unlink()  # and is missing for good
    assert shardwrite.shard(src, dst, (1, 3), while_growing=0).n_left == 5
    assert n_files(dst) == 5


def test_other_axes_and_shards(tmp_path):
    array = simulation(tmp_path / "a")
    array[:, :4] = VALUES[:, :4]
    source = open_sharded(tmp_path / "a")
    grid = shardwrite.plan_reshard(tmp_path / "a", (10, 1)).arrays[0]
    assert grid.shards == (20, 2)
    done = shardwrite.shard(tmp_path / "a", tmp_path / "b", (10, 1), while_growing=1)
    assert (n_files(tmp_path / "b"), done.n_left) == (1, 2)
    assert settled_shards(source, source.metadata.grid, 1).reshape(10, 3).all(axis=0).tolist() == [
        True,
        False,
        False,
    ]
    da.from_array(VALUES).to_sharded_zarr(tmp_path / "s", shards=(4, 6), chunks=(2, 2))
    done = shardwrite.unshard(tmp_path / "s", tmp_path / "c", while_growing=0)
    assert (n_files(tmp_path / "c"), done.n_left) == (24, 6)


def test_a_hierarchy_is_consolidated_when_it_is_whole(tmp_path):
    root = zarr.create_group(tmp_path / "g")
    for name in "ab":
        write_steps(simulation(tmp_path / "g" / name), 0, 10 if name == "a" else 5)
    zarr.consolidate_metadata(root.store)
    done = shardwrite.shard(tmp_path / "g", tmp_path / "h", (2, 3), while_growing="t")
    assert [array.n_left for array in done.arrays] == [1, 3]
    assert "consolidated" not in (tmp_path / "h/zarr.json").read_text()
    done = shardwrite.shard(tmp_path / "g", tmp_path / "h", (2, 3))
    assert done.n_left == 0
    assert "consolidated" in (tmp_path / "h/zarr.json").read_text()


def test_what_is_refused(tmp_path):
    src, dst = tmp_path / "a", tmp_path / "b"
    array = simulation(src)
    write_steps(array, 0, 4)
    for keywords, why in (
        ({"while_growing": "z"}, "one of 't', 'x'"),
        ({"while_growing": 2}, "from 0 to 1"),
        ({"while_growing": -1}, "no axis"),
        ({"while_growing": True}, "no axis"),
        ({"while_growing": 0, "consume": True}, "consumed"),
        ({"while_growing": 0, "dst": None}, "in its place"),
        ({"while_growing": 0, "chunks": 5}, "copied as they are"),
    ):
        with pytest.raises(SpecError, match=why):
            shardwrite.reshard(src, **{"dst": dst, "shards": 2, **keywords})
        assert not dst.exists()
    with pytest.raises(TypeError, match="while_growing"):
        shardwrite.prepare_conversion(src, dst, 2, while_growing=0)
    shardwrite.shard(src, dst, (2, 3), while_growing=0)
    zarr.open_array(src).resize((40, 6))
    with pytest.raises(JournalError, match="shape"):
        shardwrite.shard(src, dst, (2, 3), while_growing=0)


def test_the_command(tmp_path):
    src, dst = str(tmp_path / "a"), str(tmp_path / "b")
    write_steps(simulation(src), 0, 5)
    command = ["shard", src, dst, "--shards", "2,3", "--json"]
    for axis in ("t", "0"):
        ended = CliRunner().invoke(main, [*command, "--while-growing", axis])
        assert json.loads(ended.output)["n_left"] == 3
    assert CliRunner().invoke(main, [*command, "--while-growing", "z"]).exit_code == 2
    assert json.loads(CliRunner().invoke(main, command).output)["n_left"] == 0
