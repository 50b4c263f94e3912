"""Plans: partitions without gaps or shared shards, parts, waves, regions, sizes and the digest."""

import itertools
import json
import math
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardwrite.errors import PlanError, SpecError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.strategies import AppendOnly, FixedOrder
from shardwrite.grid import Box, ShardGrid
from shardwrite.plan.edges import Edges
from shardwrite.plan.estimate import Resources, _along
from shardwrite.plan.model import SourceLayout, cut_waves, wave_thickness
from shardwrite.plan.options import PlanOptions, parse_nbytes, resolve_shapes
from shardwrite.plan.partition import Cuts, Partition, make_partition
from shardwrite.plan.plan import Update, make_plan
from shardwrite.plan.regions import as_box

GB = 10**9


def cells(box):
    return itertools.product(*(range(a, b) for a, b in box.bounds))


def assert_tiles(boxes, whole):
    """The boxes hold every cell of `whole` once and no other."""
    count = np.zeros([b - a for a, b in whole.bounds], np.int64)
    for box in boxes:
        assert whole.contains(box)
        assert box.size
        count[box.shift(whole.start).slices] += 1
    assert (count == 1).all()


def cut_axis(draw, n):
    """Source chunk sizes along an axis."""
    if n == 0:
        return (0,)
    cuts = draw(st.lists(st.integers(1, n), max_size=4))
    edges = sorted({0, n, *cuts})
    return tuple(b - a for a, b in itertools.pairwise(edges))


def edges_of(source):
    return [Edges.from_sizes(sizes) for sizes in source]


