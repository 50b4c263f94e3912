"""Every engine, parts without one, several arrays at once, and how often the source is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from dask.callbacks import Callback
from dask.context import thread_state
from dask.highlevelgraph import HighLevelGraph
from dask.sizeof import sizeof
from dask.task_spec import DataNode, Task, TaskRef
from distributed import Client, LocalCluster, wait, worker_client
from tiers import some

import shardwrite
from shardwrite import ClusterLostError, IncompleteError, SourceError, SpecError
from shardwrite.engines import LocalEngine
from shardwrite.engines.cluster import new_client
from shardwrite.format.document import ArrayOptions
from shardwrite.plan.options import PlanOptions
from shardwrite.runs.array_plan import ArrayChunks, plan_array
from shardwrite.write.spool import EncodedBlock, PartFile

KEYWORDS = {"shards": (32, 32, 32), "chunks": (8, 8, 8), "durability": "none"}


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        memory_limit="1GiB",
    ) as cluster:
        yield cluster


@pytest.fixture
def array():
    return np.random.default_rng(0).integers(0, 99, (70, 65, 40)).astype("i2")


def test_a_client_that_cannot_start_is_not_used_by_dask(monkeypatch):
    """As where its thread does not begin in time."""

    def start(self, **_):
        raise AssertionError("no thread")

    monkeypatch.setattr(Client, "start", start)
    with dask.config.set(scheduler="sync"):
        with pytest.raises(AssertionError, match="no thread"):
            new_client("tcp://127.0.0.1:1")
        assert da.ones(3, chunks=3).sum().compute() == 3


ENGINES = ["threads", "sync", "processes", "distributed"]


@pytest.fixture(params=ENGINES)
def engine(request):
    if request.param == "distributed":
        with Client(request.getfixturevalue("cluster")):
            yield request.param
    else:
        with dask.config.set(scheduler=request.param, num_workers=2):
            yield request.param


@pytest.mark.compat
@pytest.mark.parametrize("source", some([(16, 65, 40), (1, 65, 40), (33, 21, 17)], (33, 21, 17)))
def test_engines_write_the_same(tmp_path, array, engine, source):
    seen = []
    x = da.from_array(array, chunks=source)
    result = x.to_sharded_zarr(tmp_path / "x", progress=seen.append, **KEYWORDS)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], array)
    assert sum(report.raw_nbytes for report in seen) == array.nbytes == result.raw_nbytes
    assert result.n_shards == 3 * 3 * 2
    assert result.n_chunks == 9 * 9 * 5
    stored = sum(p.stat().st_size for p in (tmp_path / "x" / "c").rglob("*") if p.is_file())
    assert result.stored_nbytes == stored
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x"]


@pytest.mark.parametrize("engine", some(ENGINES, "threads", "distributed"), indirect=True)
@pytest.mark.parametrize("memory_limit", some(["1MB", "100MB"], "1MB"))
def test_direct_and_staged_on_every_engine(tmp_path, engine, memory_limit):
    a = np.random.default_rng(3).integers(0, 9, (128, 128, 64)).astype("u1")
    x = da.from_array(a, chunks=(32, 32, 32))
    x.to_sharded_zarr(
        tmp_path / "x",
        shards=(128, 128, 64),
        chunks=16,
        memory_limit=memory_limit,
        durability="none",
    )
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], a)


def process_and_address(block):
    return os.getpid(), block.__array_interface__["data"][0]


@pytest.mark.parametrize("engine", some(ENGINES, "threads"), indirect=True)
def test_engines_say_how_they_run_tasks(engine):
    """What the flags promise, seen from tasks."""
    chosen, source = shardwrite.engines.active_engine(), np.arange(10)
    found = {}
    tasks = {"source": DataNode("source", source)}
    for number in range(2):
        tasks["task", number] = Task(("task", number), process_and_address, TaskRef("source"))
    graph = HighLevelGraph({"all": tasks}, {"all": set()})
    chosen.run(graph, [("task", 0), ("task", 1)], found.__setitem__)
    here = (os.getpid(), source.__array_interface__["data"][0])
    assert chosen.shares_memory == (set(found.values()) == {here})
    assert chosen.returns_through_parent == (engine == "processes")
    assert chosen.gains_by_fusion == (engine in ("threads", "distributed"))
    plan = shardwrite.plan(
        da.zeros((128, 128, 64), chunks=32, dtype="u1"),
        shards=(128, 128, 64),
        chunks=16,
        memory_limit="1MB",
    )
    assert plan.is_staged == chosen.returns_through_parent


class Elsewhere(LocalEngine):
    """An engine of another name, which notes the keys of its tasks."""

    def __init__(self, shares_memory):
        super().__init__("sync")
        self.kind, self.shares_memory, self.keys = "elsewhere", shares_memory, []

    def run(self, graph, keys, on_result, explain=None):
        self.keys += graph.to_dict()
        super().run(graph, keys, on_result, explain)


@pytest.mark.parametrize("shares_memory", [True, False])
def test_source_chunks_are_cut_where_tasks_do_not_share_memory(tmp_path, shares_memory):
    x, engine = da.ones((64, 64), chunks=24, dtype="u1"), Elsewhere(shares_memory)
    small = PlanOptions(memory_limit="15kB")  # so there are several groups
    plan = plan_array(x, engine, ArrayOptions(shards=16, chunks=8), small)
    seams.run_job(ArrayChunks(x), plan, tmp_path / "x", engine)
    assert any("cut" in key[0] for key in engine.keys) == (not shares_memory)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], 1)


def test_a_chunk_is_checked_before_it_is_cut(tmp_path):
    """What is left of a block that is too large has the right shape."""

    def lie(block, block_info=None):
        is_that = block_info is not None and block_info[0]["chunk-location"] == (1, 1)
        return np.pad(block, 3) if is_that else block

    x = da.ones((64, 64), chunks=24, dtype="u1")
    x = x.map_blocks(lie, dtype="u1", meta=np.empty((0, 0), "u1"), chunks=x.chunks)
    engine, small = Elsewhere(False), PlanOptions(memory_limit="15kB")
    plan = plan_array(x, engine, ArrayOptions(shards=16, chunks=8), small)
    with pytest.raises(SourceError, match=r"declared shape \(24, 24\), the block has \(30, 30\)"):
        seams.run_job(ArrayChunks(x), plan, tmp_path / "x", engine)
    assert not (tmp_path / "x" / "zarr.json").exists()


@pytest.mark.compat
@pytest.mark.parametrize("engine", some(ENGINES, "distributed"), indirect=True)
def test_delayed(tmp_path, array, engine):
    x = da.from_array(array, chunks=20)
    later = x.to_sharded_zarr(tmp_path / "x", compute=False, **KEYWORDS)
    assert not (tmp_path / "x" / "zarr.json").exists()
    result = later.compute()
    assert result.n_shards == 18
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], array)


@pytest.mark.compat
def test_the_result_prints(tmp_path, array):
    result = da.from_array(array, chunks=20).to_sharded_zarr(tmp_path / "x", **KEYWORDS)
    assert "18 files" in str(result)
    assert "<table" in result._repr_html_()
    assert result.throughput > 0
    assert len(result.peak_nbytes_by_process) == 1
    assert json.loads(json.dumps(result.to_dict()))["n_shards"] == 18


@pytest.mark.parametrize("count", some([1, 2, 3, 7], 3))
def test_parts_without_a_scheduler(tmp_path, array, count):
    x = da.from_array(array, chunks=20)
    plan = shardwrite.plan(
        x, shards=(32, 32, 32), chunks=8, memory_limit="1MB", max_source_reruns=3
    )
    shardwrite.prepare(x, tmp_path / "x", plan)
    for index in reversed(range(count)):
        shardwrite.write_part(x, tmp_path / "x", index, count)
        assert not (tmp_path / "x" / "zarr.json").exists()
    result = shardwrite.finalize(tmp_path / "x")
    assert result.n_shards == 18
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], array)


def test_a_missing_part_is_named(tmp_path, array):
    x = da.from_array(array, chunks=20)
    plan = shardwrite.plan(x, shards=32, chunks=8)
    with pytest.raises(shardwrite.IncompleteError, match="prepare"):
        shardwrite.write_part(x, tmp_path / "x", 0, 2)
    shardwrite.prepare(x, tmp_path / "x", plan)
    shardwrite.write_part(x, tmp_path / "x", 0, 3)
    shardwrite.write_part(x, tmp_path / "x", 2, 3)
    with pytest.raises(
        shardwrite.IncompleteError, match="part 1 of 3 must be written again"
    ) as caught:
        shardwrite.finalize(tmp_path / "x", n_parts=3)
    assert caught.value.missing == [ref.key for ref in plan.part(1, 3).shards]
    assert caught.value.parts == [1]
    assert not (tmp_path / "x" / "zarr.json").exists()
    with pytest.raises(shardwrite.JournalError, match=r"source: .* there, .* now"):
        shardwrite.write_part(x + 1, tmp_path / "x", 1, 3)


def test_an_encoded_block_tells_dask_its_size():
    block = EncodedBlock(np.zeros(100, np.int64), np.zeros(10**6, np.uint8))
    assert sizeof(block) >= 10**6 + 800
    assert sizeof(EncodedBlock(np.zeros(100, np.int64), PartFile("x", 10**9))) < 10**5
    buffers = []
    head = pickle.dumps(block, protocol=5, buffer_callback=buffers.append)
    assert len(head) < 2000, "arrays travel out of band"


def counting(tmp_path):
    """A function of a block that notes each call in a file of its own, so that it counts in any
    process."""

    def note(block, block_info=None):
        where = "-".join(map(str, block_info[0]["chunk-location"]))
        with open(tmp_path / f"calls-{where}", "a") as log:
            log.write("x")
        return block

    return note


def calls(tmp_path):
    return [len(p.read_text()) for p in tmp_path.glob("calls-*")]


@pytest.mark.parametrize("kind", ["slabs", "mean", "rechunked", "unaligned"])
def test_no_source_block_runs_twice(tmp_path, kind):
    a = np.random.default_rng(0).random((64, 64, 32)).astype("f4")
    chunks = {
        "slabs": (1, 64, 32),
        "mean": (16, 16, 32),
        "rechunked": (16, 16, 32),
        "unaligned": (25, 25, 25),
    }[kind]
    x = da.from_array(a, chunks=chunks).map_blocks(
        counting(tmp_path), dtype="f4", meta=np.empty((0, 0, 0), "f4")
    )
    y = {"mean": lambda: x - x.mean(), "rechunked": lambda: x.rechunk((64, 7, 32))}.get(
        kind, lambda: x
    )()
    plan = shardwrite.plan(y, shards=32, chunks=8)
    y.to_sharded_zarr(tmp_path / "x", shards=32, chunks=8, durability="none")
    assert plan.source_reruns == 1
    assert set(calls(tmp_path)) == {1}
    assert len(calls(tmp_path)) == x.npartitions


def test_waves_run_the_source_as_often_as_the_plan_says(tmp_path):
    x = da.from_array(np.ones((64, 64), "f4"), chunks=8).map_blocks(
        counting(tmp_path), dtype="f4", meta=np.empty((0, 0), "f4")
    )
    keywords = {"shards": 16, "chunks": 8, "max_graph_tasks": 40, "memory_limit": "200kB"}
    plain = shardwrite.plan(x, **keywords)
    assert len(plain.waves) > 1
    assert plain.source_reruns == 1
    y = x - x.mean()
    with pytest.raises(shardwrite.PlanError, match="max_source_reruns"):
        shardwrite.plan(y, **keywords)
    plan = shardwrite.plan(y, max_source_reruns=100, **keywords)
    y.to_sharded_zarr(tmp_path / "x", durability="none", max_source_reruns=100, **keywords)
    assert max(calls(tmp_path)) == len(plan.waves)
    assert plan.source_reruns > 1.25
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], 0)


@pytest.mark.compat
def test_store_shares_common_work(tmp_path):
    a = np.random.default_rng(0).random((64, 64)).astype("f4")
    x = da.from_array(a, chunks=16).map_blocks(
        counting(tmp_path), dtype="f4", meta=np.empty((0, 0), "f4")
    )
    results = shardwrite.store(
        [x, x * 2], [tmp_path / "a", tmp_path / "b"], shards=32, chunks=8, durability="none"
    )
    assert [r.n_shards for r in results] == [4, 4]
    assert set(calls(tmp_path)) == {1}
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b", mode="r")[...], a * 2)
    with pytest.raises(shardwrite.SpecError, match="one place"):
        shardwrite.store([x, x], [tmp_path / "c", tmp_path / "c"], shards=32, chunks=8)


def test_the_view_opens_each_shard_once(tmp_path, array, monkeypatch):
    da.from_array(array, chunks=20).to_sharded_zarr(tmp_path / "x", **KEYWORDS)
    opened, read = [], []
    original = seams.real("open an object")

    def spy(self, key):
        reader = original(self, key)
        opened.append(key)
        inner = reader.read
        reader.read = lambda offset, nbytes: read.append(nbytes) or inner(offset, nbytes)
        return reader

    monkeypatch.setattr(*seams.step("open an object"), spy)
    y = shardwrite.from_sharded_zarr(tmp_path / "x")
    assert y.chunks == ((32, 32, 6), (32, 32, 1), (32, 8))
    with dask.config.set(scheduler="sync"):
        np.testing.assert_array_equal(y.compute(), array)
        assert len(opened) == len(set(opened)) == 18
        assert len(read) == 18, "the whole object when all of it is wanted"
        opened.clear()
        read.clear()
        np.testing.assert_array_equal(y[3:5, 33:35, 0:2].compute(), array[3:5, 33:35, 0:2])
        assert opened == ["c/0/1/0"]
        assert len(read) == 2, "index and one range when little is"
        np.testing.assert_array_equal(y[::7, 5, ::-1].compute(), array[::7, 5, ::-1])


@pytest.mark.skipif(sys.platform != "linux", reason="strace is Linux's")
def test_dask_client_choice_is_dasks_own(tmp_path, array, cluster):
    with Client(cluster), dask.config.set(scheduler="threads"):
        assert shardwrite.engines.active_engine().kind == "threads"
    with Client(cluster):
        assert shardwrite.engines.active_engine().kind == "distributed"
    assert shardwrite.engines.active_engine().kind == "threads"


def write_in_a_task(path, has_left):
    """Write and check an array. `has_left` says whether the task has given its thread back before."""
    with worker_client() if has_left else contextlib.nullcontext():
        x = da.full((40, 40), 3, chunks=7)
        shardwrite.to_sharded_zarr(x, path, shards=16, chunks=8, durability="none")
        return shardwrite.verify(path, deep=True, against=x).is_good


@pytest.mark.parametrize("has_left", some([False, True], True))
def test_tasks_on_all_threads_of_a_cluster_may_write(tmp_path, has_left):
    """Each leaves its thread meanwhile. Else all would wait for tasks that never get a thread."""
    options = {"n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    with LocalCluster(processes=False, **options) as threads, Client(threads) as client:
        paths = [str(tmp_path / f"{n}") for n in range(3)]
        written = client.map(write_in_a_task, paths, has_left=has_left)
        wait(written, timeout=60)
        assert all(client.gather(written))


def test_a_task_waits_for_the_client_that_another_one_is_starting(monkeypatch):
    """Tasks of a worker share a client, and it is there before it is connected."""
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with (
        LocalCluster(processes=False, **options) as threads,
        Client(threads) as client,
        monkeypatch.context() as patch,
    ):
        patch.setattr(thread_state, "key", "a task", raising=False)
        patch.setattr(client, "status", "connecting")
        with (
            dask.config.set({"distributed.comm.timeouts.connect": "100 ms"}),
            pytest.raises(ClusterLostError, match="is gone"),
        ):
            shardwrite.engines.active_engine()
        timer = threading.Timer(0.1, setattr, (client, "status", "running"))
        timer.start()
        assert shardwrite.engines.active_engine().n_processes == 1
        timer.join()


def test_a_call_in_the_event_loop_of_the_client_is_told_to_use_a_thread(tmp_path):
    x, options = da.ones((8, 8), chunks=4), {"shards": 4, "chunks": 2, "durability": "none"}

    async def main():
        cluster = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
        async with Client(asynchronous=True, processes=False, **cluster):
            with pytest.raises(SpecError, match=r"in a thread: `await asyncio\.to_thread"):
                x.to_sharded_zarr(tmp_path / "x", **options)
            assert not list(tmp_path.iterdir())
            return await asyncio.to_thread(x.to_sharded_zarr, tmp_path / "x", **options)

    assert asyncio.run(main()).n_shards == 4
    assert shardwrite.verify(tmp_path / "x", against=x).is_good


def test_results_that_another_cluster_has_are_told(tmp_path):
    """As those of a cluster that was restarted."""
    cluster = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"}
    x, options = da.ones((8, 8), chunks=4) + 1, {"shards": 4, "chunks": 2, "durability": "none"}
    with Client(processes=False, **cluster) as other:
        persisted = other.persist(x)
        wait(persisted)
        with Client(processes=False, **cluster) as client:
            with pytest.raises(ClusterLostError, match="persist them there, and write the source"):
                persisted.to_sharded_zarr(tmp_path / "x", **options)
            here = client.persist(x)
            assert here.to_sharded_zarr(tmp_path / "x", **options).n_shards == 4
    assert shardwrite.verify(tmp_path / "x", against=x).is_good


@pytest.mark.long
def test_tasks_of_one_process_may_write_at_once(tmp_path):
    """No client is in that process before they look for one."""
    options = {"n_workers": 1, "threads_per_worker": 4, "dashboard_address": None}
    with LocalCluster(processes=True, **options) as processes, Client(processes) as client:
        paths = [str(tmp_path / f"{n}") for n in range(4)]
        assert all(client.gather(client.map(write_in_a_task, paths, has_left=False)))


@pytest.mark.long
def test_the_choice_is_the_same_where_distributed_was_never_imported():
    program = """
