"""A dask cluster inside an allocation, without SLURM: its directory, keys and address, and the
script's loop."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
import seams
from click.testing import CliRunner
from distributed import Client, LocalCluster, Security, get_client

import shardwrite
from shardwrite.cli import main
from shardwrite.cli.common import engine
from shardwrite.errors import ClusterLostError, SpecError, WorkersLostError
from shardwrite.runs.outcome import exit_code_of
from shardwrite.slurm import inside
from shardwrite.slurm.inside import connect, make_run_directory
from shardwrite.slurm.script import AllocationJob, Settings, allocation_script

PROGRAM = Path(__file__).parent / "program.py"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def directory(tmp_path):
    return make_run_directory({"SLURM_JOB_ID": "7", "SHARDWRITE_RUN_DIR": str(tmp_path)})


@pytest.mark.compat
def test_a_directory_for_each_start_that_nobody_else_can_look_into(tmp_path):
    old = os.umask(0)
    try:
        first = make_run_directory({"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(tmp_path)})
    finally:
        os.umask(old)
    assert first == tmp_path / "shardwrite-runs" / "7.0"
    assert mode(first) == 0o700
    assert {mode(path) for path in first.iterdir()} == {0o600}
    again = make_run_directory(
        {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2", "SHARDWRITE_RUN_DIR": str(tmp_path / "a")}
    )
    assert again == tmp_path / "a" / "7.2"
    assert (again / "key.pem").read_bytes() != (first / "key.pem").read_bytes()


def test_what_an_earlier_job_of_that_number_has_left_is_not_used(directory):
    key = (directory / "key.pem").read_bytes()
    (directory / "scheduler.json").write_text('{"address": "tls://127.0.0.1:1"}')
    directory.chmod(0o755)
    assert (
        make_run_directory({"SLURM_JOB_ID": "7", "SHARDWRITE_RUN_DIR": str(directory.parent)})
        == directory
    )
    assert not (directory / "scheduler.json").exists()
    assert mode(directory) == 0o700
    assert (directory / "key.pem").read_bytes() != key


@pytest.mark.compat
def test_refusals(tmp_path, monkeypatch):
    with pytest.raises(SpecError, match="no SLURM job"):
        make_run_directory({})
    (tmp_path / "8.0").symlink_to(tmp_path)
    with pytest.raises(SpecError, match="somebody else"):
        make_run_directory({"SLURM_JOB_ID": "8", "SHARDWRITE_RUN_DIR": str(tmp_path)})
    with pytest.raises(SpecError, match=r"has .*lo"):
        inside._interface({"SHARDWRITE_INTERFACE": "none"})
    with pytest.raises(SpecError, match="SHARDWRITE_INTERFACE"):
        inside._refuse_loopback("tls://127.0.0.1:4000", {"SLURM_JOB_NUM_NODES": "2"})
    inside._refuse_loopback("tls://127.0.0.1:4000", {})
    inside._refuse_loopback("tls://10.0.0.1:4000", {"SLURM_JOB_NUM_NODES": "2"})
    monkeypatch.setitem(sys.modules, "cryptography", None)
    done = CliRunner().invoke(
        main,
        ["slurm", "run-directory"],
        env={"SLURM_JOB_ID": "9", "SHARDWRITE_RUN_DIR": str(tmp_path)},
    )
    assert done.exit_code == 2
    assert 'pip install "shardwrite[slurm]"' in done.output


def test_memory_of_a_worker():
    job = {"SLURM_MEM_PER_NODE": "2000", "SLURM_CPUS_ON_NODE": "2"}
    share = int(0.9 * 2000 * 2**20)
    assert inside.worker_nbytes({**job, "SLURM_NODEID": "1"}) == share
    assert inside.worker_nbytes({**job, "SLURM_NODEID": "0"}) == share - 2**29
    both = {**job, "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"}
    assert inside.worker_nbytes(both) == (share - 2**29) // 2
    with pytest.raises(SpecError, match="--mem of 1G and more"):
        inside.worker_nbytes({"SLURM_MEM_PER_NODE": "600"})
    assert inside.worker_nbytes({"SLURM_MEM_PER_NODE": "1024"}) > 128 * 2**20


@pytest.mark.compat
def test_only_who_has_the_keys_is_talked_to(directory, tmp_path):
    security = inside.security_of(directory)
    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tls",
        security=security,
        dashboard_address=None,
    ) as cluster:
        (directory / "scheduler.json").write_text(
            json.dumps({"address": cluster.scheduler_address})
        )
        with connect(str(directory / "scheduler.json"), {}) as client:
            assert client.submit(sum, [1, 2]).result() == 3
        stranger = make_run_directory({"SLURM_JOB_ID": "8", "SHARDWRITE_RUN_DIR": str(tmp_path)})
        for other in (inside.security_of(stranger), Security()):
            with pytest.raises((OSError, RuntimeError, TypeError)):
                Client(
                    cluster.scheduler_address, security=other, timeout="1s", set_as_default=False
                )


def test_who_does_not_come_is_not_waited_for(directory, monkeypatch):
    monkeypatch.setitem(dask.config.config, "shardwrite", {"slurm": {"start-timeout": 0.3}})
    with pytest.raises(WorkersLostError, match="did not come"):
        connect(str(directory / "scheduler.json"))
    with LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster:
        plain = directory.parent / "scheduler.json"
        plain.write_text(json.dumps({"address": cluster.scheduler_address}))
        with pytest.raises(WorkersLostError, match="no worker has come"):
            connect(str(plain))
        seams.request_stop()
        try:
            with pytest.raises(shardwrite.engines.Stopped, match="before a worker"):
                connect(str(plain))
        finally:
            seams.forget_stop()


def test_a_cluster_that_is_lost_is_no_error_of_the_program():
    """Exit code 85, and the job comes again; where the scheduler is well, an error stays what it
    is."""
    with LocalCluster(n_workers=1, processes=False, dashboard_address=None) as cluster:
        with pytest.raises(ZeroDivisionError), engine(None, None, cluster.scheduler_address):
            raise ZeroDivisionError

        def lose():
            client = get_client()
            cluster.close()
            while client.status == "running":
                time.sleep(0.01)
            raise ZeroDivisionError

        with (
            pytest.raises(ClusterLostError) as caught,
            engine(None, None, cluster.scheduler_address),
        ):
            lose()
    assert exit_code_of(caught.value) == 85


@pytest.mark.long
def test_no_workers_for_too_long_is_no_error_of_the_program(tmp_path):
    x = da.ones((64, 64), chunks=16, dtype="u1")
    with (
        dask.config.set({"distributed.scheduler.no-workers-timeout": "500ms"}),
        LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        Client(cluster),
        pytest.raises(ClusterLostError, match="no workers for too long"),
    ):
        x.to_sharded_zarr(tmp_path / "x.zarr", shards=16, chunks=8)


USERS = """
import sys, time
import dask.array as da
time.sleep(float(sys.argv[1]))
da.ones((64, 64), chunks=16, dtype="u1").to_sharded_zarr("x.zarr", shards=16, chunks=8, memory_limit="8kB", source_id="ones")
"""


@pytest.fixture
def script(tmp_path):
    """The script of an allocation, as a job of one node would have it, with an `srun` that starts
    one task here."""
    (tmp_path / "my.py").write_text(USERS)
    programs = {
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "shardwrite": f'exec "{sys.executable}" "{PROGRAM}" "$@"',
        "scontrol": f'echo "$@" >> {tmp_path}/asked',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    environ |= {
        "SLURM_JOB_ID": "7",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_CPUS_PER_TASK": "1",
        "PAUSE": "0.3",
    }
    environ["PATH"] = f"{tmp_path}:{environ['PATH']}"

    def start(*arguments, patience=120, restarts="0"):
        text = allocation_script(
            AllocationJob(n_nodes=1, program="my.py", arguments=arguments), Settings()
        )
        (tmp_path / "script").write_text(text.replace("!= 120", f"!= {patience}"))
        own = {**environ, "SLURM_RESTART_COUNT": restarts}
        return subprocess.Popen(
            ["bash", "script"], cwd=tmp_path, env=own, stderr=subprocess.PIPE, text=True
        )

    return start


def shards(tmp_path):
    return [p for p in (tmp_path / "x.zarr").glob("c/*/*") if not p.name.startswith(".")]


@pytest.mark.long
def test_usr1_before_the_program_listens_and_while_it_works(script, tmp_path):
    """The first stops it before anything was written, so that it is not put back; the second goes
    on, and is."""
    process = script("0")
    while not (
        tmp_path / "shardwrite-runs"
    ).exists():  # the shell has come so far; a program takes a second to begin
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 85, said
    assert "was not requeued" in said
    process = script("0")
    while len(shards(tmp_path)) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 85, said
    assert "job 7 is requeued" in said
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
    assert 3 <= len(shards(tmp_path)) < 16
    assert not list((tmp_path / "shardwrite-runs").iterdir())
    da.ones((64, 64), chunks=16, dtype="u1").to_sharded_zarr(
        tmp_path / "x.zarr", shards=16, chunks=8, memory_limit="8kB", source_id="ones"
    )
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(tmp_path / "x.zarr").compute(), 1)


@pytest.mark.long
def test_a_program_that_finds_itself_alone_is_ended(script, tmp_path):
    (tmp_path / "srun").write_text("#!/bin/sh\nexit 1\n")
    _, said = (process := script("0")).communicate(timeout=60)
    assert process.returncode == 85, said
    assert "told to finish" in said
    assert "stopped before" in said, "a scheduler, or a worker, was there"


DEAF = """#!/bin/bash
case "$2" in
run-directory) mkdir -p runs && echo runs ;;
scheduler) exit 1 ;;
*) trap 'exit 85' TERM; while :; do sleep 0.1; done ;;
esac
"""


@pytest.mark.long
@pytest.mark.parametrize(("restarts", "asked"), [("9", "requeue 7\n"), ("10", "")])
def test_a_program_that_does_not_notice_that_its_scheduler_is_lost(
    script, tmp_path, restarts, asked
):
    """After a minute, here a second, it is ended; the script puts the job back, as often as the
    program would."""
    (tmp_path / "shardwrite").write_text(DEAF)
    process = script(patience=2, restarts=restarts)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 85, said
    assert (asked_file := tmp_path / "asked").exists() == bool(asked)
    assert not asked or asked_file.read_text() == asked


@pytest.mark.long
def test_the_scheduler_is_lost(script, tmp_path):
    """What was written is known from the disk, so the job is put back and goes on: it ends as by a
    request to stop."""
    process = script("0")
    while len(shards(tmp_path)) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    children = psutil.Process(process.pid).children(recursive=True)
    (scheduler,) = [child for child in children if "scheduler" in child.cmdline()]
    scheduler.kill()
    _, said = process.communicate(timeout=240)  # a lost connection is tried again for a minute
    assert process.returncode == 85, said
    assert "job 7 is requeued" in said
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
    assert not list((tmp_path / "shardwrite-runs").iterdir())
