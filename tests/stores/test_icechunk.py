"""Icechunk is no target, and the recipe in its place works."""

from __future__ import annotations

import re
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import SpecError

PAGE = Path(__file__).parents[2] / "docs/buckets.md"


def test_a_session_is_refused_with_the_recipe(tmp_path):
    session = type("Session", (), {"__module__": "icechunk.session"})()
    with pytest.raises(SpecError, match=r"Session.*only of arrays that exist.*Into an Icechunk"):
        da.ones(4).to_sharded_zarr(session, shards=2, chunks=1, run_dir=tmp_path)
    assert "## Into an Icechunk repository" in PAGE.read_text()


def test_the_recipe(tmp_path):
    pytest.importorskip("icechunk", reason="icechunk is not installed")
    section = PAGE.read_text().partition("## Into an Icechunk repository")[2]
    code = re.search(r"```py\n(.*?)```", section, re.DOTALL)[1]
    values = np.random.default_rng(0).random((64, 64, 64))
    known = {"x": da.from_array(values, chunks=32), "folder": tmp_path, "shardwrite": shardwrite}
    exec(code, known)
    repository = known["repository"]
    session = repository.readonly_session(snapshot_id=known["snapshot"])
    array = zarr.open_array(session.store, path="scan", mode="r")
    assert (array.shards, array.chunks) == ((32, 32, 32), (8, 8, 8))
    np.testing.assert_array_equal(array[...], values)
    found = shardwrite.open_sharded(session.store, name="scan")
    np.testing.assert_array_equal(found[:9, 3:40, 60:], values[:9, 3:40, 60:])
    with pytest.raises(SpecError, match="Into an Icechunk"):
        known["x"].to_sharded_zarr(known["session"].store, shards=32, chunks=8)
