"""The core without its wings: with each of them blocked from import, in a fresh process, it writes,
changes, reads, checks and repairs arrays, and leaves alone what a wing has not finished."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite.convert.removal import Consumption
from shardwrite.convert.swap import InPlace

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from blocked import run_without
from shape import WINGS

BLOCKED = [wing for wing in WINGS if wing != "front"]
HEAD = """
import json, sys
import numpy as np

path = sys.argv[1]
"""

WORK = """
import dask.array as da
import shardwrite

x = np.arange(400, dtype="i4").reshape(20, 20)
d = da.from_array(x, chunks=7)
d.to_sharded_zarr(path, shards=(8, 8), chunks=(4, 4))
assert (shardwrite.open_sharded(path)[:, :] == x).all()
x[3:9, 2:17] = 7
da.full((6, 15), 7, dtype="i4", chunks=5).to_sharded_zarr(path, region=(slice(3, 9), slice(2, 17)))
x = np.concatenate([x, x[:3]])
da.from_array(x[:3], chunks=3).to_sharded_zarr(path, region="append", axis=0)
shardwrite.erase(path, (slice(0, 8), slice(0, 8)))
x[:8, :8] = 0
assert (shardwrite.from_sharded_zarr(path).compute() == x).all()
assert shardwrite.verify(path, deep=True, against=x).is_good
assert shardwrite.census(path).counts["written"] == 8
shardwrite.compact(path, above=0.0)
with open(f"{path}/c/1/0", "r+b") as file:
    file.truncate(30)
assert not shardwrite.verify(path).is_good
shardwrite.repair(path, x)
other = path + "-other"
d.to_sharded_zarr(other, shards=(8, 8), chunks=(4, 4))
assert not shardwrite.verify(path, against=x + 1).is_good
assert shardwrite.verify(path, against=path).is_good
with shardwrite.ShardWriter(other, n_threads=1) as writer:
    writer.append(x[0])
plan = shardwrite.plan(d, shards=(8, 8), chunks=(4, 4))
parts = path + "-parts"
shardwrite.prepare(d, parts, plan=plan)
for part in range(2):
    shardwrite.write_part(d, parts, part, 2)
shardwrite.finalize(parts)
shardwrite.store([d], [path + "-stored"])
d.to_sharded_zarr(other, shards=(8, 8), chunks=(4, 4), mode="w")
assert shardwrite.verify(parts, against=d).is_good
assert str(shardwrite.census(other)) and str(plan)
loaded = sorted(filter(is_blocked, sys.modules))
assert not loaded, loaded
"""

REFUSED = """
import dask.array as da
import shardwrite

x = da.zeros((20, 20), dtype="i4", chunks=7)

def append():
    with shardwrite.ShardWriter(path, n_threads=1) as writer:
        writer.append(np.zeros(20, "i4"))

calls = {
    "write": lambda: x.to_sharded_zarr(path, shards=(8, 8), chunks=(4, 4)),
    "replace": lambda: x.to_sharded_zarr(path, shards=(8, 8), chunks=(4, 4), mode="w", restart=True),
    "update": lambda: x.to_sharded_zarr(path, region=(slice(0, 20), slice(0, 20))),
    "erase": lambda: shardwrite.erase(path, (slice(0, 8), slice(0, 8))),
    "stream": append,
    "compact": lambda: shardwrite.compact(path, above=0.0),
    "repair": lambda: shardwrite.repair(path, x),
    "abandon": lambda: shardwrite.abandon(path),
}
said = {}
for name, call in calls.items():
    try:
        call()
    except shardwrite.ShardwriteError as error:
        said[name] = str(error)
print(json.dumps(said))
"""


def run(program: str, path: Path, *wings: str) -> str:
    """Run a program in a process that cannot import some wings."""
    return run_without(wings, HEAD + program, path, *wings)


def tree(path: Path) -> dict[str, bytes]:
    """All files around an array, but for locks of processes that have only looked."""
    return {
        str(each.relative_to(path.parent)): each.read_bytes()
        for each in sorted(path.parent.rglob("*"))
        if each.is_file()
    }


@pytest.mark.long
@pytest.mark.parametrize("wing", BLOCKED)
def test_the_core_works_without_a_wing(tmp_path, wing):
    run(WORK, tmp_path / "x.zarr", wing)


@pytest.mark.long
def test_the_core_works_without_all_of_them(tmp_path):
    run(WORK, tmp_path / "x.zarr", *BLOCKED)


@pytest.fixture
def array(tmp_path):
    path = tmp_path / "x.zarr"
    x = da.arange(400, dtype="i4", chunks=50).reshape(20, 20)
    x.to_sharded_zarr(path, shards=(8, 8), chunks=(4, 4))
    return path


def refusals(path: Path, wing: str) -> dict[str, str]:
    """What calls of the core say without a wing; none of them changes anything."""
    before = tree(path)
    said = json.loads(run(REFUSED, path, wing))
    assert tree(path) == before
    return said


@pytest.mark.long
def test_what_is_converted_in_its_place_is_left_alone(array):
    with InPlace.begun(array, {"": "digest"}):
        pass
    said = refusals(array, "convert")
    assert said.keys() == {"write", "replace", "update", "erase", "stream", "repair", "abandon"}
    assert "install all of shardwrite" in said["abandon"]
    assert all("converted in its place" in text for name, text in said.items() if name != "write")
    assert shardwrite.abandon(array) == []
    assert shardwrite.verify(array).is_good


@pytest.mark.long
def test_what_is_consumed_is_left_alone(array):
    """Its documents are moved aside, so that there is no array at its place."""
    with InPlace.begun(array, {"": "digest"}, "elsewhere") as work:
        state = Consumption(array, work.work)
        state.list_objects("identity", np.ones(9, bool))
        state.hide()
    assert not (array / "zarr.json").exists()
    said = refusals(array, "convert")
    assert said.keys() >= {"write", "replace", "update", "compact", "repair", "abandon"}


ASKED = """
import dask.array as da
import shardwrite

x = da.zeros((20, 20), dtype="i4", chunks=7)
calls = {
    "show": lambda: x.to_sharded_zarr(
        path + "-new", shards=(8, 8), chunks=(4, 4), keep_report=True
    ),
    "sources": lambda: shardwrite.verify(path, against=path + ".npy"),
}
try:
    calls[sys.argv[2]]()
except shardwrite.SpecError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize("wing", ["show", "sources"])
def test_what_only_a_wing_can_do_is_refused_before_anything_is_written(array, wing):
    np.save(array.with_name("x.zarr.npy"), np.zeros((20, 20), "i4"))
    before = tree(array)
    assert "install all of shardwrite" in run(ASKED, array, wing)
    assert tree(array) == before


@pytest.mark.long
def test_an_array_of_2022_is_recognised(tmp_path):
    path = tmp_path / "h"
    x = da.arange(400, dtype="i4", chunks=50).reshape(20, 20)
    x.to_sharded_zarr(
        path, name="x", shards=(8, 8), chunks=(4, 4), format="transformer-2022", compressors=None
    )
    said = refusals(path / "x", "legacy")
    assert len(said) == 8
    assert all("array of 2022" in text and "install all of" in text for text in said.values())


def test_an_array_of_zarr_v2_is_recognised(tmp_path):
    path = tmp_path / "x.zarr"
    zarr.create_array(path, data=np.arange(400).reshape(20, 20), zarr_format=2)
    said = refusals(path, "legacy")
    assert len(said) == 8
