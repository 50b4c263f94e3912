"""What a run writes, as the graph builder sees it: values, stored chunks, nothing, or a formula."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task
from tiers import some

import shardwrite
from shardwrite.engines import LocalEngine, active_engine
from shardwrite.grid import Box
from shardwrite.runs.array_plan import ArrayChunks
from shardwrite.runs.execute import execute
from shardwrite.runs.in_parts import prepare_jobs
from shardwrite.runs.job import Job, NoChunks, RunOptions
from shardwrite.runs.stored_chunks import StoredChunks
from shardwrite.write.tasks import SourcePieces, encode_block, write_group

sys.path.insert(0, str(Path(__file__).parent))
import seams
from blind import make_blind

LAYOUT = {"shards": (16, 16), "chunks": (8, 8)}
SHAPE = (60, 40)


def formula(box):
    return np.add.outer(*(np.arange(a, b, dtype="i4") for a, b in box.bounds)) + 1


def computed(function, spec, pieces):
    """What a task of `Formula` does: the values of its box, handed to a task of the package."""
    return function(spec, pieces, [formula(box) for box in pieces.pieces])


@dataclass
class Formula:
    """A source without arrays and without a graph."""

    is_encoded = False
    dtype = np.dtype("i4")
    region: Box | None = None

    def write(self, at):
        return self._task(at, write_group)

    def encode(self, at):
        return self._task(at, encode_block)

    def _task(self, at, function):
        inside = at.box.intersect(at.spec.metadata.grid.whole)
        inside = inside if self.region is None else inside.intersect(self.region)
        pieces = SourcePieces(at.box, (inside,), at.skip)
        return {at.key: Task(at.key, computed, function, at.spec, pieces)}

    def graph(self, name, tasks):
        return HighLevelGraph({name: tasks}, {name: set()})

    def box_of(self, key):
        return None


@pytest.fixture(params=["threads", "processes", "distributed"])
def engine(request):
    if request.param == "distributed":
        from distributed import Client

        with Client(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None):
            yield active_engine()
    else:
        with dask.config.set(scheduler=request.param, num_workers=2):
            yield active_engine()


@pytest.mark.long
@pytest.mark.parametrize("scheme", some(["fused", "direct", "staged"], "direct"))
def test_a_source_that_is_no_array(tmp_path, engine, scheme):
    sized = LAYOUT if scheme == "fused" else {"shards": (60, 40), "chunks": (4, 4)}
    like = da.zeros(SHAPE, chunks=(10, 10), dtype="i4")
    plan = shardwrite.plan(like, memory_limit=None if scheme == "fused" else "50kB", **sized)
    plan = replace(plan, is_staged=scheme == "staged")
    assert plan.layout == scheme
    seams.run_job(Formula(), plan, tmp_path / "x", engine)
    whole = Box((0, 0), SHAPE)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], formula(whole))


@pytest.mark.parametrize("engine", ["threads"], indirect=True)
def test_a_region_of_a_source_that_is_no_array(tmp_path, engine):
    path = tmp_path / "x"
    shardwrite.create(path, SHAPE, "i4", **LAYOUT)
    plan = shardwrite.plan_region(da.zeros((30, 9), dtype="i4"), path, np.s_[20:50, 5:14])
    seams.run_job(Formula(plan.region), plan, path, engine, "r+")
    found = zarr.open_array(path, mode="r")[...]
    np.testing.assert_array_equal(found[20:50, 5:14], formula(plan.region))
    assert np.count_nonzero(found) == 30 * 9


def test_a_job_whose_source_lies_elsewhere_is_refused(tmp_path):
    x = da.ones((8, 8), dtype="i4")
    shardwrite.create(tmp_path / "x", SHAPE, "i4", **LAYOUT)
    plan = shardwrite.plan_region(x, tmp_path / "x", np.s_[16:24, 0:8])
    target = seams.target_of(tmp_path / "x")
    for source in (ArrayChunks(x), ArrayChunks(x, Box((8, 0), (16, 8))), NoChunks()):
        with pytest.raises(ValueError, match="covers"):
            Job(source, plan, target, RunOptions(mode="r+"))
    assert Job(ArrayChunks(x, plan.region), plan, target, RunOptions(mode="r+")).is_update


def test_a_job_that_only_looks_has_no_chunks(tmp_path):
    x = da.ones(SHAPE, chunks=10, dtype="i4")
    plan = shardwrite.plan(x, **LAYOUT)
    job = Job(NoChunks(), plan, seams.target_of(tmp_path / "x"), RunOptions())
    engine = LocalEngine("sync")
    prepare_jobs([job], engine)  # nothing is asked for
    with pytest.raises(TypeError, match="no chunks to write"):
        execute([job], engine, lambda _: None)
    x.to_sharded_zarr(tmp_path / "x", **LAYOUT)
    assert shardwrite.verify(tmp_path / "x", against=x, deep=True).is_good


def test_shards_that_are_rewritten_are_not_decoded(tmp_path, monkeypatch):
    path = tmp_path / "x"
    x = da.from_array(np.random.default_rng(0).integers(0, 99, SHAPE, dtype="i4"), chunks=20)
    x.to_sharded_zarr(path, **LAYOUT)
    for _ in range(3):
        x[:20].to_sharded_zarr(path, region=np.s_[:20], strategy=shardwrite.AppendOnly())

    make_blind(monkeypatch)
    with dask.config.set(scheduler="sync"):
        assert shardwrite.compact(path).n_rewritten > 0
    monkeypatch.undo()
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], x.compute())


def test_what_is_encoded_is_not_encoded_again(tmp_path):
    plan = shardwrite.plan(da.ones(SHAPE, dtype="i4"), **LAYOUT)
    source = StoredChunks(plan.metadata)
    assert not Job(
        source, replace(plan, is_staged=True), seams.target_of(tmp_path), RunOptions()
    ).is_staged
    with pytest.raises(TypeError, match="encoded already"):
        source.encode(type("TaskBox", (), {"key": ("x", 0)}))


def test_chunks_of_an_array_lie_where_its_region_begins():
    x = da.ones((10, 6), chunks=((3, 0, 7), 6))
    source = ArrayChunks(x, Box((20, 1), (30, 7)))
    assert [list(edges) for edges in source.edges] == [[20, 23, 23, 30], [1, 7]]
    assert source.box_of((x.name, 2, 0)) == Box((23, 1), (30, 7))
    for key in ((x.name, 3, 0), (x.name, 0), x.name, (x.name, "a", 0), None):
        assert source.box_of(key) is None


@pytest.mark.parametrize("kind", ["from_sharded_zarr", "open_sharded", "zarr.Array", "computed"])
def test_an_array_that_was_replaced_is_another_source(tmp_path, kind):
    path, values = tmp_path / "s", np.arange(64, dtype="i4").reshape(8, 8)
    opened = {
        "from_sharded_zarr": shardwrite.from_sharded_zarr,
        "open_sharded": shardwrite.open_sharded,
        "zarr.Array": lambda path: zarr.open_array(path, mode="r"),
        "computed": lambda path: shardwrite.from_sharded_zarr(path) + 1,
    }[kind]
    sizes = {"shards": 4, "chunks": 2}
    shardwrite.to_sharded_zarr(values, path, **sizes)
    shardwrite.prepare(opened(path), tmp_path / "x", shardwrite.plan(opened(path), **sizes))
    shardwrite.write_part(opened(path), tmp_path / "x", 0, 2)
    shardwrite.write_part(opened(path), tmp_path / "x", 0, 2)
    shardwrite.to_sharded_zarr(values * 2, path, **sizes, mode="w")
    with pytest.raises(shardwrite.JournalError, match="it differs in source"):
        shardwrite.write_part(opened(path), tmp_path / "x", 1, 2)
