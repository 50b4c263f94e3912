"""How far a run is, from what lies on disk; with and without SLURM."""

from __future__ import annotations

import json
import threading
import time

import dask.array as da
import numpy as np
import pytest
import seams
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.errors import SubmitError
from shardwrite.slurm import client
from shardwrite.slurm.notes import record_jobs
from shardwrite.slurm.status import status

SHAPE = (100, 96)


@pytest.fixture
def begun(tmp_path):
    x = da.from_array(np.ones(SHAPE, "u4"), chunks=12)
    shardwrite.prepare(
        x, tmp_path / "x", shardwrite.plan(x, shards=8, chunks=4, memory_limit="100kB")
    )
    return x, tmp_path / "x"


@pytest.mark.compat
def test_at_half_time_and_after(begun, monkeypatch):
    x, path = begun
    monkeypatch.setenv("PATH", "")
    target = seams.target_of(path)
    record_jobs(target, "7", "8", 4)
    results = [shardwrite.write_part(x, path, k, 4) for k in (0, 3)]
    found = status(target)
    assert (found.n_shards, found.raw_nbytes) == (13 * 12, 100 * 96 * 4)
    assert found.n_done_shards == sum(r.n_shards for r in results)
    assert found.done_nbytes == sum(r.raw_nbytes for r in results)
    assert (found.n_writers, found.seconds_left, found.is_whole) == (0, None, False)
    assert (found.n_parts, found.parts_left) == (4, [1, 2])
    assert "squeue is not in PATH" in found.note
    done = CliRunner().invoke(main, ["slurm", "status", str(path)])
    assert done.exit_code == 85
    assert "2 of 4 left: 1-2" in done.output
    for k in (1, 2):
        shardwrite.write_part(x, path, k, 4)
    shardwrite.finalize(path)
    done = CliRunner().invoke(main, ["slurm", "status", str(path), "--json"])
    assert done.exit_code == 0
    facts = json.loads(done.output)
    assert facts["is_whole"] is True
    assert facts["n_done_shards"] == facts["n_shards"] == 13 * 12
    assert facts["seconds_left"] == 0


def test_a_writer_at_work(begun):
    x, path = begun
    wait, go = threading.Event(), threading.Event()
    seen = []

    def report(_):
        seen.append(1)
        if len(seen) == 5:
            wait.set()
            go.wait(30)

    writer = threading.Thread(
        target=shardwrite.write_part, args=(x, path, 0, 1), kwargs={"progress": report}
    )
    writer.start()
    assert wait.wait(30)
    found = seams.status_of(path)
    go.set()
    writer.join()
    assert found.n_writers == 1
    assert 0 < found.n_done_shards < 13 * 12
    assert found.nbytes_per_second > 0
    assert found.seconds_left > 0
    assert "at this speed" in str(found)


def test_nothing_begun(tmp_path):
    done = CliRunner().invoke(main, ["slurm", "status", str(tmp_path / "x")])
    assert done.exit_code == 85
    assert "nothing was begun" in done.output


# ---- processes of other hosts, whose jobs may be over before their leases run out


