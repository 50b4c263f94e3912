"""Parts of a run whose plan names its source: a process that has nothing opens what the plan names."""

from __future__ import annotations

import json
import subprocess

import dask.array as da
import numpy as np
import pytest
import zarr
from forks import python

import shardwrite
from shardwrite.errors import SpecError
from shardwrite.read.source import as_dask
from shardwrite.sources import decoded, open_source

VALUES = np.arange(20 * 20, dtype="i4").reshape(20, 20)
LAYOUT = {"shards": 8, "chunks": 4}


def npy(home):
    np.save(home / "x.npy", VALUES)
    return open_source(home / "x.npy")


def relative(home, monkeypatch):
    monkeypatch.chdir(home)
    np.save("x.npy", VALUES)
    return open_source("x.npy")


def raw(home):
    (home / "x.raw").write_bytes(b"head" + VALUES.astype(">i4").tobytes())
    return as_dask(open_source(home / "x.raw", shape=(20, 20), dtype=">i4", offset=4), 7)


def stored(home):
    return zarr.create_array(home / "from.zarr", data=VALUES, chunks=(5, 5))


def in_a_group(home):
    return zarr.create_group(home / "from.zarr").create_array("a/b", data=VALUES, chunks=(5, 5))


def sharded(home):
    da.from_array(VALUES, chunks=7).to_sharded_zarr(home / "from.zarr", **LAYOUT)
    return shardwrite.open_sharded(home / "from.zarr")


def packed(home):
    pytest.importorskip("xarray")
    attributes = {"scale_factor": 0.5}
    zarr.create_array(home / "x.zarr", data=VALUES, chunks=(5, 5), attributes=attributes)
    return decoded(open_source(home / "x.zarr"))


@pytest.mark.parametrize("make", [npy, raw, stored, in_a_group, sharded, packed])
def test_parts_open_the_source_that_the_plan_names(tmp_path, make):
    x, path = make(tmp_path), tmp_path / "y.zarr"
    shardwrite.prepare(x, path, shardwrite.plan(x, **LAYOUT))
    shardwrite.write_part(None, path, 0, 3)
    shardwrite.write_part(x, path, 1, 3)
    shardwrite.write_part(None, path, 2, 3)
    assert shardwrite.finalize(path).n_shards == 9
    scale = 0.5 if make is packed else 1
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], VALUES * scale)
    assert shardwrite.write_part(None, path, 0, 3).n_shards == 9, "it has ended"


def test_the_path_holds_wherever_a_process_starts(tmp_path, monkeypatch):
    x, path = relative(tmp_path, monkeypatch), tmp_path / "y.zarr"
    shardwrite.prepare(x, path, shardwrite.plan(x, **LAYOUT))
    program = "import sys, shardwrite; shardwrite.write_part(None, sys.argv[1], 0, 1)"
    subprocess.run([*python(), "-c", program, path], check=True, cwd="/")
    shardwrite.finalize(path)
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], VALUES)


def test_a_source_that_has_changed_is_refused(tmp_path):
    x, path = npy(tmp_path), tmp_path / "y.zarr"
    shardwrite.prepare(x, path, shardwrite.plan(x, **LAYOUT))
    np.save(tmp_path / "x.npy", np.zeros((20, 20, 1), "i4"))
    with pytest.raises(SpecError, match="changed since the run was begun"):
        shardwrite.write_part(None, path, 0, 1)
    new = open_source(tmp_path / "x.npy")
    shardwrite.prepare(new, path, shardwrite.plan(new, **LAYOUT), restart=True)
    shardwrite.write_part(None, path, 0, 1)
    shardwrite.finalize(path)
    assert not shardwrite.open_sharded(path)[...].any()


@pytest.mark.parametrize(
    "make",
    [
        lambda _: VALUES,
        lambda home: as_dask(npy(home)) + 1,
        lambda home: as_dask(npy(home))[::2],
        lambda home: as_dask(npy(home)).map_blocks(np.sign),
        lambda home: da.from_zarr(stored(home)).rechunk(20),
    ],
)
def test_what_only_one_process_has_must_be_given(tmp_path, make):
    x, path = make(tmp_path), tmp_path / "y.zarr"
    shardwrite.prepare(x, path, shardwrite.plan(x, source_id="x", **LAYOUT))
    (plan,) = {file.read_text() for file in tmp_path.rglob("plan.json")}
    assert "source" not in json.loads(plan)
    with pytest.raises(SpecError, match="does not tell where its source can be opened"):
        shardwrite.write_part(None, path, 0, 1)
    shardwrite.write_part(x, path, 0, 1, source_id="x")
    shardwrite.finalize(path)