@st.composite
def cases(draw, max_ndim=3, smallest=0):
    ndim = draw(st.integers(0, max_ndim))
    shape = tuple(draw(st.integers(smallest, 20)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    shards = tuple(c * draw(st.integers(1, 4)) for c in chunks)
    source = tuple(cut_axis(draw, n) for n in shape)
    return ShardGrid(shape, shards, chunks), source


def check_partition(partition, grid):
    groups = list(map(partition.group_box, range(partition.n_groups)))
    if not math.prod(grid.shape):
        assert sum(g.size for g in groups) == 0
        return
    assert len(groups) == partition.n_groups
    assert_tiles(groups, grid.whole)
    seen = {}
    n_blocks = 0
    for rank, group in enumerate(groups):
        assert all(a % s == 0 for a, s in zip(group.start, grid.shards, strict=True))
        assert all(
            b % s == 0 or b == n
            for b, s, n in zip(group.stop, grid.shards, grid.shape, strict=True)
        )
        for index in grid.shards_in(group):
            assert seen.setdefault(index, rank) == rank, "a shard in two groups"
        blocks = partition.blocks_in(group)
        n_blocks += len(blocks)
        assert_tiles(blocks, group)
        for block in blocks:
            assert all(a % c == 0 for a, c in zip(block.start, grid.chunks, strict=True))
            assert all(
                b % c == 0 or b == n
                for b, c, n in zip(block.stop, grid.chunks, grid.shape, strict=True)
            )
            assert all(x <= y for x, y in zip(block.shape, partition.largest_block, strict=True))
        assert all(x <= y for x, y in zip(group.shape, partition.largest_group, strict=True))
    assert n_blocks == partition.n_blocks
    assert len(seen) == grid.n_shards
    assert partition.is_fused == (n_blocks == len(groups))


@pytest.mark.long
@settings(max_examples=300)
@given(cases(), st.integers(1, 8), st.integers(1, 4000), st.booleans())
def test_groups_and_blocks_tile_the_array(case, itemsize, task_nbytes, fused):
    grid, source = case
    partition = make_partition(
        grid, edges_of(source), itemsize, task_nbytes=task_nbytes, fused=fused
    )
    check_partition(partition, grid)
    assert (
        Partition.from_cuts(
            Cuts.from_dict(json.loads(json.dumps(partition.cuts.to_dict()))), grid.shape
        )
        == partition
    )
    if fused and grid.whole.size:
        assert partition.is_fused


@settings(max_examples=150)
@given(cases(), st.integers(1, 4000))
def test_groups_and_blocks_are_not_larger_than_they_must_be(case, task_nbytes):
    """A group of several shards fits the task; so does a block that is larger than the source's
    chunks and the inner ones."""
    grid, source = case
    assume(grid.whole.size)
    fused = make_partition(grid, edges_of(source), 1, task_nbytes=task_nbytes, fused=True)
    if any(g > s for g, s in zip(fused.largest_group, grid.shards, strict=True)):
        assert math.prod(fused.largest_group) <= task_nbytes
    blocks = make_partition(grid, edges_of(source), 1, task_nbytes=task_nbytes, fused=False)
    assert all(b <= g for b, g in zip(blocks.largest_block, blocks.largest_group, strict=True))


# ---- waves


@pytest.mark.long
@settings(max_examples=150)
@given(
    cases(smallest=1),
    st.integers(1, 2000),
    st.integers(1, 3000),
    st.integers(1, 100),
    st.integers(0, 2),
)
def test_waves_partition_the_groups(case, task_nbytes, n_tasks, max_tasks, n_thin):
    grid, source = case
    partition = make_partition(grid, edges_of(source), 1, task_nbytes=task_nbytes, fused=True)
    waves = cut_waves(partition, n_tasks, max_tasks, n_thin=n_thin)
    ranks = [rank for wave in waves for rank in wave.ranks()]
    assert sorted(ranks) == list(range(partition.n_groups))
    assert_tiles([wave.box for wave in waves], grid.whole)
    for wave in waves:
        inside = list(wave.ranks())
        assert sum(partition.group_box(rank).size for rank in inside) == wave.box.size
        assert all(wave.box.contains(partition.group_box(rank)) for rank in inside)
        assert wave.groups.shape[:n_thin] == (1,) * min(n_thin, grid.ndim)
    if n_tasks <= max_tasks and not n_thin:
        assert len(waves) == 1
    most = max(len(list(wave.ranks())) for wave in waves)
    assert most * n_tasks <= 2**grid.ndim * partition.n_groups * max_tasks or most == 1


def test_the_first_of_several_waves_is_small():
    """And is cut where waves are cut: what a source chunk spans is not cut."""
    grid = ShardGrid((4000, 40), (10, 10), (10, 10))
    partition = make_partition(
        grid, [Edges.regular(4000, 10), Edges.regular(40, 40)], 1, task_nbytes=100, fused=True
    )
    n = partition.n_groups
    assert [wave.groups.bounds[1:] for wave in cut_waves(partition, n, n // 4, n_thin=0)] == [
        ((0, partition.group_counts[1]),)
    ] * 5
    rows = [
        b - a
        for wave in cut_waves(partition, n, n // 4, n_thin=0)
        for a, b in wave.groups.bounds[:1]
    ]
    assert rows == [10, 90, 100, 100, 100]
    assert len(cut_waves(partition, n, n, n_thin=0)) == 1


@pytest.mark.long
@settings(max_examples=150)
@given(st.data(), st.floats(1, 3))
def test_waves_are_as_thick_as_source_chunks_need(data, most):
    """A source chunk lies in few waves on average, and no wave is thicker than needed, except that
    not every thickness is tried."""
    n = data.draw(st.integers(1, 200))
    step = data.draw(st.integers(1, n))
    edges, sizes = (*range(0, n, step), n), cut_axis(data.draw, n)
    starts = [0, *itertools.accumulate(sizes)]

    def touched(thickness):
        waves = (*edges[:-1:thickness], n)
        spans = [
            sum(a < stop and b > start for a, b in itertools.pairwise(waves))
            for start, stop in itertools.pairwise(starts)
        ]
        return sum(spans) / len(spans)

    found = wave_thickness(Edges.regular(n, step), Edges.from_sizes(sizes), most)
    n_groups = len(edges) - 1
    assert 1 <= found <= n_groups
    assert touched(found) <= most
    assert found == 1 or touched(1) > most
    assert found < 4 or touched(found // 4) > most or found // 4 not in (1, 2, 4, 8, 16, 32)


# ---- plans


def plan_of(
    shape,
    shards,
    chunks,
    source,
    *,
    dtype="uint8",
    strategy=None,
    threads=4,
    memory=8 * GB,
    identity="x",
    layout=None,
    stage_units=False,
    notes=(),
    **options,
):
    metadata = make_metadata(shape, np.dtype(dtype), shards, chunks, layout or ArrayOptions())
    n_tasks = math.prod(len(sizes) for sizes in source)
    return make_plan(
        metadata,
        SourceLayout(chunks=source, n_tasks=n_tasks, identity=identity),
        Resources(threads, memory, returns_through_parent=stage_units),
        PlanOptions(strategy=strategy or FixedOrder("C"), **options),
        notes=notes,
    )


def even(n, size):
    return (size,) * (n // size) + ((n % size,) if n % size else ())


@settings(max_examples=60)
@given(
    cases(smallest=1),
    st.sampled_from(["uint8", "float64"]),
    st.integers(10_000, 10**7),
    st.integers(1, 4),
    st.booleans(),
)
def test_every_plan_is_a_partition(case, dtype, memory, threads, stage_units):
    grid, source = case
    limits = {
        "memory": memory,
        "threads": threads,
        "stage_units": stage_units,
        "max_graph_tasks": 5,
    }
    plan = plan_of(grid.shape, grid.shards, grid.chunks, source, dtype=dtype, **limits)
    check_partition(plan.partition, grid)
    assert plan.n_shards == grid.n_shards
    assert plan.raw_nbytes == grid.whole.size * np.dtype(dtype).itemsize
    assert sorted(rank for wave in plan.waves for rank in wave.ranks()) == list(
        range(plan.partition.n_groups)
    )
    assert plan.layout in ("fused", "direct", "staged")
    assert (plan.layout == "fused") == plan.partition.is_fused
    assert plan.source_reruns >= 1.0
    assert json.loads(plan.to_json())["digest"] == plan.digest
    parts = [plan.part(i, 3) for i in range(3)]
    refs = [ref for part in parts for ref in part.shards]
    assert sorted(ref.index for ref in refs) == sorted(grid.shards_in(grid.whole))
    assert all(ref.is_whole for ref in refs)


@pytest.mark.parametrize(
    "source",
    [
        (even(25000, 1), (18000,), (6000,)),
        (even(25000, 64), even(18000, 512), even(6000, 512)),
        (even(25000, 2048), even(18000, 2048), even(6000, 2048)),
        (even(25000, 500), even(18000, 500), even(6000, 500)),
    ],
    ids=["slabs", "bricks", "shards", "unaligned"],
)
@pytest.mark.parametrize(
    "strategy", [FixedOrder("morton"), AppendOnly()], ids=["morton", "append-only"]
)
def test_plan_of_the_proposal(source, strategy):
    plan = plan_of(
        (25000, 18000, 6000),
        (2048,) * 3,
        (64,) * 3,
        source,
        strategy=strategy,
        threads=8,
        memory=64 * GB,
    )
    assert plan.metadata.grid.counts == (13, 9, 3)
    assert plan.n_shards == 13 * 9 * 3
    assert plan.raw_nbytes == 25000 * 18000 * 6000
    assert plan.n_inner_chunks == 391 * 282 * 94
    grid, partition = plan.metadata.grid, plan.partition
    for axis in range(3):
        group, block = list(partition.group_edges[axis]), list(partition.block_edges[axis])
        for edges in (group, block):
            assert edges[0] == 0
            assert edges[-1] == grid.shape[axis]
            assert list(edges) == sorted(set(edges))
        assert set(group) <= set(block)
        assert all(e % grid.shards[axis] == 0 for e in group[:-1])
        assert all(e % grid.chunks[axis] == 0 for e in block[:-1])
    assert sum(len(list(wave.ranks())) for wave in plan.waves) == partition.n_groups
    assert sum(len(plan.part(i, 7).shards) for i in range(7)) == 351
    assert plan.metadata.index_codec.encoded_nbytes == 16 * 32**3 + 4
    assert json.loads(plan.to_json())["shards"] == 351
    assert "351" in str(plan)
    assert "<svg" in plan._repr_html_()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0)], ids=str)
def test_plans_of_next_to_nothing(shape):
    ones = (1,) * len(shape)
    plan = plan_of(shape, ones, ones, tuple((n,) for n in shape))
    assert plan.n_shards == math.prod(shape)
    assert plan.raw_nbytes == math.prod(shape)
    assert len(plan.shards_for(Ellipsis)) == math.prod(shape)
    assert sum(len(plan.part(i, 2).shards) for i in range(2)) == math.prod(shape)
    assert json.loads(plan.to_json())["raw_nbytes"] == math.prod(shape)
    assert str(plan)
    assert plan._repr_html_()


# ---- parts


@settings(max_examples=80)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 40))
def test_parts_partition_the_groups_and_balance_bytes(height, width, count):
    plan = plan_of((height, width), (4, 4), (2, 2), ((height,), (width,)), memory=64)
    parts = [plan.part(i, count) for i in range(count)]
    assert [rank for part in parts for rank in part.groups] == list(range(plan.partition.n_groups))
    sizes = [part.raw_nbytes for part in parts]
    assert sum(sizes) == plan.raw_nbytes
    largest = max(box.size for box in map(plan.partition.group_box, range(plan.partition.n_groups)))
    assert max(sizes) <= plan.raw_nbytes / count + largest
    assert min(sizes) >= plan.raw_nbytes / count - largest
    assert plan.part(count - 1, count) == parts[-1]
    assert all((part.index, part.count) == (i, count) for i, part in enumerate(parts))


def test_more_parts_than_groups():
    plan = plan_of((8,), (4,), (2,), ((8,),), memory=64)
    parts = [plan.part(i, 1000) for i in range(1000)]
    assert [rank for part in parts for rank in part.groups] == list(range(plan.partition.n_groups))
    assert any(part.raw_nbytes == 0 and not part.shards for part in parts)


@pytest.mark.parametrize(
    ("index", "count"), [(-1, 3), (3, 3), (0, 0), (0, -1), (True, 3), (0, True)], ids=str
)
def test_no_such_part(index, count):
    plan = plan_of((8,), (4,), (2,), ((8,),))
    with pytest.raises(SpecError) as caught:
        plan.part(index, count)
    assert (caught.value.field, caught.value.value) == ("part", (index, count))


# ---- regions


@pytest.mark.long
@settings(max_examples=80)
@given(cases(max_ndim=2, smallest=1), st.data())
def test_shards_for_a_region_equal_brute_force(case, data):
    grid, source = case
    plan = plan_of(grid.shape, grid.shards, grid.chunks, source)
    for _ in range(4):
        edge = st.one_of(st.none(), st.integers(-25, 25))
        region = tuple(slice(data.draw(edge), data.draw(edge)) for _ in grid.shape)
        whole = np.zeros(grid.shape, bool)
        whole[region] = True
        touched = {}
        for cell in cells(grid.whole):
            index = tuple(i // s for i, s in zip(cell, grid.shards, strict=True))
            touched.setdefault(index, []).append(whole[cell])
        expected = {index: all(hit) for index, hit in touched.items() if any(hit)}
        refs = plan.shards_for(region)
        assert [ref.index for ref in refs] == sorted(expected)
        assert {ref.index: ref.is_whole for ref in refs} == expected
        for ref in refs:
            assert ref.key == plan.metadata.shard_key(ref.index)
            assert ref.box == grid.shard_box(ref.index).intersect(grid.whole)


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        (Ellipsis, ((0, 10), (0, 7))),
        ((), ((0, 10), (0, 7))),
        (3, ((3, 4), (0, 7))),
        (-1, ((9, 10), (0, 7))),
        ((Ellipsis, 2), ((0, 10), (2, 3))),
        ((2, Ellipsis, 3), ((2, 3), (3, 4))),
        (slice(2, 5), ((2, 5), (0, 7))),
        (slice(5, 2), ((5, 5), (0, 7))),
        (slice(2, 500), ((2, 10), (0, 7))),
        (slice(-3, None), ((7, 10), (0, 7))),
        ((slice(None), slice(1, -1)), ((0, 10), (1, 6))),
        (np.int64(3), ((3, 4), (0, 7))),
    ],
    ids=str,
)
def test_regions(region, expected):
    assert as_box(region, (10, 7)).bounds == expected


