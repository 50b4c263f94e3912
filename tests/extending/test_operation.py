"""Operations that the package does not know are made of its public seams, and are killed and
resumed as its own."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import more_operations
import reading
import seams

PREPARE = (
    reading.dying_after(4)
    + """
import dask
import more_operations
def go(scheduler, **more):
    with dask.config.set(scheduler=scheduler, num_workers=2):
        return more_operations.{call}
"""
)
FILL = PREPARE.format(
    call="fill(sys.argv[1], (slice(5, 60), slice(0, 50)), 7, memory_limit='30kB', **more)"
)
RESHARD = PREPARE.format(
    call="reshard(sys.argv[1], sys.argv[2], (8, 16), memory_limit='30kB', **more)"
)
KILLED = "\ngo('sync', on_report=die)"
RESUMED = "\nif __name__ == '__main__': print(go({!r}).n_resumed_shards)"


@pytest.fixture
def values():
    found = np.random.default_rng(0).integers(1, 2**16, (64, 64), dtype="u4")
    found[16:32, 20:50] = 0
    return found


@pytest.fixture
def path(tmp_path, values):
    da.from_array(values, chunks=16).to_sharded_zarr(tmp_path / "x", shards=16, chunks=4)
    return tmp_path / "x"


@pytest.mark.parametrize(
    "scheduler", ["threads", pytest.param("processes", marks=pytest.mark.long)]
)
def test_an_update_is_killed_resumed_verified_and_read(path, values, scheduler):
    reading.run(FILL + KILLED, path, code=-signal.SIGKILL)
    half = zarr.open_array(path, mode="r")[...]
    values[5:60, :50] = 7
    is_new = half == values
    assert is_new.any()
    assert not is_new.all()
    with pytest.raises(shardwrite.JournalError, match="has not ended"):
        more_operations.fill(path, np.s_[:20, :20], 8)
    assert 0 < int(reading.run(FILL + RESUMED.format(scheduler), path)) < 16
    assert shardwrite.verify(path, deep=True, against=da.from_array(values)).is_good
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], values)
    assert not seams.state_beside(path).exists()


@pytest.mark.parametrize(
    "scheduler", ["threads", pytest.param("processes", marks=pytest.mark.long)]
)
def test_a_new_array_is_killed_resumed_verified_and_read(tmp_path, path, values, scheduler):
    new = tmp_path / "y"
    reading.run(RESHARD + KILLED, path, new, code=-signal.SIGKILL)
    assert not (new / "zarr.json").exists()
    assert 0 < int(reading.run(RESHARD + RESUMED.format(scheduler), path, new)) < 32
    assert shardwrite.verify(new, deep=True, against=da.from_array(values)).is_good
    found = zarr.open_array(new, mode="r")
    assert found.shards == (8, 16)
    np.testing.assert_array_equal(found[...], values)
    assert not new.with_name("y.shardwrite").exists()


def test_chunks_that_cannot_be_taken_over_are_refused_before_anything_is_written(tmp_path, path):
    with pytest.raises(shardwrite.SpecError, match="codecs of the inner chunks differ"):
        more_operations.reshard(path, tmp_path / "y", 32, compressors=None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x"]
    with dask.config.set(scheduler="sync"):
        more_operations.reshard(path, tmp_path / "y", 32)
