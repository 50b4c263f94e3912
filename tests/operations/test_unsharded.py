"""Arrays without shards: `shards=None` gives a plain Zarr v3 array, by the same runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import dask.array as da
import numpy as np
import pytest
import tensorstore as ts
import zarr
from forks import python

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter, SpecError
from shardwrite.cli import main

SHAPE, CHUNK = (64, 50), 16
REGION = (slice(5, 40), slice(3, 30))
ZSTD = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}


def values(version=0):
    """Some of them are the fill value, and so is all of the first chunk."""
    found = ((np.arange(64 * 50).reshape(SHAPE) * 31 + version) % 97).astype("u2")
    found[:CHUNK, :CHUNK] = 0
    return found


def read(path):
    """What three readers agree on."""
    found = zarr.open_array(path, mode="r")[...]
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    np.testing.assert_array_equal(ts.open(spec).result().read().result(), found)
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(path).compute(), found)
    return found


@pytest.fixture(params=["auto", None, "gzip"], ids=str)
def path(tmp_path, request):
    x = da.from_array(values(), chunks=20)
    x.to_sharded_zarr(tmp_path / "x", shards=None, chunks=CHUNK, compressors=request.param)
    return tmp_path / "x"


def test_each_chunk_is_a_file(path):
    np.testing.assert_array_equal(read(path), values())
    document = json.loads((path / "zarr.json").read_text())
    assert "sharding_indexed" not in [codec["name"] for codec in document["codecs"]]
    assert document["chunk_grid"]["configuration"]["chunk_shape"] == [CHUNK, CHUNK]
    files = {str(p.relative_to(path / "c")) for p in (path / "c").rglob("*") if p.is_file()}
    assert files == {f"{i}/{j}" for i in range(4) for j in range(4)} - {"0/0"}
    assert shardwrite.verify(path, deep=True).is_good


def test_zarr_python_writes_the_same_document(tmp_path):
    da.zeros(SHAPE, chunks=20, dtype="u2").to_sharded_zarr(
        tmp_path / "ours", shards=None, chunks=CHUNK, compressors=ZSTD
    )
    given = {"shape": SHAPE, "chunks": (CHUNK, CHUNK), "dtype": "u2"}
    zarr.create_array(tmp_path / "theirs", compressors=ZSTD, **given)
    ours, theirs = (
        json.loads((tmp_path / n / "zarr.json").read_text()) for n in ("ours", "theirs")
    )
    assert ours == theirs


def test_an_array_of_zarr_python_is_updated(tmp_path):
    theirs = zarr.create_array(tmp_path / "x", shape=SHAPE, chunks=(CHUNK, CHUNK), dtype="u2")
    theirs[...] = values()
    assert shardwrite.verify(tmp_path / "x", deep=True).is_good
    wanted = values()
    wanted[REGION] = 7
    shardwrite.write_region(da.from_array(wanted[REGION], chunks=10), tmp_path / "x", REGION)
    np.testing.assert_array_equal(read(tmp_path / "x"), wanted)


def test_regions_and_erasing(path):
    wanted = values()
    wanted[REGION] = values(5)[REGION]
    before = {p: p.read_bytes() for p in (path / "c").rglob("*") if p.is_file()}
    da.from_array(wanted[REGION], chunks=10).to_sharded_zarr(path, region=REGION)
    np.testing.assert_array_equal(read(path), wanted)
    untouched = path / "c" / "3" / "3"
    assert untouched.read_bytes() == before[untouched]
    shardwrite.erase(path, (slice(0, 32), slice(0, 32)))
    wanted[:32, :32] = 0
    np.testing.assert_array_equal(read(path), wanted)
    assert not (path / "c" / "1" / "1").exists()
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize(
    "strategy", [AppendOnly(), AppendOnly(in_place=True), FixedOrder(in_place=True)], ids=str
)
def test_strategies_that_change_shards_are_refused(path, strategy):
    x = da.from_array(values()[REGION], chunks=10)
    with pytest.raises(SpecError, match=r'the array has none.*give "fixed-order"'):
        x.to_sharded_zarr(path, region=REGION, strategy=strategy)
    np.testing.assert_array_equal(read(path), values())


def test_a_stream(path):
    rows = values(9)[:20]
    with ShardWriter(path) as writer:
        for row in rows:
            writer.append(row)
    np.testing.assert_array_equal(read(path), np.concatenate([values(), rows]))
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize("damage", ["cut", "emptied", "longer", "gone"])
def test_damage_is_found_and_repaired(path, damage):
    file = path / "c" / "1" / "2"
    data = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes({"cut": data[:3], "emptied": b"", "longer": data * 2}[damage])
    assert not shardwrite.verify(path, deep=True).is_good
    shardwrite.repair(path, da.from_array(values(), chunks=30))
    np.testing.assert_array_equal(read(path), values())
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize(
    ("keyword", "value"), [("index_location", "start"), ("index_codecs", ["bytes"])]
)
def test_what_is_about_an_index_is_refused(tmp_path, keyword, value):
    x = da.from_array(values(), chunks=20)
    with pytest.raises(SpecError, match="is for sharded arrays") as caught:
        x.to_sharded_zarr(tmp_path / "x", shards=None, chunks=CHUNK, **{keyword: value})
    assert caught.value.fields["field"] == keyword
    assert not (tmp_path / "x").exists()


def test_compaction_finds_nothing_to_do(path):
    before = {p: p.read_bytes() for p in (path / "c").rglob("*") if p.is_file()}
    assert shardwrite.compact(path, above=0.0).n_rewritten == 0
    assert {p: p.read_bytes() for p in (path / "c").rglob("*") if p.is_file()} == before


_KILLED = """
import os, signal, sys
import dask, dask.array as da, numpy as np, shardwrite
def end(report):
    if sys.argv[3] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
x = da.from_array(np.load(sys.argv[1]), chunks=8)
with dask.config.set(scheduler="sync"):
    result = x.to_sharded_zarr(sys.argv[2], shards=None, chunks=16, source_id="v", progress=end)
print(result.n_resumed_shards)
"""


def test_a_killed_run_goes_on(tmp_path):
    np.save(tmp_path / "v.npy", values())
    command = [*python(), "-c", _KILLED, tmp_path / "v.npy", tmp_path / "x"]
    killed = subprocess.run([*command, "killed"], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    ended = subprocess.run([*command, "again"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert 0 < int(ended.stdout) < 16
    np.testing.assert_array_equal(read(tmp_path / "x"), values())


def test_create_and_the_command_line(tmp_path):
    shardwrite.create(tmp_path / "x", SHAPE, "u2", shards=None, chunks=CHUNK)
    assert read(tmp_path / "x").sum() == 0
    np.save(tmp_path / "v.npy", values())
    source, target = str(tmp_path / "v.npy"), str(tmp_path / "y")
    assert main(
        ["write", source, target, "--shards", "none", "--chunks", "16"], standalone_mode=False
    ) in (0, None)
    np.testing.assert_array_equal(read(tmp_path / "y"), values())
    assert not os.path.exists(f"{target}.shardwrite")