@pytest.mark.parametrize(
    "region",
    [
        10,
        -11,
        (0, 7),
        (0, 0, 0),
        slice(0, 5, 2),
        slice(5, 0, -1),
        slice(0, 5, 0),
        1.5,
        "x",
        None,
        (..., ..., 1),
        [1, 2],
    ],
    ids=str,
)
def test_what_is_no_region_is_refused(region):
    with pytest.raises(SpecError) as caught:
        as_box(region, (10, 7))
    assert caught.value.field == "region"
    assert caught.value.value is region


def test_shards_for_a_box():
    plan = plan_of((10, 7), (4, 4), (2, 2), ((10,), (7,)))
    refs = plan.shards_for(Box((2, 0), (8, 7)))
    assert [(ref.index, ref.is_whole) for ref in refs] == [
        ((0, 0), False),
        ((0, 1), False),
        ((1, 0), True),
        ((1, 1), True),
    ]
    assert plan.shards_for(Box((10, 0), (12, 7))) == []
    assert len(plan.shards_for(Box((-5, -5), (500, 500)))) == 6
    assert all(ref.is_whole for ref in plan.shards_for(Box((-5, -5), (500, 500))))


# ---- digest

BASE = {"shape": (64, 64), "shards": (32, 32), "chunks": (8, 8), "source": ((64,), (64,))}


