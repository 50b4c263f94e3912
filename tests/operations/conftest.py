"""Fixtures of several modules about operations."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest


@pytest.fixture
def a():
    """Values of an array to be repaired, whose first shard holds only the fill value."""
    found = np.random.default_rng(0).integers(1, 9, (64, 64)).astype("i4")
    found[:16, :16] = 0
    return found


@pytest.fixture
def path(tmp_path, a, request):
    """That array in shards, as the `LAYOUT` of the module says."""
    da.from_array(a, chunks=(10, 64)).to_sharded_zarr(tmp_path / "x", **request.module.LAYOUT)
    return tmp_path / "x"
