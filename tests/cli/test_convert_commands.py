"""Commands that convert: what they print, and how they end."""

from __future__ import annotations

import json

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner
from helpers import run

import shardwrite
from shardwrite.cli import main

pytestmark = pytest.mark.compat


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


@pytest.mark.parametrize("command", ["shard", "reshard"])
def test_how_chunks_are_placed(tmp_path, command):
    pytest.importorskip("h5py")
    path = tmp_path / "a"
    da.arange(100, chunks=50).to_sharded_zarr(path, shards=None, chunks=10, compressors=None)
    done = run(command, path, tmp_path / "b", "--shards", "5", "--strategy", "hdf5")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "b/c/1").read_bytes().startswith(b"\x89HDF")
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "b")[...], np.arange(100))
    placed = run(command, path, tmp_path / "c", "--shards", "5", "--strategy", "nowhere")
    assert (placed.exit_code, "nowhere" in placed.output) == (2, True), placed.output


def test_a_plan_knows_how_chunks_are_placed(array):
    """A dry run refuses what the run would refuse."""
    pytest.importorskip("h5py")
    assert run("shard", array, "--dry-run", "--strategy", "append-only").exit_code == 0
    done = run("shard", array, "--dry-run", "--strategy", "hdf5")
    assert (done.exit_code, "crc32c" in done.output) == (2, True), done.output


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
    assert "it has this layout already" in run("unshard", array, "--in-place").output
    assert run("shard", array, tmp_path / "b", "--shards", "none").exit_code == 2
    assert run("shard", tmp_path / "nothing", tmp_path / "b").exit_code == 2
    assert run("shard", array, tmp_path / "b", "--workers", "1", "--shards", "5").exit_code == 0


def test_in_place(array):
    assert "the new data take the name of SRC" in run("shard", array, "--dry-run").output
    done = run("shard", array, "--shards", "5", "--in-place", "--json")
    assert json.loads(done.output)["path"] == str(array)
    assert run("unshard", array, "--in-place").exit_code == 0
    assert [path.name for path in array.parent.iterdir()] == [array.name]
    assert run("shard", array, "--in-place", "--overwrite").exit_code == 2
    with pytest.raises(KeyboardInterrupt):
        shardwrite.shard(array, shards=5, progress=stop)
    assert "was given up" in run("abandon", array).output
    assert "nothing was interrupted" in run("abandon", array).output


@pytest.mark.parametrize("command", ["shard", "unshard", "reshard"])
def test_in_place_only_if_asked(array, command):
    """A path that was left out by mistake replaces nothing."""
    if command == "unshard":
        shardwrite.shard(array, shards=5)
    before = {path: path.read_bytes() for path in array.rglob("*") if path.is_file()}
    sizes = [] if command == "unshard" else ["--shards", "2"]
    for more in ([], ["--overwrite"], ["--consume"], ["--restart"]):
        done = run(command, array, *sizes, *more)
        assert done.exit_code == 2
        assert "Give DST" in done.output
        assert "--in-place" in done.output
    assert {path: path.read_bytes() for path in array.rglob("*") if path.is_file()} == before
    done = run(command, array, array.with_name("b"), *sizes, "--in-place")
    assert (done.exit_code, "give one of the two" in done.output) == (2, True)
    assert run(command, array, *sizes, "--in-place").exit_code == 0
    assert [path.name for path in array.parent.iterdir()] == [array.name]


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