def digest(**changes):
    return plan_of(**{**BASE, **changes}).digest


def test_digest_is_stable():
    assert digest() == digest()
    assert len(digest()) == 64
    int(digest(), 16)


def test_digest_does_not_know_how_the_work_is_done():
    assert (
        digest()
        == digest(threads=1)
        == digest(memory=10**6)
        == digest(max_graph_tasks=3)
        == digest(stage_units=True)
    )
    assert digest() == digest(notes=["a"]) == digest(compression_ratio=3.0)
    assert digest() == digest(source=((16,) * 4, (64,)))


CHANGES = [
    {"shape": (64, 63), "source": ((64,), (63,))},
    {"shards": (64, 32)},
    {"chunks": (4, 8)},
    {"dtype": "int8"},
    {"identity": "y"},
    {"strategy": FixedOrder("F")},
    {"strategy": FixedOrder("morton")},
    {"strategy": AppendOnly()},
    {"write_empty_chunks": True},
    {"layout": ArrayOptions(fill_value=1)},
    {"layout": ArrayOptions(compressors="gzip")},
    {"layout": ArrayOptions(index_location="start")},
    {"layout": ArrayOptions(attributes={"a": 1})},
    {"layout": ArrayOptions(chunk_key_encoding="v2")},
    {"layout": ArrayOptions(dimension_names=["a", "b"])},
]