import sys
import dask.local
from shardwrite.engines import _scheduler
from shardwrite.engines import active_engine
words = None, "", "threads", "Threading", "processes", "sync", "synchronous", "single-threaded"
chosen = [*words, dask.local.get_sync]
found = []
for scheduler in chosen:
    with dask.config.set(scheduler=scheduler):
        found.append((_scheduler(), active_engine().kind))
assert "distributed" not in sys.modules
assert _scheduler() is None
for scheduler, (get, kind) in zip(chosen, found):
    with dask.config.set(scheduler=scheduler):
        assert get is dask.base.get_scheduler(), scheduler
        assert kind == active_engine().kind, scheduler
assert "distributed" in sys.modules
"""
    subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=Path(__file__).parent.parent.parent
    )


@pytest.mark.parametrize("chosen", ["distributed", "no such scheduler"])
def test_a_scheduler_that_is_not_there_is_refused_by_dask(chosen):
    with dask.config.set(scheduler=chosen), pytest.raises((RuntimeError, ValueError)):
        shardwrite.engines.active_engine()


@pytest.mark.parametrize(
    "key",
    [
        (slice(3, 60, 7), slice(None), slice(0, 0)),
        (slice(60, 3, -7), slice(None, None, -1), slice(5, 6)),
        (5, slice(2, 50), -1),
        (np.array([3, 69, 3]), slice(60, 65), slice(None)),
        (slice(None), np.array([True] + [False] * 63 + [True]), 7),
        (slice(10, 5), slice(None), slice(None)),
    ],
)
def test_the_view_indexes_as_numpy_does(tmp_path, array, key):
    da.from_array(array, chunks=20).to_sharded_zarr(tmp_path / "x", **KEYWORDS)
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "x")[key], array[key])
    y = shardwrite.from_sharded_zarr(tmp_path / "x")
    np.testing.assert_array_equal(y[key].compute(), array[key])


@pytest.mark.long
def test_a_cluster_without_workers_is_told(tmp_path, array, monkeypatch):
    """dask waits for them in silence."""
    monkeypatch.setattr("shardwrite.engines.cluster._QUIET_SECONDS", 0.1)
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        coming = threading.Timer(2, cluster.scale, [1])
        coming.start()
        with pytest.warns(UserWarning, match="The cluster has no workers") as told:
            da.from_array(array, chunks=32).to_sharded_zarr(tmp_path / "x", **KEYWORDS)
        coming.join()
    assert len([one for one in told if "no workers" in str(one.message)]) == 1
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], array)


@pytest.mark.parametrize("comes", ["by itself", "when there are tasks"])
def test_a_plan_waits_for_the_first_worker(array, comes):
    """Its memory and threads are those of the plan, and not those of this machine."""
    with (
        LocalCluster(
            n_workers=0,
            threads_per_worker=3,
            memory_limit="1GiB",
            processes=False,
            dashboard_address=None,
        ) as cluster,
        Client(cluster),
    ):
        if comes == "by itself":
            coming = threading.Timer(0.5, cluster.scale, [1])
            coming.start()
        else:
            cluster.adapt(minimum=0, maximum=1, interval="100ms")
        plan = shardwrite.plan(da.from_array(array, chunks=32), shards=32, chunks=8)
        found = plan.resources
        assert (found.n_processes, found.n_threads, found.memory_limit_nbytes) == (1, 3, 2**30)


def test_a_process_that_is_to_stop_waits_for_no_worker(array):
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        seams.request_stop()
        try:
            with pytest.raises(IncompleteError, match="before a worker has come"):
                shardwrite.plan(da.from_array(array, chunks=32), shards=32, chunks=8)
        finally:
            seams.forget_stop()


@pytest.mark.parametrize("kind", ["threads", "sync"])
def test_runs_in_two_threads_keep_their_results(kind):
    """Both have begun before either computes; dask's own callbacks belong to the whole process."""
    meet, found = threading.Barrier(2), {"a": [], "b": []}

    def run(name):
        engine = LocalEngine(kind)
        get = engine._get

        def late(*arguments, **keywords):
            meet.wait(30)
            return get(*arguments, **keywords)

        engine._get = late
        tasks = {(name, i): Task((name, i), int, i) for i in range(5)}
        graph = HighLevelGraph({name: tasks}, {name: set()})
        engine.run(graph, list(tasks), lambda key, value: found[name].append((key, value)))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, found))
    assert {name: sorted(told) for name, told in found.items()} == {
        name: [((name, i), i) for i in range(5)] for name in found
    }


@pytest.mark.parametrize("kind", ["threads", "sync"])
def test_callbacks_of_the_user_are_called(kind):
    tasks = {("a", i): Task(("a", i), int, i) for i in range(3)}
    seen, told = set(), []
    with Callback(posttask=lambda key, *_: seen.add(key)):
        LocalEngine(kind).run(
            HighLevelGraph({"a": tasks}, {"a": set()}),
            list(tasks),
            lambda key, value: told.append(key),
        )
        assert len(Callback.active) == 1
    assert seen == set(told) == set(tasks)


@pytest.mark.parametrize("given", [-1, 2.7, "two"])
def test_a_number_of_workers_that_is_none_is_refused(tmp_path, given):
    with (
        dask.config.set(num_workers=given),
        pytest.raises(SpecError, match="num_workers"),
    ):
        shardwrite.to_sharded_zarr(np.ones(4), tmp_path / "x", shards=2, chunks=1)
    assert not os.listdir(tmp_path)
