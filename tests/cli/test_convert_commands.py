"""Commands that convert: what they print, and how they end."""

from __future__ import annotations

import json

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main

pytestmark = pytest.mark.compat


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def array(tmp_path):
    path = tmp_path / "a"
    da.arange(1, 101, chunks=50).to_sharded_zarr(path, shards=None, chunks=10)
    return path


def test_into_shards_and_back(tmp_path, array):
    done = run("shard", array, tmp_path / "b", "--shards", "5", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["n_chunks_copied"], found["n_shards"]) == (10, 2)
    assert found["arrays"][0]["result"]["n_shards"] == 2
    assert run("reshard", tmp_path / "b", tmp_path / "c", "--shards", "2").exit_code == 0
    done = run("reshard", tmp_path / "b", tmp_path / "d", "--compressors", "gzip", "--chunks", "5")
    assert "0 copied, 20 re-encoded" in done.output
    assert run("unshard", tmp_path / "c", tmp_path / "e", "--no-checksum").exit_code == 0
    for name in "bcde":
        found = shardwrite.open_sharded(tmp_path / name)[...]
        np.testing.assert_array_equal(found, np.arange(1, 101))


def test_verify_against_the_source(tmp_path, array):
    assert run("shard", array, tmp_path / "b", "--shards", "5").exit_code == 0
    done = run("verify", tmp_path / "b", "--against", array)
    assert (done.exit_code, "every encoded chunk against the source" in done.output) == (0, True)
    (array / "c/3").unlink()
    assert run("verify", tmp_path / "b", "--against", array).exit_code == 1


def test_a_plan(array):
    done = run("shard", array, "--shards", "5", "--dry-run", "--json")
    found = json.loads(done.output)
    assert (found["n_files_before"], found["n_files_after"]) == (10, 2)
    assert "decoded and re-encoded" in run("reshard", array, "--chunks", "5", "--dry-run").output


def test_what_there_is_to_say(tmp_path, array):
    assert "it has this layout already" in run("unshard", array).output
    assert run("shard", array, tmp_path / "b", "--shards", "none").exit_code == 2
    assert run("shard", tmp_path / "nothing", tmp_path / "b").exit_code == 2
    assert run("shard", array, tmp_path / "b", "--workers", "1", "--shards", "5").exit_code == 0


def test_in_place(array):
    assert "the new data take the name of SRC" in run("shard", array, "--dry-run").output
    done = run("shard", array, "--shards", "5", "--json")
    assert json.loads(done.output)["path"] == str(array)
    assert run("unshard", array).exit_code == 0
    assert [path.name for path in array.parent.iterdir()] == [array.name]
    assert run("shard", array, "--overwrite").exit_code == 2
    with pytest.raises(KeyboardInterrupt):
        shardwrite.shard(array, shards=5, progress=stop)
    assert "was given up" in run("abandon", array).output
    assert "nothing was interrupted" in run("abandon", array).output


def stop(report):
    raise KeyboardInterrupt


def test_a_group(tmp_path):
    for name in ("a", "b"):
        x = da.arange(1, 101, chunks=50)
        x.to_sharded_zarr(tmp_path / "h", name=name, shards=None, chunks=10)
    done = run("shard", tmp_path / "h", tmp_path / "n", "--shards", "5", "--exclude", "b", "--json")
    found = json.loads(done.output)
    assert [array["name"] for array in found["arrays"]] == ["a"]
    assert found["left_out"] == [["b", "not asked for"]]
    done = run("shard", tmp_path / "h", "--shards", "5", "--min-chunks", "11", "--dry-run")
    assert "of fewer than 11 inner chunks" in done.output
    assert run("shard", tmp_path / "h", tmp_path / "m", "--include", "q").exit_code == 2
