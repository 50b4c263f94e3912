"""Hierarchies of 2022 in a bucket: arrays with a name, and one at the root."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite

VALUES = np.arange(1, 65, dtype="u2").reshape(8, 8)


@pytest.mark.parametrize("name", [None, "x"])
def test_a_hierarchy_in_a_bucket_is_found_again(moto, url, tmp_path, name):
    assert moto
    x = da.from_array(VALUES, chunks=4)
    new = {"shards": 4, "chunks": 2, "format": "transformer-2022", "name": name}
    for _ in range(2):
        done = x.to_sharded_zarr(url, run_dir=tmp_path / "runs", **new)
    assert done.n_resumed_shards == 4
    y = shardwrite.from_sharded_zarr(url, name=name)
    np.testing.assert_array_equal(y.compute(), VALUES)
    assert shardwrite.verify(url, name=name, deep=True, against=x).is_good
    source = url if name is None else f"{url}::{name}"
    assert "16 copied" in str(shardwrite.reshard(source, tmp_path / "new", shards=4))
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "new", mode="r")[...], VALUES)
    np.testing.assert_array_equal(shardwrite.sources.open_source(source)[2:5], VALUES[2:5])
    identities = {shardwrite.sources.open_source(source).identity for _ in range(2)}
    assert len(identities) == 1
