"""Where chunks that hold only the fill value are stored, they are stored after a repair, too."""

from __future__ import annotations

import dask.array as da
import numpy as np
import obstore
import pytest

import shardwrite
from shardwrite.volumes.hashed import _InShards

SCATTERED = {
    "preshift_bits": 0,
    "minishard_bits": 1,
    "shard_bits": 2,
    "hash": "murmurhash3_x86_128",
}


@pytest.fixture
def x():
    """One element that is not zero."""
    found = np.zeros((8, 8, 8), "u4")
    found[0, 0, 0] = 1
    return found


def objects(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("c/*/*/*") if p.is_file()}


@pytest.mark.parametrize("shards", [4, None])
@pytest.mark.parametrize("compare", [True, False])
def test_a_repair_writes_the_same_objects(tmp_path, x, shards, compare):
    path = tmp_path / "x"
    shardwrite.to_sharded_zarr(x, path, shards=shards, chunks=2, write_empty_chunks=True)
    before = objects(path)
    lost = [path / "c/1/1/1", path / "c/0/0/1"]
    for one in lost:
        one.unlink()
    done = shardwrite.repair(path, x, compare=compare)
    assert [task.key for task in done.tasks] == ["c/0/0/1", "c/1/1/1"]
    assert objects(path) == before
    assert shardwrite.verify(path, deep=True, against=x).is_good
    lost[0].unlink()
    assert shardwrite.repair(path, x).is_done, "the receipt still says so"
    assert objects(path) == before


@pytest.mark.parametrize("way", ["reshard", "gzip", "unshard", "in place", "consume", "bucket"])
def test_a_converted_array_that_stores_all_chunks(tmp_path, x, way):
    """Its run notes no `write_empty_chunks`, and a repair dropped what was empty."""
    path, src = str(tmp_path / "x"), str(tmp_path / "src")
    gzip = {"name": "gzip", "configuration": {"level": 1}}
    shardwrite.to_sharded_zarr(x, src, shards=4, chunks=2, write_empty_chunks=True)
    if way == "unshard":
        shardwrite.unshard(src, path)
    elif way == "bucket":
        bucket = obstore.store.MemoryStore()
        shardwrite.upload(src, bucket)
        shardwrite.download(bucket, path)
    elif way == "in place":
        shardwrite.reshard(src, shards=8)
        path = src
    else:
        more = {"gzip": {"compressors": [gzip]}, "consume": {"consume": True}}.get(way, {})
        shardwrite.reshard(src, path, shards=8, **more)
    before = objects(tmp_path / path)
    assert shardwrite.verify(path).n_stored_chunks == 64
    for _ in range(2):  # and after a repair
        (tmp_path / path / max(before)).unlink()
        shardwrite.repair(path, x)
        assert objects(tmp_path / path) == before


def test_a_converted_array_that_stores_some_chunks(tmp_path, x):
    shardwrite.to_sharded_zarr(x, tmp_path / "src", shards=4, chunks=2)
    shardwrite.reshard(tmp_path / "src", tmp_path / "x", shards=8)
    before = objects(tmp_path / "x")
    (tmp_path / "x" / max(before)).unlink()
    shardwrite.repair(tmp_path / "x", x)
    assert objects(tmp_path / "x") == before
    assert shardwrite.verify(tmp_path / "x").n_stored_chunks == 1


def test_other_arrays_have_no_such_objects(tmp_path, x):
    path = tmp_path / "x"
    shardwrite.to_sharded_zarr(x, path, shards=4, chunks=2)
    (path / "c/0/0/0").unlink()
    shardwrite.repair(path, x)
    assert set(map(str, objects(path))) == {"c/0/0/0"}


@pytest.mark.parametrize("sharding", ["auto", SCATTERED], ids=["boxes", "scattered"])
@pytest.mark.parametrize("is_stored", [True, False])
def test_scales_of_volumes(tmp_path, x, sharding, is_stored):
    shardwrite.to_precomputed(
        x,
        tmp_path / "v",
        axes="zyx",
        resolution=(1, 1, 1),
        chunks=2,
        sharding=sharding,
        write_empty_chunks=is_stored,
    )
    scale = tmp_path / "v" / "1_1_1"
    before = {shard: shard.read_bytes() for shard in sorted(scale.glob("*.shard"))}
    n_chunks = shardwrite.verify(scale).n_stored_chunks
    assert n_chunks == (64 if is_stored else 1)
    first = next(iter(before))
    first.write_bytes(b"torn")
    assert shardwrite.repair(scale, x).result.n_shards
    assert shardwrite.verify(scale, deep=True, against=x).n_stored_chunks == n_chunks
    assert {shard: shard.read_bytes() for shard in before} == before


def test_only_chunks_of_the_bad_shards_are_spooled(tmp_path, x):
    """A spool of all empty chunks of a large volume would take as much room as the volume."""
    shardwrite.to_precomputed(
        x, tmp_path / "v", axes="zyx", resolution=(1, 1, 1), chunks=2, sharding=SCATTERED
    )
    placed = shardwrite.open_sharded(tmp_path / "v" / "1_1_1").metadata.placed
    is_kept = _InShards(placed, frozenset({0, 2}))
    from shardwrite.grid import Box

    starts = [(a, b, c) for a in range(0, 8, 2) for b in range(0, 8, 2) for c in range(0, 8, 2)]
    boxes = [Box(start, tuple(n + 2 for n in start)) for start in starts]
    whole = Box((0, 0, 0), (8, 8, 8))
    wanted = {
        box.start for rank, chunks in placed.chunks_in(whole) if rank in (0, 2) for _, box in chunks
    }
    assert {box.start for box in boxes if is_kept(box)} == wanted
    assert 0 < len(wanted) < 64


def test_an_array_that_is_converted_in_its_place_or_compacted_keeps_them(tmp_path, x):
    path = tmp_path / "x"
    shardwrite.to_sharded_zarr(x, path, shards=4, chunks=2, write_empty_chunks=True)
    strategy = shardwrite.AppendOnly()
    region = (slice(0, 2), slice(0, 2), slice(0, 2))
    da.from_array(x[region] + 5).to_sharded_zarr(path, region=region, strategy=strategy)
    shardwrite.compact(path, above=0)
    assert shardwrite.verify(path).n_stored_chunks == 64
    shardwrite.reshard(path, None, 8)
    assert shardwrite.verify(path).n_stored_chunks == 64
    shardwrite.unshard(path)
    assert shardwrite.verify(path).n_stored_chunks == 64
