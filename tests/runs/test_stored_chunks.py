"""Encoded chunks of one array in the shards of another: the same bytes, and nothing decoded."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite.engines import LocalEngine
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.passage import what_differs
from shardwrite.grid import Box, ShardGrid
from shardwrite.plan.model import SourceLayout
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.plan import make_plan
from shardwrite.read.array import ShardedArray, open_sharded
from shardwrite.read.stored_shard import open_shard
from shardwrite.runs.array_plan import resources_of
from shardwrite.runs.stored_chunks import StoredChunks
from shardwrite.stores import MemoryStore
from shardwrite.write import copying

sys.path.insert(0, str(Path(__file__).parent))
import seams
from blind import make_blind

SHAPE, CHUNKS = (70, 50), (8, 8)


def array():
    """Values with many empty inner chunks, and some at the edge."""
    found = np.random.default_rng(0).integers(0, 99, SHAPE).astype("f4")
    found[10:45, 8:40] = -1
    return found


def layout(**more):
    return {"chunks": CHUNKS, "compressors": "auto", "fill_value": -1.0, **more}


def copied(source, path, shards, strategy="fixed-order", **more):
    """Write an array from the stored chunks of another."""
    given = open_sharded(source)
    made = ArrayOptions(fill_value=-1.0, **more)
    metadata = make_metadata(SHAPE, np.dtype("f4"), shards, CHUNKS, made)
    engine = LocalEngine("threads")
    plan = make_plan(
        metadata,
        SourceLayout(metadata.grid.sizes, 0, "chunks"),
        resources_of(engine),
        PlanOptions(strategy=strategy),
    )
    return seams.run_job(StoredChunks(metadata, other=given), plan, path, engine)


def chunks_of(path):
    """Encoded bytes of each inner chunk by its position in the array."""
    return seams.chunks_of(open_sharded(path))


FORMS = {
    "larger": ((32, 24), {}),
    "smaller": ((8, 16), {}),
    "one": ((72, 56), {}),
    "unsharded": (None, {}),
    "index first": ((24, 16), {"index_location": "start"}),
    "other keys": ((16, 16), {"chunk_key_encoding": {"name": "v2", "separator": "."}}),
}


@pytest.mark.parametrize(
    ("form", "source", "compressors"),
    [
        pytest.param(form, source, compressors, marks=pytest.mark.long if (n + m + k) % 2 else ())
        for n, form in enumerate(FORMS)
        for m, source in enumerate([(16, 16), None, (24, 48)])
        for k, compressors in enumerate(["auto", None])
    ],
)
def test_chunks_pass_undecoded(tmp_path, monkeypatch, source, form, compressors):
    x = da.from_array(array(), chunks=(20, 50))
    x.to_sharded_zarr(tmp_path / "a", shards=source, **layout(compressors=compressors))
    shards, more = FORMS[form]
    make_blind(monkeypatch)
    result = copied(tmp_path / "a", tmp_path / "b", shards, compressors=compressors, **more)
    monkeypatch.undo()
    assert chunks_of(tmp_path / "a") == chunks_of(tmp_path / "b")
    assert result.n_chunks == 9 * 7
    assert result.n_empty_chunks == 9 * 7 - len(chunks_of(tmp_path / "b")) > 0
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b", mode="r")[...], array())
    assert shardwrite.verify(tmp_path / "b", deep=True, against=x).is_good


@pytest.mark.parametrize(
    "strategy",
    ["F", "morton", "append-only", shardwrite.FixedOrder(in_place=True)],
    ids=str,
)
def test_strategies_place_them_as_chunks_that_were_encoded(tmp_path, strategy):
    x = da.from_array(array(), chunks=(20, 50))
    x.to_sharded_zarr(tmp_path / "a", shards=16, **layout(compressors=None))
    copied(tmp_path / "a", tmp_path / "b", (32, 24), strategy, compressors=None)
    whole = da.from_array(array(), chunks=-1)
    whole.to_sharded_zarr(
        tmp_path / "c", shards=(32, 24), strategy=strategy, **layout(compressors=None)
    )
    files = sorted(p.relative_to(tmp_path / "c") for p in (tmp_path / "c" / "c").rglob("*"))
    for file in files:
        if (tmp_path / "c" / file).is_file():
            assert (tmp_path / "b" / file).read_bytes() == (tmp_path / "c" / file).read_bytes()


def test_few_shards_are_open_at_a_time(tmp_path, monkeypatch):
    da.from_array(array()).to_sharded_zarr(tmp_path / "a", shards=(8, 16), **layout())
    n_open, most = [0], [0]
    real_open, real_exit = seams.real("open an object"), copying.ExistingShard.__exit__

    def opening(self, key):
        reader = real_open(self, key)
        n_open[0] += reader is not None
        most[0] = max(most[0], n_open[0])
        return reader

    def closing(self, *exc_info):
        n_open[0] -= 1
        real_exit(self, *exc_info)

    monkeypatch.setattr(copying, "_MAX_OPEN", 3)
    monkeypatch.setattr(*seams.step("open an object"), opening)
    monkeypatch.setattr(copying.ExistingShard, "__exit__", closing)
    copied(tmp_path / "a", tmp_path / "b", (72, 56))
    assert (n_open[0], most[0]) == (0, 4)
    monkeypatch.undo()
    assert chunks_of(tmp_path / "a") == chunks_of(tmp_path / "b")


def test_a_source_that_changes_meanwhile_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "a"
    da.from_array(array()).to_sharded_zarr(path, shards=None, **layout())
    array_there = open_sharded(path)
    monkeypatch.setattr(copying, "_MAX_OPEN", 1)
    with copying.Shards(array_there) as shards:
        assert shards.get(0) is not None
        shards.get(1)
        shards.get(2)
        os.utime(path / "c/0/0", ns=(1, 1))
        (path / "c/0/0").write_bytes(b"other")
        with pytest.raises(StoreError, match="changed"):
            shards.get(0)


def test_chunks_pass_into_another_kind_of_store(tmp_path):
    da.from_array(array()).to_sharded_zarr(tmp_path / "a", shards=32, **layout())
    there, store = open_sharded(tmp_path / "a"), MemoryStore()
    with open_shard(there.metadata, there.store, (0, 0)) as shard:
        ranks = np.array(shard.present(), dtype=np.int64)[::-1]
        with store.transaction("none", "attempt", lambda: None) as transaction:
            writer = transaction.create("c/0")
            shard.copy_to(writer, ranks, is_same_store=False)
            writer.finish()
        wanted = b"".join(chunks_of(tmp_path / "a")[divmod(rank, 4)] for rank in ranks.tolist())
    with store.open("c/0") as copied_object:
        assert bytes(copied_object.read(0, copied_object.nbytes)) == wanted


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("shapes of the arrays", lambda d: d.update(shape=[72, 50])),
        ("data types", lambda d: d.update(data_type="int32")),
        ("fill values", lambda d: d.update(fill_value=0.0)),
        ("codecs of the inner", lambda d: d["codecs"][0]["configuration"]["codecs"].pop(1)),
        (
            "shapes of the inner",
            lambda d: d["codecs"][0]["configuration"].update(chunk_shape=[4, 8]),
        ),
    ],
)
def test_chunks_that_differ_are_refused(tmp_path, field, change):
    da.from_array(array()).to_sharded_zarr(tmp_path / "a", shards=16, **layout())
    opened = open_sharded(tmp_path / "a")
    document = json.loads(opened.metadata.text)
    change(document)
    other = ArrayMetadata(json.dumps(document))
    assert [field in name for name in what_differs(other, opened.metadata)] == [True]
    with pytest.raises(SpecError, match=field):
        StoredChunks(opened.metadata, other=ShardedArray(other, opened.store))
    with pytest.raises(SpecError, match="whole array"):
        StoredChunks(opened.metadata, Box((0, 0), (8, 8)), opened)


def test_where_chunks_come_from():
    """Against brute force, also without axes."""
    for shape, chunks, mine, theirs in [
        ((70, 50), (8, 8), (24, 16), (16, 40)),
        ((9,), (2,), (4,), (10,)),
        ((), (), (), ()),
    ]:
        grid, other = ShardGrid(shape, mine, chunks), ShardGrid(shape, theirs, chunks)
        for index in grid.shards_in(grid.whole):
            numbers, ranks = copying.origins(grid, index, other)
            for rank, at in enumerate(np.ndindex(grid.chunks_per_shard)):
                start = [i * s + k * c for i, s, k, c in zip(index, mine, at, chunks, strict=True)]
                if any(a >= n for a, n in zip(start, shape, strict=True)):
                    assert numbers[rank] == -1
                    continue
                shard = tuple(a // s for a, s in zip(start, theirs, strict=True))
                inside = tuple(a % s // c for a, s, c in zip(start, theirs, chunks, strict=True))
                assert np.unravel_index(numbers[rank], other.counts) == shard
                assert np.unravel_index(ranks[rank], other.chunks_per_shard) == inside