JOB = {**seams.ELSEWHERE, "pid": 4711, "job": "SLURM_JOB_ID=77"}


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Has ``squeue`` run a script, and returns a file with a line for each call of it."""
    directory, calls = tmp_path / "bin", tmp_path / "calls"
    directory.mkdir()
    calls.touch()
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.setattr(client, "_answer", client._Answer())

    def put(script):
        program = directory / "squeue"
        program.write_text(f'#!/bin/bash\necho "$@" >> {calls}\n{script}\n')
        program.chmod(0o755)
        return calls

    return put


def shown(path):
    """What the three commands say of who writes: its number, names, notes and state."""

    def told(*words):
        done = CliRunner().invoke(main, [*words, str(path), "--json"])
        assert done.exit_code in (0, 85), done.output
        return json.loads(done.output)

    status, info, report = told("slurm", "status"), told("info"), told("report")
    return status["n_writers"], info["writers"], report["notes"], report["state"]


@pytest.mark.parametrize(
    "state", ["CANCELLED", "COMPLETED", "TIMEOUT", "NODE_FAIL", "PENDING", "OUT_OF_MEMORY"]
)
def test_a_process_whose_job_is_over_is_no_writer(begun, squeue, state):
    """Its lease may be young: a job that is cancelled does not give it back."""
    _, path = begun
    seams.forge_lease(seams.run_directory(path), age=3, **JOB)
    calls = squeue(f'echo "77|77|{state}"')
    assert shown(path) == (0, [], [], "interrupted")
    asked = calls.read_text().splitlines()
    assert all("--jobs=77" in call for call in asked)
    assert len(asked) == 1  # whoever looks soon again gets the same answer


def test_a_process_whose_job_runs_is_a_writer_and_its_last_sign_is_told(begun, squeue):
    _, path = begun
    seams.forge_lease(seams.run_directory(path), age=33, **JOB)
    squeue(
        'case "$*" in *states=all*) echo "77|77|RUNNING";; *) echo "77|RUNNING|None|n1|1:00";; esac'
    )
    n_writers, (name,), (note,), state = shown(path)
    assert (n_writers, state) == (1, "running")
    for text in (name, note):
        assert "elsewhere, pid 4711 SLURM_JOB_ID=77, last sign of life 3" in text
        assert "not known" not in text
    found = seams.status_of(path)
    assert 33 <= found.last_sign_seconds < 93
    assert "s; last sign of life" in str(found)


def test_a_clock_that_is_ahead_gives_no_time_below_zero(begun, squeue):
    _, path = begun
    seams.forge_lease(seams.run_directory(path), age=-7200, **JOB)
    squeue(
        'case "$*" in *states=all*) echo "77|77|RUNNING";; *) echo "77|RUNNING|None|n1|1:00";; esac'
    )
    found = seams.status_of(path)
    assert found.last_sign_seconds == 0
    assert "; last sign of life 0 s ago" in str(found)


def test_a_job_that_slurm_does_not_know_may_go_on(begun, squeue):
    """It may be one of another cluster, which sees the same directory."""
    _, path = begun
    seams.forge_lease(seams.run_directory(path), **JOB)
    squeue("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    n_writers, names, _, state = shown(path)
    assert (n_writers, len(names), state) == (1, 1, "running")


def test_processes_of_this_host_are_looked_at_and_slurm_is_not_asked(begun, squeue):
    _, path = begun
    calls = squeue('echo "77|77|RUNNING"')
    run = seams.run_directory(path)
    seams.forge_lease(run, "dead", **seams.DEAD, job="SLURM_JOB_ID=77")
    seams.forge_lease(run, "alive", **seams.parent_process(), job="SLURM_JOB_ID=78")
    seams.forge_lease(run, "no job", **seams.ELSEWHERE, pid=4712, job="")
    info = json.loads(CliRunner().invoke(main, ["info", str(path), "--json"]).output)
    assert len(info["writers"]) == 2
    assert "SLURM_JOB_ID=77" not in str(info["writers"])
    assert calls.read_text() == ""


def test_squeue_that_does_not_answer(begun, squeue, monkeypatch):
    """It sleeps for longer than the test may last. Who looks gets what the directory tells."""
    _, path = begun
    seams.forge_lease(seams.run_directory(path), **JOB)
    monkeypatch.setattr(client, "LOOK_SECONDS", 0.3)
    calls = squeue("exec sleep 10000")
    found = seams.status_of(path)
    assert found.n_writers == 1
    assert "unknown: squeue was not asked: SLURM took" in found.note
    assert len(calls.read_text().splitlines()) == 1
    with client.looking():
        time.sleep(0.3)
        with pytest.raises(SubmitError, match="was not asked"):
            client.queue(["77"])
    squeue('echo "77|RUNNING|None|n1|1:00"')
    assert client.queue(["77"])[0]["state"] == "RUNNING"
    squeue("exec sleep 10000")
    monkeypatch.setattr(client, "_answer", client._Answer())
    info = json.loads(CliRunner().invoke(main, ["info", str(path), "--json"]).output)
    (name,) = info["writers"]
    assert "not known whether its job goes on: squeue" in name
    assert "no answer in 0 s" in name


def test_no_squeue_here(begun, squeue, monkeypatch):
    _, path = begun
    seams.forge_lease(seams.run_directory(path), **JOB)
    monkeypatch.setenv("PATH", "")
    n_writers, (name,), _, state = shown(path)
    assert (n_writers, state) == (1, "running")
    assert "not known whether its job goes on: squeue is not in PATH here" in name


def test_commands_that_change_something_do_not_believe_slurm(begun, squeue):
    """A lease alone decides, since squeue may be wrong, or that of another cluster."""
    x, path = begun
    seams.forge_lease(seams.run_directory(path), **JOB)
    calls = squeue('echo "77|77|CANCELLED"')
    with pytest.raises(shardwrite.JournalError, match="last sign of life"):
        (x + 1).to_sharded_zarr(path, shards=8, chunks=4, restart=True)
    assert calls.read_text() == ""