def test_digest_knows_what_is_written():
    digests = [digest(), *(digest(**change) for change in CHANGES)]
    assert len(set(digests)) == len(CHANGES) + 1


def test_a_digest_names_a_strategy_by_its_label_and_is_that_of_older_versions():
    """A run that an older version has begun is gone on with only if its digest stays."""
    identity = plan_of(**{**BASE, "strategy": FixedOrder("F", max_unused=0.5)}).to_dict()[
        "identity"
    ]
    assert identity["strategy"] == "fixed-order (F)"
    assert set(identity) == {"metadata", "strategy", "units", "write_empty_chunks", "source"}
    assert digest(strategy=FixedOrder("F", max_unused=0.5)) == digest(strategy=FixedOrder("F"))


def test_digest_knows_the_units_of_any_strategy_that_depends_on_the_cut():
    class Cut(FixedOrder):
        name = label = "cut"
        depends_on_cut = True

    assert plan_of(**BASE).to_dict()["identity"]["units"] is None
    plan = plan_of(**{**BASE, "strategy": Cut()})
    edges = [list(along) for along in plan.partition.block_edges]
    assert plan.to_dict()["identity"]["units"] == edges


def test_digest_knows_the_units_under_append_only():
    big = {"shape": (512, 512), "shards": (512, 512), "chunks": (64, 64), "dtype": "float64"}
    sources = (((128,) * 4, (512,)), ((512,), (128,) * 4))
    one, other = (
        {**big, "source": source, "memory": 2 * 10**6, "threads": 2} for source in sources
    )
    appended = [plan_of(**case, strategy=AppendOnly()) for case in (one, other)]
    assert appended[0].partition.block_edges != appended[1].partition.block_edges
    assert appended[0].digest != appended[1].digest
    fixed = [plan_of(**case) for case in (one, other)]
    assert fixed[0].partition.block_edges != fixed[1].partition.block_edges
    assert fixed[0].digest == fixed[1].digest


def test_json_says_what_the_plan_is():
    plan = plan_of(**BASE, notes=["chosen for a reason"], compression_ratio=2.0)
    facts = json.loads(plan.to_json())
    assert facts["shards"] == plan.n_shards == 4
    assert facts["inner_chunks"] == plan.n_inner_chunks == 64
    assert facts["raw_nbytes"] == 64 * 64
    assert facts["tasks"] == plan.n_tasks
    assert facts["waves"] == len(plan.waves)
    assert facts["digest"] == plan.digest
    assert facts["notes"] == ["chosen for a reason"]
    assert facts["memory_nbytes"] == plan.memory.total_nbytes
    assert facts["identity"]["metadata"] == plan.metadata.document
    assert json.loads(plan.to_json(indent=None)) == facts
    for text in (str(plan), plan._repr_html_()):
        assert plan.digest in text
        assert "chosen for a reason" in text


# ---- limits


@pytest.mark.parametrize(
    ("source", "memory", "remedy"),
    [
        (((2000,), (2000,)), 100_000, "source's chunks"),
        (((50,) * 40, (50,) * 40), 700_000, "fewer threads"),
    ],
    ids=["large source chunks", "small source chunks"],
)
def test_a_plan_over_its_limits_says_what_to_change(source, memory, remedy):
    plan = plan_of(
        (2000, 2000), (1000, 1000), (100, 100), source, dtype="float64", threads=4, memory=memory
    )
    with pytest.raises(PlanError) as caught:
        plan.check_fits()
    error = caught.value
    assert error.needed_nbytes == plan.bound.total_nbytes > error.allowed_nbytes == memory
    assert type(error.needed_nbytes) is int
    assert remedy in error.remedy
    assert "memory_limit" in error.remedy
    assert f"{error.needed_nbytes:,}" in str(error)
    assert error.remedy in str(error)
    parts = str(error).split("it needs ")[1].split("; ")[0]
    told = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:for|to)", parts)]
    assert sum(told) == error.needed_nbytes
    assert min(told) > 0


