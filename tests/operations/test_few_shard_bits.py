"""Volumes with the hash identity whose parameters leave out high bits of the chunk ids.

The format allows it. Far parts of the volume then share a shard, which is no box of it.
"""

from __future__ import annotations

import json

import dask
import dask.array as da
import numpy as np
import pytest
from helpers import Stop, shards_in

import shardwrite
from shardwrite import SpecError
from shardwrite.volumes import scale
from shardwrite.volumes.scale import box_of_chunks
from shardwrite.volumes.sharding import MortonCode, ShardingParameters
from shardwrite.write import copying

VALUES = np.arange(1, 1 + 16**3, dtype="u4").reshape(16, 16, 16)
FEW = {"preshift_bits": 0, "minishard_bits": 0, "shard_bits": 1}
NEW = {
    "axes": "zyx",
    "resolution": (4, 4, 40),
    "chunks": 4,
    "source_id": "values",
    "sharding": FEW,
    "durability": "none",
}
KEY, SPOOL = "4_4_40", ".4_4_40.spool"


def source(values=VALUES):
    return da.from_array(values, chunks=8)


def write(place, **changed):
    return shardwrite.to_precomputed(source(), place, **{**NEW, **changed})


def chunks_by_id():
    cells = np.array(list(np.ndindex(4, 4, 4)))
    ids = MortonCode((4, 4, 4)).encode(cells).tolist()
    boxes = (VALUES[tuple(slice(4 * i, 4 * i + 4) for i in cell[::-1])] for cell in cells.tolist())
    return {n: box.tobytes() for n, box in zip(ids, boxes, strict=True)}


@pytest.mark.parametrize(
    "sharding",
    [
        FEW,
        {"preshift_bits": 2, "minishard_bits": 1, "shard_bits": 2},
        {"preshift_bits": 0, "minishard_bits": 0, "shard_bits": 0},
        {"preshift_bits": 3, "minishard_bits": 2, "shard_bits": 0},
    ],
)
def test_shards_are_those_of_the_container(tmp_path, sharding):
    plan = shardwrite.plan_precomputed(source(), axes="zyx", **without_axes(sharding=sharding))
    assert "too few for boxes and scatter the chunks" in str(plan)
    result = write(tmp_path / "v", sharding=sharding)
    assert plan.gathering.n_shards == result.n_shards == 2 ** sharding["shard_bits"]
    full = json.loads((tmp_path / "v" / "info").read_text())["scales"][0]["sharding"]
    assert {**full, **sharding} == full
    alone = shardwrite.UInt64Shards(tmp_path / "alone", full)
    alone.write(chunks_by_id(), durability="none")
    assert shards_in(tmp_path / "v" / KEY) == shards_in(tmp_path / "alone")
    found = shardwrite.from_precomputed(tmp_path / "v", axes="zyx")
    np.testing.assert_array_equal(found, VALUES)
    assert {path.name for path in (tmp_path / "v").iterdir()} == {"info", KEY}
    report = shardwrite.verify(tmp_path / "v" / KEY, deep=True, against=source())
    assert report.is_good
    assert write(tmp_path / "v", sharding=sharding).n_resumed_shards == result.n_shards


def without_axes(**changed):
    return {k: v for k, v in {**NEW, **changed}.items() if k not in ("axes", "durability")}


def test_a_call_goes_on_and_a_shard_is_repaired(tmp_path):
    few = {**FEW, "shard_bits": 3}
    copy, left = copying._copy_shard, iter(range(4))

    def copy_some(*given):
        if next(left, None) is None:
            raise Stop
        return copy(*given)

    with dask.config.set(scheduler="sync"), pytest.MonkeyPatch.context() as patched:
        patched.setattr(copying, "_copy_shard", copy_some)
        with pytest.raises(Stop):
            write(tmp_path, sharding=few, memory_limit="50kB")
    assert (tmp_path / SPOOL).exists()
    assert write(tmp_path, sharding=few).n_resumed_shards > 0
    before = shards_in(tmp_path / KEY)
    (tmp_path / KEY / "1.shard").unlink()
    assert not shardwrite.verify(tmp_path / KEY).is_good
    shardwrite.repair(tmp_path / KEY, source(), durability="none")
    assert shards_in(tmp_path / KEY) == before
    assert shardwrite.verify(tmp_path / KEY, deep=True, against=source()).is_good


def test_parts(tmp_path):
    plan = shardwrite.plan_precomputed(source(), axes="zyx", **without_axes(shard_nbytes="4kB"))
    assert plan.n_shards == 8
    shardwrite.prepare(source(), tmp_path / "v" / KEY, plan, durability="none")
    for _ in range(2):
        for part in range(3):
            shardwrite.write_part(source(), tmp_path / "v" / KEY, part, 3, source_id="values")
    shardwrite.finalize(tmp_path / "v" / KEY, n_parts=3)
    write(tmp_path / "whole")
    assert shards_in(tmp_path / "v" / KEY) == shards_in(tmp_path / "whole" / KEY)
    assert {path.name for path in (tmp_path / "v").iterdir()} == {"info", KEY}


@pytest.mark.parametrize("shard_bits", [3, 4])
def test_scales_of_which_only_the_finest_is_scattered(tmp_path, shard_bits):
    """The coarser ones have fewer ids, and their shards are boxes."""
    arrays = {(8, 8, 40): VALUES[::, ::2, ::2], (16, 16, 160): VALUES[::4, ::4, ::4]}
    scales = {size: source(values) for size, values in arrays.items()}
    sharding = {**FEW, "shard_bits": shard_bits}
    plan = shardwrite.plan_precomputed(source(), scales=scales, **keywords(sharding))
    is_scattered = [one.gathering is not None for one in (plan, *plan.scales)]
    assert is_scattered == [True, shard_bits < 4, False]
    for _ in range(2):
        result = write(tmp_path, sharding=sharding, scales=scales)
        names = [each.path.rpartition("/")[2] for each in (result, *result.scales)]
        assert names == [KEY, "8_8_40", "16_16_160"]
    assert result.n_resumed_shards == 2**shard_bits
    for key, values in zip(names, [VALUES, *arrays.values()], strict=True):
        found = shardwrite.from_precomputed(tmp_path, scale=key, axes="zyx")
        np.testing.assert_array_equal(found, values)
        assert shardwrite.verify(tmp_path / key, deep=True, against=values).is_good
    assert {path.name for path in tmp_path.iterdir()} == {"info", *names}


def keywords(sharding):
    return {"axes": "zyx", **without_axes(sharding=sharding)}


def test_too_many_chunks(monkeypatch):
    monkeypatch.setattr(scale, "MOST_CHUNKS", 63)
    scale.scattered_ids.cache_clear()
    with pytest.raises(SpecError, match=r"shard_bits=1: .*64 of them.*give at least 6, or larger"):
        shardwrite.plan_precomputed(source(), **keywords(FEW))
    plan = shardwrite.plan_precomputed(source(), **keywords({**FEW, "shard_bits": 6}))
    assert plan.gathering is None


def test_boxes_need_all_bits():
    """As a document by hand may ask for."""
    sharding = ShardingParameters(preshift_bits=1, shard_bits=1)
    with pytest.raises(SpecError, match=r"shard_bits=1: the chunk ids have 6 bits, of which a.*5"):
        box_of_chunks(sharding, MortonCode((4, 4, 4)))
