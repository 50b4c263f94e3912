"""An array whose run has not ended is not converted or copied: its missing shards would be lost."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import zarr
from helpers import Stop

import shardwrite
from shardwrite import JournalError, SpecError

VALUES = np.arange(1, 145, dtype="u2").reshape(12, 12)


def stop_at(block, place, block_info=None):
    if block_info and block_info[0]["chunk-location"] == place:
        raise Stop
    return block


def broken(x, place):
    return x.map_blocks(stop_at, place, dtype=x.dtype, meta=x._meta)


CONVERSIONS = {
    "shard": lambda source, target: shardwrite.shard(source, target, 3),
    "in place": lambda source, target: shardwrite.shard(source, None, 3),
    "encoded": lambda source, target: shardwrite.reshard(source, target, chunks=(3, 3)),
    "parts": lambda source, target: shardwrite.prepare_conversion(source, target, 3),
    "upload": lambda source, target: shardwrite.upload(source, f"file://{target}"),
}


@pytest.mark.parametrize("how", CONVERSIONS)
def test_an_array_that_is_not_whole_is_refused(tmp_path, how):
    """Its missing shards were taken for fill values, and the conversion told of success."""
    x = da.from_array(VALUES, chunks=4)
    wanted = {"shards": (4, 4), "chunks": (2, 2), "publish": "first", "source_id": "values"}
    zarr.create_group(tmp_path / "all")
    source, target = tmp_path / "all" / "a", tmp_path / "b"
    with pytest.raises(Stop):
        broken(x, (1, 1)).to_sharded_zarr(source, **wanted)
    for one in (source, tmp_path / "all"):
        with pytest.raises(JournalError, match=r"the run that makes .*/all/a has not ended.*same"):
            CONVERSIONS[how](one, target)
        assert not target.exists()

    x.to_sharded_zarr(source, **wanted)  # which the message gives as remedy
    CONVERSIONS[how](source, target)
    made = source if how == "in place" else target
    if how != "parts":
        np.testing.assert_array_equal(zarr.open_array(made, mode="r")[...], VALUES)


def test_an_array_whose_update_was_interrupted_is_refused(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    da.from_array(VALUES, chunks=4).to_sharded_zarr(source, shards=(4, 4), chunks=(2, 2))
    change = broken(da.zeros((12, 12), chunks=4, dtype="u2"), (1, 1))
    with pytest.raises(Stop):
        shardwrite.write_region(change, source, ...)
    with pytest.raises(JournalError, match="abandon"):
        shardwrite.shard(source, target, 2)

    assert shardwrite.abandon(source)
    shardwrite.shard(source, target, 2)
    assert shardwrite.verify(target, against=source).is_good


def test_steps_of_an_array_that_grows_are_converted_meanwhile(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    x = da.from_array(VALUES, chunks=(2, 12))
    with pytest.raises(Stop):
        broken(x, (4, 0)).to_sharded_zarr(source, shards=None, chunks=(2, 12), publish="first")
    done = shardwrite.shard(source, target, (2, 1), while_growing=0)
    assert done.n_left > 0


def test_an_array_that_readers_do_not_see_yet_is_left_out_with_a_word(tmp_path):
    """It was left out without a word; and in place, the message had the user move its state away."""
    x = da.from_array(VALUES, chunks=4)
    root = tmp_path / "all"
    zarr.create_group(root)
    x.to_sharded_zarr(root / "whole", shards=(4, 4), chunks=(2, 2))
    with pytest.raises(Stop):
        broken(x, (1, 1)).to_sharded_zarr(root / "in" / "part", shards=(4, 4), chunks=(2, 2))
    told = ("in/part", "the run that makes it has not ended")
    assert told in shardwrite.plan_reshard(root, 3).left_out
    done = shardwrite.shard(root, tmp_path / "b", 3)
    assert told in done.left_out
    assert "in/part" in str(done)
    assert told in shardwrite.upload(root, f"file://{tmp_path / 'c'}").left_out
    for keywords in ({"dst": None}, {"dst": tmp_path / "d", "consume": True}):
        with pytest.raises(SpecError, match=r"'in/part' would be \w+ \(the run that makes it has"):
            shardwrite.shard(root, shards=3, **keywords)