def test_a_plan_within_its_limits_passes():
    plan = plan_of(**BASE)
    plan.check_fits()
    assert plan.memory.total_nbytes <= 8 * GB
    exact = plan_of(**BASE, memory=plan.memory.total_nbytes * 100)
    exact.check_fits()


def test_memory_grows_with_threads_and_shrinks_with_compression():
    source = ((64,) * 64, (4096,))
    case = {
        "shape": (4096, 4096),
        "shards": (2048, 2048),
        "chunks": (64, 64),
        "dtype": "float64",
        "source": source,
    }
    needed = [plan_of(**case, threads=n, memory=64 * GB).memory.total_nbytes for n in (1, 2, 4, 8)]
    assert needed == sorted(needed)
    plan = plan_of(**case, compression_ratio=4.0)
    assert plan.expected_memory.total_nbytes <= plan.memory.total_nbytes


def test_the_margins_of_an_update_take_no_memory():
    """One element of a shard of 256 MiB is changed in a task that holds that element only."""
    metadata = make_metadata((8192,) * 2, np.dtype("i4"), (8192,) * 2, (256,) * 2, ArrayOptions())
    part, inside = metadata.window_of(Box((1, 4000), (2, 4001)))
    source = SourceLayout(((1, 1, 8190), (4000, 1, 4191)), 1, "x")
    plan = make_plan(part, source, Resources(1, 2**24), PlanOptions(), Update(inside))
    plan.check_fits()
    assert (plan.bound.source_nbytes, plan.bound.border_nbytes) == (4, 0)


