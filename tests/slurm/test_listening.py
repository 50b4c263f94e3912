"""What schedulers and workers listen on: plain HTTP never leaves the machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from shardwrite.slurm.elastic import _certificates, arguments_of, workers_of
from shardwrite.slurm.inside import make_run_directory
from shardwrite.slurm.keywords import ClusterArguments

PROGRAM = Path(__file__).parent / "program.py"


def listening(pid):
    """Addresses on which a process and its children listen."""
    process, found = psutil.Process(pid), []
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # a command of the script, which has ended
            found += each.net_connections("tcp")
    return {(one.laddr.ip, one.laddr.port) for one in found if one.status == psutil.CONN_LISTEN}


def is_loopback(host):
    return host.startswith("127.") or host == "::1"


def speaks_http(host, port):
    """Whether a request in the clear is answered."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    with socket.create_connection((host, port), timeout=5) as connection:
        connection.settimeout(1)
        try:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
        except OSError:
            return False


def check(pid, n_http):
    """HTTP, which dask always starts, is there and on the loopback alone; and no other process is
    asked."""
    deadline = time.monotonic() + 60
    while sum(speaks_http(*address) for address in listening(pid)) < n_http:
        assert time.monotonic() < deadline, f"nothing listens: {listening(pid)}"
        time.sleep(0.2)
    heard = [address for address in listening(pid) if speaks_http(*address)]
    assert all(is_loopback(host) for host, _ in heard), heard
    assert any(not is_loopback(host) for host, _ in listening(pid)), "other nodes reach it by TLS"


@pytest.fixture
def start():
    """Starts a process, and ends it and its children."""
    begun = []

    def run(*command, **environ):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        begun.append(subprocess.Popen([str(word) for word in command], env={**clean, **environ}))
        return begun[-1].pid

    yield run
    for process in begun:
        family = [process, *psutil.Process(process.pid).children(recursive=True)]
        for one in family:
            one.kill()
        process.wait()


@pytest.mark.compat
@pytest.mark.long
def test_inside_an_allocation(tmp_path, start):
    directory = make_run_directory({"SLURM_JOB_ID": "7", "SHARDWRITE_RUN_DIR": str(tmp_path)})
    scheduler = start(sys.executable, PROGRAM, "slurm", "scheduler", directory)
    worker = start(sys.executable, PROGRAM, "slurm", "worker", directory)
    check(scheduler, 1)
    check(worker, 1)


@pytest.mark.long
def test_workers_that_are_jobs(tmp_path, start):
    """The scheduler in this process, and a worker by the script that would be submitted."""
    jobqueue = pytest.importorskip("dask_jobqueue")
    workers = workers_of(ClusterArguments(jobs=1, cores=1, memory="1G", log_directory=tmp_path))
    with (
        _certificates(tmp_path) as security,
        jobqueue.SLURMCluster(**arguments_of(workers), security=security) as cluster,
    ):
        script = tmp_path / "worker"
        script.write_text(cluster.job_script())
        check(start("bash", script, PYTHONPATH=os.pathsep.join(sys.path)), 1)
        check(os.getpid(), 1)