@pytest.fixture
def group(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, n in (("a", 100), ("b/c", 40)):
        x = da.arange(1, n + 1, chunks=50)
        x.to_sharded_zarr("h", name=name, shards=None, chunks=10, durability="none")
    return "h"


def test_in_parts(group, monkeypatch):
    how = ["h", "n", "--shards", 2, "--memory-limit", "1MB"]
    assert "nothing was begun" in run("shard", *how, "--part", "0/2").output
    done = run("shard", *how, "--init", "--durability", "none")
    assert (done.exit_code, "begun: n" in done.output) == (0, True), done.output
    assert run("shard", *how, "--part", "0/3").exit_code == 0
    monkeypatch.setenv("SLURM_PROCID", "2")
    assert run("shard", *how, "--part", "rank/3", "--json").exit_code == 0
    done = run("shard", *how, "--finalize", "--parts", 3, "--resubmit", "/some where")
    assert done.exit_code == 85
    assert "part 1 of 3 must be written again" in done.output
    assert "/some where has no scripts" in done.output
    found = run("slurm", "status", "n", "--json")
    assert (found.exit_code, json.loads(found.output)["n_shards"]) == (85, 7)
    done = run("shard", *how, "--part", "1/3", "--json")
    assert 0 < json.loads(done.output)["n_shards"] < 7
    done = run("shard", *how, "--finalize", "--trust-journals", "--json")
    assert json.loads(done.output)["n_shards"] == 7
    assert json.loads(run("slurm", "status", "n", "--json").output)["is_whole"]
    for name, n in (("a", 100), ("b/c", 40)):
        found = shardwrite.open_sharded(f"n/{name}")[...]
        np.testing.assert_array_equal(found, np.arange(1, n + 1))
    assert run("shard", *how, "--part", "0/2").exit_code == 0


def test_begin_again(group):
    assert run("shard", "h", "n", "--shards", 2, "--init").exit_code == 0
    assert run("shard", "h", "n", "--shards", 5, "--init").exit_code == 1
    how = ["h", "n", "--shards", 5, "--durability", "none"]
    for step in (["--init", "--restart"], ["--part", "0/1"], ["--finalize"]):
        assert run("shard", *how, *step).exit_code == 0
    for step in (["--init", "--overwrite"], ["--part", "0/1"], ["--finalize"]):
        assert run("unshard", "h", "n", *step).exit_code == 0
    assert shardwrite.plan_reshard("n", None).arrays[0].how == "skipped"


def test_each_command_has_parts(group):
    for command, how in (
        ("unshard", ["--exclude", "a"]),
        ("reshard", ["--chunks", 5, "--compressors", "gzip", "--index-location", "start"]),
    ):
        for step in (["--init"], ["--part", "0/1"], ["--finalize"]):
            done = run(command, "h", command, *how, *step)
            assert done.exit_code == 0, done.output
    assert len(shardwrite.plan_reshard("unshard", None).arrays) == 1
    assert shardwrite.plan_reshard("reshard").arrays[0].chunks == (5,)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--init", "--finalize"], "give one"),
        (["--init", "--part", "0/2"], "give one"),
        (["--parts", 3], "go with --finalize"),
        (["--part", "0/2", "--resubmit", "x"], "go with --finalize"),
        (["--part", "0/2", "--workers", 2], "--workers does not go with --part"),
        (["--part", "0/2", "--trust-journals"], "--trust-journals goes with --finalize"),
        (["--trust-journals", "--submit"], "--trust-journals"),
        (["--init", "--dry-run"], "--dry-run does not go with --init"),
        (["--finalize", "--restart"], "go with --init"),
        (["--part", "2/2"], "counted from 0"),
        (["--part", "x"], "is no part"),
        (["--jobs", 3], "give --cluster slurm"),
        (["--cluster", "slurm"], "how many workers"),
        (["--cluster", "slurm", "--jobs", 3, "--workers", 2], "goes with none of --threads"),
        (["--init", "--strategy", "hdf5"], "--strategy goes with no parts"),
    ],
)
def test_options_that_do_not_go_together(group, options, why):
    done = run("shard", "h", "n", *options)
    assert (done.exit_code, why in done.output) == (2, True), done.output


def test_without_parts_the_strategy_is_taken(tmp_path, array):
    how = ["shard", array, tmp_path / "b", "--shards", 5, "--strategy", "append-only"]
    refused = run(*how, "--init")
    assert (refused.exit_code, "goes with no parts" in refused.output) == (2, True)
    assert run(*how).exit_code == 0
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "b")[...], np.arange(1, 101))


def test_parts_in_place_are_refused(group):
    for step in (["--init"], ["--part", "0/2"], ["--finalize"]):
        done = run("shard", "h", *step)
        assert (done.exit_code, "parts need another place" in done.output) == (2, True)


@pytest.mark.parametrize("words", [["--consume"], ["--while-growing", "0"]])
def test_workers_that_are_jobs_neither_consume_nor_wait(tmp_path, words):
    """It is refused before anything is looked at or submitted."""
    cluster = ["--cluster", "slurm", "--jobs", "2", "--cores", "1", "--memory", "1G"]
    done = CliRunner().invoke(
        main, ["shard", str(tmp_path / "a"), str(tmp_path / "b"), "--shards", "2", *cluster, *words]
    )
    assert done.exit_code == 2
    assert "--cluster goes with none of --consume and --while-growing" in done.output
    assert not any(tmp_path.iterdir())


def test_a_job_array_makes_no_array_of_2022(array):
    done = run("slurm", "submit", array, "new.zarr", "--array-format", "transformer-2022")
    assert (done.exit_code, "Run `write` in a job" in done.output) == (2, True), done.output
