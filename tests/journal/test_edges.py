"""What an append or a stream has written beyond the array goes when it is given up."""

from __future__ import annotations

import os

import dask.array as da
import numpy as np
import pytest
import seams
import zarr

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter, abandon, verify, write_region
from shardwrite.errors import StoreError
from shardwrite.journal.edges import Rights, clear_beyond
from shardwrite.read.stored_shard import ExistingShard
from shardwrite.stores.posix import PosixStore


def append(path, strategy):
    """An append that is interrupted when its shards are committed, and then given up."""

    with pytest.MonkeyPatch.context() as patch:
        seams.kill_before(patch, "publish the array", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            write_region(NEW, path, "append", axis=1, strategy=strategy)
    assert abandon(path) == [((0, 1), (5, 11))]


def stream(path, strategy):
    """A stream whose process dies when its shards are committed; the next one gives it up."""
    writer = ShardWriter(path, axis=1, strategy=strategy)
    writer.append(NEW.compute())
    writer._commit_all()
    writer._stretch.lease.close()
    writer._jobs.shutdown()


NEW = da.full((1, 6), 9, dtype="i4", chunks=2)
LAYOUTS = {
    "end": {"shards": (1, 9), "chunks": (1, 3)},
    "start": {"shards": (1, 8), "chunks": (1, 4), "index_location": "start"},
    "raw": {"shards": (1, 8), "chunks": (1, 2), "compressors": None},
    "unsharded": {"shards": None, "chunks": (1, 8)},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("first", [0, 1], ids=["of fill values", "of data"])
@pytest.mark.parametrize("write", [append, stream])
def test_values_of_an_append_that_was_given_up_do_not_appear_later(tmp_path, layout, first, write):
    path = tmp_path / "x.zarr"
    x = np.full((1, 5), first, "i4")
    da.from_array(x).to_sharded_zarr(path, **LAYOUTS[layout])
    write(path, AppendOnly(in_place=True) if layout == "start" else FixedOrder())
    with ShardWriter(path, axis=1) as writer:  # gives the stream up
        writer[:, 20:21] = np.full((1, 1), 5, "i4")
    expected = np.zeros((1, 21), "i4")
    expected[:, :5], expected[:, 20] = first, 5
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], expected)
    assert verify(path, deep=True).is_good
    assert os.listdir(tmp_path) == ["x.zarr"]
    write_region(NEW, path, "append", axis=1)
    expected = np.concatenate([expected, np.full((1, 6), 9)], axis=1)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], expected)


def test_a_damaged_shard_does_not_keep_an_append_from_being_given_up(tmp_path):
    path = tmp_path / "x.zarr"
    shardwrite.create(path, (1, 5), "i4", **LAYOUTS["end"])
    with seams.once_before("clear what an append wrote", lambda: os.truncate(path / "c/0/0", 3)):
        append(path, FixedOrder())
    assert not verify(path).is_good


def test_a_process_that_was_frozen_brings_no_old_shard_back(tmp_path, monkeypatch):
    """It stands right before its rename, while another clears the same shard, and a user writes."""
    path = tmp_path / "x.zarr"
    da.ones((1, 7), dtype="i4").to_sharded_zarr(path, **LAYOUTS["raw"])
    document = path / "zarr.json"
    document.write_text(document.read_text().replace("7", "5", 1))
    array, new = shardwrite.open_sharded(path).metadata, np.arange(2, 7, dtype="i4")[None]
    assert array.grid.shape == (1, 5)
    original, store = ExistingShard.check_current, PosixStore(path)

    def clear():
        clear_beyond(store, array, [(0, 0)], "full", Rights(None, lambda: None), "edges-run")

    def freeze(shard):
        original(shard)
        monkeypatch.undo()
        clear()
        write_region(da.from_array(new), path, ...)

    monkeypatch.setattr(ExistingShard, "check_current", freeze)
    with pytest.raises(StoreError):
        clear()
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], new)
    assert os.listdir(path / "c" / "0") == ["0"]
