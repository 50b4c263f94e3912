"""Remedies in messages about jobs, carried out without SLURM: what the message says makes the next
call go through."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from shardwrite.cli import main
from shardwrite.errors import SpecError, SubmitError
from shardwrite.slurm import client, jobs
from shardwrite.slurm.client import requeue
from shardwrite.slurm.script import ArrayJob, Settings, array_script, finalize_script

JOB = ArrayJob(src="x.npy", dst="x.zarr", n_parts=4)


def program(directory, name, text):
    """Put a program into a directory."""
    path = directory / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A directory that comes first where programs are looked for."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "x.npy", np.ones((8, 8)))
    return directory


@pytest.mark.parametrize("n_parts", [0, 4_000_002, 10**12, 2.5, True, None, "3"])
def test_a_job_array_has_as_many_tasks_as_slurm_can_take(n_parts):
    with pytest.raises(SpecError, match="give a whole number from 1 to 4,000,001"):
        ArrayJob(src="x.npy", dst="x.zarr", n_parts=n_parts)
    largest = ArrayJob(src="x.npy", dst="x.zarr", n_parts=4_000_001)
    assert "#SBATCH --array=0-4000000" in array_script(largest, Settings())


def test_too_many_parts_are_refused_before_anything_is_begun(path):
    command = ["slurm", "submit", "x.npy", "x.zarr", "--shards", "4", "--chunks", "2"]
    done = CliRunner().invoke(main, [*command, "--parts", "1000000000"])
    assert done.exit_code == 2, done.output
    assert "--parts 1000000000: not a number of tasks" in done.output
    assert [p.name for p in path.parent.iterdir() if p.name.startswith("x.zarr")] == []


def test_an_option_in_the_form_that_the_message_shows():
    with pytest.raises(SpecError, match="give for instance --partition=main"):
        array_script(JOB, Settings(directives=("partition main",)))
    assert "\n#SBATCH --partition=main\n" in array_script(
        JOB, Settings(directives=("--partition=main",))
    )


def test_the_last_job_begins_later():
    """As `doctor` advises where files of other nodes are seen late."""
    assert "\n#SBATCH --begin=now+60\n" in finalize_script(
        JOB, Settings(directives=("--begin=now+60",))
    )


def test_parts_are_given_where_scontrol_says_no_limit(path):
    program(path, "scontrol", "echo SlurmctldPort = 6817")
    program(path, "sbatch", "echo 41")
    command = ["slurm", "submit", "x.npy", "x.zarr", "--shards", "4", "--chunks", "2"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1
    assert "give --parts" in done.output
    done = CliRunner().invoke(main, [*command, "--parts", "2"])
    assert done.exit_code == 0, done.output


def test_a_program_that_answers_when_it_is_asked_again(path):
    program(
        path,
        "squeue",
        'if [ -e asked ]; then echo "7|RUNNING|None|n1|1:00"; else touch asked; sleep 5; fi',
    )
    with pytest.raises(SubmitError, match="no answer in 0 s; try again"):
        client._run(["squeue"], seconds=0.3)
    assert client.queue(["7"])[0]["state"] == "RUNNING"


def test_jobs_of_others_may_have_names_that_are_no_text(path):
    program(path, "squeue", r"printf '7|RUNNING|\377|n1|1:00\n'")
    assert client.queue(["7"])[0]["state"] == "RUNNING"


def test_jobs_that_are_still_there_are_cancelled_by_another_try(monkeypatch):
    left = [{"id": "7", "state": "RUNNING"}]
    known = jobs.Submitted(others=("7",))
    monkeypatch.setattr(jobs, "_GONE_SECONDS", 0.0)
    monkeypatch.setattr(jobs, "queue", lambda ids: list(left))
    monkeypatch.setattr(jobs, "cancel", lambda ids: None)
    with pytest.raises(SubmitError, match="still there after 0 s: 7; try again"):
        jobs.cancel_left(lambda: known, lambda seconds: None)
    monkeypatch.setattr(jobs, "_GONE_SECONDS", 30.0)
    monkeypatch.setattr(jobs, "cancel", lambda ids: left.clear())
    assert jobs.cancel_left(lambda: known, lambda seconds: None) == ["7"]


def test_a_job_that_was_requeued_too_often_is_submitted_again(path):
    """The new job may requeue itself as often as the first."""
    program(path, "scontrol", "exit 0")
    assert "not again; submit it again to go on" in requeue(
        2, {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}
    )
    assert requeue(2, {"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "0"}) == "job 8 is requeued"


@pytest.mark.parametrize(
    ("options", "said", "remedy"),
    [
        (["--jobs", "3"], "give --cluster slurm", ["--jobs", "3", "--cluster", "slurm"]),
        (["--cluster", "slurm"], "give --jobs", ["--cluster", "slurm", "--jobs", "3"]),
        (
            ["--cluster", "slurm", "--jobs", "3", "--threads", "2"],
            "--cluster goes with none of --threads",
            ["--cluster", "slurm", "--jobs", "3"],
        ),
    ],
)
def test_options_for_workers_that_are_jobs(path, options, said, remedy):
    """With what the message asks for, the command goes on to sbatch, which is not here."""
    write = ["write", "x.npy", "x.zarr", "--shards", "4", "--chunks", "2"]
    done = CliRunner().invoke(main, [*write, *options])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
    done = CliRunner().invoke(main, [*write, *remedy])
    assert done.exit_code == 1, done.output
    assert "sbatch" in done.output
