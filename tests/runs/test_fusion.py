"""Small source tasks in the tasks of groups: the same values, one task a group, and nothing run
twice."""

from __future__ import annotations

from collections import Counter

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from dask.task_spec import List, Task, TaskRef
from distributed import Client, LocalCluster
from tiers import some

import shardwrite
from shardwrite.engines import ClusterEngine, LocalEngine
from shardwrite.runs.execute import fuse_source, is_worth_fusing

LAYOUT = {"shards": (8, 8), "chunks": (4, 4)}


def sums(x, sides):
    """A graph of one task a group of source chunks, and its keys."""
    graph = dict(x.dask)
    keys = []
    for group, side in enumerate(sides):
        keys.append(("sum", group))
        graph[keys[-1]] = Task(
            keys[-1], sum_of, List(*(TaskRef((x.name, *index)) for index in side))
        )
    layers = {"all": graph}
    return dask.highlevelgraph.HighLevelGraph(layers, {"all": set()}), keys


def sum_of(blocks):
    return sum(int(block.sum()) for block in blocks)


def computed(graph, keys):
    return list(dask.get(graph, keys))


def test_what_only_one_task_needs_goes_into_it():
    x = da.arange(60, chunks=10) + 1
    graph, keys = sums(x, [[(0,), (1,)], [(2,), (3,), (4,)]])
    fused = fuse_source(graph, keys)
    assert set(fused.to_dict()) == set(keys)
    assert computed(fused, keys) == computed(graph, keys) == [210, 1065]


def test_what_two_tasks_need_stays_a_task():
    x = da.arange(60, chunks=10)
    graph, keys = sums(x, [[(0,), (1,)], [(1,), (2,)]])
    fused = fuse_source(graph, keys)
    assert set(fused.to_dict()) == {*keys, (x.name, 1)}
    assert computed(fused, keys) == computed(graph, keys)


def test_what_all_of_the_source_needs_stays_a_task():
    x = da.from_array(np.arange(60), chunks=10)
    y = x - x.mean()
    graph, keys = sums(y, [[(0,), (1,)], [(2,), (3,)]])
    assert computed(fuse_source(graph, keys), keys) == computed(graph, keys)


def test_worth_it_where_scheduling_takes_longer_than_the_tasks():
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        engine = ClusterEngine(client)
        few = shardwrite.plan(da.zeros((64, 64), chunks=16, dtype="u1"), **LAYOUT)
        assert not is_worth_fusing(few, engine), "one group, and two threads"
        many = da.zeros((8192, 8192), chunks=256, dtype="u1")
        large = da.zeros((8192, 8192), chunks=(1024, 2048), dtype="u1")
        layout = {"shards": (512, 512), "chunks": (256, 256)}
        assert is_worth_fusing(shardwrite.plan(many, **layout), engine)
        assert not is_worth_fusing(shardwrite.plan(large, **layout), engine), (
            "each takes longer than scheduling it, and may run alone"
        )
        one_each = shardwrite.plan(
            large, shards=(1024, 2048), chunks=(256, 256), memory_limit="64MB"
        )
        assert one_each.source.n_chunks == one_each.partition.n_groups
        assert is_worth_fusing(one_each, engine)
    assert is_worth_fusing(shardwrite.plan(many, **layout), LocalEngine("threads"))
    assert not is_worth_fusing(shardwrite.plan(many, **layout), LocalEngine("processes"))


@pytest.mark.long
@pytest.mark.parametrize("n_arrays", some([1, 2], 2))
def test_a_source_of_small_chunks_on_a_cluster(tmp_path, n_arrays):
    values = np.random.default_rng(0).integers(0, 200, (2048, 2048), dtype="u1")
    log = tmp_path / "ran"

    def made(block_info=None):
        box = block_info[None]["array-location"]
        with log.open("a") as lines:
            lines.write(f"{box}\n")
        return values[tuple(slice(a, b) for a, b in box)]

    chunks = ((64,) * 32,) * 2
    x = da.map_blocks(made, chunks=chunks, dtype="u1", meta=np.empty((0, 0), "u1"))
    targets = [tmp_path / f"{number}.zarr" for number in range(n_arrays)]
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        if n_arrays == 1:
            shardwrite.to_sharded_zarr(x, targets[0], shards=(512, 512), chunks=(64, 64))
        else:
            shardwrite.store([x, x], targets, shards=(512, 512), chunks=(64, 64))
    for target in targets:
        assert shardwrite.verify(target, deep=True).is_good
        np.testing.assert_array_equal(
            shardwrite.from_sharded_zarr(target).compute(scheduler="sync"), values
        )
    ran = Counter(log.read_text().splitlines())
    assert len(ran) == 32 * 32
    assert set(ran.values()) == {1}, "what several arrays share runs once"


