"""The plan: exact partitions, honest numbers, stable digests."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import tracemalloc

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwrite
from shardwrite.grid import Box, ShardGrid
from shardwrite.plan.edges import Edges
from shardwrite.plan.partition import make_partition

quick = settings(max_examples=80)


@st.composite
def cuts(draw):
    """A grid, a source's chunks, and a task size."""
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(1, 60 // ndim)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 5)) for _ in range(ndim))
    shards = tuple(c * draw(st.integers(1, 6)) for c in chunks)
    source = []
    for n in shape:
        edges = sorted({0, n, *draw(st.sets(st.integers(1, n), max_size=8))})
        source.append(tuple(int(d) for d in np.diff(edges)))
    return ShardGrid(shape, shards, chunks), tuple(source), draw(st.integers(1, 4000))


@quick
@given(cuts(), st.booleans())
def test_groups_and_blocks_partition_the_array(case, fused):
    grid, source, task_nbytes = case
    partition = make_partition(
        grid, [Edges.from_sizes(sizes) for sizes in source], 2, task_nbytes=task_nbytes, fused=fused
    )
    cover = np.zeros(grid.shape, int)
    owner = {}
    for rank, group in enumerate(map(partition.group_box, range(partition.n_groups))):
        for index in grid.shards_in(group):
            assert owner.setdefault(index, rank) == rank, "a shard in two groups"
            assert group.contains(grid.shard_box(index).intersect(grid.whole))
        blocks = partition.blocks_in(group)
        assert sum(block.size for block in blocks) == group.size
        for block in blocks:
            cover[block.slices] += 1
            assert group.contains(block)
            assert all(a % c == 0 for a, c in zip(block.start, grid.chunks, strict=True))
            assert all(
                b % c == 0 or b == n
                for b, c, n in zip(block.stop, grid.chunks, grid.shape, strict=True)
            )
    assert (cover == 1).all()
    assert len(owner) == grid.n_shards
    if fused:
        assert partition.is_fused


def make(shape=(40, 50), chunks=7, **keywords):
    return shardwrite.plan(
        da.zeros(shape, chunks=chunks, dtype="u2"),
        **{"shards": 16, "chunks": 4, "source_id": "s", **keywords},
    )


@pytest.mark.long
@quick
@given(st.integers(1, 20), st.integers(1, 4))
def test_parts_partition_the_groups(count, scale):
    plan = make((40 * scale, 50), memory_limit="30kB")
    parts = [plan.part(index, count) for index in range(count)]
    assert list(itertools.chain(*(part.groups for part in parts))) == list(
        range(plan.partition.n_groups)
    )
    assert sum(part.raw_nbytes for part in parts) == plan.raw_nbytes
    largest = math.prod(plan.partition.largest_group) * 2
    assert all(abs(part.raw_nbytes - plan.raw_nbytes / count) <= largest + 1 for part in parts)
    keys = [ref.key for part in parts for ref in part.shards]
    assert len(keys) == len(set(keys)) == plan.n_shards
    again = make((40 * scale, 50), memory_limit="30kB")
    assert parts == [again.part(index, count) for index in range(count)]


@pytest.mark.parametrize(("index", "count"), [(-1, 2), (2, 2), (0, 0), (True, 2)])
def test_no_such_part(index, count):
    with pytest.raises(shardwrite.SpecError, match="part"):
        make().part(index, count)


@pytest.mark.long
@quick
@given(st.tuples(*[st.tuples(st.integers(0, 50), st.integers(0, 50))] * 2))
def test_shards_for_a_region(bounds):
    plan = make()
    region = tuple(slice(*pair) for pair in bounds)
    mask = np.zeros((40, 50), bool)
    mask[region] = True
    refs = {ref.index: ref for ref in plan.shards_for(region)}
    for i, j in itertools.product(range(3), range(4)):
        inside = mask[i * 16 : i * 16 + 16, j * 16 : j * 16 + 16]
        assert ((i, j) in refs) == bool(inside.any())
        if (i, j) in refs:
            assert refs[i, j].is_whole == bool(inside.all())
            assert refs[i, j].key == f"c/{i}/{j}"


@pytest.mark.parametrize(
    "region", [(slice(0, 4), slice(0, 4, 2)), (0, 0, 0), (99,), slice(0, 40, -1)]
)
def test_no_such_region(region):
    with pytest.raises(shardwrite.SpecError, match="region"):
        make().shards_for(region)


def test_regions_as_numpy_takes_them():
    plan = make()
    assert [r.key for r in plan.shards_for(-1)] == ["c/2/0", "c/2/1", "c/2/2", "c/2/3"]
    assert [r.key for r in plan.shards_for((..., 0))] == ["c/0/0", "c/1/0", "c/2/0"]
    assert [r.key for r in plan.shards_for(Box((0, 0), (1, 1)))] == ["c/0/0"]


def test_long_source_chunks_make_thicker_waves():
    """Where waves are thin because blocks go to part files, no source chunk is needed by many."""
    chunks = {"shards": 512, "chunks": 64, "memory_limit": "16GB"}
    for source, n_waves in (
        ((2048, 128, 128), 1),
        ((1536, 64, 256), 2),
        ((128, 128, 2048), 4),
        ((384, 128, 2048), 2),
    ):
        x = da.zeros((2048, 2048, 2048), chunks=source, dtype="u1")
        plan = shardwrite.plan(x, **chunks)
        assert plan.layout == "staged"
        assert (len(plan.waves), plan.source_reruns <= 1.25) == (n_waves, True)
        rows = max(wave.groups.shape[0] for wave in plan.waves)
        assert plan.staged_nbytes == rows * 512 * 2048 * 2048 == plan.to_dict()["staged_nbytes"]
        assert "  part files    at most " in str(plan)
        assert len(shardwrite.plan(x, **chunks, max_source_reruns=100).waves) == 4


EXPRESSIONS = {
    "transposed": lambda x: x.transpose(),
    "added": lambda x: x + x * 2,
    "with its transposition": lambda x: x + x.T,
    "with a row": lambda x: x + x[:1],
    "without its mean": lambda x: x - x.mean(),
    "multiplied": lambda x: x.dot(x),
    "flipped": lambda x: x[::-1, ::-1],
}


@pytest.mark.parametrize("made", EXPRESSIONS)
def test_runs_of_source_tasks_are_those_of_the_graphs(made):
    """They are counted by chunks only where that is the same as a count of the tasks."""
    x = EXPRESSIONS[made](da.zeros((240, 240), chunks=(35, 35), dtype="f4"))
    keywords = {"shards": 48, "chunks": 8, "max_graph_tasks": 30, "max_source_reruns": 100}
    plan = shardwrite.plan(x, **keywords)
    assert len(plan.waves) > 1
    edges = [[0, *itertools.accumulate(sizes)] for sizes in x.chunks]
    n_run, seen = 0, set()
    for wave in plan.waves:
        needed = [
            index
            for index in itertools.product(*(range(n) for n in x.numblocks))
            if Box(
                tuple(e[i] for e, i in zip(edges, index, strict=True)),
                tuple(e[i + 1] for e, i in zip(edges, index, strict=True)),
            )
            .intersect(wave.box)
            .size
        ]
        keys = set(x.dask.cull({(x.name, *index) for index in needed}).to_dict())
        n_run, seen = n_run + len(keys), seen | keys
    assert plan.source_reruns == pytest.approx(n_run / len(seen))


@pytest.mark.parametrize("limit", [1, 7, 30, 1000])
def test_waves_partition_the_groups(limit):
    plan = make((200, 200), memory_limit="30kB", max_graph_tasks=limit, max_source_reruns=100)
    ranks = [rank for wave in plan.waves for rank in wave.ranks()]
    assert sorted(ranks) == list(range(plan.partition.n_groups))
    assert (len(plan.waves) > 1) == (plan.n_tasks > limit)


def test_the_digest_names_the_run():
    digest = make().digest
    assert digest == make().digest
    assert digest == make(memory_limit="1GB").digest, "resources change no byte"
    others = [
        make(source_id="t"),
        make(shards=8),
        make(strategy="F"),
        make(fill_value=1),
        make(write_empty_chunks=True),
    ]
    assert len({digest, *(plan.digest for plan in others)}) == len(others) + 1
    # units are part of what append-only writes
    units = {
        make(strategy="append-only", shards=(40, 52), memory_limit=limit).digest
        for limit in ("12kB", "1GB")
    }
    assert len(units) == 2


def test_json_and_html():
    plan = make()
    facts = json.loads(plan.to_json())
    assert facts["digest"] == plan.digest
    assert facts["shards"] == 12
    assert facts["inner_chunks"] == 10 * 13
    assert facts["overhang_fraction"] == pytest.approx(1 - 2000 / (12 * 256))
    html = plan._repr_html_()
    assert "<svg" in html
    assert "3 x 4 shards" in html
    assert "up to 12 files" in str(plan)


def test_the_proposals_own_example():
    x = da.zeros((25000, 18000, 6000), chunks=256, dtype="u1")
    plan = shardwrite.plan(x, shards=2048, chunks=64, memory_limit="64GB")
    assert plan.n_shards == 13 * 9 * 3
    assert plan.metadata.grid.n_chunks_per_shard == 32**3
    assert plan.n_inner_chunks == 391 * 282 * 94
    assert plan.raw_nbytes == 25000 * 18000 * 6000
    assert len(plan.waves) >= plan.n_tasks / 100_000
    assert plan.source_reruns <= 1.25


def test_memory_is_said_and_held_against_the_limit():
    plan = shardwrite.plan(
        da.zeros((512, 512, 512), chunks=(1, 512, 512), dtype="u2"),
        shards=128,
        chunks=32,
        memory_limit="2GB",
    )
    slabs_alive = 32 * 512 * 512 * 2
    assert plan.memory.source_nbytes >= slabs_alive
    assert plan.memory.total_nbytes <= 2e9
    with pytest.raises(shardwrite.PlanError, match="slabs") as caught:
        shardwrite.plan(
            da.zeros((512, 4096, 4096), chunks=(1, 4096, 4096), dtype="u2"),
            shards=512,
            chunks=64,
            memory_limit="1GB",
        )
    assert caught.value.needed_nbytes > caught.value.allowed_nbytes == 10**9
    expected = shardwrite.plan(
        da.zeros((2048, 512, 512), chunks=256, dtype="u1"),
        shards=(2048, 512, 512),
        chunks=64,
        compression_ratio=8,
    )
    assert expected.expected_memory.total_nbytes <= expected.memory.total_nbytes


def _zeros(block_info):
    return np.zeros(block_info[None]["chunk-shape"], "u2")


@pytest.mark.parametrize(
    ("memory_limit", "n_waves"), [pytest.param("1GB", 1, marks=pytest.mark.long), ("70MB", 2)]
)
def test_memory_with_source_chunks_across_shards(tmp_path, memory_limit, n_waves):
    """Such a chunk is kept until the last of its shards is written; thinner waves keep fewer of
    them."""
    chunks = da.core.normalize_chunks((50, 55, 45), (256, 512, 512))
    x = da.map_blocks(_zeros, chunks=chunks, dtype="u2", meta=np.empty((0, 0, 0), "u2"))
    keywords = {
        "shards": 128,
        "chunks": 32,
        "compressors": None,
        "memory_limit": memory_limit,
        "max_source_reruns": 2,
    }
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = shardwrite.plan(x, **keywords)
        assert len(plan.waves) == n_waves
        tracemalloc.start()
        try:
            x.to_sharded_zarr(tmp_path / "x", **keywords, durability="none")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert plan.bound.border_nbytes > 0
    assert 0.2 * plan.bound.total_nbytes < peak <= 1.1 * plan.bound.total_nbytes


def updated(path, shape, chunks, region, **keywords):
    """The plan of an update in one thread, and the peak of the memory that it takes."""
    x = da.map_blocks(_ones, chunks=da.core.normalize_chunks(chunks, shape), dtype="u1")
    with dask.config.set(scheduler="sync"):
        plan = shardwrite.plan_region(x, path, region, **keywords)
        tracemalloc.start()
        try:
            shardwrite.write_region(x, path, region, durability="none", **keywords)
            return plan, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def _ones(block_info):
    return np.ones(block_info[None]["chunk-shape"], "u1")


IN_PLACE = shardwrite.FixedOrder(in_place=True)


@pytest.mark.parametrize("strategy", ["fixed-order", IN_PLACE, "append-only"], ids=str)
def test_memory_of_shards_that_an_update_covers_in_part(tmp_path, strategy):
    """A task holds their new inner chunks until all of them are encoded."""
    shape, keywords = (48, 1024, 1024), {"shards": (24, 1024, 1024), "chunks": (8, 256, 256)}
    shardwrite.create(tmp_path / "x", shape, "u1", compressors=None, **keywords)
    plan, peak = updated(
        tmp_path / "x", (46, 1024, 1024), (23, 1024, 1024), slice(1, 47), strategy=strategy
    )
    assert plan.layout == "fused"
    assert 0.5 * plan.memory.total_nbytes < peak <= 1.1 * plan.memory.total_nbytes


@pytest.mark.parametrize(
    ("n_planes", "memory_limit"), [(8, "20MB"), pytest.param(96, "50MB", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("strategy", ["fixed-order", IN_PLACE], ids=str)
def test_memory_of_a_slab_of_a_large_shard(tmp_path, strategy, n_planes, memory_limit):
    """What the slab leaves alone is no source chunk. What it overwrites in place is not held."""
    shape, keywords = (256, 512, 512), {"shards": (256, 512, 512), "chunks": (8, 128, 128)}
    shardwrite.create(tmp_path / "x", shape, "u1", compressors=None, **keywords)
    shardwrite.write_region(2, tmp_path / "x", ..., durability="none")
    plan, peak = updated(
        tmp_path / "x",
        (n_planes, 512, 512),
        (8, 512, 512),
        slice(80, 80 + n_planes),
        strategy=strategy,
        memory_limit=memory_limit,
    )
    assert plan.layout != "fused"
    assert 0.1 * plan.bound.total_nbytes < peak <= 1.1 * plan.bound.total_nbytes


@pytest.mark.parametrize("source", [(512, 512, 512), (256, 512, 256), (128, 128, 128)])
def test_source_chunks_of_whole_shards_wait_for_nobody(source):
    x = da.zeros((4096, 4096, 4096), chunks=source, dtype="u2")
    plan = shardwrite.plan(x, shards=256, chunks=64, memory_limit="16GB")
    assert plan.bound.border_nbytes == 0
    assert plan.source_reruns == 1


@pytest.mark.parametrize("chunks", [60, 50, 40, 30, (1, 256, 256)], ids=str)
def test_more_memory_never_makes_a_plan_impossible(chunks):
    x = da.zeros((256, 256, 256), chunks=chunks, dtype="u1")
    fitting = []
    for limit in range(2_000_000, 48_000_000, 1_000_000):
        with contextlib.suppress(shardwrite.PlanError):
            plan = shardwrite.plan(
                x, shards=(256, 128, 64), chunks=32, memory_limit=limit, max_source_reruns=1000
            )
            assert plan.bound.total_nbytes <= limit
            fitting.append(limit)
    assert 2_000_000 < fitting[0] < 30_000_000
    assert fitting == list(range(fitting[0], 48_000_000, 1_000_000))


def test_more_threads_begin_more_shards():
    """Encoded blocks of one shard for about each thread wait if a shard has few blocks."""
    x = da.zeros((4096, 512, 512), chunks=(64, 256, 256), dtype="u2")
    shard_nbytes = 2 * 256 * 512 * 512
    found = []
    for n_threads in (1, 2, 4, 16):
        with dask.config.set(scheduler="threads", num_workers=n_threads):
            plan = shardwrite.plan(x, shards=(256, 512, 512), chunks=32, memory_limit="64GB")
        assert plan.layout == "direct"
        found.append(plan.memory.waiting_nbytes / shard_nbytes)
    assert found[:2] == [2, 2]
    assert 2 < found[2] < found[3] <= 8


def test_entries_of_many_inner_chunks_take_memory():
    x = da.zeros((2**26,), chunks=2**20, dtype="u1")
    with dask.config.set(scheduler="threads", num_workers=2):
        few, many = (
            shardwrite.plan(x, shards=2**25, chunks=n, memory_limit="4GB").memory.encode_nbytes
            for n in (2**13, 2**5)
        )
        assert many - few > 2 * 2**20 * 100
        with pytest.raises(shardwrite.PlanError, match="larger inner chunks"):
            shardwrite.plan(x, shards=2**25, chunks=2**5, memory_limit="200MB")
