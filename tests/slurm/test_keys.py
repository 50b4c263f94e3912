"""Private keys are gone when a script has ended, however it did; nothing here needs SLURM."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tiers import some

from shardwrite.slurm import keys
from shardwrite.slurm.inside import make_run_directory
from shardwrite.slurm.script import AllocationJob, Settings, allocation_script

ROOT = Path(__file__).parent.parent.parent
SHARDWRITE = """
case "$2" in
run-directory) mkdir -p runs/7.0 && echo secret > runs/7.0/key.pem && echo runs/7.0 ;;
scheduler) touch "$3/scheduler.json"; exec sleep 30 ;;
*) exec ./program ;;
esac
"""


@pytest.fixture
def start(tmp_path):
    """Starts a script with programs that stand for SLURM's and ours; what they start does what it
    is told."""
    for name, text in {
        "srun": "exec sleep 30",
        "shardwrite": SHARDWRITE,
        "python": "exec ./program",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def run(script, program):
        (tmp_path / "program").write_text(f"#!/bin/bash\n{program}\n")
        (tmp_path / "program").chmod(0o755)
        (tmp_path / "script").write_text(script)
        environ = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "SLURM_JOB_ID": "7",
            "SLURM_CPUS_PER_TASK": "1",
        }
        environ["SLURM_SUBMIT_DIR"] = str(tmp_path)
        return subprocess.Popen(
            ["bash", "script"], cwd=tmp_path, env=environ, start_new_session=True
        )

    return run


def benchmark():
    text = (ROOT / "slurm" / "benchmark.sbatch").read_text()
    return re.sub(r'^(NODES|WORKERS|THREADS)=".*"$', r'\1="1"', text, flags=re.MULTILINE)


SCRIPTS = {
    "benchmark": benchmark,
    "allocation": lambda: allocation_script(AllocationJob(program="x.py"), Settings()),
}


@pytest.mark.parametrize("kind", SCRIPTS)
@pytest.mark.parametrize("end", some(["well", "badly", "TERM"], "TERM"))
def test_keys_are_removed(start, tmp_path, kind, end):
    does = {"well": "exit 0", "badly": "exit 3", "TERM": "touch begun; exec sleep 30"}[end]
    process = start(
        SCRIPTS[kind](), f"[ ! -e {tmp_path}/runs/7.0/key.pem ] || touch had-keys\n{does}"
    )
    if end == "TERM":
        deadline = time.monotonic() + 20
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGTERM)  # SLURM ends all processes of a job
    code = process.wait(30)
    assert (code == 0) == (end == "well")
    assert (tmp_path / "had-keys").exists()
    assert list((tmp_path / "runs").iterdir()) == []


def test_keys_of_killed_starts_go_with_the_next(tmp_path):
    """A killed shell removes nothing; the job that comes again does. Another job's keys are not
    touched."""
    environ = {"SLURM_JOB_ID": "7", "SHARDWRITE_RUN_DIR": str(tmp_path)}
    for number in (0, 1):
        make_run_directory({**environ, "SLURM_RESTART_COUNT": str(number)})
    other = make_run_directory({**environ, "SLURM_JOB_ID": "8"})
    (tmp_path / "7.0").mkdir(exist_ok=True)
    last = make_run_directory({**environ, "SLURM_RESTART_COUNT": "2"})
    assert sorted(tmp_path.iterdir()) == [last, other]


def test_no_key_stays_where_writing_one_fails(tmp_path, monkeypatch):
    real = keys.write_private

    def failing(path, data):
        real(path, data)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keys, "write_private", failing)
    with pytest.raises(OSError, match="No space"):
        make_run_directory({"SLURM_JOB_ID": "7", "SHARDWRITE_RUN_DIR": str(tmp_path)})
    assert list(tmp_path.iterdir()) == []
