"""Fault family 5: worker, scheduler or client killed; a task run twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dask
import dask.array
import numpy as np
import pytest
import seams
from distributed import Client, LocalCluster
from distributed.diagnostics.plugin import UploadFile

from shardwrite.engines import ClusterEngine
from shardwrite.errors import WorkersLostError

sys.path.insert(0, str(Path(__file__).parent))
import oracle

SHAPE = (128, 128)
KEYWORDS = {
    "shards": 16,
    "chunks": 8,
    "memory_limit": "60kB",
    "source_id": "one",
    "max_source_reruns": 100,
}


def slow(block):
    time.sleep(0.05)
    return block


def source():
    return oracle.source(SHAPE, (16, 32)).map_blocks(slow, dtype="u4", meta=np.empty((0, 0), "u4"))


def finish(path, acked):
    assert 0 < len(acked) < 64, "nothing was interrupted"
    oracle.check_partial(path, acked, oracle.values(SHAPE))
    with dask.config.set(scheduler="threads"):
        result = source().to_sharded_zarr(path, **KEYWORDS)
    assert result.n_resumed_shards >= len(acked)
    oracle.check_whole(path, oracle.values(SHAPE))


@pytest.mark.long
def test_a_worker_without_nanny_is_killed(tmp_path):
    """The other worker takes over what was lost with it."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        pids = iter(client.run(os.getpid).values())
        reports = []

        def progress(report):
            reports.append(report)
            if len(reports) == 2:
                os.kill(next(pids), signal.SIGKILL)

        source().to_sharded_zarr(tmp_path / "x", progress=progress, **KEYWORDS)
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))


def only_one_dies(path):
    """Kills the process that calls it first."""
    with contextlib.suppress(FileExistsError):
        Path(path).touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)
    return "lives"


def one_fails(path):
    Path(path).touch(exist_ok=False)
    return "lives"


@pytest.mark.long
def test_a_worker_is_killed_while_all_are_asked(tmp_path):
    """Workers are asked before a run begins. One that is lost then is no error of the run."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(UploadFile(__file__))
        engine = ClusterEngine(client)
        assert len(engine.on_every_worker(os.getpid)) == 2
        found = engine.on_every_worker(only_one_dies, str(tmp_path / "dies"))
        assert list(found.values()) == ["lives"]
        client.wait_for_workers(2)
        with pytest.raises(FileExistsError):
            engine.on_every_worker(one_fails, str(tmp_path / "fails"))


SCHEDULER = """
import sys, time
from distributed import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, scheduler_port=0)
    print(cluster.scheduler_address, flush=True)
    time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_the_scheduler_is_killed(tmp_path):
    (tmp_path / "scheduler.py").write_text(SCHEDULER)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "scheduler.py"], stdout=subprocess.PIPE, text=True
    )
    acks = oracle.Acks(tmp_path / "acks")
    try:
        address = process.stdout.readline().strip()

        def progress(report):
            acks(report)
            if len(acks.ranks()) >= 8:
                process.kill()

        with (
            dask.config.set({"distributed.comm.timeouts.connect": "2s"}),
            Client(address, timeout=20) as client,
        ):
            client.upload_file(str(Path(__file__).with_name("oracle.py")))
            x = oracle.source(SHAPE, (16, 32)).map_blocks(
                lambda b: (__import__("time").sleep(0.05), b)[1], dtype="u4"
            )
            with pytest.raises(BaseException):  # noqa: B017, PT011 (whatever the client makes of it)
                x.to_sharded_zarr(tmp_path / "x", progress=progress, **KEYWORDS)
    finally:
        process.kill()
        process.wait()
    time.sleep(1)  # its workers find out
    finish(tmp_path / "x", acks.ranks())


@pytest.mark.long
def test_the_client_is_killed(tmp_path):
    script = tmp_path / "client.py"
    script.write_text(
        f"""
import os, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from distributed import Client, LocalCluster
import oracle, numpy as np, shardwrite

def slow(block):
    time.sleep(0.05)
    return block

if __name__ == "__main__":
    acks = oracle.Acks(sys.argv[2])
    def progress(report):
        acks(report)
        if len(acks.ranks()) >= 8:
            os.kill(os.getpid(), 9)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        x = oracle.source({SHAPE}, (16, 32)).map_blocks(slow, dtype="u4", meta=np.empty((0, 0), "u4"))
        x.to_sharded_zarr(sys.argv[1], progress=progress, **{KEYWORDS})
"""
    )
    ended = subprocess.run(
        [sys.executable, script, tmp_path / "x", tmp_path / "acks"],
        check=False,
        capture_output=True,
    )
    assert ended.returncode == -9, ended.stderr
    time.sleep(1)  # its workers find out
    finish(tmp_path / "x", oracle.Acks(tmp_path / "acks").ranks())


def test_a_task_that_runs_twice_at_once(tmp_path):
    x = oracle.source(SHAPE, (32, 128))
    tasks, reports = seams.begin_run(x, tmp_path / "x", shards=16, chunks=8), []
    for task in tasks:
        twice = [
            threading.Thread(target=lambda task=task: reports.append(task())) for _ in range(2)
        ]
        for thread in twice:
            thread.start()
        for thread in twice:
            thread.join()
    assert len(reports) == 2 * len(tasks)
    found = seams.logged(tmp_path / "x")
    assert len(found.done) == found.n_redone == 64
    assert x.to_sharded_zarr(tmp_path / "x", shards=16, chunks=8).n_resumed_shards == 64
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))


def deadly(block, path):
    """Kills its process as often as the file there says."""
    if block[0, 0] == oracle.values(SHAPE)[64, 64]:
        times = int(Path(path).read_text())
        if times:
            Path(path).write_text(str(times - 1))
            os.kill(os.getpid(), signal.SIGKILL)
    return block


@pytest.mark.long
@pytest.mark.usefixtures("children_as_users_start_them")
def test_a_group_whose_workers_die_comes_again_and_leaves_the_others_alone(tmp_path):
    """dask gives it up at once here; it is tried three times, and all others are written meanwhile."""
    values, times = oracle.values(SHAPE), tmp_path / "times"
    x = dask.array.from_array(values, chunks=(16, 32)).map_blocks(
        deadly, str(times), dtype="u4", meta=values[:0, :0]
    )
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(**options) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(UploadFile(str(Path(__file__).with_name("oracle.py"))))
        times.write_text("3")
        with pytest.raises(WorkersLostError, match="died") as caught:
            x.to_sharded_zarr(tmp_path / "x", **KEYWORDS)
        assert times.read_text() == "0"
        times.write_text("1")
        result = x.to_sharded_zarr(tmp_path / "x", **KEYWORDS)
    notes = " ".join(caught.value.__notes__)
    assert "region [64:80, 0:96]" in notes
    assert "6 of 64 shards are not committed" in notes, "a group has six"
    assert (result.n_retried_tasks, result.n_resumed_shards) == (1, 58)
    oracle.check_whole(tmp_path / "x", values)