@pytest.mark.long
@given(st.data())
def test_what_of_a_source_a_block_holds(data):
    """Chunks between margins, compared with a count of each block's chunks."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    low, high = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 6))
    around = [size for size in (low, *sizes, high) if size]
    n = sum(around)
    inner = data.draw(st.sets(st.integers(1, n), max_size=5)) - {n}
    edges = (0, *sorted(inner), n)
    stops = (low + np.cumsum(sizes)).tolist()
    chunks = list(zip([low, *stops], stops, strict=False))
    blocks = list(itertools.pairwise(edges))
    shared = [[a < d and c < b for c, d in chunks] for a, b in blocks]
    longest = max(sum(itertools.compress(sizes, row)) for row in shared)
    cut = {min(max(edge, low), n - high) for edge in edges}  # blocks end where the source does
    across = [b - a for a, b in chunks if any(a < edge < b for edge in inner) and not {a, b} <= cut]
    held = (low, n - high) if low or high else None
    n_sharing, n_chunks = max(map(sum, zip(*shared, strict=True))), max(map(sum, shared))
    wanted = (longest, n_sharing, n_chunks, max(across, default=0), sum(sizes))
    assert _along(Edges.from_positions(edges), Edges.from_sizes(around), held) == wanted


# ---- sizes


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1), ("10B", 10), ("1k", 1000), ("1kB", 1000), ("1KiB", 1024), ("256MB", 256 * 10**6), ("256 MB", 256 * 10**6),
        ("1.5 GiB", 3 * 2**29), (" 2gb ", 2 * GB), ("0.5k", 500), ("3TiB", 3 * 2**40), ("1.1kB", 1100),
        ("9007199254740993", 2**53 + 1),
    ],
)  # fmt: skip
def test_byte_sizes(text, nbytes):
    assert parse_nbytes(text, "shards") == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0MB",
        "-1MB",
        "MB",
        "1 potato",
        "1e6",
        "nan",
        "inf",
        "1..5",
        "1,5MB",
        "0.1",
        "1 M B",
    ],
)
def test_no_byte_size_is_refused(text):
    with pytest.raises(SpecError) as caught:
        parse_nbytes(text, "shards")
    assert (caught.value.field, caught.value.value) == ("shards", text)
    assert "MB" in caught.value.remedy


def test_a_byte_size_beyond_any_float_is_exact():
    assert parse_nbytes("1" + "0" * 400 + "k", "shards") == 10**403


SOURCE = ((1000,), (1000,))


@pytest.mark.parametrize(
    ("shards", "chunks", "expected"),
    [
        ((40, 60), (10, 20), ((40, 60), (10, 20))),
        ([40, 60], [10, 20], ((40, 60), (10, 20))),
        (64, 16, ((64, 64), (16, 16))),
        (np.int64(64), (np.int32(16), 32), ((64, 64), (16, 32))),
        ((2000, 2000), (2000, 1), ((2000, 2000), (2000, 1))),
    ],
    ids=str,
)
def test_explicit_shapes(shards, chunks, expected):
    *shapes, notes = resolve_shapes((1000, 1000), 1, shards, chunks, SOURCE)
    assert tuple(shapes) == expected
    assert notes == ()
    assert all(type(n) is int for shape in shapes for n in shape)


@settings(max_examples=150)
@given(
    st.lists(st.integers(0, 5000), max_size=4),
    st.integers(1, 16),
    st.sampled_from([None, "auto", "256MB", "64kB", "1B", "1MiB", 24]),
    st.sampled_from([None, "auto", "4kB", "512KiB", 3, 8]),
)
def test_chosen_shapes_fit_together(shape, itemsize, shards, chunks):
    source = [(n,) for n in shape]
    shard, chunk, notes = resolve_shapes(tuple(shape), itemsize, shards, chunks, source)
    ShardGrid(tuple(shape), shard, chunk)
    if isinstance(shards, str) and shards != "auto":
        limit = parse_nbytes(shards, "shards")
        assert itemsize * math.prod(shard) <= limit or shard == chunk
    if isinstance(chunks, str) and chunks != "auto":
        assert itemsize * math.prod(chunk) <= max(itemsize, parse_nbytes(chunks, "chunks"))
    assert len(notes) == (not isinstance(shards, int)) + (not isinstance(chunks, int))
    for n, s, c in zip(shape, shard, chunk, strict=True):
        if not isinstance(shards, int):
            assert s < max(1, n) + c, (
                "a shard that reaches more than an inner chunk beyond the array"
            )


def test_byte_sizes_are_used_up():
    shard, chunk, _ = resolve_shapes((10_000,) * 3, 1, "256MB", "256kB", [(10_000,)] * 3)
    assert 128 * 10**6 < math.prod(shard) <= 256 * 10**6
    assert 128 * 10**3 < math.prod(chunk) <= 256 * 10**3
    assert max(shard) <= 2 * min(shard)
    assert max(chunk) <= 2 * min(chunk)


def test_auto_shards_follow_the_source_where_these_are_of_a_good_size():
    source = (even(1024, 256),) * 3
    shard, chunk, notes = resolve_shapes((1024,) * 3, 1, "auto", (64, 64, 64), source)
    assert (shard, chunk) == ((256, 256, 256), (64, 64, 64))
    assert any("source" in note for note in notes)
    far = resolve_shapes((1024,) * 3, 1, "auto", (64, 64, 64), (even(1024, 100),) * 3)[0]
    assert 10 * 10**6 <= math.prod(far) <= 100 * 10**6


BAD = [
    ("shards", 0), ("shards", -4), ("shards", True), ("shards", 4.0), ("shards", (4,)), ("shards", (4, 4, 4)), ("shards", ()),
    ("shards", (4, 0)), ("shards", (4, -1)), ("shards", (4, True)), ("shards", (4, 2.0)), ("shards", (4, None)),
    ("shards", (4, "4")), ("shards", (6, 4)), ("shards", (4, 2)), ("shards", "0MB"), ("shards", "x"), ("shards", ""),
    ("shards", {4: 4}), ("shards", 2.5), ("shards", float("nan")),
    ("chunks", 0), ("chunks", -4), ("chunks", False), ("chunks", 4.0), ("chunks", (4,)), ("chunks", (4, 4, 4)), ("chunks", (4, 0)),
    ("shards", {"t": 4}), ("shards", {0: 0}), ("shards", {0: -2}), ("shards", {0: "x"}), ("shards", {...: True}), ("shards", {True: 4}),
    ("shards", "0 chunks"), ("chunks", {0: "2 chunks"}), ("chunks", {"t": 4}), ("chunks", "2 chunks"),
    ("chunks", (4, None)), ("chunks", "-1kB"), ("chunks", b"4"), ("chunks", object()),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD, ids=[f"{f}-{i}" for i, (f, _) in enumerate(BAD)])
def test_bad_sizes_are_refused(field, value):
    sizes = {"shards": (8, 8), "chunks": (4, 4), field: value}
    with pytest.raises(SpecError) as caught:
        resolve_shapes((100, 100), 1, sizes["shards"], sizes["chunks"], ((100,), (100,)))
    error = caught.value
    assert error.field == field
    assert error.value is value or error.value == value
    assert error.remedy
    assert field in str(error)


@pytest.mark.parametrize(
    ("shards", "chunks", "expected"),
    [
        ({"t": 720, ...: -1}, {"t": 24, ...: 100}, ((720, 400, 700), (24, 100, 100))),
        ({"t": -1}, 50, ((8800, 350, 700), (50, 50, 50))),
        ({0: 100, "x": 90}, (10, 10, 10), ((100, 350, 90), (10, 10, 10))),
        ({"t": "30 chunks", ...: "2 chunks"}, (24, 100, 100), ((720, 200, 200), (24, 100, 100))),
        ({"t": "1000 chunks"}, {...: 100}, ((8800, 400, 700), (100, 100, 100))),
        ("4 chunks", (24, 100, 100), ((96, 400, 400), (24, 100, 100))),
        ("1 chunk", 50, ((50, 50, 50), (50, 50, 50))),
        (None, {"t": 24}, ((24, 350, 700), (24, 350, 700))),
        ({"t": "64MB"}, {"t": 8}, ((64, 350, 700), (8, 350, 700))),  # 8.16 chunks of 7.84 MB
        ({"t": "1GiB"}, {"t": "8MB"}, ((1088, 350, 700), (8, 350, 700))),
        ({"t": 720}, {"t": "7MB", ...: -1}, ((720, 350, 700), (6, 350, 700))),
        ({"t": 720, ...: 100}, {"t": "3MB", 1: 50, "x": 100}, ((720, 100, 100), (144, 50, 100))),
        ({"x": "1 B", "t": 10}, 10, ((10, 350, 10), (10, 10, 10))),
        ({"t": "1 TB"}, {...: 100, "t": 1000}, ((9000, 400, 700), (1000, 100, 100))),
        ({"t": "2 chunks", "x": "10MB"}, 50, ((100, 350, 50), (50, 50, 50))),
    ],
    ids=str,
)
def test_sizes_by_axes_and_as_numbers_of_chunks(shards, chunks, expected):
    shape, source = (8760, 350, 700), [(8760,), (350,), (700,)]
    found = resolve_shapes(shape, 4, shards, chunks, source, ["t", None, "x"])
    assert found[:2] == expected


@pytest.mark.parametrize(
    ("shards", "told"),
    [
        ({"t": "64MB", "x": "1MB"}, "for several axes"),
        ({"t": "64 MBs"}, "'64 MBs' is no size"),
        ({"t": "0MB"}, "'0MB' is no size"),
        ({"t": 1.5}, "1.5 is no size"),
    ],
)
def test_bytes_along_an_axis_that_are_refused(shards, told):
    with pytest.raises(SpecError, match=told):
        resolve_shapes((100, 10), 4, shards, 5, [(100,), (10,)], ["t", "x"])


def test_chunks_that_are_left_out_fit_shards_by_axes():
    shape, source = (8760, 350, 700), [(8760,), (350,), (700,)]
    for shards in ({"t": 720}, {"t": 1024, ...: "2 chunks"}, "8 chunks"):
        found, chunks, notes = resolve_shapes(shape, 4, shards, "auto", source, ["t", "y", "x"])
        assert all(s % c == 0 for s, c in zip(found, chunks, strict=True))
        assert any(note.startswith("chunks") for note in notes)
        assert 4 * math.prod(chunks) >= 2**15


def test_shards_that_are_no_multiple_say_what_would_be():
    with pytest.raises(SpecError) as caught:
        resolve_shapes((100, 100), 1, (8, 10), (4, 4), ((100,), (100,)))
    assert "axis 1" in str(caught.value)
    assert "give 12 instead of 10" in caught.value.remedy


@pytest.mark.parametrize("n_rows", [2**18, 2**20, 2**22])
def test_inner_chunks_that_are_larger_than_a_batch_are_counted(n_rows):
    """A task holds at least one inner chunk, and its encoded bytes."""
    rows = (2**22,) * 4
    plan = plan_of((2**24,), (2**22,), (n_rows,), (rows,), dtype="u8", threads=2, memory=4 * GB)
    assert plan.memory.encode_nbytes >= 2 * 2 * 8 * n_rows


@pytest.mark.parametrize(
    ("shards", "itemsize", "chunks"),
    [
        ((720, 721, 1440), 4, (36, 103, 32)),
        ((365, 180, 360), 4, (73, 36, 45)),
        ((200_000,), 8, (50_000,)),
        ((997,), 8, (997,)),
        ((10**12,), 1, (100_000,)),
        ((96, 96, 96), 2, (32, 32, 32)),  # powers of two are large enough
        ((256, 256, 256), 1, (64, 64, 128)),
    ],
)
def test_chunks_that_are_left_out_divide_shards_of_any_size(shards, itemsize, chunks):
    found = resolve_shapes(tuple(2 * n for n in shards), itemsize, shards, None, ())
    assert found[:2] == (shards, chunks)
