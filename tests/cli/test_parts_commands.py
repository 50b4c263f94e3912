"""`init`, `write-part` and `finalize`: what they take, print and exit with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from forks import python
from helpers import run

import shardwrite

VALUES = np.arange(64 * 64, dtype="u4").reshape(64, 64) + 1
PROGRAM = Path(__file__).parent.parent / "slurm" / "program.py"


@pytest.fixture
def begun(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_PROCID", "SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    np.save("x.npy", VALUES)
    done = run(
        "init",
        "x.npy",
        "x.zarr",
        "--source-chunks",
        "8,8",
        "--shards",
        8,
        "--chunks",
        4,
        "--memory-limit",
        "20kB",
    )
    assert done.exit_code == 0, done.output
    assert "64" in done.output
    return tmp_path


@pytest.mark.compat
def test_from_begin_to_end(begun, monkeypatch):
    assert run("write-part", "x.npy", "x.zarr", "0/3").exit_code == 0
    monkeypatch.setenv("SLURM_PROCID", "2")
    assert run("write-part", "x.npy", "x.zarr", "rank/3").exit_code == 0
    done = run("finalize", "x.zarr", "--parts", 3, "--resubmit", "/some where")
    assert done.exit_code == 85
    assert "part 1 of 3 must be written again" in done.output
    assert "/some where has no scripts to submit them with" in done.output
    assert "give the number of parts" in run("finalize", "x.zarr").output
    done = run("write-part", "x.npy", "x.zarr", "1/3", "--json")
    assert done.exit_code == 0
    assert 0 < json.loads(done.output)["n_shards"] < 64
    done = run("finalize", "x.zarr", "--json")
    assert done.exit_code == 0
    assert json.loads(done.output)["n_shards"] == 64
    assert shardwrite.verify("x.zarr", deep=True).is_good
    for again in (["write-part", "x.npy", "x.zarr", "0/3"], ["finalize", "x.zarr"]):
        assert run(*again).exit_code == 0


def test_a_source_that_the_plan_names_need_not_be_given_again(begun):
    done = run("write-part", "x.zarr", "0/1", "--json")
    assert json.loads(done.output)["n_shards"] == 64, done.output
    assert run("finalize", "x.zarr").exit_code == 0
    np.testing.assert_array_equal(shardwrite.open_sharded("x.zarr")[...], VALUES)


def test_a_look_before_the_end_shows_the_arrays_that_were_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", VALUES)
    words = ["h", "--names", "a,b,c", "--shards", 32, "--chunks", 8]
    assert run("init", "x.npy", "x.npy", "x.npy", *words).exit_code == 0
    assert run("write-part", "x.npy", "h", "0/1", "--name", "b").exit_code == 0
    look = ["finalize", "h", "--dry-run", "--json"]
    done = run(*look, "--names", "a,b")
    assert done.exit_code == 85
    found = json.loads(done.output)
    assert [Path(one["path"]).name for one in found] == ["a", "b"]
    assert [one["n_done_shards"] for one in found] == [0, 4]
    assert json.loads(run(*look).output)["n_shards"] == 12, "all of the hierarchy"
    assert run("finalize", "h", "--name", "b").exit_code == 0
    (found,) = json.loads(run(*look, "--names", "b").output)
    assert found["is_published"]
    assert run(*look, "--names", "a", "--name", "b").exit_code == 2


def test_options_for_a_source_that_is_not_given_are_refused(begun):
    for option in (["--axes", "yx"], ["--source-chunks", "9"], ["--source-id", "it"]):
        done = run("write-part", "x.zarr", "0/1", *option)
        assert done.exit_code == 2
        assert f"{option[0]} goes with SRC" in done.output


@pytest.mark.compat
@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("3/3", "counted from 0"),
        ("1", "is no part"),
        ("-1/3", "is no part"),
        ("0/0", "no part"),
        ("rank/3", "SLURM_PROCID"),
    ],
)
def test_parts_that_are_none(begun, part, words):
    done = run("write-part", "--", "x.npy", "x.zarr", part)
    assert done.exit_code == 2
    assert words in done.output


@pytest.mark.compat
def test_what_was_not_begun_is_incomplete(tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    for command in (
        ["write-part", tmp_path / "x.npy", tmp_path / "x.zarr", "0/1"],
        ["finalize", tmp_path / "x.zarr"],
    ):
        done = run(*command)
        assert done.exit_code == 85
        assert "shardwrite init" in done.output


@pytest.mark.compat
def test_another_source_and_too_little_memory(begun):
    np.save("y.npy", VALUES)
    done = run("write-part", "y.npy", "x.zarr", "0/1")
    assert done.exit_code == 1
    assert "source: " in done.output
    done = run("write-part", "x.npy", "x.zarr", "0/1", "--memory-limit", "1kB", "--threads", 4)
    assert done.exit_code == 2
    assert "4 threads needs" in done.output


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "says"),
    [
        (signal.SIGUSR1, "not in a SLURM job"),
        pytest.param(signal.SIGTERM, "run me again", marks=pytest.mark.long),
    ],
)
def test_signals(begun, number, says):
    """USR1 drains and would requeue; TERM leaves within seconds; the same command goes on."""
    command = [
        *python(),
        PROGRAM,
        "write-part",
        "x.npy",
        "x.zarr",
        "0/1",
        "--source-chunks",
        "8,8",
        "--threads",
        "2",
    ]
    process = subprocess.Popen(
        [*command, "--requeue", "1"],
        env={**os.environ, "PAUSE": "0.3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(list(begun.glob("x.zarr/c/*/[0-9]*"))) < 4:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 85, said
    assert says in said
    assert not list(begun.glob("x.zarr/c/*/.*.swtmp"))
    before = {p: p.stat().st_mtime_ns for p in begun.glob("x.zarr/c/*/*")}
    assert 0 < len(before) < 64
    done = run("write-part", "x.npy", "x.zarr", "0/1")
    assert done.exit_code == 0, done.output
    if number == signal.SIGUSR1:
        assert all(p.stat().st_mtime_ns == when for p, when in before.items())
    assert run("finalize", "x.zarr").exit_code == 0


@pytest.mark.parametrize(
    ("part", "code", "told"),
    [
        ("0/1000000000", 0, ""),
        ("0/99999999999999999", 2, "no such part"),
        (f"0/{'9' * 5000}", 2, "is no part; give for instance 3/20"),
        ("1.5/3", 2, "is no part"),
    ],
)
def test_numbers_of_parts_that_are_too_large(begun, part, code, told):
    command = ["write-part", "x.npy", "x.zarr", "--source-chunks", "8,8", part]
    for more in (["--dry-run"], []):
        done = run(*command, *more)
        assert (done.exit_code, told in done.output) == (code, True), done.output
