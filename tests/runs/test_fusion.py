"""Small source tasks in the tasks of groups: the same values, one task a group, and nothing run
twice."""

from __future__ import annotations

from collections import Counter

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from dask.sizeof import sizeof
from dask.task_spec import List, Task, TaskRef
from distributed import Client, LocalCluster
from tiers import some

import shardwrite
from shardwrite import CorruptShardError, SourceError
from shardwrite.encode.unit import Damaged
from shardwrite.engines import ClusterEngine, LocalEngine
from shardwrite.format.document import ArrayOptions
from shardwrite.grid import Box
from shardwrite.plan.options import PlanOptions
from shardwrite.runs.array_plan import ArrayChunks, plan_array
from shardwrite.runs.execute import fuse_source, is_worth_fusing
from shardwrite.write.tasks import Row, cut_block

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


def test_what_a_cluster_holds_already_is_no_task():
    """As what `Client.scatter` returns, which tasks name and no graph has."""
    key, needed = ("sum", 0), TaskRef("held by workers")
    tasks = {key: Task(key, sum_of, List(TaskRef(("x", 0)), needed)), ("x", 0): Task(("x", 0), int)}
    graph = dask.highlevelgraph.HighLevelGraph({"all": tasks}, {"all": set()})
    for only_chains in (False, True):
        fused = fuse_source(graph, [key], only_chains=only_chains).to_dict()
        assert "held by workers" in fused[key].dependencies


def test_what_two_tasks_need_stays_a_task():
    x = da.arange(60, chunks=10)
    graph, keys = sums(x, [[(0,), (1,)], [(1,), (2,)]])
    fused = fuse_source(graph, keys)
    assert set(fused.to_dict()) == {*keys, (x.name, 1)}
    assert computed(fused, keys) == computed(graph, keys)


def test_only_tasks_that_follow_each_other_are_fused_where_each_takes_long():
    x = da.from_array(np.arange(60), chunks=10, name="x")
    y = (x + 1) * 2
    graph, keys = sums(y - y.mean(), [[(0,), (1,), (2,)], [(3,), (4,), (5,)]])
    fused = fuse_source(graph, keys, only_chains=True)
    assert computed(fused, keys) == computed(graph, keys)
    names = Counter(str(key[0]).split("-")[0] for key in fused.to_dict() if isinstance(key, tuple))
    assert names["mul"] == 6, "the sum before it goes into it; both the mean and the result need it"
    assert names["add"] == 0
    assert names["sub"] == 6, "two tasks of their own, that may run at the same time"


def test_tasks_that_are_tuples_stay_as_they_are():
    x = da.from_array(np.arange(60), chunks=30, name="x") + 1
    graph, keys = sums(x, [[(0,)], [(1,)]])
    tuples = {("old", i): (sum_of, [(x.name, i)]) for i in range(2)}
    layers = {"old": tuples, **graph.layers}
    both = dask.highlevelgraph.HighLevelGraph(layers, {"old": {"all"}, "all": set()})
    fused = fuse_source(both, [*tuples, *keys], only_chains=True)
    assert computed(fused, [*tuples]) == computed(fused, keys) == [465, 1365]


class CountedKey(str):
    """A key that counts how often it is looked up."""

    __slots__ = ()
    n_hashed = 0

    def __hash__(self):
        CountedKey.n_hashed += 1
        return super().__hash__()


def test_each_layer_costs_the_same_however_many_there_are():
    """A dataset has a layer for each variable; some tasks are such that dask searches in them."""

    def n_hashed(n_layers):
        layers = {f"x-{n}": {CountedKey(f"x-{n}"): (abs, -n)} for n in range(n_layers)}
        graph = dask.highlevelgraph.HighLevelGraph(layers, {name: set() for name in layers})
        keys = [key for layer in layers.values() for key in layer]
        CountedKey.n_hashed = 0
        fused = fuse_source(graph, keys)
        assert computed(fused, keys) == [*range(n_layers)]
        return CountedKey.n_hashed

    assert n_hashed(200) < 3 * n_hashed(100)


