"""Arrays that zarr-python has made smaller or larger since they were written here."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import ShardWriter
from shardwrite.cli import main

VALUES = np.arange(1, 1 + 20 * 12, dtype="i4").reshape(20, 12)
VALUES[:4, :4] = 0  # a shard that is empty by design


pytestmark = pytest.mark.usefixtures("one_thread")


def write(path, **more):
    source = da.from_array(VALUES, chunks=5)
    return source.to_sharded_zarr(path, shards=4, chunks=2, source_id="first", **more)


def check(path, wanted):
    for found in (zarr.open_array(path, mode="r")[...], shardwrite.open_sharded(path)[...]):
        np.testing.assert_array_equal(found, wanted)
    report = shardwrite.verify(path, deep=True)
    assert report.is_good, report
    assert not report.warnings
    assert not seams.state_beside(path).exists()


@pytest.mark.parametrize("shape", [(10, 12), (20, 5), (7, 3), (1, 1), (26, 12), (10, 20)])
def test_a_new_shape(tmp_path, shape):
    path = tmp_path / "x"
    write(path)
    zarr.open_array(path, mode="r+").resize(shape)
    wanted = np.zeros(shape, "i4")
    both = tuple(slice(min(m, n)) for m, n in zip(shape, VALUES.shape, strict=True))
    wanted[both] = VALUES[both]
    check(path, wanted)
    assert shardwrite.repair(path).is_done
    assert CliRunner().invoke(main, ["info", str(path)]).exit_code == 0
    assert CliRunner().invoke(main, ["census", str(path)]).exit_code == 0

    shardwrite.write_region(da.full((1, 1), 7, dtype="i4"), path, (slice(0, 1), slice(0, 1)))
    wanted[0, 0] = 7
    check(path, wanted)
    more = np.full((3, shape[1]), 9, "i4")
    da.from_array(more).to_sharded_zarr(path, region="append", axis=0)
    wanted = np.concatenate([wanted, more])
    check(path, wanted)
    shardwrite.compact(path, above=0)
    with ShardWriter(path) as writer:
        writer.append(more[0])
    check(path, np.concatenate([wanted, more[:1]]))


@pytest.mark.long
def test_the_same_call_after_it_was_cut_off(tmp_path):
    """What is no longer there is not called done."""
    path = tmp_path / "x"
    write(path)
    more = da.full((4, 12), 9, dtype="i4")

    def append():
        return more.to_sharded_zarr(path, region="append", axis=0, source_id="more")

    append()
    check(path, np.concatenate([VALUES, np.full((4, 12), 9)]))
    append()  # is done
    assert zarr.open_array(path).shape == (24, 12)
    zarr.open_array(path, mode="r+").resize((18, 12))
    append()
    check(path, np.concatenate([VALUES[:18], np.full((4, 12), 9)]))

    zarr.open_array(path, mode="r+").resize((10, 12))
    with pytest.raises(shardwrite.SpecError, match="an array exists there"):
        write(path)
    write(path, mode="w")
    check(path, VALUES)


def test_a_receipt_of_another_array_is_not_in_the_way(tmp_path):
    path, other = tmp_path / "x", tmp_path / "y"
    write(path)
    da.ones((5,), dtype="i4").to_sharded_zarr(other, shards=4, chunks=2)
    name = "shardwrite-receipt.json"
    (path / name).write_bytes((other / name).read_bytes())
    report = shardwrite.verify(path, deep=True)
    assert report.is_good
    assert "does not fit the array" in report.warnings[0]
    shardwrite.write_region(da.full((1, 1), 7, dtype="i4"), path, (slice(0, 1), slice(0, 1)))
    wanted = VALUES.copy()
    wanted[0, 0] = 7
    check(path, wanted)
