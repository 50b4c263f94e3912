"""Keywords of a run as a value."""

from __future__ import annotations

import dataclasses

import dask.array as da
import pytest

import shardwrite
from shardwrite.errors import SpecError
from shardwrite.runs.job import RunOptions, for_new_array

BAD = [("mode", "a"), ("publish", "never"), ("durability", 1), ("restart", "no"), ("recheck", 2)]


@pytest.mark.parametrize(("keyword", "value"), BAD)
def test_a_bad_value_is_refused_with_its_keyword(keyword, value):
    with pytest.raises(SpecError, match="no such choice") as caught:
        RunOptions(**{keyword: value})
    assert caught.value.field == keyword
    assert "r+" not in caught.value.remedy


def test_new_arrays_are_not_written_into():
    assert for_new_array(RunOptions()) == RunOptions()
    with pytest.raises(SpecError) as caught:
        for_new_array(RunOptions(mode="r+"))
    assert caught.value.field == "mode"
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunOptions().mode = "w"


USUAL = {"shards": 4, "chunks": 2, "mode": "w", "publish": "first", "compressors": None}


@pytest.mark.parametrize("keyword", USUAL)
def test_a_region_refuses_what_describes_new_arrays(tmp_path, keyword):
    with pytest.raises(SpecError, match="is for new arrays") as caught:
        da.ones(4).to_sharded_zarr(tmp_path / "x", region=slice(0, 4), **{keyword: USUAL[keyword]})
    assert caught.value.field == keyword


def test_several_arrays_know_their_keywords(tmp_path):
    x = da.ones((4, 4), chunks=2)
    for keyword in ("region", "shard", "component"):
        with pytest.raises(TypeError, match=rf"unexpected keyword argument '{keyword}'"):
            shardwrite.store([x], [tmp_path / "x"], **{keyword: 0})
    for make in (
        lambda: shardwrite.plan(x, shard=2),
        lambda: shardwrite.create(tmp_path / "x", (4,), "u1", shards=2, chunks=1, shard=2),
    ):
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'shard'; give shards"):
            make()
    [result] = shardwrite.store(
        [x], [tmp_path / "x"], shards=2, chunks=1, durability="none", strategy="F", fill_value=7
    )
    assert result.n_shards == 4
    assert shardwrite.open_sharded(tmp_path / "x").metadata.fill_value == 7
