"""Workers on other hosts, which do not see the driver's directory of run state.

They run in namespaces of their own, so that they see neither the driver's files nor its process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import dask
import dask.array as da
import numpy as np
import proxy
import pytest
import seams
import servers
from helpers import wait_for

import shardwrite
from shardwrite import RunEndedError, SpecError, StoreError
from shardwrite.place.run_state import private_directory

VALUES = np.random.default_rng(0).integers(1, 2**32, (64, 64), dtype="u4")
LAYOUT = {"shards": 16, "chunks": 4}
KEPT = ["shardwrite-receipt.json", "zarr.json"]
LONG = pytest.mark.long
QUICK = {"shardwrite.lease.heartbeat": 0.5, "shardwrite.lease.ttl": 4.0}
APART = ["unshare", "--mount", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child"]

DRIVER = """
import sys, time
import dask, numpy as np, dask.array as da, distributed
import shardwrite
address, url, values, pause = sys.argv[1:]
x = da.from_array(np.load(values), chunks=(16, 64))
x = x.map_blocks(lambda block: (time.sleep(float(pause)), block)[1], dtype=x.dtype)
given = {"shardwrite.lease.heartbeat": 0.5, "shardwrite.lease.ttl": 4.0}
with dask.config.set(given), distributed.Client(address, set_as_default=True):
    try:
        result = x.to_sharded_zarr(url, source_id="new", shards=16, chunks=4)
        print(result.n_resumed_shards)
    except shardwrite.ShardwriteError as error:
        print(type(error).__name__, error)