def test_what_is_cut_is_sent_without_the_rest_of_its_chunk():
    """A large chunk that two tasks cut stays where it is, and a small one is cheaper to send."""
    for n, is_cut_first in (2**10, False), (2**18, True):
        x = da.zeros((4, n), chunks=(4, n), dtype="u8")
        graph, keys = dict(x.dask), [("use", 0), ("use", 1)]
        for key in keys:
            cut, inside = ("cut", key[1]), Box((2 * key[1], 0), (2 * key[1] + 2, n))
            whole = Box((0, 0), (4, n))
            graph[cut] = Task(cut, cut_block, TaskRef((x.name, 0, 0)), whole, inside, x.dtype)
            graph[key] = Task(key, sum_of, List(TaskRef(cut)))
        layered = dask.highlevelgraph.HighLevelGraph({"all": graph}, {"all": set()})
        for only_chains in (False, True):
            fused = fuse_source(layered, keys, only_chains=only_chains)
            assert (("cut", 0) in fused.to_dict()) == is_cut_first
            assert computed(fused, keys) == [0, 0]


class Far(LocalEngine):
    """Threads that are taken for other processes; it notes the tasks of each graph."""

    def __init__(self):
        super().__init__("threads")
        self.shares_memory, self.names = False, []

    def run(self, graph, keys, on_result, explain=None):
        self.names += [key[0] for key in graph.to_dict() if isinstance(key, tuple)]
        super().run(graph, keys, on_result, explain)


@pytest.mark.parametrize("layout", ["fused", "direct"])
def test_thin_slabs_are_made_and_cut_a_few_at_a_time(tmp_path, layout):
    """With a task for each slab in each group, more than 2,000 would cut."""
    values = np.arange(128 * 256 * 256, dtype="u2").reshape(128, 256, 256)
    x = da.from_array(values, chunks=(1, 256, 256), name="x") + 1
    shards = (64, 64, 64) if layout == "fused" else (128, 128, 256)
    with dask.config.set(num_workers=2):
        engine = Far()
        options = PlanOptions(memory_limit=None if layout == "fused" else "40MB")
        plan = plan_array(x, engine, ArrayOptions(shards=shards, chunks=32), options)
    assert plan.layout == layout
    source = ArrayChunks(x)
    seams.run_job(source, plan, tmp_path / "x", engine)
    (row,) = {name for name in engine.names if "-rows-" in name}
    n_rows = engine.names.count(row)
    n_cut = sum(name.startswith("shardwrite-cut") for name in engine.names)
    assert 8 <= n_rows <= 16
    assert n_cut <= 16 * plan.partition.n_blocks
    assert x.name not in engine.names, "slabs are made by the tasks of rows"
    thick = 128 // n_rows
    assert source.box_of((row, 1, 0, 0)) == Box((thick, 0, 0), (2 * thick, 256, 256))
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], values + 1)


def test_a_row_whose_slabs_cannot_all_be_read():
    """What is damaged in one of them is damaged at its place in what is cut, and nothing else."""
    bad = Damaged(np.ones((1, 4), "u1"), ((Box((0, 1), (1, 3)), CorruptShardError("no")),))
    row = Row([np.zeros((1, 4), "u1"), bad, np.full((1, 4), 2, "u1")], 0, (1, 1, 1))
    whole, dtype = Box((10, 0), (13, 4)), np.dtype("u1")
    cut = cut_block(row, whole, Box((11, 2), (13, 4)), dtype)
    assert cut.values.tolist() == [[1, 1], [2, 2]]
    assert [part for part, _ in cut.bad] == [Box((0, 0), (1, 1))]
    fine = cut_block(row, whole, Box((12, 0), (13, 4)), dtype)
    assert fine.tolist() == [[2, 2, 2, 2]]
    assert sizeof(row) >= 12
    with pytest.raises(SourceError, match=r"declared shape \(1, 4\)"):
        cut_block(Row([np.zeros((2, 4))], 0, (1,)), Box((0, 0), (1, 4)), Box((0, 0), (1, 2)), dtype)


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