def test_tasks_with_annotations_keep_them():
    """A task that needs a resource, or may be tried again, is none with the task of a group."""
    x = da.from_array(np.arange(60), chunks=10)
    with dask.annotate(resources={"GPU": 1}):
        y = x + 1
    groups = Task(("sum", 0), sum_of, List(*(TaskRef((y.name, i)) for i in range(6))))
    graph = dask.highlevelgraph.HighLevelGraph.from_collections(
        "sum", {("sum", 0): groups}, dependencies=[y]
    )
    keys = [("sum", 0)]
    kept = fuse_source(graph, keys)
    annotated = [layer for layer in kept.layers.values() if layer.annotations]
    assert [layer.annotations for layer in annotated] == [{"resources": {"GPU": 1}}]
    assert {key[0] for layer in annotated for key in layer} == {y.name}
    assert computed(kept, keys) == computed(graph, keys) == [1830]
    with dask.annotate(retries=2):  # of all that is made there
        z = x + 1
        groups = Task(("sum", 0), sum_of, List(*(TaskRef((z.name, i)) for i in range(6))))
        all_of_it = dask.highlevelgraph.HighLevelGraph.from_collections(
            "sum", {("sum", 0): groups}, dependencies=[z]
        )
        fused = fuse_source(all_of_it, keys)
    assert z.name not in {key[0] for key in fused.to_dict()}
    assert [layer.annotations for layer in fused.layers.values()] == [{"retries": 2}]


class Counting(LocalEngine):
    """An engine that notes the number of tasks of each graph, and runs none of many."""

    def __init__(self):
        super().__init__("threads")
        self.n_wanted, self.n_tasks = [], []

    def run(self, graph, keys, on_result, explain=None):
        self.n_wanted.append(len(keys))
        self.n_tasks.append(len(graph.cull(set(keys)).to_dict()))
        super().run(graph, keys, on_result, explain)


def of_zarr(x):
    return da.from_zarr(zarr.array(x.compute(), chunks=x.chunksize))


@pytest.mark.parametrize(
    ("make", "n_graphs"),
    [
        (of_zarr, 2),
        (lambda x: of_zarr(x) + 1, 2),
        (lambda x: x - x.max(), 1),
        (lambda x: x.map_overlap(lambda block: block, depth=1, dtype=x.dtype), 1),
    ],
    ids=["stored", "computed by chunks", "needs all", "needs neighbours"],
)
def test_a_tenth_goes_first_where_nothing_is_run_twice(tmp_path, monkeypatch, make, n_graphs):
    """So the first shard does not wait for a graph of all tasks."""
    x = make(da.arange(240 * 4, chunks=4, dtype="i4"))
    engine = Counting()
    monkeypatch.setattr("shardwrite.runs.execute._MANY_TASKS", 50)
    monkeypatch.setattr("shardwrite.operations.write.active_engine", lambda: engine)
    result = shardwrite.to_sharded_zarr(x, str(tmp_path / "x"), shards=4, chunks=4)
    assert result.n_shards + result.n_empty_shards == 240
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "x")[...], x.compute())
    assert len(engine.n_wanted) == n_graphs
    if n_graphs == 2:
        first, rest = engine.n_wanted
        assert first == (first + rest) // 10
        assert engine.n_tasks[0] <= 1.1 * engine.n_wanted[0] + 1  # and their source tasks in them


def test_a_plan_counts_reruns_of_what_an_array_holds_without_making_its_tasks(monkeypatch):
    x = of_zarr(da.arange(240 * 4, chunks=4, dtype="i4")) + 1
    monkeypatch.setattr(type(x.dask), "cull", None)
    plan = shardwrite.plan(x, shards=4, chunks=4, max_graph_tasks=50)
    assert len(plan.waves) > 4
    assert plan.source_reruns == 1