"""


def can_unshare():
    return (
        shutil.which("unshare") is not None
        and subprocess.run([*APART, "true"], capture_output=True).returncode == 0
    )


pytestmark = pytest.mark.skipif(not can_unshare(), reason="namespaces cannot be made here")


@contextlib.contextmanager
def cluster(server, n_workers=2, environment=None):
    """A client of workers that stand for those on other hosts."""
    distributed = pytest.importorskip("distributed")
    hidden = private_directory(os.getpid())
    worker = f"{sys.executable} -m distributed.cli.dask_worker --no-nanny --no-dashboard"
    script = f"mount -t tmpfs none {hidden} && exec {worker} --nthreads 1"
    name = "echo worker-{} > /proc/sys/kernel/hostname"
    given = {**os.environ, **server.environment, **(environment or {})}
    with contextlib.ExitStack() as stack:
        local = {"n_workers": 0, "host": "127.0.0.1", "dashboard_address": None}
        scheduler = stack.enter_context(distributed.LocalCluster(**local))
        at = scheduler.scheduler_address
        for number in range(n_workers):
            process = subprocess.Popen(
                [*APART, "sh", "-c", f"{name.format(number)}; {script} {at}"],
                env=given,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        client = stack.enter_context(distributed.Client(scheduler))
        client.wait_for_workers(n_workers, timeout=120)
        yield client


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=(16, 64))


def prefix_of(url):
    return url.removeprefix("s3://bucket/")


@pytest.mark.long
def test_what_runs_do_with_them(moto, url, x):
    """New arrays, updates, appends, replacements, conversions and repairs."""
    import obstore

    with cluster(moto):
        assert x.to_sharded_zarr(url, **LAYOUT).n_shards == 16
        facts = shardwrite.report(url)
        np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
        da.full((30, 6), 7, dtype="u4").to_sharded_zarr(url, region=np.s_[10:40, 3:9])
        wanted = VALUES.copy()
        wanted[10:40, 3:9] = 7
        np.testing.assert_array_equal(servers.values_of(moto, url), wanted)
        x.to_sharded_zarr(url, region="append", axis=0)
        wanted = np.concatenate([wanted, VALUES])
        np.testing.assert_array_equal(servers.values_of(moto, url), wanted)
        obstore.delete(moto.client(prefix_of(url)), "c/1/1")
        source = da.from_array(wanted, chunks=(16, 64))
        assert [task.key for task in shardwrite.repair(url, source).tasks] == ["c/1/1"]
        shardwrite.reshard(url, f"{url}-other", shards=(2, 4))
        x.to_sharded_zarr(url, mode="w", **LAYOUT)
    np.testing.assert_array_equal(servers.values_of(moto, f"{url}-other"), wanted)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == servers.others(moto, f"{url}-other") == KEPT
    assert shardwrite.verify(url, deep=True).is_good
    names = {worker.name.partition(":")[0] for worker in facts.workers}
    assert names, "the report names those that did the work"
    assert names <= {"worker-0", "worker-1"}


@LONG
def test_each_shard_costs_a_look_at_the_lease(moto_server, environment, url, x):
    with proxy.before(moto_server) as (server, faults):
        environment(server)
        with cluster(server):
            x.to_sharded_zarr(url, **LAYOUT)
    puts = [path for method, path in faults.seen if method == "PUT" and "/c/" in path]
    looks = [path for method, path in faults.seen if method == "GET" and "lease.json" in path]
    assert len(puts) == 16
    assert 16 <= len(looks) < 40


@pytest.fixture
def driver(tmp_path):
    """Starts a write in a process of its own, which has its own directory of run state."""
    np.save(tmp_path / "values.npy", VALUES)

    def start(server, client, url, pause):
        address = client.scheduler.address
        words = [address, url, str(tmp_path / "values.npy"), str(pause)]
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, *words],
            env={**os.environ, **server.environment, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@LONG
@pytest.mark.parametrize("same", [True, False])
def test_the_driver_is_killed(moto, url, x, driver, same):
    """Its workers live on. The next call goes on, or starts over, and keeps none of their shards."""
    with cluster(moto) as client:
        process = driver(moto, client, url, 0.5)
        wait_for(lambda: any(key.startswith("c/") for key in moto.keys(prefix_of(url))))
        process.kill()
        process.communicate(timeout=60)
        y = x if same else da.from_array(VALUES + 1, chunks=(16, 64))
        with dask.config.set({**QUICK, "scheduler": "sync"}):
            how = {"source_id": "new"} if same else {"restart": True}
            result = y.to_sharded_zarr(url, **how, **LAYOUT)
        assert (result.n_resumed_shards > 0) is same
        time.sleep(2)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES if same else VALUES + 1)
    assert servers.others(moto, url) == KEPT


@LONG
def test_the_driver_is_frozen_and_its_workers_go_on(moto, url, x, driver):
    """They ask the bucket, so that they stop when another process has taken the lease."""
    with cluster(moto) as client:
        process = driver(moto, client, url, 3)
        wait_for(lambda: "shardwrite-run.json" in servers.others(moto, url))
        os.kill(process.pid, signal.SIGSTOP)
        with dask.config.set({**QUICK, "scheduler": "sync"}):
            time.sleep(5)
            da.from_array(VALUES + 1, chunks=(16, 64)).to_sharded_zarr(url, restart=True, **LAYOUT)
        time.sleep(5)  # tasks that had begun would have put their shards by now
        np.testing.assert_array_equal(servers.values_of(moto, url), VALUES + 1)
        os.kill(process.pid, signal.SIGCONT)
        out, trouble = process.communicate(timeout=120)
    assert out.startswith("RunEndedError"), (out, trouble)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES + 1)
    assert servers.others(moto, url) == KEPT


@LONG
def test_workers_that_reach_another_service_are_refused_before_anything_is_put(moto, url, x):
    elsewhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ENDPOINT": "http://127.0.0.1:9"}
    with cluster(moto, 1, elsewhere), pytest.raises(StoreError, match="the same access"):
        x.to_sharded_zarr(url, **LAYOUT)
    assert moto.keys(prefix_of(url)) == []


@LONG
def test_a_plan_that_needs_files_names_the_remedy(moto, url):
    x = da.zeros((4096, 4096), chunks=(4096, 8))
    with cluster(moto, 1), pytest.raises(SpecError, match="larger memory"):
        x.to_sharded_zarr(url, shards=4096, chunks=512, memory_limit="250MB")
    assert moto.keys(prefix_of(url)) == []


def test_a_lease_that_is_gone_ends_the_work_of_all(moto, url):
    """In the driver's process, in another one on its host, and on another host."""
    from dataclasses import replace

    from shardwrite.journal.lease import this_process
    from shardwrite.journal.rundir import fence_of, holding

    target = seams.target_of(url)
    with holding(target):
        fence = fence_of(target)
        me = this_process()
        far = replace(fence, driver=replace(me, host="other", boot="another"))
        dead = replace(fence, driver=replace(me, pid=2**22 - 1, started="1"))
        assert [one.is_near for one in (fence, far, dead)] == [True, False, True]
        assert far.probe() is None
        far.check("", "")
        with pytest.raises(RunEndedError, match="its driver is gone"):
            dead.check("", "")
    with pytest.raises(RunEndedError, match="has ended"):
        far.check("", "")
    assert "another bucket or service" in far.probe()[0]
